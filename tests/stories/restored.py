"""A house whose database is lost and comes back as an older copy, beside a provider that forgets nothing."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import psycopg

from tenure import AsyncContext, Context, Tenure, open_store
from tenure.connectors.simulator import ProviderSimulator
from tenure.rules.job import Job
from tenure.service import DurableJobService
from tenure.testing.clock import ManualClock
from tests.contract.bench import START
from tests.loops.stage import Running, make_app, until
from tests.support.copies import mark_copy
from tests.support.postgres import Databases

AWAITING, BLOCKING = "quote.await", "quote.block"
LEASE = timedelta(seconds=60)


class House:
    """
    One application and its database, which may be replaced by a copy.

    Attributes:
        url: The database in use.
        simulator: The provider; its ledger says what customers saw.
        clock: The store's; it goes on whatever becomes of the database.
    """

    def __init__(self, folder: Path, databases: Databases | None, simulator: ProviderSimulator) -> None:
        self.folder = folder
        self.databases = databases
        self.simulator = simulator
        self.clock = ManualClock(START)
        self.mailer = simulator.provider("mailer")
        self.url = f"sqlite:///{folder / 'jobs.db'}" if databases is None else databases.create()
        with contextlib.closing(open_store(self.url)) as store:
            store.migrate(test_clock=True)

    # The application.

    def made(self, provider: Any = None) -> Tenure:
        """Make the application on the database in use."""
        mailer = provider or self.mailer
        app = make_app(open_store(self.url, clock=self.clock), providers=[mailer])

        @app.job(AWAITING, providers=[mailer], lease_duration=LEASE)
        async def awaiting(ctx: AsyncContext, payload: dict[str, Any]) -> Any:
            return await ctx.effect("send", mailer, payload)

        @app.job(BLOCKING, providers=[mailer], lease_duration=LEASE)
        def blocking(ctx: Context, payload: dict[str, Any]) -> Any:
            return ctx.effect("send", mailer, payload)

        return app

    def enqueue(self, count: int = 1, *, key: str = "quote", kind: str = AWAITING, **fields: Any) -> list[UUID]:
        """Put work into the database in use."""
        with self.service() as service:
            app = self.made()
            made = [app.prepare(kind, {"quote": nth}, key=f"{key}-{nth}", **fields) for nth in range(count)]
            ids = [one.job.id for one in app.enqueue_many(made)]
            app.store.close()
            assert [service.get_job(job_id).status for job_id in ids] == ["queued"] * count
        return ids

    @contextlib.contextmanager
    def service(self) -> Iterator[DurableJobService]:
        """What an operator has."""
        with contextlib.closing(open_store(self.url, clock=self.clock)) as store:
            yield DurableJobService(store, actor="user:7")

    @contextlib.contextmanager
    def working(self, app: Tenure | None = None, **options: Any) -> Iterator[Running]:
        """Let a worker run on the database in use."""
        given = {"concurrency": 8, "poll": timedelta(milliseconds=30), "sweep_every": timedelta(milliseconds=50)}
        made = app or self.made()
        with Running(made, **{**given, **options}) as running:
            yield running
        made.store.close()

    def job(self, job_id: UUID) -> Job:
        with self.service() as service:
            return service.get_job(job_id)

    def until(self, job_id: UUID, status: str) -> Job:
        """Wait for a job to come to a status."""
        with self.service() as service:
            until(lambda: service.get_job(job_id).status == status, f"{job_id} is {status}")
            return service.get_job(job_id)

    def work_off(self, ids: list[UUID], status: str = "completed") -> None:
        """Let a worker run until all of these have come to a status."""
        with self.working():
            for job_id in ids:
                self.until(job_id, status)

    # The disaster.

    def sql(self, text: str, *values: Any) -> None:
        """Write to the database in use, past the library."""
        if self.databases is None:
            with contextlib.closing(sqlite3.connect(self.folder / self._file, isolation_level=None)) as raw:
                raw.execute(text.replace("$", "tenure_"), values)
        else:
            with psycopg.connect(self.url, autocommit=True) as connection:
                connection.execute(text.replace("$", "tenure.").replace("?", "%s").encode(), values or None)

    @property
    def _file(self) -> str:
        return Path(urlsplit(self.url).path).name

    def back_up(self) -> str:
        """Make a copy of the database as its own tools do, and give its URL."""
        if self.databases is not None:
            return self.databases.create(template=urlsplit(self.url).path.removeprefix("/"))
        copy = self.folder / "backup.db"
        with (
            contextlib.closing(sqlite3.connect(self.folder / self._file)) as source,
            contextlib.closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
        return f"sqlite:///{copy}"

    def lose(self, copy: str) -> None:
        """The database is gone, and the copy takes its place: frozen, because it is behind."""
        self.url = copy
        self.sql("INSERT INTO $meta (key, value) VALUES ('frozen', 'restored')")

    def recover(self, *, rotate: bool = True, mark: bool = True) -> int:
        """Mark, raise the epochs, readmit, thaw; gives how many jobs are suspect."""
        with contextlib.closing(open_store(self.url, clock=self.clock)) as store:
            reason = "restored from the backup of the night"
            marked = store.run(mark_copy("user:7", reason, since=START)) if mark else 0
        if rotate:
            self.sql("UPDATE $authority SET epoch = epoch + 1")
            self.readmit()
        self.sql("DELETE FROM $meta WHERE key = 'frozen'")
        return marked

    def readmit(self) -> None:
        """Let held work run under the current epoch."""
        for table in ("ready", "deferred", "lease", "resting"):
            self.sql(f"UPDATE ${table} SET epoch = (SELECT max(epoch) FROM $authority)")

    def wait_out(self) -> None:
        """Let so much time pass that no lost call can still be under way."""
        self.clock.advance(timedelta(hours=1))


@contextlib.contextmanager
def opened_house(folder: Path, databases: Databases | None, **promises: Any) -> Iterator[House]:
    """Open a house and the provider with what it promises."""
    with ProviderSimulator(folder / "ledger.jsonl", **promises) as simulator:
        yield House(folder, databases, simulator)
