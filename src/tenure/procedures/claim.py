"""
Take eligible jobs under leases, and the passes that make jobs eligible: promotion, recovery, parking.

Only the choice of rows is made in SQL; `rules.moves.eligible` and `order` are the oracle it is held to. Everything else
is lock, decide, save, for one job or a hundred.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from tenure.errors import Conflict, Invalid
from tenure.procedures.records import Placed, effect_of, identity, placed, span, with_effects
from tenure.procedures.rows import lock_free, read, save
from tenure.rules import moves
from tenure.rules.creation import check_text
from tenure.rules.effect import Effect
from tenure.rules.job import Change, Job
from tenure.rules.lease import Lease, check_duration
from tenure.yields import FRESH, Command, Each, Row, Rows, Script, Statement, new_id, procedure

LIMIT_MAX = 1_000
RECOVER_MAX = 100
PROMOTE_MAX = 1_000
PARK_FRONT = 500
# A row that committed late has an earlier time than rows already claimed; look this far behind the cursor.
CURSOR_SLACK = timedelta(seconds=1)

Cursor = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed job and the lease on it."""

    job: Job
    lease: Lease


@dataclass(frozen=True, slots=True)
class Taken:
    """
    What a worker's batched claim gives back.

    Attributes:
        cursor: Per queue and priority, where the next claim may begin to look.
        full: The limit was reached, so there may be more.
    """

    claims: list[Claim]
    cursor: Cursor = field(default_factory=dict)
    full: bool = False


@procedure
def claim(
    worker_id: str,
    *,
    limit: int = 1,
    queues: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
    tenant: str | None = None,
    organization: str | None = None,
    start: bool = False,
    lease_duration: timedelta | None = None,
    claim_id: UUID | None = None,
    cursor: Cursor | None = None,
    thorough: bool = True,
    lost: int | None = None,
    command: Command = FRESH,
) -> Script[Taken]:
    """
    Take up to `limit` eligible jobs.

    Args:
        queues: Served in this order; None means every queue, the one with the most urgent first job first.
        kinds: Kinds the worker knows; None means all.
        start: Become running in the same step.
        lease_duration: The leases' length instead of each job's own.
        claim_id: Makes the claim repeatable: the same id gives the same leases while they live.
        cursor: From the worker's last claim; may overlook a row that committed late.
        thorough: Settle expired leases and look among parked rows too.
        lost: At most this many of them may be jobs whose last worker was lost, one of which may have been the cause;
            None does not tell them apart.
    Raises:
        Conflict: The claim id was used by another worker or with another scope.
    Locks: the rows taken, skipping locked ones. Writes: ready, deferred, resting, lease, outcome, claim, event.
    """
    _check(worker_id, limit, lease_duration, organization, (*(queues or ()), *(kinds or ())))
    scope = json.dumps([tenant, organization, queues and list(queues), kinds and list(kinds)])
    if claim_id is not None:
        before = yield from _claimed_before(claim_id, worker_id, scope)
        if before is not None:
            return Taken(before)
    elif command.again:
        # An earlier run of this very call may have committed: its leases carry the call's own id.
        leased = yield Statement("claim_leases", {"claim_id": command.id})
        if leased:
            return Taken((yield from _still_held(leased)))
    yield from _promote(PROMOTE_MAX)
    if thorough:
        yield from _recover(RECOVER_MAX, command)
    wanted = (yield from _all_queues(thorough=thorough)) if queues is None else list(dict.fromkeys(queues))
    filters: dict[str, Any] = {"tenant": tenant, "organization": organization}
    filters["kinds"] = None if kinds is None else list(kinds)
    picked: list[Row] = yield from _pick_lost(wanted, filters, min(limit, lost or 0))
    filters["wary"] = lost is not None
    ahead: dict[str, dict[int, int]] = {}
    for queue in wanted:
        if len(picked) == limit:
            break
        rows = yield from _pick(queue, filters, limit - len(picked), (cursor or {}).get(queue), thorough=thorough)
        picked += rows
        ahead[queue] = _bounds(rows)
    if not picked:
        return Taken([])
    return Taken(
        (yield from _take(picked, worker_id, start, lease_duration, claim_id, scope, command)),
        ahead,
        len(picked) == limit,
    )


