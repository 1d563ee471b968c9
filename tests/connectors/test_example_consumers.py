"""Outbox, relay, broker and an example consumer, end to end: as many effects as operations, whoever dies when."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from tenure import Tenure
from tenure.connectors.nats import JetStream
from tenure.connectors.signature import new_secret
from tenure.connectors.webhook import Webhook
from tests.loops.posting import add, play, until
from tests.support.brokers import NatsServer
from tests.support.process import free_port
from tests.support.tree import ROOT

SECRET = new_secret()
SOON = timedelta(milliseconds=20)
STREAM = "quotes"


@pytest.fixture
def app(postgres_databases: Any) -> Iterator[Tenure]:
    """The producer, whose outbox is in PostgreSQL; consumers have books of their own, in SQLite."""
    made = Tenure(postgres_databases.create(), organization="studio", project="sales", actor="user:42")
    made.migrate()
    yield made
    made.close()


class Consumer:
    """One life after the other of an example's process."""

    def __init__(self, folder: Path, example: str, *arguments: str) -> None:
        self.books = folder / "books.db"
        self.log = folder / "log"
        self._command = [example, f"sqlite:///{self.books}", *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, dies_at: int = 0) -> None:
        example, *arguments = self._command
        command = [sys.executable, "-m", "tests.connectors.consuming", example, str(dies_at), *arguments]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    @property
    def killed(self) -> bool:
        return self._process is not None and self._process.poll() == -9

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def rows(self, query: str = "SELECT operation, quote, total FROM invoices ORDER BY quote") -> list[Any]:
        if not self.books.exists():
            return []
        with contextlib.closing(sqlite3.connect(self.books)) as connection:
            try:
                return connection.execute(query).fetchall()
            except sqlite3.OperationalError:
                return []  # it has not made its table yet

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def post(app: Tenure, count: int, *, start: int = 0) -> None:
    for nth in range(start, start + count):
        add(app, f"quote-{nth}", destination="out", type="quote.accepted", data={"quote": nth, "total": 10 * nth})


def expected(count: int) -> list[tuple[str, int, int]]:
    return [(f"quote-{nth}", nth, 10 * nth) for nth in range(count)]


async def impatient_consumer(url: str) -> None:
    """Make the example's durable consumer, which brings again after a second what was not acknowledged."""
    client = await nats.connect(url)
    try:
        wanted = ConsumerConfig(durable_name="invoices", ack_policy=AckPolicy.EXPLICIT, ack_wait=1)
        await client.jetstream().add_consumer(STREAM, wanted)
    finally:
        await client.close()


async def all_is_acknowledged(url: str) -> None:
    client = await nats.connect(url)
    try:
        async with asyncio.timeout(60):
            while True:
                info = await client.jetstream().consumer_info(STREAM, "invoices")
                if not info.num_pending and not info.num_ack_pending:
                    return
                await asyncio.sleep(0.05)
    finally:
        await client.close()


def test_a_nats_consumer_that_dies_before_its_acks_writes_each_invoice_once(
    app: Tenure, tmp_path: Path, nats_server: NatsServer
) -> None:
    consumer = Consumer(tmp_path, "consume_from_nats.py", nats_server.url, STREAM)
    out = [
        JetStream("out", nats_server.url, STREAM, create_stream=True),
        # The same stream under another name: an outbox knows operations by destination.
        JetStream("beside", nats_server.url, STREAM),
    ]

    async def story() -> None:
        post(app, 30)
        async with app.relay(destinations=out, backoff=SOON):
            await until(lambda: not app.service.outbox_stats().unpublished)
            await impatient_consumer(nats_server.url)
            for nth in (1, 8):
                consumer.start(dies_at=nth)
                await until(lambda: consumer.killed)
            assert 8 <= len(consumer.rows()) <= 9, "one commit before the first death, seven or eight before the second"
            assert "quote-0: written" not in consumer.said(), "control: it was written, and nobody was told"
            consumer.start()
            await until(lambda: len(consumer.rows()) == 30)
            # One name for two meanings, and a good one behind it.
            add(app, "quote-3", destination="beside", type="quote.accepted", data={"quote": 3, "total": 999})
            post(app, 1, start=30)
            await until(lambda: "quote-3: MESSAGE_MISMATCH" in consumer.said())
            await until(lambda: "quote-30: written" in consumer.said())
            await all_is_acknowledged(nats_server.url)

    try:
        play(app, story)
        assert consumer.rows() == expected(31)
        assert [row[::2] for row in consumer.rows("SELECT * FROM strange")] == [("quote-3", "MESSAGE_MISMATCH")]
        assert "quote-0: known" in consumer.said()
        assert app.service.outbox_stats().unpublished == 0
    finally:
        consumer.stop()


