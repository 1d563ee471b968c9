"""How far a reader believes a file: every truncation, every flipped bit, and tails of all kinds."""

from __future__ import annotations

import os
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.errors import Invalid, NotFound, Refused
from tenure.journal import Journal, Tail, dump, frame, read, repair, verify
from tests.journal.disk import Disk

PATH = Path("/disk/some.journal")


def journal_of(*bodies: bytes) -> bytes:
    return b"".join(frame.encode(number, body) for number, body in enumerate(bodies, start=1))


def disk_with(content: bytes) -> Disk:
    disk = Disk()
    disk.put(PATH, content)
    return disk


def bodies_on(disk: Disk) -> list[bytes]:
    return [record.body for record in read(PATH, storage=disk).records]


def append_on(disk: Disk, body: bytes) -> int:
    with Journal.open(PATH, storage=disk) as journal:
        return journal.append(body)


def test_what_was_appended_is_read_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with Journal.open(path) as journal:
        assert [journal.append(body) for body in (b"", b"one", b"\0" * 300)] == [1, 2, 3]
    reading = read(path)
    assert [(record.sequence, record.body) for record in reading.records] == [(1, b""), (2, b"one"), (3, b"\0" * 300)]
    assert reading.tail is Tail.NONE
    assert reading.verified_bytes == path.stat().st_size == reading.records[-1].end
    assert not reading.corrupt_followed_by_valid


def test_an_empty_file_is_an_empty_journal(tmp_path: Path) -> None:
    path = tmp_path / "empty.journal"
    path.touch()
    assert verify(path).ok
    assert read(path).records == ()
    with Journal.open(path) as journal:
        assert journal.append(b"first") == 1


def test_the_last_of_fifty_records_is_lost_at_every_truncation_and_nothing_else() -> None:
    bodies = [f"record {number}".encode() for number in range(1, 51)]
    whole = journal_of(*bodies)
    ends = [len(journal_of(*bodies[:number])) for number in range(51)]
    cuts = 0
    for length in range(len(whole)):
        count = sum(1 for end in ends[1:] if end <= length)
        rest = whole[ends[count] : length]
        disk = disk_with(whole[:length])
        reading = read(PATH, storage=disk)
        assert [record.body for record in reading.records] == bodies[:count], length
        assert reading.verified_bytes == ends[count], length
        assert reading.tail == ("torn" if rest else "none"), length
        assert not reading.corrupt_followed_by_valid, length
        if rest:
            cuts += 1
            with pytest.raises(Refused) as refused:
                Journal.open(PATH, storage=disk)
            assert refused.value.code == "JOURNAL_TORN"
            done = repair(PATH, storage=disk)
            assert done.quarantine == PATH.with_name(f"tail-{ends[count]}.quarantine")
            assert disk.durable_content(done.quarantine) == rest, length
        # The control: the same journal takes the next record, under the next number, and is whole again.
        assert append_on(disk, b"next") == count + 1
        assert bodies_on(disk) == [*bodies[:count], b"next"], length
    assert cuts == len(whole) - 50


