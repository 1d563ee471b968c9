"""Several worker processes at once: told to stop at random, killed by a job, with nobody's work lost."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tenure import Job, Tenure
from tests.loops.stage import Child, create, entered, fields, job, producer, trail, until

JOBS, WORKERS, SIGNALS = 1_000, 4, 8


def everyone(app: Tenure) -> list[Job]:
    first = app.service.list_jobs(limit=1000)
    return first + (app.service.list_jobs(limit=1000, after=first[-1].id) if len(first) == 1000 else [])


def test_a_thousand_jobs_survive_workers_that_are_told_to_stop_at_random(url: str, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with producer(url) as app, ExitStack() as stack:
        for start in range(0, JOBS, 250):
            app.service.create_jobs([fields(app, "quick", key=f"q{n}", lease=30) for n in range(start, start + 250)])
        workers = [Child(url, tmp_path, name=f"w{n}", concurrency=5, lease=30) for n in range(WORKERS)]
        everybody = list(workers)
        stack.callback(lambda: [worker.kill() for worker in everybody])
        for worker in workers:
            worker.ready()
        leaving: list[Child] = []
        for step in range(SIGNALS):
            # A random instant of the work: after so many more handlers.
            wanted = min(len(entered(tmp_path)) + chance.randrange(JOBS // (2 * SIGNALS)), JOBS)
            until(lambda wanted=wanted: len(entered(tmp_path)) >= wanted, f"{wanted} handlers")
            nth = chance.randrange(WORKERS)
            # Signalled while the others work, and replaced at once.
            old = workers[nth].ready()
            old.signal(signal.SIGTERM)
            leaving.append(old)
            workers[nth] = Child(url, tmp_path, name=f"w{step + WORKERS}", concurrency=5, lease=30)
            everybody.append(workers[nth])
        statuses = [old.wait() for old in leaving]
        until(lambda: not app.service.list_jobs(status="queued", limit=1), "the queue to be empty")
        until(lambda: not app.service.list_jobs(status="running", limit=1), "the last handlers")
        assert statuses == [0] * SIGNALS
        jobs = everyone(app)
        entries = Counter(line["job"] for line in entered(tmp_path))
    assert Counter(one.status.value for one in jobs) == {"completed": JOBS}
    # Every handler entered as often as it was counted, and what was given back unstarted was not counted.
    assert {str(one.id): one.attempt_count for one in jobs} == dict(entries) == {str(one.id): 1 for one in jobs}


@pytest.mark.parametrize("how", ["crash", "kill", "exit"])
def test_a_job_that_kills_its_worker_is_buried_after_its_attempts_and_the_others_complete(
    sqlite_url: str, tmp_path: Path, how: str
) -> None:
    with producer(sqlite_url) as app:
        good = app.service.create_jobs([fields(app, "quick", key=f"g{n}", lease=1) for n in range(99)])
        poison = create(app, "die", {"how": how}, key="poison", lease=1)
        good.append(app.service.create_job(**fields(app, "quick", key="last", lease=1)))
        # As a process manager would: whoever dies is started again.
        began, deaths = time.monotonic(), []
        while job(app, poison).status != "dead_letter" or app.service.list_jobs(status="queued", limit=1):
            assert time.monotonic() - began < 60
            with Child(sqlite_url, tmp_path, name=f"w{len(deaths)}", concurrency=10, lease=1) as worker:
                until(
                    lambda worker=worker: worker.process.poll() is not None or job(app, poison).status == "dead_letter",
                    "the worker to die, or the job to be buried",
                )
                if worker.process.poll() is None:
                    until(lambda: not app.service.list_jobs(status="queued", limit=1), "the others")
                    worker.signal(signal.SIGTERM)
                deaths.append(worker.wait())
        buried = job(app, poison)
        assert (buried.error_code, buried.attempt_count) == ("WORKER_LOST", 3)
        assert trail(app, poison) == [
            "claimed",
            "lease_expired",
            "claimed",
            "lease_expired",
            "claimed",
            "dead_lettered",
        ]
        assert [line["attempt"] for line in entered(tmp_path) if line["kind"] == "die"] == [1, 2, 3]
        expected = {"crash": -signal.SIGSEGV, "kill": -signal.SIGKILL, "exit": 0}[how]
        assert deaths == [expected] * 3 + [0]
        finished = [job(app, one.job) for one in good]
        assert {one.status.value for one in finished} == {"completed"}
        # Those that were in the same process lost an attempt with it, and nothing else.
        assert {one.attempt_count for one in finished} == {1, 2}
