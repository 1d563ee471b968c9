"""
What a store promises to the floors above it, blocking and awaiting.

A store runs procedures on one database. It knows SQL, connections, commits and clocks, and decides nothing about jobs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias, TypeVar

from tenure.yields import Procedure

T = TypeVar("T")


# Raises where the holder of a store may not run the procedure of this name, about tenants that it says when asked.
Allows: TypeAlias = Callable[[str, Callable[[], Collection[str | None]]], None]


class Clock(Protocol):
    """A replaceable clock for tests; `tenure.testing.ManualClock` is one."""

    def now(self) -> datetime:
        """Give the current instant, aware, UTC."""
        ...


class Running(Protocol):
    """An open transaction that runs procedures, whoever it belongs to: a store's, a publish block's, `app.join`'s."""

    def run(self, procedure: Procedure[T]) -> T:
        """Run one procedure inside this transaction."""
        ...


class AsyncRunning(Protocol):
    """See `Running`; awaiting."""

    async def run(self, procedure: Procedure[T]) -> T:
        """Run one procedure inside this transaction."""
        ...


class Transaction(Protocol):
    """
    An open transaction, the store's own or the caller's.

    Attributes:
        connection: The driver's own connection, for SQL of the caller.
    """

    connection: Any

    def run(self, procedure: Procedure[T]) -> T:
        """Run a procedure inside this transaction; what it returns is returned at once, before any commit."""
        ...

    def execute(self, sql: str, params: Sequence[Any] | dict[str, Any] = ()) -> Any:
        """Run the caller's own SQL in the driver's own parameter style and give the driver's cursor."""
        ...


class AsyncTransaction(Protocol):
    """The awaiting twin of `Transaction`."""

    connection: Any

    async def run(self, procedure: Procedure[T]) -> T:
        """See `Transaction.run`."""
        ...

    async def execute(self, sql: str, params: Sequence[Any] | dict[str, Any] = ()) -> Any:
        """See `Transaction.execute`."""
        ...


