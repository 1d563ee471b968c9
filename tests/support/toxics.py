"""
A TCP proxy that knows no protocol and spoils what passes: late, slow, in slices, cut short, silent, wrong.

One kind of fault is at work at a time, on every connection, until it is healed. `hits` counts what was really spoiled;
a test in which nothing was has proved nothing.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections import Counter
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

from tests.support.proxy import _cut

LATENCY_SECONDS = 0.03
BYTES_PER_SECOND = 60_000
SLICE_BYTES = 7
LIMIT_BYTES = 40
CLOSE_SECONDS = 0.4
KINDS = (
    *("latency", "bandwidth", "slicer", "slow close", "timeout", "limit data"),
    *("reset", "silence", "garbage", "refused", "dropped answer"),
)


class Toxics:
    """
    Listens on a loopback port of its own until closed.

    Args:
        url: Of what is behind, `scheme://user@host:port/name`.

    Attributes:
        url: The same through this proxy.
        hits: How often each kind of fault was at work.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None, "the URL names a host"
        assert parts.port is not None, "the URL names a port"
        self._behind = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        user = f"{parts.username}@" if parts.username else ""
        self.url = urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{self._listener.getsockname()[1]}"))
        self.hits: Counter[str] = Counter()
        self._kind: str | None = None
        self._lock = threading.Lock()
        self._links: set[tuple[socket.socket, socket.socket]] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._start(self._accept)

    def spoil(self, kind: str) -> None:
        """Spoil everything in this way from now on; connections that are open are spoiled, too."""
        assert kind in KINDS
        self._kind = kind
        if kind == "refused":
            self._cut_all()

    def heal(self) -> None:
        """Spoil nothing any more. What was spoiled stays so: those connections end."""
        kind, self._kind = self._kind, None
        if kind not in {"latency", "bandwidth", "slicer"}:
            self._cut_all()

    def close(self) -> None:
        """End every connection and thread."""
        self._closed = True
        with socket.create_connection(self._listener.getsockname()):
            self._threads[0].join()
        self._listener.close()
        self._cut_all()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, name="toxics")  # type: ignore[arg-type]  # a method of ours
        self._threads.append(thread)
        thread.start()

    def _cut_all(self) -> None:
        with self._lock:
            links, self._links = self._links, set()
        for link in links:
            for side in link:
                _cut(side)

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._closed:
                client.close()
                return
            if self._kind == "refused":
                self.hits["refused"] += 1
                _cut(client)
                continue
            try:
                server = socket.create_connection(self._behind)
            except OSError:
                _cut(client)
                continue
            with self._lock:
                self._links.add((client, server))
            self._start(self._pump, client, server, False)
            self._start(self._pump, server, client, True)

    def _pump(self, one: socket.socket, other: socket.socket, answers: bool) -> None:
        """Pass on what comes from one side; `answers` says whether it comes from the server."""
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                kind = self._kind
                if kind is not None and self._spoiled(kind, data, other, answers=answers):
                    break
                if kind is None:
                    other.sendall(data)
        _cut(one)
        _cut(other)

    def _spoiled(self, kind: str, data: bytes, other: socket.socket, *, answers: bool) -> bool:
        """Pass on what this kind of fault lets pass; say whether the connection is over."""
        if kind in {"latency", "bandwidth", "slicer"}:
            self.hits[kind] += 1
            _slowly(kind, data, other)
            return False
        if kind == "reset":
            self.hits[kind] += 1
            return True
        if kind == "timeout" or (kind == "silence" and answers):
            self.hits[kind] += 1
            return self._quiet(kind)
        if not answers:
            other.sendall(data)
            return False
        self.hits[kind] += 1
        if kind == "limit data":
            other.sendall(data[:LIMIT_BYTES])
        elif kind == "slow close":
            time.sleep(CLOSE_SECONDS)  # this is the fault
        elif kind == "garbage":
            other.sendall(random.randbytes(len(data)))
        return True

    def _quiet(self, kind: str) -> bool:
        if kind == "timeout":
            time.sleep(CLOSE_SECONDS)  # this is the fault
            return True
        return False


def _slowly(kind: str, data: bytes, other: socket.socket) -> None:
    if kind == "latency":
        time.sleep(LATENCY_SECONDS)  # this is the fault
        other.sendall(data)
        return
    size = SLICE_BYTES if kind == "slicer" else 1024
    for begin in range(0, len(data), size):
        part = data[begin : begin + size]
        if kind == "bandwidth":
            time.sleep(len(part) / BYTES_PER_SECOND)  # this is the fault
        other.sendall(part)
