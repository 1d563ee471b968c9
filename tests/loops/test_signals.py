"""What a worker process does with its signals, tested by real processes and real signals."""

from __future__ import annotations

import signal
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tenure import Tenure
from tenure.testing import SimulatorProcess
from tests.loops.stage import Child, create, ended, entered, job, pipe, producer, release, seconds, trail, until

LEASE = 1.2


def expiry(app: Tenure, one: Any) -> datetime:
    """When the lease ends as of now; it moves with every renewal."""
    lease = job(app, one).lease
    assert lease is not None
    return lease.expires_at


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_worker_leaves_at_once(url: str, tmp_path: Path, number: int) -> None:
    took = []
    # The best of three: the machine may be busy with others, but nothing in a worker may wait for so long.
    while not took or (min(took) > 1.0 and len(took) < 3):
        with Child(url, tmp_path) as worker:
            sent = worker.signal(number)
            assert worker.wait() == 0
            took.append(time.monotonic() - sent)
    assert min(took) <= 1.0, took


def test_a_busy_worker_drains_with_its_lease_kept(url: str, tmp_path: Path) -> None:
    with producer(url) as app, pipe(tmp_path, "pipe") as gate:
        one = create(app, "gate", {"pipe": "pipe"}, lease=LEASE)
        with Child(url, tmp_path, name="a", lease=LEASE) as draining:
            until(lambda: entered(tmp_path), "the handler to begin")
            with Child(url, tmp_path, name="b", lease=LEASE):
                draining.signal(signal.SIGTERM)
                began, first = time.monotonic(), expiry(app, one)
                # Renewed again and again after the signal: longer than the lease could last by itself, three times.
                until(lambda: expiry(app, one) > first + 3 * seconds(LEASE), "three leases' worth of renewals")
                assert time.monotonic() - began > 2 * LEASE
                late = create(app, "quick", key="late")
                ended(app, late, "completed")
                release(gate)
                assert draining.wait() == 0
        done = job(app, one)
        assert (done.status, done.result, done.generation, done.attempt_count) == ("completed", "through", 1, 1)
        assert trail(app, one) == ["claimed", "completed"]
        # What came after the signal went to the other worker, although the draining one had nine slots free.
        assert [(line["key"], line["pid"] == draining.pid) for line in entered(tmp_path)] == [
            ("k", True),
            ("late", False),
        ]


def test_a_handler_that_hangs_past_the_grace_is_left_and_its_job_runs_again_after_the_lease(
    url: str, tmp_path: Path
) -> None:
    with producer(url) as app:
        one = create(app, "hang", lease=LEASE)
        with Child(url, tmp_path, grace=0.5, lease=LEASE) as worker:
            until(lambda: entered(tmp_path), "the handler to begin")
            sent = worker.signal(signal.SIGTERM)
            assert worker.wait() == 1
            assert 0.5 <= time.monotonic() - sent <= 0.5 + 2
        # Its code might still have run when the process said its last word, so it was not given back.
        left = job(app, one)
        assert (left.status, left.generation, left.attempt_count) == ("running", 1, 1)
        with Child(url, tmp_path, name="b", grace=0.1, lease=LEASE):
            until(lambda: len(entered(tmp_path)) == 2, "the next attempt")
            assert entered(tmp_path)[1]["generation"] == 2
        assert trail(app, one)[:3] == ["claimed", "lease_expired", "claimed"]


@pytest.mark.parametrize("kind", ["hang", "await"])
def test_a_handler_stopped_during_its_call_is_indeterminate_and_nobody_sends_again(
    sqlite_url: str, tmp_path: Path, kind: str
) -> None:
    with SimulatorProcess(tmp_path / "ledger.jsonl") as provider, producer(sqlite_url) as app:
        provider.fault("hold_reply")
        one = create(app, kind, {"send": True}, lease=3)
        with Child(sqlite_url, tmp_path, grace=0.3, simulator=provider.url, sweep_every=None) as worker:
            provider.wait_until(held=1)
            sent = worker.signal(signal.SIGTERM)
            assert worker.wait() == 1
            assert time.monotonic() - sent <= 0.3 + 2
        stopped = job(app, one)
        assert (stopped.status, stopped.error_code) == ("indeterminate", "SHUTDOWN")
        provider.release()
        with Child(sqlite_url, tmp_path, name="b", simulator=provider.url, sweep_every=0.2) as worker:
            # The sweep finds what the provider did; the next attempt reads the receipt, sends nothing, and hangs.
            until((tmp_path / "sent").exists, "the next attempt to go past its effect")
            assert len(entered(tmp_path)) == 2
            worker.signal(signal.SIGKILL)
        assert provider.duplicates() == {}
        assert len(provider.effects()) == 1
        assert provider.state()["requests"] == 1


