"""
The reply to a commit is lost, of what relays, consumers and the watch over the database write; see test_lost_commit.py.

What is a pass may run twice: its state is compared, and not how many rows it moved. A consumer's commit is its own, so
it asks again by delivering again.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

import tenure
from tenure import outbox
from tenure.errors import TenureError
from tenure.inbox import IncomingEvent
from tenure.procedures import outbox_upkeep, upkeep
from tenure.procedures.authority import compare, read_facts, recover_database, tick
from tenure.procedures.inbox import declare_consumer, prune_inbox
from tenure.procedures.outbox import add_message, add_messages, finish_messages
from tenure.rules.ledger import Book
from tenure.rules.message import Delivered
from tests.contract import test_lost_commit as lost
from tests.contract.bench import Bench
from tests.contract.build import CASES, Case
from tests.contract.faults import Fault

fault, proxied = lost.fault, lost.proxied

EVENT = IncomingEvent("acme", "op-1", "quote.accepted", 1, "quote/17", {"quote": 17})
HOUR = timedelta(hours=1)
NOBODY = Case(UUID(int=0), None)  # type: ignore[arg-type]  # no job is held


def _prepared(operation: str, **more: Any) -> Any:
    fields: dict[str, Any] = {"destination": "mail", "type": "t", "data": {}, "tenant": "acme", "subject": "s"}
    return outbox.prepare(operation=operation, **{**fields, **more})


def _later(bench: Bench) -> Case:
    bench.run(add_message(_prepared("op-1", scheduled_at=bench.now + HOUR)))
    bench.advance(hours=2)
    return NOBODY


def _lost_relay(bench: Bench) -> Case:
    lost._outgoing(bench)
    bench.advance(minutes=2)
    return NOBODY


def _held(bench: Bench) -> Case:
    lost._message(bench)
    bench.service.freeze_tenant("acme", actor="op:1", reason="r")
    lost._claimed(bench)
    bench.service.thaw_tenant("acme", actor="op:1", reason="r")
    return NOBODY


def _delivered(bench: Bench) -> Case:
    case = lost._outgoing(bench)
    bench.run(finish_messages("r-1", [(case.question[0], Delivered())], backoff=timedelta(seconds=10)))
    bench.advance(hours=2)
    return NOBODY


def _announced(bench: Bench) -> Case:
    bench.run(outbox_upkeep.announce_relay("r-1", ["mail"], HOUR))
    bench.run(upkeep.announce("B", ["send"], HOUR))
    return NOBODY


def _received(bench: Bench) -> Case:
    _receive(bench, "d-1", replay_window=timedelta(minutes=1))
    bench.advance(hours=2)
    return NOBODY


def _receive(bench: Bench, delivery: str, **more: Any) -> Any:
    with bench.transaction() as tx:
        receipt = tenure.inbox.receive(tx, "ledger", EVENT, delivery, **more)
        if receipt.new:
            tx.execute("INSERT INTO own VALUES (17)")
    return receipt


STORIES: dict[str, lost.Story] = {
    "add a message": (lost._new, lambda b, _: b.run(add_message(_prepared("op-1")))),
    "add one that is there": (lost._message, lambda b, _: b.run(add_message(_prepared("op-1", ordered=True)))),
    "add many": (
        lost._message,
        lambda b, _: b.run(add_messages([_prepared("op-1", ordered=True), _prepared("op-2")])),
    ),
    "promote messages": (_later, lambda b, _: lost._quiet(b, outbox_upkeep.tend_messages())),
    "recover messages": (_lost_relay, lambda b, _: lost._quiet(b, outbox_upkeep.tend_messages())),
    "release messages": (_held, lambda b, _: lost._quiet(b, outbox_upkeep.tend_messages())),
    "announce a relay": (lost._message, lambda b, _: lost._quiet(b, outbox_upkeep.announce_relay("r", ["mail"], HOUR))),
    "announce one of other destinations": (
        lost._message,
        lambda b, _: lost._quiet(b, outbox_upkeep.announce_relay("r", ["elsewhere"], HOUR)),
    ),
    "withdraw a relay": (_announced, lambda b, _: lost._quiet(b, outbox_upkeep.withdraw_relay("r-1"))),
    "withdraw a worker": (_announced, lambda b, _: lost._quiet(b, upkeep.withdraw("B"))),
    "prune the outbox": (_delivered, lambda b, _: lost._quiet(b, outbox_upkeep.prune_messages(HOUR))),
    "declare a consumer": (lost._new, lambda b, _: b.run(declare_consumer("ledger", HOUR, 2 * HOUR))),
    "prune the inbox": (_received, lambda b, _: lost._quiet(b, _pruning())),
    "promote": (lost._waiting, lambda b, _: lost._quiet(b, upkeep.promote())),
    "set a queue": (CASES["queued"], lambda b, _: b.service.set_queue("default", fair=True)),
    "forget claims": (CASES["claimed"], lambda b, _: lost._quiet(b, upkeep.forget_claims(timedelta(0)))),
}


def _pruning() -> Any:
    return prune_inbox("ledger", older_than=HOUR, tenant="acme")


@pytest.mark.parametrize("story", STORIES)
def test_a_lost_reply_to_upkeep_changes_nothing(fault: Fault, story: str) -> None:
    build, act = STORIES[story]
    lost.play(fault, build, act)


@pytest.mark.parametrize("committed", [True, False])
def test_a_consumer_whose_commit_was_not_answered_is_delivered_to_again_and_applies_once(
    fault: Fault, committed: bool
) -> None:
    bench = fault.bench
    with fault.lose(committed=committed), contextlib.suppress(TenureError):
        _receive(bench, "d-1")
    # Whatever it was told: a message whose consumer did not answer comes again.
    again = _receive(bench, "d-1")
    assert bench.sql("SELECT value FROM own") == [(17,)]
    assert again.new is not committed
    assert _receive(bench, "d-2").new is False, "the control: a third one is known"
    assert bench.sql("SELECT value FROM own") == [(17,)]


def _book(bench: Bench) -> Book:
    facts = bench.run(read_facts(None, "here"))
    return Book(store="s-1", identity=facts.identity)


def _meta(bench: Bench) -> dict[str, str]:
    return dict(bench.sql("SELECT key, value FROM $meta"))


@pytest.mark.parametrize("committed", [True, False])
def test_a_tick_whose_reply_is_lost_raises_the_counter_and_freezes_nothing(fault: Fault, committed: bool) -> None:
    bench = fault.bench
    book = _book(bench)
    bench.run(tick(book, "here", sure=True))
    with fault.lose(committed=committed):
        found = bench.run(tick(book, "here", sure=True))
    # A counter may be raised twice: the database may be ahead of its ledger, never behind what it told.
    assert found.frozen is None
    assert int(_meta(bench)["incarnation"]) == found.incarnation == (3 if committed else 2)


@pytest.mark.parametrize("committed", [True, False])
def test_a_freeze_whose_reply_is_lost_is_the_same_freeze(fault: Fault, committed: bool) -> None:
    bench = fault.bench
    bench.run(tick(_book(bench), "here", sure=True))
    ahead = Book(store="s-1", identity=_book(bench).identity, incarnation=9)
    with fault.lose(committed=committed):
        frozen = bench.run(compare(ahead, "here"))
    assert frozen is not None
    assert frozen.cause.value == "COUNTER_BEHIND"
    assert bench.service.claim_job("A") is None
    assert bench.run(compare(ahead, "here")) == frozen


@pytest.mark.parametrize("committed", [True, False])
def test_a_recovery_whose_reply_is_lost_leaves_no_old_epoch_and_every_suspect(fault: Fault, committed: bool) -> None:
    bench = fault.bench
    case = CASES["running"](bench)
    bench.run(tick(_book(bench), "here", sure=True))
    ahead = Book(store="s-1", identity=_book(bench).identity, incarnation=9, epochs={"acme": 4})
    assert bench.run(compare(ahead, "here")) is not None
    with fault.lose(committed=committed):
        done = bench.run(recover_database(ahead, "here", "op:1", "restored"))
    # It is told as what it did; another one, by anybody, did nothing.
    ((marked,),) = bench.sql("SELECT count(*) FROM $suspect")
    assert (done.changed, done.suspects) == (True, marked)
    assert marked > 0
    assert not bench.run(recover_database(ahead, "here", "op:2", "restored")).changed
    assert done.epochs["acme"] == bench.service.show_tenant("acme").epoch >= 5
    assert "frozen" not in _meta(bench)
    assert bench.service.get_job(case.job_id).suspect
    assert bench.service.heartbeat(case.lease) is False
