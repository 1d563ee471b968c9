"""
Workers to test: in a thread of this process, or in processes of their own; and ways to wait without guessing.

A test waits for rows, files, pipes and the provider's ledger. Where it looks again and again, it does so until a
deadline that is far longer than anything should take, so that a slow machine is not a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tenure import AsyncContext, Context, ExecutionInput, Job, Outcome, Provider, Tenure
from tenure.loops.worker import Worker
from tenure.testing import FakeProvider

T = TypeVar("T")
P = TypeVar("P", bound=Provider)

ORGANIZATION, PROJECT, ACTOR = "studio", "sales", "user:1"
PATIENCE = 30.0
LOOK_EVERY = 0.01
PROGRAM = Path(__file__).with_name("program.py")


def until(look: Callable[[], T | None], what: str, within: float = PATIENCE) -> T:
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

    return until(look, f"job {getattr(one, 'id', one)} to become {statuses or 'terminal'}", within)


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
        self._started = False
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
        if self._started:
            return self
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == "ready\n", f"the worker did not start:\n{self.errors.read_text()}"
        self._started = True
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


# --- a theatre: one worker, many scenes ------------------------------------------------------------------------------


class Either:
    """One face for both contexts, so that a scene is written once and played as `def` and as `async def`."""

    def __init__(self, ctx: Any) -> None:
        self.ctx = ctx

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx, name)

    async def effect(self, *args: Any, **options: Any) -> Any:
        return await _value(self.ctx.effect(*args, **options))

    @contextlib.asynccontextmanager
    async def publish(self) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
        """Give a function that executes SQL inside the publish."""
        if isinstance(self.ctx, AsyncContext):
            async with self.ctx.publish() as tx:
                yield tx.execute
            return
        with self.ctx.publish() as tx:

            async def execute(*args: Any) -> Any:
                return tx.execute(*args)

            yield execute

    async def outside(self, function: Callable[[], T]) -> T:
        """Call something that blocks."""
        return await asyncio.to_thread(function) if isinstance(self.ctx, AsyncContext) else function()


async def _value(thing: Any) -> Any:
    return await thing if inspect.isawaitable(thing) else thing


def played(scene: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never has to wait."""
    try:
        scene.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("a scene played by a plain function must not wait for the loop")


class Silent(Provider):
    """Takes a request and never answers."""

    name = "silent"
    timeout = timedelta(seconds=60)

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def send(self, request: Any, operation_key: str) -> Outcome:
        self.calls.append(operation_key)
        await asyncio.Event().wait()
        raise AssertionError("never")


Scene = Callable[[Either], Awaitable[Any]]
STYLES = ("plain", "awaiting")
# What a kind of the theatre is like, beside its style.
WAYS: dict[str, dict[str, Any]] = {
    "": {"lease_duration": timedelta(seconds=30)},
    "short": {"lease_duration": timedelta(seconds=1.2)},
    "brief": {"lease_duration": timedelta(seconds=3), "timeout": timedelta(seconds=0.4)},
    "brief_retry": {
        "lease_duration": timedelta(seconds=3),
        "timeout": timedelta(seconds=1),
        "retry_timeouts": True,
        "max_attempts": 2,
    },
    "lively": {"lease_duration": timedelta(seconds=1.2), "progress_timeout": timedelta(seconds=0.8)},
}


class Theatre:
    """
    A running worker whose handlers play whatever scene a test gives.

    Attributes:
        running: The worker.
        ended: Exceptions that scenes raised, by job id; the worker's own words are in the job.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self.app = make_app(url)
        self.scenes: dict[str, Scene] = {}
        self.entries: list[tuple[str, int]] = []
        self._number = itertools.count()
        for way, given in WAYS.items():
            more = {"backoff_base": timedelta(seconds=1), **given}
            self.app.job(f"plain{way}", **more)(self._plain)
            self.app.job(f"awaiting{way}", **more)(self._awaiting)
        self.running = Running(self.app, concurrency=20, sweep_every=None, **options)

    def _plain(self, ctx: Context, payload: dict[str, Any]) -> Any:
        self.entries.append((payload["scene"], ctx.job.attempt_count))
        return played(self.scenes[payload["scene"]](Either(ctx)))  # type: ignore[arg-type]

    async def _awaiting(self, ctx: AsyncContext, payload: dict[str, Any]) -> Any:
        self.entries.append((payload["scene"], ctx.job.attempt_count))
        return await self.scenes[payload["scene"]](Either(ctx))

    def provider(self, *script: Any, **options: Any) -> FakeProvider:
        """A provider that handlers may use from now on."""
        return self.register(FakeProvider(f"fake{next(self._number)}", script, **options))

    def register(self, provider: P) -> P:
        self.app.providers.by_name[provider.name] = provider
        return provider

    def start(self, style: str, scene: Scene, way: str = "", **options: Any) -> Job:
        """Enqueue a job that plays a scene."""
        name = f"{scene.__name__}-{next(self._number)}"
        self.scenes[name] = scene
        return self.app.enqueue(f"{style}{way}", {"scene": name} | options.pop("payload", {}), key=name, **options).job

    def play(self, style: str, scene: Scene, way: str = "", **options: Any) -> Job:
        """Play a scene and give the job after its first attempt."""
        one = self.start(style, scene, way, **options)
        return self.after(one)

    def both(self, scene: Scene, way: str = "", attempts: int = 1) -> dict[str, list[Job]]:
        """Play a scene in both styles at once and give each job after each of its attempts."""
        jobs = {style: self.start(style, scene, way) for style in STYLES}
        seen: dict[str, list[Job]] = {style: [] for style in STYLES}
        for generation in range(1, attempts + 1):
            for style, one in jobs.items():
                seen[style].append(self.after(one, generation))
        return seen

    def after(self, one: Job, generation: int = 1) -> Job:
        """Wait until an attempt is over and give the job."""

        def look() -> Job | None:
            now = job(self.app, one)
            return now if now.generation >= generation and now.status not in {"claimed", "running"} else None

        return until(look, f"attempt {generation} of job {one.id} to end")

    def effects(self, one: Job) -> dict[str, str]:
        """States of a job's effects."""
        return {effect.name: effect.state.value for effect in self.app.service.list_effects(one.id)}

    def __enter__(self) -> Self:
        self.running.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.running.__exit__(kind, error, trace)
