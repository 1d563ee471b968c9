"""A caller's own connection with a transaction of its own, on either database, blocking or awaiting."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from tenure.yields import Procedure
from tests.contract.bench import Awaited, Bench, SqliteFile

T = TypeVar("T")


class Caller:
    """
    What a producer has: a connection, its own table `own`, and a transaction that it ends itself.

    Attributes:
        connection: The driver's own, seen by a caller that blocks.
    """

    def __init__(self, bench: Bench, raw: Any) -> None:
        self._bench = bench
        self.raw = raw
        self.connection: Any = raw if bench.loop is None else Awaited(raw, bench.loop)

    def begin(self) -> None:
        """Open the transaction."""
        if self._bench.dialect == "sqlite":
            self.execute("BEGIN IMMEDIATE")
        else:
            # The driver begins by itself before the first statement.
            self.execute("SELECT 1")

    def execute(self, sql: str, *params: Any) -> Any:
        text = sql if self._bench.dialect == "sqlite" else sql.replace("?", "%s")
        return self.connection.execute(text, params)

    def rows(self, sql: str) -> list[Any]:
        """Read through the connection as the caller has set it up."""

        async def body() -> list[Any]:
            cursor = self.raw.execute(sql)
            cursor = await cursor if isinstance(cursor, Awaitable) else cursor
            found = cursor.fetchall()
            return list(await found if isinstance(found, Awaitable) else found)

        if self._bench.loop is not None:
            return self._bench.loop.run(body())
        return list(self.raw.execute(sql).fetchall())

    def write(self, value: int) -> None:
        """Do the caller's own business."""
        self.execute("INSERT INTO own (value) VALUES (?)", value)

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def close(self) -> None:
        self.connection.close()

    def join(self) -> Any:
        """Join the store to the open transaction."""
        loop = self._bench.loop
        if loop is None:
            return self._bench.store.join(self.raw)
        return Awaited(loop.call(self._bench.store.join, self.raw), loop)

    def run(self, procedure: Procedure[T], joined: Any = None) -> T:
        """Run one procedure in the caller's transaction."""
        try:
            value: T = (joined or self.join()).run(procedure)
        finally:
            # One that is refused before it begins would warn that nobody ran it.
            procedure._note()
        return value


def connect(bench: Bench, **settings: Any) -> Caller:
    """Open a connection of a producer's own, as its program would."""
    if isinstance(bench.database, SqliteFile):
        path = bench.database.path
        options = {"isolation_level": None, **settings}
        raw: Any = sqlite3.connect(path, **options) if bench.loop is None else bench.loop.call(_sqlite, path, options)
        return Caller(bench, raw)
    url = bench.database.url
    if bench.loop is None:
        return Caller(bench, psycopg.connect(url, **settings))
    return Caller(bench, bench.loop.run(psycopg.AsyncConnection.connect(url, **settings)))


def _sqlite(path: Path, options: dict[str, Any]) -> sqlite3.Connection:
    made: sqlite3.Connection = sqlite3.connect(path, **options)
    return made


@contextmanager
def producer(bench: Bench, **settings: Any) -> Iterator[Caller]:
    """Give a connection that is closed at the end; what it did not commit is gone then."""
    caller = connect(bench, **settings)
    try:
        yield caller
    finally:
        caller.close()


def own(bench: Bench) -> list[int]:
    """Give what is committed in the caller's table."""
    return [row[0] for row in bench.sql("SELECT value FROM own ORDER BY value")]
