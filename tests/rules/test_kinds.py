"""What a handler may look like, what its payload and result become, and which kinds an app knows."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from typing import TypedDict as StandardTypedDict

import pytest
from pydantic import BaseModel, ConfigDict, field_serializer, field_validator
from typing_extensions import TypedDict

from tenure import AsyncContext, Context, Invalid, Tenure
from tenure.kinds import Kind, declare


class Quote(BaseModel):
    id: int
    to: str = "nobody"


@dataclass
class Order:
    id: int


class Note(TypedDict):
    text: str


class OldNote(StandardTypedDict):
    text: str


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    id: int


class Brittle(BaseModel):
    id: int

    @field_validator("id")
    @classmethod
    def check(cls, value: int) -> int:
        if value == 13:
            raise KeyError("CANARY of a validator")
        return value


class Unwritable(BaseModel):
    id: int

    @field_serializer("id")
    def write(self, value: int) -> int:
        raise RuntimeError("CANARY of a serializer")


class Plain:
    """A class that pydantic knows nothing about."""


def refused(function: Any, **options: Any) -> str:
    with pytest.raises(Invalid) as caught:
        declare("k", function, **options)
    assert caught.value.code == "HANDLER_SIGNATURE"
    return str(caught.value)


# --- signatures -------------------------------------------------------------------------------------------------------


def test_plain_and_awaiting_functions_are_handlers() -> None:
    def plain(ctx: Context, quote: Quote) -> int:
        return quote.id

    async def awaiting(ctx: AsyncContext, quote: Quote) -> int:
        return quote.id

    assert (declare("k", plain).is_async, declare("k", awaiting).is_async) == (False, True)


def test_objects_methods_and_partials_are_handlers_and_keep_their_colour() -> None:
    class Sender:
        async def __call__(self, ctx: AsyncContext, quote: Quote) -> int:
            return quote.id

        def method(self, ctx: Context, quote: Quote) -> int:
            return quote.id

    def three(extra: str, ctx: Context, quote: Quote) -> int:
        return quote.id

    assert declare("k", Sender()).is_async
    assert not declare("k", Sender().method).is_async
    made = declare("k", functools.partial(three, "x"))
    assert made.decode({"id": 4}) == Quote(id=4)


def test_a_decorator_that_makes_an_object_of_a_function_keeps_its_signature() -> None:
    @functools.lru_cache
    def remembered(ctx: Context, quote: Quote) -> int:
        return quote.id

    assert declare("k", remembered).decode({"id": 4}) == Quote(id=4)


def one(ctx: Any) -> None: ...
def three(ctx: Any, payload: Any, more: Any) -> None: ...
def optional(ctx: Any, payload: Any, more: int = 1) -> None: ...
def starred(ctx: Any, *payload: Any) -> None: ...
def named(ctx: Any, payload: Any, *, more: Any) -> None: ...
def yields(ctx: Any, payload: Any) -> Any:
    yield payload


async def yields_later(ctx: Any, payload: Any) -> Any:
    yield payload


def swapped(quote: Quote, ctx: Context) -> None: ...
def plain_awaits(ctx: AsyncContext, payload: Any) -> None: ...
async def awaits_plain(ctx: Context, payload: Any) -> None: ...
def unknown_payload(ctx: Context, payload: Plain) -> None: ...
def unknown_result(ctx: Context, payload: Quote) -> Plain:
    return Plain()


NO_FORM = (
    "has no JSON form that pydantic knows (schema-for-unknown-type); "
    "use a pydantic model, a dataclass, a TypedDict or a dict"
)


@pytest.mark.parametrize(
    "function,text",
    [
        (one, "handler one of kind 'k' must take a context and a payload: def one(ctx, payload)"),
        (three, "handler three of kind 'k' must take a context and a payload: def three(ctx, payload)"),
        (optional, "handler optional of kind 'k' must take a context and a payload: def optional(ctx, payload)"),
        (starred, "handler starred of kind 'k' must take a context and a payload: def starred(ctx, payload)"),
        (named, "handler named of kind 'k' must take a context and a payload: def named(ctx, payload)"),
        (yields, "handler yields of kind 'k' must return, not yield: def yields(ctx, payload)"),
        (yields_later, "handler yields_later of kind 'k' must return, not yield: def yields_later(ctx, payload)"),
        (swapped, "handler swapped of kind 'k' takes its context first and its payload second"),
        (
            plain_awaits,
            "handler plain_awaits of kind 'k' is a plain function and gets a Context, not an AsyncContext",
        ),
        (awaits_plain, "handler awaits_plain of kind 'k' is async and gets an AsyncContext, not a Context"),
        (
            unknown_payload,
            f"the payload of kind 'k', Plain, {NO_FORM}",
        ),
        (
            unknown_result,
            f"the result of kind 'k', Plain, {NO_FORM}",
        ),
        (17, "the handler of kind 'k' is a function of a context and a payload, not int"),
        (Quote, "the handler of kind 'k' is a function of a context and a payload, not ModelMetaclass Quote"),
    ],
)
def test_a_wrong_handler_is_refused_with_the_right_shape(function: Any, text: str) -> None:
    assert refused(function) == text


def test_annotations_that_cannot_be_read_say_where_to_put_the_class() -> None:
    class Hidden(BaseModel):
        id: int

    def handler(ctx: Context, payload: Hidden) -> None: ...

    text = refused(handler)
    assert "the annotations of kind 'k' cannot be read" in text
    assert "at the top of a module" in text


def test_a_typed_dict_of_an_old_python_says_where_the_new_one_is() -> None:
    def handler(ctx: Context, payload: OldNote) -> None: ...

    if sys.version_info >= (3, 12):
        assert declare("k", handler).decode({"text": "t"}) == {"text": "t"}
    else:
        assert refused(handler).endswith(
            "(typed-dict-version); before Python 3.12 import TypedDict from typing_extensions"
        )


@pytest.mark.parametrize("version", [0, -1, 1.0, True, "1"])
def test_a_version_is_a_whole_number_from_one(version: Any) -> None:
    with pytest.raises(Invalid, match="the version of kind 'k' must be a whole number from 1"):
        declare("k", lambda ctx, payload: None, version=version)
    assert declare("k", lambda ctx, payload: None, version=2).version == 2


# --- payloads ---------------------------------------------------------------------------------------------------------


def taking(model: Any) -> Kind:
    def handler(ctx: Any, payload: Any) -> None: ...

    handler.__annotations__ = {"payload": model}
    return declare("k", handler)


@pytest.mark.parametrize(
    "model,value,stored",
    [
        (Quote, Quote(id=1, to="a"), {"id": 1, "to": "a"}),
        (Quote, {"id": 1}, {"id": 1, "to": "nobody"}),
        (Order, Order(id=2), {"id": 2}),
        (Note, {"text": "t"}, {"text": "t"}),
        (dict[str, datetime], {"at": datetime(2030, 1, 1, tzinfo=UTC)}, {"at": "2030-01-01T00:00:00Z"}),
    ],
)
def test_a_payload_comes_back_as_what_it_was(model: Any, value: Any, stored: Any) -> None:
    kind = taking(model)
    assert kind.encode(value) == stored
    back = kind.decode({**stored, "execution": {"actor": "a"}, "governance": {}})
    assert kind.encode(back) == stored
    assert type(back) is type(kind.payload.validate_python(value))


@pytest.mark.parametrize(
    "model,stored,text",
    [
        (Quote, {"id": "seven CANARY"}, "payload of kind 'k': id (int_parsing)"),
        (Quote, {}, "payload of kind 'k': id (missing)"),
        (Strict, {"id": 1, "x" * 90: 2}, f"payload of kind 'k': {'x' * 40}... (extra_forbidden)"),
        (Brittle, {"id": 13}, "payload of kind 'k': its model raised KeyError"),
        (
            dict[str, int],
            {f"k{nth}": "CANARY" for nth in range(12)},
            "payload of kind 'k': " + "; ".join(f"k{nth} (int_parsing)" for nth in range(10)) + "; and more",
        ),
    ],
)
def test_a_payload_that_fails_its_model_is_told_by_field_and_never_by_value(model: Any, stored: Any, text: str) -> None:
    with pytest.raises(Invalid) as caught:
        taking(model).decode(stored)
    assert (str(caught.value), caught.value.code) == (text, "PAYLOAD_INVALID")
    assert "CANARY" not in repr(caught.value.__cause__)
    assert taking(Brittle).decode({"id": 12}) == Brittle(id=12)


@pytest.mark.parametrize(
    "model,value,text",
    [
        (list[int], [1], "payload of kind 'k' must be a JSON object"),
        (Unwritable, {"id": 1}, "payload of kind 'k' cannot be written as JSON (PydanticSerializationError)"),
        (Quote, 5, "payload of kind 'k': payload (model_type)"),
    ],
)
def test_a_payload_that_cannot_be_stored_is_refused_where_it_is_made(model: Any, value: Any, text: str) -> None:
    with pytest.raises(Invalid) as caught:
        taking(model).encode(value)
    assert (str(caught.value), caught.value.code) == (text, "PAYLOAD_INVALID")


@pytest.mark.parametrize("model", [int, str, list, object])
def test_a_payload_that_is_no_object_is_refused_where_the_handler_is_declared(model: Any) -> None:
    with pytest.raises(Invalid) as caught:
        taking(model)
    assert caught.value.code == "HANDLER_SIGNATURE"
    assert f"not {model.__name__}" in str(caught.value)
    assert taking(dict).encode({"id": 1}) == {"id": 1}


# --- results ----------------------------------------------------------------------------------------------------------


def giving(model: Any) -> Kind:
    def handler(ctx: Any, payload: Any) -> Any: ...

    handler.__annotations__ = {"return": model}
    return declare("k", handler)


def test_a_result_becomes_json_by_its_annotation_or_by_what_it_is() -> None:
    assert giving(Quote).jsonable(Quote(id=1)) == {"id": 1, "to": "nobody"}
    assert giving(Any).jsonable({"quote": Quote(id=1), "took": timedelta(seconds=1)}) == {
        "quote": {"id": 1, "to": "nobody"},
        "took": "PT1S",
    }
    assert giving(None).jsonable(None) is None


def test_what_has_no_json_form_is_left_for_the_store_to_refuse() -> None:
    assert math.isnan(giving(float).jsonable(float("nan"))), "a NaN must not turn into null on its way"
    thing = object()
    assert giving(Any).jsonable(thing) is thing
    unwritable = Unwritable(id=1)
    assert giving(Unwritable).jsonable(unwritable) is unwritable


# --- registering ------------------------------------------------------------------------------------------------------


def make_app(url: str) -> Tenure:
    return Tenure(url, organization="studio", project="sales", actor="user:1")


def first(ctx: Context, payload: dict[str, Any]) -> None: ...
def second(ctx: Context, payload: dict[str, Any]) -> None: ...


def test_a_kind_has_one_handler_in_an_app() -> None:
    app = make_app("sqlite:///:memory:")
    app.job("send")(first)
    with pytest.raises(Invalid) as caught:
        app.job("send")(second)
    assert str(caught.value) == "kind 'send' is registered already, by first; a kind has one handler"
    app.job("send_again")(second)
    assert {kind.name for kind in app.registry} == {"send", "send_again"}


def test_a_kind_has_one_handler_on_a_store_whichever_app_registers_it() -> None:
    here, there, elsewhere = make_app("sqlite:///one.db"), make_app("sqlite:///one.db"), make_app("sqlite:///two.db")
    here.job("send")(first)
    with pytest.raises(Invalid) as caught:
        there.job("send")(second)
    assert str(caught.value) == (
        f"kind 'send' has another handler, {__name__}.first, in another app on the same store; a job would run "
        f"whichever claims it first. Rename one kind, or register it in one app"
    )
    elsewhere.job("send")(second)
    # The same handler twice is the same meaning: a web process and a worker in one.
    there.job("send")(first)


def test_an_unknown_kind_is_told_with_the_known_ones() -> None:
    app = make_app("sqlite:///:memory:")
    app.job("send")(first)
    ask: Callable[[Any], Any] = app.registry.find
    assert ask(first).name == ask("send").name == "send"
    for asked in (second, "resend"):
        with pytest.raises(Invalid) as caught:
            ask(asked)
        assert str(caught.value) == (
            f"{'second' if asked is second else 'resend'!r} is no kind of this app; decorate its handler with "
            f"@app.job(...). Known: send"
        )
