"""
Know whether the database is still the current one: compare it with its ledger at start and once a second.

The database's counter is raised first and the ledger's after it, so that a database that is behind has lost something.
A frozen database gives no claim, by itself; the worker or the relay stays up, says why in its health, and goes on when
somebody has run `tenure recover`. A ledger that does not answer is another thing: nothing says that the database is
wrong, so work goes on for a while, and then nothing new is claimed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

from tenure.errors import Invalid, TenureError
from tenure.procedures.approvals import every_revocation
from tenure.procedures.authority import Ticked, compare, read_facts, tick
from tenure.procedures.tenants import list_tenants
from tenure.rules.approval import Approval, restriction
from tenure.rules.authority import Tenant
from tenure.rules.ledger import Book, Entry, Freeze, Ledger, confirmed, first_book, settled, ticked
from tenure.stores.contract import AsyncStore
from tenure.yields import new_id

logger = logging.getLogger("tenure.worker")

AUTHORITY_EVERY = timedelta(seconds=1)
# How long a process goes on claiming while its ledger does not answer: longer than the restart of a small server, and
# short beside the time in which somebody restores a database unnoticed.
LEDGER_GRACE = timedelta(seconds=30)


class AuthorityWatch:
    """
    The watch of one worker or relay.

    Args:
        apart: Runs a blocking function in a thread that no handler uses.
        wake: Called when work may have become claimable.

    Attributes:
        frozen: Why the database is frozen, None while it is not.
        trouble: The code of what is wrong with the ledger, None while it answers.
    """

    def __init__(
        self,
        store: AsyncStore,
        apart: Callable[[Callable[[], Any]], Awaitable[Any]],
        *,
        wake: Callable[[], object],
        grace: timedelta = LEDGER_GRACE,
    ) -> None:
        self._store = store
        self._ledger: Ledger | None = store.ledger
        self._apart = apart
        self._wake = wake
        self._grace = grace.total_seconds()
        self._book: Book | None = None
        self._since = 0.0
        self.frozen: Freeze | None = None
        self.trouble: str | None = None

    @property
    def watches(self) -> bool:
        """Whether there is a ledger to compare with."""
        return self._ledger is not None

    @property
    def holds(self) -> bool:
        """Whether nothing new is to be claimed."""
        lost = self.trouble is not None and time.monotonic() - self._since > self._grace
        return self.frozen is not None or lost

    @property
    def problems(self) -> tuple[str, ...]:
        """What a person has to look at."""
        found = []
        if self.frozen is not None:
            found.append(f"DATABASE_FROZEN {self.frozen.cause}: {self.frozen.text}; run `tenure recover`")
        if self.trouble is not None:
            then = "nothing is claimed" if self.holds else f"claims go on for {self._grace:g} s"
            where = "" if self._ledger is None else f" at {self._ledger.where}"
            found.append(f"the authority ledger{where} cannot be used: {self.trouble}; {then}")
        return tuple(found)

    async def start(self) -> None:
        """
        Compare before anything is claimed; a database that never had a ledger gets one.

        Raises:
            Invalid: LEDGER_REQUIRED, the database has a ledger, and this process was not told where.
            Unavailable, Refused: The ledger cannot be read: nobody knows whether this database is the current one.
        """
        if self._ledger is None:
            await self._start_without()
            return
        facts = await self._store.run(read_facts(None, self._store.file_identity()))
        self._book = await self._apart(self._ledger.read)
        if self._book is None and facts.store is None:
            tenants = await self._store.run(list_tenants())
            revoked = await self._store.run(every_revocation())
            book = begun(facts.identity, tenants, revoked)
            self._book = await self._apart(partial(self._ledger.begin, book))
        try:
            await self._look(self._ledger)
        except _LedgerLost as lost:
            raise lost.error from lost

    async def _start_without(self) -> None:
        if self._store.dialect != "postgresql":
            return
        facts = await self._store.run(read_facts(None, None))
        if facts.store is not None:
            raise Invalid(
                "this database has an authority ledger, and this process was not told where it is; a worker or "
                "a relay that does not look there would serve a restored copy. Name it: authority_ledger=, "
                "--authority-ledger or TENURE_AUTHORITY_LEDGER",
                code="LEDGER_REQUIRED",
            )
        logger.warning(
            "no authority ledger is configured for this PostgreSQL database: a restored copy would not be noticed; "
            "see authority_ledger="
        )

    async def step(self) -> None:
        """Compare once, and raise the counter."""
        assert self._ledger is not None
        if self.frozen is not None or self.trouble is not None:
            # Somebody may have recovered it meanwhile.
            try:
                self._book = await self._apart(self._ledger.read)
            except TenureError as error:
                self._lost(error)
                return
        try:
            await self._look(self._ledger)
        except _LedgerLost as lost:
            self._lost(lost.error)

    async def _look(self, ledger: Ledger) -> None:
        """What is compared is what the ledger said before the transaction: whatever is newer is at most a tick late."""
        file = self._store.file_identity()
        if self._book is None:
            self._told(await self._store.run(compare(None, file)))
            return
        found = await self._store.run(tick(self._book, file, sure=False))
        if found.doubted:
            # What is remembered of the ledger may be older than a recovery that this worker slept through.
            self._book = await self._read(ledger)
            if self._book is None:
                self._told(await self._store.run(compare(None, file)))
                return
            found = await self._store.run(tick(self._book, file, sure=True))
        self._told(found.frozen)
        if found.frozen is not None:
            return
        try:
            self._book = await self._apart(partial(ledger.write, *_entries(self._book, found)))
        except TenureError as error:
            if error.code != "LEDGER_MISSING":
                raise _LedgerLost(error) from error
            self._book = None
            self._told(await self._store.run(compare(None, file)))
        if self.trouble is not None:
            logger.warning("the authority ledger answers again")
            self.trouble = None
            self._wake()

    async def _read(self, ledger: Ledger) -> Book | None:
        try:
            book: Book | None = await self._apart(ledger.read)
        except TenureError as error:
            raise _LedgerLost(error) from error
        return book

    def _lost(self, error: TenureError) -> None:
        if self.trouble is None:
            self._since = time.monotonic()
        if self.trouble != error.code:
            logger.warning("the authority ledger cannot be used: code=%s", error.code)
        self.trouble = error.code

    def _told(self, frozen: Freeze | None) -> None:
        if frozen is not None and self.frozen is None:
            logger.warning(
                "the database is frozen, nothing is claimed: cause=%s; run `tenure doctor`, then `tenure recover`",
                frozen.cause,
            )
        if frozen is None and self.frozen is not None:
            logger.warning("the database is no longer frozen")
            self._wake()
        self.frozen = frozen


class _LedgerLost(Exception):
    """The database was raised, and the ledger could not be."""

    def __init__(self, error: TenureError) -> None:
        super().__init__()
        self.error = error


def begun(identity: str, tenants: list[Tenant], revoked: list[Approval]) -> Book:
    """Make the first content of a database's ledger; of another store than any ledger that was lost."""
    return first_book(
        str(new_id()),
        identity,
        {one.name: one.epoch for one in tenants},
        [restriction(one) for one in revoked],
        [one.name for one in tenants if one.frozen],
    )


def _entries(book: Book, found: Ticked) -> list[Entry]:
    entries = [confirmed(one) for one in found.applied]
    if found.facts.identity != book.identity:
        # Accepted: a recovery whose last word was lost, or a new database that took this ledger over.
        entries.append(settled(found.facts.identity))
    return [*entries, ticked(found.incarnation, found.at)]
