"""The execution control: watched in shadow, obeyed where enforced; both kinds of handler, both databases."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from tenure import Allow, ControlRequest, Deny, Invalid, Job, Stop, Succeeded
from tenure.connectors.control import ANSWER_WITHIN, Control
from tenure.errors import ExecutionStopped, Unavailable
from tenure.rules.digest import request_digest
from tests.loops.stage import Either, Theatre, make_app, trail

REQUEST = {"to": "a", "prompt": "CANARY"}
SOON = timedelta(seconds=0.2)


@pytest.fixture(params=["def", "async def"])
def control(
    request: pytest.FixtureRequest, theatre: Theatre, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[ControlRequest]]:
    """Give the maker of the worker's execution control, written in both ways; it gives what it was asked."""

    def install(
        answer: Callable[[ControlRequest], Any], mode: str, timeout: timedelta = ANSWER_WITHIN
    ) -> list[ControlRequest]:
        asked: list[ControlRequest] = []

        def plain(question: ControlRequest) -> Any:
            asked.append(question)
            return answer(question)

        async def awaiting(question: ControlRequest) -> Any:
            asked.append(question)
            value = answer(question)
            return await value if asyncio.iscoroutine(value) else value

        hook = plain if request.param == "def" else awaiting
        monkeypatch.setattr(theatre.running.worker._runtime, "control", Control(hook, mode, timeout))
        return asked

    return install


def sending(mailer: Any) -> Callable[[Either], Any]:
    async def scene(ctx: Either) -> Any:
        return await ctx.effect("send", mailer, REQUEST)

    return scene


def told(theatre: Theatre, one: Job, name: str) -> list[dict[str, Any]]:
    return [dict(event.data) for event in theatre.app.service.list_job_events(one.id) if event.name == name]


def test_it_is_asked_by_ids_and_digest_before_the_intent(
    theatre: Theatre, style: str, control: Callable[..., list[ControlRequest]]
) -> None:
    seen: list[dict[str, str]] = []

    def look(question: ControlRequest) -> Allow:
        seen.append({effect.name: effect.state for effect in theatre.app.service.list_effects(question.job_id)})
        return Allow()

    mailer = theatre.provider(Succeeded("r-1"))
    asked = control(look, "enforced")
    done = theatre.play(style, sending(mailer))
    assert (done.status, done.result, seen) == ("completed", "r-1", [{}])
    (question,) = asked
    assert (question.job_id, question.effect, question.provider) == (done.id, "send", mailer.name)
    assert (question.tenant, question.kind, question.attempt) == (done.tenant, done.kind, 1)
    assert question.request_digest == request_digest(REQUEST)
    assert question.identity is not None
    assert question.identity.actor == "user:1"
    assert "CANARY" not in repr(question)
    # An Allow leaves no trace of its own: the intent is its consequence.
    assert told(theatre, done, "admission_checked") == told(theatre, done, "execution_control_shadow") == []


def raising(error: BaseException) -> Callable[[ControlRequest], Any]:
    def say(_: ControlRequest) -> Any:
        raise error

    return say


