"""
The worker's claim: as `claim`, for many jobs at once, and fast.

Theory of operation. A queue is an index over (queue, lane, priority, time, id); claimed rows leave dead entries at its
front, and while somebody's snapshot is pinned they stay. So a worker remembers where it is: a cursor has an entry for
what had ready rows when it looked, and the probe for an entry begins there. What comes behind a cursor's back, a row
that committed late or a higher priority, is found when the worker looks anew: after a short claim, and at least every
second or so.

A plain queue has one lane, the one without a name, and an entry for each of its priorities. A fair queue has a lane for
each tenant and one entry for each lane; a claim shares its jobs out as `rules.fairness.plan` says and asks once for all
lanes. Lanes that had less than their share leave something over, which is shared out again among the others. Of very
many lanes a look sees a part, and the next one goes on from there: that is why the worker also remembers, for each fair
queue, whose turn it was.

Choice and write are one statement, `claim_batch`, which says in SQL what `moves.eligible`, `moves.order` and
`moves.claim` say in Python; tests hold it to them. Locking the rows first, deciding in Python and saving cost a worker
about as much processor time as everything else it does for a job that does nothing (docs/decisions/0011).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from tenure.procedures.claim import Claim, by_urgency, check_claim, grant, still_held
from tenure.procedures.records import (
    ERROR_CODE,
    GENERATION,
    JOB_ID,
    KIND,
    LANE,
    PRIORITY,
    QUEUE,
    RUN_AT,
    TENANT,
    document_of,
    effects_by_job,
    identity,
    lease_of,
    placed,
    span,
)
from tenure.procedures.upkeep import LANES_MAX, PROMOTE_MAX, promote_rows
from tenure.rules.creation import PRIORITY_MAX
from tenure.rules.effect import Effect
from tenure.rules.fairness import LONG_TURN, Turn, plan, stopped
from tenure.rules.job import Job
from tenure.rules.lease import check_duration
from tenure.yields import FRESH, Command, Each, Last, Row, Script, Statement, procedure

# Passes over the lanes of a fair queue within one claim, the first included; each one goes to those that had enough.
PASSES_MAX = 4
# How often one claim goes on to other lanes, where those before did not have enough.
TRIES_MAX = 4
# Lanes of a fair queue that are asked at least, however few jobs are wanted.
LANES_MIN = 16
# A worker that goes through a fair queue looks again when so many times the time has passed that the last look took.
LOOK_PART = 8
_FIRST_ID = UUID(int=0)


class Entry(NamedTuple):
    """
    Where the probe of a lane begins; there are hundreds of them in a look, so they are made as cheaply as possible.

    Attributes:
        fair: A lane of a fair queue: its lower priorities are taken too. On a plain one each of them has its own entry.
        weight: Jobs in one turn.
        below: Its lower priorities are taken too, as of a fair one's.
    """

    queue: str
    lane: str
    priority: int
    run_at: int
    job_id: UUID
    fair: bool = False
    weight: int = 1
    below: bool = False


@dataclass(frozen=True, slots=True)
class Cursor:
    """
    What a look has seen, and how far claims have come since.

    Attributes:
        entries: In the order of service; none means that the next claim looks first.
        partly_seen: Fair queues of which not every lane was seen.
        took: Seconds of the last look, counted by the database.
    """

    entries: tuple[Entry, ...] = ()
    partly_seen: frozenset[str] = frozenset()
    took: float = 0.0

    def good_for(self, longest: float) -> float:
        """Say after how many seconds a worker should look anew: a tenant that is new has to wait for it."""
        # Where a look does not see every lane, a new one is found when the round comes to it.
        new = any(entry.fair and entry.queue not in self.partly_seen for entry in self.entries)
        return min(longest, LOOK_PART * self.took) if new else longest


# Of each fair queue, whose turn it was.
Turns: TypeAlias = Mapping[str, Turn]


class Claimed:
    """
    A claim as the database gave it: the whole record is made of the row only where somebody asks for it.

    Most handlers look at nothing but their payload, and a record of more than forty fields costs as much as all else
    that Python does for such a job.

    Attributes:
        tenant, kind, error_code: Of the job.
    """

    __slots__ = ("_effects", "_job", "_row", "error_code", "kind", "lease", "tenant")

    def __init__(self, row: Row) -> None:
        self._row = row
        # A job of the first generation was never claimed before and has none.
        self._effects: tuple[Effect, ...] | None = () if row[GENERATION] == 1 else None
        self._job: Job | None = None
        self.tenant: str = row[TENANT]
        self.kind: str = row[KIND]
        self.error_code: str | None = row[ERROR_CODE]
        self.lease = lease_of(row)

    @property
    def job(self) -> Job:
        """The job as it was claimed."""
        if self._job is None:
            assert self._effects is not None, "the effects of a job claimed before are read first: read_effects"
            self._job = placed(self._row, self._effects).job
        return self._job

    @property
    def unread(self) -> bool:
        """Whether the job was claimed before, so that it may have effects, which are not read yet."""
        return self._effects is None

    def has(self, effects: tuple[Effect, ...]) -> None:
        """Take the effects that were read."""
        self._effects = effects

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
        turns: For the next claim too.
        known: Plain queues in which a claim that came back short found something.
    """

    claims: list[Claim | Claimed]
    cursor: Cursor | None = None
    turns: Turns = field(default_factory=dict)
    known: frozenset[str] = frozenset()

    @property
    def more(self) -> bool:
        """Whether there may be more where this one came to."""
        return self.cursor is not None


