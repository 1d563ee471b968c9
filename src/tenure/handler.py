"""
What user code sees: the context a handler works with, and how an attempt ends.

A handler is a function of a context and a payload. `async def` handlers get an `AsyncContext` and run on the worker's
loop; plain ones get a `Context` and run in threads. Both contexts do the same things with the same flows; what differs
is who waits. What must stop a handler is a `Stop`, a BaseException, so that `except Exception` does not swallow it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from tenure.errors import (
    CancelRequested,
    EffectFailed,
    EffectRejected,
    IllegalMove,
    LeaseLost,
    Permanent,
    Refused,
    Stop,
    TenureError,
    Unavailable,
    Uncertain,
)
from tenure.flows.drive import run_flow, run_flow_async
from tenure.flows.effect import Performed, perform
from tenure.kinds import AwaitingContext, BlockingContext, Kind
from tenure.procedures import hold
from tenure.procedures.publish import close_publish, find_publish, open_publish
from tenure.rules import moves
from tenure.rules.digest import request_digest
from tenure.rules.dispatch import Begun, evidence_of
from tenure.rules.effect import Effect, EffectState
from tenure.rules.envelope import ExecutionIdentity, read_execution_identity
from tenure.rules.job import Change, Job, open_boundary
from tenure.rules.lease import Lease, trusted_for
from tenure.rules.outcome import Accepted, Declined, Evidence, FailedBeforeDispatch, Outcome, Terms, Unknown
from tenure.rules.payload import clean_text
from tenure.stores.contract import AsyncStore, AsyncTransaction, Store, Transaction
from tenure.stores.runner import guard, refuse_inside
from tenure.yields import new_id

# The write of an outcome is shielded from the handler's cancellation and has this long, in seconds.
OUTCOME_PATIENCE = 10.0
PUBLISH_SHARE = 3

LEASE_LOST, CANCELLED, TIMED_OUT, SHUTDOWN = "LEASE_LOST", "CANCELLED", "TIMED_OUT", "SHUTDOWN"


# --- one attempt ------------------------------------------------------------------------------------------------------


class Providers(Protocol):
    """How a provider is called; the worker hands in the real thing."""

    def terms(self, provider: Any) -> Terms:
        """What the provider declares."""
        ...

    def timeout(self, provider: Any) -> timedelta:
        """How long one call may take unless the handler says otherwise."""
        ...

    def encode(self, request: Any) -> Any:
        """Turn a request into the JSON value whose digest is its identity."""
        ...

    async def send(self, provider: Any, request: Any, operation_key: str, allowed: timedelta) -> Outcome:
        """Make the call within `allowed`; never raises for what the provider did."""
        ...


class Keep(Protocol):
    """Where a receipt goes that the database did not take."""

    def append_receipt(self, operation_key: str, attempt_id: UUID, evidence: Evidence) -> Any:
        """Write it down durably; blocking."""
        ...


@dataclass(slots=True)
class Runtime:
    """
    What an attempt works with, made by the worker once.

    Attributes:
        wait: Runs an awaitable for a blocking handler, on the worker's loop.
    """

    store: AsyncStore
    blocking: Store
    providers: Providers
    journal: Keep | None
    wait: Callable[[Awaitable[Any]], Any]


@dataclass(slots=True)
class Attempt:
    """
    One claim of one job while a worker has it; shared by the handler, the heartbeat and the worker.

    Attributes:
        lease: As of the last renewal.
        sent: Monotonic seconds when the claim or the last renewal was sent.
        stop: Why the handler must stop; set once.
        progressed: Monotonic seconds of the last call of `ctx.progress`.
        deadline: Monotonic seconds at which the handler has run for its kind's timeout; None before it started.
        ended: The handler is over; what is left is writing how it ended.
    """

    job: Job
    lease: Lease
    kind: Kind
    sent: float
    progress: str | None = None
    progressed: float = field(default_factory=time.monotonic)
    stop: Stop | None = None
    deadline: float | None = None
    ended: bool = False

    def halt(self, code: str, message: str) -> None:
        """Ask the handler to stop; the first reason stands."""
        if self.stop is None:
            self.stop = Stop(message, code=code)

    def check(self) -> None:
        """Raise the reason to stop, if there is one."""
        if self.stop is not None:
            raise Stop(str(self.stop), code=self.stop.code)

    @property
    def trusted(self) -> float:
        """Seconds for which the lease may still be trusted by this process's own clock."""
        return trusted_for(self.sent, time.monotonic(), self.lease.duration)


