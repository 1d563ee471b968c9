"""
One function per move of a job: what its lease's holder, a claimer, the recovery pass and an operator may ask.

Every function is given the record as it was locked and the store's clock, and either gives back a `Change` or raises.
What may happen to effects is in `dispatch.py`, what evidence does is in `reconcile.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tenure.errors import CancelRequested, IllegalMove, Invalid, Uncertain
from tenure.rules.bounds import check_whole
from tenure.rules.effect import MARK, Effect, EffectState, SettledBy, operation_key
from tenure.rules.event import EventName
from tenure.rules.job import PAUSED, Change, Job, find_effect, illegal, move, note, open_boundary, open_named
from tenure.rules.lease import Lease, check_fence, live
from tenure.rules.payload import clean_text, encode_result
from tenure.rules.retry import backoff, jitter, window_ended
from tenure.rules.status import LIVE, Status

CODE_MAX = 100
REASON_BYTES_MAX = 200
WORKER_LOST = "WORKER_LOST"
LEASE_EXPIRED = "LEASE_EXPIRED_AFTER_DISPATCH"
GRANT_MAX = 10_000  # attempts that one retry may grant
UNRESOLVED = "EFFECT_UNRESOLVED"


# --- claiming and recovery --------------------------------------------------------------------------------------------


def eligible(job: Job, now: datetime) -> bool:
    """Say whether a claim may take this job; the oracle that the claim's SQL is held to."""
    return (
        job.status is Status.QUEUED
        and job.run_at <= now
        and job.cancel_requested_at is None
        and job.authority.admits(job.epoch)
        and job.parked != PAUSED
    )


def order(job: Job) -> tuple[Any, ...]:
    """Sort key of a queue: priority descending, then time, then creation."""
    return (-job.priority, job.run_at, job.id)


def claim(
    job: Job, worker_id: str, attempt_id: UUID, now: datetime, *, start: bool = False, duration: timedelta | None = None
) -> Change:
    """
    Take an eligible job.

    Args:
        start: Become running in the same step.
        duration: The lease's length; the job's own when None.
    """
    if not eligible(job, now):
        raise illegal(job, "be claimed")
    length = duration or job.lease_duration
    generation = job.generation + 1
    claimed = move(
        job,
        Status.CLAIMED,
        EventName.CLAIMED,
        now,
        data={"worker": worker_id, "attempt": job.attempt_count + 1, "attempt_id": str(attempt_id)},
        lease=Lease(job.id, worker_id, attempt_id, generation, now + length, length),
        claimed_at=now,
        generation=generation,
        attempt_count=job.attempt_count + 1,
        parked=None,
    )
    if not start:
        return claimed
    # One step, two moves of the table: the event says where it ended.
    return replace(
        claimed,
        job=replace(claimed.job, status=Status.RUNNING),
        events=(replace(claimed.events[0], status=Status.RUNNING),),
    )


def recover(job: Job, now: datetime) -> Change | None:
    """
    Settle a claimed job whose lease has ended; None while it is live.

    An open boundary makes it indeterminate, a pending cancellation cancelled, a used-up budget dead; else it may be
    claimed again. The generation rises here only where the status becomes terminal: the next claim raises it itself.
    """
    if job.status not in LIVE or job.lease is None or live(job.lease, now) or job.authority.frozen:
        return None
    data = {"worker": job.lease.worker_id, "expired_at": job.lease.expires_at.isoformat()}
    raised = job.generation + 1
    if open_boundary(job):
        return move(
            job,
            Status.INDETERMINATE,
            EventName.INDETERMINATE,
            now,
            data={**data, "code": LEASE_EXPIRED},
            generation=raised,
            error_code=LEASE_EXPIRED,
            error_message="the worker's lease ended after a call was begun; nobody knows yet whether it arrived",
        )
    if job.cancel_requested_at is not None:
        return move(job, Status.CANCELLED, EventName.CANCELLED, now, data=data, generation=raised)
    lost = f"the worker was lost in attempt {job.attempt_count} of {job.max_attempts}"
    if job.attempt_count >= job.max_attempts or window_ended(job.created_at, now, job.options.recovery_window):
        return move(
            job,
            Status.DEAD_LETTER,
            EventName.DEAD_LETTERED,
            now,
            data={**data, "code": WORKER_LOST},
            generation=raised,
            error_code=WORKER_LOST,
            error_message=lost,
        )
    # Said on the job too: whoever claims it next should know that it may have been the cause.
    return move(
        job,
        Status.QUEUED,
        EventName.LEASE_EXPIRED,
        now,
        data=data,
        run_at=now,
        error_code=WORKER_LOST,
        error_message=lost,
    )