class Store(Protocol):
    """
    A database that runs procedures, blocking; a context manager that closes it at the end of its block.

    Attributes:
        dialect: `sqlite` or `postgresql`.
        url: Where it is, without any password.
        block_max: How long a transaction of a caller may keep all others waiting; None where it does not.
        tenant: The only one it is for; None means all.
        ledger: The authority ledger that goes with it (`flows.ledger.Ledger`), None where there is none; hung here by
            the opener, and lent to the stores made from this one; closed with the store that was opened.
    """

    dialect: str
    url: str
    block_max: timedelta | None
    tenant: str | None
    ledger: Any

    def file_identity(self) -> str | None:
        """Tell the file of a database that is a file from any other file; None for one that is not, or is not there."""
        ...

    def run(self, procedure: Procedure[T]) -> T:
        """
        Run one procedure in a transaction of its own and commit.

        The store may run it again from its start after a serialization failure, a deadlock, a lost connection or a lost
        reply to the commit. `AfterCommit(error)` is raised after the commit.

        Raises:
            Unavailable: The database did not answer in time; the same call may be made again.
            IllegalMove: Called inside a publish block of the same store; use the block's `tx.run`.
        """
        ...

    def transaction(self, *, deadline: timedelta | None = None) -> AbstractContextManager[Transaction]:
        """
        Open a write transaction: commit at the end of the block, roll back on an exception.

        Args:
            deadline: The block is rolled back with `Unavailable`, code TRANSACTION_TIMEOUT, when it lasts longer.
        """
        ...

    def join(self, connection: Any) -> AbstractContextManager[Transaction]:
        """
        Run procedures in the caller's open transaction: never begins, commits, rolls back, retries or changes settings.

        The object given back may also be used without `with`. A procedure that fails leaves the caller's transaction
        usable. What holds a driver's connection, SQLAlchemy's and Django's objects, is taken as well. Raises Invalid
        (AUTOCOMMIT) where no transaction is open or the connection commits each statement.
        """
        ...

    def migrate(self, *, test_clock: bool = False, roles: bool = False, row_security: bool | None = None) -> list[str]:
        """
        Bring the schema up to this version; give the names of the migrations applied now.

        Args:
            roles: Make the database roles of PostgreSQL and grant them what they need, now and in later migrations.
            row_security: Keep the tenants' rows apart in PostgreSQL, now and in later migrations; makes the roles too.
                False ends that, None leaves it as it is.
        """
        ...

    def migration_sql(self) -> str:
        """Give the whole schema as text that a person can read and run."""
        ...

    def roles_sql(self, *, row_security: bool = False) -> str:
        """
        Give what makes the database roles, to be run by whoever may; raises Invalid where a database has none.

        Args:
            row_security: And what keeps the tenants' rows apart.
        """
        ...

    def pending_migrations(self) -> list[str]:
        """Give the names of the migrations that are not applied yet."""
        ...

    def unsecured_tables(self) -> list[str] | None:
        """Give the tables and views that row security leaves out although it is on; None where it is off."""
        ...

    def awaiting(self) -> AsyncStore:
        """Give an awaiting store on the same database, sharing what can be shared; it is closed on its own."""
        ...

    def listen(self, wake: Callable[[], None]) -> AbstractContextManager[bool]:
        """Call `wake` (from any thread) when work may have arrived; yields False where the database cannot tell."""
        ...

    def notify(self) -> None:
        """
        Tell the listeners of other processes that work may have arrived; outside every transaction, best effort.

        For after the commit of a caller's own transaction: `run` tells by itself of what it commits.
        """
        ...

    def close(self) -> None:
        """Release every connection and thread; later calls raise Invalid (STORE_CLOSED)."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


class AsyncStore(Protocol):
    """
    The awaiting twin of `Store`; the same SQL, the same procedures.

    Attributes:
        dialect: `sqlite` or `postgresql`.
        url: Where it is, without any password.
        block_max: How long a transaction of a caller may keep all others waiting; None where it does not.
        tenant: The only one it is for; None means all.
        ledger: The authority ledger that goes with it (`flows.ledger.Ledger`), None where there is none; hung here by
            the opener, and lent to the stores made from this one; closed with the store that was opened.
    """

    dialect: str
    url: str
    block_max: timedelta | None
    tenant: str | None
    ledger: Any

    def file_identity(self) -> str | None:
        """Tell the file of a database that is a file from any other file; None for one that is not, or is not there."""
        ...

    async def run(self, procedure: Procedure[T]) -> T:
        """See `Store.run`."""
        ...

    def transaction(self, *, deadline: timedelta | None = None) -> AbstractAsyncContextManager[AsyncTransaction]:
        """See `Store.transaction`."""
        ...

    def join(self, connection: Any) -> AbstractAsyncContextManager[AsyncTransaction]:
        """See `Store.join`."""
        ...

    def migrate(
        self, *, test_clock: bool = False, roles: bool = False, row_security: bool | None = None
    ) -> Awaitable[list[str]]:
        """See `Store.migrate`."""
        ...

    def migration_sql(self) -> str:
        """See `Store.migration_sql`."""
        ...

    def roles_sql(self, *, row_security: bool = False) -> str:
        """See `Store.roles_sql`."""
        ...

    def pending_migrations(self) -> Awaitable[list[str]]:
        """See `Store.pending_migrations`."""
        ...

    def unsecured_tables(self) -> Awaitable[list[str] | None]:
        """See `Store.unsecured_tables`."""
        ...

    def blocking(self) -> Store:
        """Give a blocking store on the same database, sharing what can be shared; it is closed on its own."""
        ...

    async def notify(self) -> None:
        """See `Store.notify`."""
        ...

    async def close(self) -> None:
        """See `Store.close`."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...
