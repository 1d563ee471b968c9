"""
Measure what work costs and show it beside the committed baseline, or write a new one.

    python -m tests.cost.measure            # show
    python -m tests.cost.measure --write    # accept what is measured now
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg

from tests.cost import baseline
from tests.cost.idle import IDLE, IDLE_RELAY, measure_idle, measure_idle_relay
from tests.cost.servers import prepare, start_quiet
from tests.cost.work import PIECES
from tests.support.postgres import Databases
from tests.support.postgres.binaries import candidates

RUNS = 3


def least(one: baseline.Figures, other: baseline.Figures) -> dict[str, float]:
    """Give the smaller of each figure: noise only ever adds."""
    return {name: min(value, other[name]) for name, value in one.items()}


def repeatedly(measure: Callable[[str], dict[str, float]], make: Callable[[], str]) -> dict[str, float]:
    """Measure a few times, each time on a fresh database, and give the least of each figure."""
    found = measure(make())
    for _ in range(RUNS - 1):
        found = least(found, measure(make()))
    return found


def measure_all(make: Callable[[], str]) -> dict[str, dict[str, float]]:
    """Measure every piece, an idle worker and an idle relay."""
    found = {piece.name: repeatedly(piece.figures, make) for piece in PIECES}
    found[IDLE] = repeatedly(measure_idle, make)
    found[IDLE_RELAY] = repeatedly(measure_idle_relay, make)
    return found


@contextmanager
def _every_postgres() -> Iterator[dict[str, dict[str, dict[str, float]]]]:
    found = {}
    for binaries in candidates():
        with start_quiet(binaries) as server:
            databases = Databases(server.url)
            with psycopg.connect(server.url) as connection:
                name = baseline.name_of(connection.info.server_version)
            if name not in found:
                found[name] = measure_all(partial(databases.copy, "cost", prepare))
    yield found


def main() -> None:
    """Measure on SQLite and on every PostgreSQL of this machine."""
    arguments = argparse.ArgumentParser(prog="python -m tests.cost.measure", description=__doc__)
    arguments.add_argument("--write", action="store_true", help=f"write {baseline.FILE.name}")
    write: bool = arguments.parse_args().write
    with _every_postgres() as found, tempfile.TemporaryDirectory() as folder:
        numbers = iter(range(1000))

        def make() -> str:
            url = f"sqlite:///{Path(folder) / f'{next(numbers)}.db'}"
            prepare(url)
            return url

        found["sqlite"] = measure_all(make)
    known = baseline.load() if baseline.FILE.exists() else {}
    for database, pieces in found.items():
        for piece, figures in pieces.items():
            print(f"{database}: {piece}")
            for name, value in figures.items():
                before = known.get(database, {}).get(piece, {}).get(name)
                print(f"    {name:14} {value:10g}" + ("" if before is None else f"   before {before:g}"))
    if write:
        baseline.save(found)
        others = sorted(set(known) - set(found))
        print(f"written to {baseline.FILE.name}" + (f"; kept as they were: {', '.join(others)}" if others else ""))


if __name__ == "__main__":
    main()
