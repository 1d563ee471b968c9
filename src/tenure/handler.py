"""
What user code sees: the context a handler works with.

A handler is a function of a context and a payload. `async def` handlers get an `AsyncContext` and run on the worker's
loop; plain ones get a `Context` and run in threads. Both contexts do the same things with the same flows; what differs
is who waits. What must stop a handler is a `Stop`, a BaseException, so that `except Exception` does not swallow it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from tenure.attempt import CANCELLED, LEASE_LOST, Attempt, Runtime
from tenure.errors import (
    CancelRequested,
    EffectFailed,
    EffectRejected,
    Invalid,
    LeaseLost,
    Stop,
    TenureError,
    Unavailable,
    Uncertain,
)
from tenure.flows.drive import run_flow, run_flow_async
from tenure.flows.effect import Performed, perform
from tenure.guard import guard, refuse_inside
from tenure.kinds import AwaitingContext, BlockingContext
from tenure.procedures.publish import close_publish, find_publish, open_publish
from tenure.rules.bounds import check_span
from tenure.rules.control import ControlRequest, Judged
from tenure.rules.digest import request_digest
from tenure.rules.dispatch import Begun, evidence_of
from tenure.rules.effect import Effect, EffectState, check_name
from tenure.rules.envelope import ExecutionIdentity, read_execution_identity
from tenure.rules.job import Job
from tenure.rules.lease import Lease
from tenure.rules.outcome import Accepted, Declined, Evidence, FailedBeforeDispatch, NoAnswer, Outcome, Terms, Unknown
from tenure.stores.contract import AsyncStore, AsyncTransaction, Store, Transaction
from tenure.yields import new_id

T = TypeVar("T")

logger = logging.getLogger("tenure.worker")

# The write of an outcome is shielded from the handler's cancellation and has this long, in seconds.
OUTCOME_PATIENCE = 10.0
PUBLISH_SHARE = 3


class _Log(logging.LoggerAdapter[logging.Logger]):
    """Adds the attempt's ids to every record, beside what the caller adds."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        return msg, kwargs


