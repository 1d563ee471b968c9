"""
The contract's verbs, each defined once as the procedure or flow that performs it.

`service.py` runs them blocking and awaiting; `app.join` runs them in a caller's transaction. Here arguments are checked
and scopes applied; what is written is decided further down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from tenure.connectors.provider import LOOKUP_TIMEOUT, Provider, ask_bounded, check_provider_name, terms
from tenure.errors import Invalid
from tenure.flows.sweep import Lookup, sweep_scope
from tenure.procedures import claim as claiming
from tenure.procedures import effect as effects
from tenure.procedures import enqueue, hold, operate, queues, reconcile
from tenure.procedures import inspect as reading
from tenure.procedures.claim import Claim
from tenure.procedures.enqueue import Created
from tenure.rules import moves
from tenure.rules.creation import check_id, check_text, new_job
from tenure.rules.digest import request_digest
from tenure.rules.effect import Effect
from tenure.rules.envelope import ExecutionInput, GovernanceInput
from tenure.rules.event import Event
from tenure.rules.fairness import QueueSetting
from tenure.rules.job import DEFAULT_OPTIONS, Job, Options
from tenure.rules.lease import Lease, check_lease
from tenure.rules.outcome import Evidence, FailedBeforeDispatch, Outcome, Terms
from tenure.rules.reconcile import Verdict
from tenure.rules.scope import Scope
from tenure.rules.status import Phase, Status
from tenure.yields import Flow, Procedure, Script, new_id, procedure

EFFECT_TIMEOUT, SWEEP_MAX = timedelta(seconds=30), 500


# --- creation ---------------------------------------------------------------------------------------------------------


def create_job(
    scope: Scope,
    *,
    organization: str,
    project: str,
    idempotency_key: str,
    kind: str,
    payload: Mapping[str, Any],
    kind_version: int = 1,
    tenant: str | None = None,
    subject: str | None = None,
    queue: str = "default",
    priority: int = 0,
    max_attempts: int = 3,
    backoff_base: timedelta = timedelta(seconds=30),
    lease_duration: timedelta = timedelta(seconds=60),
    scheduled_at: Any = None,
    on_reconciled: str | None = None,
    on_declined: str = "failed",
    execution: ExecutionInput | None = None,
    governance: GovernanceInput | None = None,
    options: Options = DEFAULT_OPTIONS,
) -> Procedure[Created]:
    """
    Create a job, or find the one that already has this key.

    Args:
        idempotency_key: Unique within tenant and project.
        kind: The registered name of the code that performs it.
        payload: A JSON object of at most 1 MiB; `execution` and `governance` are reserved.
        tenant: Must agree with the service's binding and the execution input; the organization when none is given.
        max_attempts: Budget of claims, from 1.
        backoff_base: Doubled for each attempt, at most one hour.
        lease_duration: How long a claim lasts without a renewal.
        scheduled_at: An aware instant; now when left out.
        on_reconciled: complete or resume; left out, a bare mark completes and a named effect resumes.
        on_declined: failed or dead_letter.
        execution: Who the work belongs to; required before it may dispatch.
    Returns:
        The job, and whether this call created it.
    Raises:
        Invalid: The first thing that is wrong, by name or by its path in the payload.
        Conflict: The key belongs to a job with another organization, kind or payload.
    Locks: the key. Writes: authority (a new tenant), job_key, job, ready or deferred.
    """
    arguments = {name: value for name, value in locals().items() if name != "scope"}
    return enqueue.create_one(new_job(job_id=new_id(), bound_tenant=scope.tenant, **arguments))


def create_jobs(scope: Scope, jobs: Iterable[Mapping[str, Any]]) -> Procedure[list[Created]]:
    """
    Create many jobs in one transaction: all or none.

    Args:
        jobs: For each job the keyword arguments of `create_job`.
    Returns:
        One answer for each, in the order given.
    Raises:
        Invalid, Conflict: See `create_job`; the position of the job is in the text. Nothing is written.
    """
    checked = []
    for nth, fields in enumerate(jobs):
        try:
            checked.append(new_job(job_id=new_id(), bound_tenant=scope.tenant, **fields))
        except (Invalid, TypeError) as problem:
            code = problem.code if isinstance(problem, Invalid) else "BAD_ARGUMENT"
            raise Invalid(f"job number {nth}: {problem}", code=code) from problem
    return enqueue.create(checked)


# --- claiming ---------------------------------------------------------------------------------------------------------


def claim_jobs(
    scope: Scope,
    worker_id: str,
    *,
    limit: int,
    queues: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
    tenant: str | None = None,
    organization: str | None = None,
    start: bool = False,
    lease_duration: timedelta | None = None,
    claim_id: UUID | None = None,
) -> Procedure[list[Claim]]:
    """
    Take up to `limit` eligible jobs; see `claim_job`.

    Args:
        limit: From 1 to 1,000.
    """
    if claim_id is not None:
        check_id("claim_id", claim_id)
    return claiming.claim(
        worker_id,
        limit=limit,
        queues=None if queues is None else _names("queues", queues),
        kinds=None if kinds is None else _names("kinds", kinds),
        tenant=scope.narrow(tenant),
        organization=organization,
        start=start,
        lease_duration=lease_duration,
        claim_id=claim_id,
    )


def _names(what: str, names: Sequence[str]) -> Sequence[str]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise Invalid(f"{what} is a list of names, not {names!r}", code="BAD_ARGUMENT")
    return list(names)


def claim_job(
    scope: Scope,
    worker_id: str,
    *,
    queues: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
    tenant: str | None = None,
    organization: str | None = None,
    start: bool = False,
    lease_duration: timedelta | None = None,
    claim_id: UUID | None = None,
) -> Procedure[Claim | None]:
    """
    Take the next eligible job: priority descending, then scheduled time, then creation.

    Args:
        worker_id: Who takes it; may be used again, the generation tells claims apart.
        queues: Served in this order; all when left out.
        kinds: The kinds this worker knows; all when left out.
        start: Become running in the same step.
        lease_duration: The lease's length instead of the job's own.
        claim_id: The same id gives the same lease again while it lives, so that a lost reply can be asked for.
    Returns:
        The job and its lease, or None when nothing is eligible.
    Raises:
        Conflict: The claim id was used by another worker or with another scope.
    Locks: the row taken. Writes: what was due or expired, lease, event.
    """
    return _first(
        claim_jobs(
            scope,
            worker_id,
            limit=1,
            queues=queues,
            kinds=kinds,
            tenant=tenant,
            organization=organization,
            start=start,
            lease_duration=lease_duration,
            claim_id=claim_id,
        )
    )


@procedure
def _first(claims: Procedure[list[Claim]]) -> Script[Claim | None]:
    taken = yield from claims
    return taken[0] if taken else None


# --- what a lease's holder asks ---------------------------------------------------------------------------------------


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
        raise Invalid(f"retryable is True or False, not {retryable!r}", code="BAD_ARGUMENT")
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


# --- effects ----------------------------------------------------------------------------------------------------------


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
        Uncertain: It is open. EffectRejected: The provider refused it. Conflict: The name has another request.
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
def _begun(begin: Procedure[Any]) -> Script[Effect]:
    effect: Effect = (yield from begin).effect
    return effect


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
    return effects.submit_evidence(operation_key, evidence, attempt_id, tenant=scope.tenant)


def list_effects(scope: Scope, job_id: UUID) -> Procedure[list[Effect]]:
    """Give a job's named effects, oldest intent first."""
    return reading.list_effects(check_id("job_id", job_id), tenant=scope.tenant)