def guess(queue: str) -> Cursor:
    """
    Make a cursor for a claim that does not look first: new work is probably where there was some before.

    It is one statement and its commit, one round trip instead of two. Whoever guesses has to look afterwards.

    Args:
        queue: A plain one. It is taken from its front, the most urgent first; so nothing in it is overtaken.
    """
    return Cursor((Entry(queue, "", PRIORITY_MAX, 0, _FIRST_ID, below=True),))


@procedure
def claim_batch(
    worker_id: str,
    kinds: Sequence[str],
    *,
    limit: int,
    queues: Sequence[str] | None = None,
    tenant: str | None = None,
    organization: str | None = None,
    owner: str | None = None,
    lease_duration: timedelta | None = None,
    cursor: Cursor | None = None,
    turns: Turns | None = None,
    lost: int = 0,
    command: Command = FRESH,
) -> Script[Taken]:
    """
    Take up to `limit` eligible jobs of these kinds and start them.

    Args:
        queues: Served in this order; None means every queue, the one with the most urgent first job first.
        owner: Whose queues may be served beside those without an owner.
        lease_duration: The leases' length instead of each job's own.
        cursor: From the worker's last claim; None looks where the queues begin and what has come due.
        turns: From the worker's last claim, whether or not it gave a cursor.
        lost: At most this many of them may be jobs whose last worker was lost, one of which may have been the cause;
            only where the claim looks anew.
    Locks: the rows taken, skipping locked ones. Writes: ready, deferred, lease, event.
    """
    names = (*(queues or ()), *kinds)
    check_claim(worker_id, limit, organization, names, owner)
    if lease_duration is not None:
        check_duration(lease_duration)
    turns = dict(turns or {})
    if command.again:
        # An earlier run of this very call may have committed: its leases carry the call's own id.
        leased = yield Statement("claim_leases", {"claim_id": command.id})
        if leased:
            return Taken([*(yield from still_held(leased))], turns=turns)
    probe = _Probe(worker_id, list(kinds), tenant, organization, owner, lease_duration, command)
    claims: list[Claim | Claimed] = []
    rows: list[Row] = []
    if cursor is None or not cursor.entries:
        found, cursor = yield from _look(queues, probe, turns, limit, min(lost, limit))
        if found:
            claims += yield from grant(found, worker_id, start=True, duration=lease_duration, command=command)
            probe.before = len(claims)
    for _ in range(TRIES_MAX):
        if not cursor.entries and cursor.partly_seen:
            # What was seen is used up, and there are other lanes.
            _, cursor = yield from _look(queues, probe, turns, limit, 0)
        rows, cursor = yield from _take(cursor, probe, turns, limit - len(claims))
        claims += [Claimed(row) for row in rows]
        if len(claims) == limit or not cursor.partly_seen:
            break
    if len(claims) == limit or (claims and cursor.partly_seen):
        return Taken(claims, cursor, turns)
    plain = {entry.queue for entry in cursor.entries if not entry.fair}
    return Taken(claims, None, turns, frozenset(row[QUEUE] for row in rows if row[QUEUE] in plain))


