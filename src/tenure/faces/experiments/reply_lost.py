"""The provider accepts, the reply is lost and the worker dies: one effect, and a receipt that was asked for."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from tenure.connectors.provider import send_bounded
from tenure.faces.experiments.breaking import replaced
from tenure.faces.experiments.post import die
from tenure.faces.experiments.shape import Experiment, Notes
from tenure.faces.experiments.stage import EFFECT, Stage, Turn, dies, letter, wait
from tenure.lab import wrong
from tenure.rules import dispatch, reconcile
from tenure.rules.effect import SettledBy
from tenure.rules.event import EventName
from tenure.rules.status import Status


def _unasked() -> list[tuple[Any, Any]]:
    kept = dispatch._key_still_good  # noqa: SLF001 - taken away on purpose
    return [(reconcile.judge, wrong.silence_is_absence(reconcile.judge)), (kept, wrong.always(kept))]


def _send(turn: Turn, *, intent: bool) -> Any:
    """Send, or as plain queues do it, call and write nothing down before."""
    if intent:
        return turn.send()
    ctx = turn.ctx
    key = f"{ctx.job.kind}:{ctx.job.id}:{EFFECT}"
    post = turn.stage.post
    return wait(send_bounded(post, letter(turn.quote), key, post.timeout))


def _play(stage: Stage, notes: Notes, variant: str | None) -> None:
    intent = variant != "no-intent"
    stage.accept("Q-1")
    first = stage.claim("A")
    assert first is not None, "Q-1 waits"
    stage.post.then = die
    died = dies(lambda: _send(first, intent=intent))
    notes.step(
        "provider",
        "accepts the letter of Q-1; worker A dies before it hears of it",
        f"acts: {len(stage.acts('Q-1'))}, effect {_state(stage)}",
    )
    stage.pass_lease()
    with ExitStack() as broken:
        if variant == "retried-unasked":
            broken.enter_context(replaced(*_unasked()))
        _recover(stage, notes, intent=intent)
    acts, job, effect = stage.acts("Q-1"), stage.job("Q-1"), stage.effect("Q-1")
    notes.promise(
        "what may have happened is not done again",
        died and len(acts) == 1,
        f"acts for Q-1 in the provider's ledger: {len(acts)} ({', '.join(act.effect_id for act in acts)})",
    )
    receipt = None if effect is None else effect.receipt
    by = None if effect is None else effect.settled_by
    events = [event.name for event in stage.service.list_job_events(job.id)]
    notes.promise(
        "a lost reply is settled by evidence, and the job goes on with it",
        job.status is Status.COMPLETED
        and by is SettledBy.LOOKUP
        and receipt == {"effect_id": acts[0].effect_id}
        and EventName.RECONCILED in events,
        f"job {job.status}, effect {_state(stage)}, known by {_word(by)}",
    )
    stage.accept("Q-2")
    done = stage.work("B")
    notes.step("worker B", "does a quote whose reply arrives", f"did {', '.join(done)}")
    notes.control(
        "a call whose reply arrives is made once and done",
        stage.job("Q-2").status is Status.COMPLETED and len(stage.acts("Q-2")) == 1 and len(stage.rows("Q-2")) == 1,
        f"job {stage.job('Q-2').status}, acts for Q-2: {len(stage.acts('Q-2'))}",
    )


def _recover(stage: Stage, notes: Notes, *, intent: bool) -> None:
    turn = stage.claim("B")
    found = "nothing" if turn is None else turn.quote
    notes.step("worker B", "looks for work after the lease of A is over", f"found {found}, job {_status(stage)}")
    if turn is None:
        stage.sweep()
        notes.step("sweeper", "asks the provider", f"effect {_state(stage)}, job {_status(stage)}")
        turn = stage.claim("B")
    if turn is not None:
        _send(turn, intent=intent)
        turn.publish()
        turn.complete()
        notes.step("worker B", "goes on with Q-1", f"job {_status(stage)}, acts: {len(stage.acts('Q-1'))}")


def _state(stage: Stage) -> str:
    effect = stage.effect("Q-1")
    return "not written down" if effect is None else effect.state.value


def _status(stage: Stage) -> str:
    return stage.job("Q-1").status.value


def _word(by: SettledBy | None) -> str:
    return "nothing" if by is None else by.value


REPLY_LOST = Experiment(
    "reply-lost",
    "the provider accepts, the reply is lost, and the worker dies",
    {
        "retried-unasked": "what is uncertain is sent again without asking the provider",
        "no-intent": "nothing is written down before a call",
    },
    _play,
)
