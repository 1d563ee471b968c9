"""
All that the journal asks of a machine: twelve calls, so that a test can stand in for a disk that loses power.

The lock is `flock`, taken from the kernel and gone with the process, so no file with a process id has to be believed.
Not the POSIX record lock that fasteners and `lockf` use: a process loses that one when it closes *any* descriptor of
the file, and reading one's own journal would let a second writer in. `flock` belongs to the open file, so a forked
child would share it; `held.py` closes the child's copy.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from tenure.errors import Invalid, NotFound, TenureError, Unavailable

Mode = Literal["read", "write", "create"]

_LOCK_TABLE = Path("/proc/locks")
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_BASE_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY  # non-blocking: a named pipe must be refused, not waited for
_FLAGS: dict[Mode, int] = {
    "read": os.O_RDONLY,
    "write": os.O_RDWR | os.O_NOFOLLOW,
    "create": os.O_RDWR | os.O_NOFOLLOW | os.O_CREAT,
}


@dataclass(frozen=True, slots=True)
class Facts:
    """
    What is known of an open file.

    Attributes:
        links: How many names it has; 0 after it was removed.
        regular: It is neither a directory nor a device, pipe or socket.
    """

    size: int
    links: int
    regular: bool


class Storage(Protocol):
    """A machine's files. Every method may raise OSError; nothing here is durable before the matching sync returns."""

    def open(self, path: Path, mode: Mode) -> int:
        """Open and give a handle; `create` makes a missing file, and neither writing mode follows a symbolic link."""
        ...

    def close(self, handle: int) -> None:
        """Give the handle back, and with it the lock."""
        ...

    def lock(self, handle: int) -> int | None:
        """Take the exclusive lock without waiting: None when taken, else the holder's process id, 0 if unknown."""
        ...

    def facts(self, handle: int) -> Facts:
        """Size, links and type as they are now."""
        ...

    def read(self, handle: int, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""
        ...

    def write(self, handle: int, offset: int, data: bytes) -> int:
        """Write at `offset` and say how many bytes were taken, which may be fewer than given."""
        ...

    def truncate(self, handle: int, size: int) -> None:
        """Cut the file to `size` bytes."""
        ...

    def sync(self, handle: int) -> None:
        """Make content and size durable. After an error nothing is known of what was written since the last success."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        ...

    def make_directory(self, path: Path) -> None:
        """Make a directory, with missing parents, durably; an existing one is fine."""
        ...

    def names(self, path: Path) -> list[str]:
        """The names in a directory."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file's name."""
        ...


class KernelStorage:
    """The real machine."""

    def open(self, path: Path, mode: Mode) -> int:
        """Open with the owner as only reader: receipts may name people."""
        return os.open(path, _FLAGS[mode] | _BASE_FLAGS, 0o600)

    def close(self, handle: int) -> None:
        """Close the descriptor."""
        os.close(handle)

    def lock(self, handle: int) -> int | None:
        """Take `flock`; the holder is named from the kernel's own table."""
        for _ in range(2):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _holder(handle)
                if holder:
                    return holder
                # Not in the table: let go a moment ago, another machine's, or a system without one. Ask once more.
            else:
                return None
        return 0

    def facts(self, handle: int) -> Facts:
        """Ask `fstat`."""
        found = os.fstat(handle)
        return Facts(found.st_size, found.st_nlink, stat.S_ISREG(found.st_mode))

    def read(self, handle: int, offset: int, size: int) -> bytes:
        """Read in as many calls as it takes; one call gives at most 2 GiB and may give less."""
        parts: list[bytes] = []
        while size > 0 and (part := os.pread(handle, size, offset)):
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return b"".join(parts)

    def write(self, handle: int, offset: int, data: bytes) -> int:
        """Call `pwrite` once."""
        return os.pwrite(handle, data, offset)

    def truncate(self, handle: int, size: int) -> None:
        """Call `ftruncate`."""
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        """Call `fsync`, or where `fsync` stops at the drive's cache, the call that does not."""
        if _FULL_SYNC is None:
            os.fsync(handle)
        else:
            fcntl.fcntl(handle, _FULL_SYNC)

    def sync_directory(self, path: Path) -> None:
        """Open the directory, sync it, close it."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sync(handle)
        finally:
            os.close(handle)

    def make_directory(self, path: Path) -> None:
        """Make what is missing from the top, and sync each parent; the last parent always, for one who died before."""
        missing = [path]
        while not missing[-1].parent.exists():
            missing.append(missing[-1].parent)
        for directory in reversed(missing):
            try:
                directory.mkdir(mode=0o700)
            except FileExistsError:
                if not directory.is_dir():
                    raise
            self.sync_directory(directory.parent)

    def names(self, path: Path) -> list[str]:
        """List the directory."""
        return [entry.name for entry in path.iterdir()]

    def remove(self, path: Path) -> None:
        """Unlink."""
        path.unlink()


KERNEL: Storage = KernelStorage()


@contextlib.contextmanager
def typed(path: Path, doing: str) -> Iterator[None]:
    """Turn the machine's errors inside the block into the package's, with the path and what was being done."""
    try:
        yield
    except OSError as error:
        raise explain(error, path, doing) from error


def explain(error: OSError, path: Path, doing: str) -> TenureError:
    """Give the error of the package that tells the caller what to do next."""
    text = f"{doing} {path}: {os.strerror(error.errno) if error.errno else error}"
    match error.errno:
        case errno.ELOOP | errno.EISDIR | errno.ENXIO:
            return Invalid(f"{text}; a journal is a plain file under its own name", code="JOURNAL_NOT_PLAIN")
        case errno.ENOTDIR | errno.EEXIST:
            return Invalid(f"{text}; a file is where a directory is wanted", code="JOURNAL_NOT_A_DIRECTORY")
        case errno.ENOENT:
            return NotFound(f"{text}; check the path", code="JOURNAL_NOT_FOUND")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return Invalid(f"{text}; give this user read and write access", code="JOURNAL_ACCESS")
        case _:
            return lost(error, path, doing)


def lost(error: OSError, path: Path, doing: str) -> Unavailable:
    """Give the error for a read or write that failed although the file was open."""
    text = f"{doing} {path}: {os.strerror(error.errno) if error.errno else error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return Unavailable(f"{text}; make room, then run it again", code="JOURNAL_FULL")
    return Unavailable(f"{text}; check the disk and the limits of this process", code="JOURNAL_IO")


def _holder(handle: int) -> int:
    """Find the process that holds the lock in /proc/locks; 0 where it does not say."""
    try:
        table = _LOCK_TABLE.read_text(encoding="ascii")
    except FileNotFoundError:
        return 0
    found = os.fstat(handle)
    return holder_in(table, os.major(found.st_dev), os.minor(found.st_dev), found.st_ino)


def holder_in(table: str, major: int, minor: int, inode: int) -> int:
    """Find the process with the exclusive `flock` on a file in the kernel's table of locks; 0 if there is none."""
    # "1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF": process, then major:minor:inode, the first two in hex.
    same_inode: set[int] = set()
    for line in table.splitlines():
        match line.split():
            case [_, "FLOCK", _, "WRITE", process, place, *_]:
                device, _, number = place.rpartition(":")
                if number == str(inode):
                    if device == f"{major:02x}:{minor:02x}":
                        return int(process)
                    same_inode.add(int(process))
    # Some file systems show another device number in the table than in fstat; one single match by inode will do.
    return same_inode.pop() if len(same_inode) == 1 else 0
