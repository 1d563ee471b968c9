"""A caller's look-up may hang, block, raise or talk nonsense: the sweep ends, and a person reads why."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import Accepted, Evidence, Job, NoAnswer, Verdict
from tenure.connectors.provider import LOOKUP_TIMEOUT
from tenure.errors import Invalid
from tenure.loops.sweeper import Sweeper

SHORT = timedelta(seconds=0.2)
# Far more than a deadline of 0.2 s and its grace, far less than the look-ups of these tests would take.
SOON = 10.0
SECRET = "CANARY-of-a-provider"
HERE: dict[str, Any] = {"organization": "studio", "project": "p"}
request = contextvars.ContextVar("request", default="none")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tenure.Store]:
    made = tenure.open_store(f"sqlite:///{tmp_path / 'jobs.db'}")
    made.migrate()
    yield made
    made.close()


def blocking(store: tenure.Store, lookup: Any, **more: Any) -> list[Verdict]:
    """Sweep with the blocking service."""
    return tenure.DurableJobService(store).sweep_reconciliation_candidates(lookup=lookup, **HERE, **more)


def blocking_on_a_loop(store: tenure.Store, lookup: Any, **more: Any) -> list[Verdict]:
    """Sweep with the blocking service inside a coroutine, which may be unwise and must work."""

    async def body() -> list[Verdict]:
        return blocking(store, lookup, **more)

    return asyncio.run(body())


def awaiting(store: tenure.Store, lookup: Any, **more: Any) -> list[Verdict]:
    """Sweep with the awaiting service."""

    async def body() -> list[Verdict]:
        opened = store.awaiting()
        try:
            service = tenure.AsyncDurableJobService(opened)
            return await service.sweep_reconciliation_candidates(lookup=lookup, **HERE, **more)
        finally:
            await opened.close()

    return asyncio.run(body())


def sweeping(store: tenure.Store, lookup: Any, **more: Any) -> list[Verdict]:
    """Sweep as a worker does, with its patience ended."""

    async def body() -> list[Verdict]:
        opened = store.awaiting()
        try:
            return await Sweeper(opened, {}, lookup=lookup, **more).sweep(patient=False)
        finally:
            await opened.close()

    return asyncio.run(body())


WAYS = [blocking, blocking_on_a_loop, awaiting, sweeping]
Way = Callable[..., list[Verdict]]


@pytest.fixture
def job(store: tenure.Store) -> Job:
    """A job in doubt, whose bare mark only a look-up of the caller's can settle."""
    service = tenure.DurableJobService(store)
    made = service.create_job(idempotency_key="k", kind="send", payload={}, **HERE).job
    claim = service.claim_job("w", start=True)
    assert claim is not None
    service.mark_provider_dispatched(claim.lease, operation_key="mine:1")
    service.mark_indeterminate(claim.lease, code="LOST", message="lost")
    return made


def read(store: tenure.Store, job: Job) -> Job:
    return tenure.DurableJobService(store).get_job(job.id)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Holds look-ups until the test is over."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("style", ["plain", "async", "stubborn"])
def test_a_look_up_that_hangs_is_no_answer_after_its_deadline(
    store: tenure.Store, job: Job, gate: threading.Event, way: Way, style: str
) -> None:
    def plain(key: str, about: Job) -> Evidence:
        gate.wait()
        return Accepted()

    async def hangs(key: str, about: Job) -> Evidence:
        await asyncio.Event().wait()
        raise AssertionError("never")

    async def stubborn(key: str, about: Job) -> Evidence:
        while not gate.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue
        return Accepted()

    began = time.monotonic()
    lookup = {"plain": plain, "async": hangs, "stubborn": stubborn}[style]
    if style == "stubborn" and way in {awaiting, sweeping}:
        # asyncio.run waits for what it cancelled: let it go when the sweep is over.
        threading.Timer(2.0, gate.set).start()
    (verdict,) = way(store, lookup, lookup_timeout=SHORT)
    assert time.monotonic() - began < SOON
    assert (verdict.action, verdict.status) == ("escalate", "indeterminate")
    assert "mine:1: no answer (the look-up did not end within 0.2 s" in verdict.reason
    assert read(store, job).escalation_reason == verdict.reason


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("style", ["plain", "async"])
def test_a_slow_look_up_within_its_deadline_settles(store: tenure.Store, job: Job, way: Way, style: str) -> None:
    """The control; and what a request has set in its context is there."""
    request.set("r-17")
    asked: list[Any] = []

    def plain(key: str, about: Job) -> Evidence:
        asked.append((key, about.id, request.get()))
        time.sleep(0.05)
        return Accepted({"id": "r-1"})

    async def awaits(key: str, about: Job) -> Evidence:
        asked.append((key, about.id, request.get()))
        await asyncio.sleep(0.05)
        return Accepted({"id": "r-1"})

    (verdict,) = way(store, plain if style == "plain" else awaits, lookup_timeout=timedelta(seconds=20))
    assert (verdict.action, verdict.status) == ("resolve", "completed")
    assert asked == [("mine:1", job.id, "r-17")]
    assert read(store, job).result == {"id": "r-1"}


