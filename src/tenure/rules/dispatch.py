"""
The dispatch boundary: when a call may be made, how it ended, and what a late receipt means.

Begin writes the intent before the call. After that only an explicit outcome, evidence or a person's statement settles
the effect; every other ending leaves it open, and an open effect is never sent again by another attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from tenure.errors import (
    Conflict,
    EffectRejected,
    IdentityRefused,
    IllegalMove,
    Invalid,
    LeaseLost,
    Uncertain,
    echo,
)
from tenure.rules.admission import Admission, admit, admitted
from tenure.rules.approval import Approval
from tenure.rules.digest import same
from tenure.rules.effect import (
    DOUBTED,
    EFFECT_MOVES,
    MARK,
    NAME_MAX,
    Effect,
    EffectState,
    Intent,
    SettledBy,
    StoredEvidence,
    check_name,
    is_made_here,
    operation_key,
    whose_word,
)
from tenure.rules.envelope import EXECUTION_KEY, validate_execution_identity_for_dispatch
from tenure.rules.event import EventName
from tenure.rules.job import Change, Job, find_effect, move, note, with_effect
from tenure.rules.lease import Lease, check_fence
from tenure.rules.moves import refuse_cancelled
from tenure.rules.outcome import (
    Absent,
    Accepted,
    Declined,
    Evidence,
    FailedBeforeDispatch,
    Json,
    NoAnswer,
    Outcome,
    Rejected,
    Succeeded,
    Terms,
    Unknown,
)
from tenure.rules.payload import clean_text
from tenure.rules.status import Status
from tenure.rules.suspicion import LOST, Suspicion

# What a stored evidence may be; `not_sent` is a worker's own word that its call never left.
ACCEPTED, DECLINED, ABSENT, NOT_SENT = "accepted", "declined", "absent", "not_sent"


@dataclass(frozen=True, slots=True)
class Begun:
    """
    The answer to a begin.

    Attributes:
        send: The call is to be made; False when an earlier attempt's receipt is in `effect`.
        timeout: How long the call may take, from now.
        ask: The job is suspect: the provider is to be asked before anything may be sent.
    """

    effect: Effect
    send: bool
    timeout: timedelta
    ask: bool = False


def begin(
    job: Job,
    lease: Lease,
    name: str,
    digest: str,
    terms: Terms,
    timeout: timedelta,
    now: datetime,
    *,
    resend: bool = False,
    approval: Approval | None = None,
) -> Change:
    """
    Record the intent of one call, before it is made.

    Args:
        digest: Digest of the request's canonical bytes.
        timeout: The call's own limit; the lease may end it sooner.
        resend: Send an open effect again under the same key, within the same attempt, where the provider declares that
            it performs one request per key and still remembers this one.
        approval: What the store has under the reference of the governance envelope; see `admission.admit`.
    Raises:
        Conflict: The name was used with another request.
        EffectRejected: The provider refused it before; an operator may reopen it.
        Uncertain: It is open, or the provider may have forgotten the key.
        IdentityRefused, ApprovalRefused: The envelopes do not allow a dispatch.
    """
    held = check_fence(job, lease, now)
    refuse_cancelled(job)
    check_name(name)
    refuse_unidentified(job)
    known = find_effect(job, name)
    # A receipt is a fact about the past, and giving it out sends nothing: that needs no approval.
    there = known is not None and known.state is EffectState.SUCCEEDED and known.request_digest in {"", digest}
    admission = None if there else admit(job, approval, now)
    if timeout <= timedelta(0):
        raise Invalid(f"an effect's deadline must be longer than zero, not {timeout}", code="BAD_DURATION")
    allowed = min(timeout, held.expires_at - now)
    if known is not None and known.request_digest and known.request_digest != digest:
        raise Conflict(
            f"effect {name!r} of job {job.id} was begun with another request; an effect's name stands for one request",
            code="EFFECT_MISMATCH",
        )
    if known is not None and known.state is EffectState.SUCCEEDED:
        return replace(_promoted(job, now, known, sent=False), answer=Begun(known, send=False, timeout=allowed))
    if known is not None and known.state is EffectState.REJECTED:
        raise EffectRejected(f"the provider refused effect {name!r} of job {job.id}: {known.reason}")
    if known is not None and known.is_open:
        if not (resend and _may_resend(known, held, terms, now)):
            raise Uncertain(
                f"effect {name!r} of job {job.id} is open: whether {known.operation_key} reached the provider is not "
                f"known. It is not sent again; a sweep or reconcile_dispatched settles it"
            )
        # Unknown from now on, however the first call may have ended; and a look-up has to wait for this call too.
        again = replace(known, state=EffectState.UNKNOWN, deadline_at=max(known.deadline_at, now + allowed))
        # In the trail like the first call, but not as `sent`: that stands for an intent, and this is the same one.
        data = {"name": name, "operation_key": again.operation_key, "resent": True}
        told = move(job, Status.RUNNING, EventName.DISPATCHED, now, data=data, effects=(again,))
        told = admitted(told, admission, name, now)
        return replace(told, answer=Begun(again, send=True, timeout=allowed))
    if known is not None and known.settled_by in DOUBTED and known.provider != terms.provider:
        raise Conflict(
            f"effect {name!r} of job {job.id} was begun with provider {known.provider!r}, which may still act under "
            f"its key; another provider would not know that key",
            code="EFFECT_MISMATCH",
        )
    if job.suspicion is not None and job.suspicion.doubts(known):
        return _in_doubt(job, job.suspicion, held, known, name, digest, terms, timeout, now, admission)
    if known is not None and not _key_still_good(known, now):
        raise Uncertain(
            f"effect {name!r} of job {job.id}: the provider's memory of {known.operation_key} has ended, so a sender "
            f"that was paused could not be told apart from a new one. Settle it with reconcile_dispatched"
        )
    intent = Effect(
        name=name,
        state=EffectState.PENDING,
        operation_key=known.operation_key if known else operation_key(job.kind, job.id, name),
        request_digest=digest,
        attempt_id=held.attempt_id,
        generation=held.generation,
        created_at=known.created_at if known and known.request_digest else now,
        begun_at=now,
        deadline_at=now + allowed,
        terms=terms,
        settled_by=known.settled_by if known and known.settled_by in DOUBTED else None,
        ordinal=known.ordinal if known else 0,
    )
    told = admitted(_intended(job, intent, now), admission, name, now)
    return replace(told, answer=Begun(intent, send=True, timeout=allowed))


def _in_doubt(
    job: Job,
    suspicion: Suspicion,
    held: Lease,
    known: Effect | None,
    name: str,
    digest: str,
    terms: Terms,
    timeout: timedelta,
    now: datetime,
    admission: Admission | None,
) -> Change:
    """Write the intent that may have been lost as unknown: a crash from here on is uncertain, and nothing is sent."""
    lost = Effect(
        name=name,
        state=EffectState.UNKNOWN,
        operation_key=known.operation_key if known else operation_key(job.kind, job.id, name),
        request_digest=digest,
        attempt_id=held.attempt_id,
        generation=held.generation,
        created_at=suspicion.first_at(known),
        begun_at=now,
        deadline_at=suspicion.over_at(timeout, max(job.lease_duration, held.duration), known),
        terms=terms,
        reason=LOST,
        settled_by=SettledBy.RECOVERY,
        ordinal=known.ordinal if known else 0,
    )
    told = admitted(_intended(job, lost, now), admission, name, now)
    return replace(told, answer=Begun(lost, send=False, timeout=timeout, ask=True))


def mark(job: Job, lease: Lease, key: str, now: datetime, *, approval: Approval | None = None) -> Change:
    """
    Record a bare dispatch mark under a key of the caller's.

    Args:
        approval: See `begin`.
    Raises:
        ApprovalRefused: As `begin`.
        Uncertain: The same key is open already: a second dispatch under it would be a second send.
        Conflict: Another key is open on this job.

    On a suspect job the mark is written as unknown and the change carries Uncertain: no provider can be asked.
    """
    held = check_fence(job, lease, now)
    refuse_cancelled(job)
    if not isinstance(key, str) or not key or len(key) > NAME_MAX or not key.isprintable():
        raise Invalid(f"an operation key is 1 to {NAME_MAX} printable characters, not {echo(key)}", code="BAD_ARGUMENT")
    if EXECUTION_KEY in job.payload:
        refuse_unidentified(job)
    admission = admit(job, approval, now)
    if is_made_here(key):
        # Also where no such effect exists yet: its job could not begin it any more.
        raise Conflict(
            f"operation key {key!r} has the form of the keys of named effects; a mark needs a key of your own",
            code="KEY_IN_USE",
        )
    known = job.mark
    if known is not None and known.is_open and known.operation_key != key:
        raise Conflict(f"job {job.id} has an open mark under another key; settle that first", code="MARK_OPEN")
    if known is not None and (known.is_open or known.state is EffectState.CLOSED):
        raise Uncertain(
            f"operation key {known.operation_key!r} of job {job.id} is already marked; reconcile it, do not send again"
        )
    if known is not None and known.state is EffectState.REJECTED and known.operation_key == key:
        raise EffectRejected(
            f"the provider declined operation key {key!r} of job {job.id}; another try needs another key"
        )
    if known is not None and EffectState.PENDING not in EFFECT_MOVES[known.state]:
        raise IllegalMove(f"operation key {known.operation_key!r} of job {job.id} was accepted; it is not sent again")
    record = Effect(
        name=MARK,
        state=EffectState.PENDING,
        operation_key=key,
        request_digest="",
        attempt_id=held.attempt_id,
        generation=held.generation,
        created_at=now,
        begun_at=now,
        deadline_at=held.expires_at,
    )
    # Another key than the last one's is another call: nothing is known of it.
    same_key = known if known is not None and known.operation_key == key else None
    if job.suspicion is None or not job.suspicion.doubts(same_key):
        return admitted(_intended(job, record, now), admission, MARK, now)
    lost = replace(record, state=EffectState.UNKNOWN, reason=LOST, settled_by=SettledBy.RECOVERY)
    told = admitted(_intended(job, lost, now), admission, MARK, now)
    return replace(told, error=unasked(lost))


def unasked(effect: Effect) -> Uncertain:
    """Word the refusal of a begin on a suspect job by somebody who cannot ask the provider."""
    return Uncertain(
        f"{effect.operation_key!r} is of a job of a restored database: it may have been sent after the backup, and its "
        f"intent is lost. Send nothing. End the attempt as indeterminate; a sweep with a lookup asks, or settle it "
        f"with reconcile_dispatched when you know what happened under this key",
        code="SUSPECT_NOT_ASKED",
    )


def finish(
    job: Job, lease: Lease, name: str, outcome: Outcome, stored: Sequence[StoredEvidence], now: datetime
) -> Change:
    """
    Record how a call ended.

    A pending cancellation does not refuse it: the receipt is a fact about the past.

    Args:
        stored: Evidence already handed in for this job; another receipt among it is the proof of a duplicate.
    Raises:
        IllegalMove: The effect is not open, or another attempt began it.
    """
    held = check_fence(job, lease, now)
    effect = find_effect(job, name)
    if name == MARK or effect is None:
        raise IllegalMove(f"job {job.id} has no effect {name!r} that was begun")
    if not effect.is_open or effect.attempt_id != held.attempt_id:
        raise IllegalMove(f"effect {name!r} of job {job.id} is {effect.state} and not open in this attempt")
    settled = settled_effect(effect, outcome, now)
    data = {
        "name": name,
        "operation_key": effect.operation_key,
        "state": settled.state.value,
        "by": SettledBy.OUTCOME.value,
    }
    change = Change(
        job=with_effect(job, settled),
        effects=(settled,),
        events=(note(job, EventName.EFFECT_SETTLED, now, data=data),),
        answer=settled,
    )
    rivals = [
        e for e in stored if e.operation_key == effect.operation_key and not e.contradicts and contradicts(settled, e)
    ]
    return dispute(change, rivals, now)


def settled_effect(effect: Effect, outcome: Outcome, now: datetime) -> Effect:
    """
    Give the record after a call's own outcome; what is not surely one of the three others is unknown.

    An effect that is unknown already had a call before this one: that the second did not leave, or was refused, says
    nothing about the first. So only a success settles it here; anything else is for a look-up or a person.
    """
    match outcome:
        case Succeeded(receipt):
            state, receipt_value, reason = EffectState.SUCCEEDED, receipt, None
        case FailedBeforeDispatch(why):
            state, receipt_value, reason = EffectState.FAILED_BEFORE_DISPATCH, None, why
        case Rejected(why):
            state, receipt_value, reason = EffectState.REJECTED, None, why
        case Unknown(why):
            state, receipt_value, reason = EffectState.UNKNOWN, None, why
        case _:
            state, receipt_value, reason = EffectState.UNKNOWN, None, "the provider gave no outcome"
    if effect.state is EffectState.UNKNOWN and state is not EffectState.SUCCEEDED:
        state = EffectState.UNKNOWN
    return replace(
        effect,
        state=state,
        receipt=receipt_value,
        reason=_words(reason) if reason else None,
        settled_at=None if state is EffectState.UNKNOWN else now,
        settled_by=None if state is EffectState.UNKNOWN else whose_word(effect, state, SettledBy.OUTCOME),
    )


def _words(reason: object) -> str:
    """Make a reason storable; the call was made, and a word of the wrong kind must not leave its effect open."""
    return clean_text(reason)[0] if isinstance(reason, str) else type(reason).__name__


def receive(
    job: Job,
    key: str,
    attempt_id: UUID | None,
    evidence: StoredEvidence,
    now: datetime,
    *,
    error: LeaseLost | IllegalMove | None = None,
    disputed: bool = False,
    lost: bool = False,
    actor: str | None = None,
    reason: str | None = None,
) -> Change:
    """
    Store evidence that somebody without authority hands in; it moves no job.

    Evidence for an open effect waits for reconciliation and clears an escalation, because there is now something to
    settle by. Evidence that contradicts a settled effect escalates the job, in any status.

    Args:
        disputed: Contradicting evidence is kept for this job: its escalation stays.
        lost: Its intent is not known here. On a suspect job that is what a restored copy looks like: the evidence waits
            for the begin that asks.
        error: Raised after the commit: the refusal of the finish that this evidence came with.
        actor, reason: Who says so and why, where it is a person's statement.
    """
    effect = next((e for e in job.effects if e.operation_key == key), None)
    data: dict[str, Json] = {
        "operation_key": key,
        "kind": evidence.kind,
        "attempt_id": str(attempt_id) if attempt_id else None,
    }
    if reason is not None:
        data |= {"by": SettledBy.STATEMENT.value, "reason": reason}
    if lost:
        data |= {"lost": True}
    events = (note(job, EventName.EVIDENCE_RECEIVED, now, actor=actor, data=data),)
    if not (lost and _may_be_lost(job, effect)) and contradicts(effect, evidence):
        return dispute(Change(job=job, events=events, error=error), [evidence], now)
    after = job
    if effect is not None and effect.is_open and job.escalated_at is not None and not disputed:
        after = replace(job, escalated_at=None, escalation_reason=None)
    return Change(job=after, events=events, evidence=(evidence,), error=error)


def _may_be_lost(job: Job, effect: Effect | None) -> bool:
    """Say whether an intent may have been written for this effect after the copy was made, and be lost with it."""
    unsent = effect is None or effect.state is EffectState.FAILED_BEFORE_DISPATCH
    return unsent and job.suspect and job.suspicion is not None and job.suspicion.doubts(effect)


def contradicts(effect: Effect | None, evidence: StoredEvidence) -> bool:
    """
    Say whether evidence disagrees with what is settled: an acceptance nobody counted, or a second receipt.

    An effect that was reopened has another key; an acceptance under the old one contradicts its rejection.
    """
    if evidence.kind != ACCEPTED:
        return False
    if effect is None:
        return True
    if effect.is_open:
        return False
    if effect.state is not EffectState.SUCCEEDED:
        return True
    if effect.receipt is None and effect.settled_by in {SettledBy.COMPLETION, SettledBy.STATEMENT}:
        # It was settled without a receipt; this one is the first.
        return False
    return not same(effect.receipt, evidence.receipt)


def same_evidence(one: StoredEvidence, other: StoredEvidence) -> bool:
    """Say whether two records are of the same evidence, handed in twice."""
    alike = replace(
        one, id=other.id, at=other.at, receipt=other.receipt, contradicts=other.contradicts, used=other.used
    )
    return alike == other and same(one.receipt, other.receipt)


def evidence_of(outcome: Outcome, effect: Effect) -> Evidence | FailedBeforeDispatch | None:
    """
    Turn a call's outcome into evidence, for a worker that may no longer finish; None where it proves nothing.

    Args:
        effect: The record that the call belongs to. Sent again while it was unknown, only a success proves anything.
    """
    if effect.state is EffectState.UNKNOWN and not isinstance(outcome, Succeeded):
        return None
    match outcome:
        case Succeeded(receipt):
            return Accepted(receipt)
        case Rejected(reason):
            return Declined(reason)
        case FailedBeforeDispatch():
            return outcome
        case _:
            return None


def stored_evidence(
    evidence_id: UUID, key: str, attempt_id: UUID | None, evidence: Evidence | FailedBeforeDispatch, now: datetime
) -> StoredEvidence:
    """
    Make the record of evidence.

    Raises:
        Invalid: NoAnswer, or not evidence at all: it proves nothing.
    """
    match evidence:
        case Accepted(receipt):
            return StoredEvidence(evidence_id, key, attempt_id, ACCEPTED, receipt, None, now)
        case Declined(reason):
            return StoredEvidence(evidence_id, key, attempt_id, DECLINED, None, _words(reason), now)
        case Absent():
            return StoredEvidence(evidence_id, key, attempt_id, ABSENT, None, None, now)
        case FailedBeforeDispatch(reason):
            return StoredEvidence(evidence_id, key, attempt_id, NOT_SENT, None, _words(reason), now)
        case NoAnswer():
            raise Invalid("NoAnswer settles nothing; give Accepted, Declined or Absent", code="NO_EVIDENCE")
        case _:
            raise Invalid(
                f"{type(evidence).__name__} is not evidence; give tenure.Accepted, Declined or Absent",
                code="NO_EVIDENCE",
            )


def refuse_unidentified(job: Job) -> None:
    """Raise IdentityRefused unless the execution envelope is whole and agrees with the row."""
    reasons = validate_execution_identity_for_dispatch(job)
    if reasons:
        raise IdentityRefused(
            f"job {job.id} may not dispatch: {'; '.join(reasons)}. Create it with execution=ExecutionInput(...)",
            reasons=tuple(reasons),
        )


def _may_resend(effect: Effect, held: Lease, asked: Terms, now: datetime) -> bool:
    terms = effect.terms
    return (
        terms is not None
        and terms.provider == asked.provider
        and terms.honours_key
        and effect.attempt_id == held.attempt_id
        # Nothing was sent by this attempt yet, so there is nothing to send again.
        and not effect.is_lost
        and remembers(terms, effect.created_at, now)
    )


def _key_still_good(effect: Effect, now: datetime) -> bool:
    """After a look-up found nothing, the same key may be sent only while the provider would still catch a late twin."""
    if effect.settled_by not in DOUBTED:
        return True
    return effect.terms is not None and effect.terms.honours_key and remembers(effect.terms, effect.created_at, now)


def remembers(terms: Terms, first_intent_at: datetime, now: datetime) -> bool:
    """Say whether the provider still remembers a key first used then."""
    return terms.retention is not None and now < first_intent_at + terms.retention


def _promoted(job: Job, now: datetime, effect: Effect, *, sent: bool) -> Change:
    """Become running: with an event where that changes the status or an intent is written."""
    data = {"name": effect.name, "operation_key": effect.operation_key, "sent": sent}
    if job.status is Status.RUNNING and not sent:
        return Change(job=job)
    return move(job, Status.RUNNING, EventName.DISPATCHED, now, data=data, effects=(effect,) if sent else ())


def _intended(job: Job, effect: Effect, now: datetime) -> Change:
    change = _promoted(job, now, effect, sent=True)
    return replace(change, intents=(Intent(effect.operation_key, effect.attempt_id, now),))


def dispute(change: Change, rivals: Sequence[StoredEvidence], now: datetime) -> Change:
    """Add contradicting evidence to a change: it is kept, and a person is asked."""
    if not rivals:
        return change
    keys = ", ".join(sorted({rival.operation_key for rival in rivals}))
    reason = f"evidence contradicts what is settled for {keys}: the provider may have acted twice"
    return replace(
        change,
        job=replace(change.job, escalated_at=now, escalation_reason=reason),
        events=(*change.events, note(change.job, EventName.ESCALATED, now, data={"reason": reason})),
        evidence=(*change.evidence, *(replace(rival, contradicts=True) for rival in rivals)),
    )
