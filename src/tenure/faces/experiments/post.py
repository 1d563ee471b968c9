"""
The provider of the experiments: it keeps no keys, so that whoever asks twice gets two acts, and it can be asked.

What it did is in the simulator's ledger, a file of its own that no restore of the store brings back.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tenure.connectors.provider import Provider
from tenure.connectors.simulator.ledger import Entry, Ledger, effects_in
from tenure.rules.digest import request_digest
from tenure.rules.outcome import Absent, Accepted, Evidence, FailedBeforeDispatch, Outcome, Succeeded


class Death(BaseException):
    """A process ends at this very place: nothing after it happens."""


class Post(Provider):
    """
    Accepts every letter.

    Attributes:
        down: It cannot be reached: nothing is accepted.
        then: Called once when the next letter is accepted and before it is answered; may raise.
    """

    name = "post"
    lookup_complete = True

    def __init__(self, path: Path) -> None:
        self._ledger = Ledger(path)
        self.down = False
        self.then: Callable[[], None] | None = None

    def send(self, request: Any, operation_key: str) -> Outcome:
        """Accept a letter, and write it down before anything is answered."""
        if self.down:
            self._note("turned_away", operation_key, status=503)
            return FailedBeforeDispatch("the post is closed")
        number = sum(entry.action == "accepted" for entry in self._ledger.entries) + 1
        known = bool(self.acts(operation_key))
        act = self._note(
            "accepted",
            operation_key,
            effect_id=f"fx-{number}",
            payload_digest=request_digest(request),
            duplicate=known,
            status=200,
        )
        then, self.then = self.then, None
        if then is not None:
            then()
        return Succeeded({"effect_id": act.effect_id})

    def lookup(self, operation_key: str) -> Evidence:
        """Say what became of a letter."""
        self._note("looked_up", operation_key, status=200)
        acts = self.acts(operation_key)
        return Accepted({"effect_id": acts[0].effect_id}) if acts else Absent()

    def acts(self, operation_key: str) -> list[Entry]:
        """Give what was done under a key."""
        return effects_in(self._ledger.entries).get(operation_key, [])

    def entries(self) -> list[Entry]:
        """Give the whole ledger."""
        return list(self._ledger.entries)

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()

    def _note(self, action: str, key: str, **fields: Any) -> Entry:
        return self._ledger.append(
            at=datetime.now(UTC).isoformat(), action=action, account="studio", operation_key=key, **fields
        )


def lose_the_reply() -> None:
    """Let the connection end between the act and the answer."""
    raise ConnectionResetError


def die() -> None:
    """Let the worker die between the act and the answer."""
    raise Death
