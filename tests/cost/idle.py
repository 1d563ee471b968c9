"""What a worker says to its database that has nothing to do."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from tests.cost.meter import listening
from tests.cost.work import CONCURRENCY, PATIENCE, make_app

IDLE = "idle worker, each second"
# Long enough that one look more or less is no tenth.
SECONDS = 6.0
LOOK_EVERY = 0.05


def measure_idle(url: str) -> dict[str, float]:
    """Count for some seconds what an idle worker says at its longest pauses; gives figures of a second."""
    return asyncio.run(_measure(url))


async def _measure(url: str) -> dict[str, float]:
    app = make_app(url)
    with listening() as talk, pytest.MonkeyPatch.context() as patch:
        # Every pause as long as it may be, so that the figure is the same every time.
        patch.setattr(random, "uniform", lambda _, longest: longest)
        async with app.worker(concurrency=CONCURRENCY) as worker:
            async with asyncio.timeout(PATIENCE):
                while worker._claims.pause < worker._claims.poll:  # noqa: ASYNC110 - the worker tells nobody
                    await asyncio.sleep(LOOK_EVERY)
            talk.forget()
            began = time.monotonic()
            await asyncio.sleep(SECONDS)  # a measurement: time has to pass
            lasted = time.monotonic() - began
            counted = {"statements": talk.statements.total(), "transactions": talk.transactions}
    await app.aclose()
    return {name: round(number / lasted, 2) for name, number in counted.items()}
