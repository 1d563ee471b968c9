"""A destination that is down as a whole pauses; a message that nobody can take is set aside, as ever."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

import tenure
from tenure import Tenure
from tenure.connectors.nats import JetStream
from tenure.connectors.redis import RedisStreams
from tenure.connectors.signature import new_secret
from tenure.connectors.webhook import Webhook
from tenure.loops.relay import Relay
from tenure.outbox import Deferred, Delivered, Delivery, Message
from tenure.procedures.outbox import claim_messages, finish_messages
from tests.connectors.receiver import Answer, Receiver, Request
from tests.loops.posting import add, play, until
from tests.support.brokers import Daemon, NatsServer, RedisServer

# A pause is a second at least, so three deliveries are over in about two of them.
SOON = timedelta(milliseconds=20)
BUDGET, LONGER = 3, 3
SECRET = new_secret()


@pytest.fixture(params=["sqlite", "postgresql"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tenure]:
    url = f"sqlite:///{tmp_path / 'outbox.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_databases").create()
    made = Tenure(url, organization="studio", project="sales", actor="user:42")
    made.migrate()
    yield made
    made.close()


def paused_for(relay: Relay, seconds: int) -> bool:
    """Ask whether the relay says that a destination does not work for so long already."""
    found = [re.search(r"does not work since (\d+) s", one) for one in relay.health().problems]
    return any(one is not None and int(one[1]) >= seconds for one in found)


def delivered(app: Tenure, count: int) -> Callable[[], bool]:
    return lambda: len(app.service.list_messages(state="delivered", limit=1000)) == count


def test_one_poison_among_good_ones_uses_up_its_budget(app: Tenure) -> None:
    """The control of everything below: the destination works, and one message is nobody's outage."""
    add(app, *(f"good-{nth}" for nth in range(60)), "poison", max_attempts=BUDGET)

    def answer(request: Request) -> Answer:
        return Answer(500 if json.loads(request.body)["operation"] == "poison" else 204)

    async def story() -> None:
        with Receiver(answer) as receiver:
            async with app.relay(destinations=[Webhook("seen", receiver.url, secret=SECRET)], backoff=SOON) as relay:
                await until(lambda: app.service.outbox_stats().states == {"set_aside": 1})
                assert not any("does not work" in one for one in relay.health().problems)
        times = Counter(json.loads(one.body)["operation"] for one in receiver.requests)
        assert times.pop("poison") == BUDGET
        assert set(times.values()) == {1}
        assert len(times) == 60

    play(app, story)
    (poison,) = app.service.list_messages(state="set_aside")
    assert (poison.message.operation, poison.attempt_count, poison.error_code) == (
        "poison",
        BUDGET,
        "DELIVERIES_USED_UP",
    )


