"""A cancellation comes after the intent, and the reply is lost: the question stays open until evidence answers it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from typing import Any

from tenure.faces.experiments.breaking import replaced
from tenure.faces.experiments.post import lose_the_reply
from tenure.faces.experiments.shape import Experiment, Notes
from tenure.faces.experiments.stage import Stage, refusal
from tenure.rules import moves
from tenure.rules.effect import EffectState, SettledBy
from tenure.rules.event import Event, EventName
from tenure.rules.job import Change, Job, with_effect
from tenure.rules.lease import Lease
from tenure.rules.status import Phase, Status

_acknowledge = moves.acknowledge_cancellation


def _closes(job: Job, lease: Lease, now: datetime) -> Change:
    """Take what is open for something that did not happen, because it was cancelled."""
    change = _acknowledge(job, lease, now)
    closed = tuple(
        replace(one, state=EffectState.FAILED_BEFORE_DISPATCH, settled_at=now, settled_by=SettledBy.OUTCOME)
        for one in job.effects
        if one.is_open
    )
    after = change.job
    for one in closed:
        after = with_effect(after, one)
    return replace(change, job=after, effects=closed)


def _retries(job: Job, lease: Lease, now: datetime) -> Change:
    """Close what is open and queue the job for another try."""
    closed = _closes(job, lease, now)
    queued = replace(
        closed.job, status=Status.QUEUED, run_at=now, finished_at=None, cancel_requested_at=None, cancel_reason=None
    )
    event = Event(EventName.RELEASED, now, queued.generation, Status.QUEUED)
    return replace(closed, job=queued, events=(event,))


_BROKEN: dict[str, Any] = {"cancel-closes": _closes, "cancel-retries": _retries}


def _play(stage: Stage, notes: Notes, variant: str | None) -> None:
    stage.accept("Q-1")
    stage.accept("Q-2")
    with ExitStack() as broken:
        if variant is not None:
            broken.enter_context(replaced((moves.acknowledge_cancellation, _BROKEN[variant])))
        _cancel(stage, notes)
    job, effect = stage.job("Q-1"), stage.effect("Q-1")
    acts = len(stage.acts("Q-1"))
    state = "missing" if effect is None else effect.state.value
    notes.promise(
        "cancelled work whose outcome nobody knows stays visible",
        job.status is Status.CANCELLED and job.phase is Phase.NEEDS_ATTENTION and effect is not None and effect.is_open,
        f"job {job.status} in phase {job.phase}, effect {state}, acts in the provider's ledger: {acts}",
    )
    done = stage.work("B")
    notes.step("worker B", "does what can be done", f"did {', '.join(done)}")
    acts = len(stage.acts("Q-1"))
    notes.promise("what was cancelled is not sent again", acts == 1, f"acts for Q-1 in the provider's ledger: {acts}")
    stage.clock.move(2 * stage.post.timeout)
    stage.sweep()
    job, effect = stage.job("Q-1"), stage.effect("Q-1")
    state = "missing" if effect is None else effect.state.value
    by = None if effect is None else effect.settled_by
    notes.step("sweeper", "asks the provider", f"effect {state}, job {job.status} in phase {job.phase}")
    notes.promise(
        "evidence says what became of cancelled work, and moves no job",
        state == EffectState.SUCCEEDED
        and by is SettledBy.LOOKUP
        and job.status is Status.CANCELLED
        and job.phase is Phase.DONE,
        f"effect {state}, job {job.status} in phase {job.phase}, "
        f"acts in the provider's ledger: {len(stage.acts('Q-1'))}",
    )
    other = stage.job("Q-2")
    notes.control(
        "work that nobody cancelled is done",
        other.status is Status.COMPLETED and len(stage.acts("Q-2")) == 1,
        f"job {other.status}, acts for Q-2: {len(stage.acts('Q-2'))}",
    )


def _cancel(stage: Stage, notes: Notes) -> None:
    turn = stage.claim("A")
    assert turn is not None, "Q-1 waits"

    def cancelled() -> None:
        stage.service.cancel_job(turn.ctx.job.id, reason="the customer changed her mind")
        lose_the_reply()

    stage.post.then = cancelled
    code = refusal(turn.send)
    notes.step(
        "provider",
        "accepts the letter of Q-1; it is cancelled at this moment, and the reply is lost",
        f"the call ended with {code}, acts: {len(stage.acts('Q-1'))}",
    )
    stage.service.acknowledge_cancellation(turn.lease)
    job = stage.job("Q-1")
    notes.step("worker A", "stops", f"job {job.status} in phase {job.phase}")


CANCELLED_AFTER_INTENT = Experiment(
    "cancelled-after-intent",
    "a job is cancelled while its call is on its way, and the reply is lost",
    {
        "cancel-closes": "the end of a cancelled attempt closes its effect as if it had not happened",
        "cancel-retries": "the end of a cancelled attempt queues the job for another try",
    },
    _play,
)
