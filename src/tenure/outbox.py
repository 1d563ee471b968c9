"""
Messages that leave with a commit: `tenure.outbox.add(tx, ...)` writes one in your own transaction.

It leaves when that transaction has committed, and never without it. A relay delivers it at least once, to the
destination that it names; whoever gets it knows it again by its operation.
"""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import datetime
from typing import Any, overload
from uuid import UUID

from tenure.errors import Invalid
from tenure.procedures.outbox import Added, add_message
from tenure.procedures.outbox_operate import OutboxCount, OutboxStats
from tenure.rules.message import Deferred, Delivered, Delivery, Message, Refused
from tenure.rules.outbox import MAX_ATTEMPTS, Decision, MessageState, NewMessage, StoredMessage, new_message
from tenure.stores.contract import AsyncRunning, Running
from tenure.yields import new_id

__all__ = [
    "Added",
    "Decision",
    "Deferred",
    "Delivered",
    "Delivery",
    "Message",
    "MessageState",
    "NewMessage",
    "OutboxCount",
    "OutboxStats",
    "Refused",
    "StoredMessage",
    "add",
    "prepare",
]


@overload
def add(
    tx: Running,
    *,
    destination: str,
    type: str,
    data: dict[str, Any],
    tenant: str | None = None,
    organization: str | None = None,
    operation: str | None = None,
    version: int = 1,
    subject: str | None = None,
    ordered: bool = False,
    message_id: UUID | None = None,
    scheduled_at: datetime | None = None,
    max_attempts: int = MAX_ATTEMPTS,
) -> Added: ...
@overload
def add(
    tx: AsyncRunning,
    *,
    destination: str,
    type: str,
    data: dict[str, Any],
    tenant: str | None = None,
    organization: str | None = None,
    operation: str | None = None,
    version: int = 1,
    subject: str | None = None,
    ordered: bool = False,
    message_id: UUID | None = None,
    scheduled_at: datetime | None = None,
    max_attempts: int = MAX_ATTEMPTS,
) -> Awaitable[Added]: ...
def add(tx: Running | AsyncRunning, *, destination: str, **fields: Any) -> Added | Awaitable[Added]:
    """
    Add a message in an open transaction: your own (`app.join(connection)`), a publish block's, or a store's.

    With an awaiting transaction the result is awaited.

    Args:
        destination: The name of the destination that delivers it. A producer cannot know which ones exist: what no live
            relay serves is set aside, visible in `tenure outbox`, and goes as soon as one does.
        type: What happened, such as `quote.accepted`.
        data: A JSON object, refused like a job's payload.
        tenant, organization: Whose it is; the organization where no tenant is given.
        operation: The business identity, unique within tenant and destination; the message's id when left out.
        version: Of the shape of the data.
        subject: Whom it is about.
        ordered: It goes only after every older message of its subject; needs a subject.
        message_id: Made when left out.
        scheduled_at: Not before; at once when left out.
        max_attempts: Deliveries until it is set aside.
    Returns:
        The message, and whether this call created it: the same operation with the same content is found.
    Raises:
        Invalid: An argument is wrong. Nothing is written.
        Conflict: MESSAGE_MISMATCH, the operation is known with other content. MESSAGE_ID_TAKEN.
    """
    return tx.run(add_message(prepare(destination=destination, **fields)))


def prepare(
    *,
    destination: str,
    type: str,  # noqa: A002 - the field's name
    data: dict[str, Any],
    tenant: str | None = None,
    organization: str | None = None,
    operation: str | None = None,
    version: int = 1,
    subject: str | None = None,
    ordered: bool = False,
    message_id: UUID | None = None,
    scheduled_at: datetime | None = None,
    max_attempts: int = MAX_ATTEMPTS,
) -> NewMessage:
    """Check a message without a database; see `add`."""
    owner = organization if tenant is None else tenant
    if owner is None:
        raise Invalid("say whose message it is: tenant= or organization=", code="TENANT_REQUIRED")
    return new_message(
        message_id=new_id() if message_id is None else message_id,
        tenant=owner,
        destination=destination,
        operation=operation,
        type=type,
        version=version,
        subject=subject,
        ordered=ordered,
        data=data,
        max_attempts=max_attempts,
        scheduled_at=scheduled_at,
    )
