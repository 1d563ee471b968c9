"""What an experiment works with: a store, the application's tables, a provider, and workers that are played by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

from tenure.app import Tenure
from tenure.attempt import Attempt, Runtime
from tenure.connectors.simulator.ledger import Entry
from tenure.errors import EffectFailed, Stop, TenureError
from tenure.faces.experiments.place import RUN, Place
from tenure.faces.experiments.post import Death, Post
from tenure.handler import Context
from tenure.procedures.claim import Claim
from tenure.rules.effect import Effect
from tenure.rules.job import Job
from tenure.rules.lease import Lease
from tenure.rules.outcome import Evidence
from tenure.service import DurableJobService
from tenure.stores.contract import Store

KIND, EFFECT, LEASE = "send_quote", "send", timedelta(seconds=60)
ORGANIZATION, PROJECT = "studio", "sales"


class Stage:
    """
    The processes of one experiment, one after another in this one.

    A process that dies is one whose next line never comes: `dies`. One that starts anew is `restart`.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.books = place.books
        self.clock = place.clock
        self.post = Post(place.folder / "provider.jsonl")
        self._operations: dict[str, str] = {}
        self.start()

    def start(self) -> None:
        """Open the store."""
        self.store: Store = self.place.open()
        self.app = Tenure(
            self.store,
            organization=ORGANIZATION,
            project=PROJECT,
            tenant=RUN,
            actor="lab",
            providers=[self.post],
        )
        self.app.job(KIND, lease_duration=LEASE, providers=[self.post])(_unused)
        self.service: DurableJobService = self.app.service

    def stop(self) -> None:
        """Close the store."""
        self.app.close()
        self.store.close()

    def close(self) -> None:
        """End."""
        self.stop()
        self.post.close()

    # --- the application ----------------------------------------------------------------------------------------------

    def accept(self, quote: str) -> None:
        """Accept a quote: its row and its job in one transaction."""
        with self.books.transaction() as connection:
            self.write_quote(connection, quote)
            self.app.join(connection).enqueue(KIND, letter(quote), key=quote)

    def write_quote(self, connection: Any, quote: str) -> None:
        """Write a quote's row in an open transaction."""
        self.books.accept(connection, id=quote, customer=f"{quote}@example.org", item="desk", total="10.00")

    def note(self, tx: Any, quote: str, generation: int, worker: str) -> None:
        """Write in an open transaction what was done about a quote: the application's own state."""
        self.books.execute(tx, "note_publication", run=RUN, id=quote, generation=generation, sent_by=worker)

    def rows(self, quote: str) -> list[tuple[int, str]]:
        """Give generation and worker of what was done about a quote, from the table."""
        return [(row[1], row[2]) for row in self.books.publications() if row[0] == quote]

    def has_quote(self, quote: str) -> bool:
        """Say whether a quote has its row."""
        return any(row[0] == quote for row in self.books.quotes())

    # --- what is stored -----------------------------------------------------------------------------------------------

    def find(self, quote: str) -> Job | None:
        """Give a quote's job."""
        return self.service.find_by_idempotency_key(project=PROJECT, idempotency_key=quote)

    def job(self, quote: str) -> Job:
        """Give the job of a quote that was accepted."""
        found = self.find(quote)
        assert found is not None, "an accepted quote has a job"
        return found

    def effect(self, quote: str) -> Effect | None:
        """Give the record of a quote's letter."""
        return next(iter(self.service.list_effects(self.job(quote).id)), None)

    def acts(self, quote: str) -> list[Entry]:
        """Give what the provider did for a quote, from its own ledger."""
        return [
            entry
            for entry in self.post.entries()
            if entry.action == "accepted" and str(self.job(quote).id) in entry.operation_key
        ]

    # --- time and people ----------------------------------------------------------------------------------------------

    def pass_lease(self) -> None:
        """Let more time pass than any lease lasts."""
        self.clock.move(2 * LEASE)

    def sweep(self) -> None:
        """Ask the provider about everything uncertain, as the sweeper does."""

        def ask(operation_key: str, job: Job) -> Evidence:
            del job
            return self.post.lookup(operation_key)

        self.service.sweep_reconciliation_candidates(organization=ORGANIZATION, project=PROJECT, lookup=ask)

    def claim(self, worker: str) -> Turn | None:
        """Take the next job, as a worker does."""
        claim = self.service.claim_job(worker, start=True)
        if claim is None:
            return None
        return Turn(self, worker, claim)

    def work(self, worker: str) -> list[str]:
        """Do all that can be done, and give the quotes that came up."""
        done = []
        while turn := self.claim(worker):
            done.append(turn.quote)
            turn.perform()
        return done


