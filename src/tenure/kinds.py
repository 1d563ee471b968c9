"""
How a handler is declared: its kind, what its payload is, and the registry that finds it.

Handler lookup is a dict built by registration; nothing is ever imported or called by a name found in data.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from tenure.connectors.wire import holds_iterator
from tenure.errors import Invalid, echo
from tenure.rules.bounds import check_whole
from tenure.rules.creation import check_text
from tenure.rules.envelope import EXECUTION_KEY, GOVERNANCE_KEY
from tenure.rules.job import DEFAULT_OPTIONS, Options
from tenure.rules.payload import PAYLOAD_BYTES_MAX, clean_text, encode_again
from tenure.rules.survey import LONG_INTEGER, SPLIT_CHARACTER, survey

Handler = Callable[..., Any]

HANDLER_TIMEOUT = timedelta(hours=1)
_NO_OBJECTS = (int, float, str, bool, bytes, list, tuple, set, frozenset, object)
_FIELDS_SHOWN, _STEP_SHOWN = 10, 40


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Kind:
    """
    A registered handler and what its jobs are created with.

    Attributes:
        takes_any: The payload is a dict that no model checks.
        timeout: How long the handler may run; None only where it was written out.
        progress_timeout: Without a call of `ctx.progress` for this long the attempt is timed out.
    """

    name: str
    version: int
    function: Handler
    payload: TypeAdapter[Any]
    result: TypeAdapter[Any] | None
    is_async: bool
    takes_any: bool = False
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
            raise Invalid(f"payload of kind {echo(self.name)}: {_fields(problem)}", code="PAYLOAD_INVALID") from None
        except (PydanticSerializationError, UnicodeDecodeError) as problem:
            raise Invalid(
                f"payload of kind {echo(self.name)} cannot be written as JSON ({type(problem).__name__})",
                code="PAYLOAD_INVALID",
            ) from None
        if not isinstance(document, dict):
            raise Invalid(f"payload of kind {echo(self.name)} must be a JSON object", code="PAYLOAD_INVALID")
        return document

    def encode_surveyed(self, payload: Any) -> tuple[dict[str, Any], int | None]:
        """
        As `encode`, with what `survey` found in the payload, or None where it was not asked.

        A plain JSON object whose members no model checks is what pydantic would copy and give back. To look at it takes
        1 us, and must be done anyway; the copy takes 3 to 4.
        """
        if self.takes_any and type(payload) is dict:
            try:
                traits = survey(payload, max_bytes=PAYLOAD_BYTES_MAX)
            except Invalid:
                traits = LONG_INTEGER  # pydantic may make a JSON value of it: an instant, a UUID
            if not traits & (LONG_INTEGER | SPLIT_CHARACTER):
                return payload, traits
        return self.encode(payload), None

    def decode(self, payload: Mapping[str, Any]) -> Any:
        """Build what the handler gets from a stored payload; raises Invalid like `encode`."""
        plain = {key: value for key, value in payload.items() if key not in {EXECUTION_KEY, GOVERNANCE_KEY}}
        if self.takes_any:
            return plain
        try:
            return self.payload.validate_json(encode_again(plain))
        except ValidationError as problem:
            raise Invalid(f"payload of kind {echo(self.name)}: {_fields(problem)}", code="PAYLOAD_INVALID") from None
        except Exception as problem:  # noqa: BLE001 - a validator of the user's may raise anything, now and next time
            raise Invalid(
                f"payload of kind {echo(self.name)}: its model raised {type(problem).__name__}", code="PAYLOAD_INVALID"
            ) from None

    def jsonable(self, result: Any) -> Any:
        """Turn a handler's result into a JSON value where its types allow; others are left for the store to refuse."""
        if result is None and self.result is None:
            return None
        if holds_iterator(result):
            return result
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
    # Locations and types only: messages and inputs may hold what the caller sent. A step of a location may be a key of
    # the payload's own, so it is cut short.
    parts = [
        f"{'.'.join(_shown(step) for step in error['loc']) or 'payload'} ({error['type']})"
        for error in problem.errors(include_url=False, include_context=False, include_input=False)
    ]
    return "; ".join(parts[:_FIELDS_SHOWN]) + ("; and more" if len(parts) > _FIELDS_SHOWN else "")


