"""Databases and the check that nothing of a worker is left behind."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from tenure import open_store
from tests.loops.stage import LOOK_EVERY, STYLES, Theatre
from tests.support.postgres import Databases

DIALECTS = ("sqlite", "postgresql")


def prepare(url: str) -> None:
    with open_store(url) as store:
        store.migrate()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A fresh SQLite file with the schema."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    prepare(url)
    return url


@pytest.fixture
def postgresql_url(postgres_databases: Databases) -> Iterator[str]:
    """A fresh PostgreSQL database with the schema."""
    with postgres_databases.lend("loops", prepare) as url:
        yield url


@pytest.fixture(params=DIALECTS)
def url(request: pytest.FixtureRequest) -> str:
    """A fresh database with the schema; the test runs on both."""
    made: str = request.getfixturevalue(f"{request.param}_url")
    return made


@pytest.fixture
def both_urls(sqlite_url: str, postgresql_url: str) -> SimpleNamespace:
    """One of each, for a test that looks at both side by side."""
    return SimpleNamespace(sqlite=sqlite_url, postgresql=postgresql_url)


@pytest.fixture(scope="module", params=DIALECTS)
def theatre(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    """One worker on each database for all tests of a module."""
    before = set(threading.enumerate())
    with ExitStack() as stack:
        if request.param == "sqlite":
            url = f"sqlite:///{tmp_path_factory.mktemp('theatre')}/jobs.db"
            prepare(url)
        else:
            databases: Databases = request.getfixturevalue("postgres_databases")
            url = stack.enter_context(databases.lend("loops", prepare))
        made = Theatre(url, journal_dir=tmp_path_factory.mktemp("journal"))
        with made.app.store.transaction() as tx:
            tx.execute("CREATE TABLE note (job TEXT, text TEXT)")
        yield stack.enter_context(made)
    expect_none(before)


@pytest.fixture(params=STYLES)
def style(request: pytest.FixtureRequest) -> str:
    """How a scene's handler is written: `def` or `async def`."""
    made: str = request.param
    return made


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every thread that a worker started has ended when its test has."""
    if "theatre" in request.fixturenames:
        yield  # its worker goes on; the theatre looks when it closes
        return
    before = set(threading.enumerate())
    yield
    expect_none(before)


def expect_none(before: set[threading.Thread]) -> None:
    deadline = time.monotonic() + 10
    while left(before):
        assert time.monotonic() < deadline, f"these threads do not end: {left(before)}"
        time.sleep(LOOK_EVERY)
    gc.collect()  # what was not closed says so now, and warnings are errors


def left(before: set[threading.Thread]) -> list[str]:
    return [one.name for one in threading.enumerate() if one not in before and one.name.startswith("tenure")]
