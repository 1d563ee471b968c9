"""What attackers of the first version found, each beside what must go on working."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import tenure
from tenure import Absent, Accepted, AsyncContext, Declined, Succeeded, Tenure, Unknown
from tenure.connectors.provider import send_bounded
from tenure.errors import EffectRejected, IllegalMove
from tenure.testing import ManualClock

START = datetime(2026, 1, 1, tzinfo=UTC)


class Keyed(tenure.Provider):
    """A provider that honours keys and can be asked."""

    name = "keyed"
    idempotency = tenure.IdempotencyKey(retention=timedelta(hours=24))
    lookup_complete = True
    settles_within = timedelta(seconds=1)

    async def send(self, request: Any, operation_key: str) -> tenure.Outcome:
        return Succeeded({"for": request})

    async def lookup(self, operation_key: str) -> tenure.Evidence:
        return Absent()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def service(clock: ManualClock) -> Iterator[tenure.DurableJobService]:
    store = tenure.open_store("sqlite:///:memory:", clock=clock)
    store.migrate()
    yield tenure.DurableJobService(store, actor="ops")
    store.close()


def lost_with_an_open_effect(
    service: tenure.DurableJobService, clock: ManualClock, *, attempts: int
) -> tuple[tenure.Job, tenure.Lease]:
    """Leave a job behind whose worker died after the intent."""
    execution = tenure.ExecutionInput(tenant="studio", actor="u", trace="t")
    service.create_job(
        organization="studio",
        project="p",
        idempotency_key="k",
        kind="send",
        payload={},
        max_attempts=attempts,
        execution=execution,
    )
    claim = service.claim_job("a", start=True)
    assert claim is not None
    service.begin_effect(claim.lease, name="send", request={}, provider=Keyed())
    clock.advance(timedelta(minutes=3))
    return claim.job, claim.lease


def sweep(service: tenure.DurableJobService, evidence: tenure.Evidence) -> tenure.Verdict:
    """Sweep with one answer for everything."""
    (verdict,) = service.sweep_reconciliation_candidates(
        organization="studio", project="p", lookup=lambda _key, _job: evidence
    )
    return verdict


def test_an_absence_uses_up_the_budget(service: tenure.DurableJobService, clock: ManualClock) -> None:
    job, _ = lost_with_an_open_effect(service, clock, attempts=1)
    assert sweep(service, Absent()).status == "dead_letter"
    dead = service.get_job(job.id)
    assert (dead.error_code, dead.max_attempts) == ("NOT_DISPATCHED", 1)
    assert [event.name for event in service.list_job_events(job.id)][-1] == "reconciled"


@pytest.mark.parametrize("evidence,attempts", [(Absent(), 2), (Accepted({"id": 1}), 1)])
def test_what_is_left_to_do_is_still_resumed(
    service: tenure.DurableJobService, clock: ManualClock, evidence: tenure.Evidence, attempts: int
) -> None:
    job, _ = lost_with_an_open_effect(service, clock, attempts=attempts)
    assert sweep(service, evidence).status == "queued"
    assert service.get_job(job.id).max_attempts == 2


def test_a_persons_word_is_worth_an_attempt(service: tenure.DurableJobService, clock: ManualClock) -> None:
    job, _ = lost_with_an_open_effect(service, clock, attempts=1)
    sweep(service, tenure.NoAnswer())
    assert service.reconcile_dispatched(job.id, Absent(), reason="asked them").status == "queued"


def test_a_job_whose_worker_was_lost_before_anything_happened_stays_marked(
    service: tenure.DurableJobService, clock: ManualClock
) -> None:
    job, _ = lost_with_an_open_effect(service, clock, attempts=3)
    sweep(service, Absent())
    assert service.get_job(job.id).error_code == "WORKER_LOST"


def test_an_accepted_job_is_not_marked(service: tenure.DurableJobService, clock: ManualClock) -> None:
    job, _ = lost_with_an_open_effect(service, clock, attempts=3)
    sweep(service, Accepted({"id": 1}))
    assert service.get_job(job.id).error_code is None


def test_a_second_receipt_of_the_same_attempt_is_kept_and_escalates(service: tenure.DurableJobService) -> None:
    execution = tenure.ExecutionInput(tenant="studio", actor="u", trace="t")
    service.create_job(
        organization="studio", project="p", idempotency_key="k", kind="send", payload={}, execution=execution
    )
    claim = service.claim_job("a", start=True)
    assert claim is not None
    service.begin_effect(claim.lease, name="send", request={}, provider=Keyed())
    service.finish_effect(claim.lease, name="send", outcome=Succeeded({"id": 1}))
    with pytest.raises(IllegalMove):
        service.finish_effect(claim.lease, name="send", outcome=Succeeded({"id": 1}))
    assert service.get_job(claim.job.id).escalated_at is None
    with pytest.raises(IllegalMove):
        service.finish_effect(claim.lease, name="send", outcome=Succeeded({"id": 2}))
    job = service.get_job(claim.job.id)
    assert job.escalated_at is not None
    assert job.effects[0].receipt == {"id": 1}
    assert service.complete_job(claim.lease).status == "completed"


def test_a_declined_key_is_not_marked_again_and_another_is(service: tenure.DurableJobService) -> None:
    service.create_job(organization="studio", project="p", idempotency_key="k", kind="send", payload={})
    claim = service.claim_job("a", start=True)
    assert claim is not None
    service.mark_provider_dispatched(claim.lease, operation_key="send:1")
    service.fail_job(claim.lease, code="NO", message="no", retryable=False)
    service.reconcile_dispatched(claim.job.id, Declined("no"), reason="seen")
    service.retry_job(claim.job.id)
    again = service.claim_job("b", start=True)
    assert again is not None
    with pytest.raises(EffectRejected):
        service.mark_provider_dispatched(again.lease, operation_key="send:1")
    assert service.mark_provider_dispatched(again.lease, operation_key="send:2").operation_key == "send:2"


class Leaving(tenure.Provider):
    """A provider whose client ends the process."""

    name = "leaving"

    async def send(self, request: Any, operation_key: str) -> tenure.Outcome:
        if request["how"] == "exit":
            raise SystemExit(3)
        if request["how"] == "interrupt":
            raise KeyboardInterrupt
        return Succeeded({})


@pytest.mark.parametrize("how", ["exit", "interrupt"])
def test_a_provider_cannot_end_the_loop(how: str) -> None:
    async def both() -> tuple[tenure.Outcome, tenure.Outcome]:
        leaving = Leaving()
        ended = await send_bounded(leaving, {"how": how}, "k", timedelta(seconds=5))
        return ended, await send_bounded(leaving, {"how": "well"}, "k", timedelta(seconds=5))

    ended, well = asyncio.run(both())
    assert isinstance(ended, Unknown)
    assert well == Succeeded({})


def run_one(handler: Any) -> tenure.Job:
    """Run one job with this handler to its end."""
    app = Tenure("sqlite:///:memory:", organization="studio", project="p", actor="u", providers=[KEYED])
    app.job("one", max_attempts=1)(handler)
    app.migrate()
    job = app.enqueue("one", {}, key="k").job

    async def work() -> tenure.Job:
        service = await app.aservice()
        async with app.worker(sweep_every=None), asyncio.timeout(60):
            while (seen := await service.get_job(job.id)).status in {"queued", "running"}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await app.aclose()
        return seen

    return asyncio.run(work())


KEYED = Keyed()


def test_a_result_that_never_ends_does_not_freeze_the_worker() -> None:
    async def endless(ctx: AsyncContext, payload: dict[str, Any]) -> Any:
        return {"numbers": itertools.count()}

    async def list_of(ctx: AsyncContext, payload: dict[str, Any]) -> Any:
        return {"numbers": list(range(3))}

    assert run_one(endless).error_code == "RESULT_NOT_STORABLE"
    assert run_one(list_of).result == {"numbers": [0, 1, 2]}


def test_a_request_that_is_changed_after_its_intent_is_not_sent() -> None:
    async def changing(ctx: AsyncContext, payload: dict[str, Any]) -> Any:
        request = {"to": 0}
        calls = []
        for number in range(2):
            request["to"] = number
            calls.append(asyncio.ensure_future(ctx.effect(f"send-{number}", KEYED, request)))
            await asyncio.sleep(0)
        said = await asyncio.gather(*calls, return_exceptions=True)
        return [type(one).__name__ if isinstance(one, Exception) else one for one in said]

    async def apart(ctx: AsyncContext, payload: dict[str, Any]) -> Any:
        return [await ctx.effect(f"send-{number}", KEYED, {"to": number}) for number in range(2)]

    assert run_one(changing).result == ["EffectFailed", {"for": {"to": 1}}]
    assert run_one(apart).result == [{"for": {"to": 0}}, {"for": {"to": 1}}]


def test_an_iterator_in_a_request_is_refused() -> None:
    async def lazy(ctx: AsyncContext, payload: dict[str, Any]) -> Any:
        return await ctx.effect("send", KEYED, {"to": iter([1])})

    job = run_one(lazy)
    assert (job.status, job.error_code) == ("failed", "UNSUPPORTED_TYPE")
    assert job.effects == ()


def test_a_worker_whose_program_fails_lets_its_leases_go() -> None:
    """The worker shares a task group with code that raises: it ends, and its leases are not renewed any more."""
    app = Tenure("sqlite:///:memory:", organization="studio", project="p", actor="u")
    started = asyncio.Event()

    async def slow(ctx: AsyncContext, payload: dict[str, Any]) -> None:
        started.set()
        await asyncio.Event().wait()

    app.job("slow", lease_duration=timedelta(seconds=1))(slow)
    app.migrate()
    app.enqueue("slow", {}, key="k")

    async def fail() -> None:
        await started.wait()
        raise OSError("the web server could not start")

    async def program() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(app.worker(grace=timedelta(seconds=0.1)).main())
            group.create_task(fail())

    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(asyncio.wait_for(program(), 60))
    assert isinstance(raised.value.exceptions[0], OSError)
    app.close()
