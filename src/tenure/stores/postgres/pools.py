"""
Lending connections: from a pool, looked at once, and taken back without a trace of what was done with them.

A call that fails goes through ROLLBACK or the end of its connection before anybody else gets it.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

import psycopg
import psycopg_pool
from psycopg.rows import tuple_row

from tenure.errors import Invalid
from tenure.stores.postgres.connection import (
    AwaitingConnection,
    BlockingConnection,
    play,
    play_async,
    rollback,
)
from tenure.stores.postgres.face import Face, store_closed
from tenure.stores.postgres.trouble import Attempts, Failure
from tenure.stores.postgres.unit import GRACE

T = TypeVar("T")

# Seconds: the first and the longest turn of waiting for the pool, and how long a rollback or a cancellation may take.
_TURN, _TURN_MAX = 0.2, 1.0
_CLEANING = 0.25

_IDLE = psycopg.pq.TransactionStatus.IDLE
_ACTIVE = psycopg.pq.TransactionStatus.ACTIVE
_OPEN = frozenset({psycopg.pq.TransactionStatus.INTRANS, psycopg.pq.TransactionStatus.INERROR})


class BlockingPools(Face):
    """The connections of a blocking store."""

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._lock = threading.Lock()
        self._pools: dict[bool, psycopg_pool.ConnectionPool[BlockingConnection]] = {}

    def _leave_behind(self) -> object:
        return self._pools

    def _close_pools(self) -> None:
        self._closed = True
        with self._lock:
            pools = list(self._pools.values())
        for pool in pools:
            pool.close()

    def _patiently(self, work: Callable[[float], T], seconds: float) -> T:
        attempts = Attempts(seconds)
        while True:
            try:
                return work(attempts.deadline)
            except Failure as failure:
                pause = attempts.after(failure)
            time.sleep(pause)  # before the next attempt; grows, and is bounded by the patience

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
            elif pgconn.transaction_status == _ACTIVE and psycopg.capabilities.has_cancel_safe():
                # Nobody waits for the statement any more, but it may hold locks. The older way to cancel could hang.
                connection.cancel_safe(timeout=_CLEANING)
        except psycopg.Error:
            connection.close()
        if pgconn.pipeline_status or pgconn.transaction_status != _IDLE:
            connection.close()


class AwaitingPools(Face):
    """The connections of an awaiting store, for one event loop at a time."""

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._pools: dict[bool, psycopg_pool.AsyncConnectionPool[AwaitingConnection]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def _leave_behind(self) -> object:
        return self._pools, self._loop

    async def _close_pools(self) -> None:
        self._closed = True
        self._leave_loop()
        for pool in self._pools.values():
            await pool.close()

    async def _patiently(self, work: Callable[[float], Awaitable[T]], seconds: float) -> T:
        attempts = Attempts(seconds)
        while True:
            try:
                return await work(attempts.deadline)
            except Failure as failure:
                pause = attempts.after(failure)
            await asyncio.sleep(pause)

    def _leave_loop(self) -> bool:
        # A program may run one loop after another; a pool belongs to its loop. True in a new one.
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return False
        if self._pools and self._loop is not None and not self._loop.is_closed():
            raise Invalid(
                "this store is in use in another event loop; open one store for each loop",
                code="WRONG_LOOP",
            )
        # Nobody is left to close them in order; they close themselves when nobody refers to them.
        self._pools = {}
        self._loop = loop
        return True

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
            elif pgconn.transaction_status == _ACTIVE and psycopg.capabilities.has_cancel_safe():
                await connection.cancel_safe(timeout=_CLEANING)
        except psycopg.Error:
            await connection.close()
        if pgconn.pipeline_status or pgconn.transaction_status != _IDLE:
            await connection.close()
