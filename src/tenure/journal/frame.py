"""
The bytes of a journal: how one record is framed, and how far a file can be believed.

A file is frames, one after another, without a header of its own; an empty file is an empty journal.

    magic 4 | length 4 | sequence 8 | check 4 | head check 4 | body        (integers big-endian)

`check` is the CRC over length, sequence and body. `head check` is the CRC over the twenty bytes before it: with it, a
frame that ends beyond the end of the file is known to be cut short, and not merely to have a damaged length. Sequences
start at 1 and have no gaps, so a stale or doubled frame is not taken for a record although its checks hold. The magic
bytes let a reader find records behind damage; they are only reported, never replayed.

The CRC is CRC-32C (google-crc32c) and not the standard library's CRC-32: up to 16 MiB it is sure to see any three
flipped bits, where the other is sure of two only, and processors compute it in hardware.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import google_crc32c

MAGIC = b"\xf1TJ1"
BODY_BYTES_MAX = 16 * 1024 * 1024

_CHECKED = struct.Struct(">IQ")  # what the record's check covers, beside the body
_HEAD = struct.Struct(">4sIQI")
_HEAD_CHECK = struct.Struct(">I")
HEAD_BYTES = _HEAD.size + _HEAD_CHECK.size
_SEARCH_BYTES = 64 * 1024

# Gives up to `size` bytes from `offset`; fewer only where the file ends.
Source: TypeAlias = Callable[[int, int], bytes]


class Tail(StrEnum):
    """What follows the last verified record."""

    NONE = "none"
    TORN = "torn"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class Record:
    """
    One verified record.

    Attributes:
        offset: Where its frame starts.
        sequence: Its number, from 1.
    """

    offset: int
    sequence: int
    body: bytes

    @property
    def end(self) -> int:
        """The offset behind its frame."""
        return self.offset + HEAD_BYTES + len(self.body)


@dataclass(frozen=True, slots=True)
class TailFacts:
    """
    What a reader found behind the verified prefix.

    Attributes:
        kind: Torn is what an interrupted append leaves: the beginning of the next frame, or space never written.
            Everything else is corrupt.
        reason: One line for people; empty where there is no tail.
        valid_after: How many records with good checks and later numbers lie behind the damage.
    """

    kind: Tail
    reason: str = ""
    valid_after: int = 0


def encode(sequence: int, body: bytes) -> bytes:
    """Frame one record."""
    check = google_crc32c.extend(google_crc32c.value(_CHECKED.pack(len(body), sequence)), body)
    head = _HEAD.pack(MAGIC, len(body), sequence, check)
    return b"".join((head, _HEAD_CHECK.pack(google_crc32c.value(head)), body))


def verified(source: Source, size: int, offset: int = 0, expected: int = 1) -> Iterator[Record]:
    """
    Yield the records of the verified prefix: every check holds and the numbers are 1, 2, 3, ...

    Args:
        offset, expected: Where a reader goes on that has verified what comes before, and with which number.
    """
    while (record := _record_at(source, offset, size)) is not None and record.sequence == expected:
        yield record
        offset = record.end
        expected += 1


def judge(source: Source, offset: int, size: int, last: int) -> TailFacts:
    """Say what lies between the verified prefix, which ends at `offset` with record `last`, and the end of the file."""
    if offset >= size:
        return TailFacts(Tail.NONE)
    after = sum(1 for _ in beyond(source, offset, size, last))
    cut = _cut_short(source, offset, size, last + 1)
    if cut and not after:
        return TailFacts(Tail.TORN, cut)
    return TailFacts(Tail.CORRUPT, _damage(source, offset, size, last + 1), after)


def beyond(source: Source, offset: int, size: int, last: int) -> Iterator[Record]:
    """Search from `offset` on for whole records numbered above `last`. They are for people, not for replay."""
    while (offset := _find(source, offset, size)) >= 0:
        record = _record_at(source, offset, size)
        if record is None or record.sequence <= last:
            offset += 1
        else:
            yield record
            offset = record.end


def _head_at(source: Source, offset: int, size: int) -> tuple[int, int, int] | None:
    raw = source(offset, min(HEAD_BYTES, size - offset))
    if len(raw) < HEAD_BYTES:
        return None
    magic, length, sequence, check = _HEAD.unpack_from(raw)
    (head_check,) = _HEAD_CHECK.unpack_from(raw, _HEAD.size)
    if magic != MAGIC or length > BODY_BYTES_MAX or google_crc32c.value(raw[: _HEAD.size]) != head_check:
        return None
    return length, sequence, check


def _record_at(source: Source, offset: int, size: int) -> Record | None:
    head = _head_at(source, offset, size)
    if head is None:
        return None
    length, sequence, check = head
    body = source(offset + HEAD_BYTES, min(length, size - offset - HEAD_BYTES))
    if len(body) < length:
        return None
    if google_crc32c.extend(google_crc32c.value(_CHECKED.pack(length, sequence)), body) != check:
        return None
    return Record(offset, sequence, body)


def _cut_short(source: Source, offset: int, size: int, expected: int) -> str:
    """Say how an append was interrupted here, or give nothing where that does not explain what is seen."""
    if size - offset < HEAD_BYTES:
        part = source(offset, size - offset)
        # Everything in a head up to its check is known beforehand except the length, so only that is not compared.
        wanted = _HEAD.pack(MAGIC, 0, expected, 0)
        if part[:4] == wanted[: len(part)][:4] and part[8:16] == wanted[8 : len(part)][:8]:
            return f"the head of record {expected} ends after {len(part)} of {HEAD_BYTES} bytes"
    head = _head_at(source, offset, size)
    if head is not None and head[1] == expected and offset + HEAD_BYTES + head[0] > size:
        return f"the body of record {expected} ends after {size - offset - HEAD_BYTES} of {head[0]} bytes"
    if _all_zero(source, offset, size):
        return f"{size - offset} bytes were reserved for record {expected} and never written"
    return ""


def _damage(source: Source, offset: int, size: int, expected: int) -> str:
    head = _head_at(source, offset, size)
    if head is None:
        return f"no readable record head at byte {offset}"
    if head[1] != expected:
        return f"record {head[1]} at byte {offset} where {expected} was expected"
    if offset + HEAD_BYTES + head[0] > size:
        return f"record {expected} at byte {offset} ends beyond the file although later records follow"
    return f"the checksum of record {expected} at byte {offset} does not match"


def _all_zero(source: Source, offset: int, size: int) -> bool:
    while offset < size:
        part = source(offset, min(_SEARCH_BYTES, size - offset))
        if not part:
            break
        if part.strip(b"\0"):
            return False
        offset += len(part)
    return True


def _find(source: Source, offset: int, size: int) -> int:
    while size - offset >= HEAD_BYTES:
        part = source(offset, min(_SEARCH_BYTES, size - offset))
        found = part.find(MAGIC)
        if found >= 0:
            return offset + found
        if len(part) < len(MAGIC):
            break
        # Keep the last bytes: the magic may straddle two parts.
        offset += len(part) - len(MAGIC) + 1
    return -1
