"""
Any verb at any time on every store, held against the rules in memory after each step.

The oracle is `tenure.rules` on one record per job; what is compared is the whole stored record, its place, its trail,
its evidence and its intents. See `stateful_machine.py` for what a step may be.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tenure import verbs
from tenure.errors import Conflict
from tenure.rules.lease import Lease
from tenure.rules.status import Status
from tenure.service import DurableJobService
from tenure.verbs import creation
from tenure.verbs.scope import Scope
from tests.simulation.stateful_machine import EVERY_VERB, Machine, Tally
from tests.simulation.stateful_stage import NUMBERS, FileStage, MemoryStage, PostgresStage, Stage
from tests.support.brokers import or_skip
from tests.support.pgbouncer import MIXING, PgBouncer

STEPS = 40
# What did not happen in so many rounds does not happen; the first is whole, the others a part of it.
ROUNDS, PART = 25, 5
# A step that is drawn in vain costs nothing here, and a busy machine is no reason to fail.
CALM = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
# Making a failure smaller may take minutes; a failure as it was found is told by its steps too.
PHASES = (Phase.generate,)


def play(stage: Stage, runs: int, steps: int = STEPS, *, rare: bool = True) -> None:
    """
    Play this many runs on one database, and insist that every verb was both granted and refused in them.

    What chance left out is given more of the same: a round of runs misses a rare refusal about once in ten times.

    Args:
        rare: False: it is enough that every verb was asked; rare refusals are another run's to find.
    """
    tally = Tally()
    machine = cast("type[Machine]", partial(Machine, stage, tally))
    try:
        for number in range(ROUNDS if rare else 1):
            rules = settings(
                max_examples=runs if number == 0 else runs // PART,
                stateful_step_count=steps,
                deadline=None,
                suppress_health_check=CALM,
                phases=PHASES,
            )
            # Where runs repeat, each round needs a seed of its own, or it would be the same round again.
            again = seed(number)(machine) if rules.derandomize else machine
            run_state_machine_as_test(again, settings=rules)
            if not tally.missing(waits=stage.waits):
                break
    finally:
        stage.close()
    if rare:
        assert tally.missing(waits=stage.waits) == set()
    else:
        assert {name for name, _ in +tally.verbs} == set(EVERY_VERB)


@pytest.fixture(autouse=True)
def numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "new_id", NUMBERS)


def test_sqlite_in_memory_does_what_the_rules_say() -> None:
    play(MemoryStage(), 100)


def test_sqlite_in_a_file_does_what_the_rules_say(tmp_path: Path) -> None:
    play(FileStage(tmp_path), 60)


def test_postgresql_does_what_the_rules_say(postgres_database: str) -> None:
    play(PostgresStage(postgres_database), 60)


def test_postgresql_behind_a_pooler_does_what_the_rules_say(postgres_database: str) -> None:
    # Few, because the rules are the others' to prove: what is asked here is whether sessions get in the way.
    with or_skip(lambda: PgBouncer(postgres_database, settings=MIXING)) as pooler:
        pooler.take_turns()
        play(PostgresStage(postgres_database, pooler.url), 20, rare=False)


def two_leases(service: DurableJobService) -> list[Lease]:
    """Create and start two jobs."""
    leases = []
    for key in ("k-0", "k-1"):
        service.create_job(organization="acme", project="p1", idempotency_key=key, kind="send_quote", payload={})
        claim = service.claim_job("A", start=True)
        assert claim is not None
        leases.append(claim.lease)
    return leases


@pytest.mark.parametrize("commit", [True, False])
def test_one_key_marked_for_two_jobs_at_the_same_moment_is_a_conflict_or_free(
    postgres_database: str, *, commit: bool
) -> None:
    stage = PostgresStage(postgres_database)
    stage.reset()
    first, second, everything = stage.connect(), stage.connect(), Scope()
    try:
        service = DurableJobService(stage.store)
        leases = two_leases(service)
        first.ask(verbs.mark_provider_dispatched(everything, leases[0], operation_key="own-1"))
        first.answer()
        second.ask(verbs.mark_provider_dispatched(everything, leases[1], operation_key="own-1"))
        assert stage.blocked(second, first)
        first.end(commit=commit)
        if commit:
            # It reserved the key, waited, and saw whose it is.
            with pytest.raises(Conflict) as told:
                second.answer()
            assert told.value.code == "KEY_IN_USE"
            second.end(commit=False)
        else:
            assert second.answer().status is Status.RUNNING
            second.end(commit=True)
        assert [service.get_job(lease.job_id).operation_key for lease in leases].count("own-1") == 1
    finally:
        first.close()
        second.close()
        stage.close()


def test_the_store_runs_a_mark_again_that_met_the_same_key(postgres_database: str) -> None:
    stage = PostgresStage(postgres_database)
    stage.reset()
    first = stage.connect()
    try:
        service = DurableJobService(stage.store)
        leases = two_leases(service)
        first.ask(verbs.mark_provider_dispatched(Scope(), leases[0], operation_key="own-1"))
        first.answer()
        with ThreadPoolExecutor(1) as pool:
            marking = pool.submit(service.mark_provider_dispatched, leases[1], operation_key="own-1")
            stage.wait_for_waiter(first)
            first.end(commit=True)
            with pytest.raises(Conflict) as told:
                marking.result(60)
        assert told.value.code == "KEY_IN_USE"
    finally:
        first.close()
        stage.close()


def test_a_claim_asked_for_again_while_the_first_is_on_its_way_gives_the_same_lease(postgres_database: str) -> None:
    stage = PostgresStage(postgres_database)
    stage.reset()
    first = stage.connect()
    try:
        service = DurableJobService(stage.store)
        for lease in two_leases(service):
            service.release_job(lease, reason="not now")
        claim_id = uuid4()
        first.ask(verbs.claim_job(Scope(), "A", start=True, claim_id=claim_id))
        taken = first.answer()
        with ThreadPoolExecutor(1) as pool:
            again = pool.submit(service.claim_job, "A", start=True, claim_id=claim_id)
            stage.wait_for_waiter(first)
            first.end(commit=True)
            assert again.result(60) == taken
        assert [job.status for job in service.list_jobs()].count(Status.QUEUED) == 1
    finally:
        first.close()
        stage.close()


@pytest.mark.nightly
def test_sqlite_in_memory_does_what_the_rules_say_all_night() -> None:
    play(MemoryStage(), 2000, 100)


@pytest.mark.nightly
def test_sqlite_in_a_file_does_what_the_rules_say_all_night(tmp_path: Path) -> None:
    play(FileStage(tmp_path), 500, 100)


@pytest.mark.nightly
def test_postgresql_behind_a_pooler_does_what_the_rules_say_all_night(postgres_database: str) -> None:
    with or_skip(lambda: PgBouncer(postgres_database, settings=MIXING)) as pooler:
        pooler.take_turns()
        play(PostgresStage(postgres_database, pooler.url), 200, 100)


@pytest.mark.nightly
def test_postgresql_does_what_the_rules_say_all_night(postgres_database: str) -> None:
    play(PostgresStage(postgres_database), 1000, 100)
