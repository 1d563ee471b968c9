"""
Absurd, its Python SDK 0.5.1 with the asyncio client, and its schema from absurdctl 0.5.1.

Beside us it has no effect in our sense: a step remembers its result, and what a step did outside before its result was
written is done again. No evidence is asked for, no fence stands in front of a late checkpoint but the state of the run,
there is no trail, and a result is kept per task and not per attempt.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd  # type: ignore[import-not-found,unused-ignore]

from bench.protocol import STEP, Adapter, Producer, Stop, main
from bench.tally import Tally

# Its asyncio worker has one connection, on which everything stands in line: more does not help.
CONCURRENCY = 100


def setup(url: str) -> None:
    """Let its own tool make the schema, and make a queue."""
    tool = Path(sys.executable).with_name("absurdctl")
    subprocess.run([tool, "init", "-d", url], capture_output=True, check=True)
    with psycopg.connect(url) as connection:
        connection.execute("SELECT absurd.create_queue('default')")


@contextmanager
def producer(url: str, mode: str) -> Iterator[Producer]:
    """Spawn one by one: it has no bulk way. Without its idempotency keys, which make it slower."""
    with asyncio.Runner() as runner:

        async def opened() -> Any:
            return AsyncAbsurd(await psycopg.AsyncConnection.connect(url, autocommit=True))

        app = runner.run(opened())

        async def put_one(number: int) -> int:
            await app.spawn(mode, {"n": number}, queue="default")
            return time.monotonic_ns()

        async def put(numbers: Sequence[int]) -> None:
            async with app._conn.transaction():  # noqa: SLF001 - one commit for all, which its API has no word for
                for one in numbers:
                    await put_one(one)

        yield Producer(lambda numbers: runner.run(put(numbers)), lambda number: runner.run(put_one(number)))
        runner.run(app._conn.close())  # noqa: SLF001


def work(url: str, mode: str, tally: Tally, stop: Stop) -> None:
    """Run its worker; ended where it is."""
    del stop

    async def run() -> None:
        app = AsyncAbsurd(url)

        @app.register_task(name=mode)  # type: ignore[untyped-decorator,unused-ignore]
        async def handle(params: dict[str, int], ctx: Any) -> None:
            async def act() -> str:
                tally.mark(params["n"])
                return f"receipt-{params['n']}"

            if mode == STEP:
                await ctx.step("act", act)
            else:
                await act()

        await app.start_worker(concurrency=CONCURRENCY, poll_interval=0.05)

    asyncio.run(run())


ADAPTER = Adapter(
    "bench.peers.absurd",
    setup,
    producer,
    work,
    left="SELECT count(*) FROM absurd.t_default WHERE state <> 'completed'",
    done={"its tasks": "SELECT count(*), count(DISTINCT params->>'n') FROM absurd.t_default WHERE state = 'completed'"},
    steps={"its checkpoints": "SELECT count(*), count(DISTINCT task_id) FROM absurd.c_default"},
)

if __name__ == "__main__":
    main(ADAPTER)