# --- what a lease's holder may ask ------------------------------------------------------------------------------------


def renew(job: Job, lease: Lease, now: datetime, *, progress: str | None = None) -> Change:
    """
    Extend the lease from now and promote claimed to running.

    Repeated renewals leave no event: only the first one of an attempt, which changes the status, is in the trail.

    Raises:
        LeaseLost: See `check_fence`.
        CancelRequested: A cancellation is pending; the lease was not extended.
    """
    held = check_fence(job, lease, now)
    refuse_cancelled(job)
    fields: dict[str, Any] = {"lease": replace(held, expires_at=now + held.duration)}
    if progress is not None:
        fields["progress"] = progress
    if job.status is Status.CLAIMED:
        return move(job, Status.RUNNING, EventName.HEARTBEAT, now, **fields)
    return Change(job=replace(job, **fields))


def complete(job: Job, lease: Lease, result: Any, now: datetime) -> Change:
    """
    Finish the job with its result.

    An open named effect makes it indeterminate, whatever the handler swallowed: that is committed and the caller gets
    Uncertain. A result that cannot be stored ends the job failed in the same attempt; receipts are kept.
    """
    check_fence(job, lease, now)
    if job.status is not Status.RUNNING:
        raise IllegalMove(f"job {job.id} is claimed, not running: call heartbeat first, or claim with start=True")
    unresolved = open_named(job)
    if unresolved:
        names = ", ".join(effect.name for effect in unresolved)
        message = f"the handler returned while the outcome of {names} was not known"
        change = _indeterminate(job, UNRESOLVED, message, now)
        return replace(change, error=left_unresolved(change.job))
    late = job.cancel_requested_at is not None
    dispatched = any(effect.state is EffectState.SUCCEEDED for effect in job.effects) or _open_mark(job) is not None
    if late and not dispatched:
        raise cancel_requested(job)
    try:
        encode_result(result)
    except Invalid as problem:
        message = f"the result cannot be stored: {problem}"
        if open_boundary(job):
            return _indeterminate(job, "RESULT_NOT_STORABLE", message, now)
        return _failed(job, "RESULT_NOT_STORABLE", message, now)
    return move(
        job,
        Status.COMPLETED,
        EventName.COMPLETED,
        now,
        data={"cancel_too_late": True} if late else None,
        effects=_close_mark(job, EffectState.SUCCEEDED, SettledBy.COMPLETION, now),
        result=result,
        error_code=None,
        error_message=None,
    )


def left_unresolved(job: Job) -> Uncertain | None:
    """Give the error that a completion with an open effect ends in; None for a job that it did not leave behind."""
    if job.status is not Status.INDETERMINATE or job.error_code != UNRESOLVED:
        return None
    return Uncertain(f"job {job.id}: {job.error_message}; it is indeterminate until reconciled")


def fail(
    job: Job,
    lease: Lease,
    code: str,
    message: str,
    now: datetime,
    *,
    retryable: bool,
    retry_after: timedelta | None = None,
) -> Change:
    """
    End the attempt with an error: indeterminate, failed, cancelled, queued again, or a dead letter.

    An open boundary comes first: whatever the handler says, the attempt ends indeterminate. The one exception is a
    non-retryable failure after a bare mark, which closes the mark and fails the job.
    """
    check_fence(job, lease, now)
    code, message = check_error(code, message)
    if open_named(job) or (_open_mark(job) and retryable):
        return _indeterminate(job, code, message, now)
    if not retryable:
        return _failed(job, code, message, now)
    return _retry_or_bury(job, code, message, now, retry_after=retry_after)


def time_out(job: Job, lease: Lease, code: str, message: str, now: datetime) -> Change:
    """End an attempt whose handler ran out of time, as the kind's options say."""
    check_fence(job, lease, now)
    code, message = check_error(code, message)
    if open_boundary(job):
        return _indeterminate(job, code, message, now)
    if job.options.retry_timeouts:
        return _retry_or_bury(job, code, message, now)
    return mark_timed_out(job, lease, code, message, now)


def mark_indeterminate(job: Job, lease: Lease, code: str, message: str, now: datetime) -> Change:
    """End the attempt because nobody knows what happened."""
    check_fence(job, lease, now)
    return _indeterminate(job, *check_error(code, message), now)


def mark_halt_unsafe(job: Job, lease: Lease, code: str, message: str, now: datetime) -> Change:
    """End the job for good: nothing may ever move it again."""
    check_fence(job, lease, now)
    return _ended(job, Status.HALT_UNSAFE, EventName.HALT_UNSAFE, *check_error(code, message), now)


