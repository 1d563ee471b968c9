"""
What the handlers of one run did, in memory that all its processes share.

Handlers write down that they ran; whoever measures looks at the memory and disturbs neither the workers nor the
database. The cost is a lock and two clock words for each job, the same for every system. The clock is monotonic and one
for all processes of a machine.
"""

from __future__ import annotations

import mmap
import threading
import time
from array import array
from pathlib import Path

SLOTS = 16
_WORDS = 4
_COUNT, _FIRST, _LAST = range(3)


class Tally:
    """
    One process's side of the shared memory.

    Args:
        path: A file of the run, made by `Board`.
        slot: Which process this is.

    Attributes:
        ran: The numbers of the jobs whose handler was entered here, in order, twice if it was entered twice.
    """

    def __init__(self, path: Path, slot: int) -> None:
        # Eight bytes a job: the memory of a worker is measured too.
        self.ran = array("q")
        self._words = _map(path)
        self._at = slot * _WORDS
        self._lock = threading.Lock()

    def mark(self, number: int) -> None:
        """Say that the handler of this job has started; callable from any thread."""
        now = time.monotonic_ns()
        with self._lock:
            if not self.ran:
                self._words[self._at + _FIRST] = now
            self.ran.append(number)
            self._words[self._at + _LAST] = now
            self._words[self._at + _COUNT] = len(self.ran)


class Board:
    """The measuring side: makes the memory and reads it."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(SLOTS * _WORDS * 8))
        self._words = _map(path)

    def total(self) -> int:
        """Count the handlers entered so far, in all processes."""
        return sum(self._words[_COUNT : SLOTS * _WORDS : _WORDS])

    def first(self) -> int:
        """Give the instant of the first handler of all, in nanoseconds."""
        begun = [one for one in self._words[_FIRST : SLOTS * _WORDS : _WORDS] if one]
        assert begun, "no handler was entered"
        return min(begun)

    def last(self) -> int:
        """Give the instant of the newest handler start of all, in nanoseconds."""
        return max(self._words[_LAST : SLOTS * _WORDS : _WORDS])


def _map(path: Path) -> memoryview[int]:
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
