"""
What a provider is, what it declares about itself, and how one call to it is bounded.

A provider speaks to one thing of the outside world. It says how a call ended in one of four words; whatever does not
come back as one of these four is `Unknown`, because the provider may have acted. `send_bounded`, `lookup_bounded` and
`ask_bounded` are the only ways the rest of the package calls a provider: they never raise for what a provider did, they
end in time, and they carry class names instead of texts, because a provider's texts hold payloads and secrets.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

from tenure.connectors.wire import json_value
from tenure.errors import Invalid, echo
from tenure.rules.effect import NAME_MAX
from tenure.rules.outcome import (
    Absent,
    Accepted,
    Declined,
    Evidence,
    FailedBeforeDispatch,
    NoAnswer,
    Outcome,
    Rejected,
    Succeeded,
    Terms,
    Unknown,
)
from tenure.rules.payload import RESULT_BYTES_MAX, clean_text

# Long enough for a client to close its socket after it was cancelled; a provider that ignores it is left behind.
GRACE = timedelta(milliseconds=500)
# A reason is read in a list of many; a provider that passes its whole answer on must not fill the store with it.
REASON_BYTES_MAX = 500
# How long a look-up may take that no provider speaks for: the caller's own, in a sweep.
LOOKUP_TIMEOUT = timedelta(seconds=30)
CATEGORIES = frozenset({"permanent", "authentication"})

_OUTCOMES = (Succeeded, FailedBeforeDispatch, Rejected, Unknown)
_EVIDENCE = (Accepted, Declined, Absent, NoAnswer)
_ZERO = timedelta(0)
_Said = TypeVar("_Said", Outcome, Evidence)


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """
    The provider performs one request per operation key.

    Attributes:
        retention: How long it remembers a key, counted from the first request.
        binds_payload: It refuses the same key with another payload, instead of answering with the first result.
        scope: Within what a key is unique for the provider, in its own words; `account` is the usual one.
    """

    retention: timedelta
    binds_payload: bool = False
    scope: str = "account"

    def __post_init__(self) -> None:
        if not _is_duration(self.retention):
            raise Invalid("retention is a timedelta above zero; write idempotency=None for a provider without keys")
        if not _is_text(self.scope):
            raise Invalid("scope says within what a key is unique, such as 'account'; it is not empty")


class Provider:
    """
    One thing of the outside world; subclass it, give it a name, write `send`, and `lookup` if it can be asked.

    Both may be `async def`, or `def`: a plain one runs in a thread of its own. A thread cannot be stopped, so give the
    client inside a plain `send` a timeout too; its late result is dropped.

    Attributes:
        name: Stored with every effect; unique in an app. No `#` and no `:`, they separate operation keys.
        idempotency: What the provider promises about repeated keys, or None.
        lookup_complete: Its look-up sees every request it ever accepted, so that "not found" proves something.
        settles_within: How long after a request's deadline it may still appear in the look-up.
        timeout: How long one call may take, unless the caller says otherwise.
    """

    name: str = ""
    idempotency: IdempotencyKey | None = None
    lookup_complete: bool = False
    settles_within: timedelta = _ZERO
    timeout: timedelta = timedelta(seconds=30)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Only what this class itself says: a parent without a name is a template for others.
        if "name" in vars(cls) and not isinstance(vars(cls)["name"], property):
            check_provider_name(cls.name)

    def send(self, request: Any, operation_key: str) -> Outcome | Awaitable[Outcome]:  # noqa: ARG002 - for subclasses
        """
        Ask the provider to act, once.

        Never retry inside: retries happen at one layer, above this one.

        Args:
            request: What the handler gave to `ctx.effect`.
            operation_key: The business identity of this act; hand it on wherever the provider takes one.
        """
        raise Invalid(f"provider {self.name!r} has no send; write `async def send(self, request, operation_key)`")

    def lookup(self, operation_key: str) -> Evidence | Awaitable[Evidence]:  # noqa: ARG002 - for subclasses
        """Ask what became of an operation; leave it out where the provider cannot tell."""
        return NoAnswer("has no look-up")

    @property
    def has_lookup(self) -> bool:
        """Whether this provider can be asked about an operation key."""
        return type(self).lookup is not Provider.lookup

    def __repr__(self) -> str:
        # The name only: what else a provider holds are addresses and credentials.
        return f"<{type(self).__name__} {self.name!r}>"


def check_provider_name(name: object) -> str:
    """Refuse a provider's name that could not be stored or be mistaken for a part of an operation key."""
    if not isinstance(name, str) or not _is_text(name) or len(name) > NAME_MAX:
        raise Invalid(
            f"a provider's name is 1 to {NAME_MAX} printable characters, not {echo(name)}", code="BAD_ARGUMENT"
        )
    if "#" in name or ":" in name:
        raise Invalid(
            f"a provider's name holds no '#' or ':', they separate operation keys: {echo(name)}", code="BAD_ARGUMENT"
        )
    return name


