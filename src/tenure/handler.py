"""
What user code sees: how a handler is declared, and the context it works with.

A handler is a function of a context and a payload. `async def` handlers get an `AsyncContext` and run on the worker's
loop; plain ones get a `Context` and run in threads. Both contexts do the same things with the same flows; what differs
is who waits. What must stop a handler is a `Stop`, a BaseException, so that `except Exception` does not swallow it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import time
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from tenure.errors import (
    CancelRequested,
    EffectFailed,
    EffectRejected,
    IllegalMove,
    Invalid,
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
from tenure.procedures import hold
from tenure.procedures.publish import close_publish, find_publish, open_publish
from tenure.rules import moves
from tenure.rules.creation import check_text
from tenure.rules.digest import request_digest
from tenure.rules.dispatch import Begun, evidence_of
from tenure.rules.effect import Effect, EffectState
from tenure.rules.envelope import EXECUTION_KEY, GOVERNANCE_KEY, ExecutionIdentity, read_execution_identity
from tenure.rules.job import DEFAULT_OPTIONS, Change, Job, Options, open_boundary
from tenure.rules.lease import Lease, trusted_for
from tenure.rules.outcome import Accepted, Declined, Evidence, FailedBeforeDispatch, Outcome, Terms, Unknown
from tenure.rules.payload import clean_text, encode
from tenure.stores.contract import AsyncStore, AsyncTransaction, Store, Transaction
from tenure.stores.runner import guard, refuse_inside
from tenure.yields import new_id

Handler = Callable[..., Any]

HANDLER_TIMEOUT = timedelta(hours=1)
# The write of an outcome is shielded from the handler's cancellation and has this long, in seconds.
OUTCOME_PATIENCE = 10.0
PUBLISH_SHARE = 3

LEASE_LOST, CANCELLED, TIMED_OUT, SHUTDOWN = "LEASE_LOST", "CANCELLED", "TIMED_OUT", "SHUTDOWN"


# --- declaring a handler ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Kind:
    """
    A registered handler and what its jobs are created with.

    Attributes:
        timeout: How long the handler may run; None only where it was written out.
        progress_timeout: Without a call of `ctx.progress` for this long the attempt is timed out.
    """

    name: str
    version: int
    function: Handler
    payload: TypeAdapter[Any]
    result: TypeAdapter[Any] | None
    is_async: bool
    queue: str = "default"
    priority: int = 0
    max_attempts: int = 3
    backoff_base: timedelta = timedelta(seconds=30)
    lease_duration: timedelta = timedelta(seconds=60)
    timeout: timedelta | None = HANDLER_TIMEOUT
    progress_timeout: timedelta | None = None
    on_reconciled: str | None = None
    on_declined: str = "failed"
    options: Options = DEFAULT_OPTIONS

    def encode(self, payload: Any) -> dict[str, Any]:
        """
        Check a payload against the handler's model and turn it into a JSON object.

        Raises:
            Invalid: PAYLOAD_INVALID with the fields that are wrong, never their values.
        """
        try:
            document = self.payload.dump_python(self.payload.validate_python(payload), mode="json", warnings="error")
        except ValidationError as problem:
            raise Invalid(f"payload of kind {self.name!r}: {_fields(problem)}", code="PAYLOAD_INVALID") from None
        except (PydanticSerializationError, UnicodeDecodeError) as problem:
            raise Invalid(
                f"payload of kind {self.name!r} cannot be written as JSON ({type(problem).__name__})",
                code="PAYLOAD_INVALID",
            ) from None
        if not isinstance(document, dict):
            raise Invalid(f"payload of kind {self.name!r} must be a JSON object", code="PAYLOAD_INVALID")
        return document

    def decode(self, payload: Mapping[str, Any]) -> Any:
        """Build what the handler gets from a stored payload; raises Invalid like `encode`."""
        plain = {key: value for key, value in payload.items() if key not in {EXECUTION_KEY, GOVERNANCE_KEY}}
        try:
            return self.payload.validate_json(encode(plain))
        except ValidationError as problem:
            raise Invalid(f"payload of kind {self.name!r}: {_fields(problem)}", code="PAYLOAD_INVALID") from None

    def jsonable(self, result: Any) -> Any:
        """Turn a handler's result into a JSON value where its types allow; others are left for the store to refuse."""
        try:
            if self.result is not None:
                return self.result.dump_python(result, mode="json", warnings="none")
            return to_jsonable_python(result, inf_nan_mode="constants")
        except (PydanticSerializationError, UnicodeDecodeError, ValueError, TypeError, RecursionError):
            return result


