"""
Run handlers, and end them when they have to.

Nothing can stop a thread, and a coroutine may refuse to be cancelled. So an attempt's slot is used until its code has
really ended, whatever was written about it meanwhile, and what such code still tries to write is refused by the fence.

Why an attempt is stopped decides what is written and when:

    timed out    at once, after a short wait: its status must not wait for a handler that hangs
    cancelled    when the handler has ended; its lease is not renewed any more, so recovery says it otherwise
    shutdown     when the handler has ended; or at the very end of the worker, indeterminate where a call may be out
    lease lost   nothing
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from tenure.attempt import LEASE_LOST, SHUTDOWN, TIMED_OUT, Attempt, Runtime
from tenure.errors import Permanent
from tenure.handler import AsyncContext, Context
from tenure.loops.endings import abandoning, ending, returning
from tenure.loops.heartbeat import Heartbeat
from tenure.loops.outcomes import Outcomes
from tenure.loops.supervisor import within
from tenure.loops.threads import Threads
from tenure.procedures import hold
from tenure.rules.moves import WORKER_LOST

logger = logging.getLogger("tenure.worker")

# Seconds. How long a handler that was told to stop may take to do so before its outcome is written without it.
STOP_GRACE = 1.0
# How long a job whose last worker was lost runs before another one of that kind may start beside it.
WATCHED_FOR = 20.0
# Seconds: the longest time between two looks at all of them.
LOOK_MAX = 1.0
_STOPPING = "the worker is stopping"


@dataclass(slots=True, eq=False)
class _Running:
    attempt: Attempt
    handler: asyncio.Task[Any] | None = None
    stopping: asyncio.Task[None] | None = None


class Attempts:
    """
    The attempts of one worker while their handlers run.

    One task runs a handler, and nothing else is made for an attempt that ends by itself: one watch looks at the time of
    all of them, and what stops a handler is a task of its own only when there is something to stop.

    Args:
        freed: Called when a handler has ended and its slot is free.
    """

    def __init__(
        self, runtime: Runtime, heartbeat: Heartbeat, outcomes: Outcomes, threads: Threads, freed: Callable[[], None]
    ) -> None:
        self._runtime = runtime
        self._heartbeat = heartbeat
        self._outcomes = outcomes
        self._threads = threads
        self._freed = freed
        self._loop = asyncio.get_running_loop()
        self._running: dict[UUID, _Running] = {}
        self._watched: dict[UUID, Attempt] = {}
        self._returning = False
        self._stopped_early = False
        self._none = asyncio.Event()
        self._none.set()
        self._sooner = asyncio.Event()
        self._look_at = math.inf

    def __len__(self) -> int:
        return len(self._running)

    @property
    def stopped_early(self) -> bool:
        """Whether a handler was stopped because the worker had to end."""
        return self._stopped_early

    def begin(self, attempts: list[Attempt]) -> None:
        """Run the handlers of attempts just claimed; give them back where the worker is being drained."""
        self._heartbeat.add(attempts)
        look_at = math.inf
        for attempt in attempts:
            running = _Running(attempt)
            if self._returning:
                self._tell(running, hold.releasing(attempt.lease, _STOPPING))
                continue
            key = attempt.lease.attempt_id
            if attempt.claim.error_code == WORKER_LOST:
                self._watched[key] = attempt
            self._running[key] = running
            self._none.clear()
            attempt.begin()
            look_at = min(look_at, attempt.look_at())
            running.handler = self._loop.create_task(run_handler(attempt, self._runtime, self._threads.run))
            running.handler.add_done_callback(partial(self._end, key, running))
        if look_at < self._look_at:
            self._look_at = look_at
            self._sooner.set()

    def _end(self, key: UUID, running: _Running, handler: asyncio.Task[Any]) -> None:
        # Looked at in any case, so that asyncio does not print an exception whose text may be a provider's.
        error = None if handler.cancelled() else handler.exception()
        if self._running.pop(key, None) is None:
            return  # the worker has ended and left this one to itself
        try:
            if not running.attempt.ended:
                self._tell(running, _ask(running.attempt, handler, error))
        except Exception as mistake:  # noqa: BLE001 - the lease must not be kept for an attempt that nobody looks after
            logger.error("attempt lost: job=%s error=%s", running.attempt.job.id, type(mistake).__name__)  # noqa: TRY400
            self.written(running.attempt)
        if not self._running:
            self._none.set()
        self._freed()

    async def watch(self) -> None:
        """
        Stop handlers that are over their time, at the first moment that one may be; the supervisor calls this again.

        A lease that cannot be trusted any more is such a time too.
        """
        try:
            await within(self._sooner.wait(), min(self._look_at - time.monotonic(), LOOK_MAX))
        except asyncio.CancelledError:
            # The loop ends around us: leases that nobody looks after must not be renewed.
            self._let_go()
            raise
        self._sooner.clear()
        self._look_at = math.inf
        for running in list(self._running.values()):
            if running.attempt.judge():
                self._stop(running)
            else:
                self._look_at = min(self._look_at, running.attempt.look_at())

    def _let_go(self) -> None:
        for running in self._running.values():
            if not running.attempt.ended:
                self.written(running.attempt)

    @property
    def watching(self) -> bool:
        """
        Whether a job is under way here that may have been the end of its last worker.

        Until its outcome is written: the next one of that kind might take it along in the moment before.
        """
        now = time.monotonic()
        return any(one.started is None or now - one.started < WATCHED_FOR for one in self._watched.values())

    def written(self, attempt: Attempt) -> None:
        """Let an attempt go: its outcome is written, or cannot be any more."""
        self._heartbeat.remove(attempt)
        if self._watched.pop(attempt.lease.attempt_id, None) is not None:
            self._freed()

    def return_unstarted(self) -> None:
        """From now on give back what is not started yet, its attempt not used."""
        self._returning = True

    def stopped(self, attempt: Attempt) -> None:
        """Look after an attempt that has to stop; callable from any thread."""

        def tell() -> None:
            running = self._running.get(attempt.lease.attempt_id)
            if running is not None:
                self._stop(running)

        try:
            self._loop.call_soon_threadsafe(tell)
        except RuntimeError:
            logger.debug("an attempt was stopped after the loop was closed: job=%s", attempt.job.id)

    def hurry(self) -> None:
        """Tell every handler that still runs to stop."""
        for running in list(self._running.values()):
            if not running.attempt.ended:
                self._stopped_early = True
                running.attempt.halt(SHUTDOWN, "the worker was told to stop before the handler ended")
                self._stop(running)

    def abandon(self) -> None:
        """Write what can be said of handlers that were told to stop and did not."""
        for running in list(self._running.values()):
            if not running.attempt.ended:
                self._stopped_early = True
                self._tell(running, abandoning(running.attempt))

    async def ended(self) -> None:
        """Wait until no handler runs."""
        await self._none.wait()

    async def forget(self) -> None:
        """Look after the attempts no longer; what still runs is left to itself."""
        tasks = [one.stopping for one in self._running.values() if one.stopping is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._let_go()
        self._running.clear()

    # --- stopping one -------------------------------------------------------------------------------------------------

    def _stop(self, running: _Running) -> None:
        if running.stopping is None:
            running.stopping = self._loop.create_task(self._wind_up(running), name="tenure-stopping")

    async def _wind_up(self, running: _Running) -> None:
        attempt, handler = running.attempt, running.handler
        assert attempt.stop is not None
        assert handler is not None
        if attempt.kind.is_async:
            handler.cancel()
        if attempt.stop.code in {TIMED_OUT, LEASE_LOST}:
            # Half of what is left of the lease at most: the other half is for writing.
            await asyncio.wait({handler}, timeout=max(0.0, min(STOP_GRACE, attempt.trusted / 2)))
            if not handler.done():
                self._tell(running, ending(attempt, attempt.stop))

    def _tell(self, running: _Running, ask: hold.Ask | None) -> None:
        attempt = running.attempt
        attempt.ended = True
        if ask is None:
            # Nothing is written of it, so this line is all that tells a person why a handler was stopped.
            code = attempt.refusal or LEASE_LOST
            logger.warning("attempt stopped, its lease is lost: job=%s code=%s", attempt.job.id, code)
        self._outcomes.add(running.attempt, ask)


def _ask(attempt: Attempt, handler: asyncio.Task[Any], error: BaseException | None) -> hold.Ask | None:
    if handler.cancelled():
        # Without a stop it is the handler's own doing, and an error like any other.
        error = attempt.stop or asyncio.CancelledError("the handler cancelled itself")
    if error is None:
        return returning(attempt, handler.result())
    logger.info("handler raised: job=%s error=%s", attempt.job.id, type(error).__name__)
    return ending(attempt, error)


async def run_handler(
    attempt: Attempt, runtime: Runtime, in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]
) -> Any:
    """
    Run the handler of an attempt and give its result.

    Args:
        in_thread: Runs a blocking function in one of the worker's threads, with this task's context variables.
    Raises:
        Whatever the handler raises; `ending` turns it into what is written.
    """
    try:
        return await _run(attempt, runtime, in_thread)
    except (SystemExit, KeyboardInterrupt) as error:
        # A handler, or the model of its payload, ends its attempt, not the worker with everybody else's.
        raise RuntimeError(f"the handler raised {type(error).__name__}") from None


async def _run(attempt: Attempt, runtime: Runtime, in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]) -> Any:
    kind = attempt.kind
    document, unreadable = attempt.claim.document
    if unreadable is not None:
        raise Permanent(f"the stored payload cannot be read: {unreadable}", code="UNREADABLE_PAYLOAD")
    payload = kind.decode(document)
    if kind.is_async:
        result = await kind.function(AsyncContext(attempt, runtime), payload)
    else:
        context = Context(attempt, runtime)
        result = await in_thread(lambda: kind.function(context, payload))
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise Permanent(
            f"the handler of kind {kind.name!r} returned an awaitable that nobody awaited; declare it `async def`",
            code="HANDLER_SIGNATURE",
        )
    return kind.jsonable(result)
