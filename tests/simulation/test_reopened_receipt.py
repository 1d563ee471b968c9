"""A receipt under the key of before a reopening is proof of a second effect: it is kept and a person is asked."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tenure.errors import LeaseLost
from tenure.procedures.claim import Claim
from tenure.rules.envelope import ExecutionInput
from tenure.rules.job import Job
from tenure.rules.outcome import Declined, Succeeded, Unknown
from tenure.rules.status import Status
from tenure.service import DurableJobService
from tenure.stores import open_store
from tenure.testing.clock import ManualClock
from tenure.testing.provider import FakeProvider


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def service(clock: ManualClock) -> Iterator[DurableJobService]:
    with open_store("sqlite:///:memory:", clock=clock) as store:
        store.migrate(test_clock=True)
        yield DurableJobService(store, actor="operator")


def declined(service: DurableJobService, clock: ManualClock) -> tuple[Job, Claim]:
    """Give a job that failed because a look-up said "declined"; its first worker still waits for an answer."""
    service.create_job(
        organization="studio",
        project="sales",
        idempotency_key="quote-17",
        kind="send_quote",
        payload={"quote": 17},
        execution=ExecutionInput(tenant="studio", actor="user:42", trace="t-1"),
    )
    claim = service.claim_job("A", start=True)
    assert claim is not None
    service.begin_effect(claim.lease, name="send", request={"quote": 17}, provider=FakeProvider("mailer"))
    clock.advance(timedelta(minutes=2))
    service.sweep_reconciliation_candidates(
        organization="studio", project="sales", lookup=lambda key, job: Declined("no credit")
    )
    job = service.get_job(claim.job.id)
    assert job.status is Status.FAILED
    return job, claim


def test_a_receipt_under_the_old_key_of_a_reopened_effect_is_kept(
    service: DurableJobService, clock: ManualClock
) -> None:
    job, first = declined(service, clock)
    service.retry_job(job.id, reopen=["send"])
    with pytest.raises(LeaseLost):
        service.finish_effect(first.lease, name="send", outcome=Succeeded("r-1"))
    after = service.get_job(job.id)
    assert after.escalation_reason is not None
    assert f" send_quote:{job.id}:send: " in after.escalation_reason


def test_without_a_reopening_the_same_receipt_is_kept_under_its_only_key(
    service: DurableJobService, clock: ManualClock
) -> None:
    job, first = declined(service, clock)
    with pytest.raises(LeaseLost):
        service.finish_effect(first.lease, name="send", outcome=Succeeded("r-1"))
    assert service.get_job(job.id).escalation_reason is not None


def test_an_outcome_that_proves_nothing_is_refused_and_asks_nobody(
    service: DurableJobService, clock: ManualClock
) -> None:
    job, first = declined(service, clock)
    service.retry_job(job.id, reopen=["send"])
    with pytest.raises(LeaseLost):
        service.finish_effect(first.lease, name="send", outcome=Unknown("reset"))
    assert service.get_job(job.id).escalation_reason is None
