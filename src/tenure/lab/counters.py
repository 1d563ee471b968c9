"""
What an exploration has to have seen: a promise that was never put to the test is not kept, only untouched.

Each counter says in how many states something could happen. An expected counter that stays zero fails a run.
"""

from __future__ import annotations

from tenure.rules.effect import EffectState, SettledBy
from tenure.rules.event import EventName
from tenure.rules.job import Change, Job

COUNTERS = (
    "stale write refused",
    "current write accepted",
    "stale publish refused",
    "job reclaimed",
    "lease expired after dispatch",
    "unknown effect",
    "settled by look-up",
    "settled by evidence",
    "settled by statement",
    "absence counted",
    "absence not counted",
    "resumed",
    "receipt read instead of sending",
    "duplicate prevented by key",
    "request sent too late",
    "late receipt kept",
    "receipt kept in the journal",
    "contradiction escalated",
    "escalated",
    "second begin refused",
    "cancelled",
    "cancellation refused work",
    "revoked",
    "dead letter",
    "completed",
    "published",
    "held work refused",
    "retried by a person",
    "retry refused as uncertain",
    "rejected effect reopened",
    "sent again in the attempt",
    "key forgotten by the provider",
    "asked before sending",
    "lost effect found",
    "never sent, and sent once",
)
BIT = {name: 1 << number for number, name in enumerate(COUNTERS)}
BESIDE = "current write accepted beside a refused stale one"


def tags_of(before: Job, changes: tuple[Change, ...]) -> int:  # noqa: C901 - a list of what counts
    """Which of the counters a commit moves."""
    tags = 0
    for change in changes:
        for event in change.events:
            tags |= _EVENT_TAGS.get(event.name, 0)
            if event.status is not None:
                tags |= _STATUS_TAGS.get(event.status.value, 0)
            if event.name is EventName.INDETERMINATE and "expired_at" in event.data:
                tags |= BIT["lease expired after dispatch"]
            if event.name is EventName.RECONCILED and event.status is not None and event.status.value == "queued":
                tags |= BIT["resumed"]
        for effect in change.effects:
            if effect.state is EffectState.UNKNOWN:
                tags |= BIT["unknown effect"]
            known = next((e for e in before.effects if e.name == effect.name), None)
            if known is None or not (known.is_open or known.state is EffectState.CLOSED) or effect.is_open:
                continue
            tags |= _SETTLED_TAGS.get(effect.settled_by, 0) if effect.settled_by else 0
            if effect.state is EffectState.FAILED_BEFORE_DISPATCH and effect.settled_by is SettledBy.LOOKUP:
                tags |= BIT["absence counted"]
        if any(record.contradicts for record in change.evidence):
            tags |= BIT["contradiction escalated"]
        before = change.job
    return tags


_EVENT_TAGS = {
    EventName.ESCALATED: BIT["escalated"],
    EventName.REVOKED: BIT["revoked"],
    EventName.CANCELLED: BIT["cancelled"],
    EventName.EVIDENCE_RECEIVED: BIT["late receipt kept"],
}
_STATUS_TAGS = {"dead_letter": BIT["dead letter"], "completed": BIT["completed"]}
_SETTLED_TAGS = {
    SettledBy.LOOKUP: BIT["settled by look-up"],
    SettledBy.EVIDENCE: BIT["settled by evidence"],
    SettledBy.STATEMENT: BIT["settled by statement"],
}
