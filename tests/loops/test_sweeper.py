"""One pass over what is uncertain: everybody has a turn, whatever one candidate or one provider does."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from tenure import Absent, Accepted, AsyncContext, Evidence, Job, NoAnswer, Outcome, Provider, Tenure, Unknown, Verdict
from tenure.errors import Unavailable
from tenure.loops.sweeper import LANES, Sweeper
from tests.loops.stage import Running, create, fields, job, make_app, producer, seconds, trail, until


class Oracle(Provider):
    """Is asked, and answers as a test says."""

    name = "oracle"
    lookup_complete = True
    timeout = seconds(5)

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.evidence: Any = Accepted("r-1")
        self.together = self.most = 0
        self.slow = 0.0

    async def send(self, request: Any, operation_key: str) -> Outcome:
        return Unknown("no reply")

    async def lookup(self, operation_key: str) -> Evidence:
        self.asked.append(operation_key)
        self.together += 1
        self.most = max(self.most, self.together)
        await asyncio.sleep(self.slow)
        self.together -= 1
        answer: Evidence = self.evidence
        return answer


def uncertain(app: Tenure, provider: Provider | str, count: int, **more: Any) -> list[Job]:
    """Jobs whose only effect is open."""
    jobs = []
    for nth in range(count):
        made = create(app, "k", key=f"u{nth}-{len(more)}", **more)
        claimed = app.service.claim_job("w", kinds=["k"], start=True)
        assert claimed is not None
        app.service.begin_effect(claimed.lease, name="send", request={}, provider=provider)
        app.service.mark_indeterminate(claimed.lease, code="TEST", message="the test says so")
        jobs.append(made)
    return jobs


def sweep(app: Tenure, provider: Provider | None = None, *, store: Any = None, **options: Any) -> list[Verdict]:
    async def body() -> list[Verdict]:
        opened = app.store.awaiting()
        try:
            providers = {} if provider is None else {provider.name: provider}
            sweeper = Sweeper(store(opened) if store else opened, providers, lookup=options.pop("lookup", None))
            return await sweeper.sweep(**options)
        finally:
            await opened.close()

    return asyncio.run(body())


def test_every_candidate_has_a_verdict_oldest_first(url: str) -> None:
    with producer(url) as app:
        oracle = Oracle()
        jobs = uncertain(app, oracle, 5)
        verdicts = sweep(app, oracle)
        assert [one.job_id for one in verdicts] == [one.id for one in jobs]
        assert {one.action for one in verdicts} == {"resolve"}
        assert len(oracle.asked) == 5
        assert {job(app, one).status.value for one in jobs} == {"queued"}


def test_providers_are_asked_side_by_side_but_not_all_at_once(sqlite_url: str) -> None:
    with producer(sqlite_url) as app:
        oracle = Oracle()
        oracle.slow = 0.1
        uncertain(app, oracle, 2 * LANES + 1)
        sweep(app, oracle)
        assert oracle.most == LANES


class Failing:
    """A store that fails for some jobs, or from some moment on."""

    def __init__(self, store: Any, fails: Any) -> None:
        self._store, self._fails = store, fails

    async def run(self, procedure: Any) -> Any:
        if procedure.name == "sweep_step" and self._fails(procedure.args[0]):
            procedure.script().close()
            raise Unavailable("the connection died", code="CONNECTION_LOST")
        return await self._store.run(procedure)


def test_a_candidate_that_cannot_be_swept_does_not_keep_the_others_from_their_turn(sqlite_url: str) -> None:
    with producer(sqlite_url) as app:
        oracle = Oracle()
        jobs = uncertain(app, oracle, 6)
        with pytest.raises(Unavailable, match="the connection died"):
            sweep(app, oracle, store=lambda store: Failing(store, lambda job_id: job_id == jobs[0].id))
        assert job(app, jobs[0]).status == "indeterminate"
        assert {job(app, one).status.value for one in jobs[1:]} == {"queued"}
        # The next sweep handles what is left, and one after that changes nothing.
        assert [one.job_id for one in sweep(app, oracle)] == [jobs[0].id]
        before = trail(app, jobs[0])
        assert sweep(app, oracle) == []
        assert trail(app, jobs[0]) == before


def test_an_unknown_provider_is_no_answer_and_a_person_is_asked(sqlite_url: str) -> None:
    with producer(sqlite_url) as app:
        (one,) = uncertain(app, "somebody", 1)
        assert {verdict.action for verdict in sweep(app, Oracle(), patient=True)} == {"leave"}
        (verdict,) = sweep(app, Oracle(), patient=False)
        assert verdict.action == "escalate"
        assert f"k:{one.id}:send" in (job(app, one).escalation_reason or "")


@pytest.mark.parametrize("answer", [Accepted("r-1"), RuntimeError("CANARY"), None, "sync"])
def test_bare_marks_are_asked_about_with_the_callers_lookup(sqlite_url: str, answer: Any) -> None:
    with producer(sqlite_url) as app:
        one = create(app, "k")
        claimed = app.service.claim_job("w", start=True)
        assert claimed is not None
        app.service.mark_provider_dispatched(claimed.lease, operation_key="mine:1")
        app.service.mark_indeterminate(claimed.lease, code="TEST", message="the test says so")
        asked: list[tuple[str, Any]] = []

        async def lookup(key: str, about: Job) -> Evidence:
            asked.append((key, about.id))
            if isinstance(answer, Exception):
                raise answer
            result: Evidence = answer
            return result

        def plain(key: str, about: Job) -> Evidence:
            asked.append((key, about.id))
            return Absent()

        sweep(app, lookup=plain if answer == "sync" else lookup, patient=False)
        assert asked == [("mine:1", one.id)]
        after = job(app, one)
        if isinstance(answer, Accepted):
            assert after.status == "completed"
        else:
            assert (after.status, after.escalated_at is not None) == ("indeterminate", True)
            assert "mine:1" in (after.escalation_reason or "")
            assert "CANARY" not in (after.escalation_reason or "")


async def quick(ctx: AsyncContext, payload: dict[str, Any]) -> None: ...


def test_a_worker_settles_what_is_uncertain_and_slow_providers_do_not_make_it_ill(url: str) -> None:
    oracle = Oracle()
    oracle.slow = 0.7
    app = make_app(url, providers=[oracle])
    app.job("k")(quick)
    with producer(url) as other:
        jobs = uncertain(other, oracle, 2 * LANES)
    # One sweep takes longer than three of its periods, and is well all the while.
    with Running(app, sweep_every=seconds(0.4)) as running:
        began = time.monotonic()
        while any(job(app, one).status == "indeterminate" for one in jobs):
            assert running.worker.health().loops["sweep"].ok
            assert time.monotonic() - began < 20
            time.sleep(0.02)
        assert time.monotonic() - began > 3 * 0.4
        until(lambda: all(job(app, one).status == "completed" for one in jobs), "the resumed attempts")
    assert len(oracle.asked) == len(jobs)


def test_a_silent_provider_is_asked_again_with_pauses_and_then_a_person_is(sqlite_url: str) -> None:
    oracle = Oracle()
    oracle.evidence = NoAnswer("maintenance")
    app = make_app(sqlite_url, providers=[oracle])
    app.job("k", escalate_after=seconds(2.5))(quick)
    with producer(sqlite_url) as other:
        one = app.enqueue("k", {}, key="k").job
        claimed = other.service.claim_job("w", start=True)
        assert claimed is not None
        other.service.begin_effect(claimed.lease, name="send", request={}, provider=oracle)
        other.service.mark_indeterminate(claimed.lease, code="TEST", message="the test says so")
    with Running(app, sweep_every=seconds(0.1)):
        until(lambda: job(app, one).escalated_at, "a person to be asked")
        after = job(app, one)
        assert after.escalated_at is not None
        assert after.escalated_at - after.created_at >= timedelta(seconds=2.5)
        # Many sweeps, few questions.
        assert 2 <= len(oracle.asked) <= 6
        assert f"k:{one.id}:send" in (after.escalation_reason or "")


def test_other_scopes_are_swept_too_and_a_tenants_worker_sweeps_its_own(sqlite_url: str) -> None:
    with producer(sqlite_url) as app:
        oracle = Oracle()
        mine = uncertain(app, oracle, 1)
        theirs = app.service.create_job(**(fields(app, "k") | {"organization": "other", "execution": None})).job
        claimed = app.service.claim_job("w", start=True)
        assert claimed is not None
        app.service.mark_indeterminate(claimed.lease, code="TEST", message="the test says so")
        assert {one.job_id for one in sweep(app, oracle)} == {mine[0].id, theirs.id}
