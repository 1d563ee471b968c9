"""RabbitMQ, against a real server: confirmed, returned where no queue takes it, and Deferred for everything else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from tenure.connectors.rabbitmq import RabbitMQ, read_rabbitmq
from tenure.errors import Invalid
from tenure.rules.message import Deferred, Delivered, Refused
from tests.connectors.messages import message, run
from tests.support.brokers import RabbitServer

SHORT = timedelta(seconds=2)


@asynccontextmanager
async def place(url: str, *, arguments: dict[str, Any] | None = None) -> AsyncIterator[tuple[str, AbstractChannel]]:
    """Give an exchange of the test's own, and a queue of the same name that takes every quote."""
    name = f"shop-{uuid4().hex[:8]}"
    connection = await aio_pika.connect(url)
    try:
        channel = await connection.channel()
        exchange = await channel.declare_exchange(name, aio_pika.ExchangeType.TOPIC, durable=True)
        queue = await channel.declare_queue(name, durable=True, arguments=arguments)
        await queue.bind(exchange, "quote.#")
        yield name, channel
        if not channel.is_closed:  # a test may have killed the server
            await channel.queue_delete(name)
            await channel.exchange_delete(name)
    finally:
        await connection.close()


async def taken(channel: AbstractChannel, name: str) -> list[AbstractIncomingMessage]:
    """Take everything that is in the queue; the oracle is the server."""
    queue = await channel.get_queue(name)
    found: list[AbstractIncomingMessage] = []
    while (one := await queue.get(fail=False)) is not None:
        await one.ack()
        found.append(one)
    return found


def test_a_message_is_confirmed_and_persistent(rabbit_url: str) -> None:
    sent = message(subject="quote/17", data={"é": [1, 2.5, None], "big": 10**30})

    async def body() -> None:
        async with place(rabbit_url) as (name, channel):
            out = RabbitMQ("out", rabbit_url, name)
            await out.open()
            assert await out.deliver([sent]) == [Delivered({"exchange": name, "routing_key": "quote.accepted"})]
            await out.close()
            (kept,) = await taken(channel, name)
            assert kept.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
            assert kept.message_id == str(sent.id)
            assert kept.headers["operation"] == sent.operation
            arrival = read_rabbitmq(kept)
            assert (arrival.tenant, arrival.message_id, arrival.operation) == (sent.tenant, sent.id, sent.operation)
            assert (arrival.data, arrival.digest, arrival.subject) == (sent.data, sent.digest, sent.subject)

    run(body)


def test_a_message_that_comes_again_carries_the_same_ids(rabbit_url: str) -> None:
    sent = message()

    async def body() -> None:
        async with place(rabbit_url) as (name, channel):
            for _ in range(2):
                out = RabbitMQ("out", rabbit_url, name)
                assert isinstance((await out.deliver([sent]))[0], Delivered)
                await out.close()
            first, second = [read_rabbitmq(kept) for kept in await taken(channel, name)]
            assert (first.message_id, first.operation, first.digest) == (
                second.message_id, second.operation, second.digest
            )  # fmt: skip
            assert first.delivery_id != second.delivery_id

    run(body)


def test_messages_of_a_subject_are_queued_in_their_order(rabbit_url: str) -> None:
    sent = [message(number, subject=f"quote/{number % 3}") for number in range(90)]

    async def body() -> None:
        async with place(rabbit_url) as (name, channel):
            out = RabbitMQ("out", rabbit_url, name)
            assert all(isinstance(answer, Delivered) for answer in await out.deliver(sent))
            await out.close()
            arrivals = [read_rabbitmq(kept) for kept in await taken(channel, name)]
            for subject in ("quote/0", "quote/1", "quote/2"):
                expected = [one.id for one in sent if one.subject == subject]
                assert [one.message_id for one in arrivals if one.subject == subject] == expected

    run(body)


