"""A provider acts and its reply is lost; the handler is run again, and the act is not."""

import asyncio
from datetime import timedelta
from pathlib import Path

from tenure import AsyncContext, Tenure
from tenure.testing import ProviderSimulator


async def run(simulator: ProviderSimulator) -> None:
    """Charge once, although the first call never hears back."""
    bank = simulator.provider("bank")
    app = Tenure("sqlite:///charges.db", organization="studio", project="shop", actor="user:42", providers=[bank])

    @app.job("charge")
    async def charge(ctx: AsyncContext, order: dict) -> dict:
        return await ctx.effect("charge", bank, {"amount": order["amount"]})

    await app.amigrate()
    made = await app.aenqueue(charge, {"amount": 17}, key="order-1")
    service = await app.aservice()
    async with app.worker(sweep_every=timedelta(milliseconds=100)):
        while (job := await service.get_job(made.job.id)).status != "completed":  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    print(f"the job is {job.status} after {job.attempt_count} attempts")
    for event in await service.list_job_events(job.id):
        print("  ", event.name, event.status or "")
    print("what the customer sees:", [entry.effect_id for acts in simulator.effects().values() for entry in acts])
    await app.aclose()


def main() -> None:
    """Start a provider that drops its first reply."""
    with ProviderSimulator(Path("ledger.jsonl")) as simulator:
        simulator.fault("drop_reply")
        asyncio.run(run(simulator))


if __name__ == "__main__":
    main()
