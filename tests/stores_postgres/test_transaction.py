"""A block of the store: all or nothing, with a deadline, and nothing of it stays on the connection."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tenure.errors import Conflict, IllegalMove, Invalid, Unavailable
from tenure.yields import AfterCommit
from tests.stores_postgres.conftest import Maker
from tests.stores_postgres.toy import Awaiting, Blocking, add, ask, count, fail, look, put, put_then, raised
from tests.support.proxy import Proxy


def rows(cursor: Any) -> list[Any]:
    return cursor if isinstance(cursor, list) else cursor.fetchall()


def test_a_block_commits_procedures_and_sql_together(make: Maker, database: str) -> None:
    store = make(database)
    note = uuid4()
    with store.transaction() as tx:
        assert tx.run(put((note, "x", 1))) == [note]
        assert rows(tx.execute("UPDATE tenure.note SET amount = %s WHERE id = %s RETURNING amount", [5, note])) == [
            (5,)
        ]
        assert rows(tx.execute("SELECT amount FROM tenure.note WHERE label = %(l)s", {"l": "x"})) == [(5,)]
        assert rows(tx.execute("SELECT '100%' AS share")) == [("100%",)]
        assert tx.run(ask("note_get", ids=[note])) == [(note, "x", 5)]
        with psycopg.connect(database) as witness:
            assert witness.execute("SELECT count(*) FROM tenure.note").fetchone() == (0,)
    assert store.run(ask("note_get", ids=[note])) == [(note, "x", 5)]


def test_a_block_that_raises_leaves_nothing(make: Maker, database: str) -> None:
    store = make(database, pool_size=1)

    def block(error: BaseException) -> None:
        with store.transaction() as tx:
            tx.run(put((uuid4(), "x", 1)))
            tx.execute("INSERT INTO tenure.counter VALUES ('n', 1)")
            raise error

    for error in (Conflict("no"), KeyError("bug"), KeyboardInterrupt()):
        assert raised(type(error), block, error) is error
    assert store.run(count()) == 0
    assert store.run(add(0)) == 0


def test_a_procedure_that_fails_leaves_the_block_usable_and_nothing_behind(make: Maker, database: str) -> None:
    store = make(database)
    with store.transaction() as tx:
        tx.run(put((uuid4(), "kept", 1)))
        with pytest.raises(Conflict):
            tx.run(put_then(uuid4(), Conflict("no")))
        with pytest.raises(psycopg.errors.CheckViolation):
            tx.run(put((uuid4(), "x", -1)))
        with pytest.raises(Unavailable) as error:
            tx.run(fail("40001", 1))
        assert error.value.code == "SERIALIZATION"
        assert tx.run(count()) == 1
        tx.run(put((uuid4(), "kept too", 2)))
    assert store.run(count()) == 2


def test_the_callers_own_error_stays_the_drivers(make: Maker, database: str) -> None:
    store = make(database)
    with pytest.raises(psycopg.errors.UndefinedTable, match="of_mine"), store.transaction() as tx:
        tx.execute("SELECT * FROM table_of_mine")
    assert store.run(count()) == 0


def test_a_swallowed_error_is_not_committed_in_silence(make: Maker, database: str) -> None:
    store = make(database)

    def block() -> None:
        with store.transaction() as tx:
            tx.run(put((uuid4(), "x", 1)))
            raised(psycopg.Error, tx.execute, "SELECT 1/0")

    error = raised(IllegalMove, block)
    assert error.code == "TRANSACTION_ENDED"
    assert "swallowed" in str(error)
    assert store.run(count()) == 0


@pytest.mark.parametrize("word", ["COMMIT", "ROLLBACK"])
def test_a_block_ended_inside_says_so(make: Maker, database: str, word: str) -> None:
    store = make(database, pool_size=1)

    def block() -> None:
        with store.transaction() as tx:
            tx.run(put((uuid4(), "x", 1)))
            tx.execute(word)

    assert raised(IllegalMove, block).code == "TRANSACTION_ENDED"
    assert store.run(count()) == (1 if word == "COMMIT" else 0)


def test_after_the_block_it_is_over(make: Maker, database: str) -> None:
    store = make(database)
    with store.transaction() as tx:
        tx.run(count())
    with pytest.raises(IllegalMove) as error:
        tx.run(count())
    assert error.value.code == "TRANSACTION_ENDED"
    with pytest.raises(IllegalMove):
        tx.execute("SELECT 1")


def test_an_error_for_after_the_commit_waits_for_it(make: Maker, database: str) -> None:
    store = make(database)
    wanted = AfterCommit(Conflict("after the block"))

    def block(error: Exception | None) -> None:
        with store.transaction() as tx:
            assert tx.run(put_then(uuid4(), wanted)) is wanted
            tx.run(put((uuid4(), "x", 1)))
            if error is not None:
                raise error

    assert raised(Conflict, block, None) is wanted.error
    assert store.run(count()) == 2
    raised(KeyError, block, KeyError())
    assert store.run(count()) == 2


def test_a_block_that_lasts_too_long_is_undone(make: Maker, database: str) -> None:
    store = make(database, pool_size=1)

    def block() -> None:
        with store.transaction(deadline=timedelta(seconds=0.2)) as tx:
            tx.run(put((uuid4(), "x", 1)))
            late = time.monotonic() + 0.25
            while time.monotonic() < late:
                pass

    assert raised(Unavailable, block).code == "TRANSACTION_TIMEOUT"
    assert store.run(count()) == 0
    with store.transaction(deadline=timedelta(seconds=20)) as tx:
        tx.run(put((uuid4(), "x", 1)))
    assert store.run(count()) == 1


@pytest.mark.parametrize("how", ["procedure", "sql", "connection"])
def test_a_statement_inside_is_stopped_at_the_deadline(make: Maker, database: str, how: str) -> None:
    store = make(database, pool_size=1)

    def block() -> None:
        with store.transaction(deadline=timedelta(seconds=0.3)) as tx:
            tx.run(put((uuid4(), "x", 1)))
            if how == "procedure":
                tx.run(look("sleep", seconds=20.0))
            elif how == "sql":
                tx.execute("SELECT pg_sleep(20)")
            elif store.kind == "blocking":
                tx.connection.execute("SELECT pg_sleep(20)")
            else:
                store.runner.run(tx.connection.execute("SELECT pg_sleep(20)"))

    began = time.monotonic()
    assert raised(Unavailable, block).code == "TRANSACTION_TIMEOUT"
    assert time.monotonic() - began < 5
    assert store.run(count()) == 0


def test_a_block_whose_holder_sleeps_lets_go_of_its_locks(database: str) -> None:
    store, other = Blocking(database), Blocking(database, patience=timedelta(seconds=8))
    store.run(add(1))

    def block() -> None:
        with store.transaction(deadline=timedelta(seconds=0.3)) as tx, ThreadPoolExecutor(1) as thread:
            tx.run(add(10))
            # The server ends the idle transaction by itself, while the holder still believes in it.
            assert thread.submit(other.run, add(100)).result() == 101

    assert raised(Unavailable, block).code == "TRANSACTION_TIMEOUT"
    assert other.run(add(0)) == 101
    store.close()
    other.close()


def test_deadlines_that_mean_nothing_are_refused(make: Maker, database: str) -> None:
    store = make(database)
    with pytest.raises(Invalid), store.transaction(deadline=timedelta(0)):
        pass
    with store.transaction(deadline=timedelta(seconds=5)) as tx:
        assert tx.run(count()) == 0


def test_what_a_block_sets_on_the_session_is_gone_afterwards(make: Maker, database: str) -> None:
    store = make(database, pool_size=1)
    with store.transaction() as tx:
        tx.execute("SET statement_timeout = '7min'")
        tx.execute("SET SESSION AUTHORIZATION pg_read_all_data")
        tx.connection.row_factory = psycopg.rows.dict_row
        assert rows(tx.execute("SHOW statement_timeout")) == [{"statement_timeout": "7min"}]
    with store.transaction() as tx:
        assert rows(tx.execute("SHOW statement_timeout")) == [("0",)]
        assert rows(tx.execute("SELECT current_user = session_user, current_user <> 'pg_read_all_data'")) == [
            (True, True)
        ]


def test_a_block_costs_a_round_trip_at_each_end_and_one_for_each_request(make: Maker, proxy: Proxy) -> None:
    store = make(proxy.url)

    def block() -> None:
        with store.transaction(deadline=timedelta(seconds=20)) as tx:
            tx.run(put((uuid4(), "x", 1)))

    block()
    before = proxy.seen["trips"]
    block()
    assert proxy.seen["trips"] - before == 3


def test_a_nested_transaction_of_the_driver_is_a_savepoint(database: str) -> None:
    store = Blocking(database)
    with store.transaction() as tx:
        tx.run(put((uuid4(), "kept", 1)))

        def nested() -> None:
            with tx.connection.transaction():
                tx.run(put((uuid4(), "gone", 1)))
                raise KeyError

        raised(KeyError, nested)
        with tx.connection.transaction():
            tx.run(put((uuid4(), "kept", 1)))
    assert store.run(count()) == 2
    store.close()


def test_a_cancelled_block_is_undone(database: str) -> None:
    store = Awaiting(database, pool_size=1)

    async def cancel() -> None:
        inside = asyncio.Event()

        async def hold() -> None:
            async with store.store.transaction() as tx:
                await tx.run(put((uuid4(), "x", 1)))
                inside.set()
                await asyncio.Event().wait()

        holder = asyncio.create_task(hold())
        await inside.wait()
        holder.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holder

    store.runner.run(cancel())
    assert store.run(count()) == 0
    store.close()
