"""A block of a store with a role leaves our tables and the store's connection as they are, and its own tables alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.errors import Refused
from tenure.opening import open_store
from tenure.service import DurableJobService
from tenure.stores.contract import Store

REFUSED = (
    "INSERT INTO main.tenure_meta VALUES ('frozen', '1')",
    "CREATE TEMP TABLE tenure_job_key (tenant)",
    "CREATE TEMP TABLE Tenure_Queue AS SELECT 1 AS name",
    "CREATE TEMP VIEW tenure_queue AS SELECT 1 AS name",
    "CREATE TABLE tenure_new (value)",
    "CREATE VIEW tenure_new AS SELECT 1 AS value",
    "CREATE VIRTUAL TABLE tenure_new USING fts5 (value)",
    "CREATE TEMP TABLE json_each (value)",
    "CREATE TEMP TRIGGER own_trigger AFTER INSERT ON main.tenure_job_key BEGIN DELETE FROM tenure_ready; END",
    "CREATE TRIGGER own_trigger AFTER INSERT ON tenure_job_key BEGIN SELECT 1; END",
    "CREATE INDEX own_index ON tenure_job (kind)",
    "CREATE INDEX tenure_index ON own (value)",
    "ALTER TABLE own RENAME TO tenure_new",
    "ALTER TABLE scratch RENAME TO tenure_queue",
    "CREATE TABLE mine (job REFERENCES tenure_ready (job_id))",
    "CREATE TABLE mine (job, tenant, FOREIGN KEY (job, tenant) REFERENCES/**/[Tenure_ready] ON DELETE CASCADE)",
    "ALTER TABLE own ADD COLUMN job REFERENCES 'tenure_ready' (job_id)",
    "ANALYZE",
    "ATTACH ':memory:' AS beside",
    "DETACH main",
    "PRAGMA query_only = ON",
    "PRAGMA foreign_keys = OFF",
    "PRAGMA recursive_triggers = ON",
    "PRAGMA writable_schema = ON",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA main.synchronous(0)",
    "PRAGMA wal_checkpoint",
)
ALLOWED = (
    "CREATE TABLE mine (value INTEGER PRIMARY KEY)",
    "ALTER TABLE mine ADD COLUMN more",
    "ALTER TABLE mine RENAME COLUMN more TO less",
    "CREATE INDEX mine_index ON mine (less)",
    "CREATE VIEW mine_view AS SELECT * FROM tenure_job",
    "CREATE TRIGGER mine_trigger AFTER INSERT ON mine BEGIN DELETE FROM own; END",
    "CREATE TABLE child (mine REFERENCES mine)",
    "CREATE TEMP TABLE beside (mine REFERENCES mine)",
    "INSERT INTO own VALUES ('references tenure_ready')",
    "SAVEPOINT mine -- references",
    "ROLLBACK TO mine -- references",
    "DROP TABLE child",
    "INSERT INTO mine VALUES (1, 2)",
    "CREATE TEMP TABLE aside AS SELECT * FROM mine",
    "CREATE TEMP TRIGGER aside_trigger AFTER INSERT ON aside BEGIN DELETE FROM mine; END",
    "INSERT INTO aside VALUES (1, 2)",
    "ANALYZE mine",
    "DROP TABLE aside",
    "DROP TABLE mine",
    "SELECT * FROM tenure_job, json_each('[1]')",
    "PRAGMA table_info(tenure_job)",
    "SELECT * FROM pragma_table_info('own')",
    "PRAGMA query_only",
    "PRAGMA defer_foreign_keys = ON",
    "SAVEPOINT mine",
    "RELEASE mine",
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with open_store(url) as owner:
        owner.migrate()
        with owner.transaction() as tx:
            tx.execute("CREATE TABLE own (value)")
        with open_store(url, role="producer") as producer:
            with producer.transaction() as tx:
                tx.execute("CREATE TEMP TABLE scratch (name)")
            yield producer


def enqueue(store: Store, key: str) -> bool:
    service = DurableJobService(store)
    fields = {"organization": "acme", "project": "p", "kind": "k"}
    return service.create_job(idempotency_key=key, payload={}, **fields).created


@pytest.mark.parametrize("sql", REFUSED)
def test_what_would_change_our_tables_or_the_connection_is_refused(store: Store, sql: str) -> None:
    with store.transaction() as tx:
        tx.execute("INSERT INTO own VALUES (1)")
        with pytest.raises(Refused) as refused:
            tx.execute(sql)
        assert refused.value.code == "ROLE_DENIED"
        tx.execute("INSERT INTO own VALUES (2)")
    assert enqueue(store, "k-1")
    assert not enqueue(store, "k-1")
    with store.transaction() as tx:
        assert tx.execute("SELECT count(*) FROM own").fetchone() == (2,)
        assert tx.execute("SELECT count(*) FROM tenure_ready").fetchone() == (1,)


def test_what_is_the_callers_own_is_allowed(store: Store) -> None:
    with store.transaction() as tx:
        for sql in ALLOWED:
            tx.execute(sql).fetchall()
    assert enqueue(store, "k-1")


def test_what_a_caller_had_before_and_a_mistake_of_the_callers_own_are_no_matter_of_roles(
    store: Store, tmp_path: Path
) -> None:
    with open_store(f"sqlite:///{tmp_path}/jobs.db") as owner, owner.transaction() as tx:
        tx.execute(
            "CREATE TABLE theirs (job, tenant, FOREIGN KEY (job, tenant) REFERENCES tenure_job ON DELETE CASCADE)"
        )
    with store.transaction() as tx:
        tx.execute("CREATE TABLE mine (value PRIMARY KEY REFERENCES mine)")
        with pytest.raises(sqlite3.OperationalError, match="already exists"):
            tx.execute("CREATE TABLE mine (value REFERENCES mine)")
        with pytest.raises(sqlite3.OperationalError, match="syntax error"):
            tx.execute("CREATE TABLE REFERENCES")


def test_a_trigger_on_a_callers_table_is_judged_by_what_it_does(store: Store) -> None:
    with store.transaction() as tx:
        tx.execute("CREATE TEMP TRIGGER mine AFTER INSERT ON own BEGIN DELETE FROM tenure_ready; END")
        with pytest.raises(Refused):
            tx.execute("INSERT INTO own VALUES (1)")


def test_a_store_without_a_role_is_who_owns_the_file(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/jobs.db") as owner:
        owner.migrate()
        with owner.transaction() as tx:
            tx.execute("CREATE INDEX own_index ON tenure_job (kind)")
            tx.execute("DROP INDEX own_index")
