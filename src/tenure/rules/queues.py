"""
Queues as a whole: paused or not, draining or not, and whose they are.

A queue with an owner is served by that owner's workers alone; one without is anybody's. The owner changes where the
queue is empty, or where somebody says that the work goes along; and only for who names the owner of now, so that of
two who want it one is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from tenure.errors import Conflict, Refused, echo

# Leases that a refusal names.
LEASES_NAMED = 10


@dataclass(frozen=True, slots=True)
class Contents:
    """
    How many jobs are in a queue.

    Attributes:
        ready: Queued, where claims look.
        deferred: Queued, and not yet due when they were put there.
        resting: Parked, indeterminate or timed out.
        leased: Claimed or running, expired leases too.
        uncertain: Finished with an open boundary.
    """

    ready: int = 0
    deferred: int = 0
    resting: int = 0
    leased: int = 0
    uncertain: int = 0

    @property
    def total(self) -> int:
        """All of them; a queue without any is drained."""
        return self.ready + self.deferred + self.resting + self.leased + self.uncertain


@dataclass(frozen=True, slots=True)
class QueueState:
    """
    A queue, and what is in it.

    Attributes:
        fair: Tenants take turns.
        owner: The service whose workers alone claim from it; None for anybody's.
        draining_at: Since when it takes no new jobs.
    """

    name: str
    fair: bool = False
    paused_at: datetime | None = None
    paused_by: str | None = None
    pause_reason: str | None = None
    owner: str | None = None
    draining_at: datetime | None = None
    contents: Contents = Contents()

    @property
    def drained(self) -> bool:
        """No committed job is left that could run or whose outcome is uncertain."""
        return not self.contents.total


@dataclass(frozen=True, slots=True)
class QueueChange:
    """
    What somebody did with a queue.

    Attributes:
        what: paused, resumed, draining or transferred.
        jobs: How many jobs went along in a transfer.
    """

    queue: str
    at: datetime
    what: str
    actor: str
    reason: str | None = None
    old_owner: str | None = None
    new_owner: str | None = None
    jobs: int | None = None


@dataclass(frozen=True, slots=True)
class LiveLease:
    """A lease that stands in the way of a transfer."""

    job_id: UUID
    worker_id: str
    expires_at: datetime


def may_claim(state: QueueState, owner: str | None) -> bool:
    """Say whether a worker of this owner may claim from a queue; the oracle of the claims' SQL."""
    return state.paused_at is None and state.owner in {None, owner}


def pause(state: QueueState, now: datetime, actor: str, reason: str) -> QueueState | None:
    """Pause a queue; None where it is paused already."""
    if state.paused_at is not None:
        return None
    return replace(state, paused_at=now, paused_by=actor, pause_reason=reason)


def drain(state: QueueState, now: datetime) -> QueueState | None:
    """Let a queue take no new jobs; None where it takes none already."""
    return None if state.draining_at is not None else replace(state, draining_at=now)


def resume(state: QueueState, *, keep_draining: bool = False) -> QueueState | None:
    """Take back a pause, and a drain unless it is to be kept; None where there is neither."""
    draining_at = state.draining_at if keep_draining else None
    after = replace(state, paused_at=None, paused_by=None, pause_reason=None, draining_at=draining_at)
    return None if after == state else after


def transfer(
    state: QueueState, leases: Sequence[LiveLease], *, expected: str | None, owner: str | None, with_work: bool
) -> QueueState:
    """
    Give a queue another owner. It takes new jobs again afterwards; a pause stays.

    Args:
        expected: The owner of now, as the caller knows it.
        with_work: The jobs in it go along, as they are.
    Raises:
        Conflict: OWNER_CHANGED, its owner is another one.
        Refused: LEASES_LIVE, or QUEUE_NOT_DRAINED.
    """
    if state.owner != expected:
        # Nobody is what --from says where it is left out.
        left_out = "; is expected= (--from) missing?" if expected is None else "; somebody may have been quicker."
        raise Conflict(
            f"queue {echo(state.name)} belongs to {_named(state.owner)}, not to {_named(expected)}{left_out} Look with "
            "`tenure queues list` and ask again",
            code="OWNER_CHANGED",
        )
    if leases:
        named = ", ".join(
            f"job {one.job_id} by {echo(one.worker_id)} until {one.expires_at.isoformat()}"
            for one in leases[:LEASES_NAMED]
        )
        more = f" and {len(leases) - LEASES_NAMED} more" if len(leases) > LEASES_NAMED else ""
        raise Refused(
            f"queue {echo(state.name)} has {len(leases)} live lease{_s(len(leases))}: {named}{more}; wait for them "
            "(`tenure queues transfer --wait SECONDS` pauses the queue meanwhile), or stop those workers",
            code="LEASES_LIVE",
        )
    if state.contents.total and not with_work:
        raise Refused(
            f"queue {echo(state.name)} still has {state.contents.total} job{_s(state.contents.total)}; drain it first "
            "(`tenure queues drain`), or transfer it with its work (--with-work)",
            code="QUEUE_NOT_DRAINED",
        )
    return replace(state, owner=owner, draining_at=None)


def draining(name: str) -> Refused:
    """Word the refusal of a new job."""
    return Refused(
        f"queue {echo(name)} is being drained and takes no new jobs; nothing was written: enqueue again once it was "
        "transferred or resumed (`tenure queues list` says so), or into another queue",
        code="QUEUE_DRAINING",
    )


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _named(owner: str | None) -> str:
    return "nobody" if owner is None else echo(owner)
