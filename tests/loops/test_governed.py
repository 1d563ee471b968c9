"""Governed jobs in a worker: what an approval, or its absence, does to an attempt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tenure import Approval, ApprovalRefused, GovernanceInput, Job, Succeeded
from tests.loops.stage import Either, Scene, Theatre

NOW = datetime.now(UTC)


def governance(reference: str) -> GovernanceInput:
    return GovernanceInput(
        action_intent={"send": "quote"},
        capability="mail.send",
        policy="p-7",
        budget={"eur": 1},
        approval_reference=reference,
        issued_at=NOW - timedelta(minutes=1),
        expires_at=NOW + timedelta(hours=1),
    )


def approve(theatre: Theatre, one: Job, reference: str) -> Approval:
    """Approve a job that is there by the digest of what it was created with."""
    plain = {key: value for key, value in one.payload.items() if key not in {"execution", "governance"}}
    digest = theatre.app.action_digest(one.kind, plain, governance=governance("any"))
    return theatre.app.service.grant_approval(
        reference,
        tenant=one.tenant,
        action_digest=digest,
        expires_at=NOW + timedelta(hours=1),
        actor="user:1",
        reason="looked at it",
    )


def sending(mailer: Any, *names: str) -> Scene:
    async def scene(ctx: Either) -> Any:
        return [await ctx.effect(name, mailer, {"to": name}) for name in names]

    return scene


def test_without_its_approval_a_job_fails_for_review_and_goes_on_once_it_has_one(theatre: Theatre, style: str) -> None:
    mailer = theatre.provider(Succeeded("r-1"))
    after = theatre.play(style, sending(mailer, "send"), governance=governance(f"one-{style}"))
    # Not tried again by itself: only a person can change what was missing.
    assert (after.status, after.error_code, after.attempt_count) == ("failed", "APPROVAL_REFUSED", 1)
    assert "[MISSING]" in (after.error_message or "")
    assert (mailer.ledger, theatre.effects(after)) == ([], {})
    approve(theatre, after, f"one-{style}")
    theatre.app.service.retry_job(after.id, actor="user:1")
    done = theatre.after(after, 2)
    assert (done.status, done.result) == ("completed", ["r-1"])
    known = theatre.app.service.get_approval(f"one-{style}", tenant=done.tenant)
    assert (known.state, known.consumed_by) == ("consumed", done.id)


def test_an_approval_revoked_between_two_effects_stops_the_second(theatre: Theatre, style: str) -> None:
    mailer = theatre.provider(Succeeded("r-1"), Succeeded("r-2"))
    reference = f"two-{style}"
    seen: list[Any] = []

    async def scene(ctx: Either) -> Any:
        await ctx.outside(lambda: approve(theatre, ctx.job, reference))
        seen.append(await ctx.effect("first", mailer, {"to": "first"}))
        service = theatre.app.service
        await ctx.outside(
            lambda: service.revoke_approval(reference, tenant=ctx.job.tenant, reason="stop", actor="user:2")
        )
        # What happened stays known.
        seen.append(await ctx.effect("first", mailer, {"to": "first"}))
        try:
            await ctx.effect("second", mailer, {"to": "second"})
        except ApprovalRefused as refused:
            seen.append(refused.reasons)
            raise

    after = theatre.play(style, scene, governance=governance(reference))
    assert seen == ["r-1", "r-1", ("REVOKED",)]
    assert (after.status, after.error_code) == ("failed", "APPROVAL_REFUSED")
    assert theatre.effects(after) == {"first": "succeeded"}
    assert len(mailer.ledger) == 1


def test_jobs_that_begin_together_each_need_their_own(theatre: Theatre, style: str) -> None:
    mailer = theatre.provider(*[Succeeded(nth) for nth in range(8)])
    scene = sending(mailer, "send")
    jobs = [theatre.start(style, scene, governance=governance(f"{style}-{nth // 2}")) for nth in range(8)]
    refused = [theatre.after(one) for one in jobs]
    assert {one.error_code for one in refused} == {"APPROVAL_REFUSED"}
    assert {one.status for one in refused} == {"failed"}
    # Two jobs name each approval, which fits the first: the other one's payload names another scene.
    for nth in range(0, 8, 2):
        approve(theatre, refused[nth], f"{style}-{nth // 2}")
    for one in jobs:
        theatre.app.service.retry_job(one.id, actor="user:1")
    ends = [theatre.after(one, 2).status.value for one in jobs]
    assert ends == ["completed", "failed"] * 4
    assert len(mailer.ledger) == 4


def test_a_key_that_a_model_makes_up_at_each_try_is_data_and_no_identity(theatre: Theatre, style: str) -> None:
    bank = theatre.provider(Succeeded("r-1"), Succeeded("r-2"))

    async def scene(ctx: Either) -> Any:
        async def charge(cents: int, model_key: str) -> Any:
            ctx.log.info("the model calls it %s", model_key)
            return await ctx.effect("charge-2", bank, {"cents": cents})

        # The framework tries the tool again, and the model obeys "use a new key for every request".
        receipts = [await charge(1000, "x1"), await charge(1000, "x2")]
        assert receipts == ["r-1", "r-1"]
        return await charge(2000, "x3")

    after = theatre.play(style, scene)
    # The same step with other content is for a person.
    assert (after.status, after.error_code) == ("failed", "EFFECT_MISMATCH")
    assert [one.operation_key for one in bank.ledger] == [f"{after.kind}:{after.id}:charge-2"]
