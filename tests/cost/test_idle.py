"""A worker that has nothing to do says little to its database."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cost import baseline
from tests.cost.idle import IDLE, measure_idle
from tests.cost.measure import least

LOOKS = 3


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_an_idle_worker_says_no_more_than_was_accepted(
    database: str, make_postgres: Callable[[], str], make_sqlite: Callable[[], str], server_name: str
) -> None:
    make, name = (make_sqlite, "sqlite") if database == "sqlite" else (make_postgres, server_name)
    allowed = baseline.pieces_for(name, baseline.load())[IDLE]
    figures = measure_idle(make())
    # A worker that says nothing does not look for work at all.
    assert figures["transactions"] > 1
    for _ in range(LOOKS - 1):
        if baseline.complaints(IDLE, figures, allowed):
            figures = least(figures, measure_idle(make()))
    found = baseline.complaints(IDLE, figures, allowed)
    assert not found, baseline.verdict(found, f"  measured: {figures}")


def test_a_worker_that_looks_twice_as_often_is_refused() -> None:
    allowed = baseline.pieces_for("sqlite", baseline.load())[IDLE]
    assert baseline.complaints(IDLE, allowed, allowed) == []
    assert len(baseline.complaints(IDLE, {name: 2 * value for name, value in allowed.items()}, allowed)) == len(allowed)
