"""Draining from inside a program: what was claimed is given back, what runs ends, what hangs is left without harm."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

import pytest

from tenure import AsyncContext, Context, FailedBeforeDispatch, Job, Outcome, Provider, Stop, Tenure
from tenure.attempt import Attempt
from tenure.errors import LeaseLost, Unavailable
from tenure.kinds import declare
from tenure.loops.outcomes import Outcomes
from tenure.loops.supervisor import Supervisor
from tenure.procedures import hold
from tenure.procedures.claim import claim
from tests.loops.stage import LOOK_EVERY, Running, create, ended, job, make_app, producer, seconds, trail, until


async def quick(ctx: AsyncContext, payload: dict[str, Any]) -> int:
    return 1


async def forever(ctx: AsyncContext, payload: dict[str, Any]) -> None:
    await asyncio.Event().wait()


def app_with(url: str, **handlers: Any) -> Tenure:
    app = make_app(url)
    for name, handler in handlers.items():
        app.job(name, lease_duration=seconds(3))(handler)
    return app


def test_what_a_claim_on_its_way_takes_is_given_back_unused(url: str) -> None:
    entered: list[str] = []

    async def notes(ctx: AsyncContext, payload: dict[str, Any]) -> None:
        entered.append(str(ctx.job.id))

    app = app_with(url, notes=notes)
    with Running(app) as running:
        worker = running.worker
        store, claimed, looked = worker._store, threading.Event(), threading.Event()
        run = store.run

        async def slow(procedure: Any) -> Any:
            answer = await run(procedure)
            if procedure.name == "claim_batch":
                looked.set()
            if procedure.name == "claim_batch" and answer.claims:
                claimed.set()
                # The answer is on its way while the worker is told to stop.
                await asyncio.to_thread(until, lambda: worker._draining, "the drain")
            return answer

        running.call(_set(store, "run", slow))
        # A claim that was on its way before is over.
        assert looked.wait(20)
        jobs = [made.job for made in app.enqueue_many([app.prepare("notes", {}, key=f"k{n}") for n in range(3)])]
        assert claimed.wait(20)
        assert running.stop()
        for one in jobs:
            after = job(app, one)
            assert (after.status, after.attempt_count) == ("queued", 0)
        assert {tuple(trail(app, one)) for one in jobs} <= {("claimed", "released"), ()}
        assert ("claimed", "released") in {tuple(trail(app, one)) for one in jobs}
        assert entered == []


async def _set(thing: Any, name: str, value: Any) -> None:
    setattr(thing, name, value)


def test_a_claim_whose_answer_was_lost_is_asked_for_again_and_given_back(sqlite_url: str) -> None:
    app = app_with(sqlite_url, forever=forever)
    with Running(app, grace=seconds(5)) as running:
        worker = running.worker
        run, lost, looked = worker._store.run, threading.Event(), threading.Event()

        async def losing(procedure: Any) -> Any:
            answer = await run(procedure)
            if procedure.name == "claim_batch":
                looked.set()
            if procedure.name == "claim_batch" and answer.claims and not lost.is_set():
                worker.claim_no_more()
                lost.set()
                raise Unavailable("the answer was lost")
            return answer

        running.call(_set(worker._store, "run", losing))
        assert looked.wait(20)
        one = app.enqueue("forever", {}, key="k").job
        assert lost.wait(20)
        assert job(app, one).status == "running"
        assert running.stop()
        assert (job(app, one).status, job(app, one).attempt_count) == ("queued", 0)


def test_leaving_the_block_drains_and_health_says_so(sqlite_url: str) -> None:
    gate, begun = threading.Event(), threading.Event()

    def waits(ctx: Context, payload: dict[str, Any]) -> str:
        begun.set()
        gate.wait(20)
        return "ended"

    app = app_with(sqlite_url, waits=waits)

    async def body() -> None:
        one = (await app.aenqueue("waits", {}, key="k")).job
        async with app.worker() as worker:
            await asyncio.to_thread(begun.wait, 20)
            assert worker.health().running == 1
            stopping = asyncio.create_task(worker.stop())
            await asyncio.to_thread(until, lambda: worker.health().draining, "the drain")
            gate.set()
            assert await stopping
        assert (await (await app.aservice()).get_job(one.id)).status == "completed"
        await app.aclose()

    asyncio.run(body())


def test_a_thread_that_outlives_its_worker_can_do_no_harm_and_is_not_waited_for(url: str) -> None:
    gate, begun, over = threading.Event(), threading.Event(), threading.Event()
    refused: list[str] = []

    def outlives(ctx: Context, payload: dict[str, Any]) -> str:
        begun.set()
        gate.wait(30)
        try:
            with ctx.publish() as tx:
                tx.execute("DROP TABLE IF EXISTS everything")
        except BaseException as error:
            refused.append(getattr(error, "code", type(error).__name__))
            raise
        finally:
            over.set()
        return "too late"

    app = app_with(url, outlives=outlives)
    one = app.enqueue("outlives", {}, key="k").job
    with Running(app, grace=seconds(0.1)) as running:
        assert begun.wait(20)
        began = time.monotonic()
        assert not running.stop()
        assert time.monotonic() - began < 0.1 + 2 + 1
        # Nobody knows what the thread is doing: the job is not given back, its lease runs out.
        assert job(app, one).status == "running"
        gate.set()
        assert over.wait(20)
        assert refused == ["SHUTDOWN"]
    with producer(url) as later:
        assert until(lambda: later.service.claim_job("next"), "the lease to run out").lease.generation == 2


def test_a_call_under_way_when_the_worker_ends_is_uncertain(url: str) -> None:
    """A thread that waits for a provider must not wait for ever for a loop that has ended."""
    over = threading.Event()
    raised: list[Any] = []

    class Deaf(Provider):
        name = "deaf"
        timeout = seconds(60)
        calls = 0

        async def send(self, request: Any, operation_key: str) -> Outcome:
            Deaf.calls += 1
            await asyncio.Event().wait()
            return FailedBeforeDispatch("never said")

    deaf = Deaf()

    def calls(ctx: Context, payload: dict[str, Any]) -> None:
        try:
            ctx.effect("send", deaf, {})
        except BaseException as error:
            raised.append(error)
            raise
        finally:
            over.set()

    app = make_app(url, providers=[deaf])
    app.job("calls", lease_duration=seconds(10))(calls)
    one = app.enqueue("calls", {}, key="k").job
    with Running(app, grace=seconds(0.1)) as running:
        until(lambda: Deaf.calls, "the call")
        assert not running.stop()
        # Written before the worker ended: whatever the thread does, nobody sends again.
        assert (job(app, one).status, job(app, one).error_code) == ("indeterminate", "SHUTDOWN")
        assert over.wait(20)
        assert isinstance(raised[0], Stop)
        assert [effect.state.value for effect in app.service.list_effects(one.id)] == ["pending"]


def test_a_coroutine_that_refuses_to_be_cancelled_is_left_too(sqlite_url: str) -> None:
    begun, let_go = threading.Event(), threading.Event()

    async def stubborn(ctx: AsyncContext, payload: dict[str, Any]) -> None:
        begun.set()
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(LOOK_EVERY)

    app = app_with(sqlite_url, stubborn=stubborn)
    one = app.enqueue("stubborn", {}, key="k").job
    with Running(app, grace=seconds(0.1)) as running:
        assert begun.wait(20)
        began = time.monotonic()
        assert not running.stop()
        assert time.monotonic() - began < 0.1 + 2 + 1
        assert job(app, one).status == "running"
        let_go.set()


def test_a_loop_that_ends_around_its_worker_leaves_no_lease_to_be_renewed(sqlite_url: str) -> None:
    begun = threading.Event()

    async def waits(ctx: AsyncContext, payload: dict[str, Any]) -> None:
        begun.set()
        await asyncio.Event().wait()

    app = make_app(sqlite_url)
    app.job("waits", lease_duration=seconds(0.6))(waits)
    one = app.enqueue("waits", {}, key="k").job
    worker = app.worker()

    async def careless() -> None:
        # Neither stopped nor left by `async with`: the program just ends its loop.
        await worker.start()
        await asyncio.to_thread(begun.wait, 20)

    asyncio.run(careless())
    with producer(sqlite_url) as rival:
        taken = until(lambda: rival.service.claim_job("rival"), "the lease to run out", 10)
        assert (taken.job.id, taken.lease.generation) == (one.id, 2)
    # What is left of it is tidied up here, so that the test leaves nothing.
    worker._heartbeat.end()
    asyncio.run(worker._stack.aclose())
    worker._threads.close()
    asyncio.run(_close_all(app))


async def _close_all(app: Tenure) -> None:
    for store in list(app._stores._by_loop.values()):
        await store.close()
    app._stores._by_loop.clear()
    await app.aclose()


# --- outcomes by themselves -------------------------------------------------------------------------------------------


class Flaky:
    """A store that fails as it is told, and counts."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.batches: list[int] = []
        self.fail: Any = lambda asks: None

    async def run(self, procedure: Any) -> Any:
        asks = procedure.args[0]
        self.batches.append(len(asks))
        error = self.fail(asks)
        if error is not None:
            procedure.script().close()
            raise error
        return await asyncio.to_thread(self.store.run, procedure)


