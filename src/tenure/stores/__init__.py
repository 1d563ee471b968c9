"""
Stores: procedures run on a real database. `open_store` picks one by its URL.

Each database has a package here whose `store` module offers `open_store` and `open_async_store` with these arguments;
it is imported when its URL is first used, so that a driver that is not installed costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from os import PathLike
from typing import Any, cast

from tenure.errors import Invalid
from tenure.stores.contract import AsyncStore, Clock, Store

_KNOWN = {
    "sqlite": "tenure.stores.sqlite.store",
    "postgresql": "tenure.stores.postgres.store",
    "postgres": "tenure.stores.postgres.store",
}


def open_store(
    url: str,
    *,
    role: str | None = None,
    clock: Clock | None = None,
    authority_ledger: str | PathLike[str] | None = None,
) -> Store:
    """
    Open a store for blocking callers; a context manager, ended by `close()`.

    Args:
        url: `sqlite:///jobs.db`, `sqlite:////absolute/jobs.db`, `sqlite:///:memory:`, `postgresql://host/database`.
        role: A PostgreSQL role that the connections take on.
        clock: Replaces the store's clock in tests.
        authority_ledger: Path or URL of the ledger of epochs outside the database.

    Raises:
        Invalid: UNKNOWN_STORE_URL for another scheme; see the store for its own reasons.
        Unavailable: The database did not answer.
    """
    store = _module(url).open_store(url, role=role, clock=clock, authority_ledger=authority_ledger)
    return cast("Store", store)


async def open_async_store(
    url: str,
    *,
    role: str | None = None,
    clock: Clock | None = None,
    authority_ledger: str | PathLike[str] | None = None,
) -> AsyncStore:
    """See `open_store`; an async context manager, ended by `await close()`."""
    store = await _module(url).open_async_store(url, role=role, clock=clock, authority_ledger=authority_ledger)
    return cast("AsyncStore", store)


def redacted(url: str) -> str:
    """Give a store URL for people and logs: what stands between `://` and `@` is left out."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2].partition('?')[0]}"


def _module(url: str) -> Any:
    scheme = str(url).partition(":")[0].lower()
    if scheme not in _KNOWN:
        # The URL itself may hold a password, so only the forms that work are named.
        raise Invalid(
            "the store URL starts with no known scheme; use sqlite:///FILE, sqlite:///:memory: or "
            "postgresql://HOST/DATABASE",
            code="UNKNOWN_STORE_URL",
        )
    return import_module(_KNOWN[scheme])
