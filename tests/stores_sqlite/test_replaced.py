"""A database file that is deleted or replaced under an open store: nothing more goes into the lost one."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tenure.errors import Unavailable
from tenure.stores.sqlite.anchor import LOOK_EVERY
from tenure.stores.sqlite.store import SqliteStore
from tests.stores_sqlite.toy import async_toy_store, count_aside, put, toy_store


def path_of(store: SqliteStore) -> Path:
    path = store._engine.place.path
    assert path is not None
    return Path(path)


def look_always(store: SqliteStore) -> None:
    """Look before every use, so that no test has to wait for a second."""
    store._engine.anchor.every = 0.0


def labels(path: Path) -> int:
    with closing(sqlite3.connect(path)) as other:
        (count,) = other.execute("SELECT count(*) FROM tenure_note").fetchone()
    return int(count)


def delete(path: Path) -> None:
    for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
        name.unlink(missing_ok=True)


def replace(path: Path) -> None:
    fresh = path.with_name("fresh.db")
    with toy_store(f"sqlite:///{fresh}") as other:
        other.migrate()
    delete(path)
    fresh.rename(path)


def vanish_and_begin_anew(path: Path) -> None:
    delete(path)
    with toy_store(f"sqlite:///{path}") as other:
        other.migrate()


LOSSES: list[Callable[[Path], None]] = [delete, replace, vanish_and_begin_anew]


@pytest.mark.parametrize("lose", LOSSES)
def test_nothing_more_is_written_to_a_file_that_lost_its_name(store: SqliteStore, lose: Callable[[Path], None]) -> None:
    look_always(store)
    assert store.run(put("before")) == "before"
    lose(path_of(store))
    for _ in range(2):
        with pytest.raises(Unavailable, match="deleted or replaced") as raised:
            store.run(put("after"))
        assert raised.value.code == "DATABASE_REPLACED"
        with pytest.raises(Unavailable) as raised, store.transaction():
            raise AssertionError("the block must not begin")
        assert raised.value.code == "DATABASE_REPLACED"
        with pytest.raises(Unavailable) as raised:
            store.run(count_aside())
        assert raised.value.code == "DATABASE_REPLACED"
        with pytest.raises(Unavailable) as raised:
            store.migrate()
        assert raised.value.code == "DATABASE_REPLACED"


@pytest.mark.parametrize("lose", LOSSES)
def test_a_connection_that_is_opened_later_does_not_change_the_file(
    store: SqliteStore, lose: Callable[[Path], None]
) -> None:
    store.run(put("before"))
    path = path_of(store)
    lose(path)
    # Within the second in which nobody looks: a connection that broke is opened anew, and a reader is opened at first.
    kept = store._engine.writer.connection
    store._engine.writer.forget()
    with pytest.raises(Unavailable) as raised:
        store.run(put("after"))
    assert raised.value.code == "DATABASE_REPLACED"
    with pytest.raises(Unavailable) as raised:
        store.run(count_aside())
    assert raised.value.code == "DATABASE_REPLACED"
    if path.exists():
        assert labels(path) == 0
    assert kept is not None
    kept.close()


def test_an_awaiting_store_and_those_in_line_are_told_too(url: str) -> None:
    async def main() -> None:
        async with async_toy_store(url) as store:
            await store.migrate()
            store._engine.anchor.every = 0.0
            assert await store.run(put("before")) == "before"
            delete(Path(store._engine.place.path or ""))
            told = await asyncio.gather(*(store.run(put(f"k{n}")) for n in range(5)), return_exceptions=True)
            assert [getattr(error, "code", error) for error in told] == ["DATABASE_REPLACED"] * 5

    asyncio.run(main())


def test_the_end_of_the_store_leaves_the_new_file_and_its_log_alone(store: SqliteStore) -> None:
    look_always(store)
    path = path_of(store)
    store.run(put("before"))
    vanish_and_begin_anew(path)
    with toy_store(f"sqlite:///{path}") as other:
        other.run(put("mine"))
        with pytest.raises(Unavailable):
            store.run(put("after"))
        store.close()
        assert other.run(put("more")) == "more"
        assert other.run(count_aside()) == 2
        # Not yet in the file itself, only in its log, which the first store's end could have removed by its name.
        shutil.copy(path, path.with_name("copy.db"))
        shutil.copy(path.with_name(path.name + "-wal"), path.with_name("copy.db-wal"))
        assert labels(path.with_name("copy.db")) == 2


def test_a_file_that_comes_back_is_used_again(store: SqliteStore) -> None:
    look_always(store)
    path = path_of(store)
    store.run(put("before"))
    path.rename(path.with_name("away.db"))
    with pytest.raises(Unavailable):
        store.run(put("after"))
    path.with_name("away.db").rename(path)
    assert store.run(put("after")) == "after"
    assert store.run(count_aside()) == 2


def test_a_store_opened_anew_takes_the_new_file(store: SqliteStore, url: str) -> None:
    look_always(store)
    store.run(put("before"))
    vanish_and_begin_anew(path_of(store))
    with pytest.raises(Unavailable):
        store.run(put("after"))
    with toy_store(url) as other:
        assert other.run(put("after")) == "after"
        assert other.run(count_aside()) == 1


def test_an_untouched_file_is_never_in_doubt(store: SqliteStore) -> None:
    look_always(store)
    path = path_of(store)
    store.run(put("a"))
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        other.execute("VACUUM")
    assert store.run(put("b")) == "b"
    # Touched, made bigger, given other rights, given a second name: still the same file.
    os.utime(path)
    path.chmod(0o600)
    os.link(path, path.with_name("second.db"))
    assert store.run(put("c")) == "c"
    assert store.run(count_aside()) == 3
    with store.transaction() as tx:
        assert tx.run(put("d")) == "d"


def test_a_database_in_memory_has_no_file_to_lose(memory: SqliteStore) -> None:
    look_always(memory)
    assert memory.run(put("a")) == "a"
    assert memory.run(count_aside()) == 1
    assert memory._engine.anchor.looks == 0


def test_a_file_that_is_copied_by_its_first_opening_is_taken(store: SqliteStore, url: str) -> None:
    store.run(put("before"))
    with toy_store(url) as other:
        anchor = other._engine.anchor
        look = anchor.look
        # As on a layered file system, where the file that is read and the one that is written to are two.
        answers = [(0, 7)]
        anchor.look = lambda: answers.pop() if answers else look()  # type: ignore[method-assign]
        assert other.run(put("after")) == "after"
        assert answers == []
        # Control: once it has its file, no other is taken.
        other._engine.writer.discard()
        anchor.look = lambda: (0, 7)  # type: ignore[method-assign]
        with pytest.raises(Unavailable) as raised:
            other.run(put("more"))
        assert raised.value.code == "DATABASE_REPLACED"
    assert store.run(count_aside()) == 2


def test_a_file_that_is_made_by_migrate_is_kept_to(url: str) -> None:
    with toy_store(url) as store:
        look_always(store)
        store.migrate()
        assert store.run(put("a")) == "a"
        delete(path_of(store))
        with pytest.raises(Unavailable):
            store.run(put("b"))


def test_the_path_is_looked_at_once_a_second_and_not_for_every_write(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr("tenure.stores.sqlite.anchor.time.monotonic", lambda: now)
    anchor = store._engine.anchor
    store.run(put("first"))
    seen = anchor.looks
    for number in range(20):
        store.run(put(f"k{number}"))
    assert anchor.looks == seen
    now += LOOK_EVERY
    for number in range(20, 40):
        store.run(put(f"k{number}"))
    assert anchor.looks == seen + 1


def test_a_child_keeps_to_the_file_of_its_parent(store: SqliteStore) -> None:
    store.run(put("before"))
    path = path_of(store)
    kept = os.open(path, os.O_RDONLY)  # so that the new file cannot get the inode of the old one
    vanish_and_begin_anew(path)
    pid = os.fork()
    if pid == 0:
        try:
            store.run(put("child"))
            os._exit(1)
        except Unavailable as error:
            os._exit(0 if error.code == "DATABASE_REPLACED" else 2)
        finally:
            os._exit(3)
    _, status = os.waitpid(pid, 0)
    os.close(kept)
    assert os.waitstatus_to_exitcode(status) == 0
    assert labels(path) == 0
