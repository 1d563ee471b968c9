"""
What happens after a death: leases run out, a sweep asks, the next claim goes on; and what must be true all the while.

Only ordinary means are used, those of any worker. A person comes last: one who reads the provider's own ledger and
states what is in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import pytest

from tenure.connectors.provider import Provider, lookup_bounded
from tenure.errors import LeaseLost
from tenure.rules.effect import Effect
from tenure.rules.job import Job, open_boundary
from tenure.rules.lease import Lease
from tenure.rules.outcome import Absent, Accepted, Evidence
from tenure.rules.status import TERMINAL, Status
from tests.contract.invariants import broken
from tests.crash.office import Hand, wait
from tests.crash.scene import LEASE, ORGANIZATION, PROJECT, Scene

ROUNDS_MAX = 30
# Longer than any lease, any call, and the longest backoff of the first attempts.
NIGHT = LEASE + timedelta(minutes=10)


class World(Protocol):
    """The provider's own ledger: what customers saw, under each operation key."""

    def seen(self, operation_key: str) -> list[str]:
        """Give the ids of the effects that happened under a key."""
        ...

    def doubled(self) -> list[str]:
        """Give the keys under which more than one effect happened."""
        ...


@dataclass(slots=True)
class Tally:
    """
    What was exercised, counted; a zero where something was expected proves that nothing was proved.

    Attributes:
        counts: cuts, reclaimed, reconciled, escalated, stale_refused, allowed, receipts and others by name.
    """

    counts: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, number: int = 1) -> None:
        self.counts[name] += number

    def require(self, *names: str) -> None:
        print(f"exercised: {dict(sorted(self.counts.items()))}")
        missing = [name for name in names if not self.counts[name]]
        assert missing == [], f"never exercised: {', '.join(missing)}; there were {dict(self.counts)}"


def checked(scene: Scene, world: World) -> None:
    """Check what must be true at every moment, whatever has died."""
    assert broken(scene.dump()) == []
    assert world.doubled() == []


def at_rest(job: Job) -> bool:
    """Say whether nothing more happens by itself and nothing is left unsaid."""
    return job.status in TERMINAL and (not open_boundary(job) or job.escalated_at is not None)


def recover(
    scene: Scene,
    hand: Hand,
    mailer: Provider,
    world: World,
    tally: Tally,
    *,
    hand_in: Callable[[], object] = lambda: None,
) -> None:
    """
    Let time pass and ordinary means work until every job is at rest.

    Args:
        hand: The worker that comes after.
        mailer: Asked by the sweep.
        hand_in: What a worker does with the journals it finds.
    """
    dead = scene.leases()
    checked(scene, world)

    def lookup(operation_key: str, _job: Job) -> Evidence:
        return wait(lookup_bounded(mailer, operation_key, mailer.timeout))

    for _ in range(ROUNDS_MAX):
        hand_in()
        verdicts = scene.service.sweep_reconciliation_candidates(
            organization=ORGANIZATION, project=PROJECT, lookup=lookup
        )
        tally.add("reconciled", sum(one.action == "resolve" for one in verdicts))
        tally.add("escalated", sum(one.action == "escalate" for one in verdicts))
        checked(scene, world)
        claim = hand.claim()
        if claim is not None:
            tally.add("reclaimed", claim.lease.generation > 1)
            # Now, while the job is held: what refuses the dead ones must be the lease, not the job's rest.
            stale = [lease for lease in dead if lease.job_id == claim.job.id]
            dead = [lease for lease in dead if lease not in stale]
            refuse_stale(scene, stale, tally)
            tally.add("stale_while_held", len(stale))
            job = hand.work(claim)
            tally.add("allowed", job is not None)
            checked(scene, world)
        elif all(at_rest(job) for job in scene.jobs()):
            break
        scene.clock.advance(NIGHT)
    else:
        raise AssertionError(f"not at rest after {ROUNDS_MAX} nights: {[(j.status, j.effects) for j in scene.jobs()]}")
    refuse_stale(scene, dead, tally)
    checked(scene, world)


def refuse_stale(scene: Scene, dead: list[Lease], tally: Tally) -> None:
    """Let everyone who died come back and write: nothing of it is taken."""
    for lease in dead:
        before = scene.dump()
        service = scene.service
        for asked, how in (
            (service.complete_job, {"result": {"stale": True}}),
            (service.fail_job, {"code": "STALE", "message": "stale", "retryable": True}),
            (service.release_job, {"reason": "stale"}),
        ):
            with pytest.raises(LeaseLost):
                asked(lease, **how)
            tally.add("stale_refused")
        assert scene.service.heartbeat(lease) is False
        assert scene.dump() == before


def settle_by_ledger(scene: Scene, world: World, tally: Tally) -> int:
    """
    Be the person who looks at the provider's own books and states what is in them, effect by effect.

    Returns: How many statements were made.
    """
    stated = 0
    for job in scene.jobs():
        for effect in job.effects:
            if effect.is_open:
                scene.service.reconcile_dispatched(
                    job.id,
                    _booked(world, effect),
                    operation_key=effect.operation_key,
                    reason="read in the provider's books",
                )
                stated += 1
    tally.add("stated", stated)
    assert not any(open_boundary(job) for job in scene.jobs())
    return stated


def _booked(world: World, effect: Effect) -> Evidence:
    seen = world.seen(effect.operation_key)
    return Accepted({"effect_id": seen[0]}) if seen else Absent()


def explained(scene: Scene) -> None:
    """Check that each job's trail ends with the status it has, and that one that went to its end published."""
    published = dict(scene.published())
    for job in scene.jobs():
        said = [event.status for event in scene.trail(job.id) if event.status is not None]
        assert job.status == (said[-1] if said else Status.QUEUED)
        if job.status is Status.COMPLETED and any(effect.name == "note" for effect in job.effects):
            assert str(job.id) in published
