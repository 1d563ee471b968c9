"""A small schema, its statements and procedures: enough to see what the engine does, nothing of jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import psycopg
import pytest

from tenure.stores.migrate import Migration
from tenure.stores.postgres.store import AsyncPostgresStore, PostgresStore
from tenure.stores.statements import parse
from tenure.yields import FRESH, AfterCommit, Command, Each, Last, Procedure, Script, Statement, procedure

SLEEPING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"

E = TypeVar("E", bound=BaseException)

MIGRATIONS = [
    Migration(
        1,
        "0001_start",
        """
        CREATE FUNCTION tenure.now_us() RETURNS bigint LANGUAGE sql VOLATILE
        AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;
        CREATE TABLE tenure.meta (key text NOT NULL PRIMARY KEY, value text NOT NULL);
        CREATE TABLE tenure.note (id uuid PRIMARY KEY, label text, amount bigint NOT NULL CHECK (amount >= 0));
        CREATE TABLE tenure.command (command_id uuid PRIMARY KEY, answer bigint NOT NULL);
        CREATE TABLE tenure.counter (name text PRIMARY KEY, value bigint NOT NULL);
        CREATE SEQUENCE tenure.failures;
        -- Fails with the given SQLSTATE the first times it is called; a sequence does not roll back.
        CREATE FUNCTION tenure.fail(state text, times bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
        DECLARE turn bigint := nextval('tenure.failures');
        BEGIN
            IF turn <= times THEN
                RAISE EXCEPTION 'asked for, secret-payload' USING ERRCODE = state, DETAIL = 'secret-payload';
            END IF;
            RETURN turn;
        END $$;
        """,
    )
]
MORE = Migration(2, "0002_more", "CREATE TABLE tenure.more (id integer PRIMARY KEY);")

STATEMENTS = parse("""
-- name: clock() once
SELECT tenure.now_us();
-- name: note_put(id, label, amount) each
INSERT INTO tenure.note (id, label, amount)
SELECT * FROM unnest(%(id)b::uuid[], %(label)b::text[], %(amount)b::bigint[])
RETURNING id;
-- name: note_get(ids) once
SELECT id, label, amount FROM tenure.note WHERE id = ANY(%(ids)b::uuid[]) ORDER BY id;
-- name: note_count() once
SELECT count(*) FROM tenure.note;
-- name: counter_lock(name) once
SELECT value FROM tenure.counter WHERE name = %(name)b FOR UPDATE;
-- name: counter_add(name, amount) once
INSERT INTO tenure.counter AS c (name, value) VALUES (%(name)b::text, %(amount)b::bigint)
ON CONFLICT (name) DO UPDATE SET value = c.value + excluded.value
RETURNING value;
-- name: counter_set(name, value) once
UPDATE tenure.counter SET value = %(value)b::bigint WHERE name = %(name)b::text;
-- name: command_find(command_id) once
SELECT answer FROM tenure.command WHERE command_id = %(command_id)b::uuid;
-- name: command_put(command_id, answer) each
INSERT INTO tenure.command (command_id, answer)
SELECT * FROM unnest(%(command_id)b::uuid[], %(answer)b::bigint[]);
-- name: fail(state, times) once
SELECT tenure.fail(%(state)b::text, %(times)b);
-- name: sleep(seconds) once
SELECT pg_sleep(%(seconds)b::float8);
-- name: settings() once
SELECT current_setting('transaction_isolation'), current_setting('statement_timeout'),
    current_setting('idle_in_transaction_session_timeout'), current_user::text;
-- name: everything(u, i, b, s, t, f, y, j, k, n) each
SELECT * FROM unnest(%(u)b::uuid[], %(i)b::int[], %(b)b::bigint[], %(s)b::smallint[], %(t)b::text[],
    %(f)b::double precision[], %(y)b::bytea[], %(j)b::json[], %(k)b::jsonb[], %(n)b::boolean[]);
-- name: scalars(u, i, t, f, y, k, n, a, untyped) once
SELECT %(u)b::uuid, %(i)b::int, %(t)b::text, %(f)b::float8, %(y)b::bytea, %(k)b::jsonb, %(n)b::bool,
    %(a)b::text[], %(untyped)b + 0, 7 %% 4, %(t)b;
-- name: missing() once
SELECT * FROM tenure.no_such_table;
""")


@procedure
def put(*notes: tuple[UUID, str | None, int]) -> Script[list[UUID]]:
    """Write notes in one statement."""
    rows = yield Each("note_put", notes)
    return [row[0] for row in rows]


@procedure
def put_then(note: UUID, error: Exception | AfterCommit) -> Script[AfterCommit]:
    """Write a note and fail afterwards, or after the commit."""
    yield Each("note_put", [(note, "then", 1)])
    if isinstance(error, AfterCommit):
        return error
    raise error


@procedure(reads=True)
def count() -> Script[int]:
    """Count the notes."""
    rows = yield Statement("note_count")
    return int(rows[0][0])


@procedure
def add(amount: int, *, name: str = "n", command: Command = FRESH) -> Script[int]:
    """Add to a counter, once for each command: the shape of every verb."""
    rows = yield Statement("command_find", {"command_id": command.id})
    if rows:
        return int(rows[0][0])
    rows = yield Statement("counter_add", {"name": name, "amount": amount})
    yield Each("command_put", [(command.id, rows[0][0])])
    return int(rows[0][0])


@procedure(wakes=True)
def offer(amount: int, *, command: Command = FRESH) -> Script[int]:
    """Add to the counter, and call that work."""
    rows = yield Statement("command_find", {"command_id": command.id})
    if rows:
        return int(rows[0][0])
    rows = yield Statement("counter_add", {"name": "n", "amount": amount})
    yield Last([Each("command_put", [(command.id, rows[0][0])])])
    return int(rows[0][0])


@procedure(wakes=True)
def offer_after_a_failure() -> Script[None]:
    """Offer work in one round trip that the database refuses once, as a serialization failure."""
    yield Last([Statement("fail", {"state": "40001", "times": 1})])


@procedure
def read_add(amount: int, *, name: str = "n", command: Command = FRESH) -> Script[int]:
    """Lock, decide, save."""
    if command.again:
        found = yield Statement("command_find", {"command_id": command.id})
        if found:
            return int(found[0][0])
    rows = yield Statement("counter_lock", {"name": name})
    value = int(rows[0][0]) + amount
    yield [
        Statement("counter_set", {"name": name, "value": value}),
        Each("command_put", [(command.id, value)]),
    ]
    return value


@procedure
def ask(name: str, /, **params: object) -> Script[Any]:
    """Send one statement and give its rows."""
    return (yield Statement(name, params))


@procedure(reads=True)
def look(name: str, /, **params: object) -> Script[Any]:
    """Send one statement that writes nothing and give its rows."""
    return (yield Statement(name, params))


@procedure
def fail(state: str, times: int) -> Script[int]:
    """Fail so many times in the database, then give which turn it was."""
    rows = yield Statement("fail", {"state": state, "times": times})
    return int(rows[0][0])


@procedure(urgent=True)
def renew() -> Script[int]:
    """Read the clock, before all others."""
    rows = yield Statement("clock")
    return int(rows[0][0])


def raised(kind: type[E], work: Callable[..., Any], *arguments: Any) -> E:
    """Give the error that a piece of work must raise."""
    with pytest.raises(kind) as error:
        work(*arguments)
    return error.value


class Blocking:
    """A blocking store, as it is."""

    kind = "blocking"

    def __init__(self, url: str, **options: Any) -> None:
        self.store = PostgresStore(url, **{"statements": STATEMENTS, "migrations": MIGRATIONS, **options})
        self.run: Callable[[Procedure[Any]], Any] = self.store.run
        self.transaction = self.store.transaction
        self.migrate = self.store.migrate
        self.pending = self.store.pending_migrations
        self.close = self.store.close


class Awaiting:
    """An awaiting store behind the same words, on an event loop of its own."""

    kind = "awaiting"

    def __init__(self, url: str, **options: Any) -> None:
        self.runner = asyncio.Runner()

        async def make() -> AsyncPostgresStore:
            return AsyncPostgresStore(url, **{"statements": STATEMENTS, "migrations": MIGRATIONS, **options})

        self.store = self.runner.run(make())

    def run(self, procedure: Procedure[Any]) -> Any:
        return self.runner.run(self.store.run(procedure))

    def migrate(self, **options: Any) -> list[str]:
        return self.runner.run(self.store.migrate(**options))

    def pending(self) -> list[str]:
        return self.runner.run(self.store.pending_migrations())

    @contextmanager
    def transaction(self, *, deadline: timedelta | None = None) -> Iterator[Any]:
        block = self.store.transaction(deadline=deadline)
        tx = self.runner.run(block.__aenter__())
        try:
            yield _Awaited(self.runner, tx)
        except BaseException as error:
            if not self.runner.run(block.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self.runner.run(block.__aexit__(None, None, None))

    def close(self) -> None:
        self.runner.run(self.store.close())
        self.runner.close()


def poll(url: str, query: str, wanted: Any, *params: Any) -> None:
    """Ask the server until it gives the row wanted; for what it finishes on its own time."""
    end = time.monotonic() + 20
    with psycopg.connect(url, autocommit=True) as witness:
        while (row := witness.execute(query.encode(), params or None).fetchone()) != wanted:
            assert time.monotonic() < end, f"still {row}, not {wanted}"


class _Awaited:
    def __init__(self, runner: asyncio.Runner, tx: Any) -> None:
        self.runner = runner
        self.connection = tx.connection
        self._tx = tx

    def run(self, procedure: Procedure[Any]) -> Any:
        return self.runner.run(self._tx.run(procedure))

    def execute(self, sql: str, params: Any = ()) -> list[Any]:
        async def work() -> list[Any]:
            cursor = await self._tx.execute(sql, params)
            return await cursor.fetchall() if cursor.description else []

        return self.runner.run(work())
