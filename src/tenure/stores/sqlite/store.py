"""The SQLite store, blocking and awaiting: one engine, two faces."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, TypeVar

from tenure.errors import IllegalMove, Invalid
from tenure.guard import guard, refuse_inside, refuse_other
from tenure.stores import migrate
from tenure.stores.contract import Allows, Clock
from tenure.stores.joining import async_finder, finder, library
from tenure.stores.joining.through import AsyncThrough, Through
from tenure.stores.migrate import Migration
from tenure.stores.runner import asked, settle
from tenure.stores.sqlite import bell, schema
from tenure.stores.sqlite.aiosqlite import AiosqliteJoined
from tenure.stores.sqlite.clock import HostClock, ReplacedClock
from tenure.stores.sqlite.connect import check_library, read_url
from tenure.stores.sqlite.engine import Engine
from tenure.stores.sqlite.failures import closed
from tenure.stores.sqlite.join import AsyncJoined, Joined
from tenure.stores.sqlite.turn import Turn
from tenure.stores.statements import Named, load
from tenure.yields import Procedure

T = TypeVar("T")

_PACKAGE = "tenure.stores.sqlite"
# Nobody may keep all other writers of the file waiting for longer.
_DEADLINE_MAX = timedelta(seconds=5)
_INSIDE = (
    "a transaction of this store is open here and holds the only write lock of SQLite; use the transaction's own run"
)


class _Face:
    """What both stores share."""

    dialect = "sqlite"
    block_max: timedelta | None = _DEADLINE_MAX
    ledger: Any = None
    # By the store that this one was made from, which closes it.
    ledger_is_lent = False

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        statements: Mapping[str, Named] | None = None,
        migrations: Sequence[Migration] | None = None,
        engine: Engine | None = None,
        allows: Allows | None = None,
        tenant: str | None = None,
    ) -> None:
        check_library()
        place = read_url(url) if engine is None else engine.place
        self.url = place.url
        self.tenant = tenant
        self._engine = engine or Engine(
            place,
            load(_PACKAGE) if statements is None else statements,
            migrate.load(_PACKAGE) if migrations is None else migrations,
            HostClock() if clock is None else ReplacedClock(clock),
            allows,
        )
        self._engine.use()
        self._closed = False
        # Two faces of one engine are one store to the guard of a publish.
        self.database = self._engine
        self._bell = place.path or f"memory {id(self._engine)}"

    def _check_end(self) -> None:
        """Refuse to end the engine under the transaction that this task or thread is in: it would wait for itself."""
        if not self._closed and self._engine.last_user():
            refuse_inside(self, only="INSIDE_TRANSACTION")

    def _leave(self) -> None:
        """End this face, and the engine with the last one."""
        with self._engine.lock:
            if self._closed:
                return
            self._closed = True
        try:
            self._engine.leave()
        except IllegalMove:
            self._closed = False
            raise
        if self.ledger is not None and not self.ledger_is_lent:
            self.ledger.close()

    def _check_used(self) -> None:
        if self._closed:
            raise closed()

    def file_identity(self) -> str | None:
        """
        See `contract.Store.file_identity`.

        The number of its inode, without the device's: a machine may number its devices anew at every start.
        """
        path = self._engine.place.path
        try:
            return None if path is None else f"sqlite:{Path(path).stat().st_ino}"
        except OSError:
            return None

    def migration_sql(self) -> str:
        """See `contract.Store.migration_sql`."""
        return schema.as_text(self._engine.known)

    def roles_sql(self, *, row_security: bool = False) -> str:  # noqa: ARG002 - neither is there
        """See `contract.Store.roles_sql`."""
        raise _no_roles()

    def listen(self, wake: Callable[[], None]) -> AbstractContextManager[bool]:
        """See `contract.Store.listen`: only this process is heard, so it yields False."""
        return bell.listen(self._bell, wake)

    def _check_open(self) -> None:
        """Find out at once whether an existing file can be opened; a missing one is made by `migrate`."""
        path = self._engine.place.path
        if path is None or Path(path).exists():
            self._engine.exclusively(self._engine.writer.look)

    def _pending(self) -> list[str]:
        path = self._engine.place.path
        if path is not None and not Path(path).exists():
            return [step.name for step in self._engine.known]
        applied = self._engine.exclusively(lambda: schema.versions(self._engine.writer.look()))
        return [step.name for step in migrate.pending(applied, self._engine.known)]

    def _refuse_migrating(self) -> None:
        if self._engine.allows is not None:
            self._engine.allows("migrate", lambda: (None,))

    def _refuse_inside(self, procedure: Procedure[Any] | None) -> None:
        self._check_used()
        # A read of a file has a connection of its own and may run beside an open transaction, not inside a publish.
        beside = procedure is not None and procedure.reads and not self._engine.place.in_memory
        refuse_inside(self, only="INSIDE_PUBLISH" if beside else None)


def _seconds(deadline: timedelta | None) -> float:
    limit = _DEADLINE_MAX if deadline is None else min(deadline, _DEADLINE_MAX)
    if limit <= timedelta(0):
        raise Invalid("the deadline of a transaction is a positive duration", code="BAD_DURATION")
    return limit.total_seconds()


class SqliteStore(_Face):
    """A SQLite database for blocking callers; see `contract.Store`. Safe to share among threads."""

    def run(self, procedure: Procedure[T]) -> T:
        """See `contract.Store.run`."""
        with asked(procedure, self._engine.allows):
            self._refuse_inside(procedure)
            value = self._engine.run(procedure)
        if procedure.wakes:
            bell.ring(self._bell)
        return settle(value)

    @contextmanager
    def transaction(self, *, deadline: timedelta | None = None) -> Iterator[Turn]:
        """See `contract.Store.transaction`; the deadline is five seconds at most, because all other writers wait."""
        limit = _seconds(deadline)
        self._refuse_inside(None)
        turn = self._engine.lend(limit)
        try:
            with guard(self, code="INSIDE_TRANSACTION", text=_INSIDE):
                yield turn
        except BaseException as error:
            turn.roll_back(error)
            raise
        turn.commit()

    def join(self, connection: Any) -> Joined | Through:
        """See `contract.Store.join`: a sqlite3 connection, or what holds one: SQLAlchemy's objects, Django's."""
        self._check_used()
        refuse_other(self, connection)
        find = finder(connection, self.dialect)
        if find is None:
            return Joined(self._engine, connection)
        return Through(connection, find, lambda found: Joined(self._engine, found))

    def migrate(
        self,
        *,
        test_clock: bool = False,  # noqa: ARG002 - always replaceable
        roles: bool = False,
        row_security: bool | None = None,
    ) -> list[str]:
        """See `contract.Store.migrate`."""
        _refuse_roles(roles=roles, row_security=row_security)
        self._refuse_inside(None)
        self._refuse_migrating()
        return schema.apply(self._engine)

    def pending_migrations(self) -> list[str]:
        """See `contract.Store.pending_migrations`."""
        self._refuse_inside(None)
        return self._pending()

    def unsecured_tables(self) -> list[str] | None:
        """See `contract.Store.unsecured_tables`: a file has no row security."""
        return None

    def notify(self) -> None:
        """Wake the listeners of this process."""
        bell.ring(self._bell)

    def awaiting(self) -> AsyncSqliteStore:
        """See `contract.Store.awaiting`: the same engine, which ends with the last store on it."""
        self._check_used()
        made = AsyncSqliteStore(self.url, engine=self._engine, tenant=self.tenant)
        made.ledger, made.ledger_is_lent = self.ledger, True
        return made

    def close(self) -> None:
        """See `contract.Store.close`."""
        self._check_end()
        self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncTurn:
    """A transaction for an awaiting caller: each call runs in the one thread that this transaction has."""

    def __init__(self, engine: Engine, turn: Turn) -> None:
        self._engine = engine
        self._turn = turn
        self.connection = turn.connection

    async def run(self, procedure: Procedure[T]) -> T:
        """See `Turn.run`."""
        return await _in_turn(self._engine, lambda: self._turn.run(procedure))

    async def execute(self, sql: str, params: Sequence[Any] | dict[str, Any] = ()) -> Any:
        """See `Turn.execute`."""
        return await _in_turn(self._engine, lambda: self._turn.execute(sql, params))


async def _in_turn(engine: Engine, work: Callable[[], T]) -> T:
    # One thread, so that the end of a transaction comes after whatever a cancelled caller left running.
    return await asyncio.get_running_loop().run_in_executor(engine.pool("transaction", 1), work)


async def _to_the_end(future: asyncio.Future[T], cleanup: Callable[[T], None] | None = None) -> T:
    # Waits for work that must not be left half done. A cancelled caller leaves at once and the work goes on.
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:

        def finished(future: asyncio.Future[T]) -> None:
            if future.exception() is None and cleanup is not None:  # looking at it also marks it as seen
                cleanup(future.result())

        future.add_done_callback(finished)
        raise


async def _apart(work: Callable[[], T]) -> T:
    """Run rare and long work in a thread of its own, which is gone afterwards."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]  # None only where T is None

    def body() -> None:
        value: T | None = None
        failed: BaseException | None = None
        try:
            value = work()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's task
            failed = error
        try:
            loop.call_soon_threadsafe(deliver, value, failed)
        except RuntimeError:
            # The loop was closed meanwhile and nobody waits for the answer.
            return

    thread = threading.Thread(target=body, name="tenure-sqlite-work", daemon=True)
    thread.start()
    try:
        return await future
    finally:
        if future.done() and not future.cancelled():
            thread.join()  # it has nothing left to do


