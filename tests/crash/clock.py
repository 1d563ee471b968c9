"""A clock that several processes read and a test moves: so no test waits for a lease to run out."""

from __future__ import annotations

import mmap
import os
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

START = datetime(2026, 1, 1, 9, 0, tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECONDS = struct.Struct("<q")


class SharedClock:
    """
    Eight bytes in a file, mapped into every process that opens it; a store takes it as its `clock`.

    Args:
        path: The file; made, and set to `START`, where it is missing.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fresh = os.fstat(handle).st_size == 0
            os.ftruncate(handle, _MICROSECONDS.size)
            self._bytes = mmap.mmap(handle, _MICROSECONDS.size)
        finally:
            os.close(handle)
        if fresh:
            self.set(START)

    @classmethod
    def at(cls, path: Path | str, instant: datetime) -> Self:
        clock = cls(path)
        clock.set(instant)
        return clock

    def now(self) -> datetime:
        return _EPOCH + timedelta(microseconds=_MICROSECONDS.unpack_from(self._bytes)[0])

    def set(self, instant: datetime) -> None:
        _MICROSECONDS.pack_into(self._bytes, 0, (instant - _EPOCH) // timedelta(microseconds=1))

    def advance(self, step: timedelta) -> datetime:
        self.set(self.now() + step)
        return self.now()
