"""
Outbox, relay, broker, inbox, end to end: a relay is killed between a delivery and its note, and another one goes on.

Every message arrives at least once with its own ids; what arrives twice is what the dead relay had on its way; the
inbox applies each operation once.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aio_pika
import nats
import pytest
from redis.asyncio import Redis

import tenure
from tenure import Tenure
from tenure.connectors.cloudevent import Incoming
from tenure.connectors.nats import read_nats
from tenure.connectors.rabbitmq import read_rabbitmq
from tenure.connectors.redis import read_redis
from tests.loops.broker_relay import BATCH, PLACE
from tests.loops.posting import add, play, until
from tests.support.brokers import NatsServer, RedisServer
from tests.support.tree import ROOT

COUNT = 200


@pytest.fixture
def url(postgres_databases: Any) -> str:
    found: str = postgres_databases.create()
    return found


@pytest.fixture
def app(url: str) -> Iterator[Tenure]:
    made = Tenure(url, organization="studio", project="sales", actor="user:42")
    made.migrate()
    yield made
    made.close()


class Relays:
    """Processes of `broker_relay`, gone at the end."""

    def __init__(self, app: Tenure, url: str, broker: str, address: str) -> None:
        self._app = app
        self._common = [url, broker, address]
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *, dies_at: int = 0) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.loops.broker_relay", *self._common, name, str(dies_at)]
        self._processes.append(subprocess.Popen(command, cwd=ROOT))
        return self._processes[-1]

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


async def relayed(app: Tenure, url: str, broker: str, address: str) -> None:
    """Let one relay die at its third call and another one deliver the rest."""
    add(app, *(f"quote-{nth}" for nth in range(COUNT)), destination="out", type="note", data={"n": 1}, subject="q")
    relays = Relays(app, url, broker, address)
    try:
        first = relays.start("first", dies_at=3)
        await until(lambda: first.poll() is not None)
        assert first.returncode == -9
        states = app.service.outbox_stats().states
        assert states["delivering"] >= BATCH, "control: it died with messages on their way"
        assert app.service.outbox_stats().unpublished < COUNT, "control: some were noted before"
        # As if the leases had run out, for which nobody needs to wait.
        with app.store.transaction() as tx:
            tx.execute("UPDATE tenure.message_lease SET expires_at = 0")
        relays.start("second")
        await until(lambda: not app.service.outbox_stats().unpublished)
    finally:
        relays.stop()


def check(app: Tenure, arrivals: list[Incoming]) -> None:
    """Compare what arrived with what was added, and receive all of it in one inbox."""
    sent = {one.message.operation: one.message for one in app.service.list_messages(limit=1000)}
    assert {one.operation for one in arrivals} == set(sent), "none is missing"
    for one in arrivals:
        message = sent[one.operation]
        assert (one.message_id, one.digest, one.tenant) == (message.id, message.digest, message.tenant)
    twice = [operation for operation, times in Counter(one.operation for one in arrivals).items() if times > 1]
    assert len(twice) <= 2 * BATCH, "no more come again than both lanes of the dead one had on their way"
    with app.store.transaction() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS effects (operation text)")
    for one in arrivals:
        with app.store.transaction() as tx:
            if tenure.inbox.receive(tx, "effects", one, one.delivery_id).new:
                tx.execute("INSERT INTO effects VALUES (%s)", [one.operation])
    with app.store.transaction() as tx:
        assert tx.execute("SELECT count(*), count(DISTINCT operation) FROM effects").fetchone() == (COUNT, COUNT)


def proven(app: Tenure, url: str, broker: str, address: str, arrived: Callable[[], Awaitable[list[Incoming]]]) -> None:
    async def story() -> None:
        await relayed(app, url, broker, address)
        check(app, await arrived())

    play(app, story)


def test_rabbitmq(app: Tenure, url: str, rabbit_url: str) -> None:
    async def prepared() -> None:
        connection = await aio_pika.connect(rabbit_url)
        async with connection, connection.channel() as channel:
            queue = await channel.declare_queue(PLACE, durable=True)
            await queue.purge()

    async def arrived() -> list[Incoming]:
        found = []
        connection = await aio_pika.connect(rabbit_url)
        async with connection, connection.channel() as channel:
            queue = await channel.get_queue(PLACE)
            while (message := await queue.get(fail=False)) is not None:
                found.append(read_rabbitmq(message))
                await message.ack()
            await queue.delete()
        return found

    asyncio.run(prepared())
    proven(app, url, "rabbitmq", rabbit_url, arrived)


def test_redis(app: Tenure, url: str, redis_server: RedisServer) -> None:
    async def arrived() -> list[Incoming]:
        async with contextlib.aclosing(Redis.from_url(redis_server.url)) as client:
            return [read_redis(PLACE, entry, fields) for entry, fields in await client.xrange(PLACE)]

    proven(app, url, "redis", redis_server.url, arrived)


def test_nats(app: Tenure, url: str, nats_server: NatsServer) -> None:
    async def arrived() -> list[Incoming]:
        client = await nats.connect(nats_server.url)
        try:
            subscription = await client.jetstream().pull_subscribe(f"{PLACE}.>", durable="all", stream=PLACE)
            found: list[Incoming] = []
            while len(found) < COUNT:
                for message in await subscription.fetch(COUNT, timeout=10):
                    found.append(read_nats(message))
                    await message.ack()
            assert (await client.jetstream().stream_info(PLACE)).state.messages == COUNT, (
                "known by its id within minutes"
            )
        finally:
            await client.close()
        return found

    proven(app, url, "nats", nats_server.url, arrived)


def test_own_jobs(app: Tenure, url: str) -> None:
    async def story() -> None:
        await relayed(app, url, "jobs", "")

    play(app, story)
    jobs = app.service.list_jobs(limit=1000)
    assert {one.idempotency_key for one in jobs} == {f"out:quote-{nth}" for nth in range(COUNT)}
    assert len(jobs) == COUNT
