"""
The ten statuses, the one transition table, and its named exceptions.

`TRANSITIONS` holds the moves of ordinary commands; a terminal status has none. `EXCEPTIONS` holds the few commands that
may move a job out of a terminal status. Nothing else in the package decides whether a status may follow another; the
reference page and its diagram are made from these two dicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Status(StrEnum):
    """What is stored."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEAD_LETTER = "dead_letter"
    INDETERMINATE = "indeterminate"
    HALT_UNSAFE = "halt_unsafe"
    TIMED_OUT = "timed_out"


class Phase(StrEnum):
    """What people see; derived from the record, never stored."""

    READY = "READY"
    LEASED = "LEASED"
    WAITING_EXTERNAL = "WAITING_EXTERNAL"
    WAITING_REVIEW = "WAITING_REVIEW"
    HELD = "HELD"
    DONE = "DONE"
    NEEDS_ATTENTION = "NEEDS_ATTENTION"


LIVE = frozenset({Status.CLAIMED, Status.RUNNING})
TERMINAL = frozenset(Status) - LIVE - {Status.QUEUED}

_OUTCOMES = frozenset(
    {
        Status.QUEUED,
        Status.FAILED,
        Status.CANCELLED,
        Status.DEAD_LETTER,
        Status.INDETERMINATE,
        Status.HALT_UNSAFE,
        Status.TIMED_OUT,
    }
)

TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset({Status.CLAIMED, Status.CANCELLED}),
    Status.CLAIMED: _OUTCOMES | {Status.RUNNING},
    Status.RUNNING: _OUTCOMES | {Status.COMPLETED},
    **{status: frozenset() for status in TERMINAL},
}

_RECONCILED = frozenset({Status.COMPLETED, Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED, Status.QUEUED})

EXCEPTIONS: Mapping[str, Mapping[Status, frozenset[Status]]] = {
    "retry_job": {Status.FAILED: frozenset({Status.QUEUED})},
    "reconcile_dispatched": {Status.INDETERMINATE: _RECONCILED, Status.TIMED_OUT: _RECONCILED},
}


def may_move(before: Status, after: Status, command: str | None = None) -> bool:
    """Say whether a status may follow another, by ordinary commands or by the named exception."""
    if after in TRANSITIONS[before]:
        return True
    return command is not None and after in EXCEPTIONS.get(command, {}).get(before, frozenset())
