"""Mail against a real SMTP server, and against one that breaks off at every step."""

from __future__ import annotations

import asyncio
import contextlib
import email
import email.policy
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from email.message import EmailMessage
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP, AuthResult, Envelope
from pydantic import BaseModel

from tenure.connectors.provider import lookup_bounded, send_bounded, terms
from tenure.connectors.smtp import Email, SmtpProvider, message_id
from tenure.errors import Invalid
from tenure.rules.outcome import FailedBeforeDispatch, NoAnswer, Outcome, Rejected, Succeeded, Terms, Unknown
from tests.connectors.servers import RawServer, client_tls, refused_port, reset, server_tls, silent_port

KEY = "send_quote:0198aaaa:send"
AMPLE = timedelta(seconds=20)
MAIL = Email(to="ann@example.org", subject="Quote 17", body="Hello Ann", sender="shop@example.org")


# --- a real server ----------------------------------------------------------------------------------------------------


@dataclass
class Box:
    """Keeps what a real server took over, and refuses whom it is told to refuse."""

    port: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    mails: list[Envelope] = field(default_factory=list)
    logins: list[bytes] = field(default_factory=list)

    async def handle_RCPT(  # noqa: N802
        self, server: Any, session: Any, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address in self.refused:
            return self.refused[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:  # noqa: N802
        self.mails.append(envelope)
        return f"250 2.0.0 queued as Q{len(self.mails)}"

    def authenticate(self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        self.logins.append(data.password)
        return AuthResult(success=data.password == b"right", handled=False)

    def message(self, index: int = 0) -> EmailMessage:
        parsed = email.message_from_bytes(self.mails[index].original_content, policy=email.policy.default)
        assert isinstance(parsed, EmailMessage)
        return parsed


@contextlib.contextmanager
def mail_server(**settings: Any) -> Iterator[Box]:
    box = Box()
    loop = asyncio.new_event_loop()
    if settings.pop("login", False):
        settings |= {"authenticator": box.authenticate, "auth_required": True}
    direct = settings.pop("direct_tls", None)

    def serve() -> None:
        with contextlib.closing(loop):
            loop.run_forever()
            loop.run_until_complete(asyncio.sleep(0))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    async def listen() -> asyncio.Server:
        return await loop.create_server(
            lambda: SMTP(box, loop=loop, hostname="mail.test", **settings), "127.0.0.1", 0, ssl=direct
        )

    async def end(server: asyncio.Server) -> None:
        server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    server = asyncio.run_coroutine_threadsafe(listen(), loop).result(20)
    box.port = server.sockets[0].getsockname()[1]
    try:
        yield box
    finally:
        asyncio.run_coroutine_threadsafe(end(server), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        assert not thread.is_alive()


def mailer(port: int, **settings: Any) -> SmtpProvider:
    settings.setdefault("timeout", AMPLE)
    hostname = settings.pop("hostname", "127.0.0.1")
    return SmtpProvider("mailer", hostname, port, local_hostname="client.test", **settings)


def send(port: int, request: Any = MAIL, **settings: Any) -> Outcome:
    provider = mailer(port, **settings)
    return asyncio.run(send_bounded(provider, request, KEY, provider.timeout))


def test_a_mail_arrives_once_as_it_was_written() -> None:
    mail = Email(
        to=["Ann Bö <ann@example.org>", "bob@example.org"],
        cc="carl@example.org",
        subject="Angebot für Sie: 17 €",
        body="Grüße\n.\n.. two dots\nFrom the start\n" + "long " * 400,
        html="<p>Grüße</p>",
        sender="Shop <shop@example.org>",
    )
    with mail_server() as box:
        outcome = send(box.port, mail)
        assert outcome == Succeeded({"message_id": message_id(KEY), "code": 250, "reply": "2.0.0 queued as Q1"})
        assert len(box.mails) == 1
        envelope, message = box.mails[0], box.message()
    assert envelope.mail_from == "shop@example.org"
    assert envelope.rcpt_tos == ["ann@example.org", "bob@example.org", "carl@example.org"]
    assert message["From"] == "Shop <shop@example.org>"
    assert message["To"] == "Ann Bö <ann@example.org>, bob@example.org"
    assert message["Cc"] == "carl@example.org"
    assert message["Subject"] == mail.subject
    assert message["Message-ID"] == message_id(KEY)
    assert message["Date"].datetime.tzinfo is not None
    text, html = message.get_body(["plain"]), message.get_body(["html"])
    assert text is not None
    assert html is not None
    assert text.get_content().replace("\r\n", "\n") == mail.body + "\n"
    assert html.get_content().strip() == "<p>Grüße</p>"
    assert envelope.original_content.isascii()


class Note(BaseModel):
    to: str
    subject: str
    body: str


@pytest.mark.parametrize(
    "request_",
    [
        MAIL,
        {"to": "ann@example.org", "subject": "Quote 17", "body": "Hello Ann", "sender": "shop@example.org"},
        {"to": ["ann@example.org"], "subject": "Quote 17", "body": "Hello Ann", "cc": [], "html": None},
        Note(to="ann@example.org", subject="Quote 17", body="Hello Ann"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_email_a_dict_and_a_model_are_mails(request_: Any) -> None:
    with mail_server() as box:
        assert isinstance(send(box.port, request_, sender="shop@example.org"), Succeeded)
        assert box.mails[0].mail_from == "shop@example.org"
        assert box.message()["Subject"] == "Quote 17"
        assert box.message().get_content().split() == ["Hello", "Ann"]


def test_a_recipient_named_twice_is_named_once_to_the_server() -> None:
    with mail_server() as box:
        send(
            box.port,
            Email(["ann@example.org", "Ann <ann@example.org>"], "s", "b", cc="ann@example.org"),
            sender="a@b.c",
        )
        assert box.mails[0].rcpt_tos == ["ann@example.org"]


# --- identity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key, expected",
    [
        ("send_quote:0198:send", "<send_quote%3A0198%3Asend@tenure>"),
        ("send.quote:1", "<send%2Equote%3A1@tenure>"),
        ("a:b#2", "<a%3Ab%232@tenure>"),
        ("größe:1", "<gr%C3%B6%C3%9Fe%3A1@tenure>"),
        ("a\r\nBcc: x@y>:1", "<a%0D%0ABcc%3A%20x%40y%3E%3A1@tenure>"),
    ],
)
def test_the_message_id_is_made_of_the_key(key: str, expected: str) -> None:
    assert message_id(key) == expected
    assert message_id(key) == message_id(key)


def test_a_long_key_gives_a_short_and_still_different_message_id() -> None:
    first, second = message_id("k" * 500 + ":1"), message_id("k" * 500 + ":2")
    assert first != second
    assert max(len(first), len(second)) < 100
    with mail_server() as box:
        provider = mailer(box.port)
        for key in ("k" * 500 + ":1", "kind:" + "n" * 150 + ":send"):
            asyncio.run(provider.send(MAIL, key))
        assert [box.message(0)["Message-ID"], box.message(1)["Message-ID"]] == [
            first,
            message_id("kind:" + "n" * 150 + ":send"),
        ]


def test_mail_has_no_idempotency_key_and_no_lookup() -> None:
    provider = mailer(25)
    assert terms(provider) == Terms(provider="mailer")
    assert isinstance(asyncio.run(lookup_bounded(provider, KEY, AMPLE)), NoAnswer)


# --- recipients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "refused, outcome",
    [
        ({"bob@example.org": "550 5.1.1 CANARY no such user"}, Rejected("RCPT, 1 of 2 recipients: SMTP 550 5.1.1")),
        (
            {"bob@example.org": "450 4.2.0 CANARY greylisted"},
            FailedBeforeDispatch("RCPT, 1 of 2 recipients: SMTP 450 4.2.0"),
        ),
        (
            {"ann@example.org": "451 CANARY later", "bob@example.org": "553 CANARY never"},
            Rejected("RCPT, 2 of 2 recipients: SMTP 553"),
        ),
    ],
)
def test_a_mail_goes_to_all_recipients_or_to_none(refused: dict[str, str], outcome: Outcome) -> None:
    mail = Email(["ann@example.org", "bob@example.org"], "s", "b", sender="shop@example.org")
    with mail_server() as box:
        box.refused = refused
        assert send(box.port, mail) == outcome
        assert box.mails == []
        box.refused = {}
        assert isinstance(send(box.port, mail), Succeeded)
        assert box.mails[0].rcpt_tos == ["ann@example.org", "bob@example.org"]


# --- injection --------------------------------------------------------------------------------------------------------

INJECTED = "ann@example.org\r\nBcc: CANARY@example.org"


@pytest.mark.parametrize(
    "change",
    [
        {"subject": "Hello\r\nBcc: CANARY@example.org"},
        {"subject": "Hello\nCANARY"},
        {"subject": "Hello\rCANARY"},
        {"subject": "Hello\x00CANARY"},
        {"subject": "Hello\u2028CANARY"},
        {"subject": "\ud800CANARY"},
        {"subject": 17},
        {"to": INJECTED},
        {"to": ["bob@example.org", INJECTED]},
        {"to": "ann@example.org, CANARY@example.org"},
        {"to": "friends: ann@example.org, CANARY@example.org;"},
        {"to": "ann@example.org> RCPT TO:<CANARY@example.org"},
        {"to": "CANARY"},
        {"to": "CANARY@"},
        {"to": "@CANARY"},
        {"to": "ann@exa mple.CANARY"},
        {"to": "CANARÝ@example.org"},
        {"to": "ann@bücher.CANARY"},
        {"to": ""},
        {"to": []},
        {"to": None},
        {"to": 17},
        {"to": [17]},
        {"cc": INJECTED},
        {"cc": ["CANARY"]},
        {"sender": INJECTED},
        {"sender": "CANARY"},
        {"sender": None},
        {"body": None},
        {"body": b"CANARY"},
        {"body": "\ud800CANARY"},
        {"html": 7},
        {"bcc": "CANARY@example.org"},
    ],
    ids=lambda value: repr(value)[:60],
)
def test_what_is_no_mail_is_rejected_before_a_connection(change: dict[str, Any]) -> None:
    whole = {"to": "ann@example.org", "subject": "s", "body": "b", "sender": "shop@example.org"}
    with mail_server() as box:
        outcome = send(box.port, whole | change)
        assert isinstance(outcome, Rejected)
        assert outcome.reason.startswith("nothing was sent: ")
        assert "CANARY" not in outcome.reason
        assert box.mails == []
        assert isinstance(send(box.port, whole), Succeeded)
        assert len(box.mails) == 1


@pytest.mark.parametrize("request_", [None, "ann@example.org", [MAIL], {}, {"to": "ann@example.org"}, object(), Email])
def test_a_request_that_is_no_mail_at_all_is_rejected(request_: Any) -> None:
    assert isinstance(send(refused_port(), request_), Rejected)


# --- login and TLS ----------------------------------------------------------------------------------------------------


# The test server warns of what is done here on purpose.
@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
def test_a_right_login_sends_and_a_wrong_one_is_rejected_as_authentication(caplog: pytest.LogCaptureFixture) -> None:
    with mail_server(login=True, auth_require_tls=False) as box, caplog.at_level(logging.DEBUG):
        assert isinstance(send(box.port, username="ann", password="right"), Succeeded)
        provider = mailer(box.port, username="ann", password="CANARY-PASSWORD")
        outcome = asyncio.run(send_bounded(provider, MAIL, KEY, AMPLE))
        assert b"CANARY-PASSWORD" in box.logins
        assert len(box.mails) == 1
        anonymous = send(box.port)
    assert outcome == Rejected("login: SMTP 535 5.7.8", category="authentication")
    assert anonymous == Rejected("MAIL: SMTP 530 5.7.0", category="authentication")
    ours = [record for record in caplog.records if not record.name.startswith("mail.log")]
    assert "CANARY" not in f"{outcome!r} {provider!r}" + "".join(record.getMessage() for record in ours)


def test_starttls_is_used_where_it_is_offered() -> None:
    with mail_server(tls_context=server_tls(), login=True) as box:
        for start_tls in (None, True):
            outcome = send(
                box.port,
                hostname="localhost",
                username="ann",
                password="right",
                start_tls=start_tls,
                tls_context=client_tls(),
            )
            assert isinstance(outcome, Succeeded)
        assert len(box.mails) == 2


def test_tls_from_the_first_byte() -> None:
    with mail_server(direct_tls=server_tls()) as box:
        assert isinstance(send(box.port, hostname="localhost", use_tls=True, tls_context=client_tls()), Succeeded)
        untrusted = send(box.port, hostname="localhost", use_tls=True)
        assert untrusted == FailedBeforeDispatch("connecting: SMTPConnectError: SSLCertVerificationError")
        assert len(box.mails) == 1


def test_a_certificate_that_nobody_vouches_for_gets_no_mail() -> None:
    with mail_server(tls_context=server_tls()) as box:
        outcome = send(box.port, hostname="localhost", start_tls=True)
        assert isinstance(outcome, FailedBeforeDispatch)
        assert "SSLCertVerificationError" in outcome.reason
        assert box.mails == []


def test_starttls_that_is_required_is_never_left_out() -> None:
    with mail_server() as box:
        assert send(box.port, start_tls=True) == Rejected(
            "STARTTLS: the server does not offer it, and start_tls=True requires it"
        )
        assert box.mails == []
        assert isinstance(send(box.port, start_tls=False), Succeeded)


@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
@pytest.mark.parametrize("start_tls, leaves", [(None, False), (False, True)])
def test_a_password_leaves_this_machine_unencrypted_only_when_written_out(
    start_tls: bool | None, leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A server elsewhere cannot be had in a test, so this machine is asked to take itself for another.
    monkeypatch.setattr("tenure.connectors.smtp._is_this_machine", lambda client: False)
    with mail_server(login=True, auth_require_tls=False) as box:
        outcome = send(box.port, username="ann", password="right", start_tls=start_tls)
        assert bool(box.logins) is leaves
    if leaves:
        assert isinstance(outcome, Succeeded)
    else:
        assert isinstance(outcome, Rejected)
        assert outcome.category == "authentication"


# --- breaking off at every step ---------------------------------------------------------------------------------------

Script = dict[str, bytes | Callable[[socket.socket], None]]
GOOD_REPLIES: Script = {
    "greeting": b"220 mail.test\r\n",
    "EHLO": b"250-mail.test\r\n250 AUTH PLAIN\r\n",
    "HELO": b"250 mail.test\r\n",
    "STARTTLS": b"220 go\r\n",
    "AUTH": b"235 ok\r\n",
    "MAIL": b"250 ok\r\n",
    "RCPT": b"250 ok\r\n",
    "DATA": b"354 go\r\n",
    ".": b"250 queued\r\n",
    "QUIT": b"221 bye\r\n",
}


def drop(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_RDWR)


def hang(connection: socket.socket) -> None:
    connection.recv(1)


def scripted(script: Script) -> Callable[[socket.socket, RawServer], None]:
    """Speak SMTP by a table from verb to reply; a function instead of a reply does what it does."""
    table = GOOD_REPLIES | script

    def behave(connection: socket.socket, server: RawServer) -> None:
        lines = connection.makefile("rb")

        def say(step: str) -> None:
            reply = table[step]
            if callable(reply):
                reply(connection)
                raise ConnectionError
            connection.sendall(reply)

        say("greeting")
        for line in lines:
            server.received += line
            verb = line.split()[0].decode("latin-1").upper()
            if verb not in table:
                raise ConnectionError  # the first bytes of a handshake, for one
            say(verb)
            if verb == "DATA" and table["DATA"] == b"354 go\r\n":
                for content in lines:
                    server.received += content
                    if content == b".\r\n":
                        break
                say(".")

    return behave


BEFORE: list[tuple[str, Script, Outcome]] = [
    ("greeting 421", {"greeting": b"421 CANARY\r\n"}, FailedBeforeDispatch("connecting: SMTP 421")),
    ("greeting 554", {"greeting": b"554 5.7.1 CANARY\r\n"}, Rejected("connecting: SMTP 554 5.7.1")),
    ("EHLO 421", {"EHLO": b"421 CANARY\r\n"}, FailedBeforeDispatch("STARTTLS: SMTP 421")),
    ("EHLO and HELO 550", {"EHLO": b"550 no\r\n", "HELO": b"550 no\r\n"}, Rejected("STARTTLS: SMTP 550")),
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
        outcome = send(server.port, timeout=timedelta(milliseconds=500))
        assert b"DATA" not in server.received
    assert isinstance(outcome, FailedBeforeDispatch)
    assert "Timeout" in outcome.reason


@pytest.mark.parametrize("step", ["DATA", "."])
def test_silence_after_data_is_unknown(step: str) -> None:
    with RawServer(scripted({step: hang})) as server:
        outcome = send(server.port, timeout=timedelta(milliseconds=500))
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
        silent = send(port, timeout=timedelta(milliseconds=500))
    assert isinstance(silent, FailedBeforeDispatch)


def test_a_handshake_that_fails_is_surely_not_sent() -> None:
    with RawServer(scripted({})) as server:
        direct = send(server.port, use_tls=True)
    assert isinstance(direct, FailedBeforeDispatch)
    assert "SSL" in direct.reason
    with RawServer(scripted({"EHLO": b"250-mail.test\r\n250 STARTTLS\r\n"})) as server:
        upgraded = send(server.port, timeout=timedelta(seconds=2))
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


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong, text",
    [
        ({"name": "a#b"}, "holds no '#'"),
        ({"hostname": ""}, "hostname and port"),
        ({"hostname": "a\r\nb"}, "hostname and port"),
        ({"port": 0}, "hostname and port"),
        ({"port": 65536}, "hostname and port"),
        ({"use_tls": True, "start_tls": True}, "exclude each other"),
        ({"username": "ann"}, "given together"),
        ({"password": "CANARY"}, "given together"),
        ({"sender": "CANARY"}, "sender: not"),
        ({"sender": "ann@example.org\nCANARY"}, "sender holds a line break"),
        ({"timeout": timedelta(0)}, "timeout"),
    ],
    ids=repr,
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], text: str) -> None:
    good: dict[str, Any] = {"name": "mailer", "hostname": "mail.example", "port": 25}
    with pytest.raises(Invalid, match=text) as refused:
        SmtpProvider(**(good | wrong))
    assert "CANARY" not in str(refused.value)
    SmtpProvider(**good)


def test_a_repr_shows_the_name_and_nothing_else() -> None:
    assert repr(mailer(25, username="ann", password="CANARY")) == "<SmtpProvider 'mailer'>"
