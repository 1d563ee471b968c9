"""
One destination as a relay uses it: opened before it gets anything, and opened again after a failure.

What a destination says counts; what it does not say is made up here: an exception or a silence means that nobody knows,
and of a batch nobody knows whose fault it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from tenure.connectors.destination import Destination, check_destination
from tenure.errors import Invalid, echo
from tenure.loops.circuit import Circuit
from tenure.procedures.outbox import Outgoing
from tenure.rules.message import Deferred, Delivered, Message, Refused
from tenure.rules.outage import says_so
from tenure.rules.outbox import Answer, Together

logger = logging.getLogger("tenure.relay")

# Seconds: how long opening and closing may take.
OPEN_LIMIT, CLOSE_LIMIT = 15.0, 5.0


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
            try:
                async with asyncio.timeout(OPEN_LIMIT):
                    await self.destination.open()
            except Exception as error:
                # Its text may hold an address with a password.
                self._closed = f"destination {self.name} cannot be opened: {type(error).__name__}"
                raise
            self._closed = None
            self._open = True

    async def deliver(self, outgoing: Sequence[Outgoing]) -> list[Answer]:
        """Deliver messages within the destination's own time; an answer for each, whatever happens."""
        answers = await self._deliver([one.message for one in outgoing])
        return self.circuit.judge([one.message.id for one in outgoing], answers)

    async def _deliver(self, messages: Sequence[Message]) -> list[Answer]:
        try:
            async with asyncio.timeout(self.destination.timeout.total_seconds()):
                given = list(await self.destination.deliver(messages))
        except TimeoutError:
            await self.close()
            return self._nobody_knows(len(messages), f"no answer within {self.destination.timeout}")
        except Exception as error:  # noqa: BLE001 - whatever it was, the messages are tried again
            await self.close()
            code = getattr(error, "code", "")
            logger.info("destination %s failed: %s %s", self.name, type(error).__name__, code)
            return self._nobody_knows(len(messages), f"the destination failed: {type(error).__name__} {code}".rstrip())
        if len(given) != len(messages) or not all(isinstance(one, Delivered | Deferred | Refused) for one in given):
            return self._nobody_knows(
                len(messages),
                f"the destination gave {len(given)} answers for {len(messages)} messages; one each "
                f"of tenure.outbox.Delivered, Deferred and Refused",
            )
        if says_so(given):
            # Opened again first: nothing is claimed for a destination that cannot be.
            await self.close()
        return [*given]

    @staticmethod
    def _nobody_knows(count: int, reason: str) -> list[Answer]:
        return [Deferred(reason) if count == 1 else Together(reason)] * count

    async def close(self) -> None:
        """Close it; it is opened again before anything else is delivered."""
        async with self._turn:
            was, self._open = self._open, False
            if not was:
                return
            try:
                async with asyncio.timeout(CLOSE_LIMIT):
                    await self.destination.close()
            except Exception as error:  # noqa: BLE001 - it is given up in any case
                logger.info("destination %s did not close: %s", self.name, type(error).__name__)


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
