"""Verbs that only read."""

from __future__ import annotations

from uuid import UUID

from tenure.errors import Invalid
from tenure.procedures import inspect as reading
from tenure.rules.creation import check_id, check_member, check_text
from tenure.rules.event import Event
from tenure.rules.job import Job
from tenure.rules.status import Phase, Status
from tenure.verbs.scope import Scope
from tenure.yields import Procedure


def get_job(scope: Scope, job_id: UUID) -> Procedure[Job]:
    """Give one job; NotFound for an unknown or foreign id."""
    return reading.get_job(check_id("job_id", job_id), tenant=scope.tenant)


def find_by_idempotency_key(
    scope: Scope, *, project: str, idempotency_key: str, tenant: str | None = None, organization: str | None = None
) -> Procedure[Job | None]:
    """Give the job that has a key, or None; the tenant is the binding's, the argument's, or the organization."""
    if organization is not None:
        check_text("organization", organization)
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
        status=None if status is None else check_member("status", status, Status),
        phase=None if phase is None else check_member("phase", phase, Phase),
        queue=queue,
        limit=limit,
        after=after,
    )


def list_job_events(scope: Scope, job_id: UUID) -> Procedure[list[Event]]:
    """Give a job's trail in the order written."""
    return reading.list_events(check_id("job_id", job_id), tenant=scope.tenant)
