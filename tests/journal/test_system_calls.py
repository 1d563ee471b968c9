"""
Real processes killed at, or refused by, each system call in turn, by strace.

For every call that changes something, the process is run again and again, the first, second, third such call being
hit, until a run ends clean. So every occurrence is hit, and the number of runs is the proof that there were any.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest

from tenure.errors import Refused
from tenure.journal import Journal, ReceiptJournal, Tail, frame, hand_in, read, repair
from tenure.rules.outcome import Accepted

CHILD = Path(__file__).with_name("child.py")
RUNS_MAX = 40
OLD = [b"old one", b"old two"]
TAIL = frame.encode(3, b"a record that was never finished")[:-7]


@dataclass(frozen=True)
class Run:
    """One run of the child: how it ended, and what it was certain of before that."""

    nth: int
    code: int
    said: list[str]

    @property
    def killed(self) -> bool:
        return self.code in (-signal.SIGKILL, 128 + signal.SIGKILL)

    @property
    def acknowledged(self) -> list[bytes]:
        return [line.split()[2].replace("-", " ").encode() for line in self.said if line.startswith("acknowledged")]

    @property
    def errors(self) -> list[str]:
        return [line.split()[1] for line in self.said if line.startswith(("error", "refused"))]


def run(call: str, fault: str, nth: int, *arguments: object) -> Run:
    # Not with --seccomp-bpf: it is faster, and with it strace 6.1 leaves the signal out.
    strace = shutil.which("strace")
    assert strace, "strace is missing: install it (apt-get install strace); without it nothing here is proved"
    done = subprocess.run(
        [
            *(strace, "-f", "-qq", "-o", os.devnull),
            *("-e", f"trace={call}", "-e", f"inject={call}:{fault}:when={nth}"),
            *(sys.executable, "-B", CHILD, *map(str, arguments)),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = done.stdout.splitlines()
    assert done.returncode in (0, 3, -signal.SIGKILL, 128 + signal.SIGKILL), (call, fault, nth, done)
    return Run(nth, done.returncode, said)


def runs(call: str, fault: str, directory: Path, *arguments: object) -> Iterator[tuple[Run, Path]]:
    """Run the child on a fresh copy of the directory's file until no call was hit; the last run is the clean one."""
    for nth in range(1, RUNS_MAX):
        place = directory.with_name(f"{directory.name}-{call}-{nth}")
        shutil.copytree(directory, place)
        action, *rest = arguments
        done = run(call, fault, nth, action, place / "a.journal", *rest)
        yield done, place / "a.journal"
        if done.code == 0 and not done.errors:
            return
    pytest.fail(f"{call} was still hit in run {RUNS_MAX}")


def bodies(path: Path) -> list[bytes]:
    return [record.body for record in read(path).records]


