"""
The PostgreSQL store, blocking and awaiting.

One call of `run` is two round trips where the procedure asks once: BEGIN, settings and statements in the first, COMMIT
in the second. A procedure that only reads is sent without a transaction, in one.

Connections come from a pool and go back without a trace: settings end with the transaction, and every way out of an
error goes through ROLLBACK or the end of the connection. A call that meets a broken connection or a lost reply runs the
same procedure again on another connection; the procedure knows its own command id and answers itself.
"""

from __future__ import annotations

# First, because it tells what to install where the driver is missing.
from tenure.stores.postgres.driver import psycopg  # isort: skip

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tenure.errors import TenureError
from tenure.guard import guard
from tenure.stores.contract import Allows, Clock
from tenure.stores.joining import async_finder, finder, library
from tenure.stores.joining.through import AsyncThrough, Through
from tenure.stores.postgres import schema
from tenure.stores.postgres.connection import AwaitingConnection, BlockingConnection, play, play_async
from tenure.stores.postgres.face import (
    IN_PROGRESS,
    INSIDE,
    MIGRATING,
    TIDY,
    commit_unknown,
    fate_query,
    judge_fate,
)
from tenure.stores.postgres.pools import AwaitingPools, BlockingPools
from tenure.stores.postgres.schema import Steps
from tenure.stores.postgres.transactions import AsyncJoined, AsyncOpened, Joined, Opened
from tenure.stores.postgres.trouble import Failure, Kind
from tenure.stores.postgres.unit import COMMIT, GRACE
from tenure.stores.postgres.wake import NOTIFY, Notifier
from tenure.stores.runner import Requests, asked, drive, drive_async, settle
from tenure.yields import AfterCommit, Procedure, Rows

if TYPE_CHECKING:
    from tenure.stores.postgres.asyncpg import AsyncpgJoined

T = TypeVar("T")

# Seconds: how long a notification may wait for a connection, and between two questions about a commit.
_NOTIFYING = 2.0
_ASKING = 0.05


