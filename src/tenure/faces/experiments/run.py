"""Run experiments, each on a database of its own that is gone afterwards."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tenure.errors import Invalid, Stop, TenureError, echo
from tenure.faces.experiments.accept_and_enqueue import ACCEPT_AND_ENQUEUE
from tenure.faces.experiments.cancelled_after_intent import CANCELLED_AFTER_INTENT
from tenure.faces.experiments.changed_digest import CHANGED_DIGEST
from tenure.faces.experiments.old_backup import OLD_BACKUP
from tenure.faces.experiments.place import opened_place
from tenure.faces.experiments.redelivered import REDELIVERED
from tenure.faces.experiments.reply_lost import REPLY_LOST
from tenure.faces.experiments.shape import Experiment, Notes, Report
from tenure.faces.experiments.stage import opened_stage
from tenure.faces.experiments.stale_worker import STALE_WORKER

EXPERIMENTS = (
    ACCEPT_AND_ENQUEUE,
    REDELIVERED,
    CHANGED_DIGEST,
    CANCELLED_AFTER_INTENT,
    REPLY_LOST,
    STALE_WORKER,
    OLD_BACKUP,
)


def find_experiment(name: str) -> Experiment:
    """
    Give an experiment by its name.

    Raises:
        Invalid: UNKNOWN_EXPERIMENT.
    """
    for one in EXPERIMENTS:
        if one.name == name:
            return one
    known = ", ".join(one.name for one in EXPERIMENTS)
    raise Invalid(f"there is no experiment {echo(name)}; there are {known}", code="UNKNOWN_EXPERIMENT")


def run_experiment(experiment: Experiment, variant: str | None = None, *, store: str | None = None) -> Report:
    """
    Run one experiment.

    Args:
        variant: One of its broken variants; the package is broken in this process while it runs.
        store: An empty database; a new file where left out.
    Raises:
        Invalid: UNKNOWN_VARIANT; STORE_IN_USE, BAD_STORE_URL.
    """
    if variant is not None and variant not in experiment.breaks:
        known = ", ".join(experiment.breaks)
        raise Invalid(
            f"experiment {experiment.name} has no variant {echo(variant)}; it has {known}", code="UNKNOWN_VARIANT"
        )
    notes = Notes()
    with (
        tempfile.TemporaryDirectory(prefix="tenure-lab-") as folder,
        opened_place(store, Path(folder)) as place,
        opened_stage(place) as stage,
        _quiet(),
    ):
        dialect = place.dialect
        try:
            experiment.play(stage, notes, variant)
        except (TenureError, Stop, AssertionError) as ended:
            # It is told like any other finding: what a run shows must not hang on how it ends.
            notes.control("the experiment comes to its end", held=False, found=f"{type(ended).__name__}: {ended}")
    return Report(experiment.name, variant, dialect, tuple(notes.steps), tuple(notes.promises), tuple(notes.controls))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library's warnings away: what it warns of is what was done to it."""
    log = logging.getLogger("tenure")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)
