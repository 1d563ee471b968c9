"""The counter of the demonstration: a good history passes, and each bad one is refused for its own reason."""

from __future__ import annotations

import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tenure.connectors.simulator import Entry
from tenure.faces.demo.studio import ARRIVED, EFFECT, KIND, PUBLISHING
from tenure.faces.demo.verdict import Facts, Kill, judge
from tenure.procedures.upkeep import recover
from tenure.rules.effect import EffectState
from tenure.rules.envelope import ExecutionInput
from tenure.rules.job import Job
from tenure.rules.outcome import Accepted, Succeeded
from tenure.rules.status import Status
from tenure.service import DurableJobService
from tenure.stores import open_store
from tenure.stores.contract import Store
from tenure.testing import FakeProvider, ManualClock

MAILER = FakeProvider("mailer")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
RECEIPT = {"effect_id": "fx"}


class World:
    """Two jobs that went through what the demonstration puts them through, on a real store with a clock to move."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.service = DurableJobService(store, actor="test")

    def create(self, quote: str) -> UUID:
        execution = ExecutionInput(tenant="demo", actor="test", trace="t")
        made = self.service.create_job(
            organization="o", project="p", idempotency_key=quote, kind=KIND, payload={}, execution=execution
        )
        return made.job.id

    def attempt(self, worker: str, *, die_after: str = "") -> None:
        """Do what a worker does with the next job, as far as it gets."""
        claim = self.service.claim_job(worker, start=True)
        assert claim is not None
        begun = self.service.begin_effect(
            claim.lease, name=EFFECT, request={}, provider=MAILER, deadline=timedelta(seconds=30)
        )
        if die_after == "begin":
            return
        if begun.is_open:
            self.service.finish_effect(claim.lease, name=EFFECT, outcome=Succeeded(RECEIPT))
        if die_after != "receipt":
            self.service.complete_job(claim.lease, result={})

    def lose_leases(self) -> None:
        self.clock.advance(timedelta(seconds=61))
        self.store.run(recover())

    def ask(self) -> None:
        self.service.sweep_reconciliation_candidates(
            organization="o", project="p", tenant="demo", lookup=lambda _key, _job: Accepted(RECEIPT)
        )


@pytest.fixture(scope="module")
def good() -> Facts:
    clock = ManualClock(NOW)
    with open_store("sqlite:///:memory:", clock=clock) as store:
        store.migrate()
        world = World(store, clock)
        killed = world.create("Q-1")
        world.attempt("A", die_after="begin")
        world.lose_leases()
        world.ask()
        world.attempt("B")
        paused = world.create("Q-2")
        world.attempt("B", die_after="receipt")
        world.lose_leases()
        world.attempt("C")
        jobs = {"Q-1": world.service.get_job(killed), "Q-2": world.service.get_job(paused)}
        trails = {"Q-1": world.service.list_job_events(killed)}
    return Facts(
        store="sqlite",
        quotes=["Q-1", "Q-2"],
        jobs=jobs,
        trails=trails,
        entries=[accepted(jobs["Q-1"], 1), accepted(jobs["Q-2"], 2)],
        kills=[Kill("Q-1", "A", -signal.SIGKILL, in_ledger=True, effect=EffectState.PENDING)],
        publications=[("Q-1", 3, "B"), ("Q-2", 2, "C")],
        visits=[("Q-2", 1, ARRIVED), ("Q-2", 1, PUBLISHING)],
        seconds=1.23,
    )


def accepted(job: Job, number: int, key: str = "") -> Entry:
    return Entry(
        seq=number,
        at=NOW.isoformat(),
        action="accepted",
        account="default",
        operation_key=key or f"{KIND}:{job.id}:{EFFECT}",
        effect_id=f"fx-{number}",
    )


def test_a_good_history_passes(good: Facts) -> None:
    report = judge(good)
    assert report.broken == ()
    assert report.held
    assert report.as_json() == {
        "store": "sqlite",
        "jobs": 2,
        "completed": 2,
        "killed_after_acceptance": 1,
        "reconciled": 1,
        "provider_effects": 2,
        "duplicate_effects": 0,
        "lost_jobs": 0,
        "stale_writes_refused": 1,
        "current_writes_accepted": 2,
        "seconds": 1.2,
        "broken": [],
    }


def test_a_slow_machine_may_kill_twice(good: Facts) -> None:
    early = Kill("Q-2", "A", -signal.SIGKILL, in_ledger=True, effect=EffectState.UNKNOWN)
    assert judge(replace(good, kills=[early, *good.kills])).held
    assert not judge(replace(good, kills=[early])).held


def job(facts: Facts, quote: str, **changes: Any) -> dict[str, Job]:
    return {**facts.jobs, quote: replace(facts.jobs[quote], **changes)}


def bad_histories(good: Facts) -> dict[str, tuple[Facts, str, dict[str, int]]]:
    """Give bad histories by name, with the beginning of the reason and some counts."""
    one, two = good.jobs["Q-1"], good.jobs["Q-2"]
    kill = good.kills[0]
    twice = accepted(one, 3, f"{KIND}:{one.id}:{EFFECT}:2")
    unsettled = tuple(replace(effect, state=EffectState.PENDING, settled_by=None) for effect in one.effects)
    return {
        "two mails under one key": (
            replace(good, entries=[*good.entries, accepted(one, 3)]),
            "one operation, one act: the customer of Q-1 got 2 mails",
            {"duplicate_effects": 1, "provider_effects": 3},
        ),
        "two mails under two keys": (
            replace(good, entries=[*good.entries, twice]),
            "one operation, one act",
            {"duplicate_effects": 1},
        ),
        "a mail of no job": (
            replace(good, entries=[*good.entries, accepted(one, 3, "charge:x:send")]),
            "no act without a job",
            {"provider_effects": 3},
        ),
        "a mail without a key": (
            replace(good, entries=[*good.entries, replace(accepted(one, 3), operation_key="")]),
            "no act without a job",
            {"provider_effects": 3},
        ),
        "a quote without a job": (
            replace(good, quotes=[*good.quotes, "Q-3"]),
            "no accepted work is lost: Q-3",
            {"lost_jobs": 1},
        ),
        "a job that nobody has in hand": (
            replace(good, jobs=job(good, "Q-2", status=Status.RUNNING)),
            "no accepted work is lost: Q-2",
            {"lost_jobs": 1, "completed": 1},
        ),
        "done, and nothing was sent": (
            replace(good, entries=good.entries[:1]),
            "no accepted work is lost: Q-2",
            {"lost_jobs": 1, "completed": 2, "provider_effects": 1},
        ),
        "a job that failed": (
            replace(good, jobs=job(good, "Q-2", status=Status.FAILED)),
            "all that was accepted is finished: 1 failed instead of completed",
            {"lost_jobs": 0, "completed": 1},
        ),
        "nobody was killed": (replace(good, kills=[]), "nothing was shown: no worker was killed", {}),
        "it ended by itself": (
            replace(good, kills=[replace(kill, status=0)]),
            "nothing was shown: worker A ended with status 0",
            {"killed_after_acceptance": 0},
        ),
        "it died too early": (
            replace(good, kills=[replace(kill, in_ledger=False)]),
            "nothing was shown: worker A died before the provider had accepted",
            {"killed_after_acceptance": 0},
        ),
        "it died too late": (
            replace(good, kills=[replace(kill, effect=EffectState.SUCCEEDED)]),
            "nothing was shown: the effect of Q-1 was succeeded",
            {"killed_after_acceptance": 0},
        ),
        "there was no intent": (
            replace(good, kills=[replace(kill, effect=None)]),
            "an intent before each call",
            {"killed_after_acceptance": 0},
        ),
        "nobody asked": (
            replace(good, jobs=job(good, "Q-1", effects=unsettled, status=Status.INDETERMINATE, escalated_at=NOW)),
            "what is uncertain is settled by evidence: nobody could say what became of Q-1",
            {"reconciled": 0},
        ),
        "settled without an event": (
            replace(good, trails={}),
            "what is uncertain is settled by evidence",
            {"reconciled": 0},
        ),
        "nobody was late": (
            replace(good, visits=[("Q-2", 1, ARRIVED)]),
            "nothing was shown: no worker tried to publish",
            {"stale_writes_refused": 0},
        ),
        "only the current worker tried": (
            replace(good, visits=[("Q-2", 2, PUBLISHING)]),
            "nothing was shown: no worker tried to publish",
            {"stale_writes_refused": 0},
        ),
        "the late write is there": (
            replace(good, publications=[*good.publications, ("Q-2", 1, "B")]),
            "a worker that lost its lease writes nothing: the table publications has a write to Q-2 by generation 1",
            {"stale_writes_refused": 0},
        ),
        "the current write is missing": (
            replace(good, publications=good.publications[:1]),
            "the current worker may write: Q-2 has no write by generation 2",
            {"current_writes_accepted": 1},
        ),
        "done and not published": (
            replace(good, publications=good.publications[1:]),
            "done means published: Q-1 is completed and has no row",
            {"current_writes_accepted": 1},
        ),
        "a job of no quote": (replace(good, quotes=["Q-1"], jobs=good.jobs), "the counts differ: 1 quotes, 2 jobs", {}),
        "nothing at all": (
            replace(good, quotes=[], jobs={}, entries=[], publications=[], trails={}, kills=[], visits=[]),
            "nothing was shown",
            {"jobs": 0},
        ),
        "another generation's tries": (
            replace(good, visits=[("Q-2", two.generation + 1, PUBLISHING)]),
            "nothing was shown: no worker tried to publish",
            {"stale_writes_refused": 0},
        ),
    }


def test_bad_histories_are_refused_for_their_own_reason(good: Facts) -> None:
    histories = bad_histories(good)
    assert len(histories) >= 20
    for name, (facts, reason, counts) in histories.items():
        report = judge(facts)
        assert not report.held, name
        assert [said for said in report.broken if said.startswith(reason)] != [], (name, report.broken)
        found = report.as_json()
        assert {field: found[field] for field in counts} == counts, name
