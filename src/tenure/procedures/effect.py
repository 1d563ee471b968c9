"""Cross the dispatch boundary and come back: intents, bare marks, outcomes, late receipts; one transaction each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from tenure.errors import (
    ApprovalRefused,
    Conflict,
    IllegalMove,
    LeaseLost,
    NotFound,
    TenureError,
    Unavailable,
    echo,
)
from tenure.procedures.approvals import look, refused_before
from tenure.procedures.records import Placed, effect_row, evidence_of, identity
from tenure.procedures.rows import done_before, fetch, in_scope, lock, repeated, save
from tenure.rules import dispatch
from tenure.rules.admission import not_admitted
from tenure.rules.approval import Approval
from tenure.rules.control import Judged, watched
from tenure.rules.dispatch import Begun
from tenure.rules.effect import MARK, Effect, StoredEvidence, operation_key, owner_of
from tenure.rules.event import EventName
from tenure.rules.job import Change, Job, find_effect
from tenure.rules.lease import Lease
from tenure.rules.ledger import Seen
from tenure.rules.outcome import Evidence, FailedBeforeDispatch, Outcome, Terms
from tenure.yields import FRESH, AfterCommit, Command, Each, Procedure, Script, Statement, procedure


@dataclass(frozen=True, slots=True)
class Beginning:
    """
    The intent of one call, as the holder of a lease asks for it.

    Attributes:
        digest: Digest of the request's canonical bytes.
        timeout: The call's own limit.
        watched: What an execution control in shadow said about it; written with the intent.
        seen: The database as its process has seen it; in another one nothing is begun.
    """

    lease: Lease
    name: str
    digest: str
    terms: Terms
    timeout: timedelta
    resend: bool = False
    tenant: str | None = None
    watched: Judged | None = None
    seen: Seen | None = None

    def decide(self, job: Job, now: datetime, approval: Approval | None = None) -> Change:
        """See `rules.dispatch.begin`; a refused admission is written before it is raised."""
        given = (job, self.lease, self.name, self.digest, self.terms, self.timeout, now)
        try:
            change = dispatch.begin(*given, resend=self.resend, approval=approval)
        except ApprovalRefused as refused:
            change = not_admitted(job, self.name, refused, now)
        if self.watched is None:
            return change
        seen = watched(job, self.name, self.terms.provider, self.digest, self.watched, now)
        return replace(change, events=(seen, *change.events))


@dataclass(frozen=True, slots=True)
class Finishing:
    """How one call ended, as the holder of a lease tells it."""

    lease: Lease
    name: str
    outcome: Outcome
    tenant: str | None = None

    def decide(self, job: Job, stored: Sequence[StoredEvidence], now: datetime) -> Change:
        """See `rules.dispatch.finish`."""
        return dispatch.finish(job, self.lease, self.name, self.outcome, stored, now)


@procedure
def begin_effects(
    values: Sequence[Procedure[Begun]], *, command: Command = FRESH
) -> Script[list[Begun | TenureError | None]]:
    """
    Commit the intents of many jobs; see `begin_effect`.

    Locks: as `rows.lock`, then the approvals of governed jobs. Writes: effect, intent, approval, lease, event.
    """
    return (yield from _begin([one.args[0] for one in values], command))


@procedure(batch=begin_effects)
def begin_effect(asked: Beginning, *, command: Command = FRESH) -> Script[Begun | AfterCommit]:
    """
    Commit the intent of one call; see `rules.dispatch.begin`.

    Returns:
        Whether the call is to be made and how long it may take, or the receipt of an earlier attempt.
    Raises:
        ApprovalRefused: After the commit of the event that says so.
    Locks: as `rows.lock`, then the approval of a governed job. Writes: effect, intent, approval, lease, event.
    """
    (answer,) = yield from _begin([asked], command)
    if isinstance(answer, ApprovalRefused):
        return AfterCommit(answer)
    if isinstance(answer, TenureError):
        raise answer
    assert answer is not None, "only the second of a job is left out"
    return answer


def _begin(asks: Sequence[Beginning], command: Command) -> Script[list[Begun | TenureError | None]]:
    seen = max((one.seen for one in asks if one.seen is not None), key=lambda one: one.counter, default=None)
    found = yield from lock((one.lease.job_id for one in asks), seen=seen)
    done = yield from done_before(command, found)
    approvals = yield from look(known.job for known in found.values())
    answers: list[Begun | TenureError | None] = []
    decided: list[tuple[Placed, Change]] = []
    met: set[UUID] = set()
    for one in asks:
        job_id = one.lease.job_id
        if job_id in met:
            # One of a job at a time, whatever became of the first: the next has to see what that one writes, and where
            # the call is run again, what was written for a job is the first one's and nobody else's.
            answers.append(None)
            continue
        met.add(job_id)
        try:
            known = in_scope(found, job_id, one.tenant)
            refused = (yield from refused_before(command, known.job)) if job_id in done else None
            if refused is not None:
                answers.append(refused)
                continue
            effect = find_effect(known.job, one.name)
            if effect is not None and job_id in done:
                # Our own intent, whose commit we did not hear of: the call was not made yet.
                left = max(effect.deadline_at - known.now, timedelta(0))
                ask = effect.is_lost
                answers.append(Begun(effect, effect.is_open and not ask, one.timeout if ask else left, ask))
                continue
            approval, now = approvals.of(known.job, known.now)
            change = one.decide(known.job, now, approval)
        except TenureError as refusal:
            answers.append(refusal)
            continue
        approvals.take(change.approval)
        decided.append((known, change))
        answers.append(change.error or change.answer)
    if decided:
        yield from save(decided, command, last=True)
    return answers


@procedure
def mark_dispatched(
    lease: Lease, operation_key: str, *, tenant: str | None = None, command: Command = FRESH
) -> Script[Job | AfterCommit]:
    """
    Commit a bare dispatch mark; see `rules.dispatch.mark`.

    Raises:
        Conflict: The key belongs to another job of the tenant.
        Uncertain: After the commit: the job is suspect, and no provider can be asked about a bare mark.
        ApprovalRefused: After the commit of the event that says so.
    Locks: as `rows.lock`, the key, then the approval of a governed job. Writes: effect, intent, approval, lease, event.
    """
    known = yield from fetch(lease.job_id, tenant)
    if (yield from repeated(command, known.job.id)):
        refused = yield from refused_before(command, known.job)
        if refused is not None:
            return AfterCommit(refused)
        mark = known.job.mark
        return AfterCommit(dispatch.unasked(mark)) if mark is not None and mark.is_lost else known.job
    # The key's lock comes before the approval's: looked at first, and again under its lock.
    seen = yield from look([known.job], lock=False)
    approval, now = seen.of(known.job, known.now)
    try:
        change = dispatch.mark(known.job, lease, operation_key, now, approval=approval)
    except ApprovalRefused as refusal:
        yield from save([(known, not_admitted(known.job, MARK, refusal, now))], command, last=True)
        return AfterCommit(refusal)
    # Reserved first: another job's mark may be on its way to the same key, and is waited for.
    _, owners = yield [
        Each("effect_reserve", [effect_row(known.job, effect) for effect in change.effects]),
        Each("effect_owner", [(known.job.tenant, operation_key)]),
    ]
    if any(identity(row[2]) != known.job.id for row in owners):
        raise Conflict(
            f"operation key {echo(operation_key)} belongs to another job; a key stands for one operation",
            code="KEY_IN_USE",
        )
    if seen.found:
        approval, now = (yield from look([known.job])).of(known.job, now)
        try:
            change = dispatch.mark(known.job, lease, operation_key, now, approval=approval)
        except ApprovalRefused:
            # What was reserved is taken back with the transaction; the next look finds what has changed.
            raise Unavailable(
                f"the approval of job {known.job.id} changed while it was being looked at; mark it again",
                code="APPROVAL_BUSY",
            ) from None
    yield from save([(known, change)], command, last=True)
    return change.job if change.error is None else AfterCommit(change.error)


@procedure
def finish_effects(
    values: Sequence[Procedure[Effect]], *, command: Command = FRESH
) -> Script[list[Effect | TenureError | None]]:
    """
    Commit how the calls of many jobs ended; see `finish_effect`, which is left what is refused.

    Locks: as `rows.lock`. Writes: effect, evidence, escalation, event.
    """
    asks: list[Finishing] = [one.args[0] for one in values]
    ids = [one.lease.job_id for one in asks]
    found = yield from lock(ids)
    done = yield from done_before(command, found)
    stored: dict[UUID, list[StoredEvidence]] = {}
    for row in (yield Each("evidence_read", [(job_id,) for job_id in sorted(set(ids))])):
        stored.setdefault(identity(row[2]), []).append(evidence_of(row))
    answers: list[Effect | TenureError | None] = []
    decided: list[tuple[Placed, Change]] = []
    met: set[UUID] = set()
    for one in asks:
        job_id = one.lease.job_id
        known = found.get(job_id)
        if known is None or job_id in met or one.tenant not in {None, known.job.tenant}:
            answers.append(None)  # as in `_begin`
            continue
        met.add(job_id)
        if job_id in done:
            answers.append(find_effect(known.job, one.name))
            continue
        try:
            change = one.decide(known.job, stored.get(job_id, ()), known.now)
        except TenureError:
            answers.append(None)
            continue
        decided.append((known, change))
        answers.append(change.error or find_effect(change.job, one.name))
    if decided:
        yield from save(decided, command, last=True)
    return answers


@procedure(batch=finish_effects)
def finish_effect(asked: Finishing, *, command: Command = FRESH) -> Script[Effect | AfterCommit]:
    """
    Commit how a call ended; see `rules.dispatch.finish`.

    A holder that lost its lease is refused, and what its call proved is stored as evidence in the same transaction. So
    is a second receipt for an effect that is settled: it is the proof of a duplicate.

    Raises:
        LeaseLost, IllegalMove: After the commit of the evidence.
    Locks: as `rows.lock`. Writes: effect, evidence, escalation, event.
    """
    answer = yield from _finish(asked, command)
    if isinstance(answer, AfterCommit):
        return answer
    settled = find_effect(answer, asked.name)
    assert settled is not None, "a finished effect has a record"
    return settled


@procedure
def finish_for_job(asked: Finishing, *, command: Command = FRESH) -> Script[Job | AfterCommit]:
    """See `finish_effect`; gives the job after it."""
    return (yield from _finish(asked, command))


def _finish(asked: Finishing, command: Command) -> Script[Job | AfterCommit]:
    known = yield from fetch(asked.lease.job_id, asked.tenant)
    again = yield from repeated(command, known.job.id)
    stored = [evidence_of(row) for row in (yield Each("evidence_read", [(known.job.id,)]))]
    # An earlier run of this very call was refused, and what the call proved is kept already.
    kept = again and any(record.id == command.id for record in stored)
    if again and not kept:
        return known.job
    try:
        change = asked.decide(known.job, stored, known.now)
    except (LeaseLost, IllegalMove) as refused:
        if kept:
            return AfterCommit(refused)
        disputed = any(one.contradicts for one in stored)
        change = yield from _late(known, asked, refused, command, disputed=disputed)
        if isinstance(refused, IllegalMove) and not any(one.contradicts for one in change.evidence):
            raise
    yield from save([(known, change)], command, last=True)
    return change.job if change.error is None else AfterCommit(change.error)


def _late(
    known: Placed, asked: Finishing, lost: LeaseLost | IllegalMove, command: Command, *, disputed: bool
) -> Script[Change]:
    effect = find_effect(known.job, asked.name)
    evidence = None if effect is None else dispatch.evidence_of(asked.outcome, effect)
    if effect is None or evidence is None:
        raise lost
    # A rejected effect may have been reopened under a new key meanwhile: the call was made under the key of its intent.
    keys = [operation_key(known.job.kind, known.job.id, asked.name, ordinal) for ordinal in range(effect.ordinal + 1)]
    attempt = asked.lease.attempt_id
    found = yield [Statement("intent_find", {"operation_key": key, "attempt_id": attempt}) for key in keys]
    own = [
        key for key, owners in zip(keys, found, strict=True) if any(identity(row[1]) == known.job.id for row in owners)
    ]
    if not own:
        raise lost
    key = own[-1]
    record = dispatch.stored_evidence(command.id, key, attempt, evidence, known.now)
    return dispatch.receive(known.job, key, attempt, record, known.now, error=lost, disputed=disputed)


@procedure
def submit_evidence(
    operation_key: str,
    evidence: Evidence | FailedBeforeDispatch,
    attempt_id: UUID,
    *,
    tenant: str | None = None,
    command: Command = FRESH,
) -> Script[Job]:
    """
    Store the receipt of a call that an attempt began, whoever holds the job now; it moves no job.

    A restored copy has lost the intents of after it was made. So where none is known, a job that a recovery has marked
    as suspect takes evidence under a key of its own: the key names kind and job.

    Raises:
        NotFound: No intent of this attempt under this key was ever committed in this scope, and none can be lost.
        Unavailable: EVIDENCE_LATER, the same on a frozen database: only its recovery says what may be lost.
    Locks: as `rows.lock`. Writes: evidence, escalation, event.
    """
    rows = yield Statement("intent_find", {"operation_key": operation_key, "attempt_id": attempt_id})
    owned = [identity(row[1]) for row in rows if tenant is None or row[0] == tenant]
    if owned:
        known = in_scope((yield from lock(owned[:1])), owned[0], tenant)
    else:
        restored = yield from _restored_owner(operation_key, tenant)
        if restored is None:
            raise NotFound(
                f"attempt {echo(attempt_id)} committed no intent under operation key {echo(operation_key)} in this "
                f"scope"
            )
        known = restored
    if (yield from repeated(command, known.job.id)):
        return known.job
    record = dispatch.stored_evidence(command.id, operation_key, attempt_id, evidence, known.now)
    before = [evidence_of(row) for row in (yield Each("evidence_read", [(known.job.id,)]))]
    if any(dispatch.same_evidence(record, e) for e in before):
        # The same receipt from the same attempt, handed in twice (a journal that was cut off before its own note).
        return known.job
    disputed = any(one.contradicts for one in before)
    change = dispatch.receive(
        known.job, operation_key, attempt_id, record, known.now, disputed=disputed, lost=not owned
    )
    yield from save([(known, change)], command, last=True)
    return change.job


def _restored_owner(operation_key: str, tenant: str | None) -> Script[Placed | None]:
    """Lock the job that a key names, if a recovery has ever marked it: the intent may be lost with the copy."""
    if "frozen" in dict((yield Statement("meta_list"))):
        # Refused now, a journal would never give it again.
        raise Unavailable(
            f"the database is frozen, and knows no intent under operation key {echo(operation_key)}; it may be lost "
            f"with a restored copy. Run `tenure recover`, then hand it in again",
            code="EVIDENCE_LATER",
        )
    named = owner_of(operation_key)
    if named is None:
        return None
    kind, job_id = named
    known = (yield from lock([job_id])).get(job_id)
    if known is None or known.job.kind != kind or tenant not in {None, known.job.tenant}:
        return None
    # The mark ends with the job or by a person's word; the trail remembers it.
    trail = [] if known.job.suspicion is not None else (yield Each("event_read", [(job_id,)]))
    marked = known.job.suspicion is not None or any(row[0] == EventName.SUSPECTED for row in trail)
    return known if marked else None
