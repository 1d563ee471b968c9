"""
What a caller may hand in to `join` beside a driver's own connection, and which connection is behind it.

Libraries keep the driver's connection inside objects of their own. Which library it is, is read from the modules of the
object's classes, so that nothing is imported that the caller has not imported already. Each library has a file here
that knows how to ask it for the connection, and what has to be true first: that the library, too, takes its transaction
for begun. Where it does not, its own `commit()` would do nothing, and the job would be lost, or committed behind its
back.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any, TypeAlias

Finder: TypeAlias = Callable[[], Any]
AsyncFinder: TypeAlias = Callable[[], Awaitable[Any]]

# Objects that hold a driver's connection.
_HOLDERS = frozenset({"sqlalchemy", "django"})
# Drivers whose connections are awaited, though not every method of theirs looks like it.
_AWAITED = frozenset({"asyncpg", "aiosqlite"})


def library(connection: object) -> str | None:
    """Give the name of the library that this object, or what it was derived from, belongs to; None for a driver's."""
    for kind in type(connection).__mro__:
        top = kind.__module__.partition(".")[0]
        if top in _HOLDERS or top in _AWAITED:
            return top
    return None


def awaits(connection: object) -> bool:
    """Say whether what is done on this connection has to be awaited."""
    return library(connection) in _AWAITED or inspect.iscoroutinefunction(getattr(connection, "execute", None))


def finder(connection: object, dialect: str) -> Finder | None:
    """
    Give what finds the driver's connection behind a library's object, anew for every use; None for any other object.

    Args:
        dialect: The store's.
    Raises:
        Invalid: CANNOT_JOIN, where the object is none that has a transaction; the finder raises AUTOCOMMIT,
            TRANSACTION_FAILED and CANNOT_JOIN.
    """
    found: Finder | None = _find("finder", connection, dialect)
    return found


def async_finder(connection: object, dialect: str) -> AsyncFinder | None:
    """See `finder`; what is given is awaited."""
    found: AsyncFinder | None = _find("async_finder", connection, dialect)
    return found


def _find(name: str, connection: object, dialect: str) -> Any:
    found = library(connection)
    if found not in _HOLDERS:
        return None
    return getattr(import_module(f"{__name__}.{found}"), name)(connection, dialect)
