"""
A worker as a process: signals in, an exit status out.

The first SIGTERM or SIGINT drains, the second stops the handlers, the third leaves. From the first one on a watchdog
that needs neither the event loop nor the interpreter ends the process when its time is over, with the stack of every
thread on standard error: a handler that blocks the loop, or never returns, must not keep a stopped worker alive.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Protocol

from tenure.errors import Invalid
from tenure.loops.attempts import STOP_GRACE

logger = logging.getLogger("tenure.worker")

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Seconds after the grace period, or after the second signal, at which the process is gone at the latest.
LEAVE_AFTER = STOP_GRACE + 0.8
_STDERR = 2


class Runs(Protocol):
    """What a process runs: a worker, or a relay, which has its id by the same name."""

    grace: float

    @property
    def worker_id(self) -> str:
        """Who it is."""
        ...

    @property
    def left_behind(self) -> int:
        """How many calls go on that nothing can stop: handlers in threads, or calls that ignore their cancellation."""
        ...

    async def start(self) -> None:
        """Begin."""
        ...

    async def stop(self) -> bool:
        """End; whether everything ended by itself."""
        ...

    def claim_no_more(self) -> None:
        """Claim nothing new; safe inside a signal handler."""
        ...

    def hurry(self) -> None:
        """Stop what still runs."""
        ...


class Process:
    """Runs one worker until it is told to stop; see `Worker.main`."""

    def __init__(self, worker: Runs) -> None:
        self._worker = worker
        self._count = 0
        self._until = float("inf")

    async def run(self) -> int:
        """Start, wait for a signal, stop; give the exit status."""
        if threading.current_thread() is not threading.main_thread():
            raise Invalid(
                "a worker process gets its signals in the main thread; elsewhere use `async with app.worker()`",
                code="NOT_MAIN_THREAD",
            )
        self._loop = asyncio.get_running_loop()
        self._asked = asyncio.Event()
        before = {number: signal.getsignal(number) for number in SIGNALS}
        for number in SIGNALS:
            # Not loop.add_signal_handler: a signal must count although a handler blocks the loop.
            signal.signal(number, self._signalled)
        clean = False
        try:
            await self._worker.start()
            await self._asked.wait()
            logger.info("worker %s drains", self._worker.worker_id)
            clean = await self._worker.stop()
        finally:
            # Cancelled, or the loop is ending: a worker left running would renew its leases for ever.
            await self._worker.stop()
            for number, handler in before.items():
                signal.signal(number, handler)
            self._leave(clean=clean)
        return 0 if clean else 1

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        # Between two instructions of whatever the main thread is doing: no locks, no logging.
        del frame
        self._count += 1
        if self._count == 1:
            self._watch(self._worker.grace + LEAVE_AFTER)
            self._worker.claim_no_more()
            self._loop.call_soon_threadsafe(self._asked.set)
        elif self._count == 2:
            self._watch(LEAVE_AFTER)
            self._loop.call_soon_threadsafe(self._worker.hurry)
        else:
            os.write(_STDERR, b"tenure: leaving at once; leases run out by themselves\n")
            os._exit(128 + number)

    def _watch(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        if until < self._until:
            self._until = until
            faulthandler.dump_traceback_later(seconds, exit=True, file=_STDERR)

    def _leave(self, *, clean: bool) -> None:
        """Let the watchdog go, unless threads are left that would keep the process from ending."""
        left = self._worker.left_behind
        if not clean and self._count and left:
            # They cannot be stopped, and the loop's end would wait for them; what they may still do the fence refuses.
            logger.warning("leaving with calls that nothing can stop: %d", left)
            logging.shutdown()
            sys.stdout.flush()
            os._exit(1)
        # A handler that was cancelled may have left a thread of the loop behind, which the loop's end waits for.
        waited_for = any(thread.name.startswith("asyncio_") for thread in threading.enumerate())
        if clean or not waited_for:
            faulthandler.cancel_dump_traceback_later()
