"""
Evidence to verdict: what a sweep does with each candidate, and what a piece of evidence does to a job.

The order of questions is the contract's, and the same stored state with the same answers gives the same result. Nothing
here ever sends: the most a sweep may do is queue a job whose next attempt sends what is proven not to have happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

from tenure.errors import Invalid, echo
from tenure.rules.dispatch import (
    ABSENT,
    ACCEPTED,
    DECLINED,
    NOT_SENT,
    contradicts,
    dispute,
    receive,
    remembers,
    stored_evidence,
)
from tenure.rules.effect import MARK, Effect, EffectState, SettledBy, StoredEvidence, open_effects, whose_word
from tenure.rules.event import EventName
from tenure.rules.job import Change, Job, illegal, move, note, open_boundary, with_effect
from tenure.rules.lease import live
from tenure.rules.moves import LEASE_EXPIRED, REASON_BYTES_MAX, WORKER_LOST
from tenure.rules.outcome import Evidence, NoAnswer
from tenure.rules.payload import clean_text
from tenure.rules.status import LIVE, TERMINAL, Status

COMMAND = "reconcile_dispatched"
# A provider that has no answer yet is asked again after 1, 2, 4 ... seconds, at most a minute apart.
_ASK_AGAIN_MAX = timedelta(minutes=1)
_KEYS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    What a sweep did with one candidate.

    Attributes:
        action: leave, resolve or escalate.
        status: The job's status after it.
    """

    action: str
    job_id: UUID
    status: Status
    reason: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Nothing to do here, or not now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Recover:
    """The lease ended with an open boundary: first make the job indeterminate."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Stored evidence settles this effect."""

    effect: Effect
    evidence: StoredEvidence


@dataclass(frozen=True, slots=True)
class Escalate:
    """A person has to look."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the provider about this effect."""

    effect: Effect


Step: TypeAlias = Leave | Recover | Settle | Escalate | Ask


def assess(  # noqa: C901 - the contract's order of questions, one after the other
    job: Job, stored: Sequence[StoredEvidence], now: datetime, *, patient: bool = False
) -> Step:
    """
    Say what a sweep does next with one candidate.

    Args:
        stored: Evidence kept for this job that has not been used.
        patient: Respect the pause between two questions to a provider; the bare verb asks at once.
    """
    if job.authority.frozen:
        return Leave("the tenant or the database is frozen")
    opened = open_effects(job.effects)
    if job.status in LIVE and job.lease is not None:
        if live(job.lease, now):
            return Leave("its lease is live")
        return Recover() if opened else Leave("the lease ended before any dispatch; a claim takes it again")
    if job.status not in TERMINAL:
        return Leave(f"it is {job.status}")
    for effect in opened:
        # An acceptance first: whatever else was handed in, the provider did act.
        for evidence in sorted(stored, key=lambda one: one.kind != ACCEPTED):
            if evidence.operation_key == effect.operation_key and _settles(effect, evidence, now, evidence.at):
                return Settle(effect, evidence)
    if job.escalated_at is not None:
        return Leave("it waits for a person")
    if job.status is Status.TIMED_OUT:
        return Escalate("it timed out; what happened has to be verified by a person")
    if not opened:
        if job.status is Status.INDETERMINATE:
            return Escalate("it is indeterminate and has no operation key to ask a provider by")
        return Leave("nothing about it is open")
    due = [effect for effect in opened if not patient or _ask_due(effect, now)]
    return Ask(due[0]) if due else Leave("the provider was asked and has no answer yet")


def answered(job: Job, asked: Effect) -> Effect | None:
    """
    Give the effect that a provider was asked about, if its answer may still be applied.

    None where somebody else has dealt with it meanwhile: it is settled, a later attempt has begun it again, a person
    was asked, or the job is frozen. An answer about an earlier intent says nothing about a later one.
    """
    if job.escalated_at is not None or job.authority.frozen:
        return None
    for effect in open_effects(job.effects):
        if effect.operation_key == asked.operation_key and effect.attempt_id == asked.attempt_id:
            return effect
    return None


