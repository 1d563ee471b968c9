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
def promote_messages(limit: int = PASS_MAX) -> Script[int]:
    """
    Move messages that are due to where claims look.

    Returns: How many. Locks: the rows moved, skipping locked ones. Writes: message_later, message_due.
    """
    rows = yield Statement("message_later_due", {"limit": limit})
    return (yield from move_all(rows, "message_later", "message_due"))


@procedure
def recover_messages(limit: int = PASS_MAX) -> Script[int]:
    """
    Settle deliveries whose relay was not heard of again: due once more, alone, or set aside when all are used up.

    Returns: How many. Locks: the leases, skipping locked ones. Writes: message_lease, message_due or message_resting.
    """
    rows = yield Statement("message_lease_expired", {"limit": limit})
    if not rows:
        return 0
    moves = Moves(0)
    for row in rows:
        waiting = waiting_of(row)
        moves.settle("message_lease", waiting, lost(waiting))
    yield from moves.last()
    return len(rows)


@procedure
def release_messages(limit: int = PASS_MAX) -> Script[int]:
    """
    Bring held messages back whose authority admits them again.

    Returns: How many. Locks: the rows moved, skipping locked ones. Writes: message_resting, message_due.
    """
    rows = yield Statement("message_held_free", {"limit": limit})
    return (yield from move_all(rows, "message_resting", "message_due"))


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
