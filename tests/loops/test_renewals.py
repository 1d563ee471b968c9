"""Leases are kept by a thread of their own: with truly blocking handlers, and refused where they could not be kept."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure import AsyncContext, Context, Invalid, Job, Tenure
from tenure.attempt import Attempt
from tenure.errors import Unavailable
from tenure.kinds import declare
from tenure.loops.heartbeat import Heartbeat
from tenure.loops.supervisor import Pulse
from tenure.procedures.claim import claim
from tests.loops.stage import (
    LOOK_EVERY,
    Child,
    Running,
    create,
    ended,
    entered,
    job,
    make_app,
    producer,
    seconds,
    trail,
    until,
)

LEASE = 1.0


def app_with(url: str, *handlers: Callable[..., Any], lease: float = LEASE, **options: Any) -> Tenure:
    app = make_app(url)
    for handler in handlers:
        app.job(handler.__name__, lease_duration=seconds(lease), backoff_base=seconds(1), **options)(handler)
    return app


async def blocks_the_loop(ctx: AsyncContext, payload: dict[str, Any]) -> str:
    time.sleep(3 * LEASE)  # noqa: ASYNC251 - the mistake that is tested
    return f"generation {ctx.lease.generation}"


def blocks_a_thread(ctx: Context, payload: dict[str, Any]) -> str:
    time.sleep(3 * LEASE)
    return f"generation {ctx.lease.generation}"


def test_a_handler_that_blocks_keeps_its_lease(url: str) -> None:
    app = app_with(url, blocks_the_loop, blocks_a_thread)
    # The thread first: it begins before the loop is blocked.
    prepared = [app.prepare(kind, {}, key=kind) for kind in ("blocks_a_thread", "blocks_the_loop")]
    jobs = [made.job for made in app.enqueue_many(prepared)]
    with Running(app) as running, producer(url) as rival:
        # Somebody else looks for work all the time, and settles what has expired.
        until(lambda: running.worker.health().running == 2, "both to begin")
        began = time.monotonic()
        while any(job(app, one).status == "running" for one in jobs):
            assert rival.service.claim_job("rival") is None
            time.sleep(LOOK_EVERY)
        assert time.monotonic() - began > 2 * LEASE
        for one in jobs:
            done = ended(app, one, "completed")
            assert (done.result, done.generation, done.attempt_count) == ("generation 1", 1, 1)
            assert trail(app, one) == ["claimed", "completed"]


def test_without_renewals_the_late_completion_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The same handlers as above, whose completions were accepted.
    monkeypatch.setattr(Heartbeat, "_renew", lambda self, due: None)
    app = app_with(url, blocks_the_loop)
    one = app.enqueue("blocks_the_loop", {}, key="k").job
    with Running(app) as running, producer(url) as rival:
        until(lambda: running.worker.health().running, "the handler to begin")
        taken = until(lambda: rival.service.claim_job("rival", start=True, lease_duration=seconds(60)), "its end")
        assert (taken.job.id, taken.lease.generation) == (one.id, 2)
        # The first handler ends now or has ended; its worker is idle when its late word has been refused.
        until(lambda: running.worker.health().running == 0, "the late handler to end")
        assert running.stop()
        assert (job(app, one).status, job(app, one).generation) == ("running", 2)
        done = rival.service.complete_job(taken.lease, result="rival")
        assert (done.status, done.result) == ("completed", "rival")
        assert trail(rival, one) == ["claimed", "lease_expired", "claimed", "completed"]


def test_code_that_holds_the_interpreter_loses_its_lease_and_nothing_else(sqlite_url: str, tmp_path: Path) -> None:
    with producer(sqlite_url) as app:
        one = create(app, "hold_interpreter", {"seconds": 3}, lease=LEASE)
        with Child(sqlite_url, tmp_path, lease=LEASE) as worker:
            until((tmp_path / "holding").exists, "the handler to begin")
            taken = until(lambda: app.service.claim_job("rival", start=True, lease_duration=seconds(60)), "its end")
            assert taken.lease.generation == 2
            app.service.complete_job(taken.lease, result="rival")
            held = until(lambda: _read(tmp_path / "held"), "the handler to end")
            assert float(held) > 2 * LEASE
            # Not deadlocked: it goes on with the next job, and ends when it is told to.
            ended(app, create(app, "quick", key="next"), "completed")
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0
        done = job(app, one)
        assert (done.status, done.result, done.generation) == ("completed", "rival", 2)
        assert trail(app, one) == ["claimed", "lease_expired", "claimed", "completed"]
        assert len(entered(tmp_path)) == 2


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_a_deadlocked_handler_is_ended_by_its_timeout_although_its_lease_was_kept(url: str) -> None:
    let_go = threading.Event()

    def deadlocks(ctx: Context, payload: dict[str, Any]) -> None:
        lock = threading.Lock()
        lock.acquire()
        while not lock.acquire(timeout=0.05):  # an RLock would have been right
            if let_go.is_set():
                return

    app = app_with(url, deadlocks, timeout=timedelta(seconds=3 * LEASE))
    one = app.enqueue("deadlocks", {}, key="k").job
    began = time.monotonic()
    with Running(app, concurrency=1) as running:
        try:
            done = ended(app, one)
            assert (done.status, done.error_code, done.generation) == ("timed_out", "TIMED_OUT", 1)
            assert time.monotonic() - began > 2.5 * LEASE
            # Its thread still runs, and so its slot is used: nothing else is begun.
            waiting = app.enqueue("deadlocks", {}, key="k2").job
            assert running.worker.health().running == 1
        finally:
            let_go.set()
        # It ends at once, because the gate is open.
        assert ended(app, waiting, "completed").attempt_count == 1


def test_a_cancelled_thread_keeps_its_slot_until_it_ends_and_its_writes_are_refused(url: str) -> None:
    """A lease is not renewed under a pending cancellation: recovery cancels the job while its thread still runs."""
    let_go, refused = threading.Event(), []

    def stubborn(ctx: Context, payload: dict[str, Any]) -> str:
        let_go.wait(20)
        try:
            with ctx.publish() as tx:
                tx.execute("DROP TABLE IF EXISTS everything")
        except BaseException as error:
            refused.append(type(error).__name__)
            raise
        return "too late"

    app = app_with(url, stubborn)
    one = app.enqueue("stubborn", {}, key="k").job
    with Running(app, concurrency=1) as running:
        until(lambda: running.worker.health().running, "the handler to begin")
        app.service.cancel_job(one.id, reason="enough")
        two = app.enqueue("stubborn", {}, key="k2").job
        pending = job(app, one)
        assert (pending.status, pending.cancel_requested_at is not None) == ("running", True)
        assert ended(app, one).status == "cancelled"
        assert running.worker.health().running == 1
        assert job(app, two).generation == 0
        let_go.set()
        assert ended(app, two, "completed").status == "completed"
        assert refused[:1] == ["Stop"]
        assert trail(app, one) == ["claimed", "cancel_requested", "cancelled"]


# --- settings ---------------------------------------------------------------------------------------------------------


async def quick(ctx: AsyncContext, payload: dict[str, Any]) -> None: ...


def test_a_heartbeat_longer_than_a_third_of_the_lease_is_refused_with_both_values() -> None:
    app = app_with("sqlite:///:memory:", quick, lease=60)
    with pytest.raises(Invalid) as caught:
        app.worker(heartbeat=seconds(60))
    assert str(caught.value) == (
        "heartbeat of 60 s is longer than a third of the lease of 60 s: "
        "set heartbeat to at most 20 s or lengthen the lease"
    )
    assert caught.value.code == "HEARTBEAT_TOO_LONG"
    app.worker(heartbeat=seconds(20))
    app.job("shorter", lease_duration=seconds(30))(quick)
    with pytest.raises(Invalid, match=r"heartbeat of 20 s is longer than a third of the lease of 30 s"):
        app.worker(heartbeat=seconds(20))
    app.worker(heartbeat=seconds(20), kinds=["quick"])


@pytest.mark.parametrize(
    "options,text",
    [
        ({"concurrency": 0}, "concurrency must be a whole number from 1, not 0"),
        ({"concurrency": 1.5}, "concurrency must be a whole number from 1, not 1.5"),
        ({"queues": "mail"}, "queues and kinds are lists of names, not one text"),
        ({"kinds": []}, "the app has no kinds"),
        ({"kinds": ["other"]}, "'other' is no kind of this app"),
        ({"heartbeat": seconds(0)}, "heartbeat is a timedelta above zero"),
        ({"heartbeat": 5}, "heartbeat is a timedelta above zero"),
        ({"grace": seconds(-1)}, "grace is a timedelta of zero or more"),
        ({"sweep_every": seconds(0)}, "sweep_every is a timedelta above zero"),
        ({"poll": seconds(0)}, "poll is a timedelta above zero"),
        ({"worker_id": ""}, "worker_id"),
    ],
)
def test_a_wrong_setting_is_told_before_anything_starts(options: dict[str, Any], text: str) -> None:
    app = app_with("sqlite:///:memory:", quick)
    with pytest.raises(Invalid, match=text):
        app.worker(**options)
    app.worker(concurrency=1, queues=["mail"], kinds=["quick"], grace=seconds(0), worker_id="w")


def test_an_app_without_kinds_has_no_worker() -> None:
    with pytest.raises(Invalid, match=r"the app has no kinds; decorate a handler with @app\.job"):
        make_app("sqlite:///:memory:").worker()


# --- the heartbeat by itself ------------------------------------------------------------------------------------------


class Counting:
    """A store that counts its runs, and fails as it is told."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.batches: list[int] = []
        self.fail: Callable[[list[Any]], Exception | None] = lambda leases: None

    def run(self, procedure: Any) -> Any:
        leases = procedure.args[0]
        self.batches.append(len(leases))
        error = self.fail(leases)
        if error is not None:
            procedure.script().close()
            raise error
        return self.store.run(procedure)


