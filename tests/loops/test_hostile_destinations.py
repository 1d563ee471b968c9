"""Whatever a destination raises or answers is an answer about its messages, and never the end of anything else."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import Stop, Tenure
from tenure.loops import delivery
from tenure.outbox import Deferred, Delivered, Message, Refused
from tests.loops.posting import add, play, until
from tests.support.tree import ROOT

SOON = timedelta(milliseconds=20)
BUDGET = 3


@pytest.fixture(params=["sqlite", "postgresql"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tenure]:
    url = f"sqlite:///{tmp_path / 'outbox.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_databases").create()
    made = Tenure(url, organization="studio", project="sales", actor="user:42")
    made.migrate()
    yield made
    made.close()


class Says(tenure.Destination):
    """Answers what a function says of the messages it is handed."""

    name = "seen"
    timeout = timedelta(seconds=1)

    def __init__(self, says: Callable[[Sequence[Message]], Any], batch: int = 100) -> None:
        self.says = says
        self.batch = batch

    async def deliver(self, messages: Sequence[Message]) -> Any:
        return self.says(messages)


class Stays(Says):
    """Swallows every cancellation of the call that is named."""

    def __init__(self, where: str) -> None:
        super().__init__(lambda messages: [Delivered()] * len(messages))
        self.where = where
        self.began = asyncio.Event()
        self.let_go = asyncio.Event()

    async def _stay(self, where: str) -> None:
        while where == self.where and not self.let_go.is_set():
            self.began.set()
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                continue

    async def open(self) -> None:
        await self._stay("open")

    async def deliver(self, messages: Sequence[Message]) -> Any:
        await self._stay("deliver")
        return await super().deliver(messages)

    async def close(self) -> None:
        await self._stay("close")


def states(app: Tenure) -> dict[str, int]:
    return dict(app.service.outbox_stats().states)


def reasons(app: Tenure) -> dict[str, tuple[str | None, str]]:
    return {one.message.operation: (one.error_code, one.reason or "") for one in app.service.list_messages()}


RAISED = [ValueError("CANARY"), asyncio.CancelledError(), GeneratorExit(), Stop("CANARY", code="CANCELLED")]
RAISED_TOGETHER = BaseExceptionGroup("CANARY", [asyncio.CancelledError()])


@pytest.mark.parametrize("error", [*RAISED, RAISED_TOGETHER], ids=lambda error: type(error).__name__)
def test_whatever_one_message_makes_a_destination_raise_is_about_that_message(
    app: Tenure, error: BaseException
) -> None:
    """The first one is the control: an ordinary exception."""

    def says(messages: Sequence[Message]) -> Any:
        if messages[0].operation == "poison":
            raise error
        return [Delivered()]

    add(app, "poison", max_attempts=2)

    async def story() -> None:
        async with app.relay(destinations=[Says(says, batch=1)], backoff=SOON) as relay:
            await until(lambda: states(app) == {"set_aside": 1}, 10)
            # Both lanes are there for those that come after.
            add(app, "1", "2", "3")
            await until(lambda: len(app.service.list_messages(state="delivered")) == 3, 10)
            assert {name: one.error for name, one in relay.health().loops.items()} == dict.fromkeys(
                relay.health().loops
            )

    play(app, story)
    code, reason = reasons(app)["poison"]
    said = f"the destination failed: {type(error).__name__} {getattr(error, 'code', '')}"
    assert (code, reason) == ("DELIVERIES_USED_UP", said.rstrip())


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_whatever_opening_raises_is_tried_again(app: Tenure, error: BaseException) -> None:
    class Opens(Says):
        times = 0

        async def open(self) -> None:
            self.times += 1
            if self.times <= 2:
                raise error

        async def close(self) -> None:
            raise error

    add(app, "1")

    async def story() -> None:
        async with app.relay(destinations=[Opens(lambda messages: [Delivered()] * len(messages))]) as relay:
            await until(lambda: states(app) == {}, 10)
            await until(lambda: not relay.health().problems, 10)

    play(app, story)


@pytest.mark.parametrize(
    "says",
    [
        lambda messages: [Deferred("HTTP 429") for _ in messages],
        lambda messages: [Deferred("HTTP 429", retry_after=2) for _ in messages],  # type: ignore[arg-type]
        lambda messages: _raise(asyncio.CancelledError()),
    ],
    ids=["control", "wrong", "cancelled"],
)
def test_an_outage_is_one_however_badly_it_is_said(app: Tenure, says: Callable[[Sequence[Message]], Any]) -> None:
    add(app, *(f"{nth}" for nth in range(12)), max_attempts=BUDGET)
    out = Says(says, batch=4)

    async def story() -> None:
        async with app.relay(destinations=[out], backoff=SOON) as relay:
            await until(lambda: any("does not work" in one for one in relay.health().problems), 10)
            out.says = lambda messages: [Delivered()] * len(messages)
            await until(lambda: states(app) == {}, 20)

    play(app, story)
    assert max(one.attempt_count for one in app.service.list_messages()) <= BUDGET


def _raise(error: BaseException) -> Any:
    raise error


_NONE = "and not with tenure.outbox.Delivered, Deferred or Refused"
# The first three are the control.
WRONG: list[tuple[Any, str]] = [
    (Deferred("HTTP 429"), "HTTP 429"),
    (Deferred("HTTP 429", timedelta.max), "HTTP 429"),
    (Deferred("HTTP 429", timedelta.min), "HTTP 429"),
    (Deferred("HTTP 429", 5), "retry_after is a timedelta, not 5: HTTP 429"),  # type: ignore[arg-type]
    (Deferred("HTTP 429", "5"), "retry_after is a timedelta, not '5': HTTP 429"),  # type: ignore[arg-type]
    (
        Deferred("HTTP 429", outage=[]),  # type: ignore[arg-type]
        "outage is True or False, not a value of type list: HTTP 429",
    ),
    (Deferred(None), "the destination gave no reason"),  # type: ignore[arg-type]
    (Deferred("\ud800\0"), "\ufffd\ufffd"),
    (Delivered, f"the destination answered with a value of type type {_NONE}"),
    (None, f"the destination answered with None {_NONE}"),
]


def test_a_wrong_answer_is_deferred_and_the_others_of_its_batch_count(app: Tenure) -> None:
    answers = {f"{nth}": wrong for nth, (wrong, _) in enumerate(WRONG)}
    answers |= {"good": Delivered(), "no": Refused("never")}
    add(app, *answers)

    async def story() -> None:
        async with app.relay(destinations=[Says(lambda messages: [answers[one.operation] for one in messages])]):
            await until(lambda: states(app) == {"later": len(WRONG), "set_aside": 1}, 10)

    play(app, story)
    found = reasons(app)
    assert found["no"] == ("DELIVERY_REFUSED", "never")
    assert [found[f"{nth}"] for nth in range(len(WRONG))] == [("DELIVERY_DEFERRED", said) for _, said in WRONG]


@pytest.mark.parametrize("where", ["nowhere", "open", "deliver", "close"])
def test_a_destination_that_ignores_its_cancellation_does_not_keep_a_relay_from_stopping(
    app: Tenure, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPEN_LIMIT", "CLOSE_LIMIT"):
        monkeypatch.setattr(delivery, name, 0.2)
    add(app, "1")

    async def story() -> None:
        out = Stays(where)
        relay = app.relay(destinations=[out], grace=timedelta(milliseconds=100))
        await relay.start()
        if where in {"open", "deliver"}:
            await out.began.wait()
        else:
            await until(lambda: states(app) == {}, 10)
        began = time.monotonic()
        clean = await relay.stop()
        assert time.monotonic() - began < 10
        assert clean is (where == "nowhere")
        assert relay.left_behind == (0 if where == "nowhere" else 1)
        out.let_go.set()

    play(app, story)
    assert states(app) == (
        {} if where in {"nowhere", "close"} else {"due": 1} if where == "open" else {"delivering": 1}
    )


def test_a_relay_whose_destination_ignores_its_cancellation_is_gone_as_a_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'outbox.db'}"
    app = Tenure(url, organization="studio", project="sales", actor="user:42")
    app.migrate()
    add(app, "1", destination="stays")
    app.close()
    command = [sys.executable, "-m", "tests.loops.staying_relay", url]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "delivering\n"
            process.terminate()
            assert process.wait(20) == 1
        finally:
            process.kill()


def test_a_destination_that_loses_one_cancellation_is_not_left_behind(app: Tenure) -> None:
    class Loses(Says):
        async def deliver(self, messages: Sequence[Message]) -> Any:
            began.set()
            for _ in range(2):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
            return self.says(messages)

    began = asyncio.Event()
    add(app, "1")

    async def story() -> None:
        out = Loses(lambda messages: [Delivered()] * len(messages))
        async with app.relay(destinations=[out], grace=timedelta(milliseconds=100)) as relay:
            await began.wait()
        assert relay.left_behind == 0

    play(app, story)
    assert states(app) == {"delivering": 1}


def test_a_hurried_stop_says_that_a_delivery_was_not_waited_for(app: Tenure) -> None:
    """The control is in test_relay: a stop that waits is a clean one."""

    class Slow(Says):
        async def deliver(self, messages: Sequence[Message]) -> Any:
            began.set()
            await asyncio.Event().wait()

    began = asyncio.Event()
    add(app, "1")

    async def story() -> None:
        relay = app.relay(destinations=[Slow(list)])
        await relay.start()
        await began.wait()
        stopping = asyncio.ensure_future(relay.stop())
        await asyncio.sleep(0)
        relay.hurry()
        assert await stopping is False

    play(app, story)
    assert states(app) == {"delivering": 1}
