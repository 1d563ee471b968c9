"""What tests of the relay do again and again: add messages, let a relay run, wait for what it stores."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tenure import Tenure, outbox
from tenure.procedures.outbox import add_messages


def add(app: Tenure, *operations: str, **fields: Any) -> None:
    """Add messages with these operations, all alike."""
    common: dict[str, Any] = {"destination": "seen", "type": "t", "data": {}, "tenant": "studio", **fields}
    made = [outbox.prepare(operation=one, **common) for one in operations]
    for start in range(0, len(made), 500):
        app.store.run(add_messages(made[start : start + 500]))


async def until(true: Callable[[], Any], seconds: float = 60) -> None:
    """Wait until something stored or noted is so."""
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110 - what a database holds cannot be waited for
            await asyncio.sleep(0.01)


def play(app: Tenure, story: Callable[[], Awaitable[None]]) -> None:
    """Run a story and close the app."""

    async def body() -> None:
        try:
            await story()
        finally:
            await app.aclose()

    asyncio.run(body())
