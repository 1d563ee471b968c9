"""
Our connections and cursors: a deadline for every wait, and one round trip for many commands.

Own connections are in autocommit mode and begin and commit by commands, so that both can share a round trip with
others. A joined connection is the caller's in every respect; only the cursors on it are ours.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import generators, pq
from psycopg.abc import PQGen
from psycopg.adapt import AdaptersMap
from psycopg.rows import tuple_row

from tenure.errors import Invalid
from tenure.stores.postgres.trouble import Silence, failure
from tenure.stores.postgres.values import Command, adapters
from tenure.yields import Row, Rows

T = TypeVar("T")

# No wait of a connection lasts longer, in seconds, where nobody set a deadline (the pool's own upkeep).
_PATIENCE = 10.0

# More than a store has statements; the driver forgets the oldest beyond it.
_PREPARED_MAX = 500

Reporter = Callable[[Exception | None], None]


class _Watched:
    """What both kinds of connections of a store know."""

    # When waiting ends, monotonic; infinite inside a block whose owner set no deadline.
    deadline: float | None = None
    # Set after the server and its schema were found right.
    verified = False
    # Which start of which server this leads to; known once verified.
    server_run = ""
    # The process whose socket this is.
    owner = 0
    # The pool it came from.
    home: Any = None

    def watch(self, steps: PQGen[T]) -> PQGen[T]:
        if os.getpid() != self.owner:
            steps.close()
            raise forked()
        deadline = time.monotonic() + _PATIENCE if self.deadline is None else self.deadline
        try:
            state = next(steps)
            while True:
                ready = yield state
                # The driver comes back without an event ten times a second.
                if not ready and time.monotonic() > deadline:
                    steps.close()
                    raise Silence("no answer in time")
                state = steps.send(ready)
        except StopIteration as end:
            value: T = end.value
            return value


def forked() -> Invalid:
    """Make the error for a connection used in a child of its process."""
    return Invalid(
        "this connection belongs to the parent process; open a transaction after the fork, in the child",
        code="FORKED",
    )


class BlockingConnection(_Watched, psycopg.Connection[Row]):
    """A connection of a blocking store."""

    @classmethod
    def connect(cls, conninfo: str = "", *, report: Reporter, **options: Any) -> BlockingConnection:  # type: ignore[override]
        """Connect and tell `report` how it went: a pool keeps the reason to itself."""
        try:
            made = super().connect(conninfo, **options)
        except psycopg.Error as error:
            report(error)
            raise
        report(None)
        made.owner = os.getpid()
        made.prepared_max = _PREPARED_MAX
        return made

    def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        """Wait no longer than the deadline."""
        return super().wait(self.watch(gen), *args, **options)


class AwaitingConnection(_Watched, psycopg.AsyncConnection[Row]):
    """A connection of an awaiting store."""

    @classmethod
    async def connect(  # type: ignore[override]
        cls, conninfo: str = "", *, report: Reporter, **options: Any
    ) -> AwaitingConnection:
        """See `BlockingConnection.connect`."""
        try:
            made = await super().connect(conninfo, **options)
        except psycopg.Error as error:
            report(error)
            raise
        report(None)
        made.owner = os.getpid()
        made.prepared_max = _PREPARED_MAX
        return made

    async def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        """Wait no longer than the deadline."""
        return await super().wait(self.watch(gen), *args, **options)


class _Cursor(psycopg.RawCursor[Row]):
    @property
    def adapters(self) -> AdaptersMap:
        return adapters


class _AsyncCursor(psycopg.AsyncRawCursor[Row]):
    @property
    def adapters(self) -> AdaptersMap:
        return adapters


def exchange(
    connection: psycopg.Connection[Any],
    commands: Sequence[Command],
    *,
    prepare: bool | None = None,
) -> list[Rows]:
    """
    Send commands in one round trip and give the rows of each.

    Args:
        prepare: True prepares at the first use, None leaves it to the connection.
    Raises:
        Failure: Of the first command that failed.
    """
    cursors: list[_Cursor] = []

    def send(command: Command) -> None:
        cursor = _Cursor(connection, row_factory=tuple_row)
        cursors.append(cursor)
        # A text of several statements must go the simple way, unprepared and without binary results.
        alone = command.script
        cursor.execute(command.query, command.params, prepare=False if alone else prepare, binary=not alone)

    try:
        if len(commands) == 1 and not connection.pgconn.pipeline_status:
            send(commands[0])
        else:
            with connection.pipeline():
                for command in commands:
                    send(command)
    except psycopg.Error as error:
        raise failure(error, _unanswered(commands, cursors), connection.pgconn) from None
    return [cursor.fetchall() if cursor.description else [] for cursor in cursors]


async def exchange_async(
    connection: psycopg.AsyncConnection[Any],
    commands: Sequence[Command],
    *,
    prepare: bool | None = None,
) -> list[Rows]:
    """See `exchange`."""
    cursors: list[_AsyncCursor] = []

    async def send(command: Command) -> None:
        cursor = _AsyncCursor(connection, row_factory=tuple_row)
        cursors.append(cursor)
        alone = command.script
        await cursor.execute(command.query, command.params, prepare=False if alone else prepare, binary=not alone)

    try:
        if len(commands) == 1 and not connection.pgconn.pipeline_status:
            await send(commands[0])
        else:
            async with connection.pipeline():
                for command in commands:
                    await send(command)
    except psycopg.Error as error:
        raise failure(error, _unanswered(commands, cursors), connection.pgconn) from None
    return [await cursor.fetchall() if cursor.description else [] for cursor in cursors]


def _unanswered(commands: Sequence[Command], cursors: Sequence[psycopg.Cursor[Row] | psycopg.AsyncCursor[Row]]) -> str:
    # The driver says what failed, not which: it is the first without a result.
    for command, cursor in zip(commands, cursors, strict=False):
        if cursor.pgresult is None:
            return command.name
    return commands[-1].name


def play(connection: psycopg.Connection[Any], steps: Generator[list[Command], list[Rows], T]) -> T:
    """Run a script of our own, such as a migration: lists of commands out, lists of rows in."""
    answer: Any = None
    while True:
        try:
            commands = steps.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value
        answer = exchange(connection, commands)


async def play_async(connection: psycopg.AsyncConnection[Any], steps: Generator[list[Command], list[Rows], T]) -> T:
    """See `play`."""
    answer: Any = None
    while True:
        try:
            commands = steps.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value
        answer = await exchange_async(connection, commands)


# Rolling back goes beneath the driver, for `connection.wait`. The driver forgets every prepared statement at a rollback,
# for fear of rolled back changes of the schema, and in a round trip of many commands it makes the server forget them too
# late: after the next one was prepared. We change no schema outside migrations.


def rollback(pgconn: pq.abc.PGconn) -> PQGen[bool]:
    """Roll the transaction back; False where it could not be."""
    return (yield from _beneath(pgconn, b"ROLLBACK"))


def undo(pgconn: pq.abc.PGconn) -> PQGen[bool]:
    """Roll back to the savepoint of a procedure and let go of it; False where it could not be."""
    return (yield from _beneath(pgconn, b"ROLLBACK TO SAVEPOINT tenure_step; RELEASE SAVEPOINT tenure_step"))


def _beneath(pgconn: pq.abc.PGconn, text: bytes) -> PQGen[bool]:
    pgconn.send_query(text)
    results: list[pq.abc.PGresult] = yield from generators.execute(pgconn)
    return all(result.status == pq.ExecStatus.COMMAND_OK for result in results)