def raises(error: BaseException) -> Callable[[str, Job], Evidence]:
    def lookup(key: str, about: Job) -> Evidence:
        raise error

    return lookup


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("lookup", "why"),
    [
        (raises(LookupError(SECRET)), "(the look-up raised LookupError)"),
        (raises(SystemExit(SECRET)), "(the look-up raised RuntimeError)"),
        (lambda key, about: {"body": SECRET}, "(the look-up returned dict, not evidence)"),
        (lambda key, about: None, "(the look-up returned NoneType, not evidence)"),
        (lambda key: Accepted(), "(the look-up raised TypeError)"),
        (lambda key, about: NoAnswer("they are in maintenance"), "(they are in maintenance)"),
        (lambda key, about: NoAnswer(), "no answer; "),
    ],
)
def test_what_is_no_evidence_is_no_answer_and_says_why(
    store: tenure.Store, job: Job, way: Way, lookup: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG"):
        (verdict,) = way(store, lookup)
    assert verdict.action == "escalate"
    assert why in verdict.reason
    after = read(store, job)
    assert (after.status, after.escalation_reason) == ("indeterminate", verdict.reason)
    events = tenure.DurableJobService(store).list_job_events(job.id)
    assert [one.data["reason"] for one in events if one.name == "escalated"] == [verdict.reason]
    assert SECRET not in verdict.reason + caplog.text


def test_a_plain_look_up_does_not_stop_the_loop(store: tenure.Store, job: Job) -> None:
    """What else runs on the loop lets the look-up go: it could not, if the look-up stood in its way."""
    let_go = threading.Event()

    def lookup(key: str, about: Job) -> Evidence:
        assert let_go.wait(SOON)
        return Accepted()

    async def body() -> list[Verdict]:
        opened = store.awaiting()
        try:
            service = tenure.AsyncDurableJobService(opened)
            asyncio.get_running_loop().call_later(0.1, let_go.set)
            return await service.sweep_reconciliation_candidates(lookup=lookup, **HERE)
        finally:
            await opened.close()

    assert [one.status for one in asyncio.run(body())] == ["completed"]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"lookup": "http://provider"}, "BAD_ARGUMENT"),
        ({"lookup": None}, "BAD_ARGUMENT"),
        ({"lookup_timeout": timedelta(0)}, "BAD_DURATION"),
        ({"lookup_timeout": 30}, "BAD_DURATION"),
    ],
)
def test_a_look_up_that_cannot_be_asked_is_refused_before_anything_is_escalated(
    store: tenure.Store, job: Job, given: dict[str, Any], code: str
) -> None:
    service = tenure.DurableJobService(store)
    with pytest.raises(Invalid) as refused:
        service.sweep_reconciliation_candidates(**{**HERE, "lookup": lambda key, about: Accepted(), **given})
    assert refused.value.code == code
    assert read(store, job).escalated_at is None
    (verdict,) = service.sweep_reconciliation_candidates(**HERE, lookup=lambda key, about: Accepted())
    assert verdict.action == "resolve"


def test_the_default_deadline_is_the_documented_one() -> None:
    page = (Path(__file__).parents[2] / "docs/explanation/reconciliation.md").read_text(encoding="utf-8")
    assert f"within {LOOKUP_TIMEOUT.total_seconds():g} seconds" in page
