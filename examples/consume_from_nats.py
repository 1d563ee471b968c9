"""Write invoices for what a NATS stream says, once each: mark and invoice in one commit, and only then the ack."""

import asyncio
import contextlib
import signal
import sys

import nats
from nats.aio.msg import Msg

import tenure
from tenure.connectors.cloudevent import Incoming
from tenure.connectors.nats import read_nats
from tenure.stores.contract import AsyncStore

TABLES = """
CREATE TABLE IF NOT EXISTS invoices (operation TEXT PRIMARY KEY, quote INTEGER, total INTEGER);
CREATE TABLE IF NOT EXISTS strange (operation TEXT, digest TEXT, why TEXT, PRIMARY KEY (operation, digest));
"""
AGAIN = 5  # seconds until a message comes again that could not be applied now


async def apply(store: AsyncStore, event: Incoming) -> bool:
    """Apply an event: the inbox's mark and the invoice, together or not at all."""
    async with store.transaction() as tx:
        receipt = await tenure.inbox.receive(tx, "invoices", event, event.delivery_id)
        if receipt.new:
            row = [event.operation, event.data["quote"], event.data["total"]]
            await tx.execute("INSERT INTO invoices VALUES (?, ?, ?)", row)
    return receipt.new


async def put_aside(store: AsyncStore, event: Incoming, problem: tenure.Conflict) -> None:
    """Keep for a person what contradicts an operation that is known."""
    async with store.transaction() as tx:
        row = [event.operation, event.digest, problem.code]
        await tx.execute("INSERT INTO strange VALUES (?, ?, ?) ON CONFLICT DO NOTHING", row)


async def handle(store: AsyncStore, message: Msg) -> None:
    """Apply one message and answer the stream, in this order: a death in between brings it again, and harms nothing."""
    try:
        event = read_nats(message)
    except tenure.Invalid as problem:  # no event of an outbox; it will be none the next time
        print(f"not an event: {problem.code}", flush=True)
        await message.term()
        return
    try:
        new = await apply(store, event)
    except tenure.Conflict as problem:
        # One name for two meanings: never applied, and not asked for again.
        await put_aside(store, event, problem)
        print(f"{event.operation}: {problem.code}", flush=True)
        await message.term()
    except Exception as problem:  # noqa: BLE001 - the database is away, or this program is wrong: others go on
        print(f"{event.operation}: not now, {type(problem).__name__}", flush=True)
        await message.nak(delay=AGAIN)
    else:
        await message.ack()
        print(f"{event.operation}: {'written' if new else 'known'}", flush=True)


async def main(url: str, servers: str, stream: str) -> None:
    """Consume until a signal asks to stop."""
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    store = await tenure.open_async_store(url)
    await store.migrate()
    async with store.transaction() as tx:
        for statement in TABLES.split(";")[:-1]:
            await tx.execute(statement)
    client = await nats.connect(servers)
    # Durable: the stream remembers what was acknowledged, and brings the rest to whoever asks next.
    subscription = await client.jetstream().pull_subscribe(f"{stream}.>", durable="invoices", stream=stream)
    while not stopping.is_set():
        with contextlib.suppress(nats.errors.TimeoutError):
            for message in await subscription.fetch(50, timeout=1):
                await handle(store, message)
    await client.close()
    await store.close()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python consume_from_nats.py sqlite:///books.db nats://127.0.0.1:4222 quotes")
    asyncio.run(main(*sys.argv[1:]))
