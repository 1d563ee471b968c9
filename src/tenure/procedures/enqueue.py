"""Create jobs: the idempotency ledger, the body and the first place, in one transaction, the caller's or our own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tenure.errors import Conflict, Unavailable, echo
from tenure.procedures.records import Placed, identity, instant, micros, options_text, span
from tenure.procedures.rows import insert_place, place_of, read
from tenure.rules.authority import Authority
from tenure.rules.creation import NewJob
from tenure.rules.digest import operation_digest
from tenure.rules.job import Job
from tenure.yields import Each, Procedure, Row, Script, procedure


@dataclass(frozen=True, slots=True)
class Created:
    """
    The answer to a creation.

    Attributes:
        job: The new job, or the one that already has this key.
        created: False when it was already there.
    """

    job: Job
    created: bool


@procedure
def create(jobs: Sequence[NewJob]) -> Script[list[Created]]:
    """
    Create jobs, or find the ones that already have their keys.

    Args:
        jobs: Checked jobs; two with the same key must mean the same.
    Returns:
        One answer for each, in the order given.
    Raises:
        Conflict: A key is known with another organization, kind or payload; nothing is written.
    Locks: the new keys, in order; another transaction that reserves the same key is waited for.
    Writes: authority (where the tenant is new), job_key, job, ready or deferred.
    """
    ordered = sorted(jobs, key=_key)
    keys = list(dict.fromkeys(_key(job) for job in ordered))
    tenants = [(tenant,) for tenant in sorted({job.tenant for job in jobs})]
    _, authority_rows, reserved_rows, known_rows = yield [
        Each("authority_ensure", tenants),
        Each("authority_read", tenants),
        Each("job_key_reserve", [_key_row(job) for job in _first_of_each(ordered)]),
        Each("job_key_read", keys),
    ]
    authorities = {row[0]: Authority(row[1], bool(row[2]), bool(row[3])) for row in authority_rows}
    now = authority_rows[0][4] if authority_rows else 0
    reserved = {identity(row[0]) for row in reserved_rows}
    known = {(row[0], row[1], row[2]): row for row in known_rows}
    for job in ordered:
        _refuse_other_meaning(job, known.get(_key(job)))
    rows: dict[str, list[Row]] = {}

    def add(statement: str, row: Row) -> None:
        rows.setdefault(statement, []).append(row)

    made: dict[object, Job] = {}
    for job in _first_of_each(ordered):
        # Our id in the ledger says that this call, or an earlier run of it, is the one that created the job.
        if job.job_id in reserved:
            made[job.job_id] = record = _record(job, authorities[job.tenant], now)
            add("job_insert", _body_row(job, record))
            insert_place(record, place_of(record, instant(now)), add)
    if rows:
        names = [name for name in ("job_insert", "ready_insert", "deferred_insert") if name in rows]
        yield [Each(name, rows[name]) for name in names]
    others = [identity(known[key][3]) for key in keys if identity(known[key][3]) not in made]
    found: dict[Any, Placed] = (yield from read(others)) if others else {}
    answers = []
    given: set[object] = set()
    for job in jobs:
        job_id = identity(known[_key(job)][3])
        record = made[job_id] if job_id in made else found[job_id].job
        answers.append(Created(record, job_id == job.job_id and job_id not in given))
        given.add(job_id)
    return answers


def create_one(job: NewJob) -> Procedure[Created]:
    """Create one job; see `create`."""
    return _one(create([job]))


@procedure
def _one(created: Procedure[list[Created]]) -> Script[Created]:
    return (yield from created)[0]


def _key(job: NewJob) -> tuple[str, str, str]:
    return (job.tenant, job.project, job.idempotency_key)


def _first_of_each(ordered: Sequence[NewJob]) -> list[NewJob]:
    first: dict[tuple[str, str, str], NewJob] = {}
    for job in ordered:
        first.setdefault(_key(job), job)
    return list(first.values())


def _refuse_other_meaning(job: NewJob, row: Row | None) -> None:
    if row is None:
        # Another transaction's key that this one's snapshot cannot see yet (a caller's repeatable read).
        raise Unavailable(
            f"idempotency key {echo(job.idempotency_key)} is being written by another transaction; run yours again",
            code="KEY_BUSY",
        )
    _, _, _, job_id, organization, kind, digest = row
    if (organization, kind, digest) != (job.organization, job.kind, job.payload_digest):
        what = "organization" if organization != job.organization else "kind" if kind != job.kind else "payload"
        raise Conflict(
            f"idempotency key {echo(job.idempotency_key)} of project {echo(job.project)} belongs to job {job_id} "
            f"with another {what}; use another key for another meaning",
            code="IDEMPOTENCY_MISMATCH",
        )


def _record(job: NewJob, authority: Authority, now: int) -> Job:
    created_at = instant(now)
    scheduled_at = job.scheduled_at or created_at
    return Job(
        id=job.job_id,
        tenant=job.tenant,
        organization=job.organization,
        project=job.project,
        idempotency_key=job.idempotency_key,
        subject=job.subject,
        kind=job.kind,
        kind_version=job.kind_version,
        queue=job.queue,
        priority=job.priority,
        max_attempts=job.max_attempts,
        payload=job.payload,
        scheduled_at=scheduled_at,
        created_at=created_at,
        run_at=scheduled_at,
        backoff_base=job.backoff_base,
        lease_duration=job.lease_duration,
        on_reconciled=job.on_reconciled,
        on_declined=job.on_declined,
        options=job.options,
        payload_digest=job.payload_digest,
        operation_digest=operation_digest(
            tenant=job.tenant,
            job_id=job.job_id,
            kind=job.kind,
            kind_version=job.kind_version,
            epoch=authority.epoch,
            payload=job.payload,
        ),
        epoch=authority.epoch,
        authority=authority,
    )


def _key_row(job: NewJob) -> Row:
    return (*_key(job), job.job_id, job.organization, job.kind, job.payload_digest)


def _body_row(job: NewJob, record: Job) -> Row:
    return (
        job.job_id,
        job.tenant,
        job.organization,
        job.project,
        job.idempotency_key,
        job.subject,
        job.kind,
        job.kind_version,
        job.queue,
        job.priority,
        job.payload_text,
        job.max_attempts,
        span(job.backoff_base),
        span(job.lease_duration),
        micros(record.scheduled_at),
        micros(record.created_at),
        job.on_reconciled,
        job.on_declined,
        options_text(job.options),
        record.payload_digest,
        record.operation_digest,
    )
