"""
The oracle of the stateful test: every job as one record in memory, moved by the shipped rules alone.

It knows no database. What a verb must do is asked of `tenure.rules` with the record and the clock; what belongs to the
procedures (whose id is found, which job a claim takes, in which order a sweep asks) is written here a second time, from
the contract. Ids that a store makes are learned from its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

from tenure.errors import Conflict, IllegalMove, LeaseLost, NotFound, TenureError
from tenure.rules import dispatch, moves, reconcile
from tenure.rules.creation import new_job
from tenure.rules.digest import operation_digest, payload_digest, request_digest
from tenure.rules.effect import MARK, Effect, Intent, StoredEvidence
from tenure.rules.event import Event, appendable
from tenure.rules.job import Change, Job, find_effect, open_boundary
from tenure.rules.lease import Lease
from tenure.rules.outcome import Evidence, FailedBeforeDispatch, NoAnswer, Outcome, Terms
from tenure.rules.status import LIVE, TERMINAL, Status
from tenure.yields import new_id

Target: TypeAlias = Hashable
Learn: TypeAlias = Callable[[Any], "tuple[Change, ...]"]


@dataclass
class Kept:
    """
    One job as it must be stored.

    Attributes:
        waits: Where it waits while it is queued: ready or deferred.
        claim_id: Of the claim that made its present lease.
    """

    job: Job
    trail: list[Event] = field(default_factory=list)
    intents: list[Intent] = field(default_factory=list)
    evidence: list[StoredEvidence] = field(default_factory=list)
    waits: str = "ready"
    claim_id: UUID | None = None

    @property
    def place(self) -> str:
        """The one table its state must be in."""
        if self.job.status is Status.QUEUED:
            return self.waits
        if self.job.status in LIVE:
            return "lease"
        return "resting" if self.job.status in {Status.INDETERMINATE, Status.TIMED_OUT} else "outcome"


@dataclass(frozen=True)
class Decision:
    """
    What a verb must do.

    Attributes:
        changes: What it writes.
        error: What its caller gets instead of an answer, before or after the commit.
        worded: The text of the error comes from the rules and must be the same.
        answer: What its caller gets.
        locks: The rows that it keeps until its transaction ends.
        learn: Takes the answer and gives further changes, where the store makes ids.
        promoted: Jobs that this claim moved to where claims look.
        claim: The claim id and what it stands for.
    """

    changes: tuple[Change, ...] = ()
    error: TenureError | None = None
    worded: bool = True
    answer: Any = None
    locks: frozenset[Target] = frozenset()
    learn: Learn | None = None
    promoted: tuple[UUID, ...] = ()
    claim: tuple[UUID, tuple[Any, ...]] | None = None


def refused(error: TenureError, *, worded: bool = True) -> Decision:
    """Give the decision of a verb that writes nothing."""
    return Decision(error=error, worded=worded)


def ordered(job: Job) -> Job:
    """Give the record with its effects as they are read: oldest intent first."""
    return replace(job, effects=tuple(sorted(job.effects, key=lambda effect: (effect.created_at, effect.name))))


class Oracle:
    """
    Every job in memory.

    Args:
        now: The clock that the store uses too.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.now = now
        self.kept: dict[UUID, Kept] = {}
        self.keys: dict[tuple[str, str, str], UUID] = {}
        self.claims: dict[UUID, tuple[Any, ...]] = {}
        self.attempts: set[UUID] = set()

    def apply(self, decision: Decision, answer: Any) -> None:
        """Take over what a committed transaction wrote."""
        for job_id in decision.promoted:
            self.kept[job_id].waits = "ready"
        learned = decision.learn(answer) if decision.learn is not None and decision.error is None else ()
        for change in (*decision.changes, *learned):
            self._write(change)
        if decision.claim is not None:
            claim_id, stands_for = decision.claim
            self.claims[claim_id] = stands_for
            self.kept[stands_for[-1]].claim_id = claim_id

    def _write(self, change: Change) -> None:
        job = ordered(change.job)
        kept = self.kept.get(job.id)
        if kept is None:
            kept = self.kept[job.id] = Kept(job)
            self.keys[job.tenant, job.project, job.idempotency_key] = job.id
            kept.waits = self._waits(job)
        elif job.status is Status.QUEUED and kept.job.status is not Status.QUEUED:
            kept.waits = self._waits(job)
        if job.status not in LIVE:
            kept.claim_id = None
        kept.job = job
        kept.trail += change.events
        kept.intents += change.intents
        for record in change.evidence:
            nth = next((nth for nth, known in enumerate(kept.evidence) if known.id == record.id), None)
            if nth is None:
                kept.evidence.append(record)
            else:
                kept.evidence[nth] = record

    def _waits(self, job: Job) -> str:
        return "ready" if job.run_at <= self.now() else "deferred"

    def _find(self, job_id: UUID, tenant: str | None) -> Kept:
        kept = self.kept.get(job_id)
        if kept is None or tenant not in {None, kept.job.tenant}:
            raise NotFound(f"no job {job_id} in this scope")
        return kept

    # --- one job ------------------------------------------------------------------------------------------------------

    def one(self, job_id: UUID, tenant: str | None, rule: Callable[[Kept], Change]) -> Decision:
        """Decide a verb that speaks of one job."""
        try:
            change = rule(self._find(job_id, tenant))
        except TenureError as error:
            return refused(error)
        return Decision((change,), error=change.error, answer=change.job, locks=frozenset({job_id}))

    def heartbeat(self, lease: Lease, tenant: str | None) -> Decision:
        """Decide a renewal: a lost lease and a pending cancellation are False, not errors."""
        decision = self.one(lease.job_id, tenant, lambda kept: moves.renew(kept.job, lease, self.now()))
        if isinstance(decision.error, NotFound):
            return decision
        if decision.error is not None:
            return Decision(answer=False, locks=frozenset({lease.job_id}))
        return replace(decision, answer=True)

    def begin(
        self,
        lease: Lease,
        tenant: str | None,
        *,
        name: str,
        request: Any,
        terms: Terms,
        timeout: timedelta,
        resend: bool,
    ) -> Decision:
        """Decide the intent of one call."""
        digest = request_digest(request)
        decision = self.one(
            lease.job_id,
            tenant,
            lambda kept: dispatch.begin(kept.job, lease, name, digest, terms, timeout, self.now(), resend=resend),
        )
        if decision.error is not None:
            return decision
        return replace(decision, answer=decision.changes[0].answer.effect)

    def mark(self, lease: Lease, tenant: str | None, key: str) -> Decision:
        """Decide a bare mark: its key may be of no other job."""
        decision = self.one(lease.job_id, tenant, lambda kept: dispatch.mark(kept.job, lease, key, self.now()))
        if decision.error is not None:
            return decision
        job = decision.changes[0].job
        for other in self.kept.values():
            own = other.job.id == job.id or other.job.tenant != job.tenant
            if not own and key in {effect.operation_key for effect in other.job.effects}:
                return refused(Conflict("the key is of another job", code="KEY_IN_USE"), worded=False)
        return replace(decision, locks=decision.locks | {("operation", job.tenant, key)})

    def finish(self, lease: Lease, tenant: str | None, name: str, outcome: Outcome) -> Decision:
        """Decide an outcome: a holder that lost its lease is refused, and what its call proved is kept."""

        def rule(kept: Kept) -> Change:
            try:
                return dispatch.finish(kept.job, lease, name, outcome, kept.evidence, self.now())
            except LeaseLost as lost:
                return self._late(kept, lease, name, outcome, lost)
            except IllegalMove as refused:
                change = self._late(kept, lease, name, outcome, refused)
                # A second receipt is the proof of a duplicate; anything else leaves no trace.
                if not any(one.contradicts for one in change.evidence):
                    raise
                return change

        return self.one(lease.job_id, tenant, rule)

    def _late(self, kept: Kept, lease: Lease, name: str, outcome: Outcome, lost: LeaseLost | IllegalMove) -> Change:
        effect = find_effect(kept.job, name)
        evidence = None if effect is None else dispatch.evidence_of(outcome, effect)
        # The call was made under the key of its own intent; a reopened effect has a later one.
        prefix = f"{kept.job.kind}:{kept.job.id}:{name}"
        own = [
            intent.operation_key
            for intent in kept.intents
            if intent.attempt_id == lease.attempt_id and intent.operation_key.partition("#")[0] == prefix
        ]
        if evidence is None or not own:
            raise lost
        key = own[-1]
        record = dispatch.stored_evidence(new_id(), key, lease.attempt_id, evidence, self.now())
        disputed = any(one.contradicts for one in kept.evidence)
        return dispatch.receive(kept.job, key, lease.attempt_id, record, self.now(), error=lost, disputed=disputed)

    def submit(
        self, tenant: str | None, key: str, evidence: Evidence | FailedBeforeDispatch, attempt_id: UUID
    ) -> Decision:
        """Decide a late receipt: it must match an intent, and the same one twice changes nothing."""
        job_id = self.intended(tenant, key, attempt_id)
        if job_id is None:
            return refused(NotFound("no such intent"), worded=False)

        def rule(kept: Kept) -> Change:
            record = dispatch.stored_evidence(new_id(), key, attempt_id, evidence, self.now())
            said = (record.operation_key, record.attempt_id, record.kind, record.receipt, record.reason)
            for known in kept.evidence:
                if said == (known.operation_key, known.attempt_id, known.kind, known.receipt, known.reason):
                    return Change(job=kept.job)
            disputed = any(one.contradicts for one in kept.evidence)
            return dispatch.receive(kept.job, key, attempt_id, record, self.now(), disputed=disputed)

        return self.one(job_id, tenant, rule)

    def intended(self, tenant: str | None, key: str, attempt_id: UUID) -> UUID | None:
        """Give the job whose intent this attempt committed under this key."""
        for kept in self.kept.values():
            if tenant in {None, kept.job.tenant} and any(
                (intent.operation_key, intent.attempt_id) == (key, attempt_id) for intent in kept.intents
            ):
                return kept.job.id
        return None

    def append(self, job_id: UUID, tenant: str | None, name: str, data: dict[str, Any], actor: str) -> Decision:
        """Decide an entry of the trail by hand."""
        try:
            event = appendable(name)
        except TenureError as error:
            return refused(error)

        def rule(kept: Kept) -> Change:
            entry = Event(event, self.now(), kept.job.generation, None, actor, data)
            return Change(job=kept.job, events=(entry,))

        return self.one(job_id, tenant, rule)

    # --- creation and claims ------------------------------------------------------------------------------------------

    def create(self, tenant: str, fields: dict[str, Any]) -> Decision:
        """Decide a creation: new, known already, or another meaning under a known key."""
        key = (tenant, fields["project"], fields["idempotency_key"])
        locks: frozenset[Target] = frozenset({("key", *key)})
        if key in self.keys:
            job = self.kept[self.keys[key]].job
            meaning = (fields["organization"], fields["kind"], payload_digest(fields["kind"], fields["payload"]))
            if meaning != (job.organization, job.kind, job.payload_digest):
                return refused(Conflict("another meaning", code="IDEMPOTENCY_MISMATCH"), worded=False)
            return Decision(answer=(job, False))

        def learn(answer: Any) -> tuple[Change, ...]:
            assert answer.job.id not in self.kept, "a new job has an id of its own"
            return (Change(job=self._new(answer.job.id, tenant, fields)),)

        return Decision(locks=locks, learn=learn)

    def _new(self, job_id: UUID, tenant: str, fields: dict[str, Any]) -> Job:
        checked = new_job(job_id=job_id, bound_tenant=tenant, **fields)
        now = self.now()
        digest = operation_digest(
            tenant=tenant,
            job_id=job_id,
            kind=checked.kind,
            kind_version=checked.kind_version,
            epoch=1,
            payload=checked.payload,
        )
        return Job(
            id=job_id,
            tenant=tenant,
            organization=checked.organization,
            project=checked.project,
            idempotency_key=checked.idempotency_key,
            kind=checked.kind,
            priority=checked.priority,
            max_attempts=checked.max_attempts,
            payload=checked.payload,
            scheduled_at=checked.scheduled_at or now,
            created_at=now,
            run_at=checked.scheduled_at or now,
            backoff_base=checked.backoff_base,
            lease_duration=checked.lease_duration,
            on_reconciled=checked.on_reconciled,
            on_declined=checked.on_declined,
            options=checked.options,
            payload_digest=checked.payload_digest,
            operation_digest=digest,
        )

    def claim(
        self, worker: str, tenant: str | None, *, start: bool, claim_id: UUID | None, locked: Iterable[Target] = ()
    ) -> Decision:
        """
        Decide which job a claim takes, after the passes that make jobs claimable.

        Args:
            locked: Rows that another open transaction keeps: a claim passes over them.
        """
        if claim_id in self.claims:
            who, scope, job_id = self.claims[claim_id]
            if (who, scope) != (worker, tenant):
                return refused(Conflict("another worker's", code="CLAIM_MISMATCH"), worded=False)
            kept = self.kept[job_id]
            lease = kept.job.lease
            alive = kept.claim_id == claim_id and lease is not None and self.now() < lease.expires_at
            return Decision(answer=kept.job if alive else None)
        free = {job_id: kept for job_id, kept in self.kept.items() if job_id not in set(locked)}
        promoted = tuple(
            job_id for job_id, kept in free.items() if kept.place == "deferred" and kept.job.run_at <= self.now()
        )
        recovered = tuple(
            change for kept in free.values() if (change := moves.recover(kept.job, self.now())) is not None
        )
        after = {job_id: kept.job for job_id, kept in free.items()} | {
            change.job.id: change.job for change in recovered
        }
        eligible = [job for job in after.values() if tenant in {None, job.tenant} and moves.eligible(job, self.now())]
        locks: set[Target] = {*promoted, *(change.job.id for change in recovered)}
        if not eligible:
            return Decision(recovered, locks=frozenset(locks), promoted=promoted)
        job = min(eligible, key=moves.order)

        def learn(answer: Any) -> tuple[Change, ...]:
            attempt_id = answer.lease.attempt_id
            assert attempt_id not in self.attempts, "every claim is an attempt of its own"
            self.attempts.add(attempt_id)
            return (moves.claim(job, worker, attempt_id, self.now(), start=start),)

        return Decision(
            recovered,
            answer=job.id,
            locks=frozenset({*locks, job.id}),
            learn=learn,
            promoted=promoted,
            claim=None if claim_id is None else (claim_id, (worker, tenant, job.id)),
        )

    # --- sweeping -----------------------------------------------------------------------------------------------------

    def sweep(
        self, tenant: str, organization: str, project: str, answer: Callable[[str], Evidence]
    ) -> list[tuple[str, UUID, Status]]:
        """Do a sweep on the records, asking in the contract's order; gives action, job and status of each verdict."""
        scope = (tenant, organization, project)
        found = [
            kept
            for kept in self.kept.values()
            if (kept.job.tenant, kept.job.organization, kept.job.project) == scope and self.candidate(kept)
        ]
        return [
            (self._sweep_one(kept, answer), kept.job.id, kept.job.status)
            for kept in sorted(found, key=lambda kept: (kept.job.created_at, kept.job.id))
        ]

    def candidate(self, kept: Kept) -> bool:
        """Say whether a sweep of its scope looks at a job."""
        job = kept.job
        if job.status in {Status.INDETERMINATE, Status.TIMED_OUT}:
            return True
        if job.lease is not None:
            return job.lease.expires_at <= self.now()
        contradicted = job.escalated_at is not None and any(record.contradicts for record in kept.evidence)
        return job.status in TERMINAL and (open_boundary(job) or contradicted)

    def _sweep_one(self, kept: Kept, answer: Callable[[str], Evidence]) -> str:
        said: list[str] = ["leave"]
        asked: set[str] = set()
        while True:
            unused = [record for record in kept.evidence if not record.used]
            step = reconcile.assess(kept.job, unused, self.now())
            match step:
                case reconcile.Leave():
                    break
                case reconcile.Recover():
                    change = moves.recover(kept.job, self.now())
                    assert change is not None, "an expired lease is recovered"
                    self._write(change)
                case reconcile.Settle(effect, record):
                    self._write(reconcile.settle_stored(kept.job, effect, record, self.now(), kept.evidence))
                    said.append("resolve")
                    if not open_boundary(kept.job):
                        break
                case reconcile.Escalate(reason):
                    self._write(reconcile.escalate(kept.job, reason, self.now()))
                    said.append("escalate")
                    break
                case reconcile.Ask(effect):
                    if effect.operation_key in asked:
                        break
                    asked.add(effect.operation_key)
                    found = answer(effect.operation_key)
                    self._write(reconcile.judge(kept.job, effect, found, self.now(), stored=kept.evidence))
                    if kept.job.escalated_at is not None:
                        said.append("escalate")
                        break
                    said.append("resolve")
        return max(said, key=("leave", "resolve", "escalate").index)


def guess(answer: object) -> Evidence:
    """Give what a look-up's answer counts as: one that raises is no answer."""
    if isinstance(answer, Exception):
        return NoAnswer(f"the look-up raised {type(answer).__name__}")
    return answer  # type: ignore[return-value]


def instants(oracle: Oracle) -> Sequence[datetime]:
    """Give every instant ahead at which something about a job changes."""
    now = oracle.now()
    found: set[datetime] = set()
    for kept in oracle.kept.values():
        job = kept.job
        found |= {job.run_at} if job.status is Status.QUEUED else set()
        found |= {job.lease.expires_at} if job.lease else set()
        for effect in job.effects:
            found |= _of_effect(effect)
    return sorted(instant for instant in found if instant > now)


def _of_effect(effect: Effect) -> set[datetime]:
    if effect.name == MARK or effect.terms is None:
        return set()
    settled = effect.deadline_at + effect.terms.settles_within
    forgotten = set() if effect.terms.retention is None else {effect.created_at + effect.terms.retention}
    return {settled, *forgotten} if effect.is_open else forgotten