def judge(
    job: Job,
    effect: Effect,
    evidence: Evidence,
    now: datetime,
    *,
    asked_at: datetime | None = None,
    patient: bool = False,
    stored: Sequence[StoredEvidence] = (),
) -> Change:
    """
    Decide by a provider's answer: settle, ask again later, or escalate.

    Args:
        stored: All evidence kept for this job; an acceptance among it that the answer contradicts is not lost.
        asked_at: When the provider was asked, now when None. What it did not know then it may know now, so an absence
            counts from when it was asked for, however late the answer comes.
        patient: Ask again until the job's `escalate_after` has passed; the bare verb escalates at once.
    """
    why = "no answer"
    if isinstance(evidence, NoAnswer):
        said = clean_text(evidence.reason, REASON_BYTES_MAX)[0].strip() if isinstance(evidence.reason, str) else ""
        why = f"no answer ({said})" if said else why
    else:
        record = stored_evidence(effect.attempt_id, effect.operation_key, effect.attempt_id, evidence, now)
        if _settles(effect, record, now, asked_at or now):
            return settle(job, effect, record, SettledBy.LOOKUP, now, stored=stored)
        why = "the provider knows nothing of it, which does not count yet or not at all"
    asked = replace(effect, lookups=effect.lookups + 1, asked_at=now)
    since = job.finished_at or effect.begun_at
    if patient and now < since + job.options.escalate_after:
        return Change(job=with_effect(job, asked), effects=(asked,))
    change = escalate(job, f"{effect.operation_key}: {why}; find out whether the provider acted, then reconcile", now)
    return replace(change, job=with_effect(change.job, asked), effects=(asked,))


def escalate(job: Job, reason: str, now: datetime) -> Change:
    """Hand a job to a person; the status stays."""
    after = replace(job, escalated_at=now, escalation_reason=reason)
    return Change(job=after, events=(note(job, EventName.ESCALATED, now, data={"reason": reason}),))


def resume_sweep(job: Job, now: datetime, *, actor: str) -> Change:
    """Clear an escalation, so that sweeps look at the job again."""
    if job.escalated_at is None:
        raise illegal(job, "be swept again: it is not escalated")
    effects = tuple(replace(effect, lookups=0, asked_at=None) for effect in open_effects(job.effects))
    after = replace(job, escalated_at=None, escalation_reason=None)
    for effect in effects:
        after = with_effect(after, effect)
    return Change(job=after, effects=effects, events=(note(job, EventName.RESUMED, now, actor=actor),))


def settle_stored(
    job: Job, effect: Effect, evidence: StoredEvidence, now: datetime, stored: Sequence[StoredEvidence] = ()
) -> Change:
    """
    Settle by evidence that was handed in earlier.

    Args:
        stored: All evidence kept for this job; further receipts among it may contradict.
    """
    # A worker's late word that its own call never left is that call's outcome, not a look-up that may be overtaken.
    by = SettledBy.OUTCOME if evidence.kind == NOT_SENT else SettledBy.EVIDENCE
    change = settle(job, effect, evidence, by, now, stored=stored)
    return replace(change, evidence=(replace(evidence, used=True), *change.evidence))


def state_fact(
    job: Job,
    evidence: Evidence,
    evidence_id: UUID,
    now: datetime,
    *,
    key: str | None,
    actor: str,
    reason: str,
    stored: Sequence[StoredEvidence] = (),
) -> Change:
    """
    Settle by a person's statement.

    Args:
        key: Which effect it speaks of; None means the only open one.
        stored: All evidence kept for this job; an acceptance among it that the statement denies escalates.
    Raises:
        IllegalMove: The job is not terminal, or there is nothing left to state.
        Invalid: Several boundaries are open and no key was given, or the key is not of this job.
    """
    if job.status not in TERMINAL:
        raise illegal(job, "be reconciled: it is not terminal")
    effect = _meant(job, key)
    record = stored_evidence(evidence_id, effect.operation_key if effect else "", None, evidence, now)
    if effect is not None and (effect.is_open or effect.state is EffectState.CLOSED):
        if effect.state is EffectState.CLOSED and record.kind == ACCEPTED:
            return receive(job, effect.operation_key, None, record, now, actor=actor, reason=reason)
        change = settle(job, effect, record, SettledBy.STATEMENT, now, actor=actor, reason=reason, stored=stored)
        return replace(change, evidence=(replace(record, used=True), *change.evidence))
    if effect is not None and contradicts(effect, record):
        return receive(job, effect.operation_key, None, record, now, actor=actor, reason=reason)
    if open_boundary(job) or job.status not in {Status.INDETERMINATE, Status.TIMED_OUT}:
        raise illegal(job, "be reconciled by this statement: nothing it speaks of is open")
    data = {"evidence": record.kind, "by": SettledBy.STATEMENT.value, "reason": reason}
    return _stated(job, record, now, actor=actor, data=data)


