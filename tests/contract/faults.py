"""
Commits whose reply is lost.

On SQLite the writer's commit fails with an input/output error, after it was done or instead of it: the engine cannot
tell which. On PostgreSQL a proxy lets COMMIT through and cuts the connection instead of passing on the reply, or cuts
it instead of passing on COMMIT. In both cases the store asks again, and nobody but the fault's own counter can tell
whether the first commit held.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import psycopg

from tests.contract.bench import Bench
from tests.support.proxy import Proxy


class Fault(Protocol):
    """Something that loses the reply to one commit."""

    bench: Bench

    def lose(self, *, committed: bool) -> Any:
        """Lose the reply to the next commit inside the block; the block fails where there was none."""
        ...


class SqliteFault:
    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    @contextmanager
    def lose(self, *, committed: bool) -> Iterator[None]:
        engine = self.bench.store._engine  # type: ignore[union-attr]  # only a SQLite store comes here
        commit = engine.commit
        hits: list[bool] = []

        def failing(connection: sqlite3.Connection) -> None:
            if hits:
                commit(connection)
                return
            hits.append(committed)
            if committed:
                commit(connection)
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error

        engine.commit = failing
        try:
            yield
        finally:
            del engine.commit
        assert hits, "no commit was lost"


class Gate(Proxy):
    """
    A proxy that is silent after a lost commit until the server has noticed, too, that its client is gone.

    Until then the lost transaction holds its locks, and what skips locked rows would find others than at first.
    """

    def passes(self, text: str) -> bool:
        passed = super().passes(text)
        if not passed:
            self.hold()
            threading.Thread(target=self._open_again, name="gate").start()
        return passed

    def _open_again(self) -> None:
        # The gate of the test before may still be looking, and two that wait for each other wait for ever.
        with psycopg.connect(self.server_url, autocommit=True, application_name=_NAME) as connection:
            while connection.execute(_STILL_OPEN).fetchall() != [(0,)]:
                connection.execute("SELECT pg_sleep(0.002)")
        self.flow()

    def __init__(self, url: str) -> None:
        self.server_url = url
        super().__init__(url)


_NAME = "gate"
_STILL_OPEN = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name <> 'gate' AND state <> 'idle'
    AND backend_type = 'client backend'
"""


class PostgresFault:
    def __init__(self, bench: Bench, proxy: Proxy) -> None:
        self.bench = bench
        self._proxy = proxy

    @contextmanager
    def lose(self, *, committed: bool) -> Iterator[None]:
        name = "lost_replies" if committed else "lost_commits"
        before = self._proxy.seen[name]
        if committed:
            self._proxy.lose_replies()
        else:
            self._proxy.lose_commits()
        yield
        assert self._proxy.seen[name] == before + 1, "no commit was lost"
