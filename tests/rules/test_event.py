"""The closed vocabulary of the trail, against a copy of it that was written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.errors import Invalid, Refused
from tenure.rules.event import APPENDABLE, STATUS_AFTER, EventName, appendable
from tenure.rules.job import move, note
from tenure.rules.status import Status
from tests.rules.records import NOW, a_job

VOCABULARY: dict[str, set[str]] = {
    "claimed": {"claimed", "running"},
    "dispatched": {"running"},
    "heartbeat": {"running"},
    "completed": {"completed"},
    "failed": {"failed"},
    "cancelled": {"cancelled"},
    "indeterminate": {"indeterminate"},
    "halt_unsafe": {"halt_unsafe"},
    "dead_lettered": {"dead_letter"},
    "timed_out": {"timed_out"},
    "retried": {"queued"},
    "admission_checked": set(),
    "escalated": set(),
    "reconciled": {"completed", "failed", "dead_letter", "cancelled", "queued"},
    "execution_control_shadow": set(),
    "released": {"queued"},
    "lease_expired": {"queued"},
    "cancel_requested": set(),
    "revoked": {"cancelled"},
    "suspended": {"queued"},
    "resumed": set(),
    "effect_settled": set(),
    "evidence_received": set(),
    "readmitted": set(),
    "suspected": set(),
    "suspicion_cleared": set(),
}


def test_the_vocabulary_is_closed_and_every_name_has_its_statuses() -> None:
    assert {name.value: {status.value for status in STATUS_AFTER[name]} for name in EventName} == VOCABULARY
    # Every status has an event that may leave it behind; creation is the body's own row.
    assert {status for afters in VOCABULARY.values() for status in afters} == {status.value for status in Status}


@pytest.mark.parametrize("name", VOCABULARY)
def test_what_a_caller_may_append(name: str) -> None:
    if name in {"admission_checked", "execution_control_shadow"}:
        assert appendable(name) in APPENDABLE
    else:
        with pytest.raises(Refused) as caught:
            appendable(name)
        assert caught.value.code == "EVENT_RESERVED"


@pytest.mark.parametrize("name", ["", "Claimed", "CLAIMED", "claimed ", "done", None, 7, ["claimed"]])
def test_a_name_outside_of_it_is_invalid(name: Any) -> None:
    with pytest.raises(Invalid) as caught:
        appendable(name)
    assert "admission_checked" in str(caught.value)


def test_a_move_cannot_leave_another_status_than_its_event_says() -> None:
    with pytest.raises(AssertionError):
        move(a_job("running"), Status.FAILED, EventName.COMPLETED, NOW)
    with pytest.raises(AssertionError):
        note(a_job("running"), EventName.COMPLETED, NOW)
    change = move(a_job("running"), Status.FAILED, EventName.FAILED, NOW, actor="op:1", data={"code": "E"})
    (event,) = change.events
    assert (event.status, event.actor, event.data, event.at) == (Status.FAILED, "op:1", {"code": "E"}, NOW)
    assert note(a_job("running"), EventName.ESCALATED, NOW).status is None