class AsyncSqliteStore(_Face):
    """A SQLite database for awaiting callers; see `contract.AsyncStore`. No call blocks the event loop."""

    async def run(self, procedure: Procedure[T]) -> T:
        """See `contract.Store.run`; a cancelled caller does not undo what it asked for."""
        with asked(procedure, self._engine.allows):
            self._refuse_inside(procedure)
            value = await self._engine.run_async(procedure)
        if procedure.wakes:
            bell.ring(self._bell)
        return settle(value)

    @asynccontextmanager
    async def transaction(self, *, deadline: timedelta | None = None) -> AsyncIterator[AsyncTurn]:
        """See `SqliteStore.transaction`."""
        limit = _seconds(deadline)
        self._refuse_inside(None)
        engine = self._engine
        engine.pool("transaction", 1)  # before the line is held: a store that is being closed refuses here
        await engine.line_async()
        turn = await _to_the_end(
            asyncio.ensure_future(_in_turn(engine, lambda: engine.open_turn(limit))),
            cleanup=lambda turn: _later(engine, turn),
        )
        try:
            with guard(self, code="INSIDE_TRANSACTION", text=_INSIDE):
                yield AsyncTurn(engine, turn)
        except BaseException as error:
            failure = error
            await _to_the_end(asyncio.ensure_future(_in_turn(engine, lambda: turn.roll_back(failure))))
            raise
        await _to_the_end(asyncio.ensure_future(_in_turn(engine, turn.commit)))

    def join(self, connection: Any) -> AsyncJoined | AiosqliteJoined | AsyncThrough:
        """See `contract.AsyncStore.join`: of sqlite3 or aiosqlite, or SQLAlchemy's awaited objects."""
        self._check_used()
        refuse_other(self, connection)
        find = async_finder(connection, self.dialect)
        if find is None:
            return self._join_driver(connection)
        return AsyncThrough(connection, find, self._join_driver)

    def _join_driver(self, connection: Any) -> AsyncJoined | AiosqliteJoined:
        if library(connection) == "aiosqlite":
            return AiosqliteJoined(self._engine, connection)
        return AsyncJoined(self._engine, connection)

    def migrate(
        self,
        *,
        test_clock: bool = False,  # noqa: ARG002 - always replaceable
        roles: bool = False,
        row_security: bool | None = None,
    ) -> Awaitable[list[str]]:
        """See `contract.Store.migrate`."""
        _refuse_roles(roles=roles, row_security=row_security)
        self._refuse_inside(None)
        self._refuse_migrating()
        return _apart(lambda: schema.apply(self._engine))

    def pending_migrations(self) -> Awaitable[list[str]]:
        """See `contract.Store.pending_migrations`."""
        self._refuse_inside(None)
        return _apart(self._pending)

    async def unsecured_tables(self) -> list[str] | None:
        """See `contract.Store.unsecured_tables`."""
        return None

    async def notify(self) -> None:
        """Wake the listeners of this process."""
        bell.ring(self._bell)

    def blocking(self) -> SqliteStore:
        """See `contract.AsyncStore.blocking`: the same engine, which ends with the last store on it."""
        self._check_used()
        made = SqliteStore(self.url, engine=self._engine, tenant=self.tenant)
        made.ledger, made.ledger_is_lent = self.ledger, True
        return made

    async def close(self) -> None:
        """See `contract.Store.close`."""
        self._check_end()
        await _apart(self._leave)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def _later(engine: Engine, turn: Turn) -> None:
    # The caller was cancelled while its transaction was being opened.
    engine.pool("transaction", 1).submit(turn.roll_back, asyncio.CancelledError())


