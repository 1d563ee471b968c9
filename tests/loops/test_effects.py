"""`ctx.effect` and how its endings end an attempt; written once, played as `def` and `async def` on both databases."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace as replaced
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tenure import (
    Accepted,
    EffectFailed,
    EffectRejected,
    Evidence,
    FailedBeforeDispatch,
    Invalid,
    Rejected,
    Stop,
    Succeeded,
    Unavailable,
    Uncertain,
    Unknown,
)
from tenure.attempt import CANCELLED
from tenure.testing import FakeProvider
from tests.loops.stage import Either, Silent, Theatre, job, trail, until


def test_a_receipt_comes_back_and_is_kept(theatre: Theatre, style: str) -> None:
    mailer = theatre.provider(Succeeded({"id": "r-1"}))

    async def scene(ctx: Either) -> Any:
        return await ctx.effect("send", mailer, {"to": "a"})

    done = theatre.play(style, scene)
    assert (done.status, done.result) == ("completed", {"id": "r-1"})
    (effect,) = theatre.app.service.list_effects(done.id)
    assert (effect.state, effect.receipt) == ("succeeded", {"id": "r-1"})
    assert [act.operation_key for act in mailer.effects()] == [f"{done.kind}:{done.id}:send"]


def test_the_next_attempt_reads_the_receipt_and_sends_nothing(theatre: Theatre) -> None:
    mailer = theatre.provider(Succeeded("r-1"), Succeeded("r-1"))

    async def scene(ctx: Either) -> Any:
        receipt = await ctx.effect("send", mailer, {"to": "a"})
        again = await ctx.effect("send", mailer, {"to": "a"})
        assert again == receipt
        if ctx.job.attempt_count == 1:
            raise RuntimeError("after the call")
        return receipt

    for first, last in theatre.both(scene, attempts=2).values():
        assert (first.status, first.error_code) == ("queued", "HANDLER_ERROR")
        assert (last.status, last.result, last.attempt_count) == ("completed", "r-1", 2)
    assert len(mailer.ledger) == 2


@pytest.mark.parametrize("caught", [False, True])
def test_what_surely_did_not_happen_is_retried_when_the_provider_says(
    theatre: Theatre, style: str, caught: bool
) -> None:
    mailer = theatre.provider(FailedBeforeDispatch("busy", retry_after=timedelta(seconds=90)))
    seen = []

    async def scene(ctx: Either) -> Any:
        try:
            return await ctx.effect("send", mailer, {"to": "a"})
        except EffectFailed as failed:
            seen.append((failed.code, failed.retry_after, str(failed)))
            if caught:
                return await ctx.effect("send", mailer, {"to": "a"})
            raise

    after = theatre.play(style, scene)
    ((code, retry_after, text),) = seen
    assert (code, retry_after) == ("EFFECT_FAILED", 90.0)
    assert text == f"effect 'send' of job {after.id} did not happen: busy"
    if caught:
        assert (after.status, len(mailer.effects())) == ("completed", 1)
    else:
        assert (after.status, after.error_code, mailer.effects()) == ("queued", "EFFECT_FAILED", [])
        assert timedelta(seconds=90) <= after.run_at - after.created_at < timedelta(seconds=150)


def test_a_refusal_fails_the_job_and_is_not_asked_again(theatre: Theatre, style: str) -> None:
    mailer = theatre.provider(Rejected("no such address"))

    async def scene(ctx: Either) -> Any:
        try:
            await ctx.effect("send", mailer, {"to": "a"})
        except EffectRejected:
            return await ctx.effect("send", mailer, {"to": "a"})

    after = theatre.play(style, scene)
    assert (after.status, after.error_code) == ("failed", "EFFECT_REJECTED")
    assert "no such address" in (after.error_message or "")
    assert len(mailer.ledger) == 1


def test_refused_credentials_are_told_by_their_code(theatre: Theatre, style: str) -> None:
    mailer = theatre.provider(Rejected("bad token", category="authentication"))

    async def scene(ctx: Either) -> Any:
        return await ctx.effect("send", mailer, {"to": "a"})

    after = theatre.play(style, scene)
    assert (after.status, after.error_code) == ("failed", "EFFECT_REJECTED_AUTHENTICATION")


@pytest.mark.parametrize("ending", [Unknown("no reply"), ConnectionResetError("CANARY in the text of an error")])
@pytest.mark.parametrize("swallowed", [False, True])
def test_nobody_knows_is_never_taken_for_an_end(theatre: Theatre, style: str, swallowed: bool, ending: Any) -> None:
    mailer = theatre.provider(ending)

    async def scene(ctx: Either) -> Any:
        try:
            return await ctx.effect("send", mailer, {"to": "a"})
        except Uncertain as uncertain:
            with pytest.raises(Uncertain):
                await ctx.effect("send", mailer, {"to": "a"})
            if not swallowed:
                raise
            return str(uncertain)

    after = theatre.play(style, scene)
    assert after.status == "indeterminate"
    assert after.error_code == ("EFFECT_UNRESOLVED" if swallowed else "UNCERTAIN")
    assert "CANARY" not in (after.error_message or "")
    assert (theatre.effects(after), len(mailer.ledger)) == ({"send": "unknown"}, 1)


def test_resend_is_for_the_same_attempt_and_a_provider_that_honours_keys(theatre: Theatre, style: str) -> None:
    honest = theatre.provider(Unknown("no reply"))
    careless = theatre.provider(Unknown("no reply"), idempotency=None)

    async def scene(ctx: Either) -> Any:
        with pytest.raises(Uncertain):
            await ctx.effect("send", honest, {"to": "a"})
        receipt = await ctx.effect("send", honest, {"to": "a"}, resend=True)
        with pytest.raises(Uncertain):
            await ctx.effect("other", careless, {"to": "a"})
        with pytest.raises(Uncertain):
            await ctx.effect("other", careless, {"to": "a"}, resend=True)
        return receipt

    after = theatre.play(style, scene)
    assert theatre.effects(after) == {"send": "succeeded", "other": "unknown"}
    assert [act.action for act in honest.ledger] == ["accepted", "replayed"]
    assert len({act.operation_key for act in honest.ledger}) == 1
    assert len(careless.ledger) == 1


def test_a_name_stands_for_one_request(theatre: Theatre, style: str) -> None:
    mailer = theatre.provider()

    async def scene(ctx: Either) -> Any:
        await ctx.effect("send", mailer, {"to": "a"})
        await ctx.effect("send", mailer, {"to": "b"})

    after = theatre.play(style, scene)
    assert (after.status, after.error_code, len(mailer.ledger)) == ("failed", "EFFECT_MISMATCH", 1)


def test_a_call_ends_at_its_own_time_limit(theatre: Theatre, style: str) -> None:
    silent = theatre.register(Silent())

    async def scene(ctx: Either) -> Any:
        began = time.monotonic()
        with pytest.raises(Uncertain, match="did not end within"):
            await ctx.effect("send", silent, {}, timeout=timedelta(seconds=0.2))
        return time.monotonic() - began

    one = theatre.start(style, scene)
    after = theatre.after(one)
    assert (after.status, theatre.effects(after)) == ("indeterminate", {"send": "unknown"})
    assert len(silent.calls) == 1


def test_a_call_ends_when_the_lease_may_not_be_trusted_any_more(theatre: Theatre, style: str) -> None:
    silent = theatre.register(Silent())
    took = []

    async def scene(ctx: Either) -> Any:
        began = time.monotonic()
        with pytest.raises(Uncertain):
            await ctx.effect("send", silent, {})
        took.append(time.monotonic() - began)

    after = theatre.play(style, scene, "short")
    # Renewals do not lengthen a call that began: its deadline is stored with the intent.
    assert 0.2 < took[0] <= 1.2 + 0.5
    assert (after.status, theatre.effects(after)) == ("indeterminate", {"send": "unknown"})


@pytest.mark.parametrize("timeout", [timedelta(0), timedelta(seconds=-1), 5])
def test_a_time_limit_is_a_duration(theatre: Theatre, style: str, timeout: Any) -> None:
    mailer = theatre.provider()

    async def scene(ctx: Either) -> Any:
        with pytest.raises(Invalid, match="timeout is a timedelta above zero"):
            await ctx.effect("send", mailer, {}, timeout=timeout)

    assert theatre.play(style, scene).status == "completed"
    assert mailer.ledger == []


def test_a_provider_of_somebody_else_is_refused(theatre: Theatre, style: str) -> None:
    stranger = FakeProvider("stranger")

    async def scene(ctx: Either) -> Any:
        return await ctx.effect("send", stranger, {})

    after = theatre.play(style, scene)
    assert (after.status, after.error_code, stranger.ledger) == ("failed", "UNKNOWN_PROVIDER", [])


class Refusing:
    """A store that does not take outcomes of calls."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def run(self, procedure: Any) -> Any:
        if procedure.name != "finish_effect":
            return self._store.run(procedure)
        procedure.script().close()
        raise Unavailable("the database is away")


