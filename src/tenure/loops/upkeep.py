"""
Say which kinds a worker knows, and run the passes of `procedures.upkeep`.

Every worker runs them for all queues, its own jobs or not.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta

from tenure.errors import TenureError
from tenure.procedures.upkeep import PROMOTE_MAX, RECOVER_MAX, announce, forget_claims, park, promote, recover, withdraw
from tenure.stores.contract import AsyncStore

logger = logging.getLogger("tenure.worker")

ANNOUNCED_FOR = timedelta(seconds=15)
CLAIM_IDS_KEPT = timedelta(days=8)
FORGET_EVERY = timedelta(minutes=15)
# Passes of one `tend` over what has expired or come due, so that the other of the two has its turn too.
_PASSES = 20
# Seconds: how long the farewell may take.
_FAREWELL = 1.0


class Upkeep:
    """
    The upkeep by one worker.

    Args:
        kinds: The names of what it knows.
        owner: The service it belongs to.
        providers: The names of those it can ask.
        queues: What it serves; None for every queue.
        draining: Whether nothing new is to be claimed, and nothing said any more.
        wake: Set when something may have become claimable.
    """

    def __init__(
        self,
        store: AsyncStore,
        worker_id: str,
        kinds: Collection[str],
        *,
        owner: str | None,
        providers: Collection[str],
        queues: Collection[str] | None,
        draining: Callable[[], bool],
        wake: asyncio.Event,
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._kinds = kinds
        self._owner = owner
        self._providers = providers
        self._queues = queues
        self._foreign: dict[str, str] = {}
        self._draining = draining
        self._wake = wake
        self._announced = -math.inf
        self._forgot = time.monotonic()
        self._places: Mapping[str, str] = {}

    async def tend(self) -> None:
        """Settle leases that have run out, and promote what is due."""
        moved = 0
        for procedure, most in ((recover, RECOVER_MAX), (promote, PROMOTE_MAX)):
            for _ in range(_PASSES):
                found = await self._store.run(procedure(most))
                moved += found
                if found < most:
                    break
        if moved:
            self._wake.set()

    async def announce(self) -> None:
        """Say which kinds the worker knows, park what nobody knows, and now and then forget old claim ids."""
        if self._draining():
            return
        if time.monotonic() - self._announced > ANNOUNCED_FOR.total_seconds() / 3:
            said = announce(
                self._worker_id,
                list(self._kinds),
                ANNOUNCED_FOR,
                owner=self._owner,
                providers=list(self._providers),
            )
            self._note_foreign(await self._store.run(said))
            self._announced = time.monotonic()
        parked = await self._store.run(park(places=self._places))
        # Only now: a pass that was rolled back has parked nothing, and its lanes are looked at again.
        self._places = parked.places
        if parked.moved:
            self._wake.set()
        if time.monotonic() - self._forgot > FORGET_EVERY.total_seconds():
            self._forgot = time.monotonic()
            await self._store.run(forget_claims(CLAIM_IDS_KEPT))

    @property
    def notes(self) -> tuple[str, ...]:
        """Which of its queues the worker leaves to another owner, in words."""
        return tuple(self._left_alone(queue, owner) for queue, owner in sorted(self._foreign.items()))

    def _note_foreign(self, owned: Mapping[str, str]) -> None:
        served = {queue: owner for queue, owner in owned.items() if self._queues is None or queue in self._queues}
        for queue, owner in sorted(served.items()):
            if self._foreign.get(queue) != owner:
                logger.warning("worker %s: %s", self._worker_id, self._left_alone(queue, owner))
        self._foreign = served

    def _left_alone(self, queue: str, owner: str) -> str:
        mine = "this worker has no owner" if self._owner is None else f"this worker is {self._owner}'s"
        return f"queue {queue} belongs to {owner} and {mine}, so nothing is claimed from it"

    async def withdraw(self) -> None:
        """Take back what was announced."""
        try:
            async with asyncio.timeout(_FAREWELL):
                await self._store.run(withdraw(self._worker_id))
        except (TenureError, TimeoutError) as error:
            logger.warning("the announcement of %s runs out by itself: %s", self._worker_id, type(error).__name__)
