"""
Where crashes are played: one database, a clock that every process shares, and the table of a user's own.

The rows are read and emptied by SQL on a connection of the scene, never through the package.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from tenure.procedures.records import instant
from tenure.rules.event import Event
from tenure.rules.job import Job
from tenure.rules.lease import Lease
from tenure.service import DurableJobService
from tenure.stores import open_store
from tenure.stores.contract import Store
from tests.crash.clock import START, SharedClock
from tests.crash.database import Database, Dump, PostgresDatabase, SqliteFile

DIALECTS = ["sqlite", "postgresql"]
ORGANIZATION, PROJECT, ACTOR = "studio", "sales", "user:42"
LEASE = timedelta(seconds=60)
# What a user's handler publishes: one row for each job, however often it is tried.
TABLE = "CREATE TABLE quote_sent (job_id text PRIMARY KEY, generation integer NOT NULL)"
_PATIENCE = 30.0


class Scene:
    """
    One database and all that looks at it.

    Attributes:
        url: For the processes that take part.
        service: Every verb, for the tenant of all jobs here, as an operator.
    """

    def __init__(self, database: Database, clock: SharedClock) -> None:
        self.database = database
        self.dialect = database.dialect
        self.url = database.url
        self.clock = clock
        self.store: Store = open_store(database.url, clock=clock)
        self.service = DurableJobService(self.store, tenant=ORGANIZATION, actor="op:1")

    def reset(self) -> None:
        """Empty every table; the clock goes back to its start."""
        self.alone()
        self.database.empty()
        self.database.sql("DELETE FROM quote_sent")
        self.database.sql("DELETE FROM $meta WHERE key IN ('store', 'incarnation', 'ticked_at', 'frozen')")
        self.clock.set(START)

    def alone(self) -> None:
        """
        Wait until the server has noticed that killed processes are gone.

        Until then a killed backend may still hold the locks of a transaction that it is about to roll back. SQLite's
        locks go with the process.
        """
        if self.dialect == "sqlite":
            return
        others = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND backend_type = 'client backend' AND (xact_start IS NOT NULL OR wait_event_type = 'Lock') "
            "AND pid <> pg_backend_pid()"
        )
        until(lambda: self.database.sql(others) == [(0,)], "the transactions of killed processes are rolled back")

    # What is stored.

    def dump(self) -> Dump:
        return self.database.dump()

    def job(self, job_id: UUID) -> Job:
        return self.service.get_job(job_id)

    def jobs(self) -> list[Job]:
        return self.service.list_jobs()

    def trail(self, job_id: UUID) -> list[Event]:
        return self.service.list_job_events(job_id)

    def names(self, job_id: UUID) -> list[str]:
        return [event.name.value for event in self.trail(job_id)]

    def published(self) -> list[tuple[str, int]]:
        """Give the rows of the user's own table."""
        rows = self.database.sql("SELECT job_id, generation FROM quote_sent ORDER BY job_id")
        return [(str(job_id), int(generation)) for job_id, generation in rows]

    def leases(self) -> list[Lease]:
        """Give every lease as its holder would present it, read from the rows."""
        rows = self.database.sql(
            "SELECT job_id, worker_id, attempt_id, generation, expires_at, lease_us FROM $lease ORDER BY job_id"
        )
        return [
            Lease(UUID(str(job)), worker, UUID(str(attempt)), generation, instant(ends), timedelta(microseconds=length))
            for job, worker, attempt, generation, ends, length in rows
        ]

    def close(self) -> None:
        self.store.close()
        self.database.close()


def until(met: Callable[[], object], what: str, *, within: float = _PATIENCE) -> Any:
    """Ask again and again until the answer is true, and give it; the state of a store cannot be waited for."""
    end = time.monotonic() + within
    while not (answer := met()):
        assert time.monotonic() < end, f"waited {within} s in vain: {what}"
        time.sleep(0.005)
    return answer


class Scenes:
    """The scenes of one test process, made when first asked for and emptied for each test."""

    def __init__(self, folder: Path, new_database: Callable[[], str]) -> None:
        self._folder = folder
        self._new_database = new_database
        self._scenes: dict[str, Scene] = {}

    def get(self, dialect: str) -> Scene:
        if dialect not in self._scenes:
            self._scenes[dialect] = self._make(dialect)
        scene = self._scenes[dialect]
        scene.reset()
        return scene

    def _make(self, dialect: str) -> Scene:
        database: Database
        if dialect == "sqlite":
            database = SqliteFile(self._folder / "jobs.db")
        else:
            database = PostgresDatabase(self._new_database())
        with contextlib.closing(open_store(database.url)) as store:
            store.migrate(test_clock=True)
        database.open()
        database.sql(TABLE)
        return Scene(database, SharedClock(self._folder / f"{dialect}.clock"))

    def close(self) -> None:
        for scene in self._scenes.values():
            scene.close()


@contextmanager
def opened_scenes(folder: Path, new_database: Callable[[], str]) -> Iterator[Scenes]:
    scenes = Scenes(folder, new_database)
    try:
        yield scenes
    finally:
        scenes.close()
