"""Messages, and loops that leave nothing behind, for the tests of destinations."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

from uuid_utils import uuid7

from tenure.rules.digest import digest
from tenure.rules.message import Message

T = TypeVar("T")


def message(number: int = 1, **changed: Any) -> Message:
    data: dict[str, Any] = changed.pop("data", {"quote": number})
    fields: dict[str, Any] = {
        "tenant": "acme",
        "id": UUID(str(uuid7())),
        "operation": f"quote:{number}:accept",
        "destination": "out",
        "type": "quote.accepted",
        "version": 1,
        "subject": f"quote/{number}",
        "data": data,
        "epoch": 1,
        "digest": digest(data),
        "created_at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    }
    return Message(**{**fields, **changed})


def run(body: Callable[[], Awaitable[T]], *, seconds: float = 60) -> T:
    """Run a test's coroutine, and fail if it leaves a task behind; sockets are found by the collector."""

    async def whole() -> T:
        before = asyncio.all_tasks()
        async with asyncio.timeout(seconds):
            value = await body()
        # A task that was cancelled ends in the next turns of the loop.
        for _ in range(10):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() - before == set()
        return value

    value = asyncio.run(whole())
    gc.collect()
    return value
