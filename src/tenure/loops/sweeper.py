"""
Ask about what is uncertain, again and again, for every scope that has candidates.

The same flow serves the worker's loop and `tenure sweep`. A provider is found by the name stored with the effect; one
that this process does not know, or that cannot be asked, gives no answer, and a person is asked in the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from uuid import UUID

from tenure.connectors.asking import ask_about
from tenure.connectors.provider import LOOKUP_TIMEOUT, Provider
from tenure.flows.drive import run_flow_async
from tenure.flows.sweep import Lookup, sweep_job
from tenure.procedures.reconcile import find_candidate_scopes, find_candidates
from tenure.rules.effect import Effect
from tenure.rules.job import Job
from tenure.rules.outcome import Evidence, NoAnswer
from tenure.rules.reconcile import Verdict
from tenure.stores.contract import AsyncStore

__all__ = ["BATCH", "LANES", "Lookup", "Sweeper"]

logger = logging.getLogger("tenure.sweeper")

BATCH = 200
# Candidates looked at side by side, so that one silent provider does not hold up the others.
LANES = 4


class Sweeper:
    """
    One pass over everything that needs evidence.

    Args:
        providers: By the name stored with effects.
        lookup: Asked about bare marks, which name no provider; a plain function runs in a thread of its own.
        tenant: Only this tenant's scopes.
        lookup_timeout: How long one call of `lookup` may take. Providers have their own timeout.
    """

    def __init__(
        self,
        store: AsyncStore,
        providers: Mapping[str, Provider],
        *,
        lookup: Lookup | None = None,
        tenant: str | None = None,
        lookup_timeout: timedelta = LOOKUP_TIMEOUT,
    ) -> None:
        self._store = store
        self._providers = providers
        self._lookup = lookup
        self._tenant = tenant
        self._lookup_timeout = lookup_timeout

    async def sweep(self, *, patient: bool = True, progress: Callable[[], None] | None = None) -> list[Verdict]:
        """
        Sweep every scope once.

        A candidate that cannot be swept does not keep the others from their turn; its error is raised at the end.

        Args:
            patient: Ask a silent provider again until the job's `escalate_after`; else escalate at the first silence.
            progress: Called after each candidate: providers may be slow, and a slow sweep is not a dead one.
        Returns:
            One verdict for each candidate.
        """
        candidates: list[tuple[UUID, str, str, str]] = []
        for tenant, organization, project in await self._store.run(find_candidate_scopes(self._tenant)):
            ids = await self._store.run(find_candidates(organization, project, tenant, BATCH, patient=patient))
            candidates += [(job_id, organization, project, tenant) for job_id in ids]
        verdicts: dict[int, Verdict] = {}
        troubles: list[Exception] = []
        queue = iter(enumerate(candidates))

        async def lane() -> None:
            for nth, (job_id, organization, project, tenant) in queue:
                try:
                    flow = sweep_job(job_id, organization, project, tenant, self.ask, patient=patient)
                    verdicts[nth] = await run_flow_async(flow, self._store.run)
                except Exception as trouble:  # noqa: BLE001 - raised below, after the others had their turn
                    troubles.append(trouble)
                    continue
                if verdicts[nth].action != "leave":
                    logger.info("sweep: job=%s %s status=%s", job_id, verdicts[nth].action, verdicts[nth].status)
                if progress is not None:
                    progress()

        async with asyncio.TaskGroup() as lanes:
            for _ in range(min(LANES, len(candidates))):
                lanes.create_task(lane())
        if troubles:
            raise troubles[0]
        return [verdicts[nth] for nth in sorted(verdicts)]

    async def ask(self, job: Job, effect: Effect) -> Evidence:
        """Ask the provider of one effect, or the caller's look-up for a bare mark."""
        answer = await ask_about(job, effect, self._providers, lookup=self._lookup, lookup_timeout=self._lookup_timeout)
        if effect.provider is None and self._lookup is not None and isinstance(answer, NoAnswer):
            # Its reason may be the caller's own words; it is kept with the job if a person has to be asked.
            logger.info("the look-up for bare marks has no answer: job=%s", job.id)
        return answer
