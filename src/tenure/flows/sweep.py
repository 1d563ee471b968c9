"""Sweep: settle what is uncertain by evidence, asking providers between the commits. It never sends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast
from uuid import UUID

from tenure.errors import Invalid
from tenure.procedures.reconcile import Question, find_candidates, sweep_answer, sweep_step
from tenure.rules.effect import Effect
from tenure.rules.job import Job
from tenure.rules.outcome import Absent, Accepted, Declined, Evidence, NoAnswer
from tenure.rules.payload import encode
from tenure.rules.reconcile import Verdict
from tenure.yields import FlowScript, call, flow, transact

# Asked by the caller's own means: `(operation_key, job) -> Evidence`, plain or async.
Lookup = Callable[[str, Job], "Evidence | Awaitable[Evidence]"]

_RANK = {"leave": 0, "resolve": 1, "escalate": 2}


@flow
def sweep_job(
    job_id: UUID,
    organization: str,
    project: str,
    tenant: str,
    ask: Callable[[Job, Effect], Any],
    *,
    patient: bool = False,
) -> FlowScript[Verdict]:
    """
    Do all that a sweep may do for one candidate.

    Args:
        ask: Asks the provider about one open effect and gives Evidence.
        patient: See `rules.reconcile.assess`.
    """
    verdict: Verdict | None = None
    asked: set[str] = set()
    while True:
        step = sweep_step(job_id, organization, project, tenant, patient=patient)
        answer = cast("Verdict | Question", (yield from transact(step)))
        if isinstance(answer, Question) and answer.effect.operation_key not in asked:
            asked.add(answer.effect.operation_key)
            evidence = yield from look_up(ask, answer.job, answer.effect)
            reply = yield from transact(sweep_answer(answer, evidence, patient=patient))
            verdict = _stronger(verdict, reply)
            # A job with further open effects is asked about each of them before anything more is said.
            if reply.action == "resolve":
                continue
            return verdict
        if isinstance(answer, Question):
            return verdict or Verdict("leave", job_id, answer.job.status, "the provider was asked already")
        return _stronger(verdict, answer)


@flow
def sweep_scope(
    organization: str,
    project: str,
    tenant: str,
    ask: Callable[[Job, Effect], Any],
    *,
    limit: int,
    patient: bool = False,
) -> FlowScript[list[Verdict]]:
    """
    Sweep every candidate of one tenant, organization and project, oldest first.

    Args:
        limit: At most this many candidates.
    """
    ids = yield from transact(find_candidates(organization, project, tenant, limit))
    verdicts: list[Verdict] = []
    for job_id in ids:
        verdict = yield from sweep_job(job_id, organization, project, tenant, ask, patient=patient)
        verdicts.append(verdict)
    return verdicts


def look_up(ask: Callable[..., Any], *about: Any) -> FlowScript[Evidence]:
    """Ask a provider from a flow; what is not evidence is no answer."""
    return _evidence((yield from call("lookup", ask, *about)))


def _evidence(answer: object) -> Evidence:
    if isinstance(answer, Accepted):
        try:
            encode(answer.receipt)
        except Invalid as problem:
            # The provider did act: a receipt that no store keeps must not keep the job in doubt.
            return Accepted({"receipt_left_out": problem.code})
    if isinstance(answer, Accepted | Declined | Absent | NoAnswer):
        return answer
    return NoAnswer(f"the look-up gave {type(answer).__name__}, which is no evidence")


def _stronger(before: Verdict | None, after: Verdict) -> Verdict:
    return after if before is None or _RANK[after.action] >= _RANK[before.action] else before
