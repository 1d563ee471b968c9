"""Cancelling, revoking and retrying: at once, by asking, and by force, in every order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenure.errors import CancelRequested, IllegalMove, Invalid, LeaseLost, NotFound, TenureError
from tenure.rules.lease import Lease
from tenure.rules.outcome import Succeeded
from tests.contract.bench import Bench
from tests.contract.build import CASES, RECEIPT, begin, claim, create
from tests.contract.invariants import broken
from tests.contract.refusal import refused


def test_a_queued_job_is_cancelled_at_once(bench: Bench) -> None:
    made = create(bench.service)
    bench.advance(seconds=1)
    job = bench.service.cancel_job(made.id, reason="not needed", actor="user:42")
    assert (job.status, job.phase, job.generation) == ("cancelled", "DONE", 0)
    assert (job.cancel_requested_at, job.cancel_reason, job.finished_at) == (bench.now, "not needed", bench.now)
    (event,) = bench.service.list_job_events(made.id)
    assert (event.name, event.actor, event.data) == ("cancelled", "user:42", {"reason": "not needed"})
    assert bench.service.claim_job("A") is None


def test_a_job_of_later_is_cancelled_at_once_too(bench: Bench) -> None:
    made = create(bench.service, scheduled_at=bench.now.replace(year=2027))
    assert bench.service.cancel_job(made.id, reason="r").status == "cancelled"
    bench.advance(days=400)
    assert bench.service.claim_job("A") is None


@pytest.mark.parametrize("name", ["claimed", "running"])
def test_the_holder_of_a_job_is_asked_and_acknowledges(bench: Bench, name: str) -> None:
    case = CASES[name](bench)
    job = bench.service.cancel_job(case.job_id, reason="not needed", actor="user:42")
    assert (job.status, job.cancel_requested_at, job.cancel_reason) == (name, bench.now, "not needed")
    asked_at = bench.now
    bench.advance(seconds=5)
    # Asked again: the first request stands.
    assert bench.service.cancel_job(case.job_id, reason="another").cancel_reason == "not needed"
    assert bench.service.heartbeat(case.lease) is False
    assert bench.service.get_job(case.job_id).lease == case.lease
    done = bench.service.acknowledge_cancellation(case.lease)
    assert (done.status, done.cancel_requested_at, done.finished_at) == ("cancelled", asked_at, bench.now)
    assert bench.trail(case.job_id)[-2:] == ["cancel_requested", "cancelled"]


def test_under_a_pending_cancellation_only_the_truth_is_accepted(bench: Bench) -> None:
    case = CASES["running, effect, cancelling"](bench)
    with refused(bench, CancelRequested):
        begin(bench.service, case.lease, "second")
    with refused(bench, CancelRequested):
        bench.service.mark_provider_dispatched(case.lease, operation_key="k")
    bench.service.finish_effect(case.lease, name="send", outcome=Succeeded(RECEIPT))
    job = bench.service.complete_job(case.lease, result=1)
    assert job.status == "completed"
    event = bench.service.list_job_events(case.job_id)[-1]
    assert (event.name, event.data) == ("completed", {"cancel_too_late": True})


def test_a_completion_in_time_says_nothing_of_a_cancellation(bench: Bench) -> None:
    case = CASES["running, sent"](bench)
    bench.service.complete_job(case.lease, result=1)
    assert bench.service.list_job_events(case.job_id)[-1].data == {}
    with refused(bench, IllegalMove):
        bench.service.cancel_job(case.job_id, reason="too late")


def test_a_cancelled_job_with_an_open_boundary_needs_attention(bench: Bench) -> None:
    open_, closed = CASES["cancelled, effect"](bench), None
    assert bench.service.get_job(open_.job_id).phase == "NEEDS_ATTENTION"
    closed = create(bench.service, "k-2").id
    bench.service.cancel_job(closed, reason="r")
    assert bench.service.get_job(closed).phase == "DONE"
    attention = bench.service.list_jobs(tenant="acme", phase="NEEDS_ATTENTION")
    done = bench.service.list_jobs(tenant="acme", phase="DONE")
    assert ([job.id for job in attention], [job.id for job in done]) == ([open_.job_id], [closed])
    found = bench.service.find_reconciliation_candidates(organization="acme", project="p1")
    assert [job.id for job in found] == [open_.job_id]


@pytest.mark.parametrize("name", ["queued", "claimed", "running", "running, effect", "expired"])
def test_a_revocation_takes_the_job_away(bench: Bench, name: str) -> None:
    case = CASES[name](bench)
    job = bench.service.revoke_job(case.job_id, reason="incident 7", actor="op:1")
    assert (job.status, job.generation, job.lease) == ("cancelled", 2, None)
    assert (job.cancel_requested_at, job.cancel_reason) == (bench.now, "incident 7")
    event = bench.service.list_job_events(case.job_id)[-1]
    assert (event.name, event.actor, event.generation, event.data) == (
        "revoked", "op:1", 2, {"reason": "incident 7"}
    )  # fmt: skip
    calls: list[Callable[[], Any]] = [
        lambda: bench.service.complete_job(case.lease, result=None),
        lambda: bench.service.acknowledge_cancellation(case.lease),
    ]
    for call in calls:
        with refused(bench, LeaseLost, reason="status"):
            call()
    assert bench.service.heartbeat(case.lease) is False
    assert bench.service.claim_job("B") is None


def test_who_asks_and_why_must_be_said(bench: Bench) -> None:
    case = CASES["running"](bench)
    for bad in ("", " ", "a\nb", "x" * 201, None, 7):
        with refused(bench, Invalid):
            bench.service.cancel_job(case.job_id, reason=bad)  # type: ignore[arg-type]
        with refused(bench, Invalid):
            bench.service.revoke_job(case.job_id, reason=bad, actor="op:1")  # type: ignore[arg-type]
    with refused(bench, Invalid, code="ACTOR_REQUIRED"):
        bench.service.revoke_job(case.job_id, reason="r")
    job = bench.bound(actor="op:7").revoke_job(case.job_id, reason="r")
    assert job.status == "cancelled"
    assert bench.service.list_job_events(case.job_id)[-1].actor == "op:7"


@pytest.mark.parametrize("verb", ["cancel_job", "revoke_job", "retry_job", "resume_sweep"])
def test_an_unknown_job_is_not_found(bench: Bench, verb: str) -> None:
    known = CASES["running"](bench)
    more: dict[str, Any] = {
        "cancel_job": {"reason": "r"}, "revoke_job": {"reason": "r", "actor": "op:1"},
        "retry_job": {"actor": "op:1"}, "resume_sweep": {"actor": "op:1"},
    }[verb]  # fmt: skip
    with refused(bench, NotFound):
        getattr(bench.service, verb)(UUID(int=known.job_id.int + 1), **more)


# --- retry ------------------------------------------------------------------------------------------------------------


def test_a_failed_job_is_retried_by_an_operator(bench: Bench) -> None:
    case = CASES["failed"](bench)
    bench.advance(hours=1)
    job = bench.service.retry_job(case.job_id, actor="op:1", attempts=2)
    assert (job.status, job.attempt_count, job.max_attempts, job.generation) == ("queued", 1, 5, 1)
    assert (job.error_code, job.error_message, job.finished_at, job.run_at) == (None, None, None, bench.now)
    event = bench.service.list_job_events(case.job_id)[-1]
    assert (event.name, event.actor, event.status, event.data) == ("retried", "op:1", "queued", {"attempts": 2})
    again = claim(bench.service, "B", start=True)
    assert (again.job.attempt_count, again.job.generation) == (2, 2)
    assert bench.service.complete_job(again.lease, result="ok").status == "completed"


def test_a_retry_gives_what_a_used_up_budget_needs(bench: Bench) -> None:
    create(bench.service, max_attempts=1)
    lease = claim(bench.service, start=True).lease
    bench.service.fail_job(lease, code="E", message="m", retryable=False)
    bench.service.retry_job(lease.job_id, actor="op:1")
    lease = claim(bench.service, start=True).lease
    dead = bench.service.fail_job(lease, code="E", message="m", retryable=True)
    assert (dead.status, dead.attempt_count, dead.max_attempts) == ("dead_letter", 2, 2)


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "2", None, 10_001])
def test_attempts_are_a_whole_number_above_zero(bench: Bench, bad: Any) -> None:
    case = CASES["failed"](bench)
    with refused(bench, Invalid):
        bench.service.retry_job(case.job_id, actor="op:1", attempts=bad)
    assert bench.service.retry_job(case.job_id, actor="op:1", attempts=1).status == "queued"


def test_a_retry_clears_a_pending_cancellation(bench: Bench) -> None:
    case = CASES["running, cancelling"](bench)
    failed = bench.service.fail_job(case.lease, code="E", message="m", retryable=False)
    assert (failed.status, failed.cancel_requested_at) == ("failed", bench.now)
    job = bench.service.retry_job(case.job_id, actor="op:1")
    assert (job.status, job.cancel_requested_at, job.cancel_reason) == ("queued", None, None)
    assert bench.service.heartbeat(claim(bench.service, "B").lease)


def test_a_retried_job_runs_under_its_own_epoch_still(bench: Bench) -> None:
    """An operator's retry is no readmission: work stamped with an older epoch stays held."""
    case = CASES["failed"](bench)
    bench.sql("UPDATE $authority SET epoch = 2 WHERE tenant = ?", "acme")
    job = bench.service.retry_job(case.job_id, actor="op:1")
    assert (job.status, bench.service.get_job(case.job_id).phase) == ("queued", "HELD")
    assert bench.service.claim_job("B") is None


