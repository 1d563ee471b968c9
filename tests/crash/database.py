"""The two databases as a test sees them: by SQL on a connection of its own, never through the package."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

Row = dict[str, Any]
Dump = dict[str, list[Row]]

# What belongs to the installation and not to any job.
_KEPT = {"meta", "migration", "schema_version"}
_TABLE = re.compile(r"\$([a-z_]+)")


class SqliteFile:
    """A file, and a connection to it."""

    dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}"
        self._path = path
        self._raw: sqlite3.Connection | None = None
        self._columns: dict[str, list[str]] = {}

    def open(self) -> None:
        self._raw = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=30)
        found = self.sql("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'tenure%'")
        for (table,) in found:
            name = str(table).removeprefix("tenure_")
            if name not in _KEPT:
                self._columns[name] = [row[1] for row in self.sql(f"PRAGMA table_info({table})")]

    def sql(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        """Execute SQL: `$job` names a table of the package, `?` a parameter."""
        assert self._raw is not None
        plain = [str(value) if isinstance(value, UUID) else value for value in params]
        return self._raw.execute(_TABLE.sub(r"tenure_\1", text), plain).fetchall()

    def empty(self) -> None:
        """Delete every row of every job and tenant."""
        self.sql("BEGIN IMMEDIATE")
        for table in self._columns:
            self.sql(f"DELETE FROM ${table}")
        self.sql("COMMIT")

    def dump(self) -> Dump:
        """Give every row of every table, of one moment."""
        found: Dump = defaultdict(list)
        self.sql("BEGIN")
        for table, names in self._columns.items():
            found[table] = [dict(zip(names, row, strict=True)) for row in self.sql(f"SELECT * FROM ${table}")]
        self.sql("COMMIT")
        return found

    def close(self) -> None:
        assert self._raw is not None
        self._raw.close()


class PostgresDatabase:
    """A database, and a connection to it."""

    dialect = "postgresql"

    def __init__(self, url: str) -> None:
        self.url = url
        self._raw: psycopg.Connection[Any] | None = None
        self._dump = ""
        self._empty = ""

    def open(self) -> None:
        self._raw = psycopg.connect(self.url, autocommit=True)
        rows = self.sql(
            "SELECT t.table_name, c.column_name, c.data_type FROM information_schema.tables t "
            "JOIN information_schema.columns c USING (table_schema, table_name) "
            "WHERE t.table_schema = 'tenure' AND t.table_type = 'BASE TABLE' ORDER BY t.table_name, c.ordinal_position"
        )
        columns: dict[str, list[str]] = {}
        for table, column, kind in rows:
            if table not in _KEPT:
                columns.setdefault(table, []).append(f"{column}::text AS {column}" if kind == "json" else column)
        self._dump = " UNION ALL ".join(
            f"SELECT '{table}', row_to_json(r)::text FROM (SELECT {', '.join(names)} FROM tenure.{table}) r"
            for table, names in columns.items()
        )
        # Deleting a few rows is far quicker than TRUNCATE.
        self._empty = "; ".join(f"DELETE FROM tenure.{table}" for table in columns)

    def sql(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        """See `SqliteFile.sql`."""
        assert self._raw is not None
        cursor = self._raw.execute(_TABLE.sub(r"tenure.\1", text).replace("?", "%s").encode(), params or None)
        return cursor.fetchall() if cursor.description else []

    def empty(self) -> None:
        """See `SqliteFile.empty`."""
        self.sql(self._empty)

    def dump(self) -> Dump:
        """See `SqliteFile.dump`."""
        found: Dump = defaultdict(list)
        for table, row in self.sql(self._dump):
            found[table].append(json.loads(row))
        return found

    def close(self) -> None:
        assert self._raw is not None
        self._raw.close()


Database = SqliteFile | PostgresDatabase
