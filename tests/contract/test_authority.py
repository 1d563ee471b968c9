"""Epochs and freezes of a tenant: what is held, what is fenced, what is readmitted, and what the others go on with."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from tenure.errors import EpochClosed, IllegalMove, Invalid, LeaseLost, NotFound, Refused, Uncertain
from tenure.procedures.tenants import readmit_jobs
from tenure.rules.outcome import Accepted, Succeeded, Unknown
from tenure.rules.status import Phase, Status
from tenure.service import DurableJobService
from tenure.yields import new_id
from tests.contract.bench import Bench
from tests.contract.build import CASES, MAILER, RECEIPT, REQUEST, Case, begin, claim, create
from tests.contract.refusal import refused

WHY: dict[str, Any] = {"actor": "op:1", "reason": "key leaked"}


def other(bench: Bench, key: str = "other") -> Any:
    """Create a job of another tenant: the control of every freeze and rotation."""
    return create(bench.service, key, organization="beta", execution=None)


def test_a_rotation_holds_older_work_and_nobody_else_s(bench: Bench) -> None:
    old = create(bench.service)
    free = other(bench)
    after = bench.service.rotate_tenant("acme", **WHY)
    assert (after.name, after.epoch, after.frozen) == ("acme", 2, False)
    assert bench.service.get_job(old.id).phase is Phase.HELD
    assert bench.service.get_job(old.id).held_reason == ("superseded epoch 1 < 2: held until `tenure tenants readmit`")
    assert [job.id for job in bench.service.list_jobs(phase="HELD")] == [old.id]
    assert claim(bench.service).job.id == free.id
    assert bench.service.claim_job("B") is None
    new = create(bench.service, "k-2")
    assert (new.epoch, new.phase, new.held_reason) == (2, Phase.READY, None)
    assert claim(bench.service).job.id == new.id


def test_readmitted_work_runs_and_its_body_is_the_same(bench: Bench) -> None:
    old = create(bench.service)
    later = create(bench.service, "k-2", scheduled_at=bench.now + timedelta(hours=1))
    bench.service.rotate_tenant("acme", **WHY)
    (again,) = bench.service.readmit_jobs("acme", job_ids=[old.id], **WHY)
    assert (again.epoch, again.phase) == (2, Phase.READY)
    event = bench.service.list_job_events(old.id)[-1]
    assert (event.name, event.actor, event.data) == ("readmitted", "op:1", {"from": 1, "to": 2, "reason": "key leaked"})
    assert again.operation_digest == old.operation_digest
    assert bench.service.get_job(later.id).phase is Phase.HELD
    taken = claim(bench.service, start=True)
    assert taken.job.id == old.id
    bench.service.complete_job(taken.lease, result=None)
    assert [job.id for job in bench.service.readmit_jobs("acme", epoch=1, **WHY)] == [later.id]
    assert bench.service.readmit_jobs("acme", epoch=1, **WHY) == []
    bench.advance(hours=2)
    assert claim(bench.service).job.id == later.id


def test_parked_work_is_readmitted_too(bench: Bench) -> None:
    from tenure.procedures import upkeep

    old = create(bench.service)
    bench.run(upkeep.announce("w", [old.kind], timedelta(seconds=60)))
    bench.service.rotate_tenant("acme", **WHY)
    bench.run(upkeep.park())
    assert bench.place(old.id)[0] == "resting"
    assert bench.service.get_job(old.id).held_reason is not None
    assert len(bench.service.readmit_jobs("acme", **WHY)) == 1
    assert bench.place(old.id)[0] == "ready"
    assert claim(bench.service).job.id == old.id


STALE: dict[str, Callable[[DurableJobService, Case], Any]] = {
    "begin": lambda s, c: begin(s, c.lease, "another"),
    "complete": lambda s, c: s.complete_job(c.lease, result=None),
    "fail": lambda s, c: s.fail_job(c.lease, code="E", message="m", retryable=True),
    "mark": lambda s, c: s.mark_provider_dispatched(c.lease, operation_key="own:1"),
    "release": lambda s, c: s.release_job(c.lease, reason="r"),
}


@pytest.mark.parametrize("reason", ["epoch", "frozen"])
@pytest.mark.parametrize("verb", STALE)
def test_a_holder_is_fenced_at_its_next_write(bench: Bench, verb: str, reason: str) -> None:
    case = CASES["running"](bench)
    snapshot = bench.snapshot()
    STALE[verb](bench.service, case)  # the control: the same call of the same holder passes
    bench.restore(snapshot)
    change = bench.service.rotate_tenant if reason == "epoch" else bench.service.freeze_tenant
    change("acme", **WHY)
    with refused(bench, EpochClosed, code="EPOCH_CLOSED") as caught:
        STALE[verb](bench.service, case)
    assert caught.value.reason == reason
    assert not bench.service.heartbeat(case.lease)


def test_an_outcome_that_comes_too_late_is_kept_as_evidence_and_settles(bench: Bench) -> None:
    """The epoch is rotated while the job is inside its effect."""
    case = CASES["running, effect"](bench)
    bench.service.rotate_tenant("acme", **WHY)
    with pytest.raises(EpochClosed) as caught:
        bench.service.finish_effect(case.lease, name="send", outcome=Succeeded(RECEIPT))
    assert caught.value.reason == "epoch"
    assert [row["kind"] for row in bench.table("evidence", case.job_id)] == ["accepted"]
    assert bench.service.list_effects(case.job_id)[0].state == "pending"
    bench.advance(hours=1)
    verdicts = bench.service.sweep_reconciliation_candidates(
        organization="acme", project="p1", tenant="acme", lookup=lambda _key, _job: pytest.fail("it is known already")
    )
    assert [one.action for one in verdicts] == ["resolve"]
    job = bench.service.get_job(case.job_id)
    assert (job.effects[0].state, job.effects[0].receipt) == ("succeeded", RECEIPT)
    # What the handler has left to do waits for a person, under the old epoch.
    assert (job.status, job.phase) == (Status.QUEUED, Phase.HELD)
    assert bench.service.claim_job("B") is None
    bench.service.readmit_jobs("acme", job_ids=[job.id], **WHY)
    again = claim(bench.service, "B", start=True)
    assert (
        bench.service.begin_effect(again.lease, name="send", request=REQUEST, provider=MAILER).receipt == RECEIPT
    )  # nothing is sent again


def test_an_open_boundary_is_never_readmitted(bench: Bench) -> None:
    case = CASES["running, effect"](bench)
    bench.service.finish_effect(case.lease, name="send", outcome=Unknown("no reply"))
    bench.service.rotate_tenant("acme", **WHY)
    with refused(bench, Uncertain):
        bench.service.readmit_jobs("acme", job_ids=[case.job_id], **WHY)
    bench.advance(hours=1)
    bench.service.claim_job("B")  # settles what ran out
    assert bench.service.get_job(case.job_id).status is Status.INDETERMINATE
    with refused(bench, Uncertain):
        bench.service.readmit_jobs("acme", job_ids=[case.job_id], **WHY)
    assert bench.service.readmit_jobs("acme", **WHY) == []
    # The control: settled by evidence, it is queued, held, and can be readmitted.
    bench.service.reconcile_dispatched(case.job_id, Accepted(RECEIPT), **WHY)
    assert bench.service.get_job(case.job_id).phase is Phase.HELD
    assert len(bench.service.readmit_jobs("acme", **WHY)) == 1


def test_a_lease_under_an_older_epoch_is_not_given_back_its_authority(bench: Bench) -> None:
    case = CASES["running"](bench)
    bench.service.rotate_tenant("acme", **WHY)
    with refused(bench, IllegalMove):
        bench.service.readmit_jobs("acme", job_ids=[case.job_id], **WHY)
    bench.advance(hours=1)
    bench.service.claim_job("B")
    assert bench.service.get_job(case.job_id).phase is Phase.HELD
    bench.service.readmit_jobs("acme", job_ids=[case.job_id], **WHY)
    again = claim(bench.service, "B", start=True)
    with refused(bench, LeaseLost):
        bench.service.complete_job(case.lease, result=None)
    bench.service.complete_job(again.lease, result=None)


def test_many_are_readmitted_all_or_none(bench: Bench) -> None:
    first, second = create(bench.service), create(bench.service, "k-2")
    done = create(bench.service, "k-3")
    bench.service.cancel_job(done.id, reason="r")
    bench.service.rotate_tenant("acme", **WHY)
    with refused(bench, IllegalMove):
        bench.service.readmit_jobs("acme", job_ids=[first.id, second.id, done.id], **WHY)
    with refused(bench, NotFound):
        bench.service.readmit_jobs("acme", job_ids=[first.id, uuid4()], **WHY)
    foreign = other(bench)
    with refused(bench, NotFound):
        bench.service.readmit_jobs("acme", job_ids=[first.id, foreign.id], **WHY)
    assert len(bench.service.readmit_jobs("acme", job_ids=[first.id, second.id], **WHY)) == 2
    # Again changes nothing and writes no second event.
    assert len(bench.service.readmit_jobs("acme", job_ids=[first.id, second.id], **WHY)) == 2
    assert bench.trail(first.id) == ["readmitted"]


@pytest.mark.parametrize("named", [True, False])
def test_a_readmission_that_is_asked_again_tells_what_it_did(bench: Bench, *, named: bool) -> None:
    """Its first answer was lost; meanwhile one of its jobs was claimed, and another one was readmitted by others."""
    first, second = create(bench.service), create(bench.service, "k-2")
    bench.service.rotate_tenant("acme", **WHY)
    ids = [first.id, second.id] if named else None
    asked = readmit_jobs(new_id(), "acme", ids, None, WHY["actor"], WHY["reason"])
    told = bench.run(asked)
    assert [job.id for job in told] == [first.id, second.id]
    late = create(bench.service, "k-3")
    bench.service.rotate_tenant("acme", **WHY)
    bench.service.readmit_jobs("acme", job_ids=[second.id], **WHY)
    taken = claim(bench.service)
    again = bench.run(asked)
    assert [(job.id, job.status) for job in again] == [(first.id, "queued"), (second.id, "claimed")]
    assert taken.job.id == second.id
    assert bench.trail(first.id) == ["readmitted"]
    # The control: what it did not readmit is for the next call.
    assert bench.service.show_tenant("acme").held == {2: 2}
    assert {job.id for job in bench.service.readmit_jobs("acme", **WHY)} == {first.id, late.id}


def test_only_the_epoch_that_was_named_is_readmitted(bench: Bench) -> None:
    first = create(bench.service)
    bench.service.rotate_tenant("acme", **WHY)
    second = create(bench.service, "k-2")
    bench.service.rotate_tenant("acme", **WHY)
    assert bench.service.show_tenant("acme").held == {1: 1, 2: 1}
    assert [job.id for job in bench.service.readmit_jobs("acme", epoch=2, **WHY)] == [second.id]
    assert bench.service.get_job(first.id).phase is Phase.HELD
    assert bench.service.get_job(second.id).epoch == 3
    assert bench.service.show_tenant("acme").held == {1: 1}


def test_a_frozen_tenant_rests_and_is_thawed(bench: Bench) -> None:
    job = create(bench.service)
    free = other(bench)
    assert bench.service.freeze_tenant("acme", **WHY).frozen
    assert bench.service.get_job(job.id).held_reason == "tenant frozen by an operator; `tenure tenants thaw` ends it"
    assert claim(bench.service).job.id == free.id
    assert bench.service.claim_job("B") is None
    later = create(bench.service, "k-2")  # creating goes on
    assert bench.service.get_job(later.id).phase is Phase.HELD
    # Readmitting ends no freeze.
    assert [one.id for one in bench.service.readmit_jobs("acme", job_ids=[job.id], **WHY)] == [job.id]
    assert bench.service.claim_job("B") is None
    assert not bench.service.thaw_tenant("acme", **WHY).frozen
    assert claim(bench.service).job.id == job.id


def test_every_act_is_kept(bench: Bench) -> None:
    create(bench.service)
    bench.service.freeze_tenant("acme", actor="op:1", reason="a")
    bench.service.thaw_tenant("acme", actor="op:2", reason="b")
    bench.service.rotate_tenant("acme", actor="op:3", reason="c")
    bench.service.readmit_jobs("acme", actor="op:4", reason="d")
    shown = bench.service.show_tenant("acme")
    assert [(act.what, act.epoch, act.actor, act.reason) for act in reversed(shown.acts)] == [
        ("frozen", 1, "op:1", "a"),
        ("thawed", 1, "op:2", "b"),
        ("rotated", 2, "op:3", "c"),
        ("readmitted", 2, "op:4", "d"),
    ]
    assert all(act.at == bench.now for act in shown.acts)


ACTS: dict[str, Callable[[DurableJobService, str], Any]] = {
    "rotate": lambda s, t: s.rotate_tenant(t, **WHY),
    "freeze": lambda s, t: s.freeze_tenant(t, **WHY),
    "thaw": lambda s, t: s.thaw_tenant(t, **WHY),
    "readmit": lambda s, t: s.readmit_jobs(t, **WHY),
    "show": lambda s, t: s.show_tenant(t),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_bound_service_acts_for_its_own_tenant_alone(bench: Bench, act: str) -> None:
    create(bench.service)
    other(bench)
    with refused(bench, Refused, code="TENANT_BOUND"):
        ACTS[act](bench.bound(tenant="beta"), "acme")
    with refused(bench, NotFound):
        ACTS[act](bench.service, "acne")
    ACTS[act](bench.bound(tenant="acme"), "acme")
    assert [one.name for one in bench.bound(tenant="acme").list_tenants()] == ["acme"]
    assert {"acme", "beta"} <= {one.name for one in bench.service.list_tenants()}


@pytest.mark.parametrize("act", ["rotate", "freeze", "thaw", "readmit"])
def test_a_frozen_database_takes_no_act_and_gives_no_work(bench: Bench, act: str) -> None:
    job = create(bench.service)
    bench.sql("INSERT INTO $meta (key, value) VALUES ('frozen', 'by hand')")
    assert bench.service.get_job(job.id).held_reason == (
        "database frozen: `tenure doctor` says why, `tenure recover` brings it back"
    )
    assert bench.service.claim_job("A") is None
    with refused(bench, Refused, code="DATABASE_FROZEN"):
        ACTS[act](bench.service, "acme")
    bench.sql("DELETE FROM $meta WHERE key = 'frozen'")
    ACTS[act](bench.service, "acme")


@pytest.mark.parametrize(
    "given",
    [
        {"job_ids": [uuid4()], "epoch": 1},
        {"epoch": 0},
        {"epoch": True},
        {"job_ids": ["no id"]},
        {"reason": ""},
    ],
)
def test_bad_arguments_are_refused(bench: Bench, given: dict[str, Any]) -> None:
    create(bench.service)
    with refused(bench, Invalid):
        bench.service.readmit_jobs("acme", **{**WHY, **given})


def test_an_actor_is_required(bench: Bench) -> None:
    create(bench.service)
    with refused(bench, Invalid, code="BAD_ARGUMENT"):
        bench.service.rotate_tenant("acme", reason="r", actor="")
    with refused(bench, Invalid, code="ACTOR_REQUIRED"):
        bench.service.rotate_tenant("acme", reason="r")
    assert bench.bound(actor="op:9").rotate_tenant("acme", reason="r").epoch == 2
