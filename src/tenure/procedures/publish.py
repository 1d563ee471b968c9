"""
The fence around a caller's database-only writes: checked before them, checked after them, one commit.

Both checks lock as `rows.lock` does, so that neither a rotation nor another claim can
come between them and the commit.
"""

from __future__ import annotations

from uuid import UUID

from tenure.errors import LeaseLost, Uncertain
from tenure.procedures.rows import fetch
from tenure.rules.lease import Lease, check_fence
from tenure.rules.moves import refuse_cancelled
from tenure.yields import Each, Script, procedure


@procedure
def open_publish(lease: Lease, *, tenant: str | None = None) -> Script[None]:
    """
    Let the current holder begin to publish; run at the start of the transaction.

    Raises:
        LeaseLost, CancelRequested: Nothing may be written.
    Locks: as `rows.lock`.
    """
    known = yield from fetch(lease.job_id, tenant)
    check_fence(known.job, lease, known.now)
    refuse_cancelled(known.job)


@procedure
def close_publish(lease: Lease, publish_id: UUID, *, tenant: str | None = None) -> Script[None]:
    """
    Check the fence again, by a fresh clock, as the last thing before the commit.

    Args:
        publish_id: Left on the lease, so that a commit whose reply was lost can be asked for.
    Raises:
        LeaseLost: The lease ran out while the caller was writing; roll back.
    Locks: as `rows.lock`. Writes: lease.
    """
    known = yield from fetch(lease.job_id, tenant)
    check_fence(known.job, lease, known.now)
    refuse_cancelled(known.job)
    marked = yield Each("lease_publish", [(lease.job_id, lease.generation, publish_id)])
    assert len(marked) == 1, "the lease moved under its lock"


@procedure
def find_publish(lease: Lease, publish_id: UUID, *, tenant: str | None = None) -> Script[bool]:
    """
    Say whether a publish whose commit was not heard of did commit, while the lease is still the same.

    Raises:
        Uncertain: The lease has moved on, so that its mark is gone with it.
    Locks: as `rows.lock`: a commit still on its way is waited for.
    """
    known = yield from fetch(lease.job_id, tenant)
    if known.published == publish_id:
        return True
    try:
        check_fence(known.job, lease, known.now)
    except LeaseLost as lost:
        raise Uncertain(
            f"the database's answer to a publish of job {lease.job_id} was lost and so was the lease; read your own "
            f"tables to see whether it was committed"
        ) from lost
    return False
