"""Messages in programs that are killed: a producer, a relay step by step, a consumer; and what is found afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import tenure
from tenure.connectors.destination import Destination
from tenure.flows.drive import run_flow
from tenure.flows.relay import relay_round
from tenure.inbox import IncomingEvent
from tenure.procedures.outbox import Outgoing, claim_messages
from tenure.procedures.outbox_upkeep import (
    announce_relay,
    prune_messages,
    tend_messages,
    withdraw_relay,
)
from tenure.rules.message import Delivered, Delivery, Message, Refused
from tenure.service import DurableJobService
from tests.crash.office import wait
from tests.crash.recovery import NIGHT
from tests.crash.scene import ORGANIZATION, Scene

LEASE, BACKOFF = timedelta(seconds=60), timedelta(seconds=1)
OPERATIONS = ("plain", "first", "second", "poison", "planned", "fax")


class Letters(Destination):
    """A destination with a book of its own, that refuses what is called poison until it is mended."""

    name = "letters"

    def __init__(self, book: Path, *, mended: bool = False) -> None:
        self.book = book
        self.mended = mended

    async def deliver(self, messages: Sequence[Message]) -> Sequence[Delivery]:
        answers: list[Delivery] = []
        for one in messages:
            if one.operation == "poison" and not self.mended:
                answers.append(Refused("it cannot be read"))
                continue
            with self.book.open("a") as book:
                book.write(f"{one.operation}\n")
            answers.append(Delivered())
        return answers

    def seen(self) -> list[str]:
        return self.book.read_text().split() if self.book.exists() else []


def send(store: Any, clock: Any) -> None:
    """Add every message of the story in one transaction."""
    common: dict[str, Any] = {"type": "quote.accepted", "data": {"quote": 17}, "tenant": ORGANIZATION}
    more: dict[str, dict[str, Any]] = {
        "first": {"subject": "quote/17", "ordered": True},
        "second": {"subject": "quote/17", "ordered": True},
        "planned": {"scheduled_at": clock.now() + timedelta(minutes=1)},
        "fax": {"destination": "fax"},
    }
    with store.transaction() as tx:
        for operation in OPERATIONS:
            fields = {"destination": "letters", **common, **more.get(operation, {})}
            tenure.outbox.add(tx, operation=operation, **fields)


def go_round(store: Any, destination: Any, *, relay: str = "first") -> int:
    """Do one round of a relay."""

    def deliver(outgoing: Sequence[Outgoing]) -> Any:
        return wait(destination.deliver([one.message for one in outgoing]))

    found = run_flow(relay_round(relay, "letters", 10, LEASE, BACKOFF, deliver), store.run)
    return found.taken + found.more


def relays(process: Any) -> None:
    """Send messages, relay them, lose a relay, decide about what was set aside, apply one, forget what is old."""
    process.enqueue()
    store, clock = process.store, process.clock
    process.folder.mkdir(parents=True, exist_ok=True)
    letters = process.points.destination(Letters(process.folder / "letters"))
    send(store, clock)
    # What an operator does between two rounds: a rotation, and then all of it is admitted again.
    aside = DurableJobService(process.plain, tenant=ORGANIZATION, actor="op:1")
    aside.rotate_tenant(ORGANIZATION, reason="leaked")
    aside.readmit_jobs(ORGANIZATION, reason="looked at")
    process.service.readmit_messages(ORGANIZATION, reason="looked at")
    store.run(announce_relay("first", ["letters"], timedelta(seconds=15)))
    go_round(store, letters)
    store.run(claim_messages("second", "letters", 1, LEASE))
    clock.advance(NIGHT)
    store.run(tend_messages())
    while go_round(store, letters):
        pass
    (poison,) = [one for one in process.service.list_messages() if one.message.operation == "poison"]
    process.service.replay_message(poison.message.id, reason="it may be mended")
    while go_round(store, letters):
        pass
    process.service.discard_message(poison.message.id, reason="it is not")
    event = IncomingEvent(ORGANIZATION, "plain", "quote.accepted", 1, None, {"quote": 17})
    with store.transaction() as tx:
        tenure.inbox.declare(tx, "ledger", replay_window=timedelta(days=1))
    with store.transaction() as tx:
        assert tenure.inbox.receive(tx, "ledger", event, "d-1").new
    store.run(prune_messages(timedelta(days=7)))
    DurableJobService(store).prune_inbox("ledger")
    store.run(withdraw_relay("first"))
    process.work()


def relayed(scene: Scene, folder: Path) -> int:
    """
    Be the relay that comes after: whatever was committed is delivered, or is where somebody decided that it should be.

    Returns: How many messages were delivered now.
    """
    folder.mkdir(parents=True, exist_ok=True)
    letters = Letters(folder / "letters", mended=True)
    before = len(letters.seen())
    scene.clock.advance(NIGHT)
    for tenant in scene.service.list_tenants():
        scene.service.readmit_messages(tenant.name, reason="looked at")
    scene.store.run(announce_relay("later", ["letters", "fax"], timedelta(seconds=15)))
    for poison in scene.service.list_messages(state="set_aside"):
        scene.service.replay_message(poison.message.id, reason="it is mended")
    scene.store.run(tend_messages())
    while go_round(scene.store, letters, relay="later"):
        pass
    stored = {one.message.operation: one for one in scene.service.list_messages()}
    assert set(stored) in (set(), set(OPERATIONS)), "they were added in one commit"
    for operation, one in stored.items():
        if operation == "fax":
            assert one.state == "due"
        elif one.state != "discarded":
            assert one.state == "delivered"
            assert operation in letters.seen()
    first, second = (letters.seen().index(one) if one in letters.seen() else -1 for one in ("first", "second"))
    assert first <= second, "of a subject the older one goes first"
    with scene.store.transaction() as tx:
        receipt = tenure.inbox.receive(
            tx, "ledger", IncomingEvent(ORGANIZATION, "plain", "quote.accepted", 1, None, {"quote": 17}), "d-2"
        )
    assert receipt.new is (receipt.first_delivery_id == "d-2")
    return len(letters.seen()) - before
