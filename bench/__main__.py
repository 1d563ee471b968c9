"""
`make bench`: tenure alone, on both databases, beside the bare driver writing the same rows in the same run.

Single figures depend on the machine and on its other work; the ratios are what to compare. Every run is verified in the
database, as `bench.protocol` says. The comparison with other systems is `make bench-peers`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.compare import Failed, measure
from bench.journal import measure_journal
from bench.place import Place
from bench.results import Line, ratio, spread
from bench.rows import OURS, RAW, Side

PICKUPS, IDLE_SECONDS = 50, 10


@dataclass(frozen=True, slots=True)
class Figure:
    """
    One measurement.

    Attributes:
        ratio: The value over the bare driver's, in the same run; None where there is no such thing.
    """

    store: str
    what: str
    value: float
    unit: str
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Quick:
    """
    One piece of the quick suite.

    Attributes:
        shown: The numbers of the result that become figures: key, words, unit.
        floor: What the bare driver does beside it.
        share: Of the jobs asked for; a fixed number where it is above one.
    """

    work: str
    shown: tuple[tuple[str, str, str], ...]
    floor: str | None = None
    processes: int = 1
    share: float = 1.0


def _rate(words: str) -> tuple[tuple[str, str, str], ...]:
    return (("rate", words, "jobs/s"),)


SUITE = (
    Quick("single", _rate("enqueue one by one"), "single", share=0.1),
    Quick("bulk", _rate("enqueue in bulk"), "bulk"),
    Quick("cycle", _rate("claim and complete without handlers"), "cycle"),
    Quick(
        "drain",
        (
            *_rate("drain with one worker"),
            ("peak_mb", "peak memory of a worker", "MB"),
            ("wal_bytes_per_job", "WAL for a job", "bytes"),
            ("commits_per_job", "commits for a job", ""),
        ),
        "cycle",
    ),
    Quick("drain", _rate("drain with two workers"), "cycle", processes=2),
    Quick("drain", _rate("drain with four workers"), "cycle", processes=4),
    Quick("step", _rate("one recorded effect in each job"), share=0.2),
    Quick("pickup", (("p50_ms", "pick-up, p50", "ms"), ("p99_ms", "pick-up, p99", "ms")), share=PICKUPS),
    Quick(
        "idle",
        (("core_percent", "idle worker, share of a core", "%"), ("peak_mb", "idle worker, memory", "MB")),
        share=IDLE_SECONDS,
    ),
)


def figures(place: Place, database: str, jobs: int, rounds: int, *, uvloop: bool) -> Iterator[Figure]:
    """Measure everything on one database, each beside its floor."""
    for piece in SUITE:
        amount = round(jobs * piece.share) if piece.share <= 1 else round(piece.share)
        ours: list[Line] = []
        floors: list[Line] = []
        for _ in range(rounds):
            if piece.floor is not None:
                floors.append(measure(place, Side(RAW, piece.floor), database, amount))
            ours.append(measure(place, Side(OURS, piece.work), database, amount, piece.processes, uvloop=uvloop))
        for key, words, unit in piece.shown:
            found = spread(ours, key)
            if found is not None:
                share = ratio(found, spread(floors, key)) if key == "rate" else None
                yield Figure(database, words, found.median, unit, share)


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--store", choices=("both", "sqlite", "postgresql"), default="both")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=1, help="each figure is the median of so many")
    parser.add_argument("--uvloop", action="store_true", help="our worker on uvloop, which must be installed")
    parser.add_argument("--json", action="store_true", help="write JSON lines")
    options = parser.parse_args()
    console = Console(stderr=True)
    found: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder:
        with Place(Path(folder)) as place:
            for database in ("sqlite", "postgresql") if options.store == "both" else (options.store,):
                for figure in figures(place, database, options.jobs, options.rounds, uvloop=options.uvloop):
                    found.append(figure)
                    console.print(f"{figure.store}: {figure.what}: {figure.value:,.2f} {figure.unit}", highlight=False)
        found += [Figure("journal", *measured) for measured in measure_journal(Path(folder))]
    if options.json:
        for figure in found:
            sys.stdout.write(json.dumps(asdict(figure)) + "\n")
        return
    table = Table("database", "what", "value", "of the bare driver")
    for figure in found:
        share = "" if figure.ratio is None else f"{figure.ratio:.2f} x"
        table.add_row(figure.store, figure.what, f"{figure.value:,.2f} {figure.unit}", share)
    Console().print(table)


if __name__ == "__main__":
    try:
        main()
    except Failed as failed:
        sys.exit(f"no measurement: {failed}")
