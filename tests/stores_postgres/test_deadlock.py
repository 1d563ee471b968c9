"""Two transactions that wait for each other: PostgreSQL ends one, and the store runs that one's procedure again."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest

from tenure import DurableJobService, verbs
from tenure.procedures.records import Placed
from tenure.procedures.rows import lock
from tenure.stores.postgres.store import PostgresStore
from tenure.verbs.scope import Scope
from tenure.yields import Procedure, Script, Statement, procedure
from tests.stores_postgres.conftest import Maker
from tests.stores_postgres.toy import add, ask, poll
from tests.support.postgres import Databases

PATIENCE = 30.0
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
DEADLOCKS = "SELECT deadlocks > 0 FROM pg_stat_database WHERE datname = current_database()"


def test_a_procedure_that_was_the_victim_of_a_deadlock_is_run_again(make: Maker, database: str) -> None:
    # One store for each: an awaiting one has an event loop for one call at a time here.
    stores = [make(database), make(database)]
    for name in ("a", "b"):
        stores[0].run(add(1, name=name))
    meet = threading.Barrier(2)
    runs: list[str] = []

    @procedure
    def crosswise(first: str, second: str) -> Script[str]:
        runs.append(first)
        yield Statement("counter_lock", {"name": first})
        if len(runs) <= 2:
            meet.wait(PATIENCE)
        yield Statement("counter_lock", {"name": second})
        yield Statement("counter_add", {"name": first, "amount": 10})
        yield Statement("counter_add", {"name": second, "amount": 100})
        return first

    with ThreadPoolExecutor(2) as pool:
        ends = [
            pool.submit(stores[0].run, crosswise("a", "b")),
            pool.submit(stores[1].run, crosswise("b", "a")),
        ]
        assert [end.result(PATIENCE) for end in ends] == ["a", "b"]
    # One of them came a second time, and neither was written twice.
    assert len(runs) == 3
    poll(database, DEADLOCKS, (True,))
    assert [stores[0].run(ask("counter_lock", name=name)) for name in ("a", "b")] == [[(111,)], [(111,)]]


def prepare(url: str) -> None:
    with PostgresStore(url) as store:
        store.migrate()


@pytest.fixture
def jobs_url(postgres_databases: Databases) -> Iterator[str]:
    """The URL of a database with the real schema."""
    with postgres_databases.lend("stores_postgres_jobs", prepare) as url:
        yield url


class Slow:
    """A batch of locks that stops after its first look, and counts its runs."""

    def __init__(self) -> None:
        self.looked = threading.Event()
        self.go_on = threading.Event()
        self.runs = 0

    def lock(self, ids: list[UUID]) -> Procedure[dict[UUID, Placed]]:
        @procedure
        def slow() -> Script[dict[UUID, Placed]]:
            self.runs += 1
            steps: Generator[Any, Any, Any] = lock(ids)
            request = next(steps)
            while True:
                answer = yield request
                if self.runs == 1 and not self.looked.is_set():
                    self.looked.set()
                    assert self.go_on.wait(PATIENCE)
                try:
                    request = steps.send(answer)
                except StopIteration as end:
                    found: dict[UUID, Placed] = end.value
                    return found

        return slow()


def test_overlapping_batches_of_locks_end_although_their_rows_move(jobs_url: str) -> None:
    with PostgresStore(jobs_url) as store:
        overlap(store, jobs_url)


def overlap(store: PostgresStore, url: str) -> None:
    service = DurableJobService(store)
    claims = []
    for key in ("k1", "k2"):
        service.create_job(organization="o", project="p", idempotency_key=key, kind="send", payload={})
        claim = service.claim_job("worker-a", start=True)
        assert claim is not None
        claims.append(claim)
    claims.sort(key=lambda claim: claim.job.id)
    low, high = (claim.job.id for claim in claims)
    first, second = Slow(), Slow()
    second.looked.set()  # this one never stops
    with ThreadPoolExecutor(2) as pool:
        with store.transaction() as mover:
            # The lower job is on its way from its lease to the queue; the first batch waits for it.
            mover.run(verbs.release_job(Scope(), claims[0].lease, reason="moves"))
            early = pool.submit(store.run, first.lock([low, high]))
            poll(url, WAITING, (1,))
        # It holds the higher one, and must look for the lower one again.
        assert first.looked.wait(PATIENCE)
        late = pool.submit(store.run, second.lock([low, high]))
        # The second batch has the lower one at its new place, and waits for the higher one.
        poll(url, WAITING, (1,))
        first.go_on.set()
        ends = [early.result(PATIENCE), late.result(PATIENCE)]
    for found in ends:
        assert {job_id: known.place for job_id, known in found.items()} == {low: "ready", high: "lease"}
    # Where they met crosswise one of them was run again; more often would be no end.
    assert first.runs + second.runs <= 3
