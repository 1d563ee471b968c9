"""A governed dispatch and the approval it needs: read live, under a lock, and consumed with the first intent."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from tenure import verbs
from tenure.connectors.provider import terms
from tenure.errors import ApprovalRefused, Conflict, EffectRejected, Invalid, LeaseLost, NotFound, Uncertain
from tenure.procedures import approvals
from tenure.procedures.approvals import every_revocation, replay_revocations, revoke_approval
from tenure.procedures.effect import Beginning, begin_effect, begin_effects
from tenure.procedures.recover import read_doubt, settle_lost
from tenure.rules.approval import ApprovalState, read_restriction, restriction
from tenure.rules.digest import request_digest
from tenure.rules.dispatch import Begun
from tenure.rules.envelope import governance_digest
from tenure.rules.outcome import Accepted, FailedBeforeDispatch, Rejected, Succeeded, Terms
from tenure.rules.recover import Operation
from tenure.verbs.scope import Scope
from tests.contract.bench import START, Bench
from tests.contract.build import KIND, MAILER, OWN_KEY, REQUEST, Case, begin, claim, create
from tests.contract.governed import GOVERNANCE, LIFE, digest, grant, grant_of, held
from tests.contract.refusal import refused
from tests.support.copies import mark_copy

THROUGH_THE_POOLER = True

_READ = Callable[[Bench, Case], Any]


def forge(bench: Bench, case: Case, change: Callable[[dict[str, Any]], Any], *, seal: bool = True) -> None:
    """Change a payload in the row by hand; with the digest that the envelope should have, where `seal`."""
    ((text,),) = bench.sql("SELECT CAST(payload AS text) FROM $job WHERE job_id = ?", case.job_id)
    payload = json.loads(text)
    change(payload)
    if seal:
        payload["governance"]["digest"] = governance_digest(payload["governance"])
    bench.sql("UPDATE $job SET payload = ? WHERE job_id = ?", json.dumps(payload), case.job_id)


def not_admitted(bench: Bench, case: Case, *reasons: str, marks: bool = True) -> None:
    """Expect a begin and a bare mark to be refused for these reasons, with one event each and not a row more."""
    acts: list[_READ] = [lambda b, c: begin(b.service, c.lease, "other")]
    if marks:
        acts.append(lambda b, c: b.service.mark_provider_dispatched(c.lease, operation_key=OWN_KEY))
    for act in acts:
        before = bench.dump()
        with pytest.raises(ApprovalRefused) as caught:
            act(bench, case)
        assert caught.value.reasons == reasons
        assert all(f"[{one}]" in str(caught.value) for one in reasons)
        after = bench.dump()
        told = [row for row in after["event"] if row not in before["event"]]
        assert {**after, "event": []} == {**before, "event": []}
        assert [row["name"] for row in told] == ["admission_checked"]
        data = json.loads(told[0]["data"])
        assert (data["allowed"], data["reasons"]) == (False, list(reasons))
        assert data.keys() == {"effect", "allowed", "reasons", "approval", "action_digest"}


def admissions(bench: Bench, case: Case) -> list[dict[str, Any]]:
    rows = bench.sql(
        "SELECT CAST(data AS text) FROM $event WHERE job_id = ? AND name = 'admission_checked' ORDER BY event_id",
        case.job_id,
    )
    return [json.loads(data) for (data,) in rows]


# --- allowed ----------------------------------------------------------------------------------------------------------


def test_an_approved_job_begins_and_takes_its_approval_with_the_first_intent(bench: Bench) -> None:
    grant(bench, capability="mail.send", policy={"name": "p-7"}, budget={"eur": 1.0})
    case = held(bench)
    assert bench.service.get_approval("ap-1", tenant="acme").state == "granted"
    bench.advance(minutes=1)
    assert begin(bench.service, case.lease)
    assert bench.trail(case.job_id) == ["claimed", "admission_checked", "dispatched"]
    assert admissions(bench, case) == [
        {"effect": "send", "allowed": True, "reasons": [], "approval": "ap-1", "action_digest": digest()}
    ]
    taken = bench.service.get_approval("ap-1", tenant="acme")
    assert (taken.state, taken.consumed_by, taken.consumed_at) == ("consumed", case.job_id, bench.now)
    # A later begin of the same job under the same digest passes, and takes nothing more.
    assert begin(bench.service, case.lease, "second")
    assert bench.service.get_approval("ap-1", tenant="acme") == taken
    assert [one["effect"] for one in admissions(bench, case)] == ["send", "second"]


def test_an_approved_job_may_set_a_bare_mark(bench: Bench) -> None:
    grant(bench)
    case = held(bench)
    assert bench.service.mark_provider_dispatched(case.lease, operation_key=OWN_KEY).status == "running"
    assert bench.service.get_approval("ap-1", tenant="acme").consumed_by == case.job_id
    assert [one["effect"] for one in admissions(bench, case)] == [""]
    # Control: a mark that another rule refuses takes nothing.
    grant(bench, "ap-2")
    other = held(bench, "k-2", reference="ap-2")
    with refused(bench, Conflict, code="KEY_IN_USE"):
        bench.service.mark_provider_dispatched(other.lease, operation_key=OWN_KEY)
    assert bench.service.get_approval("ap-2", tenant="acme").state == "granted"


def test_what_governs_nothing_is_asked_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a statement more: the look at approvals yields nothing for jobs without an envelope."""
    asked: list[Any] = []

    def counting(name: str, rows: Any) -> Any:
        asked.append(name)
        return approvals_each(name, rows)

    approvals_each = approvals.Each
    monkeypatch.setattr(approvals, "Each", counting)
    create(bench.service, "plain")
    lease = claim(bench.service).lease
    assert begin(bench.service, lease)
    assert bench.service.mark_provider_dispatched(lease, operation_key=OWN_KEY)
    assert asked == []
    assert "admission_checked" not in bench.trail(lease.job_id)
    # Control: a governed one is looked up.
    grant(bench)
    asked.clear()
    case = held(bench)
    begin(bench.service, case.lease)
    assert asked == ["approval_lock"]