@procedure(reads=True)
def read_effects(job_ids: Sequence[UUID]) -> Script[dict[UUID, tuple[Effect, ...]]]:
    """
    Read the effects of jobs that were claimed before, for the records of their claims; see `effects_by_job`.

    Apart from the claim, whose commit goes along with its statement: only the holder of the lease writes them.
    """
    return effects_by_job((yield Each("effect_read", [(job_id,) for job_id in job_ids])))


class _Probe:
    """
    What is the same for every row that a claim asks for.

    Attributes:
        before: How many jobs the claim has taken so far.
    """

    __slots__ = ("_command", "_same", "before", "scope")

    def __init__(
        self,
        worker_id: str,
        kinds: list[str],
        tenant: str | None,
        organization: str | None,
        owner: str | None,
        duration: timedelta | None,
        command: Command,
    ) -> None:
        self.scope: dict[str, Any] = {"tenant": tenant, "organization": organization, "kinds": kinds, "owner": owner}
        lease_us = None if duration is None else span(duration)
        named = json.dumps(worker_id, ensure_ascii=False)
        self._same = (worker_id, named, command.id, lease_us, tenant, organization, json.dumps(kinds), owner)
        self._command = command
        self.before = 0

    def take(self, shares: Sequence[tuple[Entry, int]], limit: int, *, last: bool = False) -> Script[list[Row]]:
        """
        Take so many rows of each entry, and `limit` of all.

        Args:
            last: The claim asks nothing after this: the commit may go along.
        """
        rest = (*self._same, limit, self.before, self._command.id)
        asked = Each(
            "claim_batch",
            [(e.queue, e.lane, e.priority, e.run_at, e.job_id, e.fair or e.below, share, *rest) for e, share in shares],
        )
        rows: list[Row]
        (rows,) = yield Last([asked]) if last else [asked]
        self.before += len(rows)
        return rows


def _look(
    queues: Sequence[str] | None, probe: _Probe, turns: Turns, limit: int, lost: int
) -> Script[tuple[list[Row], Cursor]]:
    """Find where the queues begin, and the jobs whose worker was lost."""
    # More lanes than a claim can serve twice over are not worth a look.
    most = min(LANES_MAX, max(LANES_MIN, 2 * limit))
    begin = {"queues": list(turns), "lanes": [turn.lane for turn in turns.values()], "limit": most}
    request: list[Statement | Each] = [
        Statement("deferred_due", {"limit": PROMOTE_MAX}),
        Statement("ready_fronts", begin),
    ]
    if lost:
        names = None if queues is None else list(queues)
        request.append(Statement("ready_lost", {"queues": names, "limit": lost, **probe.scope}))
    due, fronts, *found = yield request
    if due:
        yield from promote_rows(due)
        fronts = yield Statement("ready_fronts", begin)
    return (found[0] if found else []), _cursor(fronts, queues, most)


def _cursor(fronts: list[Row], queues: Sequence[str] | None, most: int) -> Cursor:
    """Put what a look has seen into the order of service."""
    lanes: dict[str, dict[str, list[Row]]] = {}
    for row in fronts:
        lanes.setdefault(row[0], {}).setdefault(row[1], []).append(row)
    entries = []
    partly_seen = set()
    for queue in by_urgency(fronts) if queues is None else dict.fromkeys(queues):
        seen = lanes.get(queue, {})
        fair = len(seen) > 1 or "" not in seen
        for rows in seen.values():
            # The lane without a name is a plain queue's, with an entry for each priority, or one lane among others.
            entries += [
                Entry(queue, lane, priority, run_at, identity(job_id), fair, weight)
                for _, lane, priority, run_at, job_id, weight, _ in (rows[:1] if fair else rows)
            ]
        if len(seen) >= most:
            partly_seen.add(queue)
    return Cursor(tuple(entries), frozenset(partly_seen), fronts[-1][6] / 1e6 if fronts else 0.0)


