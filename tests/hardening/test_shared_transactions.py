"""What attackers of shared transactions found, each beside what must go on working."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest

import tenure
from tenure.errors import Uncertain
from tenure.procedures.complete_batch import complete_batch, completion
from tenure.procedures.effect import Beginning, Finishing, begin_effect, begin_effects, finish_effect, finish_effects
from tenure.rules.dispatch import Begun
from tenure.rules.effect import Effect, EffectState
from tenure.rules.outcome import FailedBeforeDispatch, Outcome, Succeeded, Terms, Unknown
from tenure.stores.contract import Store
from tenure.yields import Procedure

TERMS = Terms(provider="mailer")
PATIENCE = 30.0
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture
def store() -> Iterator[Store]:
    opened = tenure.open_store("sqlite:///:memory:")
    opened.migrate()
    yield opened
    opened.close()


@pytest.fixture
def lease(store: Store) -> tenure.Lease:
    return running(store)


def running(store: Store) -> tenure.Lease:
    service = tenure.DurableJobService(store)
    execution = tenure.ExecutionInput(tenant="studio", actor="u", trace="t")
    service.create_job(
        organization="studio", project="p", idempotency_key="k", kind="send", payload={}, execution=execution
    )
    claim = service.claim_job("a", start=True)
    assert claim is not None
    return claim.lease


def beginning(lease: tenure.Lease, name: str) -> Procedure[Begun]:
    return begin_effect(Beginning(lease, name, "v1:0", TERMS, timedelta(seconds=20)))


def left(store: Store, lease: tenure.Lease, name: str, outcome: Outcome) -> None:
    store.run(beginning(lease, name))
    store.run(finish_effect(Finishing(lease, name, outcome)))


def state(store: Store, lease: tenure.Lease, name: str) -> EffectState:
    effects = tenure.DurableJobService(store).list_effects(lease.job_id)
    return next(one.state for one in effects if one.name == name)


# The same value run twice is what a store does when it did not hear of the first commit.


@pytest.mark.parametrize("names", [("new", "open"), ("open", "new")])
def test_a_batch_that_is_run_again_does_not_let_an_open_effect_be_sent(
    store: Store, lease: tenure.Lease, names: tuple[str, str]
) -> None:
    left(store, lease, "open", Unknown("no reply"))
    batch = begin_effects([beginning(lease, name) for name in names])
    for _ in range(2):
        answers = store.run(batch)
        assert not isinstance(answers[names.index("open")], Begun)
    with pytest.raises(Uncertain):
        store.run(beginning(lease, "open"))


def test_a_batch_that_is_run_again_does_not_pass_over_an_effect_that_is_to_be_sent(
    store: Store, lease: tenure.Lease
) -> None:
    left(store, lease, "failed", FailedBeforeDispatch("down"))
    batch = begin_effects([beginning(lease, "new"), beginning(lease, "failed")])
    for _ in range(2):
        assert store.run(batch)[1] is None
    assert store.run(beginning(lease, "failed")).send


def test_a_batch_that_is_run_again_gives_what_it_began_and_ended(store: Store, lease: tenure.Lease) -> None:
    begun = begin_effects([beginning(lease, "one")])
    for _ in range(2):
        (answer,) = store.run(begun)
        assert isinstance(answer, Begun)
        assert answer.send
    ended = finish_effects([finish_effect(Finishing(lease, "one", Succeeded(1)))])
    for _ in range(2):
        (settled,) = store.run(ended)
        assert isinstance(settled, Effect)
        assert settled.receipt == 1
    assert len(tenure.DurableJobService(store).list_job_events(lease.job_id)) == 3


def test_an_outcome_that_was_not_written_is_not_taken_as_written(store: Store, lease: tenure.Lease) -> None:
    for name in ("one", "two"):
        store.run(beginning(lease, name))
    batch = finish_effects([finish_effect(Finishing(lease, name, Succeeded(name))) for name in ("one", "two")])
    for _ in range(2):
        assert store.run(batch)[1] is None
    assert state(store, lease, "two") is EffectState.PENDING
    store.run(finish_effect(Finishing(lease, "two", Succeeded("two"))))
    assert state(store, lease, "two") is EffectState.SUCCEEDED


@pytest.mark.parametrize("settled", [False, True])
def test_a_completion_sees_the_effect_that_it_waited_for(postgres_database: str, settled: bool) -> None:
    """A handler's effect may still be on its way when the handler returns, in a task that nobody waits for."""
    with (
        tenure.open_store(postgres_database) as store,
        tenure.open_store(postgres_database) as other,
        psycopg.connect(postgres_database, autocommit=True) as watch,
        ThreadPoolExecutor(1) as pool,
    ):
        store.migrate()
        lease = running(store)
        end = completion(lease, "studio", None)
        assert end is not None
        with other.transaction() as tx:
            tx.run(beginning(lease, "send"))
            if settled:
                tx.run(finish_effect(Finishing(lease, "send", Succeeded(1))))
            completed = pool.submit(store.run, complete_batch([end]))
            until = time.monotonic() + PATIENCE
            while watch.execute(WAITING).fetchone() == (0,):
                assert time.monotonic() < until, "the completion does not wait"
        assert completed.result(PATIENCE) == ({lease.job_id} if settled else set())
        status = tenure.DurableJobService(store).get_job(lease.job_id).status
        assert status == ("completed" if settled else "running")
