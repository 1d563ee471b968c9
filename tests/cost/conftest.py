"""A server on which nothing else happens, and fresh databases for counting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest

from tests.cost import baseline
from tests.cost.servers import prepare, prepare_analysed, start_quiet
from tests.support.postgres import Databases, Server


@pytest.fixture(scope="session")
def quiet_server() -> Iterator[Server]:
    """A PostgreSQL of this process's own: what others log there would be counted."""
    with start_quiet() as server:
        yield server


@pytest.fixture(scope="session")
def quiet_databases(quiet_server: Server) -> Databases:
    """The maker of databases on it."""
    return Databases(quiet_server.url)


@pytest.fixture(scope="session")
def server_name(quiet_server: Server) -> str:
    """What the baseline calls this server."""
    with psycopg.connect(quiet_server.url) as connection:
        return baseline.name_of(connection.info.server_version)


@pytest.fixture
def make_postgres(quiet_databases: Databases) -> Iterator[Callable[[], str]]:
    """Make PostgreSQL databases with the schema; they are dropped after the test."""
    made: list[str] = []

    def make() -> str:
        made.append(quiet_databases.copy("cost", prepare))
        return made[-1]

    yield make
    for url in made:
        quiet_databases.drop(url)


@pytest.fixture
def make_sqlite(tmp_path: Path) -> Callable[[], str]:
    """Make SQLite files with the schema."""
    numbers = count()

    def make() -> str:
        url = f"sqlite:///{tmp_path}/{next(numbers)}.db"
        prepare(url)
        return url

    return make


@pytest.fixture
def analysed_url(quiet_databases: Databases) -> Iterator[str]:
    """A database whose statistics say that every table is empty."""
    with quiet_databases.lend("analysed", prepare_analysed) as url:
        yield url
