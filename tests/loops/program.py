"""
The worker process of the tests: an app whose handlers hang, block, die and send, as their payload says.

    python program.py URL FOLDER OPTIONS

Options are JSON: those of `app.worker`, durations in seconds; `lease` and `timeout` of the kinds; `url` of a simulator.
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
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from tenure import AsyncContext, Context, Tenure
from tenure.connectors.simulator import Simulator
from tenure.loops.process import Process

URL, FOLDER, OPTIONS = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
DURATIONS = ("heartbeat", "sweep_every", "grace", "poll")
LEASE = timedelta(seconds=OPTIONS.pop("lease", 2))
TIMEOUT = timedelta(seconds=OPTIONS.pop("timeout", 600))
MAX_ATTEMPTS = OPTIONS.pop("max_attempts", 3)
SIMULATOR = Simulator(OPTIONS.pop("simulator", "http://127.0.0.1:1"), FOLDER / "ledger.jsonl")
mailer = SIMULATOR.provider("mailer", timeout=timedelta(seconds=5))

app = Tenure(URL, organization="studio", project="sales", actor="user:1", providers=[mailer])
GIVEN: dict[str, Any] = {"lease_duration": LEASE, "timeout": TIMEOUT, "max_attempts": MAX_ATTEMPTS}
GIVEN["backoff_base"] = timedelta(seconds=1)


def note(ctx: Any, name: str = "entered") -> None:
    """Write down who is here, in one append."""
    job = ctx.job
    line = {"kind": job.kind, "key": job.idempotency_key, "job": str(job.id), "generation": ctx.lease.generation}
    line |= {"attempt": job.attempt_count, "pid": os.getpid(), "at": time.monotonic()}
    with (FOLDER / name).open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")


def wait_at(pipe: str) -> None:
    """Block in the kernel until the test opens the gate."""
    if not (FOLDER / pipe).with_suffix(".open").exists():
        (FOLDER / pipe).read_bytes()


@app.job("quick", **GIVEN)
async def quick(ctx: AsyncContext, payload: dict[str, Any]) -> int:
    note(ctx)
    return 1


@app.job("gate", **GIVEN)
def gate(ctx: Context, payload: dict[str, Any]) -> str:
    note(ctx)
    wait_at(payload["pipe"])
    return "through"


@app.job("hang", **GIVEN)
def hang(ctx: Context, payload: dict[str, Any]) -> None:
    note(ctx)
    if payload.get("send"):
        ctx.effect("send", mailer, {"to": "a"})
        note(ctx, "sent")
    if payload.get("mark"):
        app.service.mark_provider_dispatched(ctx.lease, operation_key="mine:1")
        note(ctx, "marked")
    threading.Event().wait()


@app.job("send_slowly", **GIVEN)
def send_slowly(ctx: Context, payload: dict[str, Any]) -> Any:
    note(ctx)
    return ctx.effect("send", mailer, {"to": "a"})


@app.job("await", **GIVEN)
async def awaits(ctx: AsyncContext, payload: dict[str, Any]) -> None:
    note(ctx)
    if payload.get("send"):
        await ctx.effect("send", mailer, {"to": "a"})
        note(ctx, "sent")
    await asyncio.Event().wait()


@app.job("block", **GIVEN)
async def block(ctx: AsyncContext, payload: dict[str, Any]) -> str:
    """Block the event loop for good measure, or for good."""
    note(ctx)
    time.sleep(payload["seconds"])  # noqa: ASYNC251 - the mistake that is tested
    return "slept"


@app.job("hold_interpreter", **GIVEN)
def hold_interpreter(ctx: Context, payload: dict[str, Any]) -> int:
    """Keep the interpreter lock inside one call into C: unlike CDLL, PyDLL does not let go of it."""
    note(ctx)
    (FOLDER / "holding").touch()
    began = time.perf_counter()
    ctypes.PyDLL(None).sleep(payload["seconds"])
    (FOLDER / "held").write_text(str(time.perf_counter() - began))
    return 1


@app.job("die", **GIVEN)
def die(ctx: Context, payload: dict[str, Any]) -> None:
    note(ctx)
    match payload["how"]:
        case "exit":
            os._exit(0)
        case "crash":
            ctypes.string_at(0)
        case _:
            os.kill(os.getpid(), signal.SIGKILL)


signalled = Process._signalled


def told(self: Process, number: int, frame: Any) -> None:
    """Tell the test that a signal has been taken: two that come too fast are one to Python."""
    signalled(self, number, frame)
    with (FOLDER / "signals").open("ab", buffering=0) as file:
        file.write(b".")


Process._signalled = told  # type: ignore[method-assign]


async def main() -> int:
    options = {
        name: timedelta(seconds=value) if name in DURATIONS and value else value for name, value in OPTIONS.items()
    }
    worker = app.worker(**options)
    starting = worker.start

    async def start() -> None:
        await starting()
        print("ready", flush=True)

    worker.start = start  # type: ignore[method-assign]  # tells the test when
    try:
        return await worker.main()
    finally:
        await app.aclose()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    status = asyncio.run(main())
    sys.exit(status)
