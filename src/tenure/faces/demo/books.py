"""The application's own tables, outside of handlers: made, filled in the caller's transaction, read and counted."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import resources
from typing import Any
from urllib.parse import quote, unquote

from tenure.errors import Invalid, Unavailable
from tenure.stores.statements import Named, parse

# Seconds to wait for the lock of a SQLite file: while workers write, and to find out whether somebody keeps it.
_PATIENCE, _IMPATIENCE = 10.0, 0.5


def statements(dialect: str) -> dict[str, str]:
    """Give the demonstration's SQL for one database, by name."""
    name = "sqlite.sql" if dialect == "sqlite" else "postgres.sql"
    found: dict[str, Named] = parse(resources.files("tenure.faces.demo").joinpath(name).read_text(encoding="utf-8"))
    return {one.name: one.sql for one in found.values()}


def named_url(url: str, application: str) -> str:
    """Give a PostgreSQL URL under which one process can be told apart in the server's list; others stay as they are."""
    if url.startswith("sqlite:"):
        return url
    base, kept = _split(url, "application_name")
    return f"{base}?{'&'.join([*kept, 'application_name=' + quote(application, safe='')])}"


def _split(url: str, *left_out: str) -> tuple[str, list[str]]:
    base, _, query = url.partition("?")
    parts = [part for part in query.split("&") if part]
    return base, [part for part in parts if unquote(part.partition("=")[0]) not in left_out]


class Books:
    """
    The tables of one run; every row bears the run's name, so runs may share a database.

    Args:
        url: The store's URL as the user gave it.
    """

    def __init__(self, url: str, dialect: str, run: str) -> None:
        self.dialect = dialect
        self._url = url
        self._run = run
        self._sql = statements(dialect)
        self._reader: Any = None

    def close(self) -> None:
        """Close the connection that reads."""
        if self._reader is not None:
            self._reader.close()

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Open a plain connection of the driver with a transaction: committed at the end, rolled back on an error."""
        with closing(self._connect()) as connection:
            if self.dialect == "sqlite":
                connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    def _connect(self, patience: float = _PATIENCE) -> Any:
        if self.dialect == "sqlite":
            path = self._url.removeprefix("sqlite:///")
            return sqlite3.connect(path, timeout=patience, isolation_level=None)
        import psycopg  # noqa: PLC0415 - an extra: imported only where it is used

        base, query = _split(self._url)
        theirs = [part for part in query if not unquote(part).startswith("tenure_")]
        try:
            return psycopg.connect(f"{base}?{'&'.join(theirs)}")
        except psycopg.OperationalError:
            raise Unavailable("the database did not answer") from None  # the driver's text may hold the address

    def make(self) -> None:
        """
        Make the tables where they are missing.

        Raises:
            Invalid: TABLE_TAKEN, where one of that name belongs to somebody else.
        """
        with self.transaction() as connection:
            for name in ("take_turns", "make_schema", "make_quotes", "make_publications", "make_visits"):
                self.execute(connection, name)
            try:
                self.execute(connection, "quotes_of", run=self._run)
            except sqlite3.OperationalError:
                raise Invalid(
                    "the store's file has a table `quotes` of somebody else; give another file to --store",
                    code="TABLE_TAKEN",
                ) from None

    def execute(self, connection: Any, name: str, **values: Any) -> Any:
        """Run one of the statements in an open transaction."""
        return connection.execute(self._sql[name], values)

    def accept(self, connection: Any, **values: Any) -> None:
        """Write one quote in the caller's transaction."""
        self.execute(connection, "accept", run=self._run, **values)

    def quotes(self) -> list[tuple[Any, ...]]:
        """Give id, receipt, worker and generation of every quote of the run."""
        return self._rows("quotes_of")

    def publications(self) -> list[tuple[Any, ...]]:
        """Give quote, generation and worker of every publish that was committed."""
        return self._rows("publications_of")

    def visits(self) -> list[tuple[Any, ...]]:
        """Give quote, generation and place of what a paused worker noted."""
        return self._rows("visits_of")

    def inside(self, application: str) -> bool:
        """Say whether a process has a transaction open, where the server can tell."""
        return bool(self._read("inside", application=application)[0][0])

    def can_write(self) -> bool:
        """Say whether nobody keeps this file's write lock; on PostgreSQL there is no such lock."""
        if self.dialect != "sqlite":
            return True
        with closing(self._connect(_IMPATIENCE)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            connection.rollback()
        return True

    def forget(self) -> None:
        """Remove the run's rows."""
        with self.transaction() as connection:
            for name in ("forget_quotes", "forget_publications", "forget_visits"):
                self.execute(connection, name, run=self._run)

    def _rows(self, name: str) -> list[tuple[Any, ...]]:
        return self._read(name, run=self._run)

    def _read(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        if self._reader is None:
            self._reader = self._connect()
            if self.dialect != "sqlite":
                self._reader.autocommit = True
        return list(self.execute(self._reader, name, **values).fetchall())
