"""
How a handler is declared: its kind, what its payload is, and the registry that finds it.

Handler lookup is a dict built by registration; nothing is ever imported or called by a name found in data.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from tenure.errors import Invalid
from tenure.rules.creation import check_text
from tenure.rules.envelope import EXECUTION_KEY, GOVERNANCE_KEY
from tenure.rules.job import DEFAULT_OPTIONS, Options
from tenure.rules.payload import encode

Handler = Callable[..., Any]

HANDLER_TIMEOUT = timedelta(hours=1)


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


class BlockingContext:
    """What `Context` is to a declaration."""

    public = "Context"


class AwaitingContext:
    """What `AsyncContext` is to a declaration."""

    public = "AsyncContext"


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
    wanted, other = (AwaitingContext, BlockingContext) if is_async else (BlockingContext, AwaitingContext)
    given = hints.get(plain[0].name)
    if isinstance(given, type) and issubclass(given, other):
        raise Invalid(
            f"handler {function_name} of kind {name!r} is {'async' if is_async else 'a plain function'} and gets a "
            f"{wanted.public}, not a {given.__name__}",
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
