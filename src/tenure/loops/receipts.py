"""Hand in the receipts that the database did not take, and remember which of them need a person."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import UUID

from tenure.errors import Unavailable
from tenure.journal.receipts import ReceiptJournal
from tenure.procedures.effect import submit_evidence
from tenure.rules.outcome import Evidence
from tenure.stores.contract import Store


class Receipts:
    """
    The receipts of one worker's journal.

    Args:
        apart: Runs a blocking function in a thread that no handler uses.

    Attributes:
        problems: What a person has to look at, as of the last time.
    """

    def __init__(
        self, journal: ReceiptJournal, store: Store, apart: Callable[[Callable[[], Any]], Awaitable[Any]]
    ) -> None:
        self._journal = journal
        self._store = store
        self._apart = apart
        self.problems: tuple[str, ...] = ()

    async def hand_in(self) -> None:
        """
        Hand in what the journal's directory holds.

        Raises:
            Unavailable: The database does not take them yet.
        """
        report = await self._apart(partial(self._journal.hand_in, self._submit))
        faults = self._journal.faults
        # Old ones too: a receipt that the store refused stays a problem until a person has dealt with it.
        self.problems = tuple(
            [f"receipt {one.sequence} in {one.path.name} was refused: {one.code}" for one in report.refused]
            + [f"journal file {one.path.name} cannot be read: {one.code}" for one in report.torn_files]
            + ([f"{faults} appends to the journal failed"] if faults else [])
        )
        if report.stopped is not None:
            raise Unavailable("the journal's receipts could not be handed in", code=report.stopped)

    def _submit(self, operation_key: str, evidence: Evidence, attempt_id: UUID) -> None:
        self._store.run(submit_evidence(operation_key, evidence, attempt_id))
