"""A nats-server with JetStream on file storage."""

from __future__ import annotations

import socket

from tests.support.brokers.daemon import Daemon


class NatsServer(Daemon):
    """
    See `Daemon`.

    Args:
        token: What clients must show.
    """

    package = "nats-server"

    def __init__(self, *, token: str | None = None) -> None:
        self.token = token
        super().__init__()

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"nats://{self.token}@127.0.0.1:{self.port}" if self.token else f"nats://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        """Give the arguments."""
        arguments = ["-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.folder / "data")]
        return [*arguments, "--auth", self.token] if self.token else arguments

    def ready(self) -> bool:
        """Tell whether it answers a ping, which it does after JetStream is there."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                return connection.recv(5) == b"INFO "
        except OSError:
            return False
