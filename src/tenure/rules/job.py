"""
The job: one record, from accepted to a terminal status, and the one way to change its status.

A move takes the record as the store locked it and the store's `now`, and gives back a `Change`: the new record, its
events and its effects. `move` is the only place that changes a status; it asks the table and guards two invariants that
no single rule could be trusted to remember: nothing with an open boundary and nothing with a pending cancellation is
ever queued.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tenure.errors import IllegalMove, TenureError
from tenure.rules.authority import Authority
from tenure.rules.effect import MARK, Effect, Intent, StoredEvidence, open_effects
from tenure.rules.event import STATUS_AFTER, Event, EventName
from tenure.rules.lease import Lease
from tenure.rules.status import LIVE, Phase, Status, may_move
from tenure.rules.suspicion import FINAL, Suspicion

if TYPE_CHECKING:
    from tenure.rules.approval import Approval


@dataclass(frozen=True, slots=True)
class Options:
    """
    What a kind asks for beyond the basic limits; stored with the body.

    Attributes:
        retry_timeouts: A handler that runs out of time is a retryable failure instead of timed_out.
        recovery_window: No retry starts later than this after creation.
        escalate_after: How long the worker's sweeper asks a provider again before a person is asked.
        providers: Names of the providers the handler uses.
    """

    retry_timeouts: bool = False
    recovery_window: timedelta | None = None
    escalate_after: timedelta = timedelta(minutes=10)
    providers: tuple[str, ...] = ()


DEFAULT_OPTIONS = Options()

# Why a queued job is not offered where its queue is paused: said by the queue's row, wherever the job's own is.
PAUSED = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """
    One obligation with a lifecycle.

    Attributes:
        max_attempts: The budget including what operators granted.
        unreadable: Why the stored payload cannot be read; such a job fails at its first attempt.
        generation: The fencing token; 0 at creation.
        scheduled_at: When it was first meant to run.
        run_at: When it may run next; equal to `scheduled_at` until a retry.
        epoch: The tenant's epoch that the work is stamped with.
        parked: Why a queued job is not offered to workers, None when it is.
        effects: Every effect and the bare mark, oldest intent first.
        authority: The tenant's authority as of the same lock.
        suspicion: The mark of a recovery. A claim does not read it, as it reads no escalation; a begin does.
    """

    id: UUID
    tenant: str
    organization: str
    project: str
    idempotency_key: str
    subject: str | None = None
    kind: str
    kind_version: int = 1
    queue: str = "default"
    priority: int = 0
    status: Status = Status.QUEUED
    attempt_count: int = 0
    max_attempts: int = 3
    generation: int = 0
    payload: Mapping[str, Any]
    unreadable: str | None = None
    result: Any = None
    error_code: str | None = None
    error_message: str | None = None
    scheduled_at: datetime
    created_at: datetime
    finished_at: datetime | None = None
    escalated_at: datetime | None = None
    escalation_reason: str | None = None
    cancel_requested_at: datetime | None = None
    cancel_reason: str | None = None
    run_at: datetime
    backoff_base: timedelta = timedelta(seconds=30)
    lease_duration: timedelta = timedelta(seconds=60)
    on_reconciled: str | None = None
    on_declined: str = "failed"
    options: Options = DEFAULT_OPTIONS
    payload_digest: str = ""
    operation_digest: str = ""
    epoch: int = 1
    parked: str | None = None
    progress: str | None = None
    lease: Lease | None = None
    claimed_at: datetime | None = None
    effects: tuple[Effect, ...] = ()
    authority: Authority = field(default=Authority())
    suspicion: Suspicion | None = None

    @property
    def suspect(self) -> bool:
        """It comes from a restored database: what it did after the copy was made is not known here."""
        return self.suspicion is not None and self.status not in FINAL

    @property
    def mark(self) -> Effect | None:
        """The bare dispatch mark, if one was ever set."""
        return next((effect for effect in self.effects if effect.name == MARK), None)

    @property
    def dispatch(self) -> Effect | None:
        """The bare mark, or else the effect that was begun last."""
        return self.mark or max(self.effects, key=lambda effect: effect.begun_at, default=None)

    @property
    def operation_key(self) -> str | None:
        """The key to ask a provider by; with several effects, the one begun last."""
        return self.dispatch.operation_key if self.dispatch else None

    @property
    def dispatched_at(self) -> datetime | None:
        """When the dispatch boundary was last crossed."""
        return self.dispatch.begun_at if self.dispatch else None

    @property
    def held_reason(self) -> str | None:
        """Why queued work may not run: a superseded epoch, a frozen tenant, a frozen database; None where it may."""
        return self.authority.held(self.epoch) if self.status is Status.QUEUED else None

    @property
    def phase(self) -> Phase:
        """What people see."""
        return phase(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """
    What a rule decided; one transaction writes all of it.

    Attributes:
        job: The record after it.
        effects: Effect records that are new or changed.
        evidence: Evidence records that are new or changed.
        approval: The approval that the job consumes by it.
        error: Raised to the caller after the commit.
        answer: What the verb gives back when that is not the job.
    """

    job: Job
    events: tuple[Event, ...] = ()
    effects: tuple[Effect, ...] = ()
    intents: tuple[Intent, ...] = ()
    evidence: tuple[StoredEvidence, ...] = ()
    approval: Approval | None = None
    error: TenureError | None = None
    answer: Any = None


def open_boundary(job: Job) -> bool:
    """Say whether the job's outcome is uncertain: the one predicate every rule asks."""
    return any(effect.is_open for effect in job.effects)


