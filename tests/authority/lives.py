"""
A random life of a store under its ledger: jobs, calls that end in every way, rotations, freezes, deaths; one seed.

Every step goes through what ships: the verbs, the flow of an effect, and the watch that a worker runs each second. Only
the loops are missing, so a life has no clock but the one it moves itself.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from tenure import ExecutionInput, outbox
from tenure.connectors.http import HttpProvider
from tenure.connectors.provider import lookup_bounded, terms
from tenure.connectors.simulator import Entry, ProviderSimulator
from tenure.errors import EffectRejected, LeaseLost, TenureError, Uncertain
from tenure.flows.drive import run_flow_async
from tenure.flows.effect import Performed, perform
from tenure.loops.authority import AuthorityWatch
from tenure.opening import open_async_store
from tenure.procedures.claim import Claim
from tenure.procedures.outbox import add_message, claim_messages, finish_messages
from tenure.rules.digest import request_digest
from tenure.rules.dispatch import Begun
from tenure.rules.effect import Effect
from tenure.rules.job import Job
from tenure.rules.lease import Lease
from tenure.rules.message import Delivered
from tenure.rules.outcome import Evidence, FailedBeforeDispatch, Outcome
from tenure.rules.status import Status
from tenure.service import AsyncDurableJobService
from tenure.stores.contract import AsyncStore
from tenure.testing import ManualClock
from tests.authority.places import Place

START = datetime(2026, 1, 1, tzinfo=UTC)
TENANTS = ("acme", "beta")
KIND, EFFECT = "send", "mail"
LEASE = timedelta(seconds=60)
NIGHT = timedelta(minutes=12)
CALL = timedelta(seconds=10)

Act = Callable[[], Awaitable[None]]


class Died(BaseException):
    """The process of a worker ends here: nothing catches this."""


async def at_once(work: Callable[[], Any]) -> Any:
    return work()


class Life:
    """
    One store, its provider, and everybody who ever held a lease.

    Attributes:
        born: When each job was created, by id, whatever the database says now.
        leases: All that were ever given, the oldest first.
        counts: What happened, by name.
    """

    def __init__(self, place: Place, world: ProviderSimulator, clock: ManualClock, seed: int) -> None:
        self.place = place
        self.world = world
        self.clock = clock
        self.random = random.Random(seed)
        self.born: dict[UUID, datetime] = {}
        self.leases: list[Lease] = []
        self.counts: Counter[str] = Counter()
        self._nth = 0
        self.provider: HttpProvider = world.provider("mailer", settles_within=timedelta(seconds=5))
        self.store: AsyncStore
        self.service: AsyncDurableJobService
        self.watch: AuthorityWatch

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Start, as a worker does: open, and compare before anything else."""
        self.store = await open_async_store(self.place.url, clock=self.clock, authority_ledger=self.place.ledger)
        try:
            self.service = AsyncDurableJobService(self.store, actor="op:1")
            self.watch = AuthorityWatch(self.store, at_once, wake=lambda: None)
            await self.watch.start()
            yield
        finally:
            await self.store.close()

    async def live(self, steps: int, *, create: int, work: int) -> None:
        """Do this many things by chance; jobs are created and done as often as the two numbers say."""
        acts: list[tuple[int, Act]] = [
            (create, self.create),
            (work, self.work),
            (2, self.die_before_the_call),
            (3, self.die_after_the_call),
            (2, self.hold),
            (1, self.rotate_inside_a_call),
            (1, self.rotate),
            (1, self.freeze),
            (1, self.thaw),
            (2, self.retry),
            (1, self.cancel),
            (1, self.night),
            (3, self.tick),
        ]
        weights = [weight for weight, _ in acts]
        for _, act in self.random.choices(acts, weights, k=steps):
            self.clock.advance(timedelta(seconds=1))
            await act()

    # --- what may happen ----------------------------------------------------------------------------------------------

    async def create(self) -> None:
        tenant = self.random.choice(TENANTS)
        self._nth += 1
        made = await self.service.create_job(
            organization=tenant,
            project="p1",
            idempotency_key=f"k-{self._nth}",
            kind=KIND,
            payload={"n": self._nth},
            max_attempts=5,
            lease_duration=LEASE,
            execution=ExecutionInput(tenant=tenant, actor="user:1", trace="t-1"),
        )
        self.born[made.job.id] = self.clock.now()
        self.counts["created"] += 1

    async def announce(self) -> None:
        """Leave a message for a relay, of a tenant whose authority nobody touches before the recovery."""
        self._nth += 1
        message = outbox.prepare(
            destination="mail", type="t", data={}, tenant="gamma", operation=f"op-{self._nth}", subject=None
        )
        await self.store.run(add_message(message))

    async def relay(self) -> int:
        """Be a relay that takes what there is, and delivers it."""
        taken = await self.store.run(claim_messages("relay", "mail", 10, LEASE))
        ended = [(one, Delivered()) for one in taken.outgoing]
        await self.store.run(finish_messages("relay", ended, backoff=LEASE))
        self.counts["messages given to a relay"] += len(ended)
        return len(ended)

    async def claim(self) -> Claim | None:
        claim: Claim | None = await self.service.claim_job(f"w-{len(self.leases)}", start=True)
        if claim is not None:
            self.leases.append(claim.lease)
        return claim

    async def work(self) -> None:
        """Do one job from its claim to its end; the provider has a fault now and then."""
        fault = self.random.choice([None, None, None, "drop_reply", "refuse", "too_many", "error_after"])
        claim = await self.claim()
        if claim is None:
            return
        if fault is not None:
            self.world.fault(fault, status=503 if fault == "error_after" else None)
            self.counts[fault] += 1
        await self.end(claim)
        self.world.clear_faults()

    async def end(self, claim: Claim) -> Job | None:
        """Make the call and write how the attempt ended; None where the lease was lost."""
        lease = claim.lease
        job: Job
        try:
            done = await self.perform(lease)
            if done.effect.receipt is not None:
                job = await self.service.complete_job(
                    lease, result={"effect": done.effect.receipt["body"]["effect_id"]}
                )
            else:
                settled = done.outcome
                retry = isinstance(settled, FailedBeforeDispatch)
                job = await self.service.fail_job(lease, code="E", message="m", retryable=retry)
        except EffectRejected:
            job = await self.service.fail_job(lease, code="REJECTED", message="m", retryable=False)
        except LeaseLost:
            return None
        except Uncertain:
            with contextlib.suppress(LeaseLost):
                return await self.service.mark_indeterminate(lease, code="U", message="m")
            return None
        return job

    async def perform(self, lease: Lease, around: Callable[[Begun], Awaitable[Outcome]] | None = None) -> Performed:
        request = {"to": "somebody"}

        async def send(begun: Begun) -> Outcome:
            self.counts["calls"] += 1
            return await self.provider.send(request, begun.effect.operation_key)

        async def ask(begun: Begun) -> Evidence:
            self.counts["asked before a call"] += 1
            return await lookup_bounded(self.provider, begun.effect.operation_key, CALL)

        def keep(_effect: Effect, _outcome: Outcome) -> bool:
            return False

        doing = perform(
            lease,
            EFFECT,
            request_digest(request),
            terms(self.provider),
            CALL,
            send=around or send,
            keep=keep,
            ask=ask,
        )
        return await run_flow_async(doing, self.store.run)

    async def die_before_the_call(self) -> None:
        async def around(begun: Begun) -> Outcome:
            raise Died

        await self._die(around, "died before the call")

    async def die_after_the_call(self) -> None:
        async def around(begun: Begun) -> Outcome:
            await self.provider.send({"to": "somebody"}, begun.effect.operation_key)
            raise Died

        await self._die(around, "died after the call")

    async def _die(self, around: Callable[[Begun], Awaitable[Outcome]], name: str) -> None:
        claim = await self.claim()
        if claim is None:
            return
        with contextlib.suppress(Died, TenureError):
            await self.perform(claim.lease, around)
        self.counts[name] += 1

    async def hold(self) -> None:
        self.counts["held on to"] += await self.claim() is not None

    async def rotate_inside_a_call(self) -> None:
        claim = await self.claim()
        if claim is None:
            return

        async def around(begun: Begun) -> Outcome:
            await self.service.rotate_tenant(claim.job.tenant, reason="leaked")
            return await self.provider.send({"to": "somebody"}, begun.effect.operation_key)

        with contextlib.suppress(LeaseLost, EffectRejected, Uncertain):
            await self.perform(claim.lease, around)
        self.counts["rotated inside a call"] += 1

    async def rotate(self) -> None:
        tenant = self.random.choice(TENANTS)
        if await self._known(tenant):
            await self.service.rotate_tenant(tenant, reason="r")
            self.counts["rotated"] += 1
            if self.random.random() < 0.7:
                await self.service.readmit_jobs(tenant, reason="r")

    async def freeze(self) -> None:
        tenant = self.random.choice(TENANTS)
        if not await self._known(tenant):
            return
        shown = await self.service.show_tenant(tenant)
        if not shown.frozen:
            await self.service.freeze_tenant(tenant, reason="r")
            self.counts["frozen"] += 1

    async def thaw(self) -> None:
        for tenant in await self.service.list_tenants():
            if tenant.frozen:
                await self.service.thaw_tenant(tenant.name, reason="r")
            await self.service.readmit_jobs(tenant.name, reason="r")

    async def retry(self) -> None:
        for job in await self.service.list_jobs(status=Status.FAILED, limit=1):
            await self.again(job)

    async def again(self, job: Job) -> None:
        rejected = [effect.name for effect in await self.service.list_effects(job.id) if effect.state == "rejected"]
        with contextlib.suppress(Uncertain):
            await self.service.retry_job(job.id, attempts=2, reopen=rejected)
            self.counts["retried"] += 1

    async def cancel(self) -> None:
        for job in (await self.service.list_jobs(status=Status.QUEUED, limit=50))[-1:]:
            await self.service.cancel_job(job.id, reason="r")

    async def night(self) -> None:
        """Let leases run out, and sweep."""
        self.clock.advance(NIGHT)
        await self.sweep()

    async def sweep(self) -> None:
        async def lookup(operation_key: str, _job: Job) -> Evidence:
            return await lookup_bounded(self.provider, operation_key, CALL)

        for tenant in TENANTS:
            verdicts = await self.service.sweep_reconciliation_candidates(
                organization=tenant, project="p1", lookup=lookup
            )
            self.counts["swept"] += sum(one.action == "resolve" for one in verdicts)

    async def tick(self) -> None:
        await self.watch.step()
        assert self.watch.frozen is None
        assert self.watch.trouble is None
        self.counts["ticks"] += 1

    async def _known(self, tenant: str) -> bool:
        return tenant in {one.name for one in await self.service.list_tenants()}

    # --- what the provider's own ledger says --------------------------------------------------------------------------

    def accepted(self, behind: int = 0) -> list[Entry]:
        return [entry for entry in self.world.entries() if entry.action == "accepted" and entry.seq > behind]

    def written(self) -> int:
        return len(self.world.entries())
