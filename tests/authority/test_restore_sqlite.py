"""Older copies of a SQLite file, each put back in another way; beside each the same file started again untouched."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.errors import EpochClosed, Refused
from tenure.loops import authority
from tenure.opening import open_async_store
from tenure.procedures.authority import tick
from tenure.procedures.inspect import list_evidence
from tenure.rules.ledger import Cause, Pending
from tenure.rules.outcome import Accepted, Succeeded
from tenure.service import AsyncDurableJobService
from tenure.testing import FakeProvider
from tests.authority.crew import KIND, Crew, frozen, runs_on, ticks
from tests.loops.stage import make_app, until

Way = Callable[[Path, Path], None]


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    made = Crew(f"sqlite:///{tmp_path}/jobs.db")
    app = made.app()
    app.migrate()
    app.close()
    return made


def backup(path: Path, copy: Path) -> None:
    """SQLite's own backup, as people take one from a database in use."""
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def forget_wal(path: Path) -> None:
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)


def overwrite(copy: Path, path: Path) -> None:
    """`cp backup.db jobs.db`: the same inode with older bytes."""
    forget_wal(path)
    shutil.copyfile(copy, path)


def rename(copy: Path, path: Path) -> None:
    """`mv backup.db jobs.db`: another file under the same name."""
    forget_wal(path)
    copy.replace(path)


def through_sqlite(copy: Path, path: Path) -> None:
    """`.restore`: SQLite's own backup, the other way."""
    backup(copy, path)


BACK: dict[str, tuple[Way, Cause]] = {
    "overwritten": (overwrite, Cause.COUNTER_BEHIND),
    "renamed": (rename, Cause.IDENTITY_CHANGED),
    "restored by sqlite": (through_sqlite, Cause.COUNTER_BEHIND),
}


def lives_on(crew: Crew, path: Path, copy: Path) -> None:
    """A first life: job a is done; a backup is taken; job b is waiting in it, and is done after it."""
    with crew.working() as running:
        runs_on(crew, running, "a")
    crew.create("b")
    backup(path, copy)
    with crew.working() as running:
        until(lambda: "b" in crew.sent, "b to run")
        before = ticks(running)
        until(lambda: ticks(running) > before + 1, "more ticks")


@pytest.mark.parametrize("way", [*BACK, "not at all"])
def test_a_restored_copy_is_frozen_at_start_and_sends_nothing(crew: Crew, tmp_path: Path, way: str) -> None:
    path, copy = tmp_path / "jobs.db", tmp_path / "backup.db"
    lives_on(crew, path, copy)
    if way == "not at all":
        # The control: the same steps without a restore.
        with crew.working() as running:
            runs_on(crew, running, "c")
            assert frozen(running) is None
            assert running.worker.health().ok
        return
    put, cause = BACK[way]
    put(copy, path)
    with crew.working() as running:
        assert str(cause) in (frozen(running) or "")
        crew.create("c")
        before = running.worker._supervisor.pulses["authority"].at
        until(lambda: running.worker._supervisor.pulses["authority"].at > before, "another look")
        assert crew.sent == ["a", "b"]
        assert crew.facts().frozen is not None
        # Nothing was raised: what was lost stays measurable.
        book = crew.book()
        assert book is not None
        assert crew.facts().incarnation <= book.incarnation
        done = crew.recover()
        assert done.epochs == {"studio": 2}
        until(lambda: running.worker.health().ok, "the worker to be well again by itself")
        assert crew.sent == ["a", "b"], "what the copy holds waits for a person"
        crew.readmit()
        until(lambda: "c" in crew.sent, "work to go on")
        runs_on(crew, running, "d")
    with crew.working() as running:
        # A restart after the recovery is an ordinary restart.
        runs_on(crew, running, "e")


