"""A log for an authority ledger in a SQLite database of its own; see `tenure.journal.ledger.Log`."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from typing import Any

from tenure.stores.sqlite.connect import connect, read_url
from tenure.stores.sqlite.failures import raise_typed

_TABLE = """\
CREATE TABLE IF NOT EXISTS tenure_ledger_entry (sequence INTEGER NOT NULL PRIMARY KEY, body TEXT NOT NULL)"""
_LAST = "SELECT COALESCE(max(sequence), 0) FROM tenure_ledger_entry"
_LOAD = "SELECT sequence, body FROM tenure_ledger_entry WHERE sequence > ? ORDER BY sequence"
_INSERT = "INSERT INTO tenure_ledger_entry (sequence, body) VALUES (?, ?)"
_EMPTY = "DELETE FROM tenure_ledger_entry"
_COUNT = "SELECT count(*) FROM tenure_ledger_entry"
# Milliseconds: another writer's entry takes one sync.
_WAIT = "PRAGMA busy_timeout=5000"


class SqliteLog:
    """
    A log in a table.

    Attributes:
        where: The database's URL.
    """

    def __init__(self, url: str, entries_max: int) -> None:
        self._place = read_url(url)
        self.where = self._place.url
        self._entries_max = entries_max
        self._connection: sqlite3.Connection | None = None
        self._process = 0

    def load(self, after: Any) -> tuple[Any, list[bytes]]:
        """See `Log.load`."""
        if self._place.path is not None and not os.path.exists(self._place.path):  # noqa: PTH110 - a text
            return None, []
        try:
            connection = self._open()
            (last,) = connection.execute(_LAST).fetchone()
            begin = after if after is not None and after <= last else 0
            rows = connection.execute(_LOAD, (begin,)).fetchall()
        except sqlite3.Error as error:
            self._forget()
            raise_typed(error)
        return (rows[-1][0] if rows else begin or None), [body.encode() for _, body in rows]

    def append(self, bodies: Sequence[bytes], after: Any) -> Any:
        """See `Log.append`."""
        return self._write(bodies, after, empty=False)

    def replace(self, body: bytes, after: Any) -> Any:
        """See `Log.replace`."""
        return self._write([body], after, empty=True)

    def _write(self, bodies: Sequence[bytes], after: Any, *, empty: bool) -> Any:
        try:
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            (last,) = connection.execute(_LAST).fetchone()
            if last != (after or 0):
                connection.execute("ROLLBACK")
                return None
            if empty:
                connection.execute(_EMPTY)
            connection.executemany(_INSERT, [(last + nth, body.decode()) for nth, body in enumerate(bodies, 1)])
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._forget()
            raise_typed(error)
        return last + len(bodies)

    def full(self, position: Any, size: int = 0) -> bool:  # noqa: ARG002 - entries are counted
        """See `Log.full`."""
        if position is None or position % self._entries_max:
            return False
        try:
            (count,) = self._open().execute(_COUNT).fetchone()
        except sqlite3.Error as error:
            self._forget()
            raise_typed(error)
        return bool(count >= self._entries_max)

    def home(self) -> str | None:
        """A file has none."""
        return None

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        self._forget()

    def _open(self) -> sqlite3.Connection:
        if self._process != os.getpid():
            # A connection never crosses a fork; the parent's is left as it is.
            self._connection, self._process = None, os.getpid()
        if self._connection is None:
            connection = connect(self._place, create=True)
            connection.execute(_WAIT)
            connection.execute(_TABLE)
            self._connection = connection
        return self._connection

    def _forget(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._process == os.getpid():
            connection.close()


def open_log(url: str, entries_max: int) -> SqliteLog:
    """Make the log; nothing is opened before its first use."""
    return SqliteLog(url, entries_max)
