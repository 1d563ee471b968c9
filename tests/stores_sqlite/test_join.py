"""Joining a transaction of the caller's, without ever ending or changing it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from tenure.errors import Conflict, Invalid, Unavailable
from tenure.stores.migrate import Migration
from tenure.stores.sqlite.store import SqliteStore
from tenure.yields import AfterCommit, Each, Script, Statement, procedure
from tests.stores_sqlite.toy import (
    MIGRATIONS,
    async_toy_store,
    count,
    count_aside,
    get,
    keys_aside,
    put,
    put_and_refuse,
    put_and_tell,
    put_many,
    toy_store,
)


@pytest.fixture
def mine(store: SqliteStore, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Give a connection as many programs have it: the driver's defaults, and a table of their own."""
    with closing(sqlite3.connect(tmp_path / "toy.db", timeout=0)) as connection:
        connection.execute("CREATE TABLE mine (v)")
        connection.commit()
        yield connection


def test_the_callers_commit_commits_both(store: SqliteStore, mine: sqlite3.Connection) -> None:
    mine.execute("INSERT INTO mine VALUES (1)")
    with store.join(mine) as tx:
        assert tx.run(put("a")) == "a"
        assert tx.execute("SELECT count(*) FROM mine").fetchone() == (1,)
        assert tx.connection is mine
    assert mine.in_transaction
    assert store.run(count_aside()) == 0
    mine.commit()
    assert store.run(count_aside()) == 1


def test_the_callers_rollback_undoes_both(store: SqliteStore, mine: sqlite3.Connection) -> None:
    mine.execute("BEGIN")
    mine.execute("INSERT INTO mine VALUES (1)")
    assert store.join(mine).run(put_many(["a", "b"])) == [("a", "many"), ("b", "many")]
    mine.rollback()
    assert store.run(count()) == 0
    assert mine.execute("SELECT count(*) FROM mine").fetchone() == (0,)


def test_an_error_in_the_block_ends_nothing(store: SqliteStore, mine: sqlite3.Connection) -> None:
    def block() -> None:
        with store.join(mine) as tx:
            tx.run(put("a"))
            raise LookupError

    mine.execute("INSERT INTO mine VALUES (1)")
    with pytest.raises(LookupError):
        block()
    assert mine.in_transaction
    mine.commit()
    assert store.run(count()) == 1


def test_a_procedure_that_fails_leaves_the_callers_transaction_usable(
    store: SqliteStore,
    mine: sqlite3.Connection,
) -> None:
    mine.execute("INSERT INTO mine VALUES (1)")
    tx = store.join(mine)
    with pytest.raises(Conflict):
        tx.run(put_and_refuse("a"))
    tx.run(put("a"))
    with pytest.raises(sqlite3.IntegrityError):
        tx.run(put("a"))
    mine.execute("INSERT INTO mine VALUES (2)")
    mine.commit()
    assert store.run(keys_aside()) == ["a"]
    assert mine.execute("SELECT count(*) FROM mine").fetchone() == (2,)


def test_after_commit_is_given_back_because_the_commit_is_the_callers(
    store: SqliteStore,
    mine: sqlite3.Connection,
) -> None:
    mine.execute("INSERT INTO mine VALUES (1)")
    told = store.join(mine).run(put_and_tell("a"))
    assert isinstance(told, AfterCommit)
    mine.commit()
    assert store.run(count()) == 1


def test_a_connection_without_a_transaction_is_refused_with_the_reason(
    store: SqliteStore,
    mine: sqlite3.Connection,
    tmp_path: Path,
) -> None:
    with pytest.raises(Invalid, match="write first, or execute BEGIN") as raised:
        store.join(mine)
    assert raised.value.code == "AUTOCOMMIT"
    assert "job" not in str(raised.value), "it may be a message, or the inbox, that was to be written"
    assert not mine.in_transaction  # it was not begun for the caller

    with closing(sqlite3.connect(tmp_path / "toy.db", isolation_level=None)) as manual:
        manual.execute("INSERT INTO mine VALUES (1)")
        with pytest.raises(Invalid, match="execute BEGIN IMMEDIATE first") as raised:
            store.join(manual)
        assert raised.value.code == "AUTOCOMMIT"
        manual.execute("BEGIN IMMEDIATE")
        store.join(manual).run(put("a"))
        manual.execute("COMMIT")
    assert store.run(count()) == 1


