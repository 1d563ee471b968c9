"""The worker processes of the stories: the whole worker on a real store, speaking HTTP to the story's provider."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import timedelta
from typing import Any

from tenure.connectors.simulator import Promises, Simulator
from tenure.errors import Unavailable
from tenure.stores import open_store
from tenure.stores.contract import AsyncStore, Store
from tenure.testing.crash_points import CrashPoints, point_name
from tenure.yields import Procedure
from tests.crash.clock import SharedClock
from tests.crash.office import open_office


def work(given: dict[str, Any]) -> int:
    """
    Be a worker until told to stop.

    Args:
        given: url, patience, clock, simulator, ledger, promises, worker_id, journal, sweeps, call_timeout, options,
            lose, and what `CrashPoints` reads from an environment. Durations are seconds.
    """
    logging.disable(logging.CRITICAL)
    points = CrashPoints.from_environment(given["points"])
    plain = _open(given)
    store = points.store(plain)
    if given["lose"]:
        store = _Forgetful(store, given["lose"]).seen
    simulator = Simulator(given["simulator"], given["ledger"], Promises(**given["promises"]))
    app = open_office(
        store,
        points.provider(simulator.provider("mailer")),
        reach=points.reach,
        call_timeout=None if given["call_timeout"] is None else timedelta(seconds=given["call_timeout"]),
        **{name: _duration(name, value) for name, value in given["options"].items()},
    )
    worker = app.worker(
        worker_id=given["worker_id"],
        concurrency=2,
        poll=timedelta(milliseconds=50),
        sweep_every=timedelta(milliseconds=50) if given["sweeps"] else None,
        journal_dir=given["journal"],
        grace=timedelta(seconds=5),
    )

    async def main() -> int:
        status: int = await worker.main()
        await app.aclose()
        return status

    status = asyncio.run(main())
    with suppress(Unavailable):
        plain.close()
    return status


def _duration(name: str, value: Any) -> Any:
    return timedelta(seconds=value) if name in {"escalate_after", "backoff_base"} else value


def _open(given: dict[str, Any]) -> Store:
    clock = SharedClock(given["clock"])
    if given["patience"] is None:
        return open_store(given["url"], clock=clock)
    from tenure.stores.postgres.store import PostgresStore

    return PostgresStore(given["url"], clock=clock, patience=timedelta(seconds=given["patience"]))


class _Forgetful:
    """Loses the answer to the first commit of one procedure: it is committed, and the caller hears that it failed."""

    def __init__(self, store: Store, name: str) -> None:
        self._name: str | None = name
        self.seen: Any = _Blocking(store, self)

    def lose(self, procedure: Procedure[Any]) -> None:
        if point_name(procedure) == self._name:
            self._name = None
            raise Unavailable("the answer was lost")


class _Blocking:
    def __init__(self, inner: Store, forgetful: _Forgetful) -> None:
        self._inner, self._forgetful = inner, forgetful

    def run(self, procedure: Procedure[Any]) -> Any:
        answer = self._inner.run(procedure)
        self._forgetful.lose(procedure)
        return answer

    def awaiting(self) -> Any:
        return _Awaiting(self._inner.awaiting(), self._forgetful)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Awaiting:
    def __init__(self, inner: AsyncStore, forgetful: _Forgetful) -> None:
        self._inner, self._forgetful = inner, forgetful

    async def run(self, procedure: Procedure[Any]) -> Any:
        answer = await self._inner.run(procedure)
        self._forgetful.lose(procedure)
        return answer

    def blocking(self) -> Any:
        return _Blocking(self._inner.blocking(), self._forgetful)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