@pytest.mark.parametrize("unroutable, kind", [("deferred", Deferred), ("refused", Refused)])
def test_a_message_that_no_queue_takes_is_not_delivered(
    rabbit_url: str, unroutable: str, kind: type[Deferred | Refused]
) -> None:
    async def body() -> None:
        async with place(rabbit_url) as (name, channel):
            out = RabbitMQ("out", rabbit_url, name, unroutable=unroutable)
            returned, delivered = await out.deliver([message(1, type="invoice.sent"), message(2)])
            assert isinstance(returned, kind)
            assert "no queue takes the routing key 'invoice.sent'" in returned.reason
            assert isinstance(delivered, Delivered)
            await out.close()
            assert len(await taken(channel, name)) == 1

    run(body)


def test_a_full_queue_defers(rabbit_url: str) -> None:
    async def body() -> None:
        limits = {"x-max-length": 2, "x-overflow": "reject-publish"}
        async with place(rabbit_url, arguments=limits) as (name, channel):
            out = RabbitMQ("out", rabbit_url, name)
            answers = await out.deliver([message(number, subject="one") for number in range(4)])
            assert [type(answer) for answer in answers] == [Delivered, Delivered, Deferred, Deferred]
            assert "Nack" in answers[2].reason  # type: ignore[union-attr]
            await taken(channel, name)
            assert isinstance((await out.deliver([message(3, subject="one")]))[0], Delivered)
            await out.close()

    run(body)


def test_an_exchange_that_is_missing_is_named_and_looked_for_again(rabbit_url: str) -> None:
    async def body() -> None:
        async with place(rabbit_url) as (name, channel):
            out = RabbitMQ("out", rabbit_url, name)
            await out.open()
            await channel.exchange_delete(name)
            (closed,) = await out.deliver([message()])
            assert isinstance(closed, Deferred)
            (missing,) = await out.deliver([message()])
            assert isinstance(missing, Deferred)
            assert f"there is no exchange '{name}'" in missing.reason
            exchange = await channel.declare_exchange(name, aio_pika.ExchangeType.TOPIC, durable=True)
            await (await channel.get_queue(name)).bind(exchange, "quote.#")
            assert isinstance((await out.deliver([message()]))[0], Delivered)
            await out.close()

    run(body)


def test_the_default_exchange_delivers_to_a_queue_by_its_name(rabbit_url: str) -> None:
    async def body() -> None:
        async with place(rabbit_url) as (name, channel):
            out = RabbitMQ("out", rabbit_url, "", name)
            assert isinstance((await out.deliver([message()]))[0], Delivered)
            await out.close()
            assert len(await taken(channel, name)) == 1

    run(body)


def test_a_message_that_is_too_large_is_refused_beside_one_that_is_not(rabbit_url: str) -> None:
    async def body() -> None:
        async with place(rabbit_url) as (name, channel):
            out = RabbitMQ("out", rabbit_url, name, bytes_max=2000)
            large, long, good = await out.deliver(
                [message(1, data={"text": "x" * 2000}), message(2, type="quote." + "x" * 255), message(3)]
            )
            assert isinstance(large, Refused)
            assert "the limit is 2000" in large.reason
            assert isinstance(long, Refused)
            assert "255 bytes" in long.reason
            assert isinstance(good, Delivered)
            await out.close()
            assert len(await taken(channel, name)) == 1

    run(body)


