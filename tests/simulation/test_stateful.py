"""
Any verb at any time on every store, held against the rules in memory after each step.

The oracle is `tenure.rules` on one record per job; what is compared is the whole stored record, its place, its trail,
its evidence and its intents. See `stateful_machine.py` for what a step may be.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tenure import verbs
from tests.simulation.stateful_machine import Machine, Tally
from tests.simulation.stateful_stage import NUMBERS, FileStage, MemoryStage, PostgresStage, Stage

STEPS = 40
# A step that is drawn in vain costs nothing here, and a busy machine is no reason to fail.
CALM = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
# Making a failure smaller may take minutes; a failure as it was found is told by its steps too.
PHASES = (Phase.generate,)


def play(stage: Stage, runs: int) -> None:
    """Play this many runs on one database, and insist that every verb was both granted and refused in them."""
    tally = Tally()
    try:
        run_state_machine_as_test(
            cast("type[Machine]", partial(Machine, stage, tally)),
            settings=settings(
                max_examples=runs,
                stateful_step_count=STEPS,
                deadline=None,
                suppress_health_check=CALM,
                phases=PHASES,
            ),
        )
    finally:
        stage.close()
    assert tally.missing(waits=stage.waits) == set()


@pytest.fixture(autouse=True)
def numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "new_id", NUMBERS)


def test_sqlite_in_memory_does_what_the_rules_say() -> None:
    play(MemoryStage(), 100)


def test_sqlite_in_a_file_does_what_the_rules_say(tmp_path: Path) -> None:
    play(FileStage(tmp_path), 60)


def test_postgresql_does_what_the_rules_say(postgres_database: str) -> None:
    play(PostgresStage(postgres_database), 80)
