"""
Messages to Redis Streams: one XADD for each, all of a call in one pipeline, in the order given.

Two things that Redis does not do. It has no memory of ids: a message that comes again is a second entry with the same
operation, and the consumer's inbox is what applies it once. And an answer means "in memory": what a crash of the server
may take with it is decided there. With `appendonly no`, the default, everything since the last snapshot; with
`appendonly yes` and `appendfsync everysec` about one second; with `appendfsync always` nothing that was answered. A
failover to a replica may lose what was not copied yet, in every setting. A `maxlen` drops the oldest entries, read or
not.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tenure.connectors.address import Address, NoAddress
from tenure.connectors.cloudevent import EVENT_BYTES_MAX, SOURCE, EventWriter, Incoming, read_event
from tenure.connectors.destination import Destination, check_destination
from tenure.connectors.extras import library
from tenure.connectors.lanes import all_deferred, close_limit_of, end_tasks, limit_of, reason
from tenure.errors import Invalid
from tenure.rules.message import Deferred, Delivered, Delivery, Message, Refused

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import Pipeline

KEY_BYTES_MAX = 1024
FIELDS = ("tenant", "id", "operation", "type", "event")


class RedisStreams(Destination):
    """
    Append messages to streams.

    An entry has the fields tenant, id, operation, type, and `event`, the whole CloudEvent as JSON. Delivered: Redis
    answered with the entry's id; the receipt is `{"stream", "entry"}`. Deferred: no answer, or an error such as OOM,
    READONLY or WRONGTYPE. Refused: the message is larger than `bytes_max`, or has no subject where the template asks
    for one.

    Args:
        url: `redis://`, `rediss://` or `unix://`; a password may be in it, and is shown nowhere.
        stream: The stream's key, a template of `{tenant}`, `{type}`, `{version}`, `{subject}`, `{destination}`.
        maxlen: About how many entries a stream keeps; None keeps all, and somebody has to trim them.
        options: More arguments for `redis.asyncio.Redis.from_url`, such as `ssl_ca_certs`.
    """

    def __init__(
        self,
        name: str,
        url: str,
        stream: str,
        *,
        maxlen: int | None = None,
        source: str = SOURCE,
        timeout: timedelta = timedelta(seconds=30),
        batch: int = 500,
        bytes_max: int = EVENT_BYTES_MAX,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._redis = library("redis.asyncio", user="RedisStreams", extra="redis")
        self._errors = library("redis.exceptions", user="RedisStreams", extra="redis")
        self._retry = library("redis.asyncio.retry", user="RedisStreams", extra="redis")
        self._backoff = library("redis.backoff", user="RedisStreams", extra="redis")
        self.name = name
        self.timeout = timeout
        self.batch = batch
        self._url = url
        self._maxlen = maxlen
        self._options = dict(options or {})
        self._writer = EventWriter(source, bytes_max=bytes_max, user="RedisStreams", extra="redis")
        self._address = Address(stream, what="stream", spell=lambda _, value: value, bytes_max=KEY_BYTES_MAX)
        self._client: Redis | None = None
        if not isinstance(url, str) or not url.startswith(("redis://", "rediss://", "unix://")):
            raise Invalid("url starts with redis://, rediss:// or unix://", code="BAD_ARGUMENT")
        if maxlen is not None and (type(maxlen) is not int or maxlen < 1):
            raise Invalid("maxlen is a number from 1, or None", code="BAD_ARGUMENT")
        check_destination(self)

    async def open(self) -> None:
        """Connect and ask for an answer; raises what the client raises."""
        async with asyncio.timeout(limit_of(self.timeout)):
            await self._opened().ping()

    async def deliver(self, messages: Sequence[Message]) -> Sequence[Delivery]:
        """Append each message; see the class for what comes back."""
        until = asyncio.get_running_loop().time() + limit_of(self.timeout)
        if self._client is None:
            try:
                await self.open()
            except Exception as error:  # noqa: BLE001 - without a connection nothing was sent
                await self._drop(self._client)
                return all_deferred(messages, f"no connection to Redis ({_word(error)})", outage=True)
        answers: list[Delivery | None] = [None] * len(messages)
        places: list[int] = []
        client = self._opened()
        pipeline = client.pipeline(transaction=False)
        for place, message in enumerate(messages):
            try:
                entry = self._entry(message)
                stream = self._address.of(message)
            except (Invalid, NoAddress) as refusal:
                answers[place] = Refused(reason(f"nothing was sent: {refusal}"))
                continue
            pipeline.xadd(stream, entry, maxlen=self._maxlen, approximate=True)
            places.append(place)
        try:
            results = await self._execute(client, pipeline, until) if places else []
        except Exception as error:  # noqa: BLE001 - whatever it is, there were no answers
            await self._drop(client)
            results = all_deferred([messages[place] for place in places], f"no answer from Redis ({_word(error)})")
        except BaseException:
            await self._drop(client)
            raise
        for place, result in zip(places, results, strict=True):
            answers[place] = self._judge(messages[place], result)
        return [Deferred("no answer from Redis") if answer is None else answer for answer in answers]

    async def close(self) -> None:
        """Let go of every connection."""
        await self._drop(self._client)

    async def _execute(self, client: Redis, pipeline: Pipeline, until: float) -> list[Any]:
        """Execute a pipeline within the time; after it the connection is cut off, for what is half written or read."""
        running = asyncio.ensure_future(pipeline.execute(raise_on_error=False))
        try:
            await asyncio.wait({running}, timeout=max(until - asyncio.get_running_loop().time(), 0))
        finally:
            if not running.done():
                # Closing would wait until a server that does not read has read; the client has no way to cut it off.
                for connection in getattr(client.connection_pool, "_in_use_connections", ()):
                    writer = getattr(connection, "_writer", None)
                    if writer is not None:
                        writer.transport.abort()
                await end_tasks([running])
        if running.cancelled():
            raise TimeoutError
        return running.result()

    def _opened(self) -> Redis:
        if self._client is None:
            limit = limit_of(self.timeout)
            # No retries: a command that was sent again after a lost answer would be a second entry.
            retry = self._retry.Retry(self._backoff.NoBackoff(), 0)
            # The time of a call is looked after here; the client's own would close a connection without cutting it off.
            ours = {"retry": retry, "socket_timeout": None}
            options = {"socket_connect_timeout": limit / 3, **self._options, **ours}
            self._client = self._redis.Redis.from_url(self._url, **options)
        return self._client

    def _entry(self, message: Message) -> dict[Any, Any]:
        event = self._writer.write(message)
        return {
            "tenant": message.tenant,
            "id": str(message.id),
            "operation": message.operation,
            "type": message.type,
            "event": event,
        }

    def _judge(self, message: Message, result: object) -> Delivery:
        if isinstance(result, Deferred):
            return result
        if isinstance(result, bytes | str):
            entry = result.decode() if isinstance(result, bytes) else result
            return Delivered({"stream": self._address.of(message), "entry": entry})
        if isinstance(result, Exception):
            return Deferred(reason(f"Redis refused it: {_word(result)}"))
        return Deferred("Redis gave another answer than an entry's id")

    async def _drop(self, client: Redis | None) -> None:
        """Close a client; by now another call may have made the next one, which stays."""
        if client is self._client:
            self._client = None
        if client is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(close_limit_of(self.timeout)):
                    await client.aclose()


def read_redis(
    stream: str | bytes, entry: str | bytes, fields: Mapping[Any, Any], *, bytes_max: int = EVENT_BYTES_MAX
) -> Incoming:
    """
    Read an entry of a stream for the inbox; acknowledge it (XACK) after the inbox's commit.

    Raises:
        Invalid: EVENT_TOO_LARGE or EVENT_MALFORMED. It will be so each time: acknowledge it and keep a copy elsewhere.
    """
    plain = {_plain(name): value for name, value in fields.items()}
    body = plain.get("event")
    if body is None:
        raise Invalid("this is not an event of an outbox: the entry has no field event", code="EVENT_MALFORMED")
    delivery_id = f"{_plain(stream)}/{_plain(entry)}"
    return read_event(
        body if isinstance(body, bytes) else str(body).encode(), delivery_id=delivery_id, bytes_max=bytes_max
    )


def _plain(text: object) -> str:
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)


def _word(error: Exception) -> str:
    """Give the error's class, and the code that a server's error begins with, such as OOM; its text may hold data."""
    word = str(error).partition(" ")[0]
    plain = word.isascii() and word.isalpha() and word.isupper()
    return f"{type(error).__name__} {word}" if plain else type(error).__name__
