"""One call is one transaction: committed or undone, in few round trips, tried again where that is safe."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tenure.errors import Conflict, IllegalMove, Invalid, Refused, Unavailable
from tenure.guard import guard
from tenure.yields import AfterCommit, Each, Script, Statement, procedure
from tests.stores_postgres.conftest import Maker
from tests.stores_postgres.toy import (
    SLEEPING,
    Blocking,
    add,
    ask,
    count,
    fail,
    look,
    poll,
    put,
    put_then,
    raised,
    read_add,
    renew,
)
from tests.support.proxy import Proxy

OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


def alter(database: str, setting: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'ALTER DATABASE "{name}" SET {setting}'.encode())


def test_a_procedure_commits(make: Maker, database: str) -> None:
    note = uuid4()
    assert make(database).run(put((note, "a", 1))) == [note]
    assert make(database).run(count()) == 1


def test_a_procedure_that_raises_leaves_nothing_and_the_next_one_works(make: Maker, database: str) -> None:
    store = make(database, pool_size=1)
    with pytest.raises(Conflict) as error:
        store.run(put_then(uuid4(), Conflict("no")))
    assert not hasattr(error.value, "__notes__"), "a refusal says what to do already"
    assert store.run(count()) == 0
    assert store.run(put((uuid4(), "a", 1)))
    assert store.run(count()) == 1


def test_an_error_after_the_commit_finds_its_writes_kept(make: Maker, database: str) -> None:
    store = make(database)
    with pytest.raises(Conflict, match="said after"):
        store.run(put_then(uuid4(), AfterCommit(Conflict("said after"))))
    assert store.run(count()) == 1


def test_one_request_costs_two_round_trips_and_a_read_one(make: Maker, proxy: Proxy) -> None:
    store = make(proxy.url)
    one, three, read = put((uuid4(), "a", 1)), add(1), count()
    for warm in (one, three, read):
        store.run(warm)
    spent = []
    for measured in (put((uuid4(), "b", 1)), add(1), count()):
        before = proxy.seen["trips"]
        store.run(measured)
        spent.append(proxy.seen["trips"] - before)
    # The middle one asks three times, one after the other.
    assert spent == [2, 4, 1]


def test_an_empty_procedure_opens_no_transaction(make: Maker, proxy: Proxy) -> None:
    @procedure
    def nothing() -> Script[int]:
        yield []
        return 7

    assert make(proxy.url).run(nothing()) == 7
    assert "COMMIT" not in proxy.statements


def test_the_isolation_is_read_committed_whatever_the_default(make: Maker, database: str) -> None:
    for level in ("repeatable read", "serializable"):
        alter(database, f"default_transaction_isolation = '{level}'")
        with psycopg.connect(database) as witness:
            assert witness.execute("SHOW transaction_isolation").fetchone() == (level,)
        store = make(database)
        assert store.run(ask("settings"))[0][0] == "read committed"
        with store.transaction() as tx:
            assert tx.run(ask("settings"))[0][0] == "read committed"


def test_concurrent_increments_under_a_repeatable_read_default_lose_nothing(database: str) -> None:
    alter(database, "default_transaction_isolation = 'repeatable read'")
    stores = [Blocking(database, pool_size=4), Blocking(database, pool_size=4)]
    stores[0].run(add(0))
    turns = 12

    def work(number: int) -> None:
        for _ in range(turns):
            stores[number % 2].run(read_add(1))

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(work, number) for number in range(8)]:
            done.result()
    assert stores[0].run(add(0)) == 8 * turns
    for store in stores:
        store.close()


def test_every_statement_and_every_pause_is_bounded_by_the_server_too(make: Maker, database: str) -> None:
    store = make(database, patience=timedelta(seconds=7))
    _, statement, idle, _ = store.run(ask("settings"))[0]
    assert statement == idle
    assert statement.endswith("ms") or statement == "7s"
    # Settings end with their transaction.
    assert store.run(look("settings"))[0][1:3] == ("0", "0")


def test_contention_is_tried_again_from_the_start(make: Maker, database: str) -> None:
    store = make(database)
    assert store.run(fail("40001", 5)) == 6
    assert store.run(fail("40P01", 11)) == 12


def test_contention_without_end_is_given_up(make: Maker, database: str) -> None:
    store = make(database)
    assert raised(Unavailable, store.run, fail("40001", 6)).code == "SERIALIZATION"
    # Five tries more were made, and the connection is as good as new.
    assert store.run(fail("40001", 6)) == 7
    assert raised(Unavailable, store.run, fail("40P01", 13)).code == "DEADLOCK"
    assert store.run(fail("40P01", 13)) == 14


def test_a_session_that_forgot_its_statements_is_replaced(make: Maker, proxy: Proxy) -> None:
    store = make(proxy.url, pool_size=1)
    store.run(add(1))
    with store.transaction() as tx:
        tx.execute("DEALLOCATE ALL")
    assert store.run(add(1)) == 2
    assert proxy.seen["connections"] == 2


def test_a_real_deadlock_is_survived_by_both(database: str) -> None:
    with psycopg.connect(database) as witness:
        row = witness.execute(b"SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()
    before = row and row[0]
    store = Blocking(database)
    for name in "ab":
        store.run(add(0, name=name))
    meeting = threading.Barrier(2)
    met = threading.local()

    @procedure
    def both(first: str, second: str) -> Script[None]:
        yield Statement("counter_lock", {"name": first})
        if not getattr(met, "once", False):
            met.once = True
            meeting.wait(10)
        yield Statement("counter_add", {"name": first, "amount": 1})
        yield Statement("counter_add", {"name": second, "amount": 1})

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(store.run, both("a", "b")), threads.submit(store.run, both("b", "a"))]:
            done.result()
    assert [store.run(add(0, name=name)) for name in "ab"] == [2, 2]
    store.close()
    # A backend reports what it counted at its end, so this comes after the closing.
    poll(database, "SELECT deadlocks > %s FROM pg_stat_database WHERE datname = current_database()", (True,), before)


def test_a_lock_that_does_not_come_is_waited_for_no_longer_than_the_patience(make: Maker, database: str) -> None:
    store = make(database, patience=timedelta(seconds=0.5))
    store.run(add(1))
    with psycopg.connect(database) as holder:
        holder.execute("SELECT * FROM tenure.counter FOR UPDATE")
        began = time.monotonic()
        with pytest.raises(Unavailable) as error:
            store.run(read_add(1))
        assert time.monotonic() - began < 3
        assert error.value.code == "STORE_BUSY"
    assert store.run(read_add(1)) == 2


def test_a_read_is_bounded_as_well(make: Maker, database: str) -> None:
    store = make(database, patience=timedelta(seconds=0.3))
    raised(Unavailable, store.run, look("sleep", seconds=30.0))
    assert store.run(count()) == 0
    # The statement that nobody waits for any more was stopped.
    poll(database, SLEEPING, (0,))


def test_a_constraint_tells_its_name_and_no_value(make: Maker, database: str) -> None:
    store = make(database)
    with pytest.raises(psycopg.errors.CheckViolation) as error:
        store.run(put((uuid4(), "secret-payload", -42)))
    text = "".join([str(error.value), *error.value.__notes__])
    assert "note_amount_check" in text
    assert "secret-payload" not in text
    assert "-42" not in text
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__
    assert store.run(put((uuid4(), "x", 42)))


def test_a_failed_procedure_leaves_no_transaction_on_the_pooled_connection(make: Maker, proxy: Proxy) -> None:
    store = make(proxy.url, pool_size=1)
    for error in (Conflict("no"), ValueError("bug")):
        with pytest.raises(type(error)):
            store.run(put_then(uuid4(), error))
    with pytest.raises(psycopg.errors.CheckViolation):
        store.run(put((uuid4(), "x", -1)))
    assert proxy.statements.count("ROLLBACK") == 3
    assert proxy.seen["connections"] == 1
    # And the prepared statements were kept: nothing is prepared a second time.
    named = proxy.named
    store.run(put((uuid4(), "x", 1)))
    assert proxy.named - named <= 1  # COMMIT, for the first time


def test_nothing_is_kept_in_a_session_where_a_pooler_may_stand_between(make: Maker, proxy: Proxy) -> None:
    store = make(f"{proxy.url}?tenure_prepare=off")
    for _ in range(8):
        store.run(add(1))
        store.run(count())
    with store.transaction(deadline=timedelta(seconds=5)) as tx:
        tx.run(add(1))
    assert proxy.named == 0
    words = [text.split(maxsplit=1)[0] for text in proxy.statements]
    assert "SET" not in words
    assert "LISTEN" not in words
    assert not [text for text in proxy.statements if "set_config" in text and ", false" in text]
    control = make(proxy.url)
    control.run(add(1))
    assert proxy.named > 0


def test_an_urgent_procedure_finds_a_connection_when_all_others_are_held(make: Maker, database: str) -> None:
    store = make(database, pool_size=1, patience=timedelta(seconds=0.3))
    with store.transaction():
        pass
    other = Blocking(database, pool_size=1, patience=timedelta(seconds=0.3))
    with other.transaction() as tx:
        with pytest.raises(Unavailable) as error:
            _elsewhere(lambda: other.run(add(1)))
        assert error.value.code == "POOL_BUSY"
        assert _elsewhere(lambda: other.run(renew())) > 0
        tx.run(add(1))
    other.close()


def _elsewhere(work: Any) -> Any:
    # In a thread of its own: in this one the open transaction forbids it.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def test_inside_a_transaction_or_a_publish_the_store_itself_is_refused(make: Maker, database: str) -> None:
    store = make(database)
    with store.transaction() as tx:
        with pytest.raises(IllegalMove) as error:
            store.run(add(1))
        assert error.value.code == "INSIDE_TRANSACTION"
        assert store.run(count()) == 0
        assert tx.run(add(1)) == 1


def test_a_publish_refuses_even_reads(make: Maker, database: str) -> None:
    store = make(database)

    async def publish() -> None:
        with guard(store.store):
            await store.store.run(count())

    def publish_here() -> None:
        if store.kind == "awaiting":
            store.runner.run(publish())
        with guard(store.store):
            store.run(count())

    assert raised(IllegalMove, publish_here).code == "INSIDE_PUBLISH"
    assert store.run(count()) == 0


def test_a_role_is_taken_on_in_every_transaction_and_not_kept(make: Maker, database: str) -> None:
    role = f"tenure_{uuid4().hex[:12]}"
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role}".encode())
        admin.execute(f"GRANT USAGE ON SCHEMA tenure TO {role}".encode())
        admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA tenure TO {role}".encode())
    try:
        store = make(database, role=role)
        assert store.run(ask("settings"))[0][3] == role
        assert store.run(look("settings"))[0][3] == role
        assert store.run(count()) == 0
        assert raised(Refused, store.run, put((uuid4(), "x", 1))).code == "PRIVILEGE"
        assert make(database).run(put((uuid4(), "x", 1)))
        with pytest.raises(Invalid) as unknown:
            make(database, role="nobody_of_this_name").run(count())
        assert unknown.value.code == "UNKNOWN_ROLE"
    finally:
        with psycopg.connect(database, autocommit=True) as admin:
            admin.execute(f"DROP OWNED BY {role}".encode())
            admin.execute(f"DROP ROLE {role}".encode())


def test_a_closed_store_says_so(make: Maker, database: str) -> None:
    store = make(database, pool_size=1)
    assert store.run(count()) == 0
    before = threading.active_count()
    closed = Blocking(database)
    closed.run(count())
    closed.close()
    closed.close()
    assert threading.active_count() <= before
    assert raised(Invalid, closed.run, count()).code == "STORE_CLOSED"
    # The store of the control is left.
    poll(database, OTHERS, (1,))


def test_many_statements_in_one_yield_share_a_round_trip(make: Maker, proxy: Proxy) -> None:
    @procedure
    def wide(start: int) -> Script[int]:
        answers = yield [
            Statement("clock"),
            *(Each("note_put", [(uuid4(), str(start + n), n)]) for n in range(20)),
            Statement("note_count"),
        ]
        return int(answers[-1][0][0])

    store = make(proxy.url)
    assert store.run(wide(0)) == 20
    before = proxy.seen["trips"]
    assert store.run(wide(20)) == 40
    assert proxy.seen["trips"] - before == 2