def mark_timed_out(job: Job, lease: Lease, code: str, message: str, now: datetime) -> Change:
    """End the attempt because it ran out of time; only an operator's evidence moves it on."""
    check_fence(job, lease, now)
    return _ended(job, Status.TIMED_OUT, EventName.TIMED_OUT, *check_error(code, message), now)


def release(job: Job, lease: Lease, reason: str, now: datetime) -> Change:
    """Give the job back unstarted: the attempt is not counted."""
    check_fence(job, lease, now)
    if open_boundary(job):
        raise uncertain(job, "released")
    if job.cancel_requested_at is not None:
        return move(job, Status.CANCELLED, EventName.CANCELLED, now, data={"reason": job.cancel_reason})
    return move(
        job,
        Status.QUEUED,
        EventName.RELEASED,
        now,
        data={"reason": reason},
        attempt_count=job.attempt_count - 1,
        run_at=now,
    )


def interrupted(job: Job, lease: Lease, code: str, reason: str, now: datetime) -> Change:
    """End the attempt of a handler that was stopped and has ended: give the job back, unless a call may be out."""
    if open_boundary(job):
        return mark_indeterminate(job, lease, code, reason, now)
    return release(job, lease, clean_text(reason, REASON_BYTES_MAX)[0], now)


def abandoned(job: Job, lease: Lease, code: str, reason: str, now: datetime) -> Change:
    """
    Say what can be said of an attempt whose handler was told to stop and did not.

    The code may still run, so the job is not given back: its lease runs out by itself. Where a call may have gone out
    there is nothing to wait for.
    """
    if open_boundary(job):
        return mark_indeterminate(job, lease, code, reason, now)
    return Change(job=job)


def acknowledge_cancellation(job: Job, lease: Lease, now: datetime) -> Change:
    """Stop because a cancellation was requested; effects stay as they are."""
    check_fence(job, lease, now)
    if job.cancel_requested_at is None:
        raise illegal(job, "acknowledge a cancellation that nobody requested")
    return move(job, Status.CANCELLED, EventName.CANCELLED, now, data={"reason": job.cancel_reason})


# --- what an operator may ask -----------------------------------------------------------------------------------------


def cancel(job: Job, reason: str, now: datetime, *, actor: str | None = None) -> Change:
    """Cancel a queued job at once; ask the holder of a claimed one to stop."""
    if job.status is Status.QUEUED:
        return move(
            job,
            Status.CANCELLED,
            EventName.CANCELLED,
            now,
            actor=actor,
            data={"reason": reason},
            cancel_requested_at=now,
            cancel_reason=reason,
        )
    if job.status not in LIVE:
        raise illegal(job, "be cancelled")
    if job.cancel_requested_at is not None:
        return Change(job=job)
    after = replace(job, cancel_requested_at=now, cancel_reason=reason)
    return Change(job=after, events=(note(job, EventName.CANCEL_REQUESTED, now, actor=actor, data={"reason": reason}),))


def revoke(job: Job, reason: str, now: datetime, *, actor: str) -> Change:
    """Take a job away from whoever holds it: the generation rises, the lease is gone, the job is cancelled."""
    if job.status is not Status.QUEUED and job.status not in LIVE:
        raise illegal(job, "be revoked")
    return move(
        job,
        Status.CANCELLED,
        EventName.REVOKED,
        now,
        actor=actor,
        data={"reason": reason},
        generation=job.generation + 1,
        cancel_requested_at=job.cancel_requested_at or now,
        cancel_reason=job.cancel_reason or reason,
    )


def retry(job: Job, now: datetime, *, actor: str, attempts: int, reopen: Sequence[str]) -> Change:
    """
    Queue a failed job again, by an operator.

    Args:
        attempts: How many attempts to grant on top of the budget.
        reopen: Names of rejected effects to send again, each under a new key.
    """
    if job.status is not Status.FAILED:
        raise illegal(job, "be retried; only a failed job can")
    check_whole("attempts", attempts, GRANT_MAX)
    closed = next((effect for effect in job.effects if effect.state is EffectState.CLOSED), None)
    if open_boundary(job) or closed is not None:
        raise uncertain(job, "retried")
    reopened = tuple(_reopen(job, name) for name in dict.fromkeys(reopen))
    trail = [
        {"name": effect.name, "operation_key": effect.operation_key, "request_digest": effect.request_digest}
        for name in dict.fromkeys(reopen)
        if (effect := find_effect(job, name)) is not None
    ]
    return move(
        job,
        Status.QUEUED,
        EventName.RETRIED,
        now,
        command="retry_job",
        actor=actor,
        data={"attempts": attempts, "reopened": trail} if trail else {"attempts": attempts},
        effects=reopened,
        max_attempts=job.max_attempts + attempts,
        run_at=now,
        error_code=None,
        error_message=None,
        cancel_requested_at=None,
        cancel_reason=None,
    )


