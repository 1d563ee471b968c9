"""
Rules that are slightly wrong: each function takes a shipped rule and gives back one with a single mistake in it.

They are here to show what each rule is good for. Nothing but the lab uses them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tenure.lab.record import TICK
from tenure.rules import dispatch, reconcile
from tenure.rules.authority import Authority
from tenure.rules.effect import EffectState, SettledBy, StoredEvidence, operation_key
from tenure.rules.event import Event, EventName
from tenure.rules.job import Change, Job, with_effect
from tenure.rules.lease import Lease
from tenure.rules.outcome import FailedBeforeDispatch, Unknown
from tenure.rules.status import LIVE, Status

Rule = Callable[..., Any]
Break = Callable[[Rule], Rule]


# --- the fence --------------------------------------------------------------------------------------------------------


def no_fence(_: Rule) -> Rule:
    """Let everybody pass."""
    return lambda job, lease, *_times: job.lease or lease


def agreeing(*fields: str) -> Break:
    """A fence that does not look at some fields of the lease."""

    def wrong(original: Rule) -> Rule:
        def check_fence(job: Job, lease: Lease, now: datetime) -> Lease:
            held = job.lease
            same = lease if held is None else replace(lease, **{name: getattr(held, name) for name in fields})
            checked: Lease = original(job, same, now)
            return checked

        return check_fence

    return wrong


def under(*, epoch: bool = False, freezes: bool = False) -> Break:
    """A fence that takes part of the authority for granted."""

    def wrong(original: Rule) -> Rule:
        def check_fence(job: Job, lease: Lease, now: datetime) -> Lease:
            known = job.authority
            assumed = Authority(
                job.epoch if epoch else known.epoch,
                known.tenant_frozen and not freezes,
                known.database_frozen and not freezes,
            )
            checked: Lease = original(replace(job, authority=assumed), lease, now)
            return checked

        return check_fence

    return wrong


def live_at_expiry(_: Rule) -> Rule:
    """Count the instant of expiry as within the lease."""
    return lambda lease, now: now <= lease.expires_at


def over_early(_: Rule) -> Rule:
    """Count a lease as over one tick before its end."""
    return lambda lease, now: now + TICK < lease.expires_at


# --- claims and recovery ----------------------------------------------------------------------------------------------


def recover_requeues(original: Rule) -> Rule:
    """Queue what should be indeterminate."""

    def recover(job: Job, now: datetime) -> Change | None:
        change: Change | None = original(job, now)
        if change is None or change.job.status is not Status.INDETERMINATE:
            return change
        return _requeued(job, now)

    return recover


def _requeued(job: Job, now: datetime) -> Change:
    queued = replace(job, status=Status.QUEUED, lease=None, claimed_at=None, run_at=now)
    return Change(job=queued, events=(Event(EventName.LEASE_EXPIRED, now, job.generation, Status.QUEUED),))


def claim_takes_expired(original: Rule) -> Rule:
    """Take an expired job away without a recovery."""

    def claim(job: Job, worker_id: str, attempt_id: UUID, now: datetime, **options: Any) -> Change:
        if job.status in LIVE and job.lease is not None and job.lease.expires_at <= now:
            job = _requeued(job, now).job
        change: Change = original(job, worker_id, attempt_id, now, **options)
        return change

    return claim


def generation_kept(original: Rule) -> Rule:
    """Leave the generation as it was."""

    def revoke(job: Job, *given: Any, **options: Any) -> Change:
        change: Change = original(job, *given, **options)
        return replace(change, job=replace(change.job, generation=job.generation))

    return revoke


def cancelled_is_requeued(original: Rule) -> Rule:
    """Queue what should be cancelled."""

    def release(job: Job, lease: Lease, reason: str, now: datetime) -> Change:
        change: Change = original(job, lease, reason, now)
        return _requeued(job, now) if change.job.status is Status.CANCELLED else change

    return release


# --- the dispatch boundary --------------------------------------------------------------------------------------------


def begins_again(original: Rule) -> Rule:
    """Begin an open effect as if it had failed before dispatch."""

    def begin(job: Job, *given: Any, **options: Any) -> Change:
        for effect in job.effects:
            if effect.is_open:
                job = with_effect(job, replace(effect, state=EffectState.FAILED_BEFORE_DISPATCH, settled_by=None))
        change: Change = original(job, *given, **options)
        return change

    return begin


def key_of_attempt(original: Rule) -> Rule:
    """Make a new operation key for every intent."""

    def begin(job: Job, *given: Any, **options: Any) -> Change:
        change: Change = original(job, *given, **options)
        if not change.intents:
            return change
        (effect,) = change.effects
        known = next((e.operation_key for e in job.effects), None)
        number = 0 if known is None else int(known.partition("#")[2] or 0) + 1
        other = replace(effect, operation_key=operation_key(job.kind, job.id, effect.name, number))
        return replace(
            change,
            job=with_effect(change.job, other),
            effects=(other,),
            intents=tuple(replace(intent, operation_key=other.operation_key) for intent in change.intents),
        )

    return begin


def sends_unasked(_: Rule) -> Rule:
    """Begin as if nothing could be lost."""

    def in_doubt(
        job: Job,
        _suspicion: Any,
        held: Lease,
        _known: Any,
        name: str,
        digest: str,
        terms: Any,
        timeout: timedelta,
        now: datetime,
        _admission: Any,
    ) -> Change:
        return dispatch.begin(replace(job, suspicion=None), held, name, digest, terms, timeout, now)

    return in_doubt


def lost_call_is_over(original: Rule) -> Rule:
    """Take a call that may be lost for one that is over."""

    def in_doubt(job: Job, *given: Any) -> Change:
        change: Change = original(job, *given)
        (effect,) = change.effects
        over = replace(effect, deadline_at=effect.begun_at)
        return replace(change, job=with_effect(change.job, over), effects=(over,))

    return in_doubt


def does_nothing(_: Rule) -> Rule:
    """Refuse nothing."""
    return lambda *given: None


def never(_: Rule) -> Rule:
    """Say no."""
    return lambda *given: False


def always(_: Rule) -> Rule:
    """Say yes."""
    return lambda *given: True


def unknown_is_failed(original: Rule) -> Rule:
    """Take no reply for no call."""

    def settled_effect(effect: Any, outcome: Any, now: datetime) -> Any:
        return original(effect, FailedBeforeDispatch("no reply") if isinstance(outcome, Unknown) else outcome, now)

    return settled_effect


def last_call_settles(original: Rule) -> Rule:
    """Forget that there was a call before this one."""
    return lambda effect, outcome, now: original(replace(effect, state=EffectState.PENDING), outcome, now)


def deadline_kept(original: Rule) -> Rule:
    """Send again under the deadline of the first call."""

    def begin(job: Job, *given: Any, **options: Any) -> Change:
        change: Change = original(job, *given, **options)
        if change.intents or not change.effects:
            return change
        (effect,) = change.effects
        kept = replace(effect, deadline_at=job.effects[0].deadline_at)
        return replace(change, job=with_effect(change.job, kept), effects=(kept,))

    return begin


# --- ends of an attempt -----------------------------------------------------------------------------------------------


def open_completes(original: Rule) -> Rule:
    """Complete whatever is open."""

    def complete(job: Job, *given: Any) -> Change:
        settled = replace(job, effects=tuple(effect for effect in job.effects if not effect.is_open))
        change: Change = original(settled, *given)
        return replace(change, job=replace(change.job, effects=job.effects))

    return complete


def cancelled_completes(original: Rule) -> Rule:
    """Complete as if nobody had cancelled."""
    return lambda job, *given: original(replace(job, cancel_requested_at=None), *given)


def says_nothing(original: Rule) -> Rule:
    """Change the job and leave no event."""

    def silent(job: Job, *given: Any, **options: Any) -> Change:
        change: Change = original(job, *given, **options)
        return replace(change, events=())

    return silent


def retries_anything(original: Rule) -> Rule:
    """Retry whatever is over as if it had failed."""

    def retry(job: Job, *given: Any, **options: Any) -> Change:
        failed = replace(job, status=Status.FAILED) if job.status is Status.DEAD_LETTER else job
        change: Change = original(failed, *given, **options)
        return change

    return retry


def retry_ignores_marks(original: Rule) -> Rule:
    """Retry whatever the mark may have done."""

    def retry(job: Job, *given: Any, **options: Any) -> Change:
        settled = replace(job, effects=tuple(e for e in job.effects if e.state is not EffectState.CLOSED))
        change: Change = original(settled, *given, **options)
        return replace(change, job=replace(change.job, effects=job.effects))

    return retry


# --- evidence and look-ups --------------------------------------------------------------------------------------------


def evidence_moves(original: Rule) -> Rule:
    """Complete the job by a receipt."""

    def receive(
        job: Job, key: str, attempt_id: UUID | None, evidence: StoredEvidence, now: datetime, **options: Any
    ) -> Change:
        change: Change = original(job, key, attempt_id, evidence, now, **options)
        completed = replace(change.job, status=Status.COMPLETED, lease=None, finished_at=now)
        event = Event(EventName.COMPLETED, now, job.generation, Status.COMPLETED)
        return replace(change, job=completed, events=(*change.events, event))

    return receive


def silence_is_absence(_: Rule) -> Rule:
    """Settle without an answer."""

    def judge(job: Job, effect: Any, _evidence: Any, now: datetime, **_options: Any) -> Change:
        record = StoredEvidence(effect.attempt_id, effect.operation_key, effect.attempt_id, "absent", None, None, now)
        return reconcile.settle(job, effect, record, SettledBy.LOOKUP, now)

    return judge


def nobody_is_asked(original: Rule) -> Rule:
    """Never ask a person."""

    def judge(job: Job, *given: Any, **options: Any) -> Change:
        change: Change = original(job, *given, **options)
        if change.job.status is not job.status:
            return change
        return replace(change, job=replace(change.job, escalated_at=None, escalation_reason=None))

    return judge


def settles_with(*, at_once: bool = False, **believed: Any) -> Break:
    """A judgement that believes the provider to promise more than it does, or does not wait."""

    def breaks(original: Rule) -> Rule:
        def settles(effect: Any, evidence: StoredEvidence, now: datetime, seen_at: datetime) -> bool:
            if effect.terms is not None:
                effect = replace(effect, terms=replace(effect.terms, **believed))
                if at_once:
                    seen_at = max(seen_at, effect.deadline_at + effect.terms.settles_within)
            return bool(original(effect, evidence, now, seen_at))

        return settles

    return breaks


def any_refusal(original: Rule) -> Rule:
    """Take a refusal for one of this attempt."""
    return lambda effect, evidence, *times: original(effect, replace(evidence, attempt_id=effect.attempt_id), *times)


def any_intent(original: Rule) -> Rule:
    """Take an answer for one about this intent."""

    def answered(job: Job, asked: Any) -> Any:
        return original(job, replace(asked, attempt_id=next((e.attempt_id for e in job.effects if e.is_open), None)))

    return answered
