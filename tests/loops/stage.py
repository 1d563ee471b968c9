"""
Workers to test: in a thread of this process, or in processes of their own; and ways to wait without guessing.

A test waits for rows, files, pipes and the provider's ledger. Where it looks again and again, it does so until a
deadline that is far longer than anything should take, so that a slow machine is not a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tenure import ExecutionInput, Job, Tenure
from tenure.loops.worker import Worker

T = TypeVar("T")

ORGANIZATION, PROJECT, ACTOR = "studio", "sales", "user:1"
PATIENCE = 30.0
LOOK_EVERY = 0.01
PROGRAM = Path(__file__).with_name("program.py")


def until(look: Callable[[], T], what: str, within: float = PATIENCE) -> T:
    """Look until there is something, and give it."""
    deadline = time.monotonic() + within
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {within:g} s in vain for {what}"
        time.sleep(LOOK_EVERY)
    return found


def make_app(url: Any, **options: Any) -> Tenure:
    return Tenure(url, organization=ORGANIZATION, project=PROJECT, actor=ACTOR, **options)


class Running:
    """
    A worker on an event loop in a thread of its own, so that the test may block and the handlers may block the loop.

    Attributes:
        worker: As it runs.
        clean: What `stop` returned.
    """

    def __init__(self, app: Tenure, **options: Any) -> None:
        self.app = app
        self._options = options
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="stage-loop")
        self.clean: bool | None = None
        self.worker: Worker = app.worker(**options)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, awaitable: Awaitable[T], within: float = PATIENCE) -> T:
        """Run an awaitable on the worker's loop."""

        async def body() -> T:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(body(), self.loop).result(within)

    def stop(self) -> bool:
        self.clean = self.call(self.worker.stop())
        return self.clean

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.call(self.worker.start())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.clean is None:
                self.stop()
            if (closing := getattr(self.worker, "_closing", None)) is not None:
                self.call(closing)
        finally:
            self._end()

    def _end(self) -> None:
        async def leave() -> None:
            await self.app.aclose()
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self.call(leave())
        self.call(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()


@contextlib.contextmanager
def producer(url: str) -> Iterator[Tenure]:
    """An app that only enqueues and looks; it knows no handler."""
    app = make_app(url)
    try:
        yield app
    finally:
        app.close()


def fields(app: Tenure, kind: str, payload: dict[str, Any] | None = None, *, key: str = "k", lease: float = 2.0) -> Any:
    """What `create_job` gets."""
    return {
        "organization": app.organization,
        "project": app.project,
        "idempotency_key": key,
        "kind": kind,
        "payload": payload or {},
        "lease_duration": seconds(lease),
        "backoff_base": seconds(1),
        "execution": ExecutionInput(tenant=app.organization, actor=ACTOR, trace="t"),
    }


def create(app: Tenure, kind: str, payload: dict[str, Any] | None = None, **more: Any) -> Job:
    """Create a job for a kind that only the worker's process knows."""
    return app.service.create_job(**fields(app, kind, payload, **more)).job


def job(app: Tenure, one: Any) -> Job:
    """Read a job again."""
    return app.service.get_job(getattr(one, "id", one))


def ended(app: Tenure, one: Any, *statuses: str, within: float = PATIENCE) -> Job:
    """Wait until a job has one of these statuses, or any terminal one."""

    def look() -> Job | None:
        now = job(app, one)
        over = now.status.value in statuses if statuses else now.status.value not in {"queued", "claimed", "running"}
        return now if over else None

    found = until(look, f"job {getattr(one, 'id', one)} to become {statuses or 'terminal'}", within)
    assert found is not None
    return found


def trail(app: Tenure, one: Any) -> list[str]:
    """The names of a job's events."""
    return [event.name.value for event in app.service.list_job_events(getattr(one, "id", one))]


@contextlib.contextmanager
def pipe(folder: Path, name: str) -> Iterator[Path]:
    """A named pipe: who opens it to read blocks, in the kernel, until somebody writes."""
    path = folder / name
    os.mkfifo(path)
    try:
        yield path
    finally:
        release(path)


def release(path: Path) -> None:
    """Let go everybody who waits at a pipe, now or later."""
    with contextlib.suppress(FileNotFoundError):
        path.with_suffix(".open").touch()
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))


class Child:
    """
    A worker in a process of its own, running `program.py`.

    Args:
        folder: Where its handlers write who entered them, and where the simulator's ledger is.
        options: For `app.worker`, durations in seconds; see `program.py`.
    """

    def __init__(self, url: str, folder: Path, *, name: str = "worker", **options: Any) -> None:
        self.name = name
        self.folder = folder
        self.errors = folder / f"{name}.err"
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-W",
                    "error",
                    str(PROGRAM),
                    url,
                    str(folder),
                    json.dumps({"worker_id": name} | options),
                ],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def ready(self) -> Self:
        """Wait until it has started."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == "ready\n", f"the worker did not start:\n{self.errors.read_text()}"
        return self

    def signal(self, number: int) -> float:
        """Send a signal and give the time."""
        os.kill(self.pid, number)
        return time.monotonic()

    def wait(self, within: float = PATIENCE) -> int:
        return self.process.wait(within)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        with self.process:
            self.process.wait()

    def __enter__(self) -> Self:
        return self.ready()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if error is not None:
            sys.stderr.write(f"--- {self.name}\n{self.errors.read_text()}\n")


def entered(folder: Path) -> list[dict[str, Any]]:
    """Who entered a handler, in order: kind, key, job, generation, attempt, pid."""
    path = folder / "entered"
    # A line without its end is still being written.
    return (
        [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if path.exists()
        else []
    )


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)