@pytest.mark.parametrize("status", [401, 503])
def test_a_receiver_that_answers_the_same_to_everything_sets_nothing_aside(
    app: Tenure, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    add(app, *(f"{nth}" for nth in range(60)), max_attempts=BUDGET)
    says = [status]

    async def story() -> None:
        with Receiver(lambda _: Answer(says[0])) as receiver:
            async with app.relay(destinations=[Webhook("seen", receiver.url, secret=SECRET)], backoff=SOON) as relay:
                await until(lambda: paused_for(relay, LONGER))
                tries = len(receiver.requests)
                assert "set_aside" not in app.service.outbox_stats().states
                says[0] = 204
                await until(delivered(app, 60))
                await until(lambda: relay.health().ok)
        assert tries < 60 + 10, "one message at a time while it lasts"

    with caplog.at_level(logging.WARNING, logger="tenure.relay"):
        play(app, story)
    told = [one for one in caplog.messages if "destination seen" in one]
    assert ["paused" in told[0], "works again" in told[-1], len(told)] == [True, True, 2]
    assert max(one.attempt_count for one in app.service.list_messages(limit=100)) <= 2


def test_nobody_listening_costs_no_attempt(app: Tenure) -> None:
    with Receiver() as receiver:
        port = int(receiver.url.rsplit(":", 1)[1].split("/")[0])
        url = receiver.url
    add(app, "1", max_attempts=1)

    async def story() -> None:
        async with app.relay(destinations=[Webhook("seen", url, secret=SECRET)], backoff=SOON) as relay:
            await until(lambda: paused_for(relay, LONGER))
            (waits,) = app.service.list_messages()
            assert waits.attempt_count <= 1
            assert (waits.error_code, waits.state.value) in {("DESTINATION_DOWN", "due"), (None, "delivering")}
            with Receiver(port=port) as back:
                await until(delivered(app, 1))
                assert len(back.requests) == 1

    play(app, story)
    assert app.service.list_messages()[0].attempt_count == 1


def brokers(nats: NatsServer, redis: RedisServer) -> list[tuple[Daemon, Callable[[], tenure.Destination]]]:
    short = timedelta(seconds=1)
    return [
        (nats, lambda: JetStream("seen", nats.url, "outages", create_stream=True, timeout=short)),
        (redis, lambda: RedisStreams("seen", redis.url, "outages", timeout=short)),
    ]


@pytest.mark.parametrize("app", ["postgresql"], indirect=True)
@pytest.mark.parametrize("how", ["killed", "paused"])
@pytest.mark.parametrize("which", [0, 1], ids=["nats", "redis"])
def test_a_broker_that_is_away_for_longer_than_the_budget(
    app: Tenure, which: int, how: str, nats_server: NatsServer, redis_server: RedisServer
) -> None:
    server, made = brokers(nats_server, redis_server)[which]

    async def story() -> None:
        async with app.relay(destinations=[made()], backoff=SOON) as relay:
            add(app, *(f"before-{nth}" for nth in range(20)))
            await until(delivered(app, 20))
            if how == "killed":
                await asyncio.to_thread(server.stop, "kill")
            else:
                server.pause()
            # In two parts, so that one is on its way when the other comes.
            add(app, *(f"meanwhile-{nth}" for nth in range(100)), max_attempts=BUDGET)
            add(app, *(f"ordered-{nth}" for nth in range(10)), subject="s", ordered=True, max_attempts=BUDGET)
            await until(lambda: relay.health().problems)
            began = asyncio.get_running_loop().time()
            await until(lambda: asyncio.get_running_loop().time() - began > LONGER)
            assert "set_aside" not in app.service.outbox_stats().states
            if how == "killed":
                await asyncio.to_thread(server.start)
            else:
                server.resume()
            await until(delivered(app, 130))
            await until(lambda: relay.health().ok)

    play(app, story)
    assert max(one.attempt_count for one in app.service.list_messages(limit=200)) <= BUDGET


def test_calls_that_raise_for_everybody_are_told_from_one_that_raises_for_one(app: Tenure) -> None:
    class Raises(tenure.Destination):
        name = "seen"
        down = True

        async def deliver(self, messages: Sequence[Message]) -> Sequence[Delivery]:
            if self.down or any(one.operation == "poison" for one in messages):
                raise ValueError("it fails as a whole")
            return [Delivered()] * len(messages)

    add(app, "poison", *(f"{nth}" for nth in range(60)))
    out = Raises()

    async def story() -> None:
        async with app.relay(destinations=[out], backoff=SOON) as relay:
            await until(lambda: paused_for(relay, LONGER))
            assert "set_aside" not in app.service.outbox_stats().states
            out.down = False
            await until(delivered(app, 60))
            await until(lambda: app.service.outbox_stats().states == {"set_aside": 1})

    play(app, story)
    assert [one.message.operation for one in app.service.list_messages(state="set_aside")] == ["poison"]


def test_a_relay_stops_at_once_in_a_pause(app: Tenure) -> None:
    add(app, "1")

    async def story() -> None:
        relay = app.relay(destinations=[Webhook("seen", "http://127.0.0.1:9/", secret=SECRET)])
        await relay.start()
        await until(lambda: paused_for(relay, 0))
        async with asyncio.timeout(5):
            assert await relay.stop()

    play(app, story)
    assert [one.state.value for one in app.service.list_messages()] == ["due"]


def test_an_outage_whose_messages_another_relay_delivered_is_over_for_whoever_looks(app: Tenure) -> None:
    class Flaky(tenure.Destination):
        name = "seen"
        down = True

        async def deliver(self, messages: Sequence[Message]) -> Sequence[Delivery]:
            return [Deferred("no way there", outage=True) if self.down else Delivered()] * len(messages)

    add(app, "1")

    async def story() -> None:
        flaky = Flaky()
        async with app.relay(destinations=[flaky]) as relay:
            await until(lambda: paused_for(relay, 1))
            taken = []
            while not taken:
                # Another relay, which knows a way.
                taken = app.store.run(claim_messages("other", "seen", 1, timedelta(seconds=60))).outgoing
                await asyncio.sleep(0.01)
            app.store.run(finish_messages("other", [(taken[0], Delivered())], backoff=SOON))
            await until(lambda: relay.health().ok)
            (note,) = relay.health().notes
            assert "nothing waits for it" in note
            add(app, "2")
            await until(lambda: not relay.health().ok)
            assert any("does not work" in one for one in relay.health().problems)
            flaky.down = False
            await until(lambda: relay.health().ok)
            assert relay.health().notes == ()

    play(app, story)
    assert app.service.outbox_stats().unpublished == 0