ANSWERS: dict[str, tuple[Callable[[ControlRequest], Any], str, str | None]] = {
    "allow": (lambda _: Allow(), "allow", None),
    "deny": (lambda _: Deny("over the budget"), "deny", "over the budget"),
    "raises": (lambda _: 1 / 0, "silent", "the execution control raised ZeroDivisionError"),
    # What is no Exception to Python either: the job's fate is not the control's to decide in shadow.
    "is closed": (raising(GeneratorExit()), "silent", "the execution control raised GeneratorExit"),
    "stops": (raising(Stop("enough", code="TIMED_OUT")), "silent", "the execution control raised Stop"),
    "leaves": (raising(SystemExit(3)), "silent", "the execution control raised RuntimeError"),
    "cancels": (raising(asyncio.CancelledError()), "silent", "the execution control was cancelled"),
    "something else": (lambda _: True, "silent", "the execution control returned bool, not Allow or Deny"),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_in_shadow_nothing_is_stopped_and_everything_is_told(
    theatre: Theatre, style: str, control: Callable[..., list[ControlRequest]], answer: str
) -> None:
    said, word, reason = ANSWERS[answer]
    mailer = theatre.provider(Succeeded("r-1"))
    control(said, "shadow")
    done = theatre.play(style, sending(mailer))
    assert (done.status, done.result, len(mailer.ledger)) == ("completed", "r-1", 1)
    assert told(theatre, done, "execution_control_shadow") == [
        {
            "would": "allow" if word == "allow" else "stop",
            "effect": "send",
            "provider": mailer.name,
            "request_digest": request_digest(REQUEST),
            "said": word,
            "reason": reason,
        }
    ]
    assert trail(theatre.app, done) == [
        "claimed",
        "execution_control_shadow",
        "dispatched",
        "effect_settled",
        "completed",
    ]


def test_enforced_a_denial_stops_the_effect_before_its_intent(
    theatre: Theatre, style: str, control: Callable[..., list[ControlRequest]]
) -> None:
    caught: list[Any] = []
    mailer = theatre.provider(Succeeded("r-1"))

    async def scene(ctx: Either) -> Any:
        try:
            return await ctx.effect("send", mailer, REQUEST)
        except ExecutionStopped as stopped:
            caught.append((stopped.code, stopped.reason))
            raise

    control(lambda _: Deny("over the budget"), "enforced")
    after = theatre.play(style, scene)
    assert caught == [("EXECUTION_STOPPED", "over the budget")]
    # For good, and for a person to look at: trying again would only ask again.
    assert (after.status, after.error_code, after.attempt_count) == ("failed", "EXECUTION_STOPPED", 1)
    assert "over the budget" in (after.error_message or "")
    assert (mailer.ledger, theatre.effects(after)) == ([], {})
    (data,) = told(theatre, after, "admission_checked")
    assert (data["allowed"], data["reasons"], data["reason"]) == (False, ["EXECUTION_STOPPED"], "over the budget")
    # Control: the same job is done once the control allows it.
    control(lambda _: Allow(), "enforced")
    theatre.app.service.retry_job(after.id, actor="op:1")
    assert theatre.after(after, 2).status == "completed"


@pytest.mark.parametrize("answer", ["raises", "something else"])
def test_enforced_no_answer_closes_the_door_for_this_attempt(
    theatre: Theatre, style: str, control: Callable[..., list[ControlRequest]], answer: str
) -> None:
    mailer = theatre.provider(Succeeded("r-1"))
    control(ANSWERS[answer][0], "enforced")
    after = theatre.play(style, sending(mailer))
    assert (after.status, after.error_code) == ("queued", "EXECUTION_CONTROL_SILENT")
    assert (mailer.ledger, theatre.effects(after)) == ([], {})
    (data,) = told(theatre, after, "admission_checked")
    assert (data["allowed"], data["reasons"]) == (False, ["EXECUTION_CONTROL_SILENT"])
    control(lambda _: Allow(), "enforced")
    assert theatre.after(after, 2).status == "completed"


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that lets what waits for it go when the test is over."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("mode", ["shadow", "enforced"])
def test_one_that_hangs_is_left_behind(
    theatre: Theatre,
    style: str,
    control: Callable[..., list[ControlRequest]],
    request: pytest.FixtureRequest,
    gate: threading.Event,
    mode: str,
) -> None:
    written = request.node.callspec.params["control"]

    def hang(_: ControlRequest) -> Any:
        return gate.wait(30) if written == "def" else asyncio.Event().wait()

    mailer = theatre.provider(Succeeded("r-1"))
    control(hang, mode, SOON)
    after = theatre.play(style, sending(mailer))
    late = "the execution control did not end within 0.2 s"
    if mode == "shadow":
        assert (after.status, len(mailer.ledger)) == ("completed", 1)
        (data,) = told(theatre, after, "execution_control_shadow")
    else:
        assert (after.status, after.error_code, mailer.ledger) == ("queued", "EXECUTION_CONTROL_SILENT", [])
        (data,) = told(theatre, after, "admission_checked")
        theatre.app.service.cancel_job(after.id, reason="seen")
    assert data["said"] == "silent"
    assert data["reason"].startswith(late)


def test_a_silence_may_be_caught_and_tried_again_by_the_handler(
    theatre: Theatre, style: str, control: Callable[..., list[ControlRequest]]
) -> None:
    answers = iter([None, Allow()])
    mailer = theatre.provider(Succeeded("r-1"))

    async def scene(ctx: Either) -> Any:
        with pytest.raises(Unavailable):
            await ctx.effect("send", mailer, REQUEST)
        return await ctx.effect("send", mailer, REQUEST)

    asked = control(lambda _: next(answers), "enforced")
    assert theatre.play(style, scene).status == "completed"
    assert (len(asked), len(mailer.ledger)) == (2, 1)


def test_a_name_that_is_none_is_refused_before_anybody_is_asked(
    theatre: Theatre, style: str, control: Callable[..., list[ControlRequest]]
) -> None:
    mailer = theatre.provider(Succeeded("r-1"))

    async def scene(ctx: Either) -> Any:
        return await ctx.effect("a:b", mailer, REQUEST)

    asked = control(lambda _: Allow(), "enforced")
    assert theatre.play(style, scene).status == "failed"
    assert asked == []


@pytest.mark.parametrize(
    "options,code",
    [
        ({"execution_control": len}, "BAD_ARGUMENT"),
        ({"execution_control": len, "execution_control_mode": "off"}, "BAD_ARGUMENT"),
        ({"execution_control": len, "execution_control_mode": []}, "BAD_ARGUMENT"),
        ({"execution_control": "x", "execution_control_mode": "shadow"}, "BAD_ARGUMENT"),
        ({"execution_control_mode": "shadow"}, "BAD_ARGUMENT"),
        (
            {"execution_control": len, "execution_control_mode": "shadow", "execution_control_timeout": timedelta(0)},
            "BAD_DURATION",
        ),
    ],
)
def test_an_app_says_what_its_control_does(options: dict[str, Any], code: str) -> None:
    with pytest.raises(Invalid) as caught:
        make_app("sqlite:///:memory:", **options)
    assert caught.value.code == code
    made = make_app("sqlite:///:memory:", execution_control=len, execution_control_mode="shadow")
    assert made.control is not None
    assert make_app("sqlite:///:memory:").control is None