def settle(
    job: Job,
    effect: Effect,
    evidence: StoredEvidence,
    by: SettledBy,
    now: datetime,
    *,
    actor: str | None = None,
    reason: str | None = None,
    stored: Sequence[StoredEvidence] = (),
) -> Change:
    """
    Settle one effect, and move the job when no boundary is open any more.

    An escalation is cleared, unless it is for a proven duplicate that no person has spoken about. A timed-out
    job moves only by a person's statement; of cancelled and halt_unsafe jobs only the effect is settled.
    """
    settled = replace(
        effect,
        state=_STATE_OF[evidence.kind],
        receipt=evidence.receipt,
        reason=evidence.reason,
        settled_at=now,
        settled_by=whose_word(effect, _STATE_OF[evidence.kind], by),
    )
    data: dict[str, Any] = {
        "name": effect.name,
        "operation_key": effect.operation_key,
        "state": settled.state.value,
        "evidence": evidence.kind,
        "by": by.value,
    }
    if reason:
        data["reason"] = reason
    before = with_effect(job, settled)
    if by is SettledBy.STATEMENT or not any(one.contradicts for one in stored):
        before = replace(before, escalated_at=None, escalation_reason=None)
    rivals = [
        one
        for one in stored
        if one.id != evidence.id
        and one.operation_key == effect.operation_key
        and not (one.contradicts or one.used)
        and contradicts(settled, one)
    ]
    events = (note(job, EventName.EFFECT_SETTLED, now, actor=actor, data=data),)
    movable = job.status is Status.INDETERMINATE or (job.status is Status.TIMED_OUT and by is SettledBy.STATEMENT)
    if not movable or open_boundary(before):
        return dispute(Change(job=before, effects=(settled,), events=events), rivals, now)
    moved = _resolve(before, settled, evidence, now, actor=actor, data=data)
    return dispute(replace(moved, effects=(settled,), events=(*events, *moved.events)), rivals, now)


def _resolve(
    job: Job, effect: Effect, evidence: StoredEvidence, now: datetime, *, actor: str | None, data: dict[str, Any]
) -> Change:
    policy = job.on_reconciled or ("complete" if effect.name == MARK else "resume")
    if job.cancel_requested_at is not None:
        return move(job, Status.CANCELLED, EventName.RECONCILED, now, command=COMMAND, actor=actor, data=data)
    if evidence.kind == DECLINED:
        return _declined(job, evidence.reason, now, actor=actor, data=data)
    lost = job.error_code == LEASE_EXPIRED and evidence.kind != ACCEPTED
    used_up = job.attempt_count >= job.max_attempts
    if policy == "resume" and used_up and evidence.kind != ACCEPTED and data["by"] != SettledBy.STATEMENT.value:
        # Nothing happened, again: an attempt like any other that failed. Only what is left to finish after an
        # acceptance, and a person's word, are worth an attempt beyond the budget.
        return move(
            job,
            Status.DEAD_LETTER,
            EventName.RECONCILED,
            now,
            command=COMMAND,
            actor=actor,
            data=data,
            error_code="NOT_DISPATCHED",
            error_message=f"the provider did not act; attempt {job.attempt_count} of {job.max_attempts} was the last",
        )
    if policy == "resume":
        return move(
            job,
            Status.QUEUED,
            EventName.RECONCILED,
            now,
            command=COMMAND,
            actor=actor,
            data=data,
            run_at=now,
            max_attempts=max(job.max_attempts, job.attempt_count + 1),
            # A worker lost before anything happened may be lost to this job again: claims take such jobs singly.
            error_code=WORKER_LOST if lost else None,
            error_message=job.error_message if lost else None,
        )
    if any(known.state is EffectState.REJECTED for known in job.effects):
        return _declined(job, "another effect of the job was declined", now, actor=actor, data=data)
    return _stated(job, evidence, now, actor=actor, data=data)