class _Shared:
    """What both contexts offer."""

    def __init__(self, attempt: Attempt, runtime: Runtime) -> None:
        self._attempt = attempt
        self._runtime = runtime
        self.log: logging.LoggerAdapter[logging.Logger] = logging.LoggerAdapter(
            logging.getLogger("tenure.handler"),
            {"job_id": str(attempt.job.id), "kind": attempt.job.kind, "attempt": attempt.job.attempt_count},
        )

    @property
    def job(self) -> Job:
        """The job as it was claimed."""
        return self._attempt.job

    @property
    def lease(self) -> Lease:
        """The lease as of its last renewal."""
        return self._attempt.lease

    @property
    def identity(self) -> ExecutionIdentity | None:
        """Whom the work belongs to, from the execution envelope; None for a job without one."""
        return read_execution_identity(self._attempt.job)

    @property
    def cancelled(self) -> bool:
        """Whether the handler was asked to stop: cancellation, a lost lease, a timeout or a shutdown."""
        return self._attempt.stop is not None

    def progress(self, done: float, total: float | None = None) -> None:
        """
        Say how far the handler is; shown to people, and proof of life where `progress_timeout` is set.

        Args:
            done, total: In the handler's own unit.
        """
        self._attempt.check()
        self._attempt.progress = json.dumps({"done": done, "total": total}, allow_nan=False)
        self._attempt.progressed = time.monotonic()

    def _prepare(self, provider: Any, request: Any, timeout: timedelta | None) -> tuple[Terms, str, timedelta]:
        self._attempt.check()
        providers = self._runtime.providers
        declared = providers.terms(provider)
        return declared, request_digest(providers.encode(request)), timeout or providers.timeout(provider)

    def _left(self, begun: Begun, asked: float) -> timedelta | None:
        """
        How long the call may still take; None when it must not be made any more.

        A process may be paused between the intent and the call. The stored deadline counts from the intent, and a
        look-up that finds nothing counts from that deadline: a call that began later could be made twice.

        Args:
            asked: Monotonic seconds before the intent was sent to the database.
        """
        left = min(asked + begun.timeout.total_seconds() - time.monotonic(), self._attempt.trusted)
        if self._attempt.stop is not None or left <= 0:
            return None
        return timedelta(seconds=left)

    def _stopped(self, error: TenureError) -> Stop:
        code = CANCELLED if isinstance(error, CancelRequested) else LEASE_LOST
        self._attempt.halt(code, str(error))
        return Stop(str(error), code=code)

    def _keep(self, effect: Effect, outcome: Outcome) -> None:
        evidence = evidence_of(outcome)
        # A call that surely did not happen needs no proof of it: the next look-up or attempt finds out again.
        if self._runtime.journal is not None and isinstance(evidence, Accepted | Declined):
            self._runtime.journal.append_receipt(effect.operation_key, effect.attempt_id, evidence)

    def _publish_deadline(self) -> timedelta:
        return self._attempt.lease.duration / PUBLISH_SHARE


def _receipt(name: str, job: Job, performed: Performed) -> Any:
    """Turn how an effect stands into a receipt or the error that says what the handler should do."""
    effect = performed.effect
    match effect.state:
        case EffectState.SUCCEEDED:
            return effect.receipt
        case EffectState.FAILED_BEFORE_DISPATCH:
            wait = performed.outcome.retry_after if isinstance(performed.outcome, FailedBeforeDispatch) else None
            raise EffectFailed(
                f"effect {name!r} of job {job.id} did not happen: {effect.reason}",
                retry_after=None if wait is None else wait.total_seconds(),
            )
        case EffectState.REJECTED:
            category = getattr(performed.outcome, "category", "permanent")
            code = "EFFECT_REJECTED" if category == "permanent" else f"EFFECT_REJECTED_{category.upper()}"
            raise EffectRejected(f"the provider refused effect {name!r} of job {job.id}: {effect.reason}", code=code)
        case _:
            raise Uncertain(
                f"effect {name!r} of job {job.id}: whether {effect.operation_key} reached the provider is not known "
                f"({effect.reason}); the job waits for evidence"
            )


