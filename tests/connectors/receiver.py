"""A webhook's receiver: a real HTTP server on loopback that keeps what it got and answers as a test asks."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Request:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Answer:
    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class Receiver:
    """
    Serves until the block is left.

    Attributes:
        requests: What came, in the order of its arrival.
        connections: How many connections were made.
        most_at_once: How many requests were under way at the same time.
    """

    def __init__(self, answer: Callable[[Request], Answer] = lambda _: Answer(), *, port: int = 0) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self.most_at_once = 0
        self.answer = answer
        self._now = 0
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 30

            def setup(self) -> None:
                super().setup()
                receiver.connections += 1
                receiver._open.append(self.connection)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = Request(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
                with receiver._lock:
                    receiver.requests.append(request)
                    receiver._now += 1
                    receiver.most_at_once = max(receiver.most_at_once, receiver._now)
                try:
                    answer = receiver.answer(request)
                finally:
                    with receiver._lock:
                        receiver._now -= 1
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if answer.status != 204:
                    self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, *_: Any) -> None:
                return

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, *_: Any) -> None:
                return  # what a client that went away does is not the test's business

        self._server = Server(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
