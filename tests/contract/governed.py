"""Governed jobs and what approves them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tenure.rules.approval import Approval, ApprovalState, action_digest
from tenure.rules.envelope import GovernanceInput
from tenure.rules.outcome import FailedBeforeDispatch
from tests.contract.bench import START, Bench
from tests.contract.build import KIND, PAYLOAD, Case, begin, claim, create

GOVERNANCE = GovernanceInput(
    action_intent={"send": "quote"},
    capability="mail.send",
    policy={"name": "p-7"},
    budget={"eur": 1},
    approval_reference="ap-1",
    issued_at=START - timedelta(hours=1),
    expires_at=START + timedelta(hours=2),
)
LIFE = timedelta(hours=1)


def digest(**other: Any) -> str:
    """Compute the digest of the action that `held` creates."""
    given: dict[str, Any] = {
        "organization": "acme",
        "project": "p1",
        "kind": KIND,
        "payload": PAYLOAD,
        "governance": GOVERNANCE,
    }
    return action_digest(**{**given, **other})


def grant_of(bench: Bench, **other: Any) -> dict[str, Any]:
    """Give the arguments that approve what `held` creates."""
    given: dict[str, Any] = {
        "tenant": "acme",
        "action_digest": digest(),
        "expires_at": START + LIFE,
        "actor": "user:1",
        "reason": "looked at it",
    }
    return {**given, **other}


def grant(bench: Bench, reference: str = "ap-1", **other: Any) -> Approval:
    return bench.service.grant_approval(reference, **grant_of(bench, **other))


def held(bench: Bench, key: str = "k-1", *, reference: str | None = "ap-1", **fields: Any) -> Case:
    """Create a governed job and claim it; its lease outlives the approval."""
    governance = replace(fields.pop("governance", GOVERNANCE), approval_reference=reference)
    create(bench.service, key, governance=governance, lease_duration=timedelta(days=1), **fields)
    taken = claim(bench.service, start=True)
    return Case(taken.job.id, taken.lease)


def governed(
    approved: str | None, *, revoked: bool = False, begun: bool = False, unsent: bool = False
) -> Callable[[Bench], Case]:
    """Make the builder of a held governed job: approved or not, revoked again, with an effect that was begun."""

    def build(bench: Bench) -> Case:
        if approved is not None:
            grant(bench, approved)
        case = held(bench)
        if begun or unsent:
            begin(bench.service, case.lease)
        if unsent:
            bench.service.finish_effect(case.lease, name="send", outcome=FailedBeforeDispatch("down"))
        if revoked:
            bench.service.revoke_approval("ap-1", tenant="acme", reason="not any more", actor="user:2")
        return case

    return build


def forgotten(bench: Bench) -> Approval:
    """Give a revocation of `ap-1` as a ledger has it, which this database does not know."""
    known = bench.service.get_approval("ap-1", tenant="acme")
    return replace(
        known, state=ApprovalState.REVOKED, revoked_at=bench.now, revoked_by="user:2", revoke_reason="not any more"
    )
