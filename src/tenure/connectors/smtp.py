"""
Mail over SMTP: one message, one connection, handed over once.

A mail server takes a message over with its reply to the final dot, and with nothing before it. So whatever breaks off
before DATA surely sent nothing, and whatever breaks off after DATA without a reply is Unknown. SMTP knows no
idempotency key and no look-up: an Unknown stays with a person, who finds the mail by its Message-ID, which is made of
the operation key.

A message goes to all its recipients or to none. When the server refuses one of them, nothing is handed over: with only
some taken, a later try would send the mail twice to the others, and a success would hide the one who never gets it.

Reasons hold the step, the reply's code and class names; a server's texts and all addresses stay out of them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import ipaddress
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from hashlib import sha256
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from pydantic import BaseModel

from tenure.connectors.provider import Provider, check_provider
from tenure.errors import Invalid
from tenure.guard import refuse_call
from tenure.rules.outcome import FailedBeforeDispatch, Outcome, Rejected, Succeeded, Unknown
from tenure.rules.payload import clean_text

if TYPE_CHECKING:
    import aiosmtplib

# Headers in 7 bits: a server that cannot take more gets nothing it would have to refuse.
_POLICY = SMTP_POLICY.clone(cte_type="7bit", max_line_length=76)
_MESSAGE_ID_LENGTH_MAX = 200  # a folded or cut Message-ID could not be searched for
_REPLY_BYTES_MAX = 200
# The dialogue up to DATA ends this much before the call's own limit, so that it ends as "surely nothing was sent".
_DIALOGUE_SHARE = 0.9
_NEEDS_AUTHENTICATION = frozenset({530, 534, 535, 538})
_GOODBYE_SECONDS = 1.0
_GOODBYES: set[asyncio.Task[None]] = set()  # a loop keeps only weak references to its tasks
_ENHANCED_CODE = re.compile(r"[245]\.\d{1,3}\.\d{1,3}(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Email:
    """
    One mail; also accepted as a dict with these names.

    Attributes:
        to: One address or several, each such as `ann@example.org` or `Ann <ann@example.org>`, in ASCII.
        body: The text; with `html` the plain alternative.
        sender: The From address; without it the provider's.
    """

    to: str | Sequence[str]
    subject: str
    body: str
    sender: str | None = None
    cc: str | Sequence[str] = ()
    html: str | None = None


def message_id(operation_key: str) -> str:
    """Make the Message-ID of an operation: the same for every try, and readable in a mail server's log."""
    local = quote(operation_key, safe="").replace(".", "%2E")
    if len(local) > _MESSAGE_ID_LENGTH_MAX:
        local = f"sha256-{sha256(operation_key.encode()).hexdigest()}"
    return f"<{local}@tenure>"


