"""A producer ends before its commit: the row and its job are both there, or neither is."""

from __future__ import annotations

from collections.abc import Callable

from tenure.faces.experiments.post import Death
from tenure.faces.experiments.shape import Experiment, Notes
from tenure.faces.experiments.stage import KIND, Stage, dies, letter


def _apart_before(stage: Stage, quote: str, last: Callable[[], None]) -> None:
    stage.app.enqueue(KIND, letter(quote), key=quote)
    with stage.books.transaction() as connection:
        stage.write_quote(connection, quote)
        last()


def _apart_after(stage: Stage, quote: str, last: Callable[[], None]) -> None:
    with stage.books.transaction() as connection:
        stage.write_quote(connection, quote)
    last()
    stage.app.enqueue(KIND, letter(quote), key=quote)


def _together(stage: Stage, quote: str, last: Callable[[], None]) -> None:
    with stage.books.transaction() as connection:
        stage.write_quote(connection, quote)
        stage.app.join(connection).enqueue(KIND, letter(quote), key=quote)
        last()


_WAYS = {None: _together, "enqueue-before": _apart_before, "enqueue-after": _apart_after}


def _play(stage: Stage, notes: Notes, variant: str | None) -> None:
    accept = _WAYS[variant]

    def end() -> None:
        raise Death

    died = dies(lambda: accept(stage, "Q-1", end))
    row, job = stage.has_quote("Q-1"), stage.find("Q-1") is not None
    notes.step("producer", "accepts Q-1 and dies before it is done", f"row: {_word(row)}, job: {_word(job)}")
    taken = stage.work("B")
    notes.step("worker B", "looks for work", f"found {len(taken)} jobs")
    notes.promise(
        "a row and its job are accepted together or not at all",
        died and row == job and taken == [],
        f"after the death of the producer: row {_word(row)}, job {_word(job)}, jobs that a worker found: {len(taken)}",
    )
    accept(stage, "Q-2", lambda: None)
    row, job = stage.has_quote("Q-2"), stage.find("Q-2") is not None
    notes.step("producer", "accepts Q-2 and commits", f"row: {_word(row)}, job: {_word(job)}")
    done = stage.work("B")
    notes.step("worker B", "looks for work", f"did {', '.join(done) or 'nothing'}")
    notes.control(
        "what was committed is there and is done",
        row and job and len(stage.acts("Q-2")) == 1 and len(stage.rows("Q-2")) == 1,
        f"row {_word(row)}, job {_word(job)}, acts in the provider's ledger: {len(stage.acts('Q-2'))}",
    )


def _word(there: bool) -> str:
    return "there" if there else "not there"


ACCEPT_AND_ENQUEUE = Experiment(
    "accept-and-enqueue",
    "the producer dies between its write and its commit",
    {
        "enqueue-before": "the job is created in a transaction of its own, before the row",
        "enqueue-after": "the job is created in a transaction of its own, after the row",
    },
    _play,
)
