"""A ledger that comes back from a backup of its own, and one ledger under two copies of a database."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure.flows.drive import run_flow
from tenure.flows.look import Looked, first_look, look
from tenure.journal.ledger import FileLog, LogLedger
from tenure.opening import open_store
from tenure.procedures.authority import read_facts
from tenure.rules.ledger import FROZEN, REVOKED, Book, Cause, Facts, applied, judge, recovered, ticked
from tenure.service import DurableJobService
from tenure.stores import open_store as open_plain
from tenure.stores.contract import Store
from tests.authority.conftest import Place, through_sqlite
from tests.authority.crew import Crew
from tests.authority.test_revocations import approve

WHY = {"actor": "op:1", "reason": "leaked"}


def first(store: Store, file: str | None = None, run: Any = None) -> Looked:
    at = store.file_identity() if file is None else file
    return run_flow(first_look(store.ledger, at, "s-1"), run or store.run)


def again(store: Store, last: Looked, file: str | None = None, run: Any = None) -> Looked:
    at = store.file_identity() if file is None else file
    return run_flow(look(store.ledger, last, at), run or store.run)


@pytest.fixture
def crew(place: Place) -> Crew:
    place.crew.create("a")
    return place.crew


WHO = ("whoever leads", "whoever follows", "whoever starts", "whoever starts, and nobody looked")


@pytest.mark.parametrize("who", WHO)
def test_a_ledger_from_its_own_backup_is_told_again_what_it_forgot(place: Place, crew: Crew, who: str) -> None:
    with (
        open_store(crew.url, authority_ledger=crew.ledger) as store,
        open_store(crew.url, authority_ledger=crew.ledger) as other,
    ):
        leader, follower = first(store), first(other)
        leader = again(store, leader)
        follower = again(other, follower)
        where = Path(store.ledger.where)
        backup = where.with_name("ledger.bak")
        shutil.copy(where, backup)
        place.keep()
        service = DurableJobService(store)
        approve(service, "ap-1")
        service.rotate_tenant("studio", **WHY)
        service.freeze_tenant("studio", **WHY)
        service.revoke_approval("ap-1", tenant="studio", **WHY)
        for _ in range(0 if who.endswith("nobody looked") else 2):
            leader = again(store, leader)
            follower = again(other, follower)
        shutil.copy(backup, where)
        assert not store.ledger.read().frozen("studio")
        found = {
            "whoever leads": lambda: again(store, leader),
            "whoever follows": lambda: again(other, follower),
            "whoever starts": lambda: first(other),
            "whoever starts, and nobody looked": lambda: first(other),
        }[who]()
        assert found.frozen is None
        book = LogLedger(FileLog(where)).read()
        assert book is not None
        assert book.epochs == {"studio": 2}
        assert set(book.restrictions) == {("studio", FROZEN, ""), ("studio", REVOKED, "ap-1")}
        # The control: what is allowed again is forbidden by no look.
        service.thaw_tenant("studio", **WHY)
        again(store, found)
        assert set(store.ledger.read().restrictions) == {("studio", REVOKED, "ap-1")}
        service.freeze_tenant("studio", **WHY)
    place.put_back()
    with open_store(crew.url, authority_ledger=crew.ledger) as store:
        frozen = first(store).frozen
        assert frozen is not None
        assert crew.recover().epochs == {"studio": 3}
        assert DurableJobService(store).show_tenant("studio").frozen


def test_a_ledger_that_missed_nothing_is_told_nothing(crew: Crew) -> None:
    with open_store(crew.url, authority_ledger=crew.ledger) as store:
        last = first(store)
        names: list[str] = []

        def noted(procedure: Any) -> Any:
            names.append(procedure.name)
            return store.run(procedure)

        again(store, last, run=noted)
        assert names == ["tick"]


# --- two copies -------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Store, Store, Looked]]:
    """Two copies of a database that nobody can tell from each other, under one ledger, which knows both."""
    one, two = tmp_path / "one.db", tmp_path / "two.db"
    ledger = LogLedger(FileLog(tmp_path / "ledger"))
    with open_plain(f"sqlite:///{one}") as store:
        store.migrate()
        store.ledger = ledger
        last = first(store, "here")
        through_sqlite(one, two)
        with open_plain(f"sqlite:///{two}") as copy:
            copy.ledger = ledger
            yield store, copy, last


def test_two_copies_that_give_the_same_number_are_noticed(pair: tuple[Store, Store, Looked]) -> None:
    store, copy, last = pair
    leading: list[Looked] = []

    def slow(procedure: Any) -> Any:
        done = copy.run(procedure)
        if procedure.name == "tick" and not leading:
            leading.append(again(store, last, "here"))
        return done

    second = again(copy, last, "here", run=slow)
    assert second.frozen is not None
    assert second.frozen.cause is Cause.COUNTER_TAKEN
    assert not second.leads
    assert DurableJobService(copy).claim_job("A") is None
    # The control: the one whose word the ledger has goes on.
    assert leading[0].leads
    assert again(store, leading[0], "here").frozen is None


def test_a_copy_that_comes_second_is_behind(pair: tuple[Store, Store, Looked]) -> None:
    store, copy, last = pair
    assert again(store, last, "here").leads
    behind = again(copy, last, "here")
    assert behind.frozen is not None
    assert behind.frozen.cause is Cause.COUNTER_BEHIND


def test_two_on_one_database_that_raise_at_once_are_no_copies(crew: Crew) -> None:
    with (
        open_store(crew.url, authority_ledger=crew.ledger) as store,
        open_store(crew.url, authority_ledger=crew.ledger) as other,
    ):
        last = first(store)
        faster: list[Looked] = []

        def slow(procedure: Any) -> Any:
            done = other.run(procedure)
            if procedure.name == "tick" and not faster:
                faster.append(again(store, last))
            return done

        slower = again(other, last, run=slow)
        assert [(one.frozen, one.leads) for one in (faster[0], slower)] == [(None, True), (None, False)]
        book = store.ledger.read()
        facts = store.run(read_facts(book, store.file_identity()))
        assert (facts.incarnation, facts.ticked_at) == (book.incarnation, book.ticked_at)
        assert again(store, faster[0]).frozen is None


def test_the_number_says_whose_it_is() -> None:
    book = Book("s-1", "here", incarnation=7, ticked_at=70)
    assert judge(book, Facts("s-1", "here", 7, 70)) is None
    assert judge(book, Facts("s-1", "here", 8, 80)) is None, "ahead of its ledger, as after a death in between"
    taken = judge(book, Facts("s-1", "here", 7, 71))
    assert taken is not None
    assert taken[0] is Cause.COUNTER_TAKEN
    # A recovery has the last word on its number, and none on a later one.
    assert applied(book, recovered("there", 7, 71, {})).ticked_at == 71
    assert applied(applied(book, ticked(8, 80)), recovered("here", 7, 71, {})).ticked_at == 80
