"""The awaiting face: the loop keeps turning, and a caller that is cancelled takes nothing with it."""

from __future__ import annotations

import asyncio
import contextvars
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tenure.errors import Conflict, IllegalMove, Invalid, Unavailable
from tenure.stores.sqlite.store import AsyncSqliteStore, SqliteStore
from tenure.yields import Procedure
from tests.stores_sqlite.support import Background, run_out, statements_of, wait_for_line
from tests.stores_sqlite.toy import (
    async_toy_store,
    count,
    count_aside,
    keys_aside,
    put,
    put_and_refuse,
    put_and_tell,
    put_many,
    toy_store,
)

T = TypeVar("T")
Body = Callable[[AsyncSqliteStore], Awaitable[None]]


def with_store(url: str, body: Body) -> None:
    async def main() -> None:
        async with async_toy_store(url) as store:
            await store.migrate()
            await asyncio.wait_for(body(store), 60)

    asyncio.run(main())


@pytest.fixture(params=["file", "memory"])
def either_url(request: pytest.FixtureRequest, url: str) -> str:
    return url if request.param == "file" else "sqlite:///:memory:"


async def until(condition: Callable[[], bool]) -> int:
    """Let the loop turn until something holds; gives the turns it took."""
    turns = 0
    while not condition():
        turns += 1
        await asyncio.sleep(0.001)
    return turns


@asynccontextmanager
async def locked(store: AsyncSqliteStore) -> AsyncIterator[sqlite3.Connection]:
    """Hold the file's write lock as another program would."""
    path = store.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as rival:
        rival.execute("BEGIN IMMEDIATE")
        yield rival
        if rival.in_transaction:
            rival.execute("ROLLBACK")


def test_it_answers_as_the_blocking_store_does(either_url: str) -> None:
    async def body(store: AsyncSqliteStore) -> None:
        assert await store.run(put("a")) == "a"
        assert await store.run(put_many(["b", "c"])) == [("b", "many"), ("c", "many")]
        assert await store.run(count_aside()) == 3
        with pytest.raises(Conflict, match="refused"):
            await store.run(put_and_refuse("d"))
        with pytest.raises(Conflict, match="stands"):
            await store.run(put_and_tell("e"))
        assert await store.run(keys_aside()) == ["a", "b", "c", "e"]
        assert await store.pending_migrations() == []

    with_store(either_url, body)


def test_many_tasks_share_commits_and_lose_nothing(either_url: str) -> None:
    async def body(store: AsyncSqliteStore) -> None:
        with statements_of(store) as seen:
            asks: list[Procedure[Any]] = [
                put_and_refuse(f"x{number}") if number % 7 == 0 else put(f"k{number}") for number in range(700)
            ]
            results = await asyncio.gather(*[store.run(one) for one in asks], return_exceptions=True)
        assert [isinstance(result, Conflict) for result in results] == [number % 7 == 0 for number in range(700)]
        assert await store.run(count()) == 600
        assert seen.count("COMMIT") <= 70

    with_store(either_url, body)


def test_the_loop_turns_while_the_database_is_locked_by_others(url: str) -> None:
    async def body(store: AsyncSqliteStore) -> None:
        async with locked(store) as rival:
            waiting = asyncio.ensure_future(store.run(put("a")))
            assert await store.run(count_aside()) == 0  # a read waits for nobody
            await until(lambda: store._engine.line.held)
            for _turn in range(20):
                await asyncio.sleep(0.001)
            assert not waiting.done()
            rival.execute("ROLLBACK")
            assert await waiting == "a"

    with_store(url, body)


def test_a_cancelled_caller_undoes_nothing_and_blocks_nobody(url: str) -> None:
    async def body(store: AsyncSqliteStore) -> None:
        async with locked(store) as rival:
            first = asyncio.ensure_future(store.run(put("first")))
            cancelled = asyncio.ensure_future(store.run(put("cancelled")))
            last = asyncio.ensure_future(store.run(put("last")))
            await until(lambda: store._engine.line.held)
            await asyncio.sleep(0)
            assert cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            rival.execute("ROLLBACK")
            assert await asyncio.gather(first, last) == ["first", "last"]
        assert await store.run(keys_aside()) == ["first", "cancelled", "last"]

    with_store(url, body)


def test_a_loop_that_is_gone_harms_nobody(store: SqliteStore, url: str, tmp_path: Path) -> None:
    other = async_toy_store(url)
    with closing(sqlite3.connect(tmp_path / "toy.db", isolation_level=None)) as rival:
        rival.execute("BEGIN IMMEDIATE")
        with closing(asyncio.new_event_loop()) as loop:
            task = loop.create_task(other.run(put("left")))
            loop.run_until_complete(until(lambda: other._engine.line.held))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                loop.run_until_complete(task)
            # One that waits still when the loop is closed.
            waiting = other._engine.run_async(put("kept"))
            loop.call_soon(waiting.send, None)
            loop.run_until_complete(asyncio.sleep(0))
        rival.execute("ROLLBACK")

    async def later() -> list[str]:
        await other.run(put("later"))
        keys = await other.run(keys_aside())
        await other.close()
        return keys

    assert asyncio.run(later()) == ["left", "kept", "later"]
    assert store.run(count()) == 3


