"""
What is written when an attempt ends: of a result, of whatever the handler raised, or of no answer at all.

A handler that was told to stop ends by that stop and not by what it raises on its way out, unless that is a verdict of
ours: an uncertain effect stays uncertain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from tenure.attempt import SHUTDOWN, TIMED_OUT, Attempt
from tenure.errors import CancelRequested, EffectFailed, LeaseLost, Stop, TenureError, Unavailable, Uncertain
from tenure.procedures import hold
from tenure.rules import moves
from tenure.rules.payload import clean_text

# In bytes. Of what an exception says this much is kept with the job, for the operator who looks at it.
ERROR_TEXT_MAX = 500


def returning(attempt: Attempt, result: Any) -> hold.Ask:
    """What is written when the handler returned."""
    return hold.completing(attempt.lease, result, tenant=attempt.claim.tenant)


def ending(attempt: Attempt, error: BaseException) -> hold.Ask | None:
    """
    What is written when the handler raised.

    Returns:
        None where this worker has nothing to say any more: the lease is lost.
    """
    error = _decisive(error)
    if attempt.stop is not None and _follows(attempt.stop, error):
        error = attempt.stop
    lease = attempt.lease
    match error:
        case Stop(code="LEASE_LOST"):
            return None
        case Stop(code="CANCELLED") | CancelRequested():
            return hold.acknowledging(lease)
        case Stop(code="TIMED_OUT"):
            return hold.timing_out(lease, TIMED_OUT, _text(error))
        case Stop():
            reason = _text(error)
            return hold.Ask(lease, lambda job, now: moves.interrupted(job, lease, SHUTDOWN, reason, now))
        case EffectFailed(retry_after=seconds):
            wait = None if seconds is None else timedelta(seconds=seconds)
            return hold.failing(lease, error.code, _text(error), retryable=True, retry_after=wait)
        case Uncertain():
            return hold.marking(moves.mark_indeterminate, lease, error.code, _text(error))
        case Unavailable() | LeaseLost():
            # LeaseLost without a stop: the handler used another lease than its own.
            return hold.failing(lease, error.code, _text(error), retryable=True)
        case TenureError():
            return hold.failing(lease, error.code, _text(error), retryable=False)
        case _:
            return hold.failing(lease, "HANDLER_ERROR", _text(error, named=True), retryable=True)


def abandoning(attempt: Attempt) -> hold.Ask:
    """What is written when the worker ends before a handler that was told to stop; see `moves.abandoned`."""
    lease, reason = attempt.lease, "the worker ended before the handler did"
    return hold.Ask(lease, lambda job, now: moves.abandoned(job, lease, SHUTDOWN, reason, now))


def _follows(stop: Stop, error: BaseException) -> bool:
    """Say whether a handler's exception only follows from its being stopped."""
    if isinstance(error, asyncio.CancelledError | Stop | CancelRequested | LeaseLost):
        return True
    # Cancellation is often turned into something else on its way out. A verdict of ours stays one.
    return stop.code in {TIMED_OUT, SHUTDOWN} and not isinstance(error, TenureError)


# Of several exceptions raised together, the first that fits the earliest of these speaks for the attempt.
_RANKS: tuple[Callable[[BaseException], bool], ...] = (
    lambda error: isinstance(error, Stop),
    lambda error: isinstance(error, Uncertain),
    lambda error: isinstance(error, CancelRequested),
    lambda error: isinstance(error, TenureError) and not isinstance(error, EffectFailed | LeaseLost | Unavailable),
    lambda error: isinstance(error, EffectFailed),
    lambda error: isinstance(error, TenureError),
    lambda _: True,
)


def _decisive(error: BaseException) -> BaseException:
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = list(_leaves(error))
    return next(leaf for fits in _RANKS for leaf in leaves if fits(leaf))


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for one in group.exceptions:
        if isinstance(one, BaseExceptionGroup):
            yield from _leaves(one)
        else:
            yield one


def _text(error: BaseException, *, named: bool = False) -> str:
    """The message to store; an exception of the user's may have none, or one that cannot be made."""
    kind = type(error).__name__
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - the attempt must end whatever its exception is like
        message = ""
    if not message.strip():
        return kind
    return clean_text(f"{kind}: {message}" if named else message, ERROR_TEXT_MAX)[0]
