"""Verbs that settle what nobody knew: by evidence, by a statement, by asking the provider."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from tenure.connectors.provider import LOOKUP_TIMEOUT, ask_bounded
from tenure.errors import Invalid
from tenure.flows.sweep import Lookup, sweep_scope
from tenure.procedures import inspect as reading
from tenure.procedures import operate, reconcile
from tenure.rules.bounds import check_span
from tenure.rules.creation import check_id
from tenure.rules.effect import Effect
from tenure.rules.job import Job
from tenure.rules.outcome import Evidence
from tenure.rules.reconcile import Verdict
from tenure.verbs.scope import Scope
from tenure.yields import Flow, Procedure, Script, procedure

SWEEP_MAX = 500


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


def find_reconciliation_candidates(
    scope: Scope, *, organization: str, project: str, tenant: str | None = None, limit: int = SWEEP_MAX
) -> Procedure[list[Job]]:
    """
    Give what a sweep would look at, oldest first, never across tenant, organization or project.

    Args:
        tenant: The binding's, or the organization when none is given.
    """
    return list_candidates(organization, project, scope.narrow(tenant) or organization, limit)


@procedure(reads=True)
def list_candidates(organization: str, project: str, tenant: str, limit: int) -> Script[list[Job]]:
    """Give the candidates themselves; see `find_reconciliation_candidates`."""
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
    check_span("lookup_timeout", lookup_timeout)

    async def ask(job: Job, effect: Effect) -> Evidence:
        return await ask_bounded(lookup, (effect.operation_key, job), lookup_timeout)

    return sweep_scope(organization, project, scope.narrow(tenant) or organization, ask, limit=limit)
