"""Settling what is uncertain: candidates, sweeps in the contract's order, and what people state."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tenure import verbs
from tenure.errors import IllegalMove, Invalid, Uncertain
from tenure.flows.drive import run_flow, run_flow_async
from tenure.flows.sweep import sweep_job
from tenure.procedures.reconcile import find_candidate_scopes, find_candidates, sweep_step
from tenure.rules.effect import Effect
from tenure.rules.job import Job, Options
from tenure.rules.outcome import Absent, Accepted, Declined, FailedBeforeDispatch, NoAnswer, Succeeded, Unknown
from tenure.rules.reconcile import Verdict
from tenure.service import AsyncDurableJobService
from tenure.testing.provider import FakeProvider, Step
from tenure.verbs.scope import Scope
from tests.contract.bench import START, Bench
from tests.contract.build import (
    CASES,
    EXECUTION,
    KIND,
    OWN_KEY,
    PAYLOAD,
    PIGEON,
    RECEIPT,
    REQUEST,
    Case,
    begin,
    claim,
    create,
    keys_for,
    provider,
)
from tests.contract.refusal import refused

HERE: dict[str, Any] = {"organization": "acme", "project": "p1"}


class Provider:
    """Answers look-ups and remembers what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    def __call__(self, key: str, job: Job) -> Any:
        assert job.status in {"indeterminate", "cancelled", "halt_unsafe", "failed", "dead_letter", "completed"}
        self.asked.append(key)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def nobody(key: str, job: Job) -> Any:
    raise AssertionError(f"nobody asks about {key}")


def sweep(bench: Bench, lookup: Any, **scope: Any) -> list[Verdict]:
    return bench.service.sweep_reconciliation_candidates(lookup=lookup, **{**HERE, **scope})


def only(verdicts: list[Verdict]) -> Verdict:
    (verdict,) = verdicts
    return verdict


def statuses(bench: Bench, *cases: Case) -> list[str]:
    return [bench.service.get_job(case.job_id).status for case in cases]


def unsure(bench: Bench, *, name: str = "send", by: Any = None, key: str = "k-1", **fields: Any) -> Case:
    """Leave an indeterminate job with one open effect."""
    create(bench.service, key, **fields)
    lease = claim(bench.service, start=True).lease
    given = {} if by is None else {"provider": by}
    operation = begin(bench.service, lease, name, **given)
    bench.service.fail_job(lease, code="BROKEN", message="it broke", retryable=True)
    return Case(lease.job_id, lease, operation)


# --- candidates -------------------------------------------------------------------------------------------------------


def test_candidates_are_of_one_tenant_organization_and_project_oldest_first(bench: Bench) -> None:
    def unsure_mark(key: str, **fields: Any) -> Any:
        bench.advance(seconds=1)
        create(bench.service, key, **{"execution": None, **fields})
        lease = claim(bench.service, start=True).lease
        bench.service.mark_indeterminate(lease, code="E", message="m")
        return lease.job_id

    first = unsure_mark("k-1")
    other_project = unsure_mark("k-1", project="p2")
    other_owner = unsure_mark("k-2", organization="rival", tenant="acme")
    other_tenant = unsure_mark("k-1", tenant="north")
    second = unsure_mark("k-3")
    third = unsure_mark("k-4")

    def found(**scope: Any) -> list[Any]:
        return [job.id for job in bench.service.find_reconciliation_candidates(**{**HERE, **scope})]

    assert found() == [first, second, third]
    assert found(limit=2) == [first, second]
    assert found(project="p2") == [other_project]
    assert found(organization="rival", tenant="acme") == [other_owner]
    assert found(tenant="north") == [other_tenant]
    assert found(organization="rival") == []
    north = bench.bound(tenant="north")
    assert [job.id for job in north.find_reconciliation_candidates(**HERE)] == [other_tenant]
    scopes = bench.run(find_candidate_scopes(None))
    assert [scope for scope in scopes if scope[0] != "zeta"] == [
        ("acme", "acme", "p1"), ("acme", "acme", "p2"), ("acme", "rival", "p1"), ("north", "acme", "p1")
    ]  # fmt: skip
    assert bench.run(find_candidate_scopes("north")) == [("north", "acme", "p1")]
    # A sweep of one scope writes in no other.
    verdicts = sweep(bench, nobody)
    assert [verdict.job_id for verdict in verdicts] == [first, second, third]
    for job_id in (other_project, other_owner, other_tenant):
        assert bench.service.get_job(job_id).escalated_at is None


