"""
`make bench-peers`: ours and the others in turns, each in a fresh database, verified, at least five rounds.

    python -m bench.compare --only P1,P6 --rounds 5 --jobs 2000

A system that fails or cannot be verified has an error in the results instead of a number. Results are appended as they
come to bench/results/scratch/, which git does not see, or with --keep to bench/results/.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.ours import setup
from bench.peers.install import interpreter
from bench.place import Place
from bench.protocol import ROOT
from bench.results import Book, Line, of_row, ratio, read, spread
from bench.rows import EACH, OURS, RAW, ROWS, SAME, Row, Side

RESULTS = ROOT / "bench" / "results"
_PATIENCE = 1800.0


class Failed(Exception):
    """A measurement ended without a number; the text is the last line it wrote."""


def measure(place: Place, side: Side, database: str, jobs: int, processes: int = 1, *, uvloop: bool = False) -> Line:
    """
    Run one system once, in its own environment, on a fresh database.

    Raises:
        Failed: It is not installed, failed, or could not be verified.
    """
    ours = side.system in {OURS, RAW, SAME}
    python = sys.executable if ours else interpreter(side.system)
    if python is None:
        raise Failed(f"not installed; python -m bench.peers.install {side.system}")
    module = f"bench.{side.system}" if ours else f"bench.peers.{side.system}"
    url = place.fresh(database)
    try:
        if side.system == RAW:
            setup(url)
        command = [str(python), "-m", module, side.work, url, "--jobs", str(max(1, round(jobs * side.share)))]
        command += ["--processes", str(processes)] if side.system not in {RAW, SAME} else []
        command += ["--uvloop"] if uvloop and side.system == OURS else []
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_PATIENCE, check=False)
        if done.returncode != 0:
            raise Failed((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
        found: Line = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise Failed(f"not done in {_PATIENCE:.0f} s") from None
    finally:
        place.drop(url)
    if "each" in found:
        found[EACH] = min(found["each"]) / sum(found["each"])
    return found


def rounds(place: Place, book: Book, row: Row, count: int, options: argparse.Namespace, console: Console) -> None:
    """Measure one row, all its sides in turns; every other round in the opposite order."""
    sides = (row.ours, *row.against)
    jobs = options.jobs or row.jobs
    for number in range(count):
        for side in sides if number % 2 == 0 else reversed(sides):
            line: Line = {"row": row.name, "side": side.system, "round": number, "database": row.database}
            try:
                found = measure(place, side, row.database, jobs, row.processes, uvloop=options.uvloop)
            except Failed as failed:
                line["error"] = str(failed)
                console.print(f"{row.name} {side.system}: {failed}", highlight=False)
            else:
                line |= {name: value for name, value in found.items() if name not in {"system", "database"}}
                shown = f"{row.name} {side.system}: {line[row.measure]:,.2f} {row.unit}" if row.measure in line else ""
                console.print(shown, highlight=False)
            book.add(line)


def table(lines: Sequence[Line], rows: Sequence[Row]) -> Table:
    """Show medians and ratios."""
    shown = Table("row", "work", "ours", "against", "theirs", "ratio", "wanted")
    for row in rows:
        ours = spread(of_row(lines, row.name, OURS), row.measure)
        for side in row.against:
            theirs = spread(of_row(lines, row.name, side.system), row.measure)
            reached = ratio(ours, theirs, less_is_better=row.less_is_better)
            shown.add_row(
                row.number,
                row.title,
                "-" if ours is None else f"{ours.median:,.2f} {row.unit}",
                side.system,
                "-" if theirs is None else f"{theirs.median:,.2f}",
                "-" if reached is None else f"{reached:.2f} x",
                "" if side.at_least is None else f"{side.at_least} x",
            )
    return shown


def book_of(options: Any, name: str) -> Book:
    """Open the file of a run."""
    stamp = time.strftime("%Y-%m-%d-%H%M", time.gmtime())
    folder = RESULTS if options.keep else RESULTS / "scratch"
    return Book(folder / f"{stamp}{name}.jsonl")


def main() -> None:
    """Compare and show."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("--only", help="rows such as P1,P6; all when left out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, help="instead of each row's own number")
    parser.add_argument("--uvloop", action="store_true", help="our worker on uvloop, which must be installed")
    parser.add_argument("--keep", action="store_true", help="write the results where git sees them")
    options = parser.parse_args()
    wanted = None if options.only is None else {name.strip().upper() for name in options.only.split(",")}
    rows = [row for row in ROWS if wanted is None or row.number in wanted]
    console = Console(stderr=True)
    book = book_of(options, "")
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder, Place(Path(folder)) as place:
        if any(row.database == "postgresql" for row in rows):
            place.drop(place.fresh("postgresql"))
        book.add({**place.describe(), "rounds": options.rounds, "uvloop": options.uvloop})
        for row in rows:
            rounds(place, book, row, options.rounds, options, console)
    Console().print(table(read(book.path)[1], rows))
    console.print(f"results: {book.path}", highlight=False)


if __name__ == "__main__":
    main()
