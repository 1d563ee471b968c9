"""
One bench for all runs of the suite: a service on SQLite or PostgreSQL, blocking or awaiting, behind the same face.

An awaiting store lives on an event loop in a thread of its own; the bench asks it from the test's thread, so that a
test is written once. Tables are read and changed by SQL on a connection of the bench, never through the package.
"""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import UUID

import psycopg
from psycopg.sql import Literal

from tenure.service import AsyncDurableJobService, DurableJobService
from tenure.stores import open_async_store, open_store
from tenure.stores.contract import AsyncStore, Store
from tenure.testing.clock import ManualClock
from tenure.yields import Procedure
from tests.contract.function import ThroughTheFunction

T = TypeVar("T")

START = datetime(2026, 1, 1, tzinfo=UTC)
PLACES = ("ready", "deferred", "lease", "resting", "outcome")
# Every table with rows of jobs, tenants or claims; what belongs to the installation is left alone.
TABLES = (
    "authority",
    "job",
    "job_key",
    *PLACES,
    "event",
    "effect",
    "intent",
    "evidence",
    "escalation",
    "approval",
    "suspect",
    "authority_event",
    "claim",
    "announcement",
    "queue",
    "queue_weight",
    "queue_change",
    "known_kind",
    "message",
    "message_due",
    "message_later",
    "message_lease",
    "message_resting",
    "message_done",
    "message_order",
    "message_decision",
    "message_relay",
    "inbox_consumer",
    "inbox",
    "inbox_delivery",
    "meta",
)
OF_TENANTS = TABLES[: TABLES.index("claim")]
NEIGHBOUR = "zeta"

Row = dict[str, Any]
Dump = dict[str, list[Row]]

_TABLE = re.compile(r"\$([a-z_]+)")

_META_ROWS = " WHERE key <> 'test_clock'"
_META = "DELETE FROM tenure.meta" + _META_ROWS
_DELETE = (
    b"DELETE FROM own; " + "".join(f"DELETE FROM tenure.{table}; " for table in TABLES if table != "meta").encode()
)
_TRUNCATE = f"TRUNCATE own, {', '.join(f'tenure.{table}' for table in TABLES if table != 'meta')}; ".encode()
_RESTORES_BEFORE_TRUNCATE = 200


