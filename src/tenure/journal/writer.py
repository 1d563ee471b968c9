"""
`Journal`: append a record and know that it survives the loss of power.

An append returns after the record, the file's size and the file's name are durable. Appends of several threads share
syncs: while one thread writes and syncs a batch, the others queue their frames; when it is done, one of them writes all
that has gathered. So the number of syncs follows the disk and not the number of threads.

Once a write or a sync has failed nobody knows what is on the disk, and a second sync may succeed without having written
anything. The journal is then poisoned: no later append returns, ever. What was acknowledged before is safe; the records
of the failed batch may be there, whole or in part, or not. A new `Journal` on the same path begins by reading the file.

Opening verifies the whole file and refuses one with a damaged tail: readers stop there, so everything appended behind
it would be lost to them. It then writes the verified bytes over themselves and syncs file and directory, so that what a
dead process left in memory but not on the disk is durable before anything is put behind it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from tenure.errors import Invalid, Refused, Unavailable
from tenure.journal import frame
from tenure.journal.held import HeldFile
from tenure.journal.storage import KERNEL, Storage, lost, typed


class Journal:
    """
    An append-only file with one writer. Made by `Journal.open`; a context manager; safe to use from many threads.

    Attributes:
        path: The file.
    """

    def __init__(self, file: HeldFile, *, size: int, last: int) -> None:
        self.path = file.path
        self._file = file
        self._changed = threading.Condition()
        self._size = size  # bytes that are durable
        self._durable = last  # the last sequence that is durable
        self._next = last + 1
        self._queue: list[bytes] = []  # frames of the sequences up to _next, not yet being written
        self._writing = False
        self._closing = False
        self._failed_to = 0  # the last sequence of the batch that failed
        self._failure: Unavailable | None = None

    @classmethod
    def open(cls, path: str | Path, *, storage: Storage = KERNEL, create: bool = True) -> Journal:
        """
        Open for append, making the file if it is missing.

        Args:
            path: A plain file: no symbolic link, one hard link. Its directory must exist.
            create: False: a missing file raises NotFound.

        Raises:
            Unavailable: JOURNAL_LOCKED names the process that holds it; JOURNAL_FULL, JOURNAL_IO: the disk said no.
            Refused: JOURNAL_TORN, the file has a damaged tail: repair it first.
            Invalid: JOURNAL_NOT_PLAIN, JOURNAL_ACCESS.
        """
        file = HeldFile.take(storage, Path(path), create=create)
        try:
            return cls(file, **_settle(file))
        except BaseException:
            file.close()
            raise

    @property
    def poisoned(self) -> bool:
        """A write or sync failed: no append on this journal will succeed again."""
        return self._failure is not None

    @property
    def durable_bytes(self) -> int:
        """How much of the file is known to be durable."""
        return self._size

    def append(self, body: bytes) -> int:
        """
        Append one record and return its sequence after it is durable.

        Raises:
            Invalid: JOURNAL_RECORD_TOO_LARGE, JOURNAL_CLOSED, or JOURNAL_FORKED in a forked child. Nothing was written.
            Unavailable: JOURNAL_FULL or JOURNAL_IO: this append failed; the record may or may not be in the file, and
                the journal is poisoned. JOURNAL_POISONED: an earlier one had failed; this one was not written.
        """
        self._file.check_process()
        if not isinstance(body, bytes):
            raise Invalid(f"a record is bytes, not {type(body).__name__}", code="JOURNAL_RECORD_TYPE")
        if len(body) > frame.BODY_BYTES_MAX:
            raise Invalid(
                f"a record of {len(body)} bytes is over the limit of {frame.BODY_BYTES_MAX}; store a reference instead",
                code="JOURNAL_RECORD_TOO_LARGE",
            )
        with self._changed:
            sequence = self._next
            self._check_usable(sequence)
            self._next += 1
            self._queue.append(frame.encode(sequence, body))
            while self._durable < sequence:
                self._check_usable(sequence)
                if self._writing:
                    self._changed.wait()
                else:
                    self._write_queue()
            return sequence

    def records(self) -> Iterator[frame.Record]:
        """Read the durable records back through the open file."""
        return frame.verified(self._file.read, self._size)

    def remove(self) -> None:
        """Remove the file's name while it is held, so that nobody opens it in between; then only `close` is left."""
        self._file.remove()

    def close(self) -> None:
        """
        Give up the lock. Again is fine.

        An append that is being written is finished first; another thread's that only waits for its turn is refused.
        """
        try:
            self._file.check_process()
        except Invalid:
            return  # A forked child has nothing to close, and its copy of the condition may be held for ever.
        with self._changed:
            self._closing = True
            while self._writing:
                self._changed.wait()
            self._file.close()
            self._changed.notify_all()

    def _check_usable(self, sequence: int) -> None:
        if self._failure is not None:
            if sequence <= self._failed_to:
                # One error object must not be raised in several threads: each would add to the other's traceback.
                raise Unavailable(str(self._failure), code=self._failure.code)
            raise Unavailable(
                f"{self.path} had a failed write or sync and takes no more; what it acknowledged before is safe. "
                "Check the disk, then open a journal anew",
                code="JOURNAL_POISONED",
            )
        if self._closing:
            raise Invalid(f"{self.path} is closed; open it again", code="JOURNAL_CLOSED")

    def _write_queue(self) -> None:
        """Write and sync all that is queued. Called, and returns, with the condition held; free in between."""
        batch, self._queue = self._queue, []
        last = self._next - 1
        data = b"".join(batch)
        failure: Unavailable | None = None
        finished = False
        self._writing = True
        try:
            self._changed.release()
            self._file.write(self._size, data)
            self._file.sync()
            self._file.check_named()
            finished = True
        except OSError as error:
            failure = lost(error, self.path, "cannot append to")
        finally:
            # Also for KeyboardInterrupt: half a write is a failed write, and the others must not wait for ever.
            self._changed.acquire()
            self._writing = False
            if finished:
                self._size += len(data)
                self._durable = last
            else:
                self._failed_to = last
                self._failure = failure or Unavailable(
                    f"an append to {self.path} was interrupted; open a journal anew", code="JOURNAL_IO"
                )
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _settle(file: HeldFile) -> dict[str, int]:
    """Verify a file that was just locked and make what is in it durable; give its size and last sequence."""
    size = file.facts().size
    end = last = 0
    for record in frame.verified(file.read, size):
        end, last = record.end, record.sequence
    if end < size:
        found = frame.judge(file.read, end, size, last)
        raise Refused(
            f"{file.path} has a {found.kind} tail: {found.reason}. Anything appended behind it would be unreadable; "
            f"run `tenure journal repair {file.path}` first",
            code="JOURNAL_TORN",
        )
    with typed(file.path, "cannot make durable"):
        file.rewrite(end)
        file.sync()
        file.sync_name()
    return {"size": end, "last": last}
