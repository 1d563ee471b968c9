"""The governance envelope: what an authority decided about an action before its job was queued."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import TypeAlias
from uuid import UUID

from tenure.errors import Invalid
from tenure.rules.digest import digest
from tenure.rules.envelope.shape import (
    ROW_SHAPE,
    Problem,
    Row,
    Shape,
    differences,
    malformed,
    read_envelope,
    read_instant,
    read_text,
    require_text,
    text_problem,
    write_row,
)
from tenure.rules.outcome import Json
from tenure.rules.payload import check_json, decode, encode

GOVERNANCE_KEY = "governance"
FACT_KEYS = ("action_intent", "capability", "policy", "budget")
FACT_DEPTH_MAX = 20
CLOCK_SKEW = timedelta(minutes=5)  # a producer's clock may run ahead of the store's by so much

Fact: TypeAlias = "str | dict[str, Json]"


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernanceInput:
    """
    What an authority decided before the job was queued; the only way to write a governance envelope.

    Attributes:
        action_intent: What is to be done: text or a JSON object, like the three below; never empty.
        capability: By what permission.
        policy: Under which policy.
        budget: Within which budget.
        approval_reference: The approval to ask for when an effect begins.
        issued_at: When this was decided.
        expires_at: From when on it no longer allows a dispatch.
    """

    action_intent: Fact
    capability: Fact
    policy: Fact
    budget: Fact
    issued_at: datetime
    expires_at: datetime
    approval_reference: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Governance:
    """A governance envelope as it was read: complete and well formed, its digest not yet recomputed."""

    tenant: str
    organization: str
    project: str
    job: UUID
    action_intent: Fact
    capability: Fact
    policy: Fact
    budget: Fact
    issued_at: datetime
    expires_at: datetime
    digest: str
    approval_reference: str | None = None


# --- creation ---------------------------------------------------------------------------------------------------------


def build_governance_envelope(
    given: GovernanceInput, /, *, organization: str, project: str, job_id: UUID, tenant: str
) -> dict[str, Json]:
    """
    Write a governance envelope, bound to its job, with a digest over all else in it.

    Raises:
        Invalid: ENVELOPE_VALUE or BAD_INSTANT, naming the field; or a code of `check_json` for a fact.
    """
    envelope = write_row(GOVERNANCE_KEY, None, tenant, organization, project, job_id)
    for key in FACT_KEYS:
        envelope[key] = check_fact(getattr(given, key), f"{GOVERNANCE_KEY}.{key}")
    if given.approval_reference is not None:
        envelope["approval_reference"] = require_text(given.approval_reference, f"{GOVERNANCE_KEY}.approval_reference")
    issued_at = _utc(given.issued_at, f"{GOVERNANCE_KEY}.issued_at")
    expires_at = _utc(given.expires_at, f"{GOVERNANCE_KEY}.expires_at")
    if expires_at <= issued_at:
        raise Invalid(f"{GOVERNANCE_KEY}.expires_at is not after issued_at", code="ENVELOPE_VALUE")
    envelope["issued_at"] = _instant(issued_at)
    envelope["expires_at"] = _instant(expires_at)
    envelope["digest"] = governance_digest(envelope)
    return envelope


def governance_digest(envelope: Mapping[str, Json]) -> str:
    """
    Hash a governance envelope.

    Binds: every key of it but `digest`: job, tenant, organization, project, the facts, the approval's reference, both
    instants.
    """
    return digest({key: value for key, value in envelope.items() if key != "digest"})


def check_fact(value: Fact, where: str) -> Fact:
    """
    Check a fact and give a copy of it.

    Raises:
        Invalid: ENVELOPE_VALUE, or a code of `check_json`.
    """
    problem = _fact_problem(value)
    if problem is not None:
        raise Invalid(f"{where} {problem}", code="ENVELOPE_VALUE")
    check_json(value, root=where, max_depth=FACT_DEPTH_MAX)
    # A copy as it will be read back: what the caller does to the original later does not reach the envelope.
    copy: Fact = decode(encode(value))
    return copy


def _utc(at: datetime, where: str) -> datetime:
    if not isinstance(at, datetime):
        raise Invalid(f"{where} is of type {type(at).__name__}; it must be an aware datetime", code="BAD_INSTANT")
    if at.utcoffset() is None:
        raise Invalid(f"{where} has no time zone; use datetime.now(UTC)", code="BAD_INSTANT")
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise Invalid(f"{where} is outside of the years 1 to 9999", code="BAD_INSTANT") from None


def _instant(at: datetime) -> str:
    return at.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


# --- reading ----------------------------------------------------------------------------------------------------------


def read_governance(job: Row) -> Governance | None:
    """
    Read a job's governance envelope; None if it has none.

    Raises:
        Invalid: ENVELOPE_MALFORMED, with everything that is wrong with it.
    """
    values, problems = read_envelope(job.payload, GOVERNANCE_KEY, _GOVERNANCE_SHAPE, nullable=())
    if problems:
        raise malformed(job, problems)
    return None if values is None else Governance(**values)


def reference_in(job: Row) -> str | None:
    """Give the approval that a job's governance envelope names; None where it names none, or in no readable way."""
    envelope = job.payload.get(GOVERNANCE_KEY)
    reference = envelope.get("approval_reference") if isinstance(envelope, dict) else None
    return reference if text_problem(reference) is None else None


def judge_governance(job: Row, now: datetime) -> list[tuple[str, str]]:
    """
    Give every reason, in order, why this job's governance envelope does not allow a dispatch now; its code comes first.

    Without an envelope there is none. What stands in the envelope is not enough: whether the approval still stands only
    its store can say; see `tenure.rules.approval`.

    Args:
        now: The store's time. The envelope has expired at its very expiry.
    """
    now = _utc(now, "now")
    values, problems = read_envelope(job.payload, GOVERNANCE_KEY, _GOVERNANCE_SHAPE, nullable=())
    reasons = [("MALFORMED", problem) for problem in problems]
    if values is None:
        return reasons
    reasons += [
        ("FOREIGN_TENANT" if text == _FOREIGN else "OTHER_JOB", text)
        for text in differences(values, GOVERNANCE_KEY, job)
    ]
    if problems:
        return reasons
    if governance_digest(job.payload[GOVERNANCE_KEY]) != values["digest"]:
        reasons.append(("ALTERED", "governance.digest is not the digest of the envelope"))
    if values["issued_at"] - now > CLOCK_SKEW:
        reasons.append(("NOT_YET_VALID", "governance.issued_at lies in the future"))
    if now >= values["expires_at"]:
        reasons.append(("ENVELOPE_EXPIRED", "governance.expires_at has passed"))
    return reasons


_FOREIGN = f"{GOVERNANCE_KEY}.tenant is not the job's"


def _fact_problem(value: object) -> str | None:
    if type(value) is dict:
        return None if value else "is empty"
    return text_problem(value)


def _read_fact(value: object) -> object:
    problem = _fact_problem(value)
    if problem is not None:
        return Problem(problem)
    try:
        check_json(value, max_depth=FACT_DEPTH_MAX)
    except Invalid as error:
        return Problem(f"is not storable: {error.code}")
    return value


_GOVERNANCE_SHAPE: Shape = {
    **ROW_SHAPE,
    **dict.fromkeys(FACT_KEYS, (True, _read_fact)),
    "approval_reference": (False, read_text),
    "issued_at": (True, read_instant),
    "expires_at": (True, read_instant),
    "digest": (True, read_text),
}
# See the execution envelope.
assert {field.name for field in fields(Governance)} == _GOVERNANCE_SHAPE.keys()
