"""
A PgBouncer in front of the run's PostgreSQL, in transaction mode with two connections.

Two, so that a client gets now this connection and now the other: whatever it left in a session is found by somebody
else.
"""

from __future__ import annotations

import contextlib
from urllib.parse import urlsplit, urlunsplit

import psycopg

from tests.support.brokers.daemon import Daemon

_CONFIGURATION = """
[databases]
* = host={host} port={server} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 200
"""


# One transaction here and the next one there, and whoever would need a third connection is told instead of waiting.
MIXING = """
min_pool_size = 2
server_round_robin = 1
query_wait_timeout = 30
"""


class PgBouncer(Daemon):
    """
    See `Daemon`; refuses root, so as root it runs as an unprivileged user like the others.

    Args:
        behind: The URL of any database on the server.
        pool_size: Connections to the server for each database.
        settings: More lines of its configuration.
    """

    package = "pgbouncer"

    def __init__(self, behind: str, *, pool_size: int = 2, settings: str = "") -> None:
        self._behind = urlsplit(behind)
        self._pool_size = pool_size
        self._settings = settings
        super().__init__()

    @property
    def url(self) -> str:
        """The URL of the database it was made for."""
        return self.through(urlunsplit(self._behind))

    def through(self, url: str) -> str:
        """
        Give the way through it to a database of the same server, as a store's URL.

        Nothing may be prepared by name behind it, and it has no LISTEN.
        """
        parts = urlsplit(url)
        user = f"{parts.username or 'postgres'}@"
        way = parts._replace(netloc=f"{user}127.0.0.1:{self.port}", query="tenure_prepare=off&tenure_listen=off")
        return urlunsplit(way)

    def take_turns(self) -> None:
        """Open every connection of the pool, so that with `MIXING` the next transactions take turns on them."""
        with contextlib.ExitStack() as stack:
            for _ in range(self._pool_size):
                client = stack.enter_context(psycopg.connect(self.url.partition("?")[0]))
                client.execute("SELECT 1")

    def prepare(self) -> None:
        """Write the configuration."""
        text = _CONFIGURATION.format(
            host=self._behind.hostname,
            server=self._behind.port or 5432,
            user=self._behind.username or "postgres",
            port=self.port,
            size=self._pool_size,
        )
        (self.folder / "pgbouncer.ini").write_text(f"{text}{self._settings}\n")

    def command(self) -> list[str]:
        """Give the arguments; without -d it stays in the foreground."""
        return [str(self.folder / "pgbouncer.ini")]

    def ready(self) -> bool:
        """Tell whether a query gets through."""
        try:
            psycopg.connect(self.url.partition("?")[0], connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True
