"""
The one way in which every system is measured, ours included.

A system is an `Adapter`. Its script is run in the system's own environment, once for each measurement:

    python -m bench.peers.pgqueuer drain URL --jobs 10000 --processes 2

It prints one JSON line, or fails: a run that cannot be verified is an error and not a number. Workers are processes of
the same script (`serve`), told to begin together and ended when their standard input ends.

A drain lasts from the first handler's start to the moment when the database says that no job is unfinished: starting,
connecting and the first claim are left out for everybody, the last write of outcomes is not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench.store import Eye, is_postgres, wait_for
from bench.tally import Board, Tally
from bench.verify import check_ran, check_stored

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 600.0
WARM_UP = 20
# Between two jobs of a pick-up run, in seconds: long enough for a worker to be idle, and not in step with its polls.
PAUSES = (0.05, 0.15)

NOOP, STEP = "noop", "step"


@dataclass(frozen=True, slots=True)
class Producer:
    """
    How jobs are put in, over a connection that is open already.

    Attributes:
        many: Puts these numbers in by the fastest way the system recommends.
        one: Puts one in with a commit of its own and gives the monotonic nanoseconds when the commit was known.
    """

    many: Callable[[Sequence[int]], None]
    one: Callable[[int], int]


class Stop:
    """Tells a worker to end; one that does not ask to be told is ended where it is."""

    def __init__(self, farewell: Callable[[], None]) -> None:
        self._farewell = farewell
        self._told: list[Callable[[], object]] = []

    def tell(self, callback: Callable[[], object]) -> None:
        """Call this, from another thread, when it is time; the worker then returns by itself."""
        self._told.append(callback)

    def now(self) -> None:
        """End."""
        if not self._told:
            self._farewell()
            os._exit(0)
        for callback in self._told:
            callback()


@dataclass(frozen=True, slots=True)
class Adapter:
    """
    One system.

    Attributes:
        module: The script, as `python -m` knows it.
        setup: Makes the schema in an empty database.
        producer: Opens the way to put in jobs of a mode, NOOP or STEP.
        work: Runs a worker in this process; its handlers call `Tally.mark` with the job's number.
        left: SQL: how many jobs are not finished.
        done: What is finished, as SQL giving rows and distinct jobs; each must be one row for each job.
        steps: The same for what a STEP job records beside itself.
        prefixes: What `{}` stands for in these, on PostgreSQL and on SQLite.
    """

    module: str
    setup: Callable[[str], None]
    producer: Callable[[str, str], AbstractContextManager[Producer]]
    work: Callable[[str, str, Tally, Stop], None]
    left: str
    done: dict[str, str] = field(default_factory=dict)
    steps: dict[str, str] = field(default_factory=dict)
    prefixes: tuple[str, str] = ("", "")


# --- the measurements -------------------------------------------------------------------------------------------------


def drain(adapter: Adapter, url: str, jobs: int, processes: int, mode: str = NOOP) -> dict[str, Any]:
    """Let workers finish a backlog."""
    adapter.setup(url)
    with adapter.producer(url, mode) as producer:
        producer.many(range(jobs))
    eye = Eye(url, adapter.prefixes)
    eye.settle()
    commits = eye.commits()
    with crew(adapter, url, processes, mode) as workers:
        board = workers.board
        wal = eye.wal()
        workers.go()
        wait_for(lambda: board.total() >= jobs, f"{jobs} handlers", PATIENCE)
        wait_for(lambda: eye.row(adapter.left)[0] == 0, "the last outcomes", PATIENCE, pause=0.002)
        finished = time.monotonic_ns()
        written = eye.wal()
        reports = workers.end()
    verify(adapter, eye, jobs, mode, reports)
    committed = eye.commits()
    eye.close()
    seconds = (finished - board.first()) / 1e9
    return {
        "seconds": seconds,
        "rate": jobs / seconds,
        "each": [len(one["ran"]) for one in reports],
        "peak_mb": max(one["peak_mb"] for one in reports),
        "cpu_s": sum(one["cpu_s"] for one in reports),
        "wal_bytes_per_job": None if wal is None or written is None else (written - wal) / jobs,
        "commits_per_job": None if commits is None or committed is None else (committed - commits) / jobs,
    }


def verify(adapter: Adapter, eye: Eye, jobs: int, mode: str, reports: Sequence[dict[str, Any]]) -> None:
    """
    Hold the handlers' record and the database's against what was enqueued.

    Raises:
        Unverified: They differ.
    """
    check_ran(jobs, [number for one in reports for number in one["ran"]])
    for what, statement in {**adapter.done, **(adapter.steps if mode == STEP else {})}.items():
        check_stored(jobs, what, eye.row(statement))


def bulk(adapter: Adapter, url: str, jobs: int) -> dict[str, Any]:
    """Put jobs in by the fastest way there is."""
    return _enqueue(adapter, url, jobs, lambda producer: producer.many(range(jobs)))


def single(adapter: Adapter, url: str, jobs: int) -> dict[str, Any]:
    """Put jobs in one by one, each with a commit of its own."""

    def each(producer: Producer) -> None:
        for number in range(jobs):
            producer.one(number)

    return _enqueue(adapter, url, jobs, each)


def _enqueue(adapter: Adapter, url: str, jobs: int, put: Callable[[Producer], None]) -> dict[str, Any]:
    adapter.setup(url)
    with adapter.producer(url, NOOP) as producer:
        start = time.perf_counter()
        put(producer)
        seconds = time.perf_counter() - start
    eye = Eye(url, adapter.prefixes)
    waiting = eye.row(adapter.left)[0]
    eye.close()
    check_stored(jobs, "jobs waiting", (waiting, waiting))
    return {"seconds": seconds, "rate": jobs / seconds}


def pickup(adapter: Adapter, url: str, jobs: int) -> dict[str, Any]:
    """Put single jobs in front of an idle worker and see when its handler starts."""
    adapter.setup(url)
    chance = random.Random(1)  # noqa: S311 - spreads the samples
    delays: list[float] = []
    with crew(adapter, url, 1, NOOP) as workers:
        board = workers.board
        workers.go()
        with adapter.producer(url, NOOP) as producer:
            for number in range(WARM_UP + jobs):
                time.sleep(chance.uniform(*PAUSES))  # so that no two jobs meet the poll at the same point
                committed = producer.one(number)
                wait_for(lambda seen=number: board.total() > seen, f"job {number}", PATIENCE)  # type: ignore[misc]
                delays.append((board.last() - committed) / 1e6)
        eye = Eye(url, adapter.prefixes)
        wait_for(lambda: eye.row(adapter.left)[0] == 0, "the last outcome", PATIENCE)
        reports = workers.end()
    verify(adapter, eye, WARM_UP + jobs, NOOP, reports)
    eye.close()
    measured = delays[WARM_UP:]
    return {
        "p50_ms": statistics.median(measured),
        "p99_ms": percentile(measured, 99),
        "delays_ms": [round(one, 3) for one in measured],
    }


def percentile(values: Sequence[float], percent: int) -> float:
    """Give the smallest value that so many percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


