"""The outbox on both databases: added with the producer's commit, claimed under a lease, finished behind a fence."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

import tenure
from tenure.errors import Conflict, Invalid, NotFound, Refused
from tenure.procedures.outbox import MessageClaim, Outgoing, add_messages, claim_messages, finish_messages
from tenure.procedures.outbox_upkeep import (
    announce_relay,
    tend_messages,
    withdraw_relay,
)
from tenure.procedures.tenants import freeze, rotate
from tenure.rules.authority import Tenant
from tenure.rules.message import Deferred, Delivered, Message
from tenure.rules.message import Refused as Never
from tenure.rules.outbox import Answer, MessageState, Together
from tenure.stores import open_store
from tenure.yields import Procedure, new_id
from tests.contract.bench import Bench, micros
from tests.contract.caller import own, producer
from tests.contract.refusal import refused
from tests.contract.test_join import wait_for_lock

THROUGH_THE_POOLER = True

LEASE, BACKOFF = timedelta(seconds=60), timedelta(seconds=10)
FIELDS: dict[str, Any] = {"destination": "mail", "type": "quote.accepted", "data": {"quote": 17}, "tenant": "acme"}


def add(bench: Bench, operation: str | None = None, **fields: Any) -> Any:
    """Add one message in a transaction of the store."""
    with bench.transaction() as tx:
        return tenure.outbox.add(tx, operation=operation, **{**FIELDS, **fields})


def line(bench: Bench, operation: str, subject: str = "X", **fields: Any) -> Message:
    message: Message = add(bench, operation, subject=subject, ordered=True, **fields).message
    return message


def take(bench: Bench, relay: str = "r-1", limit: int = 100, destination: str = "mail") -> list[Outgoing]:
    """Claim until nothing more is to be had."""
    found: list[Outgoing] = []
    while True:
        claim: MessageClaim = bench.run(claim_messages(relay, destination, limit, LEASE))
        found += claim.outgoing
        if not claim.more:
            return found


def end(bench: Bench, taken: Sequence[Outgoing], answer: Answer, relay: str = "r-1") -> Any:
    return bench.run(finish_messages(relay, [(one, answer) for one in taken], backoff=BACKOFF))


def names(taken: Sequence[Outgoing]) -> list[str]:
    return [one.message.operation for one in taken]


def state(bench: Bench, message_id: UUID) -> str:
    return bench.service.get_message(message_id).state.value


def places(bench: Bench) -> list[str]:
    """Give the place of every message: one each."""
    tables = ("message_due", "message_later", "message_lease", "message_resting", "message_done")
    return [table for table in tables for _ in bench.dump()[table]]


# --- adding -----------------------------------------------------------------------------------------------------------


def test_a_message_leaves_with_the_producers_commit_and_not_before(bench: Bench) -> None:
    with producer(bench) as caller:
        caller.begin()
        caller.write(7)
        added = tenure.outbox.add(caller.join(), **FIELDS)
        assert added.created
        assert bench.service.list_messages() == []
        caller.commit()
    assert own(bench) == [7]
    assert [one.message for one in take(bench)] == [added.message]


def test_a_message_is_gone_with_the_producers_rollback(bench: Bench) -> None:
    before = bench.dump()
    with producer(bench) as caller:
        caller.begin()
        caller.write(7)
        tenure.outbox.add(caller.join(), subject="X", ordered=True, **FIELDS)
        caller.rollback()
    assert (bench.dump(), own(bench), take(bench)) == (before, [], [])


def test_what_is_stored_is_what_was_given(bench: Bench) -> None:
    given = new_id()
    made = add(bench, "op-1", message_id=given, subject="quote/17", version=3, max_attempts=7).message
    assert (made.id, made.operation, made.subject, made.version, made.epoch) == (given, "op-1", "quote/17", 3, 1)
    stored = bench.service.get_message(given)
    assert stored.message == made
    assert (stored.state, stored.attempt_count, stored.max_attempts, stored.due_at) == ("due", 0, 7, bench.now)
    assert add(bench).message.operation == str(bench.service.list_messages()[-1].message.id)


def test_the_same_operation_is_found_and_another_meaning_is_a_conflict(bench: Bench) -> None:
    first = add(bench, "op-1")
    again = add(bench, "op-1")
    assert (again.created, again.message) == (False, first.message)
    for other in ({"data": {"quote": 18}}, {"type": "quote.refused"}, {"version": 2}, {"subject": "quote/17"}):
        with refused(bench, Conflict, code="MESSAGE_MISMATCH"):
            add(bench, "op-1", **other)
    # Another destination and another tenant are other scopes.
    assert add(bench, "op-1", destination="audit").created
    assert add(bench, "op-1", tenant="rival").created
    assert len(take(bench)) == 2
    assert not add(bench, "op-1").created, "it is known while it is delivered, and after"


def test_an_id_names_one_message_of_a_tenant(bench: Bench) -> None:
    given = new_id()
    add(bench, "op-1", message_id=given)
    with refused(bench, Conflict, code="MESSAGE_ID_TAKEN"):
        add(bench, "op-2", message_id=given)
    other = add(bench, "op-2", message_id=given, tenant="rival", data={"secret": 1})
    assert other.created
    with pytest.raises(Invalid) as unclear:
        bench.service.get_message(given)
    assert unclear.value.code == "TENANT_REQUIRED"
    assert bench.service.get_message(given, tenant="rival").message == other.message
    # What one tenant's delivery ends, ends for that tenant alone.
    taken = take(bench)
    end(bench, [one for one in taken if one.message.tenant == "acme"], Delivered())
    states = {one.message.tenant: one.state.value for one in bench.service.list_messages()}
    assert states == {"acme": "delivered", "rival": "delivering"}


def test_an_id_names_one_message_of_a_tenant_in_a_batch_too(bench: Bench) -> None:
    def together(*messages: dict[str, Any]) -> list[tuple[str, bool]]:
        made = bench.run(add_messages([tenure.outbox.prepare(**{**FIELDS, **fields}) for fields in messages]))
        return [(one.message.tenant, one.created) for one in made]

    stored, twice = new_id(), new_id()
    add(bench, "op-0", message_id=stored)
    before = bench.dump()
    for batch in (
        [{"operation": "op-1"}, {"operation": "op-2", "data": {"quote": 18}}],
        [{"operation": "op-1"}, {"operation": "op-1", "destination": "audit"}],
    ):
        with refused(bench, Conflict, code="MESSAGE_ID_TAKEN"):
            together(*({"message_id": twice, **one} for one in batch))
    with refused(bench, Conflict, code="MESSAGE_ID_TAKEN"):
        together(*({"message_id": stored, "operation": "op-1", "tenant": one} for one in ("acme", "rival")))
    assert bench.dump() == before
    # The same message twice is one, and every tenant has ids of its own.
    assert together(*[{"message_id": twice, "operation": "op-1"}] * 2) == [("acme", True), ("acme", False)]
    both = together(*({"message_id": stored, "operation": "op-0", "tenant": one} for one in ("acme", "rival")))
    assert both == [("acme", False), ("rival", True)]


@pytest.mark.parametrize(
    "fields,code",
    [
        ({"data": {"x": "y" * (1 << 20)}}, "PAYLOAD_TOO_LARGE"),
        ({"data": [1]}, "PAYLOAD_INVALID"),
        ({"data": {"x": float("nan")}}, "NON_FINITE_NUMBER"),
        ({"data": {"x": "\0"}}, "NUL_CHARACTER"),
        ({"data": {"x": "\ud800"}}, "INVALID_UNICODE"),
        ({"tenant": None}, "TENANT_REQUIRED"),
        ({"destination": ""}, "BAD_ARGUMENT"),
        ({"type": " "}, "BAD_ARGUMENT"),
        ({"version": 0}, "BAD_ARGUMENT"),
        ({"ordered": True}, "SUBJECT_REQUIRED"),
        ({"max_attempts": 0}, "BAD_ARGUMENT"),
        ({"message_id": "m-1"}, "NOT_AN_ID"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_anything_is_written(
    bench: Bench, fields: dict[str, Any], code: str
) -> None:
    with refused(bench, Invalid, code=code):
        add(bench, "op-1", **fields)
    assert add(bench, "op-1").created


def test_a_refusal_leaves_the_callers_transaction_usable(bench: Bench) -> None:
    add(bench, "op-1")
    with producer(bench) as caller:
        caller.begin()
        with pytest.raises(Conflict):
            tenure.outbox.add(caller.join(), **{**FIELDS, "operation": "op-1", "data": {"other": 1}})
        tenure.outbox.add(caller.join(), **FIELDS, operation="op-2")
        caller.write(7)
        caller.commit()
    assert own(bench) == [7]
    assert names(take(bench)) == ["op-1", "op-2"]


def test_a_planned_message_waits_for_its_time(bench: Bench) -> None:
    made = add(bench, scheduled_at=bench.now + timedelta(hours=1)).message
    assert (state(bench, made.id), take(bench)) == ("later", [])
    bench.advance(hours=1)
    assert bench.run(tend_messages()) == 1
    assert [one.message.id for one in take(bench)] == [made.id]


# --- the fence --------------------------------------------------------------------------------------------------------


def test_a_stale_relays_end_changes_nothing_and_the_current_ones_stands(bench: Bench) -> None:
    made = add(bench, "op-1").message
    stale = take(bench, "stale")
    assert take(bench, "other") == [], "the lease is not over"
    bench.advance(seconds=60)
    assert bench.run(tend_messages()) == 1
    current = take(bench, "current")
    assert [one.generation for one in (*stale, *current)] == [1, 2]
    before = bench.dump()
    assert end(bench, stale, Delivered(), "stale").stale == (made.id,)
    # Neither with the name of the current one, nor with its generation.
    assert end(bench, stale, Never("no"), "current").stale == (made.id,)
    assert end(bench, current, Delivered(), "stale").stale == (made.id,)
    assert bench.dump() == before
    done = end(bench, current, Delivered({"seq": 5}), "current")
    assert (done.stale, done.states) == ((), {made.id: MessageState.DELIVERED})
    stored = bench.service.get_message(made.id)
    assert (stored.state, stored.receipt, stored.attempt_count) == ("delivered", {"seq": 5}, 2)
    assert end(bench, current, Delivered(), "current").stale == (made.id,)


def test_a_lease_that_is_over_finishes_nothing(bench: Bench) -> None:
    made = add(bench).message
    taken = take(bench)
    bench.advance(seconds=60)
    assert end(bench, taken, Delivered()).stale == (made.id,)
    bench.run(tend_messages())
    again = take(bench)
    bench.advance(seconds=59)
    assert end(bench, again, Delivered()).states == {made.id: MessageState.DELIVERED}


def test_the_end_of_a_pruned_message_is_not_that_of_another_in_its_position(bench: Bench) -> None:
    old = add(bench, "old").message
    slow = take(bench)
    bench.advance(seconds=60)
    bench.run(tend_messages())
    end(bench, take(bench, "other"), Delivered(), "other")
    bench.advance(days=8)
    assert bench.service.prune_outbox(older_than=timedelta(days=7)) == 1
    new = add(bench, "new").message
    mine = take(bench)
    # SQLite gives the position again; PostgreSQL does not, and is asked as if it did.
    again = [replace(slow[0], position=mine[0].position)]
    assert (again[0].generation, again == slow) == (mine[0].generation, (bench.dialect == "sqlite"))
    assert end(bench, again, Delivered()).stale == (old.id,)
    assert state(bench, new.id) == "delivering"
    assert end(bench, mine, Delivered()).states == {new.id: MessageState.DELIVERED}


def test_lost_deliveries_use_the_budget_up(bench: Bench) -> None:
    made = add(bench, max_attempts=2).message
    for left in (True, False):
        assert len(take(bench)) == 1
        bench.advance(seconds=60)
        bench.run(tend_messages())
        assert (state(bench, made.id) == "due") is left
    stored = bench.service.get_message(made.id)
    assert (stored.state, stored.error_code, stored.attempt_count) == ("set_aside", "RELAY_LOST", 2)


# --- answers ----------------------------------------------------------------------------------------------------------


def test_a_deferred_message_comes_again_later_and_is_set_aside_in_the_end(bench: Bench) -> None:
    made = add(bench, "op-1", max_attempts=3).message
    for nth in (1, 2):
        end(bench, take(bench), Deferred("busy"))
        stored = bench.service.get_message(made.id)
        wait = stored.due_at - bench.now
        full = BACKOFF * 2 ** (nth - 1)
        assert full * 0.75 <= wait <= full
        assert (stored.state, stored.error_code, stored.reason) == ("later", "DELIVERY_DEFERRED", "busy")
        assert take(bench) == []
        bench.advance(seconds=60)
        bench.run(tend_messages())
    end(bench, take(bench), Deferred("busy"))
    stored = bench.service.get_message(made.id)
    assert (stored.state, stored.error_code, stored.attempt_count) == ("set_aside", "DELIVERIES_USED_UP", 3)


def test_a_destinations_own_waiting_time_is_honoured(bench: Bench) -> None:
    made = add(bench).message
    end(bench, take(bench), Deferred("later", retry_after=timedelta(minutes=7)))
    assert bench.service.get_message(made.id).due_at == bench.now + timedelta(minutes=7)


def test_a_refused_message_is_set_aside_at_once_and_the_others_go_on(bench: Bench) -> None:
    made = [add(bench, f"op-{nth}").message for nth in range(3)]
    taken = take(bench)
    answers: list[Answer] = [Delivered(), Never("malformed"), Delivered()]
    bench.run(finish_messages("r-1", list(zip(taken, answers, strict=True)), backoff=BACKOFF))
    assert [state(bench, one.id) for one in made] == ["delivered", "set_aside", "delivered"]
    assert bench.service.get_message(made[1].id).reason == "malformed"


def test_after_a_batch_has_failed_its_messages_go_in_groups_and_then_alone(bench: Bench) -> None:
    for nth in range(25):
        add(bench, f"op-{nth}")
    end(bench, take(bench), Together("it fell over"))
    group = bench.run(claim_messages("r-1", "mail", 100, LEASE)).outgoing
    assert len(group) == 10
    end(bench, group, Together("again"))
    alone = bench.run(claim_messages("r-1", "mail", 100, LEASE)).outgoing
    assert names(alone) == ["op-0"]
    # Those that were with it lost two deliveries, and nothing else.
    assert {one.attempt_count for one in bench.service.list_messages(state="due")} == {1, 2}


def test_a_receipt_that_cannot_be_stored_does_not_send_the_message_again(bench: Bench) -> None:
    made = add(bench).message
    end(bench, take(bench), Delivered({"x": float("inf")}))
    stored = bench.service.get_message(made.id)
    assert (stored.state, stored.receipt) == ("delivered", {"receipt_left_out": "NON_FINITE_NUMBER"})


# --- order ------------------------------------------------------------------------------------------------------------


def test_of_a_subject_only_the_oldest_goes(bench: Bench) -> None:
    for nth in range(3):
        line(bench, f"x-{nth}")
        line(bench, f"y-{nth}", "Y")
    line(bench, "x-other", tenant="rival")
    add(bench, "free", subject="X")
    seen = []
    while taken := take(bench):
        seen.append(sorted(names(taken)))
        end(bench, taken, Delivered())
    assert seen == [["free", "x-0", "x-other", "y-0"], ["x-1", "y-1"], ["x-2", "y-2"]]
    assert bench.dump()["message_order"] == []


def test_what_stands_behind_a_message_is_shown_as_blocked_by_it(bench: Bench) -> None:
    poison, second, third = (line(bench, f"x-{nth}") for nth in range(3))
    end(bench, take(bench), Never("no"))
    for one in (second, third):
        stored = bench.service.get_message(one.id)
        assert (stored.state, stored.blocked_by) == ("blocked", poison.id)
    assert take(bench) == []
    bench.service.replay_message(poison.id, reason="mended", actor="op:1")
    end(bench, take(bench), Delivered())
    assert names(take(bench)) == ["x-1"]


def test_an_earlier_position_that_commits_late_is_delivered(postgres_bench: Bench) -> None:
    bench = postgres_bench
    # The tenant is known: of a new one, two open transactions would both write the authority.
    add(bench, "before")
    end(bench, take(bench), Delivered())
    with producer(bench) as early, producer(bench) as late:
        early.begin()
        fields = {**FIELDS, "subject": "X", "ordered": True}
        tenure.outbox.add(early.join(), **fields, operation="early")
        late.begin()
        tenure.outbox.add(late.join(), **fields, operation="late")
        late.commit()
        end(bench, take(bench), Delivered())
        delivered = bench.service.list_messages(state="delivered")
        assert [one.message.operation for one in delivered] == ["before", "late"]
        early.commit()
    taken = take(bench)
    assert names(taken) == ["early"]
    end(bench, taken, Delivered())
    assert len(bench.service.list_messages(state="delivered")) == 3


def test_a_message_is_not_put_behind_one_that_is_just_being_finished(postgres_bench: Bench) -> None:
    bench = postgres_bench
    line(bench, "x-0")
    taken = take(bench)
    line(bench, "x-1")
    with bench.transaction() as tx:
        tx.run(finish_messages("r-1", [(taken[0], Delivered())], backoff=BACKOFF))
        # Another relay looks meanwhile: it may neither take the second one nor put it where nobody would find it.
        with open_store(bench.database.url, clock=bench.test_clock) as other, ThreadPoolExecutor(1) as thread:
            found = thread.submit(other.run, claim_messages("r-2", "mail", 10, LEASE)).result()
        assert found == MessageClaim([], more=False)
    assert places(bench) == ["message_due", "message_done"]
    assert names(take(bench)) == ["x-1"]


def test_whoever_finishes_sees_what_was_just_put_behind(postgres_bench: Bench) -> None:
    """A relay puts a message behind another one while that one's relay waits to finish it."""
    bench = postgres_bench
    line(bench, "x-0")
    taken = take(bench)
    line(bench, "x-1")
    assert take(bench, "r-2") == []
    assert places(bench) == ["message_lease", "message_resting"]
    end(bench, taken, Delivered())
    assert places(bench) == ["message_due", "message_done"]


