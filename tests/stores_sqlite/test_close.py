"""The end of a store: no thread, no file, and a plain word to those who come later."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from tenure.errors import IllegalMove, Invalid, TenureError
from tenure.stores.sqlite.store import SqliteStore
from tenure.yields import Script, Statement, procedure
from tests.stores_sqlite.support import Background, wait_for_line
from tests.stores_sqlite.toy import count_aside, keys_aside, put, toy_store


def open_files(folder: Path) -> int:
    """Count this process's handles on files in a folder."""
    known = {(status.st_dev, status.st_ino) for status in map(os.stat, folder.iterdir())}
    found = 0
    for number in range(1024):
        try:
            status = os.fstat(number)
        except OSError:
            continue
        found += (status.st_dev, status.st_ino) in known
    return found


def test_it_leaves_no_thread_and_no_file(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    store = toy_store(f"sqlite:///{tmp_path}/toy.db")
    store.migrate()
    for call in [Background(store.run, put(f"k{number}")) for number in range(5)]:
        call.result()
    for call in [Background(store.run, count_aside()) for _ in range(5)]:
        call.result()
    with store.transaction() as tx:
        tx.run(put("tx"))
    assert set(threading.enumerate()) - before
    assert open_files(tmp_path) >= 3
    store.close()
    assert set(threading.enumerate()) - before == set()
    assert open_files(tmp_path) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["toy.db"]


def test_it_waits_for_those_who_read(store: SqliteStore, tmp_path: Path) -> None:
    inside, leave = threading.Event(), threading.Event()

    @procedure(reads=True)
    def slow_read() -> Script[int]:
        ((number,),) = yield Statement("count")
        inside.set()
        leave.wait(30)
        ((again,),) = yield Statement("count")
        return int(number) + int(again)

    store.run(put("a"))
    reading = Background(store.run, slow_read())
    assert inside.wait(30)
    closing = Background(store.close)
    with store._engine.readers._changed:
        assert store._engine.readers._changed.wait_for(lambda: store._engine.readers._closed, 30)
    assert closing.still_running()
    leave.set()
    closing.result()
    assert reading.result() == 2
    assert open_files(tmp_path) == 0


def test_later_calls_are_refused(either: SqliteStore) -> None:
    either.run(put("a"))
    either.close()
    uses = [
        lambda: either.run(put("b")),
        lambda: either.run(count_aside()),
        lambda: either.transaction().__enter__(),
        either.migrate,
        either.pending_migrations,
    ]
    for use in uses:
        with pytest.raises(Invalid) as raised:
            use()
        assert raised.value.code == "STORE_CLOSED"
    either.close()


def test_those_who_wait_are_served_first(store: SqliteStore, url: str) -> None:
    calls = []
    before = set(threading.enumerate())  # other stores of this process may have theirs
    with store.transaction():
        for number in range(5):
            calls.append(Background(store.run, put(f"k{number}")))
            wait_for_line(store, number + 1)
        closing = Background(store.close)
        with store._engine.line.changed:
            assert store._engine.line.changed.wait_for(lambda: store._engine.line.closed, 10)
        assert closing.still_running()
    closing.result()
    assert not store._engine.line.waits()
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name == "tenure-sqlite-writer"]
    assert [call.result() for call in calls] == [f"k{number}" for number in range(5)]
    with toy_store(url) as other:
        assert len(other.run(keys_aside())) == 5


def test_closing_while_others_call_loses_nothing_that_was_answered(url: str) -> None:
    store = toy_store(url)
    store.migrate()
    started = threading.Barrier(5)

    def work(who: int) -> tuple[str, int]:
        started.wait(30)
        number = 0
        while True:
            try:
                store.run(put(f"{who}-{number}"))
            except TenureError as error:
                return error.code, number
            number += 1

    calls = [Background(work, who) for who in range(4)]
    started.wait(30)
    while store.run(count_aside()) < 20:
        pass
    store.close()
    ends = [call.result() for call in calls]
    assert {code for code, _number in ends} == {"STORE_CLOSED"}
    answered = sum(number for _code, number in ends)
    with toy_store(url) as other:
        assert other.run(count_aside()) == answered


def test_both_faces_of_a_store_share_its_database_and_the_last_one_ends_it(either: SqliteStore) -> None:
    either.run(put("a"))
    twin = either.awaiting()
    third = twin.blocking()
    assert asyncio.run(twin.run(put("b"))) == "b"
    assert third.run(keys_aside()) == ["a", "b"]
    either.close()
    either.close()
    for use in (lambda: either.run(put("c")), either.awaiting, lambda: either.join(None)):
        with pytest.raises(Invalid) as raised:
            use()
        assert raised.value.code == "STORE_CLOSED"
    assert third.run(put("c")) == "c"
    third.close()
    assert asyncio.run(twin.run(put("d"))) == "d"
    assert not either._engine.line.closed
    asyncio.run(twin.close())
    assert either._engine.line.closed
    with pytest.raises(Invalid) as raised:
        asyncio.run(twin.run(put("e")))
    assert raised.value.code == "STORE_CLOSED"


def test_the_last_face_is_not_closed_inside_its_own_transaction(store: SqliteStore) -> None:
    twin = store.awaiting()
    with store.transaction() as tx:
        asyncio.run(twin.close())  # not the last one
        with pytest.raises(IllegalMove):
            store.close()
        tx.run(put("a"))
    assert store.run(keys_aside()) == ["a"]


def test_a_store_that_was_never_used_closes(url: str) -> None:
    toy_store(url).close()
    assert not Path(url.removeprefix("sqlite:///")).exists()
