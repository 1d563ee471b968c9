"""What each status means, what is kept of an answer, and what the request looks like."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from tenure.connectors.http import (
    DECLINED_STATUSES,
    RETRY_AFTER_MAX,
    HttpProvider,
    retry_after,
    wire_key,
)
from tenure.connectors.provider import IdempotencyKey, terms
from tenure.connectors.wire import ANSWER_BYTES_MAX
from tenure.errors import Invalid
from tenure.rules.outcome import (
    Absent,
    Accepted,
    Declined,
    Evidence,
    FailedBeforeDispatch,
    NoAnswer,
    Outcome,
    Rejected,
    Succeeded,
    Unknown,
)
from tests.connectors.servers import RawServer, answering, read_request, response

KEY = "send_quote:0198:send"


@dataclass
class Answering:
    """A server that gives whatever answer is set."""

    server: RawServer
    answer: bytes = b""

    def provider(self, **settings: Any) -> HttpProvider:
        settings.setdefault("trust_env", False)
        settings.setdefault("lookup_url", self.server.url + "/{operation_key}")
        return HttpProvider("shop", self.server.url, **settings)

    def send(self, answer: bytes, request: Any = None, key: str = KEY, **settings: Any) -> Outcome:
        self.answer = answer
        return asyncio.run(self.provider(**settings).send({} if request is None else request, key))

    def look_up(self, answer: bytes, key: str = KEY, **settings: Any) -> Evidence:
        self.answer = answer
        return asyncio.run(self.provider(**settings).lookup(key))


@pytest.fixture
def shop() -> Iterator[Answering]:
    def behave(connection: Any, server: RawServer) -> None:
        read_request(connection, server)
        connection.sendall(made.answer)

    with RawServer(behave) as server:
        made = Answering(server)
        yield made


def expected(status: int) -> Outcome:
    """The table of the contract, written once more in another way than the code writes it."""
    if status // 100 == 2:
        return Succeeded({"body": {}})
    if status == 429:
        return FailedBeforeDispatch("HTTP 429")
    if status in {401, 403}:
        return Rejected(f"HTTP {status}", category="authentication")
    if status // 100 == 4 and status not in {408, 409, 425, 460, 499}:
        return Rejected(f"HTTP {status}")
    return Unknown(f"HTTP {status}")


def test_every_status_has_its_outcome(shop: Answering) -> None:
    # 204 and 304 carry no body by definition; they have their own tests below.
    statuses = [status for status in range(200, 600) if status not in {204, 304}]
    wrong = {status: got for status in statuses if (got := shop.send(response(status))) != expected(status)}
    assert wrong == {}
    assert shop.server.connections == len(statuses)


@pytest.mark.parametrize(
    "status, outcome",
    [
        (204, Succeeded({"status": 204})),
        (304, Unknown("HTTP 304")),
        (999, Unknown("HTTP 999")),
    ],
)
def test_statuses_without_a_body_or_a_meaning(shop: Answering, status: int, outcome: Outcome) -> None:
    assert shop.send(f"HTTP/1.1 {status} Text\r\nConnection: close\r\n\r\n".encode()) == outcome


def test_an_early_hint_is_not_the_answer(shop: Answering) -> None:
    hint = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    assert shop.send(hint + response(402)) == Rejected("HTTP 402")


def test_a_redirect_is_not_followed(shop: Answering) -> None:
    with RawServer(answering(response(200))) as other:
        for status in (301, 302, 303, 307, 308):
            assert shop.send(response(status, b"", f"Location: {other.url}")) == Unknown(f"HTTP {status}")
            assert shop.look_up(response(status, b"", f"Location: {other.url}")) == NoAnswer(f"HTTP {status}")
        assert other.connections == 0
        own = HttpProvider("shop", other.url, trust_env=False)
        assert asyncio.run(own.send({}, KEY)) == Succeeded({"body": {}})


def test_nothing_is_tried_twice(shop: Answering) -> None:
    for status in (429, 500, 502, 503, 504, 408, 401):
        before = shop.server.connections
        shop.send(response(status, b"{}", "Retry-After: 0"))
        assert shop.server.connections == before + 1


# --- Retry-After ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers, wait",
    [
        ({"Retry-After": "7"}, timedelta(seconds=7)),
        ({"Retry-After": "0"}, timedelta(0)),
        ({"Retry-After": " 120 "}, timedelta(minutes=2)),
        ({"Retry-After": "99999999999"}, RETRY_AFTER_MAX),
        (
            {"Retry-After": "Wed, 01 Jan 2031 00:02:00 GMT", "Date": "Wed, 01 Jan 2031 00:00:00 GMT"},
            timedelta(minutes=2),
        ),
        ({"Retry-After": "Wed, 01 Jan 2031 00:00:00 GMT", "Date": "Wed, 01 Jan 2031 00:02:00 GMT"}, timedelta(0)),
        ({"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT"}, timedelta(0)),
        ({"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}, RETRY_AFTER_MAX),
        ({}, None),
        ({"Retry-After": ""}, None),
        ({"Retry-After": "-5"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "1e9"}, None),
        ({"Retry-After": "9" * 400}, None),
        ({"Retry-After": "Wed, 99 Foo 2031 00:00:00 GMT"}, None),
    ],
)
def test_retry_after_is_read_in_both_forms(shop: Answering, headers: dict[str, str], wait: timedelta | None) -> None:
    lines = [f"{name}: {value}" for name, value in headers.items()]
    assert shop.send(response(429, b"{}", *lines)) == FailedBeforeDispatch("HTTP 429", retry_after=wait)


def test_a_retry_date_without_a_date_header_is_measured_from_now() -> None:
    wait = retry_after(httpx.Response(429, headers={"Retry-After": "Fri, 31 Dec 9999 00:00:00"}))
    assert wait == RETRY_AFTER_MAX


def test_retry_after_counts_for_429_alone(shop: Answering) -> None:
    assert shop.send(response(503, b"{}", "Retry-After: 7")) == Unknown("HTTP 503")


# --- the receipt ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body, receipt",
    [
        (b'{"id": 7}', {"body": {"id": 7}}),
        (b"[1, 2]", {"body": [1, 2]}),
        (b"null", {"body": None}),
        (b"", {"status": 200}),
        (b"<html>ok</html>", {"body_left_out": "not JSON"}),
        (b'{"a": NaN}', {"body_left_out": "NON_FINITE_NUMBER"}),
        (b'"' + b"x" * (ANSWER_BYTES_MAX - 2) + b'"', {"body": "x" * (ANSWER_BYTES_MAX - 2)}),
        (b'"' + b"x" * (ANSWER_BYTES_MAX - 1) + b'"', {"body_left_out": "too long"}),
        (b'"' + b"x" * 5_000_000 + b'"', {"body_left_out": "too long"}),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_receipt_is_the_status_and_bounded_json(shop: Answering, body: bytes, receipt: Any) -> None:
    assert shop.send(response(200, body, "X-Secret: CANARY")) == Succeeded(receipt)


def test_a_compressed_answer_is_not_unpacked(shop: Answering) -> None:
    outcome = shop.send(response(200, b"\x1f\x8b" + b"x" * 50, "Content-Encoding: gzip"))
    assert outcome == Succeeded({"body_left_out": "compressed"})
    assert b"accept-encoding: identity" in shop.server.received.lower()


def test_a_long_refusal_is_still_a_refusal(shop: Answering) -> None:
    assert shop.send(response(402, b"x" * 1_000_000)) == Rejected("HTTP 402")


def test_a_chunked_answer_is_read_to_its_end(shop: Answering) -> None:
    chunked = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{"id\r\n4\r\n":7}\r\n0\r\n\r\n'
    assert shop.send(chunked) == Succeeded({"body": {"id": 7}})


def test_the_receipt_may_be_made_by_the_caller_for_both_ways(shop: Answering) -> None:
    def receipt(answer: httpx.Response) -> Any:
        return {"id": answer.json()["id"]}

    made = response(201, b'{"id": 7, "state": "new"}')
    found = response(200, b'{"id": 7, "state": "delivered", "seen": 3}')
    assert shop.send(made, receipt=receipt) == Succeeded({"id": 7})
    assert shop.look_up(found, receipt=receipt) == Accepted({"id": 7})
    assert shop.send(response(201), receipt=receipt) == Unknown("HTTP 201, and reading the answer raised KeyError")
    assert shop.look_up(response(200), receipt=receipt) == NoAnswer("HTTP 200, and reading the answer raised KeyError")


# --- the caller's own classification ----------------------------------------------------------------------------------


def test_classify_overrides_the_table(shop: Answering) -> None:
    def classify(answer: httpx.Response) -> Outcome | None:
        if answer.status_code == 409 and answer.json()["code"] == "in_use":
            return Rejected("in use")
        return FailedBeforeDispatch("closed") if answer.status_code == 503 else None

    assert shop.send(response(409, b'{"code": "in_use"}'), classify=classify) == Rejected("in use")
    assert shop.send(response(503), classify=classify) == FailedBeforeDispatch("closed")
    assert shop.send(response(500), classify=classify) == Unknown("HTTP 500")
    assert shop.send(response(200), classify=classify) == Succeeded({"body": {}})


@pytest.mark.parametrize("status", [200, 402, 429, 500])
def test_a_classify_that_fails_or_answers_nonsense_is_unknown(shop: Answering, status: int) -> None:
    def broken(answer: httpx.Response) -> Outcome:
        raise ValueError(answer.text)

    def nonsense(answer: httpx.Response) -> Any:
        return "CANARY"

    body = b'{"error": "CANARY"}'
    assert shop.send(response(status, body), classify=broken) == Unknown(
        f"HTTP {status}, and reading the answer raised ValueError"
    )
    assert shop.send(response(status, body), classify=nonsense) == Unknown(
        f"HTTP {status}, and classify returned str, not an outcome"
    )
    assert shop.look_up(response(status, body), classify_lookup=broken) == NoAnswer(
        f"HTTP {status}, and reading the answer raised ValueError"
    )
    assert shop.look_up(response(status, body), classify_lookup=nonsense) == NoAnswer(
        f"HTTP {status}, and classify_lookup returned str, not evidence"
    )


def test_classify_sees_the_answer_but_not_our_credentials(shop: Answering) -> None:
    seen: list[httpx.Response] = []

    def classify(answer: httpx.Response) -> None:
        seen.append(answer)
        answer.raise_for_status()

    shop.send(
        response(200, b'{"id": 7}', "X-Trace: t-1"), headers={"Authorization": "Bearer CANARY"}, classify=classify
    )
    assert seen[0].json() == {"id": 7}
    assert seen[0].headers["X-Trace"] == "t-1"
    assert "authorization" not in seen[0].request.headers
    assert b"Bearer CANARY" in shop.server.received


# --- the look-up ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "status, evidence",
    [
        (200, Accepted({"body": {"id": 7}})),
        (404, Absent()),
        (409, Declined("HTTP 409")),
        (410, Declined("HTTP 410")),
        (422, Declined("HTTP 422")),
        (201, NoAnswer("HTTP 201")),
        (202, NoAnswer("HTTP 202")),
        (302, NoAnswer("HTTP 302")),
        (400, NoAnswer("HTTP 400")),
        (401, NoAnswer("HTTP 401")),
        (403, NoAnswer("HTTP 403")),
        (429, NoAnswer("HTTP 429")),
        (500, NoAnswer("HTTP 500")),
        (503, NoAnswer("HTTP 503")),
    ],
)
def test_every_answer_of_the_lookup_has_its_evidence(shop: Answering, status: int, evidence: Evidence) -> None:
    assert shop.look_up(response(status, b'{"id": 7}')) == evidence


def test_only_json_is_an_acceptance(shop: Answering) -> None:
    assert shop.look_up(response(200, b"<html>please log in</html>")) == NoAnswer(
        "HTTP 200, but the answer is not JSON"
    )
    assert shop.look_up(response(200, b"")) == NoAnswer("HTTP 200, but the answer is not JSON")
    assert shop.look_up(response(200, b'"' + b"x" * ANSWER_BYTES_MAX + b'"')) == NoAnswer(
        "HTTP 200, but the answer is too long"
    )


def test_which_statuses_decline_is_the_callers_choice(shop: Answering) -> None:
    assert shop.look_up(response(409), declined=[422]) == NoAnswer("HTTP 409")
    assert shop.look_up(response(422), declined=[422]) == Declined("HTTP 422")
    assert frozenset({409, 410, 422}) == DECLINED_STATUSES


def test_classify_lookup_overrides_the_table(shop: Answering) -> None:
    def classify(answer: httpx.Response) -> Evidence | None:
        return Declined("failed") if answer.status_code == 200 and answer.json()["state"] == "failed" else None

    assert shop.look_up(response(200, b'{"state": "failed"}'), classify_lookup=classify) == Declined("failed")
    assert isinstance(shop.look_up(response(200, b'{"state": "done"}'), classify_lookup=classify), Accepted)
    assert shop.look_up(response(404), classify_lookup=classify) == Absent()


def test_without_an_address_there_is_no_lookup(shop: Answering) -> None:
    provider = shop.provider(lookup_url=None)
    assert not provider.has_lookup
    assert isinstance(asyncio.run(provider.lookup(KEY)), NoAnswer)
    assert shop.server.connections == 0
    assert shop.provider().has_lookup


def test_a_subclass_may_write_its_own_lookup(shop: Answering) -> None:
    class Shop(HttpProvider):
        async def lookup(self, operation_key: str) -> Evidence:
            return Declined("always")

    provider = Shop("shop", shop.server.url, lookup_complete=True, trust_env=False)
    assert provider.has_lookup
    assert terms(provider).lookup_complete


# --- the request ------------------------------------------------------------------------------------------------------


def parts(received: bytes) -> tuple[str, dict[str, str], bytes]:
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    return first, {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}, body


def test_a_request_is_json_under_its_key(shop: Answering) -> None:
    shop.send(response(200), {"z": 1, "a": "é"}, method="put", headers={"X-Account": "acme"})
    first, headers, body = parts(shop.server.received)
    assert first == "PUT /effects HTTP/1.1"
    assert headers["idempotency-key"] == KEY
    assert headers["content-type"] == "application/json"
    assert headers["x-account"] == "acme"
    assert body == '{"a":"é","z":1}'.encode()


def test_a_lookup_names_the_key_in_the_address_and_sends_no_body(shop: Answering) -> None:
    shop.look_up(response(200), "a:b/c?d#2", headers={"X-Account": "acme"})
    first, headers, body = parts(shop.server.received)
    assert first == "GET /effects/a%3Ab%2Fc%3Fd%232 HTTP/1.1"
    assert headers["x-account"] == "acme"
    assert "idempotency-key" not in headers
    assert body == b""


@pytest.mark.parametrize(
    "key, wire",
    [
        (KEY, KEY),
        ("a:b:c#2", "a:b:c#2"),
        ("send quote:1", "send%20quote:1"),
        ("100%:1", "100%25:1"),
        ("100%25:1", "100%2525:1"),
        ("größe:1", "gr%C3%B6%C3%9Fe:1"),
        ("a\r\nX-Evil: 1", "a%0D%0AX-Evil:%201"),
    ],
)
def test_any_key_fits_a_header_and_no_two_become_one(shop: Answering, key: str, wire: str) -> None:
    assert wire_key(key) == wire
    assert unquote(wire) == key
    shop.send(response(200), key=key)
    _, headers, _ = parts(shop.server.received)
    assert headers["idempotency-key"] == wire
    assert "x-evil" not in headers


def test_the_name_and_password_are_sent_as_httpx_sends_them(shop: Answering) -> None:
    shop.send(response(200), auth=("ann", "pass"))
    _, headers, _ = parts(shop.server.received)
    assert headers["authorization"] == "Basic " + base64.b64encode(b"ann:pass").decode()


def test_a_request_that_is_no_json_is_rejected_before_anything_is_sent(shop: Answering) -> None:
    outcome = shop.send(response(200), {"a": {"CANARY"}})
    assert isinstance(outcome, Rejected)
    assert "CANARY" not in outcome.reason
    assert shop.server.connections == 0
    assert isinstance(shop.send(response(200), {"a": ["CANARY"]}), Succeeded)


def test_a_client_of_the_users_is_used_and_stays_open(shop: Answering) -> None:
    async def run() -> tuple[list[Outcome], bool]:
        async with httpx.AsyncClient(headers={"X-Pool": "mine"}, trust_env=False, follow_redirects=True) as client:
            shop.answer = response(302, b"", "Location: /elsewhere")
            provider = shop.provider(client=client)
            first = await provider.send({}, KEY)
            shop.answer = response(200)
            return [first, await provider.send({}, KEY)], client.is_closed

    outcomes, closed = asyncio.run(run())
    assert outcomes == [Unknown("HTTP 302"), Succeeded({"body": {}})]
    assert not closed
    assert shop.server.received.lower().count(b"x-pool: mine") == 2


# --- settings ---------------------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"name": "shop", "url": "https://shop.example/effects"}


@pytest.mark.parametrize(
    "wrong, text",
    [
        ({"url": "ftp://shop.example/"}, "starts with http"),
        ({"url": "/effects"}, "starts with http"),
        ({"url": "https://"}, "starts with http"),
        ({"url": "https://shop.example:99999/"}, "is not a URL"),
        ({"url": "https://[::1/"}, "is not a URL"),
        ({"url": None}, "starts with http|is not a URL"),
        ({"url": "https://ann:CANARY@shop.example/"}, "holds credentials"),
        ({"url": "https://shop.example/a b"}, "percent-encoded"),
        ({"url": "https://shop.example/\r\nX: y"}, "percent-encoded"),
        ({"lookup_url": "https://ann:CANARY@shop.example/{operation_key}"}, "holds credentials"),
        ({"lookup_url": "https://shop.example/"}, "lookup_url holds {operation_key}"),
        ({"lookup_complete": True}, "has no look-up"),
        ({"method": "GET"}, "method is one of"),
        ({"headers": {"X-Token": "CANARY\r\nX-Evil: 1"}}, "header X-Token holds"),
        ({"headers": {"X-Token": b"CANARY"}}, "header X-Token holds"),
        ({"headers": {"X Token": "CANARY"}}, "header's name"),
        ({"headers": {"idempotency-key": "mine"}}, "is the operation key's"),
        ({"client": httpx.Client}, "client is an httpx.AsyncClient"),
        ({"name": "a:b"}, "holds no '#' or ':'"),
        ({"timeout": 3}, "timeout is a timedelta"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_wrong_settings_are_refused_without_showing_secrets(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(Invalid, match=text) as refused:
        HttpProvider(**(GOOD | wrong))
    assert "CANARY" not in str(refused.value)
    HttpProvider(**GOOD)


def test_terms_come_from_the_settings() -> None:
    provider = HttpProvider(
        **GOOD,
        lookup_url="https://shop.example/effects/{operation_key}",
        idempotency=IdempotencyKey(timedelta(hours=1)),
        lookup_complete=True,
        settles_within=timedelta(seconds=5),
        timeout=timedelta(seconds=7),
    )
    declared = terms(provider)
    assert (declared.honours_key, declared.retention, declared.lookup_complete) == (True, timedelta(hours=1), True)
    assert declared.settles_within == timedelta(seconds=5)
    assert provider.timeout == timedelta(seconds=7)