def test_a_wrong_password_is_deferred_and_shown_nowhere(rabbit_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def body() -> None:
        async with place(rabbit_url) as (name, _):
            wrong = RabbitMQ("out", rabbit_url.replace("guest:guest", "guest:s3cret"), name)
            (answer,) = await wrong.deliver([message()])
            assert isinstance(answer, Deferred)
            assert "s3cret" not in answer.reason + repr(wrong)
            await wrong.close()
            right = RabbitMQ("out", rabbit_url, name)
            assert isinstance((await right.deliver([message()]))[0], Delivered)
            await right.close()

    run(body)
    assert "s3cret" not in caplog.text


def test_opening_and_closing_again_changes_nothing(rabbit_url: str) -> None:
    async def body() -> None:
        async with place(rabbit_url) as (name, _):
            out = RabbitMQ("out", rabbit_url, name)
            await out.close()
            await out.open()
            await out.open()
            assert isinstance((await out.deliver([message()]))[0], Delivered)
            await out.close()
            await out.close()
            assert await out.deliver([]) == []
            await out.close()

    run(body)


def test_a_message_that_is_no_event_is_refused_by_the_reader(rabbit_url: str) -> None:
    async def body() -> None:
        async with place(rabbit_url) as (name, channel):
            out = RabbitMQ("out", rabbit_url, name)
            await out.deliver([message()])
            await out.close()
            await channel.default_exchange.publish(aio_pika.Message(b"{}"), name)
            good, bad = await taken(channel, name)
            assert read_rabbitmq(good).tenant == "acme"
            with pytest.raises(Invalid) as refused:
                read_rabbitmq(bad)
            assert refused.value.code == "EVENT_MALFORMED"

    run(body)


def test_a_server_that_stood_still_was_killed_and_came_back(rabbit_server: RabbitServer) -> None:
    """One story on one server of its own, because each start takes seconds."""
    url = rabbit_server.url
    sent = [message(number) for number in range(4)]

    async def body() -> None:
        async with place(url) as (name, _):
            out = RabbitMQ("out", url, name, timeout=SHORT)
            assert isinstance((await out.deliver(sent[:1]))[0], Delivered)

            rabbit_server.pause()
            began = asyncio.get_running_loop().time()
            # More than the sockets hold: something is always still to be written.
            answers = await out.deliver([message(number, data={"text": "x" * 400_000}) for number in range(40)])
            assert asyncio.get_running_loop().time() - began < 8
            assert all(isinstance(answer, Deferred) for answer in answers)
            rabbit_server.resume()
            assert isinstance((await out.deliver(sent[1:2]))[0], Delivered)

            # Cancelled in the middle of a call.
            rabbit_server.pause()
            delivering = asyncio.create_task(out.deliver(sent[2:3]))
            for _ in range(20):
                await asyncio.sleep(0)
            delivering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await delivering
            rabbit_server.resume()

        async with place(url) as (name, channel):
            out = RabbitMQ("out", url, name, timeout=SHORT)
            assert isinstance((await out.deliver(sent[:1]))[0], Delivered)
            await channel.close()
            await asyncio.to_thread(rabbit_server.stop, "kill")
            for _ in range(2):
                (answer,) = await out.deliver(sent[3:])
                assert isinstance(answer, Deferred), answer
            rabbit_server.start()
            assert isinstance((await out.deliver(sent[3:]))[0], Delivered)
            await out.close()
            connection = await aio_pika.connect(url)
            kept = await taken(await connection.channel(), name)
            # What was confirmed is there after the kill.
            assert [read_rabbitmq(one).message_id for one in kept] == [sent[0].id, sent[3].id]
            await connection.close()

    run(body, seconds=100)


@pytest.mark.parametrize(
    "changed, text",
    [
        ({"url": "http://127.0.0.1"}, "url"),
        ({"exchange": "x" * 256}, "exchange"),
        ({"routing_key": "{nobody}"}, "routing key"),
        ({"unroutable": "dropped"}, "unroutable"),
        ({"name": "x" * 201}, "name"),
    ],
)
def test_a_wrong_setting_is_refused_when_it_is_made(changed: dict[str, Any], text: str) -> None:
    good: dict[str, Any] = {"name": "out", "url": "amqp://127.0.0.1:1", "exchange": "shop", "routing_key": "{type}"}
    RabbitMQ(**good)
    with pytest.raises(Invalid, match=text):
        RabbitMQ(**{**good, **changed})
