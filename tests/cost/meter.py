"""
Count what work costs: statements, round trips, transactions, shared buffers and bytes of WAL. Nothing here is timed.

Statements, round trips and transactions are counted where they leave the process: in `ask` of our PostgreSQL
connections, and by SQLite's own trace. Both see every store of the process, those of an embedded worker too. Shared
buffers come from the server's statistics of our tables and their indexes, WAL from the position of its log, so the
server must be doing nothing else (see servers.py).
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from tenure.stores.postgres.connection import AwaitingConnection, BlockingConnection
from tenure.stores.postgres.store import AsyncPostgresStore
from tenure.stores.postgres.values import Query, plain
from tenure.stores.sqlite.writer import Writer
from tenure.yields import Procedure, Rows

# What begins and ends a transaction of ours.
_BEGIN, _COMMIT, _NOTIFY = "begin", "commit", "notify"
# What a worker does by the clock and not by the job: on a slow machine it does it more often for the same jobs.
BY_THE_CLOCK = frozenset(
    {"recover", "promote", "announce", "park", "forget_claims", "withdraw", "find_candidates", "find_candidate_scopes"}
)

PATIENCE = 20.0
LOOK_EVERY = 0.005


@dataclass
class Talk:
    """
    What was said to a database.

    Attributes:
        statements: How often each was sent, by its name or its SQL; the settings and the ends of transactions too.
    """

    statements: Counter[str] = field(default_factory=Counter)
    round_trips: int = 0
    transactions: int = 0

    def forget(self) -> None:
        """Begin to count."""
        self.statements.clear()
        self.round_trips = self.transactions = 0


_running: ContextVar[str] = ContextVar("running", default="")


class _Ear:
    """Notes what stores say; threads may speak at the same time."""

    def __init__(self, *, clock_too: bool) -> None:
        self.talk = Talk()
        self._lock = threading.Lock()
        self._inside: set[int] = set()
        self._deaf_to = frozenset() if clock_too else BY_THE_CLOCK

    def hear(self, connection: AwaitingConnection | BlockingConnection, queries: Sequence[Query]) -> None:
        # The first use of a connection looks at the server and the schema, once; how many are opened is chance.
        if not connection.verified or _running.get() in self._deaf_to:
            return
        with self._lock:
            if [query.name for query in queries] == [_NOTIFY]:
                # By itself it is sent when its pause is over: how often is a matter of time, not of work.
                self.talk.statements[_NOTIFY] += 1
                return
            self.talk.round_trips += 1
            if id(connection) not in self._inside or queries[0].name == _BEGIN:
                self.talk.transactions += 1
            for query in queries:
                self.talk.statements[query.name] += 1
                if query.name == _BEGIN:
                    self._inside.add(id(connection))
                elif query.name == _COMMIT:
                    self._inside.discard(id(connection))

    def trace(self, text: str) -> None:
        # SQLite reports what its triggers do as comments.
        if text.startswith("--"):
            return
        with self._lock:
            self.talk.statements[" ".join(text.split())[:60]] += 1
            self.talk.transactions += text.startswith("BEGIN")


@contextmanager
def listening(*, clock_too: bool = True) -> Iterator[Talk]:
    """
    Count what this process says to its databases until the block ends.

    SQLite's connections opened before are not heard.

    Args:
        clock_too: Also what an awaiting PostgreSQL store is asked by the clock.
    """
    ear = _Ear(clock_too=clock_too)
    asks, asks_awaiting, opens = BlockingConnection.ask, AwaitingConnection.ask, Writer.open
    runs: Any = AsyncPostgresStore.run

    def ask(self: BlockingConnection, queries: Sequence[Query]) -> list[Rows]:
        ear.hear(self, queries)
        return asks(self, queries)

    async def ask_awaiting(self: AwaitingConnection, queries: Sequence[Query]) -> list[Rows]:
        ear.hear(self, queries)
        return await asks_awaiting(self, queries)

    async def run(self: AsyncPostgresStore, procedure: Procedure[Any]) -> Any:
        before = _running.set(procedure.name)
        try:
            return await runs(self, procedure)
        finally:
            _running.reset(before)

    def open_traced(self: Writer, **options: Any) -> sqlite3.Connection:
        connection = opens(self, **options)
        connection.set_trace_callback(ear.trace)
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockingConnection, "ask", ask)
        patch.setattr(AwaitingConnection, "ask", ask_awaiting)
        patch.setattr(AsyncPostgresStore, "run", run)
        patch.setattr(Writer, "open", open_traced)
        yield ear.talk


# Every table and index of ours, with the blocks that were asked for.
_BLOCKS = """
    SELECT relname, heap_blks_read + heap_blks_hit + coalesce(toast_blks_read + toast_blks_hit, 0)
    FROM pg_statio_user_tables WHERE schemaname = 'tenure'
    UNION ALL
    SELECT indexrelname, idx_blks_read + idx_blks_hit FROM pg_statio_user_indexes WHERE schemaname = 'tenure'
"""
_COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
_OTHERS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


@dataclass(frozen=True)
class Reading:
    """
    The server's counters at one moment.

    Attributes:
        blocks: Shared buffers asked for, by table and index.
        wal: The position in the log, in bytes.
        commits: Transactions of this database, those that only read included.
    """

    blocks: Counter[str]
    wal: int
    commits: int

    def since(self, before: Reading) -> Reading:
        """What happened in between."""
        return Reading(self.blocks - before.blocks, self.wal - before.wal, self.commits - before.commits)


def read_server(url: str) -> Reading:
    """
    Read the server's counters of a database.

    A session hands in its counts when it ends at the latest, so every other one must be closed by now; the server needs
    a moment to notice.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        deadline = time.monotonic() + PATIENCE
        while _number(connection, _OTHERS):
            assert time.monotonic() < deadline, "somebody is still connected, so not all is counted"
            time.sleep(LOOK_EVERY)
        return Reading(
            Counter(dict(connection.execute(_BLOCKS).fetchall())),
            _number(connection, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"),
            _number(connection, _COMMITS),
        )


def _number(connection: psycopg.Connection[Any], query: str) -> int:
    row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


# What a session asked for since it last handed in its counts; nobody else's work is in it.
OWN_BLOCKS = """
    SELECT c.relname::text, pg_stat_get_xact_blocks_fetched(c.oid) FROM pg_class c
    WHERE c.relnamespace = 'tenure'::regnamespace AND c.relkind IN ('r', 'i')
"""
HAND_IN = "SELECT pg_stat_force_next_flush()"


@contextmanager
def weighing() -> Iterator[list[Counter[str]]]:
    """
    Give the shared buffers that every transaction of this process's blocking stores asked for, by table and index.

    The session is asked just before the commit, and then hands in its counts, so that the next transaction begins with
    none. A round trip outside a transaction, such as a read, is one of its own.
    """
    spent: list[Counter[str]] = []
    inside: set[int] = set()
    asks = BlockingConnection.ask
    questions = [plain("own_blocks", OWN_BLOCKS), plain("hand_in", HAND_IN)]

    def ask(self: BlockingConnection, queries: Sequence[Query]) -> list[Rows]:
        names = [query.name for query in queries]
        if _BEGIN in names:
            inside.add(id(self))
        if queries[0].script or (_COMMIT not in names and id(self) in inside):
            return asks(self, queries)
        inside.discard(id(self))
        end = names.index(_COMMIT) if _COMMIT in names else len(names)
        answers = asks(self, [*queries[:end], *questions, *queries[end:]])
        spent.append(+Counter(dict(answers[end])))
        return [*answers[:end], *answers[end + len(questions) :]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockingConnection, "ask", ask)
        yield spent