def test_two_loops_share_one_store(store: SqliteStore, url: str) -> None:
    other = async_toy_store(url)

    async def work(who: str) -> int:
        await asyncio.gather(*[other.run(put(f"{who}{number}")) for number in range(100)])
        return await other.run(count_aside())

    for call in [Background(asyncio.run, work(who)) for who in "abc"]:
        assert call.result() >= 100
    assert store.run(count()) == 300
    asyncio.run(other.close())


# Transactions.


def test_a_transaction_commits_or_rolls_back(either_url: str) -> None:
    async def body(store: AsyncSqliteStore) -> None:
        async with store.transaction() as tx:
            assert await tx.run(put("a")) == "a"
            with pytest.raises(Conflict):
                await tx.run(put_and_refuse("b"))
            await tx.execute("CREATE TABLE mine (v)")
            await tx.execute("INSERT INTO mine VALUES (?)", [7])
            assert (await tx.execute("SELECT v FROM mine")).fetchall() == [(7,)]
            assert tx.connection.in_transaction
        with pytest.raises(LookupError):
            await _failing(store)
        with pytest.raises(Conflict, match="stands"):
            await _telling(store)
        assert await store.run(keys_aside()) == ["a", "e"]

    with_store(either_url, body)


async def _failing(store: AsyncSqliteStore) -> None:
    async with store.transaction() as tx:
        await tx.run(put("lost"))
        raise LookupError


async def _telling(store: AsyncSqliteStore) -> None:
    async with store.transaction() as tx:
        await tx.run(put_and_tell("e"))


def test_a_write_beside_an_open_transaction_is_refused_at_once_and_a_read_is_not(url: str) -> None:
    async def body(store: AsyncSqliteStore) -> None:
        async with store.transaction() as tx:
            with pytest.raises(IllegalMove):
                await store.run(put("a"))
            with pytest.raises(IllegalMove):
                async with store.transaction():
                    pass
            with pytest.raises(IllegalMove):
                await store.migrate()
            assert await store.run(count_aside()) == 0
            await tx.run(put("a"))
            other = asyncio.get_running_loop().run_in_executor(None, _blocking_put, store, "other")
            await until(lambda: not store._engine.line.take() and store._engine.line.waits())
        assert await other == "other"
        assert await store.run(put("b")) == "b"

    def _blocking_put(store: AsyncSqliteStore, key: str) -> object:
        return store._engine.run(put(key))

    with_store(url, body)


def test_other_tasks_wait_for_the_block(either_url: str) -> None:
    async def body(store: AsyncSqliteStore) -> None:
        entered, leave = asyncio.Event(), asyncio.Event()

        async def block() -> None:
            async with store.transaction() as tx:
                entered.set()
                await leave.wait()
                await tx.run(put("block"))

        blocking = asyncio.ensure_future(block())
        await entered.wait()
        waiting = asyncio.ensure_future(store.run(put("other")))
        await until(store._engine.line.waits)
        assert not waiting.done()
        leave.set()
        await asyncio.gather(blocking, waiting)
        assert await store.run(keys_aside()) == ["block", "other"]

    with_store(either_url, body)


def test_a_block_that_lasts_too_long_is_rolled_back_while_it_still_runs(url: str) -> None:
    async def body(store: AsyncSqliteStore) -> None:
        with pytest.raises(Unavailable) as raised:
            await _late(store)
        assert raised.value.code == "TRANSACTION_TIMEOUT"
        assert await store.run(keys_aside()) == ["other"]
        async with store.transaction(deadline=timedelta(seconds=4)) as tx:
            await tx.run(put("in time"))
        assert await store.run(keys_aside()) == ["other", "in time"]

    async def _late(store: AsyncSqliteStore) -> None:
        async with store.transaction() as tx:
            await tx.run(put("late"))
            run_out(store)
            loop = asyncio.get_running_loop()
            assert await loop.run_in_executor(None, store._engine.run, put("other")) == "other"
            for use in (tx.run(put("later")), tx.execute("DELETE FROM tenure_note")):
                with pytest.raises(Unavailable) as refused:
                    await use
                assert refused.value.code == "TRANSACTION_TIMEOUT"

    with_store(url, body)


