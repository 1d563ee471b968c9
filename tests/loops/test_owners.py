"""Workers and queues that have an owner, or are paused: who is served, and what a worker says about the others."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure import Tenure
from tenure.loops import upkeep

POLL = timedelta(milliseconds=20)


@pytest.fixture
def app(url: str) -> Any:
    made = Tenure(url, organization="studio", project="sales", actor="op:1")

    @made.job("mail_it", queue="mail")
    async def mail_it(ctx: Any, payload: dict[str, int]) -> None: ...

    @made.job("print_it", queue="print")
    async def print_it(ctx: Any, payload: dict[str, int]) -> None: ...

    yield made
    made.close()


def statuses(app: Tenure) -> dict[str, str]:
    return {job.kind: job.status.value for job in app.service.list_jobs()}


def work(app: Tenure, met: Callable[[], bool], **options: Any) -> Any:
    """Run a worker until something is so, and give its health then."""

    async def life() -> Any:
        async with app.worker(poll=POLL, **options) as worker:
            while not met():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            health = worker.health()
        await app.aclose()
        return health

    return asyncio.run(asyncio.wait_for(life(), 30))


def test_a_worker_serves_its_owners_queues_and_nobodys(
    app: Tenure, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    caplog.set_level(logging.WARNING, "tenure.worker")
    # It announces itself again and again, and says it once all the same.
    monkeypatch.setattr(upkeep, "ANNOUNCED_FOR", timedelta(milliseconds=300))
    app.service.transfer_queue("mail", owner="billing", expected=None)
    for kind in ("mail_it", "print_it"):
        app.enqueue(kind, {"n": 1}, key=kind)
    file = tmp_path / "health.json"
    others = work(app, lambda: statuses(app)["print_it"] == "completed", owner="shipping", health_file=file)
    said = "queue mail belongs to billing and this worker is shipping's, so nothing is claimed from it"
    assert (others.ok, others.notes, others.problems) == (True, (said,), ())
    assert json.loads(file.read_text())["notes"] == [said]
    assert [record.message for record in caplog.records if "belongs" in record.message] == [
        f"worker {others.worker_id}: {said}"
    ]
    assert statuses(app) == {"mail_it": "queued", "print_it": "completed"}
    assert app.service.stats().count("queued") == 1
    nobodys = work(app, lambda: True)
    assert nobodys.notes == (
        "queue mail belongs to billing and this worker has no owner, so nothing is claimed from it",
    )
    assert work(app, lambda: True, queues=["print"]).notes == ()
    assert statuses(app)["mail_it"] == "queued"
    mine = work(app, lambda: statuses(app)["mail_it"] == "completed", owner="billing")
    assert (mine.ok, mine.notes) == (True, ())


def test_a_worker_leaves_a_paused_queue_and_comes_back(app: Tenure) -> None:
    app.service.pause_queue("mail", reason="r")
    for kind in ("mail_it", "print_it"):
        app.enqueue(kind, {"n": 1}, key=kind)

    def printed() -> bool:
        if statuses(app)["print_it"] != "completed":
            return False
        assert statuses(app)["mail_it"] == "queued"
        app.service.resume_queue("mail")
        return True

    resumed = False

    def met() -> bool:
        nonlocal resumed
        resumed = resumed or printed()
        return resumed and statuses(app)["mail_it"] == "completed"

    assert work(app, met).ok


def test_a_worker_says_whose_it_is_and_leaves_no_trace_of_it(app: Tenure) -> None:
    app.enqueue("mail_it", {"n": 1}, key="mail_it")
    app.service.transfer_queue("mail", owner="billing", expected=None, with_work=True)
    reasons: list[str] = []

    def met() -> bool:
        (line,) = app.service.stats().lines
        reasons.append(line.reason.value)
        return True

    work(app, met, owner="shipping")
    (line,) = app.service.stats().lines
    assert (reasons, line.reason.value) == (["no_owner_worker"], "no_worker")
