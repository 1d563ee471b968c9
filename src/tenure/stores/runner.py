"""
Drive a procedure against a database, blocking or awaiting.

A store hands in one function, `answer`: it gets requests and gives back their rows in the same order, in one round trip
where the database can. Everything else about a procedure is decided here, once for all stores: a lone request is
answered with its rows and a list with a list; an `Each` without rows is never sent; an error of the database ends the
procedure, which cannot catch it, because the transaction around it may be gone.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

from tenure.errors import TenureError, Unavailable
from tenure.stores.contract import Allows
from tenure.yields import AfterCommit, Each, Last, Procedure, Rows, Statement

T = TypeVar("T")

Requests: TypeAlias = Sequence[Statement | Each]


class Closing(list[Statement | Each]):
    """The last requests of a procedure; see `Last`."""


Answer: TypeAlias = Callable[[Requests], list[Rows]]
AsyncAnswer: TypeAlias = Callable[[Requests], Awaitable[list[Rows]]]


def drive(procedure: Procedure[T], answer: Answer) -> T | AfterCommit:
    """
    Run a procedure from its start to its end on an open transaction.

    Returns:
        What the procedure returned. The caller commits and then passes it through `settle`.
    """
    steps = _steps(procedure)
    rows: list[Rows] | None = None
    try:
        while True:
            try:
                requests = steps.send(rows) if rows is not None else next(steps)
            except StopIteration as end:
                value: T | AfterCommit = end.value
                return value
            rows = answer(requests)
    except Exception as error:
        _say_where(error, procedure)
        raise
    finally:
        steps.close()


async def drive_async(procedure: Procedure[T], answer: AsyncAnswer) -> T | AfterCommit:
    """See `drive`; only the answers are awaited."""
    steps = _steps(procedure)
    rows: list[Rows] | None = None
    try:
        while True:
            try:
                requests = steps.send(rows) if rows is not None else next(steps)
            except StopIteration as end:
                value: T | AfterCommit = end.value
                return value
            rows = await answer(requests)
    except Exception as error:
        _say_where(error, procedure)
        raise
    finally:
        steps.close()


def _say_where(error: Exception, procedure: Procedure[Any]) -> None:
    """Name the procedure of an error that does not speak for itself; a refusal of ours says what to do already."""
    if isinstance(error, Unavailable) or not isinstance(error, TenureError):
        error.add_note(f"in {procedure!r}")


def settle(value: T | AfterCommit) -> T:
    """Give a procedure's value to its caller; for use after the commit."""
    if isinstance(value, AfterCommit):
        raise value.error
    return value


@contextmanager
def asked(procedure: Procedure[Any], allows: Allows | None = None) -> Iterator[None]:
    """
    Take note that a procedure was handed to a store, also where the store refuses before it runs a step of it.

    Args:
        allows: What the store was opened with; judges what was handed in by its name and its arguments, whatever it is
            made of.
    """
    try:
        if allows is not None:
            allows(procedure.verb, procedure.tenants)
        yield
    except BaseException:  # a cancelled caller included
        # A fresh run that is closed at once: a procedure that was refused is not one that somebody forgot to run.
        procedure.script().close()
        raise


def _steps(procedure: Procedure[T]) -> Generator[Requests, list[Rows], T | AfterCommit]:
    # The shape shared by both drivers: lists of requests that must be sent out, lists of their rows in.
    script = procedure.script()
    try:
        request = next(script)
        while True:
            if isinstance(request, Statement):
                request = script.send((yield (request,))[0])
            elif isinstance(request, Each):
                request = script.send((yield (request,))[0] if request.rows else [])
            elif isinstance(request, Last):
                last = Closing(filter(_is_sent, request.requests))
                more = script.send(_in_order(request.requests, (yield last) if last else []))
                assert more is None, f"{procedure!r} asks for more after its last requests"
            else:
                sent = list(filter(_is_sent, request))
                request = script.send(_in_order(request, (yield sent) if sent else []))
    except StopIteration as end:
        value: T | AfterCommit = end.value
        return value
    finally:
        script.close()


def _is_sent(request: Statement | Each) -> bool:
    return isinstance(request, Statement) or bool(request.rows)


def _in_order(requests: Requests, rows: list[Rows]) -> list[Rows]:
    """Give every request its rows; none where it was not sent."""
    if len(rows) == len(requests):
        return rows
    sent = iter(rows)
    return [next(sent) if _is_sent(one) else [] for one in requests]


def pauses(patience: float, *, first: float = 0.001, longest: float = 0.05) -> Iterator[float]:
    """
    Give the jittered pauses between tries, in seconds, until the patience is used up.

    The caller sleeps, so that a blocking and an awaiting store share one schedule:

        for pause in pauses(5.0):
            ...try, return on success...
            time.sleep(pause)  # the caller's own
    """
    end = time.monotonic() + patience
    ceiling = first
    while (left := end - time.monotonic()) > 0:
        # Full jitter: processes that collided once must not collide again in step.
        yield min(left, random.uniform(first / 2, ceiling))  # noqa: S311 - spreads load, guards nothing
        ceiling = min(longest, ceiling * 1.6)