def _shown(step: int | str) -> str:
    text = clean_text(str(step)[: _STEP_SHOWN + 1])[0]
    return text if len(text) <= _STEP_SHOWN else f"{text[:_STEP_SHOWN]}..."


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
    check_whole(f"the version of kind {echo(name)}", version)
    called = _called(function, name)
    is_async = inspect.iscoroutinefunction(called)
    context, payload = _parameters(called, name, is_async=is_async)
    hints = _hints(called, name)
    _check_contexts(hints.get(context), hints.get(payload), called, name, is_async=is_async)
    if hints.get(payload, dict) in _NO_OBJECTS:
        raise Invalid(
            f"the payload of kind {echo(name)} is a JSON object: annotate it with a model, a dataclass, a TypedDict or "
            f"dict, not {hints[payload].__name__}",
            code="HANDLER_SIGNATURE",
        )
    result = hints.get("return", Any)
    return Kind(
        name=name,
        version=version,
        function=function,
        payload=_adapter(hints.get(payload, dict[str, Any]), "payload", name),
        result=None if result in {Any, type(None)} else _adapter(result, "result", name),
        is_async=is_async,
        takes_any=hints.get(payload, dict) in (dict, dict[str, Any]),
        options=Options(
            retry_timeouts=retry_timeouts,
            recovery_window=recovery_window,
            escalate_after=escalate_after,
            providers=tuple(providers),
        ),
        **fields,
    )


def _called(function: Handler, name: str) -> Handler:
    """Give the function whose code runs: an object with `__call__` is a handler too."""
    if inspect.isclass(function) or not callable(function):
        raise Invalid(
            f"the handler of kind {echo(name)} is a function of a context and a payload, not {type(function).__name__} "
            f"{getattr(function, '__qualname__', '')}".rstrip(),
            code="HANDLER_SIGNATURE",
        )
    if inspect.isroutine(function) or isinstance(function, functools.partial) or hasattr(function, "__wrapped__"):
        return function
    bound: Handler = type(function).__call__.__get__(function)
    return bound


def _parameters(function: Handler, name: str, *, is_async: bool) -> tuple[str, str]:
    shape = f"{'async ' if is_async else ''}def {getattr(function, '__name__', 'handler')}(ctx, payload)"
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    plain = [p for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD} and p.default is p.empty]
    if len(plain) != 2 or len(parameters) != 2:
        raise Invalid(
            f"handler {_name_of(function)} of kind {echo(name)} must take a context and a payload: {shape}",
            code="HANDLER_SIGNATURE",
        )
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise Invalid(
            f"handler {_name_of(function)} of kind {echo(name)} must return, not yield: {shape}",
            code="HANDLER_SIGNATURE",
        )
    return plain[0].name, plain[1].name


def _check_contexts(context: Any, payload: Any, function: Handler, name: str, *, is_async: bool) -> None:
    wanted, other = (AwaitingContext, BlockingContext) if is_async else (BlockingContext, AwaitingContext)
    if isinstance(context, type) and issubclass(context, other):
        raise Invalid(
            f"handler {_name_of(function)} of kind {echo(name)} is {'async' if is_async else 'a plain function'} and "
            f"gets {'an' if is_async else 'a'} {wanted.public}, not {'a' if is_async else 'an'} {context.__name__}",
            code="HANDLER_SIGNATURE",
        )
    if isinstance(payload, type) and issubclass(payload, wanted | other):
        raise Invalid(
            f"handler {_name_of(function)} of kind {echo(name)} takes its context first and its payload second",
            code="HANDLER_SIGNATURE",
        )


def _adapter(hint: Any, what: str, name: str) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(hint)
    except PydanticUserError as problem:
        advice = "use a pydantic model, a dataclass, a TypedDict or a dict"
        if problem.code == "typed-dict-version":
            advice = "before Python 3.12 import TypedDict from typing_extensions"
        raise Invalid(
            f"the {what} of kind {echo(name)}, {getattr(hint, '__name__', hint)!s}, has no JSON form that pydantic "
            f"knows ({problem.code or type(problem).__name__}); {advice}",
            code="HANDLER_SIGNATURE",
        ) from None


def _name_of(function: Handler) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _hints(function: Handler, name: str) -> dict[str, Any]:
    if isinstance(function, functools.partial):
        function = function.func
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as problem:
        raise Invalid(
            f"the annotations of kind {echo(name)} cannot be read ({problem}); define its payload's class before the "
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
                f"kind {echo(kind.name)} is registered already, by {self._kinds[kind.name].function.__qualname__}; "
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
                f"{echo(asked)} is no kind of this app; decorate its handler with @app.job(...). Known: {known}",
                code="UNKNOWN_KIND",
            )
        return found

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._kinds.values())

    def __len__(self) -> int:
        return len(self._kinds)
