"""Evidence to verdict by rule: the order of a sweep's questions, and what settles by whose word."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import IllegalMove, Invalid
from tenure.rules import reconcile
from tenure.rules.authority import Authority
from tenure.rules.dispatch import stored_evidence
from tenure.rules.effect import Effect, EffectState, SettledBy, StoredEvidence
from tenure.rules.job import Job, Options, open_boundary
from tenure.rules.outcome import Absent, Accepted, Declined, FailedBeforeDispatch, NoAnswer, Terms
from tenure.rules.reconcile import Ask, Escalate, Leave, Recover, Settle
from tenure.rules.status import LIVE, TERMINAL, Status
from tests.rules.records import ATTEMPT, LEASE, NOW, TERMS, a_job, a_mark, an_effect, cancelling

LATER = NOW + timedelta(minutes=5)
KEY = an_effect().operation_key


def kept(found: Any, *, at: datetime = LATER, attempt: Any = ATTEMPT, key: str = KEY) -> StoredEvidence:
    return stored_evidence(uuid4(), key, attempt, found, at)


def expired(job: Job) -> Job:
    return replace(job, lease=replace(LEASE, expires_at=NOW))


def escalated(job: Job) -> Job:
    return replace(job, escalated_at=NOW, escalation_reason="r")


ACCEPTED = [kept(Accepted(1))]
QUESTIONS: list[tuple[str, Job, list[StoredEvidence], type]] = [
    ("queued", a_job("queued"), [], Leave),
    ("a live lease", a_job("running", an_effect()), ACCEPTED, Leave),
    ("an expired lease without a boundary", expired(a_job("running", an_effect("succeeded"))), [], Leave),
    ("an expired lease with one", expired(a_job("running", an_effect())), [], Recover),
    ("an expired lease with evidence", expired(a_job("running", an_effect())), ACCEPTED, Recover),
    ("an expired claim with a mark", expired(a_job("claimed", a_mark())), [], Recover),
    ("evidence", a_job("indeterminate", an_effect()), ACCEPTED, Settle),
    ("evidence, escalated", escalated(a_job("indeterminate", an_effect())), ACCEPTED, Settle),
    ("evidence, timed out", a_job("timed_out", an_effect()), ACCEPTED, Settle),
    ("evidence, cancelled", a_job("cancelled", an_effect()), ACCEPTED, Settle),
    ("evidence, halted", a_job("halt_unsafe", an_effect()), ACCEPTED, Settle),
    ("evidence of another operation", a_job("indeterminate", an_effect()), [kept(Accepted(1), key="x")], Ask),
    ("escalated", escalated(a_job("indeterminate", an_effect())), [], Leave),
    ("escalated and timed out", escalated(a_job("timed_out")), [], Leave),
    ("timed out", a_job("timed_out"), [], Escalate),
    ("timed out with a boundary", a_job("timed_out", an_effect()), [], Escalate),
    ("no operation key", a_job("indeterminate"), [], Escalate),
    ("nothing open", a_job("indeterminate", an_effect("succeeded")), [], Escalate),
    ("a boundary", a_job("indeterminate", an_effect()), [], Ask),
    ("a mark", a_job("indeterminate", a_mark()), [], Ask),
    ("cancelled with a boundary", a_job("cancelled", an_effect("unknown")), [], Ask),
    ("cancelled without", a_job("cancelled", an_effect("succeeded")), [], Leave),
    ("completed", a_job("completed", an_effect("succeeded")), [], Leave),
    ("failed with a closed mark", a_job("failed", a_mark("closed")), [], Leave),
    ("frozen", replace(a_job("indeterminate", an_effect()), authority=Authority(tenant_frozen=True)), ACCEPTED, Leave),
    ("superseded", replace(a_job("indeterminate", an_effect()), epoch=7), [], Ask),
]


@pytest.mark.parametrize("name,job,stored,step", QUESTIONS, ids=[one[0] for one in QUESTIONS])
def test_the_order_of_questions(name: str, job: Job, stored: list[StoredEvidence], step: type) -> None:
    assert isinstance(reconcile.assess(job, stored, LATER if job.status not in LIVE else NOW), step), name


# Evidence that is stored or answered, and whether it settles without a person.
UNSURE = an_effect(deadline_at=NOW + timedelta(seconds=30))
SETTLES: list[tuple[str, Any, Effect, datetime, Any, bool]] = [
    ("accepted", Accepted(1), UNSURE, NOW, ATTEMPT, True),
    ("accepted by an earlier attempt", Accepted(1), UNSURE, NOW, uuid4(), True),
    ("declined", Declined("no"), UNSURE, NOW, ATTEMPT, True),
    ("declined by an earlier attempt", Declined("no"), UNSURE, NOW, uuid4(), False),
    ("not sent", FailedBeforeDispatch("x"), UNSURE, NOW, ATTEMPT, True),
    ("not sent by an earlier attempt", FailedBeforeDispatch("x"), UNSURE, NOW, uuid4(), False),
    ("absent, too early", Absent(), UNSURE, NOW + timedelta(seconds=29), ATTEMPT, False),
    ("absent, at the deadline", Absent(), UNSURE, NOW + timedelta(seconds=30), ATTEMPT, True),
    (
        "absent, not settled yet", Absent(), replace(UNSURE, terms=replace(TERMS, settles_within=timedelta(seconds=9))),
        NOW + timedelta(seconds=38), ATTEMPT, False,
    ),
    (
        "absent, settled", Absent(), replace(UNSURE, terms=replace(TERMS, settles_within=timedelta(seconds=9))),
        NOW + timedelta(seconds=39), ATTEMPT, True,
    ),
    ("absent, no keys", Absent(), replace(UNSURE, terms=replace(TERMS, honours_key=False)), LATER, ATTEMPT, False),
    (
        "absent, incomplete", Absent(), replace(UNSURE, terms=replace(TERMS, lookup_complete=False)), LATER, ATTEMPT,
        False,
    ),
    (
        "absent, no memory", Absent(), replace(UNSURE, terms=replace(TERMS, retention=None)), LATER, ATTEMPT, False
    ),
    (
        "absent, forgotten", Absent(), replace(UNSURE, terms=replace(TERMS, retention=timedelta(minutes=5))), LATER,
        ATTEMPT, False,
    ),
    ("absent, nothing declared", Absent(), replace(UNSURE, terms=Terms("mailer")), LATER, ATTEMPT, False),
    ("absent, a mark", Absent(), a_mark(), LATER, ATTEMPT, False),
]  # fmt: skip


@pytest.mark.parametrize("name,found,effect,at,attempt,settles", SETTLES, ids=[one[0] for one in SETTLES])
def test_what_settles_without_a_person(
    name: str, found: Any, effect: Effect, at: datetime, attempt: Any, settles: bool
) -> None:
    job = a_job("indeterminate", effect)
    step = reconcile.assess(job, [kept(found, at=at, attempt=attempt, key=effect.operation_key)], at)
    assert isinstance(step, Settle) == settles, name
    # A provider's own answer speaks of the operation as it stands.
    if attempt == ATTEMPT and not isinstance(found, FailedBeforeDispatch):
        answered = reconcile.judge(job, effect, found, at)
        assert (answered.job.escalated_at is None) == settles


def test_an_absence_speaks_of_when_it_was_asked_for() -> None:
    job = a_job("indeterminate", UNSURE)
    late = reconcile.judge(job, UNSURE, Absent(), LATER, asked_at=NOW + timedelta(seconds=29))
    assert late.job.escalated_at == LATER
    assert reconcile.judge(job, UNSURE, Absent(), LATER, asked_at=NOW + timedelta(seconds=30)).job.status == "queued"


POLICIES: list[tuple[dict[str, Any], bool, Any, str]] = [
    ({}, False, Accepted(1), "queued"),
    ({}, True, Accepted(1), "completed"),
    ({"on_reconciled": "complete"}, False, Accepted(1), "completed"),
    ({"on_reconciled": "resume"}, True, Accepted(1), "queued"),
    ({}, False, Declined("no"), "failed"),
    ({"on_declined": "dead_letter"}, True, Declined("no"), "dead_letter"),
    ({"on_reconciled": "resume", "on_declined": "dead_letter"}, False, Declined("no"), "dead_letter"),
    ({}, False, Absent(), "queued"),
    ({}, True, Absent(), "failed"),
    ({"on_reconciled": "complete"}, False, Absent(), "failed"),
    ({"on_reconciled": "resume"}, True, Absent(), "queued"),
]


@pytest.mark.parametrize("status", ["indeterminate", "timed_out"])
@pytest.mark.parametrize("policy,marked,found,ending", POLICIES)
def test_a_statement_moves_the_job_by_its_policy(
    policy: dict[str, Any], marked: bool, found: Any, ending: str, status: str
) -> None:
    effect = a_mark() if marked else an_effect()
    job = escalated(a_job(status, effect, attempt_count=3, **policy))
    change = reconcile.state_fact(job, found, uuid4(), LATER, key=None, actor="op:1", reason="r")
    assert change.job.status == ending
    assert (change.job.escalated_at, open_boundary(change.job)) == (None, False)
    assert [event.name for event in change.events] == ["effect_settled", "reconciled"]
    assert {event.actor for event in change.events} == {"op:1"}
    if ending == "queued":
        assert (change.job.max_attempts, change.job.error_code, change.job.run_at) == (4, None, LATER)
    asked_for = reconcile.state_fact(cancelling(job), found, uuid4(), LATER, key=None, actor="op:1", reason="r")
    assert asked_for.job.status == "cancelled"


@pytest.mark.parametrize("found", [Accepted(1), Declined("no"), Absent()])
def test_of_a_timed_out_job_a_look_up_settles_the_effect_alone(found: Any) -> None:
    job = a_job("timed_out", an_effect())
    record = kept(found)
    change = reconcile.settle(job, job.effects[0], record, SettledBy.LOOKUP, LATER)
    assert (change.job.status, change.job.effects[0].is_open) == ("timed_out", False)
    assert [event.name for event in change.events] == ["effect_settled"]


@pytest.mark.parametrize("status", ["cancelled", "halt_unsafe", "failed", "dead_letter", "completed"])
def test_a_terminal_job_of_another_kind_is_never_moved_by_evidence(status: str) -> None:
    job = a_job(status, an_effect("unknown"))
    for found in (Accepted(1), Declined("no"), Absent()):
        change = reconcile.state_fact(job, found, uuid4(), LATER, key=None, actor="op:1", reason="r")
        assert change.job.status == status
        assert [event.name for event in change.events] == ["effect_settled"]


def test_the_job_moves_with_its_last_boundary() -> None:
    job = a_job("indeterminate", an_effect(), an_effect(name="second"), a_mark())
    with pytest.raises(Invalid) as several:
        reconcile.state_fact(job, Accepted(1), uuid4(), LATER, key=None, actor="op:1", reason="r")
    assert several.value.code == "SEVERAL_OPEN"
    for effect in job.effects[:2]:
        job = reconcile.state_fact(
            job, Accepted(1), uuid4(), LATER, key=effect.operation_key, actor="op:1", reason="r"
        ).job
        assert job.status == "indeterminate"
    last = reconcile.state_fact(job, Accepted(1), uuid4(), LATER, key=None, actor="op:1", reason="r").job
    assert last.status == "completed"


def test_under_complete_one_refusal_among_several_decides() -> None:
    job = a_job("indeterminate", an_effect("rejected"), an_effect(name="second"), on_reconciled="complete")
    after = reconcile.state_fact(job, Accepted(1), uuid4(), LATER, key=None, actor="op:1", reason="r").job
    assert (after.status, after.error_code) == ("failed", "PROVIDER_DECLINED")


@pytest.mark.parametrize("status", [status for status in Status if status not in TERMINAL])
def test_nothing_is_stated_of_a_job_at_work(status: Status) -> None:
    with pytest.raises(IllegalMove):
        reconcile.state_fact(a_job(status), Accepted(1), uuid4(), NOW, key=None, actor="op:1", reason="r")


@given(
    asked=st.lists(st.floats(0.001, 40), min_size=1, max_size=60),
    escalate_after=st.timedeltas(timedelta(0), timedelta(minutes=20)),
)
def test_a_patient_sweep_asks_until_its_time_is_over(asked: list[float], escalate_after: timedelta) -> None:
    job = a_job("indeterminate", an_effect(), options=Options(escalate_after=escalate_after))
    now = NOW
    times: list[datetime] = []
    for step in asked:
        now += timedelta(seconds=step)
        question = reconcile.assess(job, [], now, patient=True)
        if isinstance(question, Leave):
            if job.escalated_at is not None:
                break
            pause = min(2 ** (len(times) - 1), 60)
            assert now < times[-1] + timedelta(seconds=pause)
            continue
        assert isinstance(question, Ask)
        times.append(now)
        change = reconcile.judge(job, question.effect, NoAnswer(), now, patient=True)
        job = change.job
        assert (job.escalated_at is not None) == (now >= NOW + escalate_after)
        assert bool(change.events) == (job.escalated_at is not None)
        assert job.effects[0].lookups == len(times)
    assert job.effects[0].state is EffectState.PENDING


def test_the_same_state_and_answer_give_the_same_result() -> None:
    job = a_job("indeterminate", an_effect(), an_effect(name="second"))
    first = reconcile.judge(job, job.effects[1], Accepted(1), LATER)
    assert reconcile.judge(job, job.effects[1], Accepted(1), LATER) == first
    assert reconcile.assess(job, ACCEPTED, LATER) == reconcile.assess(job, ACCEPTED, LATER)


def test_an_answer_about_an_earlier_intent_is_no_answer() -> None:
    asked = an_effect()
    assert reconcile.answered(a_job("indeterminate", asked), asked) == asked
    for changed in (
        a_job("indeterminate", an_effect("succeeded")),
        a_job("indeterminate", an_effect(attempt_id=uuid4())),
        a_job("indeterminate", an_effect(operation_key="x")),
        escalated(a_job("indeterminate", asked)),
        replace(a_job("indeterminate", asked), authority=Authority(database_frozen=True)),
    ):
        assert reconcile.answered(changed, asked) is None


def test_resuming_a_sweep_forgets_what_was_asked() -> None:
    job = escalated(a_job("indeterminate", an_effect(lookups=7, asked_at=NOW), an_effect("succeeded", name="done")))
    change = reconcile.resume_sweep(job, LATER, actor="op:1")
    assert (change.job.escalated_at, [(e.lookups, e.asked_at) for e in change.effects]) == (None, [(0, None)])
    with pytest.raises(IllegalMove):
        reconcile.resume_sweep(change.job, LATER, actor="op:1")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("", "no answer; "),
        ("the look-up raised TimeoutError", "no answer (the look-up raised TimeoutError); "),
        (7, "no answer; "),
        ("x" * 10_000, "no answer (xxx"),
    ],
)
def test_an_escalation_says_why_there_was_no_answer(said: Any, shown: str) -> None:
    job = a_job("indeterminate", an_effect())
    change = reconcile.judge(job, job.effects[0], NoAnswer(said), LATER)
    reason = change.job.escalation_reason or ""
    assert reason.startswith(f"{KEY}: {shown}")
    assert len(reason) < 400
    assert change.events[0].data == {"reason": reason}
    # An absence that does not count is another matter.
    absent = reconcile.judge(job, job.effects[0], Absent(), NOW)
    assert "knows nothing of it" in (absent.job.escalation_reason or "")


@pytest.mark.parametrize("known", [an_effect("failed_before_dispatch"), an_effect("rejected"), a_mark("closed")])
def test_a_statement_that_contradicts_names_who_said_it_and_why(known: Effect) -> None:
    job = a_job("failed", known)

    def state(found: Any) -> Any:
        return reconcile.state_fact(
            job, found, uuid4(), LATER, key=known.operation_key, actor="op:1", reason="it is in their books"
        )

    change = state(Accepted({"id": "r-9"}))
    told = [(event.name.value, event.actor) for event in change.events]
    assert told == [("evidence_received", "op:1"), ("escalated", None)]
    assert change.events[0].data == {
        "operation_key": known.operation_key,
        "kind": "accepted",
        "attempt_id": None,
        "by": "statement",
        "reason": "it is in their books",
    }
    assert (change.job.status, [one.contradicts for one in change.evidence]) == ("failed", [True])
    if known.state is EffectState.CLOSED:
        # The control: a statement that the failure leaves room for settles the mark, by the same name.
        (settled,) = state(Absent()).events
        assert (settled.name.value, settled.actor, settled.data["reason"]) == (
            "effect_settled",
            "op:1",
            "it is in their books",
        )