# --- authority --------------------------------------------------------------------------------------------------------

HOLDS = {
    "an old epoch": ("UPDATE $authority SET epoch = 2 WHERE tenant = 'acme'", "UPDATE $authority SET epoch = 1"),
    "a frozen tenant": (
        "UPDATE $authority SET frozen = (1 = 1) WHERE tenant = 'acme'",
        "UPDATE $authority SET frozen = (1 = 0)",
    ),
}


@pytest.mark.parametrize("hold", HOLDS)
def test_held_messages_are_not_claimed_until_they_are_admitted(bench: Bench, hold: str) -> None:
    made = add(bench).message
    add(bench, "free", tenant="rival")
    bench.sql(HOLDS[hold][0])
    assert names(take(bench)) == ["free"]
    assert state(bench, made.id) == "held"
    assert bench.run(tend_messages()) == 0
    bench.sql(HOLDS[hold][1])
    assert bench.run(tend_messages()) == 1
    assert [one.message.id for one in take(bench)] == [made.id]


def change(what: str) -> Procedure[Tenant]:
    """Take away the authority of one of two tenants."""
    if what == "rotated":
        return rotate(new_id(), "acme", None, "op:1", "leaked")
    return freeze(new_id(), "acme", "op:1", "leaked")


@pytest.mark.parametrize("what", ["rotated", "frozen"])
def test_nothing_is_claimed_whose_authority_is_just_being_taken_away(postgres_bench: Bench, what: str) -> None:
    """A claim is the last look before a delivery: one that commits after a rotation must have seen it."""
    bench = postgres_bench
    made = add(bench).message
    add(bench, "free", tenant="rival")
    with bench.transaction() as tx:
        tx.run(change(what))
        with open_store(bench.database.url, clock=bench.test_clock) as other, ThreadPoolExecutor(1) as thread:
            found = thread.submit(other.run, claim_messages("r-1", "mail", 10, LEASE)).result()
        assert names(found.outgoing) == ["free"], "the control: nobody else waits"
    assert take(bench) == []
    assert state(bench, made.id) == "held"


