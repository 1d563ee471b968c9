"""A transaction of the caller's own: its end, its deadline, and what may not happen inside."""

from __future__ import annotations

import sqlite3
import threading
import time
from datetime import timedelta

import pytest

from tenure.errors import Conflict, IllegalMove, Invalid, Unavailable
from tenure.stores.sqlite.store import SqliteStore
from tenure.yields import AfterCommit
from tests.stores_sqlite.support import PATIENCE, Background, run_out, wait_for_line
from tests.stores_sqlite.toy import count, count_aside, keys_aside, put, put_and_refuse, put_and_tell, toy_store

SHORT = timedelta(milliseconds=150)


def test_it_commits_at_the_end_of_the_block(either: SqliteStore) -> None:
    with either.transaction() as tx:
        assert tx.run(put("a")) == "a"
        tx.execute("CREATE TABLE mine (v)")
        tx.execute("INSERT INTO mine VALUES (?)", [1])
        tx.execute("INSERT INTO mine VALUES (:v)", {"v": 2})
        assert tx.connection.execute("SELECT sum(v) FROM mine").fetchone() == (3,)
    assert either.run(count()) == 1
    with either.transaction() as tx:
        assert tx.execute("SELECT count(*) FROM mine").fetchone() == (2,)


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_it_rolls_back_on_an_exception(either: SqliteStore, kind: type[BaseException]) -> None:
    def block() -> None:
        with either.transaction() as tx:
            tx.run(put("a"))
            tx.execute("CREATE TABLE mine (v)")
            raise kind

    with pytest.raises(kind):
        block()
    assert either.run(count()) == 0
    with either.transaction() as tx:
        assert tx.execute("SELECT count(*) FROM sqlite_master WHERE name = 'mine'").fetchone() == (0,)


def test_a_procedure_that_fails_leaves_the_rest_usable(either: SqliteStore) -> None:
    with either.transaction() as tx:
        tx.run(put("a"))
        with pytest.raises(Conflict):
            tx.run(put_and_refuse("b"))
        with pytest.raises(sqlite3.IntegrityError):
            tx.run(put("a"))
        tx.run(put("c"))
    assert either.run(count()) == 2


def test_after_commit_is_raised_when_the_block_has_committed(either: SqliteStore) -> None:
    def block() -> None:
        with either.transaction() as tx:
            told = tx.run(put_and_tell("a"))
            assert isinstance(told, AfterCommit)
            tx.run(put("b"))

    with pytest.raises(Conflict, match="stands"):
        block()
    assert either.run(count()) == 2


def test_an_error_at_its_commit_rolls_back_and_lets_go(either: SqliteStore) -> None:
    def block() -> None:
        with either.transaction() as tx:
            tx.run(put("a"))
            tx.execute("INSERT INTO tenure_child VALUES (1000000)")

    with pytest.raises(sqlite3.IntegrityError):
        block()
    assert either.run(count()) == 0
    assert either.run(put("b")) == "b"


def test_what_a_caller_changed_on_the_connection_does_not_stay(store: SqliteStore) -> None:
    with store.transaction() as tx:
        tx.connection.row_factory = sqlite3.Row
        tx.connection.text_factory = bytes
        assert tx.run(put("a")) == "a"
        assert tx.execute("SELECT key FROM tenure_note").fetchone()["key"] == b"a"
    with store.transaction() as tx:
        assert tx.execute("SELECT key FROM tenure_note").fetchall() == [("a",)]


@pytest.mark.parametrize("ending", ["commit", "rollback", "close"])
def test_ending_it_inside_the_block_is_refused_at_its_end(store: SqliteStore, ending: str) -> None:
    def block() -> None:
        with store.transaction() as tx:
            tx.run(put("a"))
            getattr(tx.connection, ending)()

    with pytest.raises(IllegalMove) as raised:
        block()
    assert raised.value.code == "TRANSACTION_ENDED"
    assert store.run(put("b")) == "b"
    assert store.run(keys_aside()) == (["a", "b"] if ending == "commit" else ["b"])


def test_after_the_block_it_can_no_longer_be_used(either: SqliteStore) -> None:
    with either.transaction() as tx:
        tx.run(put("a"))
    for use in (lambda: tx.run(put("b")), lambda: tx.execute("SELECT 1")):
        with pytest.raises(IllegalMove) as raised:
            use()
        assert raised.value.code == "TRANSACTION_ENDED"
    assert either.run(count()) == 1