class AsyncContext(_Shared, AwaitingContext):
    """What an `async def` handler works with."""

    async def effect(
        self,
        name: str,
        provider: Any,
        request: Any,
        *,
        timeout: timedelta | None = None,  # noqa: ASYNC109 - part of the promise: stored with the intent
        resend: bool = False,
    ) -> Any:
        """
        Make one outside call: intent, call, receipt.

        Args:
            name: Unique within the job; stands for one request.
            timeout: The call's own limit; the lease may end it sooner.
            resend: Send an open effect again under the same key, in this same attempt, where the provider declares that
                it performs one request per key.
        Returns:
            The provider's receipt; of an earlier attempt where there is one, and nothing is sent then.
        Raises:
            EffectFailed: It surely did not happen; uncaught, the attempt is retried.
            EffectRejected: The provider refused it; uncaught, the job fails.
            Uncertain: Nobody knows; uncaught, the job is indeterminate until reconciled.
        """
        refuse_inside(self._runtime.store)
        declared, digest, limit = self._prepare(provider, request, timeout)
        asked = time.monotonic()
        given_up = False
        calling: asyncio.Task[Outcome] | None = None

        async def send(begun: Begun) -> Outcome:
            nonlocal calling
            left = self._left(begun, asked)
            if given_up or left is None:
                return FailedBeforeDispatch("the attempt was stopped or its lease ran out before the call was made")
            work = self._runtime.providers.send(provider, request, begun.effect.operation_key, left)
            calling = asyncio.ensure_future(work)
            try:
                return await calling
            except asyncio.CancelledError:
                return Unknown("the handler was stopped during the call")

        async def keep(effect: Effect, outcome: Outcome) -> None:
            await asyncio.to_thread(self._keep, effect, outcome)

        steps = perform(self._attempt.lease, name, digest, declared, limit, send=send, keep=keep, resend=resend)
        flow = asyncio.ensure_future(run_flow_async(steps, self._runtime.store.run))
        try:
            performed = await asyncio.shield(flow)
        except asyncio.CancelledError:
            # The call is given up, and what is known of it is still written down.
            given_up = True
            if calling is not None:
                calling.cancel()
            await asyncio.wait({flow}, timeout=OUTCOME_PATIENCE)
            if flow.done() and not flow.cancelled():
                flow.exception()
            raise
        except (LeaseLost, CancelRequested) as stopped:
            raise self._stopped(stopped) from None
        return _receipt(name, self._attempt.job, performed)

    @asynccontextmanager
    async def publish(self) -> AsyncIterator[AsyncTransaction]:
        """
        Write to your own tables under the fence: checked before and after, one commit.

        Inside the block everything goes through its `tx`; effects, other publishes and other verbs of this store are
        refused. It has to be over within a third of the lease.
        """
        refuse_inside(self._runtime.store)
        attempt, store = self._attempt, self._runtime.store
        attempt.check()
        publish_id, written = new_id(), False
        try:
            async with store.transaction(deadline=self._publish_deadline()) as tx:
                await tx.run(open_publish(attempt.lease))
                with guard(store):
                    yield tx
                await tx.run(close_publish(attempt.lease, publish_id))
                written = True
        except (LeaseLost, CancelRequested) as stopped:
            raise self._stopped(stopped) from None
        except Unavailable:
            # The reply to the commit may have been lost: the mark on the lease tells.
            if not written or not await store.run(find_publish(attempt.lease, publish_id)):
                raise