@pytest.mark.parametrize("bad", [0, -1, True, 1001, 1.5, "5", None])
def test_a_limit_is_a_whole_number_within_bounds(bench: Bench, bad: Any) -> None:
    with refused(bench, Invalid):
        bench.service.find_reconciliation_candidates(**HERE, limit=bad)
    with refused(bench, Invalid):
        bench.run(find_candidates("acme", "p1", "acme", bad))
    assert bench.service.find_reconciliation_candidates(**HERE, limit=1000) == []


def test_a_sweep_looks_at_no_more_than_it_was_told(bench: Bench) -> None:
    for nth in range(3):
        unsure(bench, key=f"k-{nth}")
    assert len(sweep(bench, Provider(NoAnswer()), limit=2)) == 2
    assert [job.escalated_at is not None for job in bench.service.list_jobs(tenant="acme")] == [True, True, False]


# --- a sweep, in the contract's order ---------------------------------------------------------------------------------


def test_first_the_binding_is_checked_again(bench: Bench) -> None:
    case = unsure(bench)
    before = bench.dump()
    for organization, project in (("rival", "p1"), ("acme", "p2")):
        verdict = bench.run(sweep_step(case.job_id, organization, project, "acme"))
        assert isinstance(verdict, Verdict)
        assert (verdict.action, verdict.status) == ("leave", "indeterminate")
    assert bench.dump() == before


@pytest.mark.parametrize("name", ["indeterminate, effect", "indeterminate, escalated", "expired, effect"])
def test_then_stored_evidence_settles_without_asking_even_if_escalated(bench: Bench, name: str) -> None:
    case = CASES[name](bench)
    bench.service.submit_evidence(str(case.key), Accepted(RECEIPT), attempt_id=case.lease.attempt_id)
    verdict = only(sweep(bench, nobody))
    assert (verdict.action, verdict.status) == ("resolve", "queued")
    job = bench.service.get_job(case.job_id)
    assert (job.escalated_at, job.error_code) == (None, None)
    assert [(e.state, e.receipt, e.settled_by) for e in job.effects] == [("succeeded", RECEIPT, "evidence")]
    assert [bool(row["used"]) for row in bench.table("evidence", case.job_id)] == [True]
    assert sweep(bench, nobody) == []


def test_stored_evidence_on_a_timed_out_job_settles_the_effect_only(bench: Bench) -> None:
    case = CASES["timed_out, effect"](bench)
    bench.service.submit_evidence(str(case.key), Accepted(RECEIPT), attempt_id=case.lease.attempt_id)
    verdict = only(sweep(bench, nobody))
    assert (verdict.action, verdict.status) == ("resolve", "timed_out")
    assert [row["state"] for row in bench.table("effect", case.job_id)] == ["succeeded"]
    assert only(sweep(bench, nobody)).action == "escalate"
    assert only(sweep(bench, nobody)).action == "leave"


def test_an_escalated_job_is_skipped(bench: Bench) -> None:
    case = CASES["indeterminate, escalated"](bench)
    before = bench.dump()
    verdict = only(sweep(bench, nobody))
    assert (verdict.action, verdict.job_id) == ("leave", case.job_id)
    assert bench.dump() == before


def test_an_expired_lease_without_a_boundary_is_left_to_the_next_claim(bench: Bench) -> None:
    case = CASES["expired, sent"](bench)
    before = bench.dump()
    assert only(sweep(bench, nobody)).action == "leave"
    assert bench.dump() == before
    assert claim(bench.service, "B").job.id == case.job_id


def test_an_expired_lease_with_a_boundary_is_first_made_indeterminate(bench: Bench) -> None:
    case = CASES["expired, effect"](bench)
    provider_ = Provider(Accepted(RECEIPT))
    verdict = only(sweep(bench, provider_))
    assert (verdict.action, verdict.status, provider_.asked) == ("resolve", "queued", [case.key])
    assert bench.trail(case.job_id)[-3:] == ["indeterminate", "effect_settled", "reconciled"]
    event = bench.service.list_job_events(case.job_id)[-3]
    assert event.data["code"] == "LEASE_EXPIRED_AFTER_DISPATCH"
    assert bench.service.get_job(case.job_id).generation == 2


@pytest.mark.parametrize("name", ["timed_out", "timed_out, effect", "indeterminate"])
def test_what_no_provider_can_answer_goes_to_a_person(bench: Bench, name: str) -> None:
    case = CASES[name](bench)
    verdict = only(sweep(bench, nobody))
    assert (verdict.action, verdict.status) == ("escalate", name.split(",", maxsplit=1)[0])
    job = bench.service.get_job(case.job_id)
    assert (job.escalated_at, job.escalation_reason) == (bench.now, verdict.reason)
    event = bench.service.list_job_events(case.job_id)[-1]
    assert (event.name, event.data) == ("escalated", {"reason": verdict.reason})


