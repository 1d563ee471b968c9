"""
What the holder of a lease may ask, always for a batch of jobs: lock once, decide each, save once.

One command that is refused does not hurt the others of its batch: its error is its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from tenure.errors import CancelRequested, LeaseLost, TenureError
from tenure.procedures.complete_batch import Completion, completion
from tenure.procedures.records import Placed, placed
from tenure.procedures.rows import done_before, fetch, in_scope, lock, read, repeated, save
from tenure.rules import moves
from tenure.rules.bounds import ZERO, check_span
from tenure.rules.creation import check_text
from tenure.rules.job import Change, Job
from tenure.rules.lease import Lease, check_fence
from tenure.yields import FRESH, AfterCommit, Command, Each, Script, procedure

Decide: TypeAlias = Callable[[Job, datetime], Change]


@dataclass(frozen=True, slots=True)
class Ask:
    """
    One command of one lease's holder.

    Attributes:
        decide: The rule, given the locked job and the store's clock.
        after: The error that followed the commit, found again in the job as it was left.
        plain: The same for `complete_batch`, where that may be tried first.
    """

    lease: Lease
    decide: Decide
    after: Callable[[Job], TenureError | None] = lambda _: None
    plain: Completion | None = None


def completing(lease: Lease, result: Any, *, tenant: str | None = None) -> Ask:
    """
    Finish with a result; see `moves.complete`.

    Args:
        tenant: Of the job, where it is known; needed for `plain`.
    """
    plain = None if tenant is None else completion(lease, tenant, result)
    return Ask(lease, lambda job, now: moves.complete(job, lease, result, now), moves.left_unresolved, plain)


def failing(lease: Lease, code: str, message: str, *, retryable: bool, retry_after: timedelta | None = None) -> Ask:
    """End the attempt with an error; see `moves.fail`."""
    if retry_after is not None:
        check_span("retry_after", retry_after, least=ZERO)
    return Ask(
        lease,
        lambda job, now: moves.fail(job, lease, code, message, now, retryable=retryable, retry_after=retry_after),
    )


def timing_out(lease: Lease, code: str, message: str) -> Ask:
    """End an attempt that ran out of time, as its kind says; see `moves.time_out`."""
    return Ask(lease, lambda job, now: moves.time_out(job, lease, code, message, now))


def marking(rule: Callable[..., Change], lease: Lease, code: str, message: str) -> Ask:
    """Apply mark_indeterminate, mark_halt_unsafe or mark_timed_out of `moves`."""
    return Ask(lease, lambda job, now: rule(job, lease, code, message, now))


def releasing(lease: Lease, reason: str) -> Ask:
    """Give the job back unstarted; see `moves.release`."""
    check_text("reason", reason)
    return Ask(lease, lambda job, now: moves.release(job, lease, reason, now))


def acknowledging(lease: Lease) -> Ask:
    """Stop because of a cancellation; see `moves.acknowledge_cancellation`."""
    return Ask(lease, lambda job, now: moves.acknowledge_cancellation(job, lease, now))


@procedure
def hold(
    asks: Sequence[Ask], *, tenant: str | None = None, command: Command = FRESH
) -> Script[list[Job | TenureError]]:
    """
    Decide and write the commands of many leases, at most one for each job.

    Returns:
        For each command the job after it, or the error that refused it (or that follows the commit).
    Locks: as `rows.lock`. Writes: the places, effect, event.
    """
    found = yield from lock(ask.lease.job_id for ask in asks)
    done = yield from done_before(command, found)
    answers: list[Job | TenureError] = []
    decided: list[tuple[Placed, Change]] = []
    for ask in asks:
        try:
            known = in_scope(found, ask.lease.job_id, tenant)
            if ask.lease.job_id in done:
                answers.append(ask.after(known.job) or known.job)
                continue
            change = ask.decide(known.job, known.now)
        except TenureError as refused:
            answers.append(refused)
            continue
        decided.append((known, change))
        answers.append(change.error or change.job)
    if decided:
        yield from save(decided, command)
    return answers


@procedure
def hold_one(ask: Ask, *, tenant: str | None = None, command: Command = FRESH) -> Script[Job | AfterCommit]:
    """
    Decide and write one command of one lease; see `hold`.

    Raises: What the rule raises.
    """
    known = yield from fetch(ask.lease.job_id, tenant)
    if (yield from repeated(command, known.job.id)):
        error = ask.after(known.job)
        return known.job if error is None else AfterCommit(error)
    change = ask.decide(known.job, known.now)
    yield from save([(known, change)], command)
    return change.job if change.error is None else AfterCommit(change.error)


@procedure(urgent=True)
def heartbeat(lease: Lease, *, tenant: str | None = None, command: Command = FRESH) -> Script[bool]:
    """
    Extend one lease from now.

    Returns:
        False when the lease is lost or a cancellation is pending; it was not extended then.
    Locks: as `rows.lock`. Writes: lease; event where the attempt was not started yet.
    """
    known = yield from fetch(lease.job_id, tenant)
    try:
        change = moves.renew(known.job, lease, known.now)
    except (LeaseLost, CancelRequested):
        return False
    yield from save([(known, change)], command)
    return True


@procedure(urgent=True)
def renew(
    leases: Sequence[Lease],
    *,
    progress: Sequence[str | None] | None = None,
    tenant: str | None = None,
    command: Command = FRESH,
) -> Script[list[Job | TenureError | None]]:
    """
    Extend leases.

    Returns:
        For each lease the job after it; LeaseLost or CancelRequested where it was not extended; None where the row was
        locked by somebody (its own publish, most likely): neither renewed nor lost, ask again.
    Locks: the leases, skipping locked ones. Writes: lease; event where an attempt was not started yet.
    """
    rows = [(job_id,) for job_id in sorted({lease.job_id for lease in leases})]
    _, places = yield [Each("authority_lock", rows), Each("place_lock_free", rows)]
    found = {known.job.id: known for known in (placed(row) for row in places)}
    missing = [lease.job_id for lease in leases if lease.job_id not in found]
    seen = (yield from read(missing)) if missing else {}
    answers: list[Job | TenureError | None] = []
    decided = []
    for nth, lease in enumerate(leases):
        try:
            if lease.job_id in found:
                known = in_scope(found, lease.job_id, tenant)
                told = progress[nth] if progress else None
                change = moves.renew(known.job, lease, known.now, progress=told)
                decided.append((known, change))
                answers.append(change.job)
            else:
                known = in_scope(seen, lease.job_id, tenant)
                check_fence(known.job, lease, known.now)
                answers.append(None)
        except TenureError as refused:
            answers.append(refused)
    if decided:
        yield from save(decided, command)
    return answers
