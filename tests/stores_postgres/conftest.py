"""Stores on fresh databases with the toy schema, blocking and awaiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest

from tenure.stores.postgres.store import PostgresStore
from tests.stores_postgres.toy import MIGRATIONS, STATEMENTS, Awaiting, Blocking
from tests.support.postgres import Databases
from tests.support.proxy import Proxy

Maker: TypeAlias = Callable[..., Any]


def _prepare(url: str) -> None:
    with PostgresStore(url, statements=STATEMENTS, migrations=MIGRATIONS) as store:
        store.migrate()


@pytest.fixture
def database(postgres_databases: Databases) -> Iterator[str]:
    """Give the URL of a database with the toy schema."""
    url = postgres_databases.copy("stores_postgres", _prepare)
    try:
        yield url
    finally:
        postgres_databases.drop(url)


@pytest.fixture(params=[Blocking, Awaiting], ids=lambda kind: str(kind.kind))
def make(request: pytest.FixtureRequest) -> Iterator[Maker]:
    """Give the maker of stores of one kind; they are closed after the test."""
    made = []

    def maker(url: str, **options: Any) -> Any:
        store = request.param(url, **options)
        made.append(store)
        return store

    yield maker
    for store in made:
        store.close()


@pytest.fixture
def proxy(database: str) -> Iterator[Proxy]:
    """Give a proxy in front of the toy database."""
    with Proxy(database) as proxy:
        yield proxy
