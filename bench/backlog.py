"""
Large backlogs in minutes: rows cloned inside PostgreSQL from one job that the package itself made.

The template has gone through the real enqueue (and the real worker, where finished jobs are wanted), so that clones
have every column as it is today.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg

from bench.ours import ADAPTER, application
from bench.protocol import NOOP, crew
from bench.store import Eye, wait_for

# Numbers of clones begin here, so that they are never those of enqueued jobs.
FIRST = 1_000_000_000
_PATIENCE = 60.0

WAITING = ("job", "job_key", "ready")
FUTURE = ("job", "job_key", "deferred")
FINISHED = ("job", "job_key", "outcome", "event")


def add_waiting(url: str, count: int) -> None:
    """Add jobs that wait, in order of their numbers."""
    _clone(url, WAITING, _enqueue(url, "template-waiting"), count)


def add_future(url: str, count: int) -> None:
    """Add jobs of higher priority that are due tomorrow."""
    template = _enqueue(url, "template-future", priority=10, scheduled_at=datetime.now(UTC) + timedelta(days=1))
    _clone(url, FUTURE, template, count)


def add_finished(url: str, count: int) -> None:
    """Add finished jobs with their trail."""
    template = _enqueue(url, "template-finished")
    eye = Eye(url, ADAPTER.prefixes)
    with crew(ADAPTER, url, 1, NOOP) as workers:
        workers.go()
        wait_for(lambda: eye.row(ADAPTER.left)[0] == 0, "the template to be finished", _PATIENCE)
        workers.end()
    eye.close()
    _clone(url, FINISHED, template, count)


def _enqueue(url: str, key: str, *, priority: int = 0, scheduled_at: datetime | None = None) -> str:
    app = application(url)
    made = app.enqueue(NOOP, {"n": FIRST - 1}, key=key, priority=priority, scheduled_at=scheduled_at)
    app.close()
    return str(made.job.id)


def _clone(url: str, tables: Sequence[str], template: str, count: int) -> None:
    own = {
        "job_id": "lpad(to_hex(n), 32, '0')::uuid",
        "idempotency_key": "'clone-' || n",
        "payload": """('{"n":' || n || '}')::json""",
        # A microsecond apart, the last one just before the template: all are due when it is.
        "run_at": f"t.run_at + n - {FIRST + count}",
        "scheduled_at": f"t.scheduled_at + n - {FIRST + count}",
    }
    with psycopg.connect(url, autocommit=True) as connection:
        for table in tables:
            names = [
                row[0]
                for row in connection.execute(
                    "SELECT column_name FROM information_schema.columns WHERE table_schema = 'tenure' "
                    "AND table_name = %s AND is_identity = 'NO' ORDER BY ordinal_position",
                    (table,),
                )
            ]
            picked = ", ".join(own.get(name, f"t.{name}") for name in names)
            order = "n, t.event_id" if table == "event" else "n"
            # Names of the schema and of this file, nothing from outside.
            statement = (
                f"INSERT INTO tenure.{table} ({', '.join(names)}) SELECT {picked} "  # noqa: S608
                f"FROM tenure.{table} AS t, generate_series(%s::bigint, %s::bigint) AS n "
                f"WHERE t.job_id = %s ORDER BY {order}"
            )
            connection.execute(statement.encode(), (FIRST, FIRST + count - 1, template))
        connection.execute("VACUUM ANALYZE")


def resident_mb(pid: int) -> float:
    """Give the memory a process has now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


def pace(url: str, rate: int, seconds: float) -> int:
    """Enqueue at an even rate, ten times a second; give how many."""
    app = application(url)
    each, done, start = max(1, rate // 10), 0, time.monotonic()
    while (now := time.monotonic() - start) < seconds:
        if done > rate * now:
            time.sleep((done - rate * now) / rate)  # the rate is what this is for
        app.enqueue_many([app.prepare(NOOP, {"n": done + one}, key=f"key-{done + one}") for one in range(each)])
        done += each
    app.close()
    return done
