"""
The authority ledger: what is remembered about a database outside of it, in a file or a second database.

A ledger is a log of entries, each a JSON object; the first one, and the first one after a compaction, says all of it.
`LogLedger` replays them into a `Book`. A log is written by whoever knows all of it: an append names the position up to
which its author has read, and is refused when somebody else was faster, who is then read first.

The file uses the journal's frames. Its kernel lock is held only during an append, so that many processes share it, and
a compaction puts a new file in its place. A damaged tail stops every reader: what stood there may have been a rotation,
and a ledger that is believed in part protects nobody.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tenure.errors import Invalid, NotFound, Refused, TenureError, Unavailable
from tenure.journal import frame
from tenure.journal.held import HeldFile
from tenure.journal.storage import KERNEL, Facts, Storage, lost, typed
from tenure.rules.ledger import Book, Entry, applied

# A tick is about 70 bytes: a compaction every few minutes, and never more than this to read for a newcomer.
COMPACT_BYTES = 24 * 1024
COMPACT_ENTRIES = 300
# Seconds to wait for another process's append, which takes one sync.
_PATIENCE = 5.0
_PAUSE = 0.005
_TRIES = 100
# Bytes by which a reader knows the place again where it stopped: they hold an instant or a random id.
_ENDING = 48


class Log(Protocol):
    """
    An append-only log that several processes share.

    Attributes:
        where: Where it is, without any password.
    """

    where: str

    def load(self, after: Any) -> tuple[Any, list[bytes]]:
        """
        Give what comes after a position, and the position behind it; None is the position of nothing.

        Where what was read before has been replaced, all of what is there is given.
        """
        ...

    def append(self, bodies: Sequence[bytes], after: Any) -> Any:
        """Append behind a position, durably, and give the position then; None where it is not the last one."""
        ...

    def replace(self, body: bytes, after: Any) -> Any:
        """Put one record in place of all; see `append`."""
        ...

    def full(self, position: Any, size: int = 0) -> bool:
        """Say whether it is time to put one record, of so many bytes, in place of all."""
        ...

    def home(self) -> str | None:
        """Give what tells a server's database from all others, None for what is no server's."""
        ...

    def close(self) -> None:
        """Let go of what it holds open."""
        ...


class LogLedger:
    """A ledger on any log; see `flows.ledger.Ledger`. Safe to use from many threads."""

    def __init__(self, log: Log) -> None:
        self.where = log.where
        self._log = log
        self._lock = threading.Lock()
        self._position: Any = None
        self._book: Book | None = None

    def read(self) -> Book | None:
        """See `flows.ledger.Ledger.read`."""
        with self._lock:
            return self._load()

    def begin(self, book: Book) -> Book:
        """See `flows.ledger.Ledger.begin`."""
        with self._lock:
            for _ in range(_TRIES):
                known = self._load()
                if known is not None:
                    return known
                self._written(self._log.append([_body(book.entry())], self._position), [book.entry()])
        raise _busy(self.where)

    def write(self, *entries: Entry) -> Book:
        """See `flows.ledger.Ledger.write`."""
        with self._lock:
            for _ in range(_TRIES):
                known = self._load()
                if known is None:
                    raise missing(self.where)
                if self._written(self._log.append([_body(one) for one in entries], self._position), entries):
                    assert self._book is not None
                    self._compact(self._book)
                    return self._book
        raise _busy(self.where)

    def check_outside(self, identity: str) -> None:
        """See `flows.ledger.Ledger.check_outside`."""
        with self._lock:
            home = self._log.home()
        # The timeline in the middle is the same database's after a promotion, too.
        parts = identity.split(":")
        if home is not None and parts[0].endswith("postgresql") and home == f"{parts[1]}:{parts[-1]}":
            raise not_outside()

    def close(self) -> None:
        """See `flows.ledger.Ledger.close`."""
        with self._lock:
            self._log.close()

    def _compact(self, book: Book) -> None:
        if not self._log.full(self._position):
            return
        entry = book.entry()
        body = _body(entry)
        if not self._log.full(self._position, len(body)):
            return
        try:
            self._written(self._log.replace(body, self._position), [entry])
        except TenureError:
            # What was to be written is written; room is made another time.
            self._position, self._book = None, None

    def _load(self) -> Book | None:
        position, bodies = self._log.load(self._position)
        if position is None:
            self._book = None
        try:
            for body in bodies:
                self._book = applied(self._book, json.loads(body))
        except (ValueError, KeyError, TypeError) as error:
            self._position, self._book = None, None
            raise Refused(
                f"the authority ledger {self.where} holds an entry that cannot be read; use the version of tenure that "
                f"wrote it, or bring the ledger back from its own backup",
                code="LEDGER_DAMAGED",
            ) from error
        self._position = position
        return self._book

    def _written(self, position: Any, entries: Sequence[Entry]) -> bool:
        if position is None:
            return False
        self._position = position
        for one in entries:
            self._book = applied(self._book, one)
        return True


def missing(where: str) -> NotFound:
    """Make the error for a ledger that is gone."""
    return NotFound(
        f"there is no authority ledger at {where}; if it was lost, `tenure recover` begins a new one",
        code="LEDGER_MISSING",
    )


def _busy(where: str) -> Unavailable:
    return Unavailable(f"the authority ledger {where} is written by too many others; try again", code="LEDGER_BUSY")


def _body(entry: Entry) -> bytes:
    return json.dumps(dict(entry), separators=(",", ":"), sort_keys=True).encode()


class FileLog:
    """
    A log in one file.

    Attributes:
        where: Its path.
    """

    def __init__(self, path: Path, storage: Storage = KERNEL) -> None:
        self.path = path
        self.where = str(path)
        self._storage = storage
        # After a failed write nobody knows what is on the disk: all of it is written anew, into another file.
        self._doubted = False

    def load(self, after: Any) -> tuple[Any, list[bytes]]:
        """Read without the lock; what looks damaged is looked at again under it, behind an append in progress."""
        # Whatever a disk or a share answers has to be an error of ours: a watch counts those, and stops for them.
        with typed(self.path, "cannot read the authority ledger"):
            try:
                return self._load(self._open_to_read, after)
            except Refused:
                if not self.path.exists():
                    return None, []
                file = self._take(create=False)
                try:
                    return self._load(lambda: (file.read, file.facts().size, _inode(file.handle), lambda: None), after)
                finally:
                    file.close()
            except NotFound:
                return None, []

    def _open_to_read(self) -> Any:
        with typed(self.path, "cannot read the authority ledger"):
            handle = self._storage.open(self.path, "read")
        try:
            facts = self._storage.facts(handle)
            _check_regular(facts, self.where)
        except BaseException:
            self._storage.close(handle)
            raise
        return (
            lambda offset, size: self._storage.read(handle, offset, size),
            facts.size,
            _inode(handle),
            lambda: self._storage.close(handle),
        )

    def _load(self, opening: Any, after: Any) -> tuple[Any, list[bytes]]:
        read, size, inode, end = opening()
        try:
            begins = [(0, 0)] if after is None or not _follows(read, size, inode, after) else [after[1:3], (0, 0)]
            for offset, last in begins:
                bodies = []
                for record in frame.verified(read, size, offset, last + 1):
                    bodies.append(record.body)
                    offset, last = record.end, record.sequence  # noqa: PLW2901 - where the reader is by now
                if offset == size:
                    return ((inode, offset, last, _ending(read, offset)) if last else None), bodies
            raise damaged(self.where, frame.judge(read, offset, size, last).reason)
        finally:
            end()

    def append(self, bodies: Sequence[bytes], after: Any) -> Any:
        """Take the lock, look whether the end is where the author thinks it is, append, sync."""
        with typed(self.path, "cannot append to the authority ledger"):
            if self._doubted and after is not None:
                return self._rewrite(bodies, after)
            return self._append(bodies, after)

    def _append(self, bodies: Sequence[bytes], after: Any) -> Any:
        file = self._take(create=True)
        try:
            if not self._is_end(file, after):
                return None
            inode, offset, last, _ = after or (_inode(file.handle), 0, 0, b"")
            data = b"".join(frame.encode(last + nth, body) for nth, body in enumerate(bodies, 1))
            self._doubted = True
            try:
                file.write(offset, data)
                file.sync()
                file.check_named()
            except OSError as error:
                raise lost(error, self.path, "cannot append to the authority ledger") from error
            if after is None:
                with typed(self.path, "cannot make durable"):
                    file.sync_name()
            self._doubted = False
            return inode, offset + len(data), last + len(bodies), data[-_ENDING:]
        finally:
            file.close()

    def replace(self, body: bytes, after: Any) -> Any:
        """Write another file and put it in this one's place, while the lock of this one is held."""
        with typed(self.path, "cannot write anew the authority ledger"):
            return self._put([body], after, keep=False)

    def full(self, position: Any, size: int = 0) -> bool:
        """See `Log.full`; what is mostly one large record is not written anew for a few small ones behind it."""
        return position is not None and position[1] > COMPACT_BYTES + 2 * size

    def home(self) -> str | None:
        """A file has none."""
        return None

    def close(self) -> None:
        """Nothing is held open."""

    def _rewrite(self, bodies: Sequence[bytes], after: Any) -> Any:
        return self._put(bodies, after, keep=True)

    def _put(self, bodies: Sequence[bytes], after: Any, *, keep: bool) -> Any:
        file = self._take(create=False)
        part = self.path.with_name(f"{self.path.name}.new")
        try:
            if not self._is_end(file, after):
                return None
            whole = list(bodies)
            if keep:
                whole = [one.body for one in frame.verified(file.read, after[1])] + whole
            data = b"".join(frame.encode(nth, body) for nth, body in enumerate(whole, 1))
            with typed(part, "cannot write the authority ledger anew at"):
                handle = self._storage.open(part, "create")
                try:
                    self._storage.truncate(handle, 0)
                    _write_all(self._storage, handle, data)
                    self._storage.sync(handle)
                    inode = _inode(handle)
                finally:
                    self._storage.close(handle)
                part.replace(self.path)
                self._storage.sync_directory(self.path.parent)
            self._doubted = False
            return inode, len(data), len(whole), data[-_ENDING:]
        finally:
            file.close()

    def _is_end(self, file: HeldFile, after: Any) -> bool:
        size = file.facts().size
        if after is None:
            return size == 0
        return size == after[1] and _follows(file.read, size, _inode(file.handle), after)

    def _take(self, *, create: bool) -> HeldFile:
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                return HeldFile.take(self._storage, self.path, create=create)
            except Unavailable as busy:
                if busy.code != "JOURNAL_LOCKED" or time.monotonic() > until:
                    raise
            time.sleep(_PAUSE)  # another process appends, which takes one sync