# The deadline.


def test_a_block_that_lasts_too_long_is_rolled_back_while_it_still_runs(store: SqliteStore) -> None:
    def block() -> None:
        with store.transaction() as tx:
            tx.run(put("late"))
            tx.execute("CREATE TABLE mine (v)")
            run_out(store)
            # Served although this block has not ended: its transaction is gone.
            assert Background(store.run, put("other")).result() == "other"
            for use in (lambda: tx.execute("INSERT INTO mine VALUES (1)"), lambda: tx.run(put("later"))):
                with pytest.raises(Unavailable) as refused:
                    use()
                assert refused.value.code == "TRANSACTION_TIMEOUT"
            # The driver's connection, which the caller may have kept, can change nothing any more.
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                tx.connection.execute("INSERT INTO tenure_note (key, at) VALUES ('stale', 0)")

    with pytest.raises(Unavailable) as raised:
        block()
    assert raised.value.code == "TRANSACTION_TIMEOUT"
    assert store.run(keys_aside()) == ["other"]
    with store.transaction(deadline=timedelta(seconds=4)) as tx:
        tx.run(put("in time"))
    assert store.run(keys_aside()) == ["other", "in time"]


def test_a_statement_that_runs_at_the_deadline_is_stopped(either: SqliteStore) -> None:
    either.run(put("kept"))

    def block() -> None:
        with either.transaction(deadline=SHORT) as tx:
            tx.execute("DELETE FROM tenure_note")
            tx.execute("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n")

    with pytest.raises(Unavailable) as raised:
        block()
    assert raised.value.code == "TRANSACTION_TIMEOUT"
    assert either.run(count()) == 1


def test_a_block_in_memory_is_rolled_back_at_its_deadline_too(memory: SqliteStore) -> None:
    def block() -> None:
        with memory.transaction() as tx:
            tx.run(put("late"))
            run_out(memory)
            assert Background(memory.run, put("other")).result() == "other"

    with pytest.raises(Unavailable) as raised:
        block()
    assert raised.value.code == "TRANSACTION_TIMEOUT"
    assert memory.run(count()) == 1


def test_a_deadline_noticed_only_at_the_end_of_the_block_counts(store: SqliteStore) -> None:
    def block() -> None:
        with store.transaction() as tx:
            tx.run(put("late"))
            tx.ends = 0.0  # the writer thread was not told

    with pytest.raises(Unavailable) as raised:
        block()
    assert raised.value.code == "TRANSACTION_TIMEOUT"
    assert store.run(count()) == 0


def test_the_callers_own_interrupt_is_not_hidden_by_the_deadline(store: SqliteStore) -> None:
    def block() -> None:
        with store.transaction() as tx:
            tx.run(put("late"))
            run_out(store)
            Background(store.run, put("other")).result()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        block()
    assert store.run(keys_aside()) == ["other"]


def test_nobody_may_keep_the_others_waiting_for_longer_than_five_seconds(store: SqliteStore) -> None:
    with store.transaction(deadline=timedelta(minutes=1)) as tx:
        assert tx._limit == 5.0
    with store.transaction() as tx:
        assert tx._limit == 5.0
    with store.transaction(deadline=timedelta(seconds=2)) as tx:
        assert tx._limit == 2.0
    for wrong in (timedelta(0), timedelta(seconds=-1)):
        with pytest.raises(Invalid), store.transaction(deadline=wrong):
            raise AssertionError


