"""
Die at a named place: the points where a process can end, found in the package itself and entered by ending it.

A point is named after what was going on. `begin_effect:before_commit` is the end of the procedure `begin_effect`, with
its transaction still open; `begin_effect:after_commit` is the moment after the commit, before anyone knows of it.
`send:before` and `send:after` enclose a provider's call. Nothing in the product knows of points: a store, a provider
and a journal are wrapped, and the wrappers watch.

    points = CrashPoints.from_environment()             # CRASH_AT=begin_effect:after_commit, the second time with :2
    app = Tenure(points.store(open_store(url)), ..., providers=[points.provider(mailer)])

Without CRASH_AT nothing dies, and `reached` says which points such a run passes, how often and in which order.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import pkgutil
import signal
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from datetime import timedelta
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from types import ModuleType, TracebackType
from typing import Any, Protocol, Self, TypeVar, cast, overload
from uuid import UUID

from tenure.connectors.destination import Destination
from tenure.connectors.provider import Provider
from tenure.errors import Invalid
from tenure.flows.ledger import Ledger
from tenure.rules.ledger import Book, Entry
from tenure.rules.message import Delivery, Message
from tenure.rules.outcome import Evidence, Outcome
from tenure.stores.contract import AsyncStore, AsyncTransaction, Store, Transaction
from tenure.stores.runner import asked
from tenure.yields import AfterCommit, Last, Procedure, Script

T = TypeVar("T")

BEFORE_COMMIT, AFTER_COMMIT, BEFORE, AFTER = "before_commit", "after_commit", "before", "after"


class _Keep(Protocol):
    """What a handler keeps receipts in; see `tenure.handler.Keep`."""

    def append_receipt(self, operation_key: str, attempt_id: UUID, evidence: Evidence) -> Any: ...


def die() -> None:
    """End this process as a power cut would: nothing is flushed, closed or said."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    """
    Pause this process until it is sent SIGCONT.

    Sent to this thread: a signal to the process may be taken by another one, and this one would run on for a moment.
    """
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


_ACTS: Mapping[str, Callable[[], None]] = {"kill": die, "stop": stop}


class CrashPoints:
    """
    Watches the points that a run passes, and acts at one of them.

    Args:
        at: A point's name; `name:k` means the k-th time it is reached.
        act: What happens there: `die`, `stop`, or a function of yours, such as one that raises.
        log: A file that gets one line for each point reached, readable after the process has died.

    Attributes:
        at: The point's name without its number, None where nothing happens.
        times: Which time it acts.
        reached: The points passed so far, in order.
    """

    def __init__(
        self, at: str | None = None, *, act: Callable[[], None] = die, log: str | os.PathLike[str] | None = None
    ) -> None:
        self.at: str | None = None
        self.times = 0
        if at is not None:
            self.at, self.times = read_point(at)
        self.reached: list[str] = []
        self._act = act
        self._log = None if log is None else Path(log)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """
        Read CRASH_AT (`name` or `name:k`), CRASH_ACT (`kill` or `stop`) and CRASH_LOG (a file); all may be missing.

        Raises:
            Invalid: CRASH_AT names no point, or CRASH_ACT is something else.
        """
        act = environ.get("CRASH_ACT", "kill")
        if act not in _ACTS:
            raise Invalid(f"CRASH_ACT is one of {', '.join(_ACTS)}, not {act!r}", code="BAD_ARGUMENT")
        return cls(environ.get("CRASH_AT") or None, act=_ACTS[act], log=environ.get("CRASH_LOG") or None)

    @property
    def counts(self) -> Counter[str]:
        """How often each point was passed."""
        with self._lock:
            return Counter(self._counts)

    def reach(self, name: str) -> None:
        """Pass a point, the wrappers' or one of your own between two steps of a handler: `points.reach("mine:now")`."""
        with self._lock:
            self.reached.append(name)
            self._counts[name] += 1
            here = name == self.at and self._counts[name] == self.times
            if self._log is not None:
                # One write of one line: whole, and in the kernel's hands when this process dies.
                with self._log.open("ab", buffering=0) as file:
                    file.write(f"{name}\n".encode())
        if here:
            self._act()

    @overload
    def store(self, store: Store) -> Store: ...
    @overload
    def store(self, store: AsyncStore) -> AsyncStore: ...
    def store(self, store: Any) -> Any:
        """Wrap a store; what it gives out (`awaiting`, `blocking`, transactions) is wrapped too."""
        return _BlockingStore(store, self) if hasattr(store, "awaiting") else _AwaitingStore(store, self)

    def provider(self, provider: Provider) -> Provider:
        """Wrap a provider: `send:before`, `send:after`, `lookup:before`, `lookup:after`."""
        return _WatchedProvider(provider, self)

    def destination(self, destination: Destination) -> Destination:
        """Wrap a destination of messages: `deliver:before`, `deliver:after`."""
        return _WatchedDestination(destination, self)

    def journal(self, journal: _Keep) -> _Keep:
        """Wrap what keeps receipts: `keep:before`, `keep:after`."""
        return _WatchedJournal(journal, self)

    def ledger(self, ledger: Ledger) -> Ledger:
        """Wrap an authority ledger: `ledger_outside`, `_read`, `_begin` and `_write`, each with before and after."""
        watched: Any = _WatchedLedger(ledger, self)
        return cast("Ledger", watched)

    def __repr__(self) -> str:
        return f"<CrashPoints {f'{self.at}:{self.times}' if self.at else 'watching'}>"