def write(app: Tenure, jobs: list[Job], ask: Any, fail: Any = None) -> tuple[Flaky, Supervisor]:
    """Hand the outcomes of these jobs in together, and wait until all are written or given up."""
    store = Flaky(app.store)
    if fail is not None:
        store.fail = fail
    supervise = Supervisor()
    taken = app.store.run(claim("w", limit=len(jobs), start=True))
    assert len(taken) == len(jobs)

    async def body() -> None:
        written: list[Attempt] = []
        pulse = supervise.pulse("outcomes", seconds(1))
        outcomes = Outcomes(store, pulse, written.append)  # type: ignore[arg-type]
        supervise.follow(pulse, outcomes.step)
        kind = declare("k", quick)
        for one in taken:
            outcomes.add(Attempt(one, kind, time.monotonic()), ask(one))
        async with asyncio.timeout(20):
            await outcomes.drained()
        await supervise.end()
        assert {attempt.job.id for attempt in written} == {one.id for one in jobs}
        assert len(written) == len(jobs)

    asyncio.run(body())
    return store, supervise


def test_outcomes_that_come_together_are_written_together(url: str) -> None:
    with producer(url) as app:
        jobs = [create(app, "k", key=f"k{n}") for n in range(30)]
        store, _ = write(app, jobs, lambda one: hold.completing(one.lease, 1))
        assert store.batches == [30]
        assert {job(app, one).status.value for one in jobs} == {"completed"}


