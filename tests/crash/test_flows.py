"""
Every flow, cut at every place where it yields, and what ordinary means make of what is left.

A flow is cut before and after each commit, and before, during and after each call: the driver here simply stops, as a
dead process does. Then time passes, sweeps ask, the next claim goes on, and in the end a person reads the provider's
books. At every step each operation has at most one effect there, and every status is explained by its trail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tenure.connectors.provider import terms
from tenure.connectors.wire import json_value
from tenure.errors import CancelRequested, LeaseLost, Unavailable, Uncertain
from tenure.flows.effect import perform
from tenure.flows.recover import reconcile_suspects
from tenure.flows.sweep import sweep_job, sweep_scope
from tenure.journal.receipts import ReceiptJournal
from tenure.rules.digest import request_digest
from tenure.rules.dispatch import Begun
from tenure.rules.effect import Effect, operation_key
from tenure.rules.job import Job
from tenure.rules.lease import Lease
from tenure.rules.outcome import (
    Accepted,
    Declined,
    Evidence,
    FailedBeforeDispatch,
    NoAnswer,
    Outcome,
    Rejected,
    Unknown,
)
from tenure.rules.recover import Operation
from tenure.testing.crash_points import point_name
from tenure.testing.provider import Step
from tenure.yields import Flow, Procedure, Transact
from tests.crash.fakes import Books, Killed, MortalProvider, keyless, mailer, silent
from tests.crash.office import KIND, Hand, open_office, wait
from tests.crash.recovery import NIGHT, Tally, checked, explained, recover, settle_by_ledger
from tests.crash.scene import ORGANIZATION, PROJECT, Scene
from tests.support.copies import mark_copy

REQUEST = {"to": "ann@example.org"}
QUOTE = {"id": 17, "to": "ann@example.org"}


class Stage:
    """One job, one provider, and the means to go on after a death."""

    def __init__(self, scene: Scene, provider: MortalProvider, folder: Path, **options: Any) -> None:
        self.scene = scene
        self.mailer = provider
        self.world = Books(provider)
        self.folder = folder
        self.journal: ReceiptJournal | None = None
        self.app = open_office(scene.store, provider, **options)
        self.hand = Hand(self.app, worker_id="first")
        self.job_id = self.app.enqueue(KIND, QUOTE, key="quote-17").job.id

    @property
    def job(self) -> Job:
        return self.scene.job(self.job_id)

    def claim(self) -> Lease:
        claim = self.hand.claim()
        assert claim is not None
        return claim.lease

    def perform(self, lease: Lease, *, name: str = "mail", resend: bool = False) -> Flow[Any]:
        """Make the flow of one effect as a context does, without its clocks."""

        def send(begun: Begun) -> Outcome:
            key = begun.effect.operation_key
            return wait(self.app.providers.send(self.mailer, REQUEST, key, begun.timeout))

        def ask(begun: Begun) -> Evidence:
            return wait(self.mailer.lookup(begun.effect.operation_key))

        digest = request_digest(json_value(REQUEST))
        limit, keep = self.mailer.timeout, self._keep
        return perform(lease, name, digest, terms(self.mailer), limit, send=send, keep=keep, ask=ask, resend=resend)

    def restore(self, *, sent: bool) -> None:
        """The job is one of a restored copy; what was sent after the backup has no intent here."""
        if sent:
            wait(self.mailer.send(REQUEST, operation_key(KIND, self.job_id, "mail")))
        self.scene.store.run(mark_copy("op:1", "restored"))
        self.scene.clock.advance(NIGHT)

    def sweep(self, answer: Evidence | None = None) -> Flow[Any]:
        """Make the flow of one sweep; asks the provider, or gives one answer."""

        def ask(_job: Job, effect: Effect) -> Evidence:
            return wait(self.mailer.lookup(effect.operation_key)) if answer is None else answer

        return sweep_job(self.job_id, ORGANIZATION, PROJECT, ORGANIZATION, ask)

    def reconcile(self) -> Flow[Any]:
        """Make the flow that asks about the work of a restored copy."""

        def ask(_job: Job, effect: Effect) -> Evidence:
            return wait(self.mailer.lookup(effect.operation_key))

        return reconcile_suspects(ask, operations={KIND: [Operation("mail", terms(self.mailer))]})

    def _keep(self, effect: Effect, outcome: Outcome) -> bool:
        if self.journal is None:
            self.journal = ReceiptJournal(self.folder)
        receipt = getattr(outcome, "receipt", None)
        self.journal.append_receipt(effect.operation_key, effect.attempt_id, Accepted(receipt))
        return True

    def die(self) -> None:
        """End what belonged to the process; a real one leaves its journal behind, unlocked."""
        if self.journal is not None:
            self.journal.close()
            self.journal = None

    def hand_in(self) -> None:
        """Do what every worker does at its start: hand in the receipts of dead ones."""
        if not self.folder.exists():
            return
        with ReceiptJournal(self.folder) as journal:
            journal.hand_in(self._submit)

    def _submit(self, operation_key: str, evidence: Evidence, attempt_id: UUID) -> None:
        self.scene.service.submit_evidence(operation_key, evidence, attempt_id=attempt_id)


# --- the driver that stops --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Cut:
    """
    Where a run stops.

    Attributes:
        at: The number of the place, from 1; 0 means nowhere.
        lost: Procedures that the database does not take, once each.
        places: The places passed, in order.
    """

    at: int = 0
    lost: set[str] = field(default_factory=set)
    places: list[str] = field(default_factory=list)

    def here(self, place: str) -> bool:
        self.places.append(place)
        return len(self.places) == self.at


def drive(stage: Stage, flow: Flow[Any], cut: Cut) -> None:
    """Run a flow to its end, to an error of its own, or to the cut."""
    script = flow.script()
    resume: Callable[[Any], Any] = script.send
    given: Any = None
    while True:
        try:
            step = resume(given)
        except StopIteration:
            return
        except (Uncertain, LeaseLost, CancelRequested, Unavailable):
            return
        try:
            given, resume = _taken(stage, step, cut), script.send
        except Killed:
            # Not even thrown into the flow: a dead process runs no handlers.
            stage.die()
            return
        except Exception as error:  # noqa: BLE001 - what the database or the provider says is the flow's to judge
            given, resume = error, script.throw


def _taken(stage: Stage, step: Any, cut: Cut) -> Any:
    if isinstance(step, Transact):
        return _committed(stage, step.procedure, cut)
    if cut.here(f"{step.name}: before"):
        raise Killed
    if cut.here(f"{step.name}: during"):
        stage.mailer.during = _kill
        try:
            step.function(*step.args)
        finally:
            stage.mailer.during = None  # a call of something else, which is then over
        raise Killed
    value = step.function(*step.args)
    if cut.here(f"{step.name}: after"):
        raise Killed
    return value


def _kill() -> None:
    raise Killed


def _committed(stage: Stage, procedure: Procedure[Any], cut: Cut) -> Any:
    name = point_name(procedure)
    if name in cut.lost:
        cut.lost.discard(name)
        procedure.script().close()
        raise Unavailable("the database is gone")
    if cut.here(f"{name}: before its commit"):
        with stage.scene.store.transaction() as tx:
            tx.run(procedure)
            raise Killed
    value = stage.scene.store.run(procedure)
    if cut.here(f"{name}: after its commit"):
        raise Killed
    return value


# --- what is cut ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Play:
    """
    One situation in which a flow is cut.

    Attributes:
        provider: Makes the provider, fresh for every cut.
        prepare: Brings the job to where the flow begins and gives the flow.
        places: How many places it must have.
        proves: What must have been counted over all cuts.
        ends: The statuses the job may have in the end.
        lost: See `Cut`.
    """

    provider: Callable[[], MortalProvider]
    prepare: Callable[[Stage], Flow[Any]]
    places: int
    proves: tuple[str, ...] = ("reclaimed", "allowed", "stale_refused")
    ends: frozenset[str] = frozenset({"completed"})
    lost: frozenset[str] = frozenset()
    options: dict[str, Any] = field(default_factory=dict)


def fresh(stage: Stage) -> Flow[Any]:
    return stage.perform(stage.claim())


def after_a_failure(stage: Stage) -> Flow[Any]:
    """The effect has a record that says it did not happen."""
    lease = stage.claim()
    drive(stage, stage.perform(lease), Cut())
    stage.scene.service.fail_job(lease, code="DOWN", message="it was down", retryable=True)
    stage.scene.clock.advance(NIGHT)
    return stage.perform(stage.claim())


def after_a_success(stage: Stage) -> Flow[Any]:
    """An earlier attempt has the receipt; nothing is sent."""
    return after_a_failure(stage)


def lease_ends_during_the_call(stage: Stage) -> Flow[Any]:
    lease = stage.claim()
    stage.mailer.during = lambda: stage.scene.clock.advance(NIGHT)
    return stage.perform(lease)


def cancelled_during_the_call(stage: Stage) -> Flow[Any]:
    lease = stage.claim()
    stage.mailer.during = lambda: stage.scene.service.cancel_job(stage.job_id, reason="not wanted")
    return stage.perform(lease)


def revoked_during_the_call(stage: Stage) -> Flow[Any]:
    lease = stage.claim()
    stage.mailer.during = lambda: stage.scene.service.revoke_job(stage.job_id, reason="not wanted")
    return stage.perform(lease)


def sent_again_in_the_same_attempt(stage: Stage) -> Flow[Any]:
    lease = stage.claim()
    drive(stage, stage.perform(lease), Cut())
    return stage.perform(lease, resend=True)


def lost_with_the_backup(stage: Stage) -> Flow[Any]:
    stage.restore(sent=True)
    return stage.perform(stage.claim())


def restored_and_never_sent(stage: Stage) -> Flow[Any]:
    stage.restore(sent=False)
    return stage.perform(stage.claim())


def found_before_a_worker_comes(stage: Stage) -> Flow[Any]:
    stage.restore(sent=True)
    return stage.reconcile()


COMPLETED = frozenset({"completed"})
SENT: dict[str, Play] = {
    "accepted": Play(mailer, fresh, 7, ("reclaimed", "reconciled", "allowed", "stale_refused")),
    "accepted, no keys": Play(keyless, fresh, 7, ("reclaimed", "reconciled", "escalated", "stated", "stale_refused")),
    "accepted, nobody can be asked": Play(silent, fresh, 7, ("reclaimed", "escalated", "stated", "stale_refused")),
    "the reply is lost": Play(lambda: mailer(Unknown("no reply")), fresh, 7, ("reclaimed", "reconciled", "allowed")),
    "the request is lost": Play(
        lambda: mailer(Step(Unknown("no reply"), acts=False)), fresh, 7, ("reclaimed", "reconciled", "allowed")
    ),
    "not sent": Play(lambda: mailer(FailedBeforeDispatch("down")), fresh, 7),
    "rejected": Play(
        lambda: mailer(Rejected("no such address")), fresh, 7, ("reconciled",), frozenset({"failed", "completed"})
    ),
    "after a failure": Play(lambda: mailer(FailedBeforeDispatch("down")), after_a_failure, 7),
    "after a success": Play(mailer, after_a_success, 2),
    "the database is lost after the call": Play(
        silent, fresh, 8, ("reclaimed", "reconciled", "stale_refused"), lost=frozenset({"finish_effect"})
    ),
    "the lease ends during the call": Play(mailer, lease_ends_during_the_call, 6, ("reclaimed", "reconciled")),
    "cancelled during the call": Play(
        mailer, cancelled_during_the_call, 7, ("reconciled",), frozenset({"completed", "cancelled"})
    ),
    "revoked during the call": Play(
        mailer, revoked_during_the_call, 6, ("reconciled",), frozenset({"completed", "cancelled"})
    ),
    "sent again under the same key": Play(
        lambda: mailer(Unknown("no reply")), sent_again_in_the_same_attempt, 7, ("reclaimed", "reconciled")
    ),
    "lost with the backup": Play(mailer, lost_with_the_backup, 7, ("reclaimed", "reconciled", "allowed")),
    "lost with the backup, no keys": Play(keyless, lost_with_the_backup, 7, ("reclaimed", "reconciled")),
    "lost with the backup, nobody can be asked": Play(silent, lost_with_the_backup, 7, ("stated", "reclaimed")),
    "restored and never sent": Play(mailer, restored_and_never_sent, 14, ("reclaimed", "reconciled", "allowed")),
    "restored and never sent, no keys": Play(keyless, restored_and_never_sent, 7, ("stated", "reclaimed")),
    "found before a worker comes": Play(mailer, found_before_a_worker_comes, 13, ("allowed",)),
}


def lost_worker(*names: str, answer: Evidence | None = None, also: Callable[[Stage, Lease], None] | None = None) -> Any:
    """A worker died after it had sent; its lease is over."""

    def prepare(stage: Stage) -> Flow[Any]:
        lease = stage.claim()
        for name in names or ("mail",):
            cut = Cut(at=5)  # after the call, before its outcome is written
            drive(stage, stage.perform(lease, name=name), cut)
            assert cut.places[-1] == "send: after"
        if also is not None:
            also(stage, lease)
        stage.scene.clock.advance(NIGHT)
        return stage.sweep(answer)

    return prepare


def unsent(stage: Stage) -> Flow[Any]:
    """A worker died between its intent and its call."""
    drive(stage, stage.perform(stage.claim()), Cut(at=2))
    stage.scene.clock.advance(NIGHT)
    return stage.sweep()


def one_of_two_sent(stage: Stage) -> Flow[Any]:
    lease = stage.claim()
    drive(stage, stage.perform(lease), Cut(at=5))
    drive(stage, stage.perform(lease, name="other"), Cut(at=2))
    stage.scene.clock.advance(NIGHT)
    return stage.sweep()


def receipt_arrived(stage: Stage, lease: Lease) -> None:
    (effect,) = stage.job.effects
    receipt = {"effect_id": stage.world.seen(effect.operation_key)[0], "operation_key": effect.operation_key}
    stage.scene.service.submit_evidence(effect.operation_key, Accepted(receipt), attempt_id=lease.attempt_id)


def cancelling(stage: Stage, lease: Lease) -> None:
    stage.scene.service.cancel_job(stage.job_id, reason="not wanted")


def timed_out(stage: Stage, lease: Lease) -> None:
    stage.scene.service.mark_timed_out(lease, code="TOO_LONG", message="it took too long")


def bare_mark(stage: Stage) -> Flow[Any]:
    lease = stage.claim()
    stage.scene.service.mark_provider_dispatched(lease, operation_key="quote-17")
    wait(stage.mailer.send(REQUEST, "quote-17"))
    stage.scene.clock.advance(NIGHT)
    return stage.sweep()


DECLINED = frozenset({"failed"})
SWEPT: dict[str, Play] = {
    "it happened": Play(mailer, lost_worker(), 9, ("reconciled", "reclaimed", "allowed")),
    "it did not happen": Play(mailer, unsent, 9, ("reconciled", "reclaimed", "allowed")),
    "the provider declines": Play(
        mailer, lost_worker(answer=Declined("spam")), 9, ("reconciled",), frozenset({"failed", "completed"})
    ),
    "no answer": Play(silent, lost_worker(answer=NoAnswer("down")), 7, ("stated",)),
    "absent without keys": Play(keyless, unsent, 7, ("stated", "reclaimed")),
    "one of two happened": Play(mailer, one_of_two_sent, 16, ("reconciled", "reclaimed")),
    "the receipt came in meanwhile": Play(silent, lost_worker(also=receipt_arrived), 2, ("reclaimed",)),
    "cancelled meanwhile": Play(mailer, lost_worker(also=cancelling), 9, ("reconciled",), frozenset({"cancelled"})),
    "timed out": Play(mailer, lost_worker(also=timed_out), 2, ("stated", "reclaimed")),
    "a bare mark": Play(mailer, bare_mark, 9, ("reconciled",)),
    "buried when declined": Play(
        mailer,
        lost_worker(answer=Declined("spam")),
        9,
        ("reconciled",),
        frozenset({"dead_letter", "completed"}),
        options={"on_declined": "dead_letter"},
    ),
}


def stages(scene: Scene, play: Play, folder: Path) -> Iterator[Stage]:
    """Give a fresh stage again and again: another cut of the same play begins from nothing."""
    number = 0
    while True:
        number += 1
        scene.reset()
        yield Stage(scene, play.provider(), folder / f"journal-{number}", **play.options)


@pytest.mark.parametrize("name", [*SENT, *(f"sweep: {name}" for name in SWEPT)])
def test_a_flow_may_be_cut_anywhere(scene: Scene, name: str, tmp_path: Path) -> None:
    play = SENT[name] if name in SENT else SWEPT[name.removeprefix("sweep: ")]
    tally = Tally()
    fresh_stages = stages(scene, play, tmp_path)
    whole = Cut(lost=set(play.lost))
    stage = next(fresh_stages)
    drive(stage, play.prepare(stage), whole)
    stage.die()
    assert len(whole.places) == play.places, whole.places
    for at in range(len(whole.places) + 1):
        stage = next(fresh_stages)
        flow = play.prepare(stage)
        cut = Cut(at=at, lost=set(play.lost))
        drive(stage, flow, cut)
        assert cut.places == whole.places[: at or None]
        tally.add("cuts", at > 0)
        ended = _go_on(stage, tally)
        assert ended in play.ends, f"cut at {cut.places[-1]}: {ended}, {scene.names(stage.job_id)}"
    assert tally.counts["cuts"] == play.places
    tally.require(*play.proves)


def _go_on(stage: Stage, tally: Tally) -> str:
    """Let ordinary means work, and where they end a person with the provider's books, and then they again."""
    stage.die()
    scene = stage.scene
    later = Hand(stage.app, worker_id="first")  # a worker that is started again under its name
    recover(scene, later, stage.mailer, stage.world, tally, hand_in=stage.hand_in)
    while settle_by_ledger(scene, stage.world, tally):
        recover(scene, later, stage.mailer, stage.world, tally, hand_in=stage.hand_in)
    checked(scene, stage.world)
    explained(scene)
    return stage.job.status.value


