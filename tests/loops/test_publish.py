"""`ctx.publish`: database-only writes under the fence; each scene played by `def` and `async def` on both stores."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tenure import AsyncContext, Context, Job, Lease, Stop, Tenure, Unavailable
from tenure.errors import IllegalMove
from tenure.loops import worker
from tenure.procedures import hold
from tenure.procedures.claim import claim
from tests.loops.conftest import prepare
from tests.loops.stage import Either, Running, Theatre, ended, make_app, played, until
from tests.support.postgres import Databases
from tests.support.proxy import Proxy

INSERT = {
    "sqlite": "INSERT INTO note (job, text) VALUES (?, ?)",
    "postgresql": "INSERT INTO note (job, text) VALUES (%s, %s)",
}


def notes(theatre: Theatre, one: Job) -> list[str]:
    return [text for owner, text in all_notes(theatre.app) if owner == str(one.id)]


def all_notes(app: Tenure) -> list[tuple[str, str]]:
    with app.store.transaction() as tx:
        return [(row[0], row[1]) for row in tx.execute("SELECT job, text FROM note").fetchall()]


async def write(ctx: Either, execute: Any, text: str) -> None:
    dialect = ctx._runtime.blocking.dialect
    await execute(INSERT[dialect], (str(ctx.job.id), text))


def test_the_current_holder_publishes(theatre: Theatre, style: str) -> None:
    async def scene(ctx: Either) -> None:
        async with ctx.publish() as execute:
            await write(ctx, execute, "first")
        async with ctx.publish() as execute:
            await write(ctx, execute, "second")

    done = theatre.play(style, scene)
    assert (done.status, notes(theatre, done)) == ("completed", ["first", "second"])


def take_away(app: Tenure, lease: Lease, kind: str) -> None:
    """Give a job to another worker behind its handler's back, in one step, so that its own worker is not quicker."""
    with app.store.transaction() as tx:
        tx.run(hold.hold_one(hold.releasing(lease, "test")))
        assert len(tx.run(claim("other", kinds=[kind]))) == 1


