"""Waiting for what must happen, and threads whose errors are not lost."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tenure.stores.sqlite.store import AsyncSqliteStore, SqliteStore

PATIENCE = 30.0
ROOT = Path(__file__).parents[2]


class Background:
    """A call in a thread of its own."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._function = function
        self._args = args
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._body)
        self._thread.start()

    def _body(self) -> None:
        try:
            self._value = self._function(*self._args)
        except BaseException as error:  # noqa: BLE001 - raised again in result()
            self._error = error

    def result(self) -> Any:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the call did not return"
        if self._error is not None:
            raise self._error
        return self._value

    def still_running(self) -> bool:
        """Give the call a moment in which it could end, if it were not kept."""
        self._thread.join(0.1)
        return self._thread.is_alive()


def wait_for_line(store: SqliteStore | AsyncSqliteStore, length: int) -> None:
    """Wait until so many callers stand in line for the writer."""
    line = store._engine.line
    with line.changed:
        standing = line.changed.wait_for(lambda: len(line._urgent) + len(line._ordinary) >= length, PATIENCE)
    assert standing, f"fewer than {length} callers came to wait"


def run_out(store: SqliteStore | AsyncSqliteStore) -> None:
    """Let the deadline of the open transaction be over now, whatever the speed of this machine."""
    line = store._engine.line
    with line.changed:
        assert line.watched is not None
        line.watched.ends = 0.0
        line.changed.notify_all()


@contextmanager
def statements_of(store: SqliteStore | AsyncSqliteStore) -> Iterator[list[str]]:
    """Collect every statement that the writer connection executes."""
    writer = store._engine.writer.connection
    assert writer is not None
    seen: list[str] = []
    writer.set_trace_callback(seen.append)
    try:
        yield seen
    finally:
        writer.set_trace_callback(None)


def start_child(*args: str, **settings: Any) -> subprocess.Popen[str]:
    """Start one of the programs of child.py; lines go in and come out."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.stores_sqlite.child", *args],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **settings,
    )


def read_line(child: subprocess.Popen[str], expected: str) -> None:
    """Read the next line of a child, which must be this one."""
    assert child.stdout is not None
    line = child.stdout.readline().strip()
    if line != expected:
        child.kill()
        raise AssertionError(f"the child said {line!r}, not {expected!r}: {child.communicate()[1]}")


def finish(child: subprocess.Popen[str], said: str = "") -> str:
    """Let a child end and give the rest of what it said."""
    try:
        out, error = child.communicate(said, timeout=60)
    finally:
        child.kill()
    assert child.returncode == 0, f"the child ended with {child.returncode}: {error}"
    return out.strip()
