"""Effects: the intent before the call, what may be begun again, and what every ending means."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from tenure import verbs
from tenure.errors import (
    Conflict,
    EffectRejected,
    IllegalMove,
    Invalid,
    LeaseLost,
    NotFound,
    Uncertain,
)
from tenure.rules.digest import request_digest
from tenure.rules.lease import Lease
from tenure.rules.outcome import (
    Absent,
    Accepted,
    Declined,
    FailedBeforeDispatch,
    NoAnswer,
    Rejected,
    Succeeded,
    Unknown,
)
from tenure.verbs.scope import Scope
from tests.contract.bench import START, Bench, micros
from tests.contract.build import (
    CASES,
    KIND,
    MAILER,
    OWN_KEY,
    PIGEON,
    RECEIPT,
    REQUEST,
    begin,
    claim,
    create,
    keys_for,
    provider,
)
from tests.contract.caller import producer
from tests.contract.refusal import refused
from tests.contract.test_join import wait_for_lock

THROUGH_THE_POOLER = True

OUTCOMES: dict[str, Any] = {
    "succeeded": Succeeded(RECEIPT),
    "failed_before_dispatch": FailedBeforeDispatch("no route", retry_after=timedelta(seconds=9)),
    "rejected": Rejected("no such address"),
    "unknown": Unknown("no reply"),
}


def held(bench: Bench, **fields: Any) -> Lease:
    create(bench.service, **fields)
    return claim(bench.service, start=True).lease


def effect_row(bench: Bench, lease: Lease, name: str = "send") -> dict[str, Any]:
    (row,) = [row for row in bench.table("effect", lease.job_id) if row["name"] == name]
    return row


# --- the intent -------------------------------------------------------------------------------------------------------


def test_the_intent_is_stored_before_the_call(bench: Bench) -> None:
    create(bench.service)
    lease = claim(bench.service).lease
    bench.advance(seconds=5)
    effect = bench.service.begin_effect(
        lease, name="send", request=REQUEST, provider=MAILER, deadline=timedelta(seconds=20)
    )
    key = f"{KIND}:{lease.job_id}:send"
    assert (effect.name, effect.state, effect.operation_key, effect.receipt) == ("send", "pending", key, None)
    assert (effect.created_at, effect.begun_at, effect.settled_at) == (bench.now, bench.now, None)
    assert effect.deadline_at == bench.now + timedelta(seconds=20)
    assert (effect.attempt_id, effect.generation, effect.request_digest) == (
        lease.attempt_id, 1, request_digest(REQUEST)
    )  # fmt: skip
    assert effect.provider == "mailer"
    assert effect.terms is not None
    assert (effect.terms.honours_key, effect.terms.retention, effect.terms.lookup_complete) == (
        True, timedelta(hours=24), True
    )  # fmt: skip
    assert bench.service.list_effects(lease.job_id) == [effect]
    job = bench.service.get_job(lease.job_id)
    assert (job.status, job.operation_key, job.dispatched_at) == ("running", key, bench.now)
    event = bench.service.list_job_events(lease.job_id)[-1]
    assert (event.name, event.status, event.data) == (
        "dispatched", "running", {"name": "send", "operation_key": key, "sent": True}
    )  # fmt: skip
    (intent,) = bench.table("intent", lease.job_id)
    assert (intent["operation_key"], intent["attempt_id"], intent["at"]) == (
        key, str(lease.attempt_id), micros(bench.now)
    )  # fmt: skip


def test_the_call_may_not_last_longer_than_the_lease(bench: Bench) -> None:
    lease = held(bench)
    bench.advance(seconds=50)
    begin(bench.service, lease, "long", deadline=timedelta(seconds=30))
    begin(bench.service, lease, "short", deadline=timedelta(seconds=3))
    deadlines = {effect.name: effect.deadline_at for effect in bench.service.list_effects(lease.job_id)}
    assert deadlines == {"long": START + timedelta(seconds=60), "short": START + timedelta(seconds=53)}


@pytest.mark.parametrize("bad", ["", "a:b", "a#1", "x" * 201, "a\nb", "a\0b", "\ud800", None, 7])
def test_an_effects_name_cannot_be_mistaken_for_another_keys_part(bench: Bench, bad: Any) -> None:
    lease = held(bench)
    with refused(bench, Invalid, code="BAD_ARGUMENT"):
        bench.service.begin_effect(lease, name=bad, request=REQUEST, provider=MAILER)
    for good in ("x" * 200, "send mail", "é", "a.b/c-d"):
        assert begin(bench.service, lease, good) == f"{KIND}:{lease.job_id}:{good}"


def test_arguments_of_a_begin_are_checked(bench: Bench) -> None:
    lease = held(bench)
    bad: list[dict[str, Any]] = [
        {"request": {"x": float("nan")}},
        {"request": {"x": b""}},
        {"request": "a\0"},
        {"deadline": timedelta(0)},
        {"deadline": timedelta(seconds=-1)},
        {"deadline": 30},
        {"provider": "a:b"},
        {"provider": ""},
        {"provider": object()},
    ]
    for fields in bad:
        with refused(bench, Invalid):
            bench.service.begin_effect(lease, **{"name": "send", "request": REQUEST, "provider": MAILER, **fields})
    assert begin(bench.service, lease)


def test_a_provider_known_by_name_alone_declares_nothing(bench: Bench) -> None:
    lease = held(bench)
    effect = bench.service.begin_effect(lease, name="send", request=REQUEST, provider="mailer")
    assert effect.terms is not None
    assert (effect.terms.honours_key, effect.terms.retention, effect.terms.lookup_complete) == (False, None, False)
    with refused(bench, Uncertain):
        bench.service.begin_effect(lease, name="send", request=REQUEST, provider="mailer", resend=True)


# --- identity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [None, *OUTCOMES])
def test_the_same_name_with_another_request_is_a_conflict_in_every_state(bench: Bench, ending: str | None) -> None:
    lease = held(bench)
    begin(bench.service, lease)
    if ending:
        bench.service.finish_effect(lease, name="send", outcome=OUTCOMES[ending])
    with refused(bench, Conflict, code="EFFECT_MISMATCH"):
        begin(bench.service, lease, request={**REQUEST, "quote": 18})
    # Another name stands for another request.
    assert begin(bench.service, lease, "send 18", request={**REQUEST, "quote": 18})


def test_a_request_is_the_same_by_its_canonical_bytes(bench: Bench) -> None:
    lease = held(bench)
    begin(bench.service, lease, request={"b": 1, "a": [1.0, 2]})
    bench.service.finish_effect(lease, name="send", outcome=Succeeded(RECEIPT))
    again = bench.service.begin_effect(lease, name="send", request={"a": [1, 2.0], "b": 1.0}, provider=MAILER)
    assert again.receipt == RECEIPT
    with refused(bench, Conflict):
        begin(bench.service, lease, request={"a": [1, "2"], "b": 1})


def test_what_a_model_invents_is_data_and_never_the_key(bench: Bench) -> None:
    """A tool call repeated with a new key of its own is the same operation: the provider is asked once."""
    lease = held(bench)
    begin(bench.service, lease, "charge", request={"amount": 10})
    bench.service.finish_effect(lease, name="charge", outcome=Succeeded(RECEIPT))
    again = bench.service.begin_effect(lease, name="charge", request={"amount": 10}, provider=MAILER)
    assert (again.state, again.receipt) == ("succeeded", RECEIPT)
    with refused(bench, Conflict, code="EFFECT_MISMATCH"):
        begin(bench.service, lease, "charge", request={"amount": 10, "idempotency_key": "x2"})
    assert len(bench.table("intent", lease.job_id)) == 1


def test_effects_of_one_job_are_apart(bench: Bench) -> None:
    lease = held(bench)
    first, second = begin(bench.service, lease, "first"), begin(bench.service, lease, "second")
    bench.service.finish_effect(lease, name="first", outcome=Succeeded({"n": 1}))
    states = {e.operation_key: (e.state, e.receipt) for e in bench.service.list_effects(lease.job_id)}
    assert states == {first: ("succeeded", {"n": 1}), second: ("pending", None)}
    with refused(bench, Uncertain):
        bench.service.release_job(lease, reason="r")
    bench.service.finish_effect(lease, name="second", outcome=Rejected("no"))
    assert bench.service.complete_job(lease, result=None).status == "completed"


# --- what may be begun again ------------------------------------------------------------------------------------------


def test_an_open_effect_is_never_sent_again(bench: Bench) -> None:
    lease = held(bench)
    begin(bench.service, lease)
    for _ in range(2):
        with refused(bench, Uncertain) as caught:
            begin(bench.service, lease)
        assert "send" in str(caught.value)
        bench.service.finish_effect(lease, name="send", outcome=Unknown("no reply"))
    assert len(bench.table("intent", lease.job_id)) == 1


def test_what_surely_did_not_happen_is_begun_again_under_the_same_key(bench: Bench) -> None:
    lease = held(bench)
    key = begin(bench.service, lease)
    for _ in range(3):
        bench.service.finish_effect(lease, name="send", outcome=FailedBeforeDispatch("no route"))
        bench.advance(seconds=1)
        assert begin(bench.service, lease) == key
    (effect,) = bench.service.list_effects(lease.job_id)
    assert (effect.state, effect.created_at, effect.begun_at) == ("pending", START, bench.now)
    assert len(bench.table("intent", lease.job_id)) == 4
    bench.service.finish_effect(lease, name="send", outcome=Succeeded(RECEIPT))
    assert bench.service.complete_job(lease, result=None).status == "completed"


def test_the_next_attempt_begins_what_the_last_one_surely_did_not_do(bench: Bench) -> None:
    lease = held(bench)
    key = begin(bench.service, lease)
    bench.service.finish_effect(lease, name="send", outcome=FailedBeforeDispatch("no route"))
    bench.service.fail_job(lease, code="E", message="m", retryable=True)
    bench.advance(minutes=1)
    second = claim(bench.service, "B", start=True).lease
    assert begin(bench.service, second) == key
    assert effect_row(bench, second)["attempt_id"] == str(second.attempt_id)
    assert {row["attempt_id"] for row in bench.table("intent", lease.job_id)} == {
        str(lease.attempt_id), str(second.attempt_id)
    }  # fmt: skip


def test_the_next_attempt_reads_the_receipt_and_sends_nothing(bench: Bench) -> None:
    lease = held(bench)
    begin(bench.service, lease)
    bench.service.finish_effect(lease, name="send", outcome=Succeeded(RECEIPT))
    bench.service.fail_job(lease, code="E", message="m", retryable=True)
    bench.advance(minutes=1)
    second = claim(bench.service, "B").lease
    again = bench.service.begin_effect(second, name="send", request=REQUEST, provider=MAILER)
    assert (again.state, again.receipt, again.attempt_id) == ("succeeded", RECEIPT, lease.attempt_id)
    # Begin starts a claimed job, also where nothing has to be sent.
    assert bench.service.get_job(lease.job_id).status == "running"
    assert bench.trail(lease.job_id)[-2:] == ["claimed", "dispatched"]
    assert len(bench.table("intent", lease.job_id)) == 1


def test_a_rejected_effect_stays_rejected_with_its_reason(bench: Bench) -> None:
    lease = held(bench)
    begin(bench.service, lease)
    bench.service.finish_effect(lease, name="send", outcome=Rejected("no such address"))
    with refused(bench, EffectRejected) as caught:
        begin(bench.service, lease)
    assert "no such address" in str(caught.value)
    bench.service.fail_job(lease, code="E", message="m", retryable=False)
    bench.service.retry_job(lease.job_id, actor="op:1")
    second = claim(bench.service, "B", start=True).lease
    with refused(bench, EffectRejected):
        begin(bench.service, second)


def test_a_reopened_effect_has_a_new_key_and_the_old_one_stays_in_the_trail(bench: Bench) -> None:
    lease = held(bench)
    key = begin(bench.service, lease)
    old_digest = request_digest(REQUEST)
    current = lease
    for nth in (1, 2):
        bench.service.finish_effect(current, name="send", outcome=Rejected("no"))
        bench.service.fail_job(current, code="E", message="m", retryable=False)
        job = bench.service.retry_job(current.job_id, actor="op:1", reopen=["send", "send"])
        assert job.operation_key == f"{key}#{nth}"
        event = bench.service.list_job_events(lease.job_id)[-1]
        assert (event.name, event.actor) == ("retried", "op:1")
        before = key if nth == 1 else f"{key}#{nth - 1}"
        assert event.data["reopened"] == [
            {"name": "send", "operation_key": before, "request_digest": old_digest}
        ]  # fmt: skip
        current = claim(bench.service, "B", start=True).lease
        # Another request is allowed under the new key.
        new = {**REQUEST, "to": f"{nth}@b.example"}
        old_digest = request_digest(new)
        assert begin(bench.service, current, request=new) == f"{key}#{nth}"
    bench.service.finish_effect(current, name="send", outcome=Succeeded(RECEIPT))
    bench.service.complete_job(current, result=None)
    keys = [row["operation_key"] for row in sorted(bench.table("intent", lease.job_id), key=lambda row: row["at"])]
    assert sorted(keys) == [key, f"{key}#1", f"{key}#2"]


def test_only_rejected_effects_are_reopened(bench: Bench) -> None:
    lease = held(bench)
    for name, outcome in OUTCOMES.items():
        if name != "unknown":
            begin(bench.service, lease, name)
            bench.service.finish_effect(lease, name=name, outcome=outcome)
    bench.service.fail_job(lease, code="E", message="m", retryable=False)
    for names in (["succeeded"], ["failed_before_dispatch"], ["nothing"], [""], ["rejected", "succeeded"]):
        with refused(bench, Invalid, code="NOT_REJECTED"):
            bench.service.retry_job(lease.job_id, actor="op:1", reopen=names)
    with refused(bench, Invalid):
        bench.service.retry_job(lease.job_id, actor="op:1", reopen="rejected")
    assert bench.service.retry_job(lease.job_id, actor="op:1", reopen=["rejected"]).status == "queued"


# --- sending again under the same key ---------------------------------------------------------------------------------


def test_resend_is_for_providers_that_honour_keys_in_the_same_attempt_inside_the_retention(bench: Bench) -> None:
    mailer = provider(idempotency=keys_for(seconds=100))
    lease = held(bench, lease_duration=timedelta(hours=1))
    begin(bench.service, lease, provider=mailer)
    begin(bench.service, lease, "by pigeon", provider=PIGEON)
    bench.advance(seconds=100)
    # The retention counts from the first intent and has ended at its very end.
    for name in ("send", "by pigeon"):
        with refused(bench, Uncertain):
            begin(bench.service, lease, name, provider=mailer, resend=True)
    bench.sql("UPDATE $effect SET created_at = created_at + 1 WHERE name = 'send' AND job_id = ?", lease.job_id)
    again = bench.service.begin_effect(lease, name="send", request=REQUEST, provider=mailer, resend=True)
    assert again.is_open
    assert len(bench.table("intent", lease.job_id)) == 2
    told = [event.data for event in bench.service.list_job_events(lease.job_id) if event.name == "dispatched"]
    assert [(data["name"], data.get("sent"), data.get("resent")) for data in told] == [
        ("send", True, None),
        ("by pigeon", True, None),
        ("send", None, True),
    ]


def test_resend_of_something_else_is_not_a_way_around(bench: Bench) -> None:
    lease = held(bench)
    begin(bench.service, lease)
    with refused(bench, Conflict):
        begin(bench.service, lease, request={"other": 1}, resend=True)
    with refused(bench, LeaseLost):
        begin(bench.service, Lease(lease.job_id, "A", uuid4(), 1, lease.expires_at, lease.duration), resend=True)
    bench.service.finish_effect(lease, name="send", outcome=Rejected("no"))
    with refused(bench, EffectRejected):
        begin(bench.service, lease, resend=True)


def test_another_attempt_may_not_resend(bench: Bench) -> None:
    """A job with an open effect is never queued; a row that says otherwise must not open the way either."""
    lease = held(bench)
    begin(bench.service, lease)
    bench.sql("UPDATE $effect SET attempt_id = ? WHERE job_id = ?", uuid4(), lease.job_id)
    with refused(bench, Uncertain):
        begin(bench.service, lease, resend=True)
    bench.sql("UPDATE $effect SET attempt_id = ? WHERE job_id = ?", lease.attempt_id, lease.job_id)
    assert begin(bench.service, lease, resend=True)


# --- how a call ended -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", OUTCOMES)
def test_each_outcome_leaves_its_state(bench: Bench, state: str) -> None:
    lease = held(bench)
    key = begin(bench.service, lease)
    bench.advance(seconds=3)
    job = bench.service.finish_effect(lease, name="send", outcome=OUTCOMES[state])
    assert job.status == "running"
    (effect,) = bench.service.list_effects(lease.job_id)
    assert (effect.state, effect.receipt) == (state, RECEIPT if state == "succeeded" else None)
    assert (effect.settled_at is None) == (state == "unknown")
    assert effect.reason == {"succeeded": None, "failed_before_dispatch": "no route", "rejected": "no such address",
                             "unknown": "no reply"}[state]  # fmt: skip
    event = bench.service.list_job_events(lease.job_id)[-1]
    assert event.name == "effect_settled"
    assert event.data == {"name": "send", "operation_key": key, "state": state, "by": "outcome"}


@pytest.mark.parametrize("odd", [None, True, "ok", {"receipt": 1}, Exception("x"), Accepted(RECEIPT), Absent()])
def test_whatever_is_not_surely_an_outcome_is_unknown(bench: Bench, odd: Any) -> None:
    lease = held(bench)
    begin(bench.service, lease)
    bench.service.finish_effect(lease, name="send", outcome=odd)
    assert [effect.state for effect in bench.service.list_effects(lease.job_id)] == ["unknown"]
    with refused(bench, Uncertain):
        bench.service.release_job(lease, reason="r")


def test_an_unknown_effect_may_still_be_finished_by_its_attempt_and_a_settled_one_not(bench: Bench) -> None:
    lease = held(bench)
    begin(bench.service, lease)
    bench.service.finish_effect(lease, name="send", outcome=Unknown("no reply"))
    bench.service.finish_effect(lease, name="send", outcome=Succeeded(RECEIPT))
    for outcome in OUTCOMES.values():
        with refused(bench, IllegalMove):
            bench.service.finish_effect(lease, name="send", outcome=outcome)
    assert [effect.receipt for effect in bench.service.list_effects(lease.job_id)] == [RECEIPT]


def test_what_nobody_began_cannot_be_finished(bench: Bench) -> None:
    case = CASES["running, mark"](bench)
    for name in ("send", "", OWN_KEY):
        with refused(bench, IllegalMove):
            bench.service.finish_effect(case.lease, name=name, outcome=Succeeded(RECEIPT))


def test_a_receipt_that_cannot_be_stored_is_refused_and_the_intent_still_blocks(bench: Bench) -> None:
    lease = held(bench)
    begin(bench.service, lease)
    for receipt in (float("nan"), {"x": b""}, "a\0", {1: 2}):
        with refused(bench, Invalid):
            bench.service.finish_effect(lease, name="send", outcome=Succeeded(receipt))
    with refused(bench, Uncertain):
        begin(bench.service, lease)
    bench.service.finish_effect(lease, name="send", outcome=Succeeded({"x": 1.5}))
    assert [effect.receipt for effect in bench.service.list_effects(lease.job_id)] == [{"x": 1.5}]


def test_reasons_are_made_storable(bench: Bench) -> None:
    lease = held(bench)
    begin(bench.service, lease)
    bench.service.finish_effect(lease, name="send", outcome=Rejected("a\0b\ud800" + "x" * 20_000))
    (effect,) = bench.service.list_effects(lease.job_id)
    assert effect.reason is not None
    assert effect.reason.startswith("a\ufffdb\ufffdx")
    assert len(effect.reason.encode()) <= 8192


# --- evidence ---------------------------------------------------------------------------------------------------------


def test_a_receipt_is_taken_from_whoever_began_the_call_and_moves_nothing(bench: Bench) -> None:
    case = CASES["expired, effect"](bench)
    successor = bench.service.claim_job("B")
    assert successor is None
    job = bench.service.submit_evidence(str(case.key), Accepted(RECEIPT), attempt_id=case.lease.attempt_id)
    assert job.status == "indeterminate"
    assert [effect.state for effect in bench.service.list_effects(case.job_id)] == ["pending"]
    event = bench.service.list_job_events(case.job_id)[-1]
    assert (event.name, event.data) == (
        "evidence_received",
        {"operation_key": case.key, "kind": "accepted", "attempt_id": str(case.lease.attempt_id)},
    )


def test_evidence_must_match_an_intent(bench: Bench) -> None:
    case = CASES["running, effect"](bench)
    attempt = case.lease.attempt_id
    for key, who in (
        (f"{case.key}x", attempt),
        (str(case.key), uuid4()),
        (OWN_KEY, attempt),
        ("", attempt),
    ):
        with refused(bench, NotFound):
            bench.service.submit_evidence(key, Accepted(RECEIPT), attempt_id=who)
    bench.service.submit_evidence(str(case.key), Accepted(RECEIPT), attempt_id=attempt)


def test_only_what_proves_something_is_evidence(bench: Bench) -> None:
    case = CASES["running, effect"](bench)
    attempt = case.lease.attempt_id
    for nothing in (NoAnswer("busy"), Succeeded(RECEIPT), Unknown("?"), None, "accepted", {"kind": "accepted"}):
        with refused(bench, Invalid, code="NO_EVIDENCE"):
            bench.service.submit_evidence(str(case.key), nothing, attempt_id=attempt)  # type: ignore[arg-type]
    with refused(bench, Invalid):
        bench.service.submit_evidence(str(case.key), Accepted(float("inf")), attempt_id=attempt)
    for evidence in (Accepted(RECEIPT), Declined("no"), Absent(), FailedBeforeDispatch("no route")):
        bench.service.submit_evidence(str(case.key), evidence, attempt_id=attempt)
    kinds = {row["kind"] for row in bench.table("evidence", case.job_id)}
    assert kinds == {"accepted", "declined", "absent", "not_sent"}


def test_the_same_receipt_handed_in_twice_is_one_row_and_one_event(bench: Bench) -> None:
    case = CASES["running, effect"](bench)
    attempt = case.lease.attempt_id
    bench.service.submit_evidence(str(case.key), Accepted(RECEIPT), attempt_id=attempt)
    bench.advance(seconds=5)
    before = bench.dump()
    bench.service.submit_evidence(str(case.key), Accepted(dict(RECEIPT)), attempt_id=attempt)
    assert bench.dump() == before
    bench.service.submit_evidence(str(case.key), Accepted({"id": "r-2"}), attempt_id=attempt)
    assert len(bench.table("evidence", case.job_id)) == 2


# For each settled state: which evidence proves a duplicate.
CONTRADICTIONS: dict[str, set[str]] = {
    "running, effect": set(),
    "running, unknown": set(),
    "running, sent": {"another receipt"},
    "completed, sent": {"another receipt"},
    "dead_letter, sent": {"another receipt"},
    # A completion closed the mark: there was no receipt to compare with.
    "completed, mark": set(),
    "failed, rejected": {"accepted", "another receipt"},
    "failed, unsent": {"accepted", "another receipt"},
    "failed, closed": {"accepted", "another receipt"},
}
EVIDENCE: dict[str, Any] = {
    "accepted": Accepted(RECEIPT),
    "another receipt": Accepted({"id": "r-2"}),
    "declined": Declined("no"),
    "absent": Absent(),
    "unsent": FailedBeforeDispatch("no route"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_evidence_against_what_is_settled_is_kept_and_escalates_in_any_status(bench: Bench, name: str) -> None:
    case = CASES[name](bench)
    snapshot = bench.snapshot()
    status = bench.service.get_job(case.job_id).status
    states = [row["state"] for row in bench.table("effect", case.job_id)]
    for kind, evidence in EVIDENCE.items():
        proves = kind in CONTRADICTIONS[name]
        bench.restore(snapshot)
        bench.service.submit_evidence(str(case.key), evidence, attempt_id=case.lease.attempt_id)
        job = bench.service.get_job(case.job_id)
        (kept,) = bench.table("evidence", case.job_id)
        assert (job.status, [row["state"] for row in bench.table("effect", case.job_id)]) == (status, states)
        assert (bool(kept["contradicts"]), job.escalated_at is not None, kind) == (proves, proves, kind)
        found = bench.service.find_reconciliation_candidates(organization="acme", project="p1")
        # A contradiction makes a candidate of a terminal job; one that is at work is looked at when it has ended.
        assert bool(found) == (proves and status not in {"queued", "claimed", "running"})
        if proves:
            assert str(case.key) in str(job.escalation_reason)
            assert bench.trail(case.job_id)[-2:] == ["evidence_received", "escalated"]


def test_a_contradiction_escalates_a_queued_job_too(bench: Bench) -> None:
    lease = held(bench)
    key = begin(bench.service, lease)
    bench.service.finish_effect(lease, name="send", outcome=FailedBeforeDispatch("no route"))
    bench.service.release_job(lease, reason="r")
    bench.service.submit_evidence(key, Accepted(RECEIPT), attempt_id=lease.attempt_id)
    job = bench.service.get_job(lease.job_id)
    assert (job.status, job.escalated_at) == ("queued", bench.now)


def test_an_acceptance_under_a_reopened_effects_old_key_is_a_contradiction(bench: Bench) -> None:
    case = CASES["failed, rejected"](bench)
    bench.service.retry_job(case.job_id, actor="op:1", reopen=["send"])
    job = bench.service.submit_evidence(str(case.key), Accepted(RECEIPT), attempt_id=case.lease.attempt_id)
    assert (job.status, job.escalated_at) == ("queued", bench.now)


def test_a_second_receipt_that_comes_with_the_finish_is_not_lost(bench: Bench) -> None:
    """Another process has handed in a receipt already, and the call's own outcome has another one."""
    lease = held(bench)
    key = begin(bench.service, lease)
    bench.service.submit_evidence(key, Accepted({"id": "r-0"}), attempt_id=lease.attempt_id)
    assert bench.service.get_job(lease.job_id).escalated_at is None
    job = bench.service.finish_effect(lease, name="send", outcome=Succeeded(RECEIPT))
    assert job.escalated_at == bench.now
    assert [bool(row["contradicts"]) for row in bench.table("evidence", lease.job_id)] == [True]
    assert bench.trail(lease.job_id)[-2:] == ["effect_settled", "escalated"]


