"""Arguments of the wrong kind: Invalid on both databases, before anything is touched, and never a driver's error."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tenure.errors import Invalid
from tenure.rules.outcome import Accepted, Declined, Rejected, Succeeded
from tests.contract.bench import Bench
from tests.contract.build import CASES, KIND, MAILER, REQUEST, Case, create
from tests.contract.refusal import refused

Call = Callable[[Any, Any, Case], Any]


def deep(levels: int = 5_000) -> list[Any]:
    """Give a list whose very description is too deep for Python."""
    outer: list[Any] = []
    for _ in range(levels):
        outer = [outer]
    return outer


DEEP = deep()

# What stands where an id belongs: text that looks like one, too, because the two databases would differ on it.
NOT_IDS: list[Any] = [None, "", "abc", "01900000-0000-7000-8000-000000000001", 5, b"x" * 16, {}, True, DEEP]
IDS: dict[str, Call] = {
    "get": lambda s, v, c: s.get_job(v),
    "cancel": lambda s, v, c: s.cancel_job(v, reason="r"),
    "revoke": lambda s, v, c: s.revoke_job(v, reason="r", actor="op:1"),
    "retry": lambda s, v, c: s.retry_job(v, actor="op:1"),
    "state": lambda s, v, c: s.reconcile_dispatched(v, Accepted(1), reason="r", actor="op:1"),
    "resume sweep": lambda s, v, c: s.resume_sweep(v, actor="op:1"),
    "append event": lambda s, v, c: s.append_job_event(v, "admission_checked", {}),
    "list events": lambda s, v, c: s.list_job_events(v),
    "list effects": lambda s, v, c: s.list_effects(v),
    "evidence": lambda s, v, c: s.submit_evidence(str(c.key), Accepted(1), attempt_id=v),
    "claim id": lambda s, v, c: s.claim_job("A", claim_id="x" if v is None else v),
    "after": lambda s, v, c: s.list_jobs(after="x" if v is None else v),
    "after, messages": lambda s, v, c: s.list_messages(after="x" if v is None else v),
    "after, suspects": lambda s, v, c: s.list_suspects(after="x" if v is None else v),
    "after, needs": lambda s, v, c: s.list_effects_needing_evidence(after="x" if v is None else v),
    "after, asked": lambda s, v, c: s.reconcile_suspects(after="x" if v is None else v),
    "readmit": lambda s, v, c: s.readmit_jobs("acme", reason="r", job_ids=[v]),
}
NOT_LEASES: list[Any] = [None, "x", {}, object()]
LEASES: dict[str, Call] = {
    "heartbeat": lambda s, v, c: s.heartbeat(v),
    "mark dispatched": lambda s, v, c: s.mark_provider_dispatched(v, operation_key="k"),
    "begin": lambda s, v, c: s.begin_effect(v, name="n", request=REQUEST, provider=MAILER),
    "finish": lambda s, v, c: s.finish_effect(v, name="send", outcome=Succeeded()),
    "complete": lambda s, v, c: s.complete_job(v, result=None),
    "fail": lambda s, v, c: s.fail_job(v, code="E", message="m", retryable=True),
    "mark indeterminate": lambda s, v, c: s.mark_indeterminate(v, code="E", message="m"),
    "mark halt unsafe": lambda s, v, c: s.mark_halt_unsafe(v, code="E", message="m"),
    "mark timed out": lambda s, v, c: s.mark_timed_out(v, code="E", message="m"),
    "release": lambda s, v, c: s.release_job(v, reason="r"),
    "acknowledge": lambda s, v, c: s.acknowledge_cancellation(v),
}
NOT_TEXTS: list[Any] = ["", " ", "a\0", "\ud800", "x" * 201, 7, b"x", ["x"], DEEP]
TEXTS: dict[str, Call] = {
    "cancel: actor": lambda s, v, c: s.cancel_job(c.job_id, reason="r", actor=v),
    "append event: actor": lambda s, v, c: s.append_job_event(c.job_id, "admission_checked", {}, actor=v),
    "claim: organization": lambda s, v, c: s.claim_job("A", organization=v),
    "claim: tenant": lambda s, v, c: s.claim_job("A", tenant=v),
    "claim: a queue": lambda s, v, c: s.claim_job("A", queues=[v]),
    "claim: a kind": lambda s, v, c: s.claim_job("A", kinds=["k", v]),
    "list: organization": lambda s, v, c: s.list_jobs(organization=v),
    "list: project": lambda s, v, c: s.list_jobs(project=v),
    "list: queue": lambda s, v, c: s.list_jobs(queue=v),
    "list: tenant": lambda s, v, c: s.list_jobs(tenant=v),
    "find: project": lambda s, v, c: s.find_by_idempotency_key(project=v, idempotency_key="k", tenant="acme"),
    "find: organization": lambda s, v, c: s.find_by_idempotency_key(
        project="p1", idempotency_key="k", tenant="acme", organization=v
    ),
    "find: organization alone": lambda s, v, c: s.find_by_idempotency_key(
        project="p1", idempotency_key="k", organization=v
    ),
    "find: key": lambda s, v, c: s.find_by_idempotency_key(project="p1", idempotency_key=v, tenant="acme"),
    "candidates: project": lambda s, v, c: s.find_reconciliation_candidates(organization="acme", project=v),
}
# What no argument takes that is neither an id nor a name, and what some would take for a number or a list.
NOT_THESE: list[Any] = [0, -1, 1.5, b"x", object(), DEEP]
THESE: dict[str, Call] = {
    "limit of jobs": lambda s, v, c: s.list_jobs(limit=v),
    "limit of messages": lambda s, v, c: s.list_messages(limit=v),
    "limit of approvals": lambda s, v, c: s.list_approvals(tenant="acme", limit=v),
    "limit of suspects": lambda s, v, c: s.list_suspects(limit=v),
    "limit of a claim": lambda s, v, c: s.claim_jobs("A", limit=v),
    "limit of an inbox's end": lambda s, v, c: s.prune_inbox("books", limit=v),
    "limit of an outbox's end": lambda s, v, c: s.prune_outbox(older_than=timedelta(days=1), limit=v),
    "attempts of a replay": lambda s, v, c: s.replay_message(c.job_id, reason="r", actor="op:1", attempts=v),
    "retryable": lambda s, v, c: s.fail_job(c.lease, code="E", message="m", retryable=v),
    "status": lambda s, v, c: s.list_jobs(status=v),
    "phase": lambda s, v, c: s.list_jobs(phase=v),
    "state of an approval": lambda s, v, c: s.list_approvals(tenant="acme", state=v),
    "state of a message": lambda s, v, c: s.list_messages(state=v),
    "states of a message": lambda s, v, c: s.list_messages(state=["due", v]),
    "name of an event": lambda s, v, c: s.append_job_event(c.job_id, v, {}),
    "data of an event": lambda s, v, c: s.append_job_event(c.job_id, "admission_checked", {"x": [v, DEEP]}),
    "key of evidence": lambda s, v, c: s.submit_evidence(v, Accepted(1), attempt_id=c.lease.attempt_id),
    "ids to readmit": lambda s, v, c: s.readmit_jobs("acme", reason="r", job_ids=v),
}
OTHERS: dict[str, Call] = {
    "retry_after": lambda s, v, c: s.fail_job(c.lease, code="E", message="m", retryable=True, retry_after=5),
    "retryable": lambda s, v, c: s.fail_job(c.lease, code="E", message="m", retryable=None),
    "lease_duration": lambda s, v, c: s.claim_job("A", lease_duration=60),
    "queues": lambda s, v, c: s.claim_job("A", queues=7),
    "kinds": lambda s, v, c: s.claim_job("A", kinds="send"),
    "reopen": lambda s, v, c: s.retry_job(c.job_id, actor="op:1", reopen=7),
    "execution": lambda s, v, c: s.create_job(
        organization="acme", project="p1", idempotency_key="k", kind=KIND, payload={}, execution={"actor": "x"}
    ),
    "governance": lambda s, v, c: s.create_job(
        organization="acme", project="p1", idempotency_key="k", kind=KIND, payload={}, governance={"policy": "x"}
    ),
    "key of evidence": lambda s, v, c: s.submit_evidence(None, Accepted(1), attempt_id=c.lease.attempt_id),
    "state": lambda s, v, c: s.list_messages(state=True),
    "job_ids": lambda s, v, c: s.readmit_jobs("acme", reason="r", job_ids=True),
    "many": lambda s, v, c: s.create_jobs(None),
    "providers": lambda s, v, c: s.reconcile_suspects(providers=None),
    "one of the providers": lambda s, v, c: s.reconcile_suspects(providers=["mailer"]),
    "operations": lambda s, v, c: s.reconcile_suspects(operations=[KIND]),
    "one of the operations": lambda s, v, c: s.reconcile_suspects(operations={KIND: ["send"]}),
    "one of many": lambda s, v, c: s.create_jobs(["x"]),
}


def refuse_all(bench: Bench, call: Call, values: list[Any]) -> None:
    case = CASES["running, effect"](bench)
    create(bench.service, "waiting")
    for value in values:
        with refused(bench, Invalid):
            call(bench.service, value, case)


@pytest.mark.parametrize("name", IDS)
def test_what_is_no_id(bench: Bench, name: str) -> None:
    refuse_all(bench, IDS[name], NOT_IDS)


@pytest.mark.parametrize("name", LEASES)
def test_what_is_no_lease(bench: Bench, name: str) -> None:
    refuse_all(bench, LEASES[name], NOT_LEASES)


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_no_name(bench: Bench, name: str) -> None:
    refuse_all(bench, TEXTS[name], NOT_TEXTS)


@pytest.mark.parametrize("name", THESE)
def test_what_is_no_number_word_or_list(bench: Bench, name: str) -> None:
    refuse_all(bench, THESE[name], NOT_THESE)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_of_another_kind_altogether(bench: Bench, name: str) -> None:
    refuse_all(bench, OTHERS[name], [None])


def test_an_outcome_whose_reason_is_no_text_is_recorded_all_the_same(bench: Bench) -> None:
    """The call was made: a word of the wrong kind must not leave its effect open."""
    case = CASES["running, effect"](bench)
    job = bench.service.finish_effect(case.lease, name="send", outcome=Rejected(5))  # type: ignore[arg-type]
    assert [(effect.state, effect.reason) for effect in job.effects] == [("rejected", "int")]
    bench.service.submit_evidence(str(case.key), Declined(ValueError("x")), attempt_id=case.lease.attempt_id)  # type: ignore[arg-type]
    assert [row["reason"] for row in bench.table("evidence", case.job_id)] == ["ValueError"]


def test_the_controls(bench: Bench) -> None:
    case = CASES["running, effect"](bench)
    service = bench.service
    assert service.get_job(case.job_id).id == case.job_id
    assert service.cancel_job(case.job_id, reason="r", actor="op:1").cancel_requested_at == bench.now
    assert service.list_jobs(tenant="acme", organization="acme", project="p1", queue="default", after=None)
    assert service.claim_job("A", organization="acme", queues=(), kinds=(), lease_duration=timedelta(minutes=1)) is None
    assert service.create_jobs(iter([])) == []
    assert service.find_by_idempotency_key(project="p1", idempotency_key="k", organization="acme") is None
    assert [job.id for job in service.list_jobs(status="running", phase="LEASED", limit=1)] == [case.job_id]
    assert service.list_messages(state=("due", "later"), limit=1) == service.list_messages(state="held") == []
    assert service.list_approvals(tenant="acme", state="granted") == service.list_suspects(after=case.job_id) == []
    assert service.append_job_event(case.job_id, "admission_checked", {"x": [1]}).id == case.job_id
    assert service.submit_evidence(str(case.key), Accepted(1), attempt_id=case.lease.attempt_id).id == case.job_id
    assert service.readmit_jobs("acme", reason="r", job_ids=iter([]), actor="op:1") == []
