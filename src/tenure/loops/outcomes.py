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
from typing import TypeVar

from tenure.attempt import Attempt
from tenure.errors import CancelRequested, LeaseLost, TenureError, Unavailable, Uncertain
from tenure.loops.supervisor import Pulse, within
from tenure.procedures import hold
from tenure.procedures.complete_batch import complete_batch
from tenure.rules.job import Job
from tenure.rules.status import LIVE, Status
from tenure.stores.contract import AsyncStore
from tenure.yields import Procedure

T = TypeVar("T")

logger = logging.getLogger("tenure.worker")

# Outcomes that share a commit: at most so many, and fewer than `ENOUGH` wait for others, in seconds.
BATCH_MAX = 500
ENOUGH = 100
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
        others: Whether there are handlers whose outcomes may follow within moments.
    """

    def __init__(
        self,
        store: AsyncStore,
        pulse: Pulse,
        written: Callable[[Attempt], None],
        others: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store = store
        self._pulse = pulse
        self._written = written
        self._others = others
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
        if not await within(self._arrived.wait(), self._pulse.period):
            return
        if len(self._waiting) < ENOUGH and self._others():
            await asyncio.sleep(GATHER)
        batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
        if not self._waiting:
            self._arrived.clear()
        try:
            await self._write(batch)
        finally:
            if not self._waiting:
                self._empty.set()

    async def _write(self, batch: list[_Outcome]) -> None:
        try:
            batch = await self._complete(batch)
            answers = await self._run(hold.hold([one.ask for one in batch])) if batch else []
        except Exception as trouble:
            # One of them cannot be written, and nobody knows which: the others must not suffer.
            if len(batch) > 1:
                await self._write_each(batch)
                return
            if not isinstance(trouble, TenureError):
                self._give_up(batch[0], trouble)
                raise
            answers = [trouble]
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

    async def _complete(self, batch: list[_Outcome]) -> list[_Outcome]:
        """Write what is plain to complete and give back the rest, which is to be decided one by one."""
        plain = [one.ask.plain for one in batch if one.ask.plain is not None]
        if not plain:
            return batch
        done = await self._run(complete_batch(plain))
        rest = []
        for one in batch:
            if one.ask.lease.job_id in done:
                self._written(one.attempt)
            else:
                rest.append(one)
        return rest

    async def _run(self, procedure: Procedure[T]) -> T:
        # The same procedure value every time: if an earlier run did commit, it answers itself.
        while True:
            try:
                return await self._store.run(procedure)
            except Unavailable as gone:
                await asyncio.sleep(self._pulse.fail(gone))

    def _settle(self, one: _Outcome, answer: Job | TenureError) -> None:
        job_id = one.attempt.job.id
        if isinstance(answer, Job):
            if _failed(one.attempt.job, answer):
                logger.warning("%s", _failure(answer))
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


def _failed(before: Job, after: Job) -> bool:
    """Say whether an attempt counts as failed; a cancellation and a job given back do not."""
    if after.status in {Status.COMPLETED, Status.CANCELLED} or after.error_code is None:
        return False
    return after.attempt_count == before.attempt_count and after.status not in LIVE


def _failure(after: Job) -> str:
    """Ids and codes, never what an exception says."""
    again = after.status is Status.QUEUED
    return (
        f"attempt failed: kind={after.kind} job={after.id} attempt={after.attempt_count}/{after.max_attempts} "
        f"code={after.error_code} next={f'retry at {after.run_at:%Y-%m-%dT%H:%M:%SZ}' if again else after.status}"
    )
