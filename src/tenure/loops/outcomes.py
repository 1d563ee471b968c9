"""
Write how attempts ended, many in one transaction.

Outcomes that arrive within a few milliseconds share a commit. One that the database does not take is written again with
the same identity until it is, or until the lease is lost: a finished handler's word is not thrown away because the
database was restarting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from tenure.errors import CancelRequested, LeaseLost, TenureError, Unavailable, Uncertain
from tenure.handler import Attempt
from tenure.loops.supervisor import Pulse
from tenure.procedures import hold
from tenure.rules.job import Job
from tenure.stores.contract import AsyncStore

logger = logging.getLogger("tenure.worker")

BATCH = 100
GATHER = 0.005


@dataclass(slots=True)
class _Outcome:
    attempt: Attempt
    ask: hold.Ask
    # A refused outcome is followed by one that says why; that one is not followed by another.
    last: bool = False


class Outcomes:
    """
    The outcomes of one worker on their way to the database.

    Args:
        written: Called when an attempt's outcome is written, or cannot be any more.
    """

    def __init__(self, store: AsyncStore, pulse: Pulse, written: Callable[[Attempt], None]) -> None:
        self._store = store
        self._pulse = pulse
        self._written = written
        self._waiting: list[_Outcome] = []
        self._arrived = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def add(self, attempt: Attempt, ask: hold.Ask | None) -> None:
        """Take an outcome; None means there is nothing to say."""
        if ask is None:
            self._written(attempt)
            return
        self._waiting.append(_Outcome(attempt, ask))
        self._empty.clear()
        self._arrived.set()

    async def drained(self) -> None:
        """Wait until everything taken so far is written."""
        await self._empty.wait()

    async def step(self) -> None:
        """Write one batch; the supervisor calls this again and again."""
        try:
            await asyncio.wait_for(self._arrived.wait(), timeout=self._pulse.period)
        except TimeoutError:
            return
        if len(self._waiting) < BATCH:
            await asyncio.sleep(GATHER)
        batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
        if not self._waiting:
            self._arrived.clear()
        if batch:
            await self._write(batch)
        if not self._waiting:
            self._empty.set()

    async def _write(self, batch: list[_Outcome]) -> None:
        # The same procedure value every time: if an earlier run did commit, it answers itself.
        procedure = hold.hold([one.ask for one in batch])
        answers: list[Job | TenureError] | None = None
        while answers is None:
            try:
                answers = await self._store.run(procedure)
            except Unavailable as gone:
                await asyncio.sleep(self._pulse.fail(gone))
                if all(one.attempt.trusted <= 0 for one in batch):
                    # The leases are over; recovery settles these jobs, and effects keep their own record.
                    answers = [LeaseLost(str(gone), reason="expired") for _ in batch]
        for one, answer in zip(batch, answers, strict=True):
            self._settle(one, answer)

    def _settle(self, one: _Outcome, answer: Job | TenureError) -> None:
        job_id = one.attempt.job.id
        if isinstance(answer, Job):
            logger.debug("attempt ended: job=%s status=%s", job_id, answer.status)
        elif isinstance(answer, LeaseLost):
            logger.warning("outcome refused: job=%s reason=%s", job_id, answer.reason)
        elif isinstance(answer, Uncertain):
            logger.warning("attempt ended with an open effect: job=%s is indeterminate", job_id)
        elif one.last:
            logger.error("outcome refused for good: job=%s code=%s; its lease will run out", job_id, answer.code)
        else:
            self._follow(one, answer)
            return
        self._written(one.attempt)

    def _follow(self, one: _Outcome, refused: TenureError) -> None:
        lease = one.attempt.lease
        if isinstance(refused, CancelRequested):
            ask = hold.acknowledging(lease)
        else:
            ask = hold.failing(lease, refused.code, str(refused), retryable=False)
        self._waiting.append(_Outcome(one.attempt, ask, last=True))
        self._arrived.set()