@pytest.mark.parametrize(
    "answer",
    [NoAnswer("busy"), RuntimeError("down"), None, True, "accepted", Succeeded(RECEIPT), FailedBeforeDispatch("x")],
)
def test_without_an_answer_a_person_is_asked_with_the_key(bench: Bench, answer: Any) -> None:
    case = unsure(bench)
    asked = Provider(answer)
    verdict = only(sweep(bench, asked))
    assert (verdict.action, verdict.status, asked.asked) == ("escalate", "indeterminate", [case.key])
    assert str(case.key) in verdict.reason
    before = bench.dump()
    assert only(sweep(bench, nobody)).action == "leave"
    assert bench.dump() == before


RESOLUTIONS: list[tuple[dict[str, Any], str, Any, str, str]] = [
    ({}, "send", Accepted(RECEIPT), "queued", "succeeded"),
    ({}, "send", Declined("no"), "failed", "rejected"),
    ({"on_declined": "dead_letter"}, "send", Declined("no"), "dead_letter", "rejected"),
    ({"on_reconciled": "complete"}, "send", Accepted(RECEIPT), "completed", "succeeded"),
    ({"on_reconciled": "complete"}, "send", Declined("no"), "failed", "rejected"),
    ({"on_reconciled": "resume"}, "send", Accepted(RECEIPT), "queued", "succeeded"),
    ({}, "", Accepted(RECEIPT), "completed", "succeeded"),
    ({}, "", Declined("no"), "failed", "rejected"),
    ({"on_declined": "dead_letter"}, "", Declined("no"), "dead_letter", "rejected"),
    ({"on_reconciled": "resume"}, "", Accepted(RECEIPT), "queued", "succeeded"),
    ({"on_reconciled": "complete"}, "", Accepted(RECEIPT), "completed", "succeeded"),
]


@pytest.mark.parametrize("how", ["sweep", "statement"])
@pytest.mark.parametrize("policy,name,answer,status,state", RESOLUTIONS)
def test_an_answer_moves_the_job_as_its_policy_says(
    bench: Bench, policy: dict[str, Any], name: str, answer: Any, status: str, state: str, how: str
) -> None:
    if name:
        case = unsure(bench, name=name, **policy)
    else:
        case = CASES["running"](bench)
        bench.service.revoke_job(case.job_id, reason="make room", actor="op:1")
        create(bench.service, "k-2", **policy)
        lease = claim(bench.service, start=True).lease
        bench.service.mark_provider_dispatched(lease, operation_key=OWN_KEY)
        bench.service.fail_job(lease, code="BROKEN", message="it broke", retryable=True)
        case = Case(lease.job_id, lease, OWN_KEY)
    bench.advance(seconds=1)
    if how == "sweep":
        verdict = only(sweep(bench, Provider(answer)))
        assert (verdict.action, verdict.status, verdict.job_id) == ("resolve", status, case.job_id)
    else:
        stated = bench.service.reconcile_dispatched(case.job_id, answer, reason="looked it up", actor="op:1")
        assert stated.status == status
    job = bench.service.get_job(case.job_id)
    assert job.status == status
    (effect,) = job.effects
    assert (effect.state, effect.settled_at, effect.settled_by) == (
        state, bench.now, "lookup" if how == "sweep" else "statement"
    )  # fmt: skip
    if status == "completed":
        assert (job.result, job.error_code) == (RECEIPT, None)
    elif status == "queued":
        assert (job.run_at, job.error_code, job.finished_at) == (bench.now, None, None)
    else:
        assert (job.error_code, job.error_message) == ("PROVIDER_DECLINED", "no")
    settled, moved = bench.service.list_job_events(case.job_id)[-2:]
    assert (settled.name, settled.status, moved.name, moved.status) == ("effect_settled", None, "reconciled", status)
    assert (settled.actor, moved.actor) == ((None, None) if how == "sweep" else ("op:1", "op:1"))
    assert settled.data["operation_key"] == case.key
    assert settled.data["by"] == ("lookup" if how == "sweep" else "statement")
    if how == "statement":
        assert settled.data["reason"] == "looked it up"