class SmtpProvider(Provider):
    """
    Hand mails to one mail server; the request is an `Email`.

    Succeeded: the server took the message over; the receipt is `{"message_id", "code", "reply"}`. FailedBeforeDispatch:
    no connection, a 4xx reply, or a break before DATA. Rejected: a 5xx reply, to one recipient of several too; a
    refused login as `authentication`; a request that is no mail. Unknown: no reply after DATA.

    Args:
        use_tls: TLS from the first byte, usually port 465.
        start_tls: True: STARTTLS is required. None: used where the server offers it, and required before a password is
            sent, except to this very machine. False: never, not even for the password.
        sender: The From address of mails that name none.
        local_hostname: What this machine calls itself; its host name without it.
        tls_context: Your own settings for TLS; without it the system's certificates and host names are checked.
    """

    idempotency = None

    def __init__(
        self,
        name: str,
        hostname: str,
        port: int,
        *,
        username: str | None = None,
        password: str | None = None,
        start_tls: bool | None = None,
        use_tls: bool = False,
        timeout: timedelta = timedelta(seconds=60),
        sender: str | None = None,
        local_hostname: str | None = None,
        tls_context: ssl.SSLContext | None = None,
    ) -> None:
        self._aiosmtplib = _import_aiosmtplib()
        self.name = name
        self.timeout = timeout
        self._hostname = hostname
        self._port = port
        self._username = username
        self._password = password
        self._start_tls = start_tls
        self._use_tls = use_tls
        self._local_hostname = local_hostname
        self._tls_context = tls_context
        if not hostname or not hostname.isprintable() or not 0 < port < 65536:
            raise Invalid(f"provider {name!r}: hostname and port say where the mail server is")
        if use_tls and start_tls:
            raise Invalid(f"provider {name!r}: use_tls and start_tls exclude each other")
        if (username is None) != (password is None):
            raise Invalid(f"provider {name!r}: username and password are given together")
        try:
            self._sender = None if sender is None else _address(sender, "sender")
        except _UnsendableError as problem:
            raise Invalid(f"provider {name!r}: {problem}") from None
        check_provider(self)

    async def send(self, request: Any, operation_key: str) -> Outcome:
        """Hand over one mail; see the class for what comes back."""
        refuse_call(self.name)
        try:
            mail = self._prepared(request, operation_key)
        except _UnsendableError as problem:
            return Rejected(f"nothing was sent: {problem}")
        limit = self.timeout.total_seconds()
        client = self._aiosmtplib.SMTP(
            hostname=self._hostname,
            port=self._port,
            timeout=limit,
            use_tls=self._use_tls,
            start_tls=False,  # the dialogue below decides
            tls_context=self._tls_context or _tls(),
            local_hostname=self._local_hostname or _own_name(),
        )
        outcome: Outcome | None = None
        try:
            outcome = await self._dialogue(client, mail, limit * _DIALOGUE_SHARE)
            if outcome is None:
                outcome = await self._hand_over(client, mail)
            return outcome
        finally:
            _part(client, politely=outcome is not None and not isinstance(outcome, Unknown))

    async def _dialogue(self, client: aiosmtplib.SMTP, mail: _Mail, limit: float) -> Outcome | None:
        """Go up to DATA; give the outcome if that failed. Nothing in here can have sent the mail."""
        step = _Step("connecting")
        try:
            async with asyncio.timeout(limit):
                await client.connect()
                step.now = "EHLO"
                await _greet(client)
                step.now = "STARTTLS"
                await self._secure(client)
                step.now = "login"
                await self._log_in(client)
                step.now = "MAIL"
                await client.mail(mail.sender)
                step.now = "RCPT"
                return await self._recipients(client, mail)
        except self._aiosmtplib.SMTPResponseException as reply:
            return self._refusal(step.now, reply.code, reply.message)
        except _RefusedError as refused:
            return refused.outcome
        except Exception as error:  # noqa: BLE001 - whatever it is, DATA was not sent
            return FailedBeforeDispatch(f"{step.now}: {_name(error)}")

    async def _secure(self, client: aiosmtplib.SMTP) -> None:
        if self._use_tls or self._start_tls is False:
            return
        if client.supports_extension("starttls"):
            await client.starttls()
        elif self._start_tls:
            raise _RefusedError(Rejected("STARTTLS: the server does not offer it, and start_tls=True requires it"))
        elif self._username is not None and not _is_this_machine(client):
            text = "login: the server offers no encryption, the password was not sent; start_tls=False would send it"
            raise _RefusedError(Rejected(text, category="authentication"))

    async def _log_in(self, client: aiosmtplib.SMTP) -> None:
        if self._username is None or self._password is None:
            return
        await _greet(client)  # again: after STARTTLS nothing said before counts
        if not client.supported_auth_methods:
            raise _RefusedError(Rejected("login: the server offers no way that is known", category="authentication"))
        await client.login(self._username, self._password)

    async def _recipients(self, client: aiosmtplib.SMTP, mail: _Mail) -> Outcome | None:
        """Name all recipients before judging, so that the refusal that no retry can mend is seen."""
        refusals: list[tuple[int, str]] = []
        for recipient in mail.recipients:
            try:
                await client.rcpt(recipient)
            except self._aiosmtplib.SMTPRecipientRefused as reply:
                refusals.append((reply.code, reply.message))
                if not client.is_connected:
                    break
        if not refusals:
            return None
        worst = max(refusals)
        return self._refusal(f"RCPT, {len(refusals)} of {len(mail.recipients)} recipients", *worst)

    async def _hand_over(self, client: aiosmtplib.SMTP, mail: _Mail) -> Outcome:
        if not client.is_connected:
            return FailedBeforeDispatch("DATA: the server closed the connection before it")
        try:
            reply = await client.data(mail.content)
        except self._aiosmtplib.SMTPDataError as refusal:
            if 400 <= refusal.code < 600:
                return self._refusal("DATA", refusal.code, refusal.message)
            return Unknown(f"DATA: a reply that SMTP does not have here ({refusal.code})")
        except Exception as error:  # noqa: BLE001 - whatever it is, the dot may have arrived
            return Unknown(f"DATA: no reply ({_name(error)})")
        text, _ = clean_text(reply.message, _REPLY_BYTES_MAX)
        return Succeeded({"message_id": mail.message_id, "code": reply.code, "reply": text})

    def _refusal(self, step: str, code: int, message: str) -> Outcome:
        found = _ENHANCED_CODE.match(message)
        reason = f"{step}: SMTP {code} {found[0]}" if found else f"{step}: SMTP {code}"
        if not 500 <= code < 600:
            return FailedBeforeDispatch(reason)
        if step == "login" or code in _NEEDS_AUTHENTICATION:
            return Rejected(reason, category="authentication")
        return Rejected(reason)

    def _prepared(self, request: Any, operation_key: str) -> _Mail:
        """Make the whole message before any connection; what cannot be sent is known here."""
        email = _email(request)
        sender = _address(email.sender, "sender") if email.sender is not None else self._sender
        if sender is None:
            raise _UnsendableError("neither the mail nor the provider names a sender")
        to, cc = _addresses(email.to, "to"), _addresses(email.cc, "cc")
        if not to:
            raise _UnsendableError("to names no recipient")
        _refuse_control(email.subject, "subject")
        identity = message_id(operation_key)
        try:
            message = EmailMessage(policy=_POLICY)
            message["From"] = sender
            message["To"] = to
            if cc:
                message["Cc"] = cc
            message["Subject"] = email.subject
            message["Date"] = datetime.now(UTC)
            message["Message-ID"] = identity
            message.set_content(email.body)
            if email.html is not None:
                message.add_alternative(email.html, subtype="html")
            content = message.as_bytes()
        except (ValueError, TypeError, LookupError) as error:
            raise _UnsendableError(f"it cannot be written as a mail ({type(error).__name__})") from None
        recipients = tuple(dict.fromkeys(address.addr_spec for address in (*to, *cc)))
        return _Mail(sender.addr_spec, recipients, content, identity)


