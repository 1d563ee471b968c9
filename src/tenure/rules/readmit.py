"""Let held work run again: stamp it with the tenant's current epoch. The body, with its digest, stays as it was."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from tenure.errors import IllegalMove, Uncertain
from tenure.rules.authority import check_thawed
from tenure.rules.event import EventName
from tenure.rules.job import Change, Job, note, open_boundary
from tenure.rules.status import Status


def readmit(job: Job, *, actor: str, reason: str, now: datetime) -> Change | None:
    """
    Stamp one queued job with its tenant's current epoch.

    Only queued work is held. A lease under an older epoch is fenced and runs out by itself, and what comes of it is
    queued, held, or uncertain; to stamp the lease would give its holder back what the rotation took.

    Returns:
        None where the job has the current epoch already.
    Raises:
        IllegalMove: It is not queued.
        Uncertain: A boundary is open: nothing that may have reached the world becomes runnable.
        Refused: DATABASE_FROZEN.
    """
    check_thawed(database_frozen=job.authority.database_frozen)
    if open_boundary(job):
        raise Uncertain(f"job {job.id} has an open boundary; reconcile it first (`tenure jobs reconcile`)")
    if job.status is not Status.QUEUED:
        raise IllegalMove(
            f"job {job.id} is {job.status} and cannot be readmitted: only queued work is held. A lease under an older "
            f"epoch runs out by itself; readmit the job then"
        )
    if job.epoch == job.authority.epoch:
        return None
    after = replace(job, epoch=job.authority.epoch, parked=None)
    data = {"from": job.epoch, "to": after.epoch, "reason": reason}
    return Change(job=after, events=(note(after, EventName.READMITTED, now, actor=actor, data=data),))
