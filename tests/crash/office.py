"""
The app whose processes die: a studio that mails a quote, notes it in the customer's file and publishes that it did.

Two effects and a publish, in the plain style; the awaiting twin is registered under another kind and does the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from tenure.app import Tenure
from tenure.attempt import Attempt, Runtime
from tenure.connectors.provider import Provider
from tenure.errors import Stop
from tenure.handler import AsyncContext, Context
from tenure.loops.endings import ending, returning
from tenure.procedures import hold
from tenure.procedures.claim import Claim
from tenure.rules.job import Job
from tenure.stores.contract import AsyncStore, Store
from tests.crash.scene import ACTOR, LEASE, ORGANIZATION, PROJECT

T = TypeVar("T")

KIND, AWAITING_KIND = "send_quote", "send_quote_awaiting"
_SENT = {
    "sqlite": "INSERT INTO quote_sent VALUES (?, ?) ON CONFLICT DO NOTHING",
    "postgresql": "INSERT INTO quote_sent VALUES (%s, %s) ON CONFLICT DO NOTHING",
}

Reach = Callable[[str], None]


def open_office(
    store: Store,
    mailer: Provider,
    *,
    reach: Reach = lambda name: None,
    call_timeout: timedelta | None = None,
    **options: Any,
) -> Tenure:
    """
    Make the app on an open store.

    Args:
        reach: Called by the handler between its steps, with a name of its own.
        call_timeout: How long the handler lets a call take; the provider's own limit when None.
        options: Of the kinds; see `Tenure.job`.
    """
    app = Tenure(
        store, organization=ORGANIZATION, project=PROJECT, tenant=ORGANIZATION, actor=ACTOR, providers=[mailer]
    )
    given = {"lease_duration": LEASE, "max_attempts": 3, "backoff_base": timedelta(seconds=30), **options}
    sent = _SENT[store.dialect]

    @app.job(KIND, **given)
    def send_quote(ctx: Context, quote: dict[str, Any]) -> dict[str, Any]:
        reach("handler:begins")
        mailed = ctx.effect("mail", mailer, {"to": quote["to"]}, timeout=call_timeout)
        reach("handler:mailed")
        noted = ctx.effect("note", mailer, {"note": f"quote {quote['id']} is out"}, timeout=call_timeout)
        reach("handler:noted")
        with ctx.publish() as tx:
            tx.execute(sent, (str(ctx.job.id), ctx.lease.generation))
        reach("handler:published")
        return {"mailed": _effect_id(mailed), "noted": _effect_id(noted)}

    @app.job(AWAITING_KIND, **given)
    async def send_quote_awaiting(ctx: AsyncContext, quote: dict[str, Any]) -> dict[str, Any]:
        reach("handler:begins")
        mailed = await ctx.effect("mail", mailer, {"to": quote["to"]}, timeout=call_timeout)
        reach("handler:mailed")
        noted = await ctx.effect("note", mailer, {"note": f"quote {quote['id']} is out"}, timeout=call_timeout)
        reach("handler:noted")
        async with ctx.publish() as tx:
            await tx.execute(sent, (str(ctx.job.id), ctx.lease.generation))
        reach("handler:published")
        return {"mailed": _effect_id(mailed), "noted": _effect_id(noted)}

    return app


def _effect_id(receipt: Any) -> Any:
    body = receipt.get("body", receipt) if isinstance(receipt, dict) else receipt
    return body.get("effect_id") if isinstance(body, dict) else body


class Hand:
    """
    A worker without loops: one claim, one handler, one outcome, each when a test says so and in the test's own thread.

    What a handler gets and how its end is written is the package's own; only the loops are missing.
    """

    def __init__(self, app: Tenure, *, worker_id: str = "hand", journal: Any = None) -> None:
        self.app = app
        self.worker_id = worker_id
        self.service = app.service
        self._journal = journal

    def claim(self) -> Claim | None:
        return self.service.claim_job(self.worker_id, start=True)

    def work(self, claim: Claim) -> Job | None:
        """Run the handler of a claim and write how it ended; None where the lease was lost."""
        ask = self.perform(claim)
        return None if ask is None else self.app.store.run(hold.hold_one(ask))

    def perform(self, claim: Claim) -> hold.Ask | None:
        """Run the handler of a claim and give what is to be written."""
        kind = self.app.registry.find(claim.job.kind)
        attempt = Attempt(claim, kind, sent=time.monotonic())
        payload = kind.decode(claim.job.payload)
        try:
            if kind.is_async:
                result = wait(self._awaited(attempt, payload))
            else:
                awaiting: Any = None  # a plain handler's context asks the blocking store alone
                result = kind.function(Context(attempt, self._runtime(awaiting)), payload)
        except (Exception, Stop) as error:  # noqa: BLE001 - the package says what each ending of a handler means
            return ending(attempt, error)
        return returning(attempt, kind.jsonable(result))

    async def _awaited(self, attempt: Attempt, payload: Any) -> Any:
        store = self.app.store.awaiting()
        try:
            return await attempt.kind.function(AsyncContext(attempt, self._runtime(store)), payload)
        finally:
            await store.close()

    def _runtime(self, awaiting: AsyncStore) -> Runtime:
        return Runtime(awaiting, self.app.store, self.app.providers, self._journal, wait, apart=_at_once)


async def _at_once(work: Callable[[], T]) -> T:
    return work()


def wait(awaitable: Awaitable[T]) -> T:
    """Run an awaitable to its end on a loop of its own."""

    async def body() -> T:
        return await awaitable

    work: Coroutine[Any, Any, T] = body()
    return asyncio.run(work)
