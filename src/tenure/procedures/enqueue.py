"""Create jobs: the idempotency ledger, the body and the first place, in one transaction, the caller's or our own."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from tenure.errors import Conflict, Unavailable, echo
from tenure.procedures.records import Placed, identity, instant, micros, options_text, span
from tenure.procedures.rows import read_known
from tenure.rules.authority import Authority
from tenure.rules.creation import Frame, NewJob
from tenure.rules.digest import operation_around, operation_digest_of
from tenure.rules.job import Job, Options
from tenure.rules.queues import draining
from tenure.yields import Each, Last, Procedure, Row, Script, Statement, procedure

_Key: TypeAlias = tuple[str, str, str]


class _Late:
    # A base of its own: a dataclass with slots has none but its fields.
    __slots__ = ("_make",)


@dataclass(frozen=True, slots=True)
class Created(_Late):
    """
    The answer to a creation.

    Attributes:
        job: The new job, or the one that already has this key.
        created: False when it was already there.
    """

    job: Job
    created: bool

    @classmethod
    def late(cls, make: Callable[[], Job], *, created: bool) -> Created:
        """
        Answer with a new job whose record is made when somebody looks at it.

        A record of more than forty fields takes longer to make (7 to 14 us) than all else in the creation of one of
        many jobs, and who enqueues many rarely looks at them.
        """
        made = cls.__new__(cls)
        object.__setattr__(made, "created", created)
        object.__setattr__(made, "_make", make)
        return made

    def __getattr__(self, name: str) -> Any:
        # Reached only where the field was never set.
        if name != "job":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        job = self._make()
        object.__setattr__(self, "job", job)
        return job


@procedure(wakes=True)
def create(jobs: Sequence[NewJob]) -> Script[list[Created]]:
    """
    Create jobs, or find the ones that already have their keys.

    Args:
        jobs: Checked jobs; two with the same key must mean the same.
    Returns:
        One answer for each, in the order given.
    Raises:
        Conflict: A key is known with another organization, kind or payload; nothing is written.
        Refused: QUEUE_DRAINING, a queue takes no new jobs; nothing is written.
    Locks: the new keys, in order; another transaction that reserves the same key is waited for.
    Writes: authority (where the tenant is new), job_key, job, ready or deferred.
    """
    keys = [(job.tenant, job.project, job.idempotency_key) for job in jobs]
    ordered = sorted(zip(keys, jobs, strict=True), key=itemgetter(0))
    first: dict[_Key, NewJob] = {}
    for key, job in ordered:
        first.setdefault(key, job)
    tenants = [(tenant,) for tenant in sorted({key[0] for key in first})]
    _, authority_rows, reserved_rows = yield [
        Each("authority_ensure", tenants),
        Each("authority_read", tenants),
        Each("job_key_reserve", [_key_row(key, job) for key, job in first.items()]),
    ]
    fresh, known = first, {}
    if len(reserved_rows) < len(first):
        # Our id in the ledger says that this call, or an earlier run of it, is the one that created the job.
        reserved = {identity(row[0]) for row in reserved_rows}
        fresh = {key: job for key, job in first.items() if job.job_id in reserved}
        asked = [(*key, *_meaning(job)) for key, job in first.items() if key not in fresh]
        rows = yield Each("job_key_known", asked)
        known = {(row[0], row[1], row[2]): (identity(row[3]), row[4]) for row in rows}
    if len(fresh) < len(jobs):
        for key, job in ordered:
            _refuse_other_meaning(job, first[key], (first[key].job_id, None) if key in fresh else known.get(key))
    others = {key: job_id for key, (job_id, _) in known.items()}
    # Their digests are those of what was stored: another one was refused just now.
    presented = {job_id: first[key].payload_digest for key, job_id in others.items()}
    found: dict[UUID, Placed] = (yield from read_known(presented)) if presented else {}
    _refuse_draining(fresh, authority_rows)
    made = yield from _write(fresh, authority_rows)
    answers = []
    for key, job in zip(keys, jobs, strict=True):
        # Only the first of a key can have made it.
        created = first.pop(key, None) is job
        if key in made:
            answers.append(Created.late(made[key], created=created))
        else:
            job_id = others[key]
            answers.append(Created(found[job_id].job, created and job_id == job.job_id))
    return answers


def create_one(job: NewJob) -> Procedure[Created]:
    """Create one job; see `create`."""
    return _one(create([job]))


@procedure(wakes=True)
def _one(created: Procedure[list[Created]]) -> Script[Created]:
    return (yield from created)[0]


@procedure(wakes=True)
def create_at_once(job: NewJob, *, epoch: int = 1) -> Script[Created]:
    """
    Create one job in one round trip, which is what counts in a caller's transaction.

    What it takes for that is a guess: that the key is new and the tenant's epoch is this one. The database looks
    whether it is so and otherwise writes nothing; then the job is created as by `create`, at the price of more trips.

    Args:
        epoch: Of the tenant, as it was last seen; it goes into the digest.
    Returns, raises, locks, writes: As `create`.
    """
    around = operation_around(job.tenant, job.kind, job.kind_version, epoch)
    digest = operation_digest_of(around, job.id_text, job.payload_bytes)
    rows = yield Statement(
        "job_create",
        {
            "job_id": job.job_id,
            "tenant": job.tenant,
            "organization": job.organization,
            "project": job.project,
            "idempotency_key": job.idempotency_key,
            "subject": job.subject,
            "kind": job.kind,
            "kind_version": job.kind_version,
            "queue": job.queue,
            "priority": job.priority,
            "payload": job.payload_text,
            "attempts_max": job.max_attempts,
            "backoff_us": span(job.backoff_base),
            "lease_us": span(job.lease_duration),
            "scheduled_at": None if job.scheduled_at is None else micros(job.scheduled_at),
            "on_reconciled": job.on_reconciled,
            "on_declined": job.on_declined,
            "options": options_text(job.options),
            "payload_digest": job.payload_digest,
            "operation_digest": digest,
            "epoch": epoch,
        },
    )
    if not rows:
        return (yield from create([job]))[0]
    now, frozen, all_frozen = rows[0]
    authority = Authority(epoch, bool(frozen), bool(all_frozen))
    return Created.late(functools.partial(_record, job, authority, now, digest), created=True)


def _write(jobs: Mapping[_Key, NewJob], authority_rows: Sequence[Row]) -> Script[dict[_Key, Callable[[], Job]]]:
    """Write bodies and places, the last of the call; give what makes each record."""
    if not jobs:
        return {}
    authorities = {row[0]: Authority(row[1], bool(row[2]), bool(row[3])) for row in authority_rows}
    now: int = authority_rows[0][4]
    made: dict[_Key, Callable[[], Job]] = {}
    bodies: list[Row] = []
    ready: list[Row] = []
    deferred: list[Row] = []
    stamps = _Stamps(authorities)
    for key, job in jobs.items():
        stamp = stamps.of(job)
        scheduled_at = now if job.scheduled_at is None else micros(job.scheduled_at)
        digest = operation_digest_of(stamp.operation, job.id_text, job.payload_bytes)
        bodies.append(
            (
                job.job_id,
                *stamp.owner,
                job.idempotency_key,
                job.subject,
                *stamp.what,
                job.payload_text,
                *stamp.limits,
                scheduled_at,
                now,
                *stamp.ends,
                job.payload_digest,
                digest,
            )
        )
        # As `rows.place_row` writes a record: `rows.place_of` puts what is queued and due among the ready.
        place = ready if scheduled_at <= now else deferred
        place.append((job.job_id, *stamp.where, scheduled_at, *stamp.state))
        made[key] = functools.partial(_record, job, stamp.authority, now, digest)
    yield Last([Each("job_insert", bodies), Each("ready_insert", ready), Each("deferred_insert", deferred)])
    return made


class _Stamp(NamedTuple):
    """The parts of rows that jobs with the same frame and options share."""

    authority: Authority
    operation: tuple[bytes, bytes, bytes]
    owner: Row
    what: Row
    limits: Row
    ends: Row
    where: Row
    state: Row


class _Stamps:
    def __init__(self, authorities: Mapping[str, Authority]) -> None:
        self._authorities = authorities
        self._made: dict[tuple[int, int], _Stamp] = {}

    def of(self, job: NewJob) -> _Stamp:
        # By identity: both are kept alive by the job, and shared by many.
        shared = (id(job.frame), id(job.options))
        stamp = self._made.get(shared)
        if stamp is None:
            stamp = self._made[shared] = _stamp(job.frame, job.options, self._authorities[job.tenant])
        return stamp


def _stamp(frame: Frame, options: Options, authority: Authority) -> _Stamp:
    return _Stamp(
        authority=authority,
        operation=operation_around(frame.tenant, frame.kind, frame.kind_version, authority.epoch),
        owner=(frame.tenant, frame.organization, frame.project),
        what=(frame.kind, frame.kind_version, frame.queue, frame.priority),
        limits=(frame.max_attempts, span(frame.backoff_base), span(frame.lease_duration)),
        ends=(frame.on_reconciled, frame.on_declined, options_text(options)),
        where=(frame.tenant, frame.organization, frame.kind, frame.queue, frame.priority),
        state=(0, 0, frame.max_attempts, authority.epoch, None, None),
    )


def _refuse_draining(jobs: Mapping[_Key, NewJob], authority_rows: Sequence[Row]) -> None:
    # Read with the authority, which costs no statement of its own; whoever needs to be sure that no creation is on its
    # way locks the table that it was read from.
    if not jobs or authority_rows[0][5] == "[]":
        return
    closed = set(json.loads(authority_rows[0][5]))
    for job in jobs.values():
        if job.queue in closed:
            raise draining(job.queue)


def _meaning(job: NewJob) -> tuple[str, str, str]:
    """Give what two jobs with one key must share."""
    return (job.organization, job.kind, job.payload_digest)


def _refuse_other_meaning(job: NewJob, first: NewJob, known: tuple[UUID, str | None] | None) -> None:
    """
    Refuse a job whose key stands for something else.

    Args:
        first: The first of this call with the key.
        known: The job that has the key, and in what it differs from the first, as the database says.
    """
    if known is None:
        # Another transaction's key that this one's snapshot cannot see yet (a caller's repeatable read).
        raise Unavailable(
            f"idempotency key {echo(job.idempotency_key)} is being written by another transaction; run yours again",
            code="KEY_BUSY",
        )
    job_id, what = known
    named = zip(("organization", "kind", "payload"), _meaning(job), _meaning(first), strict=True)
    what = next((name for name, mine, its in named if mine != its), what)
    if what is not None:
        raise Conflict(
            f"idempotency key {echo(job.idempotency_key)} of project {echo(job.project)} belongs to job {job_id} "
            f"with another {what}; use another key for another meaning",
            code="IDEMPOTENCY_MISMATCH",
        )


def _record(job: NewJob, authority: Authority, now: int, digest: str) -> Job:
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
        operation_digest=digest,
        epoch=authority.epoch,
        authority=authority,
    )


def _key_row(key: _Key, job: NewJob) -> Row:
    return (*key, job.job_id, *_meaning(job))
