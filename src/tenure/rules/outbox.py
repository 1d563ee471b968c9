"""
What the outbox decides: what may be added, which of the messages at the front may go, and what an answer means.

A message is due, planned for later, being delivered, resting, or done. Three things keep a due message from going: its
authority (held), an older undelivered message of its subject (blocked), and its last delivery, if that took others down
with it: then it goes in small company and at last alone, so that the one that does the harm is found out and the others
lose two attempts at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from tenure.errors import Invalid
from tenure.rules.authority import Authority
from tenure.rules.bounds import check_whole
from tenure.rules.creation import ATTEMPTS_MAX, check_id, check_instant, check_text
from tenure.rules.digest import message_digest
from tenure.rules.message import Delivered, Delivery, Message, Refused
from tenure.rules.outcome import Json
from tenure.rules.payload import check_object, clean_text, decode, encode, encode_result
from tenure.rules.retry import backoff, jitter

MAX_ATTEMPTS = 5
BACKOFF = timedelta(seconds=10)
REASON_BYTES_MAX = 500
VERSION_MAX = 2**31 - 1

RELAY_LOST, BATCH_FAILED, DEFERRED = "RELAY_LOST", "BATCH_FAILED", "DELIVERY_DEFERRED"
DOWN = "DESTINATION_DOWN"
REFUSED, USED_UP, UNKNOWN_DESTINATION = "DELIVERY_REFUSED", "DELIVERIES_USED_UP", "UNKNOWN_DESTINATION"
_LOST = "the relay that delivered it was lost"
_UNSERVED = "no live relay serves this destination; it goes as soon as one does"
# What says that a message goes alone comes back with it: while it is set aside, its reason says what its code was.
_UNSERVED_AFTER = {
    RELAY_LOST: f"{_LOST}, and {_UNSERVED}",
    BATCH_FAILED: f"the call that it was part of failed as a whole, and {_UNSERVED}",
}
# After a batch has failed as a whole, its messages go in groups of so many, and from a group that fails one by one.
GROUP = 10
# As long as it has so many deliveries left.
GROUP_LEFT = 3


class MessageState(StrEnum):
    """Where a message stands."""

    DUE = "due"
    LATER = "later"
    DELIVERING = "delivering"
    BLOCKED = "blocked"
    HELD = "held"
    SET_ASIDE = "set_aside"
    DELIVERED = "delivered"
    DISCARDED = "discarded"


class NewMessage(NamedTuple):
    """
    A message that is ready to be written.

    Attributes:
        data: As it was given, a text ready to be stored beside it.
        scheduled_at: None means at once.
    """

    message_id: UUID
    tenant: str
    destination: str
    operation: str
    type: str
    version: int
    subject: str | None
    ordered: bool
    data: dict[str, Json]
    text: str
    max_attempts: int
    scheduled_at: datetime | None
    digest: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What an operator did to a message, and why."""

    decision: str
    at: datetime
    actor: str
    reason: str
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """
    A message and where it stands.

    Attributes:
        ordered: It goes only after every older message of its subject.
        attempt_count: Deliveries begun so far, of at most `max_attempts`.
        generation: The fencing token of its deliveries; 0 before the first.
        due_at: When it may go, or could have gone.
        error_code, reason: Why the last delivery did not succeed, or why it is set aside.
        blocked_by: The oldest undelivered message of its subject, where that is another one.
        done_at: When it was delivered or discarded.
        decisions: What operators did to it, oldest first; read with one message, not with lists.
    """

    message: Message
    state: MessageState
    ordered: bool
    attempt_count: int
    max_attempts: int
    generation: int
    scheduled_at: datetime
    due_at: datetime
    error_code: str | None = None
    reason: str | None = None
    blocked_by: UUID | None = None
    relay_id: str | None = None
    expires_at: datetime | None = None
    done_at: datetime | None = None
    receipt: Any = None
    decisions: tuple[Decision, ...] = ()


