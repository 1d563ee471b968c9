"""Carry stores over a fork: closed before it, opened anew on both sides, and never a parent's file in a child."""

from __future__ import annotations

import ctypes
import os
import sqlite3
import weakref
from collections.abc import Iterable
from typing import Protocol


class Forkable(Protocol):
    """What must get ready before a fork."""

    def before_fork(self) -> bool:
        """Get ready; False where a child could not use this object."""
        ...

    def after_fork_in_parent(self) -> None:
        """Go on."""
        ...

    def after_fork(self, *, quiet: bool) -> None:
        """Start anew in the child."""
        ...


_watched: weakref.WeakSet[Forkable] = weakref.WeakSet()
_ready: list[tuple[Forkable, bool]] = []


def watch_forks(one: Forkable) -> None:
    """Have an object told about every fork of this process while it lives."""
    _watched.add(one)


def leave_open(connections: Iterable[sqlite3.Connection]) -> None:
    """
    Keep a parent's connections from ever being closed in a child.

    Closing one there would let go of locks and could delete the write-ahead log under the parent. A reference of which
    Python does not know keeps them even at the end of the interpreter.
    """
    for connection in connections:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _before() -> None:
    _ready[:] = [(one, one.before_fork()) for one in list(_watched)]


def _in_parent() -> None:
    for one, _quiet in _ready:
        one.after_fork_in_parent()
    _ready.clear()


def _in_child() -> None:
    for one, quiet in _ready:
        one.after_fork(quiet=quiet)
    _ready.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
