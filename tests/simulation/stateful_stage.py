"""
Where the stateful test plays: one store on one database, and two connections of other programs beside it.

A connection runs a verb in a transaction of its own, stops before COMMIT, and ends when it is told to.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import psycopg
import pytest

from tenure.procedures.records import NO_NOTES, effect_of, event_of, evidence_of, identity, notes_by_job, placed
from tenure.rules.effect import Effect, StoredEvidence
from tenure.rules.event import Event
from tenure.rules.job import Job
from tenure.stores import open_store
from tenure.stores.contract import Store
from tenure.stores.sqlite import engine, line
from tenure.testing import ManualClock
from tenure.yields import Each, Procedure, Script, procedure

START = datetime(2026, 1, 1, tzinfo=UTC)
# Of jobs and tenants; what belongs to the installation stays.
TABLES = (
    "event",
    "evidence",
    "escalation",
    "suspect",
    "intent",
    "effect",
    "claim",
    "ready",
    "deferred",
    "lease",
    "resting",
    "outcome",
    "job",
    "job_key",
    "authority",
)
ANSWERED_WITHIN = 60


class Numbers:
    """Ids of jobs, in a row: a backoff's jitter is drawn from the id, and a run must be the same each time."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self) -> UUID:
        self._last += 1
        return UUID(int=(7 << 76) | (2 << 62) | self._last)

    def restart(self) -> None:
        """Begin with the first again."""
        self._last = 0


NUMBERS = Numbers()


class Hand:
    """The store's clock; each run puts its own hand on it."""

    def __init__(self) -> None:
        self.manual = ManualClock(START)

    def now(self) -> datetime:
        return self.manual.now()


@dataclass(frozen=True)
class Stored:
    """
    One job as it was found.

    Attributes:
        places: Every table that has a state of it.
    """

    job: Job
    places: tuple[str, ...]
    trail: list[Event]
    evidence: list[StoredEvidence]


@procedure(reads=True)
def survey(ids: list[UUID]) -> Script[dict[UUID, Stored]]:
    """Read everything about some jobs at one instant."""
    rows = [(job_id,) for job_id in ids]
    places, effects, escalations, *rest = yield [
        Each("place_read", rows),
        Each("effect_read", rows),
        Each("escalation_read", rows),
        # The rows of a trail do not say whose they are, so each is asked for by itself.
        *(Each(name, [row]) for row in rows for name in ("event_read", "evidence_read")),
    ]
    notes = notes_by_job(escalations)
    by_job: dict[UUID, list[Effect]] = {}
    for row in effects:
        job_id, effect = effect_of(row)
        by_job.setdefault(job_id, []).append(effect)
    found: dict[UUID, Stored] = {}
    for nth, job_id in enumerate(ids):
        events, evidence = rest[2 * nth], rest[2 * nth + 1]
        own = [row for row in places if identity(row[1]) == job_id]
        assert own, f"job {job_id} is in no place"
        job = placed(own[0], tuple(by_job.get(job_id, ())), notes.get(job_id, NO_NOTES)).job
        names = tuple(str(row[0]) for row in own)
        found[job_id] = Stored(job, names, [event_of(row) for row in events], [evidence_of(row) for row in evidence])
    return found


class Connection:
    """
    A transaction of another program, with a thread of its own.

    Attributes:
        running: The verb that was asked, answered or still waiting for a lock.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "stateful")
        self.running: Future[Any] | None = None

    def ask(self, verb: Procedure[Any]) -> None:
        """Begin a transaction and run a verb in it; does not wait for the answer."""
        self.running = self._thread.submit(self._run, verb)

    def answer(self) -> Any:
        """Wait for the answer, or raise the refusal."""
        assert self.running is not None
        return self.running.result(ANSWERED_WITHIN)

    def end(self, *, commit: bool) -> None:
        """End the transaction."""
        self._thread.submit(self._end, commit).result(ANSWERED_WITHIN)
        self.running = None

    def close(self) -> None:
        """End everything; what is open is rolled back."""
        try:
            self._thread.submit(self._close).result(ANSWERED_WITHIN)
        finally:
            self._thread.shutdown()

    def _run(self, verb: Procedure[Any]) -> Any:
        raise NotImplementedError

    def _end(self, commit: bool) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError


class JoinedConnection(Connection):
    """A connection of a program's own, which the store joins."""

    def __init__(self, store: Store, connect: Callable[[], Any]) -> None:
        super().__init__()
        self._store = store
        self.raw: Any = self._thread.submit(connect).result(ANSWERED_WITHIN)

    def _run(self, verb: Procedure[Any]) -> Any:
        if isinstance(self.raw, sqlite3.Connection):
            self.raw.execute("BEGIN IMMEDIATE")
        else:
            self.raw.execute("SELECT 1")
        joined: Any = self._store.join(self.raw)
        return joined.run(verb)

    def _end(self, commit: bool) -> None:
        self.raw.commit() if commit else self.raw.rollback()

    def _close(self) -> None:
        self.raw.close()