def read_point(text: str) -> tuple[str, int]:
    """
    Read `name` or `name:k`.

    Raises:
        Invalid: There is no colon in the name, or k is not 1 or more.
    """
    name, _, number = text.rpartition(":")
    if not number.isdecimal():
        name, number = text, "1"
    if ":" not in name.strip(":") or int(number) < 1:
        raise Invalid(
            f"a point is written as what:when or what:when:k, such as claim:after_commit:2, not {text!r}",
            code="BAD_ARGUMENT",
        )
    return name, int(number)


# --- which points there are -------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def known_points() -> tuple[str, ...]:
    """
    Give every point of the package, sorted: before and after each commit, before and after each call.

    Read from the source of `tenure.procedures` and `tenure.flows`, so that a new procedure has its points without
    anybody adding them to a list.
    """
    found = {f"{name}:{when}" for name in _written() for when in (BEFORE_COMMIT, AFTER_COMMIT)}
    found |= {f"{name}:{when}" for name in _called() for when in (BEFORE, AFTER)}
    return tuple(sorted(found))


def _trees(package: str) -> Iterator[ast.Module]:
    home: ModuleType = import_module(package)
    for one in pkgutil.iter_modules(home.__path__):
        yield ast.parse(inspect.getsource(import_module(f"{package}.{one.name}")))


def _written() -> Iterator[str]:
    """Names of the procedures that write or lock: a reader has no commit to be cut at."""
    for tree in _trees("tenure.procedures"):
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            for mark in node.decorator_list:
                options = mark.keywords if isinstance(mark, ast.Call) else []
                called = mark.func if isinstance(mark, ast.Call) else mark
                reads = any(one.arg == "reads" for one in options)
                if isinstance(called, ast.Name) and called.id == "procedure" and not reads:
                    yield node.name


