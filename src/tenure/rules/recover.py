"""
What happens to the work of a restored copy: the provider's answer, a person's clearing, and what still needs evidence.

Nothing here sends. What a begin has put in doubt is judged as a sweep judges it; what is found before a worker begins
is written down as the receipt that the next attempt reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from tenure.errors import IllegalMove
from tenure.rules import reconcile
from tenure.rules.dispatch import ACCEPTED
from tenure.rules.effect import Effect, EffectState, SettledBy, StoredEvidence, operation_key
from tenure.rules.event import EventName
from tenure.rules.job import Change, Job, find_effect, illegal, note, with_effect
from tenure.rules.lease import Lease, check_fence
from tenure.rules.outcome import Absent, Accepted, Declined, Evidence, NoAnswer, Terms
from tenure.rules.status import Status
from tenure.rules.suspicion import may_count_later, uncovered


@dataclass(frozen=True, slots=True)
class Operation:
    """
    An effect that jobs of a kind are known to have.

    Attributes:
        name: The effect's name in the handler.
        terms: What its provider declares.
    """

    name: str
    terms: Terms


@dataclass(frozen=True, slots=True)
class NeedsEvidence:
    """
    One thing of which nobody knows whether it happened.

    Attributes:
        name, operation_key: None where the job is suspect and no effect of the provider is recorded: its name is the
            handler's to say.
        provider: None where none is known.
        why: What is to be found out.
    """

    job_id: UUID
    tenant: str
    kind: str
    status: Status
    name: str | None
    operation_key: str | None
    provider: str | None
    why: str


def answer(
    job: Job,
    lease: Lease,
    name: str,
    evidence: Evidence,
    now: datetime,
    *,
    asked_at: datetime,
    stored: Sequence[StoredEvidence] = (),
) -> Change:
    """
    Apply what the provider said about an effect that a begin on a suspect job has put in doubt.

    Settled, or escalated at once: a person has to find out. Only an absence that merely came too early is left to the
    sweep, which asks again when it counts. Where the provider knows nothing or says nothing, a receipt that was handed
    in for the lost intent speaks: what was accepted is never sent again.

    Raises:
        IllegalMove: Nothing of this attempt is in doubt under this name.
    """
    held = check_fence(job, lease, now)
    effect = find_effect(job, name)
    if effect is None or not effect.is_lost or effect.attempt_id != held.attempt_id:
        raise IllegalMove(f"job {job.id} has no effect {name!r} that this attempt has asked about")
    if isinstance(evidence, Absent | NoAnswer):
        for one in stored:
            if one.operation_key == effect.operation_key and one.kind == ACCEPTED and not (one.used or one.contradicts):
                return reconcile.settle_stored(job, effect, one, now, stored)
    early = isinstance(evidence, Absent) and may_count_later(effect, effect.terms, now)
    return reconcile.judge(job, effect, evidence, now, asked_at=asked_at, patient=early, stored=stored)


def askable(job: Job, operations: Sequence[Operation]) -> list[Effect]:
    """
    Give what a provider can be asked about before any worker has the job: nothing is written for it yet.

    An effect that is open is a sweep's; one that succeeded or was refused is not sent again.
    """
    suspicion = job.suspicion
    if suspicion is None or job.status is not Status.QUEUED:
        return []
    found = []
    for operation in operations:
        known = find_effect(job, operation.name)
        if not suspicion.doubts(known) or (known and known.state is not EffectState.FAILED_BEFORE_DISPATCH):
            continue
        found.append(
            Effect(
                name=operation.name,
                state=EffectState.UNKNOWN,
                operation_key=known.operation_key if known else operation_key(job.kind, job.id, operation.name),
                request_digest=known.request_digest if known else "",
                attempt_id=job.id,
                # Above the mark's: whatever is written of it is known since the recovery.
                generation=suspicion.generation + 1,
                created_at=suspicion.first_at(known),
                begun_at=suspicion.marked_at,
                deadline_at=suspicion.marked_at,
                terms=operation.terms,
                settled_by=SettledBy.RECOVERY,
                ordinal=known.ordinal if known else 0,
            )
        )
    return found


def found(job: Job, effect: Effect, evidence: Evidence, now: datetime) -> Change | None:
    """
    Write down what a provider knows of a lost intent; None where it proves nothing.

    An absence is not written: the next attempt asks again, under its lease, and only then may send.
    """
    if not askable(job, [Operation(effect.name, effect.terms)] if effect.terms else []):
        return None
    match evidence:
        case Accepted(receipt):
            settled = replace(effect, state=EffectState.SUCCEEDED, receipt=receipt, reason=None)
        case Declined(reason):
            settled = replace(effect, state=EffectState.REJECTED, reason=reason or "the provider declined")
        case _:
            return None
    settled = replace(settled, settled_at=now, settled_by=SettledBy.LOOKUP)
    data = {
        "name": effect.name,
        "operation_key": effect.operation_key,
        "state": settled.state.value,
        "by": SettledBy.LOOKUP.value,
        "lost": True,
    }
    return Change(
        job=with_effect(job, settled),
        effects=(settled,),
        events=(note(job, EventName.EFFECT_SETTLED, now, data=data),),
    )


def clear(job: Job, now: datetime, *, actor: str, reason: str) -> Change:
    """
    Take a person's word that nothing of this job is lost.

    Raises:
        IllegalMove: It is not suspect.
    """
    if not job.suspect:
        raise illegal(job, "be cleared: it is not suspect")
    event = note(job, EventName.SUSPICION_CLEARED, now, actor=actor, data={"reason": reason})
    return Change(job=replace(job, suspicion=None), events=(event,))


def needs(job: Job) -> list[NeedsEvidence]:
    """Give what needs evidence: open effects, and of a suspect job each provider of which nothing is known."""

    def one(name: str | None, key: str | None, provider: str | None, why: str) -> NeedsEvidence:
        return NeedsEvidence(job.id, job.tenant, job.kind, job.status, name, key, provider, why)

    opened = [
        one(effect.name, effect.operation_key, effect.provider, effect.reason or "its outcome is not known")
        for effect in job.effects
        if effect.is_open
    ]
    if not job.suspect or job.suspicion is None:
        return opened
    declared = job.options.providers
    unknown = uncovered(job.suspicion, declared, job.effects)
    silent = [
        one(None, None, provider, "an effect of this provider may be lost with the backup") for provider in unknown
    ]
    if not declared and not any(not job.suspicion.doubts(effect) for effect in job.effects):
        why = "an effect may be lost with the backup; its kind declares no providers (providers= of app.job)"
        silent = [one(None, None, None, why)]
    return [*opened, *silent]
