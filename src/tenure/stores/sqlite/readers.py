"""A few connections that only read: a read waits for no writer and sees what was committed before it began."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tenure.stores.sqlite.failures import busy, closed
from tenure.stores.sqlite.line import PATIENCE

# More readers than this wait for one another; each holds three file handles.
CONNECTIONS_MAX = 4


class Readers:
    """
    The connections, opened when first needed, given out last in first out.

    Attributes:
        idle: Those that nobody uses at the moment.
        out: Those that somebody uses.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._changed = threading.Condition(threading.Lock())
        self.idle: list[sqlite3.Connection] = []
        self.out: list[sqlite3.Connection] = []
        self._lent = 0
        self._paused = False
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection; one that is in an unknown state afterwards is closed."""
        connection = self._take()
        try:
            yield connection
        finally:
            usable = False
            try:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                usable = True
            finally:
                self._put(connection, usable=usable)

    def _take(self) -> sqlite3.Connection:
        end = time.monotonic() + PATIENCE
        with self._changed:
            free = self._changed.wait_for(
                lambda: self._closed or (not self._paused and (self.idle or self._lent < CONNECTIONS_MAX)),
                end - time.monotonic(),
            )
            if not free:
                raise busy()
            if self._closed:
                raise closed()
            self._lent += 1
            if self.idle:
                self.out.append(self.idle.pop())
                return self.out[-1]
        try:
            connection = self._connect()
        except BaseException:
            self._put(None, usable=False)
            raise
        self.out.append(connection)
        return connection

    def _put(self, connection: sqlite3.Connection | None, *, usable: bool) -> None:
        with self._changed:
            if connection is not None:
                self.out.remove(connection)
            if connection is not None and usable and not self._closed and not self._paused:
                self.idle.append(connection)
                connection = None
        # Closed before it is counted as back: whoever waits for all of them must find no file open.
        if connection is not None:
            connection.close()
        with self._changed:
            self._lent -= 1
            self._changed.notify_all()

    def pause(self, patience: float) -> bool:
        """Close every connection and lend none; False where some are still out after the patience."""
        with self._changed:
            self._paused = True
            done = self._changed.wait_for(lambda: self._lent == 0, patience)
            while self.idle:
                self.idle.pop().close()
            return done

    def resume(self) -> None:
        """End a pause."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    def close(self) -> None:
        """Close every connection for good; one that is out is closed when it comes back."""
        with self._changed:
            self._closed = True
            while self.idle:
                self.idle.pop().close()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._lent == 0, PATIENCE)
