"""A child opens connections of its own and never writes to its parent's."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress

import psycopg
import pytest

from tenure.errors import Invalid
from tests.stores_postgres.toy import Awaiting, Blocking, add, count, look


def in_child(work: Callable[[], str]) -> str:
    """Run in a forked child and give what it says; the child ends without any of the parent's cleaning up."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn about threads; a library has to live with programs that fork all the same.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        said = "the child failed"
        try:
            said = work()
        except BaseException as error:  # noqa: BLE001 - told to the parent
            said = f"{type(error).__name__} {getattr(error, 'code', '')} {error}"
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def backends(database: str) -> set[int]:
    with psycopg.connect(database) as witness:
        return {
            row[0]
            for row in witness.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        }


def test_a_child_has_its_own_connections_and_the_parent_keeps_its(database: str) -> None:
    store = Blocking(database, pool_size=1)
    assert store.run(add(1)) == 1
    mine = backends(database)
    assert len(mine) == 1
    for turn in range(3):
        assert in_child(lambda: str(store.run(add(1)))) == str(2 + 2 * turn)
        assert store.run(add(1)) == 3 + 2 * turn
        assert mine <= backends(database)
    store.close()


def test_many_forks_beside_busy_threads(database: str) -> None:
    store = Blocking(database, pool_size=2)
    store.run(add(0))
    stop = threading.Event()
    failures: list[BaseException] = []
    runs = [0]

    def busy() -> None:
        try:
            while not stop.is_set():
                store.run(add(1))
                runs[0] += 1
        except BaseException as error:  # noqa: BLE001 - looked at below
            failures.append(error)

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    said = [in_child(lambda: str(store.run(count()))) for _ in range(25)]
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert said == ["0"] * 25
    assert runs[0] > 0
    store.close()


def test_a_child_that_closes_the_store_closes_nothing_of_the_parents(database: str) -> None:
    store = Blocking(database, pool_size=1)
    store.run(add(1))
    mine = backends(database)

    def close() -> str:
        store.store.notify()
        store.close()
        return "closed"

    assert in_child(close) == "closed"
    assert backends(database) == mine
    assert store.run(add(1)) == 2
    store.close()


def test_an_open_block_stays_with_the_parent(database: str) -> None:
    store = Blocking(database)
    with store.transaction() as tx:
        tx.run(add(1))
        assert "FORKED" in in_child(lambda: str(tx.run(add(1))))

        def leave() -> str:
            with suppress(KeyError), store.transaction():
                raise KeyError
            return "unreachable"

        # The open block is this thread's also after the fork, and says so.
        assert "INSIDE_TRANSACTION" in in_child(leave)
        assert tx.run(add(1)) == 2
    assert store.run(add(0)) == 2
    store.close()


def test_leaving_a_parents_block_in_the_child_touches_nothing(database: str) -> None:
    store = Blocking(database)
    block = store.transaction()
    tx = block.__enter__()
    tx.run(add(1))

    def leave() -> str:
        with pytest.raises(Invalid) as error:
            block.__exit__(None, None, None)
        return str(error.value.code)

    assert in_child(leave) == "FORKED"
    assert tx.run(add(1)) == 2
    block.__exit__(None, None, None)
    assert store.run(add(0)) == 2
    store.close()


def test_a_listener_stays_with_the_parent(database: str) -> None:
    store = Blocking(database)
    woken = threading.Semaphore(0)
    with store.store.listen(woken.release):
        assert woken.acquire(timeout=10)
        assert in_child(lambda: str(store.run(add(1)))) == "1"
        store.store.notify()
        assert woken.acquire(timeout=10)
    store.close()


def test_an_awaiting_store_starts_anew_in_the_child(database: str) -> None:
    store = Awaiting(database, pool_size=1)
    assert store.run(add(1)) == 1
    mine = backends(database)

    def work() -> str:
        import asyncio

        return str(asyncio.run(_add(store)))

    assert in_child(work) == "2"
    assert mine <= backends(database)
    assert store.run(add(1)) == 3
    assert store.run(look("clock"))
    store.close()


async def _add(store: Awaiting) -> int:
    return int(await store.store.run(add(1)))
