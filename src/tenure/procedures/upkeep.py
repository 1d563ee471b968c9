"""
Make jobs claimable when they are, and move them out of the way when they are not: promotion, recovery, parking.

Each pass is bounded and skips rows that somebody has locked, so that any number of workers may make the same one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from tenure.procedures.records import identity, span
from tenure.procedures.rows import lock_free, save
from tenure.rules import moves
from tenure.yields import FRESH, Command, Each, Rows, Script, Statement, procedure

RECOVER_MAX = 100
PROMOTE_MAX = 1_000
# Of a queue: how many rows a parking pass looks at, and at least how many of each lane.
PARK_FRONT, PARK_LANE = 500, 20
# Lanes of one queue that one look sees; with more, looks go round.
LANES_MAX = 512


@procedure
def promote(limit: int = PROMOTE_MAX) -> Script[int]:
    """
    Move deferred jobs that are due to where claims look.

    Returns: How many. Locks: the rows moved, skipping locked ones. Writes: deferred, ready.
    """
    due = yield Statement("deferred_due", {"limit": limit})
    if due:
        yield from promote_rows(due)
    return len(due)


def promote_rows(due: Rows) -> Script[None]:
    """Move locked deferred rows. Writes: deferred, ready."""
    yield [Each("deferred_delete", [(row[0], row[7]) for row in due]), Each("ready_insert", due)]


@procedure
def recover(limit: int = RECOVER_MAX, *, command: Command = FRESH) -> Script[int]:
    """
    Settle leases that have ended: queued again, indeterminate, cancelled or dead, as `moves.recover` says.

    Returns: How many. Locks: as `rows.lock`, skipping locked leases. Writes: lease, ready, resting, outcome, event.
    """
    return (yield from settle_expired(limit, command))


def settle_expired(limit: int, command: Command) -> Script[int]:
    """See `recover`; inside another procedure, the events carry the identity of its call."""
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
def announce(
    worker_id: str,
    kinds: Sequence[str],
    lifetime: timedelta,
    *,
    owner: str | None = None,
    providers: Sequence[str] = (),
) -> Script[Mapping[str, str]]:
    """
    Say which kinds and providers a live worker knows, and which service it belongs to.

    Returns: The queues that it may not serve, with their owners. Writes: announcement, known_kind (new kinds).
    """
    said = {
        "worker_id": worker_id,
        "kinds": list(kinds),
        "owner": owner,
        "providers": list(providers),
        "lifetime_us": span(lifetime),
    }
    _, _, owned = yield [
        Statement("announcement_save", said),
        Each("kind_remember", [(kind,) for kind in sorted(set(kinds))]),
        Statement("queue_owned"),
    ]
    return {name: whose for name, whose in owned if whose != owner}


@procedure
def withdraw(worker_id: str) -> Script[None]:
    """Forget a worker's announcement, and every one that has run out. Writes: announcement."""
    yield Statement("announcement_delete", {"worker_id": worker_id})


@dataclass(frozen=True, slots=True)
class Parked:
    """
    What a pass of `park` did.

    Attributes:
        moved: How many rows, both ways.
        places: Where the next pass should begin: a lane of each queue that has more lanes than one pass sees.
    """

    moved: int
    places: Mapping[str, str]


@procedure
def park(limit: int = PROMOTE_MAX, *, places: Mapping[str, str] | None = None) -> Script[Parked]:
    """
    Move ready jobs that no live worker knows, or that are held, out of the way of claims, and bring back the others.

    Attempts and generations stay; the single claim looks among parked rows all the same.

    Args:
        places: From the last pass; without them the pass sees the first lanes of every queue.
    Locks: the rows moved, skipping locked ones. Writes: ready, resting.
    """
    begin = places or {}
    fronts, back = yield [
        Statement("ready_fronts", {"queues": list(begin), "lanes": list(begin.values()), "limit": LANES_MAX}),
        Statement("resting_claimable", {"limit": limit}),
    ]
    lanes: dict[str, dict[str, None]] = {}
    for queue, lane, *_ in fronts:
        lanes.setdefault(queue, {})[lane] = None
    asked = []
    following: dict[str, str] = {}
    for queue, seen in lanes.items():
        # Only what stands in the way of a claim: a row deeper in a lane costs nothing until it comes to the front.
        most = PARK_FRONT if len(seen) == 1 else max(PARK_LANE, PARK_FRONT // len(seen))
        asked += [(queue, lane, most) for lane in seen]
        if len(seen) == LANES_MAX:
            following[queue] = next(reversed(seen))
    away: Rows = yield Each("ready_unclaimable", asked)
    parked = [(row[0], row[1], "queued", row[-1], *row[2:11], None, None, *row[11:13], None) for row in away]
    yield [
        Each("ready_delete", [(row[0], row[7]) for row in away]),
        Each("resting_insert", parked),
        Each("resting_delete", [(row[0], row[7]) for row in back]),
        Each("ready_insert", back),
    ]
    return Parked(len(away) + len(back), following)


@procedure
def forget_claims(age: timedelta) -> Script[None]:
    """Forget claim ids older than any lease they could still stand for. Writes: claim."""
    now = (yield Statement("clock"))[0][0]
    yield Statement("claim_prune", {"before": now - span(age)})
