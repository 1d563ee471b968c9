"""
The work of a restored copy: marked at the recovery, asked about before anything is sent, cleared by a person.

`mark_suspects` runs inside the recovery's own transaction, while the database is still frozen: no worker can begin
anything between the mark and the thaw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from tenure.procedures.records import evidence_of, identity, maybe_micros, terms_of
from tenure.procedures.rows import fetch, in_scope, lock, read, repeated, save
from tenure.rules import recover as rules
from tenure.rules.bounds import check_whole
from tenure.rules.creation import check_text
from tenure.rules.effect import Effect
from tenure.rules.job import Job, find_effect, open_boundary
from tenure.rules.lease import Lease, live
from tenure.rules.outcome import Evidence
from tenure.rules.payload import encode
from tenure.rules.recover import NeedsEvidence, Operation
from tenure.rules.status import LIVE, TERMINAL
from tenure.rules.suspicion import FINAL
from tenure.yields import FRESH, Command, Each, Script, Statement, procedure

LIST_MAX = 1_000

_FINAL = sorted(status.value for status in FINAL)


@dataclass(frozen=True, slots=True)
class Suspect:
    """
    A suspect job, and who said so.

    Attributes:
        job: `job.suspicion` says since when.
        actor, reason: Of the recovery.
    """

    job: Job
    actor: str
    reason: str


@dataclass(frozen=True, slots=True)
class Doubt:
    """
    What can be done about one suspect job now.

    Attributes:
        effects: To be asked about, in the order of their names.
        sweep: It is a sweep's: its outcome is uncertain, or its lease has ended in a call.
        why: Why nothing is asked, where nothing is.
    """

    job: Job
    effects: tuple[Effect, ...] = ()
    sweep: bool = False
    why: str = ""


# --- marking ----------------------------------------------------------------------------------------------------------


def mark_suspects(actor: str, reason: str, *, since: datetime | None, recovery_id: UUID) -> Script[int]:
    """
    Mark every job that may still run, or be brought back: what it did after the backup is not known here.

    A part of the recovery's own transaction.

    Args:
        since: When the copy was made, the last instant that it knows. Providers' memory of keys is counted from it.
            Without it each job's creation is taken, which is safe, and sends less.
        recovery_id: Names this marking.
    Returns: How many.
    Locks: nothing; for a frozen database. Writes: suspect, event.
    """
    check_text("actor", actor)
    check_text("reason", reason)
    named = {"recovery_id": recovery_id, "actor": actor}
    _, _, rows = yield [
        Statement("suspect_mark", {**named, "since": maybe_micros(since), "reason": reason, "final": _FINAL}),
        Statement("suspect_tell", {**named, "data": encode({"reason": reason}), "command_id": named["recovery_id"]}),
        Statement("suspect_marked", {"recovery_id": named["recovery_id"]}),
    ]
    return int(rows[0][0])


@procedure
def clear_suspicion(
    job_id: UUID, reason: str, actor: str, *, tenant: str | None = None, command: Command = FRESH
) -> Script[Job]:
    """
    Take a person's word that nothing of this job is lost: its effects are begun like any other's from now on.

    Locks: as `rows.lock`, terminal. Writes: suspect, event.
    """
    check_text("reason", reason)
    check_text("actor", actor)
    known = yield from fetch(job_id, tenant, terminal=True)
    if (yield from repeated(command, job_id)):
        return known.job
    change = rules.clear(known.job, known.now, actor=actor, reason=reason)
    yield from save([(known, change)], command)
    return change.job


# --- asking -----------------------------------------------------------------------------------------------------------


@procedure
def answer_lost(
    lease: Lease, name: str, evidence: Evidence, asked_at: datetime, *, command: Command = FRESH
) -> Script[Effect]:
    """
    Commit what the provider said about an effect that a begin on a suspect job has put in doubt.

    Args:
        asked_at: The store's clock before the question; the answer speaks of no later time.
    Locks: as `rows.lock`. Writes: effect, escalation, event.
    """
    known = yield from fetch(lease.job_id, None)
    job = known.job
    asked = find_effect(job, name)
    # An earlier run of this very call may have counted a question that came too early, which leaves no event.
    counted = command.again and asked is not None and asked.lookups > 0
    if not counted and not (yield from repeated(command, job.id)):
        stored = [evidence_of(row) for row in (yield Each("evidence_read", [(job.id,)]))]
        change = rules.answer(job, lease, name, evidence, known.now, asked_at=asked_at, stored=stored)
        yield from save([(known, change)], command, last=True)
        job = change.job
    effect = find_effect(job, name)
    assert effect is not None, "what was asked about has a record"
    return effect


@procedure(reads=True)
def read_doubt(job_id: UUID, operations: Sequence[Operation]) -> Script[Doubt | None]:
    """Say what can be asked about a suspect job; None where it is gone or not suspect any more. Locks nothing."""
    found = yield from read([job_id])
    known = found.get(job_id)
    if known is None or not known.job.suspect:
        return None
    job = known.job
    if job.authority.frozen:
        return Doubt(job, why="the tenant or the database is frozen; recover it first")
    if job.status in LIVE and job.lease is not None and live(job.lease, known.now):
        return Doubt(job, why="a worker has it, and asks before it sends")
    if open_boundary(job):
        return Doubt(job, sweep=True)
    if job.status in LIVE:
        return Doubt(job, why="its lease has ended before any dispatch; the worker that claims it asks")
    if job.status in TERMINAL:
        return Doubt(job, why=f"it is {job.status}; if it is brought back, its worker asks before it sends")
    effects = rules.askable(job, operations)
    if not effects:
        return Doubt(
            job,
            why="no effect of its kind is known to ask about: name one (--effect KIND:NAME=PROVIDER); its worker asks "
            "before it sends",
        )
    return Doubt(job, tuple(effects))


@procedure
def settle_lost(job_id: UUID, effect: Effect, evidence: Evidence, *, command: Command = FRESH) -> Script[Effect | None]:
    """
    Write down what a provider knows of a lost intent, if no worker has come first; None where nothing is written.

    Locks: as `rows.lock`. Writes: effect, event.
    """
    found = yield from lock([job_id])
    known = in_scope(found, job_id, None)
    if (yield from repeated(command, job_id)):
        return find_effect(known.job, effect.name)
    change = rules.found(known.job, replace(effect, attempt_id=command.id), evidence, known.now)
    if change is None:
        return None
    yield from save([(known, change)], command)
    return find_effect(change.job, effect.name)


@procedure(reads=True)
def find_operations(kinds: Sequence[str], tenant: str | None) -> Script[Mapping[str, tuple[Operation, ...]]]:
    """Give the effects that jobs of these kinds have had, by kind; it reads every effect of theirs. Locks nothing."""
    known: dict[str, list[Operation]] = {}
    for kind, name, text, _ in (yield Each("kind_operations", [(tenant, kind) for kind in sorted(set(kinds))])):
        terms = terms_of(text)
        if terms is not None:
            known.setdefault(kind, []).append(Operation(name, terms))
    return {kind: tuple(operations) for kind, operations in known.items()}


# --- reading ----------------------------------------------------------------------------------------------------------


@procedure(reads=True)
def list_suspects(tenant: str | None = None, limit: int = 100, after: UUID | None = None) -> Script[list[Suspect]]:
    """
    Give suspect jobs that may still run, oldest first.

    Args:
        limit: At most 1,000.
        after: The id of the last job of the page before.
    """
    check_whole("limit", limit, LIST_MAX)
    rows = yield Statement("suspect_list", {"tenant": tenant, "after": after, "limit": limit, "final": _FINAL})
    found = yield from read(identity(row[0]) for row in rows)
    said = ((identity(row[0]), row[1], row[2]) for row in rows)
    return [Suspect(found[job_id].job, actor, reason) for job_id, actor, reason in said if job_id in found]


@procedure(reads=True)
def count_suspects(tenant: str | None = None) -> Script[dict[str, dict[str, int]]]:
    """Count suspect jobs that may still run, by tenant and status."""
    counts: dict[str, dict[str, int]] = {}
    for whose, status, number in (yield Statement("suspect_counts", {"tenant": tenant, "final": _FINAL})):
        counts.setdefault(whose, {})[status] = int(number)
    return counts


@procedure(reads=True)
def list_needs(tenant: str | None = None, limit: int = 100, after: UUID | None = None) -> Script[list[NeedsEvidence]]:
    """
    Give what needs evidence, job by job, oldest first.

    Args:
        limit: Of jobs, at most 1,000; a job may have several.
        after: The id of the last job of the page before.
    """
    check_whole("limit", limit, LIST_MAX)
    rows = yield Statement("evidence_needed", {"tenant": tenant, "after": after, "limit": limit, "final": _FINAL})
    ids = [identity(row[0]) for row in rows]
    found = yield from read(ids)
    return [need for job_id in ids if job_id in found for need in rules.needs(found[job_id].job)]


@procedure(reads=True)
def every_need(tenant: str | None = None) -> Script[list[NeedsEvidence]]:
    """Give all that needs evidence, page by page in one look; see `list_needs`."""
    needs: list[NeedsEvidence] = []
    after: UUID | None = None
    while True:
        rows = yield Statement(
            "evidence_needed", {"tenant": tenant, "after": after, "limit": LIST_MAX, "final": _FINAL}
        )
        ids = [identity(row[0]) for row in rows]
        found = yield from read(ids)
        needs += [need for job_id in ids if job_id in found for need in rules.needs(found[job_id].job)]
        if len(ids) < LIST_MAX:
            return needs
        after = ids[-1]


@procedure
def forget_suspects() -> Script[None]:
    """Remove the marks of jobs that are final. Writes: suspect."""
    yield Statement("suspect_forget")
