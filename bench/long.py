"""
`make bench-long`: what only shows with many rows or after a while, each beside its own control in the same run.

P8: a drain among many waiting, finished or future jobs. P9: a drain under a snapshot that is kept open. P12: memory,
processor, WAL and commits. The sizes are small unless `--full` is given, and are written into the results.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console

from bench import backlog
from bench.compare import Failed, book_of, measure
from bench.ours import ADAPTER, producer, setup
from bench.place import Place
from bench.protocol import NOOP, PATIENCE, crew
from bench.results import Line
from bench.rows import OURS, Side
from bench.store import Eye, wait_for
from bench.svg import number_text
from bench.verify import Unverified, check_ran

# No worker here is as fast as this, so that a backlog of so many a second does not run dry.
_FASTEST = 25_000


@dataclass(frozen=True, slots=True)
class Long:
    """
    One finding.

    Attributes:
        control: The same without what is examined.
        wanted: In words.
    """

    number: str
    what: str
    value: float
    unit: str
    control: float | None = None
    wanted: str = ""

    @classmethod
    def of(cls, line: Line) -> Long:
        """Read it from a line of results."""
        return cls(**line)


def describe_long(found: Sequence[Long]) -> str:
    """Make the table of the page."""
    rows = ["| | what | value | control | ratio | wanted |", "| --- | --- | --- | --- | --- | --- |"]
    for one in found:
        control = "" if one.control is None else number_text(one.control)
        share = "" if not one.control else f"{one.value / one.control:.2f}"
        value = f"{number_text(one.value)} {one.unit}"
        rows.append(f"| {one.number} | {one.what} | {value} | {control} | {share} | {one.wanted} |")
    return "\n".join(rows) + "\n"


class Sizes(argparse.Namespace):
    """What the command line says."""

    jobs: int
    waiting: int
    finished: int
    future: int
    rate: int
    paced: float
    flat: float
    many: int


@contextmanager
def pinned(url: str) -> Iterator[None]:
    """Keep a snapshot open, as a long report or a forgotten session does: vacuum can remove nothing newer."""
    with psycopg.connect(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM tenure.meta")
        yield
        connection.rollback()


def steady(url: str, jobs: int) -> float:
    """Let a worker run so many of the jobs that wait, and give its rate; the rest may go on waiting."""
    eye = Eye(url, ADAPTER.prefixes)
    before = eye.row(ADAPTER.done["outcomes"])[0]
    with crew(ADAPTER, url, 1, NOOP) as workers:
        workers.go()
        wait_for(lambda: workers.board.total() >= jobs, f"{jobs} handlers", PATIENCE)
        seconds = (time.monotonic_ns() - workers.board.first()) / 1e9
        ran = workers.end()[0]["ran"]
    check_distinct(ran, eye.row(ADAPTER.done["outcomes"])[0] - before)
    eye.close()
    return jobs / seconds


def check_distinct(ran: Sequence[int], finished: int) -> None:
    """
    Hold what a worker ran, out of a backlog, against what is finished.

    Raises:
        Unverified: A job ran twice, or not all that ran are finished.
    """
    places = {number: place for place, number in enumerate(dict.fromkeys(ran))}
    check_ran(len(places), [places[number] for number in ran])
    if finished != len(ran):
        raise Unverified(f"{len(ran)} jobs ran and {finished} are finished")


def more(url: str, numbers: range) -> None:
    """Put in jobs."""
    with producer(url, NOOP) as put:
        put.many(numbers)
    eye = Eye(url)
    eye.settle()
    eye.close()


def among(place: Place, sizes: Sizes) -> Iterator[Long]:
    """P8: with a backlog of each kind."""

    def rate(prepare: Callable[[str], None]) -> float:
        url = place.fresh("postgresql")
        setup(url)
        prepare(url)
        more(url, range(sizes.jobs))
        found = steady(url, sizes.jobs)
        place.drop(url)
        return found

    for what, count, add in (
        ("waiting", sizes.waiting, backlog.add_waiting),
        ("finished", sizes.finished, backlog.add_finished),
        ("future jobs of higher priority", sizes.future, backlog.add_future),
    ):
        control = rate(lambda _: None)
        value = rate(lambda url, add=add, count=count: add(url, count))  # type: ignore[misc]
        words = f"drain of {sizes.jobs:,} with {count:,} {what}"
        yield Long("P8", words, value, "jobs/s", control, "at least 0.9 of the control")


def under_a_snapshot(place: Place, sizes: Sizes) -> Iterator[Long]:
    """P9: after a paced load, and flat out, with a snapshot kept open all the time."""

    def paced(pin: Callable[[str], Any]) -> float:
        url = place.fresh("postgresql")
        setup(url)
        with pin(url):
            with crew(ADAPTER, url, 1, NOOP) as workers:
                workers.go()
                sent = backlog.pace(url, sizes.rate, sizes.paced)
                wait_for(lambda: workers.board.total() >= sent, "the paced jobs", PATIENCE)
                check_ran(sent, workers.end()[0]["ran"])
            with producer(url, NOOP) as put:
                put.many(range(sent, sent + sizes.jobs))
            found = steady(url, sizes.jobs)
        place.drop(url)
        return found

    def flat(pin: Callable[[str], Any]) -> tuple[float, float]:
        url = place.fresh("postgresql")
        setup(url)
        backlog.add_waiting(url, round(sizes.flat * _FASTEST))
        with pin(url):
            seen = watch(url, sizes.flat)
        place.drop(url)
        quarter = max(1, len(seen) // 4)
        return sum(seen) / len(seen), sum(seen[-quarter:]) / quarter

    words = f"drain of {sizes.jobs:,} after {sizes.paced:.0f} s at {sizes.rate:,} jobs/s, snapshot open"
    yield Long(
        "P9", words, paced(pinned), "jobs/s", paced(lambda _: nullcontext()), wanted="at least 0.9 of the control"
    )
    control, control_last = flat(lambda _: nullcontext())
    value, value_last = flat(pinned)
    words = f"{sizes.flat:.0f} s flat out, snapshot open"
    yield Long("P9", words, value, "jobs/s", control, wanted="at least 0.9 of the control")
    yield Long("P9", f"{words}, the last quarter", value_last, "jobs/s", control_last)


def watch(url: str, seconds: float) -> list[int]:
    """Let a worker run for so long, and give how many jobs it began in each second; it must not run dry."""
    eye = Eye(url, ADAPTER.prefixes)
    before = eye.row(ADAPTER.done["outcomes"])[0]
    seen = [0]
    with crew(ADAPTER, url, 1, NOOP) as workers:
        workers.go()
        wait_for(lambda: workers.board.total() > 0, "the first handler", PATIENCE)
        start = time.monotonic()
        while len(seen) <= seconds:
            time.sleep(max(0.0, start + len(seen) - time.monotonic()))  # one reading for each second
            seen.append(workers.board.total())
        ran = workers.end()[0]["ran"]
    left = eye.row(ADAPTER.left)[0]
    check_distinct(ran, eye.row(ADAPTER.done["outcomes"])[0] - before)
    eye.close()
    if not left:
        raise Unverified(f"the worker ran dry: it was faster than {_FASTEST:,} jobs/s")
    return [after - earlier for earlier, after in pairwise(seen)]


def what_it_uses(place: Place, sizes: Sizes) -> Iterator[Long]:
    """P12: memory over many jobs, an idle worker's processor, WAL and commits for a job."""
    url = place.fresh("postgresql")
    setup(url)
    backlog.add_waiting(url, sizes.many)
    early = late = 0.0
    with crew(ADAPTER, url, 1, NOOP) as workers:
        workers.go()
        start = time.monotonic()
        while workers.board.total() < sizes.many:
            time.sleep(0.5)  # between two readings of the memory
            # Less what our own record of the jobs takes.
            late = backlog.resident_mb(workers.pids[0]) - workers.board.total() * 8 / 1e6
            # The first minute, or the first tenth of a run that is shorter.
            if not early or (time.monotonic() - start < 60 and workers.board.total() < sizes.many / 10):
                early = late
            if time.monotonic() - start > PATIENCE:
                raise TimeoutError(f"{workers.board.total()} of {sizes.many} jobs in {PATIENCE:.0f} s")
        workers.end()
    place.drop(url)
    yield Long("P12", f"memory of a worker after {sizes.many:,} jobs", late, "MB", early, "as in the first minute")
    idle = measure(place, Side(OURS, "idle"), "postgresql", 30)
    yield Long("P12", "idle worker, share of a core", idle["core_percent"], "%", wanted="below 1")
    ours = measure(place, Side(OURS, "drain"), "postgresql", sizes.jobs)
    try:
        theirs = measure(place, Side("awa", "drain"), "postgresql", sizes.jobs)
    except Failed:
        theirs = {}
    for key, words, wanted in (
        ("wal_bytes_per_job", "WAL for a job; control: awa", "at most 1,200 bytes"),
        ("commits_per_job", "commits for a job; control: awa", ""),
    ):
        yield Long("P12", words, ours[key], "bytes" if "wal" in key else "", theirs.get(key), wanted)


