"""
Ask providers about the work of a restored copy, before workers come to it. It never sends.

What a provider says was done is written down as the receipt that the next attempt reads. What it does not know is not
written: the next attempt asks again, under its lease, and only then may send.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tenure.flows.sweep import look_up, sweep_job
from tenure.procedures.recover import find_operations, forget_suspects, list_suspects, read_doubt, settle_lost
from tenure.rules.effect import Effect
from tenure.rules.job import Job
from tenure.rules.outcome import Absent, NoAnswer
from tenure.rules.recover import Operation
from tenure.rules.status import Status
from tenure.yields import FlowScript, flow, transact


@dataclass(frozen=True, slots=True)
class Answered:
    """
    What became of one suspect job, or of one effect of it.

    Attributes:
        action: found (a receipt or a refusal is written), absent (the provider knows nothing of it), unanswered,
            swept (a sweep dealt with it), left (nothing could be asked).
        operation_key: What was asked about; None where nothing was.
    """

    action: str
    job_id: UUID
    status: Status
    operation_key: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Reconciled:
    """
    One page of a reconciliation.

    Attributes:
        after: Give this to go on; None at the end.
    """

    answers: list[Answered]
    after: UUID | None


@flow
def reconcile_suspects(
    ask: Callable[[Job, Effect], Any],
    *,
    operations: Mapping[str, Sequence[Operation]],
    tenant: str | None = None,
    limit: int = 100,
    after: UUID | None = None,
) -> FlowScript[Reconciled]:
    """
    Ask about one page of suspect jobs, oldest first.

    Each job is dealt with in transactions of its own, so it may be stopped anywhere and begun again.

    Args:
        ask: Asks the provider about one effect and gives Evidence.
        operations: Effects by kind, beside those that the database knows of other jobs of the kind.
        limit: Of jobs, at most 1,000; small pages show progress.
        after: From the page before.
    """
    suspects = yield from transact(list_suspects(tenant, limit, after))
    known = yield from transact(find_operations([one.job.kind for one in suspects], tenant))
    answers: list[Answered] = []
    for one in suspects:
        mine = {found.name: found for found in (*known.get(one.job.kind, ()), *operations.get(one.job.kind, ()))}
        said = yield from _reconcile(one.job.id, ask, [mine[name] for name in sorted(mine)])
        answers += said
    yield from transact(forget_suspects())
    return Reconciled(answers, suspects[-1].job.id if len(suspects) == limit else None)


def _reconcile(
    job_id: UUID, ask: Callable[[Job, Effect], Any], operations: Sequence[Operation]
) -> FlowScript[list[Answered]]:
    doubt = yield from transact(read_doubt(job_id, operations))
    if doubt is None:
        return []
    job = doubt.job
    if doubt.sweep:
        verdict = yield from sweep_job(job_id, job.organization, job.project, job.tenant, ask)
        action = "left" if verdict.action == "leave" else "swept"
        return [Answered(action, job_id, verdict.status, job.operation_key, verdict.reason)]
    if not doubt.effects:
        return [Answered("left", job_id, job.status, None, doubt.why)]
    answers = []
    for effect in doubt.effects:
        said = yield from look_up(ask, job, effect)
        settled = None
        if not isinstance(said, Absent | NoAnswer):
            settled = yield from transact(settle_lost(job_id, effect, said))
        answers.append(_told(job, effect, said, settled))
    return answers


def _told(job: Job, effect: Effect, said: object, settled: Effect | None) -> Answered:
    key = effect.operation_key
    if settled is not None:
        return Answered("found", job.id, job.status, key, f"the provider knows it: {settled.state}")
    if isinstance(said, Absent):
        return Answered("absent", job.id, job.status, key, "the provider does not know it; its worker asks again first")
    if isinstance(said, NoAnswer):
        why = f"no answer ({said.reason})" if said.reason else "no answer"
        return Answered("unanswered", job.id, job.status, key, why)
    return Answered("left", job.id, job.status, key, "a worker was faster, and asks before it sends")