def test_the_same_receipt_with_the_finish_is_no_contradiction(bench: Bench) -> None:
    lease = held(bench)
    key = begin(bench.service, lease)
    bench.service.submit_evidence(key, Accepted(RECEIPT), attempt_id=lease.attempt_id)
    job = bench.service.finish_effect(lease, name="send", outcome=Succeeded(RECEIPT))
    assert job.escalated_at is None


def test_receipts_are_compared_as_json(bench: Bench) -> None:
    """To Python true is 1; to a provider and to the canonical bytes it is not. 1 and 1.0 are one number to both."""
    lease = held(bench)
    key = begin(bench.service, lease)
    for receipt in ({"n": 1}, {"n": True}, {"n": 1.0}):
        bench.service.submit_evidence(key, Accepted(receipt), attempt_id=lease.attempt_id)
    assert len(bench.table("evidence", lease.job_id)) == 2
    job = bench.service.finish_effect(lease, name="send", outcome=Succeeded({"n": 1}))
    assert job.escalated_at == bench.now
    assert sorted(bool(row["contradicts"]) for row in bench.table("evidence", lease.job_id)) == [False, True]


@pytest.mark.parametrize(
    "second,proves", [({"n": 1.0, "m": 0}, False), ({"m": 0, "n": 1}, False), ({"n": True, "m": 0}, True)]
)
def test_a_receipt_after_the_finish_is_compared_as_json_too(bench: Bench, second: dict[str, Any], proves: bool) -> None:
    lease = held(bench)
    key = begin(bench.service, lease)
    bench.service.finish_effect(lease, name="send", outcome=Succeeded({"n": 1, "m": 0}))
    job = bench.service.submit_evidence(key, Accepted(second), attempt_id=lease.attempt_id)
    assert (job.escalated_at is not None) == proves


