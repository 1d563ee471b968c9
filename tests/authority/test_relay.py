"""A deployment that only relays: no worker looks at the ledger, so the relay does; beside each its control."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import outbox
from tenure.errors import Invalid, TenureError
from tenure.loops.authority import AuthorityWatch
from tenure.loops.relay import Relay
from tenure.outbox import Delivered, Delivery, Message
from tenure.procedures.outbox import add_message
from tests.authority.conftest import Place, migrated
from tests.authority.crew import Crew
from tests.loops.posting import until

SOON = timedelta(milliseconds=20)


class Seen(tenure.Destination):
    """Remembers the operations it was given, over every relay and database."""

    name = "seen"

    def __init__(self) -> None:
        self.got: list[str] = []

    async def deliver(self, messages: Sequence[Message]) -> Sequence[Delivery]:
        self.got += [one.operation for one in messages]
        return [Delivered()] * len(messages)


class Post:
    """An outbox that nobody but relays ever serves."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.seen = Seen()

    def add(self, operation: str) -> None:
        app = self.crew.app()
        fields: dict[str, Any] = {"destination": "seen", "type": "t", "data": {}, "tenant": "studio"}
        app.store.run(add_message(outbox.prepare(operation=operation, **fields)))
        app.close()

    def relayed(self, story: Any) -> None:
        """Play a story beside a running relay."""

        async def run() -> None:
            app = self.crew.app()
            try:
                async with app.relay(destinations=[self.seen], poll=SOON) as relay:
                    await story(relay)
            finally:
                await app.aclose()

        asyncio.run(run())

    def deliver(self, *operations: str) -> None:
        """Add messages and have them delivered; leave only after another tick."""
        for one in operations:
            self.add(one)

        async def story(relay: Relay) -> None:
            await until(lambda: set(operations) <= set(self.seen.got))
            await tick(relay)

        self.relayed(story)


async def tick(relay: Relay) -> None:
    """Wait until the counter in the ledger has risen."""
    ledger = relay.app.store.ledger
    before = ledger.read().incarnation
    await until(lambda: ledger.read().incarnation > before)


def frozen(relay: Relay) -> bool:
    health = relay.health()
    assert not (health.problems and health.ok)
    return any("DATABASE_FROZEN COUNTER_BEHIND" in one for one in health.problems)


@pytest.mark.parametrize("restored", [True, False])
def test_a_restored_outbox_is_frozen_before_a_relay_claims_from_it(place: Place, *, restored: bool) -> None:
    post = Post(place.crew)
    post.deliver("op-1")
    post.add("op-2")
    place.keep()
    post.deliver("op-3")
    assert sorted(post.seen.got) == ["op-1", "op-2", "op-3"]
    if not restored:
        # The control: the same steps without a restore.
        post.deliver("op-4")
        return
    place.put_back()

    async def story(relay: Relay) -> None:
        assert frozen(relay)
        assert post.crew.facts().frozen is not None
        before = relay._supervisor.pulses["authority"].at
        await until(lambda: relay._supervisor.pulses["authority"].at > before)
        assert sorted(post.seen.got) == ["op-1", "op-2", "op-3"], "op-2 is due in the copy, and was delivered since"
        await asyncio.to_thread(post.crew.recover)
        await until(lambda: relay.health().ok)
        await asyncio.to_thread(post.add, "op-5")
        await until(lambda: "op-5" in post.seen.got)

    post.relayed(story)
    assert sorted(post.seen.got) == ["op-1", "op-2", "op-3", "op-5"], "what the copy holds waits for a person"


def test_a_running_relay_notices_within_a_second_or_two(place: Place) -> None:
    post = Post(place.crew)
    post.deliver("op-1")
    place.keep()

    async def story(relay: Relay) -> None:
        await asyncio.to_thread(post.add, "op-2")
        await until(lambda: "op-2" in post.seen.got)
        await tick(relay)
        assert not frozen(relay)
        began = time.monotonic()
        await asyncio.to_thread(place.put_back)
        await until(lambda: frozen(relay), 20)
        assert time.monotonic() - began < 10, "about a second on a quiet machine"
        await asyncio.to_thread(post.add, "op-3")
        before = relay._supervisor.pulses["seen:1"].at
        await until(lambda: relay._supervisor.pulses["seen:1"].at > before)
        assert post.seen.got == ["op-1", "op-2"]

    post.relayed(story)


def test_a_relay_that_was_not_told_of_the_ledger_does_not_start(postgres_database: str, tmp_path: Path) -> None:
    untold = Post(migrated(Crew(postgres_database)))

    async def nothing(relay: Relay) -> None:
        assert relay.health().problems == ()

    untold.relayed(nothing)
    told = Post(Crew(postgres_database, tmp_path / "ledger"))
    told.deliver("op-1")
    untold.add("op-2")
    with pytest.raises(Invalid) as raised:
        untold.relayed(nothing)
    assert raised.value.code == "LEDGER_REQUIRED"
    assert untold.seen.got == []
    told.deliver()
    told.deliver("op-3")
    assert told.seen.got == ["op-1", "op-2", "op-3"]


def test_a_relay_whose_ledger_cannot_be_read_does_not_start_and_one_that_runs_holds(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = Post(place.crew)
    path = Path(post.crew.ledger or post.crew.url.removeprefix("sqlite:///") + ".ledger")

    def spoil() -> None:
        with path.open("ab") as ledger:
            ledger.write(b"xxx")

    async def story(relay: Relay) -> None:
        await tick(relay)
        await asyncio.to_thread(spoil)
        await until(lambda: any("cannot be used" in one for one in relay.health().problems))
        assert isinstance(relay._authority, AuthorityWatch)
        monkeypatch.setattr(relay._authority, "_grace", 0.0)
        await asyncio.to_thread(post.add, "op-1")
        before = relay._supervisor.pulses["seen:1"].at
        await until(lambda: relay._supervisor.pulses["seen:1"].at > before)
        assert post.seen.got == []
        monkeypatch.setattr(relay._authority, "_grace", 3600.0)
        await until(lambda: post.seen.got == ["op-1"])

    post.relayed(story)
    with pytest.raises(TenureError) as raised:
        post.deliver()
    assert raised.value.code == "LEDGER_DAMAGED"
