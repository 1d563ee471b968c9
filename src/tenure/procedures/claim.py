"""
Take eligible jobs under leases.

Only the choice of rows is made in SQL; `rules.moves.eligible` and `order` are the oracle it is held to. Everything else
is lock, decide, save, for one job or a hundred.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from tenure.errors import Conflict
from tenure.procedures.records import JOB_ID, Placed, effects_by_job, identity, placed, with_effects
from tenure.procedures.rows import read, save
from tenure.procedures.upkeep import LANES_MAX, PROMOTE_MAX, RECOVER_MAX, promote, settle_expired
from tenure.rules import moves
from tenure.rules.bounds import check_whole
from tenure.rules.creation import check_text
from tenure.rules.job import Change, Job
from tenure.rules.lease import Lease, check_duration
from tenure.yields import FRESH, Command, Each, Rows, Script, Statement, new_id, procedure

LIMIT_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed job and the lease on it."""

    job: Job
    lease: Lease

    @property
    def tenant(self) -> str:
        """Of the job."""
        return self.job.tenant

    @property
    def kind(self) -> str:
        """Of the job."""
        return self.job.kind

    @property
    def error_code(self) -> str | None:
        """Of the job."""
        return self.job.error_code

    @property
    def document(self) -> tuple[Mapping[str, Any], str | None]:
        """The payload as it was stored, and why it cannot be read."""
        return self.job.payload, self.job.unreadable


@procedure
def claim(
    worker_id: str,
    *,
    limit: int = 1,
    queues: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
    tenant: str | None = None,
    organization: str | None = None,
    owner: str | None = None,
    start: bool = False,
    lease_duration: timedelta | None = None,
    claim_id: UUID | None = None,
    command: Command = FRESH,
) -> Script[list[Claim]]:
    """
    Take up to `limit` eligible jobs.

    Args:
        queues: Served in this order; None means every queue, the one with the most urgent first job first.
        kinds: Kinds the worker knows; None means all.
        owner: Whose queues may be served beside those without an owner.
        start: Become running in the same step.
        lease_duration: The leases' length instead of each job's own.
        claim_id: Makes the claim repeatable: the same id gives the same leases while they live.
    Raises:
        Conflict: The claim id was used by another worker or with another scope.
    Locks: the rows taken, skipping locked ones. Writes: ready, deferred, resting, lease, outcome, claim, event.
    """
    check_claim(worker_id, limit, organization, (*(queues or ()), *(kinds or ())), owner)
    if lease_duration is not None:
        check_duration(lease_duration)
    # Without an owner as it was before there were owners, so that an older claim can still be asked again.
    owned = () if owner is None else (owner,)
    scope = json.dumps([tenant, organization, queues and list(queues), kinds and list(kinds), *owned])
    if claim_id is not None:
        before = yield from _claimed_before(claim_id, worker_id, scope)
        if before is not None:
            return before
    elif command.again:
        # An earlier run of this very call may have committed: its leases carry the call's own id.
        leased = yield Statement("claim_leases", {"claim_id": command.id})
        if leased:
            return (yield from still_held(leased))
    yield from promote(PROMOTE_MAX)
    yield from settle_expired(RECOVER_MAX, command)
    known = None if kinds is None else list(kinds)
    filters = {"tenant": tenant, "organization": organization, "kinds": known, "owner": owner}
    rows = yield from _pick(queues, filters, limit)
    if not rows:
        return []
    if claim_id is not None:
        yield Statement("claim_insert", {"claim_id": claim_id, "worker_id": worker_id, "scope": scope})
    return (yield from grant(rows, worker_id, start=start, duration=lease_duration, command=command, claim_id=claim_id))


def _pick(queues: Sequence[str] | None, filters: Mapping[str, Any], limit: int) -> Script[Rows]:
    wanted = (yield from _all_queues()) if queues is None else list(dict.fromkeys(queues))
    picked: Rows = []
    for queue in wanted:
        if len(picked) < limit:
            picked += yield from _front(queue, filters, limit - len(picked))
        if len(picked) < limit:
            picked += yield Statement("resting_front", {"queue": queue, "limit": limit - len(picked), **filters})
    return picked


