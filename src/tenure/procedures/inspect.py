"""Reads: jobs, lists, effects and trails. Nothing here locks or writes."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from tenure.procedures.records import JOB_ID, event_of, evidence_of, identity
from tenure.procedures.rows import assemble, in_scope, read
from tenure.rules.bounds import check_whole
from tenure.rules.effect import MARK, Effect, StoredEvidence
from tenure.rules.event import Event
from tenure.rules.job import Job
from tenure.rules.status import LIVE, Phase, Status
from tenure.yields import Each, Script, Statement, procedure

LIST_MAX = 1_000

# Which statuses a phase can have; the phase itself is derived from the record afterwards.
_STATUSES = {
    Phase.READY: (Status.QUEUED,),
    Phase.HELD: (Status.QUEUED,),
    Phase.WAITING_EXTERNAL: (Status.QUEUED,),
    Phase.WAITING_REVIEW: (Status.QUEUED,),
    Phase.LEASED: tuple(sorted(LIVE)),
    Phase.DONE: (Status.COMPLETED, Status.CANCELLED),
    Phase.NEEDS_ATTENTION: (
        Status.FAILED,
        Status.DEAD_LETTER,
        Status.INDETERMINATE,
        Status.HALT_UNSAFE,
        Status.TIMED_OUT,
        Status.CANCELLED,
    ),
}


@procedure(reads=True)
def get_job(job_id: UUID, *, tenant: str | None = None) -> Script[Job]:
    """Give one job. Raises NotFound."""
    found = yield from read([job_id])
    return in_scope(found, job_id, tenant).job


@procedure(reads=True)
def get_jobs(ids: Sequence[UUID], *, tenant: str | None = None) -> Script[list[Job]]:
    """Give the known ones of some jobs, in the order given."""
    found = yield from read(ids)
    jobs = [found[job_id].job for job_id in ids if job_id in found]
    return [job for job in jobs if tenant is None or job.tenant == tenant]


@procedure(reads=True)
def find_by_key(tenant: str, project: str, idempotency_key: str) -> Script[Job | None]:
    """Give the job that has an idempotency key, or None."""
    rows = yield Each("job_key_read", [(tenant, project, idempotency_key)])
    if not rows:
        return None
    job_id = identity(rows[0][3])
    found = yield from read([job_id])
    return found[job_id].job if job_id in found else None


@procedure(reads=True)
def list_jobs(
    *,
    tenant: str | None = None,
    organization: str | None = None,
    project: str | None = None,
    status: Status | None = None,
    phase: Phase | None = None,
    queue: str | None = None,
    limit: int = 100,
    after: UUID | None = None,
) -> Script[list[Job]]:
    """
    Give jobs by creation, oldest first.

    Args:
        limit: At most 1,000.
        after: The id of the last job of the page before.
    """
    check_whole("limit", limit, LIST_MAX)
    wanted = _wanted(status, phase)
    jobs: list[Job] = []
    while len(jobs) < limit:
        rows = yield Statement(
            "place_list",
            {
                "tenant": tenant,
                "organization": organization,
                "project": project,
                "status": wanted,
                "queue": queue,
                "after": after,
                "limit": limit,
            },
        )
        if not rows:
            break
        ids = [(identity(row[JOB_ID]),) for row in rows]
        effects, escalations = yield [Each("effect_read", ids), Each("escalation_read", ids)]
        page = assemble(rows, effects, escalations)
        jobs += [known.job for known in page.values() if phase is None or known.job.phase is phase]
        (after,) = ids[-1]
        if len(rows) < limit:
            break
    return jobs[:limit]


def _wanted(status: Status | None, phase: Phase | None) -> list[str] | None:
    by_phase = None if phase is None else {one.value for one in _STATUSES[phase]}
    by_status = None if status is None else {status.value}
    if by_phase is None and by_status is None:
        return None
    if by_phase is not None and by_status is not None:
        return sorted(by_phase & by_status)
    return sorted(by_phase or by_status or ())


@procedure(reads=True)
def list_effects(job_id: UUID, *, tenant: str | None = None) -> Script[list[Effect]]:
    """Give a job's named effects, oldest intent first."""
    found = yield from read([job_id])
    return [effect for effect in in_scope(found, job_id, tenant).job.effects if effect.name != MARK]


@procedure(reads=True)
def list_events(job_id: UUID, *, tenant: str | None = None) -> Script[list[Event]]:
    """Give a job's trail in the order written."""
    found = yield from read([job_id])
    in_scope(found, job_id, tenant)
    return [event_of(row) for row in (yield Each("event_read", [(job_id,)]))]


@procedure(reads=True)
def list_evidence(job_id: UUID, *, tenant: str | None = None) -> Script[list[StoredEvidence]]:
    """Give the evidence kept for a job, oldest first."""
    found = yield from read([job_id])
    in_scope(found, job_id, tenant)
    return [evidence_of(row) for row in (yield Each("evidence_read", [(job_id,)]))]
