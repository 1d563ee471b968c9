"""The outbox of a restored copy: what was delivered after the backup is held, and leaves again by a person's word."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import tenure
from tenure import outbox
from tenure.procedures.outbox import add_message
from tenure.testing import FakeProvider
from tests.authority.conftest import Place
from tests.authority.crew import Crew, runs_on, ticks
from tests.authority.test_relay import Seen
from tests.loops.stage import make_app, until


def add(crew: Crew, operation: str) -> None:
    app = crew.app()
    fields: dict[str, Any] = {"destination": "seen", "type": "t", "data": {}, "tenant": "studio"}
    app.store.run(add_message(outbox.prepare(operation=operation, **fields)))
    app.close()


def relay(crew: Crew, seen: Seen, enough: Callable[[Any], bool]) -> None:
    """Run a relay until enough has happened."""
    app = crew.app()

    async def run() -> None:
        end = time.monotonic() + 30
        async with app.relay(destinations=[seen], poll=timedelta(milliseconds=20)):
            while not enough(app.service):
                assert time.monotonic() < end
                await asyncio.sleep(0.01)
        await app.aclose()

    asyncio.run(run())


def test_what_was_delivered_after_the_backup_is_held_until_it_is_readmitted(place: Place) -> None:
    crew, seen = place.crew, Seen()
    with crew.working() as running:
        runs_on(crew, running, "a")
    add(crew, "op-1")
    place.keep()
    relay(crew, seen, lambda service: service.outbox_stats().unpublished == 0)
    assert seen.got == ["op-1"]
    with crew.working() as running:
        before = ticks(running)
        until(lambda: ticks(running) > before + 1, "more ticks")
    place.put_back()
    with crew.working() as running:
        # Frozen: nothing moves, whoever runs.
        until(lambda: not running.worker.health().ok, "the worker to notice")
    crew.recover()
    add(crew, "op-2")  # the control: of the new epoch
    relay(crew, seen, lambda service: service.outbox_stats().states == {"held": 1} and "op-2" in seen.got)
    assert seen.got == ["op-1", "op-2"], "op-1 waits for a person"
    app = crew.app()
    assert app.service.show_tenant("studio").held_messages == {1: 1}
    assert len(app.service.readmit_messages("studio", reason="consumers know it", actor="op:1")) == 1
    app.close()
    relay(crew, seen, lambda service: service.outbox_stats().unpublished == 0)
    assert seen.got == ["op-1", "op-2", "op-1"], "at least once: its receivers know it by its operation"


def studio(crew: Crew, mailer: FakeProvider) -> tenure.Tenure:
    app = make_app(crew.url, authority_ledger=crew.ledger, providers=[mailer])

    @app.job("mail")
    async def mail(ctx: tenure.AsyncContext, payload: dict[str, str]) -> None:
        await ctx.effect("send", mailer, payload)

    return app


def open_for_work(crew: Crew, mailer: FakeProvider, operation: str | None = None) -> list[tenure.Job]:
    """Add a message, where one is given, and run a worker and a relay until nothing is left to do; give the jobs."""
    app = studio(crew, mailer)
    if operation is not None:
        fields: dict[str, Any] = {"destination": "jobs", "type": "mail", "data": {"to": operation}, "tenant": "studio"}
        app.store.run(add_message(outbox.prepare(operation=operation, **fields)))

    def working() -> bool:
        queued = [one for one in app.service.list_jobs() if one.status in {"queued", "claimed", "running"}]
        return bool(app.service.outbox_stats().unpublished or queued)

    async def run() -> list[tenure.Job]:
        async with asyncio.timeout(60):
            look = timedelta(milliseconds=20)
            async with app.worker(poll=look), app.relay(destinations=[app.own_jobs()], poll=look):
                while working():  # noqa: ASYNC110 - what a database holds cannot be waited for
                    await asyncio.sleep(0.02)
        found = app.service.list_jobs()
        await app.aclose()
        return found

    return asyncio.run(run())


@pytest.mark.parametrize("honours", [True, False])
def test_the_job_of_a_message_that_was_delivered_after_the_backup_sends_nothing_again(
    place: Place, *, honours: bool
) -> None:
    crew = place.crew
    mailer = FakeProvider("mailer", lookup=True, **({} if honours else {"idempotency": None}))
    with crew.working() as running:
        runs_on(crew, running, "a")
    app = crew.app()
    fields: dict[str, Any] = {"destination": "jobs", "type": "mail", "data": {"to": "x"}, "tenant": "studio"}
    app.store.run(add_message(outbox.prepare(operation="op-1", **fields)))
    app.close()
    place.keep()
    (lost,) = [job for job in open_for_work(crew, mailer) if job.kind == "mail"]
    (sent,) = mailer.ledger
    with crew.working() as running:
        before = ticks(running)
        until(lambda: ticks(running) > before + 1, "more ticks")
    place.put_back()
    with crew.working() as running:
        until(lambda: not running.worker.health().ok, "the worker to notice")
    crew.recover()
    app = crew.app()
    assert len(app.service.readmit_messages("studio", reason="looked at", actor="op:1")) == 1
    app.service.readmit_jobs("studio", reason="looked at", actor="op:1")
    app.close()
    (again,) = [job for job in open_for_work(crew, mailer) if job.kind == "mail"]
    assert (again.id, again.status) == (lost.id, "completed")
    (effect,) = again.effects
    assert (effect.operation_key, effect.settled_by) == (sent.operation_key, "lookup")
    assert len(mailer.ledger) == 1, "asked about and found"
    # The control: a message of after the recovery becomes a job that sends.
    jobs = open_for_work(crew, mailer, "op-2")
    assert {job.status for job in jobs if job.kind == "mail"} == {"completed"}
    assert [one.request for one in mailer.effects()] == [{"to": "x"}, {"to": "op-2"}]
