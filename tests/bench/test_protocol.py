"""Our own side of the measurements, small: each work on both databases gives one verified line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from bench.ours import application, setup
from bench.place import check_durable
from bench.protocol import NOOP
from bench.tally import Board, Tally
from tests.support.tree import ROOT

JOBS = 50


def run(module: str, work: str, url: str, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, work, url, "--jobs", str(JOBS), *more],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def measured(module: str, work: str, url: str, *more: str) -> dict[str, Any]:
    done = run(module, work, url, *more)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert len(lines) == 1
    found: dict[str, Any] = json.loads(lines[0])
    return found


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_a_drain_with_two_processes(database: str, fresh: Callable[[str], str]) -> None:
    found = measured("bench.ours", "drain", fresh(database), "--processes", "2")
    assert (found["system"], found["database"], found["work"]) == ("bench.ours", database, "drain")
    assert sum(found["each"]) == JOBS
    assert len(found["each"]) == 2
    assert found["rate"] == pytest.approx(JOBS / found["seconds"])
    assert found["peak_mb"] > 10
    if database == "postgresql":
        # The server's whole log is measured, and other tests write it too.
        assert found["wal_bytes_per_job"] > 300
        assert 0 < found["commits_per_job"] < 5
    else:
        assert found["wal_bytes_per_job"] is None


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
@pytest.mark.parametrize("work", ["step", "bulk", "single", "cycle"])
def test_every_other_work(database: str, work: str, fresh: Callable[[str], str]) -> None:
    found = measured("bench.ours", work, fresh(database))
    assert (found["work"], found["jobs"]) == (work, JOBS)
    assert found["rate"] == pytest.approx(JOBS / found["seconds"])


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_a_pick_up(database: str, fresh: Callable[[str], str]) -> None:
    found = measured("bench.ours", "pickup", fresh(database), "--jobs", "5")
    assert len(found["delays_ms"]) == 5
    assert found["p50_ms"] <= found["p99_ms"] == pytest.approx(max(found["delays_ms"]), abs=0.001)


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
@pytest.mark.parametrize("work", ["cycle", "bulk", "single"])
def test_the_bare_driver_beside_it(database: str, work: str, fresh: Callable[[str], str]) -> None:
    url = fresh(database)
    setup(url)
    found = measured("bench.raw", work, url)
    assert (found["system"], found["jobs"]) == ("bench.raw", JOBS)
    assert found["rate"] > 0


def test_the_bare_driver_with_our_statements(fresh: Callable[[str], str]) -> None:
    # Verified as ours are: an outcome, a claim and a completion of each job.
    found = measured("bench.same", "cycle", fresh("postgresql"))
    assert (found["system"], found["jobs"]) == ("bench.same", JOBS)


def test_a_run_that_cannot_be_verified_prints_no_number(fresh: Callable[[str], str]) -> None:
    url = fresh("postgresql")
    setup(url)
    # Somebody else's job: more are waiting than were put in.
    app = application(url)
    app.enqueue(NOOP, {"n": 1}, key="a stranger's")
    app.close()
    done = run("bench.ours", "single", url)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "Unverified: jobs waiting: 51 rows" in done.stderr
    assert measured("bench.ours", "single", fresh("postgresql"))["rate"] > 0


def test_a_tally_is_seen_from_outside(tmp_path: Any) -> None:
    path = tmp_path / "tally"
    board = Board(path)
    assert board.total() == 0
    one, other = Tally(path, 0), Tally(path, 1)
    one.mark(7)
    first = board.last()
    other.mark(8)
    one.mark(8)
    assert board.total() == 3
    assert board.first() == first < board.last()
    assert (one.ran.tolist(), other.ran.tolist()) == ([7, 8], [8])


def test_only_a_durable_server_is_measured(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute("SHOW fsync").fetchone()
    # The tests' own server is the fast one, so here is the refusal; its control is every measurement on one of `Place`.
    assert found == ("off",)
    with pytest.raises(RuntimeError, match="fsync is not on"):
        check_durable(postgres_url)
