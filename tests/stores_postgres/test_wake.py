"""A notification wakes those who listen, soon and seldom, and never rides in somebody's transaction."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tenure.stores.postgres.wake import INTERVAL
from tests.stores_postgres.conftest import Maker
from tests.stores_postgres.toy import Awaiting, Blocking, add, count, offer, offer_after_a_failure, poll, raised
from tests.support.postgres import Server, start_server
from tests.support.proxy import Proxy


class Bell:
    """Counts how often it was rung."""

    def __init__(self) -> None:
        self.rung = 0
        self._changed = threading.Condition()

    def __call__(self) -> None:
        with self._changed:
            self.rung += 1
            self._changed.notify_all()

    def wait_for(self, times: int, seconds: float = 10) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.rung >= times, seconds)


def notify(store: Any) -> None:
    if isinstance(store, Awaiting):
        store.runner.run(store.store.notify())
        finish(store)
    else:
        store.store.notify()


def finish(store: Any) -> None:
    """Let an awaiting store, whose loop stands still between two calls, tell what it has to."""
    if isinstance(store, Awaiting):

        async def wait() -> None:
            task = store.store._telling
            assert task is not None
            await task

        store.runner.run(wait())


def threads_named(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def test_a_notification_reaches_the_listeners_of_other_stores(make: Maker, database: str) -> None:
    listening, telling = Blocking(database), make(database)
    bell = Bell()
    with listening.store.listen(bell) as heard:
        assert heard is True
        # Once at the start, because what came before was not heard.
        assert bell.wait_for(1)
        began = time.monotonic()
        notify(telling)
        assert bell.wait_for(2)
        assert time.monotonic() - began < 2
    rung = bell.rung
    notify(telling)
    assert telling.run(count()) == 0
    assert bell.rung == rung
    listening.close()


def test_many_notifications_become_few(proxy: Proxy) -> None:
    # Not prepared, so that every one is seen on its way.
    store = Blocking(proxy.url, prepare=False)
    store.run(count())
    began = time.monotonic()
    while time.monotonic() - began < 0.3:
        store.store.notify()
    store.close()
    sent = sum("pg_notify" in one for one in proxy.statements)
    # At most one in fifty milliseconds, and the last one is not forgotten.
    assert 2 <= sent <= (time.monotonic() - began) / 0.05 + 2


def test_many_awaited_notifications_become_few(proxy: Proxy) -> None:
    store = Awaiting(proxy.url, prepare=False)

    async def burst() -> None:
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            await store.store.notify()
            await store.store.run(count())

    began = time.monotonic()
    store.runner.run(burst())
    store.close()
    assert 2 <= sum("pg_notify" in one for one in proxy.statements) <= (time.monotonic() - began) / 0.05 + 2


def test_what_may_be_work_is_told_with_its_commit(make: Maker, database: str) -> None:
    listening, telling = Blocking(database), make(database)
    bell = Bell()
    with listening.store.listen(bell):
        assert bell.wait_for(1)
        telling.run(add(1))
        # Nobody is told of what is no work: what is heard next is the next one.
        assert telling.run(offer(1)) == 2
        assert bell.wait_for(2)
        assert bell.rung == 2
        # Within the interval the next one is told a little later.
        assert telling.run(offer(1)) == 3
        finish(telling)
        assert bell.wait_for(3)
    listening.close()


def test_many_commits_of_work_are_told_seldom(make: Maker, database: str) -> None:
    listening, telling = Blocking(database), make(database)
    bell = Bell()
    with listening.store.listen(bell):
        assert bell.wait_for(1)
        began = time.monotonic()
        for number in range(100):
            assert telling.run(offer(1)) == number + 1
        took = time.monotonic() - began
        finish(telling)
        # One at once, at most one in fifty milliseconds after it, and the last commit is not forgotten.
        assert bell.wait_for(3)
        assert bell.rung <= 1 + 1 + took / 0.05 + 1
    listening.close()


def test_a_commit_stands_where_nobody_may_be_told(database: str) -> None:
    listening = Blocking(database)
    bell = Bell()
    role = f"mute_{uuid4().hex}"
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'mute'".encode())
        try:
            owner.execute(f"GRANT USAGE ON SCHEMA tenure TO {role}".encode())
            owner.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA tenure TO {role}".encode())
            # A function's rights are those of its database.
            owner.execute(b"REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM public")
            mute, loud = Blocking(database.replace("postgres@", f"{role}@")), Blocking(database)
            with listening.store.listen(bell):
                assert bell.wait_for(1)
                for number in (1, 2):
                    # And the connection is as good as before.
                    assert mute.run(offer(1)) == number
                    assert bell.rung == 1
                assert loud.run(offer(1)) == 3
                assert bell.wait_for(2)
            mute.close()
            loud.close()
        finally:
            owner.execute(b"GRANT EXECUTE ON FUNCTION pg_notify(text, text) TO public")
            owner.execute(f"DROP OWNED BY {role}".encode())
            owner.execute(f"DROP ROLE {role}".encode())
    listening.close()


def test_a_first_commit_that_failed_does_not_silence_a_connection(database: str) -> None:
    listening, telling = Blocking(database), Blocking(database, pool_size=1)
    bell = Bell()
    with listening.store.listen(bell):
        assert bell.wait_for(1)
        telling.run(offer_after_a_failure())
        for number in (1, 2, 3):
            heard = bell.rung
            assert telling.run(offer(1)) == number
            assert bell.wait_for(heard + 1)
    telling.close()
    listening.close()


@pytest.fixture
def own_server() -> Iterator[Server]:
    with start_server() as server:
        Blocking(server.url).migrate()
        yield server


def test_a_notification_that_cannot_be_committed_costs_the_caller_nothing(own_server: Server) -> None:
    """Its commit waits for a lock of the whole server, which another session holds until its own commit is done."""
    database = own_server.url
    with psycopg.connect(database, autocommit=True) as admin, psycopg.connect(database, autocommit=True) as other:
        # A commit that waits for a standby holds the lock, and nothing comes.
        admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        admin.execute("ALTER DATABASE postgres SET synchronous_commit = local")
        admin.execute("SELECT pg_reload_conf()")
        other.execute("SET synchronous_commit = on")
        ended = threading.Event()

        def until_held() -> None:
            # The server hears of its new settings when it likes.
            while not ended.is_set():
                other.execute("NOTIFY other")

        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(until_held)
            try:
                poll(database, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'", (1,))
                for kind in (Blocking, Awaiting):
                    telling = kind(database, pool_size=1)
                    before = telling.run(offer(0))
                    time.sleep(INTERVAL)  # the next one is told with its commit, too
                    began = time.monotonic()
                    assert telling.run(offer(1)) == before + 1
                    assert telling.run(count()) == 0
                    assert time.monotonic() - began < 2
                    telling.close()
            finally:
                # Also where it failed: the pool waits for its thread, and that one for a standby that never comes.
                ended.set()
                admin.execute("SELECT pg_cancel_backend(%s)", (other.info.backend_pid,))
            held.result(10)
        listening, telling, bell = Blocking(database), Blocking(database), Bell()
        with listening.store.listen(bell):
            assert bell.wait_for(1)
            telling.run(offer(1))
            assert bell.wait_for(2)
        listening.close()
        telling.close()


def test_a_store_that_is_closed_meanwhile_still_says_what_it_committed(database: str) -> None:
    store = Awaiting(database)

    async def burst() -> list[int]:
        await store.store.run(offer(1))
        second = asyncio.ensure_future(store.store.run(offer(1)))
        while not second.done():
            await asyncio.sleep(0)
            # As late as it can be: between its commit and its telling.
            store.store._closed = second.done() or store.store._pools[False].get_stats().get("pool_available") == 1
        return [await second]

    try:
        assert store.runner.run(burst()) == [2]
    finally:
        store.store._closed = False
        store.close()


def test_a_notification_is_not_part_of_an_open_transaction(database: str) -> None:
    listening, store = Blocking(database), Blocking(database)
    bell = Bell()
    with listening.store.listen(bell):
        assert bell.wait_for(1)

        def block() -> None:
            with store.transaction() as tx:
                tx.run(add(1))
                store.store.notify()
                # Heard although the transaction is still open and will not be committed.
                assert bell.wait_for(2)
                raise KeyError

        raised(KeyError, block)
    assert store.run(add(0)) == 0
    listening.close()
    store.close()


def test_a_listener_comes_back_after_its_connection_broke(proxy: Proxy, database: str) -> None:
    listening, telling = Blocking(proxy.url), Blocking(database)
    bell = Bell()
    with listening.store.listen(bell) as heard:
        assert heard
        assert bell.wait_for(1)
        assert proxy.reset() == 1
        # Connected again: it looks by itself.
        assert bell.wait_for(2)
        telling.store.notify()
        assert bell.wait_for(3)
    listening.close()
    telling.close()


def test_a_listener_that_cannot_start_goes_on_trying(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    from tenure.stores.postgres import wake

    monkeypatch.setattr(wake, "_FIRST", 0.2)
    store = Blocking(proxy.url)
    bell = Bell()
    proxy.refusing = True
    with store.store.listen(bell) as heard:
        assert heard is False
        assert bell.rung == 0
        proxy.refusing = False
        assert bell.wait_for(1)
    store.close()


def test_listening_that_is_off_says_so(make: Maker, database: str) -> None:
    bell = Bell()
    for store in (make(f"{database}?tenure_listen=off"), make(database, listen=False)):
        with store.store.listen(bell) as heard:
            assert heard is False
    assert threads_named("tenure-listen") == 0
    assert bell.rung == 0


def test_listening_may_have_a_url_of_its_own(proxy: Proxy, database: str) -> None:
    store = Blocking(proxy.url, listen=database, pool_size=1)
    bell = Bell()
    with store.store.listen(bell) as heard:
        assert heard
        assert bell.wait_for(1)
    store.run(count())
    assert "LISTEN tenure" not in proxy.statements
    assert proxy.seen["connections"] == 1
    store.close()


def test_an_error_of_the_listener_does_not_end_the_listening_and_is_not_lost(database: str) -> None:
    store = Blocking(database)
    bell = Bell()

    def wake() -> None:
        bell()
        raise LookupError("from wake")

    def listen() -> None:
        with store.store.listen(wake):
            assert bell.wait_for(1)
            store.store.notify()
            assert bell.wait_for(2)

    def fail_while_listening() -> None:
        with store.store.listen(wake):
            raise KeyError

    assert str(raised(LookupError, listen)) == "from wake"
    raised(KeyError, fail_while_listening)
    store.close()


def test_nothing_stays_when_all_is_closed(database: str) -> None:
    before = threading.active_count()
    store = Blocking(database)
    with store.store.listen(Bell()):
        store.store.notify()
        store.run(count())
        with psycopg.connect(database) as witness:
            row = witness.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query = 'LISTEN tenure'"
            ).fetchone()
        assert row == (1,)
    store.close()
    assert threading.active_count() == before
    poll(
        database,
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
        (0,),
    )


def test_a_notification_to_a_server_that_is_away_is_let_go(make: Maker, proxy: Proxy) -> None:
    store = make(proxy.url)
    store.run(count())
    proxy.refusing = True
    proxy.reset()
    began = time.monotonic()
    notify(store)
    assert time.monotonic() - began < 8
    proxy.refusing = False
    assert store.run(count()) == 0