# --- operators --------------------------------------------------------------------------------------------------------


def cancel_job(scope: Scope, job_id: UUID, *, reason: str, actor: str | None = None) -> Procedure[Job]:
    """
    Cancel a queued job at once; ask the holder of a claimed one to stop.

    Raises:
        IllegalMove: It is terminal.
    """
    check_id("job_id", job_id)
    return operate.cancel_job(job_id, reason, actor=scope.maybe(actor), tenant=scope.tenant)


def revoke_job(scope: Scope, job_id: UUID, *, reason: str, actor: str | None = None) -> Procedure[Job]:
    """Take a job away from its holder: the generation rises, the lease is gone, the job is cancelled."""
    return operate.revoke_job(check_id("job_id", job_id), reason, scope.who(actor), tenant=scope.tenant)


def retry_job(
    scope: Scope, job_id: UUID, *, actor: str | None = None, attempts: int = 1, reopen: Sequence[str] = ()
) -> Procedure[Job]:
    """
    Queue a failed job again.

    Args:
        attempts: How many to grant on top of the budget.
        reopen: Names of rejected effects to send again, each under a new key.
    Raises:
        Uncertain: A boundary is open, or a mark was closed only by a failure.
        IllegalMove: It is not failed.
    """
    check_id("job_id", job_id)
    names = _names("reopen", reopen)
    return operate.retry_job(job_id, scope.who(actor), attempts, tuple(names), tenant=scope.tenant)