def goes_on(path: Path) -> None:
    """The allowed control: after the fault, and a repair if one is asked for, the journal takes the next record."""
    before = bodies(path)
    try:
        journal = Journal.open(path)
    except Refused:
        repair(path)
        journal = Journal.open(path)
    with journal:
        assert journal.append(b"next") == len(before) + 1
    assert bodies(path) == [*before, b"next"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    place = tmp_path / "j"
    place.mkdir()
    (place / "a.journal").write_bytes(b"".join(frame.encode(n, body) for n, body in enumerate(OLD, start=1)))
    return place


@pytest.fixture
def torn(directory: Path) -> Path:
    with (directory / "a.journal").open("ab") as file:
        file.write(TAIL)
    return directory


def check_appended(done: Run, path: Path, turns: int) -> None:
    found = bodies(path)
    assert found[:2] == OLD, done
    new = found[2:]
    # All that was acknowledged, in order; at most one more, which was being appended.
    assert new[: len(done.acknowledged)] == done.acknowledged, done
    assert len(new) <= len(done.acknowledged) + 1, done
    assert new == [b"turn %d" % turn for turn in range(turns)][: len(new)], done


@pytest.mark.parametrize(("call", "hits"), [("pwrite64", 4), ("fsync", 5), ("write", 4), ("flock", 1)])
def test_a_process_killed_at_any_call_of_append_loses_nothing_acknowledged(
    call: str, hits: int, directory: Path
) -> None:
    # Three appends to a file of two records: the rewrite and three writes; file, directory and three appends synced.
    every = list(runs(call, "signal=KILL", directory, "append", 3))
    for done, path in every:
        assert done.killed == (done.nth < len(every)), done
        check_appended(done, path, 3)
        goes_on(path)
    assert len(every) - 1 == hits
    assert every[-1][0].acknowledged == [b"turn 0", b"turn 1", b"turn 2"]


@pytest.mark.parametrize(("call", "hits"), [("fsync", 2), ("flock", 1)])
def test_a_process_killed_while_it_makes_a_new_file_leaves_a_usable_one(call: str, hits: int, tmp_path: Path) -> None:
    empty = tmp_path / "j"
    empty.mkdir()
    every = list(runs(call, "signal=KILL", empty, "append", 0))
    for _, path in every:
        assert bodies(path) == []
        goes_on(path)
    assert len(every) - 1 == hits


@pytest.mark.parametrize(
    ("call", "hits"), [("pwrite64", 1), ("fsync", 4), ("ftruncate", 1), ("flock", 2), ("write", 1)]
)
def test_a_process_killed_at_any_call_of_repair_loses_no_byte(call: str, hits: int, torn: Path) -> None:
    # Quarantine file and directory synced before the truncation, journal and directory after it.
    verified = read(torn / "a.journal").verified_bytes
    every = list(runs(call, "signal=KILL", torn, "repair"))
    for done, path in every:
        assert done.killed == (done.nth < len(every)), done
        quarantine = path.with_name(f"tail-{verified}.quarantine")
        aside = quarantine.read_bytes() if quarantine.exists() else b""
        assert TAIL in (path.read_bytes()[verified:], aside), done
        assert bodies(path) == OLD, done
        repair(path)
        assert quarantine.read_bytes() == TAIL, done
        assert read(path).tail is Tail.NONE
        assert sorted(entry.name for entry in path.parent.iterdir()) == ["a.journal", quarantine.name]
        goes_on(path)
    assert len(every) - 1 == hits


@pytest.mark.parametrize(
    ("call", "error", "code", "hits"),
    [
        ("fsync", "EIO", "JOURNAL_IO", 5),
        ("fsync", "ENOSPC", "JOURNAL_FULL", 5),
        ("pwrite64", "EIO", "JOURNAL_IO", 4),
        ("pwrite64", "ENOSPC", "JOURNAL_FULL", 4),
    ],
)
def test_after_a_call_of_append_failed_nothing_more_is_acknowledged(
    call: str, error: str, code: str, hits: int, directory: Path
) -> None:
    every = list(runs(call, f"error={error}", directory, "append", 3))
    failed_in_append = 0
    for done, path in every[:-1]:
        assert done.errors[0] == code, done
        assert set(done.errors[1:]) <= {"JOURNAL_POISONED"}, done
        # Nothing was said to be kept after the first error.
        assert [line.split()[0] for line in done.said] == sorted(
            (line.split()[0] for line in done.said), key=["open", "acknowledged", "error", "refused"].index
        ), done
        if done.code == 0:
            failed_in_append += 1
            assert len(done.acknowledged) + len(done.errors) == 3, done
        check_appended(done, path, 3)
        goes_on(path)
    assert len(every) - 1 == hits
    assert failed_in_append == 3
    assert every[-1][0].acknowledged == [b"turn 0", b"turn 1", b"turn 2"]


@pytest.mark.parametrize(
    ("call", "error", "code", "hits"),
    [
        ("fsync", "EIO", "JOURNAL_IO", 4),
        ("pwrite64", "ENOSPC", "JOURNAL_FULL", 1),
        ("ftruncate", "EIO", "JOURNAL_IO", 1),
    ],
)
def test_a_repair_whose_call_failed_says_so_and_can_be_run_again(
    call: str, error: str, code: str, hits: int, torn: Path
) -> None:
    verified = read(torn / "a.journal").verified_bytes
    every = list(runs(call, f"error={error}", torn, "repair"))
    for done, path in every[:-1]:
        assert (done.code, done.errors) == (3, [code]), done
        quarantine = path.with_name(f"tail-{verified}.quarantine")
        aside = quarantine.read_bytes() if quarantine.exists() else b""
        assert TAIL in (path.read_bytes()[verified:], aside), done
        repair(path)
        assert quarantine.read_bytes() == TAIL
        goes_on(path)
    assert len(every) - 1 == hits


@pytest.mark.parametrize(("call", "hits"), [("pwrite64", 3), ("fsync", 4), ("?unlink,?unlinkat", 1), ("write", 2)])
def test_a_process_killed_at_any_call_of_handing_in_loses_no_receipt(call: str, hits: int, tmp_path: Path) -> None:
    # Opening: the rewrite, file and directory synced. Then a note for each of two receipts, and the file removed.
    place = tmp_path / "j"
    with ReceiptJournal(place) as journal:
        for key in ("send:1", "send:2"):
            journal.append_receipt(key, UUID(int=1), Accepted(key))
    every = list(runs(call, "signal=KILL", place, "hand-all"))
    for done, path in every:
        assert done.killed == (done.nth < len(every)), done
        given = [line.split()[1] for line in done.said]
        report = hand_in(path.parent, lambda key, *_, given=given: given.append(key))
        assert (report.refused, report.torn_files, report.stopped) == ([], [], None), done
        # The one whose note was cut off comes twice; none comes never.
        assert set(given) == {"send:1", "send:2"}, done
        assert len(given) <= 3, done
        assert list(path.parent.iterdir()) == []
    assert len(every) - 1 == hits
    assert [line.split()[1] for line in every[-1][0].said] == ["send:1", "send:2"]
