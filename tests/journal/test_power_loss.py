"""
Power cuts, kills and failing syncs at any call, on a disk that keeps any part of what was not synced.

Each seed is one story of a file: processes open it, append, repair, and are cut off. After every cut the reader is
held to three promises: what was acknowledged is there, in order; nothing is there that nobody wrote; the bytes of a
damaged tail are not lost by its repair. A story that breaks one is told again by its seed.
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tenure.errors import Refused, Unavailable
from tenure.journal import Journal, Tail, read, repair
from tests.journal.disk import Change, Disk, Inode

PATH = Path("/disk/some.journal")
STORIES = 200
LIVES = 12
CHANGING = {"open", "write", "sync", "sync_directory", "truncate"}


class Cut(BaseException):
    """The process ends here."""


class Wrong(AssertionError):
    """A promise was broken."""


@dataclass
class Story:
    """
    One file's life under faults.

    Attributes:
        kept: The records that must be there: acknowledged, or read by a process that opened the file.
        maybe: Appended after those and not acknowledged.
        seen: How often each thing happened, over all stories.
    """

    disk: Disk
    choice: random.Random
    seen: Counter[str]
    kept: list[bytes] = field(default_factory=list)
    maybe: list[bytes] = field(default_factory=list)
    written: int = 0
    stage: str = ""

    def live(self) -> None:
        """Run one process until a fault, then settle the fault and hold the file to its promises."""
        calls = 0
        stop = self.choice.randrange(1, 20)
        fault = self.choice.choice(("power", "power", "kill", "error"))

        def before(name: str, nth: int) -> None:
            nonlocal calls
            calls += name in CHANGING
            if calls != stop or name not in CHANGING:
                return
            self.seen[f"{fault} in {self.stage}"] += 1
            if fault == "error":
                raise OSError(errno.EIO, "injected")
            raise Cut

        self.disk.before = before
        with contextlib.suppress(Cut, Unavailable):
            self._work()
        self.disk.before = lambda name, nth: None
        if fault == "power":
            self.disk.power_cut(self.choice)
            self.seen.update({f"lost {what}": count for what, count in self.disk.losses.items()})
        else:
            self.disk.end_process()
        self._check()

    def _work(self) -> None:
        self.stage = "open"
        try:
            journal = Journal.open(PATH, storage=self.disk)
        except Refused:
            self._repair()
            self.stage = "open"
            journal = Journal.open(PATH, storage=self.disk)
        with journal:
            # What an opener found is durable now, so it must never go again.
            self.kept = [record.body for record in read(PATH, storage=self.disk).records]
            self.maybe = []
            self.stage = "append"
            for _ in range(self.choice.randrange(1, 12)):
                self.written += 1
                body = b"%d:" % self.written + bytes([self.written % 256]) * self.choice.choice((0, 3, 40))
                self.maybe.append(body)
                sequence = journal.append(body)
                self.kept += self.maybe
                self.maybe = []
                if sequence != len(self.kept):
                    raise Wrong(f"record {sequence} is the {len(self.kept)}th")

    def _repair(self) -> None:
        self.stage = "repair"
        content = self.disk.content(PATH)
        assert content is not None
        found = read(PATH, storage=self.disk)
        self.seen[f"{found.tail} tails"] += 1
        tail = content[found.verified_bytes :]
        try:
            done = repair(PATH, storage=self.disk)
        except BaseException:
            self._tail = (found.verified_bytes, tail)
            raise
        assert done.quarantine is not None
        if self.disk.durable_content(done.quarantine) != tail:
            raise Wrong("the quarantine file does not hold the tail")
        if self.disk.durable_content(PATH) != content[: found.verified_bytes]:
            raise Wrong("the journal is not durably cut")
        self.seen["repaired"] += 1

    _tail: tuple[int, bytes] | None = None

    def _check(self) -> None:
        if self._tail is not None:
            start, tail = self._tail
            self._tail = None
            aside = [self.disk.content(path) for path in self.disk.paths() if path.suffix == ".quarantine"]
            # The cut may have changed an unsynced truncation or nothing, but the bytes are in one of the two places.
            if tail not in aside and (self.disk.content(PATH) or b"")[start:] != tail:
                raise Wrong("the tail is neither in the journal nor in quarantine")
        if self.disk.content(PATH) is None:
            if self.kept:
                raise Wrong(f"the file is gone and {len(self.kept)} acknowledged records with it")
            return
        found = [record.body for record in read(PATH, storage=self.disk).records]
        if found[: len(self.kept)] != self.kept:
            raise Wrong(f"{len(self.kept)} records were acknowledged and {len(found)} are read")
        rest = found[len(self.kept) :]
        if rest != self.maybe[: len(rest)]:
            raise Wrong("a record is read that nobody appended")
        self.seen["unacknowledged but there"] += len(rest)


def tell(seed: int, disk: Disk, seen: Counter[str]) -> None:
    story = Story(disk, random.Random(seed), seen)
    for _ in range(LIVES):
        story.live()
    seen["records kept"] += len(story.kept)


def tell_many(seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            tell(seed, Disk(), seen)
        except BaseException as wrong:
            wrong.add_note(f"tell({seed}, Disk(), Counter())")
            raise
    print(dict(sorted(seen.items())))
    for what in (
        *(f"{fault} in {stage}" for fault in ("power", "kill", "error") for stage in ("open", "append", "repair")),
        "torn tails",
        "corrupt tails",
        "repaired",
        "lost changes",
        "lost torn",
        "lost names",
        "unacknowledged but there",
        "records kept",
    ):
        assert seen[what] >= 5, f"hardly any story had this: {what}"


def test_no_acknowledged_record_is_lost_and_no_other_is_read() -> None:
    tell_many(range(STORIES))


@pytest.mark.nightly
def test_no_record_is_lost_in_stories_never_told_before() -> None:
    start = random.randrange(2**32)  # repeated by the run's own seed
    tell_many(range(start, start + 20_000))


class WithoutSync(Disk):
    """A disk whose sync does nothing: what a journal that forgot to call it would see."""

    def sync(self, handle: int) -> None:
        with self._called("sync"):
            pass


class WithoutNames(Disk):
    """A journal that forgot to sync the directory."""

    def sync_directory(self, path: Path) -> None:
        with self._called("sync_directory"):
            pass


class WithoutRewrite(Disk):
    """A journal that believed what it could read: the same bytes written again stay clean."""

    def _change(self, inode: Inode, change: Change) -> None:
        if change.data is not None and inode.now[change.offset : change.offset + len(change.data)] == change.data:
            return
        super()._change(inode, change)


class WithoutTruncation(Disk):
    """A repair that did not sync what it cut off."""

    def truncate(self, handle: int, size: int) -> None:
        with self._called("truncate"):
            inode = self._handles[handle]
            del inode.now[size:]


@pytest.mark.parametrize("broken", [WithoutSync, WithoutNames, WithoutRewrite, WithoutTruncation])
def test_the_stories_find_what_is_broken(broken: type[Disk]) -> None:
    def tell_all() -> None:
        for seed in range(1000):
            tell(seed, broken(), Counter())

    with pytest.raises(Wrong):
        tell_all()
    # The control: the same stories on a sound disk have no quarrel.
    tell(0, Disk(), Counter())


def test_a_tail_that_is_torn_twice_is_kept_twice() -> None:
    disk = Disk()
    for turn in range(2):
        with Journal.open(PATH, storage=disk) as journal:
            disk.room = 30
            with pytest.raises(Unavailable):
                journal.append(b"turn %d, more than there is room for" % turn)
        disk.room = None
        assert read(PATH, storage=disk).tail is Tail.TORN
        assert repair(PATH, storage=disk).repaired
    # Both tails began at byte 0; the second has its own file.
    names = [path.name for path in disk.paths()]
    assert names == ["some.journal", "tail-0-2.quarantine", "tail-0.quarantine"]