def reconcile_dispatched(
    scope: Scope,
    job_id: UUID,
    evidence: Evidence,
    *,
    operation_key: str | None = None,
    reason: str,
    actor: str | None = None,
) -> Procedure[Job]:
    """
    Settle one effect, or the bare mark, by a person's statement; the job moves when nothing is open any more.

    Args:
        evidence: Accepted, Declined or Absent.
        operation_key: Which one; the only open one when left out.
    """
    check_id("job_id", job_id)
    return reconcile.reconcile_dispatched(
        job_id, evidence, operation_key=operation_key, reason=reason, actor=scope.who(actor), tenant=scope.tenant
    )


def resume_sweep(scope: Scope, job_id: UUID, *, actor: str | None = None) -> Procedure[Job]:
    """Clear an escalation, so that sweeps look at the job again."""
    return operate.resume_sweep(check_id("job_id", job_id), scope.who(actor), tenant=scope.tenant)


def append_job_event(
    scope: Scope, job_id: UUID, name: str, data: Mapping[str, Any] | None = None, *, actor: str | None = None
) -> Procedure[Job]:
    """
    Append to a job's trail a name that implies no status: admission_checked or execution_control_shadow.

    Raises:
        Refused: The name is the library's own to write. Invalid: It is unknown.
    """
    check_id("job_id", job_id)
    given = {} if data is None else data
    return operate.append_event(job_id, name, given, actor=scope.maybe(actor), tenant=scope.tenant)


def set_queue(
    scope: Scope, name: str, *, fair: bool, weights: Mapping[str, int] | None = None
) -> Procedure[QueueSetting]:
    """
    Say how a queue is served; what was said before is forgotten. A queue is plain until somebody makes it fair.

    It counts for jobs that become ready from now on; those that are ready are served where they are, beside the others.

    Args:
        name: The queue; it need not have any jobs.
        fair: Tenants take turns; False serves the most urgent job first, whoever's it is.
        weights: Jobs of a tenant in one turn, from 1 to 100; 1 for whoever is left out. For fair queues.
    Raises:
        Refused: The service is bound to a tenant; a queue is everybody's.
    Locks: the queue's setting. Writes: queue, queue_weight.
    """
    return queues.set_queue(name, fair=fair, weights=weights, tenant=scope.tenant)


# --- reading ----------------------------------------------------------------------------------------------------------


def get_job(scope: Scope, job_id: UUID) -> Procedure[Job]:
    """Give one job; NotFound for an unknown or foreign id."""
    return reading.get_job(check_id("job_id", job_id), tenant=scope.tenant)


def find_by_idempotency_key(
    scope: Scope, *, project: str, idempotency_key: str, tenant: str | None = None, organization: str | None = None
) -> Procedure[Job | None]:
    """Give the job that has a key, or None; the tenant is the binding's, the argument's, or the organization."""
    owner = scope.narrow(tenant) or organization
    if owner is None:
        raise Invalid("say whose key it is: tenant= or organization=", code="TENANT_REQUIRED")
    check_text("project", project)
    check_text("idempotency_key", idempotency_key)
    return reading.find_by_key(owner, project, idempotency_key)