@dataclass(frozen=True, slots=True)
class _Mail:
    sender: str
    recipients: tuple[str, ...]
    content: bytes
    message_id: str


@dataclass(slots=True)
class _Step:
    """Where the dialogue is, for the reason."""

    now: str


class _UnsendableError(Exception):
    """The request is no mail; the text names the part and nothing in it."""


class _RefusedError(Exception):
    """The dialogue ends here, by our own decision."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


def _email(request: Any) -> Email:
    if isinstance(request, Email):
        email = request
    else:
        if isinstance(request, BaseModel):
            given: Any = request.model_dump()
        elif dataclasses.is_dataclass(request) and not isinstance(request, type):
            given = {part.name: getattr(request, part.name) for part in dataclasses.fields(request)}
        else:
            given = request
        names = {part.name for part in dataclasses.fields(Email)}
        if not isinstance(given, Mapping) or not {"to", "subject", "body"} <= given.keys() <= names:
            raise _UnsendableError(f"a mail has to, subject and body, and may have {', '.join(sorted(names))}")
        email = Email(**given)
    for part in ("subject", "body", "sender", "html"):
        value = getattr(email, part)
        if not isinstance(value, str) and (value is not None or part in {"subject", "body"}):
            raise _UnsendableError(f"{part} is a text, not {type(value).__name__}")
    return email


def _addresses(given: object, part: str) -> tuple[Address, ...]:
    if isinstance(given, str):
        given = (given,)
    if not isinstance(given, list | tuple):
        raise _UnsendableError(f"{part} is an address or a list of addresses, not {type(given).__name__}")
    return tuple(_address(text, part) for text in given)


def _address(text: object, part: str) -> Address:
    """
    Read exactly one address.

    More than one in a text, a group or anything the parser had to mend is refused: what was one recipient to the caller
    must not become two on the wire.
    """
    if not isinstance(text, str):
        raise _UnsendableError(f"{part}: an address is a text, not {type(text).__name__}")
    _refuse_control(text, part)
    try:
        header = _POLICY.header_factory("To", text)
        groups, defects = header.groups, header.defects
        address = groups[0].addresses[0]
        plain = Address(address.display_name, address.username, address.domain)
    except Exception:  # noqa: BLE001 - the parser of the library fails in many ways on what is no address
        raise _UnsendableError(f"{part}: not an address") from None
    if defects or len(groups) != 1 or groups[0].display_name is not None or not plain.username or not plain.domain:
        raise _UnsendableError(f"{part}: not exactly one address")
    if not plain.addr_spec.isascii() or not plain.addr_spec.isprintable() or " " in plain.domain:
        raise _UnsendableError(f"{part}: an address is written in ASCII; write a domain in its xn-- form")
    return plain


def _refuse_control(text: str, part: str) -> None:
    """Refuse what could end a header and begin another."""
    if any(ord(character) < 32 or character in "\x7f\x85\u2028\u2029" for character in text):
        raise _UnsendableError(f"{part} holds a line break or another control character")


async def _greet(client: aiosmtplib.SMTP) -> None:
    if not client.is_ehlo_or_helo_needed:
        return
    try:
        await client.ehlo()
    except _import_aiosmtplib().SMTPHeloError:
        if not client.is_connected:
            raise
        await client.helo()  # an old server; it offers neither TLS nor a login


def _is_this_machine(client: aiosmtplib.SMTP) -> bool:
    peer = client.get_transport_info("peername")
    try:
        return ipaddress.ip_address(peer[0]).is_loopback
    except (ValueError, TypeError, IndexError):
        return False


def _part(client: aiosmtplib.SMTP, *, politely: bool) -> None:
    """
    Let go of the connection without waiting.

    Politely: with a QUIT whose answer nobody reads. The outcome is known, and a cancellation that arrives while the
    server takes its time to say goodbye would lose it. Otherwise nothing that is still in our buffer may go out.
    """
    protocol, transport = client.protocol, cast("asyncio.WriteTransport", client.transport)
    if protocol is not None and protocol.is_connected:
        if politely:
            protocol.write(b"QUIT\r\n")
            goodbye = asyncio.get_running_loop().create_task(_cut(transport))
            _GOODBYES.add(goodbye)
            goodbye.add_done_callback(_GOODBYES.discard)
        else:
            transport.abort()
    client.close()


async def _cut(transport: asyncio.WriteTransport) -> None:
    """Cut a connection that is still saying goodbye, at the end of the loop at the latest: TLS waits for the server."""
    try:
        await asyncio.sleep(_GOODBYE_SECONDS)
    finally:
        transport.abort()


def _name(error: BaseException) -> str:
    """Name the error and what the operating system or the TLS library said first."""
    cause = error.__cause__ or error
    return type(error).__name__ if cause is error else f"{type(error).__name__}: {type(cause).__name__}"


def _own_name() -> str:
    # Not socket.getfqdn: it asks the name server, and blocks for as long as that takes.
    name = socket.gethostname()
    return name if re.fullmatch(r"[A-Za-z0-9.-]+", name) else "localhost"


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _import_aiosmtplib() -> ModuleType:
    try:
        import aiosmtplib  # noqa: PLC0415 - an extra: imported only where it is used
    except ImportError:
        raise Invalid("SmtpProvider needs aiosmtplib: pip install 'tenure[smtp]'", code="MISSING_EXTRA") from None
    return aiosmtplib
