"""A clock that a test moves."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

from tenure.errors import Invalid


class ManualClock:
    """
    Stands still until it is advanced; give it to a store, a simulator or anything that takes a `clock`.

    May be read and advanced from several threads; every advance counts, none is lost. It never goes back: a database's
    clock that does is another test, and not one for this clock.

    Args:
        start: An aware instant; kept in UTC. A naive one is Invalid: it means another instant on every machine.
    """

    def __init__(self, start: datetime) -> None:
        if not isinstance(start, datetime):
            raise Invalid(f"a clock starts at a datetime, not at a {type(start).__name__}")
        if start.tzinfo is None or start.utcoffset() is None:
            raise Invalid("a clock starts at an aware datetime, such as datetime(2030, 1, 1, tzinfo=UTC)")
        self._now = start.astimezone(UTC)
        self._lock = threading.Lock()

    def now(self) -> datetime:
        """Give the current instant, aware, UTC."""
        with self._lock:
            return self._now

    def advance(self, step: timedelta) -> datetime:
        """
        Move forward and give the instant after the move.

        Raises:
            Invalid: Not a timedelta, a negative one, or past the last instant a datetime can hold.
        """
        if not isinstance(step, timedelta):
            raise Invalid(f"a clock is advanced by a timedelta, not by a {type(step).__name__}")
        if step < timedelta(0):
            raise Invalid("a clock is not advanced by less than zero")
        with self._lock:
            try:
                self._now += step
            except OverflowError:
                raise Invalid("a clock cannot pass the year 9999") from None
            return self._now

    def __repr__(self) -> str:
        return f"<ManualClock {self.now().isoformat()}>"
