"""An old backup is brought back, and its work is sent and published once more: frozen, recovered, one effect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from tenure.faces.experiments.breaking import replaced
from tenure.faces.experiments.place import RUN
from tenure.faces.experiments.shape import Experiment, Notes
from tenure.faces.experiments.stage import EFFECT, KIND, Stage, Turn, refusal
from tenure.flows.authority import recover_database
from tenure.flows.drive import run_flow
from tenure.lab import wrong
from tenure.loops.authority import AuthorityWatch
from tenure.opening import open_async_store
from tenure.procedures import authority, recover
from tenure.procedures.authority import Recovered
from tenure.rules import dispatch, ledger
from tenure.rules.effect import SettledBy
from tenure.rules.ledger import Book, Freeze
from tenure.rules.status import Status
from tenure.yields import Script

TICK = timedelta(seconds=1)
OLD_EPOCH = 1

_replay = authority._replay  # noqa: SLF001 - taken away on purpose


def _epochs_kept(book: Book, *, raised: bool) -> Script[dict[str, int]]:
    del raised
    return (yield from _replay(book, raised=False))


def _marks_nothing(*_: Any, **__: Any) -> Script[int]:
    return 0
    yield


def _sees_nothing(*_: Any) -> None:
    return


_in_doubt = dispatch._in_doubt  # noqa: SLF001 - taken away on purpose
_BROKEN: dict[str | None, list[tuple[Any, Any]]] = {
    "ledger-not-compared": [(ledger.judge, _sees_nothing)],
    "epochs-kept": [(_replay, _epochs_kept)],
    "suspects-not-marked": [(recover.mark_suspects, _marks_nothing)],
    "suspects-not-asked": [(_in_doubt, wrong.sends_unasked(_in_doubt))],
}


def _look(stage: Stage) -> Freeze | None:
    """Compare the database with its ledger, as every worker does at its start and once a second."""
    place = stage.place

    async def look() -> Freeze | None:
        async with await open_async_store(place.url, clock=place.clock, authority_ledger=place.ledger) as store:
            watch = AuthorityWatch(store, asyncio.to_thread, wake=lambda: None)
            await watch.start()
            place.clock.move(TICK)
            await watch.step()
            return watch.frozen

    return asyncio.run(look())


def _elsewhere(stage: Stage, act: Callable[[], None]) -> None:
    """Do something to the database while nobody has it open."""
    stage.stop()
    act()
    stage.start()


def _play(stage: Stage, notes: Notes, variant: str | None) -> None:
    with ExitStack() as broken:
        broken.enter_context(replaced(*_BROKEN.get(variant, [])))
        old = _first_life(stage, notes)
        _restored(stage, notes, old)
        _finished(stage, notes)


def _first_life(stage: Stage, notes: Notes) -> Turn:
    for quote in ("Q-1", "Q-2"):
        stage.accept(quote)
    _look(stage)
    old = stage.claim("A")
    assert old is not None, "Q-1 waits"
    _elsewhere(stage, stage.place.take_backup)
    notes.step("operator", "takes a backup", "in it Q-1 is with worker A, and Q-2 waits")
    _look(stage)
    held = old.reconnected()
    held.perform()
    done = stage.work("B")
    _look(stage)
    notes.step("workers", "go on and do both", f"did {', '.join(['Q-1', *done])}, {_acts(stage)}, {_rows(stage)}")
    notes.control(
        "the database that is the current one is not frozen, and its work is done",
        len(stage.acts("Q-1")) == 1 and len(stage.acts("Q-2")) == 1 and done == ["Q-2"],
        _acts(stage),
    )
    return held


def _restored(stage: Stage, notes: Notes, old: Turn) -> None:
    _elsewhere(stage, stage.place.bring_back)
    notes.step("operator", "brings the backup back", f"Q-1 {_status(stage, 'Q-1')}, Q-2 {_status(stage, 'Q-2')}")
    frozen = _look(stage)
    old = old.reconnected()
    notes.step("worker B", "starts and compares the database with its ledger", _cause(frozen))
    done = stage.work("B")
    notes.step("worker B", "looks for work", f"did {', '.join(done) or 'nothing'}")
    code = refusal(old.publish)
    notes.step("worker A", "publishes under the lease that it has in the copy", _said(code))
    notes.promise(
        "a database that is not the current one is frozen: nothing of it is sent or published",
        frozen is not None and done == [] and not stage.books.publications() and len(_all(stage)) == 2,
        f"{_cause(frozen)}, {_acts(stage)}, {_rows(stage)}",
    )
    if frozen is None:
        return
    recovered = _recover(stage)
    notes.step(
        "operator",
        "runs the recovery",
        f"epoch {recovered.epochs.get(RUN, OLD_EPOCH)}, {recovered.suspects} jobs are suspect",
    )
    code = refusal(old.reconnected().publish)
    notes.step("worker A", "publishes under the lease that it has in the copy", _said(code))
    notes.promise(
        "a permission from before the restore is over",
        recovered.epochs.get(RUN, OLD_EPOCH) > OLD_EPOCH and code is not None and not stage.books.publications(),
        f"{_said(code)}, {_rows(stage)}",
    )


def _recover(stage: Stage) -> Recovered:
    return run_flow(
        recover_database(
            stage.store.ledger,
            stage.store.file_identity(),
            "lab",
            "an old backup was brought back",
            lambda identity: Book(store=RUN, identity=identity),
        ),
        stage.store.run,
    )


def _finished(stage: Stage, notes: Notes) -> None:
    _look(stage)
    stage.pass_lease()
    done = stage.work("B")
    stage.service.readmit_jobs(RUN, reason="looked at", actor="lab")
    notes.step("operator", "readmits the work of the copy", _needs(stage))
    # One page of one job: the other one is asked about by the worker that begins its effect.
    stage.service.reconcile_suspects(providers=[stage.post], operations={KIND: {EFFECT: stage.post}}, limit=1)
    notes.step("operator", "asks the provider about the first of them", _needs(stage))
    done += stage.work("B")
    notes.step("worker B", "does what can be done", f"did {', '.join(sorted(done)) or 'nothing'}, {_acts(stage)}")
    both = [stage.job(quote) for quote in ("Q-1", "Q-2")]
    known = [effect for quote in ("Q-1", "Q-2") if (effect := stage.effect(quote)) is not None]
    receipts = sorted(str(effect.receipt["effect_id"]) for effect in known if isinstance(effect.receipt, dict))
    firsts = sorted(stage.acts(quote)[0].effect_id for quote in ("Q-1", "Q-2"))
    notes.promise(
        "what was sent after the backup is not sent again",
        all(len(stage.acts(quote)) == 1 for quote in ("Q-1", "Q-2")),
        _acts(stage),
    )
    notes.promise(
        "work of the copy goes on with the receipts of what happened",
        all(job.status is Status.COMPLETED for job in both)
        and receipts == firsts
        and all(effect.settled_by is SettledBy.LOOKUP for effect in known),
        f"Q-1 {both[0].status}, Q-2 {both[1].status}, receipts {', '.join(receipts) or 'none'}, {_rows(stage)}",
    )
    stage.accept("Q-3")
    done = stage.work("B")
    notes.step("worker B", "does a quote accepted after it", f"did {', '.join(done) or 'nothing'}")
    notes.control(
        "work accepted after the recovery is sent and published",
        len(stage.acts("Q-3")) == 1 and len(stage.rows("Q-3")) == 1,
        f"Q-3 {_status(stage, 'Q-3')}, acts: {len(stage.acts('Q-3'))}",
    )


def _needs(stage: Stage) -> str:
    needs = {one.job_id for one in stage.service.list_effects_needing_evidence()}
    return f"jobs that need evidence: {len(needs)}"


def _all(stage: Stage) -> list[Any]:
    return [*stage.acts("Q-1"), *stage.acts("Q-2")]


def _acts(stage: Stage) -> str:
    return f"acts for Q-1: {len(stage.acts('Q-1'))}, for Q-2: {len(stage.acts('Q-2'))}"


def _rows(stage: Stage) -> str:
    return f"rows: {len(stage.books.publications())}"


def _status(stage: Stage, quote: str) -> str:
    return stage.job(quote).status.value


def _cause(frozen: Freeze | None) -> str:
    return "not frozen" if frozen is None else f"frozen: {frozen.cause}"


def _said(code: str | None) -> str:
    return "not refused" if code is None else f"refused: {code}"


OLD_BACKUP = Experiment(
    "old-backup",
    "an old backup is brought back, and its work would be sent and published again",
    {
        "ledger-not-compared": "nobody compares the database with its ledger",
        "epochs-kept": "a recovery leaves every epoch as it was",
        "suspects-not-marked": "a recovery does not mark the work of the copy",
        "suspects-not-asked": "suspect work is sent without asking the provider",
    },
    _play,
)