class Journal:
    """Keeps receipts in a list, or fails."""

    def __init__(self, *, full: bool) -> None:
        self.full = full
        self.kept: list[Any] = []

    def append_receipt(self, operation_key: str, attempt_id: UUID, evidence: Evidence) -> None:
        if self.full:
            raise Unavailable("CANARY: the disk is full", code="STORAGE_FULL")
        self.kept.append((operation_key, attempt_id, evidence))


@pytest.mark.parametrize("journal", ["kept", "full", "none", "nothing to keep"])
def test_an_outcome_that_the_database_does_not_take_is_uncertain_and_says_where_the_proof_is(
    theatre: Theatre, style: str, journal: str, caplog: pytest.LogCaptureFixture
) -> None:
    mailer = theatre.provider(Unknown("no reply") if journal == "nothing to keep" else Succeeded("r-1"))
    keep = None if journal == "none" else Journal(full=journal == "full")
    texts: list[str] = []

    async def scene(ctx: Either) -> Any:
        ctx.ctx._runtime = replaced(
            ctx._runtime,
            store=Refusing(ctx._runtime.store),
            blocking=Refusing(ctx._runtime.blocking),
            journal=keep,
            commit=None,
        )
        try:
            await ctx.effect("send", mailer, {"to": "a"})
        except Uncertain as uncertain:
            texts.append(str(uncertain))
            raise

    with caplog.at_level(logging.ERROR, "tenure.worker"):
        after = theatre.play(style, scene)
    assert (after.status, after.error_code) == ("indeterminate", "OUTCOME_NOT_RECORDED")
    assert theatre.effects(after) == {"send": "pending"}
    said = "its receipt is in the journal" if journal == "kept" else "a sweep asks the provider"
    assert said in texts[0]
    if journal == "kept":
        assert keep is not None
        ((key, _, evidence),) = keep.kept
        assert (key, evidence) == (f"{after.kind}:{after.id}:send", Accepted("r-1"))
    logged = [one.getMessage() for one in caplog.records]
    assert any(one.startswith("receipt not kept:") for one in logged) == (journal == "full")
    assert "CANARY" not in caplog.text