def test_a_worker_that_slept_through_a_recovery_does_not_freeze_again(crew: Crew, tmp_path: Path) -> None:
    """It remembers the ledger from before; the database it meets is another one, and was recovered meanwhile."""
    path = tmp_path / "jobs.db"
    with crew.working() as running:
        runs_on(crew, running, "a")
        sleeper = running.worker._authority
        assert sleeper is not None
        assert sleeper._last is not None
        old = sleeper._last.book
    backup(path, tmp_path / "backup.db")
    rename(tmp_path / "backup.db", path)
    with crew.working() as running:
        assert "IDENTITY_CHANGED" in (frozen(running) or "")
        crew.recover()
        until(lambda: running.worker.health().ok, "the worker to be well")
        awake = running.worker._authority
        assert awake is not None
        assert awake._last is not None
        awake._last = replace(awake._last, book=old, leads=True)
        before = ticks(running)
        until(lambda: ticks(running) > before + 1, "more ticks")
        assert frozen(running) is None
        assert running.worker.health().ok


def test_a_running_worker_notices_within_a_second_or_two(crew: Crew, tmp_path: Path) -> None:
    path, copy = tmp_path / "jobs.db", tmp_path / "backup.db"
    with crew.working() as running:
        runs_on(crew, running, "a")
        backup(path, copy)
        runs_on(crew, running, "b")
        before = ticks(running)
        until(lambda: ticks(running) > before + 1, "more ticks")
        assert frozen(running) is None
        through_sqlite(copy, path)
        until(lambda: frozen(running), "the worker to notice", within=10)
        assert "COUNTER_BEHIND" in (frozen(running) or "")
        crew.create("c")
        assert "c" not in crew.sent
        crew.recover()
        crew.readmit()
        until(lambda: "c" in crew.sent, "work to go on")


