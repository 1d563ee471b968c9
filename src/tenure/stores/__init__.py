"""
Stores: procedures run on a real database. `open_store` picks one by its URL.

Each database has a package here whose `store` module offers `open_store` and `open_async_store` with these arguments,
and whose `ledger` module offers the log of an authority ledger. It is imported when its URL is first used, so that a
driver that is not installed costs nothing. `tenure.opening` opens a store together with its ledger.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

from tenure.errors import Invalid
from tenure.stores.contract import Allows, AsyncStore, Clock, Store

_KNOWN = {
    "sqlite": "tenure.stores.sqlite.store",
    "postgresql": "tenure.stores.postgres.store",
    "postgres": "tenure.stores.postgres.store",
}


def open_store(
    url: str,
    *,
    role: str | None = None,
    tenant: str | None = None,
    clock: Clock | None = None,
    allows: Allows | None = None,
) -> Store:
    """
    Open a store for blocking callers; a context manager, ended by `close()`.

    Args:
        url: `sqlite:///jobs.db`, `sqlite:////absolute/jobs.db`, `sqlite:///:memory:`, `postgresql://host/database`;
            `postgres://` means the same as `postgresql://`.
        role: A PostgreSQL role that the connections take on.
        tenant: The only one it is for; PostgreSQL is told so in every transaction.
        allows: Asked before each procedure with its name and tenants; raises where the holder of this store may not run
            it.
        clock: Replaces the store's clock in tests.

    Raises:
        Invalid: BAD_STORE_URL for another scheme; see the store for its own reasons.
        Unavailable: The database did not answer.
    """
    store = _module(url).open_store(url, role=role, tenant=tenant, clock=clock, allows=allows)
    return cast("Store", store)


async def open_async_store(
    url: str,
    *,
    role: str | None = None,
    tenant: str | None = None,
    clock: Clock | None = None,
    allows: Allows | None = None,
) -> AsyncStore:
    """See `open_store`; an async context manager, ended by `await close()`."""
    store = await _module(url).open_async_store(url, role=role, tenant=tenant, clock=clock, allows=allows)
    return cast("AsyncStore", store)


def open_log(url: str, entries_max: int) -> Any:
    """Make the log of an authority ledger in a database of its own (`journal.ledger.Log`); nothing is opened yet."""
    _module(url)
    scheme = url.partition(":")[0].lower()
    return import_module(_KNOWN[scheme].removesuffix("store") + "ledger").open_log(url, entries_max)


def redacted(url: str) -> str:
    """Give a store URL for people and logs: what stands between `://` and `@` is left out."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2].partition('?')[0]}"


def _module(url: str) -> Any:
    scheme = str(url).partition(":")[0].lower()
    if scheme not in _KNOWN:
        # The URL itself may hold a password, so only the forms that work are named.
        raise Invalid(
            "the store URL starts with no known scheme; use sqlite:///FILE, sqlite:///:memory:, "
            "postgresql://HOST/DATABASE or postgres://HOST/DATABASE",
            code="BAD_STORE_URL",
        )
    return import_module(_KNOWN[scheme])
