"""
What one transaction does: the rules it asks, in the order in which the procedures ask them.

Each function is given what a procedure has after its lock (the record, the evidence kept for it, the store's clock) and
gives back the changes that the commit would write. Everything that decides is called in `tenure.rules`, through the
module, so that a rule replaced there is replaced here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

from tenure.errors import IllegalMove, LeaseLost
from tenure.lab.record import ATTEMPTS, BARE_KEY, DIGEST, EFFECT_NAME, NEW, Stored
from tenure.rules import dispatch, lease, moves, reconcile
from tenure.rules import recover as suspects
from tenure.rules.effect import Effect, StoredEvidence
from tenure.rules.job import Change, Job, find_effect
from tenure.rules.lease import Lease
from tenure.rules.outcome import Evidence, FailedBeforeDispatch, Outcome, Terms

NEW_EVIDENCE = UUID(int=0x57)


@dataclass(frozen=True, slots=True)
class Locked:
    """
    What a transaction sees after its lock.

    Attributes:
        stored: The evidence kept for the job, oldest first.
        now: The clock that the fence is asked at.
        worker: Name of the worker that asks, where one does.
    """

    job: Job
    stored: Stored
    now: datetime
    lease: Lease | None = None
    worker: str = ""
    attempt: UUID = ATTEMPTS[NEW]
    terms: Terms | None = None
    timeout: timedelta = timedelta(0)
    start: bool = True
    patient: bool = False

    @property
    def held(self) -> Lease:
        """The lease that the worker presents."""
        assert self.lease is not None
        return self.lease


@dataclass(frozen=True, slots=True)
class Asked:
    """A sweep has come to a question for the provider."""

    effect: Effect


Changes: TypeAlias = "tuple[Change | Asked, ...]"
Transaction: TypeAlias = Callable[..., Changes]


def claim(seen: Locked) -> Changes:
    """Take the job."""
    return (moves.claim(seen.job, seen.worker, seen.attempt, seen.now, start=seen.start),)


def renew(seen: Locked) -> Changes:
    """Extend the lease."""
    return (moves.renew(seen.job, seen.held, seen.now),)


def complete(seen: Locked) -> Changes:
    """Finish the job."""
    return (moves.complete(seen.job, seen.held, "done", seen.now),)


def fail(seen: Locked, retryable: bool) -> Changes:  # noqa: FBT001 - part of a recorded action
    """End the attempt by an error."""
    return (moves.fail(seen.job, seen.held, "E", "it did not work", seen.now, retryable=retryable),)


def end(seen: Locked, how: str) -> Changes:
    """End the attempt by one of the explicit statements."""
    rule = {"halt": moves.mark_halt_unsafe, "time_out": moves.time_out, "mark": moves.mark_indeterminate}[how]
    return (rule(seen.job, seen.held, "E", "the handler said so", seen.now),)


def release(seen: Locked) -> Changes:
    """Give the job back."""
    return (moves.release(seen.job, seen.held, "shutdown", seen.now),)


def acknowledge(seen: Locked) -> Changes:
    """Stop because of a cancellation."""
    return (moves.acknowledge_cancellation(seen.job, seen.held, seen.now),)


def begin(seen: Locked, resend: bool) -> Changes:  # noqa: FBT001 - part of a recorded action
    """Commit the intent."""
    assert seen.terms is not None
    change = dispatch.begin(seen.job, seen.held, EFFECT_NAME, DIGEST, seen.terms, seen.timeout, seen.now, resend=resend)
    return (change,)


def mark(seen: Locked) -> Changes:
    """Commit the bare dispatch mark."""
    return (dispatch.mark(seen.job, seen.held, BARE_KEY, seen.now),)


def finish(seen: Locked, key: str, outcome: Outcome) -> Changes:
    """
    Commit how the call ended; what a refused one has proved is stored in the same transaction.

    Args:
        key: What the call was made under; its intent is committed.
    """
    try:
        return (dispatch.finish(seen.job, seen.held, EFFECT_NAME, outcome, seen.stored, seen.now),)
    except (LeaseLost, IllegalMove) as refused:
        effect = find_effect(seen.job, EFFECT_NAME)
        evidence = None if effect is None else dispatch.evidence_of(outcome, effect)
        if evidence is None:
            raise
        change = _received(seen, key, seen.held.attempt_id, evidence, refused)
        if isinstance(refused, IllegalMove) and not any(one.contradicts for one in change.evidence):
            raise
        return (change,)


def submit(seen: Locked, key: str, attempt: UUID, evidence: Evidence | FailedBeforeDispatch) -> Changes:
    """Hand in what a call has proved, without a lease."""
    return (_received(seen, key, attempt, evidence),)


def _received(
    seen: Locked,
    key: str,
    attempt: UUID,
    evidence: Evidence | FailedBeforeDispatch,
    error: LeaseLost | IllegalMove | None = None,
) -> Change:
    record = dispatch.stored_evidence(NEW_EVIDENCE, key, attempt, evidence, seen.now)
    disputed = any(one.contradicts for one in seen.stored)
    return dispatch.receive(seen.job, key, attempt, record, seen.now, error=error, disputed=disputed)


def hear(seen: Locked, evidence: Evidence, asked_at: datetime) -> Changes:
    """Apply what the provider said about an intent that a begin on a suspect job has put in doubt."""
    answered = suspects.answer(
        seen.job, seen.held, EFFECT_NAME, evidence, seen.now, asked_at=asked_at, stored=seen.stored
    )
    return (answered,)


def publish(seen: Locked) -> Changes:
    """One of the two checks around a caller's own writes."""
    lease.check_fence(seen.job, seen.held, seen.now)
    moves.refuse_cancelled(seen.job)
    return (Change(job=seen.job),)