def _called() -> Iterator[str]:
    """Names of the places where a flow leaves the database."""
    for tree in _trees("tenure.flows"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "call":
                name = node.args[0]
                assert isinstance(name, ast.Constant), "a call of a flow is named where it is made"
                yield str(name.value)


def point_name(procedure: Procedure[Any]) -> str:
    """Give the name that points carry: a private procedure only hands on what a public one says."""
    while procedure.name.startswith("_"):
        inner = next((one for one in procedure.args if isinstance(one, Procedure)), None)
        if inner is None:
            return _runs(procedure._script) or procedure.name.lstrip("_")  # noqa: SLF001
        procedure = inner
    return procedure.name


@lru_cache
def _runs(script: Callable[..., Any]) -> str | None:
    """Give the name of the procedure that a private one makes and runs itself."""
    for node in ast.walk(ast.parse(dedent(inspect.getsource(script)))):
        if isinstance(node, ast.YieldFrom) and isinstance(node.value, ast.Call):
            called = node.value.func
            return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
    return None


# --- the wrappers -----------------------------------------------------------------------------------------------------


class _Watched:
    """One procedure on its way: knows whether it came to its end, so that a refusal is not taken for a commit."""

    def __init__(self, procedure: Procedure[Any], points: CrashPoints) -> None:
        self.name = point_name(procedure)
        self.ended = False
        self._points = points
        self._procedure = procedure

    def value(self) -> Procedure[Any]:
        """Give the procedure that passes a point at its end."""
        inner = self._procedure

        # The inner one is an argument, so that a store with a role finds the name that it judges by.
        def script(_inner: Procedure[Any]) -> Script[Any]:
            self.ended = False
            value = yield from _each_by_itself(inner)
            if not inner.reads:
                self._points.reach(f"{self.name}:{BEFORE_COMMIT}")
            # An error that follows the commit is the only one that a store raises after this line and a commit.
            self.ended = isinstance(value, AfterCommit)
            return value

        script.__name__ = inner.name
        return Procedure(script, (inner,), {}, reads=inner.reads, urgent=inner.urgent)

    def committed(self) -> None:
        """Pass the point after the commit."""
        if not self._procedure.reads:
            self._points.reach(f"{self.name}:{AFTER_COMMIT}")


def _each_by_itself(procedure: Procedure[T]) -> Script[T]:
    """Ask for the last requests like all others, so that there is a point between them and the commit."""
    script = iter(procedure)
    answer: Any = None
    while True:
        try:
            request = script.send(answer)
        except StopIteration as end:
            return cast("T", end.value)
        answer = yield list(request.requests) if isinstance(request, Last) else request


class _Wrapper:
    """What the wrapped thing says about itself, the wrapper says too."""

    def __init__(self, inner: Any, points: CrashPoints) -> None:
        self._inner = inner
        self._points = points

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __repr__(self) -> str:
        return f"<watched {self._inner!r}>"


class _BlockingStore(_Wrapper):
    def run(self, procedure: Procedure[T]) -> T:
        watched = _Watched(procedure, self._points)
        try:
            with asked(procedure):
                value = self._inner.run(watched.value())
        except Exception:
            if watched.ended:
                watched.committed()
            raise
        watched.committed()
        return cast("T", value)

    @contextmanager
    def transaction(self, *, deadline: timedelta | None = None) -> Iterator[Transaction]:
        with self._inner.transaction(deadline=deadline) as tx:
            watched = _BlockingTransaction(tx, self._points)
            yield cast("Transaction", watched)
        watched.committed()

    def join(self, connection: Any) -> AbstractContextManager[Transaction]:
        joined: Any = _BlockingTransaction(self._inner.join(connection), self._points)
        return cast("AbstractContextManager[Transaction]", joined)

    def awaiting(self) -> AsyncStore:
        return self._points.store(cast("AsyncStore", self._inner.awaiting()))

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inner.__exit__(kind, error, trace)


class _AwaitingStore(_Wrapper):
    async def run(self, procedure: Procedure[T]) -> T:
        watched = _Watched(procedure, self._points)
        try:
            with asked(procedure):
                value = await self._inner.run(watched.value())
        except Exception:
            if watched.ended:
                watched.committed()
            raise
        watched.committed()
        return cast("T", value)

    @asynccontextmanager
    async def transaction(self, *, deadline: timedelta | None = None) -> AsyncIterator[AsyncTransaction]:
        async with self._inner.transaction(deadline=deadline) as tx:
            watched = _AwaitingTransaction(tx, self._points)
            yield cast("AsyncTransaction", watched)
        watched.committed()

    def join(self, connection: Any) -> AbstractAsyncContextManager[AsyncTransaction]:
        joined: Any = _AwaitingTransaction(self._inner.join(connection), self._points)
        return cast("AbstractAsyncContextManager[AsyncTransaction]", joined)

    def blocking(self) -> Store:
        return self._points.store(cast("Store", self._inner.blocking()))

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)


