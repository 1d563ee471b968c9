"""Repair: the tail is kept byte for byte, the journal goes on, and stopping anywhere costs nothing."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tenure.errors import Invalid, NotFound, Refused, TenureError, Unavailable
from tenure.journal import Journal, Tail, frame, read, repair, verify
from tests.journal.disk import Disk, fail_at

PATH = Path("/disk/some.journal")
A, B, C = (frame.encode(number, body) for number, body in enumerate((b"A", b"B", b"C"), start=1))


def bodies(path: Path) -> list[bytes]:
    return [record.body for record in read(path).records]


def test_the_record_after_a_torn_one_is_not_lost_wherever_it_was_torn(tmp_path: Path) -> None:
    for torn in range(1, len(C)):
        directory = tmp_path / str(torn)
        directory.mkdir()
        path = directory / "a.journal"
        path.write_bytes(A + B + C[:torn])
        with pytest.raises(Refused):
            Journal.open(path)
        done = repair(path)
        assert (done.repaired, done.records, done.tail) == (True, 2, Tail.TORN)
        assert (done.verified_bytes, done.quarantined_bytes, done.valid_after) == (len(A + B), torn, 0)
        assert done.quarantine == directory / f"tail-{len(A + B)}.quarantine"
        assert done.quarantine.read_bytes() == C[:torn]
        assert path.read_bytes() == A + B
        with Journal.open(path) as journal:
            assert journal.append(b"D") == 3
        assert bodies(path) == [b"A", b"B", b"D"]
        assert sorted(entry.name for entry in directory.iterdir()) == ["a.journal", done.quarantine.name]


def test_a_healthy_journal_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(A + B)
    done = repair(path)
    assert (done.repaired, done.quarantine, done.quarantined_bytes, done.tail) == (False, None, 0, Tail.NONE)
    assert path.read_bytes() == A + B
    assert list(tmp_path.iterdir()) == [path]


def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(A + b"rest")
    assert repair(path).repaired
    files = {entry: entry.read_bytes() for entry in tmp_path.iterdir()}
    assert not repair(path).repaired
    assert {entry: entry.read_bytes() for entry in tmp_path.iterdir()} == files


def test_records_behind_damage_are_counted_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    damaged = bytearray(B)
    damaged[-1] ^= 1
    path.write_bytes(A + damaged + C)
    done = repair(path)
    assert (done.tail, done.records, done.valid_after) == (Tail.CORRUPT, 1, 1)
    assert done.quarantine is not None
    assert done.quarantine.read_bytes() == damaged + C
    assert "checksum of record 2" in done.reason


def test_a_long_tail_is_copied_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    tail = frame.encode(2, bytes(range(256)) * 12_000)[:-1]  # nearly three of the pieces it is copied in
    path.write_bytes(A + tail)
    done = repair(path)
    assert done.quarantine is not None
    assert done.quarantine.read_bytes() == tail
    assert path.read_bytes() == A


@pytest.mark.parametrize(
    ("there", "name"),
    [
        pytest.param(b"other bytes", "tail-{}-2.quarantine", id="another journal's tail"),
        pytest.param(C[:9] + b"more", "tail-{}-2.quarantine", id="a longer one that begins like ours"),
        pytest.param(C[:4], "tail-{}.quarantine", id="what an earlier run had begun"),
        pytest.param(C[:9], "tail-{}.quarantine", id="what an earlier run had finished"),
        pytest.param(b"", "tail-{}.quarantine", id="the bare name"),
    ],
)
def test_a_quarantine_file_that_is_there_is_completed_or_left_alone(tmp_path: Path, there: bytes, name: str) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(A + B + C[:9])
    first = tmp_path / f"tail-{len(A + B)}.quarantine"
    first.write_bytes(there)
    done = repair(path)
    assert done.quarantine == tmp_path / name.format(len(A + B))
    assert done.quarantine.read_bytes() == C[:9]
    if done.quarantine != first:
        assert first.read_bytes() == there


def test_a_quarantine_name_that_is_held_or_linked_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(A + B[:9])
    (tmp_path / f"tail-{len(A)}.quarantine").symlink_to(path)
    with Journal.open(tmp_path / f"tail-{len(A)}-2.quarantine"):
        done = repair(path)
    assert done.quarantine == tmp_path / f"tail-{len(A)}-3.quarantine"
    assert done.quarantine.read_bytes() == B[:9]
    assert path.read_bytes() == A


def test_a_journal_in_use_is_not_repaired(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with Journal.open(path) as journal:
        journal.append(b"A")
        with path.open("ab") as intruder:
            intruder.write(b"rest")
        with pytest.raises(Unavailable) as refused:
            repair(path)
        assert refused.value.code == "JOURNAL_LOCKED"
        assert path.read_bytes() == A + b"rest"
    assert repair(path).repaired
    assert path.read_bytes() == A


@pytest.mark.parametrize(
    "content",
    [
        b"root:x:0:0:root:/root:/bin/sh\n" * 40,
        b"{}",
        b"\xf0" + A[1:],
        b"\xf1TJ",
        A[:-1],
        b"\0\0\0",
        bytes(512) + b"the second sector",
        b"\0" + A[1:],
    ],
)
def test_a_file_that_is_no_journal_is_not_emptied(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "passwd"
    path.write_bytes(content)
    if content.startswith((b"\xf1", b"\0")):  # the control: these are what an interrupted first append leaves
        assert repair(path).quarantined_bytes == len(content)
        assert path.read_bytes() == b""
        return
    with pytest.raises(Invalid) as refused:
        repair(path)
    assert refused.value.code == "JOURNAL_UNRECOGNISED"
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_links_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(A + b"rest")
    (tmp_path / "soft").symlink_to(path)
    (tmp_path / "hard").hardlink_to(path)
    for wrong in (tmp_path / "soft", tmp_path / "hard", path):
        with pytest.raises(Invalid) as refused:
            repair(wrong)
        assert refused.value.code == "JOURNAL_NOT_PLAIN"
    with pytest.raises(NotFound):
        repair(tmp_path / "missing")
    (tmp_path / "hard").unlink()
    assert repair(path).repaired


def test_the_tail_is_durable_elsewhere_before_it_is_cut_off() -> None:
    disk = Disk()
    disk.put(PATH, A + B[:20])
    states: list[bytes | None] = []

    def look(name: str, nth: int) -> None:
        if name == "truncate":
            states.append(disk.durable_content(PATH.with_name(f"tail-{len(A)}.quarantine")))

    disk.before = look
    repair(PATH, storage=disk)
    assert states == [B[:20]]
    assert disk.durable_content(PATH) == A


@pytest.mark.parametrize("method", ["open", "lock", "facts", "read", "write", "sync", "sync_directory", "truncate"])
def test_a_repair_that_fails_anywhere_loses_nothing_and_succeeds_the_next_time(method: str) -> None:
    nth = 0
    failures = 0
    while True:
        nth += 1
        disk = Disk()
        disk.put(PATH, A + B[:20])
        disk.before = fail_at(method, nth, errno.EIO)
        codes = []
        try:
            repair(PATH, storage=disk)
        except TenureError as error:
            codes.append(error.code)
        if not codes:
            break
        assert codes == ["JOURNAL_IO"]
        failures += 1
        quarantine = PATH.with_name(f"tail-{len(A)}.quarantine")
        assert B[:20] in (disk.content(PATH)[len(A) :], disk.durable_content(quarantine))
        disk.before = lambda name, nth: None
        repair(PATH, storage=disk)
        assert disk.durable_content(PATH) == A
        assert disk.durable_content(quarantine) == B[:20]
    assert failures >= 1


def test_verification_tells_how_much_a_repair_would_take_away(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(A + B[:20])
    found = verify(path)
    assert (found.records, found.verified_bytes, found.file_bytes, found.ok) == (1, len(A), len(A) + 20, False)
    done = repair(path)
    assert (done.records, done.verified_bytes, done.quarantined_bytes) == (1, len(A), 20)
    assert verify(path).ok
