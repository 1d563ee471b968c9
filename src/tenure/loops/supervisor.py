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
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tenure.errors import Invalid, Unavailable

logger = logging.getLogger("tenure.worker")

PERIODS_UNTIL_RED = 3
# Seconds. The longest pause bounds how long a worker stays away after a database has come back.
PAUSE_FIRST, PAUSE_MAX = 0.1, 5.0
# How often the same trouble of a loop is told again.
TELL_AGAIN = 60.0
HEALTH_EVERY = 1.0
_CANCEL_AGAIN = 0.1


class Outage:
    """
    Whether the database is away, said once for all loops of a worker: when it goes, and when it is back.

    Every loop notices by itself, and each of them saying so would bury the one thing that an operator has to know.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loops: set[str] = set()
        self._since = 0.0

    def begin(self, loop: str, code: str, since: float) -> None:
        """
        Note that a loop could not reach the database.

        Args:
            since: Monotonic seconds of the loop's last success.
        """
        with self._lock:
            first = not self._loops
            self._loops.add(loop)
            if first:
                self._since = since
                logger.warning("the database does not answer: code=%s; it is asked again until it does", code)

    def end(self, loop: str) -> None:
        """Note that a loop succeeded; the outage is over with the last of those that failed."""
        with self._lock:
            if loop not in self._loops:
                return
            self._loops.discard(loop)
            if not self._loops:
                logger.warning("the database answers again, after %.1f s", time.monotonic() - self._since)


@dataclass(slots=True)
class Pulse:
    """
    When a loop last succeeded.

    Attributes:
        period: How often it should, in seconds.
        at: Monotonic seconds of the last success, or of the start.
        error: Name of the class that the last try raised; None after a success.
        failures: How many tries failed since the last success.
        told: Which error was logged last, and when.
        outage: Shared with the other loops of the worker.
        ended: Its loop is over, and not by the supervisor's own end: nothing will beat it again.
    """

    name: str
    period: float
    at: float = field(default_factory=time.monotonic)
    error: str | None = None
    failures: int = 0
    told: tuple[str, float] = ("", 0.0)
    outage: Outage = field(default_factory=Outage)
    ended: bool = False

    def beat(self) -> None:
        """Note a success."""
        if self.failures:
            logger.info("loop %s succeeds again after %d failures", self.name, self.failures)
            self.outage.end(self.name)
        self.at = time.monotonic()
        self.error = None
        self.failures = 0

    def fail(self, error: BaseException) -> float:
        """Note a failure and give the seconds to wait before the next try."""
        now = time.monotonic()
        self.failures += 1
        self.error = type(error).__name__
        if self.told[0] != self.error or now - self.told[1] >= TELL_AGAIN:
            # The class and code only: texts of drivers and providers may hold secrets.
            level = logging.INFO if isinstance(error, Unavailable) else logging.WARNING
            code = getattr(error, "code", "")
            logger.log(level, "loop %s failed, it goes on: %s %s", self.name, self.error, code)
            self.told = (self.error, now)
        if isinstance(error, Unavailable):
            self.outage.begin(self.name, error.code, self.at)
        else:
            # Whatever this loop met now, it got an answer.
            self.outage.end(self.name)
        ceiling = min(PAUSE_MAX, PAUSE_FIRST * 2 ** min(self.failures, 10))
        return random.uniform(ceiling / 2, ceiling)  # noqa: S311 - spreads load, guards nothing

    def healthy(self, now: float) -> bool:
        """Say whether the loop goes on and its last success is recent enough."""
        return not self.ended and now - self.at <= self.period * PERIODS_UNTIL_RED

    def end(self, error: BaseException) -> None:
        """Note what ended the loop."""
        self.ended = True
        self.error = type(error).__name__
        if not isinstance(error, asyncio.CancelledError):
            # Whoever cancels tasks that are not theirs cancels all of them: the whole program ends.
            logger.warning("loop %s has ended: %s; start this process again", self.name, self.error)


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
        ok: It runs, every loop succeeded within three of its periods, and nothing needs a person.
        running: Handlers that run now.
        problems: What else is wrong, such as receipts that the store refused.
        notes: What is as it should be and may surprise, such as a queue that belongs to somebody else.
        at: When this was said, by this host's clock.
    """

    ok: bool
    worker_id: str
    running: int
    draining: bool
    loops: dict[str, LoopHealth]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def as_json(self) -> str:
        """Give it as one JSON object."""
        loops = {
            name: {"ok": one.ok, "age": round(one.age, 3), "period": one.period, "error": one.error}
            for name, one in sorted(self.loops.items())
        }
        return json.dumps(
            {
                "ok": self.ok,
                "at": self.at.isoformat(timespec="milliseconds"),
                "worker_id": self.worker_id,
                "running": self.running,
                "draining": self.draining,
                "loops": loops,
                "problems": list(self.problems),
                "notes": list(self.notes),
            }
        )


