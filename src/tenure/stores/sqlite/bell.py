"""Wake-ups inside one process: SQLite cannot tell other processes anything."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("tenure.store")


class _Bell:
    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Forget everybody; a forked child has listeners of its own."""
        self.lock = threading.Lock()
        self.listeners: dict[str, list[Callable[[], None]]] = {}


_bell = _Bell()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_bell.start)


@contextmanager
def listen(place: str, wake: Callable[[], None]) -> Iterator[bool]:
    """Have `wake` called at every `ring` of a place; yields False, because other processes are not heard."""
    with _bell.lock:
        _bell.listeners.setdefault(place, []).append(wake)
    try:
        yield False
    finally:
        with _bell.lock:
            here = _bell.listeners.get(place, [])
            if wake in here:  # not in a forked child
                here.remove(wake)
            if not here:
                _bell.listeners.pop(place, None)


def ring(place: str) -> None:
    """Wake the listeners of a place in this process."""
    with _bell.lock:
        here = list(_bell.listeners.get(place, ()))
    for wake in here:
        try:
            wake()
        except Exception:
            # A wake-up is a hint: one listener that fails must not keep it from the others, nor fail the caller.
            log.exception("a listener failed at a wake-up")