def open_store(
    url: str,
    *,
    role: str | None = None,
    tenant: str | None = None,
    clock: Clock | None = None,
    allows: Allows | None = None,
) -> SqliteStore:
    """Open a SQLite store; see `tenure.stores.open_store`."""
    _refuse_role(role, allows)
    store = SqliteStore(url, clock=clock, allows=allows, tenant=tenant)
    store._check_open()  # noqa: SLF001 - the opener is part of the store
    return store


async def open_async_store(
    url: str,
    *,
    role: str | None = None,
    tenant: str | None = None,
    clock: Clock | None = None,
    allows: Allows | None = None,
) -> AsyncSqliteStore:
    """Open a SQLite store; see `tenure.stores.open_async_store`."""
    _refuse_role(role, allows)
    store = AsyncSqliteStore(url, clock=clock, allows=allows, tenant=tenant)
    await _apart(store._check_open)  # noqa: SLF001 - the opener is part of the store
    return store


def _no_roles() -> Invalid:
    return Invalid(
        'SQLite has no database roles to make; open_store(url, role="worker") works there without them',
        code="BAD_ARGUMENT",
    )


def _refuse_roles(*, roles: bool, row_security: bool | None) -> None:
    if row_security is not None:
        raise Invalid(
            "SQLite has no row security; open_store(url, tenant=...) works there without it, and a file of its own "
            "keeps a tenant apart",
            code="BAD_ARGUMENT",
        )
    if roles:
        raise _no_roles()


def _refuse_role(role: str | None, allows: Allows | None) -> None:
    if role is not None and allows is None:
        raise Invalid(
            "SQLite has no roles of its own; role= is one of viewer, producer, worker, operator and repairer here",
            code="BAD_ARGUMENT",
        )
