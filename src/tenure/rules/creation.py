"""
What a job must have to be created, checked before any row is written.

Everything a caller gives is checked here, with the path or the name of what is wrong. The record that comes out has its
envelopes built and its payload encoded; only the tenant's epoch and the clock are missing, which the store knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from tenure.errors import Invalid, echo
from tenure.rules.bounds import check_span, check_whole
from tenure.rules.digest import canonical, canonical_with, payload_digest_of
from tenure.rules.envelope import (
    EXECUTION_KEY,
    GOVERNANCE_KEY,
    ExecutionInput,
    GovernanceInput,
    agree_tenant,
    build_governance_envelope,
    refuse_reserved,
    write_execution_envelope,
)
from tenure.rules.job import DEFAULT_OPTIONS, Options
from tenure.rules.lease import check_duration
from tenure.rules.payload import (
    PAYLOAD_BYTES_MAX,
    check_object,
    check_size,
    decode,
    encode,
    encode_surveyed,
)
from tenure.rules.survey import survey

E = TypeVar("E", bound=StrEnum)

TEXT_MAX = 200
PRIORITY_MAX = 32_767
ATTEMPTS_MAX = 10_000
BACKOFF_MIN, BACKOFF_MAX = timedelta(milliseconds=1), timedelta(hours=1)
SCHEDULED_MAX = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What many jobs have in common: checked once, and shared by them."""

    tenant: str
    organization: str
    project: str
    kind: str
    kind_version: int
    queue: str
    priority: int
    max_attempts: int
    backoff_base: timedelta
    lease_duration: timedelta
    on_reconciled: str | None
    on_declined: str


class NewJob(NamedTuple):
    """
    A job that is ready to be written.

    A tuple, because one is made for every job: a frozen dataclass takes 2 us more.

    Attributes:
        id_text: The text of `job_id`.
        payload_text: As it is stored, with its envelopes.
        payload_bytes: The canonical bytes of the same.
        scheduled_at: None means at once.
    """

    frame: Frame
    job_id: UUID
    id_text: str
    idempotency_key: str
    subject: str | None
    scheduled_at: datetime | None
    options: Options
    payload_text: str
    payload_bytes: bytes
    payload_digest: str

    @property
    def tenant(self) -> str:
        """Isolation unit."""
        return self.frame.tenant

    @property
    def organization(self) -> str:
        """Owner."""
        return self.frame.organization

    @property
    def project(self) -> str:
        """Scope of the idempotency key."""
        return self.frame.project

    @property
    def kind(self) -> str:
        """Name of the code that performs it."""
        return self.frame.kind

    @property
    def kind_version(self) -> int:
        """Its version."""
        return self.frame.kind_version

    @property
    def queue(self) -> str:
        """Where it waits."""
        return self.frame.queue

    @property
    def priority(self) -> int:
        """Larger is sooner."""
        return self.frame.priority

    @property
    def max_attempts(self) -> int:
        """Budget of claims."""
        return self.frame.max_attempts

    @property
    def backoff_base(self) -> timedelta:
        """Doubled for each attempt."""
        return self.frame.backoff_base

    @property
    def lease_duration(self) -> timedelta:
        """How long a claim lasts."""
        return self.frame.lease_duration

    @property
    def on_reconciled(self) -> str | None:
        """What a settled effect does to it."""
        return self.frame.on_reconciled

    @property
    def on_declined(self) -> str:
        """What a declined effect makes of it."""
        return self.frame.on_declined

    @property
    def payload(self) -> dict[str, Any]:
        """What is stored, not what the caller may still change; read anew at each look."""
        stored: dict[str, Any] = decode(self.payload_text)
        return stored

    def __repr__(self) -> str:
        # A payload does not belong into a log.
        return f"<new job {self.id_text} of kind {self.kind}>"


