"""The database goes away: the worker rides it out, and what it learned meanwhile is kept and handed in."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tenure import Accepted, AsyncContext, Context, Outcome, Provider, Succeeded, Tenure, Unavailable, open_store
from tenure.journal import ReceiptJournal
from tenure.loops import worker
from tenure.stores.contract import Store
from tenure.stores.postgres.store import PostgresStore
from tests.loops.conftest import prepare
from tests.loops.stage import Running, ended, job, make_app, seconds, trail, until
from tests.support.postgres import Server
from tests.support.proxy import Proxy


@pytest.fixture(autouse=True)
def short_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLAIM_EVERY", "OUTCOMES_EVERY", "HEARTBEAT_EVERY", "TEND_EVERY", "ANNOUNCE_EVERY"):
        monkeypatch.setattr(worker, name, seconds(0.3))


POLL = seconds(0.3)


class Gated:
    """Handlers that wait until they are let go, whatever the database does."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entries: list[str] = []

    def plain(self, ctx: Context, payload: dict[str, Any]) -> str:
        self.entries.append(ctx.job.idempotency_key)
        self.gate.wait(60)
        return "through"

    async def awaiting(self, ctx: AsyncContext, payload: dict[str, Any]) -> str:
        self.entries.append(ctx.job.idempotency_key)
        await asyncio.to_thread(self.gate.wait, 60)
        return "through"


def gated_app(store: Any, *, lease: float = 30) -> tuple[Tenure, Gated]:
    app, gated = make_app(store), Gated()
    for name in ("plain", "awaiting"):
        app.job(name, lease_duration=seconds(lease), backoff_base=seconds(1))(getattr(gated, name))
    return app, gated


def ride_out(app: Tenure, gated: Gated, go_away: Callable[[], None], come_back: Callable[[], None]) -> None:
    """Take the database away in the middle of two handlers, which end meanwhile; and then bring it back."""
    with Running(app, poll=POLL, sweep_every=POLL) as running:
        health = running.worker.health
        jobs = [app.enqueue(name, {}, key=name).job for name in ("plain", "awaiting")]
        until(lambda: len(gated.entries) == 2, "the handlers to begin")
        assert health().ok
        go_away()
        gated.gate.set()
        until(lambda: not health().ok, "health to be red")
        come_back()
        done = [ended(app, one, "completed") for one in jobs]
        until(lambda: health().ok, "health to be green again")
        after = app.enqueue("plain", {}, key="after").job
        assert ended(app, after).status == "completed"
        assert [trail(app, one) for one in jobs] == [["claimed", "completed"]] * 2
    assert [(one.result, one.generation, one.attempt_count) for one in done] == [("through", 1, 1)] * 2
    assert sorted(gated.entries) == ["after", "awaiting", "plain"]


def test_a_server_that_is_stopped_and_started_again(postgres_server: Server) -> None:
    prepare(postgres_server.url)
    app, gated = gated_app(postgres_server.url)
    ride_out(app, gated, lambda: postgres_server.stop("immediate"), postgres_server.start)


def test_a_network_that_says_no_and_then_a_network_that_says_nothing(postgresql_url: str) -> None:
    with Proxy(postgresql_url) as proxy:
        app, gated = gated_app(PostgresStore(proxy.url, patience=seconds(2)))

        def cut() -> None:
            proxy.refusing = True
            proxy.reset()

        def mend() -> None:
            proxy.refusing = False

        ride_out(app, gated, cut, mend)
        app.store.close()
        app, gated = gated_app(PostgresStore(proxy.url, patience=seconds(2)))
        # Keys of their own: the first jobs are done.
        gated.entries.clear()
        with Running(app, poll=POLL) as running:
            one = app.enqueue("awaiting", {}, key="silence").job
            until(lambda: gated.entries, "the handler to begin")
            proxy.hold()
            gated.gate.set()
            until(lambda: not running.worker.health().ok, "health to be red")
            proxy.flow()
            assert ended(app, one, "completed").generation == 1
            until(lambda: running.worker.health().ok, "health to be green again")
        app.store.close()


