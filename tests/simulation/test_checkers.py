"""The lab's checkers by hand: each says no to what it is for, and yes to the nearest thing that is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tenure.errors import LeaseLost
from tenure.lab import configurations, invariants
from tenure.lab.invariants import Step
from tenure.lab.record import NOW, TICK, first_job
from tenure.rules.authority import Authority
from tenure.rules.effect import Effect, EffectState, Intent, SettledBy, StoredEvidence
from tenure.rules.event import Event, EventName
from tenure.rules.job import Change, Job
from tenure.rules.lease import Lease
from tenure.rules.status import Status

ATTEMPT = UUID(int=1)
KEY = "send_quote:1:send"
LOST = LeaseLost("gone", reason="expired")


def job(status: Status = Status.RUNNING, *effects: Effect, **fields: Any) -> Job:
    return replace(first_job(configurations()["keys"]), status=status, generation=3, effects=effects, **fields)


def effect(state: EffectState = EffectState.PENDING, **fields: Any) -> Effect:
    given: dict[str, Any] = {
        "name": "send",
        "state": state,
        "operation_key": KEY,
        "request_digest": "v1:d",
        "attempt_id": ATTEMPT,
        "generation": 3,
        "created_at": NOW,
        "begun_at": NOW,
        "deadline_at": NOW,
    }
    return Effect(**{**given, **fields})


def to(after: Job, **fields: Any) -> Change:
    return Change(job=after, **fields)


def evidence(kind: str = "accepted") -> StoredEvidence:
    return StoredEvidence(UUID(int=5), KEY, ATTEMPT, kind, "r", None, NOW)


RUNNING, QUEUED = job(), job(Status.QUEUED)
INTENT = (Intent(KEY, ATTEMPT, NOW),)
DOUBTED = effect(EffectState.FAILED_BEFORE_DISPATCH, settled_by=SettledBy.LOOKUP)
OLD_EPOCH = Authority(epoch=2)

# Name, a step that is wrong, a step that is right.
STEPS: list[tuple[str, Step, Step]] = [
    ("I2", Step("renew", RUNNING, to(replace(RUNNING, generation=2))), Step("renew", RUNNING, to(RUNNING))),
    ("I2", Step("claim", QUEUED, to(RUNNING)), Step("claim", QUEUED, to(replace(RUNNING, generation=4)))),
    (
        "I2",
        Step("recover", RUNNING, to(job(Status.INDETERMINATE))),
        Step("recover", RUNNING, to(replace(job(Status.INDETERMINATE), generation=4))),
    ),
    ("I2", Step("revoke", RUNNING, to(job(Status.CANCELLED))), Step("recover", RUNNING, to(QUEUED))),
    ("I3", Step("renew", RUNNING, to(RUNNING), own=0), Step("renew", RUNNING, to(RUNNING), own=1)),
    (
        "I3",
        Step("finish", RUNNING, to(job(Status.FAILED), error=LOST), own=0),
        Step("finish", RUNNING, to(RUNNING, error=LOST), own=0),
    ),
    ("I3", Step("submit", RUNNING, to(job(Status.COMPLETED))), Step("submit", RUNNING, to(RUNNING))),
    (
        "I3",
        Step("answer", job(Status.RUNNING, effect()), to(job(Status.RUNNING, effect(EffectState.SUCCEEDED)))),
        Step("answer", job(Status.INDETERMINATE, effect()), to(job(Status.COMPLETED, effect(EffectState.SUCCEEDED)))),
    ),
    ("I4", Step("retry", job(Status.DEAD_LETTER), to(QUEUED)), Step("retry", job(Status.FAILED), to(QUEUED))),
    ("I4", Step("state", job(Status.HALT_UNSAFE), to(QUEUED)), Step("state", job(Status.TIMED_OUT), to(QUEUED))),
    ("I4", Step("answer", job(Status.TIMED_OUT), to(QUEUED)), Step("answer", job(Status.INDETERMINATE), to(QUEUED))),
    (
        "I4",
        Step("complete", job(Status.CLAIMED), to(job(Status.COMPLETED))),
        Step("complete", RUNNING, to(job(Status.COMPLETED))),
    ),
    ("I4", Step("fail", QUEUED, to(job(Status.FAILED))), Step("cancel", QUEUED, to(job(Status.CANCELLED)))),
    ("I5", Step("send", RUNNING, intended=False), Step("send", RUNNING)),
    (
        "I5",
        Step("begin", job(Status.RUNNING, effect(EffectState.UNKNOWN)), to(RUNNING, intents=INTENT)),
        Step("begin", job(Status.RUNNING, DOUBTED), to(RUNNING, intents=INTENT)),
    ),
    (
        "I5",
        Step("begin", job(Status.RUNNING, effect(operation_key="other")), to(RUNNING, intents=INTENT)),
        Step(
            "begin",
            job(Status.RUNNING, effect(EffectState.REJECTED, operation_key="other")),
            to(RUNNING, intents=INTENT),
        ),
    ),
    ("I6", Step("", RUNNING, acts=2), Step("", RUNNING, acts=1)),
    (
        "I7",
        Step("recover", RUNNING, to(job(Status.QUEUED, effect()))),
        Step("recover", RUNNING, to(job(Status.QUEUED, DOUBTED))),
    ),
    (
        "I7",
        Step("retry", job(Status.FAILED), to(job(Status.QUEUED, effect(EffectState.CLOSED, name="")))),
        Step("retry", job(Status.FAILED), to(job(Status.QUEUED, effect(EffectState.REJECTED)))),
    ),
    (
        "I7",
        Step("release", RUNNING, to(job(Status.QUEUED, cancel_requested_at=NOW))),
        Step("release", RUNNING, to(QUEUED)),
    ),
    ("I7", Step("claim", QUEUED, to(job(Status.RUNNING, effect()))), Step("claim", QUEUED, to(RUNNING))),
    (
        "I9",
        Step("fail", RUNNING, to(job(Status.FAILED))),
        Step("fail", RUNNING, to(job(Status.FAILED), events=(Event(EventName.FAILED, NOW, 3, Status.FAILED),))),
    ),
    (
        "I9",
        Step("fail", RUNNING, to(job(Status.FAILED), events=(Event(EventName.RETRIED, NOW, 3, Status.QUEUED),))),
        Step("renew", RUNNING, to(RUNNING, events=(Event(EventName.HEARTBEAT, NOW, 3),))),
    ),
    (
        "I11",
        Step("begin", job(authority=OLD_EPOCH), to(RUNNING)),
        Step("begin", job(authority=OLD_EPOCH), refused="EpochClosed: epoch"),
    ),
    (
        "I11",
        Step("publish", job(authority=Authority(database_frozen=True)), to(RUNNING)),
        Step("renew", job(authority=Authority(database_frozen=True)), to(RUNNING)),
    ),
    (
        "I12",
        Step("complete", RUNNING, refused="LeaseLost: expired", own=1),
        Step("complete", RUNNING, refused="LeaseLost: expired", own=0),
    ),
    (
        "I12",
        Step("renew", RUNNING, refused="EpochClosed: epoch", own=2),
        Step("renew", job(authority=OLD_EPOCH), refused="EpochClosed: epoch", own=2),
    ),
    (
        "cancellation",
        Step("begin", job(cancel_requested_at=NOW), to(RUNNING)),
        Step("begin", job(cancel_requested_at=NOW), refused="CancelRequested"),
    ),
    (
        "cancellation",
        Step("complete", job(cancel_requested_at=NOW), to(job(Status.COMPLETED))),
        Step(
            "complete",
            job(Status.RUNNING, effect(EffectState.SUCCEEDED), cancel_requested_at=NOW),
            to(job(Status.COMPLETED)),
        ),
    ),
    (
        "completion",
        Step("complete", RUNNING, to(job(Status.COMPLETED, effect(EffectState.UNKNOWN)))),
        Step("complete", RUNNING, to(job(Status.INDETERMINATE, effect(EffectState.UNKNOWN)))),
    ),
    (
        "completion",
        Step("fail", RUNNING, to(job(Status.FAILED, effect()))),
        Step("fail", RUNNING, to(job(Status.FAILED, DOUBTED))),
    ),
    ("absence", Step("", job(Status.QUEUED, DOUBTED), acted_in_time=True), Step("", job(Status.QUEUED, DOUBTED))),
    (
        "absence",
        Step("", job(Status.QUEUED, replace(DOUBTED, settled_by=SettledBy.EVIDENCE)), acted_in_time=True),
        Step("", job(Status.QUEUED, replace(DOUBTED, settled_by=SettledBy.OUTCOME)), acted_in_time=True),
    ),
    (
        "refusal",
        Step("", job(Status.FAILED, effect(EffectState.REJECTED)), acted_in_time=True),
        Step("", job(Status.FAILED, effect(EffectState.REJECTED))),
    ),
    (
        "contradiction",
        Step("submit", job(Status.QUEUED, DOUBTED), to(job(Status.QUEUED, DOUBTED), evidence=(evidence(),))),
        Step(
            "submit",
            job(Status.QUEUED, DOUBTED),
            to(job(Status.QUEUED, DOUBTED, escalated_at=NOW), evidence=(evidence(),)),
        ),
    ),
    (
        "contradiction",
        Step("submit", QUEUED, to(QUEUED, evidence=(evidence(),))),
        Step("submit", QUEUED, to(QUEUED, evidence=(evidence("declined"),))),
    ),
    (
        "assertion",
        Step("claim", QUEUED, refused="AssertionError: a job with an open boundary is never queued"),
        Step("claim", QUEUED, refused="IllegalMove"),
    ),
]


@pytest.mark.parametrize("number", range(len(STEPS)))
def test_a_checker_tells_wrong_from_right(number: int) -> None:
    name, wrong, right = STEPS[number]
    check = invariants.INVARIANTS[name].check
    assert check(wrong)
    assert check(right) is None
    assert name in dict(invariants.broken(wrong))
    assert name not in dict(invariants.broken(right))


def test_every_checker_is_tried_and_says_what_it_is_for() -> None:
    assert {name for name, _, _ in STEPS} == set(invariants.INVARIANTS)
    for known in invariants.INVARIANTS.values():
        assert known.promise.endswith(".")


@pytest.mark.parametrize("owners,wrong", [(0, False), (1, False), (2, True)])
def test_two_owners_of_one_lease_are_one_too_many(owners: int, wrong: bool) -> None:
    assert bool(invariants.one_live_lease(owners)) is wrong


def held(left: int, **fields: Any) -> Job:
    return job(lease=Lease(UUID(int=9), "A", ATTEMPT, 3, NOW + left * TICK, TICK), **fields)


@pytest.mark.parametrize("left", [-1, 0, 1])
def test_a_lease_is_live_or_its_job_may_be_taken(left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert invariants.live_or_claimable(held(left), NOW) is None

    def shifted(by: timedelta) -> Callable[[Lease, Any], bool]:
        return lambda lease, now: now + by < lease.expires_at

    monkeypatch.setattr(invariants.moves, "live", shifted(timedelta(0)))
    monkeypatch.setattr(invariants.lease, "live", shifted(-TICK))
    both = invariants.live_or_claimable(held(left), NOW)
    monkeypatch.setattr(invariants.lease, "live", shifted(TICK))
    neither = invariants.live_or_claimable(held(left), NOW)
    assert (bool(both), bool(neither)) == {-1: (False, False), 0: (True, False), 1: (False, True)}[left]


def test_on_a_frozen_database_nobody_takes_anything() -> None:
    assert invariants.live_or_claimable(held(-1, authority=Authority(database_frozen=True)), NOW) is None
