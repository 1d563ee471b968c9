"""A copy put back under a running worker or relay, before it looks at the ledger again: nothing goes out in between."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tenure import AsyncContext, Context, Tenure
from tenure.connectors.provider import terms
from tenure.errors import EpochClosed
from tenure.loops.authority import AuthorityWatch
from tenure.loops.relay import Relay
from tenure.procedures.effect import Beginning, begin_effect
from tenure.procedures.outbox import claim_messages
from tenure.rules.digest import digest
from tenure.testing import FakeProvider
from tests.authority.conftest import Place
from tests.authority.crew import KIND, Crew, runs_on
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


def test_a_connection_to_another_server_begins_nothing_and_takes_nothing(place: Place) -> None:
    """After a failover behind one address some connections of a pool lead to the promoted server, and some do not."""
    with Running(place.crew.app()) as running:
        runs_on(place.crew, running, "a")
        watch = running.worker._authority
        assert watch is not None
        seen = watch.seen
        assert seen is not None
    app = place.crew.app()
    mailer = FakeProvider("mailer")
    with app.store as store:
        post = Post(place.crew)
        post.add("m")
        app.enqueue(KIND, {"key": "b"}, key="b")
        claim = app.service.claim_job("by hand", start=True)
        assert claim is not None
        asked = Beginning(claim.lease, "mail", digest({}), terms(mailer), timedelta(seconds=5))
        others = [replace(seen, counter=seen.counter + 1_000)]
        if store.dialect == "postgresql":
            others.append(replace(seen, identity=seen.identity + "1"))
        for other in others:
            with pytest.raises(EpochClosed, match="frozen"):
                store.run(begin_effect(replace(asked, seen=other)))
            assert app.service.list_effects(claim.job.id) == []
            assert store.run(claim_messages("r", "seen", 10, timedelta(minutes=1), seen=other)).outgoing == []
        # The control: the database that was seen, and a process that never looked at a ledger.
        assert len(store.run(claim_messages("r", "seen", 10, timedelta(minutes=1), seen=seen)).outgoing) == 1
        assert store.run(begin_effect(replace(asked, seen=seen))).send