@pytest.mark.parametrize("what", ["rotated", "frozen"])
def test_authority_is_taken_away_after_the_claims_that_did_not_see_it(postgres_bench: Bench, what: str) -> None:
    bench = postgres_bench
    add(bench, "op-1")
    with open_store(bench.database.url, clock=bench.test_clock) as other, ThreadPoolExecutor(1) as thread:
        with bench.transaction() as tx:
            claimed = tx.run(claim_messages("r-1", "mail", 10, LEASE))
            changing = thread.submit(other.run, change(what))
            wait_for_lock(bench)
            assert not changing.done()
        assert changing.result(60).name == "acme"
    assert names(claimed.outgoing) == ["op-1"]
    # It was claimed in time, and how that ended is a fact: nobody is helped by another delivery.
    assert list(end(bench, claimed.outgoing, Delivered()).states.values()) == [MessageState.DELIVERED]


@pytest.mark.parametrize("what", ["rotated", "frozen", "not at all"])
def test_a_claim_that_is_asked_again_gives_nothing_whose_authority_is_gone(bench: Bench, what: str) -> None:
    """Its first answer was lost, so nothing was delivered yet."""
    made = add(bench).message
    add(bench, "free", tenant="rival")
    asked = claim_messages("r-1", "mail", 10, LEASE)
    first = bench.run(asked)
    if what == "not at all":
        assert bench.run(asked).outgoing == first.outgoing
        return
    bench.run(change(what))
    assert names(bench.run(asked).outgoing) == ["free"]
    bench.advance(seconds=60)
    assert bench.run(asked).outgoing == [], "a lease that is over is nobody's"
    assert bench.run(tend_messages()) == 2
    assert names(take(bench)) == ["free"]
    assert state(bench, made.id) == "held"


