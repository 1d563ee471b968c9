"""Turns: a batch is shared out as one step after another would share it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import Invalid
from tenure.rules.fairness import WEIGHT_MAX, QueueSetting, Turn, after, check_setting, plan

LANES = ["", "a", "b", "c", "d", "e"]
WEIGHTS = st.dictionaries(st.sampled_from(LANES), st.integers(1, 5))
TURNS = st.none() | st.builds(Turn, st.sampled_from(LANES), st.integers(0, 4))


def ring_of(lanes: list[str], weights: dict[str, int], turn: Turn | None) -> list[tuple[str, int]]:
    """Give lanes as a look does: from the one whose turn it was, or the one behind it, round."""
    begin = 0 if turn is None else next((nth for nth, lane in enumerate(lanes) if lane >= turn.lane), 0)
    return [(lane, weights.get(lane, 1)) for lane in lanes[begin:] + lanes[:begin]]


@given(st.lists(st.sampled_from(LANES), min_size=1, unique=True), WEIGHTS, TURNS, st.integers(1, 60))
def test_a_plan_is_as_many_single_steps(
    lanes: list[str], weights: dict[str, int], turn: Turn | None, limit: int
) -> None:
    lanes = sorted(lanes)
    stepped: Counter[str] = Counter()
    order: list[str] = []
    stand = turn
    for _ in range(limit):
        lane, stand = after(lanes, weights, stand)
        stepped[lane] += 1
        order += [] if lane in order else [lane]
    shares, planned = plan(ring_of(lanes, weights, turn), turn, limit, whole=True)
    assert dict(shares) == dict(stepped)
    assert [lane for lane, _ in shares] == order
    assert planned == stand


@given(st.lists(st.sampled_from(LANES), min_size=1, unique=True), WEIGHTS, TURNS, st.integers(1, 60))
def test_where_others_come_before_the_first_nobody_has_a_second_turn(
    lanes: list[str], weights: dict[str, int], turn: Turn | None, limit: int
) -> None:
    ring = ring_of(sorted(lanes), weights, turn)
    shares, planned = plan(ring, turn, limit, whole=False)
    again = turn is not None and ring[0][0] == turn.lane
    most = dict(ring[1:]) | {ring[0][0]: turn.left if again and turn else ring[0][1]}
    assert all(0 < share <= most[lane] for lane, share in shares)
    given_ = sum(share for _, share in shares)
    assert given_ == min(limit, sum(most.values()))
    if shares:
        lane, last = shares[-1]
        assert planned == Turn(lane, most[lane] - last)
    else:
        assert planned == turn


def test_turns_over_a_long_time_are_as_the_weights_say() -> None:
    weights, stand, served = {"a": 3, "c": 2}, None, Counter[str]()
    for _ in range(600):
        lane, stand = after(["a", "b", "c"], weights, stand)
        served[lane] += 1
    assert served == {"a": 300, "b": 100, "c": 200}


def test_a_lane_that_is_gone_gives_up_the_rest_of_its_turn() -> None:
    assert after(["b", "c"], {"b": 2}, Turn("a", 2)) == ("b", Turn("b", 1))
    assert plan([("b", 2), ("c", 1)], Turn("a", 2), 2, whole=True) == ([("b", 2)], Turn("b", 0))


@pytest.mark.parametrize(
    "wrong,text",
    [
        ({"name": ""}, "queue must be non-empty text"),
        ({"name": 5}, "queue must be non-empty text"),
        ({"name": "a\nb"}, "cannot be printed"),
        ({"name": "x" * 201}, "the limit is 200"),
        ({"fair": 1}, "fair is True or False, not 1"),
        ({"fair": None}, "fair is True or False"),
        ({"weights": [("acme", 3)]}, "weights maps tenants to whole numbers"),
        ({"weights": {"": 3}}, "tenant must be non-empty text"),
        ({"weights": {"acme": 0}}, "the weight of 'acme' must be a whole number from 1 to 100, not 0"),
        ({"weights": {"acme": WEIGHT_MAX + 1}}, "from 1 to 100, not 101"),
        ({"weights": {"acme": True}}, "from 1 to 100"),
        ({"weights": {"acme": 1.5}}, "from 1 to 100"),
        ({"fair": False}, "queue 'mail' is to be plain: weights are for fair queues"),
        ({"weights": {f"t{nth}": 1 for nth in range(10_001)}}, "weights names 10001 tenants, the limit is 10000"),
    ],
)
def test_what_cannot_be_a_setting_is_refused(wrong: dict[str, Any], text: str) -> None:
    good: dict[str, Any] = {"name": "mail", "fair": True, "weights": {"north": 1, "acme": WEIGHT_MAX}}
    assert check_setting(**good) == QueueSetting("mail", True, {"acme": 100, "north": 1})
    with pytest.raises(Invalid, match=text) as refusal:
        check_setting(**{**good, **wrong})
    assert refusal.value.code == "BAD_ARGUMENT"
