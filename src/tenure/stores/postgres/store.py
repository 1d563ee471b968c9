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
from tenure.stores.postgres.driver import psycopg, psycopg_pool  # isort: skip

import asyncio
import math
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from os import PathLike
from types import TracebackType
from typing import Any, Self, TypeVar

from psycopg.rows import tuple_row

from tenure.errors import Invalid, TenureError
from tenure.stores.contract import Clock
from tenure.stores.postgres.connection import (
    AwaitingConnection,
    BlockingConnection,
    play,
    play_async,
    rollback,
)
from tenure.stores.postgres.face import (
    IN_PROGRESS,
    INSIDE,
    MIGRATING,
    TIDY,
    Face,
    commit_unknown,
    fate_command,
    judge_fate,
    store_closed,
)
from tenure.stores.postgres.schema import Steps
from tenure.stores.postgres.transactions import AsyncJoined, AsyncOpened, Joined, Opened, handed_in
from tenure.stores.postgres.trouble import Attempts, Failure, Kind
from tenure.stores.postgres.unit import COMMIT, GRACE
from tenure.stores.postgres.wake import INTERVAL, NOTIFY, Notifier
from tenure.stores.runner import Requests, drive, drive_async, guard, settle
from tenure.yields import AfterCommit, Procedure, Rows

T = TypeVar("T")

# Seconds: the first and the longest turn of waiting for the pool, how long a rollback or a cancellation may take, how
# long a notification may wait for a connection, and between two questions about a commit.
_TURN, _TURN_MAX = 0.05, 1.0
_CLEANING = 1.0
_NOTIFYING = 2.0
_ASKING = 0.05

_IDLE = psycopg.pq.TransactionStatus.IDLE
_OPEN = frozenset({psycopg.pq.TransactionStatus.INTRANS, psycopg.pq.TransactionStatus.INERROR})


class PostgresStore(Face):
    """A PostgreSQL database for blocking callers; see `contract.Store`. Safe to share among threads."""

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[bool, psycopg_pool.ConnectionPool[BlockingConnection]] = {}
        self._notifier = Notifier(self._send_notification)

    def _leave_behind(self) -> object:
        return self._pools, self._notifier

    def run(self, procedure: Procedure[T]) -> T:
        """See `contract.Store.run`."""
        with handed_in(procedure):
            self._refuse(procedure)
            value = self._patiently(lambda deadline: self._once(procedure, deadline), self._seconds)
        return settle(value)

    def _once(self, procedure: Procedure[T], deadline: float) -> T | AfterCommit:
        unit = self._unit(procedure, deadline)
        with self._borrow(deadline, urgent=procedure.urgent) as connection:

            def answer(requests: Requests) -> list[Rows]:
                return unit.answers(connection.ask(unit.commands(requests)))

            value = drive(procedure, answer)
            if unit.opened and not procedure.reads:
                connection.ask([COMMIT])
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
                time.sleep(_ASKING if fate == IN_PROGRESS else 0)
        except TenureError as error:
            raise commit_unknown() from error
        judge_fate(fate)

    def _fate(self, until: float, own_id: str, server_run: str) -> str | None:
        with self._borrow(until) as connection:
            if connection.server_run != server_run:
                return None
            fate: str | None = connection.ask([fate_command(own_id)])[0][0][0]
            return fate

    def join(self, connection: Any) -> Joined:
        """See `contract.Store.join`: a `psycopg.Connection`; a Django or SQLAlchemy one holds such a connection."""
        return Joined(connection, self._join_host(connection))

    def migrate(self, *, test_clock: bool = False) -> list[str]:
        """See `contract.Store.migrate`."""
        self._refuse()
        return self._patiently(lambda until: self._play(until, self._migrate(test_clock=test_clock)), MIGRATING)

    def pending_migrations(self) -> list[str]:
        """See `contract.Store.pending_migrations`."""
        self._refuse()
        return self._patiently(lambda until: self._play(until, self._pending()), self._seconds)

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
        return AsyncPostgresStore(**self._options())

    def close(self) -> None:
        """See `contract.Store.close`."""
        self._notifier.close()
        self._closed = True
        with self._lock:
            pools = list(self._pools.values())
        for pool in pools:
            pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _patiently(self, work: Callable[[float], T], seconds: float) -> T:
        attempts = Attempts(seconds)
        while True:
            try:
                return work(attempts.deadline)
            except Failure as failure:
                pause = attempts.after(failure)
            time.sleep(pause)

    def _pool(self, *, urgent: bool) -> psycopg_pool.ConnectionPool[BlockingConnection]:
        with self._lock:
            self._check_open()
            pool = self._pools.get(urgent)
            if pool is None:
                pool = psycopg_pool.ConnectionPool(
                    self._address.conninfo,
                    connection_class=BlockingConnection,
                    **self._pool_options(urgent=urgent),
                )
                pool.open()
                self._pools[urgent] = pool
            return pool

    @contextmanager
    def _borrow(self, deadline: float, *, urgent: bool = False, verified: bool = True) -> Iterator[BlockingConnection]:
        connection = self._take(deadline, urgent=urgent, verified=verified)
        failed = True
        try:
            yield connection
            failed = False
        finally:
            self._give(connection, failed=failed)

    def _take(self, deadline: float, *, urgent: bool = False, verified: bool = True) -> BlockingConnection:
        connection = self._wait(self._pool(urgent=urgent), deadline)
        connection.deadline = deadline + GRACE
        if verified and not connection.verified:
            failed = True
            try:
                self._note(connection, play(connection, self._verify()))
                failed = False
            finally:
                if failed:
                    self._give(connection, failed=True)
        return connection

    def _wait(self, pool: psycopg_pool.ConnectionPool[BlockingConnection], deadline: float) -> BlockingConnection:
        turn = _TURN
        while True:
            left = deadline - time.monotonic()
            try:
                connection = pool.getconn(max(0.001, min(turn, left)))
            except psycopg_pool.PoolTimeout:
                self._after_waiting(left)
                turn = min(_TURN_MAX, turn * 2)
            except psycopg_pool.PoolClosed:
                raise store_closed() from None
            else:
                connection.home = pool
                return connection

    def _give(self, connection: BlockingConnection, *, failed: bool) -> None:
        if connection.owner != os.getpid():
            return  # the connection is the parent's
        try:
            if failed:
                self._clean(connection)
        finally:
            connection.row_factory = tuple_row
            connection.deadline = None
            connection.home.putconn(connection)

    def _clean(self, connection: BlockingConnection) -> None:
        pgconn = connection.pgconn
        connection.deadline = time.monotonic() + _CLEANING
        try:
            if not pgconn.pipeline_status and pgconn.transaction_status in _OPEN:
                connection.wait(rollback(pgconn))
            elif pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                # Nobody waits for the statement any more, but it may hold locks.
                connection.cancel_safe(timeout=_CLEANING)
        except psycopg.Error:
            connection.close()
        if pgconn.pipeline_status or pgconn.transaction_status != _IDLE:
            connection.close()


