"""What a provider declares, and that one call to it ends in time and in one of four words."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from tenure.connectors.provider import (
    GRACE,
    REASON_BYTES_MAX,
    IdempotencyKey,
    Provider,
    check_provider,
    lookup_bounded,
    send_bounded,
    terms,
)
from tenure.errors import Invalid, Stop
from tenure.rules.outcome import (
    Absent,
    Accepted,
    Declined,
    FailedBeforeDispatch,
    NoAnswer,
    Rejected,
    Succeeded,
    Terms,
    Unknown,
)

SOON = timedelta(milliseconds=100)
AMPLE = timedelta(seconds=20)
SECRET = "CANARY-5e1f"


def provider_of(
    send: Callable[..., Any] | None = None, lookup: Callable[..., Any] | None = None, **more: Any
) -> Provider:
    body: dict[str, Any] = {"name": "mailer"} | more
    if send is not None:
        body["send"] = send
    if lookup is not None:
        body["lookup"] = lookup
    made: Provider = type("Made", (Provider,), body)()
    return made


async def succeed(self: Provider, request: object, operation_key: str) -> Succeeded:
    return Succeeded({"key": operation_key})


# --- what it declares -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "  ", "a#b", "a:b", "a\nb", "a\x00b", "x" * 201, 7, None])
def test_a_name_that_could_not_be_stored_is_refused_where_the_class_is_written(name: Any) -> None:
    with pytest.raises(Invalid) as refused:
        type("Bad", (Provider,), {"name": name})
    assert refused.value.code == "BAD_ARGUMENT"


def test_plain_names_are_taken() -> None:
    for name in ("mailer", "x" * 200, "Mail server 2", "smtp/eu-1"):
        assert terms(provider_of(succeed, name=name)).provider == name


def test_a_name_given_by_the_instance_is_checked_too() -> None:
    class Named(Provider):
        def __init__(self, name: str) -> None:
            self.name = name

        async def send(self, request: object, operation_key: str) -> Succeeded:
            return Succeeded()

    assert terms(Named("good")).provider == "good"
    with pytest.raises(Invalid, match="holds no '#' or ':'"):
        terms(Named("not:good"))


@pytest.mark.parametrize(
    "settings, text",
    [
        ({"idempotency": "yes"}, "IdempotencyKey or None"),
        ({"timeout": 30}, "timeout is a timedelta"),
        ({"timeout": timedelta(0)}, "timeout is a timedelta above zero"),
        ({"settles_within": timedelta(seconds=-1)}, "settles_within"),
        ({"settles_within": None}, "settles_within"),
        ({"lookup_complete": True}, "has no look-up"),
    ],
)
def test_a_provider_that_contradicts_itself_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(Invalid, match=text):
        check_provider(provider_of(succeed, **settings))
    check_provider(provider_of(succeed))


def test_without_send_it_is_no_provider() -> None:
    with pytest.raises(Invalid, match="has no send"):
        terms(provider_of())
    with pytest.raises(Invalid, match=r"subclass of tenure\.Provider"):
        terms(object())  # type: ignore[arg-type]


@pytest.mark.parametrize("retention", [timedelta(0), timedelta(seconds=-1), 24, None])
def test_a_retention_is_a_positive_duration(retention: Any) -> None:
    with pytest.raises(Invalid, match="retention"):
        IdempotencyKey(retention)
    assert IdempotencyKey(timedelta(hours=1)).scope == "account"


def test_terms_say_what_was_declared() -> None:
    async def lookup(self: Provider, operation_key: str) -> Absent:
        return Absent()

    full = provider_of(
        succeed,
        lookup,
        idempotency=IdempotencyKey(timedelta(hours=24), binds_payload=True),
        lookup_complete=True,
        settles_within=timedelta(seconds=30),
    )
    assert full.has_lookup
    assert terms(full) == Terms(
        provider="mailer",
        honours_key=True,
        retention=timedelta(hours=24),
        binds_payload=True,
        lookup_complete=True,
        settles_within=timedelta(seconds=30),
    )
    bare = provider_of(succeed)
    assert not bare.has_lookup
    assert terms(bare) == Terms(provider="mailer")


def test_a_repr_shows_the_name_and_nothing_else() -> None:
    provider = provider_of(succeed)
    provider.password = SECRET  # type: ignore[attr-defined]
    assert repr(provider) == "<Made 'mailer'>"


# --- one bounded call -------------------------------------------------------------------------------------------------


OUTCOMES = [
    Succeeded(None),
    Succeeded({"id": 7}),
    FailedBeforeDispatch("down", timedelta(seconds=3)),
    Rejected("no", category="authentication"),
    Unknown("maybe"),
]
EVIDENCE = [Accepted({"id": 7}), Declined("no"), Absent(), NoAnswer("busy")]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=repr)
@pytest.mark.parametrize("kind", ["async", "plain", "hidden"])
def test_the_four_outcomes_pass_unchanged(outcome: Any, kind: str) -> None:
    asked: list[Any] = []

    async def asynchronous(self: Provider, request: object, operation_key: str) -> Any:
        asked.append((request, operation_key))
        return outcome

    def plain(self: Provider, request: object, operation_key: str) -> Any:
        asked.append((request, operation_key))
        return outcome

    def hidden(self: Provider, request: object, operation_key: str) -> Any:
        return asynchronous(self, request, operation_key)

    provider = provider_of({"async": asynchronous, "plain": plain, "hidden": hidden}[kind])
    assert asyncio.run(send_bounded(provider, {"a": 1}, "k:1:send", AMPLE)) == outcome
    assert asked == [({"a": 1}, "k:1:send")]


@pytest.mark.parametrize("evidence", EVIDENCE, ids=repr)
def test_the_four_kinds_of_evidence_pass_unchanged(evidence: Any) -> None:
    async def asynchronous(self: Provider, operation_key: str) -> Any:
        return evidence

    def plain(self: Provider, operation_key: str) -> Any:
        return evidence

    for lookup in (asynchronous, plain):
        assert asyncio.run(lookup_bounded(provider_of(succeed, lookup), "k:1:send", AMPLE)) == evidence


@dataclass
class _Order:
    id: int


class _Quote(BaseModel):
    id: int


@pytest.mark.parametrize("request_", [{"id": 1}, _Order(1), _Quote(id=1), [1], "text", None], ids=repr)
def test_a_request_arrives_as_it_was_given(request_: Any) -> None:
    async def send(self: Provider, request: object, operation_key: str) -> Succeeded:
        return Succeeded({"same": request is request_})

    assert asyncio.run(send_bounded(provider_of(send), request_, "k", AMPLE)) == Succeeded({"same": True})


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize(
    "error", [ValueError(SECRET), ExceptionGroup(SECRET, [OSError(SECRET)]), StopIteration(SECRET)]
)
def test_an_exception_is_unknown_and_says_its_class_only(
    error: Exception, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def asynchronous(self: Provider, *args: object) -> Any:
        raise error

    def plain(self: Provider, *args: object) -> Any:
        raise error

    function = asynchronous if kind == "async" else plain
    provider = provider_of(function, function)
    with caplog.at_level(logging.DEBUG):
        sent = asyncio.run(send_bounded(provider, {}, "k", AMPLE))
        asked = asyncio.run(lookup_bounded(provider, "k", AMPLE))
    assert isinstance(sent, Unknown)
    assert isinstance(asked, NoAnswer)
    # A coroutine and a future cannot carry StopIteration; Python and we put a RuntimeError in its place.
    name = "RuntimeError" if isinstance(error, StopIteration) else type(error).__name__
    assert (sent.reason, asked.reason) == (f"mailer: send raised {name}", f"mailer: lookup raised {name}")
    assert SECRET not in caplog.text


@pytest.mark.parametrize("value", [None, True, "ok", {"receipt": 1}, Accepted(), Absent(), object(), Succeeded])
def test_any_other_value_is_unknown(value: Any) -> None:
    async def send(self: Provider, request: object, operation_key: str) -> Any:
        return value

    outcome = asyncio.run(send_bounded(provider_of(send), {}, "k", AMPLE))
    assert outcome == Unknown(f"mailer: send returned {type(value).__name__}, not an outcome")


@pytest.mark.parametrize("value", [None, "ok", Succeeded(), Rejected("no"), object()])
def test_any_other_evidence_is_no_answer(value: Any) -> None:
    async def lookup(self: Provider, operation_key: str) -> Any:
        return value

    evidence = asyncio.run(lookup_bounded(provider_of(succeed, lookup), "k", AMPLE))
    assert evidence == NoAnswer(f"mailer: lookup returned {type(value).__name__}, not evidence")


def test_without_a_lookup_there_is_no_answer() -> None:
    assert asyncio.run(lookup_bounded(provider_of(succeed), "k", AMPLE)) == NoAnswer("mailer: has no look-up")


def test_a_timeout_is_unknown_and_stops_the_call() -> None:
    stopped = threading.Event()

    async def forever(self: Provider, *args: object) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    provider = provider_of(forever, forever)
    assert asyncio.run(send_bounded(provider, {}, "k", SOON)) == Unknown("mailer: send did not end within 0.1 s")
    assert stopped.is_set()
    assert asyncio.run(lookup_bounded(provider, "k", SOON)) == NoAnswer("mailer: lookup did not end within 0.1 s")


def test_an_answer_that_comes_while_the_call_is_being_stopped_counts() -> None:
    async def late(self: Provider, request: object, operation_key: str) -> Succeeded:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return Succeeded({"late": True})
        raise AssertionError

    assert asyncio.run(send_bounded(provider_of(late), {}, "k", SOON)) == Succeeded({"late": True})


def test_a_call_that_ignores_its_cancellation_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> tuple[Any, float]:
        over, ended = asyncio.Event(), asyncio.Event()

        async def stubborn(self: Provider, request: object, operation_key: str) -> Succeeded:
            while not over.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await over.wait()
            ended.set()
            raise ValueError(SECRET)  # nobody may print it when it ends at last

        loop = asyncio.get_running_loop()
        began = loop.time()
        outcome = await send_bounded(provider_of(stubborn), {}, "k", SOON)
        took = loop.time() - began
        over.set()
        await ended.wait()
        return outcome, took

    outcome, took = asyncio.run(run())
    gc.collect()  # an exception that nobody looked at is printed when its task goes
    assert isinstance(outcome, Unknown)
    assert "ignores its cancellation" in outcome.reason
    assert took < (SOON + GRACE).total_seconds() + 5
    assert SECRET not in caplog.text


def test_a_call_that_loses_one_cancellation_is_cancelled_again() -> None:
    async def forgetful(self: Provider, request: object, operation_key: str) -> Succeeded:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()
        raise AssertionError

    outcome = asyncio.run(send_bounded(provider_of(forgetful), {}, "k", SOON))
    assert outcome == Unknown("mailer: send did not end within 0.1 s")


def test_a_plain_call_that_hangs_ends_in_time_and_does_not_keep_the_loop_from_ending() -> None:
    over = threading.Event()

    def hang(self: Provider, *args: object) -> Any:
        over.wait(60)
        return Succeeded()

    provider = provider_of(hang, hang)

    async def both() -> tuple[Any, Any]:
        return await send_bounded(provider, {}, "k", SOON), await lookup_bounded(provider, "k", SOON)

    try:
        sent, asked = asyncio.run(both())
        assert not over.is_set()
    finally:
        over.set()
    assert sent == Unknown("mailer: send did not end within 0.1 s")
    assert asked == NoAnswer("mailer: lookup did not end within 0.1 s")


def test_a_plain_call_sees_the_callers_context() -> None:
    trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace")

    def send(self: Provider, request: object, operation_key: str) -> Succeeded:
        return Succeeded({"trace": trace.get(), "apart": threading.current_thread() is not threading.main_thread()})

    async def run() -> Any:
        trace.set("t-1")
        return await send_bounded(provider_of(send), {}, "k", AMPLE)

    assert asyncio.run(run()) == Succeeded({"trace": "t-1", "apart": True})


@pytest.mark.parametrize("left", [timedelta(0), timedelta(seconds=-5)])
def test_without_time_left_nothing_is_sent(left: timedelta) -> None:
    called = []

    async def send(self: Provider, *args: object) -> Any:
        called.append(args)
        return Succeeded()

    provider = provider_of(send, send)
    assert isinstance(asyncio.run(send_bounded(provider, {}, "k", left)), FailedBeforeDispatch)
    assert isinstance(asyncio.run(lookup_bounded(provider, "k", left)), NoAnswer)
    assert called == []
    assert asyncio.run(send_bounded(provider, {}, "k", AMPLE)) == Succeeded()
    assert len(called) == 1


def test_the_callers_own_cancellation_passes_and_stops_the_call() -> None:
    stopped = []

    async def run() -> None:
        began = asyncio.Event()

        async def forever(self: Provider, *args: object) -> Any:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.append(True)

        task = asyncio.create_task(send_bounded(provider_of(forever), {}, "k", AMPLE))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert stopped == [True]


def test_a_cancelled_error_that_the_provider_lets_out_is_not_the_callers() -> None:
    async def lost(self: Provider, *args: object) -> Any:
        raise asyncio.CancelledError

    provider = provider_of(lost, lost)
    assert asyncio.run(send_bounded(provider, {}, "k", AMPLE)) == Unknown("mailer: send was cancelled")
    assert asyncio.run(lookup_bounded(provider, "k", AMPLE)) == NoAnswer("mailer: lookup was cancelled")


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_what_must_stop_the_caller_passes(kind: str) -> None:
    async def asynchronous(self: Provider, *args: object) -> Any:
        raise Stop("the lease is lost", code="LEASE_LOST")

    def plain(self: Provider, *args: object) -> Any:
        raise Stop("the lease is lost", code="LEASE_LOST")

    with pytest.raises(Stop, match="the lease is lost"):
        asyncio.run(send_bounded(provider_of(asynchronous if kind == "async" else plain), {}, "k", AMPLE))


# --- what can be stored -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "receipt, kept",
    [
        ({"id": 1, "list": [1, 2.5, None, "é"]}, {"id": 1, "list": [1, 2.5, None, "é"]}),
        (_Quote(id=3), {"id": 3}),
        (_Order(4), {"id": 4}),
        ((1, 2), [1, 2]),
        ({"amount": float("nan")}, {"receipt_left_out": "not storable as JSON: dict"}),
        ({1: 2}, {"receipt_left_out": "not storable as JSON: dict"}),
        ("a\x00b", {"receipt_left_out": "not storable as JSON: str"}),
        ("x" * (2 << 20), {"receipt_left_out": "not storable as JSON: str"}),
        (object(), {"receipt_left_out": "not storable as JSON: object"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_accepted_act_stays_accepted_whatever_its_receipt(receipt: Any, kept: Any) -> None:
    async def send(self: Provider, request: object, operation_key: str) -> Succeeded:
        return Succeeded(receipt)

    async def lookup(self: Provider, operation_key: str) -> Accepted:
        return Accepted(receipt)

    provider = provider_of(send, lookup)
    assert asyncio.run(send_bounded(provider, {}, "k", AMPLE)) == Succeeded(kept)
    assert asyncio.run(lookup_bounded(provider, "k", AMPLE)) == Accepted(kept)


def test_reasons_are_storable_and_short() -> None:
    async def send(self: Provider, request: Any, operation_key: str) -> Any:
        return request

    def said(outcome: Any) -> Any:
        return asyncio.run(send_bounded(provider_of(send), outcome, "k", AMPLE))

    assert said(Unknown("a\x00b\ud800")).reason == "a\ufffdb\ufffd"
    assert len(said(Rejected("é" * 5000)).reason.encode()) <= REASON_BYTES_MAX
    assert said(Rejected(ValueError(SECRET))) == Rejected("ValueError")  # type: ignore[arg-type]
    assert said(Rejected("no", category="odd")) == Rejected("no", category="permanent")
    assert said(FailedBeforeDispatch("down", timedelta(seconds=-1))) == FailedBeforeDispatch("down")
    assert said(FailedBeforeDispatch("down", 7)) == FailedBeforeDispatch("down")  # type: ignore[arg-type]
    assert said(FailedBeforeDispatch("down", timedelta(0))) == FailedBeforeDispatch("down", timedelta(0))
