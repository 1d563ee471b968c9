"""
Two tenants, one idempotency key, one project name: neither ever gets, claims or sends what is the other's.

A small world of its own. What makes a creation a repetition of another is the identity of the ledger of keys: tenant,
project and key. The rules that build jobs, claims and intents are the shipped ones; the ledger is restated here,
because in the package it is a unique index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from tenure.errors import TenureError
from tenure.lab.record import ATTEMPTS, NOW
from tenure.rules import creation, dispatch, moves
from tenure.rules.creation import NewJob
from tenure.rules.envelope import ExecutionInput, validate_execution_identity_for_dispatch
from tenure.rules.job import Job
from tenure.rules.outcome import Terms
from tenure.rules.status import Status

TENANTS = ("north", "south")
ACTIONS = {
    "creates the job": "a tenant's own job created",
    "claims the job": "a tenant's own job claimed",
    "begins the effect": "a tenant's own effect begun",
}
_TERMS = Terms("provider", honours_key=True, retention=timedelta(days=1))


class Place(NamedTuple):
    """
    One state.

    Attributes:
        answers: For each tenant the number of the job that its creation was answered with.
        stages: For each job, by number: absent, queued, claimed, sent.
    """

    answers: tuple[int | None, int | None] = (None, None)
    stages: tuple[str, str] = ("absent", "absent")


class Move(NamedTuple):
    """One step and what is wrong with it, if anything."""

    actor: str
    action: str
    text: str
    after: Place
    said: str | None


@dataclass
class Found:
    """The result of visiting every state."""

    states: int = 0
    transitions: int = 0
    depth: int = 0
    path: list[Move] = field(default_factory=list)
    said: str | None = None
    seen: set[str] = field(default_factory=set)


def identity(made: NewJob) -> tuple[str, ...]:
    """What makes a creation a repetition of another one."""
    return (made.tenant, made.project, made.idempotency_key)


def without_tenant(made: NewJob) -> tuple[str, ...]:
    """The same, as a broken variant sees it."""
    return identity(made)[1:]


def new_job(number: int) -> NewJob:
    """The creation that one tenant asks for."""
    tenant = TENANTS[number]
    return creation.new_job(
        job_id=UUID(int=number + 1),
        bound_tenant=tenant,
        organization="studio",
        project="sales",
        idempotency_key="quote-17",
        kind="send_quote",
        payload={"quote": 17},
        execution=ExecutionInput(tenant=tenant, actor="user:42", trace="t-1"),
    )


def record(number: int) -> Job:
    """The record of a job right after its creation."""
    made = new_job(number)
    return Job(
        id=made.job_id,
        tenant=made.tenant,
        organization=made.organization,
        project=made.project,
        idempotency_key=made.idempotency_key,
        kind=made.kind,
        payload=made.payload,
        scheduled_at=NOW,
        created_at=NOW,
        run_at=NOW,
    )


def visit(same: Callable[[NewJob], tuple[str, ...]] = identity) -> Found:
    """Visit every state, shortest paths first, until a promise is broken."""
    paths: dict[Place, list[Move]] = {Place(): []}
    todo = [Place()]
    found = Found()
    for place in todo:
        for move in _moves(place, same):
            found.transitions += 1
            found.seen.add(move.action)
            path = [*paths[place], move]
            if move.said is not None:
                found.path, found.said = path, move.said
                found.states = len(paths)
                return found
            if move.after not in paths:
                paths[move.after] = path
                found.depth = max(found.depth, len(path))
                todo.append(move.after)
    found.states = len(paths)
    return found


def _moves(place: Place, same: Callable[[NewJob], tuple[str, ...]]) -> Iterator[Move]:
    for number, tenant in enumerate(TENANTS):
        if place.answers[number] is None:
            yield _created(place, number, tenant, same)
        # A worker is bound to one tenant: it is offered that tenant's jobs and no others.
        job = _job(place, number)
        if job is None or job.tenant != tenant:
            continue
        if job.status is Status.QUEUED:
            yield _claimed(place, number, tenant, job)
        elif place.stages[number] == "claimed":
            yield _sent(place, number, tenant, job)


def _created(place: Place, number: int, tenant: str, same: Callable[[NewJob], tuple[str, ...]]) -> Move:
    made = new_job(number)
    known = next(
        (other for other in range(2) if place.stages[other] != "absent" and same(new_job(other)) == same(made)), number
    )
    stages = place.stages if place.stages[known] != "absent" else _with(place.stages, known, "queued")
    answers = tuple(known if other == number else answer for other, answer in enumerate(place.answers))
    owner = new_job(known).tenant
    said = None if owner == tenant else f"tenant {tenant} was given job {known + 1}, which is tenant {owner}'s"
    text = f"answered with job {known + 1} of tenant {owner}"
    return Move(f"producer of {tenant}", "creates the job", text, Place(answers, stages), said)  # type: ignore[arg-type]


def _claimed(place: Place, number: int, tenant: str, job: Job) -> Move:
    said = None
    try:
        moves.claim(job, f"worker-{tenant}", ATTEMPTS[number], NOW, start=True)
    except TenureError as refused:
        said = f"the claim of tenant {tenant}'s own job was refused: {refused}"
    after = place._replace(stages=_with(place.stages, number, "claimed"))
    return Move(f"worker of {tenant}", "claims the job", f"job {number + 1} of tenant {job.tenant}", after, said)


def _sent(place: Place, number: int, tenant: str, job: Job) -> Move:
    intent, said = _intent(number)
    other = 1 - number
    if said is None and place.stages[other] == "sent" and _intent(other)[0] == intent:
        said = f"two tenants send under one operation key: {intent}"
    if said is None and validate_execution_identity_for_dispatch(replace(job, tenant=TENANTS[other])) == []:
        said = f"an envelope of tenant {tenant} was accepted for a job of tenant {TENANTS[other]}"
    after = place._replace(stages=_with(place.stages, number, "sent"))
    return Move(f"worker of {tenant}", "begins the effect", f"under {intent}", after, said)


def _intent(number: int) -> tuple[str, str | None]:
    """The operation key that a job's effect is begun under, and why it cannot be begun, if so."""
    held = moves.claim(record(number), f"worker-{TENANTS[number]}", ATTEMPTS[number], NOW, start=True).job
    assert held.lease is not None
    try:
        begun = dispatch.begin(held, held.lease, "send", "v1:request", _TERMS, timedelta(seconds=1), NOW)
    except TenureError as refused:
        return "", f"the effect of tenant {TENANTS[number]}'s own job was refused: {refused}"
    return begun.effects[0].operation_key, None


def _job(place: Place, number: int) -> Job | None:
    stage = place.stages[number]
    if stage == "absent":
        return None
    return record(number) if stage == "queued" else replace(record(number), status=Status.RUNNING)


def _with(stages: tuple[str, str], number: int, stage: str) -> tuple[str, str]:
    return (stage, stages[1]) if number == 0 else (stages[0], stage)