def test_a_resumed_job_reads_the_receipt_and_sends_nothing(bench: Bench) -> None:
    case = unsure(bench, max_attempts=1)
    sweep(bench, Provider(Accepted(RECEIPT)))
    job = bench.service.get_job(case.job_id)
    # One attempt is granted where none was left.
    assert (job.status, job.attempt_count, job.max_attempts) == ("queued", 1, 2)
    again = claim(bench.service, "B", start=True)
    assert bench.service.begin_effect(again.lease, name="send", request={"to": "a@b.example", "quote": 17},
                                      provider="mailer").receipt == RECEIPT  # fmt: skip
    assert bench.service.complete_job(again.lease, result=None).status == "completed"
    assert len(bench.table("intent", case.job_id)) == 1


def test_a_resumed_job_with_attempts_left_is_granted_none(bench: Bench) -> None:
    case = unsure(bench)
    sweep(bench, Provider(Accepted(RECEIPT)))
    assert bench.service.get_job(case.job_id).max_attempts == 3


@pytest.mark.parametrize("answer", [Accepted(RECEIPT), Declined("no"), Absent()])
@pytest.mark.parametrize("name", ["running, effect, cancelling", "running, mark, cancelling"])
def test_a_pending_cancellation_ends_what_is_reconciled(bench: Bench, name: str, answer: Any) -> None:
    """Nothing with a pending cancellation is ever queued, and evidence of the past does not undo the wish."""
    case = CASES[name](bench)
    bench.service.mark_indeterminate(case.lease, code="E", message="m")
    bench.service.reconcile_dispatched(case.job_id, answer, reason="r", actor="op:1")
    job = bench.service.get_job(case.job_id)
    assert (job.status, job.phase) == ("cancelled", "DONE")


# --- an absence -------------------------------------------------------------------------------------------------------


def test_an_absence_counts_only_after_the_deadline_and_the_settling_time(bench: Bench) -> None:
    mailer = provider(settles_within=timedelta(seconds=45), idempotency=keys_for(hours=24))
    case = unsure(bench, by=mailer)
    deadline = bench.service.list_effects(case.job_id)[0].deadline_at
    assert deadline == START + timedelta(seconds=30)
    snapshot = bench.snapshot()
    bench.advance(seconds=75 - 1)
    assert only(sweep(bench, Provider(Absent()))).action == "escalate"
    bench.restore(snapshot)
    bench.advance(seconds=75)
    verdict = only(sweep(bench, Provider(Absent())))
    assert (verdict.action, verdict.status) == ("resolve", "queued")
    (effect,) = bench.service.list_effects(case.job_id)
    assert (effect.state, effect.settled_by) == ("failed_before_dispatch", "lookup")
    # The next attempt sends under the same key.
    again = claim(bench.service, "B", start=True).lease
    assert begin(bench.service, again, provider=mailer) == case.key


@pytest.mark.parametrize(
    "declares",
    [
        {"idempotency": None},
        {"lookup_complete": False},
        {"idempotency": keys_for(minutes=10)},
    ],
    ids=["no keys", "a look-up that does not see everything", "a memory that has ended"],
)
def test_an_absence_that_proves_nothing_goes_to_a_person(bench: Bench, declares: dict[str, Any]) -> None:
    case = unsure(bench, by=provider(**declares))
    bench.advance(minutes=10)
    verdict = only(sweep(bench, Provider(Absent())))
    assert (verdict.action, verdict.status) == ("escalate", "indeterminate")
    assert str(case.key) in verdict.reason
    # The control: the same absence from a provider that declares all of it.
    good = unsure(bench, key="k-2", by=provider(idempotency=keys_for(minutes=30)))
    bench.advance(minutes=10)
    assert [(v.job_id, v.status) for v in sweep(bench, Provider(Absent())) if v.action == "resolve"] == [
        (good.job_id, "queued")
    ]  # fmt: skip


def test_an_absence_never_settles_a_bare_mark(bench: Bench) -> None:
    CASES["indeterminate, mark"](bench)
    bench.advance(days=1)
    assert only(sweep(bench, Provider(Absent()))).action == "escalate"


def test_begin_tests_the_retention_again(bench: Bench) -> None:
    """A sender that was paused may wake up after the provider has forgotten the key."""
    mailer = provider(idempotency=keys_for(minutes=10))
    case = unsure(bench, by=mailer)
    bench.advance(minutes=9)
    assert only(sweep(bench, Provider(Absent()))).status == "queued"
    again = claim(bench.service, "B", start=True, lease_duration=timedelta(hours=1)).lease
    snapshot = bench.snapshot()
    bench.advance(minutes=1)
    with refused(bench, Uncertain):
        begin(bench.service, again, provider=mailer)
    bench.restore(snapshot)
    bench.advance(seconds=59)
    assert begin(bench.service, again, provider=mailer) == case.key