def _take(cursor: Cursor, probe: _Probe, turns: dict[str, Turn], limit: int) -> Script[tuple[list[Row], Cursor]]:
    """
    Take rows queue by queue, fair queues lane by lane.

    Returns: The rows, and the cursor moved on; without entries where nothing is known any more.
    """
    taken: list[Row] = []
    kept: list[Entry] = []
    used_up = False
    for fair, group in groupby(cursor.entries, key=lambda entry: entry.queue if entry.fair else None):
        entries = list(group)
        rest = limit - len(taken)
        if not rest:
            kept += entries
        elif fair is None:
            # A claim of plain queues is this one statement.
            alone = len(entries) == len(cursor.entries) and not cursor.partly_seen
            rows = yield from probe.take([(entry, rest) for entry in entries], rest, last=alone)
            taken += rows
            kept += _moved_on(entries, rows)
        else:
            whole = fair not in cursor.partly_seen
            rows, left = yield from (_go_round if whole else _go_on)(entries, probe, turns, rest)
            taken += rows
            kept += left
            # Other lanes of this queue, which the next look sees, come before other queues.
            used_up = used_up or not (whole or left)
            if used_up and rows:
                break
    return taken, replace(cursor, entries=() if used_up else tuple(kept))


def _go_round(
    entries: list[Entry], probe: _Probe, turns: dict[str, Turn], limit: int
) -> Script[tuple[list[Row], list[Entry]]]:
    """
    Share a claim out among all lanes of one queue.

    Returns: The rows, and the entries that may have more, in the order of the round.
    """
    queue = entries[0].queue
    taken: list[Row] = []
    ring = entries
    for _ in range(PASSES_MAX):
        by_lane = {entry.lane: entry for entry in ring}
        weights = [(entry.lane, entry.weight) for entry in ring]
        shares, turn = plan(weights, turns.get(queue), limit - len(taken), whole=True)
        assert turn is not None, "somebody was given a share"
        turns[queue] = turn
        rows = yield from probe.take([(by_lane[lane], share) for lane, share in shares], limit - len(taken))
        taken += rows
        given = Counter(row[LANE] for row in rows)
        short = {lane for lane, share in shares if given[lane] < share}
        ring = _from_turn([entry for entry in _moved_on(ring, rows) if entry.lane not in short], ring, turn)
        if len(taken) == limit or not ring:
            break
    return taken, ring


def _go_on(
    entries: list[Entry], probe: _Probe, turns: dict[str, Turn], limit: int
) -> Script[tuple[list[Row], list[Entry]]]:
    """
    Give the next lanes of one queue a turn each, until there is enough: there are more than were seen.

    Returns: The rows, and the entries whose turn is still to come.
    """
    queue = entries[0].queue
    # One job of each would do; one lane more, because the first may have had its turn.
    asked = entries[: max(LANES_MIN, limit + 1)]
    by_lane = {entry.lane: entry for entry in asked}
    weights = [(entry.lane, LONG_TURN * entry.weight) for entry in asked]
    everybody = sum(weight for _, weight in weights)
    shares, _ = plan(weights, turns.get(queue), everybody, whole=False)
    if not shares:
        return [], []
    rows = yield from probe.take([(by_lane[lane], share) for lane, share in shares], limit)
    turns[queue] = turn = stopped(shares, Counter(row[LANE] for row in rows), full=len(rows) == limit)
    here = [entry.lane for entry in asked].index(turn.lane)
    return rows, _moved_on(entries[here if turn.left else here + 1 :], rows)


def _from_turn(left: list[Entry], ring: list[Entry], turn: Turn) -> list[Entry]:
    """Begin the round at the lane whose turn it is, or the one behind it."""
    places = {entry.lane: nth for nth, entry in enumerate(ring)}
    begin = places[turn.lane]
    return sorted(left, key=lambda entry: (places[entry.lane] - begin) % len(ring))


def _moved_on(entries: Sequence[Entry], rows: list[Row]) -> list[Entry]:
    """Let every entry begin at the last row that was taken of it."""
    # Within a lane rows come in the order of service.
    ends = {(row[QUEUE], row[LANE], row[PRIORITY]): row for row in rows}
    lanes = {(row[QUEUE], row[LANE]): row for row in rows}
    moved = []
    for entry in entries:
        where = (entry.queue, entry.lane)
        last = lanes.get(where) if entry.fair else ends.get((*where, entry.priority))
        if last is None:
            moved.append(entry)
        else:
            moved.append(entry._replace(priority=last[PRIORITY], run_at=last[RUN_AT], job_id=identity(last[JOB_ID])))
    return moved
