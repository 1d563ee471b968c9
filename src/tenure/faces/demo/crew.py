"""
The processes of the demonstration: started, killed, stopped and continued by their ids, and all ended with the block.

A process that was stopped in the middle of a transaction would keep everybody else waiting for as long as it is
stopped. `pause` therefore looks after each stop whether it holds anything, and if so continues it and tries again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

_END_SECONDS = 10.0
_LOG_LINES = 12
_LOOK_EVERY = 0.02
_BETWEEN_STOPS = 0.05


class DemoFailed(Exception):
    """The demonstration could not be carried out; the text says what it waited for or who ended."""


class Child:
    """One worker process."""

    def __init__(self, name: str, log: Path, told: dict[str, Any]) -> None:
        self.name = name
        self.log = log
        self.worker_id: str = told["worker_id"]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tenure.faces.demo.worker"], stdin=subprocess.PIPE, stdout=output, stderr=output
            )
        self.expected_to_live = True
        self.say(json.dumps(told))

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def say(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; whoever waits for it says so
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def last_words(self) -> str:
        """Give the end of its log."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:])


class Crew:
    """
    All worker processes of one run; use it with `with`.

    Args:
        folder: Where their logs go.
        seconds: How long the whole run may take.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder = folder
        self._until = time.monotonic() + seconds
        self._seconds = seconds
        self._children: list[Child] = []

    def start(self, name: str, told: dict[str, Any]) -> Child:
        """Start one worker."""
        child = Child(name, self._folder / f"worker-{name.lower()}.log", told)
        self._children.append(child)
        return child

    def kill(self, child: Child) -> int:
        """Send SIGKILL and give the status that the kernel reports; minus nine if that was its end."""
        child.expected_to_live = False
        child.process.kill()
        return child.process.wait(_END_SECONDS)

    def pause(self, child: Child, holds_nothing: Callable[[], bool]) -> None:
        """Send SIGSTOP at a moment at which the process holds no lock of the database."""
        while True:
            os.kill(child.pid, signal.SIGSTOP)
            _, status = os.waitpid(child.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                child.process.returncode = os.waitstatus_to_exitcode(status)
                raise DemoFailed(f"worker {child.name} ended instead of stopping:\n{child.last_words()}")
            if holds_nothing():
                return
            os.kill(child.pid, signal.SIGCONT)
            time.sleep(_BETWEEN_STOPS)  # to get out of what it is in
            self._check_time(f"a moment at which worker {child.name} holds no lock")

    def resume(self, child: Child) -> None:
        """Send SIGCONT."""
        os.kill(child.pid, signal.SIGCONT)

    def end(self, child: Child) -> int:
        """Ask it to drain and wait; give its exit status."""
        child.expected_to_live = False
        child.process.send_signal(signal.SIGTERM)
        try:
            return child.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"worker {child.name} did not drain:\n{child.last_words()}") from None

    def wait(self, what: str, condition: Callable[[], Any]) -> Any:
        """
        Wait until a look at rows or at the ledger gives something, and give it.

        Raises:
            DemoFailed: A worker ended that should live, or the time of the run is over.
        """
        while True:
            found = condition()
            if found:
                return found
            for child in self._children:
                if child.expected_to_live and child.process.poll() is not None:
                    status = child.process.returncode
                    raise DemoFailed(f"worker {child.name} ended with status {status}:\n{child.last_words()}")
            self._check_time(what)
            time.sleep(_LOOK_EVERY)  # what other processes write to a database can only be looked for

    def _check_time(self, what: str) -> None:
        if time.monotonic() > self._until:
            raise DemoFailed(f"after {self._seconds:g} s it still waits for {what}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for child in self._children:
            if child.process.poll() is None:
                child.process.kill()  # a stopped process dies of it too
        for child in self._children:
            with contextlib.suppress(BrokenPipeError), child.process:
                child.process.wait()
