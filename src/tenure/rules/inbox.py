"""
What an inbox decides: whether an operation is new to a consumer, the same once more, or something else by that name.

A consumer declares how late a message may still come again: its replay window. What it remembers is never forgotten
within that window, because a message that comes again would then be applied twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from tenure.errors import Conflict, Invalid, echo
from tenure.rules.bounds import check_span, check_whole
from tenure.rules.creation import check_text
from tenure.rules.digest import message_digest
from tenure.rules.outbox import VERSION_MAX
from tenure.rules.outcome import Json
from tenure.rules.payload import check_object

REPLAY_WINDOW = timedelta(days=7)
REPLAY_WINDOW_MAX = timedelta(days=3650)
# Kept twice as long as messages may come again, where the consumer says nothing else.
_RETENTION_WINDOWS = 2


class Receivable(Protocol):
    """What an event that is received must have; a `Message` has it, and so has `IncomingEvent`."""

    @property
    def tenant(self) -> str:
        """Whose it is."""
        ...

    @property
    def operation(self) -> str:
        """What it is deduplicated by."""
        ...

    @property
    def type(self) -> str:
        """What happened."""
        ...

    @property
    def version(self) -> int:
        """The shape of its data."""
        ...

    @property
    def subject(self) -> str | None:
        """Whom it is about."""
        ...

    @property
    def data(self) -> dict[str, Json]:
        """A JSON object."""
        ...


@dataclass(frozen=True, slots=True)
class IncomingEvent:
    """A message as a consumer makes it of what arrived, in whatever form that came."""

    tenant: str
    operation: str
    type: str
    version: int
    subject: str | None
    data: dict[str, Json]


@dataclass(frozen=True, slots=True)
class Received:
    """
    What a consumer is told.

    Attributes:
        new: Apply it now, in the same transaction; False: it was applied before.
        first_delivery_id: The delivery that brought it first.
        times_seen: Arrivals so far, this one included.
        received_at: When it came first.
    """

    operation: str
    new: bool
    first_delivery_id: str
    times_seen: int
    received_at: datetime


class Arrival(NamedTuple):
    """A checked event on its way into an inbox."""

    tenant: str
    consumer: str
    operation: str
    digest: str
    delivery_id: str


def check_arrival(consumer: str, event: Receivable, delivery_id: str) -> Arrival:
    """
    Check what arrived; the digest is computed here and not believed.

    Raises:
        Invalid: A field is missing or malformed; DIGEST_MISMATCH, it carries another digest than its content has.
    """
    check_text("consumer", consumer)
    check_text("delivery_id", delivery_id)
    fields: dict[str, Any] = {}
    for name in ("tenant", "operation", "type", "version", "subject", "data"):
        if not hasattr(event, name):
            raise Invalid(
                f"the event has no {name}; make a tenure.inbox.IncomingEvent of what arrived", code="BAD_EVENT"
            )
        fields[name] = getattr(event, name)
    for name in ("tenant", "operation", "type"):
        check_text(name, fields[name])
    if fields["subject"] is not None:
        check_text("subject", fields["subject"])
    check_whole("version", fields["version"], VERSION_MAX)
    check_object(fields["data"])
    tenant = fields.pop("tenant")
    found = message_digest(**fields)
    said = getattr(event, "digest", None)
    if said is not None and said != found:
        raise Invalid(
            f"operation {echo(fields['operation'])} carries a digest that its content does not have; it was changed on "
            f"the way, do not apply it",
            code="DIGEST_MISMATCH",
        )
    return Arrival(tenant, consumer, fields["operation"], found, delivery_id)


def check_window(replay_window: timedelta, retention: timedelta | None) -> tuple[timedelta, timedelta]:
    """
    Check what a consumer says about itself; give replay window and retention.

    Raises:
        Invalid: RETENTION_TOO_SHORT, with both values.
    """
    check_span("replay_window", replay_window, most=REPLAY_WINDOW_MAX)
    if retention is not None:
        check_span("retention", retention, most=_RETENTION_WINDOWS * REPLAY_WINDOW_MAX)
    kept = replay_window * _RETENTION_WINDOWS if retention is None else retention
    if kept < replay_window:
        raise Invalid(
            f"a retention of {kept} is shorter than the replay window of {replay_window}: what comes again within the "
            f"window would be applied a second time; keep it at least as long",
            code="RETENTION_TOO_SHORT",
        )
    return replay_window, kept


def judge(arrival: Arrival, *, digest: str, delivered: str | None) -> None:
    """
    Refuse an arrival whose operation or delivery id is known by another meaning.

    Args:
        digest: What is stored for the operation.
        delivered: The operation that the delivery id brought before, if any.
    Raises:
        Conflict: DELIVERY_ID_REUSED, MESSAGE_MISMATCH.
    """
    if delivered is not None and delivered != arrival.operation:
        raise Conflict(
            f"delivery {echo(arrival.delivery_id)} brought operation {echo(delivered)} to consumer "
            f"{echo(arrival.consumer)} before, and now {echo(arrival.operation)}; one delivery brings one operation",
            code="DELIVERY_ID_REUSED",
        )
    if digest != arrival.digest:
        raise Conflict(
            f"operation {echo(arrival.operation)} came to consumer {echo(arrival.consumer)} before with other content; "
            f"its producer used one operation for two meanings, so do not apply it",
            code="MESSAGE_MISMATCH",
        )
