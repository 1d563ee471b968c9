"""
`make bench`: enqueue, drain, pick-up, memory, idle, on both databases, beside the bare driver in the same run.

Single figures depend on the machine and on its other work; the ratios are what to compare. A run is verified in the
database: every job completed, one claim and one completion each in the trail.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from rich.console import Console
from rich.table import Table

import tenure
from bench.journal import measure_journal
from bench.raw import RawPostgres, RawSqlite
from tenure.procedures.inspect import list_events
from tenure.stores import open_store
from tests.support.postgres import Databases, start_server

_ROOT = Path(__file__).resolve().parents[1]
_WAIT = 300.0


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


class Bench:
    """
    The measurements of one database.

    Args:
        fresh: Gives the URL of a new migrated store.
        raw: Makes the bare driver's side of a store.
    """

    def __init__(self, name: str, fresh: Callable[[], str], raw: Callable[[str], Any], jobs: int) -> None:
        self.name = name
        self._fresh = fresh
        self._raw = raw
        self._jobs = jobs

    def run(self) -> Iterator[Figure]:
        """Measure everything, each with its control before it."""
        yield from self._enqueue("enqueue one by one", max(200, self._jobs // 10), 1)
        yield from self._enqueue("enqueue in bulk", self._jobs, 500)
        floor = self._floor()
        for workers in (1, 2):
            rate, peak = self._drain(workers)
            name = "one worker" if workers == 1 else "two workers"
            yield Figure(self.name, f"drain with {name}", rate, "jobs/s", rate / floor)
            if workers == 1:
                yield Figure(self.name, "peak memory of a worker", peak, "MB")
        yield from self._pick_up()
        yield from self._idle()

    def _enqueue(self, what: str, jobs: int, each: int) -> Iterator[Figure]:
        url = self._fresh()
        raw = self._raw(url)
        raw.enqueue(each * 2, each)
        floor = jobs / raw.enqueue(jobs, each)
        raw.close()
        with opened(url) as (app, kind):
            start = time.perf_counter()
            for first in range(0, jobs, each):
                numbers = range(first, min(first + each, jobs))
                made = app.enqueue_many([app.prepare(kind, {"n": n}, key=f"{what}-{n}") for n in numbers])
                assert all(one.created for one in made)
            seconds = time.perf_counter() - start
        yield Figure(self.name, what, jobs / seconds, "jobs/s", jobs / seconds / floor)

    def _floor(self) -> float:
        raw = self._raw(self._fresh())
        raw.enqueue(self._jobs, 500)
        done, seconds = raw.drain()
        raw.close()
        assert done == self._jobs
        rate: float = done / seconds
        return rate

    def _drain(self, workers: int) -> tuple[float, float]:
        url = self._fresh()
        with opened(url) as (app, kind):
            prepared = [app.prepare(kind, {"n": n}, key=f"drain-{n}") for n in range(self._jobs)]
            for first in range(0, self._jobs, 500):
                app.enqueue_many(prepared[first : first + 500])
            with children(url, workers, concurrency=200) as running:
                wait_for(lambda: not app.service.list_jobs(status="queued", limit=1))
                wait_for(lambda: not app.service.list_jobs(status="running", limit=1))
            peak = max(one["peak_mb"] for one in running)
            return self._verified(app), peak

    def _verified(self, app: tenure.Tenure) -> float:
        """Check every job in the database and give the rate from the first claim to the last completion."""
        first, last, after, seen = None, None, None, 0
        while page := app.service.list_jobs(limit=1000, after=after):
            for job in page:
                names = [event.name.value for event in app.store.run(list_events(job.id))]
                assert names == ["claimed", "completed"], f"job {job.id} has the trail {names}"
            claims = [app.store.run(list_events(job.id))[0].at for job in page]
            first = min(claims) if first is None else min(first, *claims)
            ends = [job.finished_at for job in page if job.finished_at is not None]
            last = max(ends) if last is None else max(last, *ends)
            seen, after = seen + len(page), page[-1].id
        assert seen == self._jobs
        assert first is not None
        assert last is not None
        return seen / (last - first).total_seconds()

    def _pick_up(self) -> Iterator[Figure]:
        url = self._fresh()
        with opened(url) as (app, kind), children(url, 1, concurrency=10):
            delays = []
            for n in range(100):
                made = app.enqueue(kind, {"n": n}, key=f"pick-{n}").job
                wait_for(partial(_completed, app, made.id), pause=0.002)
                claimed = app.service.list_job_events(made.id)[0].at
                delays.append((claimed - made.created_at).total_seconds() * 1000)
        cuts = statistics.quantiles(delays, n=100)
        yield Figure(self.name, "pick-up from creation to claim, p50", statistics.median(delays), "ms")
        yield Figure(self.name, "pick-up from creation to claim, p99", cuts[98], "ms")

    def _idle(self) -> Iterator[Figure]:
        url = self._fresh()
        seconds = 10.0
        with opened(url), children(url, 1, concurrency=10) as running:
            start = time.monotonic()
            while time.monotonic() - start < seconds:
                time.sleep(0.5)
            lasted = time.monotonic() - start
        yield Figure(self.name, "idle worker, share of a core", running[0]["cpu_s"] / lasted * 100, "%")
        yield Figure(self.name, "idle worker, memory", running[0]["peak_mb"], "MB")


def _completed(app: tenure.Tenure, job_id: UUID) -> bool:
    return app.service.get_job(job_id).status == "completed"


@contextmanager
def opened(url: str) -> Iterator[tuple[tenure.Tenure, str]]:
    """Give an app on a store, with the kind that does nothing."""
    app = tenure.Tenure(url, organization="bench", project="bench", actor="bench")

    @app.job("noop")
    async def noop(ctx: tenure.AsyncContext, payload: dict[str, Any]) -> None:
        del ctx, payload

    try:
        yield app, "noop"
    finally:
        app.close()


@contextmanager
def children(url: str, count: int, *, concurrency: int) -> Iterator[list[dict[str, float]]]:
    """Run worker processes; what they used is in the list when the block ends."""
    environment = {**os.environ, "TENURE_STORE": url}
    command = [sys.executable, "-m", "bench.child", str(concurrency)]
    running = [
        subprocess.Popen(command, cwd=_ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    used: list[dict[str, float]] = []
    try:
        for one in running:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n", "a worker did not start"
        yield used
        for one in running:
            out, _ = one.communicate(timeout=60)
            used.append(json.loads(out.splitlines()[-1]))
    finally:
        for one in running:
            with suppress(ProcessLookupError):
                one.kill()
            one.wait()


def wait_for(done: Callable[[], bool], *, pause: float = 0.05) -> None:
    """Look again and again until something is true; a run that hangs ends with an error."""
    end = time.monotonic() + _WAIT
    while not done():
        if time.monotonic() > end:
            raise TimeoutError("the run did not end in time")
        time.sleep(pause)


@contextmanager
def databases(folder: Path, wanted: str, jobs: int) -> Iterator[list[Bench]]:
    """Set up what is asked for."""
    benches = []
    numbers = iter(range(10_000))

    def sqlite() -> str:
        url = f"sqlite:////{str(folder).lstrip('/')}/bench-{next(numbers)}.db"
        migrate(url)
        return url

    if wanted in {"both", "sqlite"}:
        benches.append(Bench("sqlite", sqlite, lambda url: RawSqlite(url.removeprefix("sqlite:///")), jobs))
    if wanted == "sqlite":
        yield benches
        return
    server = start_server(durable=True)
    made = Databases(server.url)

    def postgres() -> str:
        url = made.create()
        migrate(url)
        return url

    try:
        yield [*benches, Bench("postgresql", postgres, RawPostgres, jobs)]
    finally:
        server.close()


def migrate(url: str) -> None:
    """Make a store's schema."""
    store = open_store(url)
    store.migrate()
    store.close()


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--store", choices=("both", "sqlite", "postgresql"), default="both")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--json", action="store_true", help="write JSON lines")
    options = parser.parse_args()
    console = Console(stderr=True)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder:
        with databases(Path(folder), options.store, options.jobs) as benches:
            for bench in benches:
                for figure in bench.run():
                    figures.append(figure)
                    console.print(f"{figure.store}: {figure.what}: {figure.value:,.1f} {figure.unit}", highlight=False)
        for what, value, unit, ratio in measure_journal(Path(folder)):
            figures.append(Figure("journal", what, value, unit, ratio))
    if options.json:
        for figure in figures:
            sys.stdout.write(json.dumps(asdict(figure)) + "\n")
        return
    table = Table("database", "what", "value", "of the bare driver")
    for figure in figures:
        share = "" if figure.ratio is None else f"{figure.ratio:.2f} x"
        table.add_row(figure.store, figure.what, f"{figure.value:,.1f} {figure.unit}", share)
    Console().print(table)


if __name__ == "__main__":
    main()