def test_nothing_moves_on_a_frozen_database(bench: Bench) -> None:
    made = add(bench).message
    add(bench, "lost")
    lost = bench.run(claim_messages("r-1", "mail", 1, LEASE)).outgoing
    bench.sql("INSERT INTO $meta (key, value) VALUES ('frozen', 'restored')")
    bench.advance(minutes=5)
    before = bench.dump()
    assert take(bench) == []
    assert bench.run(tend_messages()) == 0
    assert end(bench, lost, Delivered()).stale == (made.id,)
    assert bench.dump() == before
    bench.sql("DELETE FROM $meta WHERE key = 'frozen'")
    assert bench.run(tend_messages()) == 1
    assert len(take(bench)) == 1, "the lost one by itself"


def test_a_message_is_stamped_with_its_tenants_epoch(bench: Bench) -> None:
    add(bench)
    bench.sql("UPDATE $authority SET epoch = 4 WHERE tenant = 'acme'")
    assert add(bench, "op-1").message.epoch == 4
    assert add(bench, "op-1").message.epoch == 4


# --- destinations that nobody serves ----------------------------------------------------------------------------------


def test_a_message_for_an_unknown_destination_is_set_aside_and_goes_when_it_is_known(bench: Bench) -> None:
    made = add(bench, destination="fax").message
    add(bench, "op-1")
    assert bench.run(announce_relay("r-1", ["mail"], timedelta(seconds=15))) == 1
    stored = bench.service.get_message(made.id)
    assert (stored.state, stored.error_code, stored.attempt_count) == ("set_aside", "UNKNOWN_DESTINATION", 0)
    assert bench.service.outbox_stats().unpublished == 2
    assert bench.run(announce_relay("r-2", ["fax"], timedelta(seconds=15))) == 1
    assert len(take(bench, destination="fax")) == 1
    # A live relay's destination is nobody else's to set aside; a silent one's is.
    add(bench, "op-2", destination="fax")
    assert bench.run(announce_relay("r-1", ["mail"], timedelta(seconds=15))) == 0
    bench.run(withdraw_relay("r-2"))
    assert bench.run(announce_relay("r-1", ["mail"], timedelta(seconds=15))) == 1