class _InTransaction(_Wrapper):
    """The procedures of one transaction: each passes its own end, and all of them pass the one commit."""

    def __init__(self, inner: Any, points: CrashPoints) -> None:
        super().__init__(inner, points)
        self._run: list[_Watched] = []

    def watch(self, procedure: Procedure[Any]) -> Procedure[Any]:
        self._run.append(_Watched(procedure, self._points))
        return self._run[-1].value()

    def committed(self) -> None:
        for watched in self._run:
            watched.committed()


class _BlockingTransaction(_InTransaction):
    def run(self, procedure: Procedure[T]) -> T:
        with asked(procedure):
            return cast("T", self._inner.run(self.watch(procedure)))

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        # A caller's own transaction: its commit is the caller's, and there is no point of ours after it.
        return self._inner.__exit__(kind, error, trace)


class _AwaitingTransaction(_InTransaction):
    async def run(self, procedure: Procedure[T]) -> T:
        with asked(procedure):
            return cast("T", await self._inner.run(self.watch(procedure)))

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        return await self._inner.__aexit__(kind, error, trace)


class _WatchedProvider(Provider):
    def __init__(self, inner: Provider, points: CrashPoints) -> None:
        self.name = inner.name
        self.idempotency = inner.idempotency
        self.lookup_complete = inner.lookup_complete
        self.settles_within = inner.settles_within
        self.timeout = inner.timeout
        self._inner = inner
        self._points = points

    @property
    def has_lookup(self) -> bool:
        return self._inner.has_lookup

    async def send(self, request: Any, operation_key: str) -> Outcome:
        self._points.reach(f"send:{BEFORE}")
        outcome: Outcome = await _called_in(self._inner.send, request, operation_key)
        self._points.reach(f"send:{AFTER}")
        return outcome

    async def lookup(self, operation_key: str) -> Evidence:
        self._points.reach(f"lookup:{BEFORE}")
        evidence: Evidence = await _called_in(self._inner.lookup, operation_key)
        self._points.reach(f"lookup:{AFTER}")
        return evidence


class _WatchedDestination(Destination):
    def __init__(self, inner: Destination, points: CrashPoints) -> None:
        self.name = inner.name
        self.batch = inner.batch
        self.timeout = inner.timeout
        self._inner = inner
        self._points = points

    async def open(self) -> None:
        await self._inner.open()

    async def deliver(self, messages: Sequence[Message]) -> Sequence[Delivery]:
        self._points.reach(f"deliver:{BEFORE}")
        answers = await self._inner.deliver(messages)
        self._points.reach(f"deliver:{AFTER}")
        return answers

    async def close(self) -> None:
        await self._inner.close()


async def _called_in(function: Callable[..., Any], *args: Any) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    # A plain one may block for long, which must not stop the loop that bounds it.
    value: Any = await asyncio.to_thread(function, *args)
    return await value if inspect.isawaitable(value) else value


class _WatchedJournal(_Wrapper):
    def append_receipt(self, operation_key: str, attempt_id: UUID, evidence: Evidence) -> Any:
        self._points.reach(f"keep:{BEFORE}")
        kept = self._inner.append_receipt(operation_key, attempt_id, evidence)
        self._points.reach(f"keep:{AFTER}")
        return kept


class _WatchedLedger(_Wrapper):
    def read(self) -> Book | None:
        return self._passed("read")  # type: ignore[no-any-return]

    def begin(self, book: Book) -> Book:
        return self._passed("begin", book)  # type: ignore[no-any-return]

    def write(self, *entries: Entry) -> Book:
        return self._passed("write", *entries)  # type: ignore[no-any-return]

    def check_outside(self, identity: str) -> None:
        self._passed("outside", identity, asked="check_outside")

    def _passed(self, name: str, *given: Any, asked: str = "") -> Any:
        self._points.reach(f"ledger_{name}:{BEFORE}")
        value = getattr(self._inner, asked or name)(*given)
        self._points.reach(f"ledger_{name}:{AFTER}")
        return value