def _reopen(job: Job, name: str) -> Effect:
    effect = find_effect(job, name)
    if name == MARK or effect is None or effect.state is not EffectState.REJECTED:
        state = "unknown to the job" if effect is None else effect.state
        raise Invalid(
            f"effect {name!r} of job {job.id} is {state}: only a rejected effect can be reopened", code="NOT_REJECTED"
        )
    ordinal = effect.ordinal + 1
    return replace(
        effect,
        state=EffectState.FAILED_BEFORE_DISPATCH,
        operation_key=operation_key(job.kind, job.id, name, ordinal),
        request_digest="",
        # Of no attempt: nobody has begun the new key, so on a suspect job nothing is known of it either.
        generation=0,
        ordinal=ordinal,
        settled_by=SettledBy.OUTCOME,
    )


# --- shared by several moves ------------------------------------------------------------------------------------------


def refuse_cancelled(job: Job) -> None:
    """Raise CancelRequested where a cancellation is pending."""
    if job.cancel_requested_at is not None:
        raise cancel_requested(job)


def cancel_requested(job: Job) -> CancelRequested:
    """Word the refusal of work under a pending cancellation."""
    return CancelRequested(f"cancellation of job {job.id} was requested; stop and call acknowledge_cancellation")


def uncertain(job: Job, wanted: str) -> Uncertain:
    """Word the refusal of a move that an open boundary forbids."""
    keys = ", ".join(e.operation_key for e in job.effects if e.is_open or e.state is EffectState.CLOSED)
    return Uncertain(
        f"job {job.id} cannot be {wanted}: nobody knows yet whether {keys} reached the provider. "
        f"Settle it first with reconcile_dispatched or a sweep"
    )


def check_error(code: str, message: str) -> tuple[str, str]:
    """Require a code and a message, and make them storable."""
    if not isinstance(code, str) or not code.strip() or not isinstance(message, str) or not message.strip():
        raise Invalid("an error needs a code and a message, both non-empty text", code="ERROR_REQUIRED")
    return clean_text(code, CODE_MAX)[0], clean_text(message)[0]


def _open_mark(job: Job) -> Effect | None:
    mark = job.mark
    return mark if mark is not None and mark.is_open else None


def _close_mark(job: Job, state: EffectState, by: SettledBy, now: datetime) -> tuple[Effect, ...]:
    mark = _open_mark(job)
    return () if mark is None else (replace(mark, state=state, settled_at=now, settled_by=by),)


def _ended(job: Job, status: Status, name: EventName, code: str, message: str, now: datetime) -> Change:
    return move(job, status, name, now, data={"code": code}, error_code=code, error_message=message)


def _indeterminate(job: Job, code: str, message: str, now: datetime) -> Change:
    return _ended(job, Status.INDETERMINATE, EventName.INDETERMINATE, code, message, now)


def _failed(job: Job, code: str, message: str, now: datetime) -> Change:
    return move(
        job,
        Status.FAILED,
        EventName.FAILED,
        now,
        data={"code": code},
        effects=_close_mark(job, EffectState.CLOSED, SettledBy.FAILURE, now),
        error_code=code,
        error_message=message,
    )


def _retry_or_bury(job: Job, code: str, message: str, now: datetime, *, retry_after: timedelta | None = None) -> Change:
    if job.cancel_requested_at is not None:
        return move(job, Status.CANCELLED, EventName.CANCELLED, now, data={"reason": job.cancel_reason, "code": code})
    delay = backoff(job.backoff_base, job.attempt_count, jitter(job.id, job.attempt_count), retry_after=retry_after)
    too_late = window_ended(job.created_at, now + delay, job.options.recovery_window)
    if job.attempt_count >= job.max_attempts or too_late:
        why = "the recovery window ended" if too_late else f"attempt {job.attempt_count} of {job.max_attempts}"
        return move(
            job,
            Status.DEAD_LETTER,
            EventName.DEAD_LETTERED,
            now,
            data={"code": code, "reason": why},
            error_code=code,
            error_message=message,
        )
    return move(
        job,
        Status.QUEUED,
        EventName.RETRIED,
        now,
        data={"code": code, "attempt": job.attempt_count, "delay_us": delay // timedelta(microseconds=1)},
        run_at=now + delay,
        error_code=code,
        error_message=message,
    )
