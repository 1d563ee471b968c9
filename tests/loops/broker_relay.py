"""
A relay to a broker as a process of its own, which may die in the middle.

    python -m tests.loops.broker_relay URL BROKER ADDRESS RELAY_ID DIES_AT

BROKER is rabbitmq, redis, nats or jobs. DIES_AT is the number of the call after which it kills itself: the broker has
the messages, and the outbox has not been told; 0 for never.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta

from tenure import Context, Destination, Tenure
from tenure.connectors.nats import JetStream
from tenure.connectors.rabbitmq import RabbitMQ
from tenure.connectors.redis import RedisStreams
from tenure.outbox import Delivery, Message

BATCH = 20
PLACE = "relayed"


def made(app: Tenure, broker: str, address: str) -> Destination:
    """Make the destination `out`."""
    match broker:
        case "rabbitmq":
            return RabbitMQ("out", address, "", PLACE, batch=BATCH)
        case "redis":
            return RedisStreams("out", address, PLACE, batch=BATCH)
        case "nats":
            return JetStream("out", address, PLACE, create_stream=True, batch=BATCH)
        case _:
            return app.own_jobs(name="out", batch=BATCH)


async def main(url: str, broker: str, address: str, relay_id: str, dies_at: int) -> int:
    """Relay until a signal asks to stop, or until it is time to die."""
    app = Tenure(url, organization="studio", project="sales", actor="user:42")

    @app.job("note")
    def note(ctx: Context, payload: dict[str, int]) -> None:
        del ctx, payload

    out = made(app, broker, address)
    deliver, calls = out.deliver, 0

    async def dying(messages: Sequence[Message]) -> Sequence[Delivery]:
        nonlocal calls
        answers = await deliver(messages)
        calls += 1
        if calls == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return answers

    out.deliver = dying  # type: ignore[method-assign]
    try:
        return await app.relay(destinations=[out], relay_id=relay_id, backoff=timedelta(seconds=1)).main()
    finally:
        await app.aclose()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:5], int(sys.argv[5]))))
