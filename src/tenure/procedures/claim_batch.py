"""
The worker's claim: as `claim`, for many jobs at once, and fast.

Theory of operation. A queue is an index over (queue, lane, priority, time, id); claimed rows leave dead entries at its
front, and while somebody's snapshot is pinned they stay. So a worker remembers where it is: a cursor has one entry for
every queue, lane and priority that had ready rows when it looked, and the probe for an entry begins there. What comes
behind a cursor's back, a row that committed late or a higher priority, is found when the worker looks anew: after a
short claim, and at least every second or so.

Choice and write are one statement, `claim_batch`, which says in SQL what `moves.eligible`, `moves.order` and
`moves.claim` say in Python; tests hold it to them. Locking the rows first, deciding in Python and saving cost a worker
about as much processor time as everything else it does for a job that does nothing (docs/decisions/0011).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import UUID

from tenure.procedures.claim import PROMOTE_MAX, Claim, check_claim, grant, promote_rows, still_held
from tenure.procedures.records import document_of, effects_by_job, identity, lease_of, placed, span
from tenure.rules.effect import Effect
from tenure.rules.job import Job
from tenure.rules.lease import check_duration
from tenure.yields import FRESH, Command, Each, Row, Script, Statement, procedure


@dataclass(frozen=True, slots=True)
class Entry:
    """Where the probe of one queue, lane and priority begins."""

    queue: str
    lane: str
    priority: int
    run_at: int
    job_id: UUID


Cursor: TypeAlias = tuple[Entry, ...]


class Claimed:
    """
    A claim as the database gave it: the whole record is made of the row only where somebody asks for it.

    Most handlers look at nothing but their payload, and a record of more than forty fields costs as much as all else
    that Python does for such a job.

    Attributes:
        tenant, kind, error_code: Of the job.
    """

    __slots__ = ("_effects", "_job", "_row", "error_code", "kind", "lease", "tenant")

    def __init__(self, row: Row, effects: tuple[Effect, ...] = ()) -> None:
        self._row = row
        self._effects = effects
        self._job: Job | None = None
        self.tenant: str = row[2]
        self.kind: str = row[27]
        self.error_code: str | None = row[19]
        self.lease = lease_of(row)

    @property
    def job(self) -> Job:
        """The job as it was claimed."""
        if self._job is None:
            self._job = placed(self._row, self._effects).job
        return self._job

    @property
    def document(self) -> tuple[Mapping[str, Any], str | None]:
        """See `Claim.document`."""
        return document_of(self._row)


@dataclass(frozen=True, slots=True)
class Taken:
    """
    What a worker's claim gives back.

    Attributes:
        cursor: For the next claim; None where the next one should look anew, because this one came back short.
    """

    claims: list[Claim | Claimed]
    cursor: Cursor | None = None

    @property
    def full(self) -> bool:
        """Whether the limit was reached, so that there may be more."""
        return self.cursor is not None


@procedure
def claim_batch(
    worker_id: str,
    kinds: Sequence[str],
    *,
    limit: int,
    queues: Sequence[str] | None = None,
    tenant: str | None = None,
    organization: str | None = None,
    lease_duration: timedelta | None = None,
    cursor: Cursor | None = None,
    lost: int = 0,
    command: Command = FRESH,
) -> Script[Taken]:
    """
    Take up to `limit` eligible jobs of these kinds and start them.

    Args:
        queues: Served in this order; None means every queue, the one with the most urgent first job first.
        lease_duration: The leases' length instead of each job's own.
        cursor: From the worker's last claim; None looks where the queues begin and what has come due.
        lost: At most this many of them may be jobs whose last worker was lost, one of which may have been the cause;
            only where the claim looks anew.
    Locks: the rows taken, skipping locked ones. Writes: ready, deferred, lease, event.
    """
    names = (*(queues or ()), *kinds)
    check_claim(worker_id, limit, organization, names)
    if lease_duration is not None:
        check_duration(lease_duration)
    if command.again:
        # An earlier run of this very call may have committed: its leases carry the call's own id.
        leased = yield Statement("claim_leases", {"claim_id": command.id})
        if leased:
            return Taken([*(yield from still_held(leased))])
    claims: list[Claim | Claimed] = []
    scope: dict[str, Any] = {"tenant": tenant, "organization": organization, "kinds": list(kinds)}
    if cursor is None:
        rows, cursor = yield from _look(queues, scope, min(lost, limit))
        if rows:
            claims += yield from grant(rows, worker_id, start=True, duration=lease_duration, command=command)
    wanted = limit - len(claims)
    if cursor and wanted:
        fixed = (
            worker_id,
            json.dumps(worker_id, ensure_ascii=False),
            command.id,
            None if lease_duration is None else span(lease_duration),
            tenant,
            organization,
            json.dumps(list(kinds)),
            wanted,
            command.id,
        )
        rows = yield Each("claim_batch", [(e.queue, e.lane, e.priority, e.run_at, e.job_id, *fixed) for e in cursor])
        claims += yield from _claims(rows)
        cursor = _moved_on(cursor, rows)
    return Taken(claims, cursor if len(claims) == limit else None)


def _look(queues: Sequence[str] | None, scope: dict[str, Any], lost: int) -> Script[tuple[list[Row], Cursor]]:
    """Find where the queues begin, and the jobs whose worker was lost."""
    request: list[Statement | Each] = [Statement("deferred_due", {"limit": PROMOTE_MAX}), Statement("ready_fronts")]
    if lost:
        names = None if queues is None else list(queues)
        request.append(Statement("ready_lost", {"queues": names, "limit": lost, **scope}))
    due, fronts, *found = yield request
    if due:
        yield from promote_rows(due)
        fronts = yield Statement("ready_fronts")
    entries = [Entry(row[0], row[1], row[2], row[3], identity(row[4])) for row in fronts]
    return (found[0] if found else []), _ordered(entries, queues)


def _ordered(entries: list[Entry], queues: Sequence[str] | None) -> Cursor:
    first: dict[str, tuple[int, int]] = {}
    for entry in entries:
        urgency = (-entry.priority, entry.run_at)
        first[entry.queue] = min(first.get(entry.queue, urgency), urgency)
    if queues is None:
        places = {queue: nth for nth, queue in enumerate(sorted(first, key=lambda name: (first[name], name)))}
    else:
        places = {queue: nth for nth, queue in enumerate(dict.fromkeys(queues))}
    served = [entry for entry in entries if entry.queue in places]
    return tuple(sorted(served, key=lambda entry: (places[entry.queue], -entry.priority, entry.run_at)))


def _claims(rows: list[Row]) -> Script[list[Claimed]]:
    # A job of the first generation was never claimed before and has no effects.
    again = [(row[1],) for row in rows if row[4] > 1]
    if not again:
        return [Claimed(row) for row in rows]
    effects = effects_by_job((yield Each("effect_read", again)))
    return [Claimed(row, effects.get(identity(row[1]), ())) for row in rows]


def _moved_on(cursor: Cursor, rows: list[Row]) -> Cursor:
    """Let every entry begin at the last row that was taken of it."""
    ends = {(row[29], row[30]): row for row in rows}
    moved = []
    for entry in cursor:
        last = ends.get((entry.queue, entry.priority))
        moved.append(entry if last is None else replace(entry, run_at=last[8], job_id=identity(last[1])))
    return tuple(moved)
