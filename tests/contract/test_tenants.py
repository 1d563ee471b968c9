"""A service bound to a tenant: every verb on a foreign job answers as for an unknown one, and touches nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from tenure.errors import Invalid, NotFound
from tenure.rules.outcome import Accepted, Succeeded
from tenure.service import DurableJobService
from tests.contract.bench import NEIGHBOUR, Bench
from tests.contract.build import CASES, KIND, MAILER, PAYLOAD, RECEIPT, REQUEST, Case, begin, claim, create
from tests.contract.refusal import refused

THROUGH_THE_POOLER = True

Verb = Callable[[DurableJobService, Case], Any]

VERBS: dict[str, Verb] = {
    "heartbeat": lambda s, c: s.heartbeat(c.lease),
    "mark dispatched": lambda s, c: s.mark_provider_dispatched(c.lease, operation_key="k"),
    "begin": lambda s, c: s.begin_effect(c.lease, name="other", request=REQUEST, provider=MAILER),
    "finish": lambda s, c: s.finish_effect(c.lease, name="send", outcome=Succeeded(RECEIPT)),
    "complete": lambda s, c: s.complete_job(c.lease, result=None),
    "fail": lambda s, c: s.fail_job(c.lease, code="E", message="m", retryable=True),
    "mark indeterminate": lambda s, c: s.mark_indeterminate(c.lease, code="E", message="m"),
    "mark halt unsafe": lambda s, c: s.mark_halt_unsafe(c.lease, code="E", message="m"),
    "mark timed out": lambda s, c: s.mark_timed_out(c.lease, code="E", message="m"),
    "release": lambda s, c: s.release_job(c.lease, reason="r"),
    "acknowledge": lambda s, c: s.acknowledge_cancellation(c.lease),
    "cancel": lambda s, c: s.cancel_job(c.job_id, reason="r"),
    "revoke": lambda s, c: s.revoke_job(c.job_id, reason="r", actor="op:1"),
    "retry": lambda s, c: s.retry_job(c.job_id, actor="op:1"),
    "state": lambda s, c: s.reconcile_dispatched(c.job_id, Accepted(1), reason="r", actor="op:1"),
    "resume sweep": lambda s, c: s.resume_sweep(c.job_id, actor="op:1"),
    "append event": lambda s, c: s.append_job_event(c.job_id, "admission_checked", {}),
    "get": lambda s, c: s.get_job(c.job_id),
    "list effects": lambda s, c: s.list_effects(c.job_id),
    "list events": lambda s, c: s.list_job_events(c.job_id),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_foreign_id_has_the_text_of_an_unknown_one(bench: Bench, verb: str) -> None:
    case = CASES["running, effect"](bench)
    unknown_id = UUID(int=case.job_id.int + 1)
    unknown = Case(unknown_id, replace(case.lease, job_id=unknown_id), case.key)
    rival = bench.bound(tenant="rival")
    with refused(bench, NotFound, code="NOT_FOUND") as foreign:
        VERBS[verb](rival, case)
    with refused(bench, NotFound, code="NOT_FOUND") as missing:
        VERBS[verb](rival, unknown)
    assert str(foreign.value).replace(str(case.job_id), "") == str(missing.value).replace(str(unknown_id), "")
    with refused(bench, NotFound) as unbound:
        VERBS[verb](bench.service, unknown)
    assert str(unbound.value) == str(missing.value)


def test_evidence_of_a_foreign_operation_is_unknown(bench: Bench) -> None:
    case = CASES["running, effect"](bench)
    rival = bench.bound(tenant="rival")
    with refused(bench, NotFound) as foreign:
        rival.submit_evidence(str(case.key), Accepted(1), attempt_id=case.lease.attempt_id)
    with refused(bench, NotFound) as missing:
        rival.submit_evidence("nothing", Accepted(1), attempt_id=case.lease.attempt_id)
    assert str(foreign.value).replace(str(case.key), "") == str(missing.value).replace("nothing", "")
    bench.bound(tenant="acme").submit_evidence(str(case.key), Accepted(1), attempt_id=case.lease.attempt_id)


# What a verb needs in order to be allowed, where a running job is not enough.
NEEDS = {
    "acknowledge": "running, cancelling",
    "retry": "failed",
    "state": "indeterminate, effect",
    "resume sweep": "indeterminate, escalated",
    "finish": "running, effect",
}


def test_the_owner_is_not_in_the_way_of_itself(bench: Bench) -> None:
    for verb, call in VERBS.items():
        bench.reset()
        ours = bench.bound(tenant="acme")
        name = NEEDS.get(verb, "running")
        call(ours, CASES[name](bench))


def test_a_bound_service_claims_only_its_own(bench: Bench) -> None:
    mine = create(bench.service)
    theirs = create(bench.service, tenant="north", execution=None, priority=9)
    ours = bench.bound(tenant="acme")
    assert [one.job.id for one in ours.claim_jobs("A", limit=10)] == [mine.id]
    with pytest.raises(Invalid) as caught:
        ours.claim_job("A", tenant="north")
    assert caught.value.code == "TENANT_MISMATCH"
    assert claim(bench.bound(tenant="north")).job.id == theirs.id


def test_a_bound_service_lists_and_finds_only_its_own(bench: Bench) -> None:
    mine = create(bench.service)
    create(bench.service, tenant="north", execution=None)
    ours = bench.bound(tenant="acme")
    assert [job.id for job in ours.list_jobs()] == [mine.id]
    assert [job.id for job in ours.list_jobs(organization="acme")] == [mine.id]
    calls: list[Callable[[], Any]] = [
        lambda: ours.list_jobs(tenant="north"),
        lambda: ours.find_by_idempotency_key(project="p1", idempotency_key="k-1", tenant="north"),
        lambda: ours.find_reconciliation_candidates(organization="acme", project="p1", tenant="north"),
        lambda: ours.create_job(
            organization="acme", project="p1", idempotency_key="k-9", kind=KIND, payload=PAYLOAD, tenant="north"
        ),
    ]
    for call in calls:
        with refused(bench, Invalid, code="TENANT_MISMATCH"):
            call()
    found = ours.find_by_idempotency_key(project="p1", idempotency_key="k-1", organization="north")
    assert found is not None
    assert found.id == mine.id


def test_two_tenants_with_the_same_names_never_meet(bench: Bench) -> None:
    """Same organization, project, keys, kind, worker and effect names: only the tenant differs."""
    bench.service.create_job(
        organization="acme", project="p1", idempotency_key="k-1", kind=KIND, payload={"for": "north"}, tenant="north"
    )
    mine = create(bench.service, "k-1")
    found = bench.service.find_by_idempotency_key(project="p1", idempotency_key="k-1", tenant="acme")
    assert found is not None
    assert found.id == mine.id
    both = {one.job.tenant: one for one in bench.service.claim_jobs("A", limit=5, start=True)}
    assert set(both) == {"acme", "north"}
    key = begin(bench.service, both["acme"].lease)
    bench.service.fail_job(both["acme"].lease, code="E", message="m", retryable=True)
    north = bench.bound(tenant="north")
    assert north.find_reconciliation_candidates(organization="acme", project="p1") == []
    asked: list[str] = []

    def look(operation: str, job: Any) -> Any:
        asked.append(operation)
        return Accepted(RECEIPT)

    assert north.sweep_reconciliation_candidates(organization="acme", project="p1", lookup=look) == []
    assert asked == []
    assert bench.service.sweep_reconciliation_candidates(organization="acme", project="p1", lookup=look)[0].status == (
        "queued"
    )
    assert asked == [key]
    assert bench.service.get_job(both["north"].job.id).status == "running"


def test_the_neighbour_is_there_and_has_open_business_of_its_own(bench: Bench) -> None:
    """Otherwise the check after every test, that none of its rows has changed, would prove nothing."""
    rows = bench.dump()
    theirs = {table: [row for row in rows[table] if row.get("tenant") == NEIGHBOUR] for table in rows}
    assert {table for table, found in theirs.items() if found} >= {
        "authority", "job", "job_key", "resting", "outcome", "event", "effect", "intent", "evidence"
    }  # fmt: skip
    found = bench.service.find_reconciliation_candidates(organization="acme", project="p1", tenant=NEIGHBOUR)
    assert len(found) == 2


@pytest.mark.parametrize("bad", ["", " ", "a\0b", "x" * 201, 7])
def test_a_service_is_bound_to_text(bench: Bench, bad: Any) -> None:
    with pytest.raises(Invalid):
        bench.bound(tenant=bad)
    with pytest.raises(Invalid):
        bench.bound(actor=bad)
    assert bench.bound(tenant="acme", actor="op:1").list_jobs() == []
