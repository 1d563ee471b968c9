"""
A plain file that this process alone may write: opened, checked, locked, and never shared with a forked child.

After a fork both processes have the same open file and therefore the same lock. The child closes its copy at once, so
the lock lives exactly as long as the process that took it, and any use in the child raises. A gate is held while a file
is opened or closed and while the process forks: a fork never sees a descriptor half registered or already reused.
"""

from __future__ import annotations

import errno
import os
import threading
import warnings
import weakref
from pathlib import Path

from tenure.errors import Invalid, NotFound, Unavailable
from tenure.journal.storage import Facts, Storage, typed

COPY_BYTES = 1024 * 1024
_OPEN_TRIES = 8

_gate = threading.RLock()
_held: weakref.WeakSet[HeldFile] = weakref.WeakSet()


class HeldFile:
    """
    A locked file.

    Attributes:
        path: Where it was opened.
    """

    def __init__(self, storage: Storage, path: Path, handle: int) -> None:
        self.path = path
        self._storage = storage
        self._handle: int | None = handle
        self._process = os.getpid()

    @classmethod
    def take(cls, storage: Storage, path: Path, *, create: bool) -> HeldFile:
        """
        Open and lock a file for writing, never waiting for the lock.

        Raises:
            Unavailable: JOURNAL_LOCKED, another process (or another part of this one) holds it.
            Invalid: JOURNAL_NOT_PLAIN, a symbolic link, a second hard link, or no regular file.
            NotFound: No such file, and `create` is False.
        """
        for _ in range(_OPEN_TRIES):
            with typed(path, "cannot open"), _gate:
                file = cls(storage, path, storage.open(path, "create" if create else "write"))
                _held.add(file)
            try:
                links = file._lock()
            except BaseException:
                file.close()
                raise
            if links:
                return file
            # The one who held it removed it between our open and our lock. What is there now is another file.
            file.close()
        raise NotFound(f"{path} was removed each time it was opened; try again", code="JOURNAL_NOT_FOUND")

    def _lock(self) -> int:
        with typed(self.path, "cannot lock"):
            if not self._storage.facts(self.handle).regular:
                raise Invalid(
                    f"{self.path} is not a regular file; a journal is a plain file under its own name",
                    code="JOURNAL_NOT_PLAIN",
                )
            holder = self._storage.lock(self.handle)
            facts = self._storage.facts(self.handle)
        if holder is not None:
            by = f"process {holder}" if holder else "another process, which this system does not name"
            raise Unavailable(
                f"{self.path} is held by {by}; a journal has one writer, wait for it to end or use another file",
                code="JOURNAL_LOCKED",
            )
        if facts.links > 1:
            raise Invalid(
                f"{self.path} has {facts.links} hard links; a journal has one name, remove the others or copy the file",
                code="JOURNAL_NOT_PLAIN",
            )
        return facts.links

    def check_process(self) -> None:
        """Raise in a forked child."""
        if os.getpid() != self._process:
            raise Invalid(
                f"{self.path} was opened by process {self._process} and is not shared by a fork; open a journal of "
                f"its own in process {os.getpid()}",
                code="JOURNAL_FORKED",
            )

    @property
    def handle(self) -> int:
        """The storage's handle."""
        self.check_process()
        if self._handle is None:
            raise Invalid(f"{self.path} is closed; open it again", code="JOURNAL_CLOSED")
        return self._handle

    def facts(self) -> Facts:
        """Size, links and type as they are now."""
        with typed(self.path, "cannot examine"):
            return self._storage.facts(self.handle)

    def read(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes from `offset`."""
        with typed(self.path, "cannot read"):
            return self._storage.read(self.handle, offset, size)

    def write(self, offset: int, data: bytes) -> None:
        """Write all of `data`."""
        while data:
            taken = self._storage.write(self.handle, offset, data)
            if taken <= 0:
                raise OSError(f"the storage took {taken} of {len(data)} bytes")
            offset += taken
            data = data[taken:]

    def rewrite(self, size: int) -> None:
        """
        Write the first `size` bytes over themselves, so that the next sync is about all of them.

        A system that failed to write a page may keep it in memory, readable and marked clean: it is then lost at the
        next power cut although a later sync of the file succeeds. A reader cannot tell such a page from a durable one.
        """
        offset = 0
        while part := self._storage.read(self.handle, offset, min(COPY_BYTES, size - offset)):
            self.write(offset, part)
            offset += len(part)

    def truncate(self, size: int) -> None:
        """Cut the file."""
        self._storage.truncate(self.handle, size)

    def sync(self) -> None:
        """Make the content durable."""
        self._storage.sync(self.handle)

    def sync_name(self) -> None:
        """Make the file's name durable."""
        self._storage.sync_directory(self.path.parent)

    def check_named(self) -> None:
        """Raise FileNotFoundError if somebody removed the file: what is written to it goes with the last handle."""
        if not self._storage.facts(self.handle).links:
            raise FileNotFoundError(errno.ENOENT, "the file was removed")

    def remove(self) -> None:
        """Remove the file's name; whoever has it open sees that it has none."""
        with typed(self.path, "cannot remove"):
            self.check_process()
            self._storage.remove(self.path)

    def close(self) -> None:
        """Let go of the lock and the file; again is fine, and so is a forked child."""
        if os.getpid() != self._process:
            return
        with typed(self.path, "cannot close"), _gate:
            handle, self._handle = self._handle, None
            if handle is not None:
                self._storage.close(handle)

    def let_go_in_child(self) -> None:
        """Close the child's copy of the open file; the parent's stays open and locked."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._storage.close(handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None and os.getpid() == self._process:
            try:
                warnings.warn(f"{self.path} was not closed", ResourceWarning, source=self, stacklevel=2)
            finally:
                self.close()


def _in_child() -> None:
    try:
        for file in list(_held):
            file.let_go_in_child()
    finally:
        _gate.release()


os.register_at_fork(before=_gate.acquire, after_in_parent=_gate.release, after_in_child=_in_child)