class LoopThread:
    """An event loop that runs in a thread, for callers that block."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="bench-loop")
        self._thread.start()

    def run(self, work: Awaitable[T]) -> T:
        async def body() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(body(), self.loop).result()

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a plain function in the loop's thread."""

        async def body() -> T:
            return function(*args)

        return self.run(body())

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Awaited:
    """Anything with awaiting methods, seen by a caller that blocks."""

    def __init__(self, inner: Any, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            async def body() -> Any:
                value = found(*args, **kwargs)
                return await value if isinstance(value, Awaitable) else value

            return self._loop.run(body())

        return call


class TestClock:
    """The store's clock; each test puts its own hand on it."""

    __test__ = False

    def __init__(self) -> None:
        self.hand = ManualClock(START)

    def now(self) -> datetime:
        return self.hand.now()


# --- databases --------------------------------------------------------------------------------------------------------


class SqliteFile:
    """A file and a connection of the bench to it."""

    dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        self.raw: sqlite3.Connection | None = None
        self._kept: dict[str, list[tuple[Any, ...]]] = {}
        self._columns: dict[str, list[str]] = {}

    def open(self) -> None:
        self.raw = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=30)

    def close(self) -> None:
        assert self.raw is not None
        self.raw.close()

    def sql(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        assert self.raw is not None
        plain = [str(value) if isinstance(value, UUID) else value for value in params]
        return self.raw.execute(_TABLE.sub(r"tenure_\1", text), plain).fetchall()

    def columns(self, table: str) -> list[str]:
        if table not in self._columns:
            self._columns[table] = [row[1] for row in self.sql(f"PRAGMA table_info(tenure_{table})")]
        return self._columns[table]

    def keep(self) -> None:
        """Remember the neighbour's rows, which every test finds and none may change."""
        for table in OF_TENANTS:
            self._kept[table] = self.sql(f"SELECT * FROM ${table}")

    def reset(self) -> None:
        self.restore(self._kept)

    def snapshot(self) -> Any:
        """Give all rows in a form that `restore` takes."""
        return {table: rows for table in TABLES if (rows := self.sql(f"SELECT * FROM ${table}"))}

    def restore(self, rows_of: dict[str, list[tuple[Any, ...]]]) -> None:
        assert self.raw is not None
        self.raw.execute("BEGIN IMMEDIATE")
        self.raw.execute("DELETE FROM own")
        for table in TABLES:
            self.raw.execute(f"DELETE FROM tenure_{table}")
        for table, rows in rows_of.items():
            marks = ", ".join("?" * len(self.columns(table)))
            self.raw.executemany(f"INSERT INTO tenure_{table} VALUES ({marks})", rows)
        self.raw.execute("COMMIT")

    def prints(self) -> list[Any]:
        """Give all rows in a form that is quickly compared."""
        assert self.raw is not None
        return [self.raw.execute(f"SELECT * FROM tenure_{table}").fetchall() for table in TABLES]

    def dump(self) -> Dump:
        assert self.raw is not None
        found: Dump = {}
        self.raw.execute("BEGIN")
        for table in TABLES:
            names = self.columns(table)
            found[table] = [
                dict(zip(names, row, strict=True)) for row in self.raw.execute(f"SELECT * FROM tenure_{table}")
            ]
        self.raw.execute("COMMIT")
        return found


class PostgresDatabase:
    """A database and a connection of the bench to it."""

    dialect = "postgresql"

    def __init__(self, url: str) -> None:
        self.url = url
        self.raw: psycopg.Connection[Any] | None = None
        self._dump = ""
        self._kept = b""
        self._restored = 0

    def open(self) -> None:
        self.raw = psycopg.connect(self.url, autocommit=True)
        columns = self.raw.execute(
            "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'tenure' "
            "ORDER BY table_name, ordinal_position"
        ).fetchall()
        parts = []
        for table in TABLES:
            names = [f'"{n}"::text AS "{n}"' if kind == "json" else f'"{n}"' for t, n, kind in columns if t == table]
            assert names, table
            parts.append(
                f"SELECT '{table}', row_to_json(r)::text FROM (SELECT {', '.join(names)} FROM tenure.{table}) r"
            )
        self._dump = " UNION ALL ".join(parts)

    def close(self) -> None:
        assert self.raw is not None
        self.raw.close()

    def sql(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        assert self.raw is not None
        cursor = self.raw.execute(_TABLE.sub(r"tenure.\1", text).replace("?", "%s").encode(), params or None)
        return cursor.fetchall() if cursor.description else []

    def keep(self) -> None:
        """See `SqliteFile.keep`."""
        self._kept = self.snapshot()

    def reset(self) -> None:
        self.restore(self._kept)

    def snapshot(self) -> Any:
        """Give all rows as a script that puts them back."""
        assert self.raw is not None
        parts = [_META]
        for table in TABLES:
            query = f"SELECT array_agg(r)::text FROM tenure.{table} r" + (_META_ROWS if table == "meta" else "")
            (rows,) = self.raw.execute(query.encode()).fetchone() or (None,)
            if rows is not None:
                into = f"INSERT INTO tenure.{table} OVERRIDING SYSTEM VALUE "
                text = Literal(rows).as_string(self.raw)
                parts.append(f"{into}SELECT * FROM unnest({text}::tenure.{table}[])")
        return "; ".join(parts).encode()

    def restore(self, script: bytes) -> None:
        assert self.raw is not None
        # Deleting a few rows is far quicker than TRUNCATE; now and then the dead ones are thrown away.
        self._restored += 1
        self.raw.execute((_TRUNCATE if self._restored % _RESTORES_BEFORE_TRUNCATE == 0 else _DELETE) + script)

    def prints(self) -> list[Any]:
        """See `SqliteFile.prints`."""
        assert self.raw is not None
        return sorted(self.raw.execute(self._dump.encode()).fetchall())

    def dump(self) -> Dump:
        assert self.raw is not None
        found: Dump = {table: [] for table in TABLES}
        for table, row in self.raw.execute(self._dump.encode()).fetchall():
            found[table].append(json.loads(row))
        return found


Database = SqliteFile | PostgresDatabase


@dataclass(frozen=True, slots=True)
class Snapshot:
    """
    Every row and the time, to be brought back.

    Attributes:
        dump: The rows for comparison.
        prints: The same, to be compared with `Bench.prints`.
    """

    rows: Any
    at: datetime
    dump: Dump
    prints: list[Any]


# --- the bench --------------------------------------------------------------------------------------------------------


class Bench:
    """
    One store under test.

    Attributes:
        service: Every verb, bound to no tenant.
        clock: The store's clock, moved by the test.
        loop: The awaiting store's loop, None on a blocking run.
        through_the_function: Jobs are created by the SQL function; see function.py.
    """

    def __init__(
        self, database: Database, store: Store | AsyncStore, clock: TestClock, loop: LoopThread | None
    ) -> None:
        self.database = database
        self.store = store
        self.test_clock = clock
        self.loop = loop
        self.dialect = database.dialect
        self.through_the_function = False
        self.service = self.bound()
        self.baseline: Dump = {}

    @property
    def clock(self) -> ManualClock:
        return self.test_clock.hand

    @property
    def now(self) -> datetime:
        return self.clock.now()

    def advance(self, **by: float) -> datetime:
        return self.clock.advance(timedelta(**by))

    def bound(self, tenant: str | None = None, actor: str | None = None) -> DurableJobService:
        """Give a service on the same store."""
        return self.on(self.store, tenant=tenant, actor=actor)

    def on(self, store: Any, *, tenant: str | None = None, actor: str | None = None) -> DurableJobService:
        """Give a service on another store of the same kind."""
        if self.loop is None:
            made = DurableJobService(store, tenant=tenant, actor=actor)
            if not self.through_the_function:
                return made
            ours = ThroughTheFunction(made, self._connection, lambda: micros(self.now), tenant)
            return cast("DurableJobService", ours)
        return cast("DurableJobService", Awaited(AsyncDurableJobService(store, tenant=tenant, actor=actor), self.loop))

    def _connection(self) -> psycopg.Connection[Any]:
        assert isinstance(self.database, PostgresDatabase)
        assert self.database.raw is not None
        return self.database.raw

    def run(self, procedure: Procedure[T]) -> T:
        """Run and commit one procedure."""
        if self.loop is None:
            return cast("Store", self.store).run(procedure)
        return self.loop.run(cast("AsyncStore", self.store).run(procedure))

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Open a transaction of the store."""
        if self.loop is None:
            with cast("Store", self.store).transaction() as tx:
                yield tx
            return
        # Entered and left in tasks of their own, so the guard of the block is not seen in between; that is not what the
        # users of this method test.
        block = cast("AsyncStore", self.store).transaction()
        opened = self.loop.run(block.__aenter__())
        try:
            yield Awaited(opened, self.loop)
        except BaseException as error:
            if not self.loop.run(block.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self.loop.run(block.__aexit__(None, None, None))

    # Looking at what is stored.

    def sql(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        """Execute SQL of the test's own: `$job` names a table, `?` a parameter."""
        return self.database.sql(text, *params)

    def dump(self) -> Dump:
        """Give every row of every table, in a stable order."""
        found = self.database.dump()
        return {table: sorted(rows, key=_order) for table, rows in found.items()}

    def reset(self) -> None:
        """Begin anew: nothing but the neighbour's rows, the clock at its start."""
        self.database.reset()
        self.test_clock.hand = ManualClock(START)
        if not self.baseline:
            self.baseline = self.dump()

    def snapshot(self) -> Snapshot:
        """Remember everything as it is now."""
        return Snapshot(self.database.snapshot(), self.now, self.dump(), self.prints())

    def restore(self, snapshot: Snapshot) -> None:
        """Bring everything back to how it was."""
        self.database.restore(snapshot.rows)
        self.test_clock.hand = ManualClock(snapshot.at)

    def prints(self) -> list[Any]:
        """Give all rows in a form that is quickly compared, with that of a snapshot."""
        return self.database.prints()

    def place(self, job_id: UUID) -> tuple[str, Row]:
        """Give the table a job is in and its row there."""
        return place_in(self.dump(), job_id)

    def trail(self, job_id: UUID) -> list[str]:
        """Give the names of a job's events, from the table itself."""
        rows = self.sql("SELECT name FROM $event WHERE job_id = ? ORDER BY event_id", job_id)
        return [row[0] for row in rows]

    def table(self, name: str, job_id: UUID) -> list[Row]:
        """Give a job's rows of one table."""
        return [row for row in self.dump()[name] if row["job_id"] == str(job_id)]


def micros(at: datetime) -> int:
    """Give an instant as it is stored."""
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def place_in(dump: Dump, job_id: UUID) -> tuple[str, Row]:
    """Give the table a job is in and its row there."""
    found = [(table, row) for table in PLACES for row in dump[table] if row["job_id"] == str(job_id)]
    assert len(found) == 1, f"job {job_id} is in {[table for table, _ in found]}"
    return found[0]


def trail_in(dump: Dump, job_id: UUID) -> list[str]:
    """Give the names of a job's events, in order."""
    return [row["name"] for row in dump["event"] if row["job_id"] == str(job_id)]


def _order(row: Row) -> str:
    if "event_id" in row:
        return f"{row['event_id']:012d}"
    return json.dumps(row, sort_keys=True)


def open_bench(database: Database, clock: TestClock, loop: LoopThread | None, url: str | None = None) -> Bench:
    """Open a blocking store, or on a loop an awaiting one."""
    url = url or database.url
    if loop is None:
        return Bench(database, open_store(url, clock=clock), clock, None)
    return Bench(database, loop.run(open_async_store(url, clock=clock)), clock, loop)


def close_bench(bench: Bench) -> None:
    if bench.loop is None:
        cast("Store", bench.store).close()
    else:
        bench.loop.run(cast("AsyncStore", bench.store).close())
