"""One database of a pair: it is copied at some step, lives on, and is put back in one of the ways that people have."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from tests.support.postgres import Databases


class Place(Protocol):
    """Where a store lives; nobody is connected while it is copied or put back, except where `hot` says so."""

    url: str
    ledger: str
    hot: bool

    def copy(self) -> None:
        """Keep what is there now."""
        ...

    def put_back(self) -> None:
        """Bring the copy to where the database is."""
        ...

    def drop(self) -> None:
        """Remove all of it."""
        ...


class SqlitePlace:
    """
    A file in a folder of its own.

    Attributes:
        hot: Copied while it is in use.
    """

    WAYS = ("overwritten", "renamed", "through sqlite", "without its wal")

    def __init__(self, folder: Path, way: str) -> None:
        folder.mkdir(parents=True)
        self._path, self._copy = folder / "jobs.db", folder / "backup.db"
        self._way = way
        self.url = f"sqlite:///{self._path}"
        self.ledger = str(folder / "ledger")
        self.hot = way in {"through sqlite", "without its wal"}

    def copy(self) -> None:
        if self._way == "without its wal":
            # What was committed last is in the log alone, and a copy of the file does not have it.
            assert self._log.stat().st_size > 0
            shutil.copyfile(self._path, self._copy)
            return
        self._backup(self._path, self._copy)

    def put_back(self) -> None:
        if self._way == "through sqlite":
            self._backup(self._copy, self._path)
            return
        for ending in ("-wal", "-shm"):
            self._path.with_name(self._path.name + ending).unlink(missing_ok=True)
        if self._way == "renamed":
            self._copy.replace(self._path)
        else:
            shutil.copyfile(self._copy, self._path)

    def drop(self) -> None:
        shutil.rmtree(self._path.parent)

    @property
    def _log(self) -> Path:
        return self._path.with_name(self._path.name + "-wal")

    def _backup(self, one: Path, other: Path) -> None:
        with closing(sqlite3.connect(one)) as source, closing(sqlite3.connect(other)) as target:
            source.backup(target)


Rows = dict[str, list[bytes]]


def rows_of(url: str) -> Rows:
    """Read every table of a store, as `pg_dump --data-only` does."""
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'tenure'").fetchall()
        rows: Rows = {}
        for (name,) in found:
            with connection.cursor().copy(_COPY_OUT.format(sql.Identifier("tenure", name))) as copy:
                rows[name] = [bytes(row) for row in copy]
    return rows


def put_rows(url: str, rows: Rows) -> None:
    """Put them in the place of what is there, as `pg_restore --data-only --disable-triggers` into emptied tables."""
    with psycopg.connect(url) as connection:
        connection.execute("SET LOCAL session_replication_role = replica")
        tables = [sql.Identifier("tenure", name) for name in rows]
        connection.execute(sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(tables)))
        for name, lines in rows.items():
            with connection.cursor().copy(_COPY_IN.format(sql.Identifier("tenure", name))) as copy:
                for line in lines:
                    copy.write(line)


_COPY_OUT, _COPY_IN = sql.SQL("COPY {} TO STDOUT"), sql.SQL("COPY {} FROM STDIN")


class PostgresRows:
    """
    The rows of a database, copied and put back in the same database; pairs share one, each begins with an empty store.

    Args:
        fresh: The rows of a store that was just migrated.
    """

    hot = False

    def __init__(self, url: str, folder: Path, fresh: Rows) -> None:
        folder.mkdir(parents=True)
        self.url = url
        self.ledger = str(folder / "ledger")
        self._kept: Rows = {}
        put_rows(url, fresh)

    def copy(self) -> None:
        self._kept = rows_of(self.url)

    def put_back(self) -> None:
        put_rows(self.url, self._kept)

    def drop(self) -> None:
        """Leave it to the next pair."""


class PostgresCopy:
    """A database that the server itself copies, and that comes back under the old name, as after `dropdb`."""

    hot = False

    def __init__(self, databases: Databases, folder: Path, fresh: Rows, prepared: str) -> None:
        folder.mkdir(parents=True)
        self._databases = databases
        self.url = databases.create(template=_name(prepared))
        self.ledger = str(folder / "ledger")
        self._kept: str | None = None
        put_rows(self.url, fresh)

    def copy(self) -> None:
        self._kept = self._databases.create(template=_name(self.url))

    def put_back(self) -> None:
        assert self._kept is not None
        self._databases.drop(self.url)
        elsewhere = urlunsplit(urlsplit(self.url)._replace(path="/postgres"))
        with psycopg.connect(elsewhere, autocommit=True) as admin:
            rename = sql.SQL("ALTER DATABASE {} RENAME TO {}")
            admin.execute(rename.format(sql.Identifier(_name(self._kept)), sql.Identifier(_name(self.url))))

    def drop(self) -> None:
        self._databases.drop(self.url)
        if self._kept is not None:
            self._databases.drop(self._kept)


def _name(url: str) -> str:
    return urlsplit(url).path.lstrip("/")