class PostgresStore(BlockingPools):
    """A PostgreSQL database for blocking callers; see `contract.Store`. Safe to share among threads."""

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._notifier = Notifier(self._send_notification, self._pace)

    def _leave_behind(self) -> object:
        return super()._leave_behind(), self._notifier

    def run(self, procedure: Procedure[T]) -> T:
        """See `contract.Store.run`."""
        with asked(procedure, self.allows):
            self._refuse(procedure)
            tell = procedure.wakes and self._pace.due()
            value = self._patiently(lambda deadline: self._once(procedure, deadline, tell=tell), self._seconds)
        if procedure.wakes and not tell:
            self._notifier.notify()
        return settle(value)

    def _once(self, procedure: Procedure[T], deadline: float, *, tell: bool) -> T | AfterCommit:
        unit = self._unit(procedure, deadline, tell=tell)
        with self._borrow(deadline, urgent=procedure.urgent) as connection:

            def answer(requests: Requests) -> list[Rows]:
                return unit.answers(connection.ask(unit.queries(requests)))

            value = drive(procedure, answer)
            if unit.opened and not unit.closed:
                connection.ask(unit.closing)
        return value

    @contextmanager
    def transaction(self, *, deadline: timedelta | None = None) -> Iterator[Opened]:
        """
        See `contract.Store.transaction`.

        Raises:
            Uncertain: COMMIT_UNKNOWN, when the reply to the commit was lost and the server cannot tell any more.
        """
        self._refuse()
        block = self._block(deadline)
        connection, own_id = self._patiently(lambda until: self._open_block(until, block.ends), self._seconds)
        failed, lost = True, False
        try:
            with guard(self, code="INSIDE_TRANSACTION", text=INSIDE):
                yield Opened(connection, block)
            block.check_end(connection.info.transaction_status)
            connection.deadline = time.monotonic() + self._seconds
            connection.ask([COMMIT, *TIDY])
            failed = False
        except Failure as failure:
            lost = failure.kind is Kind.LOST
            if not lost:
                raise block.tell(failure) from None
        except psycopg.Error as error:
            told = block.tell(error)
            if told is error:
                raise
            raise told from None
        finally:
            block.over = True
            self._give(connection, failed=failed)
        if lost:
            self._resolve(own_id, connection.server_run)
        if block.after is not None:
            raise block.after

    def _open_block(self, until: float, ends: float | None) -> tuple[BlockingConnection, str]:
        connection = self._take(until if ends is None else min(until, ends))
        failed = True
        try:
            own_id = connection.ask(self._begin_block(ends))[-1][0][0]
            failed = False
        finally:
            if failed:
                self._give(connection, failed=True)
        connection.deadline = math.inf if ends is None else ends + GRACE
        return connection, own_id

    def _resolve(self, own_id: str, server_run: str) -> None:
        end = time.monotonic() + self._seconds
        fate: str | None = IN_PROGRESS
        try:
            while fate == IN_PROGRESS and time.monotonic() < end:
                fate = self._patiently(lambda until: self._fate(until, own_id, server_run), self._seconds)
                if fate == IN_PROGRESS:
                    time.sleep(_ASKING)  # the server is still at it
        except TenureError as error:
            raise commit_unknown() from error
        judge_fate(fate)

    def _fate(self, until: float, own_id: str, server_run: str) -> str | None:
        with self._borrow(until) as connection:
            if connection.server_run != server_run:
                return None
            fate: str | None = connection.ask([fate_query(own_id)])[0][0][0]
            return fate

    def join(self, connection: Any) -> Joined | Through:
        """See `contract.Store.join`: a `psycopg.Connection`, or what holds one: SQLAlchemy's objects, Django's."""
        self._check_join(connection)
        find = finder(connection, self.dialect)
        if find is None:
            return Joined(connection, self._join_host(connection))
        return Through(connection, find, lambda found: Joined(found, self._join_host(found)))

    def migrate(self, *, test_clock: bool = False, roles: bool = False, row_security: bool | None = None) -> list[str]:
        """See `contract.Store.migrate`."""
        self._refuse_migrating()
        steps = partial(self._migrate, test_clock=test_clock, roles=roles, row_security=row_security)
        return self._patiently(lambda until: self._play(until, steps()), MIGRATING)

    def pending_migrations(self) -> list[str]:
        """See `contract.Store.pending_migrations`."""
        self._refuse()
        return self._patiently(lambda until: self._play(until, self._pending()), self._seconds)

    def unsecured_tables(self) -> list[str] | None:
        """See `contract.Store.unsecured_tables`."""
        self._refuse()
        return self._patiently(lambda until: self._play(until, schema.unsecured()), self._seconds)

    def look(self) -> None:
        """Find out whether the server answers and can be used; for the opener."""
        self._patiently(lambda until: self._play(until, self._look()), self._opening_seconds())

    def _play(self, until: float, steps: Steps[T]) -> T:
        with self._borrow(until, verified=False) as connection:
            # A migration may take its time; the server bounds the waiting for locks.
            connection.deadline = math.inf
            return play(connection, steps)

    def notify(self) -> None:
        """See `contract.Store.notify`; returns at once."""
        self._check_open()
        self._notifier.notify()

    def _send_notification(self) -> None:
        try:
            with self._borrow(time.monotonic() + _NOTIFYING, verified=False) as connection:
                connection.ask([NOTIFY])
        except (Failure, TenureError):
            # Best effort: whoever polls finds the work all the same.
            return

    def awaiting(self) -> AsyncPostgresStore:
        """See `contract.Store.awaiting`; connections are not shared."""
        self._check_open()
        made = AsyncPostgresStore(**self._options())
        made.ledger, made.ledger_is_lent = self.ledger, True
        return made

    def close(self) -> None:
        """See `contract.Store.close`."""
        self._notifier.close()
        self._close_pools()
        if self.ledger is not None and not self.ledger_is_lent:
            self.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncPostgresStore(AwaitingPools):
    """A PostgreSQL database for awaiting callers; see `contract.AsyncStore`. One event loop at a time."""

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._telling: asyncio.Task[None] | None = None
        self._to_tell = False

    def _leave_behind(self) -> object:
        return super()._leave_behind(), self._telling

    async def run(self, procedure: Procedure[T]) -> T:
        """See `contract.Store.run`."""
        with asked(procedure, self.allows):
            self._refuse(procedure)
            tell = procedure.wakes and self._pace.due()
            value = await self._patiently(lambda deadline: self._once(procedure, deadline, tell=tell), self._seconds)
        if procedure.wakes and not tell and not self._closed:
            await self.notify()
        return settle(value)

    async def _once(self, procedure: Procedure[T], deadline: float, *, tell: bool) -> T | AfterCommit:
        unit = self._unit(procedure, deadline, tell=tell)
        async with self._borrow(deadline, urgent=procedure.urgent) as connection:

            async def answer(requests: Requests) -> list[Rows]:
                return unit.answers(await connection.ask(unit.queries(requests)))

            value = await drive_async(procedure, answer)
            if unit.opened and not unit.closed:
                await connection.ask(unit.closing)
        return value

    @asynccontextmanager
    async def transaction(self, *, deadline: timedelta | None = None) -> AsyncIterator[AsyncOpened]:
        """See `PostgresStore.transaction`."""
        self._refuse()
        block = self._block(deadline)
        connection, own_id = await self._patiently(lambda until: self._open_block(until, block.ends), self._seconds)
        failed, lost = True, False
        try:
            with guard(self, code="INSIDE_TRANSACTION", text=INSIDE):
                yield AsyncOpened(connection, block)
            block.check_end(connection.info.transaction_status)
            connection.deadline = time.monotonic() + self._seconds
            await connection.ask([COMMIT, *TIDY])
            failed = False
        except Failure as failure:
            lost = failure.kind is Kind.LOST
            if not lost:
                raise block.tell(failure) from None
        except psycopg.Error as error:
            told = block.tell(error)
            if told is error:
                raise
            raise told from None
        finally:
            block.over = True
            await self._give(connection, failed=failed)
        if lost:
            await self._resolve(own_id, connection.server_run)
        if block.after is not None:
            raise block.after

    async def _open_block(self, until: float, ends: float | None) -> tuple[AwaitingConnection, str]:
        connection = await self._take(until if ends is None else min(until, ends))
        failed = True
        try:
            own_id = (await connection.ask(self._begin_block(ends)))[-1][0][0]
            failed = False
        finally:
            if failed:
                await self._give(connection, failed=True)
        connection.deadline = math.inf if ends is None else ends + GRACE
        return connection, own_id

    async def _resolve(self, own_id: str, server_run: str) -> None:
        end = time.monotonic() + self._seconds
        fate: str | None = IN_PROGRESS
        try:
            while fate == IN_PROGRESS and time.monotonic() < end:
                fate = await self._patiently(lambda until: self._fate(until, own_id, server_run), self._seconds)
                if fate == IN_PROGRESS:
                    await asyncio.sleep(_ASKING)
        except TenureError as error:
            raise commit_unknown() from error
        judge_fate(fate)

    async def _fate(self, until: float, own_id: str, server_run: str) -> str | None:
        async with self._borrow(until) as connection:
            if connection.server_run != server_run:
                return None
            fate: str | None = (await connection.ask([fate_query(own_id)]))[0][0][0]
            return fate

    def join(self, connection: Any) -> AsyncJoined | AsyncpgJoined | AsyncThrough:
        """See `contract.AsyncStore.join`: of psycopg or asyncpg, or SQLAlchemy's awaited objects over either."""
        self._check_join(connection)
        find = async_finder(connection, self.dialect)
        if find is None:
            return self._join_driver(connection)
        return AsyncThrough(connection, find, self._join_driver)

    def _join_driver(self, connection: Any) -> AsyncJoined | AsyncpgJoined:
        if library(connection) != "asyncpg":
            return AsyncJoined(connection, self._join_host(connection))
        from tenure.stores.postgres.asyncpg import AsyncpgJoined, own  # noqa: PLC0415 - the caller's driver, not ours

        return AsyncpgJoined(connection, self._join_host(own(connection)))

    async def migrate(
        self, *, test_clock: bool = False, roles: bool = False, row_security: bool | None = None
    ) -> list[str]:
        """See `contract.Store.migrate`."""
        self._refuse_migrating()
        steps = partial(self._migrate, test_clock=test_clock, roles=roles, row_security=row_security)
        return await self._patiently(lambda until: self._play(until, steps()), MIGRATING)

    async def pending_migrations(self) -> list[str]:
        """See `contract.Store.pending_migrations`."""
        self._refuse()
        return await self._patiently(lambda until: self._play(until, self._pending()), self._seconds)

    async def unsecured_tables(self) -> list[str] | None:
        """See `contract.Store.unsecured_tables`."""
        self._refuse()
        return await self._patiently(lambda until: self._play(until, schema.unsecured()), self._seconds)

    async def look(self) -> None:
        """See `PostgresStore.look`."""
        await self._patiently(lambda until: self._play(until, self._look()), self._opening_seconds())

    async def _play(self, until: float, steps: Steps[T]) -> T:
        async with self._borrow(until, verified=False) as connection:
            connection.deadline = math.inf
            return await play_async(connection, steps)

    async def notify(self) -> None:
        """See `contract.Store.notify`; does not wait for it."""
        self._check_open()
        anew = self._leave_loop()
        self._to_tell = True
        if anew or self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell(), name="tenure-notify")

    async def _tell(self) -> None:
        while self._to_tell:
            left = self._pace.wait_for()
            if left > 0:
                await asyncio.sleep(left)
                continue
            self._to_tell = False
            try:
                async with self._borrow(time.monotonic() + _NOTIFYING, verified=False) as connection:
                    await connection.ask([NOTIFY])
            except (Failure, TenureError):
                # Best effort: whoever polls finds the work all the same.
                return

    def blocking(self) -> PostgresStore:
        """See `contract.AsyncStore.blocking`; connections are not shared."""
        self._check_open()
        made = PostgresStore(**self._options())
        made.ledger, made.ledger_is_lent = self.ledger, True
        return made

    async def close(self) -> None:
        """See `contract.Store.close`."""
        if self._telling is not None and self._loop is asyncio.get_running_loop():
            await self._telling
        await self._close_pools()
        if self.ledger is not None and not self.ledger_is_lent:
            self.ledger.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def open_store(
    url: str,
    *,
    role: str | None = None,
    tenant: str | None = None,
    clock: Clock | None = None,
    allows: Allows | None = None,
) -> PostgresStore:
    """Open a PostgreSQL store; see `tenure.stores.open_store`."""
    store = PostgresStore(url, role=role, tenant=tenant, clock=clock, allows=allows)
    try:
        store.look()
    except BaseException:
        store.close()
        raise
    return store


async def open_async_store(
    url: str,
    *,
    role: str | None = None,
    tenant: str | None = None,
    clock: Clock | None = None,
    allows: Allows | None = None,
) -> AsyncPostgresStore:
    """Open a PostgreSQL store; see `tenure.stores.open_async_store`."""
    store = AsyncPostgresStore(url, role=role, tenant=tenant, clock=clock, allows=allows)
    try:
        await store.look()
    except BaseException:
        await store.close()
        raise
    return store
