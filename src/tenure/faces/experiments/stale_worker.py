"""A worker publishes after its lease is over: its rows are gone, and those of the current worker stand."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from typing import Any
from uuid import UUID

from tenure.faces.experiments.breaking import replaced
from tenure.faces.experiments.shape import Experiment, Notes
from tenure.faces.experiments.stage import Stage, Turn, refusal
from tenure.procedures import publish
from tenure.rules import lease as leases
from tenure.rules.job import Job
from tenure.rules.lease import Lease
from tenure.yields import Script, procedure

OLD, CURRENT = 1, 2


@procedure
def _closes_nothing(lease: Lease, publish_id: UUID, *, tenant: str | None = None) -> Script[None]:
    del lease, publish_id, tenant
    yield []


def _checks_nothing(job: Job, lease: Lease, now: datetime) -> Lease:
    del now
    return job.lease or lease


_BROKEN: dict[str | None, list[tuple[Any, Any]]] = {
    "no-fence": [(leases.check_fence, _checks_nothing), (publish.close_publish, _closes_nothing)],
    "fence-before-only": [(publish.close_publish, _closes_nothing)],
}


def _arrive(stage: Stage, turn: Turn, variant: str | None) -> Callable[[], None]:
    """Come to the write, be paused there, and give what is done after the pause."""
    if variant != "fence-outside":
        return turn.publish
    stage.store.run(publish.open_publish(turn.lease))

    def write() -> None:
        with stage.store.transaction() as tx:
            turn.write(tx)

    return write


def _play(stage: Stage, notes: Notes, variant: str | None) -> None:
    stage.accept("Q-1")
    current = stage.claim("A")
    assert current is not None, "Q-1 waits"
    current.perform()
    rows = stage.rows("Q-1")
    notes.step("worker A", "does Q-1 under its lease", _rows(stage, "Q-1"))
    notes.control("a worker publishes while its lease lives", rows == [(OLD, "A")], _rows(stage, "Q-1"))
    with ExitStack() as broken:
        broken.enter_context(replaced(*_BROKEN.get(variant, [])))
        _between(stage, notes, variant)
        _within(stage, notes)


def _between(stage: Stage, notes: Notes, variant: str | None) -> None:
    stage.accept("Q-2")
    stale = stage.claim("A")
    assert stale is not None, "Q-2 waits"
    stale.send()
    go_on = _arrive(stage, stale, variant)
    notes.step("worker A", "has the receipt of Q-2 and is paused before it publishes", _rows(stage, "Q-2"))
    stage.pass_lease()
    _take_over(stage, notes, "Q-2")
    code = refusal(go_on)
    notes.step("worker A", "goes on and publishes", f"{_said(code)}, {_rows(stage, 'Q-2')}")
    _check(stage, notes, "Q-2", "a worker whose job was taken over writes nothing")


def _within(stage: Stage, notes: Notes) -> None:
    stage.accept("Q-3")
    stale = stage.claim("A")
    assert stale is not None, "Q-3 waits"
    stale.send()
    code = refusal(lambda: stale.publish(within=stage.pass_lease))
    notes.step(
        "worker A", "publishes Q-3, and its lease ends inside the block", f"{_said(code)}, {_rows(stage, 'Q-3')}"
    )
    _take_over(stage, notes, "Q-3")
    _check(stage, notes, "Q-3", "a worker whose lease ends while it writes has written nothing")


def _take_over(stage: Stage, notes: Notes, quote: str) -> None:
    turn = stage.claim("B")
    if turn is None or turn.quote != quote:
        notes.step("worker B", f"looks for {quote}", "it is not there")
        return
    turn.perform()
    notes.step("worker B", f"takes {quote} over under generation {turn.lease.generation}", _rows(stage, quote))


def _check(stage: Stage, notes: Notes, quote: str, claim: str) -> None:
    rows = stage.rows(quote)
    notes.promise(claim, all(row != (OLD, "A") for row in rows), _rows(stage, quote))
    notes.control(
        f"the current worker of {quote} publishes once",
        rows.count((CURRENT, "B")) == 1 and len(stage.acts(quote)) == 1,
        f"{_rows(stage, quote)}, acts: {len(stage.acts(quote))}",
    )


def _rows(stage: Stage, quote: str) -> str:
    rows = [f"{worker} (generation {generation})" for generation, worker in stage.rows(quote)]
    return f"rows of {quote}: {', '.join(rows) or 'none'}"


def _said(code: str | None) -> str:
    return "not refused" if code is None else f"refused: {code}"


STALE_WORKER = Experiment(
    "stale-worker",
    "a worker publishes after its lease is over",
    {
        "no-fence": "nobody checks whether a write comes from the lease's holder",
        "fence-outside": "the fence is checked in a transaction of its own, before the write",
        "fence-before-only": "the fence is checked before the write and not after it",
    },
    _play,
)
