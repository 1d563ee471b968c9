"""Who a job belongs to and what it was allowed to do, checked in the transaction that dispatches."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tenure.errors import IdentityRefused, Invalid
from tenure.rules.envelope import (
    ExecutionInput,
    GovernanceInput,
    read_execution_identity,
    validate_execution_identity_for_dispatch,
)
from tenure.rules.lease import Lease
from tests.contract.bench import START, Bench
from tests.contract.build import EXECUTION, MAILER, REQUEST, begin, claim, create
from tests.contract.refusal import refused

GOVERNANCE = GovernanceInput(
    action_intent={"send": "quote"},
    capability="mail.send",
    policy="p-7",
    budget={"eur": 1},
    approval_reference="ap-1",
    issued_at=START - timedelta(hours=1),
    expires_at=START + timedelta(hours=1),
)


def held(bench: Bench, **fields: Any) -> Lease:
    create(bench.service, **fields)
    return claim(bench.service, start=True).lease


def test_the_envelope_is_written_from_the_typed_input_and_the_row(bench: Bench) -> None:
    given = ExecutionInput(
        tenant="acme", actor="user:42", trace="t-1", task="task-1", run="run-2", attempt="3", action_intent="i-4",
        admission_decision="d-5", approval="ap-6",
    )  # fmt: skip
    job = create(bench.service, execution=given)
    assert job.payload["execution"] == {
        "tenant": "acme",
        "organization": "acme",
        "project": "p1",
        "job": str(job.id),
        "actor": "user:42",
        "trace": "t-1",
        "task": "task-1",
        "run": "run-2",
        "attempt": "3",
        "action_intent": "i-4",
        "admission_decision": "d-5",
        "approval": "ap-6",
    }
    read = bench.service.get_job(job.id)
    assert validate_execution_identity_for_dispatch(read) == []
    identity = read_execution_identity(read)
    assert identity is not None
    assert (identity.actor, identity.job, identity.run) == ("user:42", job.id, "run-2")
    assert begin(bench.service, claim(bench.service).lease)


@pytest.mark.parametrize(
    "execution,reason",
    [
        (None, "no execution envelope"),
        (ExecutionInput(tenant="acme", trace="t-1"), "actor"),
        (ExecutionInput(tenant="acme", actor="user:42"), "trace"),
        (ExecutionInput(), "actor"),
    ],
)
def test_work_that_nobody_stands_for_dispatches_nothing(
    bench: Bench, execution: ExecutionInput | None, reason: str
) -> None:
    lease = held(bench, execution=execution)
    with refused(bench, IdentityRefused) as caught:
        begin(bench.service, lease)
    reasons = caught.value.reasons  # type: ignore[attr-defined]
    assert any(reason in one for one in reasons)
    assert all(one in str(caught.value) for one in reasons)
    # Everything that touches nothing outside still works.
    assert bench.service.complete_job(lease, result=None).status == "completed"


@pytest.mark.parametrize("key", ["execution", "governance"])
def test_a_payload_cannot_smuggle_an_envelope_in(bench: Bench, key: str) -> None:
    for value in (None, {}, {"tenant": "acme"}, "x"):
        with refused(bench, Invalid, code="RESERVED_KEY"):
            create(bench.service, payload={"quote": 17, key: value})
    assert create(bench.service, payload={"quote": 17, "inner": {key: {}}}).status == "queued"


FORGERIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another tenant": lambda e: e.update(tenant="rival"),
    "another organization": lambda e: e.update(organization="rival"),
    "another project": lambda e: e.update(project="p2"),
    "another job": lambda e: e.update(job="01900000-0000-7000-8000-000000000000"),
    "an actor of another type": lambda e: e.update(actor=7),
    "an empty actor": lambda e: e.update(actor=" "),
    "no trace": lambda e: e.pop("trace"),
    "a key of another hand": lambda e: e.update(role="admin"),
    "a job id in another spelling": lambda e: e.update(job=e["job"].upper()),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_row_that_was_changed_by_hand_stops_the_dispatch(bench: Bench, forgery: str) -> None:
    lease = held(bench)
    snapshot = bench.snapshot()
    forge(bench, lease, "execution", FORGERIES[forgery])
    with refused(bench, IdentityRefused):
        begin(bench.service, lease)
    # The bare mark validates where an envelope exists.
    with refused(bench, IdentityRefused):
        bench.service.mark_provider_dispatched(lease, operation_key="k")
    bench.restore(snapshot)
    assert begin(bench.service, lease)
    assert bench.service.mark_provider_dispatched(lease, operation_key="k").status == "running"


def test_an_envelope_that_is_no_object_stops_the_dispatch(bench: Bench) -> None:
    lease = held(bench)
    for wrong in ("[]", '"x"', "null", "7"):
        bench.sql(f'UPDATE $job SET payload = \'{{"quote":17,"execution":{wrong}}}\' WHERE job_id = ?', lease.job_id)
        with refused(bench, IdentityRefused):
            begin(bench.service, lease)
        with pytest.raises(Invalid):
            read_execution_identity(bench.service.get_job(lease.job_id))


def forge(bench: Bench, lease: Lease, key: str, change: Callable[[dict[str, Any]], Any]) -> None:
    ((text,),) = bench.sql("SELECT CAST(payload AS text) FROM $job WHERE job_id = ?", lease.job_id)
    payload = json.loads(text)
    change(payload[key])
    bench.sql("UPDATE $job SET payload = ? WHERE job_id = ?", json.dumps(payload), lease.job_id)


@pytest.mark.parametrize(
    "fields",
    [
        {"issued_at": START, "expires_at": START},
        {"issued_at": START + timedelta(hours=2)},
        {"issued_at": START.replace(tzinfo=None)},
        {"capability": ""},
        {"policy": {}},
        {"budget": None},
        {"action_intent": {"x": float("nan")}},
        {"approval_reference": " "},
    ],
)
def test_a_governance_input_is_checked_before_any_row(bench: Bench, fields: dict[str, Any]) -> None:
    with refused(bench, Invalid):
        create(bench.service, governance=replace(GOVERNANCE, **fields))
    assert create(bench.service, governance=GOVERNANCE).status == "queued"


@pytest.mark.parametrize("fields", [{"actor": ""}, {"trace": "a\0"}, {"task": "x" * 1001}, {"run": "\ud800"}])
def test_an_execution_input_is_checked_before_any_row(bench: Bench, fields: dict[str, Any]) -> None:
    with refused(bench, Invalid):
        create(bench.service, execution=replace(EXECUTION, **fields))
    assert create(bench.service).status == "queued"


def test_envelopes_are_not_part_of_what_a_key_means(bench: Bench) -> None:
    made = create(bench.service, governance=GOVERNANCE)
    again = bench.service.create_job(
        organization="acme", project="p1", idempotency_key="k-1", kind="send_quote", payload={"quote": 17},
        execution=ExecutionInput(actor="someone else", trace="t-2"),
    )  # fmt: skip
    assert (again.created, again.job.id) == (False, made.id)
    assert again.job.payload["execution"]["actor"] == "user:42"


def test_the_dispatch_is_judged_by_the_row_as_it_is_locked(bench: Bench) -> None:
    """The claim saw a good envelope; it was changed afterwards, and the holder still has the old record."""
    lease = held(bench)
    forge(bench, lease, "execution", lambda e: e.update(actor=None))
    with refused(bench, IdentityRefused):
        bench.service.begin_effect(lease, name="send", request=REQUEST, provider=MAILER)
