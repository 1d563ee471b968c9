"""
Our connections and cursors: a deadline for every wait, and one round trip for many queries.

Own connections are in autocommit mode and begin and commit by queries, so that both can share a round trip with
others. A joined connection is the caller's in every respect; only the cursors on it are ours.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import generators, pq
from psycopg.abc import PQGen
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.rows import tuple_row

from tenure.errors import Invalid
from tenure.stores.postgres.trouble import FORGOTTEN, Failure, Silence, failure
from tenure.stores.postgres.values import Query, adapters
from tenure.yields import Row, Rows

T = TypeVar("T")

# No wait of a connection lasts longer, in seconds, where nobody set a deadline (the pool's own upkeep).
_PATIENCE = 10.0

_Key: TypeAlias = tuple[bytes, tuple[int, ...]]
_WELL = frozenset({pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK})

Reporter = Callable[[Exception | None], None]


class _Own:
    """What both kinds of connections of a store know and do."""

    pgconn: pq.abc.PGconn
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
    # False behind a transaction-mode pooler.
    prepares = True
    # The statement that failed last.
    failing = ""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._own_names: dict[tuple[bytes, tuple[int, ...]], bytes] = {}
        self._own_reader = Transformer(adapters)

    def watch(self, steps: PQGen[T]) -> PQGen[T]:
        """Pass on a conversation with the server until the deadline."""
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

    def converse(self, queries: Sequence[Query]) -> PQGen[list[Rows]]:
        """
        Send queries and read their rows, beneath the driver's cursors.

        One system call sends what cursors send in one for each query: half the processor time of a small transaction.
        """
        pgconn = self.pgconn
        self.failing = queries[-1].name
        if queries[0].script:
            assert len(queries) == 1, "several statements in one text go alone"
            pgconn.send_query(queries[0].text)
            answers = [(yield from generators.execute(pgconn))]
            sent: list[tuple[Query, _Key | None]] = [(queries[0], None)]
        else:
            pgconn.enter_pipeline_mode()
            sent = [one for query in queries for one in self._own_send(query)]
            pgconn.pipeline_sync()
            yield from generators.send(pgconn)
            answers = []
            for _ in sent:
                answers.append((yield from generators.fetch_many(pgconn)))
            end = yield from generators.fetch_many(pgconn)
            while end and end[-1].status != pq.ExecStatus.PIPELINE_SYNC:
                # What follows the last COMMIT is committed by the end of the round trip, which can fail too.
                answers[-1] = end
                end = yield from generators.fetch_many(pgconn)
            pgconn.exit_pipeline_mode()
        return self._own_read(sent, answers)

    def _own_send(self, query: Query) -> Iterator[tuple[Query, _Key | None]]:
        # Gives what the server will answer to, in order; a key where the answer is that of a preparation.
        pgconn = self.pgconn
        params = query.params or ()
        types = tuple([0 if param is None else param.oid for param in params])
        values = [param if isinstance(param, bytes) else None for param in params]
        formats = [pq.Format.BINARY] * len(values)
        if not self.prepares or query.params is None:
            # BEGIN and its like are quickly read, and COMMIT must work whatever a block did to the session.
            pgconn.send_query_params(query.text, values, types, formats, pq.Format.BINARY)
            yield query, None
            return
        key = (query.text, types)
        name = self._own_names.get(key)
        if name is None:
            # The same name means the same statement everywhere: behind a pooler nobody told us about, a name of another
            # client must fail and never run something else.
            name = b"tenure_" + hashlib.sha256(repr(key).encode()).hexdigest()[:24].encode()
            pgconn.send_prepare(name, query.text, types)
            yield query, key
            self._own_names[key] = name
        pgconn.send_query_prepared(name, values, formats, pq.Format.BINARY)
        yield query, None

    def _own_read(self, sent: list[tuple[Query, _Key | None]], answers: list[list[pq.abc.PGresult]]) -> list[Rows]:
        rows: list[Rows] = []
        wrong: psycopg.Error | None = None
        for (query, key), results in zip(sent, answers, strict=True):
            for result in results:
                if result.status in _WELL:
                    continue
                if key is not None:
                    self._own_names.pop(key, None)
                if wrong is None and not query.spare:
                    wrong = psycopg.errors.error_from_result(result)
                    self.failing = query.name
            if key is None and wrong is None:
                rows.append(self._own_rows(results[-1]))
        if wrong is not None:
            # The driver's own error: a cancelled task is waiting for just that.
            raise wrong
        return rows

    def failed(self, error: psycopg.Error) -> Failure:
        """Judge what came out of a conversation."""
        judged = failure(error, self.failing, self.pgconn)
        if error.sqlstate == FORGOTTEN:
            # Somebody made the session forget what it had prepared, and how much of it nobody knows.
            self.pgconn.finish()
        return judged

    def _own_rows(self, result: pq.abc.PGresult) -> Rows:
        if result.status != pq.ExecStatus.TUPLES_OK:
            return []
        reader = self._own_reader
        reader.set_pgresult(result)
        found: Rows = reader.load_rows(0, result.ntuples, tuple)
        reader.set_pgresult(None)
        return found


def forked() -> Invalid:
    """Make the error for a connection used in a child of its process."""
    return Invalid(
        "this connection belongs to the parent process; open a transaction after the fork, in the child",
        code="FORKED",
    )


class BlockingConnection(_Own, psycopg.Connection[Row]):
    """A connection of a blocking store."""

    @classmethod
    def connect(  # type: ignore[override]
        cls, conninfo: str = "", *, report: Reporter, prepares: bool = True, **options: Any
    ) -> BlockingConnection:
        """Connect and tell `report` how it went: a pool keeps the reason to itself."""
        try:
            made = super().connect(conninfo, **options)
        except psycopg.Error as error:
            report(error)
            raise
        report(None)
        made.owner = os.getpid()
        made.prepares = prepares
        return made

    def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        """Wait no longer than the deadline."""
        return super().wait(self.watch(gen), *args, **options)

    def ask(self, queries: Sequence[Query]) -> list[Rows]:
        """
        Send queries in one round trip and give the rows of each.

        Raises:
            Failure: Of the first query that failed.
        """
        if self.pgconn.pipeline_status:
            # The caller of a block has the driver in a pipeline of its own.
            return exchange(self, queries)
        try:
            with self.lock:
                return self.wait(self.converse(queries))
        except psycopg.Error as error:
            raise self.failed(error) from None


class AwaitingConnection(_Own, psycopg.AsyncConnection[Row]):
    """A connection of an awaiting store."""

    @classmethod
    async def connect(  # type: ignore[override]
        cls, conninfo: str = "", *, report: Reporter, prepares: bool = True, **options: Any
    ) -> AwaitingConnection:
        """See `BlockingConnection.connect`."""
        try:
            made = await super().connect(conninfo, **options)
        except psycopg.Error as error:
            report(error)
            raise
        report(None)
        made.owner = os.getpid()
        made.prepares = prepares
        return made

    async def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        """Wait no longer than the deadline."""
        return await super().wait(self.watch(gen), *args, **options)

    async def ask(self, queries: Sequence[Query]) -> list[Rows]:
        """See `BlockingConnection.ask`."""
        if self.pgconn.pipeline_status:
            return await exchange_async(self, queries)
        try:
            async with self.lock:
                return await self.wait(self.converse(queries))
        except psycopg.Error as error:
            raise self.failed(error) from None


# On the caller's connections, whose driver knows what it has prepared and what it still waits for.


class _Cursor(psycopg.RawCursor[Row]):
    @property
    def adapters(self) -> AdaptersMap:
        return adapters


class _AsyncCursor(psycopg.AsyncRawCursor[Row]):
    @property
    def adapters(self) -> AdaptersMap:
        return adapters


def exchange(connection: psycopg.Connection[Any], queries: Sequence[Query]) -> list[Rows]:
    """
    Send queries in one round trip and give the rows of each; what is prepared is for the connection's owner to say.

    Raises:
        Failure: Of the first query that failed.
    """
    cursors: list[_Cursor] = []

    def send(query: Query) -> None:
        cursor = _Cursor(connection, row_factory=tuple_row)
        cursors.append(cursor)
        cursor.execute(query.text, query.params, prepare=_prepare(query), binary=True)

    try:
        if len(queries) == 1 and not connection.pgconn.pipeline_status:
            send(queries[0])
        else:
            with connection.pipeline():
                for query in queries:
                    send(query)
    except psycopg.Error as error:
        raise failure(error, _unanswered(queries, cursors), connection.pgconn) from None
    return [cursor.fetchall() if cursor.description else [] for cursor in cursors]


async def exchange_async(connection: psycopg.AsyncConnection[Any], queries: Sequence[Query]) -> list[Rows]:
    """See `exchange`."""
    cursors: list[_AsyncCursor] = []

    async def send(query: Query) -> None:
        cursor = _AsyncCursor(connection, row_factory=tuple_row)
        cursors.append(cursor)
        await cursor.execute(query.text, query.params, prepare=_prepare(query), binary=True)

    try:
        if len(queries) == 1 and not connection.pgconn.pipeline_status:
            await send(queries[0])
        else:
            async with connection.pipeline():
                for query in queries:
                    await send(query)
    except psycopg.Error as error:
        raise failure(error, _unanswered(queries, cursors), connection.pgconn) from None
    return [await cursor.fetchall() if cursor.description else [] for cursor in cursors]


def _prepare(query: Query) -> bool | None:
    # Names of savepoints come once and would push out of the driver's memory what comes again.
    return False if query.params is None else None


def _unanswered(queries: Sequence[Query], cursors: Sequence[psycopg.Cursor[Row] | psycopg.AsyncCursor[Row]]) -> str:
    # The driver says what failed, not which: it is the first without a result.
    for query, cursor in zip(queries, cursors, strict=False):
        if cursor.pgresult is None:
            return query.name
    return queries[-1].name


def play(connection: BlockingConnection, steps: Generator[list[Query], list[Rows], T]) -> T:
    """Run a script of our own, such as a migration: lists of queries out, lists of rows in."""
    answer: Any = None
    while True:
        try:
            queries = steps.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value
        answer = connection.ask(queries)


async def play_async(connection: AwaitingConnection, steps: Generator[list[Query], list[Rows], T]) -> T:
    """See `play`."""
    answer: Any = None
    while True:
        try:
            queries = steps.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value
        answer = await connection.ask(queries)


# Rolling back goes beneath the driver, for `connection.wait`. The driver forgets every prepared statement then,
# for fear of rolled back changes of the schema, and in a round trip of many queries it makes the server forget
# them too late, after the next one was prepared. We change no schema outside migrations.


def rollback(pgconn: pq.abc.PGconn) -> PQGen[bool]:
    """Roll the transaction back; False where it could not be."""
    return (yield from beneath(pgconn, b"ROLLBACK"))


def beneath(pgconn: pq.abc.PGconn, text: bytes) -> PQGen[bool]:
    """Run a script that gives no rows; False where a statement of it failed."""
    pgconn.send_query(text)
    results: list[pq.abc.PGresult] = yield from generators.execute(pgconn)
    return all(result.status == pq.ExecStatus.COMMAND_OK for result in results)
