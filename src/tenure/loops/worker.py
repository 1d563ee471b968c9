"""
The worker: claim in batches, run handlers, keep their leases, write how they ended, and stop without losing anything.

Loops, each supervised, each with a pulse that `health()` reads:

    claim      takes up to the free slots; polls with backoff and jitter, woken early where the database can tell
    watch      stops handlers that are over their time
    outcomes   writes finished attempts, many in one commit
    heartbeat  renews leases from a thread and a connection of its own
    tend       settles expired leases, promotes what is due
    announce   says which kinds this worker knows, parks what nobody knows, forgets old claim ids
    sweep      asks providers about what is uncertain
    journal    hands in receipts that could not be written
    authority  compares the database with its ledger, and raises its counter

Stopping has three steps. The first signal drains: nothing new is claimed, what runs goes on with its lease kept, what
was claimed and not started is given back without using an attempt. The second, or the end of the grace period, stops
the handlers; what may have reached a provider ends indeterminate, the rest is given back once its code has ended. The
third leaves at once.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import socket
import time
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tenure.attempt import Attempt, Runtime
from tenure.errors import Invalid
from tenure.journal.receipts import ReceiptJournal
from tenure.loops.attempts import STOP_GRACE, Attempts
from tenure.loops.authority import AUTHORITY_EVERY, AuthorityWatch
from tenure.loops.claims import POLL_MAX, Claims
from tenure.loops.commits import Commits
from tenure.loops.heartbeat import Heartbeat
from tenure.loops.outcomes import Outcomes
from tenure.loops.process import Process
from tenure.loops.receipts import Receipts
from tenure.loops.supervisor import Health, HealthFile, Supervisor, within
from tenure.loops.sweeper import Lookup, Sweeper
from tenure.loops.threads import Threads
from tenure.loops.upkeep import Upkeep
from tenure.procedures.claim_batch import claim_batch
from tenure.rules.bounds import ZERO, check_span, check_whole
from tenure.rules.creation import check_text
from tenure.rules.lease import check_beat
from tenure.stores.contract import AsyncStore, Store
from tenure.yields import new_id

if TYPE_CHECKING:
    from tenure.app import Tenure

logger = logging.getLogger("tenure.worker")

# How often each loop should succeed; three times as long is the end of health.
CLAIM_EVERY = OUTCOMES_EVERY = HEARTBEAT_EVERY = TEND_EVERY = WATCH_EVERY = timedelta(seconds=1)
ANNOUNCE_EVERY = timedelta(seconds=2)
JOURNAL_EVERY = timedelta(minutes=1)
_NOT_RUNNING = {"new": "it was not started", "starting": "it is starting", "stopped": "it has stopped"}
# Seconds: how long a drain waits for the answer to a claim, and how long outcomes may still take when the grace period
# is over.
_LAST_CLAIM, _LAST_WRITES = 3.0, 0.5


class Worker:
    """
    Run an app's handlers.

    Use it as `async with app.worker() as worker:` inside a program, or `await worker.main()` as a process of its own.

    Args:
        app: Whose kinds and providers.
        concurrency: How many handlers run at once.
        queues: Served in this order; all when left out.
        kinds: Only these of the app's kinds.
        tenant, organization: Only their work.
        owner: The service it belongs to; queues of another owner are left alone, and queues without one are served.
        heartbeat: Time between two renewals; at most a third of the shortest lease.
        sweep_every: Time between two sweeps; None leaves sweeping to somebody else.
        grace: How long a drain may take before handlers are stopped.
        poll: Longest pause between two looks at an empty queue.
        lookup: Asked about bare marks: `(operation_key, job) -> Evidence`.
        journal_dir: Where receipts go that the database did not take, one directory for each store.
        health_file: Written about once a second.
        worker_id: Made from host and process when left out.
    Raises:
        Invalid: HEARTBEAT_TOO_LONG, UNKNOWN_KIND, UNKNOWN_PROVIDER, and others, before anything is claimed.
    """

    def __init__(
        self,
        app: Tenure,
        *,
        concurrency: int = 10,
        queues: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        tenant: str | None = None,
        organization: str | None = None,
        owner: str | None = None,
        heartbeat: timedelta | None = None,
        sweep_every: timedelta | None = timedelta(seconds=10),
        grace: timedelta = timedelta(seconds=30),
        poll: timedelta = timedelta(seconds=POLL_MAX),
        lookup: Lookup | None = None,
        journal_dir: str | Path | None = None,
        health_file: str | Path | None = None,
        worker_id: str | None = None,
    ) -> None:
        check_whole("concurrency", concurrency)
        if isinstance(queues, str) or isinstance(kinds, str):
            raise Invalid("queues and kinds are lists of names, not one text", code="BAD_ARGUMENT")
        chosen = [app.registry.find(name) for name in kinds] if kinds is not None else list(app.registry)
        if not chosen:
            raise Invalid("the app has no kinds; decorate a handler with @app.job(...)", code="NO_KINDS")
        app.providers.check(chosen)
        self._beat = None if heartbeat is None else check_span("heartbeat", heartbeat).total_seconds()
        if heartbeat is not None:
            check_beat(heartbeat, min(kind.lease_duration for kind in chosen))
        self.app = app
        made = f"{socket.gethostname()}:{os.getpid()}:{new_id().hex[-6:]}"
        self.worker_id = check_text("worker_id", made if worker_id is None else worker_id)
        self._kinds = {kind.name: kind for kind in chosen}
        self._concurrency = concurrency
        self._queues = None if queues is None else [check_text("queue", queue) for queue in queues]
        self._tenant = app.owner_of(tenant)
        self._organization = organization
        self._owner = None if owner is None else check_text("owner", owner)
        if sweep_every is not None:
            check_span("sweep_every", sweep_every)
        self._sweep_every = sweep_every
        self.grace = check_span("grace", grace, least=ZERO).total_seconds()
        self._poll = check_span("poll", poll).total_seconds()
        self._lookup = lookup
        self._journal_dir = None if journal_dir is None else Path(journal_dir)
        self._health_path = None if health_file is None else Path(health_file)
        self._supervisor = Supervisor()
        self._attempts: Attempts | None = None
        self._threads = Threads("tenure-handler")
        self._draining = False
        self._receipts: Receipts | None = None
        self._authority: AuthorityWatch | None = None
        self._state = "new"

    # --- life ---------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """
        Open what is needed and start the loops; raises what the store says before anything is claimed.

        Raises:
            Invalid: WORKER_STARTED, a worker runs once; and what the journal or the health file refuses.
        """
        if self._state != "new":
            raise Invalid("this worker was started before; make another with app.worker()", code="WORKER_STARTED")
        self._state = "starting"
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._calls: set[asyncio.Task[Any]] = set()
        self._stack = AsyncExitStack()
        try:
            await self._open()
        except BaseException:
            self._state = "stopped"
            await self._supervisor.end()
            await self._stack.aclose()
            raise
        self._state = "running"
        logger.info("worker %s started: kinds=%s", self.worker_id, ",".join(sorted(self._kinds)))

    async def _open(self) -> None:
        stack = self._stack
        handlers: AsyncStore = await self.app.astore()
        # What the loops and the renewals use is theirs alone: no handler can keep its connections busy.
        renewing: Store = handlers.blocking()
        self._apart = Threads("tenure-worker")
        stack.callback(self._apart.close)
        stack.push_async_callback(self._run_apart, renewing.close)
        self._store: AsyncStore = renewing.awaiting()
        stack.push_async_callback(self._store.close)
        self._blocking: Store = handlers.blocking()
        stack.push_async_callback(self._run_apart, self._blocking.close)
        self._journal = None
        if self._journal_dir is not None:
            self._journal = await self._run_apart(partial(ReceiptJournal, self._journal_dir))
            stack.push_async_callback(self._run_apart, self._journal.close)
        self._authority = AuthorityWatch(self._store, self._run_apart, wake=self._wake.set)
        await self._authority.start()
        self._upkeep = Upkeep(
            self._store,
            self.worker_id,
            self._kinds.keys(),
            owner=self._owner,
            providers=self.app.providers.by_name.keys(),
            queues=self._queues,
            draining=lambda: self._draining,
            wake=self._wake,
        )
        await self._upkeep.announce()
        stack.push_async_callback(self._upkeep.withdraw)
        if self._health_path is not None:
            health = HealthFile(self._health_path, self.health)
            health.start()
            stack.push_async_callback(self._run_apart, health.end)
        listening = self._blocking.listen(self._wake_soon)
        await self._run_apart(listening.__enter__)
        stack.push_async_callback(self._run_apart, partial(listening.__exit__, None, None, None))
        self._start_loops(handlers, renewing)

    def _start_loops(self, handlers: AsyncStore, renewing: Store) -> None:
        supervise = self._supervisor
        outcomes = supervise.pulse("outcomes", OUTCOMES_EVERY)
        self._outcomes = Outcomes(self._store, outcomes, self._written, lambda: bool(self._attempts))
        self._heartbeat = Heartbeat(
            renewing, supervise.pulse("heartbeat", HEARTBEAT_EVERY), self._attempt_stopped, beat=self._beat
        )
        watch = self._authority
        assert watch is not None
        self._runtime = Runtime(
            handlers,
            self._blocking,
            self.app.providers,
            self._journal,
            self._wait_for,
            self._run_apart,
            Commits(handlers).run,
            self.app.control,
            lambda: watch.seen,
        )
        self._attempts = Attempts(self._runtime, self._heartbeat, self._outcomes, self._threads, self._slot_freed)
        sweeper = Sweeper(self._store, self.app.providers.by_name, lookup=self._lookup, tenant=self._tenant)
        supervise.follow(outcomes, self._outcomes.step)
        if watch.watches:
            supervise.keep("authority", AUTHORITY_EVERY, watch.step)
        supervise.keep("tend", TEND_EVERY, self._upkeep.tend)
        supervise.keep("announce", ANNOUNCE_EVERY, self._upkeep.announce)
        if self._sweep_every is not None:
            swept = supervise.keep("sweep", self._sweep_every, lambda: sweeper.sweep(progress=swept.beat))
        if self._journal is not None:
            self._receipts = Receipts(self._journal, self._blocking, self._run_apart)
            supervise.keep("journal", JOURNAL_EVERY, self._receipts.hand_in)
        self._claims = Claims(
            self._store,
            self._attempts,
            partial(
                claim_batch,
                self.worker_id,
                queues=self._queues,
                tenant=self._tenant,
                organization=self._organization,
                owner=self._owner,
            ),
            self._kinds,
            queues=self._queues,
            concurrency=self._concurrency,
            unwritten=lambda: self._heartbeat.kept,
            draining=lambda: self._draining,
            held=lambda: watch.holds,
            wake=self._wake,
            poll=self._poll,
        )
        supervise.follow(supervise.pulse("watch", WATCH_EVERY), self._attempts.watch)
        supervise.follow(supervise.pulse("claim", max(CLAIM_EVERY, timedelta(seconds=self._poll))), self._claims.step)
        self._heartbeat.start()
        self._stack.push_async_callback(self._run_apart, self._heartbeat.join)

    async def stop(self) -> bool:
        """
        Drain within the grace period, then stop what still runs, and release everything.

        Returns:
            True when every handler ended by itself and every outcome is written.
        """
        if self._state != "running":
            return True
        self._state = "stopping"
        clean = False
        try:
            clean = await self._wind_down()
        finally:
            await self._close()
        logger.info("worker %s stopped, %s", self.worker_id, "drained" if clean else "with handlers stopped")
        return clean

    async def _wind_down(self) -> bool:
        attempts = self._attempts
        assert attempts is not None
        until = time.monotonic() + self.grace
        self.drain()
        # A claim on its way is waited for, so that what it takes can be given back.
        await self._unless_hurried(self._claims.settled.wait(), min(until, time.monotonic() + _LAST_CLAIM))
        if not await self._unless_hurried(attempts.ended(), until):
            self.hurry()
            if not await within(attempts.ended(), STOP_GRACE):
                attempts.abandon()
        until = max(until if not self._hurry.is_set() else 0.0, time.monotonic() + _LAST_WRITES)
        written = await within(self._outcomes.drained(), until - time.monotonic())
        if not written:
            logger.warning("some outcomes could not be written; their leases run out by themselves")
        return written and not attempts.stopped_early

    async def _close(self) -> None:
        attempts = self._attempts
        assert attempts is not None
        self._heartbeat.end()
        await self._supervisor.end()
        await self._claims.close()
        await attempts.forget()
        for call in list(self._calls):
            # Calls that threads wait for: the loop may end, and they would wait for ever.
            call.cancel()
        self._threads.close()
        self._state = "stopped"
        if self._threads.busy:
            # Their last words still find a store and a journal.
            self._stack.push_async_callback(self._run_apart, self._threads.join)
            self._closing = self._loop.create_task(self._stack.aclose(), name="tenure-close")
        else:
            await self._stack.aclose()

    async def main(self) -> int:
        """
        Run as a process until a signal asks to stop; in the main thread.

        Handlers that never end do not keep the process: it is gone soon after the grace period.

        Returns:
            The exit status: 0 when everything ended by itself, 1 when handlers had to be stopped.
        """
        return await Process(self).run()

    def claim_no_more(self) -> None:
        """Claim nothing new; safe inside a signal handler."""
        self._draining = True

    def drain(self) -> None:
        """Claim nothing new, give back what is not started; what runs goes on."""
        self.claim_no_more()
        if self._attempts is not None:
            self._attempts.return_unstarted()
            self._wake.set()
            self._claims.freed.set()

    def hurry(self) -> None:
        """Stop the handlers that still run."""
        self.drain()
        if self._attempts is not None:
            self._hurry.set()
            self._attempts.hurry()

    @property
    def left_behind(self) -> int:
        """How many threads are in a handler."""
        return self._threads.busy

    async def _unless_hurried(self, awaitable: Awaitable[object], until: float) -> bool:
        """Wait; False when the time is over or somebody is in a hurry."""
        wanted, hurry = asyncio.ensure_future(awaitable), asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait(
                {wanted, hurry}, timeout=max(0.0, until - time.monotonic()), return_when=asyncio.FIRST_COMPLETED
            )
            return wanted.done()
        finally:
            wanted.cancel()
            hurry.cancel()

    # --- between the parts --------------------------------------------------------------------------------------------

    def _slot_freed(self) -> None:
        self._claims.freed.set()
        self._wake.set()

    def _written(self, attempt: Attempt) -> None:
        assert self._attempts is not None
        self._attempts.written(attempt)
        self._claims.freed.set()

    def _attempt_stopped(self, attempt: Attempt) -> None:
        assert self._attempts is not None
        self._attempts.stopped(attempt)

    def _wait_for(self, awaitable: Awaitable[Any]) -> Any:
        """Run an awaitable for a handler that is in a thread."""

        async def wait() -> Any:
            task = asyncio.current_task()
            assert task is not None
            self._calls.add(task)
            try:
                return await awaitable
            finally:
                self._calls.discard(task)

        waiting = wait()
        try:
            called = asyncio.run_coroutine_threadsafe(waiting, self._loop)
        except RuntimeError:
            # The loop has ended, and the worker with it.
            waiting.close()
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise asyncio.CancelledError from None
        return called.result()

    async def _run_apart(self, function: Any) -> Any:
        """Run a blocking function of the worker's own in a thread that no handler uses."""
        return await self._apart.run(function)

    def _wake_soon(self) -> None:
        """Called from any thread when work may have arrived."""
        try:
            self._loop.call_soon_threadsafe(self._wake.set)
        except RuntimeError:
            logger.debug("woken after the loop was closed")

    # --- health -------------------------------------------------------------------------------------------------------

    def health(self) -> Health:
        """Say how the worker is; callable from any thread. One that does not run is not well."""
        loops = self._supervisor.loops()
        problems = () if self._receipts is None else self._receipts.problems
        if self._authority is not None:
            problems = (*problems, *self._authority.problems)
        if self._state not in {"running", "stopping"}:
            problems = (*problems, _NOT_RUNNING[self._state])
        ok = bool(loops) and all(one.ok for one in loops.values()) and not problems
        running = 0 if self._attempts is None else len(self._attempts)
        notes = () if self._state == "new" else self._upkeep.notes
        return Health(ok, self.worker_id, running, self._draining, loops, problems, notes)
