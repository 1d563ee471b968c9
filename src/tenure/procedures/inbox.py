"""Apply a message once: reserve its operation in the consumer's own transaction; forget it when nobody needs it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from tenure.errors import Conflict, NotFound, Refused, Unavailable, echo
from tenure.procedures.records import instant, span
from tenure.rules.inbox import REPLAY_WINDOW, Arrival, Received, check_window, judge
from tenure.yields import Script, Statement, procedure

PRUNE_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Consumer:
    """What a consumer said about itself."""

    name: str
    replay_window: timedelta
    retention: timedelta


@procedure
def receive_event(arrival: Arrival, replay_window: timedelta | None) -> Script[Received]:
    """
    Reserve an operation for a consumer, or find that it has it already.

    The transaction is the consumer's: what it does for a new operation commits with the mark, or not at all. Another
    transaction that receives the same operation is waited for.

    Args:
        replay_window: Stored at the consumer's first use; None takes what is stored, or a week.
    Raises:
        Conflict: MESSAGE_MISMATCH, DELIVERY_ID_REUSED, REPLAY_WINDOW_DIFFERS.
    Locks: the operation's row, the delivery's row. Writes: inbox_consumer, inbox, inbox_delivery.
    """
    window, retention = check_window(REPLAY_WINDOW if replay_window is None else replay_window, None)
    scope = {"tenant": arrival.tenant, "consumer": arrival.consumer}
    _, said, reserved, delivered = yield [
        Statement(
            "inbox_consumer_ensure",
            {
                "consumer": arrival.consumer,
                "replay_window_us": span(window),
                "retention_us": span(retention),
            },
        ),
        Statement("inbox_consumer_read", {"consumer": arrival.consumer}),
        Statement("inbox_reserve", {**arrival._asdict()}),
        Statement(
            "inbox_delivery_reserve",
            {**scope, "delivery_id": arrival.delivery_id, "operation": arrival.operation},
        ),
    ]
    if replay_window is not None and said and timedelta(microseconds=said[0][0]) != replay_window:
        raise Conflict(
            f"consumer {echo(arrival.consumer)} has a replay window of {timedelta(microseconds=said[0][0])}, not of "
            f"{replay_window}; change it with tenure.inbox.declare, or leave it out here",
            code="REPLAY_WINDOW_DIFFERS",
        )
    before = None
    if not delivered:
        rows = yield Statement("inbox_delivery_read", {**scope, "delivery_id": arrival.delivery_id})
        if not rows:
            raise _busy(arrival)
        before = rows[0][0]
    if reserved:
        judge(arrival, digest=arrival.digest, delivered=before)
        return Received(
            arrival.operation,
            new=True,
            first_delivery_id=arrival.delivery_id,
            times_seen=1,
            received_at=instant(reserved[0][0]),
        )
    rows = yield Statement("inbox_see", {**scope, "operation": arrival.operation})
    if not rows:
        raise _busy(arrival)
    digest, delivery_id, received_at, seen = rows[0]
    judge(arrival, digest=digest, delivered=before)
    return Received(
        arrival.operation, new=False, first_delivery_id=delivery_id, times_seen=seen, received_at=instant(received_at)
    )


def _busy(arrival: Arrival) -> Unavailable:
    # Another transaction's, which this one's snapshot cannot see (a caller's repeatable read).
    return Unavailable(
        f"operation {echo(arrival.operation)} was received by another transaction meanwhile; run yours again",
        code="KEY_BUSY",
    )


@procedure
def declare_consumer(consumer: str, replay_window: timedelta, retention: timedelta) -> Script[Consumer]:
    """
    Say how late messages may come again to a consumer, and how long it remembers; what was said before is forgotten.

    Locks: the consumer's row. Writes: inbox_consumer.
    """
    yield Statement(
        "inbox_consumer_save",
        {"consumer": consumer, "replay_window_us": span(replay_window), "retention_us": span(retention)},
    )
    return Consumer(consumer, replay_window, retention)


@procedure
def prune_inbox(
    consumer: str, *, older_than: timedelta | None, tenant: str | None, limit: int = PRUNE_MAX
) -> Script[int]:
    """
    Forget operations that did not come for longer than that.

    Args:
        older_than: The consumer's retention when left out.
    Returns: How many; call again while it is the limit.
    Raises:
        Refused: REPLAY_WINDOW, with both values. NotFound: Nobody by that name.
    Locks: the rows forgotten, skipping locked ones. Writes: inbox, inbox_delivery.
    """
    rows = yield Statement("inbox_consumer_read", {"consumer": consumer})
    if not rows:
        raise NotFound(f"no consumer {echo(consumer)} has received anything here")
    window, retention = (timedelta(microseconds=us) for us in rows[0])
    age = retention if older_than is None else older_than
    if age < window:
        raise Refused(
            f"consumer {echo(consumer)} may get a message again for {window}; forgetting what is {age} old would apply "
            f"it a second time. Prune what is older than the window, or declare a shorter one",
            code="REPLAY_WINDOW",
        )
    forgotten = yield Statement(
        "inbox_prune", {"tenant": tenant, "consumer": consumer, "older_us": span(age), "limit": limit}
    )
    return len(forgotten)
