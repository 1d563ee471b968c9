"""
One destination as a relay uses it: opened before it gets anything, and opened again after a failure.

What a destination says counts; what it does not say is made up here: an exception or a silence means that nobody knows,
and of a batch nobody knows whose fault it was. Whatever it raises is said about its messages and ends nothing of ours.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tenure.connectors.destination import Destination, check_destination
from tenure.errors import Invalid, echo
from tenure.loops.circuit import Circuit
from tenure.procedures.outbox import Outgoing
from tenure.rules.answers import check_answer
from tenure.rules.message import Deferred, Message
from tenure.rules.outage import says_so
from tenure.rules.outbox import Answer, Together

logger = logging.getLogger("tenure.relay")

# Seconds: how long opening and closing may take.
OPEN_LIMIT, CLOSE_LIMIT = 15.0, 5.0
# How long a call that was cancelled may take to end before it is left behind.
CANCEL_LIMIT = 1.0


class Delivering:
    """
    A destination and whether it is open.

    Attributes:
        circuit: Whether it is paused because nothing gets through.
    """

    def __init__(self, destination: Destination) -> None:
        self.destination = destination
        self.name = destination.name
        self.circuit = Circuit(destination.name)
        self._closed: str | None = None
        self._open = False
        self._turn = asyncio.Lock()
        self._calls: set[asyncio.Task[Any]] = set()

    @property
    def left(self) -> int:
        """How many calls go on, told to stop or not."""
        return len(self._calls)

    @property
    def trouble(self) -> str | None:
        """Say why nothing is delivered, until it is."""
        return self._closed or self.circuit.trouble

    async def ready(self) -> None:
        """
        Open it where it is not; raises what it says.

        Nothing is claimed for a destination that cannot be opened: an outage there costs messages no attempts.
        """
        async with self._turn:
            if self._open:
                return
            _, error = await self._call(self.destination.open, limit=OPEN_LIMIT)
            if error is not None:
                # Its text may hold an address with a password.
                self._closed = f"destination {self.name} cannot be opened: {type(error).__name__}"
                raise error if isinstance(error, Exception) else RuntimeError(type(error).__name__)
            self._closed = None
            self._open = True

    async def deliver(self, outgoing: Sequence[Outgoing]) -> list[Answer]:
        """Deliver messages within the destination's own time; an answer for each, whatever happens."""
        answers = await self._deliver([one.message for one in outgoing])
        return self.circuit.judge([one.message.id for one in outgoing], answers)

    async def _deliver(self, messages: Sequence[Message]) -> list[Answer]:
        limit = self.destination.timeout
        given, error = await self._call(self._listed, messages, limit=limit.total_seconds())
        if error is not None:
            await self.close()
            if isinstance(error, _Silent):
                return self._nobody_knows(len(messages), f"no answer within {limit}")
            code = getattr(error, "code", "")
            logger.info("destination %s failed: %s %s", self.name, type(error).__name__, code)
            return self._nobody_knows(len(messages), f"the destination failed: {type(error).__name__} {code}".rstrip())
        if len(given) != len(messages):
            return self._nobody_knows(
                len(messages),
                f"the destination gave {len(given)} answers for {len(messages)} messages; one each "
                f"of tenure.outbox.Delivered, Deferred and Refused",
            )
        answers = [check_answer(one) for one in given]
        if says_so(answers):
            # Opened again first: nothing is claimed for a destination that cannot be.
            await self.close()
        return [*answers]

    async def _listed(self, messages: Sequence[Message]) -> list[Any]:
        return list(await self.destination.deliver(messages))

    @staticmethod
    def _nobody_knows(count: int, reason: str) -> list[Answer]:
        return [Deferred(reason) if count == 1 else Together(reason)] * count

    async def close(self) -> None:
        """Close it; it is opened again before anything else is delivered."""
        async with self._turn:
            was, self._open = self._open, False
            if not was:
                return
            _, error = await self._call(self.destination.close, limit=CLOSE_LIMIT)
            if error is not None:
                # It is given up in any case.
                logger.info("destination %s did not close: %s", self.name, type(error).__name__)

    async def leave(self) -> None:
        """Close it for good, after its calls have ended, or without them where they ignore that they are to."""
        await _cancel(set(self._calls))
        await self.close()
        if self._calls:
            logger.warning("destination %s ignores its cancellation: %d calls are left behind", self.name, self.left)

    async def _call(
        self, function: Callable[..., Awaitable[Any]], *args: Any, limit: float
    ) -> tuple[Any, BaseException | None]:
        """
        Give what a function of the destination's gives, or what went wrong.

        It runs in a task of its own, so that one that ignores its cancellation can be left behind, and a CancelledError
        that its library let out is told apart from a cancellation of ours. What ends the process is raised.
        """
        task = asyncio.ensure_future(_awaited(function, args))
        self._calls.add(task)
        task.add_done_callback(self._forget)
        late = False
        try:
            await asyncio.wait({task}, timeout=limit)
            late = not task.done()
            if late:
                await _cancel({task})
        finally:
            task.cancel()
        if not task.done():
            return None, _Silent()
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise error
        if error is None:
            # An answer that came while it was being cancelled is still an answer.
            return task.result(), None
        return None, _Silent() if late else error

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            # Looked at, so that asyncio does not print it: its text is the destination's.
            task.exception()


class _Silent(TimeoutError):
    """A call did not end within its time."""


async def _cancel(calls: set[asyncio.Task[Any]]) -> None:
    """Cancel, and once more: before Python 3.12 `asyncio.wait_for` loses a cancellation that comes with its result."""
    for _ in range(2):
        for one in calls:
            one.cancel()
        if calls:
            _, calls = await asyncio.wait(calls, timeout=CANCEL_LIMIT / 2)


async def _awaited(function: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> Any:
    return await function(*args)


def check_destinations(destinations: Sequence[Destination]) -> dict[str, Destination]:
    """
    Check what a relay is to serve, by name.

    Raises:
        Invalid: DESTINATION_TAKEN; and what `check_destination` refuses.
    """
    found: dict[str, Destination] = {}
    for one in destinations:
        check_destination(one)
        if one.name in found:
            raise Invalid(
                f"two destinations are called {echo(one.name)}; a name stands for one", code="DESTINATION_TAKEN"
            )
        found[one.name] = one
    return found
