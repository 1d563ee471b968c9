"""Mail against a real SMTP server: what arrives, who gets it, what never leaves."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from tenure.connectors.provider import lookup_bounded, send_bounded, terms
from tenure.connectors.smtp import Email, SmtpProvider, message_id
from tenure.connectors.wire import json_value
from tenure.errors import Invalid
from tenure.rules.outcome import FailedBeforeDispatch, NoAnswer, Outcome, Rejected, Succeeded, Terms
from tests.connectors.mail import AMPLE, KEY, MAIL, mail_server, mailer, send
from tests.connectors.servers import client_tls, refused_port, server_tls


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
        assert box.content().isascii()
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


def test_a_mail_has_a_digest_like_any_other_request() -> None:
    plain: dict[str, Any] = {
        "to": "ann@example.org",
        "subject": "s",
        "body": "b",
        "sender": None,
        "cc": [],
        "html": None,
    }
    assert json_value(Email("ann@example.org", "s", "b")) == plain
    with mail_server() as box:
        assert isinstance(send(box.port, plain, sender="shop@example.org"), Succeeded)


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
