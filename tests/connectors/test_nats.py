"""JetStream, against a real server: acknowledged, deduplicated, and Deferred for everything else."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import nats
import pytest
from nats.aio.msg import Msg
from nats.js.api import StreamConfig

from tenure.connectors.nats import JetStream, read_nats
from tenure.errors import Invalid
from tenure.rules.message import Deferred, Delivered, Message, Refused
from tests.connectors.messages import message, run
from tests.support.brokers import NatsServer

SHORT = timedelta(seconds=1.5)


def destination(server: NatsServer, **changed: Any) -> JetStream:
    return JetStream("out", server.url, "shop", **{"create_stream": True, **changed})


async def stored(server: NatsServer, count: int) -> list[Msg]:
    """Read what the stream keeps, in its order; the oracle is the server."""
    client = await nats.connect(server.url)
    try:
        subscription = await client.jetstream().pull_subscribe("shop.>", durable="reader")
        found: list[Msg] = []
        while len(found) < count:
            for one in await subscription.fetch(count - len(found), timeout=5):
                await one.ack_sync()
                found.append(one)
        assert (await client.jetstream().stream_info("shop")).state.messages == count
        return found
    finally:
        await client.close()


def test_a_message_is_acknowledged_and_kept(nats_server: NatsServer) -> None:
    sent = message(subject="quote/17", data={"é": [1, 2.5, None], "big": 10**30})

    async def body() -> None:
        out = destination(nats_server)
        await out.open()
        assert await out.deliver([sent]) == [Delivered({"stream": "shop", "sequence": 1, "duplicate": False})]
        await out.close()
        (kept,) = await stored(nats_server, 1)
        assert kept.subject == "shop.acme.quote.accepted"
        arrival = read_nats(kept)
        assert (arrival.tenant, arrival.message_id, arrival.operation) == (sent.tenant, sent.id, sent.operation)
        assert (arrival.type, arrival.version, arrival.subject) == (sent.type, sent.version, sent.subject)
        assert (arrival.data, arrival.epoch, arrival.digest) == (sent.data, sent.epoch, sent.digest)
        assert arrival.created_at == sent.created_at
        assert arrival.delivery_id.startswith("shop/1@")
        assert arrival.delivery_id.endswith("#1")

    run(body)


def test_a_message_that_comes_again_is_not_stored_again(nats_server: NatsServer) -> None:
    sent = message()

    async def body() -> None:
        for duplicate in (False, True):
            # Another process, after the first one died without writing that it was delivered.
            out = destination(nats_server)
            assert await out.deliver([sent]) == [Delivered({"stream": "shop", "sequence": 1, "duplicate": duplicate})]
            await out.close()
        await stored(nats_server, 1)

    run(body)


def test_the_same_id_of_another_tenant_is_another_message(nats_server: NatsServer) -> None:
    one = message(tenant="acme")
    other = message(tenant="zeta", id=one.id)

    async def body() -> None:
        out = destination(nats_server)
        answers = await out.deliver([one, other])
        assert [answer.receipt["duplicate"] for answer in answers] == [False, False]  # type: ignore[index,union-attr]
        await out.close()
        assert {read_nats(kept).tenant for kept in await stored(nats_server, 2)} == {"acme", "zeta"}

    run(body)


def test_messages_of_a_subject_are_stored_in_their_order(nats_server: NatsServer) -> None:
    sent = [message(number, subject=f"quote/{number % 3}") for number in range(150)]

    async def body() -> None:
        out = destination(nats_server)
        answers = await out.deliver(sent)
        assert all(isinstance(answer, Delivered) for answer in answers)
        await out.close()
        arrivals = [read_nats(kept) for kept in await stored(nats_server, 150)]
        for subject in ("quote/0", "quote/1", "quote/2"):
            expected = [one.id for one in sent if one.subject == subject]
            assert [one.message_id for one in arrivals if one.subject == subject] == expected

    run(body)


def test_a_server_that_was_killed_and_came_back(nats_server: NatsServer) -> None:
    first, second = message(1), message(2)

    async def body() -> None:
        out = destination(nats_server, timeout=SHORT)
        assert isinstance((await out.deliver([first]))[0], Delivered)
        await asyncio.to_thread(nats_server.stop, "kill")
        for _ in range(2):
            (answer,) = await out.deliver([second])
            assert isinstance(answer, Deferred), answer
        await asyncio.to_thread(nats_server.stop)
        nats_server.start()
        (answer,) = await out.deliver([second])
        assert answer == Delivered({"stream": "shop", "sequence": 2, "duplicate": False})
        await out.close()
        assert [read_nats(kept).message_id for kept in await stored(nats_server, 2)] == [first.id, second.id]

    run(body)


def test_a_server_killed_while_it_has_not_answered(nats_server: NatsServer) -> None:
    async def body() -> None:
        out = destination(nats_server)
        await out.open()
        nats_server.pause()
        delivering = asyncio.create_task(out.deliver([message(number) for number in range(20)]))
        async with asyncio.timeout(10):
            await all_are_sent(out)
            await asyncio.to_thread(nats_server.stop, "kill")
            # At once, not at the end of the 30 seconds that a call may take.
            answers = await delivering
        assert all(isinstance(answer, Deferred) for answer in answers)
        await out.close()

    run(body)


async def all_are_sent(out: JetStream) -> None:
    """Wait until every message of a call waits for its acknowledgement; the client has no signal for that."""
    while out._client is None or len(out._client._resp_map) < 20:  # noqa: ASYNC110
        await asyncio.sleep(0)


def test_a_server_that_answers_nothing_costs_the_time_of_a_call_and_no_more(nats_server: NatsServer) -> None:
    sent = [message(number) for number in range(3)]

    async def body() -> None:
        out = destination(nats_server, timeout=SHORT)
        await out.open()
        nats_server.pause()
        began = asyncio.get_running_loop().time()
        answers = await out.deliver(sent)
        assert asyncio.get_running_loop().time() - began < 5
        assert all(isinstance(answer, Deferred) for answer in answers)
        nats_server.resume()
        answers = await out.deliver(sent)
        assert all(isinstance(answer, Delivered) for answer in answers)
        await out.close()
        # They may have arrived the first time, too; the stream knows them by their ids.
        await stored(nats_server, 3)

    run(body)


def test_a_stream_that_is_missing_is_said_and_can_be_made(nats_server: NatsServer) -> None:
    async def body() -> None:
        out = destination(nats_server, create_stream=False)
        (answer,) = await out.deliver([message()])
        assert isinstance(answer, Deferred)
        assert "no stream takes the subject shop.acme.quote.accepted" in answer.reason
        assert "create_stream=True" in answer.reason
        made = destination(nats_server)
        await made.open()
        # The control: the same destination, once the stream is there.
        assert isinstance((await out.deliver([message()]))[0], Delivered)
        await out.close()
        await made.close()

    run(body)


def test_another_stream_that_takes_the_subject_is_no_answer(nats_server: NatsServer) -> None:
    async def body() -> None:
        client = await nats.connect(nats_server.url)
        await client.jetstream().add_stream(name="other", subjects=["shop.>"])
        out = destination(nats_server, create_stream=False)
        (answer,) = await out.deliver([message()])
        assert isinstance(answer, Deferred)
        assert "10060" in answer.reason
        assert (await client.jetstream().stream_info("other")).state.messages == 0
        await out.close()
        await client.close()

    run(body)


def test_a_full_stream_defers(nats_server: NatsServer) -> None:
    async def body() -> None:
        client = await nats.connect(nats_server.url)
        settings = StreamConfig(name="shop", subjects=["shop.>"], max_msgs=2, discard="new")  # type: ignore[arg-type]
        await client.jetstream().add_stream(settings)
        out = destination(nats_server)
        answers = await out.deliver([message(number, subject="one") for number in range(4)])
        assert [type(answer) for answer in answers] == [Delivered, Delivered, Deferred, Deferred]
        for answer in answers[2:]:
            assert "maximum messages exceeded" in answer.reason  # type: ignore[union-attr]
        await out.close()
        await client.close()

    run(body)


@pytest.mark.parametrize("changed", [{}, {"bytes_max": 2000}])
def test_a_message_that_is_too_large_is_refused_beside_one_that_is_not(
    nats_server: NatsServer, changed: dict[str, Any]
) -> None:
    large = message(1, data={"text": "x" * (1 << 20)})  # a server takes 1 MiB, all told

    async def body() -> None:
        out = destination(nats_server, **changed)
        refused, delivered = await out.deliver([large, message(2)])
        assert isinstance(refused, Refused)
        assert "the limit is" in refused.reason
        assert isinstance(delivered, Delivered)
        await out.close()
        await stored(nats_server, 1)

    run(body)


def test_headers_count_in_the_servers_limit(nats_server: NatsServer) -> None:
    from tenure.connectors.cloudevent import SOURCE, EventWriter

    writer = EventWriter(SOURCE, bytes_max=2 << 20, user="test", extra="nats")
    around = len(writer.write(message(1, data={"text": ""})))

    async def body() -> None:
        out = destination(nats_server)
        for room in (0, 100, 400):
            edge = message(1, data={"text": "x" * ((1 << 20) - around - room)}, subject="quote/1")
            first, second = await out.deliver([edge, message(2)])
            assert isinstance(first, Delivered if room == 400 else Refused), first
            # A server that gets one byte more than it takes closes the connection on everybody else.
            assert isinstance(second, Delivered)
        await out.close()

    run(body)


def test_what_a_subject_is_made_of_cannot_make_it_another_subject(nats_server: NatsServer) -> None:
    odd: list[Message] = [
        message(1, tenant="a.b", type="x"),
        message(2, tenant="a", type="b.x"),
        message(3, tenant="a b*>", type=".x"),
        message(4, tenant="é%", type="x..y"),
    ]

    async def body() -> None:
        out = destination(nats_server)
        assert all(isinstance(answer, Delivered) for answer in await out.deliver(odd))
        await out.close()
        kept = await stored(nats_server, 4)
        assert len({one.subject for one in kept}) == 4
        assert {read_nats(one).message_id for one in kept} == {one.id for one in odd}
        by_id = {read_nats(one).message_id: one.subject for one in kept}
        assert by_id[odd[0].id] == "shop.a%2Eb.x"
        assert by_id[odd[2].id] == "shop.a%20b%2A%3E.%2Ex"

    run(body)


def test_a_message_without_the_subject_that_the_template_asks_for_is_refused(nats_server: NatsServer) -> None:
    async def body() -> None:
        out = destination(nats_server, subject="shop.{subject}")
        refused, delivered = await out.deliver([message(1, subject=None), message(2)])
        assert isinstance(refused, Refused)
        assert "no subject" in refused.reason
        assert isinstance(delivered, Delivered)
        await out.close()

    run(body)


def test_a_wrong_token_is_deferred_and_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    from tests.support.brokers import or_skip

    caplog.set_level(logging.DEBUG)
    with or_skip(lambda: NatsServer(token="s3cret-right")) as server:

        async def body() -> None:
            wrong = JetStream("out", server.url.replace("right", "wrong"), "shop", create_stream=True, timeout=SHORT)
            (answer,) = await wrong.deliver([message()])
            assert isinstance(answer, Deferred)
            assert "s3cret" not in answer.reason
            await wrong.close()
            right = destination(server)
            assert isinstance((await right.deliver([message()]))[0], Delivered)
            assert "s3cret" not in repr(right)
            await right.close()

        run(body)
    assert "s3cret" not in caplog.text


def test_a_server_that_reads_nothing_is_cut_off(nats_server: NatsServer) -> None:
    # More than the sockets hold: something is always still to be written.
    sent = [message(number, data={"text": "x" * 400_000}) for number in range(40)]

    async def body() -> None:
        out = destination(nats_server, timeout=2 * SHORT)
        await out.open()
        nats_server.pause()
        began = asyncio.get_running_loop().time()
        answers = await out.deliver(sent)
        assert asyncio.get_running_loop().time() - began < 8
        assert all(isinstance(answer, Deferred) for answer in answers)
        nats_server.resume()
        assert isinstance((await out.deliver([message(99)]))[0], Delivered)
        await out.close()

    run(body)


def test_opening_and_closing_again_changes_nothing(nats_server: NatsServer) -> None:
    async def body() -> None:
        out = destination(nats_server)
        await out.close()
        await out.open()
        await out.open()
        assert isinstance((await out.deliver([message()]))[0], Delivered)
        await out.close()
        await out.close()
        assert await out.deliver([]) == []
        await out.close()

    run(body)


def test_a_call_that_is_cancelled_leaves_nothing_behind(nats_server: NatsServer) -> None:
    async def body() -> None:
        out = destination(nats_server)
        await out.open()
        nats_server.pause()
        delivering = asyncio.create_task(out.deliver([message(number) for number in range(20)]))
        await all_are_sent(out)
        delivering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await delivering
        nats_server.resume()
        await out.close()

    run(body)


def test_a_message_that_is_no_event_is_refused_by_the_reader(nats_server: NatsServer) -> None:
    async def body() -> None:
        out = destination(nats_server)
        await out.deliver([message()])
        await out.close()
        client = await nats.connect(nats_server.url)
        await client.jetstream().publish("shop.acme.hello", b"{}")
        plain = await client.subscribe("plain")
        await client.publish("plain", b"{}")
        outside = await plain.next_msg()
        await client.close()
        good, bad = await stored(nats_server, 2)
        assert read_nats(good).tenant == "acme"
        with pytest.raises(Invalid, match="specversion") as refused:
            read_nats(bad)
        assert refused.value.code == "EVENT_MALFORMED"
        with pytest.raises(Invalid, match="no stream delivered it"):
            read_nats(outside)
        good.headers = {"Nats-Msg-Id": f"zeta:{read_nats(good).message_id}"}
        with pytest.raises(Invalid, match="Nats-Msg-Id"):
            read_nats(good)

    run(body)


@pytest.mark.parametrize(
    "changed, text",
    [
        ({"stream": "a.b"}, "stream"),
        ({"servers": []}, "servers"),
        ({"subject": "{data}"}, "subject"),
        ({"subject": "{type!r}"}, "subject"),
        ({"subject": "{type"}, "brace"),
        ({"subject": "{type}", "create_stream": True}, "fixed token"),
        ({"name": ""}, "name"),
        ({"batch": 0}, "batch"),
        ({"timeout": timedelta(0)}, "timeout"),
        ({"source": "a b"}, "source"),
        ({"bytes_max": 0}, "bytes_max"),
    ],
)
def test_a_wrong_setting_is_refused_when_it_is_made(changed: dict[str, Any], text: str) -> None:
    good: dict[str, Any] = {"name": "out", "servers": "nats://127.0.0.1:1", "stream": "shop"}
    JetStream(**good)
    with pytest.raises(Invalid, match=text):
        JetStream(**{**good, **changed})
