"""
When a worker claims, and how much: up to its free slots, at once where the database can tell, ahead while it is behind.

An idle worker looks with a pause that grows, and is woken early. One that was woken does not look first: it asks where
it found something before, one round trip instead of two, and looks when that gave nothing, or a little later. A worker
that is behind claims again at once: the next claim is on its way while the handlers of the last one run. One whose
answer did not come is asked again as it was, so that what it took is found; also by a worker that is being drained,
which gives it back.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence

from tenure.attempt import Attempt
from tenure.errors import TenureError, Unavailable
from tenure.kinds import Kind
from tenure.loops.attempts import Attempts
from tenure.loops.outcomes import GATHER
from tenure.loops.supervisor import within
from tenure.procedures.claim_batch import Claimed, Cursor, Taken, Turns, guess, read_effects
from tenure.rules.moves import WORKER_LOST
from tenure.stores.contract import AsyncStore
from tenure.yields import Procedure

# Seconds between two looks at an empty queue.
POLL_MIN, POLL_MAX = 0.02, 1.0
CLAIM_MAX = 400
# After so many seconds a claim begins at the front of its queues again, for rows that committed late.
CURSOR_LIFETIME = 1.0
# For so many seconds a worker may guess where new work is before it has to look.
GUESSING = 0.05
# Fewer free slots than this part of all are not worth a claim of their own while a worker is behind.
_WORTH = 1 / 4


class Claims:
    """
    The claims of one worker.

    Args:
        claim: Makes a claim; takes `kinds`, `limit`, `cursor`, `turns` and `lost` of `claim_batch`.
        kinds: What the worker knows.
        queues: What the worker serves, in this order; None for every queue.
        unwritten: How many leases are kept, of handlers that run and of outcomes on their way.
        draining: Whether nothing new is to be claimed any more.
        held: Whether nothing new is to be claimed for now.
        wake: Set when there may be work.
        poll: Longest pause between two looks at an empty queue, in seconds.

    Attributes:
        freed: Set when a slot is free again.
        settled: Set while no claim is on its way.
        pause: Before the next look at an empty queue, in seconds.
    """

    def __init__(
        self,
        store: AsyncStore,
        attempts: Attempts,
        claim: Callable[..., Procedure[Taken]],
        kinds: Mapping[str, Kind],
        *,
        queues: Sequence[str] | None,
        concurrency: int,
        unwritten: Callable[[], int],
        draining: Callable[[], bool],
        held: Callable[[], bool],
        wake: asyncio.Event,
        poll: float,
    ) -> None:
        self._store = store
        self._attempts = attempts
        self._claim = claim
        self._kinds = kinds
        self._queues = queues
        self._concurrency = concurrency
        self._unwritten = unwritten
        self._draining = draining
        self._held = held
        self._wake = wake
        self.poll = poll
        self.freed = asyncio.Event()
        self.settled = asyncio.Event()
        self.settled.set()
        self.pause = POLL_MIN
        self._cursor: Cursor | None = None
        self._cursor_since = 0.0
        self._turns: Turns = {}
        self._known: frozenset[str] = frozenset()
        self._woken = False
        self._guessed = False
        self._look_at = math.inf
        self._asked: Procedure[Taken] | None = None
        self._asked_at = 0.0
        self._answer: asyncio.Future[Taken] | None = None

    async def step(self) -> None:
        """Claim once, or wait until there is a reason to; the supervisor calls this again and again."""
        self._wake.clear()
        self.freed.clear()
        if self._asked is None:
            free = self._free()
            # While draining, only a claim whose answer is not known yet is asked again, so that it can be given back.
            if self._draining() or self._held() or free <= 0:
                await self._sleep(self.freed, self.poll)
                return
            if self._cursor is not None and free < self._concurrency * _WORTH:
                # The other slots may follow within moments and share a claim.
                await asyncio.sleep(GATHER)
                free = self._free()
            self._ask(free)
        guessed = self._guessed
        try:
            taken = await self._take()
        finally:
            if self._asked is None:
                self.settled.set()
        found = bool(taken.claims)
        if found:
            self.pause = POLL_MIN
        if guessed and (taken.more or not found):
            return  # somebody had a reason to wake this worker, and what else there is was not looked at
        if self._cursor is None and self._asked is None:
            self._woken = await self._sleep(self._wake, self.pause)
            if not found:
                self.pause = min(self.pause * 2, self.poll)

    async def _take(self) -> Taken:
        """Begin what the claim on its way has taken."""
        taken = await self._answered()
        sent = self._asked_at
        self._asked = self._answer = None
        # What lies beside a guess was not looked at, so no claim goes on from there.
        self._cursor = None if self._guessed else taken.cursor
        self._turns = taken.turns
        self._known |= taken.known
        if self._draining():
            self._attempts.return_unstarted()
        elif taken.more and not any(one.error_code == WORKER_LOST for one in taken.claims):
            ahead = self._free() - len(taken.claims)
            if ahead > self._concurrency * _WORTH:
                # The database works on the next claim while the handlers of this one run.
                self._ask(ahead)
                await asyncio.sleep(0)
        if taken.claims:
            self._attempts.begin([Attempt(one, self._kinds[one.kind], sent) for one in taken.claims])
        return taken

    async def close(self) -> None:
        """Wait no longer for an answer; leases that it may bring run out by themselves."""
        if self._answer is not None:
            self._answer.cancel()
            await asyncio.gather(self._answer, return_exceptions=True)

    def _free(self) -> int:
        # As many outcomes may wait to be written as there are slots: a database that takes none is given no more work.
        return self._concurrency - max(len(self._attempts), self._unwritten() - self._concurrency)

    def _likely(self) -> str | None:
        """Name the queue to guess at: never one that comes behind another one whose jobs were not looked at."""
        if self._queues is not None:
            return self._queues[0] if self._queues and self._queues[0] in self._known else None
        return next(iter(self._known)) if len(self._known) == 1 else None

    def _ask(self, free: int) -> None:
        now = self._asked_at = time.monotonic()
        if self._cursor is not None and now - self._cursor_since > self._cursor.good_for(CURSOR_LIFETIME):
            self._cursor = None
        cursor = self._cursor
        queue = self._likely() if cursor is None and self._woken and now < self._look_at else None
        self._guessed = queue is not None
        self._woken = False
        if queue is not None:
            cursor = guess(queue)
            self._look_at = min(self._look_at, now + GUESSING)
        elif cursor is None or not cursor.entries:
            self._cursor_since = now
            self._look_at = math.inf
        self.settled.clear()
        self._asked = self._claim(
            kinds=list(self._kinds),
            limit=min(free, CLAIM_MAX),
            cursor=cursor,
            turns=self._turns,
            # A job that kills its process takes those beside it along. Run one by one, each of the others loses one
            # attempt at most, and the cause is found out.
            lost=0 if self._attempts.watching else 1,
        )
        self._answer = asyncio.ensure_future(self._store.run(self._asked))

    async def _answered(self) -> Taken:
        # The same procedure value until an answer came: a claim whose reply was lost gives the same leases again, which
        # may count from the first asking.
        assert self._asked is not None
        if self._answer is None:
            self._answer = asyncio.ensure_future(self._store.run(self._asked))
        answer = self._answer
        try:
            taken = await answer
            unread = [one for one in taken.claims if isinstance(one, Claimed) and one.unread]
            if unread:
                effects = await self._store.run(read_effects([one.lease.job_id for one in unread]))
                for one in unread:
                    one.has(effects.get(one.lease.job_id, ()))
        except BaseException as error:
            self._answer = None
            if not answer.done():
                answer.cancel()
            if isinstance(error, TenureError) and not isinstance(error, Unavailable):
                self._asked = None  # it was refused, and would be again
            raise
        return taken

    async def _sleep(self, event: asyncio.Event, longest: float) -> bool:
        """Wait for the event, which was cleared before anybody looked, or for a jittered pause; whether it came."""
        came = await within(event.wait(), random.uniform(longest / 2, longest))  # noqa: S311 - spreads load
        if came:
            self.pause = POLL_MIN
        return came
