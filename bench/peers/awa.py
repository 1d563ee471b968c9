"""
awa-pg 0.6.9 (a Rust core under Python handlers; 0.6 ends there), on its queue storage, COPY for bulk.

Beside us it has a guard for late completions, but no trail (finished jobs are kept as a count once their segment is
rotated away), no record of outside acts, no idempotency key in its COPY path, and a job whose worker died is run again
whatever it had done.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import awa  # type: ignore[import-not-found,unused-ignore]

from bench.protocol import Adapter, Producer, Stop, main
from bench.tally import Tally

WORKERS = 256


@dataclass
class Noop:
    """A job that does nothing."""

    n: int


def setup(url: str) -> None:
    """Migrate, and switch its queue storage on, which the fast paths need."""

    async def run() -> None:
        async with awa.AsyncClient(url) as client:
            await client.migrate()
            await client.install_queue_storage(schema="awa", reset=True)

    asyncio.run(run())


@contextmanager
def producer(url: str, mode: str) -> Iterator[Producer]:
    """Stream all jobs by COPY in one call."""
    del mode
    with asyncio.Runner() as runner:

        async def opened() -> Any:
            return awa.AsyncClient(url)

        client = runner.run(opened())

        async def put(numbers: Sequence[int]) -> None:
            await client.enqueue_many_copy([Noop(one) for one in numbers], queue="default")

        async def put_one(number: int) -> int:
            await client.insert(Noop(number), queue="default")
            return time.monotonic_ns()

        yield Producer(lambda numbers: runner.run(put(numbers)), lambda number: runner.run(put_one(number)))
        runner.run(client.close())


def work(url: str, mode: str, tally: Tally, stop: Stop) -> None:
    """Run its worker; ended where it is."""
    del mode, stop

    async def run() -> None:
        client = awa.AsyncClient(url)

        @client.task(Noop, queue="default")  # type: ignore[untyped-decorator,unused-ignore]
        async def noop(job: Any) -> None:
            tally.mark(job.args.n)

        await client.start([("default", WORKERS)])
        await asyncio.Event().wait()

    asyncio.run(run())


# A finished job is a row at first and soon a number.
_DONE = (
    "(SELECT count(*) FROM {}terminal_jobs WHERE state = 'completed')"
    " + (SELECT coalesce(sum(pruned_completed_count), 0) FROM {}queue_terminal_rollups)"
)

ADAPTER = Adapter(
    "bench.peers.awa",
    setup,
    producer,
    work,
    left="SELECT count(*) FROM {}jobs WHERE state <> 'completed'",
    done={"its finished jobs, rows and counted": f"SELECT done, done FROM (SELECT {_DONE} AS done) AS found"},  # noqa: S608
    prefixes=("awa.", ""),
)

if __name__ == "__main__":
    main(ADAPTER)