def test_the_file_of_an_expired_connection_is_closed_with_its_block(store: SqliteStore) -> None:
    kept: list[sqlite3.Connection] = []

    def block() -> None:
        with store.transaction() as tx:
            kept.append(tx.connection)
            run_out(store)
            Background(store.run, put("other")).result()

    with pytest.raises(Unavailable):
        block()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        kept[0].execute("SELECT 1")


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_rollback_that_fails_at_the_deadline_is_told_to_the_block(
    kind: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    store: SqliteStore = request.getfixturevalue("store" if kind == "file" else "memory")

    def block() -> None:
        with store.transaction() as tx:
            tx.run(put("late"))
            # The end of time finds the rollback refused, as on a disk that fails.
            tx.connection.set_authorizer(
                lambda action, *_: sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK
            )
            run_out(store)
            assert tx._rolled_back.wait(PATIENCE)
            tx.connection.set_authorizer(None)

    with pytest.raises(Unavailable) as told:
        block()
    assert told.value.code == "TRANSACTION_TIMEOUT"
    assert any("DatabaseError" in note for note in told.value.__notes__)
    assert caplog.records == []
    if kind == "file":
        assert store.run(put("next")) == "next"
        assert store.run(keys_aside()) == ["next"]


def test_a_mistake_of_the_writer_thread_is_told_to_the_next_caller_and_the_others_are_served(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = store._engine
    serve = engine._serve_batch

    def broken() -> None:
        serve()
        raise LookupError("secret-payload")

    monkeypatch.setattr(engine, "_serve_batch", broken)
    with store.transaction() as tx:
        waiting = Background(store.run, put("waiting"))
        wait_for_line(store, 1)
        tx.run(put("first"))
    assert waiting.result() == "waiting"
    # The thread has still to come out of its task.
    end = time.monotonic() + PATIENCE
    while engine._mishap is None:
        assert time.monotonic() < end
        time.sleep(0.001)
    with pytest.raises(Unavailable, match="LookupError") as told:
        store.run(put("refused"))
    assert told.value.code == "WRITER_FAILED"
    assert "secret-payload" not in str(told.value)
    assert isinstance(told.value.__cause__, LookupError)
    # Told once, and the store goes on, its thread included.
    monkeypatch.undo()
    with store.transaction() as tx:
        waiting = Background(store.run, put("served"))
        wait_for_line(store, 1)
        tx.run(put("second"))
    assert waiting.result() == "served"
    assert store.run(keys_aside()) == ["first", "waiting", "second", "served"]
    assert caplog.records == []


# What would wait for itself.


def test_a_write_beside_an_open_transaction_is_refused_at_once(store: SqliteStore) -> None:
    store.run(put("before"))
    with store.transaction() as tx:
        uses = [lambda: store.run(put("a")), store.transaction().__enter__, store.migrate, store.pending_migrations]
        for use in uses:
            with pytest.raises(IllegalMove) as raised:
                use()
            assert raised.value.code == "INSIDE_TRANSACTION"
        assert store.run(keys_aside()) == ["before"]
        assert tx.run(put("a")) == "a"
    assert store.run(put("b")) == "b"


def test_a_read_in_memory_beside_an_open_transaction_is_refused_at_once(memory: SqliteStore) -> None:
    with memory.transaction() as tx:
        with pytest.raises(IllegalMove) as raised:
            memory.run(count_aside())
        assert raised.value.code == "INSIDE_TRANSACTION"
        assert tx.run(count_aside()) == 0
    assert memory.run(count_aside()) == 0


def test_another_object_on_the_same_file_is_the_same_store(store: SqliteStore, url: str) -> None:
    with toy_store(url) as twin, toy_store("sqlite:///:memory:") as other:
        other.migrate()
        with store.transaction():
            with pytest.raises(IllegalMove):
                twin.run(put("a"))
            assert other.run(put("a")) == "a"
        assert twin.run(put("a")) == "a"


def test_other_threads_wait_for_the_block(either: SqliteStore) -> None:
    with either.transaction() as tx:
        waiting = Background(either.run, put("b"))
        wait_for_line(either, 1)
        tx.run(put("a"))
        assert waiting.still_running()
    assert waiting.result() == "b"


def test_a_store_is_not_closed_inside_its_own_transaction(store: SqliteStore) -> None:
    with store.transaction() as tx:
        with pytest.raises(IllegalMove):
            store.close()
        tx.run(put("a"))
    assert store.run(keys_aside()) == ["a"]


def test_threads_that_take_turns_lose_nothing(store: SqliteStore) -> None:
    gate = threading.Barrier(6)

    def work(who: int) -> None:
        gate.wait(PATIENCE)
        for number in range(20):
            with store.transaction() as tx:
                ((before,),) = tx.execute("SELECT count(*) FROM tenure_note")
                tx.run(put(f"{who}-{number}"))
                ((after,),) = tx.execute("SELECT count(*) FROM tenure_note")
                assert after == before + 1

    for call in [Background(work, who) for who in range(6)]:
        call.result()
    assert store.run(count_aside()) == 120