FAX = timedelta(seconds=15)


@pytest.mark.parametrize("before", ["RELAY_LOST", "BATCH_FAILED", "DELIVERY_DEFERRED"])
@pytest.mark.parametrize("replayed", [False, True])
def test_what_may_have_been_delivered_is_still_so_when_its_destination_is_known_again(
    bench: Bench, before: str, *, replayed: bool
) -> None:
    made = add(bench, "fax-1", destination="fax").message
    taken = take(bench, destination="fax")
    if before == "RELAY_LOST":
        bench.advance(seconds=60)
        assert bench.run(tend_messages()) == 1
    elif before == "BATCH_FAILED":
        end(bench, taken, Together("it failed"))
    else:
        end(bench, taken, Deferred("busy"))
        bench.advance(minutes=1)
        assert bench.run(tend_messages()) == 1
    add(bench, "fax-2", destination="fax")
    assert bench.service.get_message(made.id).error_code == before
    assert bench.run(announce_relay("r-1", ["mail"], FAX)) == 2
    stored = bench.service.get_message(made.id)
    assert (stored.state, stored.error_code, stored.attempt_count) == ("set_aside", "UNKNOWN_DESTINATION", 1)
    assert ("was lost" in (stored.reason or "")) == (before == "RELAY_LOST")
    if replayed:
        bench.service.replay_message(made.id, reason="go", actor="op:1", attempts=1)
        # Nobody serves it even now, and it is set aside once more.
        assert bench.run(announce_relay("r-1", ["mail"], FAX)) == 1
    assert bench.run(announce_relay("r-2", ["fax"], FAX)) == 2
    alone = before != "DELIVERY_DEFERRED"
    # The control: what was only deferred is known to have not arrived, and needs no care.
    assert bench.service.get_message(made.id).error_code == (before if alone else None)
    assert bench.service.list_messages(destination="fax")[-1].error_code is None
    first = bench.run(claim_messages("r-2", "fax", 10, LEASE)).outgoing
    if before == "RELAY_LOST":
        assert names(first) == ["fax-1"], "one that may have taken its relay down goes alone"
    else:
        assert "fax-1" in names(first)


