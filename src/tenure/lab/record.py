"""
The normal form of what the database holds about a job: what the rules can tell apart, and nothing else.

Exploring terminates because states that no rule can tell apart are one state. What is dropped, and why that is honest:

- The instant itself. Every time is kept as its distance from now, in ticks, and only as far back as some rule looks.
- The generation's absolute value: rules compare generations and add one, so the distance of a lease from it is enough.
- The number of attempts: rules compare it with the budget, so what is left is enough. Its one other reader, the
  backoff, gives the same delay for every attempt where its base is the ceiling, as it is here.
- Attempt ids, which are only compared: an id is the current lease's, the open effect's, or of the past.
- The trail, texts, results, reasons, and the times that are shown to people: rules write them and do not read them.
  An error's code decides what later codes say, and nothing else.
- What is settled: whose attempt an effect was and when its call had to be over matter only while it is open, its
  receipt only where it succeeded, its first intent only where it may be begun again.

The tests follow random paths with whole, unreduced records beside the normal form and compare after every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from tenure.lab.configuration import Configuration
from tenure.rules import creation
from tenure.rules.authority import Authority
from tenure.rules.dispatch import ABSENT
from tenure.rules.effect import MARK, Effect, EffectState, SettledBy, StoredEvidence, operation_key
from tenure.rules.envelope import ExecutionInput
from tenure.rules.job import Job, Options
from tenure.rules.lease import Lease
from tenure.rules.outcome import Terms
from tenure.rules.status import Status
from tenure.rules.suspicion import Suspicion

# An hour, the longest backoff: with it as a base every delay ends within the next tick, whatever attempt it is.
TICK = timedelta(hours=1)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB_ID = UUID(int=0xA11CE)
EFFECT_NAME = "send"
BARE_KEY = "invoice-17"
DIGEST = "v1:request"
GENERATION = 10
_ATTEMPT_COUNT = 100
# A sweeper that is paused for longer between asking and applying the answer gives up and asks again.
QUESTION_TICKS = 2

# Symbols of attempts: indices of ATTEMPTS.
CURRENT, OPENED, PAST, NEW = range(4)
ATTEMPTS = tuple(UUID(int=number) for number in range(1, 5))
_EVIDENCE_ID = UUID(int=0xE)
# Longer than any distance that a book keeps, so the first intent's age need not be kept at all.
_FOR_GOOD = timedelta(days=365_000)


class LeaseForm(NamedTuple):
    """The current lease: whose, of which attempt, how far behind the job's generation, and the ticks left."""

    holder: int
    attempt: int
    behind: int
    left: int


class EffectForm(NamedTuple):
    """One effect or the bare mark."""

    name: str
    state: EffectState
    key: int
    ordinal: int
    digested: bool
    attempt: int
    created: int
    deadline: int
    receipt: int | None
    settled_by: SettledBy | None
    lookups: int
    asked: int | None


class EvidenceForm(NamedTuple):
    """One piece of stored evidence."""

    key: int
    attempt: int
    kind: str
    receipt: int | None
    contradicts: bool
    used: bool


class Book(NamedTuple):
    """All that the database holds about the job, in normal form."""

    status: Status
    attempts_left: int
    lease: LeaseForm | None
    run_in: int
    cancelled: bool
    escalated: bool
    finished: int
    effects: tuple[EffectForm, ...]
    evidence: tuple[EvidenceForm, ...]
    superseded: bool
    tenant_frozen: bool
    database_frozen: bool
    # Ticks from now to the recovery that marked it, while a begin would ask about it: as long as there is no record.
    marked: int | None = None


Stored = tuple[StoredEvidence, ...]