def _stated(job: Job, evidence: StoredEvidence, now: datetime, *, actor: str | None, data: dict[str, Any]) -> Change:
    """The handler has nothing more to do: accepted completes, everything else fails."""
    cleared = replace(job, escalated_at=None, escalation_reason=None)
    if evidence.kind == ACCEPTED:
        return move(
            cleared,
            Status.COMPLETED,
            EventName.RECONCILED,
            now,
            command=COMMAND,
            actor=actor,
            data=data,
            result=evidence.receipt,
            error_code=None,
            error_message=None,
        )
    declined = evidence.kind == DECLINED
    return move(
        cleared,
        Status.FAILED,
        EventName.RECONCILED,
        now,
        command=COMMAND,
        actor=actor,
        data=data,
        error_code="PROVIDER_DECLINED" if declined else "NOT_DISPATCHED",
        error_message=evidence.reason or "the provider did not act",
    )


def _declined(job: Job, reason: str | None, now: datetime, *, actor: str | None, data: dict[str, Any]) -> Change:
    status = Status.DEAD_LETTER if job.on_declined == "dead_letter" else Status.FAILED
    return move(
        job,
        status,
        EventName.RECONCILED,
        now,
        command=COMMAND,
        actor=actor,
        data=data,
        error_code="PROVIDER_DECLINED",
        error_message=reason or "the provider declined",
    )


_STATE_OF = {
    ACCEPTED: EffectState.SUCCEEDED,
    DECLINED: EffectState.REJECTED,
    ABSENT: EffectState.FAILED_BEFORE_DISPATCH,
    NOT_SENT: EffectState.FAILED_BEFORE_DISPATCH,
}


def _settles(effect: Effect, evidence: StoredEvidence, now: datetime, seen_at: datetime) -> bool:
    """
    Say whether evidence is enough without a person.

    "Not there" counts only from a look-up that is complete, after the call's deadline and the provider's own settling
    time; and only where the provider performs one request per key and still remembers this one, because a paused worker
    may wake up and send. That a call never left, or was refused, counts for the intent of the attempt that made it: the
    call of a later attempt may have been accepted all the same.
    """
    if evidence.kind in {NOT_SENT, DECLINED}:
        return evidence.attempt_id == effect.attempt_id
    if evidence.kind != ABSENT:
        return evidence.kind == ACCEPTED
    terms = effect.terms
    return (
        terms is not None
        and terms.lookup_complete
        and seen_at >= effect.deadline_at + terms.settles_within
        and terms.honours_key
        and remembers(terms, effect.created_at, now)
    )


def _ask_due(effect: Effect, now: datetime) -> bool:
    if effect.asked_at is None:
        return True
    return now >= effect.asked_at + min(timedelta(seconds=2 ** min(effect.lookups - 1, 6)), _ASK_AGAIN_MAX)


def _meant(job: Job, key: str | None) -> Effect | None:
    if key is not None:
        found = next((effect for effect in job.effects if effect.operation_key == key), None)
        if found is None:
            raise Invalid(f"job {job.id} has no operation {echo(key)}", code="UNKNOWN_OPERATION")
        return found
    opened = open_effects(job.effects)
    if len(opened) > 1:
        # Whole, to be copied from here; a few are enough to see what is asked for.
        keys = ", ".join(effect.operation_key for effect in opened[:_KEYS_SHOWN])
        more = ", ..." if len(opened) > _KEYS_SHOWN else ""
        raise Invalid(f"job {job.id} has several open operations, say which: {keys}{more}", code="SEVERAL_OPEN")
    if opened:
        return opened[0]
    return next((effect for effect in job.effects if effect.state is EffectState.CLOSED), None)