@pytest.mark.parametrize("moment", ["in line", "at the lock", "in the block", "at the end"])
def test_a_transaction_cancelled_at_any_moment_lets_go(url: str, moment: str) -> None:
    async def in_line(store: AsyncSqliteStore) -> None:
        async with store.transaction():
            task = await _start(_block(store, asyncio.Event()))
            await until(store._engine.line.waits)
            await _cancel(task)

    async def at_the_lock(store: AsyncSqliteStore) -> None:
        async with locked(store) as rival:
            task = await _start(_block(store, asyncio.Event()))
            await until(lambda: store._engine.line.held)
            await _cancel(task)
            rival.execute("ROLLBACK")

    async def in_the_block(store: AsyncSqliteStore) -> None:
        entered = asyncio.Event()
        task = await _start(_block(store, entered))
        await entered.wait()
        await _cancel(task)

    async def at_the_end(store: AsyncSqliteStore) -> None:
        # Cancelled while the thread of the transaction is busy with the end of it.
        begun, busy = threading.Event(), threading.Event()
        entered, leave = asyncio.Event(), asyncio.Event()
        task = await _start(_block(store, entered, leave))
        await entered.wait()
        pool = store._engine.pool("transaction", 1)
        stuck = pool.submit(lambda: begun.set() or busy.wait(30))
        await until(begun.is_set)
        leave.set()
        await until(lambda: pool._work_queue.qsize() > 0)
        await _cancel(task)
        busy.set()
        assert await asyncio.wrap_future(stuck)

    async def body(store: AsyncSqliteStore) -> None:
        act = {"in line": in_line, "at the lock": at_the_lock, "in the block": in_the_block, "at the end": at_the_end}
        await act[moment](store)
        began = time.monotonic()
        assert await store.run(put("after")) == "after"
        # Let go at once, and not by the deadline of a transaction that nobody owns.
        assert time.monotonic() - began < 4.0
        # Only the end of a block, once it has begun, can no longer be called off.
        expected = ["cancelled", "after"] if moment == "at the end" else ["after"]
        assert await store.run(keys_aside()) == expected
        async with store.transaction() as tx:
            await tx.run(put("again"))
        assert not store._engine.line.held

    with_store(url, body)


async def _block(store: AsyncSqliteStore, entered: asyncio.Event, leave: asyncio.Event | None = None) -> None:
    async with store.transaction() as tx:
        await tx.run(put("cancelled"))
        entered.set()
        await (leave or asyncio.Event()).wait()


async def _start(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    # A context of its own: the guard of a block must not be inherited from the test's own transaction.
    task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
    await asyncio.sleep(0)
    return task


async def _cancel(task: asyncio.Task[Any]) -> None:
    assert task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_store_closed_while_tasks_wait_serves_them_first(url: str) -> None:
    async def main() -> None:
        store = async_toy_store(url)
        await store.migrate()
        tasks = [asyncio.ensure_future(store.run(put(f"k{number}"))) for number in range(50)]
        await until(lambda: store._engine.line.waits() or any(task.done() for task in tasks))
        await store.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [result for result in results if isinstance(result, BaseException)] == []
        for use in (store.run(put("late")), store.run(count_aside())):
            with pytest.raises(Invalid) as raised:
                await use
            assert raised.value.code == "STORE_CLOSED"
        with pytest.raises(Invalid):
            async with store.transaction():
                raise AssertionError
        await store.close()

    asyncio.run(main())
    with toy_store(url) as after:
        assert after.run(count()) == 50


def test_nothing_is_left_running(url: str, tmp_path: Path) -> None:
    before = set(threading.enumerate())

    async def body(store: AsyncSqliteStore) -> None:
        await store.run(put("a"))
        await asyncio.gather(*[store.run(count_aside()) for _ in range(10)])
        async with store.transaction() as tx:
            await tx.run(put("b"))
        assert set(threading.enumerate()) - before

    with_store(url, body)
    assert set(threading.enumerate()) - before == set()
    assert [path.name for path in tmp_path.iterdir()] == ["toy.db"]


def test_waiting_in_line_is_a_matter_of_the_line_only(store: SqliteStore) -> None:
    # The helper used above is itself checked: it sees who stands in line.
    with store.transaction():
        call = Background(store.run, put("a"))
        wait_for_line(store, 1)
        assert store._engine.line.waits()
    assert call.result() == "a"


def test_a_store_is_not_closed_inside_its_own_transaction(url: str) -> None:
    async def body(store: AsyncSqliteStore) -> None:
        async with store.transaction() as tx:
            with pytest.raises(IllegalMove) as raised:
                await store.close()
            assert raised.value.code == "INSIDE_TRANSACTION"
            twin = store.blocking()
            await store.close()  # not the last one on its database any more
            with pytest.raises(IllegalMove):
                twin.close()
            await tx.run(put("a"))
        twin.close()

    with_store(url, body)
    with toy_store(url) as after:
        assert after.run(keys_aside()) == ["a"]
