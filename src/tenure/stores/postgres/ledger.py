"""A log for an authority ledger in a PostgreSQL database of its own; see `tenure.journal.ledger.Log`."""

from __future__ import annotations

# First, because it tells what to install where the driver is missing.
from tenure.stores.postgres.driver import psycopg  # isort: skip

import os
from collections.abc import Sequence
from typing import Any

from tenure.errors import TenureError, Unavailable
from tenure.stores.postgres.address import read_address

# The catalogue is asked first: a role that may only use the table must not need the right to make it.
_THERE = "SELECT to_regclass('tenure_ledger.entry') IS NOT NULL"
_SCHEMA = """\
SELECT pg_advisory_xact_lock(139105224413);
CREATE SCHEMA IF NOT EXISTS tenure_ledger;
CREATE TABLE IF NOT EXISTS tenure_ledger.entry (sequence bigint NOT NULL PRIMARY KEY, body text NOT NULL)"""
_HOME = """\
SELECT (SELECT system_identifier FROM pg_control_system()) || ':'
    || (SELECT oid FROM pg_database WHERE datname = current_database())"""
_LOCK = "LOCK TABLE tenure_ledger.entry IN SHARE ROW EXCLUSIVE MODE"
_LAST = "SELECT COALESCE(max(sequence), 0) FROM tenure_ledger.entry"
_LOAD = "SELECT sequence, body FROM tenure_ledger.entry WHERE sequence > %s ORDER BY sequence"
_INSERT = "INSERT INTO tenure_ledger.entry (sequence, body) VALUES (%s, %s)"
_EMPTY = "DELETE FROM tenure_ledger.entry"
_COUNT = "SELECT count(*) FROM tenure_ledger.entry"
# For one transaction, so that nothing stays on a connection of a pooler's.
_SETTINGS = """\
SELECT set_config('statement_timeout', '3000', true), set_config('lock_timeout', '3000', true),
    set_config('synchronous_commit', 'on', true)"""
# A ledger that does not answer must not keep its worker's thread. Seconds, and milliseconds.
_CONNECT, _SILENCE = 3, 5000


class PostgresLog:
    """
    A log in a table of the schema `tenure_ledger`.

    Attributes:
        where: The database's URL, without any password.
    """

    def __init__(self, url: str, entries_max: int) -> None:
        address = read_address(url, prepare=None, listen=None, pool_size=None)
        self.where = address.url
        self._conninfo = address.conninfo
        self._entries_max = entries_max
        self._connection: Any = None
        self._process = 0

    def load(self, after: Any) -> tuple[Any, list[bytes]]:
        """See `Log.load`."""

        def work(connection: Any) -> tuple[Any, list[bytes]]:
            if not connection.execute(_THERE).fetchone()[0]:
                return None, []
            (last,) = connection.execute(_LAST).fetchone()
            begin = after if after is not None and after <= last else 0
            rows = connection.execute(_LOAD, (begin,)).fetchall()
            return (rows[-1][0] if rows else begin or None), [body.encode() for _, body in rows]

        loaded: tuple[Any, list[bytes]] = self._do(work)
        return loaded

    def append(self, bodies: Sequence[bytes], after: Any) -> Any:
        """See `Log.append`."""
        return self._do(lambda connection: _write(connection, bodies, after, empty=False))

    def replace(self, body: bytes, after: Any) -> Any:
        """See `Log.replace`."""
        return self._do(lambda connection: _write(connection, [body], after, empty=True))

    def full(self, position: Any, size: int = 0) -> bool:  # noqa: ARG002 - entries are counted
        """See `Log.full`."""
        if position is None or position % self._entries_max:
            return False
        count = self._do(lambda connection: connection.execute(_COUNT).fetchone()[0])
        return bool(count >= self._entries_max)

    def home(self) -> str | None:
        """See `Log.home`: what the server says of itself, whatever name it was reached by."""
        return str(self._do(lambda connection: connection.execute(_HOME).fetchone()[0]))

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        connection, self._connection = self._connection, None
        if connection is not None and self._process == os.getpid():
            connection.close()

    def _do(self, work: Any) -> Any:
        if self._process != os.getpid():
            # A connection never crosses a fork; the parent's is left as it is.
            self._connection, self._process = None, os.getpid()
        fresh = self._connection is None
        try:
            if self._connection is None:
                self._connection = psycopg.connect(
                    self._conninfo,
                    autocommit=True,
                    connect_timeout=_CONNECT,
                    tcp_user_timeout=_SILENCE,
                    prepare_threshold=None,
                )
            connection = self._connection
            with connection.transaction():
                connection.execute(_SETTINGS)
                return work(connection)
        except psycopg.Error as error:
            self.close()
            if not fresh and isinstance(error, psycopg.OperationalError):
                # A connection that was idle for long may be gone; a new one tells.
                return self._do(work)
            raise _trouble(self.where, error) from error


def _write(connection: Any, bodies: Sequence[bytes], after: Any, *, empty: bool) -> Any:
    if not connection.execute(_THERE).fetchone()[0]:
        connection.execute(_SCHEMA)
    connection.execute(_LOCK)
    (last,) = connection.execute(_LAST).fetchone()
    if last != (after or 0):
        return None
    if empty:
        connection.execute(_EMPTY)
    for nth, body in enumerate(bodies, 1):
        connection.execute(_INSERT, (last + nth, body.decode()))
    return last + len(bodies)


def _trouble(where: str, error: psycopg.Error) -> TenureError:
    state = error.sqlstate or type(error).__name__
    return Unavailable(
        f"the authority ledger at {where} did not answer or refused ({state}); see that its server runs and that this "
        f"role may use the schema tenure_ledger there",
        code="LEDGER_UNREACHABLE",
    )


def open_log(url: str, entries_max: int) -> PostgresLog:
    """Make the log; nothing is opened before its first use."""
    return PostgresLog(url, entries_max)
