"""
The worker: claim in batches, run handlers, keep their leases, write how they ended, and stop without losing anything.

Loops, each supervised, each with a pulse that `health()` reads:

    claim      takes up to the free slots; polls with backoff and jitter, woken early where the database can tell
    outcomes   writes finished attempts, many in one commit
    heartbeat  renews leases from a thread and a connection of its own
    tend       settles expired leases, promotes what is due, announces this worker's kinds, parks what nobody knows
    sweep      asks providers about what is uncertain
    journal    hands in receipts that could not be written

Stopping has three steps. The first signal drains: nothing new is claimed, what runs goes on with its lease kept, what
was claimed and not started is given back without using an attempt. The second, or the end of the grace period, stops
the handlers; what may have reached a provider ends indeterminate, the rest is given back. The third leaves at once.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from tenure.errors import Invalid, TenureError, Unavailable
from tenure.handler import SHUTDOWN, TIMED_OUT, Attempt, Runtime, ending, returning, run_handler
from tenure.journal.receipts import ReceiptJournal
from tenure.loops.heartbeat import Heartbeat
from tenure.loops.outcomes import Outcomes
from tenure.loops.supervisor import Health, HealthFile, Supervisor
from tenure.loops.sweeper import Lookup, Sweeper
from tenure.procedures import hold
from tenure.procedures.claim import Claim, Cursor, announce, claim, forget_claims, park, promote, recover, withdraw
from tenure.procedures.effect import submit_evidence
from tenure.rules.creation import check_text
from tenure.rules.lease import check_beat
from tenure.stores.contract import AsyncStore, Store
from tenure.yields import new_id

if TYPE_CHECKING:
    from tenure.app import Tenure

logger = logging.getLogger("tenure.worker")

POLL_MIN, POLL_MAX = 0.02, 1.0
CLAIM_MAX = 200
# After this long a claim begins at the front of its queues again, for rows that committed late.
CURSOR_LIFETIME = 1.0
TEND_EVERY = timedelta(seconds=1)
ANNOUNCED_FOR = timedelta(seconds=15)
CLAIM_IDS_KEPT = timedelta(days=8)
# How long a handler that was told to stop may take to do so before its outcome is written without it.
STOP_GRACE = 1.0


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
        heartbeat: Time between two renewals; at most a third of the shortest lease.
        sweep_every: Time between two sweeps; None leaves sweeping to somebody else.
        grace: How long a drain may take before handlers are stopped.
        lookup: Asked about bare marks: `(operation_key, job) -> Evidence`.
        journal_dir: Where receipts go that the database did not take, one directory for each store.
        health_file: Written about once a second.
        worker_id: Made from host and process when left out.
    Raises:
        Invalid: HEARTBEAT_TOO_LONG, UNKNOWN_KIND, and others, before anything is claimed.
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
        heartbeat: timedelta | None = None,
        sweep_every: timedelta | None = timedelta(seconds=10),
        grace: timedelta = timedelta(seconds=30),
        poll: timedelta = timedelta(seconds=POLL_MAX),
        lookup: Lookup | None = None,
        journal_dir: str | Path | None = None,
        health_file: str | Path | None = None,
        worker_id: str | None = None,
    ) -> None:
        if type(concurrency) is not int or concurrency < 1:
            raise Invalid(f"concurrency must be a whole number from 1, not {concurrency!r}", code="BAD_ARGUMENT")
        chosen = [app.registry.find(name) for name in kinds] if kinds is not None else list(app.registry)
        if not chosen:
            raise Invalid("the app has no kinds; decorate a handler with @app.job(...)", code="NO_KINDS")
        if heartbeat is not None:
            check_beat(heartbeat, min(kind.lease_duration for kind in chosen))
        self.app = app
        self.worker_id = check_text(
            "worker_id", worker_id or f"{socket.gethostname()}:{os.getpid()}:{new_id().hex[-6:]}"
        )
        self._kinds = {kind.name: kind for kind in chosen}
        self._concurrency = concurrency
        self._queues = None if queues is None else list(queues)
        self._tenant = tenant or app.tenant
        self._organization = organization
        self._beat = None if heartbeat is None else heartbeat.total_seconds()
        self._sweep_every = sweep_every
        self._grace = grace.total_seconds()
        self._poll = poll.total_seconds()
        self._lookup = lookup
        self._journal_dir = None if journal_dir is None else Path(journal_dir)
        self._health_path = None if health_file is None else Path(health_file)
        self._supervisor = Supervisor()
        self._running: dict[UUID, asyncio.Task[None]] = {}
        self._attempts: dict[UUID, tuple[Attempt, asyncio.Future[Any]]] = {}
        self._cursor: Cursor = {}
        self._cursor_since = 0.0
        self._claim_id: UUID | None = None
        self._pause = POLL_MIN
        self._draining = False
        self._stopped_early = False
        self._signals = 0
        self._problems: tuple[str, ...] = ()
        self._started = False

    # --- life ---------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open what is needed and start the loops; raises what the store says before anything is claimed."""
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._freed = asyncio.Event()
        self._hurry = asyncio.Event()
        self._stack = ExitStack()
        self._store: AsyncStore = await self.app.astore()
        self._renewing: Store = self._store.blocking()
        self._stack.callback(self._renewing.close)
        self._blocking: Store = self._store.blocking()
        self._stack.callback(self._blocking.close)
        self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix="tenure-handler")
        self._journal = None if self._journal_dir is None else ReceiptJournal(self._journal_dir)
        if self._journal is not None:
            self._stack.callback(self._journal.close)
        providers = self.app.providers
        self._runtime = Runtime(self._store, self._blocking, providers, self._journal, self._wait_for)
        self._sweeper = Sweeper(self._store, providers.by_name, lookup=self._lookup, tenant=self._tenant)
        await self._announce()
        supervise = self._supervisor
        self._outcomes = Outcomes(self._store, supervise.pulse("outcomes", timedelta(seconds=1)), self._written)
        supervise.follow(supervise.pulses["outcomes"], self._outcomes.step)
        pulse = supervise.pulse("heartbeat", timedelta(seconds=max(1.0, self._beat or 1.0)))
        self._heartbeat = Heartbeat(self._renewing, pulse, self._attempt_stopped, beat=self._beat)
        self._heartbeat.start()
        supervise.keep("tend", TEND_EVERY, self._tend)
        if self._sweep_every is not None:
            supervise.keep("sweep", self._sweep_every, self._sweeper.sweep)
        if self._journal is not None:
            supervise.keep("journal", timedelta(minutes=1), self._hand_in)
        supervise.follow(supervise.pulse("claim", timedelta(seconds=max(1.0, self._poll))), self._claim)
        self._stack.enter_context(self._blocking.listen(self._wake_soon))
        self._health_file = None if self._health_path is None else HealthFile(self._health_path, self.health)
        if self._health_file is not None:
            self._health_file.start()
        self._started = True
        logger.info("worker %s started: kinds=%s", self.worker_id, ",".join(sorted(self._kinds)))

    async def stop(self) -> bool:
        """
        Drain within the grace period, then stop what still runs, and release everything.

        Returns:
            True when every handler ended by itself.
        """
        if not self._started:
            return True
        self._started = False
        self.drain()
        if not await self._ended(self._grace):
            self.hurry()
            await self._ended(STOP_GRACE * 2)
        await self._outcomes_written()
        self._heartbeat.end()
        await self._supervisor.end()
        left = list(self._running.values())
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        try:
            await self._store.run(withdraw(self.worker_id))
        except TenureError as error:
            logger.warning("the announcement of %s runs out by itself: %s", self.worker_id, error.code)
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._health_file is not None:
            await asyncio.to_thread(self._health_file.end)
        await asyncio.to_thread(self._stack.close)
        clean = not self._stopped_early
        logger.info("worker %s stopped, %s", self.worker_id, "drained" if clean else "with handlers stopped")
        return clean

    async def main(self) -> int:
        """
        Run as a process until a signal asks to stop.

        Returns:
            The exit status: 0 when everything ended by itself, 1 when handlers had to be stopped.
        """
        self._asked = asyncio.Event()
        await self.start()
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in before:
            # Not loop.add_signal_handler: the third signal must leave although a handler blocks the loop.
            signal.signal(number, self._signalled)
        try:
            await self._asked.wait()
            clean = await self.stop()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        alive = [t for t in threading.enumerate() if t.name.startswith("tenure-handler") and t.is_alive()]
        if alive and not clean:
            # Threads cannot be stopped; what they may still do is refused by the fence.
            logger.warning("leaving with %d handlers still in their threads", len(alive))
            logging.shutdown()
            os._exit(1)
        return 0 if clean else 1

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._signals += 1
        if self._signals == 1:
            self._loop.call_soon_threadsafe(self._asked.set)
            self._draining = True
        elif self._signals == 2:
            self._loop.call_soon_threadsafe(self.hurry)
        else:
            os.write(2, b"tenure: leaving at once; leases run out by themselves\n")
            os._exit(128 + number)

    def drain(self) -> None:
        """Claim nothing new; what runs goes on."""
        self._draining = True
        self._wake.set()
        self._freed.set()

    def hurry(self) -> None:
        """Stop the handlers that still run."""
        self._draining = True
        self._hurry.set()
        for attempt, handler in list(self._attempts.values()):
            if not attempt.ended:
                self._stopped_early = True
                attempt.halt(SHUTDOWN, "the worker was told to stop before the handler ended")
                if attempt.kind.is_async:
                    handler.cancel()

    async def _ended(self, within: float) -> bool:
        """Wait until no handler runs, the time is over, or somebody is in a hurry (which ends the first wait)."""
        until = time.monotonic() + within
        hurried = self._hurry.is_set()
        while self._running and time.monotonic() < until and self._hurry.is_set() == hurried:
            await asyncio.wait(self._running.values(), timeout=min(0.1, max(0.0, until - time.monotonic())))
        return not self._running

    async def _outcomes_written(self) -> None:
        try:
            await asyncio.wait_for(self._outcomes.drained(), timeout=STOP_GRACE * 2)
        except TimeoutError:
            self._stopped_early = True
            logger.warning("some outcomes could not be written; their leases run out by themselves")

    # --- claiming -----------------------------------------------------------------------------------------------------

    async def _claim(self) -> None:
        free = self._concurrency - len(self._running)
        if self._draining:
            await asyncio.sleep(self._poll)
            return
        if free <= 0:
            await self._sleep(self._freed, self._poll)
            return
        if time.monotonic() - self._cursor_since > CURSOR_LIFETIME:
            self._cursor, self._cursor_since = {}, time.monotonic()
        # The same id until an answer came: a claim whose reply was lost gives the same leases again.
        self._claim_id = self._claim_id or new_id()
        sent = time.monotonic()
        taken = await self._store.run(
            claim(
                self.worker_id,
                limit=min(free, CLAIM_MAX),
                queues=self._queues,
                kinds=list(self._kinds),
                tenant=self._tenant,
                organization=self._organization,
                start=True,
                claim_id=self._claim_id,
                cursor=self._cursor,
                thorough=False,
            )
        )
        self._claim_id = None
        self._cursor = {**self._cursor, **taken.cursor}
        if taken.claims:
            self._pause = POLL_MIN
            await self._begin(taken.claims, sent)
        if not taken.full:
            await self._sleep(self._wake, self._pause)
            if not taken.claims:
                self._pause = min(self._pause * 2, self._poll)

    async def _sleep(self, event: asyncio.Event, longest: float) -> None:
        event.clear()
        try:
            await asyncio.wait_for(event.wait(), random.uniform(longest / 2, longest))  # noqa: S311 - spreads load
        except TimeoutError:
            return
        self._pause = POLL_MIN

    async def _begin(self, claims: list[Claim], sent: float) -> None:
        if self._draining:
            await self._store.run(hold.hold([hold.releasing(one.lease, "the worker is stopping") for one in claims]))
            return
        attempts = [Attempt(one.job, one.lease, self._kinds[one.job.kind], sent) for one in claims]
        self._heartbeat.add(attempts)
        for attempt in attempts:
            task = asyncio.create_task(self._perform(attempt), name=f"tenure-job-{attempt.job.id}")
            self._running[attempt.lease.attempt_id] = task
            task.add_done_callback(functools.partial(self._free, attempt.lease.attempt_id))

    def _free(self, key: UUID, _: asyncio.Task[None]) -> None:
        self._running.pop(key, None)
        self._attempts.pop(key, None)
        self._freed.set()
        self._wake.set()

    # --- one attempt --------------------------------------------------------------------------------------------------

    async def _perform(self, attempt: Attempt) -> None:
        if self._draining:
            self._outcomes.add(attempt, hold.releasing(attempt.lease, "the worker is stopping"))
            return
        limit = attempt.kind.timeout
        attempt.progressed = time.monotonic()
        attempt.deadline = None if limit is None else attempt.progressed + limit.total_seconds()
        handler = asyncio.ensure_future(run_handler(attempt, self._runtime, self._in_thread))
        self._attempts[attempt.lease.attempt_id] = (attempt, handler)
        if attempt.stop is not None and attempt.kind.is_async:
            handler.cancel()
        await asyncio.wait({handler}, timeout=None if limit is None else limit.total_seconds())
        if not handler.done():
            attempt.halt(TIMED_OUT, f"the handler ran longer than {limit}")
            if attempt.kind.is_async:
                handler.cancel()
                await asyncio.wait({handler}, timeout=STOP_GRACE)
        attempt.ended = True
        self._outcomes.add(attempt, self._ask(attempt, handler))
        if not handler.done():
            # Its slot counts as used until it really ends: a thread cannot be stopped, only refused.
            await asyncio.wait({handler})
            if not handler.cancelled():
                handler.exception()

    def _ask(self, attempt: Attempt, handler: asyncio.Future[Any]) -> hold.Ask | None:
        if not handler.done():
            assert attempt.stop is not None
            return ending(attempt, attempt.stop)
        if handler.cancelled():
            return ending(attempt, attempt.stop or asyncio.CancelledError("the handler was cancelled"))
        error = handler.exception()
        if error is None:
            return returning(attempt, handler.result())
        logger.info("handler raised: job=%s error=%s", attempt.job.id, type(error).__name__)
        return ending(attempt, error)

    def _written(self, attempt: Attempt) -> None:
        self._heartbeat.remove(attempt)

    def _attempt_stopped(self, attempt: Attempt) -> None:
        """Called from the heartbeat's thread: a handler has to stop."""

        def cancel() -> None:
            known = self._attempts.get(attempt.lease.attempt_id)
            if known is not None and attempt.kind.is_async and not attempt.ended:
                known[1].cancel()

        self._loop.call_soon_threadsafe(cancel)

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        context = contextvars.copy_context()
        return await self._loop.run_in_executor(self._threads, context.run, work)

    def _wait_for(self, awaitable: Awaitable[Any]) -> Any:
        """Run an awaitable for a handler that is in a thread."""

        async def wait() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(wait(), self._loop).result()

    # --- the other loops ----------------------------------------------------------------------------------------------

    async def _tend(self) -> None:
        moved = await self._store.run(recover()) + await self._store.run(promote())
        if not self._draining:
            if time.monotonic() - self._announced > ANNOUNCED_FOR.total_seconds() / 3:
                await self._announce()
            moved += await self._store.run(park())
        if random.random() < 0.001:  # noqa: S311 - about every quarter of an hour
            await self._store.run(forget_claims(CLAIM_IDS_KEPT))
        if moved:
            self._wake.set()

    async def _announce(self) -> None:
        self._announced = time.monotonic()
        await self._store.run(announce(self.worker_id, list(self._kinds), ANNOUNCED_FOR))

    async def _hand_in(self) -> None:
        journal = self._journal
        assert journal is not None

        def submit(operation_key: str, evidence: Any, attempt_id: UUID) -> None:
            self._blocking.run(submit_evidence(operation_key, evidence, attempt_id))

        report = await asyncio.to_thread(journal.hand_in, submit)
        # Old ones too: a receipt that the store refused stays a problem until a person has dealt with it.
        self._problems = tuple(
            [f"receipt {one.sequence} in {one.path.name} was refused: {one.code}" for one in report.refused]
            + [f"journal file {one.path.name} cannot be read: {one.code}" for one in report.torn_files]
            + ([f"{journal.faults} appends to the journal failed"] if journal.faults else [])
        )
        if report.stopped is not None:
            raise Unavailable("the journal's receipts could not be handed in", code=report.stopped)

    def _wake_soon(self) -> None:
        """Called from any thread when work may have arrived."""
        try:
            self._loop.call_soon_threadsafe(self._wake.set)
        except RuntimeError:
            logger.debug("woken after the loop was closed")

    # --- health -------------------------------------------------------------------------------------------------------

    def health(self) -> Health:
        """Say how the worker is; callable from any thread."""
        loops = self._supervisor.loops()
        ok = all(one.ok for one in loops.values()) and not self._problems
        return Health(ok, self.worker_id, len(self._running), self._draining, loops, self._problems)
