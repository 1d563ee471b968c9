"""Wake-ups inside one process."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tenure.stores.sqlite.store import SqliteStore
from tests.stores_sqlite.toy import async_toy_store, toy_store


def test_listeners_of_the_same_file_are_woken_and_others_are_not(store: SqliteStore, url: str) -> None:
    heard: list[str] = []
    with (
        toy_store(url) as twin,
        toy_store("sqlite:///:memory:") as memory,
        store.listen(lambda: heard.append("store")) as reliable,
        twin.listen(lambda: heard.append("twin")),
        memory.listen(lambda: heard.append("memory")),
    ):
        assert reliable is False
        store.notify()
        assert sorted(heard) == ["store", "twin"]
        memory.notify()
        assert sorted(heard) == ["memory", "store", "twin"]
    store.notify()
    assert len(heard) == 3


def test_an_awaiting_store_wakes_them_too(store: SqliteStore, url: str) -> None:
    heard: list[str] = []

    async def main() -> None:
        async with async_toy_store(url) as other:
            with other.listen(lambda: heard.append("other")):
                await other.notify()
                store.notify()

    with store.listen(lambda: heard.append("store")):
        asyncio.run(main())
    assert sorted(heard) == ["other", "other", "store", "store"]


def test_a_listener_that_fails_is_told_at_its_end_and_the_others_are_woken(
    store: SqliteStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[str] = []

    def broken() -> None:
        heard.append("first")
        raise LookupError("secret-payload")

    def listen_and_notify() -> None:
        with store.listen(broken), store.listen(lambda: heard.append("second")):
            store.notify()
            store.notify()
            heard.append("went on")

    with caplog.at_level(logging.DEBUG), pytest.raises(LookupError):
        listen_and_notify()
    assert heard == ["first", "second", "first", "second", "went on"]
    assert caplog.records == []
    # Control: nothing is left of it for the next listener.
    with store.listen(lambda: heard.append("next")):
        store.notify()
    assert heard[-1] == "next"


def test_a_store_that_nobody_listens_to_is_notified_in_vain(store: SqliteStore) -> None:
    store.notify()
    with store.listen(lambda: None) as reliable:
        assert reliable is False
