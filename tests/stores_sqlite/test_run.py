"""One procedure at a time: its requests, its values, its end."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from tenure.errors import Conflict, Invalid
from tenure.stores.sqlite.store import SqliteStore
from tenure.yields import Each, Rows, Script, Statement, procedure
from tests.stores_sqlite.support import Background
from tests.stores_sqlite.toy import (
    count,
    count_aside,
    get,
    orphan,
    put,
    put_and_refuse,
    put_and_tell,
    put_many,
    write_aside,
)


def test_what_a_procedure_returns_comes_back_after_its_commit(either: SqliteStore) -> None:
    assert either.run(put("a")) == "a"
    assert either.run(count_aside()) == 1


def test_rows_come_back_as_plain_tuples_in_the_order_of_the_rows_asked(either: SqliteStore) -> None:
    rows = either.run(put_many(["c", "a", "b"]))
    assert rows == [("c", "many"), ("a", "many"), ("b", "many")]
    assert {type(row) for row in rows} == {tuple}
    assert either.run(put_many(["d"])) == [("d", "many")]


def test_an_each_without_rows_is_not_sent_and_a_list_is_answered_in_order(either: SqliteStore) -> None:
    @procedure
    def mixed() -> Script[list[Rows]]:
        answers: list[Rows] = yield [
            Each("put", []),
            Each("put_back", [("x", "me", 1), ("y", "me", 2)]),
            Statement("count"),
            Each("put_plain", [("z",)]),
            Statement("count"),
        ]
        return answers

    assert either.run(mixed()) == [[], [("x", "me"), ("y", "me")], [(2,)], [], [(3,)]]


def test_a_statement_without_rows_takes_many_rows_again_and_again(either: SqliteStore) -> None:
    @procedure
    def plain(start: int) -> Script[None]:
        yield Each("put_plain", [(f"k{number}",) for number in range(start, start + 50)])

    either.run(plain(0))
    either.run(plain(50))
    assert either.run(count()) == 100


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (None, None),
        (7, 7),
        (2**63 - 1, 2**63 - 1),
        (True, 1),
        (0.5, 0.5),
        ("ß: :now", "ß: :now"),
        (b"\x00\xff", b"\x00\xff"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (["ä", 1], '["\\u00e4", 1]'),
    ],
)
def test_values_are_stored_as_they_are_and_ids_as_text(memory: SqliteStore, value: object, stored: object) -> None:
    memory.run(put("key", value=value))
    ((_who, found, colon),) = memory.run(get("key"))
    assert (found, type(found), colon) == (stored, type(stored), "a : colon")


def test_a_name_may_stand_many_times_and_now_too(memory: SqliteStore) -> None:
    memory.run(put("a", value="x"))

    @procedure
    def names() -> Script[tuple[Rows, Rows]]:
        once = yield Statement("twice", {"key": "a", "other": 5})
        each = yield Each("twice_each", [(1, "a"), (2, "b")])
        return once, each

    (((first, second, key, same, now, later),), each) = memory.run(names())
    assert (first, second, key, same) == ("a", "a", "a", 10)
    assert now == later > 0
    assert each == [(1, "a", 1), (2, "b", 2)]


def test_an_id_is_found_by_its_id(memory: SqliteStore) -> None:
    key = uuid4()
    memory.run(put(str(key), who="me"))
    assert memory.run(get(key)) == [("me", None, "a : colon")]


def test_the_drivers_global_adapters_are_left_alone(memory: SqliteStore) -> None:
    before = dict(sqlite3.adapters)
    memory.run(put("key", value=uuid4()))
    assert sqlite3.adapters == before
    with (
        closing(sqlite3.connect(":memory:")) as other,
        pytest.raises((sqlite3.ProgrammingError, sqlite3.InterfaceError)),
    ):
        other.execute("SELECT ?", (uuid4(),))


def test_a_value_that_the_driver_would_adapt_is_our_mistake(memory: SqliteStore) -> None:
    with pytest.raises(AssertionError, match="datetime"):
        memory.run(put("key", value=datetime(2030, 1, 1, tzinfo=UTC)))
    assert memory.run(count()) == 0


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, "\ud800"])
def test_what_sqlite_cannot_hold_is_invalid_and_leaves_nothing(either: SqliteStore, value: object) -> None:
    with pytest.raises(Invalid):
        either.run(put("key", value=value))
    either.run(put("key", value=2**63 - 1))
    assert either.run(count()) == 1


def test_a_procedure_that_raises_leaves_nothing_and_the_next_one_works(either: SqliteStore) -> None:
    with pytest.raises(Conflict) as raised:
        either.run(put_and_refuse("a"))
    assert not hasattr(raised.value, "__notes__"), "a refusal says all that its reader needs"
    assert either.run(count()) == 0
    either.run(put("a"))
    assert either.run(count()) == 1


def test_after_commit_raises_although_the_writes_stand(either: SqliteStore) -> None:
    with pytest.raises(Conflict, match="stands"):
        either.run(put_and_tell("a"))
    assert either.run(count()) == 1


def test_a_broken_constraint_is_the_drivers_error_with_the_place_named(either: SqliteStore) -> None:
    either.run(put("a"))
    with pytest.raises(sqlite3.IntegrityError) as raised:
        either.run(put("a"))
    assert raised.value.__notes__ == ["in statement put", "in <procedure put>"]
    assert either.run(count()) == 1


def test_a_constraint_found_at_the_commit_is_told_and_undone(either: SqliteStore) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        either.run(orphan())
    assert either.run(put("a")) == "a"


def test_a_read_that_writes_is_our_mistake(store: SqliteStore) -> None:
    with pytest.raises(AssertionError, match="write_aside"):
        store.run(write_aside("a"))
    assert store.run(count_aside()) == 0


def test_a_read_waits_for_no_writer_and_sees_what_was_committed(store: SqliteStore) -> None:
    store.run(put("a"))
    with store.transaction() as tx:
        tx.run(put("b"))
        assert Background(store.run, count_aside()).result() == 1
    assert store.run(count_aside()) == 2


def test_more_readers_than_connections_all_read(store: SqliteStore) -> None:
    store.run(put("a"))
    reads = [Background(lambda: [store.run(count_aside()) for _ in range(20)]) for _ in range(12)]
    assert [read.result() for read in reads] == [[1] * 20] * 12


@pytest.mark.parametrize(
    "request_",
    [Statement("nothing"), Statement("put"), Each("count", [()]), Statement("get", {}), Each("put", [("short",)])],
)
def test_a_request_that_does_not_fit_its_statement_is_our_mistake(memory: SqliteStore, request_: object) -> None:
    @procedure
    def wrong() -> Script[None]:
        yield request_  # type: ignore[misc]

    with pytest.raises(AssertionError):
        memory.run(wrong())
    assert memory.run(count()) == 0


def test_a_procedure_may_be_run_again_as_the_same_value(memory: SqliteStore) -> None:
    again = count()
    assert memory.run(again) == 0
    memory.run(put("a"))
    assert memory.run(again) == 1


def test_the_settings_of_every_connection(store: SqliteStore) -> None:
    store.run(put("a"))
    store.run(count_aside())
    writer = store._engine.writer.connection
    (reader,) = store._engine.readers.idle
    assert writer is not None

    def settings(connection: sqlite3.Connection) -> list[object]:
        names = ["journal_mode", "synchronous", "foreign_keys", "busy_timeout", "query_only"]
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    assert settings(writer) == ["wal", 2, 1, 0, 0]
    assert settings(reader) == ["wal", 2, 1, 0, 1]


def test_every_write_begins_at_once_with_the_write_lock(store: SqliteStore) -> None:
    writer = store._engine.writer.connection
    assert writer is not None
    seen: list[str] = []
    writer.set_trace_callback(seen.append)
    store.run(count())
    assert seen[0] == "BEGIN IMMEDIATE"
    assert seen[-1] == "COMMIT"
