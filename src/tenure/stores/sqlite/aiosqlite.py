"""
Procedures inside a caller's transaction on an aiosqlite connection.

Its sqlite3 connection lives in a thread of its own, so a whole procedure goes there at once: one hop instead of one for
every statement, and no other task's statement comes between its savepoint and the end of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from tenure.errors import Invalid
from tenure.stores.runner import asked
from tenure.stores.sqlite.engine import Engine
from tenure.stores.sqlite.join import Joined
from tenure.yields import Procedure

T = TypeVar("T")


class AiosqliteJoined:
    """The caller's transaction on an aiosqlite connection; see `contract.AsyncTransaction`. It ends nothing."""

    def __init__(self, engine: Engine, connection: Any) -> None:
        self.connection = connection
        self._engine = engine

    async def run(self, procedure: Procedure[T]) -> T:
        """See `join.Joined.run`; a cancelled caller does not undo what it asked for."""
        with asked(procedure, self._engine.allows):
            return await self._in_its_thread(lambda: self._joined().run(procedure))

    async def execute(self, sql: str, params: Sequence[Any] | dict[str, Any] = ()) -> Any:
        """Run the caller's own SQL and give the driver's cursor."""
        await self._in_its_thread(self._joined)
        return await self.connection.execute(sql, params)

    def _joined(self) -> Joined:
        # The private name is the only way to the connection that every method of aiosqlite works on.
        return Joined(self._engine, self.connection._conn)  # noqa: SLF001

    async def _in_its_thread(self, work: Callable[[], T]) -> T:
        run = getattr(self.connection, "_execute", None)
        if run is None:
            raise Invalid(
                "this version of aiosqlite cannot be joined; use aiosqlite 0.17 to 0.22, or the sqlite3 module",
                code="CANNOT_JOIN",
            )
        try:
            value: T = await run(work)
        except ValueError as error:
            if getattr(self.connection, "_connection", None) is not None:
                raise
            raise Invalid("the connection to join is closed, or was never opened", code="CANNOT_JOIN") from error
        return value

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        """Leave the transaction to its owner."""