class Turn:
    """
    One job in the hands of one worker, with the context that its handler has.

    Nothing tells the context that its lease is over: a process that was paused may well reach its write before its own
    clock is looked at, so that only the fence in the database stands in the way.
    """

    def __init__(self, stage: Stage, worker: str, claim: Claim) -> None:
        self.stage = stage
        self.worker = worker
        self._claim = claim
        runtime = Runtime(
            store=cast("Any", None),  # for awaiting handlers alone
            blocking=stage.store,
            providers=stage.app.providers,
            journal=None,
            wait=wait,
        )
        self.ctx = Context(Attempt(claim, stage.app.registry.find(KIND), time.monotonic()), runtime)

    def reconnected(self) -> Turn:
        """Give the same job in the same hands, after the database was away."""
        return Turn(self.stage, self.worker, self._claim)

    @property
    def quote(self) -> str:
        """What it is about."""
        return self.ctx.job.idempotency_key

    @property
    def lease(self) -> Lease:
        """The permission."""
        return self.ctx.lease

    def send(self, request: dict[str, Any] | None = None) -> Any:
        """Make the outside call: intent, call, receipt."""
        return self.ctx.effect(EFFECT, self.stage.post, letter(self.quote) if request is None else request)

    def publish(self, within: Callable[[], None] | None = None) -> None:
        """
        Write under the fence.

        Args:
            within: Called after the write and before the end of the block.
        """
        with self.ctx.publish() as tx:
            self.write(tx)
            if within is not None:
                within()

    def write(self, tx: Any) -> None:
        """Write in an open transaction, under no fence."""
        self.stage.note(tx, self.quote, self.lease.generation, self.worker)

    def complete(self) -> None:
        """Finish the job."""
        self.stage.service.complete_job(self.lease)

    def fail(self) -> None:
        """Give up this attempt; the job may be tried again."""
        self.stage.service.fail_job(self.lease, code="FAILED", message="failed", retryable=True)

    def perform(self) -> None:
        """Do all of it: send, publish, complete."""
        self.send()
        self.publish()
        self.complete()


def letter(quote: str) -> dict[str, Any]:
    """Give the request about a quote, which is also its job's payload."""
    return {"quote": quote, "text": "your quote"}


def refusal(act: Callable[[], object]) -> str | None:
    """Do something, and give the code by which it was refused; None where it was not."""
    try:
        act()
    except (TenureError, EffectFailed, Stop) as refused:
        return refused.code
    return None


def dies(act: Callable[[], object]) -> bool:
    """Do something in a process that may die of it, and say whether it did."""
    try:
        act()
    except Death:
        return True
    return False


def wait(awaitable: Awaitable[Any]) -> Any:
    """Wait for a call, as a worker's loop does for a plain handler."""

    async def body() -> Any:
        return await awaitable

    return asyncio.run(body())


def _unused(ctx: Context, payload: dict) -> None:  # type: ignore[type-arg]  # as users write it
    """Stand for the handler, whose lines the experiments play one by one."""


@contextmanager
def opened_stage(place: Place) -> Iterator[Stage]:
    """Set the stage and clear it."""
    stage = Stage(place)
    try:
        yield stage
    finally:
        stage.close()
