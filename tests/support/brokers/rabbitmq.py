"""
A rabbitmq-server with a node name, folders, ports and an epmd of its own.

epmd tells nodes where others are. RabbitMQ would start one that outlives it and listens on every address; this one is
our child, listens on loopback, and ends with the server.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from typing import ClassVar

from tests.support.brokers.daemon import STOP_SECONDS, Daemon, NotInstalled
from tests.support.process import free_port

_CONFIGURATION = """
listeners.tcp.1 = 127.0.0.1:{port}
log.console = true
log.console.level = warning
log.file = false
loopback_users = none
vm_memory_high_watermark.relative = 0.8
disk_free_limit.absolute = 1MB
"""


class RabbitServer(Daemon):
    """See `Daemon`."""

    package = "rabbitmq-server"
    start_seconds: ClassVar[float] = 90.0

    def __init__(self) -> None:
        self._epmd: subprocess.Popen[bytes] | None = None
        self._epmd_port = free_port()
        self._dist_port = free_port()
        super().__init__()

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @classmethod
    def find(cls) -> str:
        """Give the program itself: Debian's wrapper on the PATH changes the user and the folder."""
        super().find()
        found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))
        if found:
            return str(found[-1])
        return super().find()

    def prepare(self) -> None:
        """Write the configuration, and start epmd."""
        (self.folder / "rabbitmq.conf").write_text(_CONFIGURATION.format(port=self.port))
        (self.folder / "enabled_plugins").write_text("[].\n")
        epmd = shutil.which("epmd") or shutil.which("epmd", path="/usr/bin:/usr/local/bin")
        if epmd is None:
            raise NotInstalled("epmd is not installed; on Debian and Ubuntu it comes with rabbitmq-server")
        with self.log.open("ab") as log:
            self._epmd = self.spawn([epmd, "-address", "127.0.0.1", "-port", str(self._epmd_port)], log)

    def command(self) -> list[str]:
        """Give no arguments: everything is in the environment."""
        return []

    def environment(self) -> dict[str, str]:
        """Give the settings."""
        loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
        return {
            **super().environment(),
            # Then the script becomes the server, and its process id is the server's.
            "RUNNING_UNDER_SYSTEMD": "true",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_CRASH_DUMP": "/dev/null",
            "RABBITMQ_NODENAME": f"tenure{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-start_epmd false +S 2:2 {loopback}",
        }

    def ready(self) -> bool:
        """Tell whether it answers a client's greeting."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.settimeout(5)
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                return connection.recv(1) == b"\x01"
        except OSError:
            return False

    @property
    def epmd_pid(self) -> int:
        """The process id of epmd."""
        assert self._epmd is not None, "epmd is not running"
        return self._epmd.pid

    def close(self) -> None:
        """Stop both, and remove the folder."""
        try:
            self.stop("kill")
        finally:
            epmd, self._epmd = self._epmd, None
            if epmd is not None:
                epmd.kill()
                epmd.wait(STOP_SECONDS)
            super().close()
