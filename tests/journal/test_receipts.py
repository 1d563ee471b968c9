"""Receipts kept while the database is gone, and handed in when it is back."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.errors import Conflict, Invalid, LeaseLost, NotFound, TenureError, Unavailable
from tenure.journal import HandIn, Journal, ReceiptJournal, dump, frame, hand_in, read, repair
from tenure.journal.receipts import HandedIn, Receipt, decode, encode_handed_in, encode_receipt
from tenure.rules.outcome import Absent, Accepted, Declined, Evidence, NoAnswer
from tests.journal.disk import Disk, fail_at

CHILD = Path(__file__).with_name("child.py")
ATTEMPT = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
GOOD = encode_receipt(Receipt("send:1", ATTEMPT, Absent(), datetime(2026, 1, 2, tzinfo=UTC)))


class Desk:
    """Takes receipts as the database would: remembers them, and answers some keys with an error."""

    def __init__(self, answers: dict[str, BaseException] | None = None) -> None:
        self.answers = answers or {}
        self.taken: list[tuple[str, Evidence, UUID]] = []

    def __call__(self, key: str, evidence: Evidence, attempt: UUID) -> None:
        answer = self.answers.get(key)
        if answer is not None:
            raise answer
        self.taken.append((key, evidence, attempt))

    @property
    def keys(self) -> list[str]:
        return [key for key, _, _ in self.taken]


def kept(directory: Path, *keys: str) -> Path:
    """Leave what a process leaves that is gone: a file with a receipt for each key."""
    journal = ReceiptJournal(directory)
    for key in keys:
        journal.append_receipt(key, ATTEMPT, Accepted({"for": key}))
    journal.close()
    return journal.path


def counts(report: HandIn) -> tuple[int, int, int, int]:
    return report.handed_in, len(report.refused), len(report.skipped_files), len(report.torn_files)


# What is written.


@pytest.mark.parametrize(
    ("evidence", "written"),
    [
        (Accepted({"id": "r-1", "total": 2**70}), {"kind": "accepted", "receipt": {"id": "r-1", "total": 2**70}}),
        (Accepted(), {"kind": "accepted", "receipt": None}),
        (Declined("no funds"), {"kind": "declined", "reason": "no funds"}),
        (Absent(), {"kind": "absent"}),
        (NoAnswer("timeout"), {"kind": "no_answer", "reason": "timeout"}),
    ],
)
def test_a_receipt_is_written_with_its_identity_and_nothing_else(
    tmp_path: Path, evidence: Evidence, written: dict[str, object]
) -> None:
    before = datetime.now(UTC)
    with ReceiptJournal(tmp_path / "journal") as journal:
        assert journal.append_receipt("send:17", ATTEMPT, evidence) == 1
        assert journal.path.name.startswith(f"receipts-{os.getpid()}-")
        (record,) = read(journal.path).records
        entry = json.loads(record.body)
        at = datetime.fromisoformat(entry.pop("at"))
        assert before <= at <= datetime.now(UTC)
        assert entry == {
            "type": "receipt",
            "operation_key": "send:17",
            "attempt_id": str(ATTEMPT),
            "evidence": written,
        }
        desk = Desk()
        assert journal.hand_in(desk).handed_in == 1
        assert desk.taken == [("send:17", evidence, ATTEMPT)]
        (_, note) = read(journal.path).records
        assert json.loads(note.body) == {"type": "handed_in", "sequence": 1, "refused": None}


@settings(max_examples=60)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=20,
    )
)
def test_every_receipt_that_is_taken_comes_back_as_it_was(receipt: object) -> None:
    one = Receipt("send:1", ATTEMPT, Accepted(receipt), datetime(2026, 1, 2, tzinfo=UTC))
    try:
        body = encode_receipt(one)
    except Invalid:
        assert "\\u0000" in json.dumps(receipt), "only NUL is refused among these"
    else:
        assert decode(body) == one


def test_a_receipt_that_is_not_json_is_refused_without_showing_it(tmp_path: Path) -> None:
    with ReceiptJournal(tmp_path / "journal") as journal:
        for wrong in ({"secret": {1: "x"}}, {"secret": float("nan")}, {"secret": {"marker"}}, b"marker"):
            with pytest.raises(Invalid) as refused:
                journal.append_receipt("send:17", ATTEMPT, Accepted(wrong))
            assert "marker" not in str(refused.value)
        assert journal.append_receipt("send:17", ATTEMPT, Accepted({"fine": [1, None]})) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[" * 5000,
        b"[]",
        b'{"type": "letter"}',
        GOOD.replace(b"01890a5d-ac96-774b-bcce-b302099a8057", b"not an id"),
        GOOD.replace(b'"absent"', b'"hope"'),
        GOOD.replace(b"2026-01-02", b"yesterday"),
        GOOD.replace(b'"operation_key"', b'"key"'),
        b'{"type": "handed_in", "sequence": "1", "refused": null}',
        b'{"type": "handed_in", "sequence": 1, "refused": 5}',
    ],
)
def test_a_record_that_is_neither_of_the_two_is_told_so(body: bytes) -> None:
    with pytest.raises(Invalid) as refused:
        decode(body)
    assert refused.value.code == "JOURNAL_RECORD_UNREADABLE"
    assert isinstance(decode(GOOD), Receipt)
    assert decode(encode_handed_in(HandedIn(1, None))) == HandedIn(1, None)


# Handing in.


def test_a_dead_processs_receipts_are_handed_in_once_and_its_file_removed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, CHILD, "keep", str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            path = Path(process.stdout.readline().split()[1])
            desk = Desk()
            report = hand_in(tmp_path, desk)
            assert (counts(report), desk.taken) == ((0, 0, 1, 0), [])
            assert report.skipped_files == [path]
            process.send_signal(signal.SIGKILL)
            process.wait(30)
        finally:
            process.kill()
    report = hand_in(tmp_path, desk)
    assert counts(report) == (2, 0, 0, 0)
    assert desk.taken == [(f"send:{n}", Accepted({"id": n}), UUID(int=n)) for n in (1, 2)]
    assert report.removed_files == [path]
    assert not path.exists()
    assert counts(hand_in(tmp_path, desk)) == (0, 0, 0, 0)
    assert len(desk.taken) == 2


def test_a_process_that_dies_between_commit_and_note_leaves_the_receipt_to_be_given_again(tmp_path: Path) -> None:
    path = kept(tmp_path, "send:1", "send:2")
    done = subprocess.run(
        [sys.executable, CHILD, "hand", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "committed send:1\n")
    desk = Desk()
    assert counts(hand_in(tmp_path, desk)) == (2, 0, 0, 0)
    assert desk.keys == ["send:1", "send:2"]
    assert not path.exists()


def test_the_own_file_is_handed_in_while_it_is_open_and_stays(tmp_path: Path) -> None:
    desk = Desk()
    with ReceiptJournal(tmp_path) as journal:
        journal.append_receipt("send:1", ATTEMPT, Accepted(1))
        assert counts(hand_in(tmp_path, desk)) == (0, 0, 1, 0), "without being told, it is anybody's"
        report = journal.hand_in(desk)
        assert (counts(report), report.removed_files) == ((1, 0, 0, 0), [])
        assert counts(journal.hand_in(desk)) == (0, 0, 0, 0)
        journal.append_receipt("send:2", ATTEMPT, Accepted(2))
        assert counts(journal.hand_in(desk)) == (1, 0, 0, 0)
        assert desk.keys == ["send:1", "send:2"]
        assert journal.path.exists()
    assert hand_in(tmp_path, desk).removed_files == [journal.path]


def test_a_refused_receipt_is_given_once_kept_and_reported_by_every_pass(tmp_path: Path) -> None:
    path = kept(tmp_path, "send:1", "send:2", "send:3")
    desk = Desk({"send:2": Conflict("another meaning", code="EVIDENCE_CONFLICT")})
    report = hand_in(tmp_path, desk)
    assert counts(report) == (2, 1, 0, 0)
    (refused,) = report.refused
    assert (refused.path, refused.sequence, refused.operation_key) == (path, 2, "send:2")
    assert refused.code == "EVIDENCE_CONFLICT"
    assert desk.keys == ["send:1", "send:3"]

    desk = Desk()  # it would take it now, and is not asked: a person decides
    for _ in range(2):
        again = hand_in(tmp_path, desk)
        assert again.refused == report.refused
        assert (again.handed_in, again.removed_files, desk.taken) == (0, [], [])
    assert path.exists()
    assert [entry["json"]["refused"] for entry in dump(path) if entry["json"]["type"] == "handed_in"] == [
        None,
        "EVIDENCE_CONFLICT",
        None,
    ]
    path.unlink()  # the person is done
    assert counts(hand_in(tmp_path, desk)) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    "error",
    [NotFound("no such key"), LeaseLost("stale", reason="attempt"), TenureError("something")],
    ids=lambda error: type(error).__name__,
)
def test_every_error_but_unavailable_refuses_one_receipt_and_not_the_others(tmp_path: Path, error: TenureError) -> None:
    kept(tmp_path, "send:1", "send:2")
    desk = Desk({"send:1": error})
    report = hand_in(tmp_path, desk)
    assert ([refused.code for refused in report.refused], desk.keys) == ([error.code], ["send:2"])
    assert report.stopped is None


def test_a_database_that_is_gone_stops_the_pass_and_nothing_is_noted(tmp_path: Path) -> None:
    first, second = sorted((kept(tmp_path, "a:1", "a:2"), kept(tmp_path, "a:1", "a:2")))
    sizes = [path.stat().st_size for path in (first, second)]
    asked: list[str] = []

    def gone(key: str, evidence: Evidence, attempt: UUID) -> None:
        asked.append(key)
        raise Unavailable("no answer", code="STORE_BUSY")

    report = hand_in(tmp_path, gone)
    assert (report.stopped, asked) == ("STORE_BUSY", ["a:1"])
    assert counts(report) == (0, 0, 0, 0)
    assert [path.stat().st_size for path in (first, second)] == sizes
    desk = Desk()
    assert counts(hand_in(tmp_path, desk)) == (4, 0, 0, 0)
    assert desk.keys == ["a:1", "a:2", "a:1", "a:2"]


def test_a_fault_of_the_program_is_raised_and_lets_go_of_the_file(tmp_path: Path) -> None:
    kept(tmp_path, "send:1")
    with pytest.raises(ZeroDivisionError):
        hand_in(tmp_path, Desk({"send:1": ZeroDivisionError()}))
    desk = Desk()
    assert counts(hand_in(tmp_path, desk)) == (1, 0, 0, 0)


def test_a_tail_torn_by_a_kill_is_repaired_and_the_receipts_before_it_handed_in(tmp_path: Path) -> None:
    path = kept(tmp_path, "send:1")
    size = path.stat().st_size
    rest = frame.encode(2, b"{}")[:20]
    with path.open("ab") as file:
        file.write(rest)
    desk = Desk()
    report = hand_in(tmp_path, desk)
    assert (counts(report), desk.keys) == ((1, 0, 0, 0), ["send:1"])
    assert (report.repaired_files, report.removed_files) == ([path], [path])
    assert (tmp_path / f"tail-{size}.quarantine").read_bytes() == rest


def test_a_damaged_file_is_left_for_a_person_and_does_not_hold_up_the_others(tmp_path: Path) -> None:
    damaged = kept(tmp_path, "send:1", "send:2")
    content = bytearray(damaged.read_bytes())
    content[40] ^= 1
    damaged.write_bytes(content)
    for _ in range(2):
        kept(tmp_path, "send:3")
        desk = Desk()
        report = hand_in(tmp_path, desk)
        assert (counts(report), desk.keys) == ((1, 0, 0, 1), ["send:3"])
        assert (report.torn_files[0].path, report.torn_files[0].code) == (damaged, "JOURNAL_TORN")
        assert damaged.read_bytes() == content
    done = repair(damaged)
    assert done.valid_after == 1
    desk = Desk()
    assert counts(hand_in(tmp_path, desk)) == (0, 0, 0, 0)


def test_a_linked_file_is_left_for_a_person(tmp_path: Path) -> None:
    elsewhere = kept(tmp_path / "elsewhere", "send:1")
    directory = tmp_path / "journal"
    directory.mkdir()
    (directory / "receipts-1-link.journal").symlink_to(elsewhere)
    kept(directory, "send:2")
    (directory / "notes.txt").write_text("not a journal")
    desk = Desk()
    report = hand_in(directory, desk)
    assert ([left.code for left in report.torn_files], desk.keys) == (["JOURNAL_NOT_PLAIN"], ["send:2"])


def test_an_unreadable_record_is_refused_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "receipts-1-future.journal"
    with Journal.open(path) as journal:
        journal.append(b'{"type": "from a newer version"}')
        journal.append(GOOD)
    desk = Desk()
    for _ in range(2):
        report = hand_in(tmp_path, desk)
        assert [(refused.sequence, refused.operation_key, refused.code) for refused in report.refused] == [
            (1, None, "JOURNAL_RECORD_UNREADABLE")
        ]
    assert desk.keys == ["send:1"]
    assert len(read(path).records) == 4


def test_a_missing_directory_is_an_error_for_a_pass_and_made_for_a_writer(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        hand_in(tmp_path / "a" / "b", Desk())
    with ReceiptJournal(tmp_path / "a" / "b") as journal:
        assert journal.hand_in(Desk()) == HandIn()
    assert list((tmp_path / "a" / "b").iterdir()) == [], "an empty file is not left behind"
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(Invalid) as refused:
            ReceiptJournal(wrong)
        assert refused.value.code == "JOURNAL_NOT_A_DIRECTORY"


def test_the_directory_stays_where_it_was_when_the_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    desk = Desk()
    with ReceiptJournal("journal") as journal:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        journal.append_receipt("send:1", ATTEMPT, Absent())
        assert counts(journal.hand_in(desk)) == (1, 0, 0, 0)
    assert journal.path.parent == tmp_path / "journal"


def test_the_open_journal_must_be_of_the_same_directory(tmp_path: Path) -> None:
    with ReceiptJournal(tmp_path / "a") as journal:
        (tmp_path / "b").mkdir()
        with pytest.raises(Invalid):
            hand_in(tmp_path / "b", Desk(), own=journal)
        assert hand_in(tmp_path / "a", Desk(), own=journal) == HandIn()


def test_a_file_that_another_pass_takes_away_is_no_trouble() -> None:
    disk = Disk()
    directory = Path("/disk/journal")
    for number in (1, 2):
        disk.put(directory / f"receipts-{number}-x.journal", frame.encode(1, GOOD))

    def remove_before_the_open(name: str, nth: int) -> None:
        if (name, nth) == ("open", 1):
            disk.remove(directory / "receipts-1-x.journal")

    disk.before = remove_before_the_open
    desk = Desk()
    assert counts(hand_in(directory, desk, storage=disk)) == (1, 0, 0, 0)
    assert desk.keys == ["send:1"]


def test_a_file_that_another_pass_repairs_first_is_no_trouble() -> None:
    disk = Disk()
    path = Path("/disk/journal/receipts-1-x.journal")
    disk.put(path, frame.encode(1, GOOD) + b"\xf1")

    def repair_before_we_look_again(name: str, nth: int) -> None:
        if (name, nth) == ("open", 2):
            repair(path, storage=disk)

    disk.before = repair_before_we_look_again
    report = hand_in(path.parent, Desk(), storage=disk)
    assert (counts(report), report.repaired_files) == ((1, 0, 0, 0), [])


@pytest.mark.parametrize(("method", "given"), [("sync_directory", 1), ("write", 2), ("remove", 2)])
def test_a_file_on_which_the_disk_fails_is_reported_and_the_others_are_handed_in(method: str, given: int) -> None:
    disk = Disk()
    directory = Path("/disk/journal")
    for number in (1, 2):
        disk.put(directory / f"receipts-{number}-x.journal", frame.encode(1, GOOD))
    # The first file is opened (one write), noted (another), removed.
    disk.before = fail_at(method, 2 if method == "write" else 1, errno.EIO)
    desk = Desk()
    report = hand_in(directory, desk, storage=disk)
    assert [(left.path.name, left.code) for left in report.torn_files] == [("receipts-1-x.journal", "JOURNAL_IO")]
    assert len(desk.taken) == given
    assert [path.name for path in report.removed_files] == ["receipts-2-x.journal"]
    assert hand_in(directory, desk, storage=disk).torn_files == []
    assert disk.content(directory / "receipts-1-x.journal") is None


# The process's own file.


def test_after_a_failed_sync_the_next_receipt_goes_to_a_new_file_and_none_is_lost() -> None:
    disk = Disk()
    directory = Path("/disk/journal")
    journal = ReceiptJournal(directory, storage=disk)
    journal.append_receipt("send:1", ATTEMPT, Accepted(1))
    first = journal.path
    disk.before = fail_at("sync", disk.calls["sync"] + 1, errno.EIO)
    with pytest.raises(Unavailable) as failed:
        journal.append_receipt("send:2", ATTEMPT, Accepted(2))
    assert failed.value.code == "JOURNAL_IO"
    assert journal.faults == 1
    journal.append_receipt("send:3", ATTEMPT, Accepted(3))
    assert journal.path != first
    assert journal.faults == 1
    desk = Desk()
    report = journal.hand_in(desk)
    # The second was not acknowledged; it was whole in memory, it is true, and so it is handed in as well.
    assert sorted(desk.keys) == ["send:1", "send:2", "send:3"]
    assert report.removed_files == [first]
    journal.close()


def test_a_full_disk_leaves_no_heap_of_empty_files_and_service_resumes() -> None:
    disk = Disk()
    directory = Path("/disk/journal")
    journal = ReceiptJournal(directory, storage=disk)
    disk.room = 10
    for _ in range(5):
        with pytest.raises(Unavailable) as failed:
            journal.append_receipt("send:1", ATTEMPT, Accepted(1))
        assert failed.value.code == "JOURNAL_FULL"
    assert journal.faults == 5
    assert len(disk.paths()) == 1
    disk.room = None
    assert journal.append_receipt("send:1", ATTEMPT, Accepted(1)) == 1
    desk = Desk()
    assert counts(journal.hand_in(desk)) == (1, 0, 0, 0)
    assert desk.keys == ["send:1"]
    assert disk.paths() == [journal.path]
    journal.close()


def test_a_pass_on_a_full_disk_says_so_and_the_next_one_ends_it() -> None:
    disk = Disk()
    directory = Path("/disk/journal")
    with ReceiptJournal(directory, storage=disk) as journal:
        journal.append_receipt("send:1", ATTEMPT, Accepted(1))
        disk.room = 0
        desk = Desk()
        report = journal.hand_in(desk)
        assert [left.code for left in report.torn_files] == ["JOURNAL_FULL"]
        assert report.handed_in == 1
        disk.room = None
        report = journal.hand_in(desk)
        assert counts(report) == (1, 0, 0, 0)
        assert desk.keys == ["send:1", "send:1"], "it could not be noted, so it was given again"
        assert counts(journal.hand_in(desk)) == (0, 0, 0, 0)


def test_a_new_file_that_cannot_be_made_is_reported_by_the_pass(tmp_path: Path) -> None:
    disk = Disk()
    journal = ReceiptJournal(Path("/disk/journal"), storage=disk)
    disk.before = fail_at("sync", disk.calls["sync"] + 1, errno.EIO)
    with pytest.raises(Unavailable):
        journal.append_receipt("send:1", ATTEMPT, Accepted(1))
    disk.before = fail_at("open", disk.calls["open"] + 1, errno.EMFILE)
    report = journal.hand_in(Desk())
    assert [left.code for left in report.torn_files] == ["JOURNAL_IO"]
    assert journal.faults == 1
    desk = Desk()
    assert counts(journal.hand_in(desk)) == (1, 0, 0, 0)
    journal.close()


def test_a_large_file_is_left_for_a_new_one_once_all_in_it_is_handed_in(tmp_path: Path) -> None:
    desk = Desk()
    with ReceiptJournal(tmp_path, rotate_bytes=500) as journal:
        first = journal.path
        for number in range(4):
            journal.append_receipt(f"send:{number}", ATTEMPT, Accepted(number))
        journal.hand_in(Desk({"send:0": Unavailable("gone")}))
        assert journal.path == first, "not before all is handed in"
        journal.hand_in(desk)
        assert journal.path != first
        journal.append_receipt("send:4", ATTEMPT, Accepted(4))
        assert journal.hand_in(desk).removed_files == [first]
        assert desk.keys == [f"send:{number}" for number in range(5)]
        assert journal.faults == 0


def test_receipts_of_many_threads_are_kept_while_others_are_handed_in(tmp_path: Path) -> None:
    desk = Desk()
    with ReceiptJournal(tmp_path, rotate_bytes=2000) as journal:

        def some(thread: int) -> None:
            for turn in range(10):
                journal.append_receipt(f"send:{thread}-{turn}", uuid4(), Accepted(turn))

        workers = [threading.Thread(target=some, args=(thread,)) for thread in range(4)]
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):
            journal.hand_in(desk)
        for worker in workers:
            worker.join(30)
        while journal.hand_in(desk).handed_in:
            pass
    assert sorted(desk.keys) == sorted(f"send:{thread}-{turn}" for thread in range(4) for turn in range(10))


def test_a_closed_journal_takes_no_receipts(tmp_path: Path) -> None:
    journal = ReceiptJournal(tmp_path)
    journal.close()
    journal.close()
    uses: list[Callable[[], object]] = [
        lambda: journal.append_receipt("send:1", ATTEMPT, Absent()),
        lambda: journal.hand_in(Desk()),
    ]
    for use in uses:
        with pytest.raises(Invalid) as refused:
            use()
        assert refused.value.code == "JOURNAL_CLOSED"
    with ReceiptJournal(tmp_path) as other:
        assert other.append_receipt("send:1", ATTEMPT, Absent()) == 1
