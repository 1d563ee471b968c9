"""
Records and rows: the shapes between what rules work with and what databases keep.

Instants are integer microseconds in the database and aware datetimes outside it; ids are UUIDs or text, as the database
has them; documents are JSON text exactly as it was sent.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from tenure.rules.authority import Authority
from tenure.rules.effect import Effect, EffectState, SettledBy, StoredEvidence
from tenure.rules.event import Event, EventName
from tenure.rules.job import DEFAULT_OPTIONS, Job, Options
from tenure.rules.lease import Lease
from tenure.rules.outcome import Terms
from tenure.rules.payload import decode, encode
from tenure.rules.status import Status
from tenure.rules.suspicion import Suspicion
from tenure.yields import Command, Row

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Placed:
    """
    A job as it was read or locked.

    Attributes:
        place: The table its state is in.
        now: The store's clock, read after the lock.
        published: The command of the last publish of the current lease.
    """

    job: Job
    place: str
    now: datetime
    published: UUID | None = None


# --- values -----------------------------------------------------------------------------------------------------------


def instant(us: int) -> datetime:
    """Turn stored microseconds into an aware instant."""
    return _EPOCH + timedelta(microseconds=us)


def maybe_instant(us: int | None) -> datetime | None:
    """See `instant`; None stays None."""
    return None if us is None else _EPOCH + timedelta(microseconds=us)


def micros(at: datetime) -> int:
    """Turn an aware instant into microseconds."""
    return (at - _EPOCH) // _US


def maybe_micros(at: datetime | None) -> int | None:
    """See `micros`; None stays None."""
    return None if at is None else (at - _EPOCH) // _US


def span(duration: timedelta) -> int:
    """Turn a duration into microseconds."""
    return duration // _US


def identity(value: Any) -> UUID:
    """Turn a stored id into a UUID: one database gives UUIDs, the other text."""
    return value if isinstance(value, UUID) else UUID(value)


def maybe_identity(value: Any) -> UUID | None:
    """See `identity`; None stays None."""
    return None if value is None else identity(value)


def _document(text: str | None) -> Any:
    return None if text is None else decode(text)


# --- records out of rows ----------------------------------------------------------------------------------------------


# Where the columns of a place row are that are read before the record is made; `placed` has them all.
JOB_ID, TENANT, GENERATION, RUN_AT, WORKER_ID, ATTEMPT_ID, EXPIRES_AT, LEASE_US = 1, 2, 4, 8, 9, 10, 11, 12
ERROR_CODE, KIND, QUEUE, PRIORITY, PAYLOAD = 19, 27, 29, 30, 31
# A row of `claim_batch` has its lane where others have their place.
LANE = 0


@dataclass(frozen=True, slots=True)
class Notes:
    """What is said about a job beside its place: an escalation, a recovery's mark."""

    escalation: tuple[int, str] | None = None
    suspicion: Suspicion | None = None


NO_NOTES = Notes()


def notes_by_job(rows: Sequence[Row]) -> dict[UUID, Notes]:
    """Build what `escalation_read` gives; a job of which nothing is said has no entry."""
    notes: dict[UUID, Notes] = {}
    for job_id, escalated_at, reason, marked_at, since, generation in rows:
        known = notes.get(identity(job_id), NO_NOTES)
        if marked_at is None:
            known = replace(known, escalation=(escalated_at, reason))
        else:
            known = replace(known, suspicion=Suspicion(instant(marked_at), instant(since), generation))
        notes[identity(job_id)] = known
    return notes


