from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.stores.sqlite.store import SqliteStore
from tests.stores_sqlite.toy import toy_store


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/toy.db"


@pytest.fixture
def store(url: str) -> Iterator[SqliteStore]:
    with toy_store(url) as opened:
        opened.migrate()
        yield opened


@pytest.fixture
def memory() -> Iterator[SqliteStore]:
    with toy_store("sqlite:///:memory:") as opened:
        opened.migrate()
        yield opened


@pytest.fixture(params=["file", "memory"])
def either(request: pytest.FixtureRequest) -> SqliteStore:
    """Give the same store in a file and in memory."""
    chosen: SqliteStore = request.getfixturevalue("store" if request.param == "file" else "memory")
    return chosen
