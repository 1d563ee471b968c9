"""What must be true when an older copy is put in the place of a database that lived on."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any
from uuid import UUID

from tenure.errors import LeaseLost, NotFound
from tenure.flows.authority import recover_database
from tenure.flows.drive import run_flow_async
from tenure.procedures.authority import Recovered
from tenure.rules.effect import EffectState
from tenure.rules.job import Job, open_boundary
from tenure.rules.lease import Lease
from tenure.rules.ledger import Book
from tenure.rules.outcome import Absent, Accepted
from tenure.rules.status import TERMINAL, Status
from tests.authority.lives import EFFECT, KIND, TENANTS, Life

NIGHTS_MAX = 60
STALE_MAX = 5


async def while_frozen(life: Life) -> None:
    """Nothing is begun, published or finished, whoever asks and whatever it holds; reading goes on."""
    before = life.written()
    assert life.watch.frozen is not None, "the copy was not noticed"
    for tenant in (None, *TENANTS):
        assert await life.service.claim_job("after", tenant=tenant) is None
    assert await life.relay() == 0
    for lease in life.leases[-STALE_MAX:]:
        for asked in _writes(life, lease):
            await _refused(asked)
            life.counts["refused while frozen"] += 1
    await life.watch.step()
    assert life.watch.frozen is not None
    assert life.written() == before, "a provider was called from a frozen copy"
    # What is only read, still is: people have to look at it.
    life.counts["read while frozen"] += len(await life.service.list_jobs(limit=100))


async def recover(life: Life) -> Recovered:
    """Bring it back, and see that every epoch is above all that was ever given."""
    ledger = life.store.ledger
    assert ledger is not None
    book = ledger.read()
    assert book is not None
    done = await run_flow_async(
        recover_database(
            ledger,
            life.store.file_identity(),
            "op:1",
            "restored",
            lambda identity: Book(store="anew", identity=identity),
        ),
        life.store.run,
    )
    for tenant, epoch in done.epochs.items():
        assert epoch > book.reach(tenant), "an epoch that the lost database may have given"
    assert {one for one in TENANTS if book.reach(one) > 1} <= set(done.epochs)
    await life.watch.step()
    assert life.watch.frozen is None
    life.counts["suspects"] += done.suspects
    return done


async def stale_are_refused(life: Life, *, job_id: UUID | None = None) -> int:
    """Let those who held a lease before come back and write."""
    stale = [lease for lease in life.leases if job_id in {None, lease.job_id}][-STALE_MAX:]
    before = life.written()
    for lease in stale:
        for asked in _writes(life, lease):
            await _refused(asked)
            life.counts["stale refused"] += 1
    assert life.written() == before, "a stale holder has called a provider"
    return len(stale)


def _writes(life: Life, lease: Lease) -> list[Awaitable[Any]]:
    return [
        life.service.heartbeat(lease),
        life.perform(lease),
        life.service.complete_job(lease, result={"stale": True}),
        life.service.fail_job(lease, code="E", message="m", retryable=True),
    ]


async def _refused(asked: Awaitable[Any]) -> None:
    try:
        answer = await asked
    except (LeaseLost, NotFound):
        return
    assert answer is False, f"a stale holder was given {answer!r}"


async def lost_effects_are_known(life: Life, behind: int, copy_until: int, *, ask: bool) -> None:
    """Every effect sent after the copy is listed, and found if asked for; or its job is gone, as the time says."""
    listed = {need.job_id for need in await life.service.list_effects_needing_evidence(limit=1000)}
    if ask:
        after = None
        while True:
            page = await life.service.reconcile_suspects(
                providers=[life.provider], operations={KIND: {EFFECT: life.provider}}, after=after, limit=5
            )
            life.counts["answers to a recovery"] += len(page.answers)
            after = page.after
            if after is None:
                break
    for entry in life.accepted(behind):
        job_id = UUID(entry.operation_key.split(":")[1])
        try:
            effects = await life.service.list_effects(job_id)
        except NotFound:
            born = int(life.born[job_id].timestamp() * 1_000_000)
            assert born > copy_until, "a job was lost that the copy should have"
            life.counts["gone with its job"] += 1
            continue
        assert job_id in listed, f"{entry.operation_key} was sent after the copy, and nothing says so"
        known = {one.operation_key: one for one in effects if one.state is EffectState.SUCCEEDED}
        if entry.operation_key in known:
            receipt: Any = known[entry.operation_key].receipt
            assert receipt["body"]["effect_id"] == entry.effect_id
            life.counts["found"] += 1
        else:
            life.counts["listed"] += 1


async def to_rest(life: Life) -> None:
    """Readmit what the copy held, and let ordinary means work; a person comes last, who reads the provider's books."""
    assert await life.relay() == 0, "a message of the copy left under its old epoch"
    await life.announce()
    assert await life.relay() == 1
    await life.thaw()
    for job in await life.service.list_jobs(status=Status.FAILED, limit=100):
        await life.again(job)
    old = len(life.leases)
    for _ in range(NIGHTS_MAX):
        claim = await life.claim()
        if claim is None:
            if await _still(life):
                break
            await life.night()
            await life.watch.step()
            # Work of before the recovery that was held by a lease or by an open call is queued under its old epoch.
            for tenant in await life.service.list_tenants():
                readmitted = await life.service.readmit_jobs(tenant.name, reason="looked at")
                life.counts["readmitted"] += len(readmitted)
            continue
        # While the job is held: what refuses the others is the lease and the epoch, not that the job is over.
        new, life.leases = life.leases[old:], life.leases[:old]
        life.counts["refused beside a holder"] += await stale_are_refused(life, job_id=claim.job.id)
        life.leases += new
        assert await life.service.heartbeat(claim.lease) is True
        life.counts["allowed"] += await life.end(claim) is not None
    else:
        jobs = await life.service.list_jobs(limit=1000)
        raise AssertionError([(one.id, one.status, one.held_reason, one.effects) for one in jobs if not _over(one)])


async def _still(life: Life) -> bool:
    """Say whether all is at rest; where only a person can say what happened, be that person."""
    jobs = await life.service.list_jobs(limit=1000)
    rest = True
    for job in jobs:
        for effect in await life.service.list_effects(job.id):
            if effect.is_open and job.escalated_at is not None:
                seen = [one for one in life.accepted() if one.operation_key == effect.operation_key]
                said = Accepted({"body": {"effect_id": seen[0].effect_id}}) if seen else Absent()
                await life.service.reconcile_dispatched(
                    job.id, said, operation_key=effect.operation_key, reason="read in the provider's books"
                )
                life.counts["stated"] += 1
                rest = False
    return rest and all(_over(job) for job in jobs)


def _over(job: Job) -> bool:
    return job.status in TERMINAL and not open_boundary(job)


async def once_each(life: Life) -> None:
    """At the end every operation has one outside effect at most, and every completed job exactly one."""
    doubled = life.world.duplicates()
    assert doubled == {}, f"customers saw twice: {sorted(doubled)}"
    by_job: dict[UUID, int] = {}
    for entry in life.accepted():
        job_id = UUID(entry.operation_key.split(":")[1])
        by_job[job_id] = by_job.get(job_id, 0) + 1
    for job in await life.service.list_jobs(limit=1000):
        sent = by_job.get(job.id, 0)
        assert sent == 1 if job.status is Status.COMPLETED else sent <= 1, (job.id, job.status, sent)
        life.counts["one effect each"] += job.status is Status.COMPLETED