# --- operators --------------------------------------------------------------------------------------------------------


def test_a_replay_keeps_id_operation_and_digest_and_is_written_down(bench: Bench) -> None:
    made = add(bench, "op-1", max_attempts=1).message
    end(bench, take(bench), Deferred("busy"))
    shown = bench.bound(actor="op:1").replay_message(made.id, reason="mended", attempts=2)
    assert (shown.state, shown.max_attempts, shown.message) == ("due", 3, made)
    (decision,) = shown.decisions
    assert (decision.decision, decision.actor, decision.reason, decision.attempts, decision.at) == (
        "replayed",
        "op:1",
        "mended",
        2,
        bench.now,
    )
    taken = take(bench)
    assert taken[0].message == made
    end(bench, taken, Delivered())
    with refused(bench, Refused, code="NOT_SET_ASIDE"):
        bench.service.replay_message(made.id, reason="once more", actor="op:1")


def test_a_discarded_message_lets_the_next_one_go(bench: Bench) -> None:
    poison, second = line(bench, "x-0"), line(bench, "x-1")
    end(bench, take(bench), Never("no"))
    with refused(bench, Refused, code="NOT_SET_ASIDE"):
        bench.service.discard_message(second.id, reason="wrong one", actor="op:1")
    shown = bench.service.discard_message(poison.id, reason="nobody needs it", actor="op:1")
    assert (shown.state, shown.decisions[0].decision) == ("discarded", "discarded")
    assert names(take(bench)) == ["x-1"]


