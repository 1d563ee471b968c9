"""Receipts whose intent was lost with a restored database: kept for the begin that asks, and nobody else's are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tenure.errors import NotFound, Unavailable
from tenure.journal.receipts import ReceiptJournal
from tenure.rules.outcome import Absent, Accepted, Declined, FailedBeforeDispatch, NoAnswer
from tenure.rules.status import Status
from tests.contract.bench import Bench
from tests.contract.build import KIND, MAILER, RECEIPT, REQUEST, begin, claim, create, running_sent
from tests.contract.refusal import refused
from tests.contract.test_suspects import World, _undo_neighbour, effect, mark, suspect_job

LATE = uuid4()


@pytest.fixture(autouse=True)
def _only_ours(bench: Bench) -> Iterator[None]:
    yield
    _undo_neighbour(bench)


def hand_in(bench: Bench, key: str, evidence: Any = None) -> Any:
    return bench.service.submit_evidence(key, evidence or Accepted(RECEIPT), attempt_id=LATE)


@pytest.mark.parametrize("says", [NoAnswer("down"), Absent(), Accepted(RECEIPT)])
def test_the_begin_of_a_suspect_job_reads_the_receipt_of_the_lost_intent(bench: Bench, says: Any) -> None:
    """Even where the provider has forgotten: what was accepted is not sent again."""
    job = create(bench.service)
    mark(bench)
    after = hand_in(bench, f"{KIND}:{job.id}:send")
    assert (after.status, after.escalated_at, after.effects) == (Status.QUEUED, None, ())
    event = bench.service.list_job_events(job.id)[-1]
    assert (event.name, event.data["lost"], event.data["kind"]) == ("evidence_received", True, "accepted")
    bench.advance(hours=2)
    world = World(says=says)
    done = effect(bench, claim(bench.service, start=True).lease, world)
    assert (done.effect.state, done.effect.receipt, done.outcome) == ("succeeded", RECEIPT, None)
    assert world.sent == []
    assert bench.service.get_job(job.id).escalated_at is None


def test_a_receipt_that_comes_after_the_begin_settles_by_a_sweep(bench: Bench) -> None:
    lease = suspect_job(bench)
    done = effect(bench, lease, World(says=NoAnswer("down")))
    assert done.effect.state == "unknown"
    bench.service.mark_indeterminate(lease, code="E", message="m")
    hand_in(bench, done.effect.operation_key)
    verdicts = bench.service.sweep_reconciliation_candidates(
        organization="acme", project="p1", tenant="acme", lookup=lambda _key, _job: pytest.fail("it is known already")
    )
    assert [one.action for one in verdicts] == ["resolve"]
    assert bench.service.list_effects(lease.job_id)[0].receipt == RECEIPT


def test_only_an_acceptance_speaks_for_a_lost_call(bench: Bench) -> None:
    """That one lost call was refused, or never left, says nothing about another one that is lost as well."""
    job = create(bench.service)
    mark(bench)
    for said in (Declined("no"), FailedBeforeDispatch("down")):
        hand_in(bench, f"{KIND}:{job.id}:send", said)
    bench.advance(hours=2)
    done = effect(bench, claim(bench.service, start=True).lease, World(says=NoAnswer("down")))
    assert done.effect.state == "unknown"


def test_the_same_receipt_twice_is_kept_once(bench: Bench) -> None:
    job = create(bench.service)
    mark(bench)
    for _ in range(2):
        hand_in(bench, f"{KIND}:{job.id}:send")
    assert len(bench.table("evidence", job.id)) == 1
    assert bench.trail(job.id).count("evidence_received") == 1


FOREIGN: dict[str, Callable[[Any], str]] = {
    "of another kind": lambda job: f"other:{job.id}:send",
    "of no job": lambda _: f"{KIND}:{uuid4()}:send",
    "of no form": lambda _: "quote-17",
    "without a name": lambda job: f"{KIND}:{job.id}:",
}


@pytest.mark.parametrize("key", FOREIGN)
def test_a_foreign_key_is_refused_as_before(bench: Bench, key: str) -> None:
    job = create(bench.service)
    mark(bench)
    with refused(bench, NotFound):
        hand_in(bench, FOREIGN[key](job))
    with refused(bench, NotFound):
        bench.bound(tenant="zeta").submit_evidence(f"{KIND}:{job.id}:send", Accepted(RECEIPT), attempt_id=LATE)
    hand_in(bench, f"{KIND}:{job.id}:send")


def test_a_job_that_no_recovery_has_marked_takes_no_receipt_without_an_intent(bench: Bench) -> None:
    job = create(bench.service, "k-2", scheduled_at=bench.now + timedelta(hours=1))
    with refused(bench, NotFound):
        hand_in(bench, f"{KIND}:{job.id}:send")
    case = running_sent(bench)
    with refused(bench, NotFound):
        hand_in(bench, str(case.key))
    mark(bench)
    hand_in(bench, f"{KIND}:{job.id}:send")


def test_a_receipt_for_what_a_person_has_cleared_is_the_proof_of_a_mistake(bench: Bench) -> None:
    lease = suspect_job(bench)
    bench.service.clear_suspicion(lease.job_id, actor="op:1", reason="nothing ran after the backup")
    after = hand_in(bench, f"{KIND}:{lease.job_id}:send")
    assert after.escalated_at is not None
    assert [row["contradicts"] for row in bench.table("evidence", lease.job_id)] == [1]


def test_a_second_receipt_for_what_succeeded_before_the_copy_is_a_duplicate(bench: Bench) -> None:
    case = running_sent(bench)
    mark(bench)
    assert hand_in(bench, str(case.key), Accepted({"another": 1})).escalated_at is not None


def test_a_final_job_takes_the_receipt_that_it_knows_and_disputes_another(bench: Bench) -> None:
    lease = suspect_job(bench)
    done = effect(bench, lease, World(says=Accepted(RECEIPT)))
    bench.service.complete_job(lease, result=None)
    assert hand_in(bench, done.effect.operation_key).escalated_at is None
    again = bench.service.submit_evidence(done.effect.operation_key, Accepted({"another": 1}), attempt_id=uuid4())
    assert again.escalated_at is not None


def test_the_bare_verb_sends_nothing_and_its_sweep_settles_by_the_receipt(bench: Bench) -> None:
    lease = suspect_job(bench)
    hand_in(bench, f"{KIND}:{lease.job_id}:send")
    with pytest.raises(Exception, match="restored database"):
        begin(bench.service, lease)
    bench.service.mark_indeterminate(lease, code="E", message="m")
    bench.service.sweep_reconciliation_candidates(
        organization="acme", project="p1", tenant="acme", lookup=lambda _key, _job: pytest.fail("it is known already")
    )
    again = claim(bench.service, start=True)
    found = bench.service.begin_effect(again.lease, name="send", request=REQUEST, provider=MAILER)
    assert found.receipt == RECEIPT


def test_a_frozen_database_leaves_the_receipt_in_its_journal_and_a_recovered_one_takes_it(
    bench: Bench, tmp_path: Path
) -> None:
    job = create(bench.service)
    key = f"{KIND}:{job.id}:send"
    bench.sql("INSERT INTO $meta (key, value) VALUES ('frozen', 'restored')")
    with refused(bench, Unavailable, code="EVIDENCE_LATER"):
        hand_in(bench, key)
    with ReceiptJournal(tmp_path / "journal") as journal:
        journal.append_receipt(key, LATE, Accepted(RECEIPT))

        def submit(operation_key: str, evidence: Any, attempt_id: Any) -> None:
            bench.service.submit_evidence(operation_key, evidence, attempt_id=attempt_id)

        report = journal.hand_in(submit)
        assert (report.stopped, report.refused, report.handed_in) == ("EVIDENCE_LATER", [], 0)
        mark(bench)
        bench.sql("DELETE FROM $meta WHERE key = 'frozen'")
        report = journal.hand_in(submit)
        assert (report.stopped, report.refused, report.handed_in) == (None, [], 1)
    assert len(bench.table("evidence", job.id)) == 1
