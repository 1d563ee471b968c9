"""
How fast the relay delivers messages, alone and with many others waiting; one JSON object a line.

    python -m bench.relay                                  a SQLite file of its own
    python -m bench.relay postgresql://HOST/DATABASE       an empty database; with fsync on, or the figures say nothing
    python -m tests.support.postgres --durable -- python -m bench.relay {url}
    python -m bench.relay --to jetstream                   to a nats-server of its own, on file storage

Each line is one drain: `events` messages become jobs of this same store, or messages of a stream, which are counted
there. Between the two drains `waiting` messages are
added that must cost nothing: planned for tomorrow, for a destination nobody drains, and behind a message that is set
aside. The clock starts when the relay does, and stops when the last message is delivered.
`own_us_each` is this process's time on a processor for each message, which other work on the machine changes little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nats
import nats.js.errors

from bench.store import Eye
from tenure import Context, Destination, Tenure, outbox
from tenure.connectors.nats import JetStream
from tenure.procedures.outbox import add_messages
from tenure.rules.outbox import NewMessage
from tests.support.brokers import NatsServer

BATCH = 500
PREFIXES = ("tenure.", "tenure_")


class Elsewhere(Destination):
    """A destination that is known and takes nothing for good, so that what waits behind a refusal goes on waiting."""

    name = "elsewhere"

    async def deliver(self, messages: Any) -> Any:
        """Refuse everything."""
        return [outbox.Refused("not here")] * len(messages)


class Nowhere(Destination):
    """A destination that takes everything."""

    name = "nowhere"

    async def deliver(self, messages: Any) -> Any:
        """Take everything."""
        return [outbox.Delivered()] * len(messages)


class Place:
    """Where messages go, and how many are there."""

    name = "jobs"

    def destination(self, app: Tenure) -> Destination:
        """Make the destination."""
        return app.own_jobs()

    async def holds(self, eye: Eye) -> int:
        """Count what has arrived."""
        return int(eye.row("SELECT count(*) FROM {}job")[0])


class Stream(Place):
    """A stream of a server of our own."""

    name = "jetstream"

    def __init__(self, url: str) -> None:
        self._url = url

    def destination(self, app: Tenure) -> Destination:
        """Make the destination."""
        del app
        return JetStream("jobs", self._url, "bench", create_stream=True)

    async def holds(self, eye: Eye) -> int:
        """Count what the stream has."""
        del eye
        client = await nats.connect(self._url)
        try:
            return (await client.jetstream().stream_info("bench")).state.messages
        except nats.js.errors.NotFoundError:
            return 0
        finally:
            await client.close()


@contextmanager
def _stream() -> Iterator[Place]:
    with NatsServer() as server:
        yield Stream(server.url)


PLACES: dict[str, Callable[[], AbstractContextManager[Place]]] = {
    "jobs": lambda: nullcontext(Place()),
    "jetstream": _stream,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.relay", description=__doc__.splitlines()[1])
    parser.add_argument("url", nargs="?")
    parser.add_argument("--to", choices=sorted(PLACES), default="jobs")
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--waiting", type=int, default=99_999, help="in three equal parts")
    parser.add_argument("--drains", type=int, default=2, help="before and after the others are added, each")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = options.url or f"sqlite:///{Path(folder) / 'outbox.db'}"
        with PLACES[options.to]() as place:
            asyncio.run(_measure(url, place, options.events, options.waiting, options.drains))


async def _measure(url: str, place: Place, events: int, waiting: int, drains: int) -> None:
    app = Tenure(url, organization="bench", project="relay", actor="bench")

    @app.job("noop")
    def noop(ctx: Context, payload: dict[str, Any]) -> None:
        """Do nothing; it is never run here."""
        del ctx, payload

    await app.amigrate()
    eye = Eye(url, PREFIXES)
    try:
        for beside in (0, waiting):
            if beside:
                await _add_others(app, beside // 3)
            for nth in range(drains):
                began = time.perf_counter()
                await _add(app, _events(events, f"{beside}-{nth}"))
                added = time.perf_counter() - began
                eye.settle()
                there = await place.holds(eye)
                spent = time.process_time()
                seconds = await _drain(app, eye, place)
                spent = time.process_time() - spent
                if await place.holds(eye) - there != events:
                    raise SystemExit("no measurement: it does not hold what was delivered")
                line = {
                    "date": datetime.now(UTC).date().isoformat(),
                    "store": app.store.dialect,
                    "to": place.name,
                    "events": events,
                    "waiting": 3 * (beside // 3),
                    "seconds": round(seconds, 3),
                    "events_per_second": round(events / seconds),
                    "added_per_second": round(events / added),
                    "own_us_each": round(spent / events * 1e6),
                    "load": round(os.getloadavg()[0], 1),
                }
                print(json.dumps(line), flush=True)
    finally:
        await app.aclose()


def _events(count: int, what: str) -> Iterator[NewMessage]:
    for nth in range(count):
        yield outbox.prepare(
            destination="jobs", type="noop", data={"nth": nth}, tenant="bench", operation=f"{what}-{nth}"
        )


def _others(count: int) -> Iterator[NewMessage]:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    for nth in range(count):
        common: dict[str, Any] = {"type": "noop", "data": {"nth": nth}, "tenant": "bench"}
        yield outbox.prepare(destination="jobs", scheduled_at=tomorrow, **common)
        yield outbox.prepare(destination="idle", **common)
        # Each second one stands behind one that is set aside: as many subjects as there are pairs.
        yield outbox.prepare(destination="elsewhere", subject=f"subject/{nth // 2}", ordered=True, **common)


async def _add(app: Tenure, messages: Iterator[NewMessage]) -> None:
    store = await app.astore()
    batch: list[NewMessage] = []
    for one in messages:
        batch.append(one)
        if len(batch) == BATCH:
            await store.run(add_messages(batch))
            batch = []
    if batch:
        await store.run(add_messages(batch))


async def _add_others(app: Tenure, count: int) -> None:
    await _add(app, _others(count))
    # A relay that refuses puts one of each pair aside and the other one behind it, and aside what nobody serves. All of
    # that is over before anything is measured: it is work, and not waiting.
    async with app.relay(destinations=[Elsewhere()], relay_id="sorts"):
        service = await app.aservice()
        while "due" in (await service.outbox_stats()).states:  # noqa: ASYNC110 - as below
            await asyncio.sleep(0.5)  # as below


async def _drain(app: Tenure, eye: Eye, place: Place) -> float:
    left = (
        "SELECT EXISTS (SELECT 1 FROM {}message_due WHERE destination = 'jobs') "
        "OR EXISTS (SELECT 1 FROM {}message_lease)"
    )
    idle = Nowhere()
    idle.name = "nothing"
    began = time.perf_counter()
    async with app.relay(destinations=[place.destination(app), idle], relay_id="drains"):
        while eye.row(left)[0]:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.02)  # what a database holds cannot be waited for
        return time.perf_counter() - began


if __name__ == "__main__":
    main()
