"""
Open a store together with its authority ledger, and compare the two.

The ledger of a SQLite file lies beside it unless another is named; PostgreSQL has one only where one is named, because
a file beside one of many machines protects none of the others. Opening compares and raises nothing: a producer whose
ledger cannot be read works all the same, and the workers, which are stopped by that, say so.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tenure import stores
from tenure.errors import Invalid, TenureError
from tenure.journal.ledger import COMPACT_ENTRIES, FileLog, LogLedger, not_a_file, not_outside
from tenure.procedures.authority import compare, read_facts
from tenure.rules.creation import check_text
from tenure.rules.ledger import Book, Facts, judge
from tenure.rules.roles import check_role, check_role_name, is_role
from tenure.rules.tenancy import check_bound
from tenure.stores.contract import AsyncStore, Clock, Store

SUFFIX = ".ledger"
_FILE = "sqlite:///"


def open_store(
    url: str,
    *,
    role: str | None = None,
    tenant: str | None = None,
    clock: Clock | None = None,
    authority_ledger: str | PathLike[str] | None = None,
) -> Store:
    """
    Open a store for blocking callers; a context manager, ended by `close()`.

    A database that is not the one its ledger knows is frozen: it can be read, and nothing is claimed from it.

    Args:
        url: `sqlite:///jobs.db`, `sqlite:////absolute/jobs.db`, `sqlite:///:memory:`, `postgresql://host/database`;
            `postgres://` means the same as `postgresql://`.
        role: viewer, producer, worker, operator or repairer: the store runs what that role may, and in PostgreSQL takes
            on the database role `tenure_<role>`. Any other name is a PostgreSQL role of your own to take on.
        tenant: Bind the store to one tenant: it refuses what is about another, or about all, and in PostgreSQL says so
            in each transaction, which is what row security goes by.
        clock: Replaces the store's clock in tests.
        authority_ledger: A path, or the URL of another database (`sqlite:///` or `postgresql://`). Left out: beside a
            SQLite file, and none for PostgreSQL and for a database in memory.

    Raises:
        Invalid: BAD_STORE_URL for another scheme, LEDGER_NOT_OUTSIDE, LEDGER_NOT_A_FILE; TENANT_REQUIRED, where row
            security is on and this role sees one tenant only; see the store for its own reasons.
        Unavailable: The database did not answer.
    """
    ledger = open_ledger(url, authority_ledger)
    store = stores.open_store(url, clock=clock, **_holder(url, role, tenant))
    try:
        store.ledger = ledger
        _compare(store)
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
    authority_ledger: str | PathLike[str] | None = None,
) -> AsyncStore:
    """See `open_store`; an async context manager, ended by `await close()`."""
    ledger = open_ledger(url, authority_ledger)
    store = await stores.open_async_store(url, clock=clock, **_holder(url, role, tenant))
    try:
        store.ledger = ledger
        await _compare_async(store)
    except BaseException:
        await store.close()
        raise
    return store


def _holder(url: str, role: str | None, tenant: str | None) -> dict[str, Any]:
    """Give what a store is opened with so that its holder can do what a role may, for a tenant where one is given."""
    if tenant is not None:
        check_text("tenant", tenant)
    if role is not None:
        check_role_name(role)
    known = role is not None and is_role(role)
    database = role
    if known:
        database = None if url.partition(":")[0].lower() == "sqlite" else f"tenure_{role}"
    if not known and tenant is None:
        return {"role": database}

    def allows(procedure: str, tenants: Callable[[], Collection[str | None]]) -> None:
        if role is not None and known:
            check_role(role, procedure)
        if tenant is not None:
            check_bound(tenant, procedure, tenants())

    return {"role": database, "tenant": tenant, "allows": allows}


def open_ledger(url: str, authority_ledger: str | PathLike[str] | None) -> LogLedger | None:
    """
    Make the ledger that goes with a store; nothing is opened or made before it is used.

    Raises:
        Invalid: LEDGER_NOT_OUTSIDE, it would be restored together with the database; LEDGER_NOT_A_FILE, BAD_STORE_URL.
    """
    if authority_ledger is None:
        path = url.removeprefix(_FILE)
        if path in {url, ":memory:", ""} or "\0" in path:
            return None
        return _in_file(os.path.realpath(path) + SUFFIX)
    where = os.fspath(authority_ledger)
    if not where:
        raise Invalid("authority_ledger is a path or the URL of another database", code="BAD_ARGUMENT")
    if _named(where) in _names(url):
        raise not_outside()
    if "://" not in where:
        return _in_file(os.path.realpath(where))
    return LogLedger(stores.open_log(where, COMPACT_ENTRIES))


def _names(url: str) -> set[str]:
    """Give all that would be restored together with a database: a SQLite file has its log beside it."""
    named = _named(url)
    return {named + ending for ending in ("", "-wal", "-shm", "-journal")}


def _named(where: str) -> str:
    """Give a path without links and detours; a server says itself who it is, when a worker starts."""
    if "\0" not in where and (where.startswith(_FILE) or "://" not in where):
        return os.path.realpath(where.removeprefix(_FILE))
    return stores.redacted(unquote(where))


def _in_file(path: str) -> LogLedger:
    if os.path.isdir(path):  # noqa: PTH112 - a text
        raise not_a_file(path)
    return LogLedger(FileLog(Path(path)))


def _suspicious(book: Book | None, facts: Facts) -> bool:
    return facts.frozen is None and judge(book, facts) is not None


def _compare(store: Store) -> None:
    ledger: LogLedger | None = store.ledger
    if ledger is None or store.tenant is not None:
        # Who sees one tenant cannot judge the whole; a worker's start does.
        return
    try:
        book = ledger.read()
        file = store.file_identity()
        if _suspicious(book, store.run(read_facts(book, file))):
            # Read again: a recovery may have come in between, and is in the ledger before it is in the database.
            store.run(compare(ledger.read(), file))
    except TenureError:
        # No tables yet, a role that may not write, a ledger that cannot be read: a worker's start tells.
        return


async def _compare_async(store: AsyncStore) -> None:
    ledger: LogLedger | None = store.ledger
    if ledger is None or store.tenant is not None:
        # Who sees one tenant cannot judge the whole; a worker's start does.
        return
    try:
        book = await asyncio.to_thread(ledger.read)
        file = store.file_identity()
        if _suspicious(book, await store.run(read_facts(book, file))):
            await store.run(compare(await asyncio.to_thread(ledger.read), file))
    except TenureError:
        return