def attempts(app: Tenure, *jobs: Job, kind: Any = None) -> list[Attempt]:
    sent = time.monotonic()
    taken = app.store.run(claim("w", limit=len(jobs), start=True))
    assert len(taken) == len(jobs)
    return [Attempt(one, kind or declare(one.job.kind, quick), sent) for one in taken]


def test_renewals_are_one_batch_at_most_a_third_of_the_lease_apart(sqlite_url: str) -> None:
    with producer(sqlite_url) as app:
        held = attempts(app, *[create(app, "k", key=f"k{n}", lease=0.9) for n in range(3)])
        store, pulse = Counting(app.store), Pulse("heartbeat", 1.0)
        heart = Heartbeat(store, pulse, lambda attempt: None)  # type: ignore[arg-type]
        heart.add(held)
        heart.start()
        first = [one.lease.expires_at for one in held]
        sent: list[float] = []
        for _ in range(4):
            before = held[0].sent
            until(lambda before=before: held[0].sent > before, "a renewal", 5)
            sent.append(held[0].sent)
        heart.end()
        heart.join()
        assert set(store.batches) == {3}
        assert all(one.lease.expires_at > before for one, before in zip(held, first, strict=True))
        gaps = [after - before for before, after in itertools.pairwise(sent)]
        # Never sooner than needed by far; how late they come is the machine's doing too, so the best one counts.
        assert 0.9 / 3 / 2 < min(gaps) <= 0.9 / 3