def check_provider(provider: Provider) -> None:
    """
    Refuse a provider that contradicts itself, before any work depends on it.

    Raises:
        Invalid: Not a Provider, no `send`, a bad name, a bad duration, or `lookup_complete` without a look-up.
    """
    if not isinstance(provider, Provider):
        raise Invalid(f"a provider is an instance of a subclass of tenure.Provider, not {_kind(provider)}")
    name = check_provider_name(provider.name)
    if type(provider).send is Provider.send:
        raise Invalid(f"provider {name!r} has no send; write `async def send(self, request, operation_key)`")
    if provider.idempotency is not None and not isinstance(provider.idempotency, IdempotencyKey):
        raise Invalid(f"provider {name!r}: idempotency is an IdempotencyKey or None, not {_kind(provider.idempotency)}")
    if not _is_duration(provider.timeout):
        raise Invalid(f"provider {name!r}: timeout is a timedelta above zero")
    if not _is_duration(provider.settles_within, zero=True):
        raise Invalid(f"provider {name!r}: settles_within is a timedelta, zero or more")
    if provider.lookup_complete and not provider.has_lookup:
        raise Invalid(f"provider {name!r} says lookup_complete but has no look-up; write one, or leave it False")


def terms(provider: Provider) -> Terms:
    """Give what a provider declares in the form that is stored with each intent; raises like `check_provider`."""
    check_provider(provider)
    key = provider.idempotency
    return Terms(
        provider=provider.name,
        honours_key=key is not None,
        retention=key.retention if key else None,
        binds_payload=key.binds_payload if key else False,
        lookup_complete=bool(provider.lookup_complete),
        settles_within=provider.settles_within,
    )


async def send_bounded(provider: Provider, request: Any, operation_key: str, timeout: timedelta) -> Outcome:  # noqa: ASYNC109 - the bound is a value of the lease, not a scope of the caller
    """
    Call `send` so that it ends in time and in one of the four outcomes.

    An exception, a timeout and any other value are Unknown, and so is a SystemExit of the provider's own. Nothing is
    raised for what the provider did; only what must stop the caller itself passes through: its cancellation.

    Args:
        timeout: At most this long, plus half a second for a client to close. Without time left nothing is sent.
    """
    if timeout <= _ZERO:
        return FailedBeforeDispatch(f"{provider.name}: no time was left for the call, nothing was sent")
    value, trouble = await _bounded("send", provider.send, (request, operation_key), timeout)
    if trouble is not None:
        return Unknown(f"{provider.name}: {trouble}")
    if not isinstance(value, _OUTCOMES):
        return Unknown(f"{provider.name}: send returned {_kind(value)}, not an outcome")
    return _tidy(value)


async def lookup_bounded(provider: Provider, operation_key: str, timeout: timedelta) -> Evidence:  # noqa: ASYNC109 - the bound is a value of the lease, not a scope of the caller
    """
    Call `lookup` so that it ends in time and in evidence.

    No look-up, an exception, a timeout and any other value are NoAnswer with the reason. Raises as `send_bounded` does.
    """
    if not provider.has_lookup:
        return NoAnswer(f"{provider.name}: has no look-up")
    if timeout <= _ZERO:
        return NoAnswer(f"{provider.name}: no time was left for the look-up")
    return await _asked(f"{provider.name}: lookup", provider.lookup, (operation_key,), timeout)


async def ask_bounded(lookup: Callable[..., Any], args: tuple[Any, ...], timeout: timedelta) -> Evidence:  # noqa: ASYNC109 - see `lookup_bounded`
    """
    Ask a look-up of the caller's own so that it ends in time and in evidence, as `lookup_bounded` does.

    A plain function runs in a thread of its own: it may block, and the loop goes on.
    """
    return await _asked("the look-up", lookup, args, timeout)


async def call_bounded(
    who: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    timeout: timedelta,  # noqa: ASYNC109 - see `lookup_bounded`
) -> tuple[Any, str | None]:
    """
    Call any function of the app's own so that it ends in time, as `ask_bounded` does; it says something or it does not.

    Nothing that it raises stops the caller, not even a `Stop` or a GeneratorExit: that is for the caller's own to do.

    Returns:
        Its value, or None and what went wrong, in words without anything of the function's own.
    """
    return await _bounded(who, function, args, timeout, stops=False)


