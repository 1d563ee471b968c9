"""
What a job must have to be created, checked before any row is written.

Everything a caller gives is checked here, with the path or the name of what is wrong. The record that comes out has its
envelopes built and its payload encoded; only the tenant's epoch and the clock are missing, which the store knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from tenure.errors import Invalid, echo
from tenure.rules.digest import payload_digest
from tenure.rules.envelope import (
    EXECUTION_KEY,
    GOVERNANCE_KEY,
    ExecutionInput,
    GovernanceInput,
    agree_tenant,
    build_execution_envelope,
    build_governance_envelope,
    refuse_reserved,
)
from tenure.rules.job import DEFAULT_OPTIONS, Options
from tenure.rules.lease import check_duration
from tenure.rules.payload import check_payload, decode, encode

TEXT_MAX = 200
PRIORITY_MAX = 32_767
ATTEMPTS_MAX = 10_000
BACKOFF_MIN, BACKOFF_MAX = timedelta(milliseconds=1), timedelta(hours=1)
SCHEDULED_MAX = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job that is ready to be written; `scheduled_at` None means at once."""

    job_id: UUID
    tenant: str
    organization: str
    project: str
    idempotency_key: str
    kind: str
    kind_version: int
    payload: Mapping[str, Any]
    payload_text: str
    payload_digest: str
    subject: str | None
    queue: str
    priority: int
    max_attempts: int
    backoff_base: timedelta
    lease_duration: timedelta
    scheduled_at: datetime | None
    on_reconciled: str | None
    on_declined: str
    options: Options


def new_job(
    *,
    job_id: UUID,
    bound_tenant: str | None = None,
    organization: str,
    project: str,
    idempotency_key: str,
    kind: str,
    payload: Mapping[str, Any],
    kind_version: int = 1,
    tenant: str | None = None,
    subject: str | None = None,
    queue: str = "default",
    priority: int = 0,
    max_attempts: int = 3,
    backoff_base: timedelta = timedelta(seconds=30),
    lease_duration: timedelta = timedelta(seconds=60),
    scheduled_at: datetime | None = None,
    on_reconciled: str | None = None,
    on_declined: str = "failed",
    execution: ExecutionInput | None = None,
    governance: GovernanceInput | None = None,
    options: Options = DEFAULT_OPTIONS,
) -> NewJob:
    """
    Check a creation and build what is written.

    Args:
        bound_tenant: The tenant the service is bound to.
        tenant: Must agree with the binding and the execution input; the organization when none is given.
    Raises:
        Invalid: The first thing that is wrong, by name.
    """
    for name, value in (
        ("organization", organization),
        ("project", project),
        ("idempotency_key", idempotency_key),
        ("kind", kind),
        ("queue", queue),
    ):
        check_text(name, value)
    if ":" in kind or "#" in kind:
        raise Invalid(f"a kind holds no ':' or '#', they separate operation keys: {echo(kind)}", code="BAD_ARGUMENT")
    if subject is not None:
        check_text("subject", subject)
    for what, given, kind_of in (
        ("execution", execution, ExecutionInput),
        ("governance", governance, GovernanceInput),
    ):
        if given is not None and not isinstance(given, kind_of):
            raise Invalid(f"{what} must be a tenure.{kind_of.__name__}", code="BAD_ARGUMENT")
    owner = check_text(
        "tenant",
        agree_tenant(bound_tenant, tenant, execution.tenant if execution is not None else None, organization),
    )
    _check_number("kind_version", kind_version, 1, 2**31 - 1)
    _check_number("priority", priority, -PRIORITY_MAX, PRIORITY_MAX)
    _check_number("max_attempts", max_attempts, 1, ATTEMPTS_MAX)
    _check_choice("on_reconciled", on_reconciled, (None, "complete", "resume"))
    _check_choice("on_declined", on_declined, ("failed", "dead_letter"))
    if not isinstance(backoff_base, timedelta) or not BACKOFF_MIN <= backoff_base <= BACKOFF_MAX:
        raise Invalid(f"backoff_base must be a timedelta from {BACKOFF_MIN} to {BACKOFF_MAX}", code="BAD_DURATION")
    check_duration(lease_duration)
    if scheduled_at is not None:
        scheduled_at = check_instant("scheduled_at", scheduled_at)
    check_payload(payload)
    refuse_reserved(payload)
    whole = dict(payload)
    if execution is not None:
        whole[EXECUTION_KEY] = build_execution_envelope(
            execution, organization=organization, project=project, job_id=job_id, tenant=owner
        )
    if governance is not None:
        whole[GOVERNANCE_KEY] = build_governance_envelope(
            governance, organization=organization, project=project, job_id=job_id, tenant=owner
        )
    text = encode(whole)
    return NewJob(
        job_id=job_id,
        tenant=owner,
        organization=organization,
        project=project,
        idempotency_key=idempotency_key,
        kind=kind,
        kind_version=kind_version,
        # What is stored, not what the caller may still change.
        payload=decode(text),
        payload_text=text,
        payload_digest=payload_digest(kind, payload),
        subject=subject,
        queue=queue,
        priority=priority,
        max_attempts=max_attempts,
        backoff_base=backoff_base,
        lease_duration=lease_duration,
        scheduled_at=scheduled_at,
        on_reconciled=on_reconciled,
        on_declined=on_declined,
        options=options,
    )


def check_text(name: str, value: str) -> str:
    """Require non-empty printable text of a bounded length."""
    if not isinstance(value, str) or not value.strip():
        raise Invalid(f"{name} must be non-empty text", code="BAD_ARGUMENT")
    if len(value) > TEXT_MAX:
        raise Invalid(f"{name} has {len(value)} characters, the limit is {TEXT_MAX}", code="BAD_ARGUMENT")
    if not value.isprintable():
        raise Invalid(f"{name} holds a character that cannot be printed: {echo(value)}", code="BAD_ARGUMENT")
    return value


def check_id(name: str, value: UUID) -> UUID:
    """Require an id: the text of one would be found in one database and not in the other."""
    if not isinstance(value, UUID):
        raise Invalid(f"{name} must be a uuid.UUID, not {type(value).__name__}", code="NOT_AN_ID")
    return value


def check_instant(name: str, value: datetime) -> datetime:
    """Require an aware instant before the year 9999."""
    if not isinstance(value, datetime) or value.tzinfo is None or value.utcoffset() is None:
        raise Invalid(f"{name} must be an aware datetime, for example datetime.now(UTC)", code="BAD_INSTANT")
    if value >= SCHEDULED_MAX:
        raise Invalid(f"{name} must be before the year 9999", code="BAD_INSTANT")
    return value.astimezone(UTC)


def _check_number(name: str, value: int, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise Invalid(f"{name} must be a whole number from {low} to {high}, not {echo(value)}", code="BAD_ARGUMENT")


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise Invalid(f"{name} must be one of {', '.join(map(repr, choices))}, not {echo(value)}", code="BAD_ARGUMENT")