def test_a_counted_absence_under_complete_fails_the_job(bench: Bench) -> None:
    case = unsure(bench, on_reconciled="complete")
    bench.advance(minutes=1)
    assert only(sweep(bench, Provider(Absent()))).status == "failed"
    job = bench.service.get_job(case.job_id)
    assert (job.error_code, [effect.state for effect in job.effects]) == (
        "NOT_DISPATCHED", ["failed_before_dispatch"]
    )  # fmt: skip


# --- several boundaries -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answers,status,actions",
    [
        ([Accepted(1), Accepted(2)], "queued", "resolve"),
        ([Accepted(1), Declined("no")], "failed", "resolve"),
        ([Accepted(1), NoAnswer()], "indeterminate", "escalate"),
        ([NoAnswer(), Accepted(2)], "indeterminate", "escalate"),
    ],
)
def test_a_job_moves_when_its_last_boundary_is_settled(
    bench: Bench, answers: list[Any], status: str, actions: str
) -> None:
    case = CASES["indeterminate, two"](bench)
    bench.advance(seconds=1)
    verdict = only(sweep(bench, Provider(*answers)))
    assert (verdict.action, verdict.status) == (actions, status)
    assert statuses(bench, case) == [status]


def test_a_person_names_which_of_several_boundaries_is_meant(bench: Bench) -> None:
    case = CASES["indeterminate, two"](bench)
    second = str(case.key).replace(":send", ":second")
    with refused(bench, Invalid, code="SEVERAL_OPEN"):
        bench.service.reconcile_dispatched(case.job_id, Accepted(1), reason="r", actor="op:1")
    with refused(bench, Invalid, code="UNKNOWN_OPERATION"):
        bench.service.reconcile_dispatched(case.job_id, Accepted(1), operation_key="x", reason="r", actor="op:1")
    job = bench.service.reconcile_dispatched(case.job_id, Accepted(1), operation_key=second, reason="r", actor="op:1")
    assert job.status == "indeterminate"
    assert {effect.operation_key: effect.state for effect in job.effects} == {case.key: "pending", second: "succeeded"}
    # Only one is left, so it need not be named.
    assert bench.service.reconcile_dispatched(case.job_id, Accepted(2), reason="r", actor="op:1").status == "queued"


def test_a_mark_and_an_effect_are_two_boundaries(bench: Bench) -> None:
    case = CASES["running, mark"](bench)
    key = begin(bench.service, case.lease)
    bench.service.mark_indeterminate(case.lease, code="E", message="m")
    with refused(bench, Invalid, code="SEVERAL_OPEN"):
        bench.service.reconcile_dispatched(case.job_id, Accepted(1), reason="r", actor="op:1")
    first = bench.service.reconcile_dispatched(case.job_id, Accepted(1), operation_key=key, reason="r", actor="op:1")
    assert first.status == "indeterminate"
    assert bench.service.reconcile_dispatched(case.job_id, Accepted(2), reason="r", actor="op:1").status == "completed"


# --- what people state ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["indeterminate", "timed_out"])
@pytest.mark.parametrize(
    "evidence,status,code",
    [(Accepted(RECEIPT), "completed", None), (Declined("no"), "failed", "PROVIDER_DECLINED"),
     (Absent(), "failed", "NOT_DISPATCHED")],
)  # fmt: skip
def test_with_no_boundary_open_a_statement_alone_moves_the_job(
    bench: Bench, name: str, evidence: Any, status: str, code: str | None
) -> None:
    case = CASES[name](bench)
    only(sweep(bench, nobody))
    job = bench.service.reconcile_dispatched(case.job_id, evidence, reason="called them", actor="op:1")
    assert (job.status, job.error_code, job.escalated_at) == (status, code, None)
    assert job.result == (RECEIPT if status == "completed" else None)
    event = bench.service.list_job_events(case.job_id)[-1]
    assert (event.name, event.actor, event.data["reason"]) == ("reconciled", "op:1", "called them")


@pytest.mark.parametrize(
    "evidence,status",
    [(Accepted(RECEIPT), "queued"), (Declined("no"), "failed"), (Absent(), "queued")],
)
def test_a_timed_out_job_takes_the_same_path_by_a_statement_only(bench: Bench, evidence: Any, status: str) -> None:
    case = CASES["timed_out, effect"](bench)
    asked = Provider(evidence)
    assert only(sweep(bench, asked)).action == "escalate"
    assert asked.asked == []
    job = bench.service.reconcile_dispatched(case.job_id, evidence, reason="r", actor="op:1")
    assert (job.status, job.escalated_at) == (status, None)


