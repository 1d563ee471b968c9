"""The receiving half of a webhook: everything that is not a fresh, signed, whole event is refused by its own code."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.connectors.cloudevent import EVENT_BYTES_MAX, EventWriter, read_event
from tenure.connectors.signature import Signer, new_secret
from tenure.connectors.webhook import verify_webhook
from tenure.errors import Invalid, Refused, TenureError
from tests.connectors.messages import message

SECRET = new_secret()
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SENT = message(subject="quote/17")
BODY = EventWriter("/shop", bytes_max=EVENT_BYTES_MAX, user="test", extra="webhook").write(SENT)


def signed(
    body: bytes = BODY, *, at: datetime = NOW, secret: str = SECRET, identity: str = str(SENT.id)
) -> dict[str, str]:
    return Signer(secret, user="test").headers(identity, body, at)


def code(headers: dict[str, str], body: bytes = BODY, **more: Any) -> str:
    """Give the code with which a request is refused, beside the control that is not."""
    assert verify_webhook(signed(), BODY, SECRET, now=NOW).message_id == SENT.id
    with pytest.raises(TenureError) as refused:
        verify_webhook(headers, body, SECRET, **{"now": NOW, **more})
    assert SECRET not in str(refused.value)
    assert len(str(refused.value)) < 400
    return refused.value.code


def test_a_good_request_is_an_arrival_whatever_the_case_of_its_headers() -> None:
    upper = {name.upper(): value for name, value in signed().items()}
    arrival = verify_webhook(upper, BODY, SECRET, now=NOW)
    assert (arrival.operation, arrival.data) == (SENT.operation, SENT.data)
    assert arrival.delivery_id == f"{SENT.id}.{int(NOW.timestamp())}"


def test_each_thing_that_is_signed_cannot_be_changed() -> None:
    good = signed()
    assert code(good, BODY.replace(b"acme", b"zeta")) == "SIGNATURE_WRONG"
    assert code(good, BODY + b" ") == "SIGNATURE_WRONG"
    assert code(good, b"\xff" + BODY) == "SIGNATURE_WRONG"
    assert code({**good, "webhook-id": str(message().id)}) == "SIGNATURE_WRONG"
    assert code({**good, "webhook-timestamp": str(int(NOW.timestamp()) + 1)}) == "SIGNATURE_WRONG"
    assert code(signed(secret=new_secret())) == "SIGNATURE_WRONG"


@pytest.mark.parametrize(
    "header, value, expected",
    [
        ("webhook-id", "", "SIGNATURE_MISSING"),
        ("webhook-timestamp", "", "SIGNATURE_MISSING"),
        ("webhook-signature", "", "SIGNATURE_MISSING"),
        ("webhook-id", "a\nb", "SIGNATURE_WRONG"),
        ("webhook-timestamp", "soon", "SIGNATURE_WRONG"),
        ("webhook-timestamp", "1e9", "SIGNATURE_WRONG"),
        ("webhook-timestamp", "-1", "SIGNATURE_WRONG"),
        ("webhook-timestamp", "99999999999", "SIGNATURE_WRONG"),
        ("webhook-timestamp", "٣", "SIGNATURE_WRONG"),
        ("webhook-signature", "v1", "SIGNATURE_WRONG"),
        ("webhook-signature", "v1,", "SIGNATURE_WRONG"),
        ("webhook-signature", "v1,!!!", "SIGNATURE_WRONG"),
        ("webhook-signature", "v1,é", "SIGNATURE_WRONG"),
        ("webhook-signature", "v1a,AAAA v2", "SIGNATURE_WRONG"),
        ("webhook-signature", "v1,AAAA " * 10_000, "SIGNATURE_WRONG"),
    ],
)
def test_headers_that_are_none(header: str, value: str, expected: str) -> None:
    assert code({**signed(), header: value}) == expected


def test_missing_headers_are_missing() -> None:
    for name in signed():
        assert code({key: value for key, value in signed().items() if key != name}) == "SIGNATURE_MISSING"
    assert code({}) == "SIGNATURE_MISSING"


@pytest.mark.parametrize("seconds", [301, -301, 86400, -86400])
def test_a_clock_that_is_too_far_off(seconds: int) -> None:
    other = signed(at=NOW + timedelta(seconds=seconds))
    assert code(other) == "CLOCK_SKEW"
    # Of a forged request the time says nothing.
    assert code({**other, "webhook-signature": "v1,AAAA"}) == "SIGNATURE_WRONG"
    assert verify_webhook(other, BODY, SECRET, now=NOW, tolerance=timedelta(days=2)).tenant == "acme"


@pytest.mark.parametrize("seconds", [300, -300, 0])
def test_a_clock_that_is_near_enough(seconds: int) -> None:
    assert verify_webhook(signed(at=NOW + timedelta(seconds=seconds)), BODY, SECRET, now=NOW).tenant == "acme"


def test_a_body_that_is_too_large_is_not_even_hashed() -> None:
    assert code({}, b"x" * 2001, bytes_max=2000) == "EVENT_TOO_LARGE"
    assert code({}, b"x" * (EVENT_BYTES_MAX + 1)) == "EVENT_TOO_LARGE"


def changed(**fields: Any) -> bytes:
    event = json.loads(BODY)
    for name, value in fields.items():
        if value is ...:
            del event[name]
        else:
            event[name] = value
    return json.dumps(event).encode()


MALFORMED: list[bytes] = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b"{",
    BODY[:-1],
    BODY.replace(b'"data"', b'"tenant": "zeta", "data"'),
    b'{"a":' * 200_000,
    changed(data=float("nan")),
    *[changed(**{name: ...}) for name in ("specversion", "id", "source", "type", "time", "tenant", "operation")],
    *[changed(**{name: ...}) for name in ("version", "epoch", "digest", "data")],
    *[changed(specversion=bad) for bad in ("0.3", 1.0, None)],
    *[changed(id=bad) for bad in ("", "17", 17, str(SENT.id).upper(), SENT.id.hex)],
    *[changed(tenant=bad) for bad in ("", " ", "a\n", "x" * 201, 7, None, ["acme"])],
    *[changed(operation=bad) for bad in ("", "x" * 201, 7)],
    *[changed(type=bad) for bad in ("", None, 1)],
    *[changed(version=bad) for bad in (0, -1, "1", 1.0, True, 2**31)],
    *[changed(epoch=bad) for bad in (-1, "1", False)],
    *[changed(digest=bad) for bad in ("", "v1:", "v1:" + "A" * 64, "a" * 64, 1)],
    *[changed(subject=bad) for bad in ("", 7, "a\0")],
    *[changed(time=bad) for bad in ("", "now", "2026-01-02T03:04:05", 7)],
    *[changed(data=bad) for bad in (None, [], "text", 7)],
    changed(datacontenttype="text/plain"),
    changed(data_base64="e30="),
]


@pytest.mark.parametrize("number", range(len(MALFORMED)))
def test_a_signed_body_that_is_no_event(number: int) -> None:
    body = MALFORMED[number]
    assert code(signed(body), body) == "EVENT_MALFORMED"


def test_an_event_under_another_id_than_its_own() -> None:
    assert code(signed(identity=str(message().id))) == "EVENT_MALFORMED"


def test_what_is_not_known_is_left_out_and_a_missing_subject_is_none() -> None:
    body = changed(subject=..., traceparent="00-1", dataschema="/quote")
    arrival = verify_webhook(signed(body), body, SECRET, now=NOW)
    assert arrival.subject is None


def test_wrong_calls_are_told_apart_from_wrong_requests() -> None:
    for bad in ({"body": BODY.decode()}, {"secret": ""}, {"secret": "x"}, {"tolerance": timedelta(0)}):
        arguments: dict[str, Any] = {"headers": signed(), "body": BODY, "secret": SECRET, "now": NOW, **bad}
        with pytest.raises(Invalid) as refused:
            verify_webhook(**arguments)
        assert refused.value.code in {"BAD_ARGUMENT", "BAD_DURATION", "SECRET_REQUIRED", "BAD_SECRET"}


@given(st.binary(max_size=300), st.dictionaries(st.sampled_from(sorted(signed())), st.text(max_size=60)))
def test_whatever_strangers_send_is_refused_and_never_raises_otherwise(body: bytes, headers: dict[str, str]) -> None:
    with pytest.raises((Refused, Invalid)):
        verify_webhook({**signed(), **headers}, body, SECRET, now=NOW)


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=20)
JSON = st.recursive(VALUES, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=9), inner), max_leaves=8)


@given(JSON)
def test_whatever_is_signed_is_an_event_or_is_refused(value: Any) -> None:
    body = json.dumps(value).encode()
    with pytest.raises(Invalid):
        read_event(body, delivery_id="d")