def test_a_handler_stopped_past_its_bare_mark_is_indeterminate_too(url: str, tmp_path: Path) -> None:
    with producer(url) as app:
        one = create(app, "hang", {"mark": True}, lease=3)
        with Child(url, tmp_path, grace=0.3, sweep_every=None) as worker:
            until((tmp_path / "marked").exists, "the mark")
            sent = worker.signal(signal.SIGTERM)
            assert worker.wait() == 1
            assert time.monotonic() - sent <= 0.3 + 2
        stopped = job(app, one)
        assert (stopped.status, stopped.error_code, stopped.operation_key) == ("indeterminate", "SHUTDOWN", "mine:1")
        # Nobody runs it again: another worker takes what comes after it.
        with Child(url, tmp_path, name="b", sweep_every=0.1) as worker:
            for nth in range(3):
                ended(app, create(app, "quick", key=f"q{nth}"), "completed")
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0
        assert job(app, one).status == "indeterminate"
        assert [line["kind"] for line in entered(tmp_path)] == ["hang", "quick", "quick", "quick"]


def test_a_blocked_event_loop_does_not_keep_a_stopped_worker(sqlite_url: str, tmp_path: Path) -> None:
    with producer(sqlite_url) as app:
        one = create(app, "block", {"seconds": 600})
        with Child(sqlite_url, tmp_path, grace=0.3) as worker:
            until(lambda: entered(tmp_path), "the handler to begin")
            sent = worker.signal(signal.SIGTERM)
            assert worker.wait() == 1
            assert time.monotonic() - sent <= 0.3 + 2
        # It says where it hung.
        assert "program.py" in worker.errors.read_text()
        assert " in block" in worker.errors.read_text()
        assert job(app, one).status == "running"


def test_a_second_signal_stops_handlers_and_their_jobs_are_given_back(url: str, tmp_path: Path) -> None:
    with producer(url) as app:
        one = create(app, "await")
        with Child(url, tmp_path, grace=60) as worker:
            until(lambda: entered(tmp_path), "the handler to begin")
            worker.signal(signal.SIGTERM)
            until(lambda: "drains" in worker.errors.read_text(), "the drain to begin")
            sent = worker.signal(signal.SIGTERM)
            assert worker.wait() == 1
            assert time.monotonic() - sent <= 2
        given_back = job(app, one)
        assert (given_back.status, given_back.attempt_count, given_back.generation) == ("queued", 0, 1)
        assert trail(app, one) == ["claimed", "released"]


def test_a_third_signal_leaves_at_once(sqlite_url: str, tmp_path: Path) -> None:
    with producer(sqlite_url) as app:
        one = create(app, "hang", lease=2)
        two = create(app, "block", {"seconds": 600}, key="k2", lease=2)
        with Child(sqlite_url, tmp_path, grace=60) as worker:
            until(lambda: len(entered(tmp_path)) == 2, "both handlers to begin")
            for count in (1, 2):
                worker.signal(signal.SIGINT)
                until(lambda count=count: _taken(tmp_path) == count, "the signal to be taken")
            sent = worker.signal(signal.SIGINT)
            assert worker.wait() == 128 + signal.SIGINT
            assert time.monotonic() - sent <= 0.5
        assert _taken(tmp_path) == 2
        assert "leaving at once" in worker.errors.read_text()
        assert [job(app, each).status for each in (one, two)] == ["running", "running"]


def _taken(folder: Path) -> int:
    path = folder / "signals"
    return path.stat().st_size if path.exists() else 0


def test_killed_in_the_grace_period_the_lease_runs_out_and_the_job_runs_again(url: str, tmp_path: Path) -> None:
    with producer(url) as app, pipe(tmp_path, "pipe") as gate:
        one = create(app, "gate", {"pipe": "pipe"}, lease=LEASE)
        with Child(url, tmp_path, grace=60, lease=LEASE) as worker:
            until(lambda: entered(tmp_path), "the handler to begin")
            worker.signal(signal.SIGTERM)
            until(lambda: "drains" in worker.errors.read_text(), "the drain to begin")
            worker.signal(signal.SIGKILL)
            assert worker.wait() == -signal.SIGKILL
        killed = time.monotonic()
        with Child(url, tmp_path, name="b", lease=LEASE):
            until(lambda: len(entered(tmp_path)) == 2, "the next attempt")
            assert time.monotonic() - killed <= LEASE + 2 + 2
            release(gate)
            done = ended(app, one, "completed")
        assert (done.generation, done.attempt_count) == (2, 2)
        assert trail(app, one) == ["claimed", "lease_expired", "claimed", "completed"]
