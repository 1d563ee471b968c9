"""
A message: what the outbox commits with a change, what a relay delivers, what an inbox applies once.

The operation is the business identity: stable over deliveries, replays and restarts, and what a consumer deduplicates
by. The message id names the row, a delivery id names one arrival; neither is ever in the digest.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from uuid import UUID

from tenure.rules.creation import TEXT_MAX
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


# --- the job that a message becomes -----------------------------------------------------------------------------------

# The bits of a message's id that its job's has anew: the version, the variant and the end.
_ANEW = 0xF << 76 | 0b11 << 62 | 0xFFFF_FFFF


def job_key_of(destination: str, operation: str) -> str:
    """
    Give the job's idempotency key: an operation is unique within its destination, and two of them may be our own jobs.

    The first colon parts the two, so one in the destination's name is written as `%3A`. What is too long is digested.
    """
    key = f"{destination.replace('%', '%25').replace(':', '%3A')}:{operation}"
    return key if len(key) <= TEXT_MAX else f"message:{sha256(key.encode()).hexdigest()}"


def job_id_of(tenant: str, destination: str, message_id: UUID) -> UUID:
    """
    Give the job's id: the same one from every copy of the message, so that its operation keys are the same too.

    A UUIDv8 with the time and the counter of the message's id, so that jobs keep the order of their messages; its end
    tells it from that id, and from those of other tenants and destinations.
    """
    whose = json.dumps([tenant, destination, message_id.hex]).encode()
    end = int.from_bytes(sha256(whose).digest()[:4], "big")
    return UUID(int=message_id.int & ~_ANEW | 0x8 << 76 | 0b10 << 62 | end)