def test_one_lease_that_cannot_be_renewed_does_not_cost_the_others_theirs(sqlite_url: str) -> None:
    with producer(sqlite_url) as app:
        held = attempts(app, *[create(app, "k", key=f"k{n}") for n in range(3)])
        store, pulse = Counting(app.store), Pulse("heartbeat", 1.0)
        bad = held[1].lease.attempt_id
        store.fail = lambda leases: (
            AssertionError("a row that cannot be") if bad in {one.attempt_id for one in leases} else None
        )
        heart = Heartbeat(store, pulse, lambda attempt: None, beat=0.001)  # type: ignore[arg-type]
        heart.add(held)
        before = [one.sent for one in held]
        with pytest.raises(AssertionError, match="a row that cannot be"):
            heart.round()
        assert [one.sent > then for one, then in zip(held, before, strict=True)] == [True, False, True]
        # A database that is away is no reason to ask for each by itself.
        store.batches.clear()
        store.fail = lambda leases: Unavailable("away")
        with pytest.raises(Unavailable):
            heart.round()
        assert store.batches == [3]


def test_a_shorter_lease_than_its_kinds_is_renewed_in_time_all_the_same(sqlite_url: str) -> None:
    app = app_with(sqlite_url, blocks_a_thread, lease=60)
    one = app.service.create_job(
        organization=app.organization,
        project=app.project,
        idempotency_key="k",
        kind="blocks_a_thread",
        payload={},
        lease_duration=seconds(LEASE),
    ).job
    with Running(app, heartbeat=seconds(20)):
        done = ended(app, one, "completed")
    assert (done.generation, done.attempt_count) == (1, 1)


def test_two_lost_beats_in_a_row_cost_nothing(sqlite_url: str) -> None:
    app = app_with(sqlite_url, blocks_a_thread, lease=1.5)
    one = app.enqueue("blocks_a_thread", {}, key="k").job
    lost: list[float] = []
    with Running(app) as running:
        heart = running.worker._heartbeat
        extend = heart._extend

        def lossy(due: list[Attempt]) -> None:
            # Two of every three are lost.
            lost.append(time.monotonic())
            if len(lost) % 3:
                raise Unavailable("lost")
            extend(due)

        heart._extend = lossy  # type: ignore[method-assign]
        done = ended(app, one, "completed")
    assert len(lost) >= 3
    assert (done.generation, done.attempt_count) == (1, 1)
