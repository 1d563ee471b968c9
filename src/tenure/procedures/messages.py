"""Messages and rows: how the state of a message is read, and how it moves from one place to another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tenure.procedures.records import identity, instant, maybe_instant, span
from tenure.rules.message import Message
from tenure.rules.outbox import MessageState, Settled, StoredMessage, Waiting, read_data
from tenure.rules.payload import decode
from tenure.yields import Each, Last, Row, Script

# Columns of `Waiting`; what a statement adds stands behind them.
STATE = len(Waiting._fields)
_BODY = 9

Line: TypeAlias = tuple[str, str, str]


def waiting_of(row: Row) -> Waiting:
    """Read the state of a message."""
    return Waiting(identity(row[0]), *row[1:STATE])


def message_of(waiting: Waiting, body: Row) -> Message:
    """Put a message together from its state and the columns of its body."""
    operation, type_, version, subject, _, data, _, created_at, digest = body
    return Message(
        waiting.tenant,
        waiting.message_id,
        operation,
        waiting.destination,
        type_,
        version,
        subject,
        read_data(data),
        waiting.epoch,
        digest,
        instant(created_at),
    )


def stored_of(row: Row) -> StoredMessage:
    """Read a row of `message_read` or `message_list`."""
    waiting = waiting_of(row)
    state, due_at, relay_id, expires_at, done_at, receipt = row[STATE : STATE + 6]
    body = row[STATE + 6 : STATE + 6 + _BODY]
    first = row[STATE + 6 + _BODY]
    return StoredMessage(
        message=message_of(waiting, body),
        state=MessageState(state),
        ordered=bool(body[4]),
        attempt_count=waiting.attempt,
        max_attempts=waiting.attempts_max,
        generation=waiting.generation,
        scheduled_at=instant(body[6]),
        due_at=instant(due_at),
        error_code=waiting.error_code,
        reason=waiting.error_message,
        blocked_by=None if first is None or identity(first) == waiting.message_id else identity(first),
        relay_id=relay_id,
        expires_at=maybe_instant(expires_at),
        done_at=maybe_instant(done_at),
        receipt=None if receipt is None else decode(receipt),
    )


class Moves:
    """
    Writes that are gathered and then sent together: every message leaves one place and comes to another.

    Args:
        now: The store's clock, in microseconds.
    """

    def __init__(self, now: int) -> None:
        self.now = now
        self._out: dict[str, list[Row]] = {}
        self._into: dict[str, list[Row]] = {}
        self._freed: dict[Line, int] = {}

    def leave(self, place: str, waiting: Waiting) -> None:
        """Take a message from the place in which it is locked."""
        self._out.setdefault(place, []).append((waiting.position, waiting.generation))

    def enter(self, place: str, waiting: Waiting, *more: Any) -> None:
        """Put a message into a place, with what that place has beside the state."""
        self._into.setdefault(place, []).append((*waiting, *more))

    def settle(self, place: str, waiting: Waiting, settled: Settled) -> None:
        """Move a message to where a delivery or a loss leads it."""
        self.leave(place, waiting)
        after = waiting._replace(attempt=settled.attempt, error_code=settled.error_code, error_message=settled.reason)
        if settled.state is MessageState.LATER:
            self.enter("message_later", after, self.now + span(settled.wait))
        elif settled.state is MessageState.SET_ASIDE:
            self.enter("message_resting", after, MessageState.SET_ASIDE.value)
        elif settled.state is MessageState.DUE:
            self.enter("message_due", after)
        else:
            self.end(after, settled.state, settled.receipt)

    def end(self, waiting: Waiting, state: MessageState, receipt: str | None) -> None:
        """Bring a message to its end; whoever is next in its subject may go."""
        self.enter("message_done", waiting, state.value, self.now, receipt)
        if waiting.subject is not None:
            self._freed[waiting.tenant, waiting.destination, waiting.subject] = waiting.position

    def last(self) -> Script[None]:
        """Send everything as the last of a procedure; for moves that bring no message to its end."""
        assert not self._freed, "whoever is next must be asked for"
        yield Last(
            [
                *(Each(f"{place}_delete", rows) for place, rows in self._out.items()),
                *(Each(f"{place}_insert", rows) for place, rows in self._into.items()),
            ]
        )

    def write(self) -> Script[None]:
        """
        Send everything.

        The order rows go first: whoever puts a message behind one of them has either done so before, and is seen by the
        next statement, or finds the row gone.
        """
        freed = [(*line, position) for line, position in self._freed.items()]
        answers = yield [
            Each("message_order_delete", freed),
            *(Each(f"{place}_delete", rows) for place, rows in self._out.items()),
            *(Each(f"{place}_insert", rows) for place, rows in self._into.items()),
            Each("message_order_next", [row[:3] for row in freed]),
        ]
        for (place, rows), gone in zip(self._out.items(), answers[1:], strict=False):
            assert len(gone) == len(rows), f"a locked row of {place} was not there"
        following = [waiting_of(row) for row in answers[-1]]
        if following:
            yield [
                Each("message_resting_delete", [(one.position, one.generation) for one in following]),
                Each("message_due_insert", [tuple(one) for one in following]),
            ]


def move_all(
    rows: Sequence[Row], place: str, into: str, *more: Any, change: Callable[[Waiting], Waiting] | None = None
) -> Script[int]:
    """Move locked rows from one place to another as they are, or changed; give how many."""
    if not rows:
        return 0
    found = [waiting_of(row) for row in rows]
    after = found if change is None else [change(one) for one in found]
    yield [
        Each(f"{place}_delete", [(one.position, one.generation) for one in found]),
        Each(f"{into}_insert", [(*one, *more) for one in after]),
    ]
    return len(found)
