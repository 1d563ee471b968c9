"""
What the processes do that are killed: each program passes points of its own, on a real store and a provider over HTTP.

A program runs in a child of `forks`; what it needs comes in one dict of plain values. It says nothing: what became of
it is read from the database and from the provider's ledger.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from tenure.connectors.provider import lookup_bounded, terms
from tenure.connectors.simulator import Simulator
from tenure.errors import ExecutionStopped, Unavailable
from tenure.flows.authority import recover_database
from tenure.flows.drive import run_flow
from tenure.journal.ledger import FileLog, LogLedger
from tenure.journal.receipts import ReceiptJournal
from tenure.procedures.approvals import replay_revocations
from tenure.procedures.authority import compare, read_facts, tick
from tenure.procedures.control import stop_effect
from tenure.procedures.effect import Beginning, Finishing, begin_effect, begin_effects, finish_effect, finish_effects
from tenure.procedures.hold import hold, releasing, renew
from tenure.procedures.upkeep import announce, forget_claims, park, promote, recover, withdraw
from tenure.rules.control import ControlMode, Judged
from tenure.rules.digest import request_digest
from tenure.rules.dispatch import Begun
from tenure.rules.envelope import GovernanceInput
from tenure.rules.job import Job
from tenure.rules.lease import Lease
from tenure.rules.ledger import Book, ticked
from tenure.rules.outcome import Accepted, Evidence, NoAnswer, Succeeded
from tenure.service import DurableJobService
from tenure.stores import open_store
from tenure.stores.contract import Store
from tenure.testing.crash_points import CrashPoints, point_name
from tenure.yields import Procedure
from tests.crash.clock import SharedClock
from tests.crash.mailroom import relays
from tests.crash.office import AWAITING_KIND, KIND, Hand, open_office, wait
from tests.crash.recovery import NIGHT, at_rest
from tests.crash.scene import ORGANIZATION, PROJECT
from tests.support.copies import mark_copy

QUOTE = {"id": 17, "to": "ann@example.org"}
GOVERNED = GovernanceInput(
    action_intent="send the quote",
    capability="mail.send",
    policy="p-7",
    budget={"eur": 1},
    approval_reference="ap-1",
    issued_at=datetime(2020, 1, 1, tzinfo=UTC),
    expires_at=datetime(2200, 1, 1, tzinfo=UTC),
)
MAIL = {"to": QUOTE["to"]}
OWN_KEY = "quote-17"


class Process:
    """
    All that one process has.

    Attributes:
        store: The watched one.
        mailer: The watched provider.
        answering: The provider as it is, for calls that are no part of what is watched.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        self.clock = SharedClock(given["clock"])
        self.folder = Path(given["folder"])
        self.simulator = Simulator(given["simulator"], given["ledger"])
        self.points = CrashPoints(given.get("crash_at"), log=given["log"])
        self.plain = open_store(given["url"], clock=self.clock)
        self.store = self.points.store(self.plain)
        self.answering = self.simulator.provider("mailer")
        self.mailer = self.points.provider(self.answering)
        self.app = open_office(self.store, self.mailer)
        self.service = DurableJobService(self.store, tenant=ORGANIZATION, actor="op:1")
        self.hand = Hand(self.app, worker_id="first")

    def enqueue(self, kind: str = KIND, key: str = "quote-17") -> Job:
        return self.app.enqueue(kind, QUOTE, key=key).job

    def claimed(self) -> Lease:
        claim = self.hand.claim()
        assert claim is not None
        return claim.lease

    def work(self, hand: Hand | None = None) -> None:
        worker = hand or self.hand
        claim = worker.claim()
        assert claim is not None
        worker.work(claim)

    def night(self) -> None:
        self.clock.advance(NIGHT)

    def sweep(self, answer: Evidence | None = None) -> None:
        def ask(operation_key: str, _job: Job) -> Evidence:
            return wait(lookup_bounded(self.mailer, operation_key, timedelta(seconds=10))) if answer is None else answer

        self.service.sweep_reconciliation_candidates(organization=ORGANIZATION, project=PROJECT, lookup=ask)

    def seen(self, operation_key: str) -> list[str]:
        return [entry.effect_id for entry in self.simulator.effects().get(operation_key, [])]

    def journal(self) -> ReceiptJournal:
        return ReceiptJournal(self.folder)


