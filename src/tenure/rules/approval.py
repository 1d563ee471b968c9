"""
An approval: a person's decision about one action, bound to the digest of exactly that action.

    granted ──▶ consumed        by the job whose begin it first allows, together with that job's first intent
       │           │
       ├───────────┴──▶ expired   by the store's clock; at its very expiry it allows nothing any more
       └───────────┴──▶ revoked   by a person; no way leads back, and revocation wins over all else

The digest can be computed before the job exists, so that a person decides about this action and no other. What an
approval is worth at a dispatch is said in `admission.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from tenure.errors import Conflict, Invalid, echo
from tenure.rules.bounds import check_whole
from tenure.rules.creation import check_instant, check_text
from tenure.rules.digest import digest, payload_digest, same
from tenure.rules.envelope import FACT_KEYS, GOVERNANCE_KEY, Fact, GovernanceInput, check_fact
from tenure.rules.outcome import Json

_DIGEST = re.compile(r"v1:[0-9a-f]{64}")
_SHOWN = ("capability", "policy", "budget")


class ApprovalState(StrEnum):
    """How an approval stands; `expired` is never written, it is what the clock says."""

    GRANTED = "granted"
    CONSUMED = "consumed"
    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """
    A person's decision that one action may be dispatched.

    Attributes:
        reference: Its name within the tenant; what a governance envelope names.
        action_digest: What was approved; see `action_digest`.
        state: As of the store's clock when it was read.
        capability, policy, budget: What the person was shown, where that was recorded; the envelope has to agree.
        consumed_by: The job that uses it.
    """

    tenant: str
    reference: str
    action_digest: str
    state: ApprovalState = ApprovalState.GRANTED
    capability: Fact | None = None
    policy: Fact | None = None
    budget: Fact | None = None
    granted_by: str
    grant_reason: str
    granted_at: datetime
    expires_at: datetime
    revoked_at: datetime | None = None
    revoked_by: str | None = None
    revoke_reason: str | None = None
    consumed_by: UUID | None = None
    consumed_at: datetime | None = None


# --- the digest -------------------------------------------------------------------------------------------------------


def action_digest(
    *,
    organization: str,
    project: str,
    kind: str,
    payload: Mapping[str, Json],
    governance: GovernanceInput,
    kind_version: int = 1,
    tenant: str | None = None,
) -> str:
    """
    Hash an action, before its job exists, so that a person can approve exactly that one.

    Binds: tenant, organization, project; kind and its version; the payload without its reserved keys; of the governance
    input the action intent, capability, policy and budget. Not the job, its idempotency key, its actor and trace, the
    approval's reference, or any time: those are not known yet, or are the approval's own.

    Args:
        tenant: The organization when left out, as in `create_job`.
        payload: As it will be stored; of a typed payload, `Tenure.action_digest` makes it.
    Raises:
        Invalid: What `create_job` would refuse.
    """
    if not isinstance(governance, GovernanceInput):
        raise Invalid("governance must be a tenure.GovernanceInput", code="BAD_ARGUMENT")
    check_whole("kind_version", kind_version)
    if not isinstance(payload, Mapping):
        raise Invalid("the payload is not a JSON object", code="PAYLOAD_INVALID")
    owner = check_text("organization", organization)
    facts = {key: check_fact(getattr(governance, key), f"{GOVERNANCE_KEY}.{key}") for key in FACT_KEYS}
    return digest_of_action(
        check_text("tenant", owner if tenant is None else tenant),
        owner,
        check_text("project", project),
        check_text("kind", kind),
        kind_version,
        payload,
        facts,
    )


def digest_of_action(
    tenant: str,
    organization: str,
    project: str,
    kind: str,
    kind_version: int,
    payload: Mapping[str, Json],
    facts: Mapping[str, Json],
) -> str:
    """See `action_digest`; of parts that were checked before."""
    bound: dict[str, Json] = {
        "tenant": tenant,
        "organization": organization,
        "project": project,
        "kind": kind,
        "kind_version": kind_version,
        "payload": payload_digest(kind, payload),
        **facts,
    }
    return digest(bound)


# --- a person's moves -------------------------------------------------------------------------------------------------


def new_approval(
    *,
    tenant: str,
    reference: str,
    action_digest: str,
    expires_at: datetime,
    granted_by: str,
    reason: str,
    capability: Fact | None = None,
    policy: Fact | None = None,
    budget: Fact | None = None,
) -> Approval:
    """
    Check a grant; its time is set by `granted`.

    Raises:
        Invalid: By name; BAD_DIGEST for what is no digest of an action.
    """
    if not isinstance(action_digest, str) or not _DIGEST.fullmatch(action_digest):
        raise Invalid(
            f"{echo(action_digest)} is not the digest of an action; compute it with tenure.action_digest(...)",
            code="BAD_DIGEST",
        )
    until = check_instant("expires_at", expires_at)
    return Approval(
        tenant=check_text("tenant", tenant),
        reference=check_text("reference", reference),
        action_digest=action_digest,
        granted_by=check_text("actor", granted_by),
        grant_reason=check_text("reason", reason),
        granted_at=until,
        expires_at=until,
        capability=None if capability is None else check_fact(capability, "capability"),
        policy=None if policy is None else check_fact(policy, "policy"),
        budget=None if budget is None else check_fact(budget, "budget"),
    )


def granted(new: Approval, now: datetime) -> Approval:
    """
    Grant it now.

    Raises:
        Invalid: APPROVAL_EXPIRED, it would be over already.
    """
    if now >= new.expires_at:
        raise Invalid(
            f"an approval that expires at {new.expires_at.isoformat()} would allow nothing: it is "
            f"{now.isoformat()} by the store's clock",
            code="APPROVAL_EXPIRED",
        )
    return replace(new, granted_at=now)


def agree(known: Approval, new: Approval) -> Approval:
    """
    Answer a grant whose reference is known: the same decision is the same approval.

    Raises:
        Conflict: APPROVAL_EXISTS, it means something else, or does not stand any more.
    """
    alike = replace(
        new,
        state=known.state,
        granted_at=known.granted_at,
        grant_reason=known.grant_reason,
        consumed_by=known.consumed_by,
        consumed_at=known.consumed_at,
        **{key: getattr(known, key) for key in _SHOWN},
    )
    if alike != known or not all(same(getattr(new, key), getattr(known, key)) for key in _SHOWN):
        raise Conflict(
            f"approval {echo(new.reference)} exists and {_differs(known, new)}; grant under another reference, and "
            "create the job with that one",
            code="APPROVAL_EXISTS",
        )
    return known


def _differs(known: Approval, new: Approval) -> str:
    """Say what keeps a grant from being the known one, names and instants only."""
    if known.state is ApprovalState.REVOKED:
        return "is revoked"
    names = [key for key in _SHOWN if not same(getattr(new, key), getattr(known, key))]
    if known.action_digest != new.action_digest:
        names.insert(0, "action")
    if known.granted_by != new.granted_by:
        names.append("granted_by")
    if names:
        return f"was given for something else (differs: {', '.join(names)})"
    over = "expired" if known.state is ApprovalState.EXPIRED else "expires"
    return f"{over} at {known.expires_at.isoformat()}, which no later grant changes"


def revoked(approval: Approval, actor: str, reason: str, now: datetime) -> Approval:
    """Revoke it; one that is revoked already stays as it is, with the first reason."""
    if approval.revoked_at is not None:
        return approval
    return at(replace(approval, revoked_at=now, revoked_by=actor, revoke_reason=reason), now)


def at(approval: Approval, now: datetime) -> Approval:
    """Give an approval with its state at this instant."""
    state = ApprovalState.GRANTED
    if approval.revoked_at is not None:
        state = ApprovalState.REVOKED
    elif now >= approval.expires_at:
        state = ApprovalState.EXPIRED
    elif approval.consumed_by is not None:
        state = ApprovalState.CONSUMED
    return replace(approval, state=state)


# --- what outlives the database ---------------------------------------------------------------------------------------

RESTRICTION = "approval_revoked"
_INSTANTS = ("granted_at", "expires_at", "revoked_at")
_TEXTS = ("tenant", "reference", "action_digest", "granted_by", "grant_reason", "revoked_by", "revoke_reason")


def restriction(approval: Approval) -> dict[str, Json]:
    """
    Write a revocation as a JSON object for a ledger outside the database: its kind, its key, what to replay.

    The key is tenant and reference: a revocation is never taken back, so that writing it twice says nothing new.
    """
    assert approval.revoked_at is not None, "only a revocation is a restriction"
    values = {name: getattr(approval, name) for name in _TEXTS}
    times = {name: getattr(approval, name).isoformat() for name in _INSTANTS}
    return {"kind": RESTRICTION, "key": [approval.tenant, approval.reference], **values, **times}


def read_restriction(entry: Mapping[str, Any]) -> Approval:
    """
    Read what `restriction` wrote.

    Raises:
        Invalid: BAD_RESTRICTION, it is something else or incomplete.
    """
    try:
        values: dict[str, Any] = {name: check_text(name, entry[name]) for name in _TEXTS}
        values |= {name: check_instant(name, datetime.fromisoformat(entry[name])) for name in _INSTANTS}
    except (KeyError, TypeError, ValueError, Invalid):
        values = {}
    if not values or entry.get("kind") != RESTRICTION:
        raise Invalid(
            "this is not the revocation of an approval as a ledger keeps it; see which release wrote the ledger",
            code="BAD_RESTRICTION",
        )
    return Approval(state=ApprovalState.REVOKED, **values)