def test_no_flipped_bit_is_read_as_a_record() -> None:
    bodies = [b"the first", b"the second, a little longer", b"the third"]
    whole = journal_of(*bodies)
    ends = [0, *(len(journal_of(*bodies[:number])) for number in (1, 2, 3))]
    for position in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[position // 8] ^= 1 << position % 8
        hit = sum(1 for end in ends[1:] if end <= position // 8)
        disk = disk_with(bytes(damaged))
        found = verify(PATH, storage=disk)
        assert bodies_on(disk) == bodies[:hit], position
        assert found.verified_bytes == ends[hit], position
        assert found.tail is Tail.CORRUPT, (position, found.reason)
        # Whole records behind the damage are told apart from damage at the end.
        assert found.valid_after == 2 - hit, position
        assert found.corrupt_followed_by_valid == (hit < 2), position
        assert found.reason, position
        with pytest.raises(Refused):
            Journal.open(PATH, storage=disk)
        done = repair(PATH, storage=disk)
        assert done.quarantine is not None
        assert disk.durable_content(done.quarantine) == damaged[ends[hit] :], position
        assert done.valid_after == 2 - hit, position
        assert append_on(disk, b"next") == hit + 1
        assert bodies_on(disk) == [*bodies[:hit], b"next"]


@settings(max_examples=60)
@given(bodies=st.lists(st.binary(max_size=200), max_size=6), rest=st.binary(max_size=300))
def test_any_bytes_behind_a_journal_leave_its_records_as_they_are(bodies: list[bytes], rest: bytes) -> None:
    disk = disk_with(journal_of(*bodies) + rest)
    reading = read(PATH, storage=disk)
    assert [record.body for record in reading.records] == bodies
    assert (reading.tail is Tail.NONE) == (not rest)
    assert verify(PATH, storage=disk) == reading.verification


def test_space_that_was_reserved_and_never_written_is_torn() -> None:
    found = verify(PATH, storage=disk_with(journal_of(b"a") + bytes(70_000)))
    assert (found.records, found.tail) == (1, Tail.TORN)
    # The control: one other byte in it is not what an interrupted append leaves.
    assert verify(PATH, storage=disk_with(journal_of(b"a") + bytes(69_999) + b"x")).tail is Tail.CORRUPT


@pytest.mark.parametrize(
    ("behind", "after"),
    [
        pytest.param(frame.encode(1, b"again"), 0, id="an old number"),
        pytest.param(frame.encode(4, b"jump"), 1, id="a number too far"),
        pytest.param(journal_of(b"a", b"b", b"c"), 1, id="the file twice"),
    ],
)
def test_a_whole_frame_with_the_wrong_number_is_not_a_record(behind: bytes, after: int) -> None:
    found = verify(PATH, storage=disk_with(journal_of(b"a", b"b") + behind))
    assert (found.records, found.tail, found.valid_after) == (2, Tail.CORRUPT, after)
    assert "was expected" in found.reason
    assert verify(PATH, storage=disk_with(journal_of(b"a", b"b") + frame.encode(3, b"c"))).ok


def test_an_append_behind_a_torn_record_by_something_else_is_told_from_a_torn_tail() -> None:
    torn = frame.encode(2, bytes(1000))[:100]
    found = verify(PATH, storage=disk_with(journal_of(b"a") + torn + frame.encode(3, b"behind it")))
    assert (found.records, found.tail, found.valid_after) == (1, Tail.CORRUPT, 1)
    assert "ends beyond the file although later records follow" in found.reason
    assert verify(PATH, storage=disk_with(journal_of(b"a") + torn)).tail is Tail.TORN


def test_records_behind_much_damage_are_found_wherever_they_lie() -> None:
    # The search reads 64 KiB at a time; the magic bytes may straddle two parts.
    for gap in range(65_536 - 30, 65_536 + 6):
        content = journal_of(b"a") + b"\xf1" * gap + frame.encode(7, b"far away")
        found = verify(PATH, storage=disk_with(content))
        assert (found.records, found.valid_after) == (1, 1), gap


def test_a_head_that_claims_too_much_is_corrupt_and_costs_no_memory() -> None:
    disk = disk_with(journal_of(b"a") + frame.encode(2, bytes(frame.BODY_BYTES_MAX))[:40])
    assert verify(PATH, storage=disk).tail is Tail.TORN  # the control: the largest length that is allowed
    monster = bytearray(frame.encode(2, b"b"))
    monster[4:8] = (frame.BODY_BYTES_MAX + 1).to_bytes(4, "big")
    monster[20:24] = google_crc32c.value(bytes(monster[:20])).to_bytes(4, "big")
    assert verify(PATH, storage=disk_with(journal_of(b"a") + monster)).tail is Tail.CORRUPT


@pytest.mark.parametrize("length", [0, 3, 20, 40, 70_000])
def test_a_file_that_is_cut_while_it_is_read_ends_the_reading(length: int) -> None:
    # A repair by another process: the size was asked for before it, the bytes after.
    whole = journal_of(b"a", b"b") + b"x" * 70_000
    reads = 0

    class Shrinking(Disk):
        def read(self, handle: int, offset: int, size: int) -> bytes:
            nonlocal reads
            reads += 1
            return super().read(handle, offset, max(0, min(size, length - offset)))

    disk = Shrinking()
    disk.put(PATH, whole)
    found = verify(PATH, storage=disk)
    assert found.records == sum(1 for end in (len(journal_of(b"a")), len(journal_of(b"a", b"b"))) if end <= length)
    assert found.tail is not Tail.NONE
    assert 0 < reads < 20
    assert verify(PATH, storage=disk_with(whole)).records == 2


def test_a_frame_of_another_format_is_not_read_although_its_checks_hold() -> None:
    other = bytearray(frame.encode(2, b"b"))
    other[:4] = b"\xf1TJ2"
    other[20:24] = google_crc32c.value(bytes(other[:20])).to_bytes(4, "big")
    found = verify(PATH, storage=disk_with(journal_of(b"a") + other))
    assert (found.records, found.tail) == (1, Tail.CORRUPT)


def test_dump_shows_records_tail_and_what_lies_behind_it() -> None:
    whole = bytearray(journal_of(b'{"type": "receipt"}', b"\xff\x00", b'{"n": 1}', b"[1]"))
    third = len(journal_of(b'{"type": "receipt"}', b"\xff\x00"))
    whole[third + 30] ^= 1
    shown = list(dump(PATH, storage=disk_with(bytes(whole))))
    assert [entry["entry"] for entry in shown] == ["record", "record", "tail", "record"]
    assert shown[0] == {
        "entry": "record",
        "offset": 0,
        "sequence": 1,
        "bytes": 19,
        "verified": True,
        "json": {"type": "receipt"},
        "base64": None,
    }
    assert (shown[1]["json"], shown[1]["base64"]) == (None, "/wA=")
    assert shown[2] == {
        "entry": "tail",
        "offset": third,
        "bytes": len(whole) - third,
        "tail": "corrupt",
        "reason": f"the checksum of record 3 at byte {third} does not match",
        "valid_after": 1,
    }
    assert (shown[3]["sequence"], shown[3]["verified"], shown[3]["base64"]) == (4, False, "WzFd")


def test_dump_reads_a_quarantined_tail() -> None:
    whole = bytearray(journal_of(b"a", b'{"n": 2}', b'{"n": 3}'))
    whole[2] ^= 1
    disk = disk_with(bytes(whole))
    done = repair(PATH, storage=disk)
    assert done.quarantine is not None
    shown = list(dump(done.quarantine, storage=disk))
    assert [(entry["sequence"], entry["json"]) for entry in shown[1:]] == [(2, {"n": 2}), (3, {"n": 3})]
    assert not any(entry.get("verified") for entry in shown)


def test_reading_needs_a_regular_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # opening it to read would wait for a writer
    for look in (read, verify, lambda path: list(dump(path))):
        with pytest.raises(NotFound):
            look(tmp_path / "missing.journal")
        for wrong in (tmp_path, pipe):
            with pytest.raises(Invalid) as refused:
                look(wrong)
            assert refused.value.code == "JOURNAL_NOT_PLAIN"


def test_a_live_journal_can_be_read_and_keeps_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "live.journal"
    with Journal.open(path) as journal:
        journal.append(b"a")
        assert [record.body for record in read(path).records] == [b"a"]
        assert [record.body for record in journal.records()] == [b"a"]
        # Closing the reader's descriptor must not have let go of the lock.
        with pytest.raises(Exception, match="is held by process") as refused:
            Journal.open(path)
        assert refused.value.code == "JOURNAL_LOCKED"
        assert journal.append(b"b") == 2
