"""What people see of the outbox, and what operators do to one message: read, replay, discard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID

from tenure.errors import Invalid, NotFound, Refused
from tenure.procedures.messages import STATE, Moves, stored_of, waiting_of
from tenure.procedures.records import identity, instant
from tenure.rules.outbox import Decision, MessageState, StoredMessage, served
from tenure.yields import FRESH, Command, Row, Script, Statement, procedure


@procedure(reads=True)
def list_messages(
    *,
    tenant: str | None,
    destination: str | None,
    states: Sequence[MessageState] | None,
    limit: int,
    after: UUID | None,
) -> Script[list[StoredMessage]]:
    """Give messages by id, oldest first."""
    rows = yield Statement(
        "message_list",
        {
            "tenant": tenant,
            "destination": destination,
            "state": None if states is None else [one.value for one in states],
            "after": after,
            "limit": limit,
        },
    )
    return [stored_of(row) for row in rows]


@procedure(reads=True)
def get_message(message_id: UUID, *, tenant: str | None) -> Script[StoredMessage]:
    """Give one message with what operators did to it."""
    return (yield from _read(message_id, tenant))


def _read(message_id: UUID, tenant: str | None) -> Script[StoredMessage]:
    rows = yield Statement("message_read", {"message_id": message_id, "tenant": tenant})
    if not rows:
        raise NotFound(f"there is no message {message_id} here")
    if len(rows) > 1:
        raise Invalid(
            f"several tenants have a message {message_id}; say whose: tenant=, or bind the service to one",
            code="TENANT_REQUIRED",
        )
    found = stored_of(rows[0])
    decided = yield Statement("message_decisions", {"message_id": message_id, "tenant": found.message.tenant})
    return replace(found, decisions=tuple(_decision(row) for row in decided))


def _decision(row: Row) -> Decision:
    decision, at, actor, reason, attempts, _ = row
    return Decision(decision, instant(at), actor, reason, attempts)


@procedure
def replay_message(
    message_id: UUID, *, tenant: str | None, actor: str, reason: str, attempts: int, command: Command = FRESH
) -> Script[StoredMessage]:
    """
    Let a message that was set aside go again, with its id, operation and digest.

    Raises:
        Refused: NOT_SET_ASIDE. NotFound: Unknown here.
    Locks: the message's place. Writes: message_resting, message_due, message_decision.
    """
    return (yield from _decide(message_id, tenant, command, "replayed", actor, reason, attempts))


@procedure
def discard_message(
    message_id: UUID, *, tenant: str | None, actor: str, reason: str, command: Command = FRESH
) -> Script[StoredMessage]:
    """
    Never deliver a message that was set aside; what stands behind it may go.

    Raises:
        Refused: NOT_SET_ASIDE. NotFound: Unknown here.
    Locks: the message's place, its order row. Writes: message_resting, message_done, message_order, message_decision.
    """
    return (yield from _decide(message_id, tenant, command, "discarded", actor, reason, 0))


def _decide(
    message_id: UUID, tenant: str | None, command: Command, decision: str, actor: str, reason: str, attempts: int
) -> Script[StoredMessage]:
    found = yield from _read(message_id, tenant)
    whose = found.message.tenant
    if command.again:
        decided = yield Statement("message_decisions", {"message_id": message_id, "tenant": whose})
        if any(identity(row[-1]) == command.id for row in decided):
            return found
    # The body's position never changes: it is read with any place, and locked where the message has to be.
    (place,) = yield Statement("message_read", {"message_id": message_id, "tenant": whose})
    rows = yield Statement("message_resting_lock", {"position": place[4]})
    if not rows or rows[0][STATE] != MessageState.SET_ASIDE.value:
        state = rows[0][STATE] if rows else found.state.value
        raise Refused(
            f"message {message_id} is {state}; only one that is set aside can be {decision}", code="NOT_SET_ASIDE"
        )
    _, frozen, now = rows[0][STATE : STATE + 3]
    if frozen:
        raise Refused("the database is frozen; recover it first, then decide about messages", code="DATABASE_FROZEN")
    waiting = waiting_of(rows[0])
    moves = Moves(now)
    moves.leave("message_resting", waiting)
    if decision == "replayed":
        granted = max(waiting.attempts_max, waiting.attempt + attempts)
        moves.enter("message_due", served(waiting)._replace(attempts_max=granted))
    else:
        moves.end(waiting, MessageState.DISCARDED, None)
    yield from moves.write()
    yield Statement(
        "message_decision_insert",
        {
            "message_id": message_id,
            "tenant": whose,
            "decision": decision,
            "at": now,
            "actor": actor,
            "reason": reason,
            "attempts": attempts,
            "command_id": command.id,
        },
    )
    return (yield from _read(message_id, whose))


# --- numbers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutboxCount:
    """
    Messages of one destination in one state.

    Attributes:
        code: Why they are set aside or wait for another try.
        oldest_age: Since the oldest of them was first due; negative for those that are planned.
        most_attempts: Of the one that was delivered most often.
    """

    destination: str
    state: MessageState
    code: str | None
    count: int
    oldest_age: timedelta
    most_attempts: int


@dataclass(frozen=True, slots=True)
class OutboxStats:
    """
    The outbox in numbers; what was delivered or discarded is not in them.

    Attributes:
        oldest_unpublished_age: Of the oldest message that is due and not delivered, held ones left aside; None where
            there is none.
        unpublished: Every message that is neither delivered nor discarded.
        states: The same by state.
    """

    oldest_unpublished_age: timedelta | None
    unpublished: int
    most_attempts: int
    states: dict[str, int]
    counts: tuple[OutboxCount, ...]


@procedure(reads=True)
def outbox_stats(*, tenant: str | None) -> Script[OutboxStats]:
    """Count undelivered messages by destination and state."""
    rows = yield Statement("message_counts", {"tenant": tenant})
    counts = []
    states: Counter[str] = Counter()
    oldest: timedelta | None = None
    for destination, state, code, count, since, attempts, now in rows:
        age = timedelta(microseconds=now - since)
        counts.append(OutboxCount(destination, MessageState(state), code, count, age, attempts))
        states[state] += count
        if state != MessageState.HELD and age >= timedelta(0) and (oldest is None or age > oldest):
            oldest = age
    return OutboxStats(
        oldest, sum(states.values()), max((one.most_attempts for one in counts), default=0), dict(states), tuple(counts)
    )


@dataclass(frozen=True, slots=True)
class Oldest:
    """The oldest message that is due and not delivered."""

    age: timedelta
    state: MessageState
    destination: str
    attempts: int


@procedure(reads=True)
def oldest_message() -> Script[Oldest | None]:
    """Give the oldest message that is due and not delivered, held ones left aside; cheap, whatever waits."""
    rows = yield Statement("message_oldest")
    for since, state, destination, attempts, now in rows:
        if since <= now:
            return Oldest(timedelta(microseconds=now - since), MessageState(state), destination, attempts)
    return None
