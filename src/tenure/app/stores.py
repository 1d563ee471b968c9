"""The stores of an app: one that blocks and one for each event loop, opened at their first use."""

from __future__ import annotations

import asyncio
import threading
from os import PathLike
from typing import Any

from tenure.errors import Invalid
from tenure.opening import open_async_store, open_ledger, open_store
from tenure.stores import redacted
from tenure.stores.contract import AsyncStore, Clock, Store


class AppStores:
    """
    What an app knows of its store.

    Args:
        store: A store URL, or an open store that stays its owner's to close.
    Attributes:
        url: As it was given, its password included.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        role: str | None,
        clock: Clock | None,
        authority_ledger: str | PathLike[str] | None,
    ) -> None:
        if isinstance(store, str):
            open_ledger(store, authority_ledger)  # refuses what could never be one, before anything is opened
        elif authority_ledger is not None:
            raise Invalid(
                "an open store has its ledger already; name it there: open_store(url, authority_ledger=...)",
                code="BAD_ARGUMENT",
            )
        self.url = store if isinstance(store, str) else store.url
        self._owned = isinstance(store, str)
        self._store: Store | None = None if isinstance(store, str) else store
        self._options: dict[str, Any] = {"role": role, "clock": clock, "authority_ledger": authority_ledger}
        self._by_loop: dict[asyncio.AbstractEventLoop, AsyncStore] = {}
        self._lock = threading.Lock()

    @property
    def shown(self) -> str:
        """The URL without any password."""
        return self._store.url if self._store is not None else redacted(self.url)

    def use(self, url: str | None, authority_ledger: str | PathLike[str] | None) -> None:
        """See `Tenure.use_store`."""
        with self._lock:
            if self._store is not None or self._by_loop:
                raise Invalid("the app has opened its store already", code="STORE_OPEN")
            if url is not None or authority_ledger is not None:
                self._options["authority_ledger"] = authority_ledger
            self.url, self._owned = url or self.url, True

    def blocking(self) -> Store:
        """Give the blocking store."""
        with self._lock:
            if self._store is None:
                self._store = open_store(self.url, **self._options)
            return self._store

    async def awaiting(self) -> AsyncStore:
        """Give the awaiting store of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            if self._owned and ":memory:" not in self.url:
                self._by_loop[loop] = await open_async_store(self.url, **self._options)
            else:
                self._by_loop[loop] = self.blocking().awaiting()
        return self._by_loop[loop]

    def close(self) -> None:
        """Close the blocking store, where it was opened here."""
        with self._lock:
            store, self._store = self._store, self._store if not self._owned else None
        if store is not None and self._owned:
            store.close()

    async def aclose(self) -> None:
        """Close the running loop's store too."""
        astore = self._by_loop.pop(asyncio.get_running_loop(), None)
        if astore is not None:
            await astore.close()
        self.close()
