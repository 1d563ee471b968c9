"""Every loop is watched: hung it turns red, raising it is started again, and its health is written whatever blocks."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure import AsyncContext, Invalid, Tenure
from tenure.loops import supervisor, worker
from tenure.loops.attempts import Attempts
from tenure.loops.authority import AuthorityWatch
from tenure.loops.claims import Claims
from tenure.loops.heartbeat import Heartbeat
from tenure.loops.outcomes import Outcomes
from tenure.loops.receipts import Receipts
from tenure.loops.supervisor import Health, HealthFile, Pulse, Supervisor
from tenure.loops.sweeper import Sweeper
from tenure.loops.upkeep import Upkeep
from tests.loops.conftest import prepare
from tests.loops.stage import Running, ended, make_app, seconds, until

PERIOD = 0.2
# Where each loop does its work.
STEPS: dict[str, tuple[type, str]] = {
    "claim": (Claims, "step"),
    "watch": (Attempts, "watch"),
    "outcomes": (Outcomes, "step"),
    "heartbeat": (Heartbeat, "round"),
    "tend": (Upkeep, "tend"),
    "announce": (Upkeep, "announce"),
    "sweep": (Sweeper, "sweep"),
    "journal": (Receipts, "hand_in"),
    "authority": (AuthorityWatch, "step"),
}


async def quick(ctx: AsyncContext, payload: dict[str, Any]) -> int:
    return 1


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tenure:
    """An app whose worker's loops have short periods."""
    for name in (
        "CLAIM_EVERY",
        "OUTCOMES_EVERY",
        "HEARTBEAT_EVERY",
        "TEND_EVERY",
        "ANNOUNCE_EVERY",
        "JOURNAL_EVERY",
        "AUTHORITY_EVERY",
    ):
        monkeypatch.setattr(worker, name, seconds(PERIOD))
    monkeypatch.setattr(supervisor, "HEALTH_EVERY", PERIOD / 3)
    url = f"sqlite:///{tmp_path}/jobs.db"
    prepare(url)
    made = make_app(url)
    made.job("quick")(quick)
    return made


def settings(tmp_path: Path) -> dict[str, Any]:
    return {
        "poll": seconds(PERIOD),
        "sweep_every": seconds(PERIOD),
        "journal_dir": tmp_path / "journal",
        "health_file": tmp_path / "health.json",
    }


def red(health: Health) -> set[str]:
    return {name for name, loop in health.loops.items() if not loop.ok}