def placed(row: Row, effects: tuple[Effect, ...] = (), notes: Notes = NO_NOTES) -> Placed:
    """Build the record from one place row, its effects and what is said beside them."""
    (
        place,
        job_id,
        tenant,
        status,
        generation,
        attempt,
        attempts_max,
        epoch,
        run_at,
        worker_id,
        _,
        _,
        _,
        claimed_at,
        cancel_requested_at,
        cancel_reason,
        progress,
        parked,
        result,
        error_code,
        error_message,
        finished_at,
        published,
        organization,
        project,
        idempotency_key,
        subject,
        kind,
        kind_version,
        queue,
        priority,
        payload,
        backoff_us,
        body_lease_us,
        scheduled_at,
        created_at,
        on_reconciled,
        on_declined,
        options,
        payload_digest,
        operation_digest,
        current_epoch,
        tenant_frozen,
        database_frozen,
        now,
    ) = row
    job_id = identity(job_id)
    lease = None if worker_id is None else lease_of(row)
    document, unreadable = _payload(payload)
    job = Job(
        id=job_id,
        tenant=tenant,
        organization=organization,
        project=project,
        idempotency_key=idempotency_key,
        subject=subject,
        kind=kind,
        kind_version=kind_version,
        queue=queue,
        priority=priority,
        status=Status(status),
        attempt_count=attempt,
        max_attempts=attempts_max,
        generation=generation,
        payload=document,
        unreadable=unreadable,
        result=_document(result),
        error_code=error_code,
        error_message=error_message,
        scheduled_at=instant(scheduled_at),
        created_at=instant(created_at),
        finished_at=maybe_instant(finished_at),
        escalated_at=instant(notes.escalation[0]) if notes.escalation else None,
        escalation_reason=notes.escalation[1] if notes.escalation else None,
        cancel_requested_at=maybe_instant(cancel_requested_at),
        cancel_reason=cancel_reason,
        run_at=instant(run_at),
        backoff_base=timedelta(microseconds=backoff_us),
        lease_duration=timedelta(microseconds=body_lease_us),
        on_reconciled=on_reconciled,
        on_declined=on_declined,
        options=DEFAULT_OPTIONS if options is None else _options(options),
        payload_digest=payload_digest,
        operation_digest=operation_digest,
        epoch=epoch,
        parked=parked,
        progress=progress,
        lease=lease,
        claimed_at=maybe_instant(claimed_at),
        effects=effects,
        authority=Authority(current_epoch, bool(tenant_frozen), bool(database_frozen)),
        suspicion=notes.suspicion,
    )
    return Placed(job, place, instant(now), maybe_identity(published))


def lease_of(row: Row) -> Lease:
    """Build the lease of a place row that has one."""
    return Lease(
        identity(row[JOB_ID]),
        row[WORKER_ID],
        identity(row[ATTEMPT_ID]),
        row[GENERATION],
        instant(row[EXPIRES_AT]),
        timedelta(microseconds=row[LEASE_US]),
    )


def document_of(row: Row) -> tuple[dict[str, Any], str | None]:
    """Read the payload of a place row: the document, and why it cannot be read."""
    return _payload(row[PAYLOAD])


def _payload(text: str) -> tuple[dict[str, Any], str | None]:
    """A row that somebody else wrote must not stop the claims of others: it is marked and fails alone."""
    try:
        document = decode(text)
    except Exception as problem:  # noqa: BLE001 - whatever a foreign row does to the parser, only its job may suffer
        return {}, type(problem).__name__
    return (document, None) if isinstance(document, dict) else ({}, "not an object")


def _options(text: str) -> Options:
    stored = json.loads(text)
    window = stored.get("recovery_window_us")
    return Options(
        retry_timeouts=stored.get("retry_timeouts", False),
        recovery_window=None if window is None else timedelta(microseconds=window),
        escalate_after=timedelta(microseconds=stored["escalate_after_us"]),
        providers=tuple(stored.get("providers", ())),
    )


def options_text(options: Options) -> str | None:
    """Encode options; the defaults are stored as nothing."""
    if options == DEFAULT_OPTIONS:
        return None
    window = options.recovery_window
    return json.dumps(
        {
            "retry_timeouts": options.retry_timeouts,
            "recovery_window_us": None if window is None else span(window),
            "escalate_after_us": span(options.escalate_after),
            "providers": list(options.providers),
        }
    )


