"""Other programs and other processes on the same file."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tenure.errors import Unavailable
from tenure.stores.sqlite import engine, line, writer
from tenure.stores.sqlite.store import SqliteStore
from tests.stores_sqlite.support import Background, finish, start_child, wait_for_line
from tests.stores_sqlite.toy import async_toy_store, count, count_aside, keys_aside, put, toy_store


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> float:
    """Shorten the five seconds for which a caller waits."""
    patience = 0.3
    monkeypatch.setattr(engine, "PATIENCE", patience)
    monkeypatch.setattr(line, "PATIENCE", patience)
    monkeypatch.setattr(writer, "PATIENCE", patience)
    return patience


@pytest.fixture
def rival(store: SqliteStore, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Hold the write lock as another program would."""
    store.run(put("before"))
    connection = sqlite3.connect(tmp_path / "toy.db", isolation_level=None, check_same_thread=False)
    with closing(connection):
        connection.execute("BEGIN IMMEDIATE")
        yield connection


def test_callers_wait_for_five_seconds() -> None:
    assert line.PATIENCE == engine.PATIENCE == writer.PATIENCE == 5.0


def test_a_caller_waits_for_the_lock_and_then_writes(store: SqliteStore, rival: sqlite3.Connection) -> None:
    writing = Background(store.run, put("a"))
    assert store.run(keys_aside()) == ["before"]
    rival.execute("ROLLBACK")
    assert writing.result() == "a"


@pytest.mark.usefixtures("impatient")
def test_a_lock_that_is_not_given_back_is_told_and_nothing_is_written(
    store: SqliteStore,
    rival: sqlite3.Connection,
) -> None:
    began = time.monotonic()
    with pytest.raises(Unavailable) as raised:
        store.run(put("a"))
    assert raised.value.code == "STORE_BUSY"
    assert 0.2 < time.monotonic() - began < 3.0
    with pytest.raises(Unavailable) as raised, store.transaction():
        raise AssertionError
    assert raised.value.code == "STORE_BUSY"
    rival.execute("ROLLBACK")
    assert store.run(put("b")) == "b"
    assert store.run(keys_aside()) == ["before", "b"]


@pytest.mark.usefixtures("impatient")
def test_all_who_wait_in_line_are_told(store: SqliteStore, rival: sqlite3.Connection, url: str) -> None:
    calls = [Background(store.run, put(f"k{number}")) for number in range(8)]
    for call in calls:
        with pytest.raises(Unavailable) as raised:
            call.result()
        assert raised.value.code == "STORE_BUSY"

    async def tasks() -> list[object]:
        async with async_toy_store(url) as other:
            began = time.monotonic()
            results = await asyncio.gather(
                *[other.run(put(f"t{number}")) for number in range(200)],
                return_exceptions=True,
            )
            # Together, not one after the other.
            assert time.monotonic() - began < 5.0
            return [getattr(result, "code", result) for result in results]

    assert set(asyncio.run(tasks())) == {"STORE_BUSY"}
    rival.execute("ROLLBACK")
    assert store.run(put("after")) == "after"
    assert store.run(keys_aside()) == ["before", "after"]


@pytest.mark.usefixtures("impatient")
def test_those_behind_a_transaction_that_waits_for_the_lock_are_told_too(
    store: SqliteStore,
    rival: sqlite3.Connection,
) -> None:
    def block() -> None:
        with store.transaction():
            raise AssertionError

    first = Background(block)
    others = [Background(store.run, put(f"k{number}")) for number in range(3)]
    for call in [first, *others]:
        with pytest.raises(Unavailable) as raised:
            call.result()
        assert raised.value.code == "STORE_BUSY"
    rival.execute("ROLLBACK")
    assert store.run(put("after")) == "after"


@pytest.mark.usefixtures("impatient")
def test_those_who_wait_for_work_that_goes_on_are_not_sent_away(memory: SqliteStore, impatient: float) -> None:
    # Longer than the patience in all, but somebody is served all the time.
    began = time.monotonic()
    calls = []
    with memory.transaction():
        for number in range(6):
            calls.append(Background(_slow_transaction, memory, f"k{number}", impatient / 3))
            wait_for_line(memory, number + 1)
    for call in calls:
        call.result()
    assert time.monotonic() - began > impatient
    assert memory.run(count()) == 6


def _slow_transaction(store: SqliteStore, key: str, seconds: float) -> None:
    with store.transaction() as tx:
        tx.run(put(key))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            tx.execute("SELECT 1")


def test_a_reader_of_the_users_own_does_not_disturb(store: SqliteStore, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "toy.db", isolation_level=None)) as reader:
        store.run(put("a"))
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM tenure_note").fetchone() == (1,)
        store.run(put("b"))
        assert reader.execute("SELECT count(*) FROM tenure_note").fetchone() == (1,)
    assert store.run(count()) == 2


def test_two_stores_in_one_process_share_a_file(store: SqliteStore, url: str) -> None:
    def work(one: SqliteStore, who: str) -> None:
        for number in range(100):
            one.run(put(f"{who}-{number}"))

    with toy_store(url) as twin:
        calls = [Background(work, one, who) for who, one in (("a", store), ("b", twin), ("c", store), ("d", twin))]
        for call in calls:
            call.result()
        assert twin.run(count_aside()) == 400


@pytest.mark.parametrize(("program", "number"), [("put_in_turn", 500), ("put_together", 3000)])
def test_four_processes_get_a_fair_share_and_see_no_lock(
    store: SqliteStore,
    url: str,
    program: str,
    number: int,
) -> None:
    children = [start_child(program, url, who, str(number)) for who in "abcd"]
    try:
        longest = [float(finish(child)) for child in children]
    finally:
        for child in children:
            child.kill()
    keys = [key for key in store.run(keys_aside()) if not key.endswith("-start")]
    writers = [key.partition("-")[0] for key in keys]
    assert Counter(writers) == dict.fromkeys("abcd", number)
    # While all four were at work nobody was left behind.
    early = Counter(writers[: number * 2])
    assert min(early[who] for who in "abcd") >= number / 10, early
    assert max(longest) < 4.0, longest
