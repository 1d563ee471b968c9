"""
Broken variants of the library, applied inside a worker process of the demonstration and nowhere else.

A check that cannot fail is worth nothing. Each variant takes one promise away; the demonstration must notice by what
the tables and the provider's ledger show.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from tenure import attempt, handler
from tenure.connectors.provider import Provider, lookup_bounded, send_bounded
from tenure.errors import EffectFailed
from tenure.loops.heartbeat import Heartbeat
from tenure.procedures import publish
from tenure.rules import lease as leases
from tenure.rules.job import Job
from tenure.rules.lease import Lease
from tenure.rules.outcome import Evidence, NoAnswer, Succeeded
from tenure.yields import Script, procedure


def no_fence() -> None:
    """Nobody checks whether a write comes from the current holder of the lease."""

    def check_nothing(job: Job, lease: Lease, now: datetime) -> Lease:
        del now
        return job.lease or lease

    @procedure
    def close_nothing(lease: Lease, publish_id: UUID, *, tenant: str | None = None) -> Script[None]:
        del lease, publish_id, tenant
        yield []

    _replace(leases.check_fence, check_nothing)
    _replace(publish.close_publish, close_nothing)


def no_lookup() -> None:
    """Providers cannot be asked what became of a call."""

    async def silence(*_: Any) -> Evidence:
        return NoAnswer("the look-up was taken away")

    _replace(lookup_bounded, silence)


def no_boundary() -> None:
    """A call is made without an intent before it, and under a new key in each attempt, as plain queues retry."""

    async def effect(self: handler.AsyncContext, name: str, provider: Provider, request: Any, **_: Any) -> Any:
        key = f"{self.job.kind}:{self.job.id}:{name}:{self.lease.generation}"
        outcome = await send_bounded(provider, request, key, provider.timeout)
        if not isinstance(outcome, Succeeded):
            raise EffectFailed(f"effect {name!r} did not succeed")
        return outcome.receipt

    handler.AsyncContext.effect = effect  # type: ignore[method-assign]  # taken away on purpose


BREAKS: dict[str, Callable[[], None]] = {"no-fence": no_fence, "no-lookup": no_lookup, "no-boundary": no_boundary}


# Seconds; what a deaf worker always believes to have left.
_TRUST = property(lambda _: 1.0)


def apply(name: str) -> None:
    """Break this process."""
    BREAKS[name]()


def deafen() -> None:
    """
    Keep a worker from noticing that its lease is over.

    Not a broken promise: a process that was paused may well reach its write before its own clock is looked at. This
    makes it certain, so that only the fence in the database stands in the way.
    """

    def hear_nothing(*_: Any) -> None:
        return

    Heartbeat._halt = hear_nothing  # type: ignore[method-assign,assignment]  # noqa: SLF001 - see above
    attempt.Attempt.trusted = _TRUST  # type: ignore[method-assign,assignment]  # see above


def _replace(old: Any, new: Any) -> None:
    """Put something in the place of a function in every module that has imported it."""
    for name, module in list(sys.modules.items()):
        if name.startswith("tenure.") and module is not None:
            for attribute, value in list(vars(module).items()):
                if value is old:
                    setattr(module, attribute, new)