def test_what_a_person_states_needs_no_declaration_of_the_provider(bench: Bench) -> None:
    case = unsure(bench, by=PIGEON)
    job = bench.service.reconcile_dispatched(case.job_id, Absent(), reason="asked them", actor="op:1")
    assert job.status == "queued"
    again = claim(bench.service, "B", start=True).lease
    assert begin(bench.service, again, provider=PIGEON) == case.key


@pytest.mark.parametrize("name,status", [("cancelled, effect", "cancelled"), ("halt_unsafe, effect", "halt_unsafe")])
@pytest.mark.parametrize("evidence", [Accepted(RECEIPT), Declined("no"), Absent()])
def test_of_a_cancelled_or_halted_job_only_the_effect_is_settled(
    bench: Bench, name: str, status: str, evidence: Any
) -> None:
    case = CASES[name](bench)
    only(sweep(bench, Provider(NoAnswer())))
    assert bench.service.get_job(case.job_id).escalated_at is not None
    job = bench.service.reconcile_dispatched(case.job_id, evidence, reason="r", actor="op:1")
    assert (job.status, job.escalated_at) == (status, None)
    assert job.phase == ("DONE" if status == "cancelled" else "NEEDS_ATTENTION")
    assert bench.service.find_reconciliation_candidates(**HERE) == []
    with refused(bench, IllegalMove):
        bench.service.reconcile_dispatched(case.job_id, evidence, reason="r", actor="op:1")


def test_a_statement_against_what_is_settled_is_kept_and_escalates(bench: Bench) -> None:
    for name, evidence in (
        ("failed, rejected", Accepted(RECEIPT)),
        ("failed, unsent", Accepted(RECEIPT)),
        ("completed, sent", Accepted({"id": "r-2"})),
        ("dead_letter, sent", Accepted({"id": "r-2"})),
    ):
        bench.reset()
        case = CASES[name](bench)
        job = bench.service.reconcile_dispatched(
            case.job_id, evidence, operation_key=case.key, reason="r", actor="op:1"
        )
        assert (job.status, job.escalated_at) == (name.split(",")[0], bench.now)
        assert [bool(row["contradicts"]) for row in bench.table("evidence", case.job_id)] == [True]
    bench.reset()
    case = CASES["completed, sent"](bench)
    with refused(bench, IllegalMove):
        bench.service.reconcile_dispatched(
            case.job_id, Accepted(RECEIPT), operation_key=case.key, reason="r", actor="op:1"
        )


def test_a_statement_has_a_reason_an_actor_and_says_something(bench: Bench) -> None:
    case = CASES["indeterminate, effect"](bench)
    for bad in ("", "\n", "x" * 201, None):
        with refused(bench, Invalid):
            bench.service.reconcile_dispatched(case.job_id, Absent(), reason=bad, actor="op:1")  # type: ignore[arg-type]
    with refused(bench, Invalid, code="ACTOR_REQUIRED"):
        bench.service.reconcile_dispatched(case.job_id, Absent(), reason="r")
    for nothing in (NoAnswer(), None, Succeeded(RECEIPT), "accepted"):
        with refused(bench, Invalid):
            bench.service.reconcile_dispatched(case.job_id, nothing, reason="r", actor="op:1")  # type: ignore[arg-type]
    with refused(bench, Invalid):
        bench.service.reconcile_dispatched(case.job_id, Accepted(float("nan")), reason="r", actor="op:1")
    assert bench.service.reconcile_dispatched(case.job_id, Absent(), reason="r", actor="op:1").status == "queued"


# --- the same state and answers, the same result ----------------------------------------------------------------------


@pytest.mark.parametrize("answer", [NoAnswer(), Accepted(RECEIPT), Declined("no"), Absent()])
@pytest.mark.parametrize("name", ["indeterminate, effect", "expired, effect", "timed_out, effect", "cancelled, effect"])
def test_a_second_sweep_changes_nothing(bench: Bench, name: str, answer: Any) -> None:
    CASES[name](bench)
    sweep(bench, Provider(answer))
    before = bench.dump()
    for _ in range(3):
        bench.advance(seconds=7)
        sweep(bench, nobody)
        assert bench.dump() == before


