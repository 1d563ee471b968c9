"""
Sending many messages at once, with an answer for each whatever happens.

Where `in_turn` is asked for, messages of one tenant and subject are a lane: each waits for the answer to the one before
it, so they arrive in the order given. Lanes run side by side. A failure stops nobody, not even in its lane: a relay
hands over an ordered message only when the one before it is done, so what stands here together may overtake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

from tenure.rules.message import Deferred, Delivery, Message

REASON_MAX = 200
# Of a destination's time, so that its own answers come before the relay's patience ends, and closing fits in as well.
SHARE = 0.75
CLOSE_SHARE, CLOSE_SECONDS_MAX = 0.1, 2.0

_AGAIN_SECONDS = 0.02

Send = Callable[[Message], Awaitable[Delivery]]


def lanes(messages: Sequence[Message], *, in_turn: bool) -> list[list[int]]:
    """Give the places of the messages, those of one subject together and in order; without a subject each alone."""
    if not in_turn:
        return [[place] for place in range(len(messages))]
    found: dict[tuple[str, str | int], list[int]] = {}
    for place, message in enumerate(messages):
        subject: str | int = place if message.subject is None else message.subject
        found.setdefault((message.tenant, subject), []).append(place)
    return list(found.values())


async def send_all(
    messages: Sequence[Message],
    send: Send,
    *,
    width: int,
    until: float,
    in_turn: bool = False,
    lost: asyncio.Future[None] | None = None,
) -> list[Delivery]:
    """
    Send every message; what has no answer in time is Deferred.

    Args:
        width: How many are under way at the same time.
        until: When the time is over, by the loop's clock.
        lost: Done when there can be no more answers, because the connection broke.
    """
    loop = asyncio.get_running_loop()
    answers: list[Delivery | None] = [None] * len(messages)
    begun: set[int] = set()
    free = asyncio.Semaphore(width)

    async def lane(places: list[int]) -> None:
        for place in places:
            async with free:
                begun.add(place)
                answers[place] = await _answered(send, messages[place])

    tasks = [loop.create_task(lane(places)) for places in lanes(messages, in_turn=in_turn)]
    whole: list[asyncio.Future[Any]] = [asyncio.gather(*tasks, return_exceptions=True)]
    if lost is not None:
        whole.append(lost)
    try:
        await asyncio.wait(whole, timeout=max(until - loop.time(), 0), return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end_tasks(tasks)
    broken = lost is not None and lost.done()
    unknown = Deferred("the connection broke before the answer" if broken else "no answer in time")
    unsent = Deferred("not sent: its turn did not come in time")
    return [
        answer if answer is not None else unknown if place in begun else unsent for place, answer in enumerate(answers)
    ]


async def end_tasks(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """End tasks; again and again, because a client library may swallow a cancellation and go on waiting."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_AGAIN_SECONDS)


async def _answered(send: Send, message: Message) -> Delivery:
    try:
        return await send(message)
    except Exception as error:  # noqa: BLE001 - whatever it is, there was no answer
        return Deferred(reason(f"no answer ({type(error).__name__})"))


def all_deferred(messages: Sequence[Message], why: str, *, outage: bool = False) -> list[Delivery]:
    """
    Give the same answer for every message.

    Args:
        outage: Nothing was sent, because there is no way to send anything.
    """
    return [Deferred(reason(why), outage=outage)] * len(messages)


def limit_of(timeout: timedelta) -> float:
    """Give the seconds that a destination uses of its time."""
    return timeout.total_seconds() * SHARE


def close_limit_of(timeout: timedelta) -> float:
    """Give the seconds that closing a connection may take."""
    return min(timeout.total_seconds() * CLOSE_SHARE, CLOSE_SECONDS_MAX)


def reason(text: str) -> str:
    """Bound a reason; it is shown in a list of many."""
    plain = "".join(character if character.isprintable() else " " for character in text)
    return plain if len(plain) <= REASON_MAX else f"{plain[: REASON_MAX - 3]}..."
