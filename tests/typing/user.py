"""What a user with a strict type checker writes; it is checked, not run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type

import tenure


def blocking(url: str) -> tenure.Job:
    with tenure.open_store(url) as store:
        assert_type(store.migrate(), list[str])
        service = tenure.DurableJobService(store, tenant="studio")
        made = service.create_job(
            organization="studio", project="sales", idempotency_key="quote-17", kind="send_quote", payload={"quote": 17}
        )
        assert_type(made.created, bool)
        claim = service.claim_job("worker-a")
        if claim is not None:
            assert_type(service.heartbeat(claim.lease), bool)
            return service.complete_job(claim.lease, result={"receipt": "r-1"})
        with store.transaction(deadline=timedelta(seconds=1)) as tx:
            tx.execute("SELECT 1")
        return made.job


async def awaiting(url: str) -> tenure.Job | None:
    async with await tenure.open_async_store(url) as store:
        assert_type(await store.migrate(), list[str])
        service = tenure.AsyncDurableJobService(store)
        claim = await service.claim_job("worker-a")
        async with store.transaction() as tx:
            await tx.execute("SELECT 1")
        return None if claim is None else claim.job


app = tenure.Tenure("sqlite:///jobs.db", organization="studio", project="sales")


@app.job("send_quote", queue="mail", max_attempts=5)
async def send_quote(ctx: tenure.AsyncContext, quote: dict[str, Any]) -> dict[str, Any]:
    return {"quote": quote["id"]}


def producer() -> bool:
    return app.enqueue(send_quote, {"id": 17}, key="quote-17", actor="user:42").created
