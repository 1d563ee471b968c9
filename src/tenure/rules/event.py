"""
The closed vocabulary of the trail.

Every status change has its event in the same transaction. `STATUS_AFTER` says which statuses an event may leave behind;
an event with an empty set never changes the status. Creation is the body's own row and has no event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from tenure.errors import Invalid, Refused, echo
from tenure.rules.status import Status


class EventName(StrEnum):
    """Every name the trail may hold."""

    CLAIMED = "claimed"
    DISPATCHED = "dispatched"
    HEARTBEAT = "heartbeat"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INDETERMINATE = "indeterminate"
    HALT_UNSAFE = "halt_unsafe"
    DEAD_LETTERED = "dead_lettered"
    TIMED_OUT = "timed_out"
    RETRIED = "retried"
    ADMISSION_CHECKED = "admission_checked"
    ESCALATED = "escalated"
    RECONCILED = "reconciled"
    EXECUTION_CONTROL_SHADOW = "execution_control_shadow"
    RELEASED = "released"
    LEASE_EXPIRED = "lease_expired"
    CANCEL_REQUESTED = "cancel_requested"
    REVOKED = "revoked"
    SUSPENDED = "suspended"
    RESUMED = "resumed"
    EFFECT_SETTLED = "effect_settled"
    EVIDENCE_RECEIVED = "evidence_received"
    READMITTED = "readmitted"
    SUSPECTED = "suspected"
    SUSPICION_CLEARED = "suspicion_cleared"


_NONE: frozenset[Status] = frozenset()

STATUS_AFTER: Mapping[EventName, frozenset[Status]] = {
    EventName.CLAIMED: frozenset({Status.CLAIMED, Status.RUNNING}),
    EventName.DISPATCHED: frozenset({Status.RUNNING}),
    EventName.HEARTBEAT: frozenset({Status.RUNNING}),
    EventName.COMPLETED: frozenset({Status.COMPLETED}),
    EventName.FAILED: frozenset({Status.FAILED}),
    EventName.CANCELLED: frozenset({Status.CANCELLED}),
    EventName.INDETERMINATE: frozenset({Status.INDETERMINATE}),
    EventName.HALT_UNSAFE: frozenset({Status.HALT_UNSAFE}),
    EventName.DEAD_LETTERED: frozenset({Status.DEAD_LETTER}),
    EventName.TIMED_OUT: frozenset({Status.TIMED_OUT}),
    EventName.RETRIED: frozenset({Status.QUEUED}),
    EventName.ADMISSION_CHECKED: _NONE,
    EventName.ESCALATED: _NONE,
    EventName.RECONCILED: frozenset(
        {Status.COMPLETED, Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED, Status.QUEUED}
    ),
    EventName.EXECUTION_CONTROL_SHADOW: _NONE,
    EventName.RELEASED: frozenset({Status.QUEUED}),
    EventName.LEASE_EXPIRED: frozenset({Status.QUEUED}),
    EventName.CANCEL_REQUESTED: _NONE,
    EventName.REVOKED: frozenset({Status.CANCELLED}),
    EventName.SUSPENDED: frozenset({Status.QUEUED}),
    EventName.RESUMED: _NONE,
    EventName.EFFECT_SETTLED: _NONE,
    EventName.EVIDENCE_RECEIVED: _NONE,
    EventName.READMITTED: _NONE,
    EventName.SUSPECTED: _NONE,
    EventName.SUSPICION_CLEARED: _NONE,
}

# What a caller may append by hand: names that say something without implying any status.
APPENDABLE = frozenset({EventName.ADMISSION_CHECKED, EventName.EXECUTION_CONTROL_SHADOW})


@dataclass(frozen=True, slots=True)
class Event:
    """
    One entry of a job's trail.

    Attributes:
        status: The job's status after it, None where the event does not change it.
        actor: Who asked, for what people did; None for workers.
    """

    name: EventName
    at: datetime
    generation: int
    status: Status | None = None
    actor: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


def appendable(name: str) -> EventName:
    """
    Check a name that a caller wants to append.

    Raises:
        Invalid: The name is not in the vocabulary.
        Refused: It is, but it implies a status or is the library's own to write.
    """
    # The enumeration's own error would describe what is no text, however deep it is.
    if not isinstance(name, str) or name not in set(EventName):
        known = ", ".join(sorted(APPENDABLE))
        raise Invalid(f"unknown event name {echo(name)}; append one of: {known}", code="UNKNOWN_EVENT")
    event = EventName(name)
    if event not in APPENDABLE:
        raise Refused(
            f"event {echo(name)} is written by the verb that causes it and cannot be appended", code="EVENT_RESERVED"
        )
    return event
