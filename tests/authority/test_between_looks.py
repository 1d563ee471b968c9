"""A copy put back under a running worker or relay, before it looks at the ledger again: nothing goes out in between."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenure import AsyncContext, Context, Tenure
from tenure.loops.authority import AuthorityWatch
from tenure.loops.relay import Relay
from tenure.testing import FakeProvider
from tests.authority.conftest import Place
from tests.authority.crew import Crew
from tests.authority.test_relay import Post
from tests.loops.posting import until as until_async
from tests.loops.stage import Running, make_app, until

WAYS = ("awaiting", "blocking")


class Office:
    """Workers whose job is one effect, and a provider that forgets nothing and takes everything twice."""

    def __init__(self, crew: Crew, way: str) -> None:
        self.crew = crew
        self.mailer = FakeProvider("mailer", idempotency=None, lookup=False)
        self.stopped: list[tuple[str, str]] = []
        self._way = way

    def app(self) -> Tenure:
        app = make_app(self.crew.url, authority_ledger=self.crew.ledger, providers=[self.mailer])

        async def send(ctx: AsyncContext, payload: dict[str, Any]) -> None:
            try:
                await ctx.effect("mail", self.mailer, payload)
            except BaseException as error:
                self.stopped.append((payload["key"], type(error).__name__))
                raise

        def send_blocking(ctx: Context, payload: dict[str, Any]) -> None:
            try:
                ctx.effect("mail", self.mailer, payload)
            except BaseException as error:
                self.stopped.append((payload["key"], type(error).__name__))
                raise

        app.job("send_mail", providers=[self.mailer])(send if self._way == "awaiting" else send_blocking)
        return app

    def create(self, key: str) -> None:
        app = self.app()
        app.enqueue("send_mail", {"key": key}, key=key)
        app.close()

    @property
    def sent(self) -> list[str]:
        return [act.request["key"] for act in self.mailer.ledger]


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a watch compare at its start, and never again."""

    async def step(self: AuthorityWatch) -> None: ...

    monkeypatch.setattr(AuthorityWatch, "step", step)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("before", ["the ledger", "another start"])
@pytest.mark.usefixtures("asleep")
def test_what_was_sent_is_not_sent_again_before_the_worker_looks(place: Place, way: str, before: str) -> None:
    office = Office(place.crew, way)
    office.create("a")
    if before == "another start":
        with Running(office.app()):
            until(lambda: office.sent == ["a"], "a to be sent")
        office.create("b")
    waiting = "a" if before == "the ledger" else "b"
    place.keep()
    with Running(office.app()) as running:
        until(lambda: waiting in office.sent, "the job of the backup to be sent")
        done = list(office.sent)
        # The control: new work goes on while the database is the one that the worker knows.
        office.create("c")
        until(lambda: office.sent == [*done, "c"], "c to be sent")
        place.put_back()
        until(lambda: office.stopped, "the job of the copy to be run and stopped", within=20)
        assert running.worker.health().problems == (), "it has not looked"
    assert office.sent == [*done, "c"]
    assert {key for key, _ in office.stopped} == {waiting}


@pytest.mark.usefixtures("asleep")
def test_nothing_is_delivered_again_before_the_relay_looks(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    post = Post(place.crew)
    post.add("a")
    place.keep()

    async def story(relay: Relay) -> None:
        await until_async(lambda: post.seen.got == ["a"])
        post.add("b")
        # The control: what is new goes while the database is the one that the relay knows.
        await until_async(lambda: post.seen.got == ["a", "b"])
        await asyncio.to_thread(place.put_back)
        await asyncio.to_thread(post.add, "c")
        rounds = 0
        one = relay.round

        async def counted(delivering: Any) -> bool:
            nonlocal rounds
            found = await one(delivering)
            rounds += 1
            return found

        monkeypatch.setattr(relay, "round", counted)
        # The first of them may have begun before the copy was there.
        await until_async(lambda: rounds > 3)

    post.relayed(story)
    assert post.seen.got == ["a", "b"]
