"""
Rows and records: the shared lock, the shared save, and the shapes between them.

A job is in exactly one place: ready, deferred, lease, resting or outcome. That row is what `lock` locks and what `save`
moves when a change says so; `rules/` sees one `Job` record and knows nothing of places. Locks are taken in one order:
the tenants' authority (shared), then the places by job id; effects, evidence and escalations are written only under
their job's place and need no lock of their own; approvals come last (procedures/approvals.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from tenure.errors import NotFound, Unavailable
from tenure.procedures.records import (
    JOB_ID,
    NO_NOTES,
    Placed,
    effect_row,
    effects_by_job,
    event_row,
    identity,
    maybe_micros,
    micros,
    notes_by_job,
    placed,
    span,
)
from tenure.rules.job import PAUSED, Change, Job
from tenure.rules.ledger import Seen
from tenure.rules.payload import encode, encode_result
from tenure.rules.status import LIVE, TERMINAL, Status
from tenure.yields import Command, Each, Last, Row, Rows, Script, Statement

# A hot job moves between ready and lease in short transactions; more misses than this mean something else is wrong.
LOOKS_MAX = 20
LOOKS_BEFORE_BODY = 5
# The code of giving up on a row before anything is written.
ROW_BUSY = "ROW_BUSY"

# --- lock -------------------------------------------------------------------------------------------------------------


def lock(ids: Iterable[UUID], *, terminal: bool = False, seen: Seen | None = None) -> Script[dict[UUID, Placed]]:
    """
    Lock the places of these jobs, wherever they are, and give their records with the store's clock.

    Args:
        terminal: The command may move a job out of a terminal place: lock the body row first, so that two of them queue
            up behind each other instead of missing the row that the other has just moved.
        seen: The database as this process has seen it; see `is_another`. In another one, all is frozen.
    Locks: the tenants' authority (shared), the body where `terminal`, the places: table by table, in each in order of
    id. A row that moved between reading and locking is looked for again; two batches whose rows move may then wait for
    each other, which PostgreSQL ends and the store runs again.
    """
    missing = sorted(set(ids))
    found: dict[UUID, Placed] = {}
    for look in range(LOOKS_MAX):
        if not missing:
            break
        rows = [(job_id,) for job_id in missing]
        # A batch never waits for a body row while it holds places: only a lone command falls back to it.
        body = Each("body_lock", rows if terminal or (look >= LOOKS_BEFORE_BODY and not found) else [])
        _, _, places, effects, escalations, *current = yield [
            Each("authority_lock", rows),
            body,
            Each("place_lock", rows),
            Each("effect_read", rows),
            Each("escalation_read", rows),
            *current_read(seen),
        ]
        locked = assemble(places, effects, escalations)
        if is_another(seen, current):
            locked = {job_id: replace(known, job=_frozen(known.job)) for job_id, known in locked.items()}
        found |= locked
        missing = [job_id for job_id in missing if job_id not in found]
        if missing and look == 0:
            known = yield Each("place_read", [(job_id,) for job_id in missing])
            exists = {identity(row[JOB_ID]) for row in known}
            missing = [job_id for job_id in missing if job_id in exists]
    if missing:
        raise Unavailable(f"job {missing[0]} moves faster than it can be locked; try again", code=ROW_BUSY)
    return found


def current_read(seen: Seen | None) -> list[Statement]:
    """Give what is asked for `is_another`; nothing where no ledger was ever looked at."""
    return [] if seen is None else [Statement("current_read")]


def is_another(seen: Seen | None, current: Sequence[Rows]) -> bool:
    """
    Say whether this is another database than the one that this very process has seen.

    A copy was put in its place, or this connection leads to a server that was promoted. A look at the ledger comes to
    the same within a second, on a connection of its own; nothing goes out in that second, and none by this connection.
    """
    if seen is None:
        return False
    (((counter, identity),),) = current
    return counter is None or int(counter) < seen.counter or identity not in {None, seen.identity}


def _frozen(job: Job) -> Job:
    return replace(job, authority=replace(job.authority, database_frozen=True))


def lock_free(ids: Iterable[UUID]) -> Script[dict[UUID, Placed]]:
    """
    Lock the leases of these jobs, and leave out those that somebody else holds locked.

    Locks: the tenants' authority (shared), the leases, in order of id, skipping locked ones.
    """
    rows = [(job_id,) for job_id in sorted(set(ids))]
    _, places, effects, escalations = yield [
        Each("authority_lock", rows),
        Each("place_lock_free", rows),
        Each("effect_read", rows),
        Each("escalation_read", rows),
    ]
    return assemble(places, effects, escalations)


def read(ids: Iterable[UUID]) -> Script[dict[UUID, Placed]]:
    """Read jobs without a lock."""
    rows = [(job_id,) for job_id in sorted(set(ids))]
    places, effects, escalations = yield [
        Each("place_read", rows),
        Each("effect_read", rows),
        Each("escalation_read", rows),
    ]
    return assemble(places, effects, escalations)


def read_known(presented: Mapping[UUID, str]) -> Script[dict[UUID, Placed]]:
    """
    Read jobs without a lock, for somebody who presents the digests of their payloads.

    A database may let a producer read what it can present itself, and nothing else.
    """
    rows = sorted(presented.items())
    places, effects, escalations = yield [
        Each("place_known", rows),
        Each("effect_known", rows),
        Each("escalation_known", rows),
    ]
    return assemble(places, effects, escalations)


def assemble(places: Sequence[Row], effects: Sequence[Row], escalations: Sequence[Row]) -> dict[UUID, Placed]:
    """Build records from place rows, in their order, and from the rows of effects and escalations of these jobs."""
    by_job = effects_by_job(effects)
    notes = notes_by_job(escalations)
    found = {}
    for row in places:
        job_id = identity(row[JOB_ID])
        found[job_id] = placed(row, by_job.get(job_id, ()), notes.get(job_id, NO_NOTES))
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


def done_before(command: Command, found: Mapping[UUID, Placed]) -> Script[set[UUID]]:
    """See `repeated`, for a batch: the jobs on which an earlier run of this very call has already written."""
    if not command.again or not found:
        return set()
    rows = yield Each("event_known", [(job_id, command.id) for job_id in found])
    return {identity(row[0]) for row in rows}


# --- save -------------------------------------------------------------------------------------------------------------

_DELETES = {
    "ready": "ready_delete",
    "deferred": "deferred_delete",
    "lease": "lease_delete",
    "resting": "resting_delete",
    "outcome": "outcome_delete",
}


def save(
    changes: Sequence[tuple[Placed, Change]], command: Command, *, claim_id: UUID | None = None, last: bool = False
) -> Script[None]:
    """
    Write what rules decided for locked jobs: places, effects, evidence, escalations and the trail, in one round trip.

    Args:
        claim_id: Stored with the leases that are new.
        last: The procedure asks nothing after this; where no place moves, the commit may go along.
    Writes: the places of the jobs, effect, intent, evidence, escalation, event.
    """
    writes = _Writes()
    for before, change in changes:
        _move(before, change, writes, claim_id)
        _append(before.job, change, command, writes)
    requests = writes.requests()
    if last and not any(request.name in _COUNTED for request in requests):
        yield Last(requests)
        return
    answers = yield requests
    for request, answer in zip(requests, answers, strict=True):
        assert request.name not in _COUNTED or len(answer) == len(request.rows), (
            f"{request.name}: {len(answer)} of {len(request.rows)} rows; it moved under its lock"
        )


# These name a generation and give back what they found: as many rows as they were given.
_COUNTED = frozenset({*_DELETES.values(), "lease_update", "approval_consume"})
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
    "approval_consume",
    "evidence_save",
    "escalation_delete",
    "escalation_save",
    "suspect_delete",
    "event_insert",
)


class _Writes:
    """What a save writes: rows by statement."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Row]] = {}

    def add(self, statement: str, row: Row) -> None:
        self._rows.setdefault(statement, []).append(row)

    def requests(self) -> list[Each]:
        return [Each(name, self._rows[name]) for name in _ORDER if name in self._rows]


