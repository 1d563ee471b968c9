"""
Write how attempts ended, many in one transaction.

Outcomes that arrive within a few milliseconds share a commit. One that the database does not take is written again with
the same identity until it is, or is refused: a finished handler's word is not thrown away because the database was
restarting, and when its lease ran out meanwhile the fence refuses it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from tenure.errors import CancelRequested, LeaseLost, TenureError, Unavailable, Uncertain
from tenure.handler import Attempt
from tenure.loops.supervisor import Pulse, within
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
        self._take(_Outcome(attempt, ask))

    def _take(self, one: _Outcome) -> None:
        self._waiting.append(one)
        self._empty.clear()
        self._arrived.set()

    async def drained(self) -> None:
        """Wait until everything taken so far is written."""
        await self._empty.wait()

    async def step(self) -> None:
        """Write one batch; the supervisor calls this again and again."""
        if not await within(self._arrived, self._pulse.period):
            return
        if len(self._waiting) < BATCH:
            await asyncio.sleep(GATHER)
        batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
        if not self._waiting:
            self._arrived.clear()
        try:
            await self._write(batch)
        finally:
            if not self._waiting:
                self._empty.set()

    async def _write(self, batch: list[_Outcome]) -> None:
        try:
            answers = await self._run(batch)
        except TenureError as refused:
            answers = [refused] * len(batch)
        except Exception as trouble:
            # One of them cannot be written, and nobody knows which: the others must not suffer.
            if len(batch) == 1:
                self._give_up(batch[0], trouble)
                raise
            await self._write_each(batch)
            return
        for one, answer in zip(batch, answers, strict=True):
            self._settle(one, answer)

    async def _write_each(self, batch: list[_Outcome]) -> None:
        troubles = []
        for one in batch:
            try:
                await self._write([one])
            except Exception as trouble:  # noqa: BLE001 - told below, after the others had their turn
                troubles.append(trouble)
        if troubles:
            raise troubles[0]

    async def _run(self, batch: list[_Outcome]) -> list[Job | TenureError]:
        # The same procedure value every time: if an earlier run did commit, it answers itself.
        procedure = hold.hold([one.ask for one in batch])
        while True:
            try:
                return await self._store.run(procedure)
            except Unavailable as gone:
                await asyncio.sleep(self._pulse.fail(gone))

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
            ask = hold.failing(lease, refused.code, str(refused) or refused.code, retryable=False)
        self._take(_Outcome(one.attempt, ask, last=True))

    def _give_up(self, one: _Outcome, trouble: Exception) -> None:
        """Write that the outcome cannot be written; where not even that can, let the lease run out."""
        job_id, name = one.attempt.job.id, type(trouble).__name__
        if one.last:
            logger.error("outcome cannot be written: job=%s error=%s; its lease will run out", job_id, name)
            self._written(one.attempt)
            return
        logger.error("outcome cannot be written: job=%s error=%s; it ends as failed", job_id, name)
        message = f"how the attempt ended could not be written ({name})"
        ask = hold.failing(one.attempt.lease, "OUTCOME_NOT_WRITTEN", message, retryable=False)
        self._take(_Outcome(one.attempt, ask, last=True))
