"""
Waking others through LISTEN and NOTIFY: an accelerator of polling, never the only way to find work.

Listening takes a connection of its own for as long as it lasts, because a notification belongs to a session; behind a
transaction-mode pooler it needs the server's direct URL, or is off. Notifying takes a short transaction of its own:
every commit that notifies takes one lock of the whole server, so it must not be the caller's, and there is at most one
in fifty milliseconds. Where a store has just committed work, that transaction goes along in the same round trip.
"""

from __future__ import annotations

import math
import os
import random
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Self

import psycopg

from tenure.stores.postgres.connection import BlockingConnection
from tenure.stores.postgres.values import plain

_LISTEN = b"LISTEN tenure"
# What has no BEGIN is one transaction until the end of its round trip, alone or behind somebody's commit. Nobody waits
# for the disk, and not for long behind the notifications of others: what is lost is found by polling, like all that
# nobody notified of.
NOTIFY = plain(
    "notify",
    "SELECT set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '50ms', true), "
    "pg_notify('tenure', '')",
)._replace(spare=True)
# Seconds between two notifications of one store.
INTERVAL = 0.05
# Seconds: how long a start waits for the first LISTEN, how long between two attempts, how long without a word before
# the connection is tried.
_FIRST = 5.0
_PAUSE_MIN, _PAUSE_MAX = 0.1, 5.0
_QUIET = 30.0


class Listener:
    """
    A thread that listens, connects again when it has to, and ends with its block.

    Attributes:
        heard: False where listening could not be started; the thread goes on trying.
    """

    def __init__(self, conninfo: str, wake: Callable[[], None]) -> None:
        self._conninfo = conninfo
        self._wake = wake
        self._ready = threading.Event()
        self._error: Exception | None = None
        self._mine, self._its = socket.socketpair()
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._run, name="tenure-listen")

    @property
    def heard(self) -> bool:
        """Tell whether the server was listened to at least once."""
        return self._ready.is_set()

    def start(self) -> Self:
        """Start and wait a little for the first LISTEN."""
        self._thread.start()
        self._ready.wait(_FIRST)
        return self

    def stop(self) -> Exception | None:
        """End the thread and its connection; give the first error of `wake`, which must not end the listening."""
        if os.getpid() != self._owner:
            # A forked child: the thread is the parent's, and the end of the pair would stop it.
            return None
        self._mine.send(b"x")
        self._thread.join()
        self._mine.close()
        self._its.close()
        return self._error

    def _run(self) -> None:
        pause = _PAUSE_MIN
        while True:
            began = time.monotonic()
            try:
                with BlockingConnection.connect(self._conninfo, report=lambda _: None, autocommit=True) as connection:
                    connection.execute(_LISTEN)
                    self._ready.set()
                    # What came while nobody listened is only found by looking.
                    self._call()
                    if self._listen(connection):
                        return
            except psycopg.Error:
                # The server restarts, or the network broke: that is what the next round is for.
                if time.monotonic() - began > _PAUSE_MAX:
                    pause = _PAUSE_MIN
            if self._stopped(random.uniform(pause / 2, pause)):  # noqa: S311 - spreads load, guards nothing
                return
            pause = min(_PAUSE_MAX, pause * 2)

    def _listen(self, connection: BlockingConnection) -> bool:
        # True when the block has ended. The driver raises when the connection breaks.
        with selectors.DefaultSelector() as selector:
            selector.register(self._its, selectors.EVENT_READ)
            selector.register(connection.fileno(), selectors.EVENT_READ)
            while True:
                events = selector.select(_QUIET)
                if any(key.fileobj is self._its for key, _ in events):
                    return True
                if not events:
                    # Half a connection says nothing either; asking finds out.
                    connection.execute(b"SELECT 1")
                if list(connection.notifies(timeout=0)):
                    self._call()

    def _stopped(self, seconds: float) -> bool:
        self._its.settimeout(seconds)
        try:
            return bool(self._its.recv(1))
        except TimeoutError:
            return False
        finally:
            self._its.settimeout(None)

    def _call(self) -> None:
        try:
            self._wake()
        except Exception as error:  # noqa: BLE001 - kept, and raised where the block ends
            self._error = self._error or error


class Pace:
    """Sees to it that a store never sends two notifications within the interval; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free_at = -math.inf

    def due(self) -> bool:
        """Tell whether one may be sent now, by whoever asks first."""
        return self.wait_for() <= 0

    def wait_for(self) -> float:
        """Take the next turn, unless it is not yet free: then say in how many seconds it is."""
        now = time.monotonic()
        with self._lock:
            if now < self._free_at:
                return self._free_at - now
            self._free_at = now + INTERVAL
            return 0.0


class Notifier:
    """
    Sends a notification soon, and never two within the interval.

    The thread lives while there is something to send: a process that ends need not wait for it long, and an idle store
    has none.
    """

    def __init__(self, send: Callable[[], None], pace: Pace) -> None:
        self._send = send
        self._pace = pace
        self._lock = threading.Lock()
        self._pending = False
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def notify(self) -> None:
        """Ask for a notification; returns at once."""
        with self._lock:
            self._pending = True
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._run, name="tenure-notify")
                self._thread.start()

    def close(self) -> None:
        """Send what is pending and end."""
        self._closing.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._pending:
                    self._thread = None
                    return
                self._pending = False
            while (left := self._pace.wait_for()) > 0 and not self._closing.wait(left):
                pass
            self._send()