def not_outside() -> Invalid:
    """Make the error for a ledger in the database that it is about."""
    return Invalid(
        "the authority ledger is in the very database it is to watch, and would be restored together with it; name "
        "a file or another database",
        code="LEDGER_NOT_OUTSIDE",
    )


def _check_regular(facts: Facts, where: str) -> None:
    if not facts.regular:
        raise not_a_file(where)


def not_a_file(where: str) -> Invalid:
    """Make the error for a ledger's path with something else than a file under it."""
    return Invalid(
        f"the authority ledger {where} is a folder or another thing that is no file; name the file that is to be the "
        f"ledger, or put back the file that was there",
        code="LEDGER_NOT_A_FILE",
    )


def damaged(where: str, reason: str) -> Refused:
    """Make the error for a ledger that cannot be believed to its end."""
    return Refused(
        f"the authority ledger {where} has a damaged tail: {reason}. Nothing is claimed by it until a person has run "
        f"`tenure journal repair {where}`; if it cannot be repaired, put its backup in its place, or move it away and "
        f"run `tenure recover`",
        code="LEDGER_DAMAGED",
    )


def _follows(read: frame.Source, size: int, inode: int, after: Any) -> bool:
    # A file that took the place of another may have got the inode of one before it; the bytes tell.
    return bool(after[0] == inode and after[1] <= size and _ending(read, after[1]) == after[3])


def _ending(read: frame.Source, offset: int) -> bytes:
    return read(max(0, offset - _ENDING), min(_ENDING, offset))


def _inode(handle: int) -> int:
    return os.fstat(handle).st_ino


def _write_all(storage: Storage, handle: int, data: bytes) -> None:
    offset = 0
    while offset < len(data):
        offset += storage.write(handle, offset, data[offset:])
