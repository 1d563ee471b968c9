"""
The completions of plain jobs, many in one statement: the worker's hottest write.

`complete_batch` says in SQL what `lease.check_fence` and `moves.complete` say in Python, for the jobs on which nothing
else has to be decided: running, under the lease presented, no cancellation pending, no effect open. Tests hold it to
those rules. What it does not give back was not touched; `hold.hold` then locks, decides and saves, and gives the typed
reason (docs/decisions/0011).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tenure.errors import Invalid
from tenure.procedures.records import identity
from tenure.rules.lease import Lease
from tenure.rules.payload import encode_result
from tenure.yields import FRESH, Command, Each, Last, Script, Statement, procedure


@dataclass(frozen=True, slots=True)
class Completion:
    """
    The end of an attempt whose handler returned.

    Attributes:
        tenant: Of the job.
        text: The result as it is stored.
    """

    lease: Lease
    tenant: str
    text: str


def completion(lease: Lease, tenant: str, result: Any) -> Completion | None:
    """Make a completion; None where the result cannot be stored, which is for the rules to judge."""
    try:
        return Completion(lease, tenant, encode_result(result))
    except Invalid:
        return None


@procedure
def complete_batch(completions: Sequence[Completion], *, command: Command = FRESH) -> Script[set[UUID]]:
    """
    Complete what is plain to complete, at most one of each job.

    Returns:
        The jobs that are completed now; the others are as they were.
    Locks: the tenants' authority (shared), the leases. Writes: lease, outcome, event.
    """
    done: set[UUID] = set()
    if command.again:
        # Behind the locks: an earlier run of this very call may still be at its commit.
        known = Each("event_known", [(one.lease.job_id, command.id) for one in completions])
        _, rows = yield [_locked(completions), known]
        done = {identity(row[0]) for row in rows}
    left = [one for one in completions if one.lease.job_id not in done]
    if not left:
        return done
    asked = [
        (
            one.lease.job_id,
            one.tenant,
            one.lease.generation,
            one.lease.worker_id,
            one.lease.attempt_id,
            one.text,
            command.id,
        )
        for one in left
    ]
    _, rows = yield Last([_locked(left), Each("complete_batch", asked)])
    return done | {identity(row[0]) for row in rows}


def _locked(completions: Sequence[Completion]) -> Statement:
    # A statement of its own: one that has to wait for a lock does not see what is written to other tables meanwhile,
    # and would complete a job over an effect that was begun in that moment.
    tenants = sorted({one.tenant for one in completions})
    return Statement("lease_lock", {"tenants": tenants, "job_ids": [one.lease.job_id for one in completions]})
