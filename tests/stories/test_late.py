"""Stories of those who come too late, and of what people decide."""

from __future__ import annotations

import time

import pytest

from tenure.errors import IllegalMove, Invalid
from tenure.rules.outcome import Absent, Accepted
from tenure.rules.status import Phase
from tests.crash.scene import ORGANIZATION, PROJECT, until
from tests.stories.stage import Stage

ONCE_EACH = {"mail": 1, "note": 1}


def test_revoked_with_a_call_in_flight(stage: Stage) -> None:
    told = stage.telling("revoked-in-flight.md")
    provider = stage.provider()
    provider.fault("hold_reply", key="*:mail")
    job_id = stage.enqueue()
    first = stage.start("first", sweeps=False)
    provider.wait_until(held=1)
    stage.service.revoke_job(job_id, reason="the wrong customer", actor="user:ann")
    job = stage.job(job_id)
    assert (job.status.value, job.phase) == ("cancelled", Phase.NEEDS_ATTENTION)
    stage.tell(told, job_id)
    provider.release()
    stage.until_event(job_id, "evidence_received")
    assert stage.job(job_id).phase is Phase.NEEDS_ATTENTION
    second = stage.start("second")
    until(lambda: stage.job(job_id).phase is Phase.DONE, "the effect is settled by the receipt")
    stage.end(second)
    stage.end(first)
    stage.tell(told, job_id)
    assert stage.customers_saw() == {"mail": 1}
    assert stage.scene.published() == []
    told.check()


def test_paused_before_the_call_and_its_own_deadline_passed(stage: Stage) -> None:
    told = stage.telling("paused-before-the-call.md")
    stage.provider()
    job_id = stage.enqueue()
    first = stage.start("first", at="begin_effect:after_commit", act="stop", call_timeout=0.5, sweeps=False)
    stage.stopped(first)
    paused = time.monotonic()
    stage.night()
    second = stage.start("second")
    stage.until_status(job_id, "completed")
    # The process keeps its deadline by its own clock, which is the machine's: it has to be over for real.
    until(lambda: time.monotonic() > paused + 0.5, "the call's half second is over")
    stage.wake(first)
    stage.until_event(job_id, "evidence_received")
    stage.end(first)
    stage.end(second)
    stage.tell(told, job_id)
    sent = [entry.operation_key for entry in stage.simulator.entries() if entry.action != "looked_up"]
    assert len(sent) == 2
    assert stage.customers_saw() == ONCE_EACH
    told.check()


def test_paused_in_the_call_and_the_provider_knows_the_key(stage: Stage) -> None:
    told = stage.telling("paused-in-the-call.md")
    stage.provider()
    job_id = stage.enqueue()
    first = stage.start("first", at="send:before", act="stop", sweeps=False)
    stage.stopped(first)
    stage.night()
    second = stage.start("second")
    stage.until_status(job_id, "completed")
    stage.wake(first)
    stage.until_event(job_id, "evidence_received")
    stage.end(first)
    stage.end(second)
    stage.tell(told, job_id)
    assert [entry.action for entry in stage.simulator.entries()].count("replayed") == 1
    assert stage.customers_saw() == ONCE_EACH
    assert stage.job(job_id).escalated_at is None
    told.check()


def test_a_rejected_effect_retried_plain_and_reopened(stage: Stage) -> None:
    told = stage.telling("rejected-and-retried.md")
    stage.provider().fault("refuse", key="*:mail")
    job_id = stage.enqueue()
    hand = stage.hand("first")

    def work() -> str:
        claim = hand.claim()
        assert claim is not None
        hand.work(claim)
        return stage.job(job_id).status.value

    assert work() == "failed"
    stage.service.retry_job(job_id, actor="user:ann")
    assert work() == "failed"
    assert stage.customers_saw() == {}
    assert len(stage.simulator.entries()) == 1
    stage.tell(told, job_id)
    with pytest.raises(Invalid):
        stage.service.retry_job(job_id, actor="user:ann", reopen=["note"])
    stage.service.retry_job(job_id, actor="user:ann", reopen=["mail"])
    assert work() == "completed"
    stage.tell(told, job_id)
    assert stage.customers_saw() == {"mail#1": 1, "note": 1}
    with pytest.raises(IllegalMove):
        stage.service.retry_job(job_id, actor="user:ann")
    told.check()


def test_evidence_that_contradicts_what_is_settled(stage: Stage) -> None:
    told = stage.telling("proof-of-a-duplicate.md")
    provider = stage.provider(idempotency_keys=False, lookup=False)
    provider.fault("drop_reply", key="*:mail")
    job_id = stage.enqueue()
    hand = stage.hand("first")
    claim = hand.claim()
    assert claim is not None
    hand.work(claim)
    assert stage.job(job_id).status == "indeterminate"
    key = f"send_quote:{job_id}:mail"
    stage.service.reconcile_dispatched(job_id, Absent(), reason="nothing in the outbox", actor="user:ann")
    again = hand.claim()
    assert again is not None
    hand.work(again)
    assert stage.job(job_id).status == "completed"
    assert stage.customers_saw() == {"mail": 2, "note": 1}
    stage.tell(told, job_id)
    # The provider's own report arrives in the end, with the receipt of the first call.
    (first, _) = stage.simulator.effects()[key]
    receipt = {"status": 200, "body": {"effect_id": first.effect_id, "operation_key": key, "state": "accepted"}}
    stage.service.submit_evidence(key, Accepted(receipt), attempt_id=claim.lease.attempt_id)
    job = stage.job(job_id)
    assert job.status == "completed"
    assert job.escalated_at is not None
    found = stage.service.find_reconciliation_candidates(organization=ORGANIZATION, project=PROJECT)
    assert [one.id for one in found] == [job_id]
    (verdict,) = stage.service.sweep_reconciliation_candidates(
        organization=ORGANIZATION, project=PROJECT, lookup=lambda _key, _job: Accepted(receipt)
    )
    assert verdict.action == "leave"
    stage.tell(told, job_id)
    told.check()


def test_the_same_receipt_again_contradicts_nothing(stage: Stage) -> None:
    """The control: what is settled is said once more, and nobody is asked."""
    stage.provider()
    job_id = stage.enqueue()
    hand = stage.hand("first")
    claim = hand.claim()
    assert claim is not None
    hand.work(claim)
    effect = next(one for one in stage.job(job_id).effects if one.name == "mail")
    stage.service.submit_evidence(effect.operation_key, Accepted(effect.receipt), attempt_id=claim.lease.attempt_id)
    job = stage.job(job_id)
    assert (job.status.value, job.escalated_at) == ("completed", None)
    assert stage.scene.names(job_id)[-1] == "evidence_received"
    assert stage.service.find_reconciliation_candidates(organization=ORGANIZATION, project=PROJECT) == []