PARTS: dict[str, Callable[[Place, Sizes], Iterator[Long]]] = {
    "P8": among,
    "P9": under_a_snapshot,
    "P12": what_it_uses,
}
SMALL = {"waiting": 100_000, "finished": 200_000, "future": 50_000, "paced": 20.0, "flat": 10.0, "many": 200_000}
FULL = {"waiting": 1_000_000, "finished": 5_000_000, "future": 500_000, "paced": 600.0, "flat": 60.0, "many": 1_000_000}


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(prog="python -m bench.long", description=__doc__)
    parser.add_argument("--only", help="P8, P9, P12; all when left out")
    parser.add_argument("--full", action="store_true", help="the sizes of the goals; an hour, and 20 GB of disk")
    parser.add_argument("--jobs", type=int, default=10_000, help="that are drained")
    parser.add_argument("--rate", type=int, default=1_000, help="jobs/s of the paced load")
    for name, value in SMALL.items():
        parser.add_argument(f"--{name}", type=type(value), help=f"{value:,}, with --full {FULL[name]:,}")
    parser.add_argument("--keep", action="store_true", help="write the results where git sees them")
    sizes = parser.parse_args(namespace=Sizes())
    for name, value in (FULL if sizes.full else SMALL).items():
        if getattr(sizes, name) is None:
            setattr(sizes, name, value)
    wanted = list(PARTS) if sizes.only is None else [name.strip().upper() for name in sizes.only.split(",")]
    console = Console(stderr=True)
    book = book_of(sizes, "-long")
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder, Place(Path(folder)) as place:
        place.drop(place.fresh("postgresql"))
        book.add(place.describe())
        for name in wanted:
            for found in PARTS[name](place, sizes):
                book.add(asdict(found))
                console.print(
                    f"{found.number} {found.what}: {number_text(found.value)} {found.unit}"
                    + ("" if found.control is None else f" (control {number_text(found.control)})"),
                    highlight=False,
                )
    console.print(f"results: {book.path}", highlight=False)


if __name__ == "__main__":
    main()