def test_a_foreign_message_is_unknown(bench: Bench) -> None:
    made = add(bench).message
    rival = bench.bound(tenant="rival", actor="op:1")
    assert rival.list_messages() == []
    for call in (
        lambda: rival.get_message(made.id),
        lambda: rival.replay_message(made.id, reason="r"),
        lambda: rival.discard_message(made.id, reason="r"),
    ):
        with refused(bench, NotFound):
            call()
    assert bench.bound(tenant="acme").get_message(made.id).message == made
    with refused(bench, Refused, code="TENANT_BOUND"):
        rival.prune_outbox(older_than=timedelta(days=1))


def test_lists_and_numbers_say_what_waits(bench: Bench) -> None:
    made = [add(bench, f"op-{nth}").message for nth in range(3)]
    bench.advance(seconds=20)
    end(bench, take(bench, limit=1)[:1], Never("no"))
    add(bench, "later", destination="audit", scheduled_at=bench.now + timedelta(hours=1))
    service = bench.service
    assert [one.message.id for one in service.list_messages(limit=2)] == [one.id for one in made[:2]]
    assert [one.message.id for one in service.list_messages(after=made[1].id, destination="mail")] == [made[2].id]
    assert len(service.list_messages(state=["set_aside", "later"])) == 2
    stats = service.outbox_stats()
    assert stats.oldest_unpublished_age == timedelta(seconds=20)
    assert (stats.unpublished, stats.most_attempts) == (4, 1)
    assert stats.states == {"delivering": 2, "later": 1, "set_aside": 1}
    assert service.outbox_stats(tenant="rival").unpublished == 0
    with refused(bench, Invalid, code="BAD_ARGUMENT"):
        service.list_messages(state="gone")


