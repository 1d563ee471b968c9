"""
Processes that may die, quickly made: a server imports everything once and forks a child for each program.

The server has one thread and no connection, so a fork of it is as good as a fresh start. It tells how each child ended;
whoever started the server ends with it, and it ends its children by their ids.

    with Forks() as forks:
        child = forks.start("tests.crash.programs:main", {"url": ...}, output=path)
        assert forks.wait(child) == -signal.SIGKILL
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tenure.connectors.http import HttpProvider
from tenure.rules.outcome import FailedBeforeDispatch

ROOT = Path(__file__).parents[2]
# No program of these tests takes nearly as long; one that hangs tells where, and ends by itself.
_CHILD_SECONDS = 50
# A wait for a stop that will not come must end before the test's own limit.
_ANSWER_SECONDS = 60
_PRELOADED = (
    "tests.crash.programs",
    "tests.stories.workers",
    "tenure.loops.worker",
    "tenure.stores.postgres.store",
    "tenure.stores.sqlite.store",
)


class Forks:
    """The server, seen from a test."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.forks"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, program: str, given: dict[str, Any], *, output: Path) -> int:
        """
        Run `module:function(given)` in a new process and give its id.

        Args:
            output: Where everything it prints goes.
        """
        pid: int = self._ask({"start": program, "given": given, "output": str(output)})
        return pid

    def wait(self, pid: int) -> int:
        """Wait until a child has ended; minus the signal's number where a signal ended it."""
        status: int = self._ask({"wait": pid, "stopped": False})
        return status

    def wait_stopped(self, pid: int) -> None:
        """Wait until a child has stopped itself."""
        status = self._ask({"wait": pid, "stopped": True})
        assert status == "stopped", f"the process ended with {status} instead of stopping"

    def kill(self, pid: int) -> None:
        """End a child as a power cut would, and wait until it is gone."""
        os.kill(pid, signal.SIGKILL)
        assert self.wait(pid) == -signal.SIGKILL

    def end(self, pid: int) -> int:
        """Ask a worker to stop, and give its exit status."""
        os.kill(pid, signal.SIGTERM)
        return self.wait(pid)

    def _ask(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        watchdog = threading.Timer(_ANSWER_SECONDS, self._process.kill)
        watchdog.start()
        try:
            answer = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        assert answer, f"no answer to {question} within {_ANSWER_SECONDS} s"
        return json.loads(answer)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_ANSWER_SECONDS)
        finally:
            self._process.kill()
            with self._process:
                pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve() -> None:
    """Be the server: one question a line, one answer a line."""
    _warm_up()
    living: set[int] = set()
    try:
        for line in sys.stdin:
            question = json.loads(line)
            if "start" in question:
                answer: Any = _fork(question)
                living.add(answer)
            else:
                answer = _wait(question["wait"], stopped=question["stopped"])
                if answer != "stopped":
                    living.discard(question["wait"])
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    finally:
        for pid in living:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _warm_up() -> None:
    """Do once what every child would do again: imports, also those of a first call, and the client's certificates."""
    for name in _PRELOADED:
        import_module(name)
    nobody = HttpProvider("nobody", "http://127.0.0.1:1/", trust_env=False)
    outcome = asyncio.run(nobody.send({}, "nothing"))
    assert isinstance(outcome, FailedBeforeDispatch)
    # What is here now is not looked at by the children's collectors, so its memory stays shared.
    gc.collect()
    gc.freeze()


def _fork(question: dict[str, Any]) -> int:
    assert threading.active_count() == 1, "a fork of many threads is no fresh start"
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.alarm(_CHILD_SECONDS)
        faulthandler.dump_traceback_later(_CHILD_SECONDS - 10, exit=True)
        _redirect(question["output"])
        module, _, name = question["start"].partition(":")
        status = getattr(import_module(module), name)(question["given"]) or 0
    except BaseException:  # noqa: BLE001 - told in the output, and by the status
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _redirect(output: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, handle in ((0, nothing), (1, file), (2, file)):
        os.dup2(handle, number)


def _wait(pid: int, *, stopped: bool) -> int | str:
    _, status = os.waitpid(pid, os.WUNTRACED if stopped else 0)
    return "stopped" if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    serve()