# --- the bare mark ----------------------------------------------------------------------------------------------------


def test_a_mark_is_a_boundary_without_a_name(bench: Bench) -> None:
    create(bench.service, execution=None)
    lease = claim(bench.service).lease
    bench.advance(seconds=2)
    job = bench.service.mark_provider_dispatched(lease, operation_key=OWN_KEY)
    assert (job.status, job.operation_key, job.dispatched_at) == ("running", OWN_KEY, bench.now)
    assert bench.service.list_effects(job.id) == []
    event = bench.service.list_job_events(job.id)[-1]
    assert (event.name, event.data) == ("dispatched", {"name": "", "operation_key": OWN_KEY, "sent": True})
    with refused(bench, Uncertain):
        bench.service.release_job(lease, reason="r")
    done = bench.service.complete_job(lease, result=1)
    assert (done.status, done.operation_key) == ("completed", OWN_KEY)
    assert effect_row(bench, lease, "")["state"] == "succeeded"


@pytest.mark.parametrize("bad", ["", "x" * 201, "a\nb", "a\0b", "\ud800", None, 7])
def test_a_marks_key_is_printable_text(bench: Bench, bad: Any) -> None:
    lease = held(bench)
    with refused(bench, Invalid, code="BAD_ARGUMENT"):
        bench.service.mark_provider_dispatched(lease, operation_key=bad)
    assert bench.service.mark_provider_dispatched(lease, operation_key="x" * 200).status == "running"


