"""A provider in this process that a test can let die in the middle of a call, and its books."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tenure.connectors.provider import IdempotencyKey
from tenure.rules.outcome import Evidence, Outcome
from tenure.testing.provider import FakeProvider

KEYS = IdempotencyKey(timedelta(hours=24), binds_payload=True)


class Killed(BaseException):
    """Stands for the end of the process: nothing below may catch it, and nobody lives to see it."""


class MortalProvider(FakeProvider):
    """
    A `FakeProvider` whose caller may die after it has acted and before it has answered.

    Attributes:
        during: Called when the next call has been booked and not answered yet; once.
    """

    during: Callable[[], object] | None = None

    async def send(self, request: object, operation_key: str) -> Outcome:
        outcome = await super().send(request, operation_key)
        self._happen()
        return outcome

    async def lookup(self, operation_key: str) -> Evidence:
        evidence = await super().lookup(operation_key)
        self._happen()
        return evidence

    def _happen(self) -> None:
        during, self.during = self.during, None
        if during is not None:
            during()


def mailer(*script: Any, **declares: Any) -> MortalProvider:
    """Make a provider that honours keys and whose look-up sees everything."""
    return MortalProvider("mailer", script, **{"idempotency": KEYS, **declares})


def keyless(*script: Any, **declares: Any) -> MortalProvider:
    """Make one without keys that can be asked."""
    return mailer(*script, idempotency=None, **declares)


def silent(*script: Any) -> MortalProvider:
    """Make one that has neither keys nor a look-up: only a person can know."""
    return mailer(*script, idempotency=None, lookup=False)


class Books:
    """What a provider in this process did."""

    def __init__(self, provider: FakeProvider) -> None:
        self._provider = provider

    def seen(self, operation_key: str) -> list[str]:
        return [str(act.effect_id) for act in self._provider.effects(operation_key)]

    def doubled(self) -> list[str]:
        return self._provider.duplicates()
