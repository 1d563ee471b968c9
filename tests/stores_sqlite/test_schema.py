"""Migrations: in order, once, whole or not at all, whoever runs them and however they are stopped."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tenure.errors import Invalid
from tenure.stores import open_store
from tenure.stores.migrate import Migration, check_version, load, pending
from tenure.stores.sqlite import schema
from tenure.stores.sqlite.store import SqliteStore
from tenure.stores.statements import load as load_statements
from tests.stores_sqlite.support import finish, read_line, start_child
from tests.stores_sqlite.toy import MIGRATIONS, count_aside, put, toy_store

NAMES = ["0001_notes", "0002_children"]
THIRD = Migration(3, "0003_more", "CREATE TABLE tenure_more (v);")


def dump(path: Path) -> list[tuple[str, ...]]:
    """Give all that makes up a schema, and which migrations are recorded."""
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name").fetchall()
        return found + connection.execute("SELECT version, name FROM tenure_migration ORDER BY version").fetchall()


def test_what_is_pending_is_applied_once_and_recorded(url: str) -> None:
    with toy_store(url) as store:
        assert store.pending_migrations() == NAMES
        assert store.migrate() == NAMES
        assert store.pending_migrations() == []
        assert store.migrate() == []
        assert store.migrate(test_clock=True) == []
        assert store.run(put("a")) == "a"
    with toy_store(url, migrations=[*MIGRATIONS, THIRD]) as store:
        assert store.pending_migrations() == ["0003_more"]
        assert store.migrate() == ["0003_more"]
        assert store.run(count_aside()) == 1


def test_a_store_in_memory_migrates_too(memory: SqliteStore) -> None:
    assert memory.pending_migrations() == []
    assert memory.migrate() == []


def test_it_lives_beside_the_users_own_tables(url: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "toy.db")) as mine:
        mine.execute("CREATE TABLE mine (v)")
        mine.execute("INSERT INTO mine VALUES (1)")
        mine.commit()
    with toy_store(url) as store:
        store.migrate()
    names = [row[1] for row in dump(tmp_path / "toy.db") if row[0] == "table"]
    assert "mine" in names
    assert all(name.startswith("tenure_") for name in names if name != "mine")
    with closing(sqlite3.connect(tmp_path / "toy.db")) as mine:
        assert mine.execute("SELECT v FROM mine").fetchall() == [(1,)]


def test_a_migration_that_fails_leaves_everything_as_it_was(url: str, tmp_path: Path) -> None:
    broken = Migration(3, "0003_broken", "CREATE TABLE tenure_more (v); CREATE TABLE tenure_note (v);")
    with toy_store(url) as store:
        store.migrate()
    before = dump(tmp_path / "toy.db")
    with toy_store(url, migrations=[*MIGRATIONS, broken]) as store:
        with pytest.raises(sqlite3.OperationalError, match="already exists"):
            store.migrate()
        assert store.pending_migrations() == ["0003_broken"]
    assert dump(tmp_path / "toy.db") == before


def test_the_text_of_the_schema_makes_the_same_database(url: str, tmp_path: Path) -> None:
    with toy_store(url) as store:
        store.migrate()
        text = store.migration_sql()
    with closing(sqlite3.connect(tmp_path / "by_hand.db")) as connection:
        connection.executescript(text)
    assert dump(tmp_path / "by_hand.db") == dump(tmp_path / "toy.db")
    with toy_store(f"sqlite:///{tmp_path}/by_hand.db") as store:
        assert store.pending_migrations() == []
        assert store.run(put("a")) == "a"


def test_many_processes_migrate_at_once(url: str, tmp_path: Path) -> None:
    children = [start_child("migrate", url) for _ in range(4)]
    try:
        for child in children:
            read_line(child, "ready")
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        said = [finish(child) for child in children]
    finally:
        for child in children:
            child.kill()
    assert sorted(said) == ["", "", "", ",".join(NAMES)]
    assert [row for row in dump(tmp_path / "toy.db") if row[0] in {1, 2}] == [(1, NAMES[0]), (2, NAMES[1])]


def test_a_process_killed_at_any_statement_leaves_a_migration_that_runs_again(tmp_path: Path) -> None:
    with toy_store(f"sqlite:///{tmp_path}/whole.db") as store:
        store.migrate()
    whole = dump(tmp_path / "whole.db")
    # One child forks for every kill; it leaves the database of each, migrated again by the next process.
    said = finish(start_child("killed_migrations", str(tmp_path))).splitlines()
    assert said.pop() == "done"
    # Begin, ledger, look, two migrations of two and two statements with their records, commit.
    assert len(said) >= 9
    for number, found in enumerate(said):
        assert found == f"killed with {NAMES} pending, then [] pending"
        assert dump(tmp_path / f"killed_{number}.db") == whole


# What does not fit.


def test_a_database_without_our_tables_says_how_to_get_them(url: str, tmp_path: Path) -> None:
    with toy_store(url) as store:
        uses = [lambda: store.run(put("a")), lambda: store.run(count_aside()), lambda: store.transaction().__enter__()]
        for use in uses:
            with pytest.raises(Invalid, match="tenure migrate --store URL") as raised:
                use()
            assert raised.value.code == "SCHEMA_MISSING"
        assert not (tmp_path / "toy.db").exists()  # only migrate makes the file
        with closing(sqlite3.connect(tmp_path / "toy.db")) as mine:
            mine.execute("CREATE TABLE mine (v)")
        for use in (lambda: store.run(put("a")), lambda: store.run(count_aside())):
            with pytest.raises(Invalid, match="tenure migrate --store URL") as raised:
                use()
            assert raised.value.code == "SCHEMA_MISSING"
        store.migrate()
        assert store.run(put("a")) == "a"


def test_a_store_in_memory_without_tables_says_so_too() -> None:
    with toy_store("sqlite:///:memory:") as store:
        with pytest.raises(Invalid) as raised:
            store.run(put("a"))
        assert raised.value.code == "SCHEMA_MISSING"
        store.migrate()
        assert store.run(put("a")) == "a"


def test_a_table_that_somebody_dropped_is_a_missing_schema(store: SqliteStore) -> None:
    with store.transaction() as tx:
        tx.execute("DROP TABLE tenure_note")
    with pytest.raises(Invalid) as raised:
        store.run(put("a"))
    assert raised.value.code == "SCHEMA_MISSING"


def test_a_newer_schema_is_refused_with_both_versions_named(store: SqliteStore, url: str) -> None:
    assert store.run(put("a")) == "a"
    with toy_store(url, migrations=[*MIGRATIONS, THIRD]) as newer:
        with pytest.raises(Invalid, match=r"version 2, .* needs version 3") as raised:
            newer.run(count_aside())
        assert raised.value.code == "SCHEMA_MISSING"
        newer.migrate()
        assert newer.run(put("b")) == "b"
    with toy_store(url) as older:
        for use in (lambda: older.run(put("c")), lambda: older.run(count_aside()), older.migrate):
            with pytest.raises(Invalid, match=r"version 3, .* up to 2") as raised:
                use()
            assert raised.value.code == "SCHEMA_NEWER"
    # A store that was in use goes on, so that old workers and new ones overlap; it looks again when it opens anew.
    assert store.run(put("c")) == "c"
    store._engine.writer.discard()
    with pytest.raises(Invalid) as raised:
        store.run(put("d"))
    assert raised.value.code == "SCHEMA_NEWER"


def test_versions_are_judged() -> None:
    check_version(2, MIGRATIONS)
    check_version(None, [])
    for found, code in ((None, "SCHEMA_MISSING"), (1, "SCHEMA_MISSING"), (3, "SCHEMA_NEWER")):
        with pytest.raises(Invalid) as raised:
            check_version(found, MIGRATIONS)
        assert raised.value.code == code
    assert pending([1], MIGRATIONS) == MIGRATIONS[1:]


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("A; B;", 2),
        ("-- one; two\nA;", 1),
        ("INSERT INTO t VALUES (';');\n-- the end\n", 1),
        ("CREATE TRIGGER t AFTER INSERT ON x BEGIN SELECT 1; SELECT 2; END; B;", 2),
        ("", 0),
    ],
)
def test_a_text_is_cut_between_statements_only(text: str, statements: int) -> None:
    assert len(list(schema.split(text))) == statements


def test_a_text_that_ends_in_the_middle_is_our_mistake() -> None:
    with pytest.raises(AssertionError):
        list(schema.split("CREATE TABLE t (v); CREATE TABLE"))


# The schema and the statements that are shipped.


def test_the_shipped_schema_installs_and_every_statement_fits_it(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/jobs.db") as store:
        assert store.pending_migrations() == [one.name for one in load("tenure.stores.sqlite")]
        store.migrate()
        assert store.pending_migrations() == []
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as connection:
        statements = load_statements("tenure.stores.sqlite")
        for named in statements.values():
            for part in named.sql.split(";\n"):
                connection.execute(f"EXPLAIN {part}", {**dict.fromkeys(named.params), "now": 0})
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        assert all(name.startswith("tenure_") for name in tables)
        assert len(statements) > 20