def place_of(job: Job, now: datetime) -> str:
    """Say where a record belongs."""
    if job.status in LIVE:
        return "lease"
    if job.status in TERMINAL:
        return "resting" if job.status in {Status.INDETERMINATE, Status.TIMED_OUT} else "outcome"
    # A paused queue's jobs stay where they are.
    if job.parked not in {None, PAUSED}:
        return "resting"
    return "ready" if job.run_at <= now else "deferred"


def _move(before: Placed, change: Change, writes: _Writes, claim_id: UUID | None) -> None:
    old, new = before.job, change.job
    if (old.escalated_at, old.escalation_reason) != (new.escalated_at, new.escalation_reason):
        if new.escalated_at is None:
            writes.add("escalation_delete", (new.id,))
        else:
            writes.add("escalation_save", (new.id, new.tenant, micros(new.escalated_at), new.escalation_reason))
    if old.suspicion is not None and not new.suspect:
        writes.add("suspect_delete", (new.id,))
    if _place_fields(old) == _place_fields(new):
        return
    place = place_of(new, before.now)
    if before.place == "lease" and place == "lease" and old.generation == new.generation:
        assert new.lease is not None
        writes.add(
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
        return
    writes.add(_DELETES[before.place], (old.id, old.generation))
    writes.add(f"{place}_insert", place_row(new, place, claim_id))


def _place_fields(job: Job) -> tuple[Any, ...]:
    """What has to differ for a row to be written anew; the other columns change with one of these or never."""
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


def place_row(job: Job, place: str, claim_id: UUID | None = None) -> Row:
    """Encode the row that puts a record into a place."""
    state = (job.generation, job.attempt_count, job.max_attempts, job.epoch)
    cancel = (maybe_micros(job.cancel_requested_at), job.cancel_reason)
    error = (job.error_code, job.error_message)
    run_at = micros(job.run_at)
    where = (job.organization, job.kind, job.queue, job.priority)
    match place:
        case "ready" | "deferred":
            return (job.id, job.tenant, *where, run_at, *state, *error)
        case "lease":
            lease = job.lease
            assert lease is not None
            assert job.claimed_at is not None
            held = (lease.worker_id, lease.attempt_id, claim_id, micros(lease.expires_at), span(lease.duration))
            since = (micros(job.claimed_at), run_at)
            return (job.id, job.tenant, job.status.value, *held, *since, *state, *cancel, job.progress, *error)
        case "resting":
            finished = maybe_micros(job.finished_at)
            status = job.status.value
            return (job.id, job.tenant, status, job.parked, *where, run_at, *state, *cancel, *error, finished)
        case _:
            assert job.finished_at is not None
            result = encode_result(job.result) if job.status is Status.COMPLETED else None
            end = micros(job.finished_at)
            return (job.id, job.tenant, job.status.value, run_at, *state, result, *cancel, *error, end)


def _append(job: Job, change: Change, command: Command, writes: _Writes) -> None:
    for effect in change.effects:
        writes.add("effect_save", effect_row(job, effect))
    for intent in change.intents:
        writes.add("intent_insert", (job.tenant, intent.operation_key, intent.attempt_id, job.id, micros(intent.at)))
    if change.approval is not None:
        taken = change.approval
        writes.add("approval_consume", (job.tenant, taken.reference, job.id, maybe_micros(taken.consumed_at)))
    for evidence in change.evidence:
        writes.add(
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
        writes.add("event_insert", event_row(job, event, command))
