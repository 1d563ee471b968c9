"""Whole numbers and durations: what is inside, what is not, and what the text says."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tenure.errors import Invalid
from tenure.rules.bounds import ZERO, check_span, check_whole

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


@pytest.mark.parametrize("value", [1, 7])
def test_a_whole_number_within_its_bounds_is_given_back(value: int) -> None:
    assert check_whole("limit", value, 7) == value
    assert check_whole("limit", value) == value


@pytest.mark.parametrize("value", [0, 8, True, 1.0, "1", None, 10**400])
def test_what_is_no_whole_number_within_bounds_is_refused(value: Any) -> None:
    with pytest.raises(Invalid, match=r"^limit must be a whole number from 1 to 7, not ") as refused:
        check_whole("limit", value, 7)
    assert refused.value.code == "BAD_ARGUMENT"


def test_a_whole_number_may_have_another_lower_bound_and_no_upper_one() -> None:
    assert check_whole("priority", -5, 5, least=-5) == -5
    assert check_whole("lanes", 10**9) == 10**9
    with pytest.raises(Invalid, match=r"^priority must be a whole number from -5 to 5, not -6$"):
        check_whole("priority", -6, 5, least=-5)
    with pytest.raises(Invalid, match=r"^lanes must be a whole number from 1, not 0$"):
        check_whole("lanes", 0)


@pytest.mark.parametrize(
    "value,bounds",
    [
        (timedelta.resolution, {}),
        (timedelta.max, {}),
        (ZERO, {"least": ZERO}),
        (SECOND, {"least": SECOND, "most": MINUTE}),
        (MINUTE, {"least": SECOND, "most": MINUTE}),
    ],
)
def test_a_duration_within_its_bounds_is_given_back(value: timedelta, bounds: dict[str, timedelta]) -> None:
    assert check_span("timeout", value, **bounds) == value


@pytest.mark.parametrize(
    "value,bounds,text",
    [
        (ZERO, {}, "timeout is a timedelta above zero, not 0:00:00"),
        (5, {}, "timeout is a timedelta above zero, not 5"),
        (None, {}, "timeout is a timedelta above zero, not None"),
        (-SECOND, {"least": ZERO}, "timeout is a timedelta of zero or more, not -1 day, 23:59:59"),
        (ZERO, {"least": SECOND}, "timeout is a timedelta of 0:00:01 or more, not 0:00:00"),
        (2 * MINUTE, {"most": MINUTE}, "timeout is a timedelta above zero, at most 0:01:00, not 0:02:00"),
    ],
)
def test_a_duration_outside_of_its_bounds_is_refused(value: Any, bounds: dict[str, timedelta], text: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_span("timeout", value, **bounds)
    assert (str(refused.value), refused.value.code) == (text, "BAD_DURATION")
