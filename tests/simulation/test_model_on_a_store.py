"""
The model's transactions are the package's: paths of the explorer, taken by the procedures on a real database.

The explorer may not import procedures; it restates in which order they ask the rules. Here both take the same steps,
and what the database holds has to have the normal form that the explorer has come to, refusal for refusal.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tenure.lab import configurations
from tenure.lab.configuration import Order
from tenure.lab.record import NOW
from tenure.lab.search import Search, Space
from tenure.stores import open_store
from tenure.stores.contract import Store
from tenure.testing.clock import ManualClock
from tests.simulation.stored import Stored

# Rotations, freezes and restores are no steps of procedures yet.
TAKEN = sorted(set(configurations()) - {"authority", "restore", "recovered", "recovered-keys", "tenants"})
KNOWN, PATHS = 12_000, 60


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def store(clock: ManualClock) -> Iterator[Store]:
    with open_store("sqlite:///:memory:", clock=clock) as opened:
        opened.migrate(test_clock=True)
        yield opened


@pytest.mark.parametrize("name", TAKEN)
def test_procedures_on_a_database_come_to_the_state_that_the_model_has(
    name: str, store: Store, clock: ManualClock
) -> None:
    search = Search(Space(configurations()[name], Order()), frozenset(), limit=KNOWN)
    assert search.run() is None
    space = search.space
    chance = random.Random(name)
    seen: Counter[str] = Counter()
    for state in chance.sample(search.states, PATHS):
        job = Stored(space, store, clock)
        told: list[str] = []
        for before, after in pairwise(search.path(state)):
            _, edge, slot = next(step for step in space.steps(before)[0] if step[0] == after)
            told.append("a tick passes" if edge is None else edge.action)
            said = job.follow(before, slot, edge, after)
            if edge is not None and edge.op is not None:
                decided = space.machine.decide(space.unpack(before)[0], *edge.op)
                assert (said or "").partition(":")[0] == (decided.refused or decided.late or "").partition(":")[0], told
                seen[edge.op[0]] += 1
            assert job.form() == space.machine.books.values[space.unpack(after)[0]], told
    print(name, dict(seen))
    assert {"claim", "recover", "sweep"} <= set(seen)
    assert sum(seen.values()) > 4 * PATHS