def test_an_outcome_is_written_again_until_the_database_takes_it(sqlite_url: str) -> None:
    left = [Unavailable("away", code="DATABASE_DOWN")] * 3
    with producer(sqlite_url) as app:
        jobs = [create(app, "k", key=f"k{n}", lease=30) for n in range(2)]
        store, supervise = write(
            app, jobs, lambda one: hold.completing(one.lease, 1), lambda asks: left.pop() if left else None
        )
        assert store.batches == [2] * 4
        assert [trail(app, one) for one in jobs] == [["claimed", "completed"]] * 2
        assert supervise.pulses["outcomes"].error is None


@pytest.mark.parametrize("second", [False, True])
def test_one_outcome_that_cannot_be_written_does_not_hurt_the_others(sqlite_url: str, second: bool) -> None:
    with producer(sqlite_url) as app:
        jobs = [create(app, "k", key=f"k{n}", lease=1) for n in range(3)]
        bad = jobs[1].id
        first: list[Any] = []

        def fail(asks: list[Any]) -> Exception | None:
            if bad not in {ask.lease.job_id for ask in asks} or (first and not second and len(first) >= 2):
                return None
            first.append(asks)
            return AssertionError("a mistake of ours")

        write(app, jobs, lambda one: hold.completing(one.lease, 1), fail)
        assert [job(app, one).status.value for one in jobs[::2]] == ["completed"] * 2
        after = job(app, jobs[1])
        if second:
            # Nothing could be written about it: its lease runs out.
            assert after.status == "running"
            until(lambda: app.service.claim_job("next"), "the lease to run out")
        else:
            assert (after.status, after.error_code) == ("failed", "OUTCOME_NOT_WRITTEN")
            assert after.error_message == "how the attempt ended could not be written (AssertionError)"


def test_a_refused_outcome_is_followed_by_one_that_says_why(sqlite_url: str) -> None:
    with producer(sqlite_url) as app:
        jobs = [create(app, "k", key=f"k{n}") for n in range(3)]

        def ask(one: Any) -> hold.Ask:
            if one.job.id == jobs[0].id:
                app.service.cancel_job(one.job.id, reason="enough")
                return hold.completing(one.lease, 1)
            if one.job.id == jobs[1].id:
                return hold.failing(one.lease, "", "an error without a code", retryable=True)
            return hold.completing(one.lease, 1)

        write(app, jobs, ask)
        assert [job(app, one).status.value for one in jobs] == ["cancelled", "failed", "completed"]
        assert job(app, jobs[1]).error_code == "ERROR_REQUIRED"


def test_an_outcome_for_a_lost_lease_is_dropped(sqlite_url: str) -> None:
    with producer(sqlite_url) as app:
        one = create(app, "k")

        def ask(claimed: Any) -> hold.Ask:
            app.service.revoke_job(one.id, reason="no", actor="user:1")
            with pytest.raises(LeaseLost):
                app.service.complete_job(claimed.lease)
            return hold.completing(claimed.lease, 1)

        write(app, [one], ask)
        assert trail(app, one) == ["claimed", "revoked"]
        assert ended(app, one).status == "cancelled"
