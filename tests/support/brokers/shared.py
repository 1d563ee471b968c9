"""
One RabbitMQ for all processes of a test run: it takes ten seconds to start, the others a tenth of one.

As with the run's PostgreSQL every process holds a shared kernel lock on one file, and a watcher, detached from all of
them, owns the server and waits for the exclusive lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.brokers.daemon import NoServer
from tests.support.brokers.rabbitmq import RabbitServer
from tests.support.postgres.server import closing_on_signals

_ROOT = Path(__file__).resolve().parents[3]


@contextlib.contextmanager
def attach(meeting: Path) -> Iterator[str]:
    """
    Give the URL of the run's RabbitMQ, starting it if this process is the first.

    Args:
        meeting: A folder that all processes of the run, and no others, know.
    Raises:
        NoServer: It is not installed, or does not start.
    """
    RabbitServer.find()
    meeting.mkdir(parents=True, exist_ok=True)
    with (meeting / "users.lock").open("a") as users:
        with (meeting / "start.lock").open("a") as start:
            fcntl.flock(start, fcntl.LOCK_EX)
            # Waits while a watcher is stopping its server; then there is no state file and a new one is started.
            fcntl.flock(users, fcntl.LOCK_SH)
            url = _running(meeting) or _start_watcher(meeting)
        yield url


def watch(meeting: Path) -> None:
    """Own the run's server until nobody uses it; called in a process of its own, which tells its state on stdout."""
    state = meeting / "server.json"
    if os.fork():
        os._exit(0)
    os.setsid()
    with closing_on_signals(), (meeting / "users.lock").open("a") as users:
        try:
            server = RabbitServer()
        except NoServer as error:
            _tell({"error": str(error)})
            return
        with server:
            partial = state.with_suffix(".part")
            partial.write_text(json.dumps({"url": server.url}))
            partial.replace(state)
            _tell({"url": server.url})
            try:
                fcntl.flock(users, fcntl.LOCK_EX)
            finally:
                state.unlink(missing_ok=True)


def _tell(answer: dict[str, str]) -> None:
    # The starter reads until the end of the stream, so the stream must end here while this process lives on.
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)


def _start_watcher(meeting: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.brokers", "--watch", str(meeting)],
        cwd=_ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        answer: dict[str, str] = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise NoServer(f"the process that starts RabbitMQ failed:\n{done.stderr}") from None
    if "error" in answer:
        raise NoServer(answer["error"])
    return answer["url"]


def _running(meeting: Path) -> str | None:
    try:
        state: dict[str, str] = json.loads((meeting / "server.json").read_text())
    except FileNotFoundError:
        return None
    try:
        socket.create_connection(("127.0.0.1", urlsplit(state["url"]).port or 0), timeout=10).close()
    except OSError:
        # Its watcher was killed and took the server along.
        return None
    return state["url"]
