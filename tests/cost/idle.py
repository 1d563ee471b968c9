"""What a worker and a relay say to their database that have nothing to do."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

import pytest

from tenure.connectors.destination import Destination
from tenure.rules.message import Delivery, Message
from tests.cost.meter import Talk, listening
from tests.cost.work import CONCURRENCY, PATIENCE, make_app

IDLE, IDLE_RELAY = "idle worker, each second", "idle relay, each second"
# Long enough that one look more or less is no tenth.
SECONDS = 6.0
LOOK_EVERY = 0.05


def measure_idle(url: str) -> dict[str, float]:
    """Count for some seconds what an idle worker says at its longest pauses; gives figures of a second."""
    return asyncio.run(_measure(url))


def measure_idle_relay(url: str) -> dict[str, float]:
    """Count the same for a relay of one destination."""
    return asyncio.run(_measure_relay(url))


async def _measure(url: str) -> dict[str, float]:
    app = make_app(url)
    with listening() as talk, pytest.MonkeyPatch.context() as patch:
        # Every pause as long as it may be, so that the figure is the same every time.
        patch.setattr(random, "uniform", lambda _, longest: longest)
        async with app.worker(concurrency=CONCURRENCY) as worker:
            async with asyncio.timeout(PATIENCE):
                while worker._claims.pause < worker._claims.poll:  # noqa: ASYNC110 - the worker tells nobody
                    await asyncio.sleep(LOOK_EVERY)
            figures = await _count(talk)
    await app.aclose()
    return figures


class Nowhere(Destination):
    """Is never handed anything."""

    name = "nowhere"

    async def deliver(self, messages: Sequence[Message]) -> Sequence[Delivery]:
        raise AssertionError(f"nobody added {len(messages)} messages")


async def _measure_relay(url: str) -> dict[str, float]:
    app = make_app(url)
    with listening() as talk, pytest.MonkeyPatch.context() as patch:
        patch.setattr(random, "uniform", lambda _, longest: longest)
        async with app.relay(destinations=[Nowhere()]) as relay:
            async with asyncio.timeout(PATIENCE):
                while any(lane.pause < relay.poll for lane in relay._lines):  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(LOOK_EVERY)
            figures = await _count(talk)
    await app.aclose()
    return figures


async def _count(talk: Talk) -> dict[str, float]:
    talk.forget()
    began = time.monotonic()
    await asyncio.sleep(SECONDS)  # a measurement: time has to pass
    lasted = time.monotonic() - began
    counted = {"statements": talk.statements.total(), "transactions": talk.transactions}
    return {name: round(number / lasted, 2) for name, number in counted.items()}