@pytest.mark.parametrize("name", STEPS)
def test_a_loop_that_hangs_is_red_after_three_periods(
    app: Tenure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    owner, step = STEPS[name]
    original: Callable[..., Any] = getattr(owner, step)
    let_go = threading.Event()
    hang, hung = threading.Event(), threading.Event()

    def blocking(self: Any, *args: Any, **options: Any) -> Any:
        if hang.is_set():
            hung.set()
            let_go.wait(20)
            return None
        return original(self, *args, **options)

    async def awaiting(self: Any, *args: Any, **options: Any) -> Any:
        if hang.is_set():
            hung.set()
            await asyncio.to_thread(let_go.wait, 20)
            return None
        return await original(self, *args, **options)

    monkeypatch.setattr(owner, step, blocking if name == "heartbeat" else awaiting)
    with Running(app, **settings(tmp_path)) as running:
        assert set(running.worker.health().loops) == set(STEPS)
        # Green for longer than three periods: the control.
        began = time.monotonic()
        while time.monotonic() - began < 4 * PERIOD:
            assert running.worker.health().ok, running.worker.health()
            time.sleep(PERIOD / 10)
        hang.set()
        assert hung.wait(20)
        since = time.monotonic()
        until(lambda: red(running.worker.health()) == {name}, f"{name} alone to be red")
        assert not running.worker.health().ok
        # Not before three periods after its last success, and soon after.
        assert 1.5 * PERIOD < time.monotonic() - since < 3 * PERIOD + 3
        file = until(lambda: _read(tmp_path / "health.json", ok=False), "the file to say so")
        assert [one for one, loop in file["loops"].items() if not loop["ok"]] == [name]
        hang.clear()
        let_go.set()
        until(lambda: running.worker.health().ok, "the loop to be green again")
        assert ended(app, app.enqueue("quick", {}, key="k").job, "completed").result == 1


# A cancellation that leaks out of a library is not the loop's own end.
RAISED = [*((name, ValueError("CANARY")) for name in STEPS), ("claim", asyncio.CancelledError())]


@pytest.mark.parametrize("name,error", RAISED, ids=[f"{name}-{type(error).__name__}" for name, error in RAISED])
def test_a_loop_that_raises_is_started_again(
    app: Tenure,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    error: BaseException,
) -> None:
    owner, step = STEPS[name]
    original: Callable[..., Any] = getattr(owner, step)
    raised: list[float] = []
    times = 2

    def failing(self: Any, *args: Any, **options: Any) -> Any:
        if len(raised) < times:
            raised.append(time.monotonic())
            raise error
        return original(self, *args, **options)

    async def failing_later(self: Any, *args: Any, **options: Any) -> Any:
        return await _maybe(failing(self, *args, **options))

    calls = 0

    async def announces(self: Any) -> Any:
        # The first one is made before any loop, so that a worker which cannot speak to its store does not start.
        nonlocal calls
        calls += 1
        return await (original(self) if calls == 1 else failing_later(self))

    monkeypatch.setattr(owner, step, {"heartbeat": failing, "announce": announces}.get(name, failing_later))
    with caplog.at_level(logging.INFO, "tenure.worker"), Running(app, **settings(tmp_path)) as running:
        until(lambda: len(raised) == times, "the failures")
        until(lambda: running.worker.health().loops[name].error is None, "the next success")
        assert running.worker.health().ok
        assert ended(app, app.enqueue("quick", {}, key="k").job, "completed").result == 1
    if name != "heartbeat":
        # After a pause; the test of a pulse by itself shows that it grows.
        assert raised[1] - raised[0] > 0.09
    told = [one.getMessage() for one in caplog.records if one.getMessage().startswith(f"loop {name} ")]
    assert told[0] == f"loop {name} failed, it goes on: {type(error).__name__} "
    assert told[1:] == [f"loop {name} succeeds again after {times} failures"]
    assert "CANARY" not in caplog.text


async def _maybe(value: Any) -> Any:
    return await value if asyncio.iscoroutine(value) else value


def _read(path: Path, *, ok: bool) -> dict[str, Any] | None:
    found: dict[str, Any] = json.loads(path.read_text())
    return found if found["ok"] is ok else None


def _red_in(path: Path) -> set[str]:
    return {name for name, loop in json.loads(path.read_text())["loops"].items() if not loop["ok"]}


async def blocks(ctx: AsyncContext, payload: dict[str, Any]) -> None:
    time.sleep(payload["seconds"])  # noqa: ASYNC251 - the mistake that is tested


def test_a_blocked_event_loop_cannot_hide_itself(app: Tenure, tmp_path: Path) -> None:
    app.job("blocks")(blocks)
    with Running(app, **settings(tmp_path)) as running:
        path = tmp_path / "health.json"
        until(lambda: _read(path, ok=True), "the file to be green")
        app.enqueue("blocks", {"seconds": 12 * PERIOD}, key="k")
        until(lambda: _red_in(path) >= {"claim", "tend", "outcomes", "announce"}, "all of the loop's to be red")
        said = json.loads(path.read_text())
        # The renewals, which live elsewhere, go on.
        assert said["loops"]["heartbeat"]["ok"]
        assert (said["running"], said["draining"]) == (1, False)
        until(lambda: _read(path, ok=True), "the file to be green again")
        assert running.worker.health().ok


def test_the_health_file_is_one_object_with_stable_names(app: Tenure, tmp_path: Path) -> None:
    path = tmp_path / "health.json"
    with Running(app, worker_id="w-1", **settings(tmp_path)):
        said = until(lambda: _read(path, ok=True), "the file to be green")
        assert set(said) == {"ok", "at", "worker_id", "running", "draining", "loops", "problems", "notes"}
        assert (said["ok"], said["worker_id"], said["running"], said["problems"]) == (True, "w-1", 0, [])
        assert set(said["loops"]["claim"]) == {"ok", "age", "period", "error"}
        first = datetime.fromisoformat(said["at"])
        later = until(lambda: (now := json.loads(path.read_text())["at"]) != said["at"] and now, "another word")
        assert datetime.fromisoformat(later) > first
    last = json.loads(path.read_text())
    assert (last["ok"], last["problems"]) == (False, ["it has stopped"])
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".health")] == []


def test_a_worker_that_does_not_run_is_not_well(app: Tenure, tmp_path: Path) -> None:
    running = Running(app, **settings(tmp_path))
    assert (running.worker.health().ok, running.worker.health().problems) == (False, ("it was not started",))
    with running:
        assert running.worker.health().ok
    assert (running.worker.health().ok, running.worker.health().problems) == (False, ("it has stopped",))


def test_a_worker_starts_once(app: Tenure, tmp_path: Path) -> None:
    with Running(app, **settings(tmp_path)) as running:
        for _ in range(2):
            with pytest.raises(Invalid, match="this worker was started before; make another") as caught:
                running.call(running.worker.start())
            assert caught.value.code == "WORKER_STARTED"
        assert running.worker.health().ok
        assert running.stop()
        assert running.call(running.worker.stop()), "stopping again is fine"