def test_a_second_key_on_an_open_mark_is_a_conflict_and_the_same_one_uncertain(bench: Bench) -> None:
    case = CASES["running, mark"](bench)
    with refused(bench, Conflict, code="MARK_OPEN"):
        bench.service.mark_provider_dispatched(case.lease, operation_key="another")
    with refused(bench, Uncertain):
        bench.service.mark_provider_dispatched(case.lease, operation_key=OWN_KEY)


def test_the_key_of_another_job_or_effect_is_a_conflict(bench: Bench) -> None:
    case = CASES["running, mark"](bench)
    other = held(bench, key="k-2")
    with refused(bench, Conflict, code="KEY_IN_USE"):
        bench.service.mark_provider_dispatched(other, operation_key=OWN_KEY)
    named = begin(bench.service, other)
    with refused(bench, Conflict, code="KEY_IN_USE"):
        bench.service.mark_provider_dispatched(other, operation_key=named)
    third = held(bench, key="k-3")
    with refused(bench, Conflict, code="KEY_IN_USE"):
        bench.service.mark_provider_dispatched(third, operation_key=named)
    # Also when the other job is long done.
    bench.service.complete_job(case.lease, result=None)
    with refused(bench, Conflict, code="KEY_IN_USE"):
        bench.service.mark_provider_dispatched(third, operation_key=OWN_KEY)
    assert bench.service.mark_provider_dispatched(third, operation_key="mine").operation_key == "mine"


