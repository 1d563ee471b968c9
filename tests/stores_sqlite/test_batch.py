"""Many callers at once: one commit for many, each on its own feet."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from tenure.errors import Conflict, Unavailable
from tenure.stores.sqlite.engine import BATCH_MAX
from tenure.stores.sqlite.store import SqliteStore
from tenure.yields import Each, Procedure, Script, Statement, procedure
from tests.stores_sqlite.support import Background, finish, read_line, start_child, statements_of, wait_for_line
from tests.stores_sqlite.toy import (
    count,
    count_aside,
    keys_aside,
    orphan,
    put,
    put_and_refuse,
    put_and_tell,
    put_urgently,
)


def together(store: SqliteStore, procedures: list[Procedure[Any]]) -> list[Background]:
    """Have all of them wait in this order, then let them go at once."""
    calls = []
    with store.transaction():
        for number, one in enumerate(procedures, start=1):
            calls.append(Background(store.run, one))
            wait_for_line(store, number)
    return calls


def test_those_who_wait_share_one_commit(either: SqliteStore) -> None:
    with statements_of(either) as seen:
        calls = together(either, [put(f"k{number}") for number in range(40)])
        assert [call.result() for call in calls] == [f"k{number}" for number in range(40)]
    # The first commit is the transaction that kept them waiting.
    assert seen.count("COMMIT") == 2
    assert either.run(count()) == 40


def test_one_that_raises_rolls_back_alone(either: SqliteStore) -> None:
    with statements_of(either) as seen:
        good, bad, told, taken, last = together(
            either,
            [put("a"), put_and_refuse("b"), put_and_tell("c"), put("a"), put("d")],
        )
        assert good.result() == "a"
        with pytest.raises(Conflict, match="refused"):
            bad.result()
        with pytest.raises(Conflict, match="stands"):
            told.result()
        with pytest.raises(sqlite3.IntegrityError):
            taken.result()
        assert last.result() == "d"
    assert seen.count("COMMIT") == 2
    assert either.run(count()) == 3


def test_a_commit_that_fails_for_one_is_run_again_for_each(either: SqliteStore) -> None:
    runs: list[str] = []

    @procedure
    def counted(key: str) -> Script[int]:
        runs.append(key)
        yield Each("put", [(key, "counted", None)])
        ((number,),) = yield Statement("count")
        return int(number)

    first, spoiler, last = together(either, [counted("a"), orphan(), counted("b")])
    with pytest.raises(sqlite3.IntegrityError):
        spoiler.result()
    assert (first.result(), last.result()) == (1, 2)
    assert runs == ["a", "b", "a", "b"]
    assert either.run(count()) == 2


def test_a_refusal_that_rested_on_a_lost_neighbour_is_judged_again(either: SqliteStore) -> None:
    @procedure
    def put_and_spoil() -> Script[None]:
        yield Each("put", [("a", "spoiler", None)])
        yield Statement("orphan", {"parent": 1_000_000})

    spoiler, other = together(either, [put_and_spoil(), put("a", who="other")])
    with pytest.raises(sqlite3.IntegrityError):
        spoiler.result()
    assert other.result() == "a"


def test_urgent_procedures_go_first(store: SqliteStore) -> None:
    waiting: list[Procedure[Any]] = [put(f"k{number}") for number in range(5)]
    for call in together(store, [*waiting, put_urgently("now"), put_urgently("then")]):
        call.result()
    assert store.run(keys_aside()) == ["now", "then", "k0", "k1", "k2", "k3", "k4"]


def test_a_batch_is_bounded(memory: SqliteStore) -> None:
    with statements_of(memory) as seen:
        for call in together(memory, [put(f"k{number}") for number in range(BATCH_MAX + 10)]):
            call.result()
    sizes = [0]
    for statement in seen:
        sizes[-1] += statement.startswith("INSERT INTO tenure_note")
        if statement == "COMMIT":
            sizes.append(0)
    assert sum(sizes) == BATCH_MAX + 10
    assert max(sizes) <= BATCH_MAX


def test_a_long_procedure_ends_its_batch(memory: SqliteStore) -> None:
    @procedure
    def slow(key: str) -> Script[None]:
        yield Each("put", [(key, "slow", None)])
        yield Statement("spin", {"turns": 400_000})

    with statements_of(memory) as seen:
        for call in together(memory, [slow("a"), slow("b"), slow("c")]):
            call.result()
    assert seen.count("COMMIT") == 4


def test_a_transaction_gets_its_turn_among_those_who_wait(store: SqliteStore) -> None:
    def transaction() -> int:
        with store.transaction() as tx:
            ((number,),) = tx.execute("SELECT count(*) FROM tenure_note").fetchall()
        return int(number)

    calls = []
    with store.transaction():
        for number, call in enumerate([lambda: store.run(put("a")), transaction, lambda: store.run(put("b"))], 1):
            calls.append(Background(call))
            wait_for_line(store, number)
    assert [call.result() for call in calls] == ["a", 1, "b"]


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "in a batch"])
def test_a_full_disk_is_told_and_the_rest_goes_on(store: SqliteStore, shared: bool) -> None:
    store.run(put("before"))
    writer = store._engine.writer.connection
    assert writer is not None
    (pages,) = writer.execute("PRAGMA page_count").fetchone()
    writer.execute(f"PRAGMA max_page_count={pages + 2}")
    large = "x" * 100_000

    def run(*procedures: Procedure[Any]) -> list[Callable[[], Any]]:
        if shared:
            return [call.result for call in together(store, list(procedures))]
        return [lambda one=one: store.run(one) for one in procedures]

    first, full, last = run(put("a"), put("b", value=large), put("c"))
    assert first() == "a"
    with pytest.raises(Unavailable) as raised:
        full()
    assert raised.value.code == "STORAGE_FULL"
    assert last() == "c"
    assert store.run(keys_aside()) == ["before", "a", "c"]

    writer.execute("PRAGMA max_page_count=100000")
    assert store.run(put("b", value=large)) == "b"
    assert writer.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("mode", ["alone", "batch", "transaction"])
def test_a_disk_that_fails_at_the_commit_is_told_and_the_store_recovers(url: str, mode: str) -> None:
    # In a process of its own, because the failure is made with a limit on the size of files.
    child = start_child("failing_disk", url, mode)
    read_line(child, "STORAGE_FAILED twice" if mode != "transaction" else "STORAGE_FAILED once")
    read_line(child, "recovered ['before', 'after']")
    finish(child)


def test_callers_in_many_threads_lose_nothing(store: SqliteStore) -> None:
    def work(who: str) -> int:
        for number in range(100):
            store.run(put(f"{who}-{number}", who=who))
        return store.run(count())

    with statements_of(store) as seen:
        seen_counts = [call.result() for call in [Background(work, f"w{number}") for number in range(12)]]
    assert store.run(count_aside()) == 1200
    assert max(seen_counts) == 1200
    assert seen.count("COMMIT") < 600