def _fields(problem: ValidationError) -> str:
    # Locations and types only: messages and inputs may hold what the caller sent.
    parts = [
        f"{'.'.join(str(step) for step in error['loc']) or 'payload'} ({error['type']})"
        for error in problem.errors(include_url=False, include_context=False, include_input=False)
    ]
    return "; ".join(parts[:10])


def declare(
    name: str,
    function: Handler,
    *,
    version: int = 1,
    retry_timeouts: bool = False,
    recovery_window: timedelta | None = None,
    escalate_after: timedelta = DEFAULT_OPTIONS.escalate_after,
    providers: Sequence[str] = (),
    **fields: Any,
) -> Kind:
    """
    Check a handler's signature and make its kind.

    Raises:
        Invalid: HANDLER_SIGNATURE; the text shows the right one.
    """
    check_text("kind", name)
    function_name = getattr(function, "__qualname__", repr(function))
    is_async = inspect.iscoroutinefunction(function)
    shape = f"{'async ' if is_async else ''}def {getattr(function, '__name__', 'handler')}(ctx, payload)"
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    plain = [p for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD} and p.default is p.empty]
    if not callable(function) or len(plain) != 2 or len(parameters) != 2:
        raise Invalid(
            f"handler {function_name} of kind {name!r} must take a context and a payload: {shape}",
            code="HANDLER_SIGNATURE",
        )
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise Invalid(
            f"handler {function_name} of kind {name!r} must return, not yield: {shape}", code="HANDLER_SIGNATURE"
        )
    hints = _hints(function, name)
    wanted = AsyncContext if is_async else Context
    given = hints.get(plain[0].name)
    if isinstance(given, type) and issubclass(given, _Shared) and not issubclass(given, wanted):
        raise Invalid(
            f"handler {function_name} of kind {name!r} is {'async' if is_async else 'a plain function'} and gets a "
            f"{wanted.__name__}, not a {given.__name__}",
            code="HANDLER_SIGNATURE",
        )
    result = hints.get("return", Any)
    return Kind(
        name=name,
        version=version,
        function=function,
        payload=TypeAdapter(hints.get(plain[1].name, dict[str, Any])),
        result=None if result in {Any, type(None)} else TypeAdapter(result),
        is_async=is_async,
        options=Options(
            retry_timeouts=retry_timeouts,
            recovery_window=recovery_window,
            escalate_after=escalate_after,
            providers=tuple(providers),
        ),
        **fields,
    )


def _hints(function: Handler, name: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as problem:
        raise Invalid(
            f"the annotations of kind {name!r} cannot be read ({problem}); define its payload's class before the "
            f"handler, at the top of a module",
            code="HANDLER_SIGNATURE",
        ) from None


class Registry:
    """The kinds an app knows: a dict built by registration; nothing is ever looked up by a name found in data."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {}
        self._by_function: dict[Handler, Kind] = {}

    def add(self, kind: Kind) -> None:
        """Register a kind; a name stands for one handler."""
        if kind.name in self._kinds:
            raise Invalid(
                f"kind {kind.name!r} is registered already, by {self._kinds[kind.name].function.__qualname__}; "
                f"a kind has one handler",
                code="KIND_TAKEN",
            )
        self._kinds[kind.name] = kind
        self._by_function[kind.function] = kind

    def get(self, name: str) -> Kind | None:
        """Give a kind by its name."""
        return self._kinds.get(name)

    def find(self, handler: Handler | str) -> Kind:
        """
        Give a kind by its handler or its name.

        Raises:
            Invalid: UNKNOWN_KIND, with the known ones.
        """
        found = self._kinds.get(handler) if isinstance(handler, str) else self._by_function.get(handler)
        if found is None:
            asked = handler if isinstance(handler, str) else getattr(handler, "__qualname__", repr(handler))
            known = ", ".join(sorted(self._kinds)) or "none yet"
            raise Invalid(
                f"{asked!r} is no kind of this app; decorate its handler with @app.job(...). Known: {known}",
                code="UNKNOWN_KIND",
            )
        return found

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._kinds.values())

    def __len__(self) -> int:
        return len(self._kinds)


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


class AsyncContext(_Shared):
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


class Context(_Shared):
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