def _front(queue: str, filters: Mapping[str, Any], limit: int) -> Script[Rows]:
    """Lock the rows of a queue whose turn it is: tenants go round, and round again while they have more."""
    asked = {"queue": queue, "limit": limit, **filters}
    rows: Rows = yield Statement("ready_front", {"rounds": 1, **asked})
    # A plain queue has one lane and no turns, and the statement names none.
    if not rows or rows[0][-1] is None:
        return [row[:-1] for row in rows]
    yield Statement("queue_turn", {"name": queue, "lane": rows[-1][-1]})
    picked = {identity(row[JOB_ID]): row[:-1] for row in rows}
    rounds, before = 1, 0
    while before < len(picked) < limit:
        # Rows that are ours already are given again, and twice as many rounds cost a few statements at most.
        rounds, before = 2 * rounds, len(picked)
        for row in (yield Statement("ready_front", {"rounds": rounds, **asked})):
            if len(picked) < limit:
                picked.setdefault(identity(row[JOB_ID]), row[:-1])
    return list(picked.values())


def check_claim(
    worker_id: str, limit: int, organization: str | None, names: Sequence[str], owner: str | None = None
) -> None:
    """Refuse a claim whose words or bounds are wrong."""
    check_text("worker_id", worker_id)
    check_whole("limit", limit, LIMIT_MAX)
    if organization is not None:
        check_text("organization", organization)
    if owner is not None:
        check_text("owner", owner)
    for name in names:
        check_text("queue or kind", name)


def _all_queues() -> Script[list[str]]:
    fronts, parked = yield [
        Statement("ready_fronts", {"queues": [], "lanes": [], "limit": LANES_MAX}),
        Statement("resting_queues"),
    ]
    return list(dict.fromkeys((*by_urgency(fronts), *(row[0] for row in parked))))


def by_urgency(fronts: Rows) -> list[str]:
    """Give the queues of a look, the one with the most urgent of the first jobs seen first."""
    first: dict[str, tuple[int, int]] = {}
    for queue, _, priority, run_at, *_ in fronts:
        urgency = (-priority, run_at)
        first[queue] = min(first.get(queue, urgency), urgency)
    return sorted(first, key=lambda queue: (first[queue], queue))


def _claimed_before(claim_id: UUID, worker_id: str, scope: str) -> Script[list[Claim] | None]:
    known, leased = yield [
        Statement("claim_read", {"claim_id": claim_id}),
        Statement("claim_leases", {"claim_id": claim_id}),
    ]
    if not known:
        return None
    if (known[0][0], known[0][1]) != (worker_id, scope):
        raise Conflict(f"claim id {claim_id} was used by another worker or with another scope", code="CLAIM_MISMATCH")
    return (yield from still_held(leased))


def still_held(leased: Rows) -> Script[list[Claim]]:
    """Give the claims of an earlier run whose leases live."""
    found = yield from read(identity(row[0]) for row in leased)
    alive = [known.job for known in found.values() if known.job.lease and known.now < known.job.lease.expires_at]
    return [Claim(job, job.lease) for job in sorted(alive, key=moves.order) if job.lease]


def grant(
    rows: Rows,
    worker_id: str,
    *,
    start: bool,
    duration: timedelta | None,
    command: Command,
    claim_id: UUID | None = None,
) -> Script[list[Claim]]:
    """
    Claim locked rows that wait.

    Writes: ready, resting, lease, event.
    """
    decided: list[tuple[Placed, Change]] = []
    for row in rows:
        known = placed(row)
        if not moves.eligible(known.job, known.now):
            continue  # the store's clock was set back, by a failover for one; it is due again soon
        decided.append((known, moves.claim(known.job, worker_id, new_id(), known.now, start=start, duration=duration)))
    yield from save(decided, command, claim_id=claim_id or command.id)
    effects = effects_by_job((yield Each("effect_read", [(known.job.id,) for known, _ in decided])))
    claims = []
    for _, change in decided:
        job = with_effects(change.job, effects.get(change.job.id, ()))
        assert job.lease is not None
        claims.append(Claim(job, job.lease))
    return claims
