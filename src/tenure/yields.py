"""
All that generators may say: `Statement` and `Each` to a database, `Transact` and `Call` to a flow's driver.

A procedure is a generator that yields named statements and receives rows. It holds no SQL, no connection and no
`async`, so a blocking store and an awaiting store run the same one. A flow is a generator that yields procedures to
commit and calls to make between the commits. Every `yield` is a place where the process can die.

How a store answers:

    rows = yield Statement("clock")                     # list of tuples
    rows = yield Each("lease_delete", [(id, 3), ...])   # one execution per row, or one set-wise statement
    a, b = yield [Statement(...), Each(...)]            # in this order, in one round trip where the database can
    a, b = yield Last([...])                            # the same, and perhaps the commit with it

The value a procedure returns is the value `store.run` returns, after the commit. A procedure that raises rolls back.
One that must commit and then raise returns `AfterCommit(error)`.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar, overload
from uuid import UUID

from uuid_utils.compat import uuid7

from tenure.errors import TenureError

T = TypeVar("T")
P = ParamSpec("P")

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = list[Row]


@dataclass(frozen=True, slots=True)
class Statement:
    """One named statement, run once. `params` are keyed by the names in the statement's header."""

    name: str
    params: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Each:
    """One named statement applied to every row, values in the order of the statement's header; no rows: not sent."""

    name: str
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Last:
    """
    The last requests of a procedure: a store may send its commit along with them, which saves a round trip.

    Only where nothing is decided by the answers, for nothing can be taken back after them; what they change is locked.
    """

    requests: Sequence[Statement | Each]


@dataclass(frozen=True, slots=True)
class AfterCommit:
    """Returned by a procedure whose writes must stand although its caller gets an error."""

    error: TenureError


# What a procedure yields and receives: one request and its rows, or several and their rows in the same order.
Request: TypeAlias = "Statement | Each | Last | Sequence[Statement | Each]"
Script: TypeAlias = Generator[Request, Any, T]


def new_id() -> UUID:
    """Make a UUIDv7: known before the commit, ordered by creation, no sequence to share."""
    return uuid7()


class Command:
    """
    The identity of one call of a verb, made by `procedure` and kept over every run of the same value.

    Attributes:
        id: Written with every event of the call.
        runs: How often the procedure was started; a store that lost the reply to a commit starts it again.
        chosen: Jobs that earlier runs chose by what they were at that time, for whoever could not find them again.
    """

    __slots__ = ("chosen", "id", "runs")

    def __init__(self) -> None:
        self.id = new_id()
        self.runs = 0
        self.chosen: frozenset[UUID] = frozenset()

    @property
    def again(self) -> bool:
        """An earlier run may have committed: look in the trail for this id before judging."""
        return self.runs > 1


FRESH = Command()
"""The default of a procedure's `command` parameter; `procedure` puts a new identity in its place."""


