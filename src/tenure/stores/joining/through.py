"""Transactions joined through a library's object: the driver's connection is asked for anew for every use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from tenure.stores.contract import AsyncTransaction, Transaction
from tenure.stores.joining import AsyncFinder, Finder
from tenure.stores.runner import asked
from tenure.yields import Procedure

T = TypeVar("T")


class Through:
    """
    The caller's transaction behind a library's object; see `contract.Transaction`.

    Args:
        find: Gives the driver's connection; a session may have another one in its next transaction.
        join: Joins it.

    Attributes:
        connection: What the caller handed in.
    """

    def __init__(self, connection: Any, find: Finder, join: Callable[[Any], Transaction]) -> None:
        self.connection = connection
        self._find = find
        self._join = join

    def run(self, procedure: Procedure[T]) -> T:
        """See `contract.Transaction.run`."""
        with asked(procedure):
            tx = self._join(self._find())
        return tx.run(procedure)

    def execute(self, sql: str, params: Sequence[Any] | dict[str, Any] = ()) -> Any:
        """Run the caller's own SQL beneath the library and give the driver's cursor."""
        return self._join(self._find()).execute(sql, params)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the transaction to its owner."""


class AsyncThrough:
    """The awaiting twin of `Through`."""

    def __init__(self, connection: Any, find: AsyncFinder, join: Callable[[Any], AsyncTransaction]) -> None:
        self.connection = connection
        self._find = find
        self._join = join

    async def run(self, procedure: Procedure[T]) -> T:
        """See `Through.run`."""
        with asked(procedure):
            tx = self._join(await self._find())
        return await tx.run(procedure)

    async def execute(self, sql: str, params: Sequence[Any] | dict[str, Any] = ()) -> Any:
        """See `Through.execute`."""
        return await self._join(await self._find()).execute(sql, params)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        """Leave the transaction to its owner."""
