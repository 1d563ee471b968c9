"""The journal beside the disk's own fsync."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tenure.journal import Journal

_APPENDS = 300
_THREADS = 8
_BODY = b"x" * 300


def measure_journal(folder: Path) -> Iterator[tuple[str, float, str, float | None]]:
    """Give what, value, unit and the ratio to the raw rate: appends of one thread, and of eight that share fsyncs."""
    floor = _raw(folder / "raw")
    yield "raw write and fsync", floor, "per s", None
    one = _appends(folder / "one.journal", 1)
    yield "appends of one thread", one, "per s", one / floor
    many = _appends(folder / "many.journal", _THREADS)
    yield f"appends of {_THREADS} threads", many, "per s", many / floor


def _raw(path: Path) -> float:
    with path.open("ab", buffering=0) as file:
        start = time.perf_counter()
        for _ in range(_APPENDS):
            file.write(_BODY)
            os.fsync(file.fileno())
        return _APPENDS / (time.perf_counter() - start)


def _appends(path: Path, threads: int) -> float:
    with Journal.open(path) as journal:

        def work() -> None:
            for _ in range(_APPENDS):
                journal.append(_BODY)

        running = [threading.Thread(target=work) for _ in range(threads)]
        start = time.perf_counter()
        for one in running:
            one.start()
        for one in running:
            one.join()
        return threads * _APPENDS / (time.perf_counter() - start)
