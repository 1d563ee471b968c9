"""
Read a journal without writing: `read`, `verify` and `dump`. No lock is asked for, so a live journal can be read.

A reader stops at the first byte that it cannot verify and says what it found there. On a journal that is being written
at this moment that may be an append in progress; look again before believing it.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenure.errors import Invalid
from tenure.journal import frame
from tenure.journal.storage import KERNEL, Storage, typed


@dataclass(frozen=True, slots=True)
class Verification:
    """
    How far a journal can be believed.

    Attributes:
        records: How many records were verified.
        last_sequence: The last of them, 0 for none.
        verified_bytes: Where the verified prefix ends.
        file_bytes: Where the file ends.
        tail: none, torn (an append was interrupted) or corrupt (anything else).
        reason: One line about the tail; empty without one.
        corrupt_followed_by_valid: Whole records lie behind the damage: something damaged what had been written.
        valid_after: How many.
    """

    path: Path
    records: int
    last_sequence: int
    verified_bytes: int
    file_bytes: int
    tail: frame.Tail
    reason: str
    corrupt_followed_by_valid: bool
    valid_after: int

    @property
    def ok(self) -> bool:
        """The whole file is verified."""
        return self.tail is frame.Tail.NONE


@dataclass(frozen=True, slots=True)
class Reading:
    """
    The verified records of a journal, and what follows them.

    Attributes:
        records: In order; sequences 1, 2, 3, ...
        verified_bytes: Where the verified prefix ends.
        tail: none, torn or corrupt.
        corrupt_followed_by_valid: Whole records lie behind the damage.
        verification: The same and more, without the records.
    """

    records: tuple[frame.Record, ...]
    verified_bytes: int
    tail: frame.Tail
    corrupt_followed_by_valid: bool
    verification: Verification


def read(path: str | Path, *, storage: Storage = KERNEL) -> Reading:
    """
    Read all verified records into memory.

    Raises:
        NotFound: No such file.
        Invalid: Not a regular file, or not readable for this user.
        Unavailable: JOURNAL_IO, the disk said no.
    """
    with _source(Path(path), storage) as (source, size):
        records = tuple(frame.verified(source, size))
        last = records[-1] if records else None
        found = check(Path(path), source, size, (last.sequence, last.end) if last else (0, 0))
    return Reading(records, found.verified_bytes, found.tail, found.corrupt_followed_by_valid, found)


def verify(path: str | Path, *, storage: Storage = KERNEL) -> Verification:
    """Read a journal of any size, keeping nothing, and say how far it can be believed. Raises what `read` raises."""
    with _source(Path(path), storage) as (source, size):
        return check(Path(path), source, size)


def dump(path: str | Path, *, storage: Storage = KERNEL) -> Iterator[dict[str, Any]]:
    """
    Yield one dict for each record, for people and their tools; it also reads a quarantined tail.

    A record is `{"entry": "record", "offset", "sequence", "bytes", "verified", "json", "base64"}`: its body is under
    `json` if it is a JSON object, else under `base64`, the other being None. A tail is `{"entry": "tail", "offset",
    "bytes", "tail", "reason", "valid_after"}`; the whole records found behind it follow with `verified` false.
    """
    with _source(Path(path), storage) as (source, size):
        end = last = 0
        for record in frame.verified(source, size):
            end, last = record.end, record.sequence
            yield _shown(record, verified=True)
        found = frame.judge(source, end, size, last)
        if found.kind is frame.Tail.NONE:
            return
        yield {
            "entry": "tail",
            "offset": end,
            "bytes": size - end,
            "tail": found.kind.value,
            "reason": found.reason,
            "valid_after": found.valid_after,
        }
        for record in frame.beyond(source, end, size, last):
            yield _shown(record, verified=False)


def check(path: Path, source: frame.Source, size: int, verified: tuple[int, int] | None = None) -> Verification:
    """Verify from a source; `verified` is the last sequence and the end of a prefix that was verified before."""
    last, end = verified or (0, 0)
    if verified is None:
        for record in frame.verified(source, size):
            last, end = record.sequence, record.end
    found = frame.judge(source, end, size, last)
    return Verification(
        path=path,
        records=last,
        last_sequence=last,
        verified_bytes=end,
        file_bytes=size,
        tail=found.kind,
        reason=found.reason,
        corrupt_followed_by_valid=found.valid_after > 0,
        valid_after=found.valid_after,
    )


@contextlib.contextmanager
def _source(path: Path, storage: Storage) -> Iterator[tuple[frame.Source, int]]:
    with typed(path, "cannot open"):
        handle = storage.open(path, "read")
    try:
        with typed(path, "cannot read"):
            facts = storage.facts(handle)
            if not facts.regular:
                raise Invalid(f"{path} is not a regular file; a journal is one", code="JOURNAL_NOT_PLAIN")
            yield (lambda offset, size: storage.read(handle, offset, size)), facts.size
    finally:
        storage.close(handle)


def _shown(record: frame.Record, *, verified: bool) -> dict[str, Any]:
    body: Any = None
    with contextlib.suppress(ValueError, RecursionError):  # not JSON: it is shown as base64 instead
        body = json.loads(record.body)
    is_object = isinstance(body, dict)
    return {
        "entry": "record",
        "offset": record.offset,
        "sequence": record.sequence,
        "bytes": len(record.body),
        "verified": verified,
        "json": body if is_object else None,
        "base64": None if is_object else base64.b64encode(record.body).decode("ascii"),
    }
