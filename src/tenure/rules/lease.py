"""
The lease, and the fence that every command of a worker must pass.

A lease is live while now < expiry and claimable at now == expiry: one clock, so it is never both and never neither. The
clock is the store's, read after the row lock is held.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from tenure.errors import EpochClosed, Invalid, LeaseLost, echo
from tenure.rules.bounds import check_span
from tenure.rules.status import LIVE

if TYPE_CHECKING:
    from tenure.rules.job import Job

# A worker beats at a third of its lease: two beats may be lost in a row before anyone may take the job.
BEATS_PER_LEASE = 3
LEASE_MIN = timedelta(milliseconds=100)
LEASE_MAX = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Lease:
    """
    Finite ownership of a claimed job, as its holder presents it.

    Attributes:
        generation: The fencing token; every claim makes it larger.
        expires_at: When the lease ends by the store's clock, as of the last renewal this record knows.
        duration: How far a renewal extends it.
    """

    job_id: UUID
    worker_id: str
    attempt_id: UUID
    generation: int
    expires_at: datetime
    duration: timedelta


def live(lease: Lease, now: datetime) -> bool:
    """Say whether a lease still holds at this instant of the store's clock."""
    return now < lease.expires_at


def check_fence(job: Job, lease: Lease, now: datetime) -> Lease:
    """
    Let the holder of the current lease pass and give back the stored lease.

    Args:
        now: The store's clock, read after the job's row lock is held.
    Raises:
        LeaseLost: With the first reason that applies: status, worker, attempt, generation, expired.
        EpochClosed: The reason is epoch or frozen.
    """
    held = job.lease
    if job.status not in LIVE or held is None:
        raise _lost(lease, "status", f"job is {job.status}")
    if held.worker_id != lease.worker_id:
        raise _lost(lease, "worker", "another worker holds it")
    if held.attempt_id != lease.attempt_id:
        raise _lost(lease, "attempt", "another attempt of this worker holds it")
    if held.generation != lease.generation:
        raise _lost(lease, "generation", f"the current generation is {held.generation}")
    if not live(held, now):
        raise _lost(lease, "expired", f"it ended at {held.expires_at.isoformat()}")
    if job.authority.frozen:
        raise _closed(lease, "frozen", "the tenant or the database is frozen")
    if job.epoch != job.authority.epoch:
        raise _closed(lease, "epoch", f"the work has epoch {job.epoch}, the tenant {job.authority.epoch}")
    return held


def _lost(lease: Lease, reason: str, why: str) -> LeaseLost:
    return LeaseLost(_text(lease, why), reason=reason)


def _closed(lease: Lease, reason: str, why: str) -> EpochClosed:
    return EpochClosed(_text(lease, why), reason=reason)


def _text(lease: Lease, why: str) -> str:
    return (
        f"lease of worker {echo(lease.worker_id)} on job {lease.job_id}, generation {lease.generation}, is not "
        f"current: {why}. Stop this attempt; hand in a receipt with submit_evidence if a call was made."
    )


def check_lease(lease: Lease) -> Lease:
    """Refuse what is no lease at all."""
    if not isinstance(lease, Lease):
        raise Invalid(f"pass the lease of a claim, not {type(lease).__name__}", code="BAD_ARGUMENT")
    return lease


def check_duration(duration: timedelta, what: str = "lease_duration") -> timedelta:
    """Refuse a lease that is too short to renew or too long to be a lease."""
    return check_span(what, duration, least=LEASE_MIN, most=LEASE_MAX)


def check_beat(heartbeat: timedelta, lease: timedelta) -> timedelta:
    """
    Refuse a heartbeat that could not survive two lost beats.

    Raises:
        Invalid: The heartbeat is longer than a third of the lease; both values are named.
    """
    if heartbeat <= timedelta(0) or heartbeat * BEATS_PER_LEASE > lease:
        raise Invalid(
            f"heartbeat of {heartbeat.total_seconds():g} s is longer than a third of the lease of "
            f"{lease.total_seconds():g} s: set heartbeat to at most {lease.total_seconds() / BEATS_PER_LEASE:g} s "
            f"or lengthen the lease",
            code="HEARTBEAT_TOO_LONG",
        )
    return heartbeat


def trusted_until(sent: float, duration: timedelta) -> float:
    """
    Until when a worker may trust a lease, by its own monotonic clock.

    Args:
        sent: Monotonic seconds when the claim or the renewal was sent, not when its answer came: the store counted from
            some instant after that.
        duration: The lease's duration; a twentieth of it is kept as margin for the clocks' rates.
    """
    return sent + duration.total_seconds() * 0.95
