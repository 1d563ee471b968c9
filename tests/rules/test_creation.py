"""What a job must have to be created, checked without any store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import Invalid
from tenure.rules.creation import SCHEDULED_MAX, TEXT_MAX, NewJob, check_instant, check_text, new_job
from tenure.rules.digest import payload_digest
from tenure.rules.envelope import ExecutionInput
from tenure.rules.payload import decode
from tests.rules.records import JOB_ID
from tests.rules.values import json_values

FIELDS: dict[str, Any] = {
    "organization": "acme",
    "project": "p1",
    "idempotency_key": "k-1",
    "kind": "send_quote",
    "payload": {"quote": 17},
}


def make(**more: Any) -> NewJob:
    return new_job(job_id=JOB_ID, **{**FIELDS, **more})


@pytest.mark.parametrize("name", FIELDS)
def test_every_required_field_is_required(name: str) -> None:
    with pytest.raises(TypeError):
        new_job(job_id=JOB_ID, **{key: value for key, value in FIELDS.items() if key != name})
    with pytest.raises(Invalid):
        make(**{name: None})
    assert make().idempotency_key == "k-1"


@given(st.text(max_size=300))
def test_a_text_is_printable_bounded_and_not_blank(text: str) -> None:
    good = bool(text.strip()) and len(text) <= TEXT_MAX and text.isprintable()
    if good:
        assert check_text("name", text) == text
    else:
        with pytest.raises(Invalid) as caught:
            check_text("name", text)
        assert "name" in str(caught.value)
        # The refusal itself can be printed and encoded, whatever was refused.
        assert str(caught.value).encode()


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))])))
def test_an_instant_is_the_same_instant_in_utc(at: datetime) -> None:
    try:
        kept = check_instant("scheduled_at", at)
    except Invalid:
        assert at >= SCHEDULED_MAX
        return
    assert kept == at
    assert kept.utcoffset() == timedelta(0)


@pytest.mark.parametrize("bad", [datetime(2026, 1, 1), "2026-01-01", 1767225600, None, SCHEDULED_MAX])  # noqa: DTZ001 - naive on purpose
def test_what_is_no_instant_is_refused(bad: Any) -> None:
    with pytest.raises(Invalid):
        check_instant("scheduled_at", bad)


@given(value=json_values)
def test_the_payload_is_written_once_as_it_was_sent(value: Any) -> None:
    job = make(payload={"v": value})
    assert decode(job.payload_text) == job.payload == {"v": value}
    assert job.payload_digest == payload_digest("send_quote", {"v": value})


def test_the_envelope_stands_beside_the_payload_and_not_in_its_digest() -> None:
    plain, bound = make(), make(execution=ExecutionInput(tenant="acme", actor="user:42", trace="t-1"))
    assert bound.payload_digest == plain.payload_digest
    assert bound.payload["execution"]["job"] == str(JOB_ID)
    assert decode(bound.payload_text) == bound.payload
    assert "execution" not in plain.payload
    # What the caller holds is left as it was.
    assert FIELDS["payload"] == {"quote": 17}


@pytest.mark.parametrize("key", ["execution", "governance"])
@pytest.mark.parametrize("value", [None, {}, "x", {"tenant": "acme"}])
def test_reserved_keys_are_for_typed_inputs(key: str, value: Any) -> None:
    with pytest.raises(Invalid) as caught:
        make(payload={key: value})
    assert caught.value.code == "RESERVED_KEY"


@pytest.mark.parametrize(
    "bound,argument,said,tenant",
    [
        (None, None, None, "acme"),
        ("north", None, None, "north"),
        (None, "north", None, "north"),
        (None, None, "north", "north"),
        ("north", "north", "north", "north"),
        ("north", "south", None, None),
        ("north", None, "south", None),
        (None, "north", "south", None),
        (None, "", None, None),
    ],
)
def test_whoever_names_a_tenant_names_the_same(
    bound: str | None, argument: str | None, said: str | None, tenant: str | None
) -> None:
    def made() -> NewJob:
        execution = None if said is None else ExecutionInput(tenant=said)
        return make(bound_tenant=bound, tenant=argument, execution=execution)

    if tenant is None:
        with pytest.raises(Invalid):
            made()
    else:
        assert made().tenant == tenant


@pytest.mark.parametrize(
    "name,bad",
    [
        ("kind", "a:b"),
        ("kind", "a#b"),
        ("priority", True),
        ("priority", 40_000),
        ("max_attempts", 0),
        ("max_attempts", 1.0),
        ("kind_version", 0),
        ("on_reconciled", "x"),
        ("on_declined", None),
        ("backoff_base", timedelta(0)),
        ("backoff_base", 30),
        ("lease_duration", timedelta(milliseconds=1)),
        ("lease_duration", 60),
        ("payload", [1]),
        ("payload", {"n": float("inf")}),
    ],
)
def test_values_outside_their_bounds_are_named(name: str, bad: Any) -> None:
    with pytest.raises(Invalid) as caught:
        make(**{name: bad})
    assert caught.value.code
    assert make().kind == "send_quote"


def test_an_id_is_given_and_kept() -> None:
    assert make().job_id == JOB_ID
    assert isinstance(make().job_id, UUID)
