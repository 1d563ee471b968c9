"""
Execution control: a hook of the app that is asked before each effect, and what its answer means.

In shadow its answer is written into the trail and stops nothing, so that a policy can be watched before it rules.
Enforced, an effect goes on only with an Allow: a Deny stops it for good, and no answer in time stops this attempt.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from tenure.errors import ExecutionStopped, TenureError, Unavailable
from tenure.rules.envelope import ExecutionIdentity
from tenure.rules.event import Event, EventName
from tenure.rules.job import Job, note

STOPPED, SILENT = "EXECUTION_STOPPED", "EXECUTION_CONTROL_SILENT"


class ControlMode(StrEnum):
    """Whether an app's execution control only watches, or rules."""

    SHADOW = "shadow"
    ENFORCED = "enforced"


@dataclass(frozen=True, slots=True)
class Allow:
    """The effect may go on."""


@dataclass(frozen=True, slots=True)
class Deny:
    """
    The effect must not go on.

    Attributes:
        reason: Why, for the trail and the job's error; keep what is secret out of it.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRequest:
    """
    What an execution control is asked about: ids and names; the request itself only as its digest.

    Attributes:
        attempt: The number of the attempt, from 1.
        effect: The effect's name.
        provider: The provider's name.
        request_digest: Digest of the request's canonical bytes.
        identity: Whom the work belongs to; None for a job without an execution envelope.
    """

    job_id: UUID
    tenant: str
    organization: str
    project: str
    kind: str
    kind_version: int
    attempt: int
    effect: str
    provider: str
    request_digest: str
    identity: ExecutionIdentity | None


@dataclass(frozen=True, slots=True)
class Judged:
    """
    What an execution control said about one effect.

    Attributes:
        said: allow, deny, or silent where it raised, was late or gave something else.
        reason: Of a denial or a silence.
    """

    mode: ControlMode
    said: str
    reason: str | None = None

    @property
    def stops(self) -> bool:
        """Whether the effect must not go on."""
        return self.mode is ControlMode.ENFORCED and self.said != "allow"


def watched(job: Job, effect: str, provider: str, digest: str, judged: Judged, now: datetime) -> Event:
    """Make the event that says what a control in shadow would have done."""
    would = "allow" if judged.said == "allow" else "stop"
    data = _data(effect, provider, digest, judged)
    return note(job, EventName.EXECUTION_CONTROL_SHADOW, now, data={"would": would, **data})


def stopped(job: Job, effect: str, provider: str, digest: str, judged: Judged, now: datetime) -> Event:
    """Make the event that says that a control stopped an effect."""
    code = STOPPED if judged.said == "deny" else SILENT
    data = {"allowed": False, "reasons": [code], **_data(effect, provider, digest, judged)}
    return note(job, EventName.ADMISSION_CHECKED, now, data=data)


def error_of(job_id: UUID, effect: str, judged: Judged) -> TenureError:
    """Word what the handler gets: a denial is for good, a silence may be over at the next attempt."""
    if judged.said == "deny":
        reason = judged.reason or "no reason was given"
        return ExecutionStopped(
            f"effect {effect!r} of job {job_id} was stopped by the execution control: {reason}", reason=reason
        )
    return Unavailable(
        f"effect {effect!r} of job {job_id} was not begun: {judged.reason}, and without its answer nothing goes on",
        code="EXECUTION_CONTROL_SILENT",
    )


def _data(effect: str, provider: str, digest: str, judged: Judged) -> dict[str, Any]:
    return {
        "effect": effect,
        "provider": provider,
        "request_digest": digest,
        "said": judged.said,
        "reason": judged.reason,
    }
