"""A call in an open transaction that ends before anybody knows how far it came: what was there before it stays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import Lock
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import psycopg
import pytest

from tests.stores_postgres.toy import Awaiting, Blocking, count, put, put_then

Give = Callable[[], Awaitable[Any]]


def notes(database: str) -> set[UUID]:
    with psycopg.connect(database) as connection:
        return {row[0] for row in connection.execute("SELECT id FROM tenure.note")}


def running(database: str, work: Callable[[Any], Awaitable[None]]) -> None:
    store = Awaiting(database)
    try:
        store.runner.run(work(store.store))
    finally:
        store.close()


async def interrupted(lock: Any, call: Awaitable[Any]) -> None:
    """Cancel a call that waits for the connection, before anything of it was sent."""
    async with lock:
        task = asyncio.ensure_future(call)
        while not lock._waiters:  # noqa: ASYNC110 - a lock has no signal for who waits
            await asyncio.sleep(0)
        task.cancel()
        # Its way back needs the connection, too.
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_call_cancelled_before_it_was_sent_takes_nothing_along(database: str, before: int) -> None:
    kept = {uuid4() for _ in range(before)}
    own, later = uuid4(), uuid4()

    async def work(store: Any) -> None:
        async with await psycopg.AsyncConnection.connect(database) as connection:
            for note in kept:
                await store.join(connection).run(put((note, "kept", 1)))
            await connection.execute("INSERT INTO tenure.note VALUES (%s, 'own', 1)", [own])
            await interrupted(connection.lock, store.join(connection).run(put((uuid4(), "never", 1))))
            # The transaction can be used: the control is a call that is not cancelled.
            await store.join(connection).run(put((later, "later", 1)))

    running(database, work)
    assert notes(database) == {*kept, own, later}


def test_a_call_cancelled_in_a_block_takes_nothing_along(database: str) -> None:
    kept, own, later = uuid4(), uuid4(), uuid4()

    async def work(store: Any) -> None:
        async with store.transaction() as tx:
            await tx.run(put((kept, "kept", 1)))
            await tx.execute("INSERT INTO tenure.note VALUES (%s, 'own', 1)", [own])
            await interrupted(tx.connection.lock, tx.run(put((uuid4(), "never", 1))))
            await tx.run(put((later, "later", 1)))

    running(database, work)
    assert notes(database) == {kept, own, later}


@pytest.mark.parametrize("cached", [0, 100])
def test_an_asyncpg_call_cancelled_at_any_moment_takes_nothing_along(database: str, cached: int) -> None:
    expected: set[UUID] = set()
    maybe: set[UUID] = set()
    cancelled = 0

    async def work(store: Any) -> None:
        nonlocal cancelled
        connection = await asyncpg.connect(database, statement_cache_size=cached)
        for turns in range(1, 26):
            first, own, never, later = (uuid4() for _ in range(4))
            async with connection.transaction():
                await store.join(connection).run(put((first, "first", 1)))
                await connection.execute("INSERT INTO tenure.note VALUES ($1, 'own', 1)", own)
                task = asyncio.ensure_future(store.join(connection).run(put((never, "never", 1))))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                cancelled += task.cancelled()
                # What a cancelled call wrote is gone with it; one that had ended has written.
                (expected if not task.cancelled() else maybe).add(never)
                await store.join(connection).run(put((later, "later", 1)))
            expected.update((first, own, later))
        await connection.close()

    running(database, work)
    assert cancelled > 0
    assert notes(database) == expected
    assert not maybe & notes(database)


class Struck:
    """A lock at which a signal handler raises, once."""

    def __init__(self, error: BaseException) -> None:
        self._lock = Lock()
        self._error: BaseException | None = error

    def __enter__(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("piped", [False, True])
def test_a_blocking_call_struck_by_a_signal_takes_nothing_along(database: str, piped: bool) -> None:
    kept, own, later = uuid4(), uuid4(), uuid4()
    store = Blocking(database)
    with psycopg.connect(database) as connection:
        joined = store.store.join(connection)
        joined.run(put((kept, "kept", 1)))
        connection.execute("INSERT INTO tenure.note VALUES (%s, 'own', 1)", [own])
        lock = connection.lock
        connection.lock = Struck(KeyboardInterrupt())  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            joined.run(put((uuid4(), "never", 1)))
        connection.lock = lock
        if piped:
            with connection.pipeline():
                joined.run(put((later, "later", 1)))
        else:
            joined.run(put((later, "later", 1)))
    store.close()
    assert notes(database) == {kept, own, later}


def test_a_savepoint_of_the_callers_own_stays_the_callers(database: str) -> None:
    kept = uuid4()
    store = Blocking(database)
    with psycopg.connect(database) as connection:
        joined = store.store.join(connection)
        joined.run(put((kept, "kept", 1)))
        connection.execute("SAVEPOINT tenure_step")
        joined.run(put((uuid4(), "taken back", 1)))
        with pytest.raises(ValueError, match="no"):
            joined.run(put_then(uuid4(), ValueError("no")))
        connection.execute("ROLLBACK TO SAVEPOINT tenure_step")
    assert store.run(count()) == 1
    store.close()
    assert notes(database) == {kept}


def test_a_transaction_that_had_failed_is_left_failed(database: str) -> None:
    """Nothing that brings one back may hide from its owner that a statement of his had failed."""

    async def work(store: Any) -> None:
        async with await psycopg.AsyncConnection.connect(database) as connection:
            joined = store.join(connection)
            await joined.run(put((uuid4(), "lost", 1)))
            async with connection.lock:
                task = asyncio.ensure_future(joined.run(put((uuid4(), "never", 1))))
                while not connection.lock._waiters:  # noqa: ASYNC110 - a lock has no signal for who waits
                    await asyncio.sleep(0)
                await connection.wait(_failing(connection.pgconn))
                task.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            assert any("roll it back" in note for note in caught.value.__notes__)
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
            await connection.rollback()
            await joined.run(put((uuid4(), "kept", 1)))

    running(database, work)
    assert len(notes(database)) == 1


def _failing(pgconn: Any) -> Any:
    pgconn.send_query(b"SELECT 1 / 0")
    return (yield from psycopg.generators.execute(pgconn))