# --- a worker with all its loops --------------------------------------------------------------------------------------


def runs_a_worker(process: Process) -> None:
    """Produce a job, start a worker, and stop it when the job is done."""
    process.enqueue(AWAITING_KIND)
    asyncio.run(_worker(process))


def finds_what_others_left(process: Process) -> None:
    """Leave two effects without an outcome, of one the receipt is in a journal, and start a worker that finds them."""
    aside = DurableJobService(process.plain, tenant=ORGANIZATION)
    with process.journal() as journal:
        for key, kept in (("quote-17", True), ("quote-18", False)):
            process.enqueue(key=key)
            lease = process.claimed()
            effect = aside.begin_effect(lease, name="mail", request=MAIL, provider=process.answering)
            outcome = wait(process.answering.send(MAIL, effect.operation_key))
            assert isinstance(outcome, Succeeded)
            if kept:
                journal.append_receipt(effect.operation_key, lease.attempt_id, Accepted(outcome.receipt))
    process.night()
    asyncio.run(_worker(process))


async def _worker(process: Process) -> None:
    service = DurableJobService(process.plain, tenant=ORGANIZATION)
    # One at a time: which of two handlers share a transaction would be chance.
    options: dict[str, Any] = {
        "concurrency": 1,
        "poll": timedelta(milliseconds=50),
        "sweep_every": timedelta(milliseconds=50),
    }
    async with process.app.worker(worker_id="first", journal_dir=process.folder, **options):
        while True:
            jobs = await asyncio.to_thread(service.list_jobs)
            if all(at_rest(job) for job in jobs):
                break
            await asyncio.sleep(0.01)  # what a database holds cannot be waited for


# --- workers and operators by hand ------------------------------------------------------------------------------------


def works(process: Process) -> None:
    process.enqueue()
    process.work()


def holds_and_completes(process: Process) -> None:
    job = process.enqueue()
    lease = process.claimed()
    process.service.heartbeat(lease)
    process.store.run(renew([lease]))
    process.service.mark_provider_dispatched(lease, operation_key=OWN_KEY)
    wait(process.mailer.send(MAIL, OWN_KEY))  # type: ignore[arg-type]
    process.service.append_job_event(job.id, "admission_checked", {"by": "op:1"})
    process.service.complete_job(lease, result={"sent": True})


def finishes_by_hand(process: Process) -> None:
    # As a joined enqueue does it, in a transaction of its own.
    process.store.run(process.app.epochs.create_at_once(process.app.prepare(KIND, QUOTE, key="quote-17")))
    lease = process.claimed()
    effect = process.service.begin_effect(lease, name="mail", request=MAIL, provider=process.mailer)
    outcome: Any = wait(process.mailer.send(MAIL, effect.operation_key))  # type: ignore[arg-type]
    process.service.finish_effect(lease, name="mail", outcome=outcome)
    process.service.fail_job(lease, code="LATER", message="the rest comes later", retryable=True)
    process.night()
    process.work()


def shares_transactions(process: Process) -> None:
    """What the handlers of one worker do at the same time."""
    process.enqueue()
    process.enqueue(key="quote-18")
    leases = [process.claimed(), process.claimed()]
    declared, digest = terms(process.mailer), request_digest(MAIL)
    limit = timedelta(seconds=10)
    begun = process.store.run(
        begin_effects([begin_effect(Beginning(one, "mail", digest, declared, limit)) for one in leases])
    )
    ends = []
    for lease, one in zip(leases, begun, strict=True):
        assert isinstance(one, Begun)
        outcome: Any = wait(process.mailer.send(MAIL, one.effect.operation_key))  # type: ignore[arg-type]
        ends.append(finish_effect(Finishing(lease, "mail", outcome)))
    process.store.run(finish_effects(ends))
    for lease in leases:
        process.service.complete_job(lease, result=None)


def is_refused_and_retried(process: Process) -> None:
    process.simulator.fault("refuse")
    job = process.enqueue()
    process.work()
    process.service.retry_job(job.id, reopen=["mail"])
    process.work()


