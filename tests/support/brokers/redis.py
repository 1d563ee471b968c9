"""A redis-server that writes each command to its disk before it answers."""

from __future__ import annotations

import socket

from tests.support.brokers.daemon import Daemon


class RedisServer(Daemon):
    """
    See `Daemon`.

    Args:
        password: What clients must show.
    """

    package = "redis-server"

    def __init__(self, *, password: str | None = None) -> None:
        self.password = password
        super().__init__()

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"redis://{f':{self.password}@' if self.password else ''}127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        """Give the arguments."""
        arguments = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder)]
        durable = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        return [*arguments, *durable, *(["--requirepass", self.password] if self.password else [])]

    def ready(self) -> bool:
        """Tell whether it answers, and has read its data."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(7) in {b"+PONG\r\n", b"-NOAUTH"}
        except OSError:
            return False