class Between:
    """A store that does something between an intent's commit and the call."""

    def __init__(self, store: Any, act: Any) -> None:
        self._store, self._act = store, act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def run(self, procedure: Any) -> Any:
        if procedure.name != "begin_effect":
            return self._store.run(procedure)
        answer = self._store.run(procedure)
        if not asyncio.iscoroutine(answer):
            self._act()
            return answer

        async def body() -> Any:
            begun = await answer
            self._act()
            return begun

        return body()


def test_a_stop_between_intent_and_call_means_no_call(theatre: Theatre, style: str) -> None:
    mailer = theatre.provider()
    runtime = theatre.running.worker._runtime

    async def scene(ctx: Either) -> Any:
        attempt = ctx._attempt
        which = "store" if style == "awaiting" else "blocking"
        between = Between(getattr(runtime, which), lambda: attempt.halt(CANCELLED, "in between"))
        ctx.ctx._runtime = replaced(runtime, commit=None, **{which: between})
        with pytest.raises(Stop, match="in between"):
            await ctx.effect("send", mailer, {"to": "a"})
        attempt.stop = None  # the test's own; the attempt goes on
        ctx.ctx._runtime = runtime
        return await ctx.effect("second", mailer, {"to": "b"})

    after = theatre.play(style, scene)
    assert after.status == "completed"
    assert theatre.effects(after) == {"send": "failed_before_dispatch", "second": "succeeded"}
    assert [act.operation_key.rpartition(":")[2] for act in mailer.ledger] == ["second"]


def test_an_effect_under_a_pending_cancellation_is_not_begun(theatre: Theatre, style: str) -> None:
    mailer = theatre.provider()

    async def scene(ctx: Either) -> Any:
        await ctx.outside(lambda: theatre.app.service.cancel_job(ctx.job.id, reason="changed my mind"))
        try:
            await ctx.effect("send", mailer, {"to": "a"})
        except Exception as error:
            raise AssertionError("what must stop a handler is no Exception") from error

    after = theatre.play(style, scene)
    assert (after.status, theatre.effects(after), mailer.ledger) == ("cancelled", {}, [])
    assert trail(theatre.app, after) == ["claimed", "cancel_requested", "cancelled"]


def test_a_cancelled_handler_is_stopped_within_one_renewal_and_its_call_stays_uncertain(
    theatre: Theatre, style: str
) -> None:
    silent = theatre.register(Silent())
    stopped: list[float] = []

    async def scene(ctx: Either) -> Any:
        try:
            await ctx.effect("send", silent, {}, timeout=timedelta(seconds=1.1))
            raise AssertionError("never")
        finally:
            stopped.append(time.monotonic())

    one = theatre.start(style, scene, "short")
    until(lambda: silent.calls, "the call")
    asked = time.monotonic()
    theatre.app.service.cancel_job(one.id, reason="enough")
    after = theatre.after(one)
    assert (after.status, theatre.effects(after)) == ("cancelled", {"send": "unknown"})
    assert after.phase == "NEEDS_ATTENTION"
    # A thread cannot be stopped in the middle of its call, which ends by its own limit.
    assert stopped[0] - asked < 2.5
    assert job(theatre.app, one).cancel_requested_at is not None
