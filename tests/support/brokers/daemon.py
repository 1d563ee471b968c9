"""One server process, started and stopped at will; what kind is said by its subclasses."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import IO, ClassVar, Self

from tests.support.process import becoming, free_port, unprivileged

STOP_SECONDS = 30.0
# Where Debian puts servers, which need not be on everybody's PATH.
_PLACES = "/usr/sbin:/usr/local/sbin:/usr/local/bin:/usr/bin"


class NoServer(Exception):
    """A server is not there or does not start; the text says what to do."""


class NotInstalled(NoServer):
    """The program is not on this machine."""


class Daemon(ABC):
    """
    A server of its own.

    Attributes:
        package: The Debian package, which also is the program's name.
        port: Of 127.0.0.1; the same before and after a restart.
        folder: The temporary folder with data and log.
    """

    package: ClassVar[str]
    start_seconds: ClassVar[float] = 20.0

    def __init__(self) -> None:
        self.program = self.find()
        self.folder = Path(tempfile.mkdtemp(prefix=f"tenure-{self.package}-"))
        self.log = self.folder / "log"
        self.account = unprivileged()
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        if self.account is not None:
            os.chown(self.folder, self.account.pw_uid, self.account.pw_gid)
        try:
            self.prepare()
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients find it."""

    @abstractmethod
    def command(self) -> list[str]:
        """Give the arguments of the program."""

    @abstractmethod
    def ready(self) -> bool:
        """Tell whether it serves; asked again and again after the start."""

    def prepare(self) -> None:
        """Write what it reads at its start."""
        return

    def environment(self) -> dict[str, str]:
        """Give its environment; nothing of ours but the PATH."""
        return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "HOME": str(self.folder)}

    @classmethod
    def find(cls) -> str:
        """Give the program's path."""
        found = shutil.which(cls.package) or shutil.which(cls.package, path=_PLACES)
        if found is None:
            raise NotInstalled(f"{cls.package} is not installed; on Debian and Ubuntu: apt-get install {cls.package}")
        return found

    @property
    def pid(self) -> int:
        """The process id; it must have been started."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start (again) on the same folder and port and wait until it serves."""
        assert not self.running, "the server is running already"
        with self.log.open("ab") as log:
            self._process = self.spawn([self.program, *self.command()], log)
        deadline = time.monotonic() + self.start_seconds
        while not self.ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop("kill")
                raise NoServer(f"{self.package} did not start:\n{self.log_tail()}")
            # None of them says when it is ready in a way that all versions share.
            time.sleep(0.02)

    def stop(self, mode: str = "term") -> None:
        """
        Stop and wait for the end.

        Args:
            mode: `term`, or `kill` for SIGKILL.
        """
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGKILL if mode == "kill" else signal.SIGTERM)
            if mode != "kill":
                process.send_signal(signal.SIGCONT)  # one that is paused would not hear it
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)

    def pause(self) -> None:
        """Let it answer nothing, with all its connections open."""
        os.kill(self.pid, signal.SIGSTOP)
        # The signal is on its way when `kill` returns: threads on another core may still answer.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop and remove the folder."""
        try:
            self.stop("kill")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def log_tail(self, lines: int = 15) -> str:
        """Give the end of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def spawn(self, argv: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a program like this server: unprivileged, in its folder, ended with us."""
        return subprocess.Popen(
            becoming(argv, self.account, self.folder, signal.SIGKILL),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A Ctrl-C at the terminal is for the test run, which then stops the server in its own order.
            start_new_session=True,
            env=self.environment(),
        )

    def listening(self) -> bool:
        """Tell whether somebody accepts connections on the port."""
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True
