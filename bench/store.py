"""The measuring side's own look into a database: counts, WAL and commits, never through the system that is measured."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import Any

SQLITE = "sqlite:///"
_ENDING = 10.0
_OTHERS = (
    "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
    "AND backend_type = 'client backend'"
)


def is_postgres(url: str) -> bool:
    """Tell which of the two databases a URL is of."""
    return url.startswith("postgresql://")


class Eye:
    """
    A connection that only looks.

    Args:
        prefixes: What `{}` before a table's name stands for in queries, on PostgreSQL and on SQLite.
    """

    def __init__(self, url: str, prefixes: tuple[str, str] = ("", "")) -> None:
        self._postgres = is_postgres(url)
        self._prefix = prefixes[0] if self._postgres else prefixes[1]
        self._run: Any
        if self._postgres:
            import psycopg  # noqa: PLC0415 - a system on SQLite comes without it

            self._run = psycopg.connect(url, autocommit=True)
        else:
            self._run = sqlite3.connect(url.removeprefix(SQLITE), isolation_level=None, timeout=30)

    def row(self, statement: str) -> tuple[int, ...]:
        """Give the one row of a query."""
        found: tuple[int, ...] = self._run.execute(statement.replace("{}", self._prefix)).fetchone()
        return found

    def settle(self) -> None:
        """Give every system the same start: statistics and a clean heap after the jobs were put in."""
        self._run.execute("VACUUM ANALYZE" if self._postgres else "ANALYZE")

    def wal(self) -> int | None:
        """Give the position of the log in bytes; None where the database has no such thing."""
        return int(self.row("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')")[0]) if self._postgres else None

    def commits(self) -> int | None:
        """Give the commits of this database, after ending all other connections: a backend's last word is its count."""
        if not self._postgres:
            return None
        # No worker lives at this moment; what a producer's pool has left open is in nobody's way.
        self._run.execute(f"SELECT pg_terminate_backend(pid) {_OTHERS}")
        wait_for(lambda: self.row(f"SELECT count(*) {_OTHERS}")[0] == 0, "connections to end", _ENDING, pause=0.02)
        self._run.execute("SELECT pg_stat_force_next_flush()")
        return int(
            self.row("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")[0],
        )

    def close(self) -> None:
        """Close the connection."""
        self._run.close()


def wait_for(done: Callable[[], bool], what: str, seconds: float, *, pause: float = 0.001) -> None:
    """
    Look again and again until something is true.

    Raises:
        TimeoutError: It was not, in time.
    """
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(pause)  # between two looks; the deadline is above