def test_a_file_copied_without_its_wal_is_an_older_one(crew: Crew, tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with crew.working() as running:
        runs_on(crew, running, "a")
        # While a connection is open, what was committed last is in the WAL alone.
        assert path.with_name("jobs.db-wal").stat().st_size > 0
        shutil.copyfile(path, tmp_path / "copy.db")
    overwrite(tmp_path / "copy.db", path)
    with crew.working() as running:
        assert frozen(running)


@pytest.mark.parametrize("with_ledger", [True, False])
def test_a_copy_elsewhere_is_frozen_with_its_ledger_or_without(crew: Crew, tmp_path: Path, with_ledger: bool) -> None:
    with crew.working() as running:
        runs_on(crew, running, "a")
    there = tmp_path / "there"
    there.mkdir()
    backup(tmp_path / "jobs.db", there / "jobs.db")
    if with_ledger:
        shutil.copyfile(tmp_path / "jobs.db.ledger", there / "jobs.db.ledger")
    moved = Crew(f"sqlite:///{there}/jobs.db")
    with moved.working() as running:
        assert str(Cause.IDENTITY_CHANGED if with_ledger else Cause.LEDGER_MISSING) in (frozen(running) or "")
        moved.create("b")
        moved.recover()
        moved.readmit()
        until(lambda: "b" in moved.sent, "a move that was meant to go on")
        runs_on(moved, running, "c")
    with crew.working() as running:
        runs_on(crew, running, "the control")


def test_a_ledger_that_is_deleted_under_a_worker_freezes(crew: Crew, tmp_path: Path) -> None:
    with crew.working() as running:
        runs_on(crew, running, "a")
        (tmp_path / "jobs.db.ledger").unlink()
        until(lambda: frozen(running), "the worker to notice", within=10)
        assert "LEDGER_MISSING" in (frozen(running) or "")
        crew.recover()
        crew.readmit()
        runs_on(crew, running, "b")


def test_the_ledger_of_another_store_freezes(crew: Crew, tmp_path: Path) -> None:
    other = Crew(f"sqlite:///{tmp_path}/other.db")
    app = other.app()
    app.migrate()
    app.close()
    for one in (crew, other):
        with one.working() as running:
            runs_on(one, running, "a")
    shutil.copyfile(tmp_path / "other.db.ledger", tmp_path / "jobs.db.ledger")
    with crew.working() as running:
        assert "LEDGER_FOREIGN" in (frozen(running) or "")
    with other.working() as running:
        runs_on(other, running, "b")


def test_a_new_database_takes_over_the_ledger_that_is_there(crew: Crew, tmp_path: Path) -> None:
    """Somebody deletes the database and begins anew: not frozen, and what was forbidden stays forbidden."""
    with crew.working() as running:
        runs_on(crew, running, "a")
        running.app.service.freeze_tenant("studio", actor="op:1", reason="r")
    forget_wal(tmp_path / "jobs.db")
    (tmp_path / "jobs.db").unlink()
    app = crew.app()
    app.migrate()
    app.close()
    crew.create("b")
    with crew.working() as running:
        assert frozen(running) is None
        assert running.app.service.list_tenants()[0].frozen
        running.app.service.thaw_tenant("studio", actor="op:1", reason="r")
        until(lambda: "b" in crew.sent, "b to run")
    with crew.working() as running:
        runs_on(crew, running, "c")


def test_a_copy_from_before_the_ledger_began_is_noticed(crew: Crew, tmp_path: Path) -> None:
    path, copy = tmp_path / "jobs.db", tmp_path / "backup.db"
    crew.create("a")
    backup(path, copy)
    with crew.working() as running:
        until(lambda: "a" in crew.sent, "a to run")
        runs_on(crew, running, "b")
    overwrite(copy, path)
    with crew.working() as running:
        assert "LEDGER_FOREIGN" in (frozen(running) or "")
        assert crew.sent == ["a", "b"]


def test_opening_is_enough_to_notice(crew: Crew, tmp_path: Path) -> None:
    path, copy = tmp_path / "jobs.db", tmp_path / "backup.db"
    lives_on(crew, path, copy)
    app = crew.app()
    assert app.service.claim_job("by hand") is None
    assert crew.facts().frozen is None
    app.close()
    overwrite(copy, path)
    app = crew.app()
    job = app.service.list_jobs(status="queued")[0]
    assert job.held_reason is not None
    assert job.held_reason.startswith("database frozen")
    assert app.service.claim_job("by hand") is None
    app.close()


# --- a pending act, and a ledger that does not answer -----------------------------------------------------------------


def test_an_act_whose_author_died_is_applied_by_the_next_worker(crew: Crew) -> None:
    from tenure.flows.authority import freeze_tenant, rotate_tenant
    from tenure.yields import Transact, new_id

    with crew.working() as running:
        runs_on(crew, running, "a")
    app = crew.app()
    for flow in (rotate_tenant, freeze_tenant):
        script = flow(app.store.ledger, new_id(), "studio", "op:1", "leaked").script()
        step = next(script)
        try:
            while True:
                if isinstance(step, Transact) and step.procedure.name in {"rotate", "freeze"}:
                    step.procedure.script().close()
                    break  # here it dies: the ledger knows, the database does not
                asked = app.store.run(step.procedure) if isinstance(step, Transact) else step.function(*step.args)
                step = script.send(asked)
        finally:
            script.close()
    assert app.service.show_tenant("studio").epoch == 1
    app.close()
    with crew.working() as running:
        assert frozen(running) is None, "what is pending is never counted as behind"
        shown = running.app.service.show_tenant("studio")
        assert (shown.epoch, shown.frozen) == (2, True)
        assert {(one.what, one.actor) for one in shown.acts} == {("rotated", "op:1"), ("frozen", "op:1")}
        book = crew.book()
        assert book is not None
        assert (book.epochs["studio"], book.frozen("studio"), dict(book.pending)) == (2, True, {})


def test_an_act_that_was_done_and_ended_since_is_not_done_again(crew: Crew) -> None:
    """A worker remembers a freeze as pending that was confirmed and thawed meanwhile."""
    with crew.working() as running:
        runs_on(crew, running, "a")
    app = crew.app()
    app.service.freeze_tenant("studio", actor="op:1", reason="r")
    (frozen_by,) = app.service.show_tenant("studio").acts
    assert frozen_by.what == "frozen"
    rows = []
    with app.store.transaction() as tx:
        rows = tx.execute("SELECT act_id FROM tenure_authority_event").fetchall()
    app.service.thaw_tenant("studio", actor="op:1", reason="r")
    book = crew.book()
    assert book is not None
    act = Pending(rows[0][0], "frozen", "studio", 1, "op:1", "r")
    stale = replace(book, pending={act.id: act})
    found = app.store.run(tick(stale, app.store.file_identity(), sure=True))
    assert found.applied == (act.id,)
    assert not app.service.show_tenant("studio").frozen
    # The control: one that nobody has done is.
    other = replace(act, id="00000000-0000-0000-0000-000000000001")
    app.store.run(tick(replace(book, pending={other.id: other}), app.store.file_identity(), sure=True))
    assert app.service.show_tenant("studio").frozen
    app.close()


def test_an_act_that_is_refused_leaves_nothing_pending(crew: Crew) -> None:
    with crew.working() as running:
        runs_on(crew, running, "a")
        store = running.app.store
        service = running.app.service
        assert service.rotate_tenant("studio", actor="op:1", reason="r").epoch == 2
        with store.transaction() as tx:
            tx.execute("INSERT INTO tenure_meta (key, value) VALUES ('frozen', 'by hand')")
        with pytest.raises(Refused):
            service.rotate_tenant("studio", actor="op:1", reason="r")
        assert not store.ledger.read().pending
        with store.transaction() as tx:
            tx.execute("DELETE FROM tenure_meta WHERE key = 'frozen'")
        assert service.rotate_tenant("studio", actor="op:1", reason="r").epoch == 3
        assert store.ledger.read().epochs["studio"] == 3


def test_a_rotation_lost_inside_the_last_tick_is_noticed_by_its_epoch(crew: Crew, tmp_path: Path) -> None:
    """The counter of the copy is not behind; the epoch is."""
    path, copy = tmp_path / "jobs.db", tmp_path / "backup.db"
    with crew.working() as running:
        runs_on(crew, running, "a")
    backup(path, copy)
    app = crew.app()
    app.service.rotate_tenant("studio", actor="op:1", reason="r")
    app.close()
    overwrite(copy, path)
    with crew.working() as running:
        assert "EPOCH_BEHIND" in (frozen(running) or "")
        assert crew.recover().epochs == {"studio": 3}


def test_a_ledger_that_cannot_be_read_stops_claims_after_a_while(
    crew: Crew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = tmp_path / "jobs.db.ledger"
    with crew.working() as running:
        runs_on(crew, running, "a")
        watch = running.worker._authority
        assert watch is not None
        whole = ledger.read_bytes()
        ledger.write_bytes(whole + b"damage")
        until(lambda: watch.trouble, "the worker to notice")
        assert watch.trouble == "LEDGER_DAMAGED"
        assert not running.worker.health().ok
        crew.create("b")
        until(lambda: "b" in crew.sent, "work to go on for a while")
        assert frozen(running) is None
        watch._grace = 0.0
        assert watch.holds
        crew.create("c")
        before = running.worker._supervisor.pulses["claim"].at
        until(lambda: running.worker._supervisor.pulses["claim"].at > before, "the claim loop to go round")
        assert "c" not in crew.sent
        assert "nothing is claimed" in " ".join(running.worker.health().problems)
        watch._grace = 30.0
        assert not watch.holds
        watch._grace = 0.0
        ledger.write_bytes(whole)
        until(lambda: watch.trouble is None, "the ledger to be back")
        watch._grace = 30.0
        until(lambda: "c" in crew.sent, "work to go on when the ledger is back")
        until(lambda: running.worker.health().ok, "health")
    assert authority.LEDGER_GRACE.total_seconds() == 30


def test_a_worker_does_not_start_on_a_ledger_that_it_cannot_believe(crew: Crew, tmp_path: Path) -> None:
    with crew.working() as running:
        runs_on(crew, running, "a")
    ledger = tmp_path / "jobs.db.ledger"
    whole = ledger.read_bytes()
    ledger.write_bytes(whole[:-3])
    with pytest.raises(Refused) as raised, crew.working():
        pass
    assert raised.value.code == "LEDGER_DAMAGED"
    # A producer is not kept from its work.
    crew.create("b")
    ledger.write_bytes(whole)
    with crew.working():
        until(lambda: "b" in crew.sent, "b to run")


def test_a_database_in_memory_has_no_ledger() -> None:
    app = make_app("sqlite:///:memory:")
    app.migrate()
    assert app.store.ledger is None
    app.close()


def test_fifty_jobs_that_were_done_since_are_not_done_again(crew: Crew, tmp_path: Path) -> None:
    path, copy = tmp_path / "jobs.db", tmp_path / "backup.db"
    with crew.working():
        pass  # the ledger begins
    app = crew.app()
    for nth in range(50):
        app.enqueue(KIND, {"key": f"k{nth}"}, key=f"k{nth}")
    taken = app.service.claim_jobs("gone", limit=10, start=True, lease_duration=timedelta(milliseconds=500))
    app.close()
    assert len(taken) == 10
    backup(path, copy)
    with crew.working() as one, crew.working() as two:
        until(lambda: len(set(crew.sent)) == 50, "all to be done")
        before = ticks(one)
        until(lambda: ticks(two) > before + 2, "more ticks")
    assert sorted(crew.sent) == sorted({f"k{nth}" for nth in range(50)})
    overwrite(copy, path)
    with crew.working() as one, crew.working() as two:
        for running in (one, two):
            assert "COUNTER_BEHIND" in (frozen(running) or "")
        before_at = two.worker._supervisor.pulses["tend"].at
        until(lambda: two.worker._supervisor.pulses["tend"].at > before_at, "a pass that would settle leases")
        crew.recover()
        until(lambda: one.worker.health().ok and two.worker.health().ok, "both to be well")
        jobs = one.app.service.list_jobs()
        assert {job.phase for job in jobs} <= {"HELD", "LEASED"}
        assert len(crew.sent) == 50, "the books still say fifty"


def test_a_holder_from_before_the_restore_is_refused_and_its_receipt_is_kept(crew: Crew, tmp_path: Path) -> None:
    path, copy = tmp_path / "jobs.db", tmp_path / "backup.db"
    mailer = FakeProvider("mailer")
    with crew.working() as running:
        runs_on(crew, running, "a")
    app = crew.app()
    app.enqueue(KIND, {"key": "b"}, key="b")
    held = app.service.claim_job("by hand", start=True, lease_duration=timedelta(hours=1))
    assert held is not None
    app.service.begin_effect(held.lease, name="mail", request={}, provider=mailer)
    app.close()
    backup(path, copy)
    with crew.working() as running:
        before = ticks(running)
        until(lambda: ticks(running) > before + 1, "more ticks")
    overwrite(copy, path)
    app = crew.app()
    service = app.service
    with pytest.raises(EpochClosed) as closed:
        service.begin_effect(held.lease, name="more", request={}, provider=mailer)
    assert closed.value.reason == "frozen"
    with pytest.raises(EpochClosed) as closed:
        service.finish_effect(held.lease, name="mail", outcome=Succeeded({"id": 1}))
    assert closed.value.reason == "frozen"
    assert [one.kind for one in app.store.run(list_evidence(held.job.id))] == ["accepted"]
    assert (
        service.sweep_reconciliation_candidates(
            organization="studio", project="sales", lookup=lambda _key, _job: Accepted({})
        )
        == []
    )
    crew.recover()
    with pytest.raises(EpochClosed) as closed:
        service.complete_job(held.lease, result=None)
    assert closed.value.reason == "epoch"
    # The control: who is current passes.
    app.enqueue(KIND, {"key": "c"}, key="c")
    current = service.claim_job("by hand", start=True)
    assert current is not None
    service.complete_job(current.lease, result=None)
    app.close()


def test_awaiting_verbs_tell_the_ledger_as_blocking_ones_do(crew: Crew) -> None:
    with crew.working() as running:
        runs_on(crew, running, "a")

    async def act() -> list[int]:
        async with await open_async_store(crew.url) as store:
            service = AsyncDurableJobService(store, actor="op:1")
            first = await service.rotate_tenant("studio", reason="r")
            await service.freeze_tenant("studio", reason="r")
            book = crew.book()
            assert book is not None
            assert (book.epochs["studio"], book.frozen("studio")) == (2, True)
            await service.thaw_tenant("studio", reason="r")
            return [first.epoch, (await service.show_tenant("studio")).epoch]

    assert asyncio.run(act()) == [2, 2]
    book = crew.book()
    assert book is not None
    assert not book.frozen("studio")
    assert not book.pending
    with crew.working() as running:
        runs_on(crew, running, "b")