def test_what_is_no_event_is_ended_and_delays_nobody(app: Tenure, tmp_path: Path, nats_server: NatsServer) -> None:
    consumer = Consumer(tmp_path, "consume_from_nats.py", nats_server.url, STREAM)

    async def story() -> None:
        client = await nats.connect(nats_server.url)
        async with app.relay(destinations=[JetStream("out", nats_server.url, STREAM, create_stream=True)]) as relay:
            post(app, 1)
            await until(lambda: not app.service.outbox_stats().unpublished and relay.health().running == 0)
            await client.jetstream().publish(f"{STREAM}.studio.other", b"{}")
            post(app, 1, start=1)
            await until(lambda: not app.service.outbox_stats().unpublished)
        await client.close()
        consumer.start()
        await until(lambda: len(consumer.rows()) == 2)
        await until(lambda: "not an event: EVENT_MALFORMED" in consumer.said())
        await all_is_acknowledged(nats_server.url)

    try:
        play(app, story)
    finally:
        consumer.stop()


def test_a_webhook_that_dies_before_its_answers_writes_each_invoice_once(app: Tenure, tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/hooks"
    consumer = Consumer(tmp_path, "receive_webhook.py", str(port), SECRET)
    out = [Webhook("out", url, secret=SECRET), Webhook("beside", url, secret=SECRET)]

    async def story() -> None:
        post(app, 30)
        async with app.relay(destinations=out, backoff=SOON):
            for nth in (1, 8):
                consumer.start(dies_at=nth)
                await until(lambda: consumer.killed)
            assert consumer.rows(), "control: something was committed before the deaths"
            consumer.start()
            await until(lambda: not app.service.outbox_stats().unpublished)
            assert "known" in consumer.said(), "what was committed and not answered came again"
            add(app, "quote-3", destination="beside", type="quote.accepted", data={"quote": 3, "total": 999})
            post(app, 1, start=30)
            await until(lambda: app.service.outbox_stats().states == {"set_aside": 1})

    try:
        play(app, story)
        assert consumer.rows() == expected(31)
        (strange,) = app.service.list_messages(state="set_aside")
        assert (strange.message.operation, strange.reason) == ("quote-3", "HTTP 422")
    finally:
        consumer.stop()


def test_a_webhook_refuses_what_is_not_signed_and_asks_again_for_what_it_cannot_write(
    app: Tenure, tmp_path: Path
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/hooks"
    consumer = Consumer(tmp_path, "receive_webhook.py", str(port), SECRET)

    def status(body: bytes, **headers: str) -> int:
        request = urllib.request.Request(url, body, headers)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request)
        caught.value.close()
        return caught.value.code

    async def story() -> None:
        consumer.start()
        await until(lambda: "listening" in consumer.said())
        assert await asyncio.to_thread(status, b"{}") == 401
        assert await asyncio.to_thread(status, b"x" * (2 << 20)) == 413
        busy = sqlite3.connect(consumer.books, isolation_level=None)
        busy.execute("BEGIN IMMEDIATE")
        post(app, 1)
        async with app.relay(destinations=[Webhook("out", url, secret=SECRET)], backoff=SOON):
            await until(lambda: "quote-0: not now" in consumer.said())
            busy.execute("ROLLBACK")
            busy.close()
            await until(lambda: not app.service.outbox_stats().unpublished)

    try:
        play(app, story)
        assert consumer.rows() == expected(1)
    finally:
        consumer.stop()
