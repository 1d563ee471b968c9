"""Verbs of operators: cancel, revoke, retry, reconcile, queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from tenure.procedures import operate
from tenure.rules.creation import check_id, check_names
from tenure.rules.job import Job
from tenure.verbs.scope import Scope
from tenure.yields import Procedure


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
    names = check_names("reopen", reopen)
    return operate.retry_job(job_id, scope.who(actor), attempts, tuple(names), tenant=scope.tenant)


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