# --- every order ------------------------------------------------------------------------------------------------------

MOVES: dict[str, Callable[[Bench, Lease], Any]] = {
    "cancel": lambda b, lease: b.service.cancel_job(lease.job_id, reason="r"),
    "complete": lambda b, lease: b.service.complete_job(lease, result="done"),
    "revoke": lambda b, lease: b.service.revoke_job(lease.job_id, reason="r", actor="op:1"),
    "fail": lambda b, lease: b.service.fail_job(lease, code="E", message="m", retryable=True),
    "acknowledge": lambda b, lease: b.service.acknowledge_cancellation(lease),
    "beat": lambda b, lease: b.service.heartbeat(lease),
    "expire": lambda b, _: (b.advance(seconds=60), b.service.claim_job("B")),
}
TERMINAL = {"completed", "cancelled", "failed", "dead_letter", "indeterminate", "halt_unsafe", "timed_out"}


@given(order=st.permutations(sorted(MOVES)), sent=st.sampled_from(["running", "running, sent", "running, effect"]))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_whatever_comes_first_there_is_one_ending(bench: Bench, order: list[str], sent: str) -> None:
    bench.reset()
    case = CASES[sent](bench)
    expected = None
    asked = False
    for name in order:
        before = bench.service.get_job(case.job_id)
        try:
            MOVES[name](bench, case.lease)
        except TenureError:
            assert before.status == bench.service.get_job(case.job_id).status or sent == "running, effect"
        after = bench.service.get_job(case.job_id)
        if before.status in TERMINAL:
            assert after == before
        elif name == "revoke":
            assert (after.status, after.generation) == ("cancelled", before.generation + 1)
        elif name == "cancel" and before.status == "running":
            asked = True
        elif name == "complete" and after.status == "completed":
            assert not asked or sent == "running, sent"
            assert bench.service.list_job_events(case.job_id)[-1].data == ({"cancel_too_late": True} if asked else {})
        if after.status in TERMINAL and expected is None:
            expected = after.status
    final = bench.service.get_job(case.job_id)
    assert final.status in TERMINAL
    assert final.status == expected
    endings = [event for event in bench.service.list_job_events(case.job_id) if event.status in TERMINAL]
    assert len(endings) == 1
    assert broken(bench.dump(), bench.baseline) == []
