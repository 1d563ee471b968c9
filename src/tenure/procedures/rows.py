"""
Rows and records: the shared lock, the shared save, and the shapes between them.

A job is in exactly one place: ready, deferred, lease, resting or outcome. That row is what `lock` locks and what `save`
moves when a change says so; `rules/` sees one `Job` record and knows nothing of places. Locks are taken in one order:
the tenants' authority (shared), then the places by job id; effects, evidence and escalations are written only under
their job's place and need no lock of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from tenure.errors import NotFound, Unavailable
from tenure.rules.authority import Authority
from tenure.rules.effect import Effect, EffectState, SettledBy, StoredEvidence
from tenure.rules.event import Event, EventName
from tenure.rules.job import DEFAULT_OPTIONS, Change, Job, Options
from tenure.rules.lease import Lease
from tenure.rules.outcome import Terms
from tenure.rules.payload import decode, encode
from tenure.rules.status import LIVE, TERMINAL, Status
from tenure.yields import Command, Each, Row, Script

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
# A hot job moves between ready and lease in short transactions; more misses than this mean something else is wrong.
LOOKS_MAX = 20
LOOKS_BEFORE_BODY = 5


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


def placed(row: Row, effects: tuple[Effect, ...] = (), escalation: tuple[int, str] | None = None) -> Placed:
    """Build the record from one place row, its effects and its escalation."""
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
        attempt_id,
        expires_at,
        lease_us,
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
    lease = None
    if worker_id is not None:
        lease = Lease(
            job_id, worker_id, identity(attempt_id), generation, instant(expires_at), timedelta(microseconds=lease_us)
        )
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
        escalated_at=instant(escalation[0]) if escalation else None,
        escalation_reason=escalation[1] if escalation else None,
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
    )
    return Placed(job, place, instant(now), maybe_identity(published))


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
        terms=_terms(terms),
        receipt=_document(receipt),
        reason=reason,
        settled_at=maybe_instant(settled_at),
        settled_by=None if settled_by is None else SettledBy(settled_by),
        ordinal=ordinal,
        lookups=lookups,
        asked_at=maybe_instant(asked_at),
    )


def _terms(text: str | None) -> Terms | None:
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


# --- lock -------------------------------------------------------------------------------------------------------------


def lock(ids: Iterable[UUID], *, terminal: bool = False) -> Script[dict[UUID, Placed]]:
    """
    Lock the places of these jobs, wherever they are, and give their records with the store's clock.

    Args:
        terminal: The command may move a job out of a terminal place: lock the body row first, so that two of them queue
            up behind each other instead of missing the row that the other has just moved.
    Locks: the tenants' authority (shared), the places, in order of id. A row that moved between reading and locking is
    looked for again.
    """
    missing = sorted(set(ids))
    found: dict[UUID, Placed] = {}
    for look in range(LOOKS_MAX):
        if not missing:
            break
        rows = [(job_id,) for job_id in missing]
        # A batch never waits for a body row while it holds places: only a lone command falls back to it.
        body = Each("body_lock", rows if terminal or (look >= LOOKS_BEFORE_BODY and not found) else [])
        _, _, places, effects, escalations = yield [
            Each("authority_lock", rows),
            body,
            Each("place_lock", rows),
            Each("effect_read", rows),
            Each("escalation_read", rows),
        ]
        found |= _assemble(places, effects, escalations)
        missing = [job_id for job_id in missing if job_id not in found]
        if missing and look == 0:
            known = yield Each("place_read", [(job_id,) for job_id in missing])
            exists = {identity(row[1]) for row in known}
            missing = [job_id for job_id in missing if job_id in exists]
    if missing:
        raise Unavailable(f"job {missing[0]} moves faster than it can be locked; try again", code="ROW_BUSY")
    return found


def read(ids: Iterable[UUID]) -> Script[dict[UUID, Placed]]:
    """Read jobs without a lock."""
    rows = [(job_id,) for job_id in sorted(set(ids))]
    places, effects, escalations = yield [
        Each("place_read", rows),
        Each("effect_read", rows),
        Each("escalation_read", rows),
    ]
    return _assemble(places, effects, escalations)


def _assemble(places: Sequence[Row], effects: Sequence[Row], escalations: Sequence[Row]) -> dict[UUID, Placed]:
    by_job: dict[UUID, list[Effect]] = {}
    for row in effects:
        job_id, effect = effect_of(row)
        by_job.setdefault(job_id, []).append(effect)
    escalated = {identity(row[0]): (row[1], row[2]) for row in escalations}
    found = {}
    for row in places:
        job_id = identity(row[1])
        found[job_id] = placed(row, tuple(by_job.get(job_id, ())), escalated.get(job_id))
    return found


def in_scope(found: dict[UUID, Placed], job_id: UUID, tenant: str | None) -> Placed:
    """
    Give one job of a locked or read set.

    Raises:
        NotFound: It is unknown, or of another tenant: both have the same text.
    """
    known = found.get(job_id)
    if known is None or (tenant is not None and known.job.tenant != tenant):
        raise NotFound(f"no job {job_id} in this scope")
    return known


def fetch(job_id: UUID, tenant: str | None, *, terminal: bool = False) -> Script[Placed]:
    """Lock one job in a scope; see `lock`."""
    return in_scope((yield from lock([job_id], terminal=terminal)), job_id, tenant)


def repeated(command: Command, job_id: UUID) -> Script[bool]:
    """Say whether an earlier run of this very call has already committed; asked only when there was an earlier run."""
    if not command.again:
        return False
    return bool((yield Each("event_known", [(job_id, command.id)])))


# --- save -------------------------------------------------------------------------------------------------------------

_DELETES = {
    "ready": "ready_delete",
    "deferred": "deferred_delete",
    "lease": "lease_delete",
    "resting": "resting_delete",
    "outcome": "outcome_delete",
}


def save(changes: Sequence[tuple[Placed, Change]], command: Command, *, claim_id: UUID | None = None) -> Script[None]:
    """
    Write what rules decided for locked jobs: places, effects, evidence, escalations and the trail, in one round trip.

    Args:
        claim_id: Stored with the leases that are new.
    Writes: the places of the jobs, effect, intent, evidence, escalation, event.
    """
    rows: dict[str, list[Row]] = {}

    def add(statement: str, row: Row) -> None:
        rows.setdefault(statement, []).append(row)

    counted: dict[str, int] = {}
    for before, change in changes:
        _move(before, change, add, counted, claim_id)
        _append(before.job, change, command, add)
    requests = [Each(name, rows[name]) for name in _ORDER if name in rows]
    answers = yield requests
    for request, answer in zip(requests, answers, strict=True):
        expected = counted.get(request.name)
        assert expected is None or len(answer) == expected, (
            f"{request.name}: {len(answer)} of {expected} rows; a place moved under its lock"
        )


# Deletes before inserts, so that a job is never in two places; effects before the trail, only for reading.
_ORDER = (
    *_DELETES.values(),
    "lease_update",
    "ready_insert",
    "deferred_insert",
    "lease_insert",
    "resting_insert",
    "outcome_insert",
    "effect_save",
    "intent_insert",
    "evidence_save",
    "escalation_delete",
    "escalation_save",
    "event_insert",
)


def place_of(job: Job, now: datetime) -> str:
    """Say where a record belongs."""
    if job.status in LIVE:
        return "lease"
    if job.status in TERMINAL:
        return "resting" if job.status in {Status.INDETERMINATE, Status.TIMED_OUT} else "outcome"
    if job.parked is not None:
        return "resting"
    return "ready" if job.run_at <= now else "deferred"


def _move(before: Placed, change: Change, add: Any, counted: dict[str, int], claim_id: UUID | None) -> None:
    old, new = before.job, change.job
    if (old.escalated_at, old.escalation_reason) != (new.escalated_at, new.escalation_reason):
        if new.escalated_at is None:
            add("escalation_delete", (new.id,))
        else:
            add("escalation_save", (new.id, new.tenant, micros(new.escalated_at), new.escalation_reason))
    if _place_fields(old) == _place_fields(new):
        return
    place = place_of(new, before.now)
    if before.place == "lease" and place == "lease" and old.generation == new.generation:
        assert new.lease is not None
        add(
            "lease_update",
            (
                new.id,
                new.generation,
                new.status.value,
                micros(new.lease.expires_at),
                maybe_micros(new.cancel_requested_at),
                new.cancel_reason,
                new.progress,
            ),
        )
        counted["lease_update"] = counted.get("lease_update", 0) + 1
        return
    delete = _DELETES[before.place]
    add(delete, (old.id, old.generation))
    counted[delete] = counted.get(delete, 0) + 1
    insert_place(new, place, add, claim_id)


def _place_fields(job: Job) -> tuple[Any, ...]:
    return (
        job.status,
        job.generation,
        job.attempt_count,
        job.max_attempts,
        job.epoch,
        job.run_at,
        job.lease,
        job.cancel_requested_at,
        job.progress,
        job.parked,
        job.error_code,
        job.error_message,
        job.finished_at,
    )


def insert_place(job: Job, place: str, add: Any, claim_id: UUID | None = None) -> None:
    """Add the row that puts a record into a place."""
    state = (job.generation, job.attempt_count, job.max_attempts, job.epoch)
    cancel = (maybe_micros(job.cancel_requested_at), job.cancel_reason)
    error = (job.error_code, job.error_message)
    run_at = micros(job.run_at)
    where = (job.organization, job.kind, job.queue, "", job.priority)
    match place:
        case "ready" | "deferred":
            add(f"{place}_insert", (job.id, job.tenant, *where, run_at, *state, *error))
        case "lease":
            lease = job.lease
            assert lease is not None
            assert job.claimed_at is not None
            held = (lease.worker_id, lease.attempt_id, claim_id, micros(lease.expires_at), span(lease.duration))
            since = (micros(job.claimed_at), run_at)
            row = (job.id, job.tenant, job.status.value, *held, *since, *state, *cancel, job.progress, *error)
            add("lease_insert", row)
        case "resting":
            finished = maybe_micros(job.finished_at)
            add(
                "resting_insert",
                (job.id, job.tenant, job.status.value, job.parked, *where, run_at, *state, *cancel, *error, finished),
            )
        case _:
            assert job.finished_at is not None
            result = encode(job.result) if job.status is Status.COMPLETED else None
            end = micros(job.finished_at)
            add("outcome_insert", (job.id, job.tenant, job.status.value, run_at, *state, result, *cancel, *error, end))


def _append(job: Job, change: Change, command: Command, add: Any) -> None:
    for effect in change.effects:
        add("effect_save", _effect_row(job, effect))
    for intent in change.intents:
        add("intent_insert", (job.tenant, intent.operation_key, intent.attempt_id, job.id, micros(intent.at)))
    for evidence in change.evidence:
        add(
            "evidence_save",
            (
                evidence.id,
                job.tenant,
                job.id,
                evidence.operation_key,
                evidence.attempt_id,
                evidence.kind,
                encode(evidence.receipt),
                evidence.reason,
                micros(evidence.at),
                evidence.contradicts,
                evidence.used,
            ),
        )
    for event in change.events:
        add("event_insert", event_row(job, event, command))


def event_row(job: Job, event: Event, command: Command) -> Row:
    """Encode one event."""
    data = encode(dict(event.data)) if event.data else None
    status = None if event.status is None else event.status.value
    at = micros(event.at)
    return (job.id, job.tenant, event.name.value, at, event.generation, status, event.actor, data, command.id)


def _effect_row(job: Job, effect: Effect) -> Row:
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