def new_message(
    *,
    message_id: UUID,
    tenant: str,
    destination: str,
    operation: str | None,
    type: str,  # noqa: A002 - the field's name
    version: int,
    subject: str | None,
    ordered: bool,
    data: Any,
    max_attempts: int,
    scheduled_at: datetime | None,
) -> NewMessage:
    """
    Check a message that is to be added.

    Raises:
        Invalid: What is wrong, with its name or its path; data is refused like a job's payload.
    """
    check_id("message_id", message_id)
    operation = str(message_id) if operation is None else operation
    for name, value in (("tenant", tenant), ("destination", destination), ("operation", operation), ("type", type)):
        check_text(name, value)
    if subject is not None:
        check_text("subject", subject)
    check_whole("version", version, VERSION_MAX)
    check_whole("max_attempts", max_attempts, ATTEMPTS_MAX)
    if not isinstance(ordered, bool):
        raise Invalid(f"ordered is True or False, not {type_name(ordered)}", code="BAD_ARGUMENT")
    if ordered and subject is None:
        raise Invalid("an order is kept within a subject: give subject= with ordered=True", code="SUBJECT_REQUIRED")
    check_object(data)
    text = encode(data)
    document: dict[str, Json] = data
    return NewMessage(
        message_id,
        tenant,
        destination,
        operation,
        type,
        version,
        subject,
        ordered,
        document,
        text,
        max_attempts,
        None if scheduled_at is None else check_instant("scheduled_at", scheduled_at),
        message_digest(operation=operation, type=type, version=version, subject=subject, data=document),
    )


def type_name(value: object) -> str:
    """Name the type of a value in an error's text."""
    return type(value).__name__


# --- what may go ------------------------------------------------------------------------------------------------------


class Waiting(NamedTuple):
    """
    The state of a message, as its place keeps it; the order is that of the columns.

    Attributes:
        subject: Only where the message keeps an order.
        since: When it was first due, in microseconds, as are all instants here.
    """

    message_id: UUID
    tenant: str
    destination: str
    subject: str | None
    position: int
    since: int
    generation: int
    attempt: int
    attempts_max: int
    epoch: int
    error_code: str | None
    error_message: str | None


class Candidate(NamedTuple):
    """
    A due message at the front of its destination.

    Attributes:
        authority: Its tenant's, now.
        first: The position of the oldest undelivered message of its subject, where it keeps an order.
    """

    waiting: Waiting
    authority: Authority
    first: int | None

    @property
    def admitted(self) -> bool:
        """Whether its tenant's authority lets it go."""
        return self.authority.admits(self.waiting.epoch)


@dataclass(slots=True)
class Choice:
    """What becomes of the front, by index; what is in none of the three stays where it is."""

    go: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    blocked: list[int] = field(default_factory=list)


def choose(front: Sequence[Candidate]) -> Choice:
    """Say which of the messages at the front go now, in order, and which do not belong there."""
    choice = Choice()
    company: int | None = None
    closed = False
    for nth, one in enumerate(front):
        if not one.admitted:
            choice.held.append(nth)
        elif one.waiting.subject is not None and one.first is not None and one.first < one.waiting.position:
            choice.blocked.append(nth)
        elif not closed:
            if not choice.go:
                company = _company(one.waiting)
            closed = company != _company(one.waiting) or len(choice.go) == company
            if not closed:
                choice.go.append(nth)
    return choice


def _company(waiting: Waiting) -> int | None:
    """Say with how many a message may be delivered, itself included; None where nobody needs to be careful."""
    if waiting.error_code == RELAY_LOST:
        return 1
    if waiting.error_code == BATCH_FAILED:
        return GROUP if waiting.attempt == 1 and waiting.attempts_max - waiting.attempt >= GROUP_LEFT else 1
    return None


# --- what an answer means ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Together:
    """A call for several messages failed as a whole: nobody knows which of them is to blame."""

    reason: str


