"""
A TCP proxy in front of PostgreSQL that breaks connections at the moment a test chooses.

It reads the protocol far enough to know which statement is executed, so it can let a COMMIT through and lose the
server's reply, or lose the COMMIT itself. It counts what it sees: a test that lost nothing has proved nothing.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

_LENGTH = struct.Struct(">I")
_STARTUP = 196608
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """
    Listens on a loopback port of its own until closed.

    Args:
        url: Of the server, `postgresql://user@host:port/database`.

    Attributes:
        url: The same through this proxy.
        refusing: New connections are reset at once.
        seen: Counts of `connections`, `trips` (round trips asked for), `commits`, `lost_replies`, `lost_commits`,
            `resets`, `refused`.
        statements: The texts executed, in order.
        named: How many statements were prepared by name.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None, "the server's URL names a host"
        self._server = (parts.hostname, parts.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        self.url = urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{port}"))
        self.refusing = False
        self.seen: Counter[str] = Counter()
        self.statements: list[str] = []
        self.named = 0
        self.lock = threading.Condition()
        self.flowing = threading.Event()
        self.flowing.set()
        self._replies_to_lose = 0
        self._commits_to_lose = 0
        self._cut_at: list[str] = []
        self._links: set[_Link] = set()
        self._closed = False
        self._acceptor = threading.Thread(target=self._accept, name="proxy-accept")
        self._acceptor.start()

    def lose_replies(self, times: int = 1) -> None:
        """Let the next commits through, and reset their connections instead of passing on the reply."""
        with self.lock:
            self._replies_to_lose = times

    def lose_commits(self, times: int = 1) -> None:
        """Reset the connections of the next commits instead of passing the commit on."""
        with self.lock:
            self._commits_to_lose = times

    def cut_at(self, *texts: str) -> None:
        """Reset the connection instead of passing on a statement that holds this text; once for each text."""
        with self.lock:
            self._cut_at = list(texts)

    def wait_for_lost_reply(self, seconds: float = 30) -> bool:
        """Wait until a reply to a commit was lost."""
        with self.lock:
            return self.lock.wait_for(lambda: self.seen["lost_replies"] > 0, seconds)

    def hold(self) -> None:
        """Say nothing to anybody, as a broken network does; connections stay open."""
        self.flowing.clear()

    def flow(self) -> None:
        """Pass everything on again, what was held back first."""
        self.flowing.set()

    def reset(self) -> int:
        """Reset every connection that is open now; give how many."""
        with self.lock:
            links = list(self._links)
        for link in links:
            link.cut()
        with self.lock:
            self.seen["resets"] += len(links)
        return len(links)

    def close(self) -> None:
        """End every connection and thread."""
        self._closed = True
        self.flow()
        # Wakes the accepting thread.
        with socket.create_connection(self._listener.getsockname()):
            self._acceptor.join()
        self._listener.close()
        with self.lock:
            links = list(self._links)
        for link in links:
            link.cut()
        for link in links:
            link.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._closed:
                client.close()
                return
            if self.refusing:
                self.seen["refused"] += 1
                _cut(client)
                continue
            try:
                server = socket.create_connection(self._server)
            except OSError:
                # The server is down: the client finds the same.
                _cut(client)
                continue
            self.seen["connections"] += 1
            link = _Link(self, client, server)
            with self.lock:
                self._links.add(link)
            link.start()

    def forget(self, link: _Link) -> None:
        """A connection has ended."""
        with self.lock:
            self._links.discard(link)

    # Asked by a connection for each statement and each reply.

    def passes(self, text: str) -> bool:
        """Tell whether a statement is passed on."""
        with self.lock:
            self.statements.append(text)
            self.lock.notify_all()
            for wanted in self._cut_at:
                if wanted in text:
                    self._cut_at.remove(wanted)
                    self.seen["resets"] += 1
                    return False
            if text == "COMMIT":
                self.seen["commits"] += 1
                if self._commits_to_lose:
                    self._commits_to_lose -= 1
                    self.seen["lost_commits"] += 1
                    return False
            return True

    def passes_reply(self, tag: str) -> bool:
        """Tell whether the reply to a finished statement is passed on."""
        with self.lock:
            if tag == "COMMIT" and self._replies_to_lose:
                self._replies_to_lose -= 1
                self.seen["lost_replies"] += 1
                self.lock.notify_all()
                return False
            return True


class _Link:
    """One client's connection and its way on."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._queries: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}
        for side in (client, server):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._threads = (
            threading.Thread(target=self._to_server, name="proxy-to-server"),
            threading.Thread(target=self._to_client, name="proxy-to-client"),
        )

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        """Reset both sides: unread bytes are thrown away, as by a crashed router."""
        for side in (self._client, self._server):
            _cut(side)

    def _to_server(self) -> None:
        try:
            while (size := _LENGTH.unpack(_exactly(self._client, 4))[0]) and (code := _exactly(self._client, size - 4)):
                # A question about encryption is answered with one byte and may be followed by the real start.
                self._pass(self._server, _LENGTH.pack(size) + code)
                if _LENGTH.unpack(code[:4])[0] == _STARTUP:
                    break
            for kind, body in _messages(self._client):
                if not self._understand(kind, body):
                    self.cut()
                    return
                self._pass(self._server, kind + _LENGTH.pack(len(body) + 4) + body)
        except OSError:
            pass  # cut, by one side or by us: the end of this connection either way
        self.cut()
        self._proxy.forget(self)

    def _understand(self, kind: bytes, body: bytes) -> bool:
        if kind == b"P":
            name, text, _ = body.split(b"\0", 2)
            self._queries[name] = text.decode()
            self._proxy.named += name != b""
        elif kind == b"B":
            portal, name, _ = body.split(b"\0", 2)
            self._portals[portal] = self._queries[name]
        elif kind == b"E":
            return self._proxy.passes(self._portals[body.split(b"\0", 1)[0]])
        elif kind == b"Q":
            self._proxy.seen["trips"] += 1
            return self._proxy.passes(body.rstrip(b"\0").decode())
        elif kind == b"S":
            self._proxy.seen["trips"] += 1
        return True

    def _to_client(self) -> None:
        try:
            encrypted = True
            while encrypted:
                first = self._server.recv(1)
                # N: no encryption here; anything else begins the first message.
                encrypted = first == b"N" and not self._queries
                if encrypted:
                    self._pass(self._client, first)
                elif first:
                    size = _exactly(self._server, 4)
                    self._pass(self._client, first + size + _exactly(self._server, _LENGTH.unpack(size)[0] - 4))
            for kind, body in _messages(self._server):
                if kind == b"C" and not self._proxy.passes_reply(body.rstrip(b"\0").decode()):
                    self.cut()
                    return
                self._pass(self._client, kind + _LENGTH.pack(len(body) + 4) + body)
        except OSError:
            pass
        self.cut()

    def _pass(self, side: socket.socket, data: bytes) -> None:
        self._proxy.flowing.wait()
        side.sendall(data)


def _messages(side: socket.socket) -> Iterator[tuple[bytes, bytes]]:
    while True:
        kind = side.recv(1)
        if not kind:
            return
        size = _LENGTH.unpack(_exactly(side, 4))[0]
        yield kind, _exactly(side, size - 4)


def _exactly(side: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = side.recv(size - len(data))
        if not part:
            raise ConnectionResetError
        data += part
    return bytes(data)


def _cut(side: socket.socket) -> None:
    try:
        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        # Closing alone would not wake a thread that waits on this socket.
        side.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # closed already
    side.close()