def test_what_was_delivered_is_kept_for_a_while_and_then_forgotten_with_its_operation(bench: Bench) -> None:
    made = add(bench, "op-1").message
    waits = add(bench, "op-2", scheduled_at=bench.now + timedelta(days=30)).message
    end(bench, take(bench), Delivered())
    bench.advance(days=7)
    assert bench.service.prune_outbox(older_than=timedelta(days=7, seconds=1)) == 0
    assert not add(bench, "op-1").created
    assert bench.service.prune_outbox(older_than=timedelta(days=7)) == 1
    assert [one.message.id for one in bench.service.list_messages()] == [waits.id]
    assert add(bench, "op-1").message.id != made.id


def test_a_message_is_in_one_place(bench: Bench) -> None:
    for nth in range(4):
        line(bench, f"x-{nth}")
        add(bench, f"free-{nth}")
    taken = take(bench)
    end(bench, taken[:2], Delivered())
    end(bench, taken[2:3], Never("no"))
    end(bench, taken[3:4], Deferred("busy"))
    assert len(places(bench)) == len(bench.dump()["message"]) == 8


def test_the_digest_is_the_same_on_every_store(bench: Bench) -> None:
    assert add(bench, "op-1", subject="quote/17").message.digest == (
        "v1:" + bench.dump()["message"][0]["digest"].removeprefix("v1:")
    )
    assert micros(bench.service.list_messages()[0].message.created_at) == micros(bench.now)
