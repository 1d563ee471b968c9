"""Verbs around one outside act: intent, outcome, late receipts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from tenure.connectors.provider import Provider, check_provider_name, terms
from tenure.errors import Invalid, echo
from tenure.procedures import effect as effects
from tenure.procedures import inspect as reading
from tenure.rules.creation import check_id
from tenure.rules.digest import request_digest
from tenure.rules.dispatch import Begun, unasked
from tenure.rules.effect import Effect
from tenure.rules.job import Job
from tenure.rules.lease import Lease, check_lease
from tenure.rules.outcome import Evidence, FailedBeforeDispatch, Outcome, Terms
from tenure.verbs.scope import Scope
from tenure.yields import AfterCommit, Procedure, Script, procedure

EFFECT_TIMEOUT = timedelta(seconds=30)


def begin_effect(
    scope: Scope,
    lease: Lease,
    *,
    name: str,
    request: Any,
    provider: str | Provider,
    deadline: timedelta = EFFECT_TIMEOUT,
    resend: bool = False,
) -> Procedure[Effect]:
    """
    Commit the intent of one outside call before it is made.

    Args:
        name: Unique within the job; no `#` or `:`.
        request: A JSON value; the same name stands for the same request.
        provider: A provider, whose declarations are stored with the intent, or its name alone, which declares nothing.
        deadline: How long the call may take; the lease may end it sooner.
        resend: See `ctx.effect`.
    Returns:
        The effect: `pending` means make the call, `succeeded` means an earlier attempt's receipt is in it.
    Raises:
        Uncertain: It is open; or the job is suspect, and the intent was written as unknown, because this verb cannot
            ask the provider: send nothing, end the attempt as indeterminate, and let a sweep with a lookup ask.
        EffectRejected: The provider refused it. Conflict: The name has another request.
        IdentityRefused, ApprovalRefused: The envelopes do not allow a dispatch.
    """
    if not isinstance(deadline, timedelta):
        raise Invalid("deadline is a timedelta: how long the call may take", code="BAD_DURATION")
    declared = Terms(check_provider_name(provider)) if isinstance(provider, str) else terms(provider)
    return _begun(
        effects.begin_effect(
            effects.Beginning(
                check_lease(lease), name, request_digest(request), declared, deadline, resend, scope.tenant
            )
        )
    )


@procedure
def _begun(begin: Procedure[Begun]) -> Script[Effect | AfterCommit]:
    begun = yield from begin
    if isinstance(begun, AfterCommit):
        return begun
    return AfterCommit(unasked(begun.effect)) if begun.ask else begun.effect


def finish_effect(scope: Scope, lease: Lease, *, name: str, outcome: Outcome) -> Procedure[Job]:
    """
    Commit how a call ended; only the three definite outcomes are taken as such.

    Raises:
        LeaseLost: Refused; what the outcome proves is stored as evidence in the same transaction.
    """
    return effects.finish_for_job(effects.Finishing(check_lease(lease), name, outcome, scope.tenant))


def submit_evidence(
    scope: Scope, operation_key: str, evidence: Evidence | FailedBeforeDispatch, *, attempt_id: UUID
) -> Procedure[Job]:
    """
    Hand in the receipt of a call that an attempt began, whoever holds the job now; it moves no job.

    Raises:
        NotFound: That attempt committed no intent under this key.
    """
    check_id("attempt_id", attempt_id)
    if not isinstance(operation_key, str):
        raise Invalid(f"operation_key is the text that a begin gave, not {echo(operation_key)}", code="BAD_ARGUMENT")
    return effects.submit_evidence(operation_key, evidence, attempt_id, tenant=scope.tenant)


def list_effects(scope: Scope, job_id: UUID) -> Procedure[list[Effect]]:
    """Give a job's named effects, oldest intent first."""
    return reading.list_effects(check_id("job_id", job_id), tenant=scope.tenant)