def test_it_is_looked_at_again_at_every_use(store: SqliteStore, mine: sqlite3.Connection) -> None:
    mine.execute("INSERT INTO mine VALUES (1)")
    tx = store.join(mine)
    tx.run(put("a"))
    mine.commit()
    for use in (lambda: tx.run(put("b")), lambda: tx.execute("INSERT INTO mine VALUES (2)")):
        with pytest.raises(Invalid) as raised:
            use()
        assert raised.value.code == "AUTOCOMMIT"
    assert store.run(count()) == 1


def test_the_callers_factories_do_not_matter_and_stay(store: SqliteStore, mine: sqlite3.Connection) -> None:
    def text(value: bytes) -> str:
        return value.decode().upper()

    mine.row_factory = sqlite3.Row
    mine.text_factory = text
    mine.execute("INSERT INTO mine VALUES ('x')")
    tx = store.join(mine)
    tx.run(put("a", who="me"))
    assert tx.run(get("a")) == [("me", None, "a : colon")]
    assert type(tx.run(get("a"))[0]) is tuple
    assert (mine.row_factory, mine.text_factory, mine.isolation_level) == (sqlite3.Row, text, "")
    assert tx.execute("SELECT v FROM mine").fetchone()["v"] == "X"
    mine.rollback()


def test_another_database_is_refused(store: SqliteStore, tmp_path: Path) -> None:
    for path in (tmp_path / "other.db", Path(":memory:")):
        with closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE t (v)")
            other.execute("INSERT INTO t VALUES (1)")
            with pytest.raises(Invalid, match="another main database") as raised:
                store.join(other)
            assert raised.value.code == "CANNOT_JOIN"


def test_the_same_file_by_another_name_is_accepted(store: SqliteStore, tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "toy.db")
    with closing(sqlite3.connect(tmp_path / "link.db", isolation_level=None)) as other:
        other.text_factory = bytes
        other.execute("BEGIN")
        store.join(other).run(put("a"))
        other.execute("COMMIT")
    assert store.run(count()) == 1


@pytest.mark.parametrize("connection", [None, "sqlite:///toy.db", object()])
def test_what_is_no_connection_of_the_driver_is_refused(store: SqliteStore, connection: object) -> None:
    with pytest.raises(Invalid, match="sqlite3") as raised:
        store.join(connection)
    assert raised.value.code == "CANNOT_JOIN"


def test_a_store_in_memory_is_joined_through_its_own_transaction_only(memory: SqliteStore) -> None:
    with memory.transaction() as tx:
        memory.join(tx.connection).run(put("a"))
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as other:
        other.execute("BEGIN")
        with pytest.raises(Invalid) as raised:
            memory.join(other)
        assert raised.value.code == "CANNOT_JOIN"
    assert memory.run(count()) == 1


def test_a_lock_in_the_way_is_told_and_the_callers_transaction_lives(
    store: SqliteStore,
    mine: sqlite3.Connection,
    tmp_path: Path,
) -> None:
    with closing(sqlite3.connect(tmp_path / "toy.db", isolation_level=None)) as rival:
        mine.execute("BEGIN")  # deferred: the write lock is not asked for yet
        rival.execute("BEGIN IMMEDIATE")
        tx = store.join(mine)
        with pytest.raises(Unavailable) as raised:
            tx.run(put("a"))
        assert raised.value.code == "STORE_BUSY"
        assert mine.in_transaction
        rival.execute("ROLLBACK")
        assert tx.run(put("a")) == "a"
        mine.commit()
    assert store.run(count()) == 1