def test_an_approval_survives_the_attempts_of_its_job(bench: Bench) -> None:
    grant(bench)
    case = held(bench)
    begin(bench.service, case.lease)
    bench.service.finish_effect(case.lease, name="send", outcome=FailedBeforeDispatch("down"))
    bench.service.release_job(case.lease, reason="later")
    again = claim(bench.service, "B", start=True)
    assert begin(bench.service, again.lease)
    assert bench.service.get_approval("ap-1", tenant="acme").consumed_by == case.job_id


def test_a_receipt_is_read_without_an_approval_and_a_second_effect_is_not_begun(bench: Bench) -> None:
    grant(bench)
    case = held(bench)
    begin(bench.service, case.lease)
    bench.service.finish_effect(case.lease, name="send", outcome=Succeeded({"id": "r-1"}))
    bench.service.revoke_approval("ap-1", tenant="acme", reason="not any more", actor="user:2")
    known = bench.service.begin_effect(case.lease, name="send", request=REQUEST, provider=MAILER)
    assert (known.state, known.receipt) == ("succeeded", {"id": "r-1"})
    not_admitted(bench, case, "REVOKED")
    # The same name with another request would be a new call.
    with pytest.raises(ApprovalRefused):
        begin(bench.service, case.lease, request={"to": "somebody else"})


def test_a_receipt_that_a_recovery_found_needs_no_approval_either(bench: Bench) -> None:
    grant(bench)
    case = held(bench)
    bench.service.release_job(case.lease, reason="the night")
    bench.run(mark_copy("op:1", "restored"))
    # The bench compares the neighbour's rows.
    bench.sql("DELETE FROM $suspect WHERE tenant <> 'acme'")
    bench.sql("DELETE FROM $event WHERE tenant <> 'acme' AND name = 'suspected'")
    doubt = bench.run(read_doubt(case.job_id, [Operation("send", terms(MAILER))]))
    assert doubt is not None
    bench.run(settle_lost(case.job_id, doubt.effects[0], Accepted({"id": "r-1"})))
    bench.service.revoke_approval("ap-1", tenant="acme", reason="not any more", actor="user:2")
    again = claim(bench.service, "B", start=True)
    known = bench.service.begin_effect(again.lease, name="send", request=REQUEST, provider=MAILER)
    assert (known.state, known.receipt) == ("succeeded", {"id": "r-1"})
    # Another effect would be a new call.
    with pytest.raises(ApprovalRefused):
        bench.service.begin_effect(again.lease, name="again", request=REQUEST, provider=MAILER)


