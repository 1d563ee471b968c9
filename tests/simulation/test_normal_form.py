"""
The explorer merges states that no rule can tell apart: whole records must agree with it on every step of many paths.

What is compared is what the rules decide (the refusal, and the record after a commit in its normal form). If something
that a rule reads were missing from the normal form, the two would part sooner or later.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any, TypeAlias
from uuid import UUID

import pytest

from tenure.lab import configurations
from tenure.lab.configuration import Order
from tenure.lab.machine import Edge
from tenure.lab.record import NOW, TICK, Forms
from tenure.lab.search import Search, Space
from tenure.rules.lease import Lease
from tests.simulation.unreduced import Unreduced

Followed: TypeAlias = tuple[int, Edge | None, int]

# A restored database has another past, which a path of whole records does not have.
FOLLOWED = sorted(set(configurations()) - {"tenants", "restore", "recovered", "recovered-keys"})
KNOWN, PATHS = 12_000, 150


def explored(name: str) -> Search:
    search = Search(Space(configurations()[name], Order()), frozenset(), limit=KNOWN)
    assert search.run() is None
    return search


def agrees(space: Space, whole: Unreduced, before: int, step: Followed, path: list[str], seen: Counter[str]) -> None:
    """Take one step with the whole record, and compare."""
    after, edge, slot = step
    path = [*path, "a tick passes" if edge is None else edge.action]
    refused = whole.follow(before, slot, edge, after)
    if edge is not None and edge.op is not None:
        decided = space.machine.decide(space.unpack(before)[0], *edge.op)
        assert refused == decided.refused, path
        seen[edge.op[0]] += 1
    assert whole.form() == space.machine.books.values[space.unpack(after)[0]], path


@pytest.mark.parametrize("name", FOLLOWED)
def test_whole_records_and_the_normal_form_agree_on_every_step(name: str) -> None:
    search = explored(name)
    space = search.space
    chance = random.Random(name)
    seen: Counter[str] = Counter()
    compared = 0
    for state in chance.sample(search.states, PATHS):
        whole = Unreduced(space)
        told: list[str] = []
        for before, after in pairwise(search.path(state)):
            step = next(step for step in space.steps(before)[0] if step[0] == after)
            agrees(space, whole, before, step, told, seen)
            told.append("a tick passes" if step[1] is None else step[1].action)
        # At its end, every step that could be next.
        for step in space.steps(state)[0]:
            agrees(space, whole.copy(), state, step, told, seen)
            compared += 1
        seen["taken again"] += whole.job.generation > 1
    print(name, compared, dict(seen))
    named = {"mark"} if space.configuration.bare else {"begin", "finish"}
    assert {"claim", "complete", "fail", "recover", "sweep", *named} <= set(seen)
    assert seen["taken again"] > 10
    assert compared > 3 * PATHS


def forms() -> Forms:
    return Forms(configurations()["memory"])


@pytest.mark.parametrize(
    "change",
    [
        {"error_code": "E", "error_message": "because", "result": {"a": 1}, "escalation_reason": None},
        {"generation": 7},
        {"created_at": NOW - timedelta(days=9), "scheduled_at": NOW - timedelta(days=9), "run_at": NOW - TICK},
        {"attempt_count": 1, "max_attempts": 3},
    ],
)
def test_what_no_rule_tells_apart_is_one_state(change: dict[str, Any]) -> None:
    first = forms().template
    assert forms().form(replace(first, **change), (), NOW) == forms().form(first, (), NOW)


@pytest.mark.parametrize(
    "change",
    [
        {"run_at": NOW + TICK},
        {"attempt_count": 1},
        {"cancel_requested_at": NOW},
        {"escalated_at": NOW},
        {"lease": Lease(UUID(int=1), "A", UUID(int=2), 0, NOW + TICK, TICK)},
        {"epoch": 2},
    ],
)
def test_what_a_rule_reads_makes_another_state(change: dict[str, Any]) -> None:
    first = forms().template
    assert forms().form(replace(first, **change), (), NOW) != forms().form(first, (), NOW)


def test_a_record_made_from_a_normal_form_has_that_normal_form() -> None:
    machine = explored("doubt").space.machine
    assert len(machine.jobs) > 300
    for book, job in zip(machine.books.values, machine.jobs, strict=True):
        assert machine.forms.form(job, machine.forms.stored(book), NOW) == book