def _check(
    worker_id: str, limit: int, lease_duration: timedelta | None, organization: str | None, names: Sequence[str]
) -> None:
    check_text("worker_id", worker_id)
    if type(limit) is not int or not 1 <= limit <= LIMIT_MAX:
        raise Invalid(f"limit must be a whole number from 1 to {LIMIT_MAX}, not {limit!r}", code="BAD_ARGUMENT")
    if organization is not None:
        check_text("organization", organization)
    if lease_duration is not None:
        check_duration(lease_duration)
    for name in names:
        check_text("queue or kind", name)


def _all_queues(*, thorough: bool) -> Script[list[str]]:
    fronts = yield Statement("queue_fronts")
    names = [row[0] for row in fronts]
    if thorough:
        names += [row[0] for row in (yield Statement("resting_queues")) if row[0] not in names]
    return names


def _claimed_before(claim_id: UUID, worker_id: str, scope: str) -> Script[list[Claim] | None]:
    known, leased = yield [
        Statement("claim_read", {"claim_id": claim_id}),
        Statement("claim_leases", {"claim_id": claim_id}),
    ]
    if not known:
        return None
    if (known[0][0], known[0][1]) != (worker_id, scope):
        raise Conflict(f"claim id {claim_id} was used by another worker or with another scope", code="CLAIM_MISMATCH")
    return (yield from _still_held(leased))


def _still_held(leased: Rows) -> Script[list[Claim]]:
    found = yield from read(identity(row[0]) for row in leased)
    alive = [known.job for known in found.values() if known.job.lease and known.now < known.job.lease.expires_at]
    return [Claim(job, job.lease) for job in sorted(alive, key=moves.order) if job.lease]


def _pick_lost(queues: Sequence[str], filters: Mapping[str, Any], limit: int) -> Script[list[Row]]:
    rows: list[Row] = []
    for queue in queues:
        if len(rows) < limit:
            rows += yield Statement("ready_lost", {"queue": queue, "limit": limit - len(rows), **filters})
    return rows


def _pick(
    queue: str, filters: Mapping[str, Any], limit: int, bounds: Mapping[int, int] | None, *, thorough: bool
) -> Script[Rows]:
    rows: Rows = []
    if bounds:
        ordered = sorted(bounds, reverse=True)
        rows = yield Statement(
            "ready_next",
            {
                "queue": queue,
                "priorities": ordered,
                "bounds": [bounds[priority] for priority in ordered],
                "limit": limit,
                **filters,
            },
        )
        if len(rows) == limit:
            return rows
        # What the cursor found is locked by this very transaction, which does not skip its own locks.
        seen = {row[1] for row in rows}
        more = yield Statement("ready_front", {"queue": queue, "limit": limit, **filters})
        return [*rows, *(row for row in more if row[1] not in seen)][:limit]
    rows = yield Statement("ready_front", {"queue": queue, "limit": limit, **filters})
    if thorough and len(rows) < limit:
        parked = {name: value for name, value in filters.items() if name != "wary"}
        rows += yield Statement("resting_front", {"queue": queue, "limit": limit - len(rows), **parked})
    return rows


def _bounds(rows: Rows) -> dict[int, int]:
    bounds: dict[int, int] = {}
    slack = span(CURSOR_SLACK)
    for row in rows:
        priority, run_at = row[30], row[8]
        bounds[priority] = min(bounds.get(priority, run_at - slack), run_at - slack)
    return bounds


def _take(
    rows: Rows,
    worker_id: str,
    start: bool,  # noqa: FBT001 - passed on as it came
    duration: timedelta | None,
    claim_id: UUID | None,
    scope: str,
    command: Command,
) -> Script[list[Claim]]:
    decided: list[tuple[Placed, Change]] = []
    for row in rows:
        known = placed(row)
        if not moves.eligible(known.job, known.now):
            continue  # the store's clock was set back, by a failover for one; it is due again soon
        decided.append((known, moves.claim(known.job, worker_id, new_id(), known.now, start=start, duration=duration)))
    yield from save(decided, command, claim_id=claim_id or command.id)
    ids = [(known.job.id,) for known, _ in decided]
    request: list[Statement | Each] = [Each("effect_read", ids)]
    if claim_id is not None:
        request.append(Statement("claim_insert", {"claim_id": claim_id, "worker_id": worker_id, "scope": scope}))
    effects = _by_job((yield request)[0])
    claims = []
    for _, change in decided:
        job = with_effects(change.job, effects.get(change.job.id, ()))
        assert job.lease is not None
        claims.append(Claim(job, job.lease))
    return claims