class _Undo(Exception):
    pass


class LentConnection(Connection):
    """The store's own connection, in a block of a program's own: what a database in memory has instead."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._block: Any = None

    def _run(self, verb: Procedure[Any]) -> Any:
        block: Any = self._store.transaction()
        self._block = block
        tx: Any = block.__enter__()
        return tx.run(verb)

    def _end(self, commit: bool) -> None:
        block, self._block = self._block, None
        if commit:
            block.__exit__(None, None, None)
            return
        undo = _Undo()
        try:
            block.__exit__(_Undo, undo, None)
        except _Undo as raised:
            if raised is not undo:
                raise

    def _close(self) -> None:
        if self._block is not None:
            self._end(False)


class Stage:
    """
    One store under test.

    Attributes:
        reads_beside: Readers see the committed truth while a transaction is open.
        waits: A second writer of the same row waits for the first; otherwise it is refused at once.
    """

    reads_beside = True
    waits = False
    store: Store

    def __init__(self) -> None:
        self.clock = Hand()

    def reset(self) -> None:
        """Begin anew, with nothing stored and the clock at its start."""
        self.clock.manual = ManualClock(START)
        NUMBERS.restart()

    def connect(self) -> Connection:
        """Give a connection of another program."""
        raise NotImplementedError

    def table(self, name: str) -> str:
        """Give the name of a table as SQL writes it."""
        return f"tenure_{name}"

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Read with SQL of the test's own."""
        with self.store.transaction() as tx:
            return [tuple(row) for row in tx.execute(sql).fetchall()]

    def blocked(self, one: Connection, other: Connection) -> bool:
        """Say whether `one` waits for a lock of `other`; False when it has its answer."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the store."""
        self.store.close()


class MemoryStage(Stage):
    """SQLite in memory."""

    reads_beside = False

    def reset(self) -> None:
        super().reset()
        if hasattr(self, "store"):
            self.store.close()
        self.store = open_store("sqlite:///:memory:", clock=self.clock)
        self.store.migrate()

    def connect(self) -> Connection:
        return LentConnection(self.store)


class FileStage(Stage):
    """SQLite in a file; every run has a new one."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._nth = 0

    def reset(self) -> None:
        super().reset()
        if self._nth:
            self.store.close()
        self._nth += 1
        self.store = open_store(f"sqlite:///{self._path}", clock=self.clock)
        self.store.migrate()

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._nth}.db"

    def connect(self) -> Connection:
        return JoinedConnection(self.store, lambda: sqlite3.connect(self._path, isolation_level=None))


class PostgresStage(Stage):
    """
    PostgreSQL; the rows of the run before are deleted.

    Args:
        way: Another way to the same database, which the store takes; other programs come directly.
    """

    waits = True

    def __init__(self, url: str, way: str | None = None) -> None:
        super().__init__()
        self._url = url
        self.store = open_store(way or url, clock=self.clock)
        self.store.migrate(test_clock=True)
        self._look = psycopg.connect(url, autocommit=True)
        self._delete = "; ".join(f"DELETE FROM tenure.{table}" for table in TABLES).encode()

    def reset(self) -> None:
        super().reset()
        self._look.execute(self._delete)

    def table(self, name: str) -> str:
        return f"tenure.{name}"

    def connect(self) -> Connection:
        return JoinedConnection(self.store, lambda: psycopg.connect(self._url))

    def blocked(self, one: Connection, other: Connection) -> bool:
        assert one.running is not None
        pids = [cast("JoinedConnection", connection).raw.info.backend_pid for connection in (one, other)]
        # The server tells; each question is a round trip, so nothing else needs to pass the time.
        while not one.running.done():
            row = self._look.execute(
                "SELECT wait_event_type = 'Lock' AND %s::int = ANY(pg_blocking_pids(pid)) FROM pg_stat_activity "
                "WHERE pid = %s::int",
                (pids[1], pids[0]),
            ).fetchone()
            if row is not None and row[0]:
                return True
        return False

    def wait_for_waiter(self, holder: Connection) -> None:
        """Return when somebody waits for a lock of this connection."""
        pid = cast("JoinedConnection", holder).raw.info.backend_pid
        query = "SELECT count(*) FROM pg_stat_activity WHERE %s::int = ANY(pg_blocking_pids(pid))"
        while self._look.execute(query, (pid,)).fetchone() == (0,):
            pass

    def close(self) -> None:
        self._look.close()
        super().close()


@contextmanager
def impatient() -> Iterator[None]:
    """Let a caller of SQLite give up at once instead of after five seconds."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (engine, line):
            patch.setattr(module, "PATIENCE", 0.001)
        yield
