"""
A message: what the outbox commits with a change, what a relay delivers, what an inbox applies once.

The operation is the business identity: stable over deliveries, replays and restarts, and what a consumer deduplicates
by. The message id names the row, a delivery id names one arrival; neither is ever in the digest.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from tenure.rules.outcome import Json


@dataclass(frozen=True, slots=True)
class Message:
    """
    An outbox message as a destination gets it.

    Attributes:
        operation: The business identity, unique within tenant and destination.
        destination: The name of the destination that delivers it.
        type: What happened, such as `quote.accepted`; `version` counts its shape, from 1.
        subject: Whom it is about, such as `quote/17`; messages of one subject can be delivered in order.
        data: A JSON object.
        epoch: The tenant's authority epoch when it was added.
        digest: Over operation, type, version, subject and data.
    """

    tenant: str
    id: UUID
    operation: str
    destination: str
    type: str
    version: int
    subject: str | None
    data: dict[str, Json]
    epoch: int
    digest: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Delivered:
    """
    The destination took the message; it may have done so before.

    Attributes:
        receipt: What it gave back, such as a sequence number.
    """

    receipt: Json = None


@dataclass(frozen=True, slots=True)
class Deferred:
    """
    Not delivered, or nobody knows: it is delivered again later, until its budget is used up.

    Attributes:
        retry_after: The least time to wait, where the destination said one.
        outage: The destination knows that nothing was sent and that no message could have been. Where
            that is said of all that was handed over, the delivery does not count, and the relay waits.
    """

    reason: str
    retry_after: timedelta | None = None
    outage: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The destination will never take this message: it is set aside for a person at once."""

    reason: str


Delivery = Delivered | Deferred | Refused
