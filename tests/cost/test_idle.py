"""A worker or a relay that has nothing to do says little to its database."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cost import baseline
from tests.cost.idle import IDLE, IDLE_RELAY, measure_idle, measure_idle_relay
from tests.cost.measure import least

LOOKS = 3


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
@pytest.mark.parametrize("piece,measure", [(IDLE, measure_idle), (IDLE_RELAY, measure_idle_relay)])
def test_what_is_idle_says_no_more_than_was_accepted(
    database: str,
    piece: str,
    measure: Callable[[str], dict[str, float]],
    make_postgres: Callable[[], str],
    make_sqlite: Callable[[], str],
    server_name: str,
) -> None:
    make, name = (make_sqlite, "sqlite") if database == "sqlite" else (make_postgres, server_name)
    allowed = baseline.pieces_for(name, baseline.load())[piece]
    figures = measure(make())
    # Whoever says nothing does not look at all.
    assert figures["transactions"] > 1
    for _ in range(LOOKS - 1):
        if baseline.complaints(piece, figures, allowed):
            figures = least(figures, measure(make()))
    found = baseline.complaints(piece, figures, allowed)
    assert not found, baseline.verdict(found, f"  measured: {figures}")


def test_a_worker_that_looks_twice_as_often_is_refused() -> None:
    allowed = baseline.pieces_for("sqlite", baseline.load())[IDLE]
    assert baseline.complaints(IDLE, allowed, allowed) == []
    assert len(baseline.complaints(IDLE, {name: 2 * value for name, value in allowed.items()}, allowed)) == len(allowed)
