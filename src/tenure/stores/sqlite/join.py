"""Run procedures in a transaction that the caller opened on a connection of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Self, TypeVar, cast

from tenure.errors import Invalid
from tenure.stores.runner import asked
from tenure.stores.sqlite.connect import file_of
from tenure.stores.sqlite.engine import Engine
from tenure.stores.sqlite.turn import run_inside
from tenure.yields import Procedure

T = TypeVar("T")


class Joined:
    """The caller's transaction; see `contract.Transaction`. Works with and without `with`, and ends nothing."""

    def __init__(self, engine: Engine, connection: Any) -> None:
        engine.check_process()
        engine.anchor.check()
        if not isinstance(connection, sqlite3.Connection):
            raise Invalid(
                "a SQLite store joins connections of the sqlite3 module, or what holds one (aiosqlite where it is "
                f"awaited, SQLAlchemy, Django), not {type(connection).__name__}",
                code="CANNOT_JOIN",
            )
        self.connection = connection
        self._engine = engine
        self._check_open()
        here = engine.place.path
        try:
            same = connection is engine.writer.connection if here is None else file_of(connection) == here
        except sqlite3.ProgrammingError as error:
            raise _foreign(error) from error
        if not same:
            raise Invalid(
                "this connection has another main database than the store; the job would not be in your transaction",
                code="CANNOT_JOIN",
            )
        engine.writer.check_schema(connection)

    def _check_open(self) -> None:
        try:
            inside = self.connection.in_transaction
        except sqlite3.ProgrammingError:
            raise Invalid("the connection to join is closed", code="CANNOT_JOIN") from None
        if not inside:
            raise Invalid(_reason(self.connection), code="AUTOCOMMIT")

    def run(self, procedure: Procedure[T]) -> T:
        """See `contract.Transaction.run`; an `AfterCommit` is given back as it is: the commit is the caller's."""
        with asked(procedure, self._engine.allows):
            self._engine.check_process()
            self._check_open()
            try:
                value = run_inside(self.connection, procedure, self._engine.answers, self._engine.clock, deferred=True)
            except sqlite3.ProgrammingError as error:
                raise _foreign(error) from error
        return cast("T", value)

    def execute(self, sql: str, params: Sequence[Any] | dict[str, Any] = ()) -> sqlite3.Cursor:
        """Run the caller's own SQL and give the driver's cursor."""
        self._check_open()
        return self.connection.execute(sql, params)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the transaction to its owner."""


def _foreign(error: sqlite3.ProgrammingError) -> Exception:
    """Word what sqlite3 says to a connection's use by another thread; anything else is given back as it is."""
    if "thread" not in str(error):
        return error
    return Invalid(
        "this connection was opened in another thread, and sqlite3 refuses it here: join it where it was opened, or "
        "open it with check_same_thread=False and see to it that one thread at a time uses it",
        code="CANNOT_JOIN",
    )


def _reason(connection: sqlite3.Connection) -> str:
    start = "no transaction is open on this connection, so this would be committed by itself; "
    if connection.isolation_level is not None:
        return (
            start + "sqlite3 opens one only before your first INSERT, UPDATE or DELETE: write first, or execute BEGIN"
        )
    return start + "execute BEGIN IMMEDIATE first"


class AsyncJoined:
    """The awaiting twin of `Joined`: the connection stays with its caller's thread, and the calls are short."""

    def __init__(self, engine: Engine, connection: Any) -> None:
        self._joined = Joined(engine, connection)
        self.connection = self._joined.connection

    async def run(self, procedure: Procedure[T]) -> T:
        """See `Joined.run`."""
        return self._joined.run(procedure)

    async def execute(self, sql: str, params: Sequence[Any] | dict[str, Any] = ()) -> sqlite3.Cursor:
        """See `Joined.execute`."""
        return self._joined.execute(sql, params)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        """Leave the transaction to its owner."""
