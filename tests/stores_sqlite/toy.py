"""A small schema with small procedures: the engine is tested without knowing anything about jobs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tenure.errors import Conflict
from tenure.stores.migrate import Migration
from tenure.stores.sqlite.store import AsyncSqliteStore, SqliteStore
from tenure.stores.statements import parse
from tenure.yields import AfterCommit, Each, Rows, Script, Statement, procedure

STATEMENTS = parse(
    """
-- name: clock() once
SELECT :now;

-- name: put(key, who, value) each
-- writes note
INSERT INTO tenure_note (key, who, value, at) VALUES (:key, :who, :value, :now);

-- name: put_back(key, who, value) each
-- writes note, gives the rows written
INSERT INTO tenure_note (who, key, value, at) VALUES (:who, :key, :value, :now) RETURNING key, who;

-- name: put_plain(key) each
-- the time is not asked for
INSERT INTO tenure_note (key, who, value, at) VALUES (:key, 'plain', NULL, 0);

-- name: drop_all() once
DELETE FROM tenure_note;

-- name: get(key) once
SELECT who, value, 'a : colon' AS ":key" FROM tenure_note WHERE key = :key;

-- name: count() once
SELECT count(*) FROM tenure_note;

-- name: keys() once
SELECT key FROM tenure_note ORDER BY number;

-- name: orphan(parent) once
-- found out at the commit only
INSERT INTO tenure_child (parent) VALUES (:parent);

-- name: twice(key, other) once
SELECT :key, :key, key, :other + :other, :now, :now FROM tenure_note WHERE key = :key OR :other IS NULL;

-- name: twice_each(number, text) each
SELECT :number, :text, :number;

-- name: spin(turns) once
-- keeps the database busy
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :turns) SELECT max(i) FROM n;
""",
)

MIGRATIONS = [
    Migration(
        1,
        "0001_notes",
        """
        -- What the store itself needs; a comment may hold a semicolon: like this.
        CREATE TABLE tenure_meta (key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
        CREATE TABLE tenure_note (
            number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, who TEXT, value, at INTEGER NOT NULL
        );
        """,
    ),
    Migration(
        2,
        "0002_children",
        """
        CREATE TABLE tenure_child (
            parent INTEGER REFERENCES tenure_note (number) DEFERRABLE INITIALLY DEFERRED
        );
        CREATE TRIGGER tenure_quiet AFTER INSERT ON tenure_child WHEN new.parent < 0
        BEGIN
            DELETE FROM tenure_child WHERE parent = new.parent;
            SELECT 'two statements; one trigger';
        END;
        -- Nothing follows.
        """,
    ),
]


def toy_store(url: str, **settings: Any) -> SqliteStore:
    settings.setdefault("statements", STATEMENTS)
    settings.setdefault("migrations", MIGRATIONS)
    return SqliteStore(url, **settings)


def async_toy_store(url: str, **settings: Any) -> AsyncSqliteStore:
    settings.setdefault("statements", STATEMENTS)
    settings.setdefault("migrations", MIGRATIONS)
    return AsyncSqliteStore(url, **settings)


@procedure
def put(key: str, *, who: str = "toy", value: object = None) -> Script[str]:
    yield Each("put", [(key, who, value)])
    return key


@procedure(urgent=True)
def put_urgently(key: str) -> Script[str]:
    yield Each("put", [(key, "urgent", None)])
    return key


@procedure
def put_many(keys: list[str]) -> Script[Rows]:
    rows: Rows = yield Each("put_back", [(key, "many", None) for key in keys])
    return rows


@procedure
def put_and_refuse(key: str) -> Script[None]:
    yield Each("put", [(key, "refused", None)])
    raise Conflict(f"{key} is refused after it was written")


@procedure
def put_and_tell(key: str) -> Script[AfterCommit]:
    yield Each("put", [(key, "told", None)])
    return AfterCommit(Conflict(f"{key} stands, and this is raised"))


@procedure
def orphan() -> Script[None]:
    yield Statement("orphan", {"parent": 1_000_000})


@procedure
def count() -> Script[int]:
    ((number,),) = yield Statement("count")
    return int(number)


@procedure(reads=True)
def count_aside() -> Script[int]:
    ((number,),) = yield Statement("count")
    return int(number)


@procedure(reads=True)
def keys_aside() -> Script[list[str]]:
    rows = yield Statement("keys")
    return [key for (key,) in rows]


@procedure(reads=True)
def write_aside(key: str) -> Script[None]:
    yield Each("put", [(key, "aside", None)])


@procedure(reads=True)
def get(key: str | UUID) -> Script[Rows]:
    rows: Rows = yield Statement("get", {"key": key})
    return rows


@procedure
def instant() -> Script[int]:
    ((now,),) = yield Statement("clock")
    return int(now)


@procedure(reads=True)
def instant_aside() -> Script[int]:
    ((now,),) = yield Statement("clock")
    return int(now)
