"""Suspicion as values: what is in doubt, when a lost call was over, and what still needs evidence."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tenure.errors import IllegalMove
from tenure.rules import recover
from tenure.rules.effect import Effect, EffectState, SettledBy
from tenure.rules.job import Job, Options
from tenure.rules.outcome import Absent, Accepted, Terms
from tenure.rules.status import Status
from tenure.rules.suspicion import FINAL, Suspicion, may_count_later
from tests.rules.records import NOW, a_job

HOUR = timedelta(hours=1)
TERMS = Terms("mailer", honours_key=True, retention=timedelta(hours=24), lookup_complete=True, settles_within=HOUR)
MARK = Suspicion(marked_at=NOW, since=NOW - 5 * HOUR, generation=3)


def effect(**fields: Any) -> Effect:
    given: dict[str, Any] = {
        "name": "send",
        "state": EffectState.FAILED_BEFORE_DISPATCH,
        "operation_key": "k:j:send",
        "request_digest": "v1:x",
        "attempt_id": UUID(int=1),
        "generation": 3,
        "created_at": NOW - 7 * HOUR,
        "begun_at": NOW - 7 * HOUR,
        "deadline_at": NOW - 6 * HOUR,
        "terms": TERMS,
        "settled_by": SettledBy.OUTCOME,
    }
    return Effect(**{**given, **fields})


def test_what_was_begun_under_a_later_generation_is_known_whatever_the_clock_says() -> None:
    assert MARK.doubts(None)
    assert MARK.doubts(effect())
    # A clock that is behind: the record of before looks younger than the mark.
    assert MARK.doubts(effect(begun_at=NOW + 9 * HOUR))
    assert not MARK.doubts(effect(generation=4, begun_at=NOW - 9 * HOUR))


@pytest.mark.parametrize(("timeout", "lease", "longest"), [(1, 2, 2), (3, 2, 3)])
def test_a_lost_call_is_over_after_the_longer_of_timeout_and_lease(timeout: int, lease: int, longest: int) -> None:
    assert MARK.over_at(timeout * HOUR, lease * HOUR, None) == NOW + longest * HOUR
    known = effect(deadline_at=NOW + 8 * HOUR)
    assert MARK.over_at(timeout * HOUR, lease * HOUR, known) == NOW + 8 * HOUR


def test_the_key_may_be_as_old_as_the_copy_or_its_first_record() -> None:
    assert MARK.first_at(None) == NOW - 5 * HOUR
    assert MARK.first_at(effect()) == NOW - 7 * HOUR
    # A reopened one has a new key, which is no older than the copy.
    assert MARK.first_at(effect(request_digest="")) == NOW - 5 * HOUR


@pytest.mark.parametrize(
    ("terms", "now", "later"),
    [
        (TERMS, NOW, True),
        (None, NOW, False),
        (replace(TERMS, lookup_complete=False), NOW, False),
        (replace(TERMS, honours_key=False), NOW, False),
        (replace(TERMS, retention=None), NOW, False),
        (TERMS, NOW + 20 * HOUR, False),
    ],
)
def test_an_absence_that_will_count_is_not_a_persons_matter(terms: Terms | None, now: Any, later: bool) -> None:
    lost = effect(state=EffectState.UNKNOWN, deadline_at=NOW + HOUR, created_at=NOW - 5 * HOUR)
    assert may_count_later(lost, terms, now) is later


def suspect(status: Status = Status.QUEUED, **fields: Any) -> Job:
    return replace(a_job(), status=status, suspicion=MARK, **fields)


@pytest.mark.parametrize("status", Status)
def test_a_final_job_is_not_suspect_any_more(status: Status) -> None:
    job = suspect(status=status)
    assert job.suspect is (status not in FINAL)
    if job.suspect:
        cleared = recover.clear(job, NOW, actor="user:7", reason="looked")
        assert not cleared.job.suspect
        assert [(event.name, event.actor) for event in cleared.events] == [("suspicion_cleared", "user:7")]
    else:
        with pytest.raises(IllegalMove):
            recover.clear(job, NOW, actor="user:7", reason="looked")


def test_what_is_asked_before_a_worker_comes_and_what_is_not() -> None:
    operation = recover.Operation("send", TERMS)
    (asked,) = recover.askable(suspect(), [operation])
    assert (asked.operation_key, asked.created_at) == (f"{a_job().kind}:{a_job().id}:send", MARK.since)
    assert len(recover.askable(suspect(effects=(effect(),)), [operation])) == 1
    for known in (
        effect(generation=4),
        effect(state=EffectState.SUCCEEDED),
        effect(state=EffectState.REJECTED),
        effect(state=EffectState.UNKNOWN),
    ):
        assert recover.askable(suspect(effects=(known,)), [operation]) == []
    assert recover.askable(suspect(status=Status.RUNNING), [operation]) == []
    assert recover.askable(a_job(), [operation]) == []
    assert recover.found(suspect(), asked, Absent(), NOW) is None
    settled = recover.found(suspect(), asked, Accepted("r"), NOW)
    assert settled is not None
    assert not MARK.doubts(settled.effects[0])
    assert recover.found(settled.job, asked, Accepted("r"), NOW) is None


def test_each_declared_provider_of_which_nothing_is_known_needs_evidence() -> None:
    options = Options(providers=("mailer", "printer"))
    needs = recover.needs(suspect(options=options))
    assert [(need.provider, need.operation_key) for need in needs] == [("mailer", None), ("printer", None)]
    known = effect(generation=4, state=EffectState.SUCCEEDED)
    assert [need.provider for need in recover.needs(suspect(options=options, effects=(known,)))] == ["printer"]
    (only,) = recover.needs(suspect())
    assert "declares no providers" in only.why
    assert recover.needs(suspect(effects=(known,))) == []
    assert recover.needs(a_job()) == []