def test_an_answer_that_comes_too_late_is_left_alone(bench: Bench) -> None:
    """Between the question and the answer a person has settled it."""
    case = unsure(bench)

    def slow(key: str, job: Job) -> Any:
        bench_service.reconcile_dispatched(job.id, Declined("no"), reason="quicker", actor="op:1")
        return Accepted(RECEIPT)

    if bench.loop is None:
        bench_service: Any = bench.service
        verdict = only(sweep(bench, slow))
    else:
        # A look-up that asks the store itself has to await it.
        inner: Any = AsyncDurableJobService(bench.store)  # type: ignore[arg-type]

        async def slow_too(key: str, job: Job) -> Any:
            await inner.reconcile_dispatched(job.id, Declined("no"), reason="quicker", actor="op:1")
            return Accepted(RECEIPT)

        verdict = only(sweep(bench, slow_too))
    assert (verdict.action, verdict.status) == ("leave", "failed")
    assert statuses(bench, case) == ["failed"]


def test_a_sweep_of_frozen_work_writes_nothing(bench: Bench) -> None:
    unsure(bench)
    for hold in (
        "UPDATE $authority SET frozen = (1 = 1) WHERE tenant = 'acme'",
        "INSERT INTO $meta (key, value) VALUES ('frozen', 'restored')",
    ):
        snapshot = bench.snapshot()
        bench.sql(hold)
        before = bench.dump()
        assert only(sweep(bench, nobody)).action == "leave"
        assert bench.dump() == before
        bench.restore(snapshot)
    assert only(sweep(bench, Provider(Accepted(RECEIPT)))).action == "resolve"


def test_superseded_work_is_reconciled_and_stays_held(bench: Bench) -> None:
    case = unsure(bench)
    bench.sql("UPDATE $authority SET epoch = 2 WHERE tenant = 'acme'")
    assert only(sweep(bench, Provider(Accepted(RECEIPT)))).status == "queued"
    assert bench.service.get_job(case.job_id).phase == "HELD"
    assert bench.service.claim_job("B") is None


# --- a patient sweeper ------------------------------------------------------------------------------------------------


def patiently(bench: Bench, case: Case, ask: Callable[[Job, Effect], Any]) -> Verdict:
    flow = sweep_job(case.job_id, "acme", "p1", "acme", ask, patient=True)
    if bench.loop is None:
        return run_flow(flow, bench.run)
    store: Any = bench.store
    return bench.loop.run(run_flow_async(flow, store.run))


def test_a_patient_sweeper_asks_again_after_longer_and_longer_pauses(bench: Bench) -> None:
    made = bench.run(
        verbs.create_job(
            Scope(), idempotency_key="k-1", kind=KIND, payload=PAYLOAD, execution=EXECUTION,
            options=Options(escalate_after=timedelta(minutes=5)), **HERE,
        )
    )  # fmt: skip
    lease = claim(bench.service, start=True).lease
    key = begin(bench.service, lease)
    bench.service.fail_job(lease, code="E", message="m", retryable=True)
    case = Case(made.job.id, lease, key)
    asked: list[int] = []

    def ask(job: Job, effect: Effect) -> Any:
        assert effect.operation_key == key
        asked.append(int((bench.now - START).total_seconds()))
        return NoAnswer("busy")

    verdict = None
    for _ in range(300):
        verdict = patiently(bench, case, ask)
        if verdict.action == "escalate":
            break
        assert (verdict.action, verdict.status) == ("leave", "indeterminate")
        bench.advance(seconds=1)
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert pauses[:7] == [1, 2, 4, 8, 16, 32, 60]
    assert set(pauses[6:]) == {60}
    assert verdict is None or verdict.action == "leave"
    bench.advance(seconds=60)
    last = patiently(bench, case, ask)
    assert (last.action, last.status) == ("escalate", "indeterminate")
    assert key in last.reason


def test_a_patient_sweeper_settles_as_soon_as_there_is_an_answer(bench: Bench) -> None:
    case = unsure(bench)
    answers = Provider(NoAnswer(), NoAnswer(), Accepted(RECEIPT))

    def ask(job: Job, effect: Effect) -> Any:
        return answers(effect.operation_key, job)

    found = []
    for _ in range(5):
        found.append(patiently(bench, case, ask).action)
        bench.advance(seconds=1)
    # Asked at 0, at 1 and, after two more seconds, at 3.
    assert found[:4] == ["leave", "leave", "leave", "resolve"]
    assert len(answers.asked) == 3
    assert statuses(bench, case) == ["queued"]