@pytest.mark.parametrize(
    "broken,code",
    [("health", "HEALTH_FILE"), ("journal", "JOURNAL_NOT_A_DIRECTORY"), ("schema", "SCHEMA_MISSING")],
)
def test_a_worker_that_cannot_start_says_why_and_leaves_nothing(
    tmp_path: Path, app: Tenure, broken: str, code: str
) -> None:
    given = settings(tmp_path)
    if broken == "health":
        given["health_file"] = tmp_path / "nowhere" / "health.json"
    if broken == "journal":
        (tmp_path / "file").touch()
        given["journal_dir"] = tmp_path / "file" / "journal"
    if broken == "schema":
        app = make_app(f"sqlite:///{tmp_path}/empty.db")
        app.job("quick")(quick)
    running = Running(app, **given)
    with pytest.raises((Invalid, Exception)) as caught, running:
        raise AssertionError("it started")
    assert getattr(caught.value, "code", "") == code, caught.value


def test_a_health_file_that_cannot_be_written_for_a_while_does_not_end_its_thread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    health = Health(ok=True, worker_id="w", running=0, draining=False, loops={})
    file = HealthFile(folder / "health.json", lambda: health, period=0.02)
    with caplog.at_level(logging.WARNING, "tenure.worker"):
        file.start()
        (folder / "health.json").unlink()
        folder.rename(tmp_path / "moved")
        until(lambda: caplog.records, "the trouble to be told")
        (tmp_path / "moved").rename(folder)
        until((folder / "health.json").exists, "the file to be there again")
        file.end()
    assert [one.getMessage() for one in caplog.records] == ["the health file cannot be written: FileNotFoundError"]


# --- the supervisor by itself -----------------------------------------------------------------------------------------


def test_a_loop_ends_although_its_step_loses_a_cancellation() -> None:
    async def body() -> None:
        supervise = Supervisor()
        began = asyncio.Event()

        async def step() -> None:
            began.set()
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                # As wait_for did before Python 3.12 when its result came at the same moment.
                await asyncio.sleep(30)

        supervise.follow(supervise.pulse("stubborn", seconds(1)), step)
        await began.wait()
        async with asyncio.timeout(5):
            await supervise.end()
        assert supervise.tasks == []

    asyncio.run(body())


@pytest.mark.parametrize("error", [ValueError("CANARY"), BaseExceptionGroup("CANARY", [asyncio.CancelledError()])])
def test_a_loop_goes_on_after_whatever_its_step_raises(error: BaseException) -> None:
    async def body() -> None:
        supervise = Supervisor()
        times, again = 0, asyncio.Event()

        async def step() -> None:
            nonlocal times
            times += 1
            if times == 1:
                raise error
            if times == 3:
                again.set()
            await asyncio.sleep(0)

        supervise.follow(supervise.pulse("claim", seconds(1)), step)
        async with asyncio.timeout(5):
            await again.wait()
        assert (supervise.loops()["claim"].ok, supervise.loops()["claim"].error) == (True, None)
        await supervise.end()

    asyncio.run(body())


@pytest.mark.parametrize("how", ["cancelled by somebody else", "GeneratorExit", "ended"])
def test_a_loop_that_has_ended_is_red_at_once(how: str) -> None:
    """Unless it was the supervisor's own end: that is the control."""

    async def body() -> None:
        supervise = Supervisor()

        async def step() -> None:
            if how == "GeneratorExit":
                raise GeneratorExit
            await asyncio.sleep(30)

        supervise.follow(supervise.pulse("claim", seconds(100)), step)
        (task,) = supervise.tasks
        await asyncio.sleep(0)
        if how == "ended":
            await supervise.end()
        elif how != "GeneratorExit":
            task.cancel()
        await asyncio.wait({task})
        said = supervise.loops()["claim"]
        expected = {"ended": (True, None), "GeneratorExit": (False, "GeneratorExit")}.get(
            how, (False, "CancelledError")
        )
        assert (said.ok, said.error) == expected
        assert task.cancelled() or task.exception() is not None

    asyncio.run(body())


def test_the_same_trouble_is_told_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now[0])
    pulse = Pulse("claim", 1.0)
    with caplog.at_level(logging.WARNING, "tenure.worker"):
        pauses = []
        for _ in range(200):
            pauses.append(pulse.fail(ValueError("CANARY")))
            now[0] += pauses[-1]
        minutes = (now[0] - 1000) / 60
        assert minutes > 5
        assert minutes - 1 <= len(caplog.records) <= minutes + 1
        pulse.fail(KeyError("CANARY"))
        assert caplog.records[-1].getMessage() == "loop claim failed, it goes on: KeyError "
    assert "CANARY" not in caplog.text
    # A worker that was away is back within seconds, whatever it was that failed for so long.
    assert max(pauses) <= 5
    assert max(pauses[:1]) <= 0.2
    assert timedelta(seconds=min(pauses[-50:])) >= timedelta(seconds=2.5)
