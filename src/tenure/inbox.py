"""
Messages that are applied once: `tenure.inbox.receive(tx, ...)` marks one in the consumer's own transaction.

The mark and what the consumer does commit together or not at all, so a message that comes again finds its mark exactly
where it finds its effect. The effect must be in the same database; what leaves it needs an intent of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta
from typing import overload

from tenure.procedures.inbox import Consumer, declare_consumer, receive_event
from tenure.rules.creation import check_text
from tenure.rules.inbox import IncomingEvent, Receivable, Received, check_arrival, check_window
from tenure.stores.contract import AsyncRunning, Running

__all__ = ["Consumer", "IncomingEvent", "Receivable", "Received", "declare", "receive"]


@overload
def receive(
    tx: Running, consumer: str, event: Receivable, delivery_id: str, *, replay_window: timedelta | None = None
) -> Received: ...
@overload
def receive(
    tx: AsyncRunning, consumer: str, event: Receivable, delivery_id: str, *, replay_window: timedelta | None = None
) -> Awaitable[Received]: ...
def receive(
    tx: Running | AsyncRunning,
    consumer: str,
    event: Receivable,
    delivery_id: str,
    *,
    replay_window: timedelta | None = None,
) -> Received | Awaitable[Received]:
    """
    Take note of a message in the consumer's open transaction; apply it only where it is new.

    Another transaction that receives the same operation is waited for: what comes second sees what the first one did.
    With an awaiting transaction the result is awaited.

    Args:
        consumer: Who applies it; each consumer of a store has a memory of its own.
        event: A `Message`, an `IncomingEvent` made of what arrived, or anything with the same fields.
        delivery_id: Names this arrival; the same one brings the same operation, always.
        replay_window: How late a message may still come again; stored at the consumer's first use, a week by default,
            ten years at most.
    Returns:
        Whether the operation is new, which delivery brought it first, and how often it came.
    Raises:
        Conflict: MESSAGE_MISMATCH, the operation came before with other content; DELIVERY_ID_REUSED, the delivery
            brought another operation before; REPLAY_WINDOW_DIFFERS.
        Invalid: The event is malformed, or carries a digest that its content does not have.
    """
    if replay_window is not None:
        check_window(replay_window, None)
    return tx.run(receive_event(check_arrival(consumer, event, delivery_id), replay_window))


@overload
def declare(
    tx: Running, consumer: str, *, replay_window: timedelta, retention: timedelta | None = None
) -> Consumer: ...
@overload
def declare(
    tx: AsyncRunning, consumer: str, *, replay_window: timedelta, retention: timedelta | None = None
) -> Awaitable[Consumer]: ...
def declare(
    tx: Running | AsyncRunning, consumer: str, *, replay_window: timedelta, retention: timedelta | None = None
) -> Consumer | Awaitable[Consumer]:
    """
    Say how late messages may come again to a consumer, and how long it remembers; what was said before is forgotten.

    Args:
        replay_window: Ten years at most.
        retention: What is older may be pruned; twice the replay window when left out, twenty years at most.
    Raises:
        Invalid: RETENTION_TOO_SHORT, it would forget within the replay window.
    """
    check_text("consumer", consumer)
    window, kept = check_window(replay_window, retention)
    return tx.run(declare_consumer(consumer, window, kept))