def new_job(
    *,
    job_id: UUID,
    bound_tenant: str | None = None,
    organization: str,
    project: str,
    idempotency_key: str,
    kind: str,
    payload: Mapping[str, Any],
    traits: int | None = None,
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
    trace: str | None = None,
    governance: GovernanceInput | None = None,
    options: Options = DEFAULT_OPTIONS,
) -> NewJob:
    """
    Check a creation and build what is written.

    Args:
        bound_tenant: The tenant the service is bound to.
        traits: What `survey` found in this payload, where it was asked already.
        tenant: Must agree with the binding and the execution input; the organization when none is given.
        trace: Of the execution envelope, where the input has none.
    Raises:
        Invalid: The first thing that is wrong, by name.
    """
    said = execution.tenant if isinstance(execution, ExecutionInput) else None
    # What was found good before is not looked at again. With the types, because True and 1.0 are equal to 1.
    who = (bound_tenant, tenant, said, organization, project)
    limits = (kind_version, priority, max_attempts, backoff_base, lease_duration)
    given = (*who, kind, queue, *limits, on_reconciled, on_declined)
    shape = (given, tuple(map(type, given)))
    try:
        frame = _frames.get(shape)
    except TypeError:  # what has no hash is refused below, by name
        frame = None
    if frame is None:
        check_text("organization", organization)
        check_text("project", project)
    check_text("idempotency_key", idempotency_key)
    if frame is None:
        check_text("kind", kind)
        check_text("queue", queue)
        _check_separators(kind)
    if subject is not None:
        check_text("subject", subject)
    _check_inputs(execution, governance)
    if frame is None:
        owner = check_text("tenant", agree_tenant(bound_tenant, tenant, said, organization))
        check_whole("kind_version", kind_version, 2**31 - 1)
        check_whole("priority", priority, PRIORITY_MAX, least=-PRIORITY_MAX)
        check_whole("max_attempts", max_attempts, ATTEMPTS_MAX)
        _check_choice("on_reconciled", on_reconciled, (None, "complete", "resume"))
        _check_choice("on_declined", on_declined, ("failed", "dead_letter"))
        check_span("backoff_base", backoff_base, least=BACKOFF_MIN, most=BACKOFF_MAX)
        check_duration(lease_duration)
        frame = Frame(
            tenant=owner,
            organization=organization,
            project=project,
            kind=kind,
            kind_version=kind_version,
            queue=queue,
            priority=priority,
            max_attempts=max_attempts,
            backoff_base=backoff_base,
            lease_duration=lease_duration,
            on_reconciled=on_reconciled,
            on_declined=on_declined,
        )
        if len(_frames) >= _FRAMES_MAX:
            _frames.clear()
        _frames[shape] = frame
    if scheduled_at is not None:
        scheduled_at = check_instant("scheduled_at", scheduled_at)
    id_text = str(job_id)
    text, alone, whole = _written(frame, job_id, id_text, payload, traits, execution, trace, governance)
    digest = payload_digest_of(kind, alone)
    return NewJob(frame, job_id, id_text, idempotency_key, subject, scheduled_at, options, text, whole, digest)


_FRAMES_MAX = 1024
_frames: dict[object, Frame] = {}


def _check_inputs(execution: object, governance: object) -> None:
    for what, given, kind in (
        ("execution", execution, ExecutionInput),
        ("governance", governance, GovernanceInput),
    ):
        if given is not None and not isinstance(given, kind):
            raise Invalid(f"{what} must be a tenure.{kind.__name__}", code="BAD_ARGUMENT")


def _check_separators(kind: str) -> None:
    if ":" in kind or "#" in kind:
        raise Invalid(f"a kind holds no ':' or '#', they separate operation keys: {echo(kind)}", code="BAD_ARGUMENT")


def _written(
    frame: Frame,
    job_id: UUID,
    id_text: str,
    payload: Any,
    traits: int | None,
    execution: ExecutionInput | None,
    trace: str | None,
    governance: GovernanceInput | None,
) -> tuple[str, bytes, bytes]:
    """
    Write what is stored: its text; the canonical bytes of the payload alone; those of the whole.

    The payload is looked at once, and what stands in the envelopes was checked when they were made: texts and bytes are
    put together from both.
    """
    check_object(payload)
    if traits is None:
        traits = survey(payload, max_bytes=PAYLOAD_BYTES_MAX)
    text = encode_surveyed(payload, traits)
    refuse_reserved(payload)
    sealed: list[tuple[str, bytes]] = []
    added = ""
    if execution is not None:
        envelope, data = write_execution_envelope(
            execution,
            organization=frame.organization,
            project=frame.project,
            job_id=job_id,
            id_text=id_text,
            tenant=frame.tenant,
            trace=trace,
        )
        sealed.append((EXECUTION_KEY, data))
        added = f',"{EXECUTION_KEY}":{envelope}'
    if governance is not None:
        document = build_governance_envelope(
            governance, organization=frame.organization, project=frame.project, job_id=job_id, tenant=frame.tenant
        )
        sealed.append((GOVERNANCE_KEY, canonical(document)))
        added += f',"{GOVERNANCE_KEY}":{encode(document, max_bytes=None)}'
    if added:
        text = f"{text[:-1]}{added}}}" if payload else f"{{{added[1:]}}}"
        check_size(text)
    return text, *canonical_with(payload, traits, sealed)


def check_text(name: str, value: str) -> str:
    """Require non-empty printable text of a bounded length."""
    if not isinstance(value, str) or not value.strip():
        raise Invalid(f"{name} must be non-empty text", code="BAD_ARGUMENT")
    if len(value) > TEXT_MAX:
        raise Invalid(f"{name} has {len(value)} characters, the limit is {TEXT_MAX}", code="BAD_ARGUMENT")
    if not value.isprintable():
        raise Invalid(f"{name} holds a character that cannot be printed: {echo(value)}", code="BAD_ARGUMENT")
    return value


def check_names(what: str, names: Sequence[str]) -> list[str]:
    """Refuse a single text where a list of names is meant."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise Invalid(f"{what} is a list of names, not {echo(names)}", code="BAD_ARGUMENT")
    return list(names)


def check_member(what: str, value: object, kind: type[E]) -> E:
    """Give what a text names of an enumeration."""
    if isinstance(value, str):  # anything else would be described in the enumeration's own error, however deep it is
        for one in kind:
            if one.value == value:
                return one
    raise Invalid(f"{echo(value)} is no {what}; known are {', '.join(one.value for one in kind)}", code="BAD_ARGUMENT")


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


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise Invalid(f"{name} must be one of {', '.join(map(repr, choices))}, not {echo(value)}", code="BAD_ARGUMENT")
