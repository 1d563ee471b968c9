"""A worker and a producer with nothing but their roles do all of their work, on both databases."""

from __future__ import annotations

from datetime import timedelta

from tenure import AsyncContext, open_store
from tenure.procedures.enqueue import create as creation
from tenure.rules.outcome import Succeeded
from tenure.testing.provider import FakeProvider
from tests.loops.stage import Running, create, ended, fields, make_app


def test_a_worker_needs_no_more_than_its_role(url: str) -> None:
    if url.startswith("postgresql"):
        with open_store(url) as owner:
            owner.migrate(roles=True)
    mailer = FakeProvider("mailer", [Succeeded({"id": "r-1"})])
    app = make_app(url, role="worker", providers=[mailer])

    @app.job("quote")
    async def quote(ctx: AsyncContext, payload: dict[str, int]) -> str:
        await ctx.effect("send", mailer, payload)
        async with ctx.publish() as tx:
            await tx.run(creation([app.prepare(note, {}, key="n-1")]))
        return "sent"

    @app.job("note")
    async def note(ctx: AsyncContext, payload: dict[str, int]) -> str:
        return "noted"

    @app.job("later", backoff_base=timedelta(seconds=1))
    async def later(ctx: AsyncContext, payload: dict[str, int]) -> str:
        if ctx.job.attempt_count == 1:
            raise OSError("not now")
        return "done"

    front, viewer = make_app(url, role="producer"), make_app(url, role="viewer")
    try:
        with Running(app) as running:
            jobs = [create(front, "quote", {"n": 1}, key="q-1"), create(front, "later", key="l-1")]
            again = front.service.create_job(**fields(front, "quote", {"n": 1}, key="q-1"))
            assert (again.created, again.job.id) == (False, jobs[0].id)
            for one in jobs:
                assert ended(viewer, one).status == "completed"
            (noted,) = [one for one in viewer.service.list_jobs() if one.kind == "note"]
            assert ended(viewer, noted).status == "completed"
            assert running.stop()
        assert len(mailer.effects()) == 1
    finally:
        front.close()
        viewer.close()
