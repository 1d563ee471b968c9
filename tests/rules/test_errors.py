"""What an error says of what it was given: bounded, in ASCII, and nothing of a stranger's own words."""

from __future__ import annotations

import enum
import math
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tenure.errors import ECHO_MAX, Invalid, LeaseLost, NotFound, TenureError, echo
from tenure.procedures.inspect import list_jobs
from tenure.rules.creation import check_text, new_job
from tenure.rules.effect import check_name
from tenure.rules.event import appendable

SHOWN: list[tuple[Any, str]] = [
    ("mailer", "'mailer'"),
    ("", "''"),
    ("größe\n\0", r"'gr\xf6\xdfe\n\x00'"),
    ("\ud800", r"'\ud800'"),
    ("it's", '"it\'s"'),
    (None, "None"),
    (True, "True"),
    (-7, "-7"),
    (2.5, "2.5"),
    (math.nan, "nan"),
    (2**64 - 1, "18446744073709551615"),
    (2**64, "a number of 65 bits"),
    (10**5000, "a number of 16610 bits"),
    (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    (timedelta(seconds=90), "0:01:30"),
    (datetime(2026, 3, 1, tzinfo=UTC), "2026-03-01 00:00:00+00:00"),
    ({"secret": 1}, "a value of type dict"),
    (b"secret", "a value of type bytes"),
]


@pytest.mark.parametrize("value, text", SHOWN, ids=range(len(SHOWN)))
def test_plain_values_are_shown_and_others_are_named(value: Any, text: str) -> None:
    assert echo(value) == text


def test_an_enum_of_text_is_text() -> None:
    class Colour(enum.StrEnum):
        RED = "red"

    assert echo(Colour.RED) == "'red'"


def test_a_strangers_description_is_never_run() -> None:
    class Loud:
        def __repr__(self) -> str:
            raise AssertionError("secret")

        __str__ = __repr__

    class LoudText(str):
        __slots__ = ()

        def __repr__(self) -> str:
            raise AssertionError("secret")

        __str__ = __repr__

    assert echo(Loud()) == "a value of type Loud"
    assert echo(LoudText("mailer")) == "'mailer'"


@pytest.mark.parametrize("letter", ["a", "\0", "\U0001f600"])
def test_however_long_a_text_is_what_is_shown_is_bounded(letter: str) -> None:
    for length in (ECHO_MAX, ECHO_MAX + 1, 10_000):
        shown = echo(letter * length)
        assert shown.isascii()
        assert shown.isprintable()
        assert len(shown) <= 2 * ECHO_MAX
        assert (f"({length} characters)" in shown) == (shown != ascii(letter * length))
    assert echo("a" * ECHO_MAX) == repr("a" * ECHO_MAX)
    assert echo("a" * (ECHO_MAX + 1)).endswith("... (81 characters)")


LONG = "x" * 100_000
NEW: dict[str, Any] = {
    "job_id": UUID(int=1),
    "organization": "studio",
    "project": "sales",
    "idempotency_key": "k",
    "kind": "send",
    "payload": {},
}
CALLS: dict[str, Any] = {
    "a name that cannot be printed": lambda: check_text("actor", "\n" * 200),
    "an effect's name": lambda: check_name(LONG),
    "an effect's name with a colon": lambda: check_name(":" * 200),
    "an event": lambda: appendable(LONG),
    "a kind": lambda: new_job(**{**NEW, "kind": ":" * 200}),
    "a number": lambda: new_job(**{**NEW, "priority": 10**5000}),
    "a number that is a text": lambda: new_job(**{**NEW, "max_attempts": LONG}),
    "a choice": lambda: new_job(**{**NEW, "on_declined": LONG}),
    "a limit": lambda: next(list_jobs(limit=10**5000).script()),
    "tenants that differ": lambda: new_job(**{**NEW, "tenant": LONG}, bound_tenant="studio"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_a_caller_gave_never_swells_an_error(call: Any) -> None:
    with pytest.raises(TenureError) as told:
        call()
    assert len(str(told.value)) < 500
    assert str(told.value).isprintable()


def test_errors_survive_a_process() -> None:
    for error in (Invalid("a", code="B"), NotFound("b"), LeaseLost("c", reason="epoch")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.code, vars(again)) == (type(error), str(error), error.code, vars(error))
