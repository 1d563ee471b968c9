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
from tenure.flows.drive import run_flow_async
from tenure.flows.ledger import Ledger
from tenure.flows.look import Looked, first_look, look
from tenure.procedures.authority import read_facts
from tenure.rules.ledger import Freeze, Seen
from tenure.stores.contract import AsyncStore
from tenure.yields import Flow, new_id

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
        seen: The database as it was when it was last found to be the current one, None before that.
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
        self._ledger: Ledger | None = None if store.ledger is None else _Apart(store.ledger, apart)
        self._wake = wake
        self._grace = grace.total_seconds()
        self._last: Looked | None = None
        self._answered = 0.0
        self.frozen: Freeze | None = None
        self.trouble: str | None = None
        self.seen: Seen | None = None

    @property
    def watches(self) -> bool:
        """Whether there is a ledger to compare with."""
        return self._ledger is not None

    @property
    def holds(self) -> bool:
        """Whether nothing new is to be claimed."""
        return self.frozen is not None or self._silent

    @property
    def _silent(self) -> bool:
        # Whatever keeps the answer away: an error of any kind, a share that hangs, a database that is gone for as long.
        if self._last is None or self._ledger is None:
            return False
        return time.monotonic() - self._answered > self._grace

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
        elif self._silent:
            found.append("the database was not compared with its authority ledger for too long; nothing is claimed")
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
        self._note(await self._run(first_look(self._ledger, self._store.file_identity(), str(new_id()))))

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
        """Compare once, and raise the counter where nobody else does."""
        assert self._ledger is not None
        assert self._last is not None, "it was not started"
        self._note(await self._run(look(self._ledger, self._last, self._store.file_identity())))

    async def _run(self, looking: Flow[Looked]) -> Looked:
        return await run_flow_async(looking, self._store.run)

    def _note(self, found: Looked) -> None:
        held, self._last = self.holds, found
        if found.lost is not None:
            self._lost(found.lost)
            return
        self._answered = time.monotonic()
        self._told(found.frozen)
        if found.frozen is None and found.book is not None:
            self.seen = Seen(found.book.incarnation, found.book.identity)
        if self.trouble is not None:
            logger.warning("the authority ledger answers again")
            self.trouble = None
        if held and not self.holds:
            self._wake()

    def _lost(self, error: TenureError) -> None:
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
        self.frozen = frozen


class _Apart:
    """The ledger for a flow of a loop: what it asks is done in a thread, and awaited."""

    def __init__(self, ledger: Ledger, apart: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        def threaded(function: Callable[..., Any]) -> Any:
            return lambda *args: apart(partial(function, *args))

        self.where = ledger.where
        self.read: Any = threaded(ledger.read)
        self.begin: Any = threaded(ledger.begin)
        self.write: Any = threaded(ledger.write)
        self.check_outside: Any = threaded(ledger.check_outside)
        self.close: Any = ledger.close
