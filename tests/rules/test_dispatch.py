"""The dispatch boundary by rule: every state of an effect against begin, mark, finish and late evidence."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from tenure.errors import (
    ApprovalRefused,
    CancelRequested,
    Conflict,
    EffectRejected,
    IdentityRefused,
    IllegalMove,
    Invalid,
    LeaseLost,
    TenureError,
    Uncertain,
)
from tenure.rules import dispatch
from tenure.rules.dispatch import Begun, contradicts, evidence_of, stored_evidence
from tenure.rules.effect import (
    EFFECT_MOVES,
    MARK,
    OPEN,
    Effect,
    EffectState,
    SettledBy,
    check_name,
    is_made_here,
    operation_key,
)
from tenure.rules.job import Change, find_effect
from tenure.rules.outcome import (
    Absent,
    Accepted,
    Declined,
    FailedBeforeDispatch,
    NoAnswer,
    Rejected,
    Succeeded,
    Terms,
    Unknown,
)
from tests.rules.records import ATTEMPT, JOB_ID, LEASE, NOW, TERMS, a_job, a_mark, an_effect, cancelling

NINE = timedelta(seconds=9)


def begin(job: Any, *, name: str = "send", digest: str = "v1:one", now: Any = NOW, **more: Any) -> Change:
    return dispatch.begin(job, LEASE, name, digest, more.pop("terms", TERMS), more.pop("timeout", NINE), now, **more)


def begun(change: Change) -> Begun:
    assert isinstance(change.answer, Begun)
    return change.answer


# --- begin ------------------------------------------------------------------------------------------------------------

# What begin does with a record in each state; None is no record.
BEGINS: dict[EffectState | None, type[TenureError] | str] = {
    None: "sends",
    EffectState.PENDING: Uncertain,
    EffectState.UNKNOWN: Uncertain,
    EffectState.SUCCEEDED: "gives the receipt",
    EffectState.FAILED_BEFORE_DISPATCH: "sends",
    EffectState.REJECTED: EffectRejected,
}


@pytest.mark.parametrize("status", ["claimed", "running"])
@pytest.mark.parametrize("state", BEGINS)
def test_begin_in_every_state(state: EffectState | None, status: str) -> None:
    job = a_job(status) if state is None else a_job(status, an_effect(state))
    expected = BEGINS[state]
    if isinstance(expected, type):
        with pytest.raises(expected):
            begin(job)
        return
    change = begin(job)
    answer = begun(change)
    assert answer.send == (expected == "sends")
    assert answer.timeout == NINE
    assert change.job.status == "running"
    if expected == "sends":
        (intent,) = change.intents
        effect = find_effect(change.job, "send")
        assert effect is not None
        assert (effect.state, effect.attempt_id, effect.begun_at, effect.deadline_at) == (
            EffectState.PENDING, ATTEMPT, NOW, NOW + NINE
        )  # fmt: skip
        assert (intent.operation_key, intent.attempt_id) == (effect.operation_key, ATTEMPT)
        assert [event.name for event in change.events] == ["dispatched"]
    else:
        assert (change.intents, change.effects) == ((), ())
        # Only becoming running is worth an event.
        assert len(change.events) == (status == "claimed")


@pytest.mark.parametrize("state", [state for state in BEGINS if state is not None])
def test_another_request_under_a_known_name_is_a_conflict_in_every_state(state: EffectState) -> None:
    with pytest.raises(Conflict):
        begin(a_job("running", an_effect(state)), digest="v1:two")
    # After a reopening the digest is empty: any request may follow.
    reopened = an_effect("failed_before_dispatch", request_digest="", ordinal=1, operation_key="x#1")
    effect = find_effect(begin(a_job("running", reopened), digest="v1:two").job, "send")
    assert effect is not None
    assert (effect.operation_key, effect.request_digest, effect.created_at) == ("x#1", "v1:two", NOW)


def test_the_first_intent_of_a_key_is_remembered() -> None:
    old = an_effect("failed_before_dispatch", created_at=NOW - timedelta(hours=5))
    effect = find_effect(begin(a_job("running", old)).job, "send")
    assert effect is not None
    assert (effect.created_at, effect.begun_at) == (NOW - timedelta(hours=5), NOW)


@pytest.mark.parametrize(
    "left,timeout,allowed",
    [(60, 9, 9), (5, 9, 5), (9, 9, 9)],
)
def test_the_call_ends_with_its_own_limit_or_the_lease(left: int, timeout: int, allowed: int) -> None:
    lease = replace(LEASE, expires_at=NOW + timedelta(seconds=left))
    job = a_job("running", lease=lease)
    assert begun(begin(job, timeout=timedelta(seconds=timeout))).timeout == timedelta(seconds=allowed)


def test_refusals_come_in_their_order() -> None:
    bare = a_job("running", payload={"quote": 17})
    with pytest.raises(LeaseLost):
        begin(a_job("indeterminate"), name="")
    with pytest.raises(CancelRequested):
        begin(cancelling(bare), name="")
    with pytest.raises(Invalid):
        begin(bare, name="a:b")
    with pytest.raises(IdentityRefused):
        begin(bare)
    governed = a_job("running", payload={**a_job().payload, "governance": {}})
    with pytest.raises(ApprovalRefused):
        begin(governed)
    with pytest.raises(Invalid):
        begin(a_job("running"), timeout=timedelta(0))


@pytest.mark.parametrize(
    "terms,age,attempt,ok",
    [
        (TERMS, timedelta(hours=23), ATTEMPT, True),
        (TERMS, timedelta(hours=24), ATTEMPT, False),
        (TERMS, timedelta(hours=1), uuid4(), False),
        (replace(TERMS, honours_key=False), timedelta(0), ATTEMPT, False),
        (replace(TERMS, retention=None), timedelta(0), ATTEMPT, False),
        (Terms("mailer"), timedelta(0), ATTEMPT, False),
    ],
)
@pytest.mark.parametrize("state", ["pending", "unknown"])
def test_a_resend_is_no_second_intent_and_only_where_it_is_safe(
    terms: Terms, age: timedelta, attempt: Any, ok: bool, state: str
) -> None:
    known = an_effect(state, terms=terms, created_at=NOW - age, attempt_id=attempt)
    job = a_job("running", known)
    if not ok:
        with pytest.raises(Uncertain):
            begin(job, resend=True)
        return
    change = begin(job, resend=True)
    effect = find_effect(change.job, "send")
    assert effect is not None
    assert (begun(change).send, change.intents) == (True, ())
    (told,) = change.events
    assert (told.name, told.status) == ("dispatched", "running")
    assert dict(told.data) == {"name": "send", "operation_key": known.operation_key, "resent": True}
    # However the first call ended, nobody knows any more.
    assert (effect.state, effect.operation_key) == (EffectState.UNKNOWN, known.operation_key)
    assert effect.deadline_at >= known.deadline_at


@pytest.mark.parametrize(
    "by,age,ok",
    [
        (SettledBy.OUTCOME, timedelta(hours=30), True),
        (SettledBy.STATEMENT, timedelta(hours=30), True),
        (SettledBy.LOOKUP, timedelta(hours=23), True),
        (SettledBy.LOOKUP, timedelta(hours=24), False),
        (SettledBy.EVIDENCE, timedelta(hours=24), False),
    ],
)
def test_after_an_absence_the_providers_memory_is_tested_again(by: SettledBy, age: timedelta, ok: bool) -> None:
    job = a_job("running", an_effect("failed_before_dispatch", settled_by=by, created_at=NOW - age))
    if ok:
        assert begun(begin(job)).send
    else:
        with pytest.raises(Uncertain):
            begin(job)


# --- the mark ---------------------------------------------------------------------------------------------------------

MARKS: dict[EffectState | None, type[TenureError] | None] = {
    None: None,
    EffectState.PENDING: Uncertain,
    EffectState.UNKNOWN: Uncertain,
    EffectState.CLOSED: Uncertain,
    EffectState.SUCCEEDED: IllegalMove,
    EffectState.FAILED_BEFORE_DISPATCH: None,
}


@pytest.mark.parametrize("state", MARKS)
def test_a_mark_in_every_state(state: EffectState | None) -> None:
    job = a_job("running") if state is None else a_job("running", a_mark(state))
    error = MARKS[state]
    if error is not None:
        with pytest.raises(error):
            dispatch.mark(job, LEASE, "own:17", NOW)
        return
    change = dispatch.mark(job, LEASE, "own:17", NOW)
    (effect,) = change.effects
    assert (effect.name, effect.state, effect.operation_key, effect.deadline_at) == (
        MARK, EffectState.PENDING, "own:17", LEASE.expires_at
    )  # fmt: skip
    assert [intent.operation_key for intent in change.intents] == ["own:17"]


def test_the_key_of_a_mark() -> None:
    with pytest.raises(Conflict):
        dispatch.mark(a_job("running", a_mark()), LEASE, "another", NOW)
    with pytest.raises(Conflict):
        dispatch.mark(a_job("running", an_effect()), LEASE, an_effect().operation_key, NOW)
    with pytest.raises(Conflict):
        dispatch.mark(a_job("running"), LEASE, f"other:{uuid4()}:send", NOW)
    # An envelope is validated where there is one, and needed nowhere else.
    assert dispatch.mark(a_job("running", payload={}), LEASE, "k", NOW).job.status == "running"
    with pytest.raises(IdentityRefused):
        dispatch.mark(a_job("running", payload={"execution": {}}), LEASE, "k", NOW)


@pytest.mark.parametrize(
    "key,made",
    [
        (operation_key("send_quote", JOB_ID, "send"), True),
        (operation_key("send_quote", JOB_ID, "send", 3), True),
        (operation_key("a b", JOB_ID, "x"), True),
        ("send_quote:17", False),
        ("send_quote:17:send", False),
        (str(JOB_ID), False),
        (f"send_quote:{JOB_ID}", False),
        (f"send_quote:{JOB_ID}:", False),
        (f":{JOB_ID}:send", False),
        ("send_quote:0190ABCD-0000-7000-8000-000000000001:send", False),
        ("send_quote:0190abcd-0000-7000-8000-000000000001:send", True),
    ],
)
def test_keys_that_are_made_here_are_known_by_their_form(key: str, made: bool) -> None:
    assert is_made_here(key) == made


@pytest.mark.parametrize("bad", ["", "a:b", "a#b", "x" * 201, "a\n", "\0", None, 7, b"x"])
def test_names_of_effects(bad: Any) -> None:
    with pytest.raises(Invalid):
        check_name(bad)
    assert check_name("x" * 200) == "x" * 200


# --- finish -----------------------------------------------------------------------------------------------------------

ENDINGS: list[tuple[Any, EffectState]] = [
    (Succeeded({"id": 1}), EffectState.SUCCEEDED),
    (FailedBeforeDispatch("no route"), EffectState.FAILED_BEFORE_DISPATCH),
    (Rejected("no", category="authentication"), EffectState.REJECTED),
    (Unknown("?"), EffectState.UNKNOWN),
    (None, EffectState.UNKNOWN),
    ("ok", EffectState.UNKNOWN),
    (ValueError("x"), EffectState.UNKNOWN),
    (Accepted(1), EffectState.UNKNOWN),
]


@pytest.mark.parametrize("outcome,state", ENDINGS)
def test_a_call_ends_in_one_of_four_ways(outcome: Any, state: EffectState) -> None:
    change = dispatch.finish(a_job("running", an_effect()), LEASE, "send", outcome, [], NOW)
    effect = find_effect(change.job, "send")
    assert effect is not None
    assert effect.state is state
    assert state in EFFECT_MOVES[EffectState.PENDING]
    assert (effect.settled_at is None) == (state in OPEN)
    assert change.job.status == "running"
    assert [event.name for event in change.events] == ["effect_settled"]


@pytest.mark.parametrize("outcome,state", ENDINGS)
def test_a_call_after_doubt_settles_by_success_alone(outcome: Any, state: EffectState) -> None:
    """Whatever the second call says of itself, the first one may have arrived."""
    change = dispatch.finish(a_job("running", an_effect("unknown")), LEASE, "send", outcome, [], NOW)
    effect = find_effect(change.job, "send")
    assert effect is not None
    assert effect.state is (EffectState.SUCCEEDED if state is EffectState.SUCCEEDED else EffectState.UNKNOWN)


@pytest.mark.parametrize("state", [state for state in EffectState if state not in OPEN])
def test_only_an_open_effect_of_this_attempt_is_finished(state: EffectState) -> None:
    settled = a_mark(state) if state is EffectState.CLOSED else an_effect(state)
    with pytest.raises(IllegalMove):
        dispatch.finish(a_job("running", settled), LEASE, settled.name or "send", Succeeded(), [], NOW)
    with pytest.raises(IllegalMove):
        dispatch.finish(a_job("running", an_effect(attempt_id=uuid4())), LEASE, "send", Succeeded(), [], NOW)
    with pytest.raises(IllegalMove):
        dispatch.finish(a_job("running", a_mark()), LEASE, MARK, Succeeded(), [], NOW)


def test_a_cancellation_does_not_stop_the_truth() -> None:
    job = cancelling(a_job("running", an_effect()))
    assert dispatch.finish(job, LEASE, "send", Succeeded(1), [], NOW).job.effects[0].receipt == 1


# --- evidence ---------------------------------------------------------------------------------------------------------


def stored(found: Any, key: str | None = None) -> Any:
    return stored_evidence(uuid4(), key or an_effect().operation_key, ATTEMPT, found, NOW)


@pytest.mark.parametrize(
    "effect,receipt,proof",
    [
        (None, {"id": "r-1"}, True),
        (an_effect("pending"), {"id": "r-1"}, False),
        (an_effect("unknown"), {"id": "r-1"}, False),
        (an_effect("succeeded"), {"id": "r-1"}, False),
        (an_effect("succeeded"), {"id": "r-2"}, True),
        (an_effect("rejected"), {"id": "r-1"}, True),
        (an_effect("failed_before_dispatch"), {"id": "r-1"}, True),
        (a_mark("closed"), {"id": "r-1"}, True),
        (a_mark("succeeded", settled_by=SettledBy.COMPLETION), {"id": "r-1"}, False),
        (a_mark("succeeded", settled_by=SettledBy.STATEMENT), {"id": "r-2"}, True),
    ],
)
def test_what_proves_a_duplicate(effect: Effect | None, receipt: Any, proof: bool) -> None:
    assert contradicts(effect, stored(Accepted(receipt))) == proof
    for harmless in (Declined("no"), Absent(), FailedBeforeDispatch("x")):
        assert not contradicts(effect, stored(harmless))


def test_evidence_waits_and_clears_an_escalation() -> None:
    job = replace(a_job("indeterminate", an_effect()), escalated_at=NOW, escalation_reason="r")
    change = dispatch.receive(job, an_effect().operation_key, ATTEMPT, stored(Accepted(1)), NOW)
    assert (change.job.escalated_at, change.job.escalation_reason, change.job.status) == (None, None, "indeterminate")
    assert [record.contradicts for record in change.evidence] == [False]
    proof = dispatch.receive(
        a_job("completed", an_effect("succeeded")), an_effect().operation_key, ATTEMPT, stored(Accepted(2)), NOW
    )
    assert (proof.job.escalated_at, [record.contradicts for record in proof.evidence]) == (NOW, [True])
    assert [event.name for event in proof.events] == ["evidence_received", "escalated"]


def test_what_an_outcome_proves_when_its_lease_is_gone() -> None:
    effect = an_effect()
    assert evidence_of(Succeeded(1), effect) == Accepted(1)
    assert evidence_of(Rejected("no"), effect) == Declined("no")
    assert evidence_of(FailedBeforeDispatch("x"), effect) == FailedBeforeDispatch("x")
    assert evidence_of(Unknown("x"), effect) is None
    unsure = an_effect("unknown")
    assert evidence_of(Succeeded(1), unsure) == Accepted(1)
    assert evidence_of(Rejected("no"), unsure) is None


@pytest.mark.parametrize("nothing", [NoAnswer("busy"), Succeeded(1), None, "accepted", 7])
def test_what_proves_nothing_is_not_stored(nothing: Any) -> None:
    with pytest.raises(Invalid):
        stored(nothing)
