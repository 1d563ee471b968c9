"""Verbs about messages: see what waits, decide about what was set aside, forget what is old."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from uuid import UUID

from tenure.errors import Invalid, echo
from tenure.procedures import inbox, outbox_operate, outbox_upkeep
from tenure.procedures.outbox_operate import OutboxStats
from tenure.rules.authority import check_unbound
from tenure.rules.bounds import ZERO, check_span, check_whole
from tenure.rules.creation import check_id, check_member, check_text
from tenure.rules.outbox import MAX_ATTEMPTS, MessageState, StoredMessage
from tenure.verbs.scope import Scope
from tenure.yields import Procedure

LIST_MAX = 1_000
PRUNE_MAX = 10_000


def list_messages(
    scope: Scope,
    *,
    tenant: str | None = None,
    destination: str | None = None,
    state: MessageState | str | Sequence[MessageState | str] | None = None,
    limit: int = 100,
    after: UUID | None = None,
) -> Procedure[list[StoredMessage]]:
    """
    Give messages by creation, oldest first.

    Args:
        state: One of due, later, delivering, blocked, held, set_aside, delivered, discarded, or several of them.
        limit: At most 1,000.
        after: The id of the last message of the page before.
    """
    if destination is not None:
        check_text("destination", destination)
    if after is not None:
        check_id("after", after)
    check_whole("limit", limit, LIST_MAX)
    states = None
    if state is not None:
        if not isinstance(state, Iterable):
            raise Invalid(f"state is a state of a message or a list of them, not {echo(state)}", code="BAD_ARGUMENT")
        given = [state] if isinstance(state, str) else state
        states = [check_member("state of a message", one, MessageState) for one in given]
    return outbox_operate.list_messages(
        tenant=scope.narrow(tenant), destination=destination, states=states, limit=limit, after=after
    )


def get_message(scope: Scope, message_id: UUID, *, tenant: str | None = None) -> Procedure[StoredMessage]:
    """
    Give one message with what operators did to it; NotFound for an unknown or foreign id.

    Args:
        tenant: Whose; needed only where two tenants chose the same id.
    """
    return outbox_operate.get_message(check_id("message_id", message_id), tenant=scope.narrow(tenant))


def replay_message(
    scope: Scope,
    message_id: UUID,
    *,
    reason: str,
    actor: str | None = None,
    attempts: int = MAX_ATTEMPTS,
    tenant: str | None = None,
) -> Procedure[StoredMessage]:
    """
    Let a message that was set aside go again, with the id, the operation and the digest that it has.

    Args:
        reason: Stored with the actor and the time.
        attempts: So many more deliveries.
    Raises:
        Refused: NOT_SET_ASIDE.
    Locks: the message's place. Writes: message_resting, message_due, message_decision.
    """
    check_whole("attempts", attempts, 1_000)
    return outbox_operate.replay_message(
        check_id("message_id", message_id),
        tenant=scope.narrow(tenant),
        actor=check_text("actor", scope.who(actor)),
        reason=check_text("reason", reason),
        attempts=attempts,
    )


def discard_message(
    scope: Scope, message_id: UUID, *, reason: str, actor: str | None = None, tenant: str | None = None
) -> Procedure[StoredMessage]:
    """
    Never deliver a message that was set aside; the messages that wait behind it may go.

    Args:
        reason: Stored with the actor and the time.
    Raises:
        Refused: NOT_SET_ASIDE.
    Locks: the message's place, its order row. Writes: message_resting, message_done, message_order, message_decision.
    """
    return outbox_operate.discard_message(
        check_id("message_id", message_id),
        tenant=scope.narrow(tenant),
        actor=check_text("actor", scope.who(actor)),
        reason=check_text("reason", reason),
    )


def outbox_stats(scope: Scope, *, tenant: str | None = None) -> Procedure[OutboxStats]:
    """Give the age of the oldest undelivered message, and counts by destination and state; identifiers only."""
    return outbox_operate.outbox_stats(tenant=scope.narrow(tenant))


def prune_outbox(scope: Scope, *, older_than: timedelta, limit: int = PRUNE_MAX) -> Procedure[int]:
    """
    Forget messages that were delivered or discarded longer ago, and with them their operations.

    Args:
        older_than: Since they were delivered or discarded.
        limit: At most so many in this call.
    Returns:
        How many; call again while it is the limit.
    Raises:
        Refused: The service is bound to a tenant; the retention is everybody's.
    Locks: the rows forgotten. Writes: message, message_done, message_decision.
    """
    check_unbound(scope.tenant, "the retention of the outbox")
    check_span("older_than", older_than, least=ZERO)
    check_whole("limit", limit, PRUNE_MAX)
    return outbox_upkeep.prune_messages(older_than, limit)


def prune_inbox(
    scope: Scope,
    consumer: str,
    *,
    older_than: timedelta | None = None,
    tenant: str | None = None,
    limit: int = PRUNE_MAX,
) -> Procedure[int]:
    """
    Forget operations that a consumer applied and that did not come again for longer than that.

    Args:
        older_than: The consumer's retention when left out.
        limit: At most so many in this call.
    Returns:
        How many; call again while it is the limit.
    Raises:
        Refused: REPLAY_WINDOW, the messages may still come again.
    Locks: the rows forgotten. Writes: inbox, inbox_delivery.
    """
    check_text("consumer", consumer)
    if older_than is not None:
        check_span("older_than", older_than, least=ZERO)
    check_whole("limit", limit, PRUNE_MAX)
    return inbox.prune_inbox(consumer, older_than=older_than, tenant=scope.narrow(tenant), limit=limit)
