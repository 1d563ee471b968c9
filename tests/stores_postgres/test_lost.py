"""Connections break, replies get lost, servers go and come back; a call ends once, and in time."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tenure.errors import Conflict, Unavailable, Uncertain
from tenure.stores.postgres.store import AsyncPostgresStore
from tenure.yields import AfterCommit, Each, Script, Statement, procedure
from tests.stores_postgres.conftest import Maker
from tests.stores_postgres.toy import (
    MIGRATIONS,
    SLEEPING,
    STATEMENTS,
    Awaiting,
    Blocking,
    add,
    count,
    look,
    poll,
    put,
    raised,
    read_add,
)
from tests.support.postgres import Server
from tests.support.proxy import Proxy


@pytest.mark.parametrize("times", [1, 3])
def test_a_lost_reply_to_the_commit_gives_the_first_answer(make: Maker, proxy: Proxy, times: int) -> None:
    store = make(proxy.url)
    assert store.run(add(1)) == 1
    proxy.lose_replies(times)
    assert store.run(add(10)) == 11
    assert proxy.seen["lost_replies"] == 1 if times == 1 else proxy.seen["lost_replies"] > 1
    proxy.lose_replies(0)
    # Once, and a new call is a new command.
    assert store.run(add(0)) == 11
    assert store.run(read_add(5)) == 16


@pytest.mark.parametrize("times", [1, 3])
def test_a_lost_commit_is_performed_by_the_next_try(make: Maker, proxy: Proxy, times: int) -> None:
    store = make(proxy.url)
    assert store.run(add(1)) == 1
    proxy.lose_commits(times)
    assert store.run(add(10)) == 11
    assert proxy.seen["lost_commits"] == times
    assert store.run(add(0)) == 11


def test_a_command_that_was_committed_is_not_judged_anew(make: Maker, proxy: Proxy) -> None:
    store = make(proxy.url)
    store.run(add(1))
    proxy.lose_replies()
    assert store.run(read_add(10)) == 11
    assert proxy.seen["lost_replies"] == 1
    assert store.run(add(0)) == 11


def test_the_error_after_the_commit_is_raised_although_the_reply_was_lost(make: Maker, proxy: Proxy) -> None:
    store = make(proxy.url)
    store.run(count())
    note = uuid4()

    @procedure
    def once() -> Script[AfterCommit]:
        if not (yield Statement("note_get", {"ids": [note]})):
            yield Each("note_put", [(note, "x", 1)])
        return AfterCommit(Conflict("after the commit"))

    proxy.lose_replies()
    with pytest.raises(Conflict, match="after the commit"):
        store.run(once())
    assert proxy.seen["lost_replies"] == 1
    assert store.run(count()) == 1


@pytest.mark.parametrize("text", ["BEGIN", "set_config", "INTO tenure.counter", "INTO tenure.command"])
def test_a_connection_cut_in_the_middle_costs_nothing(make: Maker, proxy: Proxy, text: str) -> None:
    store = make(proxy.url)
    assert store.run(add(1)) == 1
    before = proxy.seen["resets"]
    proxy.cut_at(text)
    assert store.run(add(10)) == 11
    assert proxy.seen["resets"] == before + 1
    assert store.run(add(0)) == 11


def test_a_read_is_repeated_on_another_connection(make: Maker, proxy: Proxy) -> None:
    store = make(proxy.url)
    store.run(put((uuid4(), "x", 1)))
    proxy.cut_at("count(*)")
    assert store.run(count()) == 1
    assert proxy.seen["resets"] == 1


def test_a_pool_of_dead_connections_is_noticed_by_nobody(proxy: Proxy) -> None:
    store = Blocking(proxy.url, pool_size=4)
    together = threading.Barrier(4)

    @procedure
    def meet() -> Script[Any]:
        rows = yield Statement("clock")
        together.wait(10)
        return rows

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(store.run, meet()) for _ in range(4)]:
            done.result()
    assert proxy.reset() == 4
    assert [store.run(add(1)) for _ in range(6)] == [1, 2, 3, 4, 5, 6]
    store.close()


def test_backends_ended_by_an_operator_are_replaced(make: Maker, database: str) -> None:
    store = make(database, pool_size=1)
    store.run(add(1))
    with psycopg.connect(database, autocommit=True) as operator:
        ended = operator.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchone()
    assert ended == (1,)
    assert store.run(add(1)) == 2


def test_a_server_that_refuses_is_unavailable_and_comes_back_by_itself(make: Maker, proxy: Proxy) -> None:
    store = make(proxy.url, patience=timedelta(seconds=0.6))
    store.run(add(1))
    proxy.refusing = True
    proxy.reset()
    began = time.monotonic()
    with pytest.raises(Unavailable) as error:
        store.run(add(1))
    assert time.monotonic() - began < 3
    assert error.value.code == "UNREACHABLE"
    assert proxy.seen["refused"] > 0
    proxy.refusing = False
    assert store.run(add(1)) == 2


def test_a_server_that_falls_silent_keeps_nobody_for_ever(make: Maker, proxy: Proxy) -> None:
    store = make(proxy.url, patience=timedelta(seconds=0.5))
    store.run(add(1))
    proxy.hold()
    began = time.monotonic()
    with pytest.raises(Unavailable):
        store.run(add(10))
    assert time.monotonic() - began < 8
    proxy.flow()
    # What was held back may have been executed meanwhile, but without its commit.
    assert store.run(add(1)) == 2


def test_a_restarted_server_is_found_again(postgres_server: Server) -> None:
    store = Blocking(postgres_server.url, patience=timedelta(seconds=20))
    store.migrate()
    store.run(add(1))
    postgres_server.stop("immediate")
    answers: list[int] = []
    caller = threading.Thread(target=lambda: answers.append(store.run(add(1))))
    caller.start()
    postgres_server.start()
    back = time.monotonic()
    caller.join(20)
    assert answers == [2]
    assert time.monotonic() - back < 5
    store.close()


def test_a_cancelled_caller_leaves_the_connection_in_order(database: str) -> None:
    store = Awaiting(database, pool_size=1)
    store.run(put((uuid4(), "x", 1)))

    async def cancel() -> None:
        sleeping = asyncio.create_task(store.store.run(_put_and_sleep()))
        await asyncio.to_thread(poll, database, SLEEPING, (1,))
        sleeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeping

    began = time.monotonic()
    store.runner.run(cancel())
    assert time.monotonic() - began < 5
    assert store.run(count()) == 1
    assert store.run(put((uuid4(), "y", 1)))
    # The server was told to stop as well.
    poll(database, SLEEPING, (0,))
    store.close()


@procedure
def _put_and_sleep() -> Script[None]:
    yield Each("note_put", [(uuid4(), "gone", 1)])
    yield Statement("sleep", {"seconds": 30.0})


def test_callers_cancelled_at_any_moment_lose_no_connection(database: str) -> None:
    store = Awaiting(database, pool_size=2)
    store.run(add(0))

    async def storm() -> int:
        cancelled = 0
        for number in range(60):
            tasks = [asyncio.create_task(store.store.run(add(1))) for _ in range(4)]
            await asyncio.sleep(number % 12 * 0.0007)
            for task in tasks[:3]:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                cancelled += isinstance(outcome, asyncio.CancelledError)
                assert isinstance(outcome, int | asyncio.CancelledError), outcome
        return cancelled

    assert store.runner.run(storm()) > 20

    # Both connections are there: two transactions at once.
    async def both() -> list[Any]:
        async def hold() -> Any:
            async with store.store.transaction() as tx:
                return await tx.run(look("clock"))

        return await asyncio.gather(hold(), hold())

    assert len(store.runner.run(both())) == 2
    store.close()


def test_one_event_loop_after_another(database: str) -> None:
    store = AsyncPostgresStore(database, statements=STATEMENTS, migrations=MIGRATIONS)

    async def work() -> int:
        return int(await store.run(add(1)))

    assert asyncio.run(work()) == 1
    assert asyncio.run(work()) == 2
    asyncio.run(store.close())


# Blocks: there is no procedure to run again, so the server is asked what became of the commit.


def test_a_block_whose_reply_was_lost_is_found_committed(make: Maker, proxy: Proxy) -> None:
    store = make(proxy.url)
    store.run(count())
    proxy.lose_replies()
    with store.transaction() as tx:
        tx.run(put((uuid4(), "x", 1)))
    assert proxy.seen["lost_replies"] == 1
    assert store.run(count()) == 1


def test_a_block_whose_commit_was_lost_is_found_undone(make: Maker, proxy: Proxy) -> None:
    store = make(proxy.url)
    store.run(count())
    proxy.lose_commits()
    with pytest.raises(Unavailable) as error, store.transaction() as tx:
        tx.run(put((uuid4(), "x", 1)))
    assert error.value.code == "CONNECTION_LOST"
    assert proxy.seen["lost_commits"] == 1
    assert store.run(count()) == 0


def test_a_block_cut_in_the_middle_is_undone(make: Maker, proxy: Proxy) -> None:
    store = make(proxy.url)
    store.run(count())

    def block() -> None:
        with store.transaction() as tx:
            tx.run(put((uuid4(), "x", 1)))
            proxy.reset()
            tx.run(put((uuid4(), "y", 1)))

    assert raised(Unavailable, block).code == "CONNECTION_LOST"
    assert store.run(count()) == 0


def test_a_block_begins_on_another_connection_when_the_pooled_one_is_dead(make: Maker, proxy: Proxy) -> None:
    store = make(proxy.url, pool_size=1)
    store.run(count())
    assert proxy.reset() == 1
    with store.transaction() as tx:
        tx.run(put((uuid4(), "x", 1)))
    assert store.run(count()) == 1


def test_a_block_whose_server_came_back_as_another_is_uncertain(postgres_server: Server) -> None:
    with Proxy(postgres_server.url) as proxy:
        store = Blocking(proxy.url, patience=timedelta(seconds=20))
        store.migrate()
        with ThreadPoolExecutor(1) as thread:
            outcome = thread.submit(_block_with_a_lost_reply, store, proxy)
            assert proxy.wait_for_lost_reply()
            postgres_server.stop("fast")
            postgres_server.start()
            proxy.refusing = False
            with pytest.raises(Uncertain) as error:
                outcome.result()
        assert error.value.code == "COMMIT_UNKNOWN"
        assert store.run(count()) == 1
        store.close()


def test_a_block_whose_server_stays_away_is_uncertain(proxy: Proxy) -> None:
    store = Blocking(proxy.url, patience=timedelta(seconds=0.5))
    store.run(count())
    with pytest.raises(Uncertain) as error:
        _block_with_a_lost_reply(store, proxy)
    assert error.value.code == "COMMIT_UNKNOWN"
    proxy.refusing = False
    assert store.run(count()) == 1
    store.close()


def _block_with_a_lost_reply(store: Blocking, proxy: Proxy) -> None:
    with store.transaction() as tx:
        tx.run(put((uuid4(), "x", 1)))
        proxy.lose_replies()
        proxy.refusing = True
