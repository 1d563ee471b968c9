"""
What waits, what runs and what needs somebody: a category for every job that is not done, and why it is in it.

`TABLE` is read from its top, and the first line whose condition holds decides; so every job is counted once. A reason
says what is missing, in words a program can branch on. The database counts groups of jobs with the same facts; nothing
here sees a payload, a receipt or the text of an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from tenure.rules.status import LIVE, TERMINAL, Status


class Category(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    SCHEDULED = "scheduled"
    HELD = "held"
    RUNNING = "running"
    EXPIRED = "expired"
    UNKNOWN = "unknown"
    CANCELLED = "cancelled"
    ESCALATED = "escalated"
    POISON = "poison"
    FAILED = "failed"
    HALTED = "halted"


class Missing(StrEnum):
    """What a job waits for."""

    NOTHING = "nothing"
    CAPACITY = "capacity"
    AUTHORITY = "authority"
    CONFIGURATION = "configuration"
    PROVIDER = "provider"
    PERSON = "person"


class Reason(StrEnum):
    """Why a job is in its category."""

    NOT_DUE = "not_due"
    IN_FLIGHT = "in_flight"
    CANCEL_REQUESTED = "cancel_requested"
    WORKERS_BUSY = "workers_busy"
    NO_WORKER = "no_worker"
    NO_OWNER_WORKER = "no_owner_worker"
    LOST = "worker_lost"
    EPOCH_CLOSED = "epoch_closed"
    TENANT_FROZEN = "tenant_frozen"
    DATABASE_FROZEN = "database_frozen"
    QUEUE_PAUSED = "queue_paused"
    UNKNOWN_KIND = "unknown_kind"
    UNREADABLE_PAYLOAD = "unreadable_payload"
    UNKNOWN_PROVIDER = "unknown_provider"
    ASK_PROVIDER = "ask_provider"
    ASK_PERSON = "ask_person"
    ATTEMPTS_USED_UP = "attempts_used_up"
    FAILED_FOR_GOOD = "failed_for_good"
    NEVER_AGAIN = "never_again"


MISSING: Mapping[Reason, Missing] = {
    Reason.NOT_DUE: Missing.NOTHING,
    Reason.IN_FLIGHT: Missing.NOTHING,
    Reason.CANCEL_REQUESTED: Missing.NOTHING,
    Reason.WORKERS_BUSY: Missing.CAPACITY,
    Reason.NO_WORKER: Missing.CAPACITY,
    Reason.NO_OWNER_WORKER: Missing.CAPACITY,
    Reason.LOST: Missing.CAPACITY,
    Reason.EPOCH_CLOSED: Missing.AUTHORITY,
    Reason.TENANT_FROZEN: Missing.AUTHORITY,
    Reason.DATABASE_FROZEN: Missing.AUTHORITY,
    Reason.QUEUE_PAUSED: Missing.AUTHORITY,
    Reason.UNKNOWN_KIND: Missing.CONFIGURATION,
    Reason.UNREADABLE_PAYLOAD: Missing.CONFIGURATION,
    Reason.UNKNOWN_PROVIDER: Missing.CONFIGURATION,
    Reason.ASK_PROVIDER: Missing.PROVIDER,
    Reason.ASK_PERSON: Missing.PERSON,
    Reason.ATTEMPTS_USED_UP: Missing.PERSON,
    Reason.FAILED_FOR_GOOD: Missing.PERSON,
    Reason.NEVER_AGAIN: Missing.PERSON,
}

# The codes of failures that say that a payload does not fit its kind, now or ever.
PAYLOAD_CODES = ("UNREADABLE_PAYLOAD", "PAYLOAD_INVALID")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """
    What is known about the jobs of one group.

    Attributes:
        due: Its time has come.
        admitted: It is stamped with the tenant's current epoch.
        expired: Its lease has run out, and nobody has settled it yet.
        open: Its boundary is open: the world may have acted.
        code: Why it failed, where that is one of `PAYLOAD_CODES`.
        announced: A live worker knows the kind.
        owned: One of those may claim from the queue, whose owner it is.
        known: A worker has announced the kind at some time.
        provided: A live worker has the provider to be asked, or it is not known which one that would be.
    """

    status: Status
    due: bool = True
    admitted: bool = True
    tenant_frozen: bool = False
    database_frozen: bool = False
    paused: bool = False
    expired: bool = False
    cancelling: bool = False
    open: bool = False
    escalated: bool = False
    code: str | None = None
    announced: bool = True
    owned: bool = True
    known: bool = True
    provided: bool = True


def _queued(fact: Fact) -> bool:
    return fact.status is Status.QUEUED


def _expired(fact: Fact) -> bool:
    return fact.status in LIVE and fact.expired


def _running(fact: Fact) -> bool:
    return fact.status in LIVE


def _uncertain(fact: Fact) -> bool:
    return fact.status in TERMINAL and fact.open


TABLE: tuple[tuple[Category, Reason, Callable[[Fact], bool]], ...] = (
    (Category.ESCALATED, Reason.ASK_PERSON, lambda f: f.escalated),
    (Category.HELD, Reason.DATABASE_FROZEN, lambda f: _queued(f) and f.database_frozen),
    (Category.HELD, Reason.TENANT_FROZEN, lambda f: _queued(f) and f.tenant_frozen),
    (Category.HELD, Reason.EPOCH_CLOSED, lambda f: _queued(f) and not f.admitted),
    (Category.HELD, Reason.QUEUE_PAUSED, lambda f: _queued(f) and f.paused),
    (Category.SCHEDULED, Reason.NOT_DUE, lambda f: _queued(f) and not f.due),
    (Category.QUEUED, Reason.UNKNOWN_KIND, lambda f: _queued(f) and not f.known),
    (Category.QUEUED, Reason.NO_WORKER, lambda f: _queued(f) and not f.announced),
    (Category.QUEUED, Reason.NO_OWNER_WORKER, lambda f: _queued(f) and not f.owned),
    (Category.QUEUED, Reason.WORKERS_BUSY, _queued),
    # Recovery writes nothing there.
    (Category.EXPIRED, Reason.DATABASE_FROZEN, lambda f: _expired(f) and f.database_frozen),
    (Category.EXPIRED, Reason.TENANT_FROZEN, lambda f: _expired(f) and f.tenant_frozen),
    (Category.EXPIRED, Reason.UNKNOWN_PROVIDER, lambda f: _expired(f) and f.open and not f.provided),
    (Category.EXPIRED, Reason.ASK_PROVIDER, lambda f: _expired(f) and f.open),
    (Category.EXPIRED, Reason.LOST, _expired),
    # Everything that such a worker sends is refused.
    (Category.RUNNING, Reason.DATABASE_FROZEN, lambda f: _running(f) and f.database_frozen),
    (Category.RUNNING, Reason.TENANT_FROZEN, lambda f: _running(f) and f.tenant_frozen),
    (Category.RUNNING, Reason.EPOCH_CLOSED, lambda f: _running(f) and not f.admitted),
    (Category.RUNNING, Reason.CANCEL_REQUESTED, lambda f: _running(f) and f.cancelling),
    (Category.RUNNING, Reason.IN_FLIGHT, _running),
    # A sweep asks nobody about it.
    (Category.UNKNOWN, Reason.ASK_PERSON, lambda f: f.status is Status.TIMED_OUT),
    (
        Category.CANCELLED,
        Reason.UNKNOWN_PROVIDER,
        lambda f: f.status is Status.CANCELLED and f.open and not f.provided,
    ),
    (Category.CANCELLED, Reason.ASK_PROVIDER, lambda f: f.status is Status.CANCELLED and f.open),
    (Category.UNKNOWN, Reason.UNKNOWN_PROVIDER, lambda f: _uncertain(f) and not f.provided),
    (Category.UNKNOWN, Reason.ASK_PROVIDER, _uncertain),
    (Category.UNKNOWN, Reason.ASK_PERSON, lambda f: f.status is Status.INDETERMINATE),
    (Category.POISON, Reason.ATTEMPTS_USED_UP, lambda f: f.status is Status.DEAD_LETTER),
    (Category.HALTED, Reason.NEVER_AGAIN, lambda f: f.status is Status.HALT_UNSAFE),
    (
        Category.FAILED,
        Reason.UNREADABLE_PAYLOAD,
        lambda f: f.status is Status.FAILED and f.code in PAYLOAD_CODES,
    ),
    (Category.FAILED, Reason.FAILED_FOR_GOOD, lambda f: f.status is Status.FAILED),
)


def judge(fact: Fact) -> tuple[Category, Reason] | None:
    """Give the category of a group and the reason; None for what is done and needs nobody."""
    return next(((category, reason) for category, reason, holds in TABLE if holds(fact)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsLine:
    """
    Jobs of one tenant, kind and queue that are in the same category for the same reason.

    Attributes:
        missing: What they wait for.
        oldest_at: Since when the first of them is there; of scheduled ones, when the first comes due.
        oldest_age: How long that is ago; zero where it is still to come.
    """

    tenant: str
    kind: str
    queue: str
    category: Category
    reason: Reason
    missing: Missing
    count: int
    oldest_at: datetime
    oldest_age: timedelta


@dataclass(frozen=True, slots=True)
class Stats:
    """
    What waits, runs and needs somebody, at one instant of the store's clock.

    Attributes:
        lines: By tenant, kind, queue, category and reason. Work that is done is in none.
        oldest_expired_lease_seconds: Of each tenant that has a line, how long ago the first of its leases ran out that
            nobody has settled yet; 0.0 where there is none.
    """

    at: datetime
    lines: tuple[StatsLine, ...]
    oldest_expired_lease_seconds: Mapping[str, float]

    def count(self, category: Category | str, reason: Reason | str | None = None) -> int:
        """Count the jobs of a category, for any reason or for one."""
        return sum(one.count for one in self.lines if one.category == category and reason in {None, one.reason})


def assemble(found: Mapping[tuple[str, str, str, Category, Reason], tuple[int, datetime]], now: datetime) -> Stats:
    """Make the answer of what was counted: how many, and since when the first."""
    lines = []
    late: dict[str, float] = {}
    for (tenant, kind, queue, category, reason), (count, since) in sorted(found.items()):
        age = max(now - since, timedelta(0))
        lines.append(
            StatsLine(
                tenant=tenant,
                kind=kind,
                queue=queue,
                category=category,
                reason=reason,
                missing=MISSING[reason],
                count=count,
                oldest_at=since,
                oldest_age=age,
            )
        )
        seconds = age.total_seconds() if category is Category.EXPIRED else 0.0
        late[tenant] = max(late.get(tenant, 0.0), seconds)
    return Stats(now, tuple(lines), late)
