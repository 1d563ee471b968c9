"""Wake-ups inside one process: SQLite cannot tell other processes anything."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _Listener:
    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.failure: Exception | None = None


class _Bell:
    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Forget everybody; a forked child has listeners of its own."""
        self.lock = threading.Lock()
        self.listeners: dict[str, list[_Listener]] = {}


_bell = _Bell()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_bell.start)


@contextmanager
def listen(place: str, wake: Callable[[], None]) -> Iterator[bool]:
    """
    Have `wake` called at every `ring` of a place; yields False, because other processes are not heard.

    Raises:
        Exception: At the end of the block, what `wake` raised first.
    """
    listener = _Listener(wake)
    with _bell.lock:
        _bell.listeners.setdefault(place, []).append(listener)
    try:
        yield False
    finally:
        with _bell.lock:
            here = _bell.listeners.get(place, [])
            if listener in here:  # not in a forked child
                here.remove(listener)
            if not here:
                _bell.listeners.pop(place, None)
    if listener.failure is not None:
        raise listener.failure


def ring(place: str) -> None:
    """Wake the listeners of a place in this process."""
    with _bell.lock:
        here = list(_bell.listeners.get(place, ()))
    for listener in here:
        try:
            listener.wake()
        except Exception as error:  # noqa: BLE001 - raised where the listener belongs, at the end of its block
            # A wake-up is a hint: one listener that fails must not keep it from the others, nor fail the caller, who
            # has committed already.
            listener.failure = listener.failure or error
