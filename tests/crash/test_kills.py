"""
Real processes that kill themselves at named points, and what those who come after find and make of it.

Each program runs once as a whole, and says which points it passes. Then it is started again and again, to die at each
point that no program before it has died at; a worker in this process goes on with what is left. The oracle is the
provider's own ledger and the stored rows.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tenure.connectors.simulator import ProviderSimulator
from tenure.flows.authority import recover_database
from tenure.flows.drive import run_flow
from tenure.journal.ledger import FileLog, LogLedger
from tenure.journal.receipts import ReceiptJournal
from tenure.procedures.authority import compare
from tenure.rules.ledger import REVOKED, Book
from tenure.rules.outcome import Evidence
from tenure.service import DurableJobService
from tenure.testing.crash_points import known_points
from tests.crash.forks import Forks
from tests.crash.mailroom import relayed
from tests.crash.office import AWAITING_KIND, KIND, Hand, open_office
from tests.crash.programs import PROGRAMS, QUOTE
from tests.crash.recovery import Tally, checked, explained, recover, settle_by_ledger
from tests.crash.scene import DIALECTS, Scene, Scenes

# A worker's loops pass their points as often as time allows; its handler passes these as often as it is written.
COUNTED = {"begin_effect", "finish_effect", "send"}


class Ledger:
    """What the simulated provider did; see `recovery.World`."""

    def __init__(self, simulator: ProviderSimulator) -> None:
        self._simulator = simulator

    def seen(self, operation_key: str) -> list[str]:
        return [entry.effect_id for entry in self._simulator.effects().get(operation_key, [])]

    def doubled(self) -> list[str]:
        return list(self._simulator.duplicates())


class Street:
    """One database, one provider and one folder, where program after program runs and dies."""

    def __init__(self, scene: Scene, forks: Forks, folder: Path) -> None:
        self.scene = scene
        self._forks = forks
        self._folder = folder
        self._number = 0
        self.journals = folder
        self.simulator: ProviderSimulator | None = None

    def run(self, program: str, crash_at: str | None = None) -> tuple[int, list[str]]:
        """
        Run a program in a process of its own, from an empty database and an empty ledger.

        Returns: How it ended, and the points it passed.
        """
        self._number += 1
        here = self._folder / f"{program}-{self._number}"
        here.mkdir(exist_ok=True)
        self.leave()
        self.simulator = ProviderSimulator(here / "ledger.jsonl").start()
        self.scene.reset()
        self.journals = here / "journal"
        given: dict[str, Any] = {
            "program": program,
            "crash_at": crash_at,
            "url": self.scene.url,
            "clock": str(self.scene.clock.path),
            "simulator": self.simulator.url,
            "ledger": str(self.simulator.ledger),
            "folder": str(self.journals),
            "log": str(here / "points"),
        }
        child = self._forks.start("tests.crash.programs:main", given, output=here / "output")
        status = self._forks.wait(child)
        self.scene.alone()
        self.simulator.clear_faults()
        said = (here / "output").read_text()
        assert said == "", said
        log = here / "points"
        return status, log.read_text().split() if log.exists() else []

    def leave(self) -> None:
        if self.simulator is not None:
            self.simulator.stop()
            self.simulator = None

    def hand_in(self) -> None:
        if self.journals.exists():
            with ReceiptJournal(self.journals) as journal:
                journal.hand_in(self._submit)

    def _submit(self, operation_key: str, evidence: Evidence, attempt_id: UUID) -> None:
        self.scene.service.submit_evidence(operation_key, evidence, attempt_id=attempt_id)


@dataclass(slots=True)
class Plan:
    """
    Where each program dies.

    Attributes:
        passed: The points each whole run passed.
        deaths: For each program the points at which it is killed.
    """

    passed: dict[str, list[str]] = field(default_factory=dict)
    deaths: dict[str, list[str]] = field(default_factory=dict)


class Plans:
    """The plans of this test process, each made when first asked for."""

    def __init__(self, scenes: Scenes, forks: Forks, folder: Path) -> None:
        self._scenes, self._forks, self._folder = scenes, forks, folder
        self._made: dict[str, Plan] = {}

    def get(self, dialect: str) -> Plan:
        if dialect not in self._made:
            self._made[dialect] = self._make(dialect)
        return self._made[dialect]

    def _make(self, dialect: str) -> Plan:
        folder = self._folder / f"plan-{dialect}"
        folder.mkdir(exist_ok=True)
        street = Street(self._scenes.get(dialect), self._forks, folder)
        plan, known = Plan(), set[str]()
        for program in PROGRAMS:
            status, plan.passed[program] = street.run(program)
            assert status == 0, f"{program} as a whole ended with {status}"
            deaths = []
            for point, count in Counter(plan.passed[program]).items():
                times = count if point.partition(":")[0] in COUNTED or program == "works" else 1
                deaths += [f"{point}:{nth}" for nth in range(1, times + 1)]
            plan.deaths[program] = [death for death in deaths if program == "works" or death not in known]
            known.update(deaths)
        street.leave()
        return plan


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    with Forks() as made:
        yield made


@pytest.fixture(scope="session")
def plans(scenes: Scenes, forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Plans:
    return Plans(scenes, forks, tmp_path_factory.mktemp("kills"))


# What must have been counted over the deaths of each program.
PROVES = {
    "runs_a_worker": ("lost", "reclaimed", "reconciled", "allowed", "stale_refused"),
    "finds_what_others_left": ("reclaimed", "reconciled", "allowed"),
    "works": ("lost", "reclaimed", "reconciled", "allowed", "stale_refused"),
    "holds_and_completes": ("stale_refused",),
    "finishes_by_hand": ("reclaimed", "allowed", "stale_refused"),
    "shares_transactions": ("reclaimed", "allowed", "stale_refused"),
    "is_refused_and_retried": ("reclaimed", "allowed"),
    "is_cancelled": ("stale_refused",),
    "is_revoked": ("stale_refused",),
    "is_stated": ("allowed",),
    "loses_the_database": ("reclaimed", "allowed", "stale_refused"),
    "loses_a_publish": ("reclaimed", "allowed", "stale_refused"),
    "tends": ("allowed",),
    "is_restored": ("allowed",),
    "keeps_authority": ("allowed",),
    "is_handed_over_and_stopped": ("allowed",),
    "relays": ("delivered_later",),
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_whoever_comes_after_a_killed_process_goes_on(
    dialect: str, program: str, plans: Plans, scenes: Scenes, forks: Forks, tmp_path: Path
) -> None:
    deaths = plans.get(dialect).deaths[program]
    assert deaths, "each program dies at points of its own"
    street = Street(scenes.get(dialect), forks, tmp_path)
    tally = Tally()
    try:
        for death in deaths:
            status, passed = street.run(program, death)
            assert status == -signal.SIGKILL, f"{program} ended with {status} instead of dying at {death}"
            assert death == f"{passed[-1]}:{passed.count(passed[-1])}"
            tally.add("kills")
            _go_on(street, program, tally)
    finally:
        street.leave()
    assert tally.counts["kills"] == len(deaths)
    tally.require(*PROVES[program])


def _go_on(street: Street, program: str, tally: Tally) -> None:
    scene, simulator = street.scene, street.simulator
    assert simulator is not None
    mailer = simulator.provider("mailer")
    app = open_office(scene.store, mailer)
    if program == "relays":
        tally.add("delivered_later", relayed(scene, street.journals))
    # The producer does not know whether its commit came through: it asks again with the same key.
    kind = AWAITING_KIND if program == "runs_a_worker" else KIND
    again = app.enqueue(kind, QUOTE, key="quote-17")
    tally.add("lost", again.created)
    if program == "keeps_authority":
        _operate(street, again.job.tenant)
    if program == "is_handed_over_and_stopped":
        # An operator finds out how far a hand-over came, and ends it.
        everybody = DurableJobService(scene.store, actor="op:2")
        for queue in everybody.show_queues():
            everybody.resume_queue(queue.name)
            if queue.owner is not None:
                everybody.transfer_queue(queue.name, owner=None, expected=queue.owner, with_work=True)
    later, world = Hand(app, worker_id="later"), Ledger(simulator)
    recover(scene, later, mailer, world, tally, hand_in=street.hand_in)
    while settle_by_ledger(scene, world, tally):
        recover(scene, later, mailer, world, tally, hand_in=street.hand_in)
    checked(scene, world)
    explained(scene)
    assert again.job.id in [job.id for job in scene.jobs()]
    for job in scene.jobs():
        assert job.status.value in {"completed", "cancelled", "failed"}
        if job.status.value == "completed" and any(effect.name == "note" for effect in job.effects):
            assert [len(world.seen(effect.operation_key)) for effect in job.effects] == [1, 1]


def _operate(street: Street, tenant: str) -> None:
    """End what an operator left behind, wherever that one died: a freeze, a rotation, a recovery half done."""
    store = street.scene.store
    ledger = LogLedger(FileLog(street.journals.with_name("ledger")))

    def new_book(identity: str) -> Book:
        return Book(store="s-3", identity=identity)

    if store.run(compare(ledger.read(), "here")) is not None:
        run_flow(recover_database(ledger, "here", "op:2", "again", new_book), store.run)
    # A program that died before its ledger began is an operator's without one.
    store.ledger = None if ledger.read() is None else ledger
    try:
        operator = DurableJobService(store, actor="op:2")
        operator.thaw_tenant(tenant, reason="looked at")
        operator.readmit_jobs(tenant, reason="looked at")
        # Whoever does not know whether a revocation came through asks again.
        for one in operator.list_approvals(tenant=tenant):
            assert operator.revoke_approval(one.reference, tenant=tenant, reason="again").state == "revoked"
            book = ledger.read()
            assert store.ledger is None or (book and (tenant, REVOKED, one.reference) in book.restrictions)
    finally:
        store.ledger = None


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_point_is_died_at(dialect: str, plans: Plans) -> None:
    deaths = [death for program in plans.get(dialect).deaths.values() for death in program]
    points = {death.rpartition(":")[0] for death in deaths}
    assert set(known_points()) - points == set()
    assert len(points) >= 60
    assert len(deaths) >= 80