def list_jobs(
    scope: Scope,
    *,
    tenant: str | None = None,
    organization: str | None = None,
    project: str | None = None,
    status: Status | str | None = None,
    phase: Phase | str | None = None,
    queue: str | None = None,
    limit: int = 100,
    after: UUID | None = None,
) -> Procedure[list[Job]]:
    """
    Give jobs by creation, oldest first.

    Args:
        limit: At most 1,000.
        after: The id of the last job of the page before.
    """
    for name, value in (("organization", organization), ("project", project), ("queue", queue)):
        if value is not None:
            check_text(name, value)
    if after is not None:
        check_id("after", after)
    return reading.list_jobs(
        tenant=scope.narrow(tenant),
        organization=organization,
        project=project,
        status=None if status is None else _known(Status, status),
        phase=None if phase is None else _known(Phase, phase),
        queue=queue,
        limit=limit,
        after=after,
    )


def _known(kind: Any, value: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise Invalid(
            f"{value!r} is no {kind.__name__.lower()}; known are {', '.join(one.value for one in kind)}",
            code="BAD_ARGUMENT",
        ) from None


def list_queues(scope: Scope) -> Procedure[list[QueueSetting]]:
    """Give every queue that somebody has said something about, by name; all others are plain."""
    return queues.list_queues(tenant=scope.tenant)


def list_job_events(scope: Scope, job_id: UUID) -> Procedure[list[Event]]:
    """Give a job's trail in the order written."""
    return reading.list_events(check_id("job_id", job_id), tenant=scope.tenant)


def find_reconciliation_candidates(
    scope: Scope, *, organization: str, project: str, tenant: str | None = None, limit: int = SWEEP_MAX
) -> Procedure[list[Job]]:
    """
    Give what a sweep would look at, oldest first, never across tenant, organization or project.

    Args:
        tenant: The binding's, or the organization when none is given.
    """
    return _candidates(organization, project, scope.narrow(tenant) or organization, limit)


@procedure(reads=True)
def _candidates(organization: str, project: str, tenant: str, limit: int) -> Script[list[Job]]:
    ids = yield from reconcile.find_candidates(organization, project, tenant, limit)
    return (yield from reading.get_jobs(ids, tenant=tenant))


def sweep_reconciliation_candidates(
    scope: Scope,
    *,
    organization: str,
    project: str,
    lookup: Lookup,
    tenant: str | None = None,
    limit: int = SWEEP_MAX,
    lookup_timeout: timedelta = LOOKUP_TIMEOUT,
) -> Flow[list[Verdict]]:
    """
    Settle or escalate every candidate of one scope by evidence; it never sends.

    Args:
        lookup: Asked as `lookup(operation_key, job)`, gives Accepted, Declined, Absent or NoAnswer; `async def`, or
            `def`, which runs in a thread of its own. One that raises, gives anything else or is late counts as no
            answer, with its reason. The first no answer escalates.
        tenant: The binding's, or the organization when none is given.
        lookup_timeout: How long one look-up may take, 30 seconds by default.
    Returns:
        One verdict for each candidate, oldest first.
    """
    if not callable(lookup):
        raise Invalid(
            f"lookup is a function of an operation key and a job, not {type(lookup).__name__}", code="BAD_ARGUMENT"
        )
    if not isinstance(lookup_timeout, timedelta) or lookup_timeout <= timedelta(0):
        raise Invalid("lookup_timeout is a timedelta above zero", code="BAD_DURATION")

    async def ask(job: Job, effect: Effect) -> Evidence:
        return await ask_bounded(lookup, (effect.operation_key, job), lookup_timeout)

    return sweep_scope(organization, project, scope.narrow(tenant) or organization, ask, limit=limit)