def is_cancelled(process: Process) -> None:
    job = process.enqueue()
    lease = process.claimed()
    process.service.cancel_job(job.id, reason="not wanted")
    process.service.acknowledge_cancellation(lease)


def is_revoked(process: Process) -> None:
    job = process.enqueue()
    lease = process.claimed()
    process.service.begin_effect(lease, name="mail", request=MAIL, provider=process.mailer)
    process.service.revoke_job(job.id, reason="not wanted")
    process.night()
    process.sweep()


def is_stated(process: Process) -> None:
    process.simulator.fault("drop_reply")
    job = process.enqueue()
    process.work()
    process.night()
    process.sweep(NoAnswer("down"))
    process.service.resume_sweep(job.id)
    process.sweep(NoAnswer("down"))
    (effect,) = process.service.list_effects(job.id)
    booked = Accepted({"effect_id": process.seen(effect.operation_key)[0]})
    process.service.reconcile_dispatched(job.id, booked, reason="read in the books")
    process.work()


def loses_the_database(process: Process) -> None:
    """The outcome of a call is not taken; its receipt goes to the journal and comes back from there."""
    process.enqueue()
    with process.journal() as journal:
        app = open_office(_refusing(process.store, "finish_effect"), process.mailer)
        hand = Hand(app, worker_id="first", journal=process.points.journal(journal))
        process.work(hand)

    def submit(operation_key: str, evidence: Evidence, attempt_id: UUID) -> None:
        process.service.submit_evidence(operation_key, evidence, attempt_id=attempt_id)

    with process.journal() as journal:
        journal.hand_in(submit)
    process.night()
    process.sweep(NoAnswer("down"))
    process.work()


def loses_a_publish(process: Process) -> None:
    """The commit of a publish goes through and its reply does not come."""
    process.enqueue()
    app = open_office(_losing_replies(process.store), process.mailer)
    process.work(Hand(app, worker_id="first"))


def tends(process: Process) -> None:
    """Do by hand what the loops of a worker do beside its jobs."""
    process.enqueue()
    process.store.run(announce("first", [KIND, AWAITING_KIND], timedelta(seconds=15)))
    process.store.run(promote())
    process.store.run(recover())
    process.store.run(park())
    process.store.run(forget_claims(timedelta(days=8)))
    process.store.run(hold([releasing(process.claimed(), "the worker is stopping")]))
    process.work()
    process.store.run(withdraw("first"))


def is_restored(process: Process) -> None:
    """Its mail went out after the backup, and its intent is lost; a person clears the other job."""
    job = process.enqueue()
    wait(process.mailer.send(MAIL, f"{KIND}:{job.id}:mail"))  # type: ignore[arg-type]
    process.store.run(mark_copy("op:1", "restored from last night"))
    process.night()
    process.service.reconcile_suspects(operations={KIND: {"mail": process.mailer}})
    process.work()
    other = process.enqueue(key="quote-18")
    process.store.run(mark_copy("op:1", "restored once more"))
    process.service.clear_suspicion(other.id, reason="nothing ran after the backup")
    process.work()


