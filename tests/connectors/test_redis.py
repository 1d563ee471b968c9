"""Redis Streams, against a real server: an entry for each message, and Deferred for everything without an answer."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

from tenure.connectors.cloudevent import Incoming
from tenure.connectors.redis import RedisStreams, read_redis
from tenure.errors import Invalid
from tenure.rules.message import Deferred, Delivered, Refused
from tests.connectors.messages import message, run
from tests.support.brokers import RedisServer, or_skip

SHORT = timedelta(seconds=1.5)
STREAM = "shop:{tenant}"


def destination(server: RedisServer, **changed: Any) -> RedisStreams:
    return RedisStreams("out", server.url, **{"stream": STREAM, **changed})


async def stored(server: RedisServer, stream: str = "shop:acme") -> list[Incoming]:
    """Read what a stream keeps, in its order; the oracle is the server."""
    client = Redis.from_url(server.url)
    try:
        return [read_redis(stream, entry, fields) for entry, fields in await client.xrange(stream)]
    finally:
        await client.aclose()


def test_a_message_is_an_entry_with_its_operation(redis_server: RedisServer) -> None:
    sent = message(subject="quote/17", data={"é": [1, 2.5, None], "big": 10**30})

    async def body() -> None:
        out = destination(redis_server)
        await out.open()
        (answer,) = await out.deliver([sent])
        assert isinstance(answer, Delivered)
        await out.close()
        client = Redis.from_url(redis_server.url)
        ((entry, fields),) = await client.xrange("shop:acme")
        await client.aclose()
        assert answer.receipt == {"stream": "shop:acme", "entry": entry.decode()}
        assert fields[b"operation"] == sent.operation.encode()
        assert fields[b"id"] == str(sent.id).encode()
        arrival = read_redis(b"shop:acme", entry, fields)
        assert (arrival.tenant, arrival.message_id, arrival.operation) == (sent.tenant, sent.id, sent.operation)
        assert (arrival.data, arrival.digest, arrival.subject) == (sent.data, sent.digest, sent.subject)
        assert arrival.delivery_id == f"shop:acme/{entry.decode()}"

    run(body)


def test_a_message_that_comes_again_is_another_entry_with_the_same_ids(redis_server: RedisServer) -> None:
    sent = message()

    async def body() -> None:
        for _ in range(2):
            out = destination(redis_server)
            assert isinstance((await out.deliver([sent]))[0], Delivered)
            await out.close()
        first, second = await stored(redis_server)
        assert (first.message_id, first.operation, first.digest) == (second.message_id, second.operation, second.digest)
        assert first.delivery_id != second.delivery_id

    run(body)


def test_messages_are_appended_in_their_order(redis_server: RedisServer) -> None:
    sent = [message(number, subject=f"quote/{number % 3}") for number in range(200)]

    async def body() -> None:
        out = destination(redis_server)
        assert all(isinstance(answer, Delivered) for answer in await out.deliver(sent))
        await out.close()
        assert [one.message_id for one in await stored(redis_server)] == [one.id for one in sent]

    run(body)


def test_a_server_that_was_killed_and_came_back(redis_server: RedisServer) -> None:
    first, second = message(1), message(2)

    async def body() -> None:
        out = destination(redis_server, timeout=SHORT)
        assert isinstance((await out.deliver([first]))[0], Delivered)
        await asyncio.to_thread(redis_server.stop, "kill")
        for _ in range(2):
            (answer,) = await out.deliver([second])
            assert isinstance(answer, Deferred), answer
        redis_server.start()
        assert isinstance((await out.deliver([second]))[0], Delivered)
        await out.close()
        # Appended with `appendfsync always`, so the first one is still there.
        assert [one.message_id for one in await stored(redis_server)] == [first.id, second.id]

    run(body)


def test_a_server_that_answers_nothing_costs_the_time_of_a_call_and_no_more(redis_server: RedisServer) -> None:
    async def body() -> None:
        out = destination(redis_server, timeout=SHORT)
        await out.open()
        redis_server.pause()
        began = asyncio.get_running_loop().time()
        answers = await out.deliver([message(1), message(2)])
        assert asyncio.get_running_loop().time() - began < 5
        assert all(isinstance(answer, Deferred) for answer in answers)
        redis_server.resume()
        assert isinstance((await out.deliver([message(3)]))[0], Delivered)
        await out.close()

    run(body)


def test_an_error_of_one_stream_defers_its_messages_and_no_others(redis_server: RedisServer) -> None:
    async def body() -> None:
        client = Redis.from_url(redis_server.url)
        await client.set("shop:zeta", "not a stream")
        out = destination(redis_server)
        answers = await out.deliver([message(1), message(2, tenant="zeta"), message(3)])
        assert [type(answer) for answer in answers] == [Delivered, Deferred, Delivered]
        assert "WRONGTYPE" in answers[1].reason  # type: ignore[union-attr]
        assert len(await stored(redis_server)) == 2
        await client.delete("shop:zeta")
        assert isinstance((await out.deliver([message(2, tenant="zeta")]))[0], Delivered)
        await out.close()
        await client.aclose()

    run(body)


def test_a_message_that_is_too_large_is_refused_beside_one_that_is_not(redis_server: RedisServer) -> None:
    async def body() -> None:
        out = destination(redis_server, bytes_max=2000)
        refused, delivered = await out.deliver([message(1, data={"text": "x" * 2000}), message(2)])
        assert isinstance(refused, Refused)
        assert "the limit is 2000" in refused.reason
        assert isinstance(delivered, Delivered)
        await out.close()
        assert len(await stored(redis_server)) == 1

    run(body)


def test_a_stream_is_kept_to_about_its_length(redis_server: RedisServer) -> None:
    async def body() -> None:
        out = destination(redis_server, maxlen=100)
        for _ in range(5):
            await out.deliver([message(number) for number in range(200)])
        await out.close()
        assert 100 <= len(await stored(redis_server)) <= 300

    run(body)


def test_a_wrong_password_is_deferred_and_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with or_skip(lambda: RedisServer(password="s3cret-right")) as server:

        async def body() -> None:
            wrong = RedisStreams("out", server.url.replace("right", "wrong"), STREAM, timeout=SHORT)
            (answer,) = await wrong.deliver([message()])
            assert isinstance(answer, Deferred)
            assert "s3cret" not in answer.reason
            await wrong.close()
            right = destination(server)
            assert isinstance((await right.deliver([message()]))[0], Delivered)
            await right.close()

        run(body)
    assert "s3cret" not in caplog.text


def test_a_message_without_the_subject_that_the_template_asks_for_is_refused(redis_server: RedisServer) -> None:
    async def body() -> None:
        out = destination(redis_server, stream="shop:{subject}")
        refused, delivered = await out.deliver([message(1, subject=None), message(2)])
        assert isinstance(refused, Refused)
        assert isinstance(delivered, Delivered)
        await out.close()
        assert len(await stored(redis_server, "shop:quote/2")) == 1

    run(body)


def test_a_server_that_reads_nothing_is_cut_off(redis_server: RedisServer) -> None:
    # More than the sockets hold: something is always still to be written.
    sent = [message(number, data={"text": "x" * 400_000}) for number in range(40)]

    async def body() -> None:
        out = destination(redis_server, timeout=2 * SHORT)
        await out.open()
        redis_server.pause()
        began = asyncio.get_running_loop().time()
        answers = await out.deliver(sent)
        assert asyncio.get_running_loop().time() - began < 8
        assert all(isinstance(answer, Deferred) for answer in answers)
        redis_server.resume()
        assert isinstance((await out.deliver([message(99)]))[0], Delivered)
        await out.close()

    run(body)


def test_opening_and_closing_again_changes_nothing(redis_server: RedisServer) -> None:
    async def body() -> None:
        out = destination(redis_server)
        await out.close()
        await out.open()
        await out.open()
        assert isinstance((await out.deliver([message()]))[0], Delivered)
        await out.close()
        await out.close()
        assert await out.deliver([]) == []
        await out.close()

    run(body)


def test_a_call_that_is_cancelled_leaves_nothing_behind(redis_server: RedisServer) -> None:
    async def body() -> None:
        out = destination(redis_server)
        await out.open()
        redis_server.pause()
        delivering = asyncio.create_task(out.deliver([message()]))
        for _ in range(20):
            await asyncio.sleep(0)
        delivering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await delivering
        redis_server.resume()
        # The answer to the cancelled call is not taken for one to this.
        answer = (await out.deliver([message(2)]))[0]
        assert isinstance(answer, Delivered)
        await out.close()
        entries = await stored(redis_server)
        assert isinstance(answer.receipt, dict)
        assert f"shop:acme/{answer.receipt['entry']}" == entries[-1].delivery_id

    run(body)


def test_an_entry_that_is_no_event_is_refused_by_the_reader() -> None:
    for fields in ({}, {b"event": b"{}"}, {"event": "[]"}, {"event": "x" * (2 << 20)}):
        with pytest.raises(Invalid) as refused:
            read_redis("shop", "1-0", fields)
        assert refused.value.code in {"EVENT_MALFORMED", "EVENT_TOO_LARGE"}


@pytest.mark.parametrize(
    "changed, text",
    [
        ({"url": "http://127.0.0.1"}, "url"),
        ({"stream": ""}, "stream"),
        ({"stream": "{nobody}"}, "stream"),
        ({"maxlen": 0}, "maxlen"),
        ({"name": "\n"}, "name"),
    ],
)
def test_a_wrong_setting_is_refused_when_it_is_made(changed: dict[str, Any], text: str) -> None:
    good: dict[str, Any] = {"name": "out", "url": "redis://127.0.0.1:1", "stream": STREAM}
    RedisStreams(**good)
    with pytest.raises(Invalid, match=text):
        RedisStreams(**{**good, **changed})
