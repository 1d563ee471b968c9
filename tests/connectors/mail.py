"""Mail servers for the tests: a real one that keeps what it took, and one that speaks by a table."""

from __future__ import annotations

import asyncio
import contextlib
import email
import email.policy
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from email.message import EmailMessage
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope

from tenure.connectors.provider import send_bounded
from tenure.connectors.smtp import Email, SmtpProvider
from tenure.rules.outcome import Outcome
from tests.connectors.servers import RawServer

KEY = "send_quote:0198aaaa:send"
AMPLE = timedelta(seconds=20)
MAIL = Email(to="ann@example.org", subject="Quote 17", body="Hello Ann", sender="shop@example.org")


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

    def content(self, index: int = 0) -> bytes:
        content = self.mails[index].original_content
        assert content is not None
        return content

    def message(self, index: int = 0) -> EmailMessage:
        parsed = email.message_from_bytes(self.content(index), policy=email.policy.default)
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

    transports: list[asyncio.Transport] = []

    class Session(SMTP):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transports.append(transport)
            super().connection_made(transport)

    async def listen() -> asyncio.Server:
        return await loop.create_server(
            lambda: Session(box, loop=loop, hostname="mail.test", **settings), "127.0.0.1", 0, ssl=direct
        )

    async def end(server: asyncio.Server) -> None:
        server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for transport in transports:
            transport.abort()

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
