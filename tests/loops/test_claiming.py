"""What a worker takes: batches up to its free slots, its queues in their order, its kinds, its tenant."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure import AsyncContext, Context, Tenure
from tenure.errors import Invalid, Unavailable
from tenure.loops import claims
from tenure.loops.claims import CLAIM_MAX, Claims
from tenure.procedures.claim_batch import Taken, guess
from tests.loops.stage import Running, create, ended, fields, job, make_app, producer, trail, until


class Noting:
    """Handlers that note who is here, and wait if they are told to."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.gate = threading.Event()

    async def quick(self, ctx: AsyncContext, payload: dict[str, Any]) -> None:
        self.entries.append(ctx.job.idempotency_key)

    def waits(self, ctx: Context, payload: dict[str, Any]) -> None:
        self.entries.append(ctx.job.idempotency_key)
        self.gate.wait(30)


def noting_app(url: str, *kinds: str, **options: Any) -> tuple[Tenure, Noting]:
    app, noting = make_app(url, **options), Noting()
    for kind in kinds or ("quick",):
        app.job(kind)(noting.waits if kind.startswith("waits") else noting.quick)
    return app, noting


def test_a_claim_takes_as_many_as_there_are_free_slots(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app, noting = noting_app(url, "waits")
    app.enqueue_many([app.prepare("waits", {}, key=f"k{nth}") for nth in range(12)])
    limits: list[tuple[int, int]] = []
    take = Claims._take

    async def watched(claims: Claims) -> Taken:
        before, free = len(claims._attempts), claims._free()
        answer = await take(claims)
        limits.append((free, len(claims._attempts) - before))
        return answer

    monkeypatch.setattr(Claims, "_take", watched)
    with Running(app, concurrency=5) as running:
        until(lambda: len(noting.entries) == 5, "five handlers")
        assert running.worker.health().running == 5
        assert len(app.service.list_jobs(status="running")) == 5
        assert limits == [(5, 5)]
        noting.gate.set()
        until(lambda: len(app.service.list_jobs(status="completed")) == 12, "all to end")
    assert all(taken <= free <= CLAIM_MAX for free, taken in limits)
    assert sorted(noting.entries) == sorted(f"k{nth}" for nth in range(12))


def test_queues_are_served_in_the_order_given_and_others_are_left(url: str) -> None:
    app, noting = noting_app(url)
    for queue in ("third", "second", "first"):
        app.enqueue_many([app.prepare("quick", {}, key=f"{queue}{nth}", queue=queue) for nth in range(2)])
    with Running(app, concurrency=1, queues=["first", "second"]):
        until(lambda: len(noting.entries) == 4, "both queues")
        assert noting.entries == ["first0", "first1", "second0", "second1"]
        assert {one.generation for one in app.service.list_jobs(queue="third")} == {0}


def test_priority_comes_first_within_a_queue(url: str) -> None:
    app, noting = noting_app(url)
    app.enqueue_many([app.prepare("quick", {}, key=f"p{nth}", priority=nth) for nth in range(3)])
    with Running(app, concurrency=1):
        until(lambda: len(noting.entries) == 3, "all")
    assert noting.entries == ["p2", "p1", "p0"]


def test_a_kind_that_it_does_not_know_is_left_alone_and_does_not_stand_in_the_way(url: str) -> None:
    app, noting = noting_app(url, "quick", "also")
    unknown = create(app, "unknown", key="unknown")
    left = app.enqueue("also", {}, key="also", priority=5).job
    one = app.enqueue("quick", {}, key="quick").job
    with Running(app, kinds=["quick"]):
        ended(app, one, "completed")
        for other in (unknown, left):
            now = job(app, other)
            assert (now.status, now.attempt_count, now.generation, now.phase) == ("queued", 0, 0, "READY")
        assert noting.entries == ["quick"]


def test_a_tenants_worker_takes_nothing_of_another_tenant(url: str) -> None:
    app, noting = noting_app(url)
    mine = app.enqueue("quick", {}, key="mine", tenant="acme").job
    theirs = app.enqueue("quick", {}, key="theirs", tenant="zeta").job
    with Running(app, tenant="acme"):
        ended(app, mine, "completed")
        assert job(app, theirs).generation == 0
    again, noting = noting_app(url)
    # An app that is bound to a tenant needs no word of it; an organization is a scope too.
    with Running(again, organization="other") as running:
        until(lambda: running.worker.health().ok, "it to run")
        assert job(again, theirs).generation == 0
    bound, noting = noting_app(url, tenant="zeta")
    with Running(bound):
        ended(bound, theirs, "completed")
        assert noting.entries == ["theirs"]


def test_a_job_runs_when_it_is_due_and_not_before(url: str) -> None:
    app, _ = noting_app(url)
    due = datetime.now(UTC) + timedelta(seconds=1.2)
    with Running(app):
        one = app.enqueue("quick", {}, key="later", scheduled_at=due).job
        done = ended(app, one, "completed")
        assert done.finished_at is not None
        assert timedelta(0) <= done.finished_at - due < timedelta(seconds=5)
        assert (done.generation, done.attempt_count) == (1, 1)


def test_many_abandoned_jobs_are_settled_within_a_few_passes(url: str) -> None:
    """Every worker was killed: nothing stays running with a lease that has ended."""
    with producer(url) as app:
        app.service.create_jobs([fields(app, "quick", key=f"k{nth}", lease=0.5) for nth in range(500)])
        for _ in range(5):
            assert len(app.service.claim_jobs("killed", limit=100, start=True)) == 100
    app, noting = noting_app(url, "other")
    with Running(app):
        until(lambda: not app.service.list_jobs(status="running", limit=1), "every lease to be settled", 0.5 + 10)
        again = app.service.list_jobs(limit=1000)
        assert {(one.status.value, one.attempt_count, one.error_code) for one in again} == {
            ("queued", 1, "WORKER_LOST")
        }
        assert trail(app, again[0]) == ["claimed", "lease_expired"]
        assert noting.entries == []


@pytest.mark.parametrize("rows", [3_000])
def test_a_long_queue_is_drained_in_order_of_creation(sqlite_url: str, rows: int) -> None:
    app, noting = noting_app(sqlite_url)
    for start in range(0, rows, 500):
        app.enqueue_many([app.prepare("quick", {}, key=f"{nth:05}") for nth in range(start, start + 500)])
    with Running(app, concurrency=100):
        until(lambda: len(noting.entries) == rows, "the queue to be drained", 60)
    assert noting.entries == sorted(noting.entries)


def test_a_claim_that_is_refused_is_not_asked_for_ever(url: str) -> None:
    """Only one whose answer was lost is the same again; another one is another claim."""
    app, noting = noting_app(url)
    asked: list[Any] = []
    with Running(app) as running:
        run = running.worker._store.run

        async def refusing(procedure: Any) -> Any:
            if procedure.name == "claim_batch":
                asked.append(procedure)
                if len(asked) <= 4:
                    procedure.script().close()
                    raise Unavailable("gone") if len(asked) <= 2 else Invalid("no", code="BAD_ARGUMENT")
            return await run(procedure)

        running.worker._store.run = refusing  # type: ignore[method-assign]
        # A claim that was on its way already must not be the one that takes the job.
        until(lambda: bool(asked), "the first claim that is refused")
        one = app.enqueue("quick", {}, key="k").job
        ended(app, one, "completed")
    # The same value after each lost answer, a new one after each refusal.
    assert asked[0] is asked[1] is asked[2]
    assert len({id(procedure) for procedure in asked[2:5]}) == 3
    assert noting.entries == ["k"]


# --- guessing ---------------------------------------------------------------------------------------------------------


def test_one_that_is_woken_guesses_first_and_finds_what_is_elsewhere_all_the_same(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the wake-up can find the work in time: the next look without one is a minute away."""
    guesses: list[str] = []

    def noted(queue: str) -> Any:
        guesses.append(queue)
        return guess(queue)

    monkeypatch.setattr(claims, "guess", noted)
    app, _ = noting_app(url)
    with Running(app, poll=timedelta(seconds=60)):
        ended(app, app.enqueue("quick", {}, key="first").job, "completed")
        for nth in range(20):
            ended(app, app.enqueue("quick", {}, key=f"same{nth}").job, "completed")
            if guesses:
                break
        for nth, place in enumerate(({"priority": 5}, {"priority": -5}, {"queue": "other"}, {"queue": "another"})):
            began = time.monotonic()
            ended(app, app.enqueue("quick", {}, key=f"elsewhere{nth}", **place).job, "completed")
            assert time.monotonic() - began < 10
    # Two queues are known now, and nobody knows without a look which of them has the more urgent job.
    assert set(guesses) == {"default"}


def test_guesses_that_succeed_do_not_keep_a_worker_from_looking(url: str) -> None:
    app, noting = noting_app(url)
    with Running(app, poll=timedelta(seconds=60)):
        ended(app, app.enqueue("quick", {}, key="first").job, "completed")
        aside = app.enqueue("quick", {}, key="aside", queue="other").job
        # As soon as one has run there is another one where it was, so every guess finds something.
        for nth in range(500):
            before = len(noting.entries)
            app.enqueue("quick", {}, key=f"more{nth}")
            until(lambda seen=before: len(noting.entries) > seen, "the next one")  # type: ignore[misc]
            if "aside" in noting.entries:
                break
        assert "aside" in noting.entries
        ended(app, aside, "completed")


@pytest.mark.parametrize("queues", [None, ["default"], ["default", "late"], ["early", "default"]])
def test_a_guess_overtakes_nobody(url: str, queues: list[str] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs of one commit and one slot: the more urgent one is first, as if the worker had looked."""
    # On a machine that is slow it looks, and goes on from there for a while without another look.
    monkeypatch.setattr(claims, "CURSOR_LIFETIME", -1.0)
    app, noting = noting_app(url, "quick", "waits")
    with Running(app, poll=timedelta(seconds=60), concurrency=2, queues=queues):
        ended(app, app.enqueue("quick", {}, key="warm").job, "completed")
        app.enqueue("waits", {}, key="busy")
        until(lambda: "busy" in noting.entries, "one slot to be taken")
        more = "early" if queues == ["early", "default"] else "default"
        for nth in range(5):
            pair = [("low", "default", 0), ("high", more, 10)]
            made = [app.prepare("quick", {}, key=f"{key}{nth}", queue=queue, priority=n) for key, queue, n in pair]
            for one in app.enqueue_many(made):
                ended(app, one.job, "completed")
        noting.gate.set()
    assert noting.entries[2:] == [f"{key}{nth}" for nth in range(5) for key in ("high", "low")]
