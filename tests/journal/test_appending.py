"""What `Journal` takes, what it refuses, and that an acknowledged record is durable."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.errors import Invalid, NotFound, Refused, TenureError, Unavailable
from tenure.journal import Journal, Tail, frame, hand_in, read, repair, storage, verify
from tests.journal.disk import Disk, fail_at

PATH = Path("/disk/some.journal")
CHILD = Path(__file__).with_name("child.py")


@contextlib.contextmanager
def child(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Start the other process, and end it whatever happens."""
    with subprocess.Popen(
        [sys.executable, CHILD, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def bodies(path: Path) -> list[bytes]:
    return [record.body for record in read(path).records]


def durable_bodies(disk: Disk) -> list[bytes]:
    after = Disk()
    after.put(PATH, disk.durable_content(PATH) or b"")
    return [record.body for record in read(PATH, storage=after).records]


def wait_until(condition: object, what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        threading.Event().wait(0.001)


# What is durable when.


def test_a_record_its_size_and_its_name_are_durable_when_append_returns() -> None:
    disk = Disk()
    with Journal.open(PATH, storage=disk) as journal:
        assert disk.durable_content(PATH) == b""
        for number in range(1, 4):
            assert journal.append(b"body %d" % number) == number
            assert durable_bodies(disk) == [b"body %d" % n for n in range(1, number + 1)]


def test_opening_makes_durable_what_a_dead_process_left_in_memory_only() -> None:
    disk = Disk()
    journal = Journal.open(PATH, storage=disk)
    journal.append(b"one")
    disk.before = fail_at("sync", disk.calls["sync"] + 1, errno.EIO)
    with pytest.raises(Unavailable):
        journal.append(b"two")
    journal.close()
    # The failed sync left the record readable, and marked clean: without the rewrite no later sync would write it.
    assert durable_bodies(disk) == [b"one"]
    with Journal.open(PATH, storage=disk) as again:
        assert durable_bodies(disk) == [b"one", b"two"]
        assert again.append(b"three") == 3
    assert durable_bodies(disk) == [b"one", b"two", b"three"]


def test_opening_an_existing_file_makes_its_name_durable() -> None:
    disk = Disk()
    disk.open(PATH, "create")  # by a process that died before it synced the directory
    disk.end_process()
    assert disk.durable_content(PATH) is None
    with Journal.open(PATH, storage=disk):
        assert disk.durable_content(PATH) == b""


def test_appends_of_many_threads_share_a_sync_and_each_is_durable_when_it_returns() -> None:
    disk = Disk()
    threads = 8
    first_sync_runs, let_it_end = threading.Event(), threading.Event()
    lost: list[int] = []

    with Journal.open(PATH, storage=disk) as journal:
        before = disk.calls["sync"]

        def hold_the_first_sync(name: str, nth: int) -> None:
            if (name, nth) == ("sync", before + 1):
                first_sync_runs.set()
                assert let_it_end.wait(30)

        disk.before = hold_the_first_sync

        def one(number: int) -> None:
            journal.append(b"by %d" % number)
            if b"by %d" % number not in durable_bodies(disk):
                lost.append(number)

        workers = [threading.Thread(target=one, args=(number,)) for number in range(threads)]
        workers[0].start()
        assert first_sync_runs.wait(30)
        for worker in workers[1:]:
            worker.start()
        wait_until(lambda: len(journal._queue) == threads - 1, "the others to queue")
        let_it_end.set()
        for worker in workers:
            worker.join(30)
        assert not lost
        assert disk.calls["sync"] - before == 2, "one sync for the first record, one for the seven that had gathered"
        assert sorted(durable_bodies(disk)) == [b"by %d" % number for number in range(threads)]


def test_threads_on_a_real_disk_lose_and_double_nothing(tmp_path: Path) -> None:
    path = tmp_path / "many.journal"

    numbers: dict[bytes, int] = {}
    with Journal.open(path) as journal:

        def some(thread: int) -> None:
            for turn in range(25):
                body = b"%d/%d" % (thread, turn)
                numbers[body] = journal.append(body)

        workers = [threading.Thread(target=some, args=(thread,)) for thread in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
    assert {record.body: record.sequence for record in read(path).records} == numbers
    assert sorted(numbers.values()) == list(range(1, 201))


# What is refused, each beside what is allowed.


def test_records_have_a_size_limit_and_the_journal_goes_on_after_a_refusal(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with Journal.open(path) as journal:
        with pytest.raises(Invalid, match="16777216") as refused:
            journal.append(bytes(frame.BODY_BYTES_MAX + 1))
        assert refused.value.code == "JOURNAL_RECORD_TOO_LARGE"
        with pytest.raises(Invalid) as refused:
            journal.append("text")  # type: ignore[arg-type]
        assert refused.value.code == "JOURNAL_RECORD_TYPE"
        assert journal.append(bytes(frame.BODY_BYTES_MAX)) == 1
    assert [len(body) for body in bodies(path)] == [frame.BODY_BYTES_MAX]


def test_a_link_or_another_kind_of_file_is_refused_and_a_plain_file_is_not(tmp_path: Path) -> None:
    plain = tmp_path / "plain.journal"
    with Journal.open(plain) as journal:
        journal.append(b"a")
    soft, hard, pipe = tmp_path / "soft", tmp_path / "hard", tmp_path / "pipe"
    soft.symlink_to(plain)
    os.mkfifo(pipe)
    for wrong in (soft, pipe, tmp_path):
        with pytest.raises(Invalid) as refused:
            Journal.open(wrong)
        assert refused.value.code == "JOURNAL_NOT_PLAIN", wrong
    Journal.open(plain).close()
    hard.hardlink_to(plain)
    for name in (plain, hard):
        with pytest.raises(Invalid, match="2 hard links") as refused:
            Journal.open(name)
        assert refused.value.code == "JOURNAL_NOT_PLAIN"
    hard.unlink()
    with Journal.open(plain) as journal:
        assert journal.append(b"b") == 2


def test_a_file_is_made_only_where_that_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as refused:
        Journal.open(tmp_path / "no" / "a.journal")
    assert refused.value.code == "JOURNAL_NOT_FOUND"
    with pytest.raises(NotFound):
        Journal.open(tmp_path / "a.journal", create=False)
    assert list(tmp_path.iterdir()) == []
    Journal.open(tmp_path / "a.journal").close()
    assert (tmp_path / "a.journal").stat().st_mode & 0o777 == 0o600
    Journal.open(tmp_path / "a.journal", create=False).close()


def test_a_damaged_tail_is_refused_with_the_command_that_repairs_it(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(frame.encode(1, b"a") + frame.encode(2, b"b")[:-1])
    before = path.read_bytes()
    with pytest.raises(Refused, match=f"run `tenure journal repair {path}`") as refused:
        Journal.open(path)
    assert refused.value.code == "JOURNAL_TORN"
    assert path.read_bytes() == before
    path.write_bytes(frame.encode(1, b"a") + frame.encode(2, b"b"))
    with Journal.open(path) as journal:
        assert journal.append(b"c") == 3


def test_a_second_process_is_refused_at_once_by_name_and_let_in_when_the_first_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with child("hold", path) as first:
        assert line(first) == "holding"
        took = []
        for _ in range(5):
            began = time.monotonic()
            with pytest.raises(Unavailable, match=rf"held by process {first.pid};") as refused:
                Journal.open(path)
            took.append(time.monotonic() - began)
            assert refused.value.code == "JOURNAL_LOCKED"
        assert min(took) < 0.1
        assert bodies(path) == [b"mine"]
        first.send_signal(signal.SIGKILL)
        first.wait(30)
        with Journal.open(path) as journal:
            assert journal.append(b"yours") == 2
    assert bodies(path) == [b"mine", b"yours"]


def test_a_forked_child_neither_uses_the_journal_nor_keeps_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with child("fork", path) as parent:
        said = [line(parent) for _ in range(7)]
        assert said[:6] == [*["child JOURNAL_FORKED"] * 4, "child done", "parent appended 2"]
        grandchild = int(said[6].removeprefix("child is "))
        try:
            # The child closed its journal, and the parent still holds it.
            with pytest.raises(Unavailable, match=rf"held by process {parent.pid};"):
                Journal.open(path)
            parent.send_signal(signal.SIGKILL)
            parent.wait(30)
            os.kill(grandchild, 0)  # it lives, and must not have inherited the lock
            with Journal.open(path) as journal:
                assert journal.append(b"by the next process") == 3
            given: list[str] = []
            report = hand_in(f"{path}.receipts", lambda key, evidence, attempt: given.append(key))
            assert (given, report.skipped_files) == (["by the parent"], [])
        finally:
            os.kill(grandchild, signal.SIGKILL)
    assert bodies(path) == [b"before the fork", b"after the fork", b"by the next process"]


def test_a_file_removed_between_opening_and_locking_is_not_the_journal() -> None:
    disk = Disk()
    disk.put(PATH, frame.encode(1, b"old"))

    def remove_before_the_lock(name: str, nth: int) -> None:
        if (name, nth) == ("lock", 1):
            disk.remove(PATH)

    disk.before = remove_before_the_lock
    with Journal.open(PATH, storage=disk) as journal:
        assert journal.append(b"new") == 1
    assert [record.body for record in read(PATH, storage=disk).records] == [b"new"]


def test_a_file_removed_at_every_try_is_not_found() -> None:
    disk = Disk()

    def remove_before_each_lock(name: str, nth: int) -> None:
        if name == "lock":
            disk.remove(PATH)

    disk.before = remove_before_each_lock
    with pytest.raises(NotFound) as refused:
        Journal.open(PATH, storage=disk)
    assert refused.value.code == "JOURNAL_NOT_FOUND"
    assert disk.calls["open"] == disk.calls["close"]


@pytest.mark.parametrize(
    ("table", "holder"),
    [
        ("1: FLOCK  ADVISORY  WRITE 4711 fe:0a:99 0 EOF", 4711),
        ("1: FLOCK  ADVISORY  WRITE 1 00:2b:99 0 EOF\n2: FLOCK  ADVISORY  WRITE 4711 fe:0a:99 0 EOF", 4711),
        ("1: FLOCK  ADVISORY  WRITE 4711 00:2b:99 0 EOF", 4711),  # the table and fstat disagree about the device
        ("1: FLOCK  ADVISORY  WRITE 1 00:2b:99 0 EOF\n2: FLOCK  ADVISORY  WRITE 2 00:2c:99 0 EOF", 0),
        ("1: POSIX  ADVISORY  WRITE 1 fe:0a:99 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 2 fe:0a:99 0 EOF", 0),
        ("1: FLOCK  ADVISORY  READ  1 fe:0a:99 0 EOF\n\n2: FLOCK  ADVISORY  WRITE 2 fe:0a:9 0 EOF", 0),
        ("", 0),
    ],
)
def test_the_holder_is_found_in_the_kernels_table(table: str, holder: int) -> None:
    assert storage.holder_in(table, 0xFE, 0x0A, 99) == holder


def test_a_holder_that_the_system_cannot_name_is_still_a_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.journal"
    with Journal.open(path):
        monkeypatch.setattr(storage, "_LOCK_TABLE", tmp_path / "no such table")
        with pytest.raises(Unavailable, match="another process") as refused:
            Journal.open(path)
        assert refused.value.code == "JOURNAL_LOCKED"
    Journal.open(path).close()


def test_a_closed_journal_takes_nothing(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "a.journal")
    assert journal.append(b"a") == 1
    journal.close()
    journal.close()
    with pytest.raises(Invalid) as refused:
        journal.append(b"b")
    assert refused.value.code == "JOURNAL_CLOSED"
    with pytest.raises(Invalid) as refused:
        list(journal.records())
    assert refused.value.code == "JOURNAL_CLOSED"
    assert bodies(tmp_path / "a.journal") == [b"a"]


def test_closing_finishes_what_is_being_written_and_refuses_what_waits() -> None:
    disk = Disk()
    journal = Journal.open(PATH, storage=disk)
    sync_runs, let_it_end = threading.Event(), threading.Event()
    before = disk.calls["sync"]

    def hold_the_sync(name: str, nth: int) -> None:
        if (name, nth) == ("sync", before + 1):
            sync_runs.set()
            assert let_it_end.wait(30)

    disk.before = hold_the_sync
    told: dict[str, object] = {}

    def append(name: str) -> None:
        try:
            told[name] = journal.append(name.encode())
        except TenureError as error:
            told[name] = error.code

    first, second = (threading.Thread(target=append, args=(name,)) for name in ("first", "second"))
    closer = threading.Thread(target=journal.close)
    first.start()
    assert sync_runs.wait(30)
    second.start()
    wait_until(lambda: len(journal._queue) == 1, "the second to queue")
    closer.start()
    wait_until(lambda: journal._closing, "the close to begin")
    let_it_end.set()
    for thread in (first, second, closer):
        thread.join(30)
    assert told == {"first": 1, "second": "JOURNAL_CLOSED"}
    assert durable_bodies(disk) == [b"first"]


def test_a_journal_that_nobody_closed_says_so_and_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with pytest.warns(ResourceWarning, match="was not closed"):
        Journal.open(path)
    Journal.open(path).close()


# When the disk says no.


@pytest.mark.parametrize("method", ["write", "sync"])
def test_after_a_failed_write_or_sync_nothing_is_acknowledged_any_more(method: str) -> None:
    disk = Disk()
    journal = Journal.open(PATH, storage=disk)
    assert [journal.append(b"1"), journal.append(b"2")] == [1, 2]
    disk.before = fail_at(method, disk.calls[method] + 1, errno.EIO)
    with pytest.raises(Unavailable) as failed:
        journal.append(b"3")
    assert failed.value.code == "JOURNAL_IO"
    assert journal.poisoned
    calls = disk.calls["write"] + disk.calls["sync"]
    for _ in range(3):
        with pytest.raises(Unavailable) as failed:
            journal.append(b"4")
        assert failed.value.code == "JOURNAL_POISONED"
    assert disk.calls["write"] + disk.calls["sync"] == calls, "a poisoned journal does not ask the disk again"
    assert [record.body for record in journal.records()] == [b"1", b"2"]
    journal.close()
    assert durable_bodies(disk) == [b"1", b"2"]
    # A new journal on the same file begins by reading it: the third is there as a whole, though unacknowledged, or not.
    with Journal.open(PATH, storage=disk) as again:
        seen = [record.body for record in again.records()]
        assert seen == ([b"1", b"2", b"3"] if method == "sync" else [b"1", b"2"])
        assert again.append(b"5") == len(seen) + 1


def test_threads_that_wait_while_the_sync_fails_are_all_told() -> None:
    disk = Disk()
    first_sync_runs, let_it_fail = threading.Event(), threading.Event()
    codes: list[str] = []
    with Journal.open(PATH, storage=disk) as journal:
        before = disk.calls["sync"]

        def fail_the_first_sync(name: str, nth: int) -> None:
            if (name, nth) == ("sync", before + 1):
                first_sync_runs.set()
                assert let_it_fail.wait(30)
                raise OSError(errno.EIO, "injected")

        disk.before = fail_the_first_sync

        def one() -> None:
            with pytest.raises(TenureError) as failed:
                journal.append(b"x")
            codes.append(failed.value.code)

        workers = [threading.Thread(target=one) for _ in range(4)]
        workers[0].start()
        assert first_sync_runs.wait(30)
        for worker in workers[1:]:
            worker.start()
        wait_until(lambda: len(journal._queue) == 3, "the others to queue")
        let_it_fail.set()
        for worker in workers:
            worker.join(30)
    # One was being written; the other three had not been begun and never are.
    assert sorted(codes) == ["JOURNAL_IO", "JOURNAL_POISONED", "JOURNAL_POISONED", "JOURNAL_POISONED"]
    assert len(read(PATH, storage=disk).records) == 1


def test_a_full_disk_is_a_typed_error_and_leaves_a_tail_that_repair_takes_away() -> None:
    one = frame.encode(1, b"first")
    for room in range(len(frame.encode(2, b"second"))):
        disk = Disk()
        disk.room = len(one) + room
        journal = Journal.open(PATH, storage=disk)
        assert journal.append(b"first") == 1
        with pytest.raises(Unavailable, match="make room") as failed:
            journal.append(b"second")
        assert failed.value.code == "JOURNAL_FULL", room
        with pytest.raises(Unavailable) as failed:
            journal.append(b"third")
        assert failed.value.code == "JOURNAL_POISONED"
        journal.close()
        found = verify(PATH, storage=disk)
        assert (found.records, found.tail) == (1, Tail.TORN if room else Tail.NONE), room
        if room:
            with pytest.raises(Unavailable) as failed:
                repair(PATH, storage=disk)  # its copy needs room too
            assert failed.value.code == "JOURNAL_FULL"
            assert verify(PATH, storage=disk).file_bytes == len(one) + room
        disk.room = None
        assert repair(PATH, storage=disk).quarantined_bytes == room
        with Journal.open(PATH, storage=disk) as again:
            assert again.append(b"second") == 2


def test_short_writes_are_completed() -> None:
    class Slow(Disk):
        def write(self, handle: int, offset: int, data: bytes) -> int:
            return super().write(handle, offset, data[:3])

    disk = Slow()
    with Journal.open(PATH, storage=disk) as journal:
        journal.append(b"longer than three bytes")
    assert durable_bodies(disk) == [b"longer than three bytes"]

    class Stuck(Disk):
        def write(self, handle: int, offset: int, data: bytes) -> int:
            return 0

    with Journal.open(PATH, storage=Stuck()) as journal, pytest.raises(Unavailable):
        journal.append(b"never")


def test_an_interrupted_append_poisons_and_does_not_hang_the_others() -> None:
    disk = Disk()

    def interrupt(name: str, nth: int) -> None:
        if name == "sync":
            raise KeyboardInterrupt

    with Journal.open(PATH, storage=disk) as journal:
        disk.before = interrupt
        with pytest.raises(KeyboardInterrupt):
            journal.append(b"a")
        with pytest.raises(Unavailable) as failed:
            journal.append(b"b")
        assert failed.value.code == "JOURNAL_POISONED"


def test_a_file_that_somebody_removed_acknowledges_nothing_more(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with Journal.open(path) as journal:
        assert journal.append(b"a") == 1
        path.unlink()
        with pytest.raises(Unavailable) as failed:
            journal.append(b"b")
        assert failed.value.code == "JOURNAL_IO"


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [
        (errno.EACCES, Invalid, "JOURNAL_ACCESS"),
        (errno.EROFS, Invalid, "JOURNAL_ACCESS"),
        (errno.EMFILE, Unavailable, "JOURNAL_IO"),
        (errno.ENOSPC, Unavailable, "JOURNAL_FULL"),
        (errno.ENOENT, NotFound, "JOURNAL_NOT_FOUND"),
    ],
)
def test_an_open_that_fails_says_what_to_do(number: int, kind: type[TenureError], code: str) -> None:
    disk = Disk()
    disk.before = fail_at("open", 1, number)
    with pytest.raises(kind, match=str(PATH)) as refused:
        Journal.open(PATH, storage=disk)
    assert refused.value.code == code
    assert isinstance(refused.value.__cause__, OSError)
    Journal.open(PATH, storage=disk).close()


@pytest.mark.parametrize("method", ["lock", "facts", "read", "write", "sync", "sync_directory"])
def test_an_open_that_fails_half_way_lets_go_of_the_lock(method: str) -> None:
    disk = Disk()
    disk.put(PATH, frame.encode(1, b"a"))
    disk.before = fail_at(method, 1, errno.EIO)
    with pytest.raises(Unavailable) as refused:
        Journal.open(PATH, storage=disk)
    assert refused.value.code == "JOURNAL_IO"
    with Journal.open(PATH, storage=disk) as journal:
        assert journal.append(b"b") == 2


def test_where_fsync_stops_at_the_drives_cache_the_stronger_call_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    # Not this system's call: one that is harmless here shows that it is made for each sync.
    asked: list[int] = []
    real = fcntl.fcntl
    monkeypatch.setattr(storage, "_FULL_SYNC", fcntl.F_GETFD)
    monkeypatch.setattr(fcntl, "fcntl", lambda handle, command: asked.append(command) or real(handle, command))
    with Journal.open(tmp_path / "a.journal") as journal:
        before = len(asked)
        journal.append(b"a")
        assert asked[before:] == [fcntl.F_GETFD]