def test_a_key_that_an_effect_of_ours_would_have_cannot_be_taken_by_a_mark_before(bench: Bench) -> None:
    """Otherwise anybody could make a later effect of that job impossible, or pass off their receipt as its own."""
    victim = held(bench)
    thief = held(bench, key="k-2")
    key = f"{KIND}:{victim.job_id}:send"
    with refused(bench, Conflict):
        bench.service.mark_provider_dispatched(thief, operation_key=key)
    assert begin(bench.service, victim) == key


def test_a_mark_that_was_completed_is_not_set_again(bench: Bench) -> None:
    case = CASES["indeterminate, mark"](bench)
    bench.service.reconcile_dispatched(case.job_id, Accepted(RECEIPT), reason="seen", actor="op:1")
    assert bench.service.get_job(case.job_id).status == "completed"


def test_tenants_have_their_own_keys(bench: Bench) -> None:
    first = CASES["running, mark"](bench)
    create(bench.service, "k-1", tenant="north", execution=None)
    second = claim(bench.service, "B", tenant="north").lease
    assert bench.service.mark_provider_dispatched(second, operation_key=OWN_KEY).operation_key == OWN_KEY
    for lease in (first.lease, second):
        bench.service.submit_evidence(OWN_KEY, Accepted(RECEIPT), attempt_id=lease.attempt_id)
        assert len(bench.table("evidence", lease.job_id)) == 1