def test_an_interrupted_sweep_is_finished_by_the_next(scene: Scene, tmp_path: Path) -> None:
    stage = Stage(scene, mailer(), tmp_path)
    for number in range(18, 27):
        stage.app.enqueue(KIND, {**QUOTE, "id": number}, key=f"quote-{number}")
    for _ in range(10):
        drive(stage, stage.perform(stage.claim()), Cut(at=5))
    scene.clock.advance(NIGHT)
    assert {job.status.value for job in scene.jobs()} == {"running"}
    assert len(stage.mailer.effects()) == 10

    def sweep(cut: Cut) -> None:
        def ask(_job: Job, effect: Effect) -> Evidence:
            return wait(stage.mailer.lookup(effect.operation_key))

        drive(stage, sweep_scope(ORGANIZATION, PROJECT, ORGANIZATION, ask, limit=100), cut)

    whole = [f"{step}: {when}" for step, when in _ONE_SWEPT]
    # Dead in the middle of the fourth: three are settled, and seven wait for whoever comes next.
    interrupted = Cut(at=2 + 3 * len(whole) + 4)
    sweep(interrupted)
    assert interrupted.places[2:] == [*whole * 3, *whole[:4]]
    assert Counter(job.status.value for job in scene.jobs()) == {"queued": 3, "indeterminate": 1, "running": 6}
    checked(scene, stage.world)
    following = Cut()
    sweep(following)
    assert following.places.count("lookup: after") == 7
    assert {job.status.value for job in scene.jobs()} == {"queued"}
    settled = scene.dump()
    sweep(Cut())
    assert scene.dump() == settled
    assert len(stage.mailer.effects()) == 10
    checked(scene, stage.world)


_ONE_SWEPT = [
    ("sweep_step", "before its commit"),
    ("sweep_step", "after its commit"),
    ("lookup", "before"),
    ("lookup", "during"),
    ("lookup", "after"),
    ("sweep_answer", "before its commit"),
    ("sweep_answer", "after its commit"),
    ("sweep_step", "before its commit"),
    ("sweep_step", "after its commit"),
]