class Procedure(Generic[T]):
    """
    One transaction as a value: it can be printed, composed with `yield from`, and run again from its start.

    Attributes:
        name: The function's name; crash points and logs use it.
        reads: True when it writes nothing and locks nothing, so that a store may run it on a reader.
        urgent: True when a store should run it before others that wait (lease renewals).
        wakes: True when what it writes may be work for a worker that waits: a store that can tell others does so with
            the commit. In a caller's transaction it does not, because the commit is the caller's.
        args, kwargs: What it was made with.
        batch: Makes one procedure of many values of this kind, or None. It answers each in the order given: with its
            value, with its error, or with None for one that has to be run by itself.
    """

    __slots__ = ("_script", "_used", "args", "batch", "kwargs", "name", "reads", "urgent", "wakes")

    def __init__(
        self,
        script: Callable[..., Script[T]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        reads: bool,
        urgent: bool,
        wakes: bool = False,
        batch: Callable[[Sequence[Procedure[T]]], Procedure[list[T | TenureError | None]]] | None = None,
    ) -> None:
        self.name = script.__name__
        self.reads = reads
        self.urgent = urgent
        self.wakes = wakes
        self._script = script
        self.batch = batch
        self.args = args
        self.kwargs = kwargs
        self._used = False

    def script(self) -> Script[T]:
        """Give a fresh generator; each call starts from the beginning with the same arguments."""
        self._note()
        command = self.kwargs.get("command")
        if isinstance(command, Command):
            command.runs += 1
        return self._script(*self.args, **self.kwargs)

    def _note(self) -> None:
        # One that was given to this one is in its hands, also where a busy store refuses before the first step.
        self._used = True
        for given in self.args:
            for one in given if isinstance(given, list) else (given,):
                if isinstance(one, Procedure):
                    one._note()  # noqa: SLF001 - of its own kind

    @property
    def verb(self) -> str:
        """The name; of a private one, which only hands on what another says, that of the other."""
        if not self.name.startswith("_"):
            return self.name
        return next((one.verb for one in self.args if isinstance(one, Procedure)), self.name)

    def tenants(self) -> set[str | None]:
        """
        Tell whose rows it is about, as its arguments say: its `tenant`, or those of the records that it is given first.

        None is among them where they leave that open.
        """
        place = _place_of_tenant(self._script)
        if place is None:
            return _tenants_of(self.args[0]) if self.args else {None}
        return {self.args[place] if place < len(self.args) else self.kwargs.get("tenant")}

    def __iter__(self) -> Script[T]:
        return self.script()

    def __repr__(self) -> str:
        # Names only: arguments hold payloads, and a repr ends up in logs.
        return f"<procedure {self.name}>"

    def __del__(self) -> None:
        if not self._used:
            warnings.warn(f"{self!r} was made but never run", RuntimeWarning, stacklevel=2)


@functools.cache
def _place_of_tenant(script: Callable[..., Any]) -> int | None:
    """Give where a procedure takes its `tenant`, behind all positional arguments where by name alone."""
    names = list(inspect.signature(script).parameters)
    return names.index("tenant") if "tenant" in names else None


def _tenants_of(given: Any) -> set[str | None]:
    if isinstance(given, Procedure):
        return given.tenants()
    if isinstance(given, list | tuple) and not hasattr(given, "tenant"):
        return set().union(*map(_tenants_of, given))
    if not hasattr(given, "tenant"):
        given = getattr(given, "job", None)
    return {getattr(given, "tenant", None)}


@overload
def procedure(script: Callable[P, Script[T | AfterCommit]], /) -> Callable[P, Procedure[T]]: ...
@overload
def procedure(
    *, reads: bool = ..., urgent: bool = ..., wakes: bool = ..., batch: Callable[[Any], Procedure[Any]] | None = ...
) -> Callable[[Callable[P, Script[T | AfterCommit]]], Callable[P, Procedure[T]]]: ...
def procedure(
    script: Any = None,
    /,
    *,
    reads: bool = False,
    urgent: bool = False,
    wakes: bool = False,
    batch: Callable[[Any], Procedure[Any]] | None = None,
) -> Any:
    """
    Turn a generator function into one that returns a `Procedure`.

    A parameter named `command` is filled in when the value is made, so that every run of the same value carries the
    same identity: a store that lost the reply to a commit runs it again, and it answers itself.
    """

    def wrap(function: Callable[P, Script[T]]) -> Callable[P, Procedure[T]]:
        has_command = "command" in inspect.signature(function).parameters

        @functools.wraps(function)
        def make(*args: P.args, **kwargs: P.kwargs) -> Procedure[T]:
            if has_command:
                kwargs["command"] = Command()
            return Procedure(function, args, kwargs, reads=reads, urgent=urgent, wakes=wakes, batch=batch)

        return make

    return wrap if script is None else wrap(script)


@dataclass(frozen=True, slots=True)
class Transact(Generic[T]):
    """Commit one procedure and give back what it returned."""

    procedure: Procedure[T]


@dataclass(frozen=True, slots=True)
class Call:
    """
    Leave the database: call `function(*args)`, awaiting what it returns if it is awaitable.

    Attributes:
        name: Names this place for crash tests and logs.
    """

    name: str
    function: Callable[..., Any | Awaitable[Any]]
    args: tuple[Any, ...] = ()


FlowScript: TypeAlias = Generator["Transact[Any] | Call", Any, T]


class Flow(Generic[T]):
    """An ordered row of commits and calls, as a value."""

    __slots__ = ("_args", "_kwargs", "_script", "name")

    def __init__(self, script: Callable[..., FlowScript[T]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.name = script.__name__
        self._script = script
        self._args = args
        self._kwargs = kwargs

    def script(self) -> FlowScript[T]:
        """Give a fresh generator; each call starts from the beginning with the same arguments."""
        return self._script(*self._args, **self._kwargs)

    def __iter__(self) -> FlowScript[T]:
        return self.script()

    def __repr__(self) -> str:
        return f"<flow {self.name}>"


def flow(script: Callable[P, FlowScript[T]]) -> Callable[P, Flow[T]]:
    """Turn a generator function into one that returns a `Flow`."""

    @functools.wraps(script)
    def make(*args: P.args, **kwargs: P.kwargs) -> Flow[T]:
        return Flow(script, args, kwargs)

    return make


def transact(step: Procedure[T]) -> FlowScript[T]:
    """Commit a procedure from a flow: `value = yield from transact(procedure)`."""
    value: T = yield Transact(step)
    return value


def call(name: str, function: Callable[..., Any], *args: Any) -> FlowScript[Any]:
    """Make an outside call from a flow: `value = yield from call("send", send, intent)`."""
    return (yield Call(name, function, args))