def test_a_schema_that_does_not_fit_is_refused(url: str, tmp_path: Path) -> None:
    with (
        toy_store(url) as store,
        toy_store(url, migrations=[*MIGRATIONS, Migration(3, "0003_more", "CREATE TABLE more (v);")]) as newer,
        closing(sqlite3.connect(tmp_path / "toy.db", isolation_level=None)) as mine,
    ):
        mine.execute("BEGIN")
        with pytest.raises(Invalid) as raised:
            store.join(mine)
        assert raised.value.code == "SCHEMA_MISSING"
        mine.execute("ROLLBACK")
        newer.migrate()
        mine.execute("BEGIN")
        with pytest.raises(Invalid) as raised:
            store.join(mine)
        assert raised.value.code == "SCHEMA_NEWER"
        assert newer.join(mine).run(put("a")) == "a"
        mine.execute("COMMIT")


async def _joined(url: str, path: Path) -> list[str]:
    async with async_toy_store(url) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as mine:
            with pytest.raises(Invalid) as raised:
                store.join(mine)
            assert raised.value.code == "AUTOCOMMIT"
            mine.execute("BEGIN")
            async with store.join(mine) as tx:
                assert await tx.run(put("a")) == "a"
                with pytest.raises(Conflict):
                    await tx.run(put_and_refuse("b"))
                await tx.execute("INSERT INTO tenure_note (key, at) VALUES ('c', 0)")
            assert await store.run(keys_aside()) == []
            mine.execute("COMMIT")
        return await store.run(keys_aside())


def test_joined_verbs_of_an_awaiting_store_are_awaited(store: SqliteStore, url: str, tmp_path: Path) -> None:
    assert asyncio.run(_joined(url, tmp_path / "toy.db")) == ["a", "c"]
    assert store.run(count()) == 2


def test_a_deferred_transaction_gets_the_write_lock_before_anything_is_decided(
    store: SqliteStore, tmp_path: Path
) -> None:
    caller, other = (sqlite3.connect(tmp_path / "toy.db", isolation_level=None, timeout=0) for _ in range(2))

    @procedure
    def look_and_put(key: str) -> Script[None]:
        yield Statement("get", {"key": key})
        # Somebody else would write between the reading and the writing.
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        yield Each("put", [(key, "toy", None)])

    caller.execute("BEGIN")
    store.join(caller).run(look_and_put("a"))
    caller.execute("COMMIT")
    # A procedure that only reads asks for no lock.
    other.execute("BEGIN IMMEDIATE")
    caller.execute("BEGIN")
    assert store.join(caller).run(count_aside()) == 1
    caller.execute("COMMIT")
    other.execute("ROLLBACK")
    caller.close()
    other.close()


def test_a_connection_of_another_thread_is_refused_and_one_that_may_be_shared_is_not(
    store: SqliteStore, tmp_path: Path
) -> None:
    def connected(**how: bool) -> sqlite3.Connection:
        made = sqlite3.connect(tmp_path / "toy.db", isolation_level=None, **how)  # type: ignore[call-overload]
        made.execute("BEGIN IMMEDIATE")
        return cast("sqlite3.Connection", made)

    with ThreadPoolExecutor(1) as elsewhere:
        foreign = elsewhere.submit(connected).result()
        with pytest.raises(Invalid, match="check_same_thread=False") as refused:
            store.join(foreign)
        assert refused.value.code == "CANNOT_JOIN"
        joined = elsewhere.submit(store.join, foreign).result()
        with pytest.raises(Invalid, match="check_same_thread=False") as refused:
            joined.run(put("a"))
        assert refused.value.code == "CANNOT_JOIN"
        # Where it was opened it still works, and nothing was changed.
        assert elsewhere.submit(joined.run, put("a")).result() == "a"
        elsewhere.submit(foreign.rollback).result()
        elsewhere.submit(foreign.close).result()
        shared = elsewhere.submit(connected, check_same_thread=False).result()
    with closing(shared):
        assert store.join(shared).run(put("b")) == "b"
        shared.commit()
    assert store.run(count_aside()) == 1