def test_an_open_effect_is_sent_again_only_while_its_approval_stands(bench: Bench) -> None:
    grant(bench)
    case = held(bench)
    begin(bench.service, case.lease)
    assert begin(bench.service, case.lease, resend=True)
    with refused(bench, Uncertain):
        begin(bench.service, case.lease)
    bench.service.revoke_approval("ap-1", tenant="acme", reason="not any more", actor="user:2")
    with pytest.raises(ApprovalRefused) as caught:
        begin(bench.service, case.lease, resend=True)
    assert caught.value.reasons == ("REVOKED",)


# --- refused, each beside its control ---------------------------------------------------------------------------------


def test_without_an_approval_nothing_is_dispatched(bench: Bench) -> None:
    case = held(bench)
    not_admitted(bench, case, "MISSING")
    # Everything that touches nothing outside still works, and what is granted then is found.
    grant(bench)
    assert begin(bench.service, case.lease)
    silent = held(bench, "k-2", reference=None)
    not_admitted(bench, silent, "NO_REFERENCE")
    assert bench.service.complete_job(silent.lease).status == "completed"


@pytest.mark.parametrize("state", ["before", "between"])
def test_a_revocation_stops_every_begin_after_it(bench: Bench, state: str) -> None:
    grant(bench)
    grant(bench, "ap-2")
    case = held(bench)
    if state == "between":
        begin(bench.service, case.lease)
    bench.service.revoke_approval("ap-1", tenant="acme", reason="not any more", actor="user:2")
    not_admitted(bench, case, "REVOKED")
    control = held(bench, "k-2", reference="ap-2")
    assert begin(bench.service, control.lease)


@pytest.mark.parametrize("late,allowed", [(timedelta(microseconds=-1), True), (timedelta(0), False)])
def test_an_approval_is_over_at_its_very_expiry(bench: Bench, late: timedelta, *, allowed: bool) -> None:
    grant(bench)
    case = held(bench)
    bench.clock.advance(LIFE + late)
    if not allowed:
        not_admitted(bench, case, "EXPIRED")
        assert bench.service.get_approval("ap-1", tenant="acme").state == "expired"
    else:
        assert begin(bench.service, case.lease)
        # Consumed in time, and over all the same a moment later.
        bench.clock.advance(-late)
        not_admitted(bench, case, "EXPIRED")


@pytest.mark.parametrize("late,allowed", [(timedelta(microseconds=-1), True), (timedelta(0), False)])
def test_an_envelope_is_over_at_its_very_expiry(bench: Bench, late: timedelta, *, allowed: bool) -> None:
    grant(bench, expires_at=START + timedelta(days=1))
    case = held(bench)
    bench.clock.advance(timedelta(hours=2) + late)
    if allowed:
        assert begin(bench.service, case.lease)
    else:
        not_admitted(bench, case, "ENVELOPE_EXPIRED")


OTHER_ACTIONS: dict[str, dict[str, Any]] = {
    "tenant": {"tenant": "rival"},
    "organization": {"organization": "rival", "tenant": "acme"},
    "project": {"project": "p2"},
    "kind": {"kind": "another"},
    "version": {"kind_version": 2},
    "payload": {"payload": {"quote": 18}},
    "intent": {"governance": replace(GOVERNANCE, action_intent={"send": "all quotes"})},
    "capability": {"governance": replace(GOVERNANCE, capability="mail.delete")},
    "policy": {"governance": replace(GOVERNANCE, policy="p-8")},
    "budget": {"governance": replace(GOVERNANCE, budget={"eur": 2})},
}


@pytest.mark.parametrize("other", OTHER_ACTIONS)
def test_an_approval_for_another_action_allows_nothing(bench: Bench, other: str) -> None:
    grant(bench, action_digest=digest(**OTHER_ACTIONS[other]))
    not_admitted(bench, held(bench), "OTHER_DIGEST")
    # Control: what the digest does not bind may differ.
    same = replace(GOVERNANCE, expires_at=START + timedelta(hours=9), approval_reference="other")
    grant(bench, "ap-2", action_digest=digest(governance=same))
    assert begin(bench.service, held(bench, "k-2", reference="ap-2").lease)


@pytest.mark.parametrize("shown", [{"capability": "x"}, {"policy": "p-7"}, {"budget": {"eur": 100}}])
def test_what_the_person_was_shown_is_what_the_envelope_says(bench: Bench, shown: dict[str, Any]) -> None:
    grant(bench, **shown)
    not_admitted(bench, held(bench), "OTHER_FACTS")