async def _asked(who: str, lookup: Callable[..., Any], args: tuple[Any, ...], limit: timedelta) -> Evidence:
    value, trouble = await _bounded(who, lookup, args, limit)
    if trouble is not None:
        return NoAnswer(trouble)
    if not isinstance(value, _EVIDENCE):
        return NoAnswer(f"{who} returned {_kind(value)}, not evidence")
    return _tidy(value)


async def _bounded(
    verb: str, function: Callable[..., Any], args: tuple[Any, ...], limit: timedelta, *, stops: bool = True
) -> tuple[Any, str | None]:
    """
    Give the function's value, or None and what went wrong.

    Args:
        stops: What is no Exception is raised to the caller.

    It runs in a task of its own, for two reasons: one that ignores its cancellation can be left behind, and a
    CancelledError that the provider itself let out is told apart from a cancellation of the caller.
    """
    task = asyncio.ensure_future(_call(function, args))
    try:
        await asyncio.wait({task}, timeout=limit.total_seconds())
        late = not task.done()
        if late:
            await _stop(task)
    except asyncio.CancelledError:
        task.add_done_callback(_retrieve)
        await _stop(task)
        raise
    if not task.done():
        task.add_done_callback(_retrieve)
        return None, f"{verb} did not end within {limit.total_seconds():g} s and ignores its cancellation"
    if task.cancelled():
        return None, f"{verb} did not end within {limit.total_seconds():g} s" if late else f"{verb} was cancelled"
    error = task.exception()
    if error is None:
        # An answer that came while the client was being stopped is still an answer.
        return task.result(), None
    if isinstance(error, Exception) or not stops:
        if late:
            return None, f"{verb} did not end within {limit.total_seconds():g} s ({type(error).__name__})"
        return None, f"{verb} raised {type(error).__name__}"
    raise error


async def _stop(task: asyncio.Task[Any]) -> None:
    """Cancel, and once more: before Python 3.12 `asyncio.wait_for` loses a cancellation that comes with its result."""
    for _ in range(2):
        task.cancel()
        await asyncio.wait({task}, timeout=GRACE.total_seconds() / 2)
        if task.done():
            return


async def _call(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        value = function(*args) if inspect.iscoroutinefunction(function) else await _in_thread(function, args)
        return await value if inspect.isawaitable(value) else value
    except (SystemExit, KeyboardInterrupt) as error:
        # Raised by hand in a provider. From a task they would end the loop, and with it every other call under way.
        raise RuntimeError(type(error).__name__) from None


async def _in_thread(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """
    Run a plain function in a daemon thread of its own.

    Not in the loop's pool: a provider that hangs would take one of its few threads for good and keep the process from
    ending.
    """
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Any, error: BaseException | None) -> None:
        if answered.done():
            if inspect.iscoroutine(value):
                value.close()
        elif error is None:
            answered.set_result(value)
        else:
            answered.set_exception(error)

    def run() -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = context.run(function, *args)
        except (StopIteration, SystemExit, KeyboardInterrupt) as raised:
            error = RuntimeError(type(raised).__name__)  # a future cannot carry the first, nor a loop the others
        except BaseException as raised:  # noqa: BLE001 - it is handed to the waiting loop, not swallowed
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended, nobody waits any more
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name="tenure-provider", daemon=True).start()
    return await answered


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Look at a left-behind task's end, so that asyncio does not print its exception: its text is the provider's."""
    if not task.cancelled():
        task.exception()


def _tidy(said: _Said) -> _Said:
    """
    Make what a provider said storable without changing its meaning.

    A receipt that no store can keep must not turn an accepted act into an error afterwards: a note takes its place.
    """
    if isinstance(said, Succeeded | Accepted):
        try:
            return replace(said, receipt=json_value(said.receipt, max_bytes=RESULT_BYTES_MAX))
        except Invalid:
            return replace(said, receipt={"receipt_left_out": f"not storable as JSON: {_kind(said.receipt)}"})
    if isinstance(said, Absent):
        return said
    said = replace(said, reason=_text(said.reason))
    if isinstance(said, Rejected) and said.category not in CATEGORIES:
        said = replace(said, category="permanent")
    if isinstance(said, FailedBeforeDispatch) and not _is_duration(said.retry_after, zero=True):
        said = replace(said, retry_after=None)
    return said


def _text(reason: object) -> str:
    return clean_text(reason, REASON_BYTES_MAX)[0] if isinstance(reason, str) else _kind(reason)


def _is_duration(value: object, *, zero: bool = False) -> bool:
    return isinstance(value, timedelta) and (value > _ZERO or (zero and value == _ZERO))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.isprintable() and bool(value.strip())


def _kind(value: object) -> str:
    return type(value).__name__
