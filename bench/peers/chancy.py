"""
Chancy 0.26.0 with its asyncio executor and notifications on.

It has a fence like ours: an update must name the claim that is current. It has no trail (one row per job with its
newest state) and no record of outside acts, and its finished jobs are written in batches once a second, so that those
of a worker killed before that run again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from chancy import Chancy, Queue, Worker, job  # type: ignore[import-not-found,unused-ignore]

from bench.protocol import Adapter, Producer, Stop, main
from bench.tally import Tally

LIMIT = 200
_tally: list[Tally] = []
# Its own logger says a line for each job it takes; at warnings it is as quiet as the others.
_LOG = logging.getLogger("chancy.bench")
_LOG.setLevel(logging.WARNING)


@job(queue="default")  # type: ignore[untyped-decorator,unused-ignore]
async def noop(*, n: int) -> None:
    """Mark the job's number."""
    _tally[0].mark(n)


def setup(url: str) -> None:
    """Migrate, and declare a queue with its asyncio executor."""

    async def run() -> None:
        async with Chancy(url, log=_LOG) as app:
            await app.migrate()
            await app.declare(Queue("default", concurrency=LIMIT, executor=Chancy.Executor.Async, eager_polling=True))

    asyncio.run(run())


@contextmanager
def producer(url: str, mode: str) -> Iterator[Producer]:
    """Push a thousand in a transaction."""
    del mode
    with asyncio.Runner() as runner:
        app = Chancy(url, log=_LOG)
        runner.run(app.__aenter__())

        async def put(numbers: Sequence[int]) -> None:
            async for _ in app.push_many([_job(one) for one in numbers]):
                pass

        async def put_one(number: int) -> int:
            await app.push(_job(number))
            return time.monotonic_ns()

        yield Producer(lambda numbers: runner.run(put(numbers)), lambda number: runner.run(put_one(number)))
        runner.run(app.__aexit__(None, None, None))


def _job(number: int) -> object:
    # The worker finds the function by its import path, which is __main__ in both processes.
    return noop.job.with_kwargs(n=number)


def work(url: str, mode: str, tally: Tally, stop: Stop) -> None:
    """Run its worker; ended where it is."""
    del mode, stop
    _tally.append(tally)

    async def run() -> None:
        async with Chancy(url, log=_LOG) as app, Worker(app, register_signal_handlers=False):
            await asyncio.Event().wait()

    asyncio.run(run())


ADAPTER = Adapter(
    "bench.peers.chancy",
    setup,
    producer,
    work,
    left="SELECT count(*) FROM chancy_jobs WHERE state <> 'succeeded'",
    done={"its jobs": "SELECT count(*), count(DISTINCT kwargs->>'n') FROM chancy_jobs WHERE state = 'succeeded'"},
)

if __name__ == "__main__":
    main(ADAPTER)
