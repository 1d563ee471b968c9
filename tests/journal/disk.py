"""
A disk in memory that can lose power, for the journal's storage interface.

Every file has two states: what programs read now, and what would be left without power. Between them lies a list of
changes. A sync applies them; a power cut keeps any subset of them and tears one; names behave the same, each on its
own. A sync that fails leaves what a real system may leave: readable content, marked clean, that no later sync writes.
"""

from __future__ import annotations

import errno
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tenure.journal import Facts
from tenure.journal.storage import Mode


@dataclass(frozen=True)
class Change:
    """Bytes written at an offset, or the file cut to that offset where there are none."""

    offset: int
    data: bytes | None


def apply(content: bytearray, change: Change) -> None:
    if change.data is None:
        del content[change.offset :]
        return
    if len(content) < change.offset:
        content.extend(bytes(change.offset - len(content)))
    content[change.offset : change.offset + len(change.data)] = change.data


@dataclass(eq=False)
class Inode:
    now: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)
    links: int = 1
    locked_by: int | None = None


class Disk:
    """
    The storage interface over memory.

    Attributes:
        calls: How often each method was called.
        before: Called with a method's name and the how-manieth call it is, before the method acts; may raise.
        room: How many bytes may still be written, None for no limit.
        losses: What the last power cut did to what was not synced.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.before: Callable[[str, int], None] = lambda name, nth: None
        self.room: int | None = None
        self.losses: Counter[str] = Counter()
        self._names: dict[Path, Inode] = {}
        self._durable_names: dict[Path, Inode] = {}
        self._handles: dict[int, Inode] = {}
        self._next_handle = 1000
        self._lock = threading.RLock()

    # The storage interface.

    def open(self, path: Path, mode: Mode) -> int:
        with self._called("open"):
            inode = self._names.get(path)
            if inode is None:
                if mode != "create":
                    raise FileNotFoundError(errno.ENOENT, "no such file")
                inode = self._names[path] = Inode()
            self._next_handle += 1
            self._handles[self._next_handle] = inode
            return self._next_handle

    def close(self, handle: int) -> None:
        with self._called("close"):
            inode = self._handles.pop(handle)
            if inode.locked_by == handle:
                inode.locked_by = None

    def lock(self, handle: int) -> int | None:
        with self._called("lock"):
            inode = self._handles[handle]
            if inode.locked_by is not None:
                return 4711
            inode.locked_by = handle
            return None

    def facts(self, handle: int) -> Facts:
        with self._called("facts"):
            inode = self._handles[handle]
            return Facts(len(inode.now), inode.links, regular=True)

    def read(self, handle: int, offset: int, size: int) -> bytes:
        with self._called("read"):
            return bytes(self._handles[handle].now[offset : offset + size])

    def write(self, handle: int, offset: int, data: bytes) -> int:
        with self._called("write"):
            inode = self._handles[handle]
            if self.room is not None:
                if not self.room:
                    raise OSError(errno.ENOSPC, "no space")
                data = data[: self.room]
                self.room -= len(data)
            self._change(inode, Change(offset, data))
            return len(data)

    def truncate(self, handle: int, size: int) -> None:
        with self._called("truncate"):
            self._change(self._handles[handle], Change(size, None))

    def sync(self, handle: int) -> None:
        inode = self._handles[handle]
        try:
            with self._called("sync"):
                for change in inode.pending:
                    apply(inode.durable, change)
                inode.pending.clear()
        except OSError:
            # The bytes are marked clean although they never reached the disk; a size is kept in the file system's log.
            inode.pending = [change for change in inode.pending if change.data is None]
            raise

    def sync_directory(self, path: Path) -> None:
        with self._called("sync_directory"):
            for name in {*self._names, *self._durable_names}:
                if name.parent == path:
                    self._set(self._durable_names, name, self._names.get(name))

    def make_directory(self, path: Path) -> None:
        with self._called("make_directory"):
            pass

    def names(self, path: Path) -> list[str]:
        with self._called("names"):
            return [name.name for name in self._names if name.parent == path]

    def remove(self, path: Path) -> None:
        with self._called("remove"):
            self._names.pop(path).links -= 1

    # What a test does to the machine.

    def content(self, path: Path) -> bytes | None:
        """What a program reads now; None without such a file."""
        inode = self._names.get(path)
        return None if inode is None else bytes(inode.now)

    def durable_content(self, path: Path) -> bytes | None:
        """What a power cut at this moment is sure to leave."""
        inode = self._durable_names.get(path)
        return None if inode is None else bytes(inode.durable)

    def put(self, path: Path, content: bytes) -> None:
        """Place a file, durable at once."""
        self._names[path] = self._durable_names[path] = Inode(bytearray(content), bytearray(content))

    def paths(self) -> list[Path]:
        return sorted(self._names)

    def end_process(self) -> None:
        """What a killed process leaves: its locks and handles are gone, its writes stay."""
        for inode in self._handles.values():
            inode.locked_by = None
        self._handles.clear()

    def power_cut(self, choice: random.Random) -> None:
        """Keep what is durable and, by chance, any part of what is not."""
        self.end_process()
        self.losses = Counter()
        survivors: dict[Path, Inode] = {}
        for name in sorted({*self._names, *self._durable_names}):
            before, after = self._durable_names.get(name), self._names.get(name)
            kept = after if choice.random() < 0.5 else before
            if before is not after and kept is before:
                self.losses["names"] += 1
            if kept is not None:
                survivors[name] = kept
        for inode in {id(inode): inode for inode in (*self._names.values(), *self._durable_names.values())}.values():
            self._settle(inode, choice)
        self._names = survivors
        self._durable_names = dict(survivors)

    def _settle(self, inode: Inode, choice: random.Random) -> None:
        share = choice.choice((0.0, 0.5, 0.9))
        torn = choice.randrange(len(inode.pending) * 2) if inode.pending else -1
        for index, change in enumerate(inode.pending):
            if index == torn and change.data is not None and len(change.data) > 1:
                # A part of it, from either end: a disk writes sectors in the order it likes.
                cut = choice.randrange(1, len(change.data))
                part = Change(change.offset, change.data[:cut])
                if choice.random() < 0.3:
                    part = Change(change.offset + cut, change.data[cut:])
                apply(inode.durable, part)
                self.losses["torn"] += 1
            elif choice.random() < share:
                apply(inode.durable, change)
            else:
                self.losses["changes"] += 1
        inode.pending.clear()
        inode.now = bytearray(inode.durable)

    def _change(self, inode: Inode, change: Change) -> None:
        apply(inode.now, change)
        inode.pending.append(change)

    def _called(self, name: str) -> threading.RLock:
        with self._lock:
            self.calls[name] += 1
            nth = self.calls[name]
        self.before(name, nth)
        return self._lock

    @staticmethod
    def _set(names: dict[Path, Inode], name: Path, inode: Inode | None) -> None:
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


def fail_at(name: str, nth: int, error: int) -> Callable[[str, int], None]:
    """Make one call of one method fail."""

    def before(called: str, count: int) -> None:
        if (called, count) == (name, nth):
            raise OSError(error, "injected")

    return before
