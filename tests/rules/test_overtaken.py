"""What was true when it was asked, or of an earlier call, must not settle what came after it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tenure.errors import Uncertain
from tenure.rules import dispatch, moves, reconcile
from tenure.rules.creation import new_job
from tenure.rules.effect import EffectState, SettledBy
from tenure.rules.envelope import ExecutionInput
from tenure.rules.job import Change, Job
from tenure.rules.lease import Lease
from tenure.rules.outcome import (
    Absent,
    Accepted,
    Declined,
    FailedBeforeDispatch,
    Outcome,
    Rejected,
    Succeeded,
    Terms,
    Unknown,
)
from tenure.rules.status import Status

T0 = datetime(2026, 1, 1, tzinfo=UTC)
MAILER = Terms(
    "mailer",
    honours_key=True,
    retention=timedelta(hours=24),
    lookup_complete=True,
    settles_within=timedelta(seconds=30),
)
TIMEOUT = timedelta(seconds=20)
# Lease 60 s, the call's deadline 20 s after the intent, the provider settles within 30 s of that.
COUNTS_FROM = timedelta(seconds=50)


def after(**given: float) -> datetime:
    return T0 + timedelta(**given)


def job() -> Job:
    made = new_job(
        job_id=UUID(int=7),
        organization="studio",
        project="sales",
        idempotency_key="quote-17",
        kind="send_quote",
        payload={"quote": 17},
        execution=ExecutionInput(tenant="studio", actor="user:42", trace="t-1"),
    )
    return Job(
        id=made.job_id,
        tenant=made.tenant,
        organization=made.organization,
        project=made.project,
        idempotency_key=made.idempotency_key,
        kind=made.kind,
        payload=made.payload,
        scheduled_at=T0,
        created_at=T0,
        run_at=T0,
    )


def claimed(before: Job, worker: str, number: int, now: datetime) -> tuple[Job, Lease]:
    taken = moves.claim(before, worker, UUID(int=number), now, start=True).job
    assert taken.lease is not None
    return taken, taken.lease


def begun(before: Job, lease: Lease, now: datetime, *, resend: bool = False) -> Change:
    return dispatch.begin(before, lease, "send", "v1:digest", MAILER, TIMEOUT, now, resend=resend)


def finished(before: Job, lease: Lease, outcome: Outcome, now: datetime) -> Job:
    return dispatch.finish(before, lease, "send", outcome, (), now).job


def expired() -> Job:
    """Give a job whose worker began the effect at T0 and was never heard of again."""
    held, lease = claimed(job(), "A", 1, T0)
    recovered = moves.recover(begun(held, lease, T0).job, after(seconds=60))
    assert recovered is not None
    assert recovered.job.status is Status.INDETERMINATE
    return recovered.job


def answer(before: Job, evidence: Any, now: datetime, asked_at: datetime) -> Job:
    return reconcile.judge(before, before.effects[0], evidence, now, asked_at=asked_at).job


def test_an_absence_counts_from_when_the_provider_was_asked() -> None:
    late = after(minutes=10)
    early = answer(expired(), Absent(), late, asked_at=T0 + COUNTS_FROM - timedelta(seconds=1))
    assert early.status is Status.INDETERMINATE
    assert early.escalated_at is not None
    counted = answer(expired(), Absent(), late, asked_at=T0 + COUNTS_FROM)
    assert counted.status is Status.QUEUED
    assert counted.effects[0].state is EffectState.FAILED_BEFORE_DISPATCH


def test_an_absence_does_not_count_when_the_key_was_forgotten_before_the_answer_came() -> None:
    asked_at = T0 + COUNTS_FROM
    assert answer(expired(), Absent(), after(hours=24), asked_at=asked_at).status is Status.INDETERMINATE
    assert answer(expired(), Absent(), after(hours=24, seconds=-1), asked_at=asked_at).status is Status.QUEUED


def test_an_answer_is_not_applied_to_a_later_intent() -> None:
    first = expired()
    asked = first.effects[0]
    assert reconcile.answered(first, asked) == asked
    resumed = answer(first, Absent(), after(minutes=2), asked_at=after(minutes=2))
    assert reconcile.answered(resumed, asked) is None
    held, lease = claimed(resumed, "B", 2, after(minutes=3))
    again = begun(held, lease, after(minutes=3)).job
    assert again.effects[0].is_open
    assert reconcile.answered(again, asked) is None


def resumed_and_failed(outcome: Outcome) -> tuple[Job, Lease]:
    """Give a job after a counted absence whose second call ended like this at T0 + 3 min."""
    resumed = answer(expired(), Absent(), after(minutes=2), asked_at=after(minutes=2))
    held, lease = claimed(resumed, "B", 2, after(minutes=3))
    return finished(begun(held, lease, after(minutes=3)).job, lease, outcome, after(minutes=3)), lease


def test_a_call_that_did_not_leave_does_not_clear_the_doubt_about_an_earlier_one() -> None:
    failed, lease = resumed_and_failed(FailedBeforeDispatch("no connection"))
    effect = failed.effects[0]
    assert (effect.state, effect.settled_by) == (EffectState.FAILED_BEFORE_DISPATCH, SettledBy.LOOKUP)
    assert begun(failed, lease, after(minutes=3, seconds=5)).answer.send
    queued = moves.fail(failed, lease, "E", "no connection", after(minutes=3), retryable=True).job
    held, later = claimed(queued, "C", 3, after(hours=24))
    with pytest.raises(Uncertain, match="memory"):
        begun(held, later, after(hours=24))


def test_without_an_earlier_doubt_a_call_that_did_not_leave_may_be_made_at_any_time() -> None:
    held, lease = claimed(job(), "A", 1, T0)
    failed = finished(begun(held, lease, T0).job, lease, FailedBeforeDispatch("no connection"), T0)
    assert failed.effects[0].settled_by is SettledBy.OUTCOME
    queued = moves.fail(failed, lease, "E", "no connection", T0, retryable=True).job
    again, later = claimed(queued, "B", 2, after(hours=48))
    assert begun(again, later, after(hours=48)).answer.send


@pytest.mark.parametrize("attempt,settles", [(1, False), (2, True)])
def test_a_refusal_counts_for_the_intent_of_its_own_attempt(attempt: int, settles: bool) -> None:
    resumed = answer(expired(), Absent(), after(minutes=2), asked_at=after(minutes=2))
    held, lease = claimed(resumed, "B", 2, after(minutes=3))
    recovered = moves.recover(begun(held, lease, after(minutes=3)).job, after(minutes=5))
    assert recovered is not None
    key = recovered.job.effects[0].operation_key
    refusal = dispatch.stored_evidence(UUID(int=9), key, UUID(int=attempt), Declined("401"), after(minutes=4))
    step = reconcile.assess(recovered.job, [refusal], after(minutes=6))
    assert isinstance(step, reconcile.Settle) is settles
    acceptance = dispatch.stored_evidence(UUID(int=9), key, UUID(int=attempt), Accepted("r-1"), after(minutes=4))
    assert isinstance(reconcile.assess(recovered.job, [acceptance], after(minutes=6)), reconcile.Settle)


def sent_twice() -> tuple[Job, Lease]:
    """Give a job whose worker sent at T0, did not hear, and sends again at T0 + 30 s."""
    held, lease = claimed(job(), "A", 1, T0)
    unknown = finished(begun(held, lease, T0).job, lease, Unknown("timeout"), after(seconds=20))
    again = begun(unknown, lease, after(seconds=30), resend=True)
    assert again.answer.send
    assert again.intents == ()
    return again.job, lease


@pytest.mark.parametrize("outcome", [FailedBeforeDispatch("429"), Rejected("402"), Unknown("reset")])
def test_the_end_of_a_second_call_says_nothing_about_the_first(outcome: Outcome) -> None:
    twice, lease = sent_twice()
    ended = finished(twice, lease, outcome, after(seconds=40))
    assert ended.effects[0].state is EffectState.UNKNOWN
    assert ended.effects[0].settled_at is None
    assert dispatch.evidence_of(outcome, twice.effects[0]) is None


def test_the_receipt_of_a_second_call_settles_both() -> None:
    twice, lease = sent_twice()
    ended = finished(twice, lease, Succeeded("r-1"), after(seconds=40))
    assert ended.effects[0].state is EffectState.SUCCEEDED
    assert dispatch.evidence_of(Succeeded("r-1"), twice.effects[0]) == Accepted("r-1")


def test_a_look_up_waits_for_the_second_call_too() -> None:
    twice, _ = sent_twice()
    assert twice.effects[0].deadline_at == after(seconds=50)
    recovered = moves.recover(twice, after(seconds=60))
    assert recovered is not None
    early = answer(recovered.job, Absent(), after(minutes=5), asked_at=after(seconds=79))
    assert early.status is Status.INDETERMINATE
    assert answer(recovered.job, Absent(), after(minutes=5), asked_at=after(seconds=80)).status is Status.QUEUED


def test_sending_again_never_shortens_the_wait() -> None:
    held, lease = claimed(job(), "A", 1, T0)
    known = begun(held, lease, T0).job
    again = dispatch.begin(
        known, lease, "send", "v1:digest", MAILER, timedelta(seconds=1), after(seconds=1), resend=True
    ).job
    assert again.effects[0].deadline_at == after(seconds=20)
    assert replace(again.effects[0], state=EffectState.PENDING) == known.effects[0]
