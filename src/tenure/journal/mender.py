"""
`repair`: put a damaged tail aside and cut the journal back to what is verified.

The order is the promise: copy the tail, sync the copy and its directory, only then truncate, then sync. Killed at any
point, or cut off from power, the bytes of the tail are in the journal or in the quarantine file, and a second run ends
where the first would have. The quarantine file is `tail-<offset>.quarantine` beside the journal. If that name is taken
by other bytes (several journals share a directory) a number is added; bytes that are the beginning of this very tail
are an earlier run's, and are completed. Quarantine files are never removed by the library.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tenure.errors import Invalid, Unavailable
from tenure.journal import frame
from tenure.journal.held import COPY_BYTES, HeldFile
from tenure.journal.reader import check
from tenure.journal.storage import KERNEL, Storage, typed


@dataclass(frozen=True, slots=True)
class Repair:
    """
    What a repair found and did.

    Attributes:
        repaired: A tail was put aside. False: there was none, and nothing was changed.
        records: How many records remain; the next append continues their numbers.
        verified_bytes: The size of the file now.
        tail: What the tail was: none, torn or corrupt.
        reason: One line about it.
        quarantine: The file that holds the tail now.
        quarantined_bytes: The length of the tail.
        valid_after: How many whole records lie in the quarantine. Not zero means that records which may have been
            acknowledged are no longer in the journal: look at them with `dump`.
    """

    path: Path
    repaired: bool
    records: int
    verified_bytes: int
    tail: frame.Tail
    reason: str
    quarantine: Path | None
    quarantined_bytes: int
    valid_after: int


def repair(path: str | Path, *, storage: Storage = KERNEL) -> Repair:
    """
    Put the damaged tail aside and truncate to the verified prefix. Idempotent; safe to be killed anywhere.

    Raises:
        Unavailable: JOURNAL_LOCKED, a process has it open for append; JOURNAL_FULL, JOURNAL_IO: the disk said no. The
            tail is still in the journal or whole in the quarantine file; run it again.
        Invalid: JOURNAL_NOT_PLAIN, or JOURNAL_UNRECOGNISED: nothing in the file looks like a journal.
        NotFound: No such file.
    """
    journal = HeldFile.take(storage, Path(path), create=False)
    try:
        found = check(journal.path, journal.read, journal.facts().size)
        quarantine: HeldFile | None = None
        if not found.ok:
            _recognise(journal, found.records, found.valid_after)
            quarantine = _put_aside(storage, journal, found.verified_bytes, found.file_bytes)
            quarantine.close()
        with typed(journal.path, "cannot repair"):
            if not found.ok:
                journal.truncate(found.verified_bytes)
            # Also without a tail: an earlier run may have been killed between its truncation and its sync.
            journal.sync()
            journal.sync_name()
    finally:
        journal.close()
    return Repair(
        path=journal.path,
        repaired=not found.ok,
        records=found.records,
        verified_bytes=found.verified_bytes,
        tail=found.tail,
        reason=found.reason,
        quarantine=quarantine.path if quarantine else None,
        quarantined_bytes=found.file_bytes - found.verified_bytes,
        valid_after=found.valid_after,
    )


def _recognise(journal: HeldFile, records: int, valid_after: int) -> None:
    """Refuse to empty a file that shows no sign of being a journal: the path is probably wrong."""
    if records or valid_after:
        return
    # The first append may have been interrupted: of its first bytes each is there, or is still the zero of new space.
    if all(byte in (0, magic) for byte, magic in zip(journal.read(0, len(frame.MAGIC)), frame.MAGIC, strict=False)):
        return
    raise Invalid(
        f"{journal.path} holds nothing that looks like a journal and was left alone; check the path. If it is one, "
        "move it away and start a new file",
        code="JOURNAL_UNRECOGNISED",
    )


def _put_aside(storage: Storage, journal: HeldFile, start: int, end: int) -> HeldFile:
    """Copy the bytes from `start` to `end` into a quarantine file, durably, and give that file, still held."""
    number = 0
    while True:
        number += 1
        suffix = f"-{number}" if number > 1 else ""
        path = journal.path.with_name(f"tail-{start}{suffix}.quarantine")
        try:
            copy = HeldFile.take(storage, path, create=True)
        except (Unavailable, Invalid) as error:
            if error.code not in ("JOURNAL_LOCKED", "JOURNAL_NOT_PLAIN"):
                raise
            continue  # another journal's repair is writing it, or somebody linked to it: it is not ours to write
        try:
            have = copy.facts().size
            if _is_beginning(journal, start, copy, have):
                with typed(path, "cannot write the quarantine file"):
                    for offset in range(start + have, end, COPY_BYTES):
                        part = journal.read(offset, min(COPY_BYTES, end - offset))
                        copy.write(offset - start, part)
                    copy.rewrite(have)
                    copy.sync()
                    copy.sync_name()
                return copy
        except BaseException:
            copy.close()
            raise
        copy.close()


def _is_beginning(journal: HeldFile, start: int, copy: HeldFile, have: int) -> bool:
    """Say whether the copy's `have` bytes begin like the journal's tail; a longer copy finds no bytes to equal it."""
    for offset in range(0, have, COPY_BYTES):
        size = min(COPY_BYTES, have - offset)
        if copy.read(offset, size) != journal.read(start + offset, size):
            return False
    return True
