"""
pgmq 1.1.4, the Python client with asyncpg and uvloop, on the SQL that it ships (no extension is built), reads of 250.

It is a queue of messages with a visibility timeout and no more: the loop below is ours, there is no worker, no retry
limit, no lease to renew, no idempotency key, no trail, no fence (a message that became visible again is deleted by the
late reader all the same). What is done is deleted, so that a finished job is known only from its absence.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
import uvloop  # type: ignore[import-not-found,unused-ignore]
from pgmq.async_queue import PGMQueue  # type: ignore[import-not-found,unused-ignore]
from pgmq.install import get_embedded_install_sql  # type: ignore[import-not-found,unused-ignore]

from bench.protocol import Adapter, Producer, Stop, main
from bench.tally import Tally

BATCH = 250
IDLE = 0.01


def setup(url: str) -> None:
    """Run the SQL install and make one logged queue."""
    with psycopg.connect(url) as connection:
        connection.execute(get_embedded_install_sql())
        connection.execute("SELECT pgmq.create('noop')")


def _queue(url: str) -> PGMQueue:
    return PGMQueue(conn_string=url, init_extension=False)


@contextmanager
def producer(url: str, mode: str) -> Iterator[Producer]:
    """Send a thousand messages in a statement."""
    del mode
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        queue = _queue(url)
        runner.run(queue.init())

        async def put(numbers: Sequence[int]) -> None:
            for first in range(0, len(numbers), 1000):
                await queue.send_batch("noop", [{"n": one} for one in numbers[first : first + 1000]])

        async def put_one(number: int) -> int:
            await queue.send("noop", {"n": number})
            return time.monotonic_ns()

        yield Producer(lambda numbers: runner.run(put(numbers)), lambda number: runner.run(put_one(number)))
        runner.run(queue.close())


def work(url: str, mode: str, tally: Tally, stop: Stop) -> None:
    """Read, handle, delete; ended where it is."""
    del mode, stop

    async def noop(message: dict[str, int]) -> None:
        tally.mark(message["n"])

    async def run() -> None:
        queue = _queue(url)
        await queue.init()
        while True:
            taken = await queue.read_batch("noop", vt=60, batch_size=BATCH)
            if not taken:
                await asyncio.sleep(IDLE)
                continue
            for one in taken:
                await noop(one.message)
            await queue.delete_batch("noop", [one.msg_id for one in taken])

    uvloop.run(run())


ADAPTER = Adapter("bench.peers.pgmq", setup, producer, work, left="SELECT count(*) FROM pgmq.q_noop")

if __name__ == "__main__":
    main(ADAPTER)
