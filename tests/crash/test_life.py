"""
Every procedure of a job's life, cut before and after its commit, one process and one death at a time.

The processes here are cut inside this one: the point raises what nothing catches, the store rolls back, and everything
else that belonged to the process is thrown away. What is stored is all that the next one has to go on with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from tenure.errors import ExecutionStopped
from tenure.procedures.approvals import replay_revocations
from tenure.procedures.control import stop_effect
from tenure.procedures.upkeep import promote, recover
from tenure.rules.control import ControlMode, Judged
from tenure.rules.envelope import GovernanceInput
from tenure.rules.job import Job
from tenure.rules.lease import Lease
from tenure.rules.outcome import Accepted, Evidence, FailedBeforeDispatch, NoAnswer, Rejected, Unknown
from tenure.service import DurableJobService
from tenure.testing.crash_points import CrashPoints, known_points
from tests.crash import recovery
from tests.crash.clock import START
from tests.crash.fakes import Books, Killed, MortalProvider, mailer, silent
from tests.crash.office import KIND, Hand, open_office, wait
from tests.crash.recovery import NIGHT, Tally, checked, explained, settle_by_ledger
from tests.crash.scene import ORGANIZATION, PROJECT, Scene
from tests.support.copies import mark_copy

QUOTE = {"id": 17, "to": "ann@example.org"}
GOVERNED = GovernanceInput(
    action_intent="send the quote",
    capability="mail.send",
    policy="p-7",
    budget={"eur": 1},
    approval_reference="ap-1",
    issued_at=START,
    expires_at=START + timedelta(days=300),
)


class Process:
    """A producer, a worker and an operator in one process that dies at a point; or lives on, where there is none."""

    def __init__(self, scene: Scene, provider: MortalProvider, points: CrashPoints) -> None:
        self.scene = scene
        self.mailer = provider
        self.store = points.store(scene.store)
        self.app = open_office(self.store, points.provider(provider))
        self.service = DurableJobService(self.store, tenant=ORGANIZATION, actor="op:1")
        self.hand = Hand(self.app, worker_id="first")

    def enqueue(self) -> Job:
        return self.app.enqueue(KIND, QUOTE, key="quote-17").job

    def claimed(self) -> Lease:
        claim = self.hand.claim()
        assert claim is not None
        return claim.lease

    def work(self) -> None:
        """Claim and do what there is to do."""
        claim = self.hand.claim()
        if claim is not None:
            self.hand.work(claim)

    def night(self) -> None:
        self.scene.clock.advance(NIGHT)

    def sweep(self, answer: Evidence | None = None) -> None:
        def ask(operation_key: str, _job: Job) -> Evidence:
            return wait(self.mailer.lookup(operation_key)) if answer is None else answer

        self.service.sweep_reconciliation_candidates(organization=ORGANIZATION, project=PROJECT, lookup=ask)


# --- lives ------------------------------------------------------------------------------------------------------------


def sent(process: Process) -> None:
    process.enqueue()
    process.work()


def fails_and_is_tried_again(process: Process) -> None:
    process.enqueue()
    process.work()
    process.night()
    process.store.run(promote())
    process.work()


def fails_for_good_and_is_retried(process: Process) -> None:
    job = process.enqueue()
    process.work()
    process.service.retry_job(job.id, reopen=["mail"])
    process.work()


def given_back(process: Process) -> None:
    # As a joined enqueue does it, in a transaction of its own.
    process.store.run(process.app.epochs.create_at_once(process.app.prepare(KIND, QUOTE, key="quote-17")))
    lease = process.claimed()
    process.service.heartbeat(lease)
    process.service.release_job(lease, reason="not now")
    process.work()


def cancelled_while_held(process: Process) -> None:
    job = process.enqueue()
    lease = process.claimed()
    process.service.cancel_job(job.id, reason="not wanted")
    process.service.acknowledge_cancellation(lease)


def revoked_with_an_open_effect(process: Process) -> None:
    job = process.enqueue()
    lease = process.claimed()
    process.service.begin_effect(lease, name="mail", request={"to": QUOTE["to"]}, provider=process.mailer)
    process.service.revoke_job(job.id, reason="not wanted")
    process.night()
    process.sweep()


def uncertain_and_swept(process: Process) -> None:
    process.enqueue()
    process.work()
    process.night()
    process.sweep()
    process.work()


def uncertain_and_stated(process: Process) -> None:
    job = process.enqueue()
    process.work()
    process.night()
    process.sweep(NoAnswer("down"))
    (effect,) = process.service.list_effects(job.id)
    seen = Books(process.mailer).seen(effect.operation_key)
    process.service.reconcile_dispatched(job.id, Accepted({"effect_id": seen[0]}), reason="read in the books")
    process.work()


def escalated_and_asked_again(process: Process) -> None:
    job = process.enqueue()
    process.work()
    process.night()
    process.sweep(NoAnswer("down"))
    process.service.resume_sweep(job.id)
    process.sweep()
    process.work()


def lost_and_found(process: Process) -> None:
    job = process.enqueue()
    process.claimed()
    process.night()
    process.store.run(recover())
    process.service.append_job_event(job.id, "admission_checked", {"by": "op:1"})
    process.work()


def marked_by_hand(process: Process) -> None:
    process.enqueue()
    lease = process.claimed()
    process.service.mark_provider_dispatched(lease, operation_key="quote-17")
    wait(process.app.providers.send(process.app.providers.by_name["mailer"], {}, "quote-17", process.mailer.timeout))
    process.service.complete_job(lease, result={"sent": True})


def handed_over(process: Process) -> None:
    process.enqueue()
    everybody = DurableJobService(process.store, actor="op:1")
    (queue,) = everybody.show_queues()
    everybody.set_queue(queue.name, fair=queue.fair)
    everybody.pause_queue(queue.name, reason="it moves")
    everybody.drain_queue(queue.name)
    everybody.transfer_queue(queue.name, owner="others", expected=None, with_work=True)
    everybody.transfer_queue(queue.name, owner=None, expected="others", with_work=True)
    everybody.resume_queue(queue.name)
    process.work()


def approved_and_taken_back(process: Process) -> None:
    digest = process.app.action_digest(KIND, QUOTE, governance=GOVERNED)
    until = START + timedelta(days=300)
    process.service.grant_approval("ap-1", action_digest=digest, expires_at=until, reason="looked at it")
    process.app.enqueue(KIND, QUOTE, key="quote-17", governance=GOVERNED)
    process.work()
    known = process.service.revoke_approval("ap-1", reason="it is done")
    process.store.run(replay_revocations([known]))


def stopped_by_the_control(process: Process) -> None:
    process.enqueue()
    lease = process.claimed()
    with contextlib.suppress(ExecutionStopped):
        process.store.run(stop_effect(lease, "mail", "mailer", "v1:0", Judged(ControlMode.ENFORCED, "deny", "no")))
    process.service.release_job(lease, reason="not now")
    process.work()


def restored_and_found(process: Process) -> None:
    job = process.enqueue()
    wait(process.mailer.send({"to": QUOTE["to"]}, f"{KIND}:{job.id}:mail"))
    process.store.run(mark_copy("op:1", "restored from last night"))
    process.night()
    process.service.reconcile_suspects(operations={KIND: {"mail": process.mailer}})
    process.work()


def restored_and_cleared(process: Process) -> None:
    job = process.enqueue()
    process.store.run(mark_copy("op:1", "restored from last night"))
    process.night()
    process.service.clear_suspicion(job.id, reason="nothing ran after the backup")
    process.work()


@dataclass(frozen=True, slots=True)
class Life:
    """
    What one process does.

    Attributes:
        proves: What must have been counted over all cuts.
    """

    lived: Callable[[Process], None]
    provider: Callable[[], MortalProvider] = mailer
    proves: tuple[str, ...] = ("reclaimed", "allowed", "stale_refused")


LIVES = {
    one.lived.__name__: one
    for one in (
        Life(sent, mailer, ("reclaimed", "allowed", "stale_refused", "stale_while_held", "reconciled", "lost")),
        Life(fails_and_is_tried_again, lambda: mailer(FailedBeforeDispatch("down"))),
        Life(fails_for_good_and_is_retried, lambda: mailer(Rejected("no such address"))),
        Life(given_back),
        Life(cancelled_while_held, proves=("stale_refused",)),
        Life(revoked_with_an_open_effect, proves=("reconciled", "stale_refused")),
        Life(uncertain_and_swept, lambda: mailer(Unknown("no reply")), ("reconciled", "allowed")),
        Life(uncertain_and_stated, lambda: silent(Unknown("no reply")), ("escalated", "stated", "allowed")),
        Life(escalated_and_asked_again, lambda: mailer(Unknown("no reply")), ("reconciled", "allowed")),
        Life(lost_and_found),
        Life(handed_over),
        Life(approved_and_taken_back),
        Life(stopped_by_the_control),
        Life(marked_by_hand, silent, ("stated", "stale_refused")),
        Life(restored_and_found, proves=("allowed",)),
        Life(restored_and_cleared, proves=("allowed",)),
    )
}


def live(scene: Scene, life: Life, points: CrashPoints) -> MortalProvider:
    """Play a life from an empty database until its end or its death, and give the provider it spoke to."""
    scene.reset()
    provider = life.provider()
    with contextlib.suppress(Killed):
        life.lived(Process(scene, provider, points))
    return provider


def _killed() -> None:
    raise Killed


def _cut(scene: Scene, name: str, every: int) -> None:
    """Let a life end at each of its points in turn, or at every so manieth, and go on with what it left."""
    life = LIVES[name]
    whole = CrashPoints()
    live(scene, life, whole)
    assert len(whole.reached) >= 8
    tally = Tally()
    deaths = [(point, nth) for point, count in whole.counts.items() for nth in range(1, count + 1)][::every]
    for point, times in deaths:
        points = CrashPoints(f"{point}:{times}", act=_killed)
        provider = live(scene, life, points)
        assert points.counts[point] == times, f"{point} was not reached {times} times"
        tally.add("kills")
        _go_on(scene, provider, tally)
    assert tally.counts["kills"] == len(deaths)
    tally.require(*life.proves)


@pytest.mark.parametrize("name", LIVES)
def test_a_life_may_end_at_any_commit(scene: Scene, name: str) -> None:
    # The deaths that are left out on PostgreSQL died on SQLite, and are `nightly`.
    _cut(scene, name, 2 if scene.dialect == "postgresql" else 1)


@pytest.mark.nightly
@pytest.mark.parametrize("name", LIVES)
def test_a_life_may_end_at_any_commit_on_both(scene: Scene, name: str) -> None:
    _cut(scene, name, 1)


def _go_on(scene: Scene, provider: MortalProvider, tally: Tally) -> None:
    app = open_office(scene.store, provider)
    # An operator finds out how far a hand-over came, and ends it.
    everybody = DurableJobService(scene.store, actor="op:1")
    for queue in everybody.show_queues():
        everybody.resume_queue(queue.name)
        if queue.owner is not None:
            everybody.transfer_queue(queue.name, owner=None, expected=queue.owner, with_work=True)
    # The producer does not know whether its commit came through: it asks again with the same key.
    again: Any = app.enqueue(KIND, QUOTE, key="quote-17")
    tally.add("lost", again.created)
    later, world = Hand(app, worker_id="first"), Books(provider)  # started again under its name
    recovery.recover(scene, later, provider, world, tally)
    while settle_by_ledger(scene, world, tally):
        recovery.recover(scene, later, provider, world, tally)
    checked(scene, world)
    explained(scene)
    assert [job.idempotency_key for job in scene.jobs()] == ["quote-17"]
    assert scene.job(again.job.id).status.value in {"completed", "failed", "cancelled", "dead_letter"}


def test_the_lives_pass_the_points_of_every_verb(scene: Scene) -> None:
    reached: set[str] = set()
    for life in LIVES.values():
        points = CrashPoints()
        live(scene, life, points)
        reached |= set(points.reached)
    # What only loops and lost replies lead to is reached by real processes.
    by_loops = {"announce", "find_publish", "finish_for_job", "forget_claims", "hold", "keep", "park"}
    by_loops |= {
        "begin_effects",
        "finish_effects",
        "claim_batch",
        "complete_batch",
        "renew",
        "submit_evidence",
        "withdraw",
    }
    # And what is done to a tenant or a database is in `programs.keeps_authority`.
    by_loops |= {"compare", "tick", "rotate", "freeze", "thaw", "readmit_jobs", "recover_database"}
    by_loops |= {"ledger_outside", "ledger_read", "ledger_begin", "ledger_write"}
    # And messages are in `programs.relays`.
    by_loops |= {"add_messages", "readmit_messages", "claim_messages", "deliver", "finish_messages"}
    by_loops |= {"announce_relay", "withdraw_relay", "tend_messages"}
    by_loops |= {
        "replay_message",
        "discard_message",
        "prune_messages",
        "declare_consumer",
        "receive_event",
        "prune_inbox",
    }
    missing = {point for point in known_points() if point not in reached}
    assert {point.partition(":")[0] for point in missing} == by_loops
