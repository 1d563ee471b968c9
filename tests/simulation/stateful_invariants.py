"""What must be true of a stored job whatever was done to it; the tables are written here by hand, from the contract."""

from __future__ import annotations

from collections.abc import Iterable

from tenure.rules.job import Job
from tests.simulation.stateful_stage import Stored

_ENDS = {"failed", "cancelled", "dead_letter", "indeterminate", "halt_unsafe", "timed_out"}
# A claim that starts, and a renewal or a dispatch that promotes, are one event for two steps of the table.
_MOVES = {
    "queued": {"claimed", "running", "cancelled"},
    "claimed": {"running", "queued", *_ENDS},
    "running": {"running", "completed", "queued", *_ENDS},
}
_BY_COMMAND = {
    ("failed", "retried"): {"queued"},
    ("indeterminate", "reconciled"): {"completed", "failed", "dead_letter", "cancelled", "queued"},
    ("timed_out", "reconciled"): {"completed", "failed", "dead_letter", "cancelled", "queued"},
}
_OPEN = {"pending", "unknown"}


def broken(stored: Stored, before: Job | None) -> list[str]:
    """
    Give every violation in one job, in words.

    Args:
        before: The record as it was seen last.
    """
    job = stored.job
    return [
        f"{job.id}: {said}"
        for said in (
            *_place(stored),
            *_moves(stored),
            *_generations(stored, before),
            *_intents(stored),
            *_scope(job, before),
        )
    ]


def _place(stored: Stored) -> Iterable[str]:
    job = stored.job
    if len(stored.places) != 1:
        yield f"it is in {stored.places}"
    if (job.lease is not None) != (job.status in {"claimed", "running"}):
        yield f"it is {job.status} and its lease is {job.lease}"
    if job.status == "queued" and any(effect.state in _OPEN for effect in job.effects):
        yield "it is queued with an open boundary"
    if job.status == "queued" and job.cancel_requested_at is not None:
        yield "it is queued with a pending cancellation"


def _moves(stored: Stored) -> Iterable[str]:
    status = "queued"
    for event in stored.trail:
        if event.status is None:
            continue
        if event.status not in _MOVES.get(status, set()) | _BY_COMMAND.get((status, event.name), set()):
            yield f"it went from {status} to {event.status} by {event.name}"
        status = event.status.value
    if status != stored.job.status:
        yield f"it is {stored.job.status} and its trail says {status}"


def _generations(stored: Stored, before: Job | None) -> Iterable[str]:
    last = claimed = 0
    for event in stored.trail:
        if event.generation < last:
            yield f"its generation fell from {last} to {event.generation}"
        if event.name == "claimed":
            if event.generation <= claimed:
                yield f"a claim left generation {event.generation}"
            claimed = event.generation
        last = event.generation
    if stored.job.generation < max(last, before.generation if before else 0):
        yield f"its generation fell to {stored.job.generation}"


def _intents(stored: Stored) -> Iterable[str]:
    sent: set[str] = set()
    for event in stored.trail:
        key = str(event.data.get("operation_key"))
        if event.name == "dispatched" and event.data.get("sent"):
            if key in sent:
                yield f"a second intent for {key} while the first may have arrived"
            sent.add(key)
        # A refusal settles it too: a bare mark may be set again after one, a named effect gets another key.
        elif event.name == "effect_settled" and event.data.get("state") in {"failed_before_dispatch", "rejected"}:
            sent.discard(key)


def _scope(job: Job, before: Job | None) -> Iterable[str]:
    if before is not None and (job.tenant, job.organization, job.project) != (
        before.tenant,
        before.organization,
        before.project,
    ):
        yield f"it was of {before.tenant} and is of {job.tenant}"