def keeps_authority(process: Process) -> None:
    """Do to a tenant what operators do, under a ledger, and bring the database back, with the ledger and without."""
    process.enqueue()
    path = process.folder.with_name("ledger")
    process.plain.ledger = ledger = process.points.ledger(LogLedger(FileLog(path)))
    identity = process.plain.run(read_facts(None, "here")).identity
    ledger.check_outside(identity)
    ledger.begin(Book(store="s-1", identity=identity))
    book = ledger.read()
    assert book is not None
    found = process.store.run(tick(book, "here", sure=True))
    ledger.write(ticked(found.incarnation, found.at))
    service = DurableJobService(process.store, actor="op:1")
    service.rotate_tenant(ORGANIZATION, reason="leaked")
    service.freeze_tenant(ORGANIZATION, reason="leaked")
    service.thaw_tenant(ORGANIZATION, reason="mended")
    service.readmit_jobs(ORGANIZATION, reason="looked at")
    digest = process.app.action_digest(KIND, QUOTE, governance=GOVERNED)
    bound = DurableJobService(process.store, tenant=ORGANIZATION, actor="op:1")
    bound.grant_approval(
        "ap-1", action_digest=digest, expires_at=datetime(2200, 1, 1, tzinfo=UTC), reason="looked at it"
    )
    bound.revoke_approval("ap-1", reason="wrong account")
    # A copy that has forgotten it.
    table = "tenure_approval" if process.plain.dialect == "sqlite" else "tenure.approval"
    with process.plain.transaction() as tx:
        if process.plain.dialect == "postgresql":
            # The database keeps everybody from undoing a revocation; a restore is no statement.
            tx.execute("SET LOCAL session_replication_role = 'replica'")
        tx.execute(f"UPDATE {table} SET revoked_at = NULL, revoked_by = NULL, revoke_reason = NULL")

    def bring_back() -> None:
        def new_book(identity: str) -> Book:
            return Book(store="s-2", identity=identity)

        flow = recover_database(ledger, "here", "op:1", "restored", new_book)
        run_flow(flow, process.store.run)
        service.readmit_jobs(ORGANIZATION, reason="looked at")

    # And that is behind its ledger.
    book = ledger.read()
    assert book is not None
    ledger.write(ticked(book.incarnation + 1, book.ticked_at + 1))
    process.store.run(compare(ledger.read(), "here"))
    bring_back()
    known = bound.get_approval("ap-1")
    assert known.state == "revoked"
    process.store.run(replay_revocations([known]))
    path.unlink()
    process.store.run(compare(ledger.read(), "here"))
    bring_back()
    process.work()


def is_handed_over_and_stopped(process: Process) -> None:
    """Its queue is given away and taken back, and the execution control stops its effect once."""
    process.enqueue()
    everybody = DurableJobService(process.store, actor="op:1")
    (queue,) = everybody.show_queues()
    everybody.set_queue(queue.name, fair=False)
    everybody.pause_queue(queue.name, reason="it moves")
    everybody.drain_queue(queue.name)
    everybody.transfer_queue(queue.name, owner="others", expected=None, with_work=True)
    everybody.transfer_queue(queue.name, owner=None, expected="others", with_work=True)
    everybody.resume_queue(queue.name)
    lease = process.claimed()
    with suppress(ExecutionStopped):
        process.store.run(stop_effect(lease, "mail", "mailer", "v1:0", Judged(ControlMode.ENFORCED, "deny", "no")))
    process.service.release_job(lease, reason="not now")
    process.work()


class _Refusing:
    """A store whose database is gone for one procedure, once."""

    def __init__(self, inner: Store, name: str) -> None:
        self._inner = inner
        self._name: str | None = name

    def run(self, procedure: Procedure[Any]) -> Any:
        if point_name(procedure) == self._name:
            self._name = None
            procedure.script().close()
            raise Unavailable("the database is gone")
        return self._inner.run(procedure)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _refusing(store: Store, name: str) -> Store:
    refusing: Any = _Refusing(store, name)
    return refusing  # type: ignore[no-any-return]


class _LosingReplies(_Refusing):
    """A store whose first transaction is committed and not answered."""

    @contextmanager
    def transaction(self, *, deadline: timedelta | None = None) -> Iterator[Any]:
        with self._inner.transaction(deadline=deadline) as tx:
            yield tx
        raise Unavailable("the reply to the commit was lost")


def _losing_replies(store: Store) -> Store:
    losing: Any = _LosingReplies(store, "")
    return losing  # type: ignore[no-any-return]


# In this order each program is killed at the points that none before it has passed.
PROGRAMS: dict[str, Callable[[Process], None]] = {
    one.__name__: one
    for one in (
        runs_a_worker,
        finds_what_others_left,
        works,
        holds_and_completes,
        finishes_by_hand,
        shares_transactions,
        is_refused_and_retried,
        is_cancelled,
        is_revoked,
        is_stated,
        loses_the_database,
        loses_a_publish,
        tends,
        is_restored,
        keeps_authority,
        is_handed_over_and_stopped,
        relays,
    )
}


def main(given: dict[str, Any]) -> int:
    """Run one program in this process."""
    logging.disable(logging.CRITICAL)
    process = Process(given)
    PROGRAMS[given["program"]](process)
    process.app.close()
    process.plain.close()
    return 0
