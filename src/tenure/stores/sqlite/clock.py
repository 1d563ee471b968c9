"""
The time as a SQLite store tells it: the host's, but never backwards.

An instant handed out is never less than the last one handed out here nor the last one stored in the file. While the
host is behind that floor the clock runs at half speed until the host has caught up, because a clock that stood still
would keep every lease alive.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from tenure.errors import Invalid
from tenure.stores.contract import Clock

log = logging.getLogger("tenure.store")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR_US = 3_600_000_000
_LAST = "SELECT value FROM tenure_meta WHERE key = 'last_instant'"
_KEEP = (
    "INSERT INTO tenure_meta (key, value) VALUES ('last_instant', ?) ON CONFLICT (key) "
    "DO UPDATE SET value = excluded.value WHERE CAST(value AS INTEGER) < CAST(excluded.value AS INTEGER)"
)


class HostClock:
    """The host's clock with a floor, in UTC microseconds."""

    keeps_floor = True

    def __init__(
        self,
        wall: Callable[[], int] = time.time_ns,
        steady: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._last = 0
        self._last_steady = steady()
        self._reported = False
        self.renew_lock()

    def renew_lock(self) -> None:
        """Replace the lock, which a fork may have copied while it was taken."""
        self._lock = threading.Lock()

    def now(self) -> int:
        """Give the current instant."""
        with self._lock:
            host = self._wall() // 1000
            steady = self._steady()
            behind = self._last - host
            if behind <= 0:
                self._last = host
                self._reported = False
            else:
                self._last += max(0, steady - self._last_steady) // 2000
                if behind > _HOUR_US and not self._reported:
                    self._reported = True
                    log.warning(
                        "the host's clock is %d seconds behind the last instant of this store; time runs at half speed "
                        "until the host has caught up",
                        behind // 1_000_000,
                    )
            self._last_steady = steady
            return self._last

    def raise_floor(self, instant: int) -> None:
        """Take note of an instant that another process handed out."""
        with self._lock:
            if instant > self._last:
                self._last = instant
                self._last_steady = self._steady()


class ReplacedClock:
    """A clock of the caller's, for tests: taken as it is, even backwards."""

    keeps_floor = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def renew_lock(self) -> None:
        """Nothing to renew."""

    def now(self) -> int:
        """Give the current instant."""
        now = self._clock.now()
        if now.tzinfo is None:
            raise Invalid(
                "the clock given to the store returns a naive datetime; give an aware one", code="BAD_INSTANT"
            )
        return (now - _EPOCH) // timedelta(microseconds=1)

    def raise_floor(self, instant: int) -> None:
        """A replaced clock has no floor."""


class Instants:
    """The instants of one transaction: looks at the file's floor before the first one, keeps the last at the end."""

    __slots__ = ("_changes", "_clock", "_cursor", "_last")

    def __init__(self, clock: HostClock | ReplacedClock, connection: sqlite3.Connection) -> None:
        self._clock = clock
        # A cursor of its own: an instant may be asked for while the procedure's cursor is busy with many rows.
        self._cursor = sqlite3.Cursor(connection)
        self._last: int | None = None
        self._changes = connection.total_changes

    def now(self) -> int:
        """Give the current instant, read anew for every statement that asks."""
        if self._last is None and self._clock.keeps_floor:
            row = self._cursor.execute(_LAST).fetchone()
            if row is not None:
                self._clock.raise_floor(int(row[0]))
        self._last = self._clock.now()
        return self._last

    def keep(self) -> None:
        """Store the last instant with the transaction, unless it wrote nothing: an idle commit must cost no fsync."""
        wrote = self._cursor.connection.total_changes != self._changes
        if wrote and self._last is not None and self._clock.keeps_floor:
            self._cursor.execute(_KEEP, (str(self._last),))
