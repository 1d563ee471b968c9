"""Verbs of a lease's holder: keep it, end the attempt, give the job back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tenure.errors import Invalid, echo
from tenure.procedures import effect as effects
from tenure.procedures import hold
from tenure.rules import moves
from tenure.rules.job import Job
from tenure.rules.lease import Lease, check_lease
from tenure.verbs.scope import Scope
from tenure.yields import Procedure


def heartbeat(scope: Scope, lease: Lease) -> Procedure[bool]:
    """
    Extend the lease by its duration from now, and promote a claimed job to running.

    Returns:
        False when the lease is lost or a cancellation is pending: stop.
    """
    return hold.heartbeat(check_lease(lease), tenant=scope.tenant)


def mark_provider_dispatched(scope: Scope, lease: Lease, *, operation_key: str) -> Procedure[Job]:
    """
    Record that a provider is about to be called under a key of your own, without a named effect.

    From here on a failure is uncertain. Only completion, a non-retryable failure and evidence close the mark.

    Raises:
        Uncertain: It is marked already; a second dispatch would be a second send.
        Conflict: The key belongs to another job, or another key is open on this one.
    """
    return effects.mark_dispatched(check_lease(lease), operation_key, tenant=scope.tenant)


def complete_job(scope: Scope, lease: Lease, *, result: Any = None) -> Procedure[Job]:
    """
    Finish a running job.

    Args:
        result: A JSON value; one that cannot be stored ends the job failed with RESULT_NOT_STORABLE.
    Raises:
        LeaseLost: Nothing was written.
        Uncertain: A named effect is open; the job is indeterminate now.
        CancelRequested: A cancellation is pending and nothing was dispatched.
    """
    return hold.hold_one(hold.completing(check_lease(lease), result), tenant=scope.tenant)


def fail_job(
    scope: Scope,
    lease: Lease,
    *,
    code: str,
    message: str,
    retryable: bool,
    retry_after: timedelta | None = None,
) -> Procedure[Job]:
    """
    End an attempt with an error.

    Args:
        retryable: Queue it again after a backoff while attempts are left; a dead letter when they are used up.
        retry_after: The least time to wait, as a provider asked for.
    Returns:
        The job: queued, failed, dead_letter, cancelled, or indeterminate where a boundary is open.
    """
    if not isinstance(retryable, bool):
        raise Invalid(f"retryable is True or False, not {echo(retryable)}", code="BAD_ARGUMENT")
    ask = hold.failing(check_lease(lease), code, message, retryable=retryable, retry_after=retry_after)
    return hold.hold_one(ask, tenant=scope.tenant)


def mark_indeterminate(scope: Scope, lease: Lease, *, code: str, message: str) -> Procedure[Job]:
    """End an attempt because nobody knows what happened; only reconciliation moves the job on."""
    return hold.hold_one(hold.marking(moves.mark_indeterminate, check_lease(lease), code, message), tenant=scope.tenant)


def mark_halt_unsafe(scope: Scope, lease: Lease, *, code: str, message: str) -> Procedure[Job]:
    """End a job for good: nothing may ever move it again."""
    return hold.hold_one(hold.marking(moves.mark_halt_unsafe, check_lease(lease), code, message), tenant=scope.tenant)


def mark_timed_out(scope: Scope, lease: Lease, *, code: str, message: str) -> Procedure[Job]:
    """End an attempt because it ran out of time; only a person's evidence moves the job on."""
    return hold.hold_one(hold.marking(moves.mark_timed_out, check_lease(lease), code, message), tenant=scope.tenant)


def release_job(scope: Scope, lease: Lease, *, reason: str) -> Procedure[Job]:
    """
    Give a job back; the attempt is not counted.

    Raises:
        Uncertain: A boundary is open.
    """
    return hold.hold_one(hold.releasing(check_lease(lease), reason), tenant=scope.tenant)


def acknowledge_cancellation(scope: Scope, lease: Lease) -> Procedure[Job]:
    """Stop because a cancellation was requested; effects stay as they are."""
    return hold.hold_one(hold.acknowledging(check_lease(lease)), tenant=scope.tenant)