def effect_of(row: Row) -> tuple[UUID, Effect]:
    """Build an effect and say whose it is."""
    (_, job_id, name, state, key, digest, attempt_id, generation, created_at, begun_at, deadline_at) = row[:11]
    (terms, receipt, reason, settled_at, settled_by, ordinal, lookups, asked_at) = row[11:]
    return identity(job_id), Effect(
        name=name,
        state=EffectState(state),
        operation_key=key,
        request_digest=digest,
        attempt_id=identity(attempt_id),
        generation=generation,
        created_at=instant(created_at),
        begun_at=instant(begun_at),
        deadline_at=instant(deadline_at),
        terms=terms_of(terms),
        receipt=_document(receipt),
        reason=reason,
        settled_at=maybe_instant(settled_at),
        settled_by=None if settled_by is None else SettledBy(settled_by),
        ordinal=ordinal,
        lookups=lookups,
        asked_at=maybe_instant(asked_at),
    )


def effects_by_job(rows: Sequence[Row]) -> dict[UUID, tuple[Effect, ...]]:
    """Build the effects of many jobs, each job's in the order of the rows; a job without any has no entry."""
    grouped: dict[UUID, list[Effect]] = {}
    for row in rows:
        job_id, effect = effect_of(row)
        grouped.setdefault(job_id, []).append(effect)
    return {job_id: tuple(effects) for job_id, effects in grouped.items()}


def terms_of(text: str | None) -> Terms | None:
    """Build what a provider declared; None stays None."""
    if text is None:
        return None
    stored = json.loads(text)
    retention = stored["retention_us"]
    return Terms(
        provider=stored["provider"],
        honours_key=stored["honours_key"],
        retention=None if retention is None else timedelta(microseconds=retention),
        binds_payload=stored["binds_payload"],
        lookup_complete=stored["lookup_complete"],
        settles_within=timedelta(microseconds=stored["settles_within_us"]),
    )


def _terms_text(terms: Terms | None) -> str | None:
    if terms is None:
        return None
    return json.dumps(
        {
            "provider": terms.provider,
            "honours_key": terms.honours_key,
            "retention_us": None if terms.retention is None else span(terms.retention),
            "binds_payload": terms.binds_payload,
            "lookup_complete": terms.lookup_complete,
            "settles_within_us": span(terms.settles_within),
        }
    )


def evidence_of(row: Row) -> StoredEvidence:
    """Build stored evidence from its row."""
    evidence_id, _, _, key, attempt_id, kind, receipt, reason, at, contradicts, used = row
    return StoredEvidence(
        identity(evidence_id),
        key,
        maybe_identity(attempt_id),
        kind,
        _document(receipt),
        reason,
        instant(at),
        bool(contradicts),
        bool(used),
    )


def event_of(row: Row) -> Event:
    """Build an event from its row."""
    name, at, generation, status, actor, data, _ = row
    return Event(
        EventName(name),
        instant(at),
        generation,
        None if status is None else Status(status),
        actor,
        _document(data) or {},
    )


# --- rows out of records


def event_row(job: Job, event: Event, command: Command) -> Row:
    """Encode one event."""
    data = encode(dict(event.data)) if event.data else None
    status = None if event.status is None else event.status.value
    at = micros(event.at)
    return (job.id, job.tenant, event.name.value, at, event.generation, status, event.actor, data, command.id)


def effect_row(job: Job, effect: Effect) -> Row:
    """Encode one effect."""
    return (
        job.tenant,
        job.id,
        effect.name,
        effect.state.value,
        effect.operation_key,
        effect.request_digest,
        effect.attempt_id,
        effect.generation,
        micros(effect.created_at),
        micros(effect.begun_at),
        micros(effect.deadline_at),
        _terms_text(effect.terms),
        encode(effect.receipt),
        effect.reason,
        maybe_micros(effect.settled_at),
        None if effect.settled_by is None else effect.settled_by.value,
        effect.ordinal,
        effect.lookups,
        maybe_micros(effect.asked_at),
    )


def with_effects(job: Job, effects: Sequence[Effect]) -> Job:
    """Give a record its effects."""
    return replace(job, effects=tuple(effects)) if effects else job
