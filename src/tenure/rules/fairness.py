"""
Whose turn it is on a fair queue: tenants go round, each with as many jobs in its turn as its weight says.

`after` says it for one job and is the oracle. `plan` says it for a whole batch at once and gives what as many single
steps would give, so that a worker asks the database for each tenant once.

A queue's rows stand in lanes: one for each tenant on a fair queue, and the lane without a name on a plain one. A queue
whose setting was changed has both for a while; the lane without a name then takes turns like a tenant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tenure.errors import Invalid, echo
from tenure.rules.bounds import check_whole
from tenure.rules.creation import check_text

WEIGHT_DEFAULT, WEIGHT_MAX = 1, 100
# Where a queue has more lanes than are seen at once, a turn is so many times as long: finding a lane costs about as
# much as taking a job.
LONG_TURN = 4
WEIGHTS_MAX = 10_000  # tenants named in one setting


@dataclass(frozen=True, slots=True)
class Turn:
    """
    Where a queue's round stands.

    Attributes:
        lane: The one that was served last.
        left: How many jobs are left of its turn; with none left the next lane is the first.
    """

    lane: str
    left: int = 0


@dataclass(frozen=True, slots=True)
class QueueSetting:
    """
    How a queue is served.

    Attributes:
        fair: Tenants take turns; otherwise the most urgent job comes first, whoever's it is.
        weights: Jobs in one turn, where it is not one.
    """

    name: str
    fair: bool
    weights: Mapping[str, int]


def after(waiting: Sequence[str], weights: Mapping[str, int], turn: Turn | None) -> tuple[str, Turn]:
    """
    Say whose job is next, and where the round stands then.

    Args:
        waiting: Lanes with a job, in the order of the round; at least one.
        turn: None at the very beginning.
    """
    if turn is not None and turn.left and turn.lane in waiting:
        return turn.lane, Turn(turn.lane, turn.left - 1)
    lane = waiting[0]
    if turn is not None:
        lane = next((name for name in waiting if name > turn.lane), lane)
    return lane, Turn(lane, weights.get(lane, WEIGHT_DEFAULT) - 1)


def plan(
    ring: Sequence[tuple[str, int]], turn: Turn | None, limit: int, *, whole: bool
) -> tuple[list[tuple[str, int]], Turn | None]:
    """
    Share `limit` jobs out among lanes that all have enough.

    Args:
        ring: Lanes that have jobs, with their weights, from the lane of `turn` on (or the one after it).
        turn: Where the round stands.
        whole: These are all the lanes there are, so that after the last one comes the first; otherwise others come
            before it, and nobody has a second turn.
    Returns:
        Each lane's share in the order of service, and where the round stands then.
    """
    lanes, shares, rest = list(ring), {}, limit
    if turn is not None and lanes and lanes[0][0] == turn.lane:
        first = lanes.pop(0)
        if turn.left:
            shares[turn.lane] = given = min(turn.left, rest)
            rest -= given
            turn = Turn(turn.lane, turn.left - given)
        if whole:
            lanes.append(first)
    each_round = sum(weight for _, weight in lanes)
    while rest and lanes:
        rounds = max(1, rest // each_round) if whole else 1
        for lane, weight in lanes:
            if not rest:
                break
            share = min(rounds * weight, rest)
            shares[lane] = shares.get(lane, 0) + share
            rest -= share
            turn = Turn(lane, -share % weight)
        if not whole:
            break
    return list(shares.items()), turn


def stopped(shares: Sequence[tuple[str, int]], given: Mapping[str, int], *, full: bool) -> Turn:
    """
    Say where the round stands after lanes were served in this order.

    Args:
        given: What each of them gave.
        full: It ended because there was enough; otherwise each lane gave what it had.
    """
    if full:
        lane, share = next((lane, share) for lane, share in reversed(shares) if given.get(lane))
        return Turn(lane, share - given[lane])
    return Turn(shares[-1][0])


def check_setting(name: str, *, fair: bool, weights: Mapping[str, int] | None) -> QueueSetting:
    """
    Check what somebody says about a queue.

    Raises:
        Invalid: A name, a weight or `fair` is not what it must be, or weights are given for a plain queue.
    """
    check_text("queue", name)
    if not isinstance(fair, bool):
        raise Invalid(f"fair is True or False, not {echo(fair)}", code="BAD_ARGUMENT")
    given = {} if weights is None else weights
    if not isinstance(given, Mapping):
        raise Invalid("weights maps tenants to whole numbers, such as {'acme': 3}", code="BAD_ARGUMENT")
    if given and not fair:
        raise Invalid(f"queue {echo(name)} is to be plain: weights are for fair queues", code="BAD_ARGUMENT")
    if len(given) > WEIGHTS_MAX:
        raise Invalid(f"weights names {len(given)} tenants, the limit is {WEIGHTS_MAX}", code="BAD_ARGUMENT")
    for tenant, weight in given.items():
        check_text("tenant", tenant)
        check_whole(f"the weight of {echo(tenant)}", weight, WEIGHT_MAX)
    return QueueSetting(name, fair, {tenant: given[tenant] for tenant in sorted(given)})
