"""
Admission: may this governed job dispatch now?

A governance envelope names an approval. At every dispatch the envelope is judged, the action's digest is computed again
from the row as it is locked, and the approval is read again under a lock of its own: whether it exists in this tenant,
is bound to this digest, was revoked, has expired, or was taken by another job. What the envelope says about itself is
never enough, and an envelope that names no approval allows nothing.

The first dispatch takes the approval for its job, together with its intent. Later ones of the same job pass while it is
neither revoked nor expired. Reading the receipt of an effect that has succeeded asks for no admission: nothing is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from tenure.errors import ApprovalRefused, echo
from tenure.rules.approval import Approval, at, digest_of_action
from tenure.rules.digest import canonical
from tenure.rules.envelope import FACT_KEYS, GOVERNANCE_KEY, judge_governance, reference_in
from tenure.rules.event import Event, EventName
from tenure.rules.job import Change, Job, note

# Why a dispatch is refused, and what a person does about it. The first six are about the envelope.
REASONS: Mapping[str, str] = {
    "MALFORMED": "its governance envelope is malformed; create the job again with governance=GovernanceInput(...)",
    "FOREIGN_TENANT": "its governance envelope is another tenant's; find out who wrote the row",
    "OTHER_JOB": "its governance envelope is another job's; find out who wrote the row",
    "ALTERED": "its governance envelope does not have its digest any more; find out who changed the row",
    "NOT_YET_VALID": "its governance envelope was issued in the future; look at the producer's clock",
    "ENVELOPE_EXPIRED": "its governance envelope has expired; create the job again under a new decision",
    "NO_REFERENCE": "its governance envelope names no approval; create it with approval_reference=...",
    "MISSING": "its approval is not known in its tenant; grant it, then retry the job",
    "REVOKED": "its approval was revoked; a new job needs a new approval",
    "EXPIRED": "its approval has expired; a new job needs a new approval",
    "OTHER_DIGEST": "its approval is for another action; grant one for this digest",
    "OTHER_FACTS": "its approval was given for another capability, policy or budget than its envelope says",
    "CONSUMED": "its approval was used by another job; each job needs its own",
}


@dataclass(frozen=True, slots=True)
class Admission:
    """
    A governed dispatch that is allowed.

    Attributes:
        consumed: The approval as this job takes it; None where it has it already.
    """

    reference: str
    consumed: Approval | None
    action_digest: str


def is_governed(job: Job) -> bool:
    """Say whether a job's dispatch needs an approval: it has a governance envelope, whatever that looks like."""
    return GOVERNANCE_KEY in job.payload


def admit(job: Job, approval: Approval | None, now: datetime) -> Admission | None:
    """
    Let a job dispatch; None where nothing governs it.

    Args:
        approval: What the store has under the envelope's reference, in the job's own tenant, read under its lock.
        now: The store's clock, read after that lock.
    Raises:
        ApprovalRefused: With every reason found, in order.
    """
    if not is_governed(job):
        return None
    reference = reference_in(job)
    reasons = [code for code, _ in judge_governance(job, now)]
    action = None
    if "MALFORMED" not in reasons:
        action = action_of(job)
        reasons += _standing(job, reference, approval, action, now)
    if reasons:
        raise refusal(job, reasons, reference)
    assert approval is not None, "an approval that is not there has no standing"
    assert reference is not None, "without a reference there is a reason"
    assert action is not None, "without a digest there is a reason"
    taken = None if approval.consumed_by == job.id else at(replace(approval, consumed_by=job.id, consumed_at=now), now)
    return Admission(reference, taken, action)


def _standing(
    job: Job, reference: str | None, approval: Approval | None, action: str | None, now: datetime
) -> list[str]:
    if reference is None:
        return ["NO_REFERENCE"]
    if approval is None:
        return ["MISSING"]
    assert (approval.tenant, approval.reference) == (job.tenant, reference), "another approval than was asked for"
    reasons = []
    if approval.action_digest != action:
        reasons.append("OTHER_DIGEST")
    envelope = job.payload[GOVERNANCE_KEY]
    shown = {"capability": approval.capability, "policy": approval.policy, "budget": approval.budget}
    if any(fact is not None and canonical(fact) != canonical(envelope[key]) for key, fact in shown.items()):
        reasons.append("OTHER_FACTS")
    if approval.revoked_at is not None:
        reasons.append("REVOKED")
    if now >= approval.expires_at:
        reasons.append("EXPIRED")
    if approval.consumed_by not in {None, job.id}:
        reasons.append("CONSUMED")
    return reasons


def refusal(job: Job, reasons: Sequence[str], reference: str | None) -> ApprovalRefused:
    """Word the refusal of a governed dispatch: ids and codes, nothing of any payload."""
    named = "" if reference is None else f" (approval {echo(reference)})"
    said = "; ".join(f"{REASONS[one]} [{one}]" for one in reasons)
    return ApprovalRefused(f"job {job.id} may not dispatch{named}: {said}", reasons=tuple(reasons))


def checked(job: Job, name: str, now: datetime, *, reasons: tuple[str, ...] = (), action: str | None) -> Event:
    """Make the event that says how an admission went."""
    data = {
        "effect": name,
        "allowed": not reasons,
        "reasons": list(reasons),
        "approval": reference_in(job),
        "action_digest": action,
    }
    return note(job, EventName.ADMISSION_CHECKED, now, data=data)


def admitted(change: Change, admission: Admission | None, name: str, now: datetime) -> Change:
    """Add to the change of a dispatch that it was admitted, and what it takes."""
    if admission is None:
        return change
    event = checked(change.job, name, now, action=admission.action_digest)
    return replace(change, events=(event, *change.events), approval=admission.consumed)


def not_admitted(job: Job, name: str, refused: ApprovalRefused, now: datetime) -> Change:
    """Give all that is written when a dispatch is refused: that it was, and why; the error follows the commit."""
    readable = "MALFORMED" not in refused.reasons
    event = checked(job, name, now, reasons=refused.reasons, action=action_of(job) if readable else None)
    return Change(job=job, events=(event,), error=refused)


def action_of(job: Job) -> str | None:
    """Compute the action digest of a job from its row; None where its governance envelope has not all the facts."""
    envelope = job.payload.get(GOVERNANCE_KEY)
    if not isinstance(envelope, dict) or not envelope.keys() >= set(FACT_KEYS):
        return None
    facts = {key: envelope[key] for key in FACT_KEYS}
    return digest_of_action(job.tenant, job.organization, job.project, job.kind, job.kind_version, job.payload, facts)