def ticks(distance: timedelta) -> int:
    """Whole ticks, upwards: between two ticks nothing happens, so a time in between is as good as the next tick."""
    return -(-distance // TICK)


def terms_of(configuration: Configuration) -> Terms:
    """What the configuration's provider declares."""
    retention = _FOR_GOOD if configuration.retention is None else configuration.retention * TICK
    return Terms(
        provider="provider",
        honours_key=configuration.honours_key,
        retention=retention if configuration.honours_key else None,
        lookup_complete=configuration.lookup_complete,
        settles_within=configuration.settles * TICK,
    )


def first_job(configuration: Configuration) -> Job:
    """The job as it is right after its creation; the creation rules make it."""
    made = creation.new_job(
        job_id=JOB_ID,
        organization="studio",
        project="sales",
        idempotency_key="quote-17",
        kind="send_quote",
        payload={"quote": 17},
        max_attempts=configuration.attempts,
        backoff_base=TICK,
        lease_duration=configuration.lease * TICK,
        on_reconciled=configuration.on_reconciled,
        on_declined=configuration.on_declined,
        execution=ExecutionInput(tenant="studio", actor="user:42", trace="t-1"),
        options=Options(escalate_after=configuration.escalate_after * TICK),
    )
    return Job(
        id=made.job_id,
        tenant=made.tenant,
        organization=made.organization,
        project=made.project,
        idempotency_key=made.idempotency_key,
        kind=made.kind,
        payload=made.payload,
        max_attempts=made.max_attempts,
        backoff_base=made.backoff_base,
        lease_duration=made.lease_duration,
        on_reconciled=made.on_reconciled,
        on_declined=made.on_declined,
        options=made.options,
        payload_digest=made.payload_digest,
        scheduled_at=NOW,
        created_at=NOW,
        run_at=NOW,
    )


class Forms:
    """Turns records into normal form and back, for one configuration."""

    def __init__(self, configuration: Configuration, skew: int = 0) -> None:
        self.configuration = configuration
        self.terms = terms_of(configuration)
        self.template = first_job(configuration)
        template = self.template
        self.keys = (
            (BARE_KEY,)
            if configuration.bare
            else tuple(operation_key(template.kind, template.id, EFFECT_NAME, ordinal) for ordinal in range(8))
        )
        self.numbers = {key: number for number, key in enumerate(self.keys)}
        self._skew = skew
        # A deadline this far back is over for every look-up, the oldest question included.
        self._long_over = -configuration.settles - QUESTION_TICKS
        # And so is a lost call's, whose deadline is counted from the recovery.
        self._long_ago = self._long_over - max(configuration.timeout, configuration.lease)

    def form(self, job: Job, stored: Sequence[StoredEvidence], now: datetime) -> Book:
        """The normal form of a record and of the evidence kept for it."""
        symbol = symbols(job)
        lease = None
        if job.lease is not None:
            lease = LeaseForm(
                self.configuration.workers.index(job.lease.worker_id),
                symbol(job.lease.attempt_id),
                job.generation - job.lease.generation,
                max(ticks(job.lease.expires_at - now), -1 - self._skew),
            )
        finished = 0
        if self.configuration.patient and job.finished_at is not None:
            finished = max(ticks(job.finished_at - now), -self.configuration.escalate_after)
        return Book(
            status=job.status,
            attempts_left=job.max_attempts - job.attempt_count,
            lease=lease,
            run_in=max(ticks(job.run_at - now), 0) if job.status is Status.QUEUED else 0,
            cancelled=job.cancel_requested_at is not None,
            escalated=job.escalated_at is not None,
            finished=finished,
            effects=tuple(self._effect(effect, symbol, now) for effect in job.effects),
            evidence=_without_repeats(
                EvidenceForm(
                    self.numbers[e.operation_key],
                    PAST if e.attempt_id is None else symbol(e.attempt_id),
                    e.kind,
                    e.receipt,
                    e.contradicts,
                    e.used,
                )
                for e in stored
                # A statement without an effect to speak of, or of an absence, is never looked at again.
                if e.operation_key and e.kind != ABSENT
            ),
            superseded=job.epoch != job.authority.epoch,
            tenant_frozen=job.authority.tenant_frozen,
            database_frozen=job.authority.database_frozen,
            marked=self._marked(job, now),
        )

    def _marked(self, job: Job, now: datetime) -> int | None:
        if job.suspicion is None or job.effects:
            return None
        return max(ticks(job.suspicion.marked_at - now), self._long_ago)

    def _effect(self, effect: Effect, symbol: Callable[[UUID], int], now: datetime) -> EffectForm:
        failed = effect.state is EffectState.FAILED_BEFORE_DISPATCH
        again = bool(effect.request_digest) and (effect.is_open or failed)
        retention = self.configuration.retention
        asked = None
        if self.configuration.patient and effect.is_open and effect.asked_at is not None:
            asked = max(ticks(effect.asked_at - now), -1)
        return EffectForm(
            name=effect.name,
            state=effect.state,
            key=self.numbers[effect.operation_key],
            ordinal=effect.ordinal,
            digested=bool(effect.request_digest),
            attempt=symbol(effect.attempt_id) if effect.is_open else PAST,
            created=max(ticks(effect.created_at - now), -retention) if again and retention is not None else 0,
            deadline=max(ticks(effect.deadline_at - now), self._long_over) if effect.is_open else 0,
            receipt=effect.receipt if effect.state is EffectState.SUCCEEDED else None,
            settled_by=effect.settled_by,
            lookups=min(effect.lookups, 1) if self.configuration.patient and effect.is_open else 0,
            asked=asked,
        )

    def job(self, book: Book) -> Job:
        """A record of which this is the normal form, at the instant NOW."""
        lease = None
        if book.lease is not None:
            lease = Lease(
                JOB_ID,
                self.configuration.workers[book.lease.holder],
                ATTEMPTS[book.lease.attempt],
                GENERATION - book.lease.behind,
                NOW + book.lease.left * TICK,
                self.configuration.lease * TICK,
            )
        return replace(
            self.template,
            status=book.status,
            attempt_count=_ATTEMPT_COUNT,
            max_attempts=_ATTEMPT_COUNT + book.attempts_left,
            generation=GENERATION,
            lease=lease,
            claimed_at=NOW if lease else None,
            run_at=NOW + book.run_in * TICK,
            cancel_requested_at=NOW if book.cancelled else None,
            cancel_reason="asked" if book.cancelled else None,
            escalated_at=NOW if book.escalated else None,
            escalation_reason="look" if book.escalated else None,
            finished_at=NOW + book.finished * TICK if book.status not in _UNFINISHED else None,
            effects=tuple(self._whole(effect) for effect in book.effects),
            authority=Authority(2 if book.superseded else 1, book.tenant_frozen, book.database_frozen),
            suspicion=None if book.marked is None else Suspicion(NOW + book.marked * TICK, NOW, GENERATION - 1),
        )

    def _whole(self, form: EffectForm) -> Effect:
        return Effect(
            name=form.name,
            state=form.state,
            operation_key=self.keys[form.key],
            request_digest=DIGEST if form.digested else "",
            attempt_id=ATTEMPTS[form.attempt],
            generation=GENERATION,
            created_at=NOW + form.created * TICK,
            begun_at=NOW + form.created * TICK,
            deadline_at=NOW + form.deadline * TICK,
            terms=None if form.name == MARK else self.terms,
            receipt=form.receipt,
            settled_at=None if form.settled_by is None else NOW,
            settled_by=form.settled_by,
            ordinal=form.ordinal,
            lookups=form.lookups,
            asked_at=None if form.asked is None else NOW + form.asked * TICK,
        )

    def stored(self, book: Book) -> Stored:
        """The evidence of a book, as records."""
        return tuple(
            StoredEvidence(
                UUID(int=_EVIDENCE_ID.int + number),
                self.keys[form.key],
                ATTEMPTS[form.attempt],
                form.kind,
                form.receipt,
                None,
                NOW,
                form.contradicts,
                form.used,
            )
            for number, form in enumerate(book.evidence)
        )

    def later(self, book: Book) -> Book:
        """The book one tick later: nothing but the distances change."""
        return self.form(self.job(book), self.stored(book), NOW + TICK)


_UNFINISHED = frozenset({Status.QUEUED, Status.CLAIMED, Status.RUNNING})


def symbols(job: Job) -> Callable[[UUID], int]:
    """How the ids of attempts are named after this record."""
    current = job.lease.attempt_id if job.lease is not None else None
    others = {effect.attempt_id for effect in job.effects if effect.is_open and effect.attempt_id != current}
    assert len(others) <= 1, "one effect at a time is open"
    opened = next(iter(others), None)

    def symbol(attempt: UUID) -> int:
        if attempt == current:
            return CURRENT
        return OPENED if attempt == opened else PAST

    return symbol


def _without_repeats(forms: object) -> tuple[EvidenceForm, ...]:
    """A second copy of the same evidence tells no rule anything."""
    return tuple(dict.fromkeys(forms))  # type: ignore[call-overload]