class AsyncPostgresStore(Face):
    """A PostgreSQL database for awaiting callers; see `contract.AsyncStore`. One event loop at a time."""

    def _begin_anew(self) -> None:
        self._pools: dict[bool, psycopg_pool.AsyncConnectionPool[AwaitingConnection]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._telling: asyncio.Task[None] | None = None
        self._to_tell = False

    def _leave_behind(self) -> object:
        return self._pools, self._loop, self._telling

    async def run(self, procedure: Procedure[T]) -> T:
        """See `contract.Store.run`."""
        with handed_in(procedure):
            self._refuse(procedure)
            value = await self._patiently(lambda deadline: self._once(procedure, deadline), self._seconds)
        return settle(value)

    async def _once(self, procedure: Procedure[T], deadline: float) -> T | AfterCommit:
        unit = self._unit(procedure, deadline)
        async with self._borrow(deadline, urgent=procedure.urgent) as connection:

            async def answer(requests: Requests) -> list[Rows]:
                return unit.answers(await connection.ask(unit.commands(requests)))

            value = await drive_async(procedure, answer)
            if unit.opened and not procedure.reads:
                await connection.ask([COMMIT])
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
                await asyncio.sleep(_ASKING if fate == IN_PROGRESS else 0)
        except TenureError as error:
            raise commit_unknown() from error
        judge_fate(fate)

    async def _fate(self, until: float, own_id: str, server_run: str) -> str | None:
        async with self._borrow(until) as connection:
            if connection.server_run != server_run:
                return None
            fate: str | None = (await connection.ask([fate_command(own_id)]))[0][0][0]
            return fate

    def join(self, connection: Any) -> AsyncJoined:
        """See `contract.AsyncStore.join`: a `psycopg.AsyncConnection`."""
        return AsyncJoined(connection, self._join_host(connection))

    async def migrate(self, *, test_clock: bool = False) -> list[str]:
        """See `contract.Store.migrate`."""
        self._refuse()
        return await self._patiently(lambda until: self._play(until, self._migrate(test_clock=test_clock)), MIGRATING)

    async def pending_migrations(self) -> list[str]:
        """See `contract.Store.pending_migrations`."""
        self._refuse()
        return await self._patiently(lambda until: self._play(until, self._pending()), self._seconds)

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
        self._leave_loop()
        self._to_tell = True
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell(), name="tenure-notify")

    async def _tell(self) -> None:
        while self._to_tell:
            self._to_tell = False
            try:
                async with self._borrow(time.monotonic() + _NOTIFYING, verified=False) as connection:
                    await connection.ask([NOTIFY])
            except (Failure, TenureError):
                # Best effort: whoever polls finds the work all the same.
                return
            await asyncio.sleep(INTERVAL)

    def blocking(self) -> PostgresStore:
        """See `contract.AsyncStore.blocking`; connections are not shared."""
        self._check_open()
        return PostgresStore(**self._options())

    async def close(self) -> None:
        """See `contract.Store.close`."""
        if self._telling is not None and self._loop is asyncio.get_running_loop():
            await self._telling
        self._closed = True
        self._leave_loop()
        for pool in self._pools.values():
            await pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _patiently(self, work: Callable[[float], Awaitable[T]], seconds: float) -> T:
        attempts = Attempts(seconds)
        while True:
            try:
                return await work(attempts.deadline)
            except Failure as failure:
                pause = attempts.after(failure)
            await asyncio.sleep(pause)

    def _leave_loop(self) -> None:
        # A program may run one loop after another; a pool belongs to its loop.
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._pools and self._loop is not None and not self._loop.is_closed():
            raise Invalid(
                "this store is in use in another event loop; open one store for each loop",
                code="WRONG_LOOP",
            )
        # Nobody is left to close them in order; they close themselves when nobody refers to them.
        self._pools = {}
        self._telling = None
        self._loop = loop

    async def _pool(self, *, urgent: bool) -> psycopg_pool.AsyncConnectionPool[AwaitingConnection]:
        self._check_open()
        self._leave_loop()
        pool = self._pools.get(urgent)
        if pool is None:
            pool = self._pools[urgent] = psycopg_pool.AsyncConnectionPool(
                self._address.conninfo,
                connection_class=AwaitingConnection,
                **self._pool_options(urgent=urgent),
            )
        if pool.closed:
            await pool.open()
        return pool

    @asynccontextmanager
    async def _borrow(
        self, deadline: float, *, urgent: bool = False, verified: bool = True
    ) -> AsyncIterator[AwaitingConnection]:
        connection = await self._take(deadline, urgent=urgent, verified=verified)
        failed = True
        try:
            yield connection
            failed = False
        finally:
            await self._give(connection, failed=failed)

    async def _take(self, deadline: float, *, urgent: bool = False, verified: bool = True) -> AwaitingConnection:
        connection = await self._wait(await self._pool(urgent=urgent), deadline)
        connection.deadline = deadline + GRACE
        if verified and not connection.verified:
            failed = True
            try:
                self._note(connection, await play_async(connection, self._verify()))
                failed = False
            finally:
                if failed:
                    await self._give(connection, failed=True)
        return connection

    async def _wait(
        self, pool: psycopg_pool.AsyncConnectionPool[AwaitingConnection], deadline: float
    ) -> AwaitingConnection:
        turn = _TURN
        while True:
            left = deadline - time.monotonic()
            try:
                connection = await pool.getconn(max(0.001, min(turn, left)))
            except psycopg_pool.PoolTimeout:
                self._after_waiting(left)
                turn = min(_TURN_MAX, turn * 2)
            except psycopg_pool.PoolClosed:
                raise store_closed() from None
            else:
                connection.home = pool
                return connection

    async def _give(self, connection: AwaitingConnection, *, failed: bool) -> None:
        if connection.owner != os.getpid():
            return  # the connection is the parent's
        try:
            if failed:
                await self._clean(connection)
        except BaseException:
            # Cancelled once more, in the middle of cleaning.
            await connection.close()
            raise
        finally:
            connection.row_factory = tuple_row
            connection.deadline = None
            # A connection that does not come back is missing for ever, so not even a cancellation stops this.
            await asyncio.shield(connection.home.putconn(connection))

    async def _clean(self, connection: AwaitingConnection) -> None:
        pgconn = connection.pgconn
        connection.deadline = time.monotonic() + _CLEANING
        try:
            if not pgconn.pipeline_status and pgconn.transaction_status in _OPEN:
                await connection.wait(rollback(pgconn))
            elif pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                await connection.cancel_safe(timeout=_CLEANING)
        except psycopg.Error:
            await connection.close()
        if pgconn.pipeline_status or pgconn.transaction_status != _IDLE:
            await connection.close()


def open_store(
    url: str,
    *,
    role: str | None = None,
    clock: Clock | None = None,
    authority_ledger: str | PathLike[str] | None = None,
) -> PostgresStore:
    """Open a PostgreSQL store; see `tenure.stores.open_store`."""
    store = PostgresStore(url, role=role, clock=clock, authority_ledger=authority_ledger)
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
    clock: Clock | None = None,
    authority_ledger: str | PathLike[str] | None = None,
) -> AsyncPostgresStore:
    """Open a PostgreSQL store; see `tenure.stores.open_async_store`."""
    store = AsyncPostgresStore(url, role=role, clock=clock, authority_ledger=authority_ledger)
    try:
        await store.look()
    except BaseException:
        await store.close()
        raise
    return store
