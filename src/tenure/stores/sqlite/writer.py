"""
The writer connection, one transaction at a time, by whoever holds the line.

Between processes SQLite's write lock is taken by whoever asks at the right moment. Tries are short and jittered, and a
process that has used the lock for a while, where others want it too, leaves a gap that is longer than their pauses.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tenure.errors import Invalid, Unavailable
from tenure.stores.migrate import Migration, check_version
from tenure.stores.runner import pauses
from tenure.stores.sqlite.anchor import REPLACED, Anchor
from tenure.stores.sqlite.connect import Place, connect
from tenure.stores.sqlite.failures import busy, code_of, is_busy, raise_typed
from tenure.stores.sqlite.line import PATIENCE

# Seconds. A gap must be longer than the longest pause between two tries of another process.
PAUSE_FIRST = 0.0005
PAUSE_LONGEST = 0.003
_GAP = 0.004
_SLICE = 0.020
# A lone process leaves a gap this often all the same, or it would never learn that others wait.
_SLICE_ALONE = 0.5
_CONTENDED = 1.0


class Writer:
    """
    The connection that writes, opened when first needed.

    Attributes:
        connection: The connection, or None where it is not open.
        fits: True once the schema was looked at since the connection was opened.
    """

    def __init__(self, place: Place, known: Sequence[Migration], anchor: Anchor) -> None:
        self._place = place
        self._anchor = anchor
        self._known = known
        self.connection: sqlite3.Connection | None = None
        self.fits = False
        self._contended_until = 0.0
        self._slice_began = 0.0
        self._let_go = 0.0

    def forget(self) -> None:
        """Leave the connection to somebody else, who closes it."""
        self.connection = None
        self.fits = False

    def close(self) -> None:
        """Close the connection for good."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def open(self, *, reader: bool = False, create: bool = False) -> sqlite3.Connection:
        """Open a connection; a busy database raises the driver's error, everything else a typed one."""
        try:
            return self._open(reader=reader, create=create)
        except Unavailable as moved:
            if moved.code != REPLACED:
                raise
        # Another file at the very first opening is no loss yet: a layered file system may copy a file when it is first
        # opened to be written to. For a store that has its file already the second try fails as the first.
        return self._open(reader=reader, create=create)

    def _open(self, *, reader: bool, create: bool) -> sqlite3.Connection:
        self._anchor.check(at_once=True)
        before = self._anchor.look()
        try:
            connection = connect(self._place, reader=reader, create=create)
        except sqlite3.Error as error:
            path = None if self._place.path is None else Path(self._place.path)
            if code_of(error) == sqlite3.SQLITE_CANTOPEN and path is not None:
                raise_unopened(path, error)
            if is_busy(error):
                raise
            raise_typed(error)
        try:
            self._anchor.settle(before)
        except BaseException:
            connection.close()
            raise
        return connection

    def discard(self) -> None:
        """Close the writer connection; the next user opens another one and looks at the schema again."""
        if self.connection is not None and not self._place.in_memory:
            connection, self.connection = self.connection, None
            self.fits = False
            connection.close()

    def look(self) -> sqlite3.Connection:
        """Open the writer connection where it is not open yet, and give it; waits for others as `begin` does."""
        for pause in pauses(PATIENCE, first=PAUSE_FIRST, longest=PAUSE_LONGEST):
            try:
                if self.connection is None:
                    self.connection = self.open()
            except sqlite3.Error as error:
                if not is_busy(error):
                    raise_typed(error)
                time.sleep(pause)
            else:
                return self.connection
        raise busy()

    def check_schema(self, connection: sqlite3.Connection) -> None:
        """Refuse a schema that is missing, older or newer; looked at once for each opening."""
        if not self.fits:
            check_version(applied_version(connection), self._known)
            self.fits = True

    def begin(self, until: float, *, create: bool = False) -> sqlite3.Connection:
        """
        Open a write transaction on the writer connection.

        Args:
            until: When to give up, monotonic.
            create: Make the file where there is none, and accept any schema.
        """
        self._leave_gap()
        self._anchor.check()
        waited = False
        for pause in pauses(max(until - time.monotonic(), 0.001), first=PAUSE_FIRST, longest=PAUSE_LONGEST):
            try:
                if self.connection is None:
                    self.connection = self.open(create=create)
                self.connection.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                if not is_busy(error):
                    raise_typed(error)
                waited = True
                self._contended_until = time.monotonic() + _CONTENDED
                time.sleep(pause)
            else:
                if waited:
                    self._slice_began = time.monotonic()
                if not create:
                    self._check_or_roll_back(self.connection)
                return self.connection
        raise busy()

    def _check_or_roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            self.check_schema(connection)
        except BaseException:
            self.roll_back()
            raise

    def _leave_gap(self) -> None:
        if self._place.in_memory:
            return
        now = time.monotonic()
        if now - self._let_go > _GAP:  # there was a gap of its own accord
            self._slice_began = now
            return
        allowed = _SLICE if now < self._contended_until else _SLICE_ALONE
        if now - self._slice_began > allowed:
            time.sleep(_GAP * random.uniform(1.0, 1.5))  # noqa: S311 - spreads load, guards nothing
            self._slice_began = time.monotonic()

    def commit(self, connection: sqlite3.Connection) -> None:
        """Commit; the driver's error passes through."""
        connection.execute("COMMIT")
        self._let_go = time.monotonic()

    def roll_back(self) -> None:
        """End whatever transaction is open on the writer connection; one that cannot be ended is thrown away."""
        connection = self.connection
        if connection is None:
            return
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.discard()
        self._let_go = time.monotonic()


def raise_unopened(path: Path, error: sqlite3.Error) -> NoReturn:
    """Say why a file could not be opened."""
    if not path.parent.is_dir():
        raise Invalid(
            "the folder of the SQLite database does not exist; make it, or correct the store URL",
            code="DATABASE_MISSING",
        ) from error
    if not path.exists():
        raise Invalid(
            "there is no database file at the store URL yet; run `tenure migrate --store URL`",
            code="SCHEMA_MISSING",
        ) from error
    raise_typed(error)


def applied_version(connection: sqlite3.Connection) -> int | None:
    """Give the highest migration applied, None where there was never one."""
    cursor = sqlite3.Cursor(connection)
    try:
        (version,) = cursor.execute("SELECT max(version) FROM tenure_migration").fetchone()
    except sqlite3.Error as error:
        if "no such table" in str(error):
            return None
        raise_typed(error)
    return None if version is None else int(version)
