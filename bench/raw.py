"""
The floor: the bare drivers writing the same rows, with no rules, no records and no checks.

What is compared is what a person would write by hand for this one purpose: prepared rows, one transaction a batch.

    python -m bench.raw cycle URL --jobs 10000     also bulk, single

The schema must be there already; `python -m bench` and the comparisons see to that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import sys
import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from bench.store import SQLITE, is_postgres

BATCH, CONNECTIONS, BULK = 100, 4, 1000

_JOB = (
    "job_id, tenant, organization, project, idempotency_key, kind, kind_version, queue, priority, payload, "
    "attempts_max, backoff_us, lease_us, scheduled_at, created_at, on_declined, payload_digest, operation_digest"
)
_READY = "job_id, tenant, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch"
_LEASE = (
    "job_id, tenant, status, worker_id, attempt_id, claim_id, expires_at, lease_us, claimed_at, run_at, generation, "
    "attempt, attempts_max, epoch"
)
_OUTCOME = "job_id, tenant, status, run_at, generation, attempt, attempts_max, epoch, result, finished_at"
_KEY = "tenant, project, idempotency_key, job_id, organization, kind, payload_digest"
_EVENT = "job_id, tenant, name, at, generation, status, data, command_id"
_DIGEST = "v1:" + "0" * 64


class RawSqlite:
    """sqlite3 alone."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")

    def enqueue(self, jobs: int, each: int) -> float:
        """Write jobs, `each` of them in one transaction; give the seconds."""
        start = time.perf_counter()
        for first in range(0, jobs, each):
            self._many([_new() for _ in range(first, min(first + each, jobs))])
        return time.perf_counter() - start

    def _many(self, rows: Sequence[tuple[Any, ...]]) -> None:
        run = self._connection
        run.execute("BEGIN IMMEDIATE")
        run.executemany(_insert("tenure_job_key", _KEY), [_key_row(row) for row in rows])
        run.executemany(_insert("tenure_job", _JOB), [_job_row(row) for row in rows])
        run.executemany(_insert("tenure_ready", _READY), [_ready_row(row) for row in rows])
        run.execute("COMMIT")

    def drain(self) -> tuple[int, float]:
        """Claim and complete everything that is ready, a hundred at a time."""
        run, done, start = self._connection, 0, time.perf_counter()
        while True:
            run.execute("BEGIN IMMEDIATE")
            rows = run.execute(
                "SELECT job_id, run_at FROM tenure_ready WHERE queue = 'default' AND lane = '' "
                "ORDER BY priority DESC, run_at, job_id LIMIT ?",
                (BATCH,),
            ).fetchall()
            if not rows:
                run.execute("COMMIT")
                return done, time.perf_counter() - start
            claim = str(uuid4())
            run.executemany("DELETE FROM tenure_ready WHERE job_id = ? AND generation = 0", [(r[0],) for r in rows])
            run.executemany(
                _insert("tenure_lease", _LEASE), [_lease_row(r[0], r[1], claim, str(uuid4())) for r in rows]
            )
            run.executemany(
                _insert("tenure_event", _EVENT), [_event_row(r[0], "claimed", "running", claim) for r in rows]
            )
            run.execute("COMMIT")
            run.execute("BEGIN IMMEDIATE")
            run.executemany("DELETE FROM tenure_lease WHERE job_id = ? AND generation = 1", [(r[0],) for r in rows])
            run.executemany(_insert("tenure_outcome", _OUTCOME), [_outcome_row(r[0], r[1]) for r in rows])
            run.executemany(
                _insert("tenure_event", _EVENT), [_event_row(r[0], "completed", "completed", claim) for r in rows]
            )
            run.execute("COMMIT")
            done += len(rows)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class RawPostgres:
    """psycopg alone: binary arrays, prepared statements, pipelines."""

    def __init__(self, url: str) -> None:
        import psycopg  # noqa: PLC0415 - an extra

        self._url = url
        self._connection = psycopg.connect(url, autocommit=True)

    def enqueue(self, jobs: int, each: int) -> float:
        """See `RawSqlite.enqueue`."""
        start = time.perf_counter()
        for first in range(0, jobs, each):
            rows = [_new() for _ in range(first, min(first + each, jobs))]
            with self._connection.pipeline(), self._connection.transaction():
                self._write("job_key", _KEY, [_key_row(row) for row in rows])
                self._write("job", _JOB, [_job_row(row) for row in rows])
                self._write("ready", _READY, [_ready_row(row) for row in rows])
        return time.perf_counter() - start

    def _write(self, table: str, columns: str, rows: Sequence[tuple[Any, ...]]) -> None:
        self._connection.execute(*_insert_many(table, columns, rows), prepare=True)

    def drain(self) -> tuple[int, float]:
        """See `RawSqlite.drain`; on four connections of one event loop, which the server's two cores can take."""
        return asyncio.run(self._drain())

    async def _drain(self) -> tuple[int, float]:
        import psycopg  # noqa: PLC0415 - an extra

        connections = [await psycopg.AsyncConnection.connect(self._url, autocommit=True) for _ in range(CONNECTIONS)]
        start = time.perf_counter()
        done = await asyncio.gather(*(_claim_and_complete(connection) for connection in connections))
        seconds = time.perf_counter() - start
        for connection in connections:
            await connection.close()
        return sum(done), seconds

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


async def _claim_and_complete(run: Any) -> int:
    done = 0
    while True:
        claim = uuid4()
        found = await run.execute(_CLAIM, {"limit": BATCH, "claim": claim, "now": _now()}, prepare=True, binary=True)
        ids = [row[0] for row in await found.fetchall()]
        if not ids:
            return done
        await run.execute(_COMPLETE, {"ids": ids, "claim": claim, "now": _now()}, prepare=True)
        done += len(ids)


