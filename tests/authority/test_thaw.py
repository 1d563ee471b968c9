"""A thaw and a freeze at the same moment: the ledger never forgets a freeze that the database has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tenure.errors import Invalid
from tenure.flows.authority import thaw_tenant
from tenure.flows.drive import run_flow
from tenure.flows.ledger import Ledger
from tenure.journal.ledger import FileLog, LogLedger
from tenure.procedures.authority import read_facts, tick
from tenure.rules.ledger import FROZEN, Book, ticked
from tenure.service import DurableJobService
from tenure.stores import open_store
from tenure.stores.contract import Store
from tenure.yields import Procedure, new_id

KEY = ("acme", FROZEN, "")
WHY = {"actor": "op:1", "reason": "r"}


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with open_store(f"sqlite:///{tmp_path}/jobs.db") as store:
        store.migrate()
        store.ledger = ledger = LogLedger(FileLog(tmp_path / "ledger"))
        ledger.begin(Book(store="s-1", identity=store.run(read_facts(None, None)).identity))
        book = ledger.read()
        assert book is not None
        found = store.run(tick(book, None, sure=True))
        ledger.write(ticked(found.incarnation, found.at))
        service = DurableJobService(store)
        service.create_job(organization="acme", project="p", idempotency_key="k", kind="send", payload={})
        service.freeze_tenant("acme", **WHY)
        yield store


def restrictions(ledger: Ledger) -> set[tuple[str, str, str]]:
    book = ledger.read()
    assert book is not None
    return set(book.restrictions)


def test_a_thaw_alone_is_in_both(store: Store) -> None:
    assert restrictions(store.ledger) == {KEY}
    DurableJobService(store).thaw_tenant("acme", **WHY)
    assert restrictions(store.ledger) == set()
    assert not DurableJobService(store).show_tenant("acme").frozen


def test_a_freeze_between_a_thaw_and_its_word_to_the_ledger_stays_in_the_ledger(store: Store) -> None:
    def run(procedure: Procedure[Any]) -> Any:
        answer = store.run(procedure)
        if procedure.name == "thaw":
            DurableJobService(store).freeze_tenant("acme", **WHY)
        return answer

    def wait(_: Any) -> Any:
        raise AssertionError("a file is asked in this thread")

    run_flow(thaw_tenant(store.ledger, new_id(), "acme", "op:1", "r"), run, wait)
    assert DurableJobService(store).show_tenant("acme").frozen
    assert restrictions(store.ledger) == {KEY}


def test_what_the_database_never_takes_is_not_left_pending(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    service = DurableJobService(store)
    with pytest.raises(Invalid):
        service.rotate_tenant("acme", actor="", reason="r")
    plain = store.run

    def refusing(procedure: Procedure[Any]) -> Any:
        if procedure.name == "rotate":
            procedure.script().close()
            raise ValueError("a driver's own error")
        return plain(procedure)

    with monkeypatch.context() as patch:
        patch.setattr(store, "run", refusing)
        with pytest.raises(ValueError, match="a driver's own"):
            service.rotate_tenant("acme", **WHY)
    book = store.ledger.read()
    assert dict(book.pending) == {}
    assert service.rotate_tenant("acme", **WHY).epoch == 2