@dataclass(frozen=True, slots=True)
class Paused:
    """
    The destination as a whole does not work: the delivery does not count.

    Attributes:
        wait: Until the message may be tried again; at once where it was not sent at all.
    """

    reason: str
    wait: timedelta = timedelta(0)


Answer = Delivery | Together | Paused


@dataclass(frozen=True, slots=True)
class Settled:
    """
    Where a message goes after a delivery.

    Attributes:
        state: Delivered, due, later or set aside.
        attempt: Deliveries that count so far.
        wait: Until the next one, where it is later.
        receipt: The text of what the destination gave back.
    """

    state: MessageState
    attempt: int
    error_code: str | None = None
    reason: str | None = None
    wait: timedelta = timedelta(0)
    receipt: str | None = None


def settle(waiting: Waiting, answer: Answer, *, base: timedelta = BACKOFF) -> Settled:
    """Judge one answer; `waiting.attempt` is the delivery that it ends."""
    attempt = waiting.attempt
    match answer:
        case Delivered():
            return Settled(MessageState.DELIVERED, attempt, receipt=_receipt(answer.receipt))
        case Refused():
            return Settled(MessageState.SET_ASIDE, attempt, REFUSED, clean_reason(answer.reason))
        case Paused():
            # What says that it goes alone stays: it was said of the message, and not of the outage.
            code = waiting.error_code if waiting.error_code in {RELAY_LOST, BATCH_FAILED} else DOWN
            state = MessageState.LATER if answer.wait else MessageState.DUE
            return Settled(state, attempt - 1, code, clean_reason(answer.reason), answer.wait)
        case _:
            reason = clean_reason(answer.reason)
    if attempt >= waiting.attempts_max:
        return Settled(MessageState.SET_ASIDE, attempt, USED_UP, reason)
    if isinstance(answer, Together):
        return Settled(MessageState.DUE, attempt, BATCH_FAILED, reason)
    wait = backoff(base, attempt, jitter(waiting.message_id, attempt), retry_after=answer.retry_after)
    return Settled(MessageState.LATER, attempt, DEFERRED, reason, wait)


def lost(waiting: Waiting) -> Settled:
    """Judge a delivery whose relay was not heard of again."""
    if waiting.attempt >= waiting.attempts_max:
        return Settled(MessageState.SET_ASIDE, waiting.attempt, RELAY_LOST, _LOST)
    return Settled(MessageState.DUE, waiting.attempt, RELAY_LOST, _LOST)


def unserved(waiting: Waiting) -> Waiting:
    """Say of a message that no live relay serves its destination."""
    before = served(waiting).error_code
    reason = _UNSERVED if before is None else _UNSERVED_AFTER.get(before, _UNSERVED)
    return _said_of(waiting, UNKNOWN_DESTINATION, reason)


def served(waiting: Waiting) -> Waiting:
    """Take that back: a delivery that may have happened is one that may have happened, as before."""
    if waiting.error_code != UNKNOWN_DESTINATION:
        return waiting
    for code, reason in _UNSERVED_AFTER.items():
        if waiting.error_message == reason:
            return _said_of(waiting, code, _LOST if code == RELAY_LOST else None)
    return _said_of(waiting, None, None)


def _said_of(waiting: Waiting, code: str | None, reason: str | None) -> Waiting:
    return waiting._replace(error_code=code, error_message=reason)


def clean_reason(text: object) -> str:
    """Make a destination's reason one that can be stored and shown."""
    shown = text if isinstance(text, str) and text.strip() else "the destination gave no reason"
    return clean_text(shown, REASON_BYTES_MAX)[0]


def _receipt(receipt: Json) -> str | None:
    if receipt is None:
        return None
    try:
        return encode_result(receipt)
    except Invalid as problem:
        # The destination did take it: a receipt that no store keeps must not send the message again.
        return encode({"receipt_left_out": problem.code})


def read_data(text: str) -> dict[str, Json]:
    """Read stored data."""
    found: Any = decode(text)
    document: dict[str, Json] = found
    return document
