"""
Keep loops going and say truthfully whether they do.

Every loop has a pulse. A loop that raises is started again after a pause that grows with jitter; a loop that has not
succeeded for three of its periods is unhealthy, whether it raised, hangs, or never ran. Health is read from another
thread than the one it speaks about, so that a blocked event loop cannot hide itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

logger = logging.getLogger("tenure.worker")

PERIODS_UNTIL_RED = 3
PAUSE_FIRST, PAUSE_MAX = 0.1, 10.0


@dataclass(slots=True)
class Pulse:
    """
    When a loop last succeeded.

    Attributes:
        period: How often it should, in seconds.
        at: Monotonic seconds of the last success, or of the start.
        error: Name of the class that the last try raised; None after a success.
    """

    name: str
    period: float
    at: float = field(default_factory=time.monotonic)
    error: str | None = None
    failures: int = 0

    def beat(self) -> None:
        """Note a success."""
        self.at = time.monotonic()
        self.error = None
        self.failures = 0

    def fail(self, error: BaseException) -> float:
        """Note a failure and give the seconds to wait before the next try."""
        self.failures += 1
        if self.error != type(error).__name__:
            # The class and code only: texts of drivers and providers may hold secrets.
            code = getattr(error, "code", "")
            logger.warning("loop %s failed: %s %s; it is tried again", self.name, type(error).__name__, code)
        self.error = type(error).__name__
        ceiling = min(PAUSE_MAX, PAUSE_FIRST * 2 ** min(self.failures, 10))
        return random.uniform(ceiling / 2, ceiling)  # noqa: S311 - spreads load, guards nothing

    def healthy(self, now: float) -> bool:
        """Say whether the last success is recent enough."""
        return now - self.at <= self.period * PERIODS_UNTIL_RED


@dataclass(frozen=True, slots=True)
class LoopHealth:
    """One loop as others see it; times in seconds."""

    ok: bool
    age: float
    period: float
    error: str | None


@dataclass(frozen=True, slots=True)
class Health:
    """
    A worker as others see it.

    Attributes:
        ok: Every loop succeeded within three of its periods, and nothing needs a person.
        running: Handlers that run now.
        problems: What else is wrong, such as receipts that the store refused.
    """

    ok: bool
    worker_id: str
    running: int
    draining: bool
    loops: dict[str, LoopHealth]
    problems: tuple[str, ...] = ()

    def as_json(self) -> str:
        """Give it as one JSON object."""
        loops = {
            name: {"ok": one.ok, "age": round(one.age, 3), "period": one.period, "error": one.error}
            for name, one in sorted(self.loops.items())
        }
        return json.dumps(
            {
                "ok": self.ok,
                "worker_id": self.worker_id,
                "running": self.running,
                "draining": self.draining,
                "loops": loops,
                "problems": list(self.problems),
            }
        )


class Supervisor:
    """The pulses of one worker, and the tasks that beat them."""

    def __init__(self) -> None:
        self.pulses: dict[str, Pulse] = {}
        self.tasks: list[asyncio.Task[None]] = []

    def pulse(self, name: str, period: timedelta) -> Pulse:
        """Register a loop."""
        made = self.pulses[name] = Pulse(name, period.total_seconds())
        return made

    def keep(self, name: str, period: timedelta, step: Callable[[], Awaitable[object]]) -> Pulse:
        """
        Run a step every period until the supervisor ends; one that raises is tried again after a pause.

        Args:
            step: Does its work once.
        """

        async def paced() -> None:
            await step()
            await asyncio.sleep(pulse.period * random.uniform(0.8, 1.0))  # noqa: S311 - spreads load

        pulse = self.pulse(name, period)
        self.follow(pulse, paced)
        return pulse

    def follow(self, pulse: Pulse, step: Callable[[], Awaitable[object]]) -> None:
        """Run a step again and again; it paces itself."""

        async def run() -> None:
            while True:
                try:
                    await step()
                except Exception as error:  # noqa: BLE001 - a loop outlives whatever its step meets
                    await asyncio.sleep(pulse.fail(error))
                else:
                    pulse.beat()

        self.tasks.append(asyncio.create_task(run(), name=f"tenure-{pulse.name}"))

    async def end(self) -> None:
        """Cancel every loop and wait for it."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()

    def loops(self) -> dict[str, LoopHealth]:
        """Judge every loop now; callable from any thread."""
        now = time.monotonic()
        return {
            name: LoopHealth(pulse.healthy(now), now - pulse.at, pulse.period, pulse.error)
            for name, pulse in list(self.pulses.items())
        }


class HealthFile:
    """
    Write health to a file about once a second, from a thread that no handler can block.

    The file is replaced whole, so that a reader never sees half of it. Its age tells whether the process is alive.
    """

    def __init__(self, path: Path, health: Callable[[], Health], period: float = 1.0) -> None:
        self._path = path
        self._health = health
        self._period = period
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tenure-health", daemon=True)

    def start(self) -> None:
        """Write once now and go on."""
        self.write()
        self._thread.start()

    def write(self) -> None:
        """Write the health of this moment."""
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        part.write_text(self._health().as_json() + "\n", encoding="utf-8")
        part.replace(self._path)

    def _run(self) -> None:
        while not self._ended.wait(self._period):
            try:
                self.write()
            except OSError as error:
                logger.warning("the health file cannot be written: %s", type(error).__name__)

    def end(self) -> None:
        """Stop, and leave the last word in the file."""
        self._ended.set()
        self._thread.join()
        self.write()