class Context(_Shared, BlockingContext):
    """What a plain `def` handler works with, in a thread of its own."""

    def effect(
        self, name: str, provider: Any, request: Any, *, timeout: timedelta | None = None, resend: bool = False
    ) -> Any:
        """See `AsyncContext.effect`."""
        refuse_inside(self._runtime.blocking)
        declared, digest, limit = self._prepare(provider, request, timeout)
        asked = time.monotonic()

        def send(begun: Begun) -> Any:
            left = self._left(begun, asked)
            if left is None:
                return FailedBeforeDispatch("the attempt was stopped or its lease ran out before the call was made")
            return self._runtime.providers.send(provider, request, begun.effect.operation_key, left)

        flow = perform(self._attempt.lease, name, digest, declared, limit, send=send, keep=self._keep, resend=resend)
        try:
            performed = run_flow(flow, self._runtime.blocking.run, self._runtime.wait)
        except (LeaseLost, CancelRequested) as stopped:
            raise self._stopped(stopped) from None
        return _receipt(name, self._attempt.job, performed)

    @contextmanager
    def publish(self) -> Iterator[Transaction]:
        """See `AsyncContext.publish`."""
        refuse_inside(self._runtime.blocking)
        attempt, store = self._attempt, self._runtime.blocking
        attempt.check()
        publish_id, written = new_id(), False
        try:
            with store.transaction(deadline=self._publish_deadline()) as tx:
                tx.run(open_publish(attempt.lease))
                with guard(store):
                    yield tx
                tx.run(close_publish(attempt.lease, publish_id))
                written = True
        except (LeaseLost, CancelRequested) as stopped:
            raise self._stopped(stopped) from None
        except Unavailable:
            if not written or not store.run(find_publish(attempt.lease, publish_id)):
                raise


# --- how an attempt ends ----------------------------------------------------------------------------------------------


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
    kind, job = attempt.kind, attempt.job
    if job.unreadable is not None:
        raise Permanent(f"the stored payload cannot be read: {job.unreadable}", code="UNREADABLE_PAYLOAD")
    payload = kind.decode(job.payload)
    if kind.is_async:
        return kind.jsonable(await kind.function(AsyncContext(attempt, runtime), payload))
    context = Context(attempt, runtime)
    return kind.jsonable(await in_thread(lambda: kind.function(context, payload)))


def returning(attempt: Attempt, result: Any) -> hold.Ask:
    """What is written when the handler returned."""
    return hold.completing(attempt.lease, result)


def ending(attempt: Attempt, error: BaseException) -> hold.Ask | None:
    """
    What is written when the handler raised.

    Returns:
        None where this worker has nothing to say any more: the lease is lost.
    """
    if attempt.stop is not None and isinstance(error, asyncio.CancelledError | Stop | CancelRequested | LeaseLost):
        error = attempt.stop
    lease = attempt.lease
    match error:
        case Stop(code="LEASE_LOST") | LeaseLost():
            return None
        case Stop(code="CANCELLED") | CancelRequested():
            return hold.acknowledging(lease)
        case Stop(code="TIMED_OUT"):
            return hold.timing_out(lease, TIMED_OUT, str(error))
        case Stop() | asyncio.CancelledError():
            return hold.Ask(lease, lambda job, now: _interrupted(job, lease, str(error) or "the worker stopped", now))
        case EffectFailed(retry_after=seconds):
            wait = None if seconds is None else timedelta(seconds=seconds)
            return hold.failing(lease, error.code, str(error), retryable=True, retry_after=wait)
        case Uncertain():
            return hold.marking(moves.mark_indeterminate, lease, error.code, str(error))
        case Unavailable():
            return hold.failing(lease, error.code, str(error), retryable=True)
        case EffectRejected() | Permanent() | IllegalMove() | Refused() | TenureError():
            return hold.failing(lease, error.code, str(error) or type(error).__name__, retryable=False)
        case _:
            text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            return hold.failing(lease, "HANDLER_ERROR", text, retryable=True)


def _interrupted(job: Job, lease: Lease, reason: str, now: datetime) -> Change:
    """A shutdown reached a handler that had not ended: give the job back, unless a call may have gone out."""
    if open_boundary(job):
        return moves.mark_indeterminate(job, lease, SHUTDOWN, reason, now)
    return moves.release(job, lease, clean_text(reason, 200)[0], now)