# --- workers ----------------------------------------------------------------------------------------------------------


class Crew:
    """
    Worker processes that are ready.

    Attributes:
        board: What they run, as it happens.
    """

    def __init__(self, board: Board, running: Sequence[subprocess.Popen[str]]) -> None:
        self.board = board
        self._running = running

    @property
    def pids(self) -> list[int]:
        """Their process ids."""
        return [one.pid for one in self._running]

    def go(self) -> None:
        """Let them begin together."""
        for one in self._running:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()

    def end(self) -> list[dict[str, Any]]:
        """End them, and give what each ran and used."""
        reports = []
        for one in self._running:
            out, _ = one.communicate(timeout=60)
            reports.append(json.loads(out.splitlines()[-1]))
        return reports


@contextmanager
def crew(adapter: Adapter, url: str, processes: int, mode: str) -> Iterator[Crew]:
    """Give worker processes; none of them outlives the block."""
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder:
        path = Path(folder) / "tally"
        board = Board(path)
        command = [sys.executable, "-m", adapter.module, "serve", url, "--mode", mode, "--tally", str(path)]
        running = [
            subprocess.Popen(
                [*command, "--slot", str(slot)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for slot in range(processes)
        ]
        try:
            for one in running:
                assert one.stdout is not None
                assert one.stdout.readline() == "ready\n", "a worker did not start"
            yield Crew(board, running)
        finally:
            for one in running:
                with suppress(ProcessLookupError):
                    one.kill()
                one.wait()
                for stream in (one.stdin, one.stdout):
                    if stream is not None:
                        stream.close()


def serve(adapter: Adapter, url: str, mode: str, tally: Tally) -> None:
    """Be a worker until standard input ends, then say what was run and used."""
    before = resource.getrusage(resource.RUSAGE_SELF)

    def report() -> None:
        after = resource.getrusage(resource.RUSAGE_SELF)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        said = {"ran": tally.ran.tolist(), "peak_mb": after.ru_maxrss / 1024, "cpu_s": used}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()

    stop = Stop(report)

    def read_on() -> None:
        sys.stdin.read()
        stop.now()

    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    threading.Thread(target=read_on, daemon=True).start()
    adapter.work(url, mode, tally, stop)
    report()


# --- the command line -------------------------------------------------------------------------------------------------

WORKS: dict[str, Callable[[Adapter, argparse.Namespace], dict[str, Any]]] = {
    "drain": lambda adapter, to: drain(adapter, to.url, to.jobs, to.processes),
    "step": lambda adapter, to: drain(adapter, to.url, to.jobs, to.processes, STEP),
    "bulk": lambda adapter, to: bulk(adapter, to.url, to.jobs),
    "single": lambda adapter, to: single(adapter, to.url, to.jobs),
    "pickup": lambda adapter, to: pickup(adapter, to.url, to.jobs),
}


def main(
    adapter: Adapter,
    argv: Sequence[str] | None = None,
    *,
    more: Mapping[str, Callable[[argparse.Namespace], dict[str, Any]]] | None = None,
) -> None:
    """
    Measure one thing and print one JSON line.

    Args:
        more: Measurements that only this system has, or measures in a way of its own.
    """
    works = {name: partial(measure, adapter) for name, measure in WORKS.items()} | dict(more or {})
    parser = argparse.ArgumentParser(prog=f"python -m {adapter.module}")
    parser.add_argument("work", choices=(*works, "serve"))
    parser.add_argument("url", help="an empty database: postgresql://... or sqlite:////path")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--uvloop", action="store_true", help="for us; the others use it where they recommend it")
    parser.add_argument("--mode", choices=(NOOP, STEP), default=NOOP)
    parser.add_argument("--tally", type=Path)
    parser.add_argument("--slot", type=int, default=0)
    given = parser.parse_args(argv)
    if given.uvloop:
        # The workers inherit it.
        os.environ["BENCH_UVLOOP"] = "1"
    if given.work == "serve":
        serve(adapter, given.url, given.mode, Tally(given.tally, given.slot))
        return
    database = "postgresql" if is_postgres(given.url) else "sqlite"
    found = works[given.work](given)
    shown = {"system": adapter.module, "database": database, "work": given.work, "jobs": given.jobs}
    sys.stdout.write(json.dumps({**shown, "processes": given.processes, **found}) + "\n")
