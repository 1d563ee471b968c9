"""Backoff by rule: doubling, capped, jittered from the job itself, patient where a provider asks for it."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.rules.retry import backoff, jitter, window_ended
from tests.rules.records import NOW

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    "attempt,full",
    [(1, 30), (2, 60), (3, 120), (4, 240), (5, 480), (6, 960), (7, 1920), (8, 3600), (9, 3600), (50, 3600)],
)
def test_the_delay_doubles_up_to_an_hour(attempt: int, full: int) -> None:
    assert backoff(timedelta(seconds=30), attempt, 0.0) == timedelta(seconds=full * 0.75)
    assert backoff(timedelta(seconds=30), attempt, 1.0) == timedelta(seconds=full)


@given(
    base=st.timedeltas(timedelta(microseconds=1), timedelta(days=400)),
    attempt=st.integers(-5, 10**9),
    drawn=st.floats(0, 1, exclude_max=True),
    asked=st.none() | st.timedeltas(timedelta(0), timedelta(days=9)),
)
def test_a_delay_is_never_too_short_nor_too_long(
    base: timedelta, attempt: int, drawn: float, asked: timedelta | None
) -> None:
    delay = backoff(base, attempt, drawn, retry_after=asked)
    assert delay >= SECOND
    # However long a provider asks us to wait, a day is enough.
    patience = min(asked or timedelta(0), timedelta(days=1))
    assert delay >= patience
    assert delay <= max(HOUR, asked or timedelta(0))


@given(st.uuids(), st.integers(1, 10_000))
def test_the_draw_is_the_jobs_own(job_id: UUID, attempt: int) -> None:
    drawn = jitter(job_id, attempt)
    assert 0 <= drawn < 1
    assert jitter(job_id, attempt) == drawn
    assert jitter(job_id, attempt + 1) != drawn


def test_jobs_that_failed_together_come_back_apart() -> None:
    """A thousand jobs in the last quarter of 80 seconds: no second has more than a tenth of them."""
    delays = [backoff(timedelta(seconds=80), 1, jitter(uuid4(), 1)) for _ in range(1000)]
    seconds = Counter(delay // SECOND for delay in delays)
    assert set(seconds) <= set(range(60, 81))
    assert max(seconds.values()) <= 100


@pytest.mark.parametrize(
    "window,retry_in,ended",
    [
        (None, timedelta(days=999), False),
        (timedelta(minutes=5), timedelta(minutes=5), False),
        (timedelta(minutes=5), timedelta(minutes=5, microseconds=1), True),
        (timedelta(0), timedelta(0), False),
    ],
)
def test_the_recovery_window(window: timedelta | None, retry_in: timedelta, ended: bool) -> None:
    assert window_ended(NOW, NOW + retry_in, window) == ended