CLOSERS: dict[str, tuple[Callable[[Bench, Lease], Any], str, str]] = {
    "completion": (lambda b, lease: b.service.complete_job(lease, result=None), "completed", "succeeded"),
    "a failure for good": (
        lambda b, lease: b.service.fail_job(lease, code="E", message="m", retryable=False), "failed", "closed"
    ),
    "a retryable failure": (
        lambda b, lease: b.service.fail_job(lease, code="E", message="m", retryable=True), "indeterminate", "pending"
    ),
    "a time-out": (lambda b, lease: b.service.mark_timed_out(lease, code="E", message="m"), "timed_out", "pending"),
    "a halt": (lambda b, lease: b.service.mark_halt_unsafe(lease, code="E", message="m"), "halt_unsafe", "pending"),
    "doubt": (
        lambda b, lease: b.service.mark_indeterminate(lease, code="E", message="m"), "indeterminate", "pending"
    ),
    "revocation": (
        lambda b, lease: b.service.revoke_job(lease.job_id, reason="r", actor="op:1"), "cancelled", "pending"
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", CLOSERS)
def test_only_completion_and_a_failure_for_good_close_a_mark(bench: Bench, how: str) -> None:
    call, status, state = CLOSERS[how]
    case = CASES["running, mark"](bench)
    call(bench, case.lease)
    assert bench.service.get_job(case.job_id).status == status
    assert effect_row(bench, case.lease, "")["state"] == state


@pytest.mark.parametrize("statement", [Declined("no"), Absent()])
def test_a_failed_job_with_a_closed_mark_is_retried_after_a_statement_only(bench: Bench, statement: Any) -> None:
    case = CASES["failed, closed"](bench)
    with refused(bench, Uncertain):
        bench.service.retry_job(case.job_id, actor="op:1")
    job = bench.service.reconcile_dispatched(case.job_id, statement, reason="looked it up", actor="op:1")
    assert job.status == "failed"
    assert bench.service.retry_job(case.job_id, actor="op:1").status == "queued"


def test_a_closed_mark_that_was_accepted_after_all_forbids_the_retry(bench: Bench) -> None:
    case = CASES["failed, closed"](bench)
    job = bench.service.reconcile_dispatched(case.job_id, Accepted(RECEIPT), reason="found it", actor="op:1")
    assert (job.status, job.escalated_at) == ("failed", bench.now)
    with refused(bench, Uncertain):
        bench.service.retry_job(case.job_id, actor="op:1")


def test_a_mark_that_surely_did_not_arrive_is_set_again_under_the_same_key(bench: Bench) -> None:
    case = CASES["failed, closed"](bench)
    bench.service.reconcile_dispatched(case.job_id, Absent(), reason="looked it up", actor="op:1")
    bench.service.retry_job(case.job_id, actor="op:1")
    again = claim(bench.service, "B", start=True).lease
    assert bench.service.mark_provider_dispatched(again, operation_key=OWN_KEY).operation_key == OWN_KEY
    assert bench.service.complete_job(again, result=None).status == "completed"


def test_two_jobs_that_take_the_same_key_at_the_same_moment_are_told_apart(postgres_bench: Bench) -> None:
    """The second one looked for an owner before the first one's commit."""
    bench = postgres_bench
    first, second = held(bench), held(bench, key="k-2")
    caught: list[Exception] = []

    def mark() -> None:
        try:
            bench.service.mark_provider_dispatched(second, operation_key=OWN_KEY)
        except Exception as error:  # noqa: BLE001 - looked at below
            caught.append(error)

    with producer(bench) as caller:
        caller.begin()
        caller.run(verbs.mark_provider_dispatched(Scope(), first, operation_key=OWN_KEY))
        thread = threading.Thread(target=mark)
        thread.start()
        wait_for_lock(bench)
        caller.commit()
        thread.join(30)
    assert [type(error) for error in caught] == [Conflict]
    assert bench.service.get_job(second.job_id).operation_key is None
    assert bench.service.mark_provider_dispatched(second, operation_key="another").operation_key == "another"
