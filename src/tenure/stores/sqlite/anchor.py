"""
Notice that the database file was deleted, or replaced by another one, under an open store.

An open file lives on without its name. A worker would go on committing into it, beside another worker on a new file of
the same name, and nothing of that would be found again. So a store stays with the file that it opened first: the path
is looked at about once a second, and at every opening of a further connection.

What is overwritten in place keeps its inode and is not noticed here. An inode that is free may be given to the new
file, but none is free while a connection of ours is open on it.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TypeAlias

from tenure.errors import Unavailable
from tenure.stores.sqlite.connect import Place

# Seconds between two looks: a look costs microseconds, and this is how much can be written into a lost file.
LOOK_EVERY = 1.0

REPLACED = "DATABASE_REPLACED"

_File: TypeAlias = tuple[int, int]


class Anchor:
    """
    The file that a store belongs to.

    Attributes:
        every: Seconds between two looks of `check`.
        looks: How often the path was looked at.
    """

    def __init__(self, place: Place) -> None:
        self.every = LOOK_EVERY
        self.looks = 0
        self._path = place.path
        self._file: _File | None = None
        self._looked = 0.0
        self._lost = False
        self.renew_lock()

    def renew_lock(self) -> None:
        """Replace the lock, which a fork may have copied while it was taken."""
        self._lock = threading.Lock()

    def look(self) -> _File | None:
        """Say which file the path leads to now; None where there is none."""
        if self._path is None:
            return None
        self.looks += 1
        try:
            found = os.stat(self._path)  # noqa: PTH116 - of a text, without making a path of it each time
        except OSError:
            # Whatever hides the file from us hides it from the next worker too.
            return None
        return (found.st_dev, found.st_ino)

    def settle(self, before: _File | None) -> None:
        """
        Keep to the file of a connection that was just opened.

        Args:
            before: What `look` said before the opening: the connection's file is known only if it did not change.
        Raises:
            Unavailable: DATABASE_REPLACED.
        """
        if self._path is None:
            return
        with self._lock:
            found = self.look()
            if self._file is None and found is not None and before in {None, found}:
                self._file = found
            if found is None or found != self._file:
                raise self._replaced()

    def check(self, *, at_once: bool = False) -> None:
        """
        Refuse to go on where the path leads elsewhere by now; looks at most once a second while all is well.

        Args:
            at_once: Look now, however long ago the last look was.
        Raises:
            Unavailable: DATABASE_REPLACED, until the file is back in its place.
        """
        if self._file is None:
            return
        now = time.monotonic()
        if not (at_once or self._lost) and now - self._looked < self.every:
            return
        with self._lock:
            self._looked = now
            self._lost = self.look() != self._file
            if self._lost:
                raise self._replaced()

    @staticmethod
    def _replaced() -> Unavailable:
        return Unavailable(
            "the file of this SQLite database was deleted or replaced by another one while it was open; nothing more "
            "is read from or written to the lost one. Stop this process, see to it that the right file is in its "
            "place, and start again",
            code=REPLACED,
        )