def test_a_handler_that_a_rotation_stops_is_told_of(
    theatre: Theatre, style: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(ctx: Either) -> None:
        await ctx.outside(lambda: theatre.app.service.rotate_tenant("north", reason="test", actor="user:1"))
        async with ctx.publish() as execute:
            await write(ctx, execute, "too late")

    one = theatre.start(style, scene, tenant="north")
    line = f"attempt stopped, its lease is lost: job={one.id} code=EPOCH_CLOSED"
    until(lambda: line in caplog.messages, "the line that says so")
    assert caplog.messages.count(line) == 1
    assert notes(theatre, one) == []
    theatre.app.service.revoke_job(one.id, reason="tidy", actor="user:1")


@pytest.mark.parametrize("how", ["revoked", "cancelled", "lost"])
def test_a_stale_holder_leaves_no_trace(
    theatre: Theatre, style: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    codes = []

    async def scene(ctx: Either) -> None:
        async with ctx.publish() as execute:
            await write(ctx, execute, "while current")
        service = theatre.app.service
        match how:
            case "revoked":
                await ctx.outside(lambda: service.revoke_job(ctx.job.id, reason="no", actor="user:1"))
            case "cancelled":
                await ctx.outside(lambda: service.cancel_job(ctx.job.id, reason="no"))
            case "lost":
                await ctx.outside(lambda: take_away(theatre.app, ctx.lease, ctx.job.kind))
        try:
            async with ctx.publish() as execute:
                await write(ctx, execute, "too late")
        except Stop as stop:
            codes.append(stop.code)
            raise

    one = theatre.start(style, scene)
    # A job that was revoked is over before its handler hears of it.
    until(lambda: codes, "the refusal")
    if how == "lost":
        assert ended(theatre.app, one, "claimed").lease is not None
    else:
        theatre.after(one)
        ended(theatre.app, one, "cancelled")
    assert notes(theatre, one) == ["while current"]
    assert codes == ["CANCELLED" if how == "cancelled" else "LEASE_LOST"]
    line = f"attempt stopped, its lease is lost: job={one.id} code=LEASE_LOST"
    if how != "cancelled":
        until(lambda: line in caplog.messages, "the line that says so")
    assert caplog.messages.count(line) == (how != "cancelled")
    if how == "lost":
        theatre.app.service.revoke_job(one.id, reason="tidy", actor="user:1")


def test_inside_a_publish_everything_else_is_refused_at_once(theatre: Theatre, style: str) -> None:
    mailer = theatre.provider()
    refused: list[tuple[str, str]] = []

    async def scene(ctx: Either) -> None:
        async def nested() -> None:
            async with ctx.publish():
                raise AssertionError("a publish inside a publish")

        service = theatre.app.service
        tries: dict[str, Any] = {
            "effect": lambda: ctx.effect("send", mailer, {}),
            "publish": nested,
            "verb": lambda: ctx.outside(lambda: service.cancel_job(ctx.job.id, reason="no")),
            "read": lambda: ctx.outside(lambda: service.get_job(ctx.job.id)),
        }
        async with ctx.publish() as execute:
            await write(ctx, execute, "before")
            for name, attempt in tries.items():
                began = time.monotonic()
                with pytest.raises(IllegalMove) as caught:
                    await attempt()
                refused.append((name, caught.value.code))
                assert time.monotonic() - began < 1
            await write(ctx, execute, "after")
        # And outside it is allowed again.
        await ctx.effect("send", mailer, {})

    done = theatre.play(style, scene)
    assert done.status == "completed", done.error_message
    assert notes(theatre, done) == ["before", "after"]
    assert len(mailer.ledger) == 1
    assert [name for name, _ in refused] == ["effect", "publish", "verb", "read"]
    assert {code for _, code in refused} <= {"INSIDE_PUBLISH", "INSIDE_TRANSACTION"}


async def breaking(ctx: Either, error: Exception) -> None:
    async with ctx.publish() as execute:
        await write(ctx, execute, "rolled back")
        raise error


def test_an_exception_rolls_back_and_keeps_the_lease(theatre: Theatre, style: str) -> None:
    async def scene(ctx: Either) -> int:
        generation: int = ctx.lease.generation
        with pytest.raises(ZeroDivisionError):
            await breaking(ctx, ZeroDivisionError())
        async with ctx.publish() as execute:
            await write(ctx, execute, "kept")
        assert ctx.lease.generation == generation
        return generation

    done = theatre.play(style, scene)
    assert (done.status, done.result, notes(theatre, done)) == ("completed", 1, ["kept"])


def test_a_publish_that_takes_too_long_is_rolled_back_and_tried_again(theatre: Theatre) -> None:
    async def scene(ctx: Either) -> str:
        async with ctx.publish() as execute:
            await write(ctx, execute, "slow" if ctx.job.attempt_count == 1 else "quick")
            if ctx.job.attempt_count == 1:
                # Longer than a third of the lease, and truly blocking.
                time.sleep(0.7)  # noqa: ASYNC251
        return "done"

    for first, last in theatre.both(scene, "short", attempts=2).values():
        assert (first.status, first.error_code) == ("queued", "TRANSACTION_TIMEOUT")
        assert (last.status, notes(theatre, last)) == ("completed", ["quick"])


def test_trouble_with_another_database_is_not_taken_for_a_lost_reply(theatre: Theatre, style: str) -> None:
    async def scene(ctx: Either) -> None:
        with pytest.raises(Unavailable, match="another database"):
            await breaking(ctx, Unavailable("another database of the user's own is down"))
        async with ctx.publish() as execute:
            await write(ctx, execute, "kept")

    done = theatre.play(style, scene)
    assert (done.status, notes(theatre, done)) == ("completed", ["kept"])


@pytest.fixture
def proxied(postgres_databases: Databases) -> Iterator[Proxy]:
    with postgres_databases.lend("loops", prepare) as url, Proxy(url) as proxy:
        yield proxy


@pytest.mark.parametrize("held", [True, False])
def test_a_publish_whose_commit_was_not_heard_of_counts_once(
    proxied: Proxy, style: str, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No loop commits beside the publish, so the commit that is lost is the publish's own.
    for period in ("TEND_EVERY", "ANNOUNCE_EVERY"):
        monkeypatch.setattr(worker, period, timedelta(hours=1))
    app = make_app(f"{proxied.url}?tenure_listen=off")
    app.store.migrate()

    async def scene(ctx: Either) -> str:
        async with ctx.publish() as execute:
            await write(ctx, execute, "published")
            (proxied.lose_replies if held else proxied.lose_commits)()
        return "heard of"

    def plain(ctx: Context, payload: dict[str, Any]) -> str:
        return played(scene(Either(ctx)))

    async def awaiting(ctx: AsyncContext, payload: dict[str, Any]) -> str:
        return await scene(Either(ctx))

    app.job("publish")(plain if style == "plain" else awaiting)
    with app.store.transaction() as tx:
        tx.execute("CREATE TABLE note (job TEXT, text TEXT)")
    one = app.enqueue("publish", {}, key="k").job
    # One slot: a worker that claims while the handler runs would lose its own commit instead of the publish's.
    with Running(app, concurrency=1, sweep_every=None, poll=timedelta(seconds=30)) as running:
        after = until(lambda: attempted(app, one), "the attempt to end")
        assert proxied.seen["lost_replies" if held else "lost_commits"] == 1
        assert running.worker.health().running == 0
        if held:
            assert (after.status, after.result) == ("completed", "heard of")
            assert all_notes(app) == [(str(one.id), "published")]
        else:
            assert (after.status, after.attempt_count, all_notes(app)) == ("queued", 1, [])
            assert all_notes(app) == []


def attempted(app: Tenure, one: Job) -> Job | None:
    now = app.service.get_job(one.id)
    return now if now.generation == 1 and now.status not in {"claimed", "running"} else None
