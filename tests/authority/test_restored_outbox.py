"""The outbox of a restored copy: what was delivered after the backup is held, and leaves again by a person's word."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import tenure
from tenure import outbox
from tenure.outbox import Delivered, Delivery, Message
from tenure.procedures.outbox import add_message
from tests.authority.conftest import Place
from tests.authority.crew import Crew, runs_on, ticks
from tests.loops.stage import until


class Seen(tenure.Destination):
    """Remembers the operations it was given, over every relay and database."""

    name = "seen"

    def __init__(self) -> None:
        self.got: list[str] = []

    async def deliver(self, messages: Sequence[Message]) -> Sequence[Delivery]:
        self.got += [one.operation for one in messages]
        return [Delivered()] * len(messages)


def add(crew: Crew, operation: str) -> None:
    app = crew.app()
    fields: dict[str, Any] = {"destination": "seen", "type": "t", "data": {}, "tenant": "studio"}
    app.store.run(add_message(outbox.prepare(operation=operation, **fields)))
    app.close()


def relay(crew: Crew, seen: Seen, enough: Callable[[Any], bool]) -> None:
    """Run a relay until enough has happened."""
    app = crew.app()

    async def run() -> None:
        end = time.monotonic() + 30
        async with app.relay(destinations=[seen], poll=timedelta(milliseconds=20)):
            while not enough(app.service):
                assert time.monotonic() < end
                await asyncio.sleep(0.01)
        await app.aclose()

    asyncio.run(run())


def test_what_was_delivered_after_the_backup_is_held_until_it_is_readmitted(place: Place) -> None:
    crew, seen = place.crew, Seen()
    with crew.working() as running:
        runs_on(crew, running, "a")
    add(crew, "op-1")
    place.keep()
    relay(crew, seen, lambda service: service.outbox_stats().unpublished == 0)
    assert seen.got == ["op-1"]
    with crew.working() as running:
        before = ticks(running)
        until(lambda: ticks(running) > before + 1, "more ticks")
    place.put_back()
    with crew.working() as running:
        # Frozen: nothing moves, whoever runs.
        until(lambda: not running.worker.health().ok, "the worker to notice")
    crew.recover()
    add(crew, "op-2")  # the control: of the new epoch
    relay(crew, seen, lambda service: service.outbox_stats().states == {"held": 1} and "op-2" in seen.got)
    assert seen.got == ["op-1", "op-2"], "op-1 waits for a person"
    app = crew.app()
    assert app.service.show_tenant("studio").held_messages == {1: 1}
    assert len(app.service.readmit_messages("studio", reason="consumers know it", actor="op:1")) == 1
    app.close()
    relay(crew, seen, lambda service: service.outbox_stats().unpublished == 0)
    assert seen.got == ["op-1", "op-2", "op-1"], "at least once: its receivers know it by its operation"
