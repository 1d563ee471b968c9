"""
Make messages deliverable when they are, and put aside what nobody can deliver: promotion, recovery, release, pruning.

Each pass is bounded and skips rows that somebody has locked, so that any number of relays may make the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from tenure.procedures.messages import Moves, move_all, waiting_of
from tenure.procedures.records import span
from tenure.rules.outbox import MessageState, lost, served, unserved
from tenure.yields import Script, Statement, procedure

PASS_MAX = 1_000


@procedure
def tend_messages(limit: int = PASS_MAX) -> Script[int]:
    """
    Let messages go that may go now: of relays that are lost, planned for now, and held no more.

    An idle relay asks often, so it asks for all of it at once. A delivery whose relay was not heard of again is due
    once more, alone, or set aside when all of them are used up.

    Args:
        limit: At most so many of each.
    Returns: How many were moved. Locks: the rows moved, skipping locked ones.
    Writes: message_lease, message_later, message_resting, message_due.
    """
    expired, due, free = yield [
        Statement("message_lease_expired", {"limit": limit}),
        Statement("message_later_due", {"limit": limit}),
        Statement("message_held_free", {"limit": limit}),
    ]
    moved = len(expired) + len(due) + len(free)
    if not moved:
        return 0
    moves = Moves(0)
    for row in expired:
        waiting = waiting_of(row)
        moves.settle("message_lease", waiting, lost(waiting))
    for place, rows in (("message_later", due), ("message_resting", free)):
        for row in rows:
            waiting = waiting_of(row)
            moves.leave(place, waiting)
            moves.enter("message_due", waiting)
    yield from moves.last()
    return moved


@procedure
def announce_relay(
    relay_id: str, destinations: Sequence[str], lifetime: timedelta, limit: int = PASS_MAX
) -> Script[int]:
    """
    Say which destinations a live relay serves, set aside what none serves, and bring back what one serves now.

    Returns: How many were moved. Locks: the rows moved, skipping locked ones.
    Writes: message_relay, message_due, message_resting.
    """
    yield Statement(
        "message_relay_save",
        {"relay_id": relay_id, "destinations": list(destinations), "lifetime_us": span(lifetime)},
    )
    strange, again = yield [
        Statement("message_unknown", {"limit": limit}),
        Statement("message_known_again", {"limit": limit}),
    ]
    moved: int = yield from move_all(
        strange,
        "message_due",
        "message_resting",
        MessageState.SET_ASIDE.value,
        change=unserved,
    )
    moved += yield from move_all(again, "message_resting", "message_due", change=served)
    return moved


@procedure
def withdraw_relay(relay_id: str) -> Script[None]:
    """Forget a relay's announcement, and every one that has run out. Writes: message_relay."""
    yield Statement("message_relay_delete", {"relay_id": relay_id})


@procedure
def prune_messages(older_than: timedelta, limit: int = PASS_MAX) -> Script[int]:
    """
    Forget messages that were delivered or discarded longer ago, and with them their operations.

    Returns: How many. Locks: the rows forgotten, skipping locked ones. Writes: message, message_done, message_decision.
    """
    return len((yield Statement("message_prune", {"older_us": span(older_than), "limit": limit})))
