"""
The application of the demonstration: one kind, one provider, one table of its own.

This is what a user writes. What the demonstration adds is `before_publishing`, the place where a worker is paused.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from tenure.app import Tenure
from tenure.connectors.simulator import Simulator
from tenure.faces.demo.books import statements
from tenure.faces.demo.quotes import Quote
from tenure.handler import AsyncContext

KIND = "send_quote"
EFFECT = "send"
# Short, so that a lost worker is noticed while somebody watches; a minute is usual.
LEASE = timedelta(seconds=2)
# How long the sweeper asks a provider that does not answer; ten minutes are usual.
ESCALATE_AFTER = timedelta(seconds=3)
# What a worker notes before and after the place at which it may be paused.
ARRIVED, PUBLISHING = "arrived", "publishing"

Pause = Callable[[AsyncContext, Quote], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Studio:
    """The app, and what one run of the demonstration calls itself."""

    app: Tenure
    run: str
    sql: dict[str, str]

    def values(self, ctx: AsyncContext, quote: Quote) -> dict[str, Any]:
        """Give what every statement of a handler needs."""
        lease = ctx.lease
        return {"run": self.run, "id": quote.id, "generation": lease.generation, "sent_by": lease.worker_id}

    async def note(self, ctx: AsyncContext, quote: Quote, place: str) -> None:
        """Write where this worker stands, without any fence: it says what a worker tried, not what it achieved."""
        values = {name: value for name, value in self.values(ctx, quote).items() if name != "sent_by"}
        async with (await self.app.astore()).transaction() as tx:
            await tx.execute(self.sql["note_visit"], {**values, "place": place})


def open_studio(
    store: str, simulator: Simulator, run: str, dialect: str, before_publishing: Pause | None = None
) -> Studio:
    """
    Make the app.

    Args:
        run: The tenant of all its jobs, so that runs may share a database.
        before_publishing: Awaited between the receipt and the publish.
    """
    mailer = simulator.provider("mailer")
    app = Tenure(store, organization="studio", project="sales", tenant=run, actor="demo", providers=[mailer])
    studio = Studio(app, run, statements(dialect))

    @app.job(KIND, lease_duration=LEASE, max_attempts=5, escalate_after=ESCALATE_AFTER, providers=[mailer])
    async def send_quote(ctx: AsyncContext, quote: Quote) -> Any:
        mail = {"to": quote.to, "subject": f"Your quote {quote.id}", "body": f"{quote.item}: {quote.total} EUR"}
        receipt = await ctx.effect(EFFECT, mailer, mail)
        if before_publishing is not None:
            await before_publishing(ctx, quote)
        values = studio.values(ctx, quote)
        async with ctx.publish() as tx:
            await tx.execute(studio.sql["mark_sent"], {**values, "receipt": json.dumps(receipt)})
            await tx.execute(studio.sql["note_publication"], values)
        return receipt

    return studio


def simulator_at(url: str, ledger: str) -> Simulator:
    """Speak to the provider's process from another one."""
    return Simulator(url, Path(ledger))
