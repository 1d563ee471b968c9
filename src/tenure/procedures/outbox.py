"""
Hand messages out: add them in the producer's commit, claim them for a delivery, write how the deliveries ended.

A claim gives a lease with a generation, and every finish names that generation: what a relay says that lost its lease
changes nothing. Which messages may go is decided by `rules.outbox.choose`; the database only gives the front.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from tenure.errors import Conflict, Unavailable, echo
from tenure.procedures.messages import STATE, Moves, message_of, waiting_of
from tenure.procedures.records import identity, instant, maybe_micros, span
from tenure.procedures.rows import current_read, is_another
from tenure.rules.authority import Authority
from tenure.rules.ledger import Seen
from tenure.rules.message import Message
from tenure.rules.outbox import Answer, Candidate, MessageState, NewMessage, Waiting, choose, settle
from tenure.yields import FRESH, Command, Each, Procedure, Row, Rows, Script, Statement, procedure

_BODY = 9


# --- producers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Added:
    """
    The answer to an addition.

    Attributes:
        message: The new message, or the one that has this operation already.
        created: False when it was already there.
    """

    message: Message
    created: bool


@procedure(wakes=True)
def add_messages(messages: Sequence[NewMessage], *, command: Command = FRESH) -> Script[list[Added]]:
    """
    Add messages, or find the ones that already have their operations.

    Returns:
        One answer for each, in the order given.
    Raises:
        Conflict: MESSAGE_MISMATCH, an operation is known with another digest; MESSAGE_ID_TAKEN, an id names another
            message of its tenant, here or in the database. Nothing is written.
    Locks: the new operations, in the order given; another transaction that adds the same one is waited for.
    Writes: authority (where the tenant is new), message, message_due or message_later, message_order.
    """
    first: dict[tuple[str, str, str], NewMessage] = {}
    for one in messages:
        first.setdefault((one.tenant, one.destination, one.operation), one)
    ids: set[tuple[str, UUID]] = set()
    for one in first.values():
        if (one.tenant, one.message_id) in ids:
            raise _taken(one)
        ids.add((one.tenant, one.message_id))
    # Positions follow the order given, which is that of what happened to their subjects.
    fresh = [one for one in messages if first[one.tenant, one.destination, one.operation] is one]
    _, made_rows = yield [
        Each("authority_ensure", [(tenant,) for tenant in sorted({one.tenant for one in fresh})]),
        Each("message_insert", [_body(one) for one in fresh]),
    ]
    # An id of the caller's own may name the message of another tenant too: it counts only beside its tenant.
    made = {(row[0], identity(row[1])): row for row in made_rows}
    known: dict[tuple[str, str, str], Row] = {}
    others = [key for key, one in first.items() if (one.tenant, one.message_id) not in made]
    if others:
        for row in (yield Each("message_known", others)):
            known[row[0], row[1], row[2]] = row
    answers = []
    for one in messages:
        key = (one.tenant, one.destination, one.operation)
        row = made.get((one.tenant, first[key].message_id))
        if row is not None:
            _refuse_other_meaning(one, first[key].message_id, first[key].digest)
            answers.append(Added(_record(one, first[key].message_id, row[2], row[3]), first[key] is one))
            continue
        if key not in known:
            yield from _refuse_taken(one)
        _, _, _, message_id, digest, epoch, created_at = known[key]
        _refuse_other_meaning(one, identity(message_id), digest)
        # A run whose commit was not answered finds its own messages: they are new to whoever asked.
        ours = command.again and identity(message_id) == one.message_id and first[key] is one
        answers.append(Added(_record(one, identity(message_id), epoch, created_at), ours))
    return answers


def add_message(message: NewMessage) -> Procedure[Added]:
    """Add one message; see `add_messages`."""
    return _one(add_messages([message]))


@procedure(wakes=True)
def _one(added: Procedure[list[Added]]) -> Script[Added]:
    return (yield from added)[0]


def _body(one: NewMessage) -> Row:
    return (
        one.message_id,
        one.tenant,
        one.destination,
        one.operation,
        one.type,
        one.version,
        one.subject,
        one.ordered,
        one.text,
        one.max_attempts,
        maybe_micros(one.scheduled_at),
        one.digest,
    )


def _record(one: NewMessage, message_id: UUID, epoch: int, created_at: int) -> Message:
    return Message(
        one.tenant,
        message_id,
        one.operation,
        one.destination,
        one.type,
        one.version,
        one.subject,
        one.data,
        epoch,
        one.digest,
        instant(created_at),
    )


def _refuse_other_meaning(one: NewMessage, message_id: UUID, digest: str) -> None:
    if one.digest != digest:
        raise Conflict(
            f"operation {echo(one.operation)} for destination {echo(one.destination)} is message {message_id} with "
            f"another type, version, subject or data; use another operation for another meaning",
            code="MESSAGE_MISMATCH",
        )


def _taken(one: NewMessage) -> Conflict:
    return Conflict(
        f"message id {one.message_id} belongs to another message of this tenant; leave message_id out, or make a new "
        f"one",
        code="MESSAGE_ID_TAKEN",
    )


def _refuse_taken(one: NewMessage) -> Script[None]:
    rows = yield Statement("message_read", {"message_id": one.message_id, "tenant": one.tenant})
    if rows:
        raise _taken(one)
    # Another transaction's, which this one's snapshot cannot see yet (a caller's repeatable read).
    raise Unavailable(
        f"operation {echo(one.operation)} is being written by another transaction; run yours again", code="KEY_BUSY"
    )


# --- claims -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outgoing:
    """
    A message on its way, and the lease under which it is delivered.

    Attributes:
        position: Names its place; with the message and the generation it is what a finish presents.
    """

    message: Message
    position: int
    generation: int
    attempt: int


@dataclass(frozen=True, slots=True)
class MessageClaim:
    """
    What a claim took.

    Attributes:
        outgoing: In the order in which they are to be delivered.
        more: The front was full, or rows that did not belong there were taken away: look again at once.
    """

    outgoing: list[Outgoing]
    more: bool


@procedure
def claim_messages(
    relay_id: str,
    destination: str,
    limit: int,
    lease: timedelta,
    *,
    seen: Seen | None = None,
    command: Command = FRESH,
) -> Script[MessageClaim]:
    """
    Take due messages of one destination for a delivery, oldest first.

    Of a subject that keeps an order only the oldest undelivered message is taken. What is held, or stands behind
    another message of its subject, is put out of the way, so that no claim meets it again before it may go.

    The claim is the last look at authority before a delivery, as the begin is before an effect: a rotation or a freeze
    that commits first is seen, and one that comes later waits for it. How a delivery ended is written whatever became
    of the authority since, because a fact that is forgotten is delivered once more.

    Args:
        seen: The database as this process has seen it; from another one nothing is taken.
    Locks: the due rows looked at, then their tenants' authority (shared), skipping locked ones; the order rows that
        others are put behind, shared.
    Writes: message_due, message_lease, message_resting.
    """
    if command.again:
        rows = yield Statement("message_claimed", {"command_id": command.id})
        if rows:
            # Nobody heard of it, so nothing was delivered: what is to be held by now is not; its lease runs out.
            ours = [
                _outgoing(one.waiting, row[STATE:]) for one, row in zip(_front(rows), rows, strict=True) if one.admitted
            ]
            return MessageClaim(ours, more=True)
    rows, *current = yield [
        Statement("message_front", {"destination": destination, "limit": limit}),
        *current_read(seen),
    ]
    if not rows or is_another(seen, current):
        return MessageClaim([], more=False)
    front = _front(rows)
    choice = choose(front)
    blocked = yield from _behind([front[nth] for nth in choice.blocked])
    moves = Moves(rows[0][-2])
    outgoing = []
    for nth in choice.go:
        waiting = front[nth].waiting
        taken = waiting._replace(generation=waiting.generation + 1, attempt=waiting.attempt + 1)
        moves.leave("message_due", waiting)
        moves.enter("message_lease", taken, relay_id, moves.now + span(lease), command.id)
        outgoing.append(_outgoing(taken, rows[nth][STATE:]))
    for waiting, state in [
        *((front[nth].waiting, MessageState.HELD) for nth in choice.held),
        *((one, MessageState.BLOCKED) for one in blocked),
    ]:
        moves.leave("message_due", waiting)
        moves.enter("message_resting", waiting, state.value)
    if outgoing or choice.held or blocked:
        yield from moves.last()
    return MessageClaim(outgoing, more=len(rows) == limit or bool(choice.held or blocked))


def _front(rows: Rows) -> list[Candidate]:
    return [Candidate(waiting_of(row), Authority(row[-5], bool(row[-4]), bool(row[-3])), row[-1]) for row in rows]


def _behind(candidates: Sequence[Candidate]) -> Script[list[Waiting]]:
    """
    Lock the messages that others stand behind, and give those others.

    One that is not locked is just being finished: what stands behind it stays where it is, and is looked at again.
    """
    if not candidates:
        return []
    heads = {(one.waiting.tenant, one.waiting.destination, one.waiting.subject, one.first) for one in candidates}
    locked = {tuple(row) for row in (yield Each("message_order_share", sorted(heads)))}
    return [
        one.waiting
        for one in candidates
        if (one.waiting.tenant, one.waiting.destination, one.waiting.subject, one.first) in locked
    ]


def _outgoing(taken: Waiting, rest: Row) -> Outgoing:
    return Outgoing(message_of(taken, rest[:_BODY]), taken.position, taken.generation, taken.attempt)


# --- endings ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finished:
    """
    What became of a row of deliveries.

    Attributes:
        states: Where each message is now, by its id.
        stale: Those whose lease was lost: nothing was written for them.
    """

    states: dict[UUID, MessageState]
    stale: tuple[UUID, ...]


@procedure
def finish_messages(
    relay_id: str,
    answers: Sequence[tuple[Outgoing, Answer]],
    *,
    backoff: timedelta,
    command: Command = FRESH,
) -> Script[Finished]:
    """
    Write how deliveries ended, for the leases that this relay still holds.

    Locks: the leases, then the order rows of what is delivered.
    Writes: message_lease, message_done, message_later, message_due or message_resting, message_order.
    """
    rows: Rows = yield Each("message_lease_lock", [(one.position,) for one, _ in answers])
    held = {row[4]: row for row in rows}
    states: dict[UUID, MessageState] = {}
    stale = []
    moves = Moves(max((row[-1] for row in rows), default=0))
    for one, answer in answers:
        row = held.get(one.position)
        if row is None or not _current(row, relay_id, one):
            stale.append(one.message.id)
            continue
        waiting = waiting_of(row)
        settled = settle(waiting, answer, base=backoff)
        moves.settle("message_lease", waiting, settled)
        states[one.message.id] = settled.state
    if states:
        yield from moves.write()
    # An earlier run may have written all of it, and its answer was lost.
    return Finished(states, () if command.again else tuple(stale))


def _current(row: Row, relay_id: str, one: Outgoing) -> bool:
    """
    Ask whether a lease is still this relay's: the same fence as that of a job.

    A position alone does not name a message: SQLite gives that of a pruned one again.
    """
    holder, expires_at, frozen, now = row[STATE : STATE + 4]
    waiting = waiting_of(row)
    message = (waiting.tenant, waiting.message_id) == (one.message.tenant, one.message.id)
    same: bool = message and holder == relay_id and waiting.generation == one.generation
    return same and now < expires_at and not frozen
