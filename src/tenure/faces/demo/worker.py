"""
A worker process of the demonstration: `python -m tenure.faces.demo.worker`, told what to be on its standard input.

The first line is a JSON object; it comes this way because a store's URL may hold a password, and arguments are for
everybody to read. A line `go` opens the gate at which a paused job waits. When the input ends, so does the process:
whoever started it is gone.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import sys
import threading
from datetime import timedelta
from typing import Any

from tenure.faces.demo import breaks
from tenure.faces.demo.quotes import Quote
from tenure.faces.demo.studio import ARRIVED, PUBLISHING, Studio, open_studio, simulator_at
from tenure.handler import AsyncContext

_SWEEP_EVERY = timedelta(milliseconds=500)
_PR_SET_PDEATHSIG = 1
_POLL = timedelta(milliseconds=100)


class Gate:
    """Where the handler of one job waits until the parent says go."""

    def __init__(self, job_id: str | None) -> None:
        self._job_id = job_id
        self._open = threading.Event()
        self.studio: Studio | None = None

    def watch(self) -> None:
        """Read the parent's lines until they end."""
        for line in sys.stdin:
            if line.strip() == "go":
                self._open.set()
        os._exit(1)

    async def wait(self, ctx: AsyncContext, quote: Quote) -> None:
        """Let every job through but one."""
        if self._job_id != str(ctx.job.id):
            return
        assert self.studio is not None
        await self.studio.note(ctx, quote, ARRIVED)
        await asyncio.to_thread(self._open.wait)
        await self.studio.note(ctx, quote, PUBLISHING)


def die_with_parent() -> None:
    """Ask the kernel to end this process with its parent: one that is stopped could not do it by itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> int:
    """Run one worker."""
    die_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    told: dict[str, Any] = json.loads(sys.stdin.readline())
    gate = Gate(told["pause_at"])
    if told["broken"] is not None:
        breaks.apply(told["broken"])
    if told["pause_at"] is not None:
        breaks.deafen()
    threading.Thread(target=gate.watch, daemon=True).start()
    simulator = simulator_at(told["simulator"], told["ledger"])
    gate.studio = open_studio(told["store"], simulator, told["run"], told["dialect"], gate.wait)
    return asyncio.run(_work(gate.studio, told))


async def _work(studio: Studio, told: dict[str, Any]) -> int:
    worker = studio.app.worker(
        worker_id=told["worker_id"],
        concurrency=told["concurrency"],
        tenant=studio.run,
        sweep_every=_SWEEP_EVERY,
        poll=_POLL,
    )
    try:
        return await worker.main()
    finally:
        await studio.app.aclose()


if __name__ == "__main__":
    sys.exit(main())