async def within(awaitable: Awaitable[object], seconds: float) -> bool:
    """Wait for at most so long; whether it came to its end."""
    # Not wait_for: it makes a task for each wait, and before Python 3.12 it may lose a cancellation.
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await awaitable
    except TimeoutError:
        return False
    return True


class Supervisor:
    """The pulses of one worker, and the tasks that beat them."""

    def __init__(self) -> None:
        self.pulses: dict[str, Pulse] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self._outage = Outage()
        self._ending = False

    def pulse(self, name: str, period: timedelta) -> Pulse:
        """Register a loop."""
        made = self.pulses[name] = Pulse(name, period.total_seconds(), outage=self._outage)
        return made

    def keep(self, name: str, period: timedelta, step: Callable[[], Awaitable[object]]) -> Pulse:
        """
        Run a step every period until the supervisor ends; one that raises is tried again after a pause.

        Args:
            step: Does its work once.
        """

        async def paced() -> None:
            await step()
            pulse.beat()
            await asyncio.sleep(pulse.period * random.uniform(0.8, 1.0))  # noqa: S311 - spreads load

        pulse = self.pulse(name, period)
        self.follow(pulse, paced)
        return pulse

    def follow(self, pulse: Pulse, step: Callable[[], Awaitable[object]]) -> None:
        """Run a step again and again; it paces itself."""

        async def run() -> None:
            try:
                await self._again(pulse, step)
            except BaseException as error:
                if not self._ending:
                    pulse.end(error)
                raise

        self.tasks.append(asyncio.create_task(run(), name=f"tenure-{pulse.name}"))

    async def _again(self, pulse: Pulse, step: Callable[[], Awaitable[object]]) -> None:
        while not self._ending:
            try:
                await step()
            except BaseException as error:
                if self._ends(error):
                    raise
                await asyncio.sleep(pulse.fail(error))
            else:
                pulse.beat()

    def _ends(self, error: BaseException) -> bool:
        """Ask whether an error ends a loop: who closes or cancels it, or ends the process, means to do so."""
        if isinstance(error, GeneratorExit | KeyboardInterrupt | SystemExit):
            return True
        # A cancellation that leaks out of a library, alone or in a group, is nobody's: it must not end a loop silently.
        task = asyncio.current_task()
        cancelled = self._ending or (task is not None and task.cancelling() > 0)
        return cancelled and not isinstance(error, Exception)

    async def end(self) -> None:
        """Cancel every loop and wait for it."""
        self._ending = True
        while left := [task for task in self.tasks if not task.done()]:
            for task in left:
                task.cancel()
            # Again and again: before Python 3.12 a cancellation that comes together with a result may be lost.
            await asyncio.wait(left, timeout=_CANCEL_AGAIN)
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

    def __init__(self, path: Path, health: Callable[[], Health], period: float | None = None) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.{os.getpid()}")
        self._health = health
        self._period = HEALTH_EVERY if period is None else period
        self._told = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tenure-health", daemon=True)

    def start(self) -> None:
        """
        Write once now and go on.

        Raises:
            Invalid: HEALTH_FILE, it cannot be written there.
        """
        try:
            self.write()
        except OSError as error:
            raise Invalid(
                f"the health file {self._path} cannot be written ({type(error).__name__}); name a file in a folder "
                f"that exists and that this user may write to",
                code="HEALTH_FILE",
            ) from error
        self._thread.start()

    def write(self) -> None:
        """Write the health of this moment."""
        self._part.write_text(self._health().as_json() + "\n", encoding="utf-8")
        self._part.replace(self._path)

    def _write(self) -> None:
        # Told once for each trouble: a full disk lasts, and its log is on the same disk, most likely.
        try:
            self.write()
            self._told = False
        except OSError as error:
            if not self._told:
                logger.warning("the health file cannot be written: %s", type(error).__name__)
            self._told = True

    def _run(self) -> None:
        while not self._ended.wait(self._period):
            self._write()

    def end(self) -> None:
        """Stop, and leave the last word in the file."""
        self._ended.set()
        self._thread.join()
        self._write()
