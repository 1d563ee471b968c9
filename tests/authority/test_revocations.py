"""Approvals that were taken back after a backup: the ledger remembers them, and a recovery takes them back again."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import tenure
from tenure import GovernanceInput
from tenure.errors import ApprovalRefused, Conflict, Invalid, NotFound, Refused, Unavailable
from tenure.flows.authority import revoke_approval
from tenure.journal.ledger import COMPACT_BYTES, FileLog, LogLedger
from tenure.opening import open_async_store
from tenure.procedures.authority import tick
from tenure.rules.ledger import KEEP_EXPIRED, REVOKED, Book, restricted, ticked
from tenure.service import AsyncDurableJobService, DurableJobService
from tenure.yields import Transact, new_id
from tests.authority.conftest import Place, migrated, through_sqlite
from tests.authority.crew import Crew, frozen, runs_on, ticks
from tests.contract.build import MAILER
from tests.loops.stage import until

GOVERNED = GovernanceInput(
    action_intent={"send": "quote"},
    capability="mail.send",
    policy="p-7",
    budget={"eur": 1},
    issued_at=datetime(2020, 1, 1, tzinfo=UTC),
    expires_at=datetime(2200, 1, 1, tzinfo=UTC),
)
KIND = "pay"
UNTIL = datetime(2200, 1, 1, tzinfo=UTC)
WHY: dict[str, Any] = {"tenant": "studio", "actor": "user:2", "reason": "wrong account"}


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    return migrated(Crew(f"sqlite:///{tmp_path}/jobs.db"))


def approve(service: DurableJobService, reference: str) -> UUID:
    """Create a governed job and grant what it names."""
    governance = replace(GOVERNED, approval_reference=reference)
    action: dict[str, Any] = {"organization": "studio", "project": "sales", "kind": KIND, "payload": {"n": reference}}
    given = tenure.action_digest(**action, governance=governance)
    service.grant_approval(
        reference, tenant="studio", action_digest=given, expires_at=UNTIL, actor="user:1", reason="looked at it"
    )
    return service.create_job(
        **action,
        idempotency_key=reference,
        governance=governance,
        execution=tenure.ExecutionInput(tenant="studio", actor="user:1", trace="t-1"),
    ).job.id


def begins(service: DurableJobService) -> dict[str, str]:
    """Begin an effect of every governed job, and say how that went by the name of its approval."""
    said = {}
    while (taken := service.claim_job("by hand", kinds=[KIND], start=True)) is not None:
        with contextlib.suppress(Refused):
            service.clear_suspicion(taken.job.id, reason="nothing ran", actor="op:1")
        try:
            service.begin_effect(taken.lease, name="send", request={"n": 1}, provider=MAILER)
            said[taken.job.idempotency_key] = "begun"
        except ApprovalRefused as refused:
            said[taken.job.idempotency_key] = " ".join(refused.reasons)
            service.release_job(taken.lease, reason="refused")
            service.cancel_job(taken.job.id, reason="refused")
    return said


def test_what_was_taken_back_after_the_backup_is_taken_back_in_the_copy(place: Place) -> None:
    crew = place.crew
    with crew.working() as running:
        runs_on(crew, running, "a")
        service = running.app.service
        for reference in ("ap-1", "ap-2"):
            approve(service, reference)
        before = ticks(running)
        until(lambda: ticks(running) > before, "a tick")
    place.keep()
    with crew.working() as running:
        service = running.app.service
        known = service.revoke_approval("ap-1", **WHY)
        # Granted and taken back after the backup: the copy has never heard of it.
        approve(service, "ap-3")
        service.revoke_approval("ap-3", **WHY)
        before = ticks(running)
        until(lambda: ticks(running) > before + 1, "more ticks")
    book = crew.book()
    assert book is not None
    assert {key for key in book.restrictions if key[1] == REVOKED} == {
        ("studio", REVOKED, "ap-1"), ("studio", REVOKED, "ap-3"),
    }  # fmt: skip
    assert not book.pending
    place.put_back()
    with crew.working() as running:
        assert "COUNTER_BEHIND" in (frozen(running) or "")
        service = running.app.service
        assert service.get_approval("ap-1", tenant="studio").state == "granted", "the copy has forgotten it"
        with pytest.raises(Refused) as refused:
            service.revoke_approval("ap-2", **WHY)
        assert refused.value.code == "DATABASE_FROZEN"
        assert crew.recover().revocations == 2
        until(lambda: running.worker.health().ok, "the worker to be well again by itself")
        again = service.get_approval("ap-1", tenant="studio")
        assert (again.state, again.revoked_by, again.revoke_reason) == ("revoked", "user:2", "wrong account")
        assert again.revoked_at == known.revoked_at
        with pytest.raises(Conflict):
            service.grant_approval(
                "ap-3", tenant="studio", action_digest=again.action_digest, expires_at=UNTIL, actor="u", reason="r"
            )
        crew.readmit()
        # Control: what nobody took back allows.
        assert begins(service) == {"ap-1": "REVOKED", "ap-2": "begun"}


def _dies_before_the_database(crew: Crew, reference: str) -> None:
    """A person who takes an approval back, and whose process dies when the ledger knows of it."""
    app = crew.app()
    script = revoke_approval(app.store.ledger, new_id(), "studio", reference, "user:2", "wrong account").script()
    step = next(script)
    while not (isinstance(step, Transact) and step.procedure.name == "revoke_approval"):
        asked = app.store.run(step.procedure) if isinstance(step, Transact) else step.function(*step.args)
        step = script.send(asked)
    step.procedure.script().close()
    script.close()
    assert app.service.get_approval(reference, tenant="studio").state == "granted"
    app.close()


@pytest.mark.parametrize("restored", [False, True])
def test_a_revocation_whose_author_died_is_applied(crew: Crew, tmp_path: Path, *, restored: bool) -> None:
    path, copy = tmp_path / "jobs.db", tmp_path / "backup.db"
    with crew.working() as running:
        runs_on(crew, running, "a")
        for reference in ("ap-1", "ap-2"):
            approve(running.app.service, reference)
    through_sqlite(path, copy)
    with crew.working() as running:
        before = ticks(running)
        until(lambda: ticks(running) > before + 1, "more ticks")
    _dies_before_the_database(crew, "ap-1")
    book = crew.book()
    assert book is not None
    assert [one.what for one in book.pending.values()] == [REVOKED]
    if restored:
        through_sqlite(copy, path)
        app = crew.app()
        assert crew.recover().revocations == 1
        # Before any worker has looked.
        assert app.service.get_approval("ap-1", tenant="studio").state == "revoked"
        app.close()
        crew.readmit()
    with crew.working() as running:
        book = crew.book()
        assert book is not None
        assert not book.pending
        assert ("studio", REVOKED, "ap-1") in book.restrictions
        assert begins(running.app.service) == {"ap-1": "REVOKED", "ap-2": "begun"}


def test_an_act_that_was_refused_or_repeated_leaves_nothing_pending(crew: Crew) -> None:
    with crew.working() as running:
        runs_on(crew, running, "a")
        service, ledger = running.app.service, running.app.store.ledger
        approve(service, "ap-1")
        with pytest.raises(NotFound):
            service.revoke_approval("ap-9", **WHY)
        assert REVOKED not in {kind for _, kind, _ in ledger.read().restrictions}
        first = service.revoke_approval("ap-1", **WHY)
        assert service.revoke_approval("ap-1", **{**WHY, "reason": "other"}) == first
        book = ledger.read()
        assert not book.pending
        assert book.restrictions["studio", REVOKED, "ap-1"]["revoke_reason"] == "wrong account"


def test_what_was_taken_back_before_the_ledger_began_is_in_it(crew: Crew) -> None:
    app = crew.app()
    approve(app.service, "ap-1")
    approve(app.service, "ap-2")
    app.service.revoke_approval("ap-1", **WHY)
    app.close()
    with crew.working() as running:
        runs_on(crew, running, "a")
        book = crew.book()
        assert book is not None
        assert list(book.restrictions) == [("studio", REVOKED, "ap-1")]


def test_a_service_that_was_not_told_of_the_ledger_takes_nothing_back(postgres_database: str, tmp_path: Path) -> None:
    told = Crew(postgres_database, tmp_path / "ledger")
    app = told.app()
    app.migrate()
    app.close()
    with told.working() as running:
        runs_on(told, running, "a")
        approve(running.app.service, "ap-1")
    app = Crew(postgres_database).app()
    with pytest.raises(Invalid) as refused:
        app.service.revoke_approval("ap-1", **WHY)
    assert refused.value.code == "LEDGER_REQUIRED"
    app.close()
    app = told.app()
    assert app.service.revoke_approval("ap-1", **WHY).state == "revoked"
    app.close()


def test_a_ledger_that_cannot_be_written_refuses_and_the_approval_stands(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    with crew.working() as running:
        runs_on(crew, running, "a")
        approve(running.app.service, "ap-1")
    app = crew.app()

    def full(*entries: Any) -> Any:
        raise Unavailable("the disk is full")

    monkeypatch.setattr(app.store.ledger, "write", full)
    with pytest.raises(Unavailable):
        app.service.revoke_approval("ap-1", **WHY)
    assert app.service.get_approval("ap-1", tenant="studio").state == "granted"
    monkeypatch.undo()
    assert app.service.revoke_approval("ap-1", **WHY).state == "revoked"
    app.close()


def test_awaiting_verbs_tell_the_ledger_too(crew: Crew) -> None:
    with crew.working() as running:
        runs_on(crew, running, "a")
        approve(running.app.service, "ap-1")

    async def act() -> str:
        async with await open_async_store(crew.url) as store:
            return (await AsyncDurableJobService(store).revoke_approval("ap-1", **WHY)).state

    assert asyncio.run(act()) == "revoked"
    book = crew.book()
    assert book is not None
    assert ("studio", REVOKED, "ap-1") in book.restrictions


def test_a_new_database_takes_over_what_was_taken_back(crew: Crew, tmp_path: Path) -> None:
    with crew.working() as running:
        runs_on(crew, running, "a")
        approve(running.app.service, "ap-1")
        running.app.service.revoke_approval("ap-1", **WHY)
    for one in tmp_path.glob("jobs.db*"):
        if one.suffix != ".ledger":
            one.unlink()
    app = crew.app()
    app.migrate()
    app.close()
    crew.create("b")
    with crew.working() as running:
        assert frozen(running) is None
        assert running.app.service.get_approval("ap-1", tenant="studio").state == "revoked"


def test_a_ledger_with_many_of_them_is_not_written_anew_at_every_tick(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = LogLedger(FileLog(path))
    ledger.begin(Book(store="s-1", identity="here"))
    soon = datetime(2030, 1, 1, tzinfo=UTC)
    for nth in range(400):
        ledger.write(restricted("acme", REVOKED, f"ap-{nth}", {"expires_at": soon.isoformat(), "text": "x" * 200}))
    assert path.stat().st_size > 3 * COMPACT_BYTES
    files = set()
    for count in range(1, 101):
        ledger.write(ticked(count, count))
        files.add(path.stat().st_ino)
    assert len(files) <= 2
    # What has expired long ago is forgotten when the whole is written anew; what only just has is not.
    late = int((soon + KEEP_EXPIRED + timedelta(days=1)).timestamp() * 1_000_000)
    book = ledger.read()
    assert book is not None
    assert len(replace(book, ticked_at=late).entry()["restrictions"]) == 0
    just = int((soon + timedelta(days=1)).timestamp() * 1_000_000)
    assert len(replace(book, ticked_at=just).entry()["restrictions"]) == 400


def test_a_tick_twice_over_the_same_pending_revocation_changes_nothing(crew: Crew) -> None:
    with crew.working() as running:
        runs_on(crew, running, "a")
        approve(running.app.service, "ap-1")
    _dies_before_the_database(crew, "ap-1")
    app = crew.app()
    book = crew.book()
    assert book is not None
    for _ in range(2):
        found = app.store.run(tick(book, app.store.file_identity(), sure=True))
        assert found.applied == tuple(book.pending)
        assert app.service.get_approval("ap-1", tenant="studio").revoke_reason == "wrong account"
    app.close()
