"""Mail against a server that refuses, breaks off or falls silent at every step."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from tenure.connectors.smtp import Email, message_id
from tenure.rules.outcome import FailedBeforeDispatch, Outcome, Rejected, Succeeded, Unknown
from tests.connectors.mail import KEY, MAIL, Script, drop, hang, mailer, scripted, send
from tests.connectors.servers import RawServer, refused_port, reset, silent_port

BEFORE: list[tuple[str, Script, Outcome]] = [
    ("greeting 421", {"greeting": b"421 CANARY\r\n"}, FailedBeforeDispatch("connecting: SMTP 421")),
    ("greeting 554", {"greeting": b"554 5.7.1 CANARY\r\n"}, Rejected("connecting: SMTP 554 5.7.1")),
    ("EHLO 421", {"EHLO": b"421 CANARY\r\n"}, FailedBeforeDispatch("EHLO: SMTP 421")),
    ("EHLO and HELO 550", {"EHLO": b"550 no\r\n", "HELO": b"550 no\r\n"}, Rejected("EHLO: SMTP 550")),
    ("MAIL 451", {"MAIL": b"451 4.3.0 CANARY\r\n"}, FailedBeforeDispatch("MAIL: SMTP 451 4.3.0")),
    ("MAIL 550", {"MAIL": b"550 CANARY\r\n"}, Rejected("MAIL: SMTP 550")),
    ("MAIL 530", {"MAIL": b"530 5.7.0 CANARY\r\n"}, Rejected("MAIL: SMTP 530 5.7.0", category="authentication")),
    ("RCPT 421", {"RCPT": b"421 CANARY\r\n"}, FailedBeforeDispatch("RCPT, 1 of 1 recipients: SMTP 421")),
    ("RCPT 450", {"RCPT": b"450 CANARY\r\n"}, FailedBeforeDispatch("RCPT, 1 of 1 recipients: SMTP 450")),
    ("RCPT 550", {"RCPT": b"550 5.1.1 CANARY\r\n"}, Rejected("RCPT, 1 of 1 recipients: SMTP 550 5.1.1")),
    ("DATA 451", {"DATA": b"451 CANARY\r\n"}, FailedBeforeDispatch("DATA: SMTP 451")),
    ("DATA 554", {"DATA": b"554 CANARY\r\n"}, Rejected("DATA: SMTP 554")),
    ("dot 451", {".": b"451 4.3.1 CANARY\r\n"}, FailedBeforeDispatch("DATA: SMTP 451 4.3.1")),
    ("dot 552", {".": b"552 5.3.4 CANARY\r\n"}, Rejected("DATA: SMTP 552 5.3.4")),
    ("a reply that is none", {"MAIL": b"CANARY\r\n"}, FailedBeforeDispatch("MAIL: SMTP -1")),
    (
        "an old server",
        {"EHLO": b"502 no\r\n"},
        Succeeded({"message_id": message_id(KEY), "code": 250, "reply": "queued"}),
    ),
    (
        "QUIT refused",
        {"QUIT": b"500 no\r\n"},
        Succeeded({"message_id": message_id(KEY), "code": 250, "reply": "queued"}),
    ),
    ("QUIT dropped", {"QUIT": drop}, Succeeded({"message_id": message_id(KEY), "code": 250, "reply": "queued"})),
    ("QUIT hangs", {"QUIT": hang}, Succeeded({"message_id": message_id(KEY), "code": 250, "reply": "queued"})),
]


@pytest.mark.parametrize("script, outcome", [case[1:] for case in BEFORE], ids=[case[0] for case in BEFORE])
def test_every_reply_has_its_outcome(script: Script, outcome: Outcome) -> None:
    with RawServer(scripted(script)) as server:
        assert send(server.port) == outcome
        assert server.connections == 1


@pytest.mark.parametrize("how", [drop, reset])
@pytest.mark.parametrize("step", ["greeting", "EHLO", "MAIL", "RCPT"])
def test_a_break_before_data_is_surely_not_sent(step: str, how: Callable[[socket.socket], None]) -> None:
    with RawServer(scripted({step: how})) as server:
        outcome = send(server.port)
        assert b"DATA" not in server.received
    assert isinstance(outcome, FailedBeforeDispatch)


@pytest.mark.parametrize("how", [drop, reset])
@pytest.mark.parametrize("step", ["DATA", "."])
def test_a_break_after_data_is_unknown(step: str, how: Callable[[socket.socket], None]) -> None:
    with RawServer(scripted({step: how})) as server:
        outcome = send(server.port)
        assert b"DATA" in server.received
        assert (b"\r\n.\r\n" in server.received) is (step == ".")
    assert isinstance(outcome, Unknown)
    assert outcome.reason.startswith("DATA: no reply (SMTPServerDisconnected")


@pytest.mark.parametrize("step", ["greeting", "EHLO", "MAIL", "RCPT"])
def test_silence_before_data_is_surely_not_sent(step: str) -> None:
    with RawServer(scripted({step: hang})) as server:
        outcome = asyncio.run(mailer(server.port, timeout=timedelta(seconds=1)).send(MAIL, KEY))
        assert b"DATA" not in server.received
    assert isinstance(outcome, FailedBeforeDispatch)
    assert "Timeout" in outcome.reason


@pytest.mark.parametrize("step", ["DATA", "."])
def test_silence_after_data_is_unknown(step: str) -> None:
    with RawServer(scripted({step: hang})) as server:
        outcome = asyncio.run(mailer(server.port, timeout=timedelta(seconds=1)).send(MAIL, KEY))
    assert isinstance(outcome, Unknown)


@pytest.mark.parametrize("reply", [b"251 odd\r\n", b"354 again\r\n", b"CANARY\r\n", b"x" * 9000 + b"\r\n"])
def test_an_odd_reply_to_the_dot_is_unknown(reply: bytes) -> None:
    with RawServer(scripted({".": reply})) as server:
        outcome = send(server.port)
    assert isinstance(outcome, Unknown)
    assert "CANARY" not in outcome.reason


@pytest.mark.parametrize(
    "reply, outcome",
    [
        (b"535 5.7.8 CANARY\r\n", Rejected("login: SMTP 535 5.7.8", category="authentication")),
        (b"454 4.7.0 CANARY\r\n", FailedBeforeDispatch("login: SMTP 454 4.7.0")),
    ],
)
def test_a_login_that_is_refused_for_now_may_be_tried_again(reply: bytes, outcome: Outcome) -> None:
    with RawServer(scripted({"AUTH": reply})) as server:
        assert send(server.port, username="ann", password="CANARY-PASSWORD") == outcome
        assert b"AUTH PLAIN" in server.received


def test_a_server_without_a_known_login_is_an_authentication_matter() -> None:
    for greeting in (b"250 mail.test\r\n", b"250-mail.test\r\n250 AUTH GSSAPI\r\n"):
        with RawServer(scripted({"EHLO": greeting})) as server:
            outcome = send(server.port, username="ann", password="CANARY-PASSWORD")
            assert b"AUTH" not in server.received
        assert outcome == Rejected("login: the server offers no way that is known", category="authentication")


def test_no_connection_is_surely_not_sent() -> None:
    assert send(refused_port()) == FailedBeforeDispatch("connecting: SMTPConnectError: ConnectionRefusedError")
    nowhere = send(25, hostname="nowhere.invalid", timeout=timedelta(seconds=10))
    assert isinstance(nowhere, FailedBeforeDispatch)
    with silent_port() as port:
        silent = asyncio.run(mailer(port, timeout=timedelta(seconds=1)).send(MAIL, KEY))
    assert isinstance(silent, FailedBeforeDispatch)


def test_a_handshake_that_fails_is_surely_not_sent() -> None:
    with RawServer(scripted({})) as server:
        direct = send(server.port, use_tls=True)
    assert isinstance(direct, FailedBeforeDispatch)
    assert "SSL" in direct.reason
    with RawServer(scripted({"EHLO": b"250-mail.test\r\n250 STARTTLS\r\n"})) as server:
        upgraded = asyncio.run(mailer(server.port, timeout=timedelta(seconds=2)).send(MAIL, KEY))
        assert b"MAIL" not in server.received
    assert isinstance(upgraded, FailedBeforeDispatch)


def test_a_cancelled_mail_leaves_nothing_that_goes_out_later() -> None:
    """What waits in our buffer when the caller gives up must not be flushed behind its back."""
    reached, resume, over = threading.Event(), threading.Event(), threading.Event()
    ended: list[bytes] = []

    def stalled(connection: socket.socket) -> None:
        connection.sendall(b"354 go\r\n")
        connection.recv(1)
        reached.set()
        resume.wait(20)
        data = b""
        with contextlib.suppress(OSError):
            while part := connection.recv(1 << 20):
                data += part
        ended.append(data)
        over.set()

    async def run(port: int) -> None:
        big = Email("ann@example.org", "s", ("x" * 70 + "\n") * 200_000, sender="shop@example.org")
        task = asyncio.create_task(mailer(port).send(big, KEY))
        assert await asyncio.to_thread(reached.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        resume.set()
        # The loop goes on meanwhile, as a worker's does, and could still flush.
        assert await asyncio.to_thread(over.wait, 20)

    with RawServer(scripted({"DATA": stalled})) as server:
        asyncio.run(run(server.port))
    assert len(ended) == 1
    assert b"\r\n.\r\n" not in ended[0]
