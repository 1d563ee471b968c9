"""Servers for the connectors' tests: real sockets on loopback that behave as badly as a test asks."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

# A key pair of this folder only: it proves nothing to anybody, and is valid for localhost.
CERTIFICATE = Path(__file__).with_name("localhost.pem")


class RawServer:
    """
    Accepts connections one after the other and lets `behave` do what it likes with each.

    Attributes:
        received: What `read_request` and the SMTP script read, for checks that a secret really was on the wire.
    """

    def __init__(self, behave: Callable[[socket.socket, RawServer], None], *, tls: bool = False) -> None:
        self.received = b""
        self.connections = 0
        self._behave = behave
        self._tls = server_tls() if tls else None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._open: list[socket.socket] = []

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/effects"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            # What a client that went away does to us is not the test's business.
            with connection, contextlib.suppress(OSError):
                if self._tls is None:
                    self._behave(connection, self)
                else:
                    with self._tls.wrap_socket(connection, server_side=True) as secure:
                        self._behave(secure, self)


def server_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


def client_tls() -> ssl.SSLContext:
    """Trust the servers of this folder and nobody else."""
    return ssl.create_default_context(cafile=str(CERTIFICATE))


def read_request(connection: socket.socket, server: RawServer) -> None:
    """Read one HTTP request to its end."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _more(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
    )
    while len(body) < length:
        body += _more(connection)
    server.received += head + b"\r\n\r\n" + body


def reset(connection: socket.socket) -> None:
    """Close so that the other side gets a reset, not an end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def answering(answer: bytes) -> Callable[[socket.socket, RawServer], None]:
    """Read a request, write exactly these bytes, close."""

    def behave(connection: socket.socket, server: RawServer) -> None:
        read_request(connection, server)
        connection.sendall(answer)

    return behave


def response(status: int, body: bytes = b"{}", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Text", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """Give a port to which a connection neither stands nor fails: its queue is full and nobody accepts."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        for _ in range(8):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(("127.0.0.1", port))
        yield port


def refused_port() -> int:
    """Give a port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _more(connection: socket.socket) -> bytes:
    part = connection.recv(65536)
    if not part:
        raise ConnectionError
    return part