def test_resuming_a_sweep_asks_the_provider_again_from_the_start(bench: Bench) -> None:
    case = CASES["indeterminate, escalated"](bench)
    assert [effect.lookups for effect in bench.service.list_effects(case.job_id)] == [1]
    job = bench.service.resume_sweep(case.job_id, actor="op:1")
    assert (job.status, job.escalated_at, job.escalation_reason) == ("indeterminate", None, None)
    assert [(effect.lookups, effect.asked_at) for effect in bench.service.list_effects(case.job_id)] == [(0, None)]
    event = bench.service.list_job_events(case.job_id)[-1]
    assert (event.name, event.actor) == ("resumed", "op:1")
    assert only(sweep(bench, Provider(Accepted(RECEIPT)))).status == "queued"


@pytest.mark.parametrize("name", ["failed, unsent", "completed, sent"])
def test_a_contradiction_stays_a_candidate_until_a_person_has_looked(bench: Bench, name: str) -> None:
    case = CASES[name](bench)
    bench.service.submit_evidence(str(case.key), Accepted({"id": "r-9"}), attempt_id=case.lease.attempt_id)
    before = bench.dump()
    for _ in range(2):
        assert [job.id for job in bench.service.find_reconciliation_candidates(**HERE)] == [case.job_id]
        assert only(sweep(bench, nobody)).action == "leave"
        assert bench.dump() == before
    bench.service.resume_sweep(case.job_id, actor="op:1")
    assert bench.service.find_reconciliation_candidates(**HERE) == []
    assert len(bench.table("evidence", case.job_id)) == 1


# --- a worker that dies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "acts,answers,ending,effects",
    [
        (True, [], "completed", 1),
        (False, [], "completed", 1),
        (True, [Declined("refused")], "failed", 1),
        (True, [NoAnswer("down")], "indeterminate", 1),
    ],
    ids=["accepted", "never arrived", "declined", "no answer"],
)
def test_a_worker_that_dies_in_the_middle_of_a_call_never_makes_a_second_one(
    bench: Bench, acts: bool, answers: list[Any], ending: str, effects: int
) -> None:
    """The provider's own ledger says how often it acted, whatever became of the worker."""
    mailer = FakeProvider("mailer", [Step(Unknown("the worker is dead"), acts=acts)], lookups=answers)
    case = unsure_after_death(bench, mailer)
    for _ in range(10):
        bench.advance(minutes=1)
        assert bench.service.claim_job("B") is None
        if bench.service.get_job(case.job_id).status == "indeterminate":
            break

    async def look(key: str, job: Job) -> Any:
        return await mailer.lookup(key)

    def look_now(key: str, job: Job) -> Any:
        return asyncio.run(mailer.lookup(key))

    verdict = only(sweep(bench, look_now if bench.loop is None else look))
    if ending == "completed":
        assert verdict.status == "queued"
        again = claim(bench.service, "B", start=True).lease
        begun = bench.service.begin_effect(again, name="send", request=REQUEST, provider=mailer)
        assert begun.is_open == (not acts)
        if begun.is_open:
            outcome = asyncio.run(mailer.send(REQUEST, begun.operation_key))
            bench.service.finish_effect(again, name="send", outcome=outcome)
        bench.service.complete_job(again, result=None)
    assert statuses(bench, case) == [ending]
    if ending == "indeterminate":
        assert str(case.key) in verdict.reason
    assert len(mailer.effects(str(case.key))) == effects
    assert mailer.duplicates() == []


def unsure_after_death(bench: Bench, mailer: FakeProvider) -> Case:
    """Call the provider and die before the outcome is written."""
    create(bench.service)
    lease = claim(bench.service, start=True).lease
    key = begin(bench.service, lease, provider=mailer)
    asyncio.run(mailer.send(REQUEST, key))
    return Case(lease.job_id, lease, key)


class Killed(BaseException):
    """The process of a sweeper ends here."""


def test_a_sweep_that_dies_half_way_is_taken_up_by_the_next_one(bench: Bench) -> None:
    cases = [unsure(bench, key=f"k-{nth}") for nth in range(6)]
    asked: list[str] = []

    def dying(key: str, job: Job) -> Any:
        asked.append(key)
        if len(asked) == 3:
            raise Killed
        return Accepted(RECEIPT)

    with pytest.raises(Killed):
        sweep(bench, dying)
    assert statuses(bench, *cases) == ["queued"] * 2 + ["indeterminate"] * 4
    verdicts = sweep(bench, Provider(Accepted(RECEIPT)))
    assert [verdict.job_id for verdict in verdicts] == [case.job_id for case in cases[2:]]
    assert statuses(bench, *cases) == ["queued"] * 6
    before = bench.dump()
    assert sweep(bench, nobody) == []
    assert bench.dump() == before