def test_every_connection_is_ended_by_an_administrator(postgresql_url: str) -> None:
    app, gated = gated_app(postgresql_url)
    with Running(app, poll=POLL) as running, psycopg.connect(postgresql_url, autocommit=True) as admin:
        jobs = [app.enqueue(name, {}, key=name).job for name in ("plain", "awaiting")]
        until(lambda: len(gated.entries) == 2, "the handlers to begin")
        ended_count = admin.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchone()
        assert ended_count is not None
        assert ended_count[0] >= 2
        gated.gate.set()
        for one in jobs:
            assert ended(app, one, "completed").attempt_count == 1
        until(lambda: running.worker.health().ok, "health to be green")


def test_a_file_that_somebody_else_has_locked(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.stores.sqlite.engine.PATIENCE", 0.3)
    monkeypatch.setattr("tenure.stores.sqlite.line.PATIENCE", 0.3)
    app, gated = gated_app(sqlite_url)
    with closing(sqlite3.connect(tmp_path / "jobs.db", check_same_thread=False, isolation_level=None)) as other:

        def lock() -> None:
            until(lambda: _begins(other), "the lock")

        def unlock() -> None:
            # Long enough for every loop to have failed and tried again.
            until(lambda: _failed(caplog) >= {"claim", "tend", "outcomes"}, "the loops to fail")
            other.execute("ROLLBACK")

        with caplog.at_level(logging.INFO, "tenure.worker"):
            ride_out(app, gated, lock, unlock)
    assert any("succeeds again" in one.getMessage() for one in caplog.records)


def _failed(caplog: pytest.LogCaptureFixture) -> set[str]:
    """Which loops said that they failed, with what the store said."""
    words = [one.getMessage().split() for one in list(caplog.records)]
    return {said[1] for said in words if said[0] == "loop" and said[-2:] == ["Unavailable", "STORE_BUSY"]}


def _begins(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return False
    return True


def test_a_database_that_is_away_at_the_start_is_said_and_nothing_is_left(postgresql_url: str) -> None:
    with Proxy(postgresql_url) as proxy:
        proxy.refusing = True
        app, _ = gated_app(PostgresStore(proxy.url, patience=seconds(0.5)))
        running = Running(app)
        with pytest.raises(Unavailable), running:
            raise AssertionError("it started")
        app.store.close()


def test_a_handler_is_stopped_when_its_lease_may_not_be_trusted_although_the_renewal_gets_no_answer(
    postgresql_url: str,
) -> None:
    stopped: list[float] = []

    async def waits(ctx: AsyncContext, payload: dict[str, Any]) -> str:
        if ctx.job.attempt_count > 1:
            return "again"
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(time.monotonic())
        return "never"

    with Proxy(postgresql_url) as proxy:
        app = make_app(PostgresStore(proxy.url, patience=seconds(10)))
        app.job("waits", lease_duration=seconds(1.2))(waits)
        one = app.enqueue("waits", {}, key="k").job
        with Running(app, poll=POLL) as running:
            until(lambda: running.worker.health().running, "the handler to begin")
            proxy.hold()
            silent = time.monotonic()
            until(lambda: stopped, "the handler to be stopped")
            assert stopped[0] - silent <= 1.2 + 1
            proxy.flow()
            done = ended(app, one, "completed")
            assert (done.result, done.generation) == ("again", 2)
        app.store.close()


# --- receipts ---------------------------------------------------------------------------------------------------------


class Post(Provider):
    """Cannot be asked afterwards: only the receipt of the call itself proves anything."""

    name = "post"
    timeout = seconds(30)

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.called, self.answer = threading.Event(), threading.Event()

    async def send(self, request: Any, operation_key: str) -> Outcome:
        self.sent.append(operation_key)
        self.called.set()
        await asyncio.to_thread(self.answer.wait, 30)
        return Succeeded({"id": f"r-{len(self.sent)}"})


@pytest.fixture(params=["sqlite", "postgresql"])
def breakable(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Callable[[], Store], Callable[[], None], Callable[[], None]]]:
    """A database, and how it goes away and comes back; little patience, so that the test need not have much."""
    if request.param == "sqlite":
        monkeypatch.setattr("tenure.stores.sqlite.engine.PATIENCE", 0.3)
        monkeypatch.setattr("tenure.stores.sqlite.line.PATIENCE", 0.3)
        url = request.getfixturevalue("sqlite_url")
        with closing(sqlite3.connect(tmp_path / "jobs.db", check_same_thread=False, isolation_level=None)) as other:
            yield (
                lambda: open_store(url),
                lambda: until(lambda: _begins(other), "the lock") and None,
                lambda: other.execute("ROLLBACK") and None,
            )
        return
    with Proxy(request.getfixturevalue("postgresql_url")) as proxy:

        def cut() -> None:
            proxy.refusing = True
            proxy.reset()

        def mend() -> None:
            proxy.refusing = False

        yield lambda: PostgresStore(proxy.url, patience=seconds(0.5)), cut, mend


@pytest.mark.parametrize("style", ["plain", "awaiting"])
@pytest.mark.parametrize("journal", [True, False])
def test_a_receipt_that_the_database_did_not_take_is_handed_in_by_the_next_worker(
    breakable: Any, tmp_path: Path, style: str, journal: bool
) -> None:
    opened, go_away, come_back = breakable
    folder = tmp_path / "journal"
    post = Post()

    def with_handlers(store: Store) -> Tenure:
        app = make_app(store, providers=[post])
        given: dict[str, Any] = {"lease_duration": seconds(1.2), "backoff_base": seconds(1)}

        @app.job("plain", **given)
        def plain(ctx: Context, payload: dict[str, Any]) -> Any:
            return ctx.effect("send", post, {"to": "a"})

        @app.job("awaiting", **given)
        async def awaiting(ctx: AsyncContext, payload: dict[str, Any]) -> Any:
            return await ctx.effect("send", post, {"to": "a"})

        return app

    first = with_handlers(opened())
    one = first.enqueue(style, {}, key="k").job
    settings: dict[str, Any] = {"poll": POLL, "sweep_every": POLL} | ({"journal_dir": folder} if journal else {})
    with Running(first, grace=seconds(0.8), **settings) as running:
        assert post.called.wait(20)
        go_away()
        post.answer.set()
        if journal:
            until(lambda: _receipts(folder), "the receipt to be in the journal")
        # The database does not come back while this worker lives: not even the attempt's outcome is written.
        assert not running.stop()
    come_back()
    first.store.close()

    second = with_handlers(opened())
    with Running(second, **settings):
        if journal:
            done = ended(second, one, "completed")
            assert (done.result, done.attempt_count) == ({"id": "r-1"}, 2)
            events = trail(second, one)
            assert events[:2] == ["claimed", "dispatched"]
            assert {"evidence_received", "reconciled"} <= set(events)
            until(lambda: not _receipts(folder), "the journal to be empty")
        else:
            # Nobody knows, and nobody can be asked: a person is.
            until(lambda: job(second, one).status == "indeterminate", "the job to be uncertain")
    second.store.close()
    assert len(post.sent) == 1


def _receipts(folder: Path) -> int:
    return sum(b"accepted" in path.read_bytes() for path in folder.glob("*.journal"))


def test_a_receipt_that_the_store_refuses_turns_health_red_until_a_person_has_looked(
    sqlite_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "journal"
    app, _ = gated_app(sqlite_url)
    with ReceiptJournal(folder) as kept:
        kept.append_receipt("k:unknown:send", uuid4(), Accepted("r-1"))
    with Running(app, journal_dir=folder) as running:
        until(lambda: running.worker.health().problems, "the refusal")
        said = running.worker.health()
        assert not said.ok
        assert all(loop.ok for loop in said.loops.values())
        (problem,) = said.problems
        assert problem.startswith("receipt 1 in receipts-")
        assert problem.endswith(".journal was refused: NOT_FOUND")
    # The control: another folder, the same worker.
    app, _ = gated_app(sqlite_url)
    with Running(app, journal_dir=tmp_path / "other") as running:
        until(lambda: running.worker.health().loops["journal"].age < 1, "the first pass")
        assert running.worker.health().problems == ()


def test_a_journal_that_cannot_be_written_turns_health_red(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "JOURNAL_EVERY", seconds(0.2))
    app, _ = gated_app(sqlite_url)
    with Running(app, journal_dir=tmp_path / "journal") as running:
        until(lambda: running.worker.health().ok, "a good start")
        journal = running.worker._journal
        assert journal is not None
        monkeypatch.setattr(type(journal), "faults", property(lambda self: 1))
        problems = until(lambda: running.worker.health().problems, "the fault to be told")
        assert problems == ("1 appends to the journal failed",)
