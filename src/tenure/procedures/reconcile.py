"""Settle what is uncertain: candidates, one step of a sweep at a time, and a person's statement."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tenure.procedures.records import Placed, event_of, evidence_of, identity
from tenure.procedures.rows import fetch, in_scope, lock, place_of, repeated, save
from tenure.rules import moves, reconcile
from tenure.rules.bounds import check_whole
from tenure.rules.creation import check_text
from tenure.rules.effect import Effect, StoredEvidence
from tenure.rules.event import EventName
from tenure.rules.job import Change, Job, open_boundary
from tenure.rules.outcome import Evidence
from tenure.rules.reconcile import Ask, Escalate, Leave, Recover, Settle, Verdict
from tenure.yields import FRESH, Command, Each, Script, Statement, procedure

CANDIDATES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Question:
    """
    A sweep has to ask a provider before it can go on.

    Attributes:
        asked_at: The store's clock when the question was asked; the answer speaks of no later time.
    """

    job: Job
    effect: Effect
    asked_at: datetime


@procedure(reads=True)
def find_candidates(
    organization: str, project: str, tenant: str, limit: int, *, patient: bool = False
) -> Script[list[UUID]]:
    """
    Give the ids that a sweep of one scope looks at, oldest first.

    Args:
        patient: Leave out what waits for a person and has no new evidence: many of them must not hide newer ones.
    Locks nothing.
    """
    check_text("organization", organization)
    check_text("project", project)
    check_whole("limit", limit, CANDIDATES_MAX)
    rows = yield Statement(
        "candidate_list",
        {"tenant": tenant, "organization": organization, "project": project, "patient": patient, "limit": limit},
    )
    return [identity(row[0]) for row in rows]


@procedure(reads=True)
def find_candidate_scopes(tenant: str | None) -> Script[list[tuple[str, str, str]]]:
    """Give every tenant, organization and project that has candidates. Locks nothing."""
    rows = yield Statement("candidate_scopes", {"tenant": tenant})
    return [(row[0], row[1], row[2]) for row in rows]


@procedure
def sweep_step(
    job_id: UUID, organization: str, project: str, tenant: str, *, patient: bool = False, command: Command = FRESH
) -> Script[Verdict | Question]:
    """
    Do all of a sweep's work on one candidate that needs no provider, or say which effect to ask about.

    Args:
        patient: See `rules.reconcile.assess`.
    Locks: as `rows.lock`, terminal. Writes: the place, effect, evidence, escalation, event.
    """
    known = in_scope((yield from lock([job_id], terminal=True)), job_id, tenant)
    job = known.job
    if (job.organization, job.project) != (organization, project):
        return Verdict("leave", job_id, job.status, "it is of another organization or project")
    told = yield from _told_before(command, job)
    if told is not None:
        return told
    kept = [evidence_of(row) for row in (yield Each("evidence_read", [(job_id,)]))]
    stored = [record for record in kept if not record.used]
    while True:
        step = reconcile.assess(known.job, stored, known.now, patient=patient)
        if isinstance(step, Ask):
            return Question(known.job, step.effect, known.now)
        if isinstance(step, Leave):
            return Verdict("leave", job_id, known.job.status, step.reason)
        change, verdict = _done(known, step, kept)
        yield from save([(known, change)], command)
        known = Placed(change.job, place_of(change.job, known.now), known.now)
        if isinstance(step, Settle):
            stored = [record for record in stored if record.id != step.evidence.id]
        # A recovered job is assessed again in the same transaction, and so is one with further open effects.
        if verdict is not None and not (isinstance(step, Settle) and any(e.is_open for e in change.job.effects)):
            return verdict


def _told_before(command: Command, job: Job) -> Script[Verdict | None]:
    """Give the verdict of an earlier run of this very call, from what it left in the trail; None where it goes on."""
    if not command.again:
        return None
    rows = yield Each("event_read", [(job.id,)])
    own = [event_of(row) for row in rows if row[6] is not None and identity(row[6]) == command.id]
    said = {event.name: event for event in own}
    if EventName.ESCALATED in said:
        return Verdict("escalate", job.id, job.status, str(said[EventName.ESCALATED].data["reason"]))
    if EventName.EFFECT_SETTLED in said and not open_boundary(job):
        return Verdict("resolve", job.id, job.status, _by_stored(str(said[EventName.EFFECT_SETTLED].data["evidence"])))
    return None


def _by_stored(kind: str) -> str:
    return f"stored evidence: {kind}"


def _done(
    known: Placed, step: Recover | Settle | Escalate, kept: list[StoredEvidence]
) -> tuple[Change, Verdict | None]:
    job = known.job
    if isinstance(step, Recover):
        recovered = moves.recover(job, known.now)
        assert recovered is not None, "assess saw an expired lease"
        return recovered, None
    if isinstance(step, Settle):
        change = reconcile.settle_stored(job, step.effect, step.evidence, known.now, kept)
        return change, Verdict("resolve", job.id, change.job.status, _by_stored(step.evidence.kind))
    change = reconcile.escalate(job, step.reason, known.now)
    return change, Verdict("escalate", job.id, change.job.status, step.reason)


@procedure
def sweep_answer(
    question: Question, evidence: Evidence, *, patient: bool = False, command: Command = FRESH
) -> Script[Verdict]:
    """
    Apply what a provider said, if the intent it was asked about is still open.

    Locks: as `rows.lock`, terminal. Writes: the place, effect, escalation, event.
    """
    job_id = question.job.id
    known = yield from fetch(job_id, question.job.tenant, terminal=True)
    key = question.effect.operation_key
    if (yield from repeated(command, job_id)):
        return _answered(known.job, key)
    effect = reconcile.answered(known.job, question.effect)
    if effect is None:
        return Verdict("leave", job_id, known.job.status, "somebody else has dealt with it meanwhile")
    unanswered = Verdict("leave", job_id, known.job.status, "the provider has no answer that counts yet")
    if command.again and effect.lookups > question.effect.lookups:
        # An earlier run of this very call counted the question; it leaves no event.
        return unanswered
    stored = [evidence_of(row) for row in (yield Each("evidence_read", [(job_id,)]))]
    change = reconcile.judge(
        known.job, effect, evidence, known.now, asked_at=question.asked_at, patient=patient, stored=stored
    )
    yield from save([(known, change)], command)
    return _answered(change.job, key) if change.events else unanswered


def _answered(job: Job, key: str) -> Verdict:
    if job.escalated_at is not None:
        return Verdict("escalate", job.id, job.status, job.escalation_reason or "")
    return Verdict("resolve", job.id, job.status, f"the provider answered for {key}")


@procedure
def reconcile_dispatched(
    job_id: UUID,
    evidence: Evidence,
    *,
    operation_key: str | None,
    reason: str,
    actor: str,
    tenant: str | None = None,
    command: Command = FRESH,
) -> Script[Job]:
    """
    Settle by a person's statement; see `rules.reconcile.state_fact`.

    Locks: as `rows.lock`, terminal. Writes: the place, effect, evidence, escalation, event.
    """
    check_text("reason", reason)
    check_text("actor", actor)
    known = yield from fetch(job_id, tenant, terminal=True)
    if (yield from repeated(command, job_id)):
        return known.job
    stored = [evidence_of(row) for row in (yield Each("evidence_read", [(job_id,)]))]
    change = reconcile.state_fact(
        known.job, evidence, command.id, known.now, key=operation_key, actor=actor, reason=reason, stored=stored
    )
    yield from save([(known, change)], command)
    return change.job
