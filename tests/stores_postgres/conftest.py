"""Stores on fresh databases with the toy schema, blocking and awaiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import psycopg
import pytest

from tenure.stores.postgres.store import PostgresStore
from tests.stores_postgres.guarded import Place
from tests.stores_postgres.toy import MIGRATIONS, STATEMENTS, Awaiting, Blocking
from tests.support.postgres import Databases, start_server
from tests.support.proxy import Proxy

Maker: TypeAlias = Callable[..., Any]


class Toys:
    """
    Databases with the toy schema, used again after a cleaning: making one takes a hundred times as long.

    A database whose schema a test changed is thrown away.
    """

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._clean: list[str] = []

    def take(self) -> str:
        if self._clean:
            return self._clean.pop()
        return self._databases.copy("stores_postgres", _prepare)

    def give(self, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as admin:
            # A test may have made the database read-only by default.
            admin.execute(b"SET default_transaction_read_only = off")
            admin.execute(f'ALTER DATABASE "{admin.info.dbname}" RESET ALL'.encode())
            admin.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            as_made = admin.execute(
                "SELECT max(version), (SELECT count(*) FROM tenure.meta) FROM tenure.migration"
            ).fetchone() == (1, 0)
            if as_made:
                admin.execute(b"TRUNCATE tenure.note, tenure.command, tenure.counter")
                admin.execute(b"ALTER SEQUENCE tenure.failures RESTART")
                admin.execute(b"DROP TABLE IF EXISTS public.accepted")
        if as_made:
            self._clean.append(url)
        else:
            self._databases.drop(url)


def _prepare(url: str) -> None:
    with PostgresStore(url, statements=STATEMENTS, migrations=MIGRATIONS) as store:
        store.migrate()


@pytest.fixture(scope="session")
def toys(postgres_databases: Databases) -> Toys:
    """Give the databases with the toy schema."""
    return Toys(postgres_databases)


@pytest.fixture
def database(toys: Toys) -> Iterator[str]:
    """Give the URL of a database with the toy schema and nothing in it."""
    url = toys.take()
    try:
        yield url
    finally:
        toys.give(url)


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


@pytest.fixture(scope="module")
def guarded() -> Iterator[Place]:
    """Give a database with a login for each role, on a server of its own: logins and roles belong to servers."""
    with start_server() as server:
        made = Place(server.url)
        yield made
        made.close()
