"""Requests become the same bytes everywhere; answers are read strictly and up to a bound."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from tenure.connectors.wire import ANSWER_BYTES_MAX, json_answer, json_bytes, json_value
from tenure.errors import Invalid
from tenure.rules.digest import canonical

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("aé\U0001f600"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abü", max_size=3), inner, max_size=4),
    max_leaves=20,
)


class Colour(StrEnum):
    RED = "red"


class Number(Enum):
    ONE = 1


@dataclass
class Item:
    name: str
    amount: Decimal = Decimal("1.50")


class Order(BaseModel):
    model_config = ConfigDict(extra="allow")
    id: UUID
    at: datetime
    items: list[Item] = Field(default_factory=list, alias="lines")


@dataclass
class Bag:
    things: Any = field(default_factory=list)


@given(JSON)
def test_plain_json_is_sent_in_its_canonical_bytes(value: Any) -> None:
    assert json_bytes(value) == canonical(value)
    assert json_bytes(json_value(value)) == json_bytes(value)


def test_models_dataclasses_and_values_become_plain_json() -> None:
    order = Order(id=UUID(int=1), at=datetime(2030, 1, 2, tzinfo=UTC), lines=[Item("pen")], extra=7)  # type: ignore[call-arg]
    plain = {
        "id": "00000000-0000-0000-0000-000000000001",
        "at": "2030-01-02T00:00:00Z",
        "lines": [{"name": "pen", "amount": "1.50"}],
        "extra": 7,
    }
    assert json_value(order) == plain
    assert json_value({"deep": [{"order": order, "item": Item("ink"), "on": date(2030, 1, 2)}]}) == {
        "deep": [{"order": plain, "item": {"name": "ink", "amount": "1.50"}, "on": "2030-01-02"}]
    }
    assert json_value([Colour.RED, Number.ONE, (1, 2), OrderedDict(a=1)]) == ["red", 1, [1, 2], {"a": 1}]


def test_the_same_request_gives_the_same_bytes_in_every_process() -> None:
    program = (
        "from tests.connectors.test_wire import Item; from tenure.connectors.wire import json_bytes; import sys;"
        "sys.stdout.buffer.write(json_bytes({'z': 1, 'a': Item('é'), 'm': 1.0}))"
    )
    seen = {_output(program, seed) for seed in ("1", "2")}
    assert seen == {'{"a":{"amount":"1.50","name":"é"},"m":1,"z":1}'.encode()}


def _output(program: str, hash_seed: str) -> bytes:
    command = [sys.executable, "-c", program]
    root = Path(__file__).parents[2]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, cwd=root, env={"PYTHONHASHSEED": hash_seed}
    ).stdout


class Tagged(BaseModel):
    tags: set[str]


@pytest.mark.parametrize(
    "value",
    [{"a"}, frozenset("a"), {"tags": {"a"}}, [({"a"},)], Bag({"a"}), Bag([{"deep": {"a"}}]), Tagged(tags={"a"})],
    ids=repr,
)
def test_a_set_is_refused_because_its_order_is_not_stable(value: Any) -> None:
    with pytest.raises(Invalid, match="sorted list"):
        json_bytes(value)


def test_a_list_in_place_of_the_set_is_taken() -> None:
    assert json_bytes(Bag([{"deep": ["a"]}])) == b'{"things":[{"deep":["a"]}]}'


class Loud:
    def __repr__(self) -> str:
        return "CANARY"

    __str__ = __repr__


def cyclic() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


@pytest.mark.parametrize(
    "value",
    [
        {"a": float("nan")},
        {"a": float("inf")},
        Bag(float("nan")),
        {"CANARY": "a\x00"},
        ["\ud800CANARY"],
        {1: "a"},
        {"a": Loud()},
        Bag(Loud()),
        Loud(),
        b"\xffCANARY",
        10**4001,
        cyclic(),
        Bag(cyclic()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_sent_is_refused_without_showing_it(value: Any) -> None:
    with pytest.raises(Invalid) as refused:
        json_bytes(value)
    # A key is a place in the value and may be named; what stands there may not.
    assert "CANARY" not in str(refused.value).replace("$.CANARY", "")
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    "body, value",
    [
        (b"{}", {}),
        (b'{"a":[1,2.5,null,true,"\xc3\xa9"]}', {"a": [1, 2.5, None, True, "é"]}),
        (b" 1 ", 1),
        (b'"x"', "x"),
    ],
)
def test_a_json_answer_is_read(body: bytes, value: Any) -> None:
    assert json_answer(body) == value


@pytest.mark.parametrize(
    "body, problem",
    [
        (b"", "not JSON"),
        (b"<html>CANARY</html>", "not JSON"),
        (b'{"CANARY":', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"a":NaN}', "NON_FINITE_NUMBER"),
        (b'{"a":1e999}', "NON_FINITE_NUMBER"),
        (b'{"a":1,"a":2}', "DUPLICATE_KEY"),
        (b'"\\u0000"', "NUL_CHARACTER"),
        (b"[" * 200 + b"]" * 200, "TOO_DEEP"),
        (b"[" * 30_000, "TOO_DEEP"),
        (b"1" * 5000, "NUMBER_TOO_LONG"),
        (b'"' + b"x" * ANSWER_BYTES_MAX + b'"', "PAYLOAD_TOO_LARGE"),
    ],
)
def test_an_answer_that_no_store_keeps_is_named_and_not_shown(body: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{problem}$"):
        json_answer(body)
