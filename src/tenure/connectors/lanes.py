"""
Sending many messages at once without changing the order of any subject.

Messages of one tenant and subject are a lane: each waits for the answer to the one before it, and after one that was
not delivered the rest of its lane is Deferred unsent, because order is worth more than a moment. Lanes run side by
side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from tenure.rules.message import Deferred, Delivered, Delivery, Message

REASON_MAX = 200

Send = Callable[[Message], Awaitable[Delivery]]


def lanes(messages: Sequence[Message]) -> list[list[int]]:
    """Give the places of the messages, those of one subject together and in order; without a subject each alone."""
    found: dict[tuple[str, str | int], list[int]] = {}
    for place, message in enumerate(messages):
        subject: str | int = place if message.subject is None else message.subject
        found.setdefault((message.tenant, subject), []).append(place)
    return list(found.values())


async def send_in_lanes(
    messages: Sequence[Message], send: Send, *, width: int, limit: float, lost: asyncio.Future[None] | None = None
) -> list[Delivery]:
    """
    Send every message, and give one answer for each whatever happens.

    Args:
        width: How many are under way at the same time.
        limit: Seconds after which what has no answer is Deferred.
        lost: Done when there can be no more answers, because the connection broke.
    """
    answers: list[Delivery | None] = [None] * len(messages)
    free = asyncio.Semaphore(width)
    why = f"no answer within {limit:.3g} s"

    async def lane(places: list[int]) -> None:
        for number, place in enumerate(places):
            async with free:
                answers[place] = answer = await _answered(send, messages[place])
            if not isinstance(answer, Delivered):
                for later in places[number + 1 :]:
                    answers[later] = Deferred("not sent: the message before it, of the same subject, was not delivered")
                return

    def stop(_: object) -> None:
        nonlocal why
        why = "the connection broke before the answer"
        scope.reschedule(asyncio.get_running_loop().time())

    try:
        async with asyncio.timeout(limit) as scope:
            if lost is not None:
                lost.add_done_callback(stop)
            try:
                async with asyncio.TaskGroup() as group:
                    for places in lanes(messages):
                        group.create_task(lane(places))
            finally:
                if lost is not None:
                    lost.remove_done_callback(stop)
    except TimeoutError:
        pass
    return [Deferred(why) if answer is None else answer for answer in answers]


async def _answered(send: Send, message: Message) -> Delivery:
    try:
        return await send(message)
    except Exception as error:  # noqa: BLE001 - whatever it is, there was no answer
        return Deferred(reason(f"no answer ({type(error).__name__})"))


def all_deferred(messages: Sequence[Message], why: str, retry_after: timedelta | None = None) -> list[Delivery]:
    """Give the same answer for every message."""
    return [Deferred(reason(why), retry_after)] * len(messages)


def reason(text: str) -> str:
    """Bound a reason; it is shown in a list of many."""
    plain = "".join(character if character.isprintable() else " " for character in text)
    return plain if len(plain) <= REASON_MAX else f"{plain[: REASON_MAX - 3]}..."