# One statement and one commit each: less than this nobody can write for these rows.
_CLAIM = f"""
WITH picked AS MATERIALIZED (
    SELECT job_id, tenant, run_at, attempts_max, epoch FROM tenure.ready WHERE queue = 'default' AND lane = ''
    ORDER BY priority DESC, run_at, job_id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM tenure.ready WHERE job_id = ANY(ARRAY(SELECT job_id FROM picked))
), leased AS (
    INSERT INTO tenure.lease ({_LEASE})
    SELECT job_id, tenant, 'running', 'raw', gen_random_uuid(), %(claim)s, %(now)s + 60000000, 60000000, %(now)s,
           run_at, 1, 1, attempts_max, epoch FROM picked
), told AS (
    INSERT INTO tenure.event ({_EVENT})
    SELECT job_id, tenant, 'claimed', %(now)s, 1, 'running', '{{"worker":"raw","attempt":1}}', %(claim)s FROM picked
)
SELECT job_id FROM picked
"""  # noqa: S608 - names of this file
_COMPLETE = f"""
WITH gone AS (
    DELETE FROM tenure.lease WHERE job_id = ANY(%(ids)b) AND generation = 1
    RETURNING job_id, tenant, run_at, attempts_max, epoch
), ended AS (
    INSERT INTO tenure.outcome ({_OUTCOME})
    SELECT job_id, tenant, 'completed', run_at, 1, 1, attempts_max, epoch, 'null', %(now)s FROM gone
)
INSERT INTO tenure.event ({_EVENT})
SELECT job_id, tenant, 'completed', %(now)s, 1, 'completed', '{{"worker":"raw","attempt":1}}', %(claim)s FROM gone
"""  # noqa: S608 - names of this file


def _insert_many(table: str, columns: str, rows: Sequence[tuple[Any, ...]]) -> tuple[str, list[list[Any]]]:
    names = columns.split(", ")
    arrays = ", ".join(f"%b::{_TYPES.get(name, 'text')}[]" for name in names)
    picked = ", ".join(f"{name}::json" if name in _JSON else name for name in names)
    # Names of this file, nothing from outside.
    statement = f"INSERT INTO tenure.{table} ({columns}) SELECT {picked} FROM unnest({arrays}) AS given ({columns})"  # noqa: S608
    return statement, [list(column) for column in zip(*rows, strict=True)]


_BIG = {
    "backoff_us",
    "lease_us",
    "scheduled_at",
    "created_at",
    "run_at",
    "generation",
    "epoch",
    "expires_at",
    "claimed_at",
    "finished_at",
    "at",
}
_INT = {"kind_version", "priority", "attempts_max", "attempt"}
_IDS = {"job_id", "attempt_id", "claim_id", "command_id"}
_JSON = {"payload", "result", "data"}
_TYPES = {**dict.fromkeys(_BIG, "bigint"), **dict.fromkeys(_INT, "integer"), **dict.fromkeys(_IDS, "uuid")}


def _insert(table: str, columns: str) -> str:
    marks = ", ".join("?" * len(columns.split(", ")))
    return f"INSERT INTO {table} ({columns}) VALUES ({marks})"  # noqa: S608 - names of this file


def _now() -> int:
    return time.time_ns() // 1000


def _new() -> tuple[Any, ...]:
    job_id = str(uuid4())
    return (job_id, f"raw-{job_id}", _now())


def _key_row(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return ("raw", "bench", row[1], row[0], "raw", "noop", _DIGEST)


def _job_row(row: tuple[Any, ...]) -> tuple[Any, ...]:
    job_id, key, now = row
    limits = (3, 30_000_000, 60_000_000, now, now, "failed", _DIGEST, _DIGEST)
    return (job_id, "raw", "raw", "bench", key, "noop", 1, "default", 0, '{"n":1}', *limits)


def _ready_row(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (row[0], "raw", "raw", "noop", "default", "", 0, row[2], 0, 0, 3, 1)


def _lease_row(job_id: str, run_at: int, claim: str, attempt: str) -> tuple[Any, ...]:
    now = _now()
    return (job_id, "raw", "running", "raw", attempt, claim, now + 60_000_000, 60_000_000, now, run_at, 1, 1, 3, 1)


def _outcome_row(job_id: str, run_at: int) -> tuple[Any, ...]:
    return (job_id, "raw", "completed", run_at, 1, 1, 3, 1, "null", _now())


def _event_row(job_id: str, name: str, status: str, command: str) -> tuple[Any, ...]:
    return (job_id, "raw", name, _now(), 1, status, '{"worker":"raw","attempt":1}', command)


def main() -> None:
    """Measure one thing and print one JSON line, as `bench.protocol` does for a system."""
    parser = argparse.ArgumentParser(prog="python -m bench.raw")
    parser.add_argument("work", choices=("cycle", "bulk", "single"))
    parser.add_argument("url")
    parser.add_argument("--jobs", type=int, default=1000)
    given = parser.parse_args()
    raw = RawPostgres(given.url) if is_postgres(given.url) else RawSqlite(given.url.removeprefix(SQLITE))
    seconds = raw.enqueue(given.jobs, 1 if given.work == "single" else BULK)
    if given.work == "cycle":
        done, seconds = raw.drain()
        assert done == given.jobs
    raw.close()
    found = {"system": "bench.raw", "work": given.work, "jobs": given.jobs, "seconds": seconds}
    sys.stdout.write(json.dumps({**found, "rate": given.jobs / seconds}) + "\n")


if __name__ == "__main__":
    main()
