"""Verbs that create jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from tenure.errors import Invalid, echo
from tenure.procedures import enqueue
from tenure.procedures.enqueue import Created
from tenure.rules.creation import new_job
from tenure.rules.envelope import ExecutionInput, GovernanceInput
from tenure.rules.job import DEFAULT_OPTIONS, Options
from tenure.verbs.scope import Scope
from tenure.yields import Procedure, new_id


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
    if not isinstance(jobs, Iterable):
        raise Invalid(f"jobs is a list of keyword arguments, not {echo(jobs)}", code="BAD_ARGUMENT")
    checked = []
    for nth, fields in enumerate(jobs):
        try:
            checked.append(new_job(job_id=new_id(), bound_tenant=scope.tenant, **fields))
        except (Invalid, TypeError) as problem:
            code = problem.code if isinstance(problem, Invalid) else "BAD_ARGUMENT"
            raise Invalid(f"job number {nth}: {problem}", code=code) from problem
    return enqueue.create(checked)
