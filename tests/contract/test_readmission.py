"""Messages that an older epoch holds wait until somebody readmits them; what is on its way or poison is left alone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tenure.errors import Invalid, NotFound, Refused
from tenure.procedures.authority import recover_database
from tenure.procedures.outbox_upkeep import announce_relay, tend_messages
from tenure.procedures.upkeep import recover
from tenure.rules.ledger import Book
from tenure.rules.message import Delivered, job_id_of
from tenure.rules.message import Refused as Never
from tests.contract.bench import Bench, micros
from tests.contract.build import create
from tests.contract.refusal import refused
from tests.contract.test_outbox import add, end, line, names, state, take

WHY: dict[str, Any] = {"actor": "op:1", "reason": "looked at"}


@pytest.mark.parametrize("met", [True, False])
def test_a_held_message_is_delivered_after_it_was_readmitted(bench: Bench, *, met: bool) -> None:
    made = add(bench, "op-1").message
    add(bench, "free", tenant="rival")
    bench.service.rotate_tenant("acme", **WHY)
    if met:
        # A claim has met it, and put it aside.
        assert names(take(bench)) == ["free"]
        assert state(bench, made.id) == "held"
        assert bench.run(tend_messages()) == 0
    assert bench.service.show_tenant("acme").held_messages == {1: 1}
    assert bench.service.readmit_messages("acme", **WHY) == [made.id]
    assert bench.service.readmit_messages("acme", **WHY) == []
    assert bench.service.show_tenant("acme").held_messages == {}
    assert bench.run(tend_messages()) == (1 if met else 0)
    taken = [one for one in take(bench) if one.message.tenant == "acme"]
    assert [one.message.id for one in taken] == [made.id]
    assert (taken[0].message.operation, taken[0].message.digest) == (made.operation, made.digest)
    end(bench, taken, Delivered())
    (decision,) = bench.service.get_message(made.id).decisions
    assert (decision.decision, decision.actor, decision.reason) == ("readmitted", "op:1", "looked at")
    assert [act.what for act in bench.service.show_tenant("acme").acts] == ["readmitted", "rotated"]


def test_planned_and_blocked_messages_are_readmitted_where_they_are(bench: Bench) -> None:
    later = add(bench, "later", scheduled_at=bench.now + timedelta(hours=1)).message
    line(bench, "x-0")
    taken = take(bench)
    second = line(bench, "x-1")
    assert take(bench) == []
    assert state(bench, second.id) == "blocked"
    bench.service.rotate_tenant("acme", **WHY)
    assert sorted(bench.service.readmit_messages("acme", **WHY)) == sorted([later.id, second.id])
    assert (state(bench, later.id), state(bench, second.id)) == ("later", "blocked")
    end(bench, taken, Delivered())  # what was on its way is delivered all the same
    taken = take(bench)
    assert names(taken) == ["x-1"]
    end(bench, taken, Delivered())
    bench.advance(hours=2)
    assert bench.run(tend_messages()) == 1
    assert "later" in names(take(bench))


def test_what_waits_for_a_person_is_left_to_the_person(bench: Bench) -> None:
    poison = add(bench, "poison").message
    end(bench, take(bench), Never("no"))
    bench.service.rotate_tenant("acme", **WHY)
    assert bench.service.readmit_messages("acme", **WHY) == []
    bench.service.replay_message(poison.id, **WHY)
    assert take(bench) == []
    assert state(bench, poison.id) == "held"
    assert bench.service.readmit_messages("acme", **WHY) == [poison.id]
    bench.run(tend_messages())
    assert names(take(bench)) == ["poison"]


def test_what_waits_for_a_destination_goes_when_it_is_served(bench: Bench) -> None:
    made = add(bench, "fax", destination="fax").message
    bench.run(announce_relay("r-1", ["mail"], timedelta(seconds=15)))
    assert state(bench, made.id) == "set_aside"
    bench.service.rotate_tenant("acme", **WHY)
    assert bench.service.readmit_messages("acme", **WHY) == [made.id]
    bench.run(announce_relay("r-2", ["fax"], timedelta(seconds=15)))
    assert names(take(bench, destination="fax")) == ["fax"]


def test_only_the_epoch_that_was_named_is_readmitted(bench: Bench) -> None:
    add(bench, "op-1")
    bench.service.rotate_tenant("acme", **WHY)
    second = add(bench, "op-2").message
    bench.service.rotate_tenant("acme", **WHY)
    assert bench.service.show_tenant("acme").held_messages == {1: 1, 2: 1}
    assert bench.service.readmit_messages("acme", epoch=2, **WHY) == [second.id]
    assert names(take(bench)) == ["op-2"]


def test_readmitting_ends_no_freeze(bench: Bench) -> None:
    add(bench, "op-1")
    bench.service.rotate_tenant("acme", **WHY)
    bench.service.freeze_tenant("acme", **WHY)
    assert len(bench.service.readmit_messages("acme", **WHY)) == 1
    assert take(bench) == []
    bench.service.thaw_tenant("acme", **WHY)
    bench.run(tend_messages())
    assert names(take(bench)) == ["op-1"]


def test_what_may_not_be_readmitted_is_refused(bench: Bench) -> None:
    create(bench.service)
    add(bench, "op-1")
    bench.service.rotate_tenant("acme", **WHY)
    with refused(bench, Refused, code="TENANT_BOUND"):
        bench.bound(tenant="beta").readmit_messages("acme", **WHY)
    with refused(bench, NotFound):
        bench.service.readmit_messages("acne", **WHY)
    with refused(bench, Invalid, code="ACTOR_REQUIRED"):
        bench.service.readmit_messages("acme", reason="r")
    for given in ({"epoch": 0}, {"epoch": True}, {"reason": ""}):
        with refused(bench, Invalid):
            bench.service.readmit_messages("acme", **{**WHY, **given})
    bench.sql("INSERT INTO $meta (key, value) VALUES ('frozen', 'by hand')")
    with refused(bench, Refused, code="DATABASE_FROZEN"):
        bench.service.readmit_messages("acme", **WHY)
    bench.sql("DELETE FROM $meta WHERE key = 'frozen'")
    assert len(bench.bound(tenant="acme").readmit_messages("acme", **WHY)) == 1


def test_what_was_leased_when_a_copy_was_recovered_is_readmitted_by_a_second_call(bench: Bench) -> None:
    """The lease is of a life that has ended; it runs out, and what comes of it is held like everything else."""
    waiting, leased = create(bench.service), create(bench.service, "k-2", priority=9)
    add(bench, "waiting")
    assert bench.service.claim_job("A", tenant="acme").job.id == leased.id
    (sent,) = take(bench, limit=1)
    unsent = add(bench, "unsent").message
    bench.sql("INSERT INTO $meta (key, value) VALUES ('frozen', 'restored')")
    bench.run(recover_database(Book(store="s-1", identity="here"), None, "op:1", "restored"))
    assert [job.id for job in bench.service.readmit_jobs("acme", **WHY)] == [waiting.id]
    assert bench.service.readmit_messages("acme", **WHY) == [unsent.id]
    assert bench.service.readmit_jobs("acme", **WHY) == bench.service.readmit_messages("acme", **WHY) == []
    bench.advance(minutes=2)
    bench.run(recover())
    bench.run(tend_messages())
    assert names(take(bench)) == ["unsent"]
    assert (bench.service.get_job(leased.id).phase, state(bench, sent.message.id)) == ("HELD", "held")
    assert [job.id for job in bench.service.readmit_jobs("acme", **WHY)] == [leased.id]
    assert bench.service.readmit_messages("acme", **WHY) == [sent.message.id]
    # A recovery is about every tenant, and the check after each test allows no change of another one.
    bench.reset()


def _suspects(bench: Bench) -> list[dict[str, Any]]:
    return [row for row in bench.dump()["suspect"] if row["tenant"] == "acme"]


def test_what_a_message_becomes_after_a_recovery_is_suspect(bench: Bench) -> None:
    """Its job may have been there after the backup, and have sent; a rotation alone puts nothing in doubt."""
    rotated = add(bench, "rotated").message
    bench.service.rotate_tenant("acme", **WHY)
    assert bench.service.readmit_messages("acme", **WHY) == [rotated.id]
    assert _suspects(bench) == []
    end(bench, take(bench), Delivered())
    old = add(bench, "old").message
    created = micros(bench.now)
    bench.advance(minutes=5)
    bench.sql("INSERT INTO $meta (key, value) VALUES ('frozen', 'restored')")
    bench.run(recover_database(Book(store="s-1", identity="here"), None, "op:1", "restored"))
    recovered = micros(bench.now)
    bench.advance(minutes=5)
    assert bench.service.readmit_messages("acme", **WHY) == [old.id]
    (row,) = _suspects(bench)
    assert UUID(str(row["job_id"])) == job_id_of("acme", "mail", old.id)
    assert (row["since"], row["marked_at"], row["generation"]) == (created, recovered, 0)
    assert (row["actor"], row["reason"]) == ("op:1", "looked at")
    end(bench, take(bench), Delivered())
    # The control: what is added after the recovery has lost nothing, also where its epoch ends before it is delivered.
    new = add(bench, "new").message
    bench.sql("UPDATE $authority SET epoch = epoch + 1 WHERE tenant = 'acme'")
    assert bench.service.readmit_messages("acme", **WHY) == [new.id]
    assert len(_suspects(bench)) == 1
    # Restored once more before anybody has taken it: counted from the last recovery.
    late = add(bench, "late").message
    for _ in range(2):
        bench.advance(minutes=5)
        bench.sql("INSERT INTO $meta (key, value) VALUES ('frozen', 'restored')")
        bench.run(recover_database(Book(store="s-1", identity="here"), None, "op:1", "restored"))
        assert late.id in bench.service.readmit_messages("acme", **WHY)
    marks = {UUID(str(row["job_id"])): row["marked_at"] for row in _suspects(bench)}
    assert marks[job_id_of("acme", "mail", late.id)] == micros(bench.now)
    # A recovery is about every tenant, and the check after each test allows no change of another one.
    bench.reset()
