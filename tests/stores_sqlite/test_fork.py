"""A fork: the child uses files of its own, and the parent's stay whole. Each in a process that may fork freely."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pytest

from tenure.stores.sqlite.fork import leave_open
from tests.stores_sqlite.support import finish, start_child


def forked(url: str, mode: str) -> list[str]:
    said = finish(start_child("forked", url, mode)).splitlines()
    assert said.pop() == "parent ok"
    return said


def test_a_child_opens_its_own_connections(url: str) -> None:
    assert forked(url, "use") == ["['child', 2, 2] 0", "['parent', 'child']"]


@pytest.mark.parametrize(("mode", "keys"), [("exit", ["parent", "child", "later"]), ("unused", ["parent", "later"])])
def test_a_child_that_ends_does_not_touch_the_parents_files(url: str, mode: str, keys: list[str]) -> None:
    assert forked(url, mode) == ["0", str(keys)]


def test_a_child_that_outlives_the_parents_store_loses_no_commit(url: str) -> None:
    assert forked(url, "outlives") == ["['parent', 'child 1', 'child 2']"]


def test_a_child_made_inside_a_transaction_can_neither_use_nor_commit_it(url: str) -> None:
    assert forked(url, "block") == ["FORKED 0", "FORKED 0", "7", "['parent', 'both']"]


def test_many_forks_among_busy_threads(url: str) -> None:
    assert forked(url, "busy") == ["True True True"]


def test_a_closed_store_is_closed_in_the_child_too(url: str) -> None:
    assert forked(url, "closed") == ["STORE_CLOSED 0"]


def test_a_database_in_memory_stays_with_its_process() -> None:
    assert finish(start_child("forked_memory")).splitlines() == ["FORKED 0", "1"]


def test_an_awaiting_store_is_used_in_a_child_with_a_loop_of_its_own(url: str) -> None:
    assert finish(start_child("forked_async", url)).splitlines() == ["0", "['parent', 'child', 'later']"]


def test_a_connection_that_is_left_open_is_never_closed(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "left.db")
    before = sys.getrefcount(connection)
    leave_open([connection])
    assert sys.getrefcount(connection) == before + 1
    connection.close()
