"""
When a failed attempt runs again: exponential backoff with a ceiling and jitter.

Base x 2^(attempt-1), at most one hour, jitter over the last quarter, never below one second. The jitter is drawn from
the job and the attempt, so that the rule stays pure and jobs that failed together do not return together.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from uuid import UUID

BACKOFF_MAX = timedelta(hours=1)
BACKOFF_MIN = timedelta(seconds=1)
# What a provider may ask for at most: a wrong date in a header must not put a job off for years.
RETRY_AFTER_MAX = timedelta(hours=24)
# 2**12 seconds is past the ceiling for any base of a second or more; a larger exponent only risks an overflow.
_EXPONENT_MAX = 12
_JITTER_SHARE = 0.25


def jitter(job_id: UUID, attempt: int) -> float:
    """Draw a number in [0, 1) that is the same for the same attempt of the same job."""
    drawn = hashlib.blake2b(job_id.bytes + attempt.to_bytes(8, "big"), digest_size=8).digest()
    return int.from_bytes(drawn, "big") / 2**64


def backoff(base: timedelta, attempt: int, drawn: float, *, retry_after: timedelta | None = None) -> timedelta:
    """
    How long to wait before the next attempt.

    Args:
        base: The job's backoff base.
        attempt: The attempt that failed, from 1.
        drawn: A number in [0, 1) from `jitter`.
        retry_after: What the provider asked for; the delay is never shorter than that, up to a day.
    """
    exponent = min(max(attempt - 1, 0), _EXPONENT_MAX)
    full: timedelta = min(min(base, BACKOFF_MAX) * (1 << exponent), BACKOFF_MAX)
    delay = full * (1 - _JITTER_SHARE + _JITTER_SHARE * drawn)
    return max(delay, BACKOFF_MIN, min(retry_after or timedelta(0), RETRY_AFTER_MAX))


def window_ended(created_at: datetime, retry_at: datetime, window: timedelta | None) -> bool:
    """Say whether the next attempt would start after the job's maximum recovery window."""
    return window is not None and retry_at > created_at + window
