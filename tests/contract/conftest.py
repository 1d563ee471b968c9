"""
Every test here runs four times: on SQLite and on PostgreSQL, with a blocking and with an awaiting store.

`make test` runs two of the four, one on each database, one blocking and one awaiting, by the test's name: the two kinds
of store are made from the same definitions. The other two are its twins, which `make contract`, `make nightly` and CI
run too; so are the runs below.

The tests of a file that says `THROUGH_THE_FUNCTION = True` run once more, with jobs that the SQL function creates.
Those of a file that says `THROUGH_THE_POOLER = True` run once more, with a blocking store behind PgBouncer in
transaction mode. Such files hold what a worker, a producer and a relay ask of a database; the others would take as
long again and use the same connections in the same ways. Those of a file that says `BLOCKING_ALONE = True` do without
the awaiting stores: what they ask is what SQL does, and an awaiting store sends the same.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from tenure.stores import open_store
from tests.contract.bench import (
    Bench,
    Database,
    LoopThread,
    PostgresDatabase,
    SqliteFile,
    TestClock,
    close_bench,
    open_bench,
)
from tests.contract.build import neighbour
from tests.contract.invariants import broken
from tests.support.brokers import or_skip
from tests.support.pgbouncer import MIXING, PgBouncer

SQLITE = ["sqlite-blocking", "sqlite-awaiting"]
POSTGRESQL = ["postgresql-blocking", "postgresql-awaiting"]
FUNCTION = ["postgresql-function"]
POOLED = ["postgresql-pooled"]


class Benches:
    """
    The benches of one test process, made when first asked for.

    The tests of a process share one SQLite file and one PostgreSQL database, emptied before each test.
    """

    def __init__(self, request: pytest.FixtureRequest, factory: pytest.TempPathFactory) -> None:
        self._request = request
        self._factory = factory
        self._clock = TestClock()
        self._loop: LoopThread | None = None
        self._databases: dict[str, Database] = {}
        self._benches: dict[str, Bench] = {}
        self._pooler: PgBouncer | None = None

    def get(self, name: str) -> Bench:
        if name not in self._benches:
            url = self.pooler.url if name in POOLED else None
            self._benches[name] = self.open(name, url)
        bench = self._benches[name]
        bench.reset()
        return bench

    def open(self, name: str, url: str | None = None, database: Database | None = None) -> Bench:
        """
        Open one more bench; its maker closes it.

        Args:
            url: Another way to the database.
            database: Another one than the one all tests share.
        """
        dialect, _, manner = name.partition("-")
        loop = self.loop if manner == "awaiting" else None
        made = open_bench(database or self.database(dialect), self._clock, loop, url)
        made.through_the_function = manner == "function"
        made.service = made.bound()
        return made

    @property
    def loop(self) -> LoopThread:
        if self._loop is None:
            self._loop = LoopThread()
        return self._loop

    @property
    def pooler(self) -> PgBouncer:
        """The pooler of this test process; where the program is missing, the test that asks is skipped."""
        if self._pooler is None:
            url = self.database("postgresql").url
            self._pooler = or_skip(lambda: PgBouncer(url, settings=MIXING))
            self._pooler.take_turns()
        return self._pooler

    def database(self, dialect: str) -> Database:
        if dialect not in self._databases:
            if dialect == "sqlite":
                made: Database = SqliteFile(self._factory.mktemp("contract") / "jobs.db")
            else:
                made = PostgresDatabase(self._request.getfixturevalue("postgres_databases").create())
            self._databases[dialect] = self._prepared(made)
        return self._databases[dialect]

    def prepare(self, url: str) -> PostgresDatabase:
        """Prepare an empty database of a test's own like the shared one."""
        made = PostgresDatabase(url)
        self._prepared(made)
        return made

    def _prepared(self, database: Database) -> Database:
        with contextlib.closing(open_store(database.url)) as store:
            store.migrate(test_clock=True)
        database.open()
        # A table of the user's own, written in the user's transactions and publishes.
        database.sql("CREATE TABLE own (value INTEGER PRIMARY KEY)")
        bench = open_bench(database, self._clock, None)
        neighbour(bench)
        close_bench(bench)
        database.keep()
        return database

    def close(self) -> None:
        for bench in self._benches.values():
            close_bench(bench)
        if self._pooler is not None:
            self._pooler.close()
        for database in self._databases.values():
            database.close()
        if self._loop is not None:
            self._loop.close()


@pytest.fixture(scope="session")
def benches(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Benches]:
    made = Benches(request, tmp_path_factory)
    try:
        yield made
    finally:
        made.close()


def _checked(benches: Benches, name: str) -> Iterator[Bench]:
    bench = benches.get(name)
    yield bench
    assert broken(bench.dump(), bench.baseline) == []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the runs of a test that asks for `bench`."""
    if "bench" in metafunc.fixturenames:
        usual: list[Any] = [SQLITE[0], POSTGRESQL[0]]
        if not getattr(metafunc.module, "BLOCKING_ALONE", False):
            turn = zlib.crc32(metafunc.function.__name__.encode()) % 2
            twins = (SQLITE[1 - turn], POSTGRESQL[turn])
            usual = [SQLITE[turn], POSTGRESQL[1 - turn], *(pytest.param(one, marks=pytest.mark.twin) for one in twins)]
        more = FUNCTION if getattr(metafunc.module, "THROUGH_THE_FUNCTION", False) else []
        more = more + (POOLED if getattr(metafunc.module, "THROUGH_THE_POOLER", False) else [])
        usual += [pytest.param(one, marks=pytest.mark.twin) for one in more]
        metafunc.parametrize("bench", usual, indirect=True)


@pytest.fixture
def bench(request: pytest.FixtureRequest, benches: Benches) -> Iterator[Bench]:
    """Give an empty bench; the invariants are checked when the test is over."""
    yield from _checked(benches, request.param)


@pytest.fixture(params=SQLITE)
def sqlite_bench(request: pytest.FixtureRequest, benches: Benches) -> Iterator[Bench]:
    """Give a bench for what only SQLite has."""
    yield from _checked(benches, request.param)


@pytest.fixture(params=POSTGRESQL)
def postgres_bench(request: pytest.FixtureRequest, benches: Benches) -> Iterator[Bench]:
    """Give a bench for what only PostgreSQL has."""
    yield from _checked(benches, request.param)
