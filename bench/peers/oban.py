"""
Oban for Python 0.7.0 (needs Python 3.12), with uvloop as its own command line does.

Beside us it has no fence (an acknowledgement names the job's id alone, however late), no trail (one row per job with
its newest state), no record of outside acts and, without the paid add-on, no unique jobs, no bulk acknowledgement and
no accurate rescue: what was running when a worker died is retried after a time, whatever it may have done.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvloop  # type: ignore[import-not-found,unused-ignore]
from oban import Oban, worker  # type: ignore[import-not-found,unused-ignore]
from oban.schema import install  # type: ignore[import-not-found,unused-ignore]
from psycopg_pool import AsyncConnectionPool

from bench.protocol import Adapter, Producer, Stop, main
from bench.tally import Tally

LIMIT = 200


def _pool(url: str) -> AsyncConnectionPool[Any]:
    return AsyncConnectionPool(url, min_size=2, max_size=10, open=False)


def setup(url: str) -> None:
    """Install its schema."""

    async def run() -> None:
        async with _pool(url) as pool:
            await install(pool)

    uvloop.run(run())


@worker(queue="default")  # type: ignore[untyped-decorator,unused-ignore]
class Noop:
    """The kind that does nothing."""

    tally: Tally

    async def process(self, job: Any) -> None:
        """Mark the job's number."""
        self.tally.mark(job.args["n"])


@contextmanager
def producer(url: str, mode: str) -> Iterator[Producer]:
    """Insert a thousand in a statement; its insert trigger notifies the workers."""
    del mode
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        pool = _pool(url)
        runner.run(pool.open(wait=True))

        async def make() -> Any:
            return Oban(pool=pool)

        client = runner.run(make())
        kind: Any = Noop

        async def put(numbers: Sequence[int]) -> None:
            for first in range(0, len(numbers), 1000):
                await client.enqueue_many([kind.new({"n": one}) for one in numbers[first : first + 1000]])

        async def put_one(number: int) -> int:
            await client.enqueue(kind.new({"n": number}))
            return time.monotonic_ns()

        yield Producer(lambda numbers: runner.run(put(numbers)), lambda number: runner.run(put_one(number)))
        runner.run(pool.close())


def work(url: str, mode: str, tally: Tally, stop: Stop) -> None:
    """Run its worker with one queue; ended where it is."""
    del mode, stop
    Noop.tally = tally

    async def run() -> None:
        async with _pool(url) as pool, Oban(pool=pool, queues={"default": LIMIT}):
            await asyncio.Event().wait()

    uvloop.run(run())


ADAPTER = Adapter(
    "bench.peers.oban",
    setup,
    producer,
    work,
    left="SELECT count(*) FROM oban_jobs WHERE state <> 'completed'",
    done={"its jobs": "SELECT count(*), count(DISTINCT args->>'n') FROM oban_jobs WHERE state = 'completed'"},
)

if __name__ == "__main__":
    main(ADAPTER)
