"""A relay as a process of its own, for tests that kill it: `python -m tests.loops.relays URL RELAY_ID BOOK`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from tenure import Destination, Tenure
from tenure.outbox import Delivered, Delivery, Message


class Book(Destination):
    """Notes each message in a file, one line a delivery, in one write."""

    name = "book"
    timeout = timedelta(seconds=1)
    batch = 50

    def __init__(self, path: Path, who: str) -> None:
        self.path = path
        self.who = who

    async def deliver(self, messages: Sequence[Message]) -> Sequence[Delivery]:
        lines = "".join(f"{one.subject} {one.operation} {self.who}\n" for one in messages).encode()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, lines)
        finally:
            os.close(descriptor)
        await asyncio.sleep(0.01)  # so that a kill can come between a delivery and its note
        return [Delivered()] * len(messages)


async def main(url: str, relay_id: str, book: Path) -> int:
    app = Tenure(url, organization="studio", project="sales")
    try:
        relay = app.relay(
            destinations=[Book(book, relay_id)],
            relay_id=relay_id,
            lease=timedelta(seconds=16),
            backoff=timedelta(seconds=1),
        )
        return await relay.main()
    finally:
        await app.aclose()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))))
