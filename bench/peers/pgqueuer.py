"""
PgQueuer 1.6.0 with asyncpg and uvloop, claims of 250.

Beside us its log has a row for each status, without who claimed a job and under what lease; it has no fence (an outcome
is written by the job's id alone, however late), no record of outside acts, no digest of what a key meant, and its
completions are buffered up to a tenth of a second in memory: those of a worker killed then run again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import asyncpg  # type: ignore[import-not-found,import-untyped,unused-ignore]
import uvloop  # type: ignore[import-not-found,unused-ignore]
from pgqueuer import PgQueuer  # type: ignore[import-not-found,unused-ignore]
from pgqueuer.db import AsyncpgDriver  # type: ignore[import-not-found,unused-ignore]
from pgqueuer.queries import Queries  # type: ignore[import-not-found,unused-ignore]

from bench.protocol import Adapter, Producer, Stop, main
from bench.tally import Tally

BATCH = 250


def setup(url: str) -> None:
    """Install with its own default, every table logged."""

    async def install() -> None:
        connection = await asyncpg.connect(url)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    uvloop.run(install())


@contextmanager
def producer(url: str, mode: str) -> Iterator[Producer]:
    """Use its bulk insert: one statement over arrays, one commit; without its dedupe keys, which make it slower."""
    del mode
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        connection = runner.run(asyncpg.connect(url))
        queries = Queries(AsyncpgDriver(connection))

        async def put(numbers: Sequence[int]) -> None:
            await queries.enqueue(
                ["noop"] * len(numbers),
                [b"%d" % one for one in numbers],
                [0] * len(numbers),
            )

        async def put_one(number: int) -> int:
            await queries.enqueue("noop", b"%d" % number)
            return time.monotonic_ns()

        yield Producer(lambda numbers: runner.run(put(numbers)), lambda number: runner.run(put_one(number)))
        runner.run(connection.close())


def work(url: str, mode: str, tally: Tally, stop: Stop) -> None:
    """Run its worker; it is ended where it is."""
    del mode, stop

    async def run() -> None:
        worker = PgQueuer(AsyncpgDriver(await asyncpg.connect(url)))

        @worker.entrypoint("noop")  # type: ignore[untyped-decorator,unused-ignore]
        async def noop(job: object) -> None:
            tally.mark(int(job.payload))  # type: ignore[attr-defined]

        await worker.run(batch_size=BATCH)

    uvloop.run(run())


ADAPTER = Adapter(
    "bench.peers.pgqueuer",
    setup,
    producer,
    work,
    left="SELECT count(*) FROM pgqueuer",
    done={"its log": "SELECT count(*), count(DISTINCT job_id) FROM pgqueuer_log WHERE status = 'successful'"},
)

if __name__ == "__main__":
    main(ADAPTER)
