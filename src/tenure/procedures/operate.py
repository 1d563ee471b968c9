"""What may be asked about a job by those who do not hold it: cancel, revoke, retry, append to the trail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from tenure.errors import Invalid
from tenure.procedures.records import event_row
from tenure.procedures.rows import fetch, repeated, save
from tenure.rules import moves, reconcile
from tenure.rules.creation import check_text
from tenure.rules.event import Event, appendable
from tenure.rules.job import Change, Job
from tenure.rules.payload import check_json, encode
from tenure.yields import FRESH, Command, Each, Script, procedure

EVENT_BYTES_MAX = 16 * 1024


@procedure
def cancel_job(
    job_id: UUID, reason: str, *, actor: str | None = None, tenant: str | None = None, command: Command = FRESH
) -> Script[Job]:
    """Cancel a queued job, or ask a claimed one's holder to stop. Locks: as `rows.lock`. Writes: its place, event."""
    check_text("reason", reason)
    return (yield from _apply(job_id, partial(moves.cancel, reason=reason, actor=actor), tenant, command))


@procedure
def revoke_job(
    job_id: UUID, reason: str, actor: str, *, tenant: str | None = None, command: Command = FRESH
) -> Script[Job]:
    """Take a job away from its holder and cancel it. Locks: as `rows.lock`. Writes: its place, event."""
    check_text("reason", reason)
    check_text("actor", actor)
    return (yield from _apply(job_id, partial(moves.revoke, reason=reason, actor=actor), tenant, command))


@procedure(wakes=True)
def retry_job(
    job_id: UUID,
    actor: str,
    attempts: int,
    reopen: Sequence[str],
    *,
    tenant: str | None = None,
    command: Command = FRESH,
) -> Script[Job]:
    """Queue a failed job again. Locks: as `rows.lock`, terminal. Writes: outcome, ready, effect, event."""
    check_text("actor", actor)
    decide = partial(moves.retry, actor=actor, attempts=attempts, reopen=reopen)
    return (yield from _apply(job_id, decide, tenant, command, terminal=True))


@procedure
def resume_sweep(job_id: UUID, actor: str, *, tenant: str | None = None, command: Command = FRESH) -> Script[Job]:
    """Clear an escalation. Locks: as `rows.lock`, terminal. Writes: escalation, effect, event."""
    check_text("actor", actor)
    return (yield from _apply(job_id, partial(reconcile.resume_sweep, actor=actor), tenant, command, terminal=True))


@procedure
def append_event(
    job_id: UUID,
    name: str,
    data: Mapping[str, Any],
    *,
    actor: str | None = None,
    tenant: str | None = None,
    command: Command = FRESH,
) -> Script[Job]:
    """
    Append an event that implies no status.

    Raises:
        Invalid: The name is not in the vocabulary, or the data cannot be stored.
        Refused: The name is the library's own to write.
    Locks: as `rows.lock`. Writes: event.
    """
    event = appendable(name)
    check_json(data)
    if not isinstance(data, Mapping) or len(encode(dict(data)).encode()) > EVENT_BYTES_MAX:
        raise Invalid(f"an event's data is a JSON object of at most {EVENT_BYTES_MAX} bytes", code="BAD_EVENT_DATA")
    known = yield from fetch(job_id, tenant)
    if not (yield from repeated(command, job_id)):
        record = Event(event, known.now, known.job.generation, None, actor, data)
        yield Each("event_insert", [event_row(known.job, record, command)])
    return known.job


def _apply(
    job_id: UUID, decide: Callable[..., Change], tenant: str | None, command: Command, *, terminal: bool = False
) -> Script[Job]:
    known = yield from fetch(job_id, tenant, terminal=terminal)
    if (yield from repeated(command, job_id)):
        return known.job
    change = decide(known.job, now=known.now)
    yield from save([(known, change)], command)
    return change.job
