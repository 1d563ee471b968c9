"""How an attempt ends: what a handler returns or raises, and when it takes too long; each scene in both styles."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from tenure import (
    AsyncContext,
    Context,
    EffectFailed,
    Invalid,
    LeaseLost,
    Permanent,
    Stop,
    Succeeded,
    Unavailable,
    Uncertain,
)
from tenure.rules.payload import RESULT_BYTES_MAX
from tests.loops.stage import STYLES, Either, Running, Silent, Theatre, ended, job, make_app, trail, until


class Mute(Exception):
    """An exception that cannot be turned into text."""

    def __str__(self) -> str:
        raise ValueError("CANARY")


def group(*errors: BaseException) -> BaseException:
    return BaseExceptionGroup("together", errors)


ENDINGS: dict[str, tuple[Callable[[], BaseException], str, str | None, str | None]] = {
    "plain": (lambda: ValueError("no such file"), "queued", "HANDLER_ERROR", "ValueError: no such file"),
    "without text": (lambda: KeyError(), "queued", "HANDLER_ERROR", "KeyError"),  # noqa: PLW0108
    "mute": (Mute, "queued", "HANDLER_ERROR", "Mute"),
    "permanent": (lambda: Permanent("never"), "failed", "PERMANENT", "never"),
    "permanent, own code": (lambda: Permanent("never", code="NO_STOCK"), "failed", "NO_STOCK", "never"),
    "permanent, empty": (lambda: Permanent(""), "failed", "PERMANENT", "Permanent"),
    "invalid": (lambda: Invalid("bad", code="BAD_ARGUMENT"), "failed", "BAD_ARGUMENT", "bad"),
    "unavailable": (lambda: Unavailable("later"), "queued", "UNAVAILABLE", "later"),
    "uncertain": (lambda: Uncertain("who knows"), "indeterminate", "UNCERTAIN", "who knows"),
    "failed effect": (lambda: EffectFailed("no"), "queued", "EFFECT_FAILED", "no"),
    "another lease": (lambda: LeaseLost("not mine", reason="expired"), "queued", "LEASE_LOST", "not mine"),
    "exit": (lambda: SystemExit(3), "queued", "HANDLER_ERROR", "RuntimeError: the handler raised SystemExit"),
    "cancelled by itself": (
        asyncio.CancelledError,
        "queued",
        "HANDLER_ERROR",
        "CancelledError: the handler cancelled itself",
    ),
    "group": (lambda: group(ValueError("a"), KeyError("b")), "queued", "HANDLER_ERROR", "ValueError: a"),
    "group with a verdict": (
        lambda: group(ValueError("a"), group(Permanent("never", code="NO_STOCK"))),
        "failed",
        "NO_STOCK",
        "never",
    ),
    "group with a doubt": (
        lambda: group(Permanent("never"), Uncertain("who knows")),
        "indeterminate",
        "UNCERTAIN",
        "who knows",
    ),
    "group of retries": (lambda: group(ValueError("a"), EffectFailed("no")), "queued", "EFFECT_FAILED", "no"),
    "very long": (lambda: ValueError("x" * 1_000_000), "queued", "HANDLER_ERROR", None),
    "unstorable text": (lambda: ValueError("a\0b\ud800"), "queued", "HANDLER_ERROR", "ValueError: a\ufffdb\ufffd"),
}


def test_what_a_handler_raises_ends_its_attempt(theatre: Theatre, style: str) -> None:
    def raising(make: Callable[[], BaseException]) -> Any:
        async def scene(ctx: Either) -> None:
            raise make()

        return scene

    jobs = {name: theatre.start(style, raising(make)) for name, (make, *_) in ENDINGS.items()}
    for name, (_, status, code, message) in ENDINGS.items():
        after = theatre.after(jobs[name])
        assert (after.status, after.error_code, after.attempt_count) == (status, code, 1), name
        if message is not None:
            assert after.error_message == message, name
        assert len(after.error_message or "") < 100_000, name
    # The worker and its loops have not noticed anything.
    until(lambda: theatre.running.worker.health().ok, "the worker to be well")


def test_a_stop_iteration_does_not_hang_the_worker(theatre: Theatre, style: str) -> None:
    async def scene(ctx: Either) -> None:
        next(iter(()))

    after = theatre.play(style, scene)
    assert (after.status, after.error_code) == ("queued", "HANDLER_ERROR")
    assert "StopIteration" in (after.error_message or "")


def test_used_up_attempts_go_to_the_dead_letters(theatre: Theatre) -> None:
    async def scene(ctx: Either) -> None:
        raise ValueError("every time")

    for first, last in theatre.both(scene, "brief_retry", attempts=2).values():
        assert first.status == "queued"
        assert (last.status, last.error_code, last.attempt_count) == ("dead_letter", "HANDLER_ERROR", 2)


# --- payloads and results ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [{"id": "seven"}, {}, {"id": 1, "more": "CANARY"}])
def test_a_payload_that_fails_its_model_fails_before_anything_happens(
    theatre: Theatre, style: str, payload: dict[str, Any]
) -> None:
    app = theatre.app
    name = f"strict_{style}"
    if app.registry.get(name) is None:
        app.job(name)(_strict_plain if style == "plain" else _strict_awaiting)
        theatre.running.worker._kinds[name] = app.registry.find(name)
    key = f"{name}-{len(payload)}-{payload.get('id')}"
    one = app.service.create_job(
        organization=app.organization, project=app.project, idempotency_key=key, kind=name, payload=payload
    ).job
    good = app.enqueue(name, Strict(id=1), key=f"{key}-good").job
    after = theatre.after(one)
    assert (after.status, after.error_code, after.phase) == ("failed", "PAYLOAD_INVALID", "NEEDS_ATTENTION")
    assert "id" in (after.error_message or "") or "more" in (after.error_message or "")
    assert "CANARY" not in (after.error_message or "")
    assert theatre.after(good).result == 1
    assert str(one.id) not in _strictly


_strictly: list[str] = []


class Strict(BaseModel, extra="forbid"):
    id: int


def _strict_plain(ctx: Any, payload: Strict) -> int:
    _strictly.append(str(ctx.job.id))
    return payload.id


async def _strict_awaiting(ctx: Any, payload: Strict) -> int:
    _strictly.append(str(ctx.job.id))
    return payload.id


UNSTORABLE: dict[str, tuple[Any, str]] = {
    "nan": (float("nan"), "NaN"),
    "infinity": ({"deep": [float("inf")]}, "$.deep[0]"),
    "object": (object(), "object"),
    "surrogate": ("\ud800", "surrogate"),
    "too large": ("x" * RESULT_BYTES_MAX, "bytes"),
}


def test_a_result_that_cannot_be_stored_fails_the_job_and_keeps_its_receipts(theatre: Theatre, style: str) -> None:
    mailer = theatre.provider(*[Succeeded("r-1")] * len(UNSTORABLE))

    def giving(result: Any) -> Any:
        async def scene(ctx: Either) -> Any:
            await ctx.effect("send", mailer, {})
            return result

        return scene

    jobs = {name: theatre.start(style, giving(result)) for name, (result, _) in UNSTORABLE.items()}
    for name, (_, problem) in UNSTORABLE.items():
        after = theatre.after(jobs[name])
        assert (after.status, after.error_code, after.attempt_count) == ("failed", "RESULT_NOT_STORABLE", 1), name
        assert problem in (after.error_message or ""), name
        (effect,) = theatre.app.service.list_effects(after.id)
        assert (effect.state, effect.receipt) == ("succeeded", "r-1"), name


def test_a_plain_function_that_gives_an_awaitable_is_told_so(theatre: Theatre) -> None:
    async def awaited() -> int:
        return 1

    def careless(ctx: Any, payload: dict[str, Any]) -> Any:
        return awaited()

    app = theatre.app
    if app.registry.get("careless") is None:
        app.job("careless")(careless)
        theatre.running.worker._kinds["careless"] = app.registry.find("careless")
    after = theatre.after(app.enqueue("careless", {}, key="careless").job)
    assert (after.status, after.error_code) == ("failed", "HANDLER_SIGNATURE")
    assert after.error_message == (
        "the handler of kind 'careless' returned an awaitable that nobody awaited; declare it `async def`"
    )


def test_data_is_never_taken_for_code(theatre: Theatre, style: str) -> None:
    """A row that somebody has tampered with names functions and modules; nothing is imported or called by them."""
    hostile = {"__type__": "os.system", "args": ["touch pwned"], "__reduce__": "os:system", "scene": "posix.system"}
    before = set(sys.modules)

    async def scene(ctx: Either) -> Any:
        return None

    one = theatre.start(style, scene)
    theatre.after(one)
    # The handler is found by registration and the scene by its exact name; a foreign name is a plain error.
    bad = theatre.app.enqueue(style, hostile, key=f"hostile-{style}").job
    after = theatre.after(bad)
    assert (after.status, after.error_code, after.error_message) == (
        "queued",
        "HANDLER_ERROR",
        "KeyError: 'posix.system'",
    )
    assert {name for name in set(sys.modules) - before if name.startswith(("posix", "pwn"))} == set()


def test_a_payload_that_cannot_be_read_fails_and_goes_to_review(theatre: Theatre, style: str) -> None:
    async def scene(ctx: Either) -> None:
        raise AssertionError("never entered")

    # Due later, so that its row can be spoilt before anybody claims it.
    one = theatre.start(style, scene, scheduled_at=datetime.now(UTC) + timedelta(seconds=0.8))
    table = "tenure_job" if theatre.app.store.dialect == "sqlite" else "tenure.job"
    with theatre.app.store.transaction() as tx:
        tx.execute(f"UPDATE {table} SET payload = '[\"os:system\"]' WHERE job_id = '{one.id}'")
    after = theatre.after(one)
    assert (after.status, after.error_code, after.phase) == ("failed", "UNREADABLE_PAYLOAD", "NEEDS_ATTENTION")
    assert "os:system" not in (after.error_message or "")


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_handler_that_runs_too_long_is_timed_out(theatre: Theatre, style: str) -> None:
    gate = threading.Event()

    async def scene(ctx: Either) -> None:
        await ctx.outside(lambda: gate.wait(20))

    try:
        after = theatre.play(style, scene, "brief")
        assert (after.status, after.error_code) == ("timed_out", "TIMED_OUT")
        assert after.error_message == "the handler ran longer than 0:00:00.400000"
    finally:
        gate.set()


def test_a_kind_may_have_its_timeouts_retried(theatre: Theatre) -> None:
    gate = threading.Event()

    async def scene(ctx: Either) -> str:
        if ctx.job.attempt_count == 1:
            await ctx.outside(lambda: gate.wait(5))
        return "quick"

    try:
        for first, last in theatre.both(scene, "brief_retry", attempts=2).values():
            assert (first.status, first.error_code) == ("queued", "TIMED_OUT")
            assert (last.status, last.result) == ("completed", "quick")
    finally:
        gate.set()


def test_a_timeout_during_a_call_is_indeterminate(theatre: Theatre, style: str) -> None:
    silent = theatre.register(Silent())

    async def scene(ctx: Either) -> None:
        await ctx.effect("send", silent, {}, timeout=timedelta(seconds=1.5))

    after = theatre.play(style, scene, "brief")
    assert (after.status, after.error_code) == ("indeterminate", "TIMED_OUT")
    assert len(silent.calls) == 1


def test_without_progress_an_attempt_is_timed_out_and_with_it_it_goes_on(theatre: Theatre) -> None:
    gate = threading.Event()

    async def lively(ctx: Either) -> str:
        began = time.monotonic()
        while time.monotonic() - began < 2:
            ctx.progress(time.monotonic() - began, 2)
            await ctx.outside(lambda: gate.wait(0.05))
        return "done"

    async def silent(ctx: Either) -> None:
        ctx.progress(0)
        await ctx.outside(lambda: gate.wait(20))

    good = {style: theatre.start(style, lively, "lively") for style in STYLES}
    bad = {style: theatre.start(style, silent, "lively") for style in STYLES}
    try:
        for style in STYLES:
            shown = until(lambda style=style: job(theatre.app, good[style]).progress, "progress to be shown")
            assert '"total": 2' in shown
        for style in STYLES:
            after = theatre.after(bad[style])
            assert (after.status, after.error_code) == ("timed_out", "TIMED_OUT")
            assert after.error_message == "the handler made no progress for 0:00:00.800000"
            assert theatre.after(good[style]).result == "done"
    finally:
        gate.set()


def test_progress_takes_finite_numbers(theatre: Theatre, style: str) -> None:
    async def scene(ctx: Either) -> None:
        for done, total in ((float("nan"), 1), (1, float("inf")), ("1", 2), (None, 1)):
            with pytest.raises(Invalid, match="progress takes finite numbers"):
                ctx.progress(done, total)
        ctx.progress(1)
        ctx.progress(1.5, 3)

    assert theatre.play(style, scene).status == "completed"


# --- the rest of a context --------------------------------------------------------------------------------------------


def test_a_handler_sees_that_it_is_cancelled(theatre: Theatre, style: str) -> None:
    gate = threading.Event()
    entered = threading.Event()
    seen: list[Any] = []

    async def scene(ctx: Either) -> None:
        assert not ctx.cancelled
        entered.set()
        try:
            while not ctx.cancelled:
                await ctx.outside(lambda: gate.wait(0.02))
        finally:
            seen.append(ctx.cancelled)
        with pytest.raises(Stop) as caught:
            ctx.progress(1)
        seen.append(caught.value.code)
        ctx.progress(2)

    one = theatre.start(style, scene, "short")
    assert entered.wait(20)
    asked = time.monotonic()
    theatre.app.service.cancel_job(one.id, reason="enough")
    after = theatre.after(one)
    # Within one renewal, which is at most a third of the lease; the rest is the machine's.
    assert time.monotonic() - asked < 1.2 / 3 + 2
    assert after.status == "cancelled"
    assert trail(theatre.app, one) == ["claimed", "cancel_requested", "cancelled"]
    assert seen[0] is True
    assert style == "awaiting" or seen[1] == "CANCELLED"


def test_a_handler_knows_its_job_its_lease_and_whom_it_works_for(theatre: Theatre, style: str) -> None:
    async def scene(ctx: Either) -> Any:
        who = ctx.identity
        return [str(ctx.job.id), ctx.lease.generation, who.actor, who.tenant, who.trace]

    one = theatre.start(style, scene, actor="user:42", trace="t-7")
    assert theatre.after(one).result == [str(one.id), 1, "user:42", "studio", "t-7"]


def test_a_handlers_log_carries_ids(theatre: Theatre, style: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(ctx: Either) -> None:
        ctx.log.warning("a word", extra={"mine": 1})

    with caplog.at_level(logging.INFO, "tenure.handler"):
        done = theatre.play(style, scene)
    (record,) = [one for one in caplog.records if one.getMessage() == "a word"]
    assert record.name == "tenure.handler"
    assert (record.job_id, record.kind, record.attempt, record.mine) == (str(done.id), done.kind, 1, 1)


def test_plain_handlers_run_in_threads_and_awaiting_ones_on_the_loop(theatre: Theatre, style: str) -> None:
    async def scene(ctx: Either) -> int:
        return threading.get_ident()

    ran = theatre.play(style, scene).result
    assert (ran == theatre.running._thread.ident) == (style == "awaiting")


def test_an_app_in_memory_has_a_worker_too(style: str) -> None:
    app = make_app("sqlite:///:memory:")
    app.store.migrate()

    def plain(ctx: Context, payload: dict[str, Any]) -> int:
        with ctx.publish() as tx:
            tx.execute("CREATE TABLE mine (n INTEGER)")
        return int(payload["n"])

    async def awaiting(ctx: AsyncContext, payload: dict[str, Any]) -> int:
        async with ctx.publish() as tx:
            await tx.execute("CREATE TABLE mine (n INTEGER)")
        return int(payload["n"])

    app.job("k")(plain if style == "plain" else awaiting)
    one = app.enqueue("k", {"n": 3}, key="k").job
    with Running(app):
        assert ended(app, one, "completed").result == 3
