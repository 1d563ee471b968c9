"""Verbs that take work."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from tenure.procedures import claim as claiming
from tenure.procedures.claim import Claim
from tenure.rules.creation import check_id, check_names
from tenure.verbs.scope import Scope
from tenure.yields import Procedure, Script, procedure


def claim_jobs(
    scope: Scope,
    worker_id: str,
    *,
    limit: int,
    queues: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
    tenant: str | None = None,
    organization: str | None = None,
    owner: str | None = None,
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
        queues=None if queues is None else check_names("queues", queues),
        kinds=None if kinds is None else check_names("kinds", kinds),
        tenant=scope.narrow(tenant),
        organization=organization,
        owner=owner,
        start=start,
        lease_duration=lease_duration,
        claim_id=claim_id,
    )


def claim_job(
    scope: Scope,
    worker_id: str,
    *,
    queues: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
    tenant: str | None = None,
    organization: str | None = None,
    owner: str | None = None,
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
        owner: The service that the worker belongs to; queues of another one are left out.
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
            owner=owner,
            start=start,
            lease_duration=lease_duration,
            claim_id=claim_id,
        )
    )


@procedure
def _first(claims: Procedure[list[Claim]]) -> Script[Claim | None]:
    taken = yield from claims
    return taken[0] if taken else None