def open_named(job: Job) -> tuple[Effect, ...]:
    """The open effects that have a name."""
    return tuple(effect for effect in open_effects(job.effects) if effect.name != MARK)


def find_effect(job: Job, name: str) -> Effect | None:
    """The record of one effect by its name."""
    return next((effect for effect in job.effects if effect.name == name), None)


def with_effect(job: Job, effect: Effect) -> Job:
    """The record with one effect added or replaced."""
    if find_effect(job, effect.name) is None:
        return replace(job, effects=(*job.effects, effect))
    return replace(job, effects=tuple(effect if known.name == effect.name else known for known in job.effects))


def phase(job: Job) -> Phase:
    """Derive what people see from the record."""
    match job.status:
        case Status.CLAIMED | Status.RUNNING:
            return Phase.LEASED
        case Status.QUEUED:
            return Phase.READY if job.authority.admits(job.epoch) and job.parked != PAUSED else Phase.HELD
        case Status.COMPLETED:
            return Phase.DONE
        case Status.CANCELLED if not open_boundary(job):
            return Phase.DONE
        case _:
            return Phase.NEEDS_ATTENTION


def move(
    job: Job,
    status: Status,
    name: EventName,
    now: datetime,
    *,
    command: str | None = None,
    actor: str | None = None,
    data: Mapping[str, Any] | None = None,
    effects: tuple[Effect, ...] = (),
    **fields: Any,
) -> Change:
    """
    Change a status: ask the table, keep the invariants, write the event.

    Args:
        command: The named exception this move belongs to, if any.
        effects: Effect records that this move changes.
        fields: Other fields of the record after the move.
    Raises:
        IllegalMove: The table does not allow it.
    """
    if not (may_move(job.status, status, command) or (status is job.status and status in STATUS_AFTER[name])):
        raise illegal(job, f"become {status}")
    assert status in STATUS_AFTER[name], f"{name} does not leave {status}"
    after = job
    for effect in effects:
        after = with_effect(after, effect)
    if status not in LIVE:
        fields.setdefault("lease", None)
        fields.setdefault("claimed_at", None)
        fields.setdefault("progress", None)
    if status is Status.QUEUED:
        fields.setdefault("finished_at", None)
        assert not open_boundary(after), "a job with an open boundary is never queued"
        assert job.cancel_requested_at is None or fields.get("cancel_requested_at", job) is None, (
            "a job with a pending cancellation is never queued"
        )
    elif status not in LIVE:
        fields.setdefault("finished_at", now)
    after = replace(after, status=status, **fields)
    event = Event(name, now, after.generation, status, actor, data or {})
    return Change(job=after, events=(event,), effects=effects)


def note(
    job: Job, name: EventName, now: datetime, *, actor: str | None = None, data: Mapping[str, Any] | None = None
) -> Event:
    """Make an event that changes no status."""
    assert not STATUS_AFTER[name] or job.status in STATUS_AFTER[name], f"{name} implies a status"
    return Event(name, now, job.generation, None, actor, data or {})


def illegal(job: Job, wanted: str) -> IllegalMove:
    """Word the refusal of a move."""
    return IllegalMove(f"job {job.id} is {job.status} and cannot {wanted}")
