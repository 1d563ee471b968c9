"""
What a statement of the caller's may not do in a block of a store that was opened with a role or a tenant.

Our tables are written by procedures, and those are judged. A statement of the caller's would get round that where it
writes them, hangs something on them, refers to them by a foreign key, puts something of the same name before them, or
leaves the connection, which the store goes on using, with another setting. Everything of the caller's own stays
allowed, temporary tables too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

_PREFIX = "tenure_"

# Refused where one of their names is ours. A name in the temporary schema stands before ours of the same name.
_CHANGES = frozenset(
    {
        sqlite3.SQLITE_INSERT,
        sqlite3.SQLITE_UPDATE,
        sqlite3.SQLITE_DELETE,
        sqlite3.SQLITE_ALTER_TABLE,
        sqlite3.SQLITE_ANALYZE,
        sqlite3.SQLITE_REINDEX,
        sqlite3.SQLITE_DROP_INDEX,
        sqlite3.SQLITE_DROP_TABLE,
        sqlite3.SQLITE_DROP_TEMP_INDEX,
        sqlite3.SQLITE_DROP_TEMP_TABLE,
        sqlite3.SQLITE_DROP_TEMP_TRIGGER,
        sqlite3.SQLITE_DROP_TEMP_VIEW,
        sqlite3.SQLITE_DROP_TRIGGER,
        sqlite3.SQLITE_DROP_VIEW,
        sqlite3.SQLITE_DROP_VTABLE,
    }
)
_CREATES = frozenset(
    {
        sqlite3.SQLITE_CREATE_INDEX,
        sqlite3.SQLITE_CREATE_TABLE,
        sqlite3.SQLITE_CREATE_TEMP_INDEX,
        sqlite3.SQLITE_CREATE_TEMP_TABLE,
        sqlite3.SQLITE_CREATE_TEMP_TRIGGER,
        sqlite3.SQLITE_CREATE_TEMP_VIEW,
        sqlite3.SQLITE_CREATE_TRIGGER,
        sqlite3.SQLITE_CREATE_VIEW,
        sqlite3.SQLITE_CREATE_VTABLE,
    }
)
# Tables that SQLite makes when our statements ask them; one that was created would stand before them.
_ASKED = frozenset({"json_each", "json_tree"})
# The new name of a renamed table is not told, and could be one of ours.
_RENAMES = "sqlite_rename_table"

_TABLES = frozenset({sqlite3.SQLITE_ALTER_TABLE, sqlite3.SQLITE_CREATE_TABLE})
# Of the caller's tables on ours. A temporary table refers to temporary tables only.
_FOREIGN_KEYS = r"""
    SELECT count(*) FROM main.sqlite_master t, pragma_foreign_key_list(t.name) f
    WHERE t.type = 'table' AND t.name NOT LIKE 'tenure\_%' ESCAPE '\' AND f."table" LIKE 'tenure\_%' ESCAPE '\'
"""

# With an argument these read; every other one sets something.
_READS = frozenset(
    {
        "defer_foreign_keys",  # it sets, until the end of this transaction
        "foreign_key_check",
        "foreign_key_list",
        "index_info",
        "index_list",
        "index_xinfo",
        "integrity_check",
        "quick_check",
        "table_info",
        "table_list",
        "table_xinfo",
    }
)
# Without an argument these act; every other one reads.
_ACTS = frozenset({"incremental_vacuum", "optimize", "shrink_memory", "wal_checkpoint"})


def keep_off(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """Deny what the file's head says; see sqlite3_set_authorizer, which is asked when a statement is prepared."""
    return sqlite3.SQLITE_DENY if _refused(action, first, second) else sqlite3.SQLITE_OK


def _refused(action: int, first: str | None, second: str | None) -> bool:
    names = {name.lower() for name in (first, second) if name is not None}
    ours = any(name.startswith(_PREFIX) for name in names)
    if action in _CHANGES:
        return ours
    if action in _CREATES:
        return ours or bool(names & _ASKED)
    if action == sqlite3.SQLITE_FUNCTION:
        return second == _RENAMES
    if action == sqlite3.SQLITE_PRAGMA:
        name = (first or "").lower()
        return name in _ACTS if second is None else name not in _READS
    return action in {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH}


def refers(connection: sqlite3.Connection, sql: str, params: Sequence[Any] | dict[str, Any]) -> bool:
    """
    Say whether a statement makes a foreign key on a table of ours, which would refuse our deletes from then on.

    The authorizer is not told of keys, so a statement that may make one is tried and taken back.
    """
    if "references" not in sql.lower():
        return False
    cursor = sqlite3.Cursor(connection)
    if not _makes_table(connection, cursor, sql, params):
        return False
    (before,) = cursor.execute(_FOREIGN_KEYS).fetchone()
    cursor.execute("SAVEPOINT tenure_trial")
    try:
        cursor.execute(sql, params)
        (after,) = cursor.execute(_FOREIGN_KEYS).fetchone()
    except sqlite3.Error:
        return False  # it fails again when it is run, and is the caller's to hear
    finally:
        cursor.execute("ROLLBACK TO tenure_trial")
        cursor.execute("RELEASE tenure_trial")
    return bool(after > before)


def _makes_table(
    connection: sqlite3.Connection, cursor: sqlite3.Cursor, sql: str, params: Sequence[Any] | dict[str, Any]
) -> bool:
    actions: set[int] = set()

    def look(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        actions.add(action)
        return keep_off(action, first, second)

    connection.set_authorizer(look)
    try:
        cursor.execute(f"EXPLAIN {sql}", params).fetchall()
    except (sqlite3.Error, sqlite3.Warning):
        return False
    finally:
        connection.set_authorizer(None)
    return bool(actions & _TABLES)
