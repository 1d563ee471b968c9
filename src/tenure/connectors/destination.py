"""
Where a relay delivers messages: the contract of a destination.

A destination speaks one protocol, decides nothing about the outbox and touches no database of ours. It may be handed
the same message again, also by another process, and says so to the receiver with the message's operation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta

from tenure.errors import Invalid, echo
from tenure.rules.bounds import check_span, check_whole
from tenure.rules.message import Delivery, Message

NAME_MAX = 200
TIMEOUT_MAX = timedelta(minutes=10)


class Destination(ABC):
    """
    One place that takes messages.

    Attributes:
        name: What a message's `destination` says; unique within a relay.
        batch: How many messages one call of `deliver` gets at most.
        timeout: How long one call of `deliver` may take; what has no answer by then is Deferred.
    """

    name: str
    batch: int = 100
    timeout: timedelta = timedelta(seconds=30)

    async def open(self) -> None:
        """Connect; called once by the relay before the first delivery, and again after a failure. May raise."""
        return

    @abstractmethod
    async def deliver(self, messages: Sequence[Message]) -> Sequence[Delivery]:
        """
        Deliver messages, in the order given where the protocol has one.

        Returns:
            One answer for each, in the same order. Whatever is raised counts as Deferred for every one of them, and a
            wrong answer as Deferred for its own message; only KeyboardInterrupt and SystemExit end more than that.
        """

    async def close(self) -> None:
        """Let go of every connection; safe to call twice."""
        return


def check_destination(destination: Destination) -> None:
    """
    Refuse a destination that no relay could use.

    Raises:
        Invalid: BAD_DESTINATION: no Destination, or a bad name; BAD_ARGUMENT or BAD_DURATION: its batch, its timeout.
    """
    if not isinstance(destination, Destination):
        raise Invalid(
            f"a destination is made of tenure.Destination, and not of {type(destination).__name__}",
            code="BAD_DESTINATION",
        )
    name = getattr(destination, "name", "")
    if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX or not name.isprintable() or name != name.strip():
        raise Invalid(
            f"a destination's name is 1 to {NAME_MAX} printable characters, not {echo(name)}", code="BAD_DESTINATION"
        )
    check_whole(f"the batch of destination {name!r}", destination.batch)
    check_span(f"the timeout of destination {name!r}", destination.timeout, most=TIMEOUT_MAX)
