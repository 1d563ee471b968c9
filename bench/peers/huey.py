"""
huey 3.5.4 on SQLite, its own consumer with threads, `fsync=True` (which is `synchronous=FULL`) and WAL.

It keeps no record at all: a task leaves the table when it is taken, so a worker that dies loses it; there is no key, no
trail, no fence, no record of outside acts. It has no asyncio handlers; its plain ones do the same nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from huey import SqliteHuey  # type: ignore[import-not-found,unused-ignore]
from huey.consumer import Consumer  # type: ignore[import-not-found,unused-ignore]

from bench.protocol import Adapter, Producer, Stop, main
from bench.store import SQLITE
from bench.tally import Tally

# More threads only wait for the one write lock.
THREADS = 2


def _app(url: str, tally: Tally | None = None) -> tuple[SqliteHuey, type]:
    app = SqliteHuey(filename=url.removeprefix(SQLITE), fsync=True, results=False)

    @app.task(name="noop")  # type: ignore[untyped-decorator,unused-ignore]
    def noop(number: int) -> None:
        assert tally is not None
        tally.mark(number)

    return app, noop


def setup(url: str) -> None:
    """Make its tables."""
    _app(url)[0].storage.close()


@contextmanager
def producer(url: str, mode: str) -> Iterator[Producer]:
    """Enqueue one by one: it has no bulk way and commits each."""
    del mode
    app, noop = _app(url)

    def put_one(number: int) -> int:
        noop(number)  # type: ignore[call-arg,unused-ignore]
        return time.monotonic_ns()

    def put(numbers: Sequence[int]) -> None:
        for one in numbers:
            put_one(one)

    yield Producer(put, put_one)
    app.storage.close()


class Embedded(Consumer):  # type: ignore[misc,unused-ignore]
    """Its consumer, in whatever thread asks."""

    def _set_signal_handlers(self) -> None:
        """Leave signals to whoever started us."""


def work(url: str, mode: str, tally: Tally, stop: Stop) -> None:
    """Run its consumer; ended where it is."""
    del mode, stop
    app, _ = _app(url, tally)
    consumer = Embedded(app, workers=THREADS, periodic=False, initial_delay=0.01, max_delay=0.1, backoff=1.15)
    consumer.run()


ADAPTER = Adapter("bench.peers.huey", setup, producer, work, left="SELECT count(*) FROM task")

if __name__ == "__main__":
    main(ADAPTER)
