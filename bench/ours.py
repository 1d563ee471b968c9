"""
tenure itself, measured as every other system is: `python -m bench.ours drain URL --jobs 10000`.

Its checks go further than the others': besides one outcome for each job, the trail must have one claim and one
completion of each, and each recorded effect must have succeeded.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import tenure
from bench import protocol
from bench.protocol import NOOP, STEP, Adapter, Producer, Stop
from bench.store import Eye, wait_for
from bench.tally import Tally
from bench.verify import Unverified, check_stored
from tenure.procedures.claim_batch import claim_batch
from tenure.procedures.complete_batch import complete_batch, completion
from tenure.procedures.enqueue import create
from tenure.rules.creation import NewJob
from tenure.stores import open_async_store, open_store
from tenure.stores.contract import AsyncStore

# A claim fills what is free, and handlers that do nothing leave soon: with 200 a drain is a third slower. The others
# have no such limit, or batches of their own.
CONCURRENCY = 800
BULK = 1000
# The loop of claims and completions without handlers.
BATCH, CONNECTIONS = 100, 4


class Desk(tenure.Provider):
    """A provider in this process that accepts everything."""

    name = "desk"
    timeout = timedelta(seconds=10)

    def __init__(self, tally: Tally | None) -> None:
        self._tally = tally

    async def send(self, request: Any, operation_key: str) -> tenure.Outcome:
        """Mark the act and give a receipt."""
        assert self._tally is not None, "a producer has no handlers"
        self._tally.mark(request["n"])
        return tenure.Succeeded({"receipt": operation_key})


def application(url: str, tally: Tally | None = None) -> tenure.Tenure:
    """Make the app: a kind that does nothing, and a kind that records one effect."""
    desk = Desk(tally)
    app = tenure.Tenure(url, organization="bench", project="bench", actor="bench", providers=[desk])

    @app.job(NOOP)
    async def noop(ctx: tenure.AsyncContext, payload: dict[str, Any]) -> None:
        del ctx
        assert tally is not None, "a producer has no handlers"
        tally.mark(payload["n"])

    @app.job(STEP)
    async def step(ctx: tenure.AsyncContext, payload: dict[str, Any]) -> Any:
        return await ctx.effect("act", desk, {"n": payload["n"]})

    return app


def setup(url: str) -> None:
    """Make the schema."""
    store = open_store(url)
    store.migrate()
    store.close()


def prepared(app: tenure.Tenure, mode: str, numbers: Sequence[int]) -> list[NewJob]:
    """Check jobs and give them an idempotency key each."""
    return [app.prepare(mode, {"n": one}, key=f"key-{one}") for one in numbers]


@contextmanager
def producer(url: str, mode: str) -> Iterator[Producer]:
    """Prepare (which checks payloads and makes digests) and enqueue a thousand in a transaction."""
    app = application(url)
    assert app.store.pending_migrations() == []

    def put(numbers: Sequence[int]) -> None:
        for first in range(0, len(numbers), BULK):
            made = app.enqueue_many(prepared(app, mode, numbers[first : first + BULK]))
            assert all(one.created for one in made)

    def put_one(number: int) -> int:
        made = app.store.run(create(prepared(app, mode, [number])))
        committed = time.monotonic_ns()
        assert made[0].created
        return committed

    yield Producer(put, put_one)
    app.close()


def work(url: str, mode: str, tally: Tally, stop: Stop) -> None:
    """Run a worker until it is told to end; it drains what it has."""
    del mode
    app = application(url, tally)

    async def run_worker() -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        async with app.worker(concurrency=CONCURRENCY):
            stop.tell(lambda: loop.call_soon_threadsafe(ended.set))
            await ended.wait()
        await app.aclose()

    run(run_worker())


def run(body: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop where the command line asked for it."""
    factory = None
    if os.environ.get("BENCH_UVLOOP"):
        import uvloop  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - an option

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(body)


def bulk(to: argparse.Namespace) -> dict[str, Any]:
    """Measure the bulk enqueue, then hold it to its promises: again makes nothing, another payload is refused."""
    found = protocol.bulk(ADAPTER, to.url, to.jobs)
    app = application(to.url)
    again = app.enqueue_many(prepared(app, NOOP, range(to.jobs)))
    if any(one.created for one in again):
        raise Unverified("enqueuing the same keys again created jobs")
    try:
        app.enqueue(NOOP, {"n": -1}, key="key-0")
    except tenure.Conflict:
        return found
    else:
        raise Unverified("another payload was taken under a key in use")
    finally:
        app.close()


def cycle(to: argparse.Namespace) -> dict[str, Any]:
    """Claim and complete through the procedures, a hundred at a time on four connections, without any handler."""
    setup(to.url)
    with producer(to.url, NOOP) as put:
        put.many(range(to.jobs))
    eye = Eye(to.url, ADAPTER.prefixes)
    eye.settle()
    seconds: list[float] = []

    async def every() -> None:
        store = await open_async_store(to.url)
        try:
            start = time.perf_counter()
            await asyncio.gather(*(one(store, f"cycle-{number}") for number in range(CONNECTIONS)))
            seconds.append(time.perf_counter() - start)
        finally:
            await store.close()

    async def one(store: AsyncStore, name: str) -> None:
        cursor: Any = None
        while True:
            taken = await store.run(claim_batch(name, [NOOP], limit=BATCH, queues=["default"], cursor=cursor))
            if not taken.claims and cursor is None:
                return
            # None where the claim came back short: the next one looks anew.
            cursor = taken.cursor
            ends = [completion(one.lease, one.job.tenant, None) for one in taken.claims]
            done = await store.run(complete_batch([end for end in ends if end is not None]))
            assert len(done) == len(taken.claims)

    run(every())
    for what, statement in ADAPTER.done.items():
        check_stored(to.jobs, what, eye.row(statement))
    eye.close()
    return {"seconds": seconds[0], "rate": to.jobs / seconds[0]}


def idle(to: argparse.Namespace) -> dict[str, Any]:
    """Let a worker find nothing, `--jobs` seconds long."""
    setup(to.url)
    with protocol.crew(ADAPTER, to.url, 1, NOOP) as workers:
        workers.go()
        start = time.monotonic()
        wait_for(lambda: time.monotonic() - start >= to.jobs, "the time", to.jobs + 60, pause=0.5)
        lasted = time.monotonic() - start
        report = workers.end()[0]
    return {"seconds": lasted, "core_percent": report["cpu_s"] / lasted * 100, "peak_mb": report["peak_mb"]}


_TRAIL = "SELECT count(*), count(DISTINCT job_id) FROM {}event WHERE name = "

ADAPTER = Adapter(
    "bench.ours",
    setup,
    producer,
    work,
    left="SELECT (SELECT count(*) FROM {}ready) + (SELECT count(*) FROM {}lease) + (SELECT count(*) FROM {}deferred)"
    " + (SELECT count(*) FROM {}resting)",
    done={
        "outcomes": "SELECT count(*), count(DISTINCT job_id) FROM {}outcome WHERE status = 'completed'",
        "claims in the trail": _TRAIL + "'claimed'",
        "completions in the trail": _TRAIL + "'completed'",
    },
    steps={"effects": "SELECT count(*), count(DISTINCT job_id) FROM {}effect WHERE state = 'succeeded'"},
    prefixes=("tenure.", "tenure_"),
)

if __name__ == "__main__":
    protocol.main(ADAPTER, more={"bulk": bulk, "cycle": cycle, "idle": idle})