class _Shared:
    """What both contexts offer."""

    def __init__(self, attempt: Attempt, runtime: Runtime) -> None:
        self._attempt = attempt
        self._runtime = runtime
        self._log: logging.LoggerAdapter[logging.Logger] | None = None

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry the ids of the attempt."""
        if self._log is None:
            job = self._attempt.job
            ids = {"job_id": str(job.id), "kind": job.kind, "attempt": job.attempt_count}
            self._log = _Log(logging.getLogger("tenure.handler"), ids)
        return self._log

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
            done, total: Finite numbers in the handler's own unit.
        """
        self._attempt.check()
        try:
            told = json.dumps({"done": done + 0, "total": total if total is None else total + 0}, allow_nan=False)
        except (TypeError, ValueError):
            raise Invalid("progress takes finite numbers: ctx.progress(3, 10)", code="BAD_ARGUMENT") from None
        self._attempt.progress = told
        self._attempt.progressed = time.monotonic()

    def _prepare(self, provider: Any, request: Any, timeout: timedelta | None) -> tuple[Terms, str, timedelta]:
        self._attempt.check()
        providers = self._runtime.providers
        declared = providers.terms(provider)
        limit = providers.timeout(provider) if timeout is None else timeout
        return declared, request_digest(providers.encode(request)), check_span("timeout", limit)

    def _question(self, name: str, declared: Terms, digest: str) -> ControlRequest:
        job = self._attempt.job
        return ControlRequest(
            job_id=job.id,
            tenant=job.tenant,
            organization=job.organization,
            project=job.project,
            kind=job.kind,
            kind_version=job.kind_version,
            attempt=job.attempt_count,
            effect=name,
            provider=declared.provider,
            request_digest=digest,
            identity=self._who(),
        )

    def _who(self) -> ExecutionIdentity | None:
        try:
            return self.identity
        except Invalid:
            return None  # the begin finds out, and says what is wrong

    def _left(self, begun: Begun, asked: float, digest: str, request: Any) -> timedelta | FailedBeforeDispatch:
        """
        How long the call may still take, or why it must not be made any more.

        A process may be paused between the intent and the call. The stored deadline counts from the intent, and a
        look-up that finds nothing counts from that deadline: a call that began later could be made twice. And what is
        sent has to be what the intent was written for.

        Args:
            asked: Monotonic seconds before the intent was sent to the database.
            digest: Of the request as it was when the intent was written.
        """
        left = min(asked + begun.timeout.total_seconds() - time.monotonic(), self._attempt.trusted)
        if self._attempt.stop is not None or left <= 0:
            return FailedBeforeDispatch("the attempt was stopped or its lease ran out before the call was made")
        if request_digest(self._runtime.providers.encode(request)) != digest:
            return FailedBeforeDispatch("the request was changed while its intent was being written; nothing was sent")
        return timedelta(seconds=left)

    async def _judged(self, name: str, declared: Terms, digest: str) -> Judged | None:
        """Ask the execution control, where there is one."""
        if self._runtime.control is None:
            return None
        check_name(name)
        return await self._runtime.control.ask(self._question(name, declared, digest))

    async def _ask(self, provider: Any, begun: Begun) -> Evidence:
        """Ask about an effect of a suspect job, while the lease may be trusted."""
        left = min(begun.timeout.total_seconds(), self._attempt.trusted)
        return await self._runtime.providers.lookup(
            provider, begun.effect.operation_key, timedelta(seconds=max(left, 0.0))
        )

    def _stopped(self, error: TenureError) -> Stop:
        code = CANCELLED if isinstance(error, CancelRequested) else LEASE_LOST
        self._attempt.halt(code, str(error), error.code)
        return Stop(str(error), code=code)

    def _keep(self, effect: Effect, outcome: Outcome) -> bool:
        evidence = evidence_of(outcome, effect)
        # A call that surely did not happen needs no proof of it: the next look-up or attempt finds out again.
        if self._runtime.journal is None or not isinstance(evidence, Accepted | Declined):
            return False
        try:
            self._runtime.journal.append_receipt(effect.operation_key, effect.attempt_id, evidence)
        except TenureError as error:
            # The open intent goes on to forbid a second call; the journal counts the fault, and health shows it.
            logger.error(  # noqa: TRY400 - codes only; the chain of a disk's error names paths
                "receipt not kept: job=%s key=%s code=%s", self.job.id, effect.operation_key, error.code
            )
            return False
        return True

    def _publish_deadline(self) -> timedelta:
        return self._attempt.lease.duration / PUBLISH_SHARE

    def _lateness(self, store: Store | AsyncStore) -> Callable[[], None]:
        """Give what refuses the end of a publish that is late; a transaction of the caller's has no other limit."""
        share = self._publish_deadline()
        limit = min(share, store.block_max or share).total_seconds()
        ends = time.monotonic() + limit

        def check() -> None:
            if time.monotonic() >= ends:
                raise Unavailable(
                    f"this publish lasted longer than its deadline of {limit:g} seconds, so nothing of it may be "
                    "committed; let this error leave your transaction too, and do less in it",
                    code="TRANSACTION_TIMEOUT",
                )

        return check

    def _receipt(self, name: str, performed: Performed) -> Any:
        if performed.effect.state is not EffectState.SUCCEEDED:
            # What stopped the call stops the handler; an error about the call would only hide it.
            self._attempt.check()
        return _receipt(name, self._attempt.job, performed)


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
        judged = await self._judged(name, declared, digest)
        self._attempt.check()
        asked = time.monotonic()
        given_up = False
        calling: asyncio.Task[Any] | None = None

        async def send(begun: Begun) -> Outcome:
            nonlocal calling
            left = self._left(begun, asked, digest, request)
            if given_up:
                return FailedBeforeDispatch("the handler was stopped before the call was made")
            if isinstance(left, FailedBeforeDispatch):
                return left
            work = self._runtime.providers.send(provider, request, begun.effect.operation_key, left)
            calling = asyncio.ensure_future(work)
            stopped: Outcome = Unknown("the handler was stopped during the call")
            return await _until_stopped(calling, stopped)

        async def keep(effect: Effect, outcome: Outcome) -> Any:
            return await self._runtime.apart(lambda: self._keep(effect, outcome))

        async def ask(begun: Begun) -> Evidence:
            nonlocal asked, calling
            if given_up:
                return NoAnswer("the handler was stopped before the look-up")
            calling = asyncio.ensure_future(self._ask(provider, begun))
            said: Evidence = await _until_stopped(calling, NoAnswer("the handler was stopped during the look-up"))
            # What may be sent after it has an intent of its own, and its time counts from here.
            asked = time.monotonic()
            return said

        steps = perform(
            self._attempt.lease,
            name,
            digest,
            declared,
            limit,
            send=send,
            keep=keep,
            ask=ask,
            resend=resend,
            judged=judged,
            seen=self._runtime.seen(),
        )
        flow = asyncio.ensure_future(run_flow_async(steps, self._runtime.commit or self._runtime.store.run))
        flow.add_done_callback(_seen)
        try:
            performed = await asyncio.shield(flow)
        except asyncio.CancelledError:
            # The call is given up, and what is known of it is still written down.
            given_up = True
            if calling is not None:
                calling.cancel()
            await asyncio.wait({flow}, timeout=OUTCOME_PATIENCE)
            raise
        except (LeaseLost, CancelRequested) as stopped:
            raise self._stopped(stopped) from None
        return self._receipt(name, performed)

    @asynccontextmanager
    async def publish(self, connection: Any = None) -> AsyncIterator[AsyncTransaction]:
        """
        Write to your own tables under the fence: checked before and after, one commit.

        Inside the block everything goes through its `tx`; effects, other publishes and other verbs of this store are
        refused, and so are the HTTP and SMTP providers. It has to be over within a third of the lease.

        Args:
            connection: Your own, with a transaction open, as `app.join` takes it; the fence is checked in that
                transaction at both ends of the block, and the commit that follows is yours. Without it the store opens
                a transaction and commits.
        Raises:
            Stop: The lease or the permission is gone; nothing of the block may be committed.
            Unavailable: TRANSACTION_TIMEOUT, the block lasted too long; let it leave your transaction too.
        """
        refuse_inside(self._runtime.store)
        attempt, store = self._attempt, self._runtime.store
        attempt.check()
        publish_id, written = new_id(), False
        own: AbstractAsyncContextManager[AsyncTransaction] = (
            store.transaction(deadline=self._publish_deadline()) if connection is None else store.join(connection)
        )
        late = self._lateness(store)
        try:
            async with own as tx:
                await tx.run(open_publish(attempt.lease))
                with guard(store, connection=tx.connection):
                    yield tx
                late()
                await tx.run(close_publish(attempt.lease, publish_id))
                written = connection is None
        except (LeaseLost, CancelRequested) as stopped:
            raise self._stopped(stopped) from None
        except (Unavailable, Uncertain):
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
        judged = None
        if self._runtime.control is not None:
            judged = self._runtime.wait(self._judged(name, declared, digest))
            self._attempt.check()
        asked = time.monotonic()

        async def call(begun: Begun) -> Outcome:
            # Judged on the loop, where the call begins: the loop may have been busy since the intent was written.
            left = self._left(begun, asked, digest, request)
            if isinstance(left, FailedBeforeDispatch):
                return left
            return await self._runtime.providers.send(provider, request, begun.effect.operation_key, left)

        def send(begun: Begun) -> Any:
            try:
                return self._runtime.wait(call(begun))
            except (concurrent.futures.CancelledError, asyncio.CancelledError):
                return Unknown("the worker ended during the call")

        def ask(begun: Begun) -> Any:
            nonlocal asked
            try:
                return self._runtime.wait(self._ask(provider, begun))
            except (concurrent.futures.CancelledError, asyncio.CancelledError):
                return NoAnswer("the worker ended during the look-up")
            finally:
                asked = time.monotonic()

        flow = perform(
            self._attempt.lease,
            name,
            digest,
            declared,
            limit,
            send=send,
            keep=self._keep,
            ask=ask,
            resend=resend,
            judged=judged,
            seen=self._runtime.seen(),
        )
        try:
            performed = run_flow(flow, self._runtime.blocking.run, self._runtime.wait)
        except (LeaseLost, CancelRequested) as stopped:
            raise self._stopped(stopped) from None
        return self._receipt(name, performed)

    @contextmanager
    def publish(self, connection: Any = None) -> Iterator[Transaction]:
        """See `AsyncContext.publish`."""
        refuse_inside(self._runtime.blocking)
        attempt, store = self._attempt, self._runtime.blocking
        attempt.check()
        publish_id, written = new_id(), False
        own: AbstractContextManager[Transaction] = (
            store.transaction(deadline=self._publish_deadline()) if connection is None else store.join(connection)
        )
        late = self._lateness(store)
        try:
            with own as tx:
                tx.run(open_publish(attempt.lease))
                with guard(store, connection=tx.connection):
                    yield tx
                late()
                tx.run(close_publish(attempt.lease, publish_id))
                written = connection is None
        except (LeaseLost, CancelRequested) as stopped:
            raise self._stopped(stopped) from None
        except (Unavailable, Uncertain):
            if not written or not store.run(find_publish(attempt.lease, publish_id)):
                raise


async def _until_stopped(task: asyncio.Task[T], otherwise: T) -> T:
    """Wait for a task of ours; what it gives when somebody cancels it is said by the caller."""
    try:
        return await task
    except asyncio.CancelledError:
        return otherwise


def _seen(task: asyncio.Future[Any]) -> None:
    """Look at a task's end, so that asyncio does not print an exception whose text may be a provider's."""
    if not task.cancelled():
        task.exception()
