"""
Threads that handlers run in.

Not `concurrent.futures`: its threads are waited for when the interpreter ends, so that one handler which never returns
would keep the process from ending. These are daemons. A thread that is free is used again, because user code keeps
connections and the like for each thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any


class Threads:
    """
    As many threads as are needed at once; whoever asks bounds their number.

    Args:
        name: The threads' names begin with it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._free = 0
        self._threads: list[threading.Thread] = []
        self._closed = False

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run a blocking function with the caller's context variables; a cancelled caller leaves it running."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def settle(value: Any, error: BaseException | None) -> None:
            if answered.done():
                return
            if error is None:
                answered.set_result(value)
            else:
                answered.set_exception(error)

        def work() -> None:
            value: Any = None
            failed: BaseException | None = None
            try:
                value = context.run(function)
            except StopIteration:
                failed = RuntimeError("StopIteration")  # a future cannot carry it
            except KeyboardInterrupt:
                failed = RuntimeError("KeyboardInterrupt")  # nor this without ending the loop; it was raised by hand
            except BaseException as error:  # noqa: BLE001 - it is handed to whoever waits
                failed = error
            # Free before anybody hears of it: whoever closes the threads then, finds none busy.
            with self._lock:
                self._free += 1
            with contextlib.suppress(RuntimeError):  # the loop has ended, nobody waits any more
                loop.call_soon_threadsafe(settle, value, failed)

        self._submit(work)
        return await answered

    def _submit(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the threads {self._name} have ended")
            if self._free > 0:
                self._free -= 1
            else:
                thread = threading.Thread(target=self._serve, name=f"{self._name}-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._work.put(work)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # else a free thread keeps the last handler's payload alive

    @property
    def busy(self) -> int:
        """How many run something now."""
        with self._lock:
            return len(self._threads) - self._free

    def close(self) -> None:
        """Let every thread end once it is free, and wait for those that are."""
        with self._lock:
            self._closed = True
            busy = len(self._threads) - self._free
            for _ in self._threads:
                self._work.put(None)
        if not busy:
            self.join()

    def join(self) -> None:
        """Wait until every thread has ended; after `close`."""
        for thread in self._threads:
            thread.join()
