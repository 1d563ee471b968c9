"""Verbs about who may act: rotate, freeze, thaw and readmit, and what is held."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from tenure.errors import Invalid, echo
from tenure.flows import authority
from tenure.procedures import tenants
from tenure.rules.authority import Tenant, check_bound
from tenure.rules.bounds import check_whole
from tenure.rules.creation import check_id, check_text
from tenure.rules.job import Job
from tenure.verbs.scope import Scope
from tenure.yields import Flow, Procedure, new_id


def list_tenants(scope: Scope) -> Procedure[list[Tenant]]:
    """Give every tenant that ever had a job, with its epoch and whether it is frozen, by name."""
    return tenants.list_tenants(tenant=scope.tenant)


def show_tenant(scope: Scope, tenant: str) -> Procedure[Tenant]:
    """
    Give one tenant with how much of its work is held under which epoch, and what was done to it.

    Raises:
        NotFound: None of its jobs was ever created here.
    """
    return tenants.show_tenant(_own(scope, tenant))


def rotate_tenant(scope: Scope, tenant: str, *, reason: str, actor: str | None = None) -> Flow[Tenant]:
    """
    Raise a tenant's epoch: its older work is held until somebody readmits it, and whoever holds a lease is fenced.

    Raises:
        Refused: TENANT_BOUND; DATABASE_FROZEN.
        Unavailable: The ledger or the database did not answer; what the ledger has as pending will be applied.
    Locks: the tenant's authority, alone. Writes: the ledger, authority, authority_event.
    """
    check_text("reason", reason)
    return authority.rotate_tenant(scope.ledger, new_id(), _own(scope, tenant), scope.who(actor), reason)


def freeze_tenant(scope: Scope, tenant: str, *, reason: str, actor: str | None = None) -> Flow[Tenant]:
    """
    Freeze a tenant: nothing of it is claimed, published or begun; reading, creating and evidence go on.

    Raises:
        Refused: TENANT_BOUND; DATABASE_FROZEN.
        Unavailable: The ledger or the database did not answer; what the ledger has as pending will be applied.
    Locks: the tenant's authority, alone. Writes: the ledger, authority, authority_event.
    """
    check_text("reason", reason)
    return authority.freeze_tenant(scope.ledger, new_id(), _own(scope, tenant), scope.who(actor), reason)


def thaw_tenant(scope: Scope, tenant: str, *, reason: str, actor: str | None = None) -> Flow[Tenant]:
    """
    End a tenant's freeze. What an older epoch holds stays held.

    Raises:
        Refused: TENANT_BOUND; DATABASE_FROZEN.
    Locks: the tenant's authority, alone. Writes: authority, authority_event, the ledger.
    """
    check_text("reason", reason)
    return authority.thaw_tenant(scope.ledger, new_id(), _own(scope, tenant), scope.who(actor), reason)


def readmit_jobs(
    scope: Scope,
    tenant: str,
    *,
    reason: str,
    job_ids: Iterable[UUID] | None = None,
    epoch: int | None = None,
    actor: str | None = None,
) -> Procedure[list[Job]]:
    """
    Let held work run again, under the tenant's current epoch.

    Args:
        job_ids: These jobs, all or none of them.
        epoch: All queued work of this older epoch, 500 jobs a call: call again until nothing is given back. With
            neither, of every older epoch.
    Returns: The jobs readmitted by this call, or asked for by id.
    Raises:
        IllegalMove: One of the jobs is not queued.
        Unavailable: Perhaps it was done: `show_tenant` lists the act with its actor and reason and what is still held.
            Another call is harmless.
        Refused: TENANT_BOUND; DATABASE_FROZEN.
    Locks: the tenant's authority (shared), the jobs' places. Writes: ready, deferred, resting, event, authority_event.
    """
    check_text("reason", reason)
    if job_ids is not None and epoch is not None:
        raise Invalid("give job_ids= or epoch=, not both", code="BAD_ARGUMENT")
    _check_epoch(epoch)
    if job_ids is not None and not isinstance(job_ids, Iterable):
        raise Invalid(f"job_ids is a list of ids, not {echo(job_ids)}", code="BAD_ARGUMENT")
    ids = None if job_ids is None else [check_id("job_ids", one) for one in job_ids]
    return tenants.readmit_jobs(new_id(), _own(scope, tenant), ids, epoch, scope.who(actor), reason)


def readmit_messages(
    scope: Scope, tenant: str, *, reason: str, epoch: int | None = None, actor: str | None = None
) -> Procedure[list[UUID]]:
    """
    Let messages that an older epoch holds go, under the tenant's current epoch, oldest first.

    In a restored copy, what was delivered after the backup is delivered once more: its receivers know it by its
    operation. One that was set aside is not readmitted; it is held when it is replayed, and readmitted then.

    Args:
        epoch: Those under this older epoch, 500 messages a call: call again until nothing is given back. Without it,
            of every older epoch.
    Returns: The ids of the messages readmitted by this call.
    Raises:
        Refused: TENANT_BOUND; DATABASE_FROZEN.
    Locks: the tenant's authority, alone; the messages.
    Writes: message_due, message_later, message_resting, message_decision, authority_event.
    """
    check_text("reason", reason)
    _check_epoch(epoch)
    return tenants.readmit_messages(new_id(), _own(scope, tenant), epoch, scope.who(actor), reason)


def _check_epoch(epoch: int | None) -> None:
    if epoch is not None:
        check_whole("epoch", epoch)


def _own(scope: Scope, tenant: str) -> str:
    check_bound(scope.tenant, check_text("tenant", tenant))
    return tenant