def write(seen: Locked) -> Changes:
    """A caller's writes committed without a second check; only broken variants do that."""
    return (Change(job=seen.job),)


def recover(seen: Locked) -> Changes:
    """Settle a lease that has ended."""
    change = moves.recover(seen.job, seen.now)
    return () if change is None else (change,)


def cancel(seen: Locked) -> Changes:
    """Ask for a cancellation."""
    return (moves.cancel(seen.job, "not wanted", seen.now),)


def revoke(seen: Locked) -> Changes:
    """Take the job away."""
    return (moves.revoke(seen.job, "not wanted", seen.now, actor="operator"),)


def retry(seen: Locked, reopen: tuple[str, ...]) -> Changes:
    """Queue a failed job again."""
    return (moves.retry(seen.job, seen.now, actor="operator", attempts=1, reopen=reopen),)


def resume(seen: Locked) -> Changes:
    """Let sweeps look again."""
    return (reconcile.resume_sweep(seen.job, seen.now, actor="operator"),)


def state(seen: Locked, key: str | None, evidence: Evidence) -> Changes:
    """Settle by a person's statement."""
    change = reconcile.state_fact(
        seen.job,
        evidence,
        NEW_EVIDENCE,
        seen.now,
        key=key,
        actor="operator",
        reason="looked at the provider",
        stored=seen.stored,
    )
    return (change,)


def sweep(seen: Locked) -> Changes:
    """All that a sweep does before it has to ask."""
    job = seen.job
    stored = [record for record in seen.stored if not record.used]
    done: list[Change | Asked] = []
    while True:
        step = reconcile.assess(job, stored, seen.now, patient=seen.patient)
        if isinstance(step, reconcile.Ask):
            return (*done, Asked(step.effect))
        if isinstance(step, reconcile.Leave):
            return tuple(done)
        change: Change | None
        if isinstance(step, reconcile.Recover):
            change = moves.recover(job, seen.now)
            assert change is not None, "assess saw an expired lease"
        elif isinstance(step, reconcile.Settle):
            change = reconcile.settle_stored(job, step.effect, step.evidence, seen.now, seen.stored)
            stored = [record for record in stored if record.id != step.evidence.id]
        else:
            change = reconcile.escalate(job, step.reason, seen.now)
        done.append(change)
        job = change.job
        more = isinstance(step, reconcile.Settle) and any(e.is_open for e in job.effects)
        if not isinstance(step, reconcile.Recover) and not more:
            return tuple(done)


def answer(seen: Locked, key: str, attempt: UUID, evidence: Evidence, asked_at: datetime) -> Changes:
    """Apply what the provider said about one intent."""
    asked = replace(seen.job.effects[0], operation_key=key, attempt_id=attempt)
    effect = reconcile.answered(seen.job, asked)
    if effect is None:
        return ()
    change = reconcile.judge(
        seen.job, effect, evidence, seen.now, asked_at=asked_at, patient=seen.patient, stored=seen.stored
    )
    return (change,)


TRANSACTIONS: Mapping[str, Transaction] = {
    function.__name__: function
    for function in (
        claim,
        renew,
        complete,
        fail,
        end,
        release,
        acknowledge,
        begin,
        mark,
        finish,
        hear,
        submit,
        publish,
        write,
        recover,
        cancel,
        revoke,
        retry,
        resume,
        state,
        sweep,
        answer,
    )
}


def kept(stored: Stored, changes: Changes) -> Stored:
    """The evidence after a commit: changed records in their place, new ones at the end."""
    after = list(stored)
    for change in changes:
        if isinstance(change, Change):
            for record in change.evidence:
                _keep(after, record)
    return tuple(after)


def _keep(stored: list[StoredEvidence], record: StoredEvidence) -> None:
    for place, known in enumerate(stored):
        if known.id == record.id:
            stored[place] = record
            return
    stored.append(record)


def last(job: Job, changes: Changes) -> Job:
    """The record after a commit."""
    for change in reversed(changes):
        if isinstance(change, Change):
            return change.job
    return job


def answers(changes: Changes) -> Any:
    """What the verb gives back beside the job."""
    return next((change.answer for change in changes if isinstance(change, Change)), None)
