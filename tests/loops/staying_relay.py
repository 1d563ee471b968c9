"""A relay as a process whose only delivery ignores every cancellation: `python -m tests.loops.staying_relay URL`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from datetime import timedelta

from tenure import Destination, Tenure
from tenure.outbox import Delivery, Message


class Stays(Destination):
    """Never ends a delivery."""

    name = "stays"

    async def deliver(self, messages: Sequence[Message]) -> Sequence[Delivery]:
        print("delivering", flush=True)
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue


async def main(url: str) -> int:
    app = Tenure(url, organization="studio", project="sales")
    try:
        return await app.relay(destinations=[Stays()], grace=timedelta(milliseconds=200)).main()
    finally:
        await app.aclose()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