def _by_job(rows: Rows) -> dict[UUID, list[Effect]]:
    found: dict[UUID, list[Effect]] = {}
    for row in rows:
        job_id, effect = effect_of(row)
        found.setdefault(job_id, []).append(effect)
    return found


# --- the passes that make jobs runnable -------------------------------------------------------------------------------


@procedure
def promote(limit: int = PROMOTE_MAX) -> Script[int]:
    """
    Move deferred jobs that are due to where claims look.

    Returns: How many. Locks: the rows moved, skipping locked ones. Writes: deferred, ready.
    """
    return (yield from _promote(limit))


def _promote(limit: int) -> Script[int]:
    due = yield Statement("deferred_due", {"limit": limit})
    if due:
        yield [Each("deferred_delete", [(row[0], row[8]) for row in due]), Each("ready_insert", due)]
    return len(due)


@procedure
def recover(limit: int = RECOVER_MAX, *, command: Command = FRESH) -> Script[int]:
    """
    Settle leases that have ended: queued again, indeterminate, cancelled or dead, as `moves.recover` says.

    Returns: How many. Locks: as `rows.lock`, skipping locked leases. Writes: lease, ready, resting, outcome, event.
    """
    return (yield from _recover(limit, command))


def _recover(limit: int, command: Command) -> Script[int]:
    expired = yield Statement("lease_expired", {"limit": limit})
    if not expired:
        return 0
    found = yield from lock_free(identity(row[0]) for row in expired)
    decided = []
    for known in found.values():
        change = moves.recover(known.job, known.now)
        if change is not None:
            decided.append((known, change))
    if decided:
        yield from save(decided, command)
    return len(decided)


@procedure
def announce(worker_id: str, kinds: Sequence[str], lifetime: timedelta) -> Script[None]:
    """
    Say which kinds a live worker knows.

    Writes: announcement.
    """
    yield Statement("announcement_save", {"worker_id": worker_id, "kinds": list(kinds), "lifetime_us": span(lifetime)})


@procedure
def withdraw(worker_id: str) -> Script[None]:
    """Forget a worker's announcement, and every one that has run out. Writes: announcement."""
    yield Statement("announcement_delete", {"worker_id": worker_id})


@procedure
def park(limit: int = PROMOTE_MAX) -> Script[int]:
    """
    Move ready jobs that no live worker knows, or that are held, out of the way of claims, and bring back the others.

    Attempts and generations stay; the single claim looks among parked rows all the same.

    Returns: How many moved. Locks: the rows moved, skipping locked ones. Writes: ready, resting.
    """
    fronts, back = yield [Statement("queue_fronts"), Statement("resting_claimable", {"limit": limit})]
    away: Rows = []
    for queue, _, _ in fronts:
        # Only what stands in the way of a claim: a row deeper in the queue costs nothing until it comes to the front.
        away += yield Statement("ready_unclaimable", {"queue": queue, "limit": PARK_FRONT})
    parked = [
        (row[0], row[1], "queued", row[-1], *row[2:7], row[7], *row[8:12], None, None, *row[12:14], None)
        for row in away
    ]
    yield [
        Each("ready_delete", [(row[0], row[8]) for row in away]),
        Each("resting_insert", parked),
        Each("resting_delete", [(row[0], row[8]) for row in back]),
        Each("ready_insert", back),
    ]
    return len(away) + len(back)


@procedure
def forget_claims(age: timedelta) -> Script[None]:
    """Forget claim ids older than any lease they could still stand for. Writes: claim."""
    now = (yield Statement("clock"))[0][0]
    yield Statement("claim_prune", {"before": now - span(age)})
