"""Records for the tests of rules: a job in any status, made without any store."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from tenure.rules.effect import MARK, Effect, EffectState, SettledBy
from tenure.rules.job import Job
from tenure.rules.lease import Lease
from tenure.rules.outcome import Terms
from tenure.rules.status import LIVE, TERMINAL, Status

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
JOB_ID = UUID("01900000-0000-7000-8000-000000000001")
ATTEMPT = UUID("01900000-0000-7000-8000-00000000000a")
TERMS = Terms("mailer", honours_key=True, retention=timedelta(hours=24), lookup_complete=True)
LEASE = Lease(JOB_ID, "A", ATTEMPT, 1, NOW + timedelta(seconds=60), timedelta(seconds=60))
ENVELOPE = {
    "tenant": "acme",
    "organization": "acme",
    "project": "p1",
    "job": str(JOB_ID),
    "actor": "user:42",
    "trace": "t-1",
}
_ERROR = {Status.FAILED, Status.DEAD_LETTER, Status.INDETERMINATE, Status.HALT_UNSAFE, Status.TIMED_OUT}


def a_job(status: Status | str = Status.RUNNING, *effects: Effect, **fields: Any) -> Job:
    """Make a job as a store would give it back."""
    status = Status(status)
    given: dict[str, Any] = {
        "id": JOB_ID,
        "tenant": "acme",
        "organization": "acme",
        "project": "p1",
        "idempotency_key": "k-1",
        "kind": "send_quote",
        "payload": {"quote": 17, "execution": ENVELOPE},
        "scheduled_at": NOW - timedelta(hours=1),
        "created_at": NOW - timedelta(hours=1),
        "run_at": NOW - timedelta(hours=1),
        "status": status,
        "effects": effects,
    }
    if status is not Status.QUEUED:
        given |= {"attempt_count": 1, "generation": 1}
    if status in LIVE:
        given |= {"lease": LEASE, "claimed_at": NOW}
    if status in TERMINAL:
        given["finished_at"] = NOW
    if status in _ERROR:
        given |= {"error_code": "E", "error_message": "m"}
    return Job(**{**given, **fields})


def an_effect(state: EffectState | str = EffectState.PENDING, *, name: str = "send", **fields: Any) -> Effect:
    """Make an effect of that job; the bare mark with name=''."""
    state = EffectState(state)
    settled = state not in {EffectState.PENDING, EffectState.UNKNOWN}
    given: dict[str, Any] = {
        "name": name,
        "state": state,
        "operation_key": "own:17" if name == MARK else f"send_quote:{JOB_ID}:{name}",
        "request_digest": "" if name == MARK else "v1:one",
        "attempt_id": ATTEMPT,
        "generation": 1,
        "created_at": NOW,
        "begun_at": NOW,
        "deadline_at": NOW + timedelta(seconds=30),
        "terms": None if name == MARK else TERMS,
        "receipt": {"id": "r-1"} if state is EffectState.SUCCEEDED else None,
        "reason": "no" if state in {EffectState.REJECTED, EffectState.FAILED_BEFORE_DISPATCH} else None,
        "settled_at": NOW if settled else None,
        "settled_by": SettledBy.OUTCOME if settled else None,
    }
    return Effect(**{**given, **fields})


def a_mark(state: EffectState | str = EffectState.PENDING, **fields: Any) -> Effect:
    return an_effect(state, name=MARK, **fields)


def cancelling(job: Job) -> Job:
    """The same job with a pending cancellation."""
    return replace(job, cancel_requested_at=NOW, cancel_reason="enough")


def everything() -> list[Job]:
    """Every status with every kind of business that the rules allow in it."""
    mixes: list[tuple[Effect, ...]] = [
        (),
        *[(an_effect(state),) for state in EffectState if state is not EffectState.CLOSED],
        *[(a_mark(state),) for state in EffectState],
        (an_effect(EffectState.SUCCEEDED), an_effect(name="second")),
        (an_effect(), a_mark()),
    ]
    jobs = []
    for status in Status:
        for mix in mixes:
            open_ = any(effect.is_open for effect in mix)
            if open_ and status in {Status.QUEUED, Status.COMPLETED}:
                continue
            job = a_job(status, *mix)
            jobs.append(job)
            if status in LIVE:
                jobs.append(cancelling(job))
                jobs.append(replace(job, lease=replace(LEASE, expires_at=NOW)))
                jobs.append(cancelling(replace(job, lease=replace(LEASE, expires_at=NOW))))
                jobs.append(replace(job, attempt_count=3))
            elif status in {Status.FAILED, Status.INDETERMINATE, Status.TIMED_OUT}:
                jobs.append(cancelling(job))
                jobs.append(replace(job, escalated_at=NOW, escalation_reason="ask somebody"))
    return jobs
