"""
Ask about what is uncertain, again and again, for every scope that has candidates.

The same flow serves the worker's loop and `tenure sweep`. A provider is found by the name stored with the effect; one
that this process does not know, or that cannot be asked, gives no answer, and a person is asked in the end.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tenure.connectors.provider import Provider, lookup_bounded
from tenure.flows.drive import run_flow_async
from tenure.flows.sweep import sweep_scope
from tenure.procedures.reconcile import find_candidate_scopes
from tenure.rules.effect import Effect
from tenure.rules.job import Job
from tenure.rules.outcome import Evidence, NoAnswer
from tenure.rules.reconcile import Verdict
from tenure.stores.contract import AsyncStore

logger = logging.getLogger("tenure.sweeper")

BATCH = 200

# Asked about bare marks, which name no provider: `(operation_key, job) -> Evidence`, plain or async.
Lookup = Callable[[str, Job], "Evidence | Awaitable[Evidence]"]


class Sweeper:
    """
    One pass over everything that needs evidence.

    Args:
        providers: By the name stored with effects.
        lookup: Asked about bare marks.
        tenant: Only this tenant's scopes.
    """

    def __init__(
        self,
        store: AsyncStore,
        providers: Mapping[str, Provider],
        *,
        lookup: Lookup | None = None,
        tenant: str | None = None,
    ) -> None:
        self._store = store
        self._providers = providers
        self._lookup = lookup
        self._tenant = tenant

    async def sweep(self, *, patient: bool = True) -> list[Verdict]:
        """
        Sweep every scope once.

        Args:
            patient: Ask a silent provider again until the job's `escalate_after`; else escalate at the first silence.
        Returns:
            One verdict for each candidate.
        """
        verdicts: list[Verdict] = []
        for tenant, organization, project in await self._store.run(find_candidate_scopes(self._tenant)):
            flow = sweep_scope(organization, project, tenant, self.ask, limit=BATCH, patient=patient)
            found = await run_flow_async(flow, self._store.run)
            for verdict in found:
                if verdict.action != "leave":
                    logger.info("sweep: job=%s %s status=%s", verdict.job_id, verdict.action, verdict.status)
            verdicts += found
        return verdicts

    async def ask(self, job: Job, effect: Effect) -> Evidence:
        """Ask the provider of one effect, or the caller's look-up for a bare mark."""
        if effect.provider is None:
            return await self._ask_caller(job, effect)
        provider = self._providers.get(effect.provider)
        if provider is None:
            return NoAnswer(f"provider {effect.provider!r} is not registered in this process")
        return await lookup_bounded(provider, effect.operation_key, provider.timeout)

    async def _ask_caller(self, job: Job, effect: Effect) -> Evidence:
        if self._lookup is None:
            return NoAnswer("a bare mark names no provider, and no look-up was given")
        try:
            answer: Any = self._lookup(effect.operation_key, job)
            if inspect.isawaitable(answer):
                answer = await answer
        except Exception as error:  # noqa: BLE001 - a look-up that fails is a provider that does not answer
            logger.warning("the look-up for bare marks raised %s", type(error).__name__)
            return NoAnswer(type(error).__name__)
        evidence: Evidence = answer
        return evidence