FORGERIES: dict[str, tuple[Callable[[dict[str, Any]], Any], bool, tuple[str, ...]]] = {
    "the budget": (lambda p: p["governance"].update(budget={"eur": 10**6}), False, ("ALTERED", "OTHER_DIGEST")),
    "the budget, sealed again": (lambda p: p["governance"].update(budget={"eur": 10**6}), True, ("OTHER_DIGEST",)),
    "the payload": (lambda p: p.update(quote=18), False, ("OTHER_DIGEST",)),
    "the approval": (lambda p: p["governance"].update(approval_reference="ap-9"), True, ("MISSING",)),
    "the expiry": (lambda p: p["governance"].update(expires_at="2030-01-01T00:00:00.000000Z"), False, ("ALTERED",)),
    "the tenant": (lambda p: p["governance"].update(tenant="rival"), True, ("FOREIGN_TENANT",)),
    "the job": (
        lambda p: p["governance"].update(job="01900000-0000-7000-8000-000000000000"),
        True,
        ("OTHER_JOB",),
    ),
    "its form": (lambda p: p.update(governance={"digest": "x"}), False, ("MALFORMED",) * 10),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_row_that_was_changed_by_hand_dispatches_nothing(bench: Bench, forgery: str) -> None:
    change, seal, reasons = FORGERIES[forgery]
    grant(bench)
    case = held(bench)
    snapshot = bench.snapshot()
    forge(bench, case, change, seal=seal)
    with pytest.raises(ApprovalRefused) as caught:
        begin(bench.service, case.lease)
    assert [one for one in caught.value.reasons if one in reasons] == list(reasons)
    assert bench.service.get_approval("ap-1", tenant="acme").state == "granted"
    bench.restore(snapshot)
    assert begin(bench.service, case.lease)


def test_an_approval_of_another_tenant_is_not_there(bench: Bench) -> None:
    grant(bench, tenant="rival")
    case = held(bench)
    not_admitted(bench, case, "MISSING")
    assert bench.service.get_approval("ap-1", tenant="rival").state == "granted"
    grant(bench)
    assert begin(bench.service, case.lease)


def test_an_approval_is_consumed_once(bench: Bench) -> None:
    grant(bench)
    first, second = held(bench), held(bench, "k-2")
    assert begin(bench.service, first.lease)
    not_admitted(bench, second, "CONSUMED")
    assert begin(bench.service, first.lease, "more")
    assert bench.service.get_approval("ap-1", tenant="acme").consumed_by == first.job_id


def test_a_begin_that_is_refused_for_something_else_consumes_nothing(bench: Bench) -> None:
    grant(bench)
    case = held(bench)
    with refused(bench, LeaseLost):
        begin(bench.service, replace(case.lease, worker_id="B"))
    with refused(bench, Invalid):
        begin(bench.service, case.lease, "a:b")
    assert bench.service.get_approval("ap-1", tenant="acme").state == "granted"
    begin(bench.service, case.lease)
    bench.service.finish_effect(case.lease, name="send", outcome=Rejected("no"))
    with refused(bench, EffectRejected):
        begin(bench.service, case.lease)


# --- many at once -----------------------------------------------------------------------------------------------------


def _beginning(case: Case, name: str = "send") -> Any:
    return begin_effect(Beginning(case.lease, name, request_digest(REQUEST), Terms("mailer"), timedelta(seconds=20)))


def test_begins_that_share_a_commit_are_judged_one_by_one(bench: Bench) -> None:
    grant(bench)
    create(bench.service, "plain")
    plain = claim(bench.service)
    cases = [held(bench, key) for key in ("k-1", "k-2")]
    missing = held(bench, "k-3", reference="ap-9")
    answers = bench.run(begin_effects([_beginning(one) for one in (*cases, missing, Case(plain.job.id, plain.lease))]))
    assert [type(one) for one in answers] == [Begun, ApprovalRefused, ApprovalRefused, Begun]
    reasons = [one.reasons for one in answers if isinstance(one, ApprovalRefused)]
    assert reasons == [("CONSUMED",), ("MISSING",)]
    assert bench.service.get_approval("ap-1", tenant="acme").consumed_by == cases[0].job_id
    assert [one["allowed"] for case in (*cases, missing) for one in admissions(bench, case)] == [True, False, False]


# --- people -----------------------------------------------------------------------------------------------------------


def test_a_grant_says_who_when_and_why(bench: Bench) -> None:
    made = grant(bench, capability="mail.send", policy={"name": "p-7"})
    assert (made.state, made.granted_by, made.grant_reason, made.granted_at, made.expires_at) == (
        ApprovalState.GRANTED, "user:1", "looked at it", START, START + LIFE,
    )  # fmt: skip
    assert (made.capability, made.policy, made.budget) == ("mail.send", {"name": "p-7"}, None)
    bench.advance(minutes=1)
    # The same decision again is the same approval, whatever reason is given now.
    assert grant(bench, capability="mail.send", policy={"name": "p-7"}, reason="again") == made
    revoked = bench.service.revoke_approval("ap-1", tenant="acme", reason="not any more", actor="user:2")
    assert (revoked.state, revoked.revoked_by, revoked.revoke_reason, revoked.revoked_at) == (
        "revoked", "user:2", "not any more", bench.now,
    )  # fmt: skip
    bench.advance(minutes=1)
    again = bench.service.revoke_approval("ap-1", tenant="acme", reason="other", actor="user:3")
    assert again == revoked == bench.service.get_approval("ap-1", tenant="acme")


@pytest.mark.parametrize(
    "other",
    [
        {"action_digest": "v1:" + "0" * 64},
        {"expires_at": START + timedelta(hours=3)},
        {"actor": "user:9"},
        {"policy": "p-7"},
    ],
)
def test_a_reference_stands_for_one_decision(bench: Bench, other: dict[str, Any]) -> None:
    grant(bench)
    with refused(bench, Conflict, code="APPROVAL_EXISTS"):
        grant(bench, **other)
    assert grant(bench, "ap-2", **other).reference == "ap-2"
    assert grant(bench, tenant="rival", **other).tenant == "rival"


def test_what_the_person_was_shown_is_compared_as_json(bench: Bench) -> None:
    first = grant(bench, budget={"limit": True, "of": [0]})
    for other in ({"limit": 1, "of": [0]}, {"limit": True, "of": [False]}):
        with refused(bench, Conflict, code="APPROVAL_EXISTS"):
            grant(bench, budget=other)
    # The same members in another order are the same.
    assert grant(bench, budget={"of": [0], "limit": True}) == first


def test_what_was_revoked_is_not_granted_again(bench: Bench) -> None:
    grant(bench)
    bench.service.revoke_approval("ap-1", tenant="acme", reason="r", actor="user:2")
    with refused(bench, Conflict, code="APPROVAL_EXISTS"):
        grant(bench)


@pytest.mark.parametrize(
    "other,code",
    [
        ({"action_digest": "sha256"}, "BAD_DIGEST"),
        ({"action_digest": None}, "BAD_DIGEST"),
        ({"expires_at": START}, "APPROVAL_EXPIRED"),
        ({"expires_at": datetime(2027, 1, 1)}, "BAD_INSTANT"),  # noqa: DTZ001 - what is refused
        ({"reason": " "}, "BAD_ARGUMENT"),
        ({"actor": None}, "ACTOR_REQUIRED"),
        ({"actor": ""}, "BAD_ARGUMENT"),
        ({"tenant": None}, "TENANT_REQUIRED"),
        ({"policy": {}}, "ENVELOPE_VALUE"),
        ({"reference": ""}, "BAD_ARGUMENT"),
    ],
)
def test_a_grant_is_checked_before_any_row(bench: Bench, other: dict[str, Any], code: str) -> None:
    with refused(bench, Invalid, code=code):
        bench.service.grant_approval(**{"reference": "ap-1", **grant_of(bench), **other})
    assert grant(bench).state == "granted"


def test_approvals_are_seen_in_their_tenant_alone(bench: Bench) -> None:
    grant(bench)
    rival = bench.bound("rival", "user:8")
    for ask in (
        lambda s: s.get_approval("ap-1"),
        lambda s: s.revoke_approval("ap-1", reason="r"),
    ):
        with refused(bench, NotFound) as caught:
            ask(rival)
        with refused(bench, NotFound) as unknown:
            ask(bench.bound("acme", "user:8")) if ask is None else bench.bound("acme").get_approval("ap-0")
        assert str(caught.value).replace("ap-1", "") == str(unknown.value).replace("ap-0", "")
    assert rival.list_approvals() == []
    with refused(bench, Invalid, code="TENANT_MISMATCH"):
        rival.get_approval("ap-1", tenant="acme")
    own = bench.bound("acme", "user:8")
    assert [one.reference for one in own.list_approvals()] == ["ap-1"]
    assert own.revoke_approval("ap-1", reason="r").revoked_by == "user:8"


def test_approvals_are_listed_by_reference_state_and_action(bench: Bench) -> None:
    for nth in range(5):
        grant(bench, f"ap-{nth}", expires_at=START + timedelta(hours=1 + nth))
    other = grant(bench, "zz", action_digest="v1:" + "0" * 64, expires_at=START + timedelta(days=1))
    begin(bench.service, held(bench, reference="ap-3").lease)
    bench.service.revoke_approval("ap-4", tenant="acme", reason="r", actor="user:2")
    bench.advance(hours=1)
    own = bench.bound("acme")
    states = {one.reference: one.state.value for one in own.list_approvals()}
    assert states == {
        "ap-0": "expired", "ap-1": "granted", "ap-2": "granted", "ap-3": "consumed", "ap-4": "revoked", "zz": "granted",
    }  # fmt: skip
    assert [one.reference for one in own.list_approvals(state="granted", limit=2)] == ["ap-1", "ap-2"]
    assert [one.reference for one in own.list_approvals(limit=2, after="ap-1")] == ["ap-2", "ap-3"]
    assert own.list_approvals(action_digest=other.action_digest) == [other]
    with refused(bench, Invalid):
        own.list_approvals(state="allowed")
    with refused(bench, Invalid):
        own.list_approvals(limit=0)


def test_a_person_decides_in_a_transaction_of_their_own(bench: Bench) -> None:
    scope = Scope("acme", "user:1")
    fields = {name: value for name, value in grant_of(bench).items() if name not in {"tenant", "actor"}}
    with contextlib.suppress(KeyError), bench.transaction() as tx:
        tx.run(verbs.grant_approval(scope, "ap-1", **fields))
        raise KeyError
    assert bench.bound("acme").list_approvals() == []
    with bench.transaction() as tx:
        tx.run(verbs.grant_approval(scope, "ap-1", **fields))
        tx.run(revoke_approval("acme", "ap-1", "r", "user:1"))
        assert tx.run(verbs.get_approval(scope, "ap-1")).state == "revoked"
    assert [one.state for one in bench.bound("acme").list_approvals()] == ["revoked"]


# --- restore ----------------------------------------------------------------------------------------------------------


def test_a_revocation_is_replayed_on_a_restored_copy(bench: Bench) -> None:
    grant(bench)
    older = bench.snapshot()
    bench.advance(minutes=1)
    grant(bench, "ap-2")
    at = bench.advance(minutes=1)
    for one in ("ap-1", "ap-2"):
        bench.service.revoke_approval(one, tenant="acme", reason="not any more", actor="user:2")
    known = bench.run(every_revocation())
    assert [one.reference for one in known] == ["ap-1", "ap-2"]
    assert bench.run(every_revocation(page=1)) == bench.run(every_revocation(page=2)) == known
    kept = [json.loads(json.dumps(restriction(one))) for one in known]
    assert [(one["kind"], one["key"]) for one in kept] == [
        ("approval_revoked", ["acme", "ap-1"]), ("approval_revoked", ["acme", "ap-2"]),
    ]  # fmt: skip
    bench.restore(older)
    case = held(bench)
    assert bench.service.get_approval("ap-1", tenant="acme").state == "granted"
    entries = [read_restriction(one) for one in kept]
    assert bench.run(replay_revocations(entries)) == 2
    assert bench.run(replay_revocations(entries)) == 0
    not_admitted(bench, case, "REVOKED")
    first = bench.service.get_approval("ap-1", tenant="acme")
    assert (first.revoked_at, first.revoked_by, first.revoke_reason) == (at, "user:2", "not any more")
    # An approval that this copy never knew cannot be granted again.
    with refused(bench, Conflict, code="APPROVAL_EXISTS"):
        grant(bench, "ap-2")
    # Control: what was never revoked stands.
    grant(bench, "ap-3")
    assert begin(bench.service, held(bench, "k-2", reference="ap-3").lease)


@pytest.mark.parametrize("spoil", [{"kind": "tenant_frozen"}, {"revoked_at": "yesterday"}, {"tenant": None}])
def test_what_is_no_revocation_is_not_replayed(bench: Bench, spoil: dict[str, Any]) -> None:
    grant(bench)
    entry = restriction(bench.service.revoke_approval("ap-1", tenant="acme", reason="r", actor="user:2"))
    assert read_restriction(entry).reference == "ap-1"
    with refused(bench, Invalid, code="BAD_RESTRICTION"):
        read_restriction({**entry, **spoil})


def test_the_kind_of_the_suite_is_the_one_approved() -> None:
    assert digest(kind=KIND) == digest() != digest(kind="other")
