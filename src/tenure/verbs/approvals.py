"""Verbs about approvals: what a person decides about one action, before a governed job may dispatch it."""

from __future__ import annotations

from datetime import datetime

from tenure.errors import Invalid
from tenure.flows import authority
from tenure.procedures import approvals
from tenure.rules.approval import Approval, ApprovalState, new_approval
from tenure.rules.creation import check_member, check_text
from tenure.rules.envelope import Fact
from tenure.verbs.scope import Scope
from tenure.yields import Flow, Procedure, new_id


def grant_approval(
    scope: Scope,
    reference: str,
    *,
    action_digest: str,
    expires_at: datetime,
    reason: str,
    actor: str | None = None,
    tenant: str | None = None,
    capability: Fact | None = None,
    policy: Fact | None = None,
    budget: Fact | None = None,
) -> Procedure[Approval]:
    """
    Approve one action, by its digest; the same grant again gives the same approval.

    Args:
        reference: Its name within the tenant; what a job's `GovernanceInput` names as `approval_reference`.
        action_digest: From `tenure.action_digest` or `Tenure.action_digest`.
        expires_at: From when on it allows nothing, by the store's clock.
        actor: The person who decides; required.
        tenant: Whose it is; the binding's when left out.
        capability, policy, budget: What the person was shown, text or a JSON object; where given, the job's envelope
            has to say the same.
    Raises:
        Invalid: BAD_DIGEST, APPROVAL_EXPIRED, ACTOR_REQUIRED, TENANT_REQUIRED, or the name of what is wrong.
        Conflict: The reference stands for another decision, or for one that was revoked.
    """
    return approvals.grant_approval(
        new_approval(
            tenant=_owner(scope, tenant),
            reference=reference,
            action_digest=action_digest,
            expires_at=expires_at,
            granted_by=scope.who(actor),
            reason=reason,
            capability=capability,
            policy=policy,
            budget=budget,
        )
    )


def revoke_approval(
    scope: Scope, reference: str, *, reason: str, actor: str | None = None, tenant: str | None = None
) -> Flow[Approval]:
    """
    Revoke an approval for good: from now on no effect begins under it, not even a job's second one.

    A call whose intent was committed before is not undone. One that is revoked already keeps its first reason. Where
    the database has an authority ledger, the revocation is in it as well, and a recovery of an older copy replays it.

    Args:
        reference: Its name within the tenant.
        actor: The person who decides; required.
        tenant: Whose it is; the binding's when left out.
    Raises:
        NotFound: There is none of this name in this tenant.
        Refused: DATABASE_FROZEN.
        Unavailable: The ledger or the database did not answer; what the ledger has as pending will be applied.
    Locks: the approval. Writes: the ledger, approval.
    """
    owner = _owner(scope, tenant)
    check_text("reason", reason)
    check_text("reference", reference)
    return authority.revoke_approval(scope.ledger, new_id(), owner, reference, scope.who(actor), reason)


def get_approval(scope: Scope, reference: str, *, tenant: str | None = None) -> Procedure[Approval]:
    """
    Give one approval, with its state now.

    Args:
        reference: Its name within the tenant.
        tenant: Whose it is; the binding's when left out.
    Raises:
        NotFound: There is none of this name in this tenant.
    """
    return approvals.get_approval(_owner(scope, tenant), check_text("reference", reference))


def list_approvals(
    scope: Scope,
    *,
    tenant: str | None = None,
    state: ApprovalState | str | None = None,
    action_digest: str | None = None,
    limit: int = 100,
    after: str | None = None,
) -> Procedure[list[Approval]]:
    """
    Give a tenant's approvals by reference, with their states now.

    Args:
        tenant: Whose they are; the binding's when left out.
        state: Only these: granted, consumed, expired or revoked.
        action_digest: Only those for this action.
        limit: At most 1,000.
        after: The reference of the last one of the page before.
    """
    if after is not None:
        check_text("after", after)
    if action_digest is not None:
        check_text("action_digest", action_digest)
    return approvals.list_approvals(
        _owner(scope, tenant),
        state=None if state is None else check_member("state of an approval", state, ApprovalState),
        action_digest=action_digest,
        limit=limit,
        after=after,
    )


def _owner(scope: Scope, tenant: str | None) -> str:
    owner = scope.narrow(tenant)
    if owner is None:
        raise Invalid(
            "say whose approval it is: tenant=, or bind one with DurableJobService(..., tenant=...)",
            code="TENANT_REQUIRED",
        )
    return owner
