"""
A worker process under measurement: it runs until its standard input ends, then says what it used.

    python -m bench.child CONCURRENCY     with TENURE_STORE set
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import threading

from bench.jobs import app


async def _main(concurrency: int) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(ended.set)

    async with app.worker(concurrency=concurrency):
        before = resource.getrusage(resource.RUSAGE_SELF)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        threading.Thread(target=wait_for_the_end, daemon=True).start()
        await ended.wait()
        after = resource.getrusage(resource.RUSAGE_SELF)
    await app.aclose()
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    sys.stdout.write(json.dumps({"peak_mb": after.ru_maxrss / 1024, "cpu_s": used}) + "\n")


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
