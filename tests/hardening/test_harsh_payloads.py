"""What attackers of the worker found in payload models, each beside what must go on working."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel, field_validator

from tenure import AsyncContext, Tenure
from tests.loops.stage import until

LEAVING: dict[int, type[BaseException]] = {1: SystemExit, 2: KeyboardInterrupt}


class Harsh(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def judge(cls, number: int) -> int:
        if number in LEAVING:
            raise LEAVING[number]
        return number


async def harsh(ctx: AsyncContext, payload: Harsh) -> int:
    return payload.number


def test_a_model_that_wants_to_leave_ends_its_attempt_and_not_the_worker(tmp_path: Path) -> None:
    app = Tenure(f"sqlite:///{tmp_path}/jobs.db", organization="studio", project="p", actor="u")
    app.store.migrate()
    app.job("harsh")(harsh)
    # By the service, which knows no models: the app would ask the model here already.
    ids = [
        app.service.create_job(
            organization="studio", project="p", idempotency_key=str(number), kind="harsh", payload={"number": number}
        ).job.id
        for number in (1, 2, 3)
    ]

    def attempted() -> bool:
        return app.service.get_job(ids[2]).status == "completed" and all(
            app.service.get_job(job_id).error_code for job_id in ids[:2]
        )

    async def scene() -> None:
        async with app.worker(concurrency=1, poll=timedelta(milliseconds=50), sweep_every=None) as worker:
            await asyncio.to_thread(until, attempted, "every job to be attempted")
            assert worker.health().ok

    asyncio.run(scene())
    assert app.service.get_job(ids[2]).result == 3
    for job_id, leaving in zip(ids, LEAVING.values(), strict=False):
        after = app.service.get_job(job_id)
        assert (after.status, after.error_code) == ("queued", "HANDLER_ERROR")
        assert after.error_message == f"RuntimeError: the handler raised {leaving.__name__}"
    app.close()
