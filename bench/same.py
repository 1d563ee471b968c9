"""
The bare driver with our own statements: what is left of claim and completion when nothing around the SQL is done.

    python -m bench.same cycle URL --jobs 10000

No procedures, no records, no rules, no retries: the two hot statements of the package as they are, arrays in binary, on
as many connections as `bench.ours cycle` uses. The difference between the two is what our Python costs; the difference
to `bench.raw` is what the fence, the authority and the rest of the statements cost. PostgreSQL only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any
from uuid import UUID, uuid4

import psycopg

from bench.ours import ADAPTER, BATCH, CONNECTIONS, producer, setup
from bench.protocol import NOOP
from bench.store import Eye
from bench.verify import check_stored
from tenure.stores.statements import load

# Where a claimed row has what its completion needs.
_JOB, _TENANT, _GENERATION, _RUN_AT, _ATTEMPT = 1, 2, 4, 8, 10
_BEGINNING = (0, UUID(int=0))


async def _loop(url: str, name: str) -> int:
    texts = {key: one.sql for key, one in load("tenure.stores.postgres").items()}
    done, front = 0, _BEGINNING
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as run:
        while True:
            found = await run.execute(texts["claim_batch"], _claim(name, front), prepare=True, binary=True)
            rows = await found.fetchall()
            if not rows and front == _BEGINNING:
                return done
            # As the worker does: go on behind the last row, and look from the beginning when a claim came back short.
            front = (rows[-1][_RUN_AT], rows[-1][_JOB]) if len(rows) == BATCH else _BEGINNING
            if not rows:
                continue
            async with run.pipeline(), run.transaction():
                tenants = sorted({row[_TENANT] for row in rows})
                locked = {"tenants": tenants, "job_ids": [row[_JOB] for row in rows]}
                await run.execute(texts["lease_lock"], locked, prepare=True, binary=True)
                ended = await run.execute(texts["complete_batch"], _complete(name, rows), prepare=True, binary=True)
            done += ended.rowcount


def _claim(name: str, front: tuple[int, UUID]) -> dict[str, list[Any]]:
    place: dict[str, list[Any]] = {
        "queue": ["default"],
        "lane": [""],
        "priority": [0],
        "bound": [front[0]],
        "bound_id": [front[1]],
        "below": [False],
        "share": [BATCH],
        "before": [0],
    }
    claim = uuid4()
    scope: dict[str, list[Any]] = {
        "tenant": [None],
        "organization": [None],
        "kinds": [json.dumps([NOOP])],
        "owner": [None],
    }
    who: dict[str, list[Any]] = {
        "worker_id": [name],
        "worker_json": [json.dumps(name)],
        "claim_id": [claim],
        "command_id": [claim],
    }
    return {**place, **scope, **who, "lease_us": [None], "limit": [BATCH]}


def _complete(name: str, rows: list[Any]) -> dict[str, list[Any]]:
    return {
        "job_id": [row[_JOB] for row in rows],
        "tenant": [row[_TENANT] for row in rows],
        "generation": [row[_GENERATION] for row in rows],
        "attempt_id": [row[_ATTEMPT] for row in rows],
        "worker_id": [name] * len(rows),
        "result": ["null"] * len(rows),
        "command_id": [uuid4()] * len(rows),
    }


def cycle(url: str, jobs: int) -> float:
    """Claim and complete everything; give the seconds."""
    setup(url)
    with producer(url, NOOP) as put:
        put.many(range(jobs))
    eye = Eye(url, ADAPTER.prefixes)
    eye.settle()

    async def every() -> float:
        start = time.perf_counter()
        done = await asyncio.gather(*(_loop(url, f"same-{number}") for number in range(CONNECTIONS)))
        assert sum(done) == jobs
        return time.perf_counter() - start

    seconds = asyncio.run(every())
    for what, statement in ADAPTER.done.items():
        check_stored(jobs, what, eye.row(statement))
    eye.close()
    return seconds


def main() -> None:
    """Measure and print one JSON line, as `bench.protocol` does for a system."""
    parser = argparse.ArgumentParser(prog="python -m bench.same")
    parser.add_argument("work", choices=("cycle",))
    parser.add_argument("url")
    parser.add_argument("--jobs", type=int, default=1000)
    given = parser.parse_args()
    seconds = cycle(given.url, given.jobs)
    found = {"system": "bench.same", "work": given.work, "jobs": given.jobs, "seconds": seconds}
    sys.stdout.write(json.dumps({**found, "rate": given.jobs / seconds}) + "\n")


if __name__ == "__main__":
    main()
