"""
`python -m bench.destinations`: messages a second to each broker, each message acknowledged.

The servers are real ones on this machine, with file storage and as the tests start them. What is stored is counted
afterwards: a rate of messages that are not there is none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

import aio_pika
import nats
from redis.asyncio import Redis
from rich.console import Console
from rich.table import Table
from uuid_utils import uuid7

from tenure.connectors.destination import Destination
from tenure.connectors.nats import JetStream
from tenure.connectors.rabbitmq import RabbitMQ
from tenure.connectors.redis import RedisStreams
from tenure.rules.digest import digest
from tenure.rules.message import Delivered, Message
from tests.support.brokers import NatsServer, NoServer, RabbitServer, RedisServer

STREAM = "bench"


@dataclass(frozen=True, slots=True)
class Figure:
    """
    One measurement.

    Attributes:
        subjects: How many subjects the messages are about; with one, each waits for the one before it.
    """

    destination: str
    subjects: int
    messages: int
    rate: float


def messages(count: int, subjects: int) -> list[Message]:
    """Make messages of about half a kilobyte."""
    data: dict[str, object] = {"quote": 17, "lines": ["x" * 40] * 8}
    return [
        Message(
            tenant="acme",
            id=UUID(str(uuid7())),
            operation=f"bench:{number}",
            destination="out",
            type="quote.accepted",
            version=1,
            subject=f"quote/{number % subjects}",
            data=data,
            epoch=1,
            digest=digest({}),
            created_at=datetime.now(UTC),
        )
        for number in range(count)
    ]


async def rate(out: Destination, sent: Sequence[Message]) -> float:
    """Deliver everything in calls as a relay makes them, and give messages a second."""
    await out.open()
    await out.deliver(messages(10, 10))
    began = time.perf_counter()
    for start in range(0, len(sent), out.batch):
        answers = await out.deliver(sent[start : start + out.batch])
        lost = [answer for answer in answers if not isinstance(answer, Delivered)]
        if lost:
            raise SystemExit(f"no measurement: {out.name} answered {lost[0]}")
    took = time.perf_counter() - began
    await out.close()
    return len(sent) / took


async def measure(
    name: str, out: Callable[[], Destination], stored: Callable[[], Awaitable[int]], count: int
) -> list[Figure]:
    """Measure one destination with many subjects and with one."""
    found = []
    for subjects in (count, 1):
        before = await stored()
        each = count if subjects > 1 else max(count // 10, 100)
        found.append(Figure(name, subjects, each, await rate(out(), messages(each, subjects))))
        if await stored() - before != each + 10:
            raise SystemExit(f"no measurement: {name} does not hold what was acknowledged")
    return found


async def measure_nats(count: int) -> list[Figure]:
    """Measure a JetStream on file storage."""
    with NatsServer() as server:
        client = await nats.connect(server.url)
        jetstream = client.jetstream()
        await jetstream.add_stream(name=STREAM, subjects=[f"{STREAM}.>"])

        async def stored() -> int:
            return (await jetstream.stream_info(STREAM)).state.messages

        try:
            return await measure("nats", lambda: JetStream("nats", server.url, STREAM), stored, count)
        finally:
            await client.close()


async def measure_redis(count: int) -> list[Figure]:
    """Measure Redis with appendfsync always: every call waits for the disk."""
    with RedisServer() as server:
        client = Redis.from_url(server.url)

        async def stored() -> int:
            return int(await client.xlen(STREAM))

        try:
            return await measure("redis", lambda: RedisStreams("redis", server.url, STREAM), stored, count)
        finally:
            await client.aclose()


async def measure_rabbitmq(count: int) -> list[Figure]:
    """Measure RabbitMQ with persistent messages and confirms."""
    with RabbitServer() as server:
        connection = await aio_pika.connect(server.url)
        channel = await connection.channel()
        await channel.declare_queue(STREAM, durable=True)

        async def stored() -> int:
            queue = await channel.declare_queue(STREAM, durable=True, passive=True)
            return queue.declaration_result.message_count or 0

        try:
            return await measure("rabbitmq", lambda: RabbitMQ("rabbitmq", server.url, "", STREAM), stored, count)
        finally:
            await connection.close()


PLACES = {"nats": measure_nats, "redis": measure_redis, "rabbitmq": measure_rabbitmq}


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(prog="python -m bench.destinations", description=__doc__)
    parser.add_argument("--only", choices=sorted(PLACES))
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--json", action="store_true", help="write JSON lines")
    options = parser.parse_args()
    found: list[Figure] = []
    for name, place in PLACES.items():
        if options.only in {None, name}:
            try:
                found += asyncio.run(place(options.messages))
            except NoServer as missing:
                sys.stderr.write(f"{missing}\n")
    if options.json:
        for one in found:
            fields = {"destination": one.destination, "subjects": one.subjects, "rate": round(one.rate)}
            sys.stdout.write(json.dumps(fields) + "\n")
        return
    table = Table("destination", "messages", "subjects", "messages/s")
    for one in found:
        table.add_row(one.destination, f"{one.messages:,}", f"{one.subjects:,}", f"{one.rate:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
