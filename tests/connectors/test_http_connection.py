"""Where a call broke off decides: before a connection stood nothing was sent, from there on nobody knows."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest

from tenure.connectors.http import HttpProvider
from tenure.connectors.provider import lookup_bounded, send_bounded
from tenure.rules.outcome import FailedBeforeDispatch, NoAnswer, Outcome, Rejected, Succeeded, Unknown
from tests.connectors.servers import (
    RawServer,
    answering,
    client_tls,
    read_request,
    refused_port,
    reset,
    response,
    silent_port,
)

KEY = "send_quote:0198:send"
AMPLE = timedelta(seconds=20)


def provider(url: str, timeout: timedelta = AMPLE, **settings: Any) -> HttpProvider:
    settings.setdefault("trust_env", False)
    return HttpProvider("shop", url, lookup_url=url + "/{operation_key}", timeout=timeout, **settings)


def send(url: str, timeout: timedelta = AMPLE, **settings: Any) -> Outcome:
    return asyncio.run(provider(url, timeout, **settings).send({"a": 1}, KEY))


# --- before a connection ----------------------------------------------------------------------------------------------


def test_a_refused_connection_is_surely_not_sent() -> None:
    url = f"http://127.0.0.1:{refused_port()}/effects"
    assert send(url) == FailedBeforeDispatch("no connection (ConnectError: ConnectionRefusedError)")
    assert asyncio.run(provider(url).lookup(KEY)) == NoAnswer("no connection (ConnectError: ConnectionRefusedError)")


def test_a_name_that_does_not_exist_is_surely_not_sent() -> None:
    # Reserved for this: no resolver may ever know it. One that does not answer at all ends as no connection too.
    outcome = send("http://nowhere.invalid/effects", timedelta(seconds=10))
    assert isinstance(outcome, FailedBeforeDispatch)
    assert "no connection" in outcome.reason


def test_a_connection_that_never_stands_is_surely_not_sent() -> None:
    with silent_port() as port:
        outcome = send(f"http://127.0.0.1:{port}/effects", timedelta(seconds=1))
    assert isinstance(outcome, FailedBeforeDispatch)
    assert "TimeoutError" in outcome.reason


def test_a_full_pool_of_the_users_client_is_surely_not_sent() -> None:
    taken = threading.Event()

    def behave(connection: socket.socket, server: RawServer) -> None:
        read_request(connection, server)
        taken.set()
        connection.recv(1)

    async def run() -> Outcome:
        with RawServer(behave) as server:
            async with httpx.AsyncClient(limits=httpx.Limits(max_connections=1), trust_env=False) as client:
                hog = asyncio.create_task(client.get(server.url, timeout=60))
                assert await asyncio.to_thread(taken.wait, 20)
                outcome = await provider(server.url, timedelta(seconds=4), client=client).send({}, KEY)
                assert server.connections == 1
                hog.cancel()
                await asyncio.wait({hog})
        return outcome

    assert asyncio.run(run()) == FailedBeforeDispatch("the client had no free connection (PoolTimeout)")


# --- after it ---------------------------------------------------------------------------------------------------------


def close_at_once(connection: socket.socket, server: RawServer) -> None:
    connection.recv(1)


def reset_before_reading(connection: socket.socket, server: RawServer) -> None:
    connection.recv(1)
    reset(connection)


def close_after_reading(connection: socket.socket, server: RawServer) -> None:
    read_request(connection, server)


def reset_after_reading(connection: socket.socket, server: RawServer) -> None:
    read_request(connection, server)
    reset(connection)


BREAKS: dict[str, Callable[[socket.socket, RawServer], None]] = {
    "closed at once": close_at_once,
    "reset at once": reset_before_reading,
    "closed after the request": close_after_reading,
    "reset after the request": reset_after_reading,
    "half a status line": answering(b"HTTP/1.1 20"),
    "half the headers": answering(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "half the body": answering(b'HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{"id'),
    "half a refusal": answering(b"HTTP/1.1 402 No\r\nContent-Length: 10\r\n\r\n{"),
    "half a chunk": answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20\r\n{"),
    "not HTTP": answering(b"220 mail.example ESMTP\r\n"),
    "an endless header": answering(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 500_000),
    "two lengths": answering(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}"),
}


@pytest.mark.parametrize("how", BREAKS)
def test_an_answer_that_breaks_off_is_unknown(how: str) -> None:
    with RawServer(BREAKS[how]) as server:
        outcome = send(server.url)
        evidence = asyncio.run(provider(server.url).lookup(KEY))
        assert server.connections == 2, "a broken call was tried again"
    assert isinstance(outcome, Unknown)
    assert outcome.reason.startswith("no whole answer (")
    assert isinstance(evidence, NoAnswer)


def test_a_whole_answer_over_the_same_wire_is_taken() -> None:
    with RawServer(answering(response(200))) as server:
        assert send(server.url) == Succeeded({"body": {}})


def never_answer(connection: socket.socket, server: RawServer) -> None:
    read_request(connection, server)
    connection.recv(1)


def drip(connection: socket.socket, server: RawServer) -> None:
    """Keep every single read short, so that only a limit on the whole call ends it."""
    read_request(connection, server)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    connection.settimeout(0.02)
    while True:
        connection.sendall(b"x")
        try:
            if not connection.recv(1):
                return
        except TimeoutError:
            continue


@pytest.mark.parametrize("behave", [never_answer, drip])
def test_no_answer_in_time_is_unknown(behave: Callable[[socket.socket, RawServer], None]) -> None:
    with RawServer(behave) as server:
        began = time.monotonic()
        outcome = send(server.url, timedelta(seconds=2))
        assert time.monotonic() - began < 20
    assert isinstance(outcome, Unknown)
    assert "Timeout" in outcome.reason


def test_the_callers_limit_is_unknown_and_closes_the_connection() -> None:
    closed = threading.Event()

    def behave(connection: socket.socket, server: RawServer) -> None:
        read_request(connection, server)
        if connection.recv(1) == b"":
            closed.set()

    with RawServer(behave) as server:
        outcome = asyncio.run(send_bounded(provider(server.url), {}, KEY, timedelta(seconds=2)))
        assert outcome == Unknown("shop: send did not end within 2 s")
        assert closed.wait(10)


# --- TLS --------------------------------------------------------------------------------------------------------------


def test_a_handshake_that_fails_is_unknown() -> None:
    def plain(connection: socket.socket, server: RawServer) -> None:
        connection.recv(1)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with RawServer(plain) as server:
        outcome = send(f"https://localhost:{server.port}/effects")
    assert isinstance(outcome, Unknown)
    assert "SSL" in outcome.reason


def test_a_certificate_that_nobody_vouches_for_is_unknown_and_one_that_is_trusted_works() -> None:
    async def trusted(url: str) -> Outcome:
        async with httpx.AsyncClient(verify=client_tls(), trust_env=False) as client:
            return await provider(url, client=client).send({}, KEY)

    with RawServer(answering(response(200)), tls=True) as server:
        url = f"https://localhost:{server.port}/effects"
        assert send(url) == Unknown("no whole answer (ConnectError: SSLCertVerificationError)")
        assert server.received == b""
        assert asyncio.run(trusted(url)) == Succeeded({"body": {}})
        assert server.received.startswith(b"POST /effects")


# --- a client whose transport tells nothing ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error, sent",
    [
        (httpx.ConnectError("CANARY"), False),
        (httpx.PoolTimeout("CANARY"), False),
        (httpx.ConnectTimeout("CANARY"), True),
        (httpx.ReadTimeout("CANARY"), True),
        (httpx.WriteTimeout("CANARY"), True),
        (httpx.ReadError("CANARY"), True),
        (httpx.WriteError("CANARY"), True),
        (httpx.CloseError("CANARY"), True),
        (httpx.ProxyError("CANARY"), True),
        (httpx.RemoteProtocolError("CANARY"), True),
        (httpx.LocalProtocolError("CANARY"), True),
        (RuntimeError("CANARY"), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_in_doubt_the_request_was_sent(error: Exception, sent: bool) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise error

    async def run() -> Outcome:
        async with httpx.AsyncClient(transport=httpx.MockTransport(handler)) as client:
            return await provider("http://shop.example/effects", client=client).send({}, KEY)

    outcome = asyncio.run(run())
    assert isinstance(outcome, Unknown if sent else FailedBeforeDispatch)
    assert "CANARY" not in outcome.reason
    assert type(error).__name__ in outcome.reason


def test_a_handshake_error_without_a_trace_is_unknown_too() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("CANARY") from ssl.SSLError("CANARY")

    async def run() -> Outcome:
        async with httpx.AsyncClient(transport=httpx.MockTransport(handler)) as client:
            return await provider("http://shop.example/effects", client=client).send({}, KEY)

    assert asyncio.run(run()) == Unknown("no whole answer (ConnectError: SSLError)")


def test_an_auth_that_fails_before_the_request_is_surely_not_sent() -> None:
    class NoToken(httpx.Auth):
        def auth_flow(self, request: httpx.Request) -> Any:
            raise ValueError("CANARY")
            yield request

    with RawServer(answering(response(200))) as server:
        assert send(server.url, auth=NoToken()) == FailedBeforeDispatch("no connection (ValueError)")
        assert server.connections == 0


# --- secrets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "behave, ended, is_http",
    [
        (answering(response(402, b'{"error": "CANARY-BODY"}', "X-Trace: t-1")), Rejected, True),
        (answering(response(401, b"CANARY-BODY")), Rejected, True),
        (answering(response(429, b"CANARY-BODY")), FailedBeforeDispatch, True),
        (answering(response(500, b"CANARY-BODY")), Unknown, True),
        (answering(b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\nCANARY-BODY"), Unknown, True),
        (answering(b"CANARY-BODY"), Unknown, False),
        (reset_after_reading, Unknown, True),
    ],
)
def test_secrets_stay_out_of_reasons_reprs_and_logs(
    behave: Callable[[socket.socket, RawServer], None], ended: type, is_http: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with RawServer(behave) as server, caplog.at_level(logging.DEBUG):
        shop = provider(server.url, headers={"Authorization": "Bearer CANARY-TOKEN", "X-Key": "CANARY-HEADER"})
        outcome = asyncio.run(send_bounded(shop, {"password": "CANARY-REQUEST"}, KEY, AMPLE))
        evidence = asyncio.run(lookup_bounded(shop, KEY, AMPLE))
        named = provider(server.url, auth=("ann", "CANARY-PASSWORD"))
        asyncio.run(send_bounded(named, {}, KEY, AMPLE))
        # The control: all of it was really on the wire.
        for secret in (b"CANARY-TOKEN", b"CANARY-HEADER", b"CANARY-REQUEST", b"authorization: basic"):
            assert secret.lower() in server.received.lower()
    assert isinstance(outcome, ended)
    assert isinstance(evidence, NoAnswer)
    assert "CANARY" not in f"{outcome!r} {evidence!r} {shop!r} {named!r}"
    # What is no HTTP at all, the client library quotes in its own debug log.
    hidden = ["CANARY"] if is_http else ["CANARY-TOKEN", "CANARY-HEADER", "CANARY-REQUEST", "CANARY-PASSWORD"]
    assert caplog.records
    assert [secret for secret in hidden if secret in caplog.text] == []
