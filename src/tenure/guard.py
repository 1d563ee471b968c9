"""
What must not run inside a block, and is refused there before any lock is asked for.

Inside a publish the write lock and the job's place are held by the publish itself, so that another transaction of the
same store would wait for its own caller; and a call to the outside would keep them locked and outlive their rollback.
Stores and connectors ask here; neither knows the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tenure.errors import IllegalMove, echo

GuardCode: TypeAlias = Literal["INSIDE_PUBLISH", "INSIDE_TRANSACTION"]


@dataclass(eq=False, slots=True)
class _Guard:
    store: Any
    code: GuardCode
    text: str
    connection: Any
    # Tasks started inside the block inherit the context variable and may outlive the block.
    open: bool = True


_guards: ContextVar[tuple[_Guard, ...]] = ContextVar("tenure_guards", default=())

_PUBLISH_TEXT = "inside a publish block every verb of this store goes through the block's own tx; use tx.run"


@contextmanager
def guard(
    store: Any, *, code: GuardCode = "INSIDE_PUBLISH", text: str = _PUBLISH_TEXT, connection: Any = None
) -> Iterator[None]:
    """
    Refuse `run` and `transaction` of this store in the block's thread or task, and in tasks that it starts.

    Args:
        store: The store whose verbs are refused. Another object on the same database counts as the same store: one
            with the same dialect and URL, or with the same object as its `database`.
        code: The code of the IllegalMove raised.
        text: Its message.
        connection: The block's own; it may be joined.
    """
    mine = _Guard(store, code, text, connection)
    _guards.set((*_guards.get(), mine))
    try:
        yield
    finally:
        mine.open = False
        # Not reset by token: a block may be left in another context than the one it was entered in.
        _guards.set(tuple(one for one in _guards.get() if one.open))


def refuse_inside(store: Any, *, only: GuardCode | None = None) -> None:
    """
    Raise IllegalMove where a guard for this store is open; called before any lock is asked for.

    Args:
        only: Look only at guards with this code.
    """
    for one in _guards.get():
        if one.open and (only is None or one.code == only) and _same_database(one.store, store):
            if one.code == "INSIDE_TRANSACTION":
                raise IllegalMove(one.text, code="INSIDE_TRANSACTION")
            raise IllegalMove(one.text, code="INSIDE_PUBLISH")


def refuse_other(store: Any, connection: Any) -> None:
    """Raise IllegalMove where another connection than the block's own is to be joined inside a publish."""
    for one in _guards.get():
        other = one.connection is not connection
        if one.open and one.code == "INSIDE_PUBLISH" and other and _same_database(one.store, store):
            raise IllegalMove(one.text, code="INSIDE_PUBLISH")


def refuse_call(provider: str) -> None:
    """
    Raise IllegalMove where any publish block is open: a call to the outside, whoever makes it.

    A publish holds the job's place and the caller's rows locked, and a call may take as long as it likes; and what it
    did could not be taken back with them.
    """
    if any(one.open and one.code == "INSIDE_PUBLISH" for one in _guards.get()):
        raise IllegalMove(
            f"provider {echo(provider)} was called inside a publish block, whose rows stay locked meanwhile and could "
            "be rolled back after the call; call it with ctx.effect before or after the block",
            code="INSIDE_PUBLISH",
        )


def _same_database(one: Any, other: Any) -> bool:
    if one is other or getattr(one, "database", one) is getattr(other, "database", other):
        return True
    # Every in-memory database is its own, whatever its URL says.
    here = (getattr(one, "dialect", None), getattr(one, "url", None))
    there = (getattr(other, "dialect", None), getattr(other, "url", None))
    return here == there and here[1] is not None and ":memory:" not in str(here[1])
