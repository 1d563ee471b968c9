"""Stories of processes that are killed: each ends with what the store says and what the customer saw."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Self

import pytest

from tenure.errors import Conflict, IllegalMove
from tenure.journal import read
from tenure.rules.outcome import Accepted
from tenure.rules.status import Phase
from tenure.service import DurableJobService
from tenure.stores import open_store
from tenure.yields import new_id
from tests.crash.forks import Forks
from tests.crash.scene import Scene, Scenes, until
from tests.stories.stage import Stage
from tests.support.proxy import Proxy

ONCE_EACH = {"mail": 1, "note": 1}


def test_killed_after_the_provider_accepted(stage: Stage) -> None:
    told = stage.telling("accepted-then-killed.md")
    provider = stage.provider()
    provider.fault("hold_reply", key="*:mail")
    job_id = stage.enqueue()
    first = stage.start("first")
    provider.wait_until(held=1)
    stage.tell(told, job_id)
    stage.kill(first)
    stage.night()
    second = stage.start("second")
    job = stage.until_status(job_id, "completed")
    stage.end(second)
    stage.tell(told, job_id)
    assert stage.customers_saw() == ONCE_EACH
    # One for each claim, and one for the recovery that ended the first attempt.
    assert (job.attempt_count, job.generation) == (2, 3)
    assert len(stage.scene.published()) == 1
    # The second attempt's receipt is the first one's, as the provider told it.
    assert job.result["mailed"] == stage.simulator.effects()[f"send_quote:{job_id}:mail"][0].effect_id
    told.check()


def test_killed_and_nobody_can_be_asked(stage: Stage) -> None:
    told = stage.telling("nobody-can-be-asked.md")
    provider = stage.provider(idempotency_keys=False, lookup=False)
    provider.fault("hold_reply", key="*:mail")
    job_id = stage.enqueue()
    first = stage.start("first")
    provider.wait_until(held=1)
    stage.kill(first)
    stage.night()
    second = stage.start("second")
    stage.until_status(job_id, "indeterminate")
    assert stage.job(job_id).escalated_at is None
    # Ten minutes are for a provider that may still answer; then it is a person's turn.
    stage.night()
    until(lambda: stage.job(job_id).escalated_at, "a person is asked")
    stage.tell(told, job_id)
    assert stage.customers_saw() == {"mail": 1}
    # What an impatient queue would do is not possible: there is nothing to claim, and no retry.
    assert stage.service.claim_job("impatient") is None
    with pytest.raises(IllegalMove):
        stage.service.retry_job(job_id, actor="user:ann")
    stage.service.reconcile_dispatched(
        job_id, Accepted({"seen": "the customer has the mail"}), reason="the customer was asked", actor="user:ann"
    )
    stage.until_status(job_id, "completed")
    stage.end(second)
    stage.tell(told, job_id)
    assert stage.customers_saw() == ONCE_EACH
    told.check()


def test_cancelled_while_the_worker_dies(stage: Stage) -> None:
    told = stage.telling("cancelled-during-a-call.md")
    provider = stage.provider()
    provider.fault("hold_reply", key="*:mail")
    job_id = stage.enqueue()
    first = stage.start("first")
    provider.wait_until(held=1)
    stage.service.cancel_job(job_id, reason="the customer has withdrawn", actor="user:ann")
    stage.kill(first)
    stage.night()
    second = stage.start("second")
    job = stage.until_status(job_id, "cancelled")
    stage.end(second)
    stage.tell(told, job_id)
    assert stage.customers_saw() == {"mail": 1}
    assert job.phase is Phase.DONE
    assert stage.scene.published() == []
    told.check()


def test_killed_three_times_before_the_boundary(stage: Stage) -> None:
    told = stage.telling("poison-pill.md")
    stage.provider()
    job_id = stage.enqueue()
    for worker_id in ("first", "second", "third"):
        stage.died(stage.start(worker_id, at="handler:begins"))
        stage.night()
    fourth = stage.start("fourth", at="handler:begins")
    job = stage.until_status(job_id, "dead_letter")
    stage.end(fourth)
    stage.tell(told, job_id)
    assert (job.error_code, job.attempt_count) == ("WORKER_LOST", 3)
    assert stage.customers_saw() == {}
    assert job.effects == ()
    told.check()


def test_the_answer_to_a_claim_is_lost(stage: Stage, tmp_path: Path) -> None:
    told = stage.telling("lost-claim.md")
    stage.provider()
    job_id = stage.enqueue()
    passed = tmp_path / "points"
    worker = stage.start("first", lose="claim_batch", log=passed)
    job = stage.until_status(job_id, "completed")
    stage.end(worker)
    stage.tell(told, job_id)
    assert passed.read_text().split().count("claim_batch:after_commit") >= 2
    assert (job.attempt_count, job.generation) == (1, 1)
    assert stage.scene.names(job_id).count("claimed") == 1
    assert stage.customers_saw() == ONCE_EACH
    told.check()


def test_the_same_claim_asked_twice_is_one_claim(stage: Stage) -> None:
    stage.provider()
    job_id = stage.enqueue()
    claim_id = new_id()
    first = stage.service.claim_job("first", claim_id=claim_id)
    again = stage.service.claim_job("first", claim_id=claim_id)
    assert first is not None
    assert again == first
    assert (first.job.id, first.lease.generation) == (job_id, 1)
    with pytest.raises(Conflict):
        stage.service.claim_job("second", claim_id=claim_id)
    assert stage.service.claim_job("second") is None


def test_a_claim_whose_answer_the_network_lost(scenes: Scenes, forks: Forks, tmp_path: Path) -> None:
    """The same on the wire, which only one of the databases has: the server commits, and the connection breaks."""
    stage = Stage(scenes.get("postgresql"), forks, tmp_path)
    with closing(stage):
        stage.provider()
        job_id = stage.enqueue()
        with Proxy(stage.scene.url) as proxy, closing(open_store(proxy.url, clock=stage.scene.clock)) as store:
            proxy.lose_replies()
            claim = DurableJobService(store).claim_job("first", claim_id=new_id(), start=True)
            assert proxy.seen["lost_replies"] == 1
        assert claim is not None
        assert (claim.job.id, claim.lease.generation) == (job_id, 1)
        assert stage.scene.names(job_id) == ["claimed"]


def test_the_database_is_lost_during_a_call(stage: Stage, tmp_path: Path) -> None:
    told = stage.telling("database-lost.md")
    provider = stage.provider(idempotency_keys=False, lookup=False)
    provider.fault("hold_reply", key="*:mail")
    job_id = stage.enqueue()
    journal = tmp_path / "journal"
    with _Outage(stage.scene) as outage:
        first = stage.start("first", url=outage.url, patience=outage.patience, journal=journal)
        provider.wait_until(held=1)
        outage.begin()
        provider.release()
        until(lambda: _receipts(journal) == 1, "the receipt is in the journal")
        stage.kill(first)
        outage.end()
    stage.tell(told, job_id)
    second = stage.start("second", journal=journal)
    stage.until_event(job_id, "evidence_received")
    stage.night()
    stage.until_status(job_id, "completed")
    stage.end(second)
    stage.tell(told, job_id)
    assert stage.customers_saw() == ONCE_EACH
    assert _receipts(journal) == 0
    told.check()


def _receipts(folder: Path) -> int:
    """Count the records in a journal directory; a file that was handed in whole is removed."""
    return sum(len(read(path).records) for path in folder.glob("receipts-*.journal")) if folder.exists() else 0


class _Outage:
    """A database that stops answering: the network to PostgreSQL breaks, the write lock of a SQLite file is taken."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._proxy = Proxy(scene.url) if scene.dialect == "postgresql" else None
        self._begun = False
        self.url = scene.url if self._proxy is None else self._proxy.url
        # SQLite has its own, of five seconds.
        self.patience = None if self._proxy is None else 1.0

    def begin(self) -> None:
        self._begun = True
        if self._proxy is not None:
            self._proxy.refusing = True
            assert self._proxy.reset() > 0
        else:
            self._scene.database.sql("BEGIN IMMEDIATE")

    def end(self) -> None:
        self._begun = False
        if self._proxy is None:
            self._scene.database.sql("ROLLBACK")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._begun:
            self.end()
        if self._proxy is not None:
            self._proxy.close()
