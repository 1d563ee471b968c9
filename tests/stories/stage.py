"""Where a story is played: one database, one provider, one clock, and worker processes that come and go."""

from __future__ import annotations

import os
import signal
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from tenure.app import Tenure
from tenure.connectors.simulator import ProviderSimulator
from tenure.rules.job import Job
from tenure.service import DurableJobService
from tests.contract.invariants import broken
from tests.crash.forks import Forks
from tests.crash.office import KIND, Hand, open_office
from tests.crash.recovery import NIGHT
from tests.crash.scene import Scene, until
from tests.stories.telling import Telling

QUOTE = {"id": 17, "to": "ann@example.org"}


class Stage:
    """
    One story on one database.

    Attributes:
        simulator: The provider, in this process, with its ledger.
        service: What an operator uses.
    """

    def __init__(self, scene: Scene, forks: Forks, folder: Path) -> None:
        self.scene = scene
        self.folder = folder
        self.service: DurableJobService = scene.service
        self.simulator = ProviderSimulator(folder / "ledger.jsonl")
        self._forks = forks
        self._living: set[int] = set()

    # The provider.

    def provider(self, **promises: Any) -> ProviderSimulator:
        """Open the provider with what it promises; the story's own."""
        retention = promises.pop("retention", timedelta(hours=24))
        self.simulator = ProviderSimulator(self.folder / "ledger.jsonl", retention=retention, **promises)
        return self.simulator.start()

    def customers_saw(self) -> dict[str, int]:
        """Give how often each effect happened, by its name."""
        return {key.partition(":")[2].partition(":")[2]: len(acts) for key, acts in self.simulator.effects().items()}

    # The processes.

    def start(
        self,
        worker_id: str,
        *,
        url: str | None = None,
        patience: float | None = None,
        journal: Path | None = None,
        sweeps: bool = True,
        call_timeout: float | None = None,
        at: str = "",
        act: str = "kill",
        log: Path | None = None,
        lose: str | None = None,
        **options: Any,
    ) -> int:
        """Start a worker process and give its id."""
        promises = asdict(self.simulator.promises)
        promises.pop("retention")
        given = {
            "url": url or self.scene.url,
            "patience": patience,
            "clock": str(self.scene.clock.path),
            "simulator": self.simulator.url,
            "ledger": str(self.simulator.ledger),
            "promises": promises,
            "worker_id": worker_id,
            "journal": None if journal is None else str(journal),
            "sweeps": sweeps,
            "call_timeout": call_timeout,
            "lose": lose,
            "options": options,
            "points": {"CRASH_AT": at, "CRASH_ACT": act, "CRASH_LOG": str(log or "")},
        }
        pid = self._forks.start("tests.stories.workers:work", given, output=self.folder / f"{worker_id}.out")
        self._living.add(pid)
        return pid

    def kill(self, pid: int) -> None:
        """End a worker as a power cut would."""
        self._living.discard(pid)
        self._forks.kill(pid)
        self.scene.alone()

    def died(self, pid: int) -> None:
        """Wait for a worker that kills itself."""
        self._living.discard(pid)
        assert self._forks.wait(pid) == -signal.SIGKILL
        self.scene.alone()

    def stopped(self, pid: int) -> None:
        """Wait for a worker that pauses itself."""
        self._forks.wait_stopped(pid)

    def wake(self, pid: int) -> None:
        os.kill(pid, signal.SIGCONT)

    def end(self, pid: int) -> None:
        """Ask a worker to stop; it has to end well."""
        self._living.discard(pid)
        assert self._forks.end(pid) == 0

    # The job.

    def app(self, **options: Any) -> Tenure:
        """Make the app of the story in this process."""
        return open_office(self.scene.store, self.simulator.provider("mailer"), **options)

    def enqueue(self, **options: Any) -> UUID:
        return self.app(**options).enqueue(KIND, QUOTE, key="quote-17").job.id

    def hand(self, worker_id: str) -> Hand:
        """Give a worker without loops, in this process."""
        return Hand(self.app(), worker_id=worker_id)

    def job(self, job_id: UUID) -> Job:
        return self.scene.job(job_id)

    def night(self) -> None:
        """Let more time pass than any lease lasts."""
        self.scene.clock.advance(NIGHT)

    def until_status(self, job_id: UUID, status: str) -> Job:
        until(lambda: self.job(job_id).status == status, f"the job is {status}; its trail: {self.scene.names(job_id)}")
        return self.job(job_id)

    def until_event(self, job_id: UUID, name: str) -> None:
        until(lambda: name in self.scene.names(job_id), f"{name} is in the trail")

    # The page.

    def telling(self, page: str) -> Telling:
        return Telling(page)

    def tell(self, told: Telling, job_id: UUID) -> None:
        """Tell the trail, the rows and the ledger as they are now."""
        job = self.job(job_id)
        told.trail(job, self.scene.trail(job_id))
        told.store(job, self.scene.published())
        told.ledger(job, self.simulator.entries())

    def close(self) -> None:
        for pid in self._living:
            os.kill(pid, signal.SIGKILL)
            self._forks.wait(pid)
        self.simulator.stop()
        for output in self.folder.glob("*.out"):
            said = output.read_text()
            assert said == "", f"{output.name}: {said}"
        self.scene.alone()
        assert broken(self.scene.dump()) == []
