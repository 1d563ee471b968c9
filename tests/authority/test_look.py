"""Many look at one authority: one raises the counter, each of them notices, and none is missed when it stops."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tenure.errors import Unavailable
from tenure.flows.authority import recover_database
from tenure.flows.drive import run_flow
from tenure.loops.authority import LEDGER_GRACE, AuthorityWatch
from tenure.opening import open_async_store, open_store
from tenure.procedures.authority import Recovered, compare, read_facts
from tenure.procedures.tenants import show_tenant
from tenure.rules.ledger import FROZEN, Book, Cause, restricted, ticked
from tenure.stores.contract import AsyncStore
from tests.authority.conftest import Place
from tests.authority.crew import Crew, frozen, runs_on
from tests.authority.lives import at_once
from tests.loops.stage import until

Story = Callable[[list[AuthorityWatch], list[AsyncStore]], Awaitable[None]]


def watched(crew: Crew, count: int, story: Story) -> None:
    """Play a story with watches that only step when they are told to."""

    async def play() -> None:
        stores: list[AsyncStore] = []
        try:
            while len(stores) < count:
                stores += [await open_async_store(crew.url, authority_ledger=crew.ledger)]
            watches = [AuthorityWatch(store, at_once, wake=lambda: None) for store in stores]
            for one in watches:
                await one.start()
            await story(watches, stores)
        finally:
            for store in stores:
                await store.close()

    asyncio.run(play())


async def facts(store: AsyncStore) -> Any:
    return await store.run(read_facts(None, store.file_identity()))


async def settle(watches: list[AuthorityWatch]) -> None:
    """Let it become clear who raises the counter."""
    for _ in range(3):
        for one in watches:
            await one.step()


def test_one_of_many_raises_the_counter_and_another_one_goes_on_when_it_stops(place: Place) -> None:
    async def story(watches: list[AuthorityWatch], stores: list[AsyncStore]) -> None:
        await settle(watches)
        before = (await facts(stores[0])).incarnation
        for _ in range(5):
            for one in watches:
                await one.step()
        assert (await facts(stores[0])).incarnation == before + 5, "one tick a round, whoever looks"
        # Whoever led stops. Of the others one has found nothing new by its second look.
        leader = next(one for one in watches if one._last is not None and one._last.leads)
        left = [one for one in watches if one is not leader]
        for _ in range(2):
            for one in left:
                await one.step()
        assert (await facts(stores[0])).incarnation > before + 5
        assert all(one.frozen is None and one.trouble is None for one in watches)

    watched(place.crew, 3, story)


@pytest.mark.parametrize("led", [True, False])
def test_whoever_looks_notices_an_older_copy(place: Place, *, led: bool) -> None:
    async def story(watches: list[AuthorityWatch], stores: list[AsyncStore]) -> None:
        await settle(watches)
        await asyncio.to_thread(place.keep)
        await settle(watches)
        assert all(one.frozen is None for one in watches), "the control: nothing was put back yet"
        found = [one for one in watches if one._last is not None and one._last.leads == led]
        await asyncio.to_thread(place.put_back)
        await found[0].step()
        assert found[0].frozen is not None
        assert found[0].frozen.cause is Cause.COUNTER_BEHIND
        assert found[0].frozen.copy_until > 0

    watched(place.crew, 2, story)


def test_a_leader_whose_ledger_takes_nothing_is_followed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise Unavailable("the disk is full", code="DISK_FULL")

    async def story(watches: list[AuthorityWatch], stores: list[AsyncStore]) -> None:
        await settle(watches)
        leader = next(one for one in watches if one._last is not None and one._last.leads)
        (other,) = [one for one in watches if one is not leader]
        assert leader._ledger is not None
        monkeypatch.setattr(leader._ledger, "write", full)
        book = stores[0].ledger.read()
        for _ in range(3):
            await leader.step()
            assert leader.trouble == "DISK_FULL", "for as long as nobody raises it, so that its grace runs out"
        for _ in range(2):
            await other.step()
        assert other.trouble is None
        assert stores[0].ledger.read().incarnation > book.incarnation
        await leader.step()
        assert leader.trouble is None, "it can compare, and need not write"

    watched(place.crew, 2, story)


@pytest.mark.parametrize("answer", ["an error of the system's", "none"])
def test_a_ledger_that_gives_no_answer_stops_claims_whatever_it_does_instead(
    place: Place, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    """A share may hang, and a library may raise what nobody knows: only an answer lets claims go on."""
    woken: list[bool] = []

    async def story(watches: list[AuthorityWatch], stores: list[AsyncStore]) -> None:
        (watch,) = watches
        await watch.step()
        watch._wake = lambda: woken.append(True)
        assert watch._ledger is not None

        async def failing(*_: Any) -> Any:
            if answer == "none":
                await asyncio.Event().wait()
            raise OSError(errno.ESTALE, "stale")

        with monkeypatch.context() as patch:
            patch.setattr(watch._ledger, "read", failing)
            patch.setattr(watch._ledger, "write", failing)
            with pytest.raises((OSError, TimeoutError)):
                await asyncio.wait_for(watch.step(), 0.2)
            assert not watch.holds, "the control: for a while claims go on"
            watch._answered -= LEDGER_GRACE.total_seconds()
            assert watch.holds
            assert "nothing is claimed" in " ".join(watch.problems)
            assert woken == []
        await watch.step()
        assert not watch.holds
        assert watch.problems == ()
        assert woken == [True]

    watched(place.crew, 1, story)


def test_what_is_forbidden_while_a_recovery_begins_is_in_the_database_after_it(place: Place) -> None:
    """Between the first look at the ledger and the word that a recovery is coming somebody freezes a tenant."""
    crew = place.crew
    crew.create("a")
    with crew.working():
        pass
    with open_store(crew.url, authority_ledger=crew.ledger) as store:
        ledger = store.ledger
        book = ledger.read()
        ledger.write(ticked(book.incarnation + 1, book.ticked_at + 1))
        assert store.run(compare(ledger.read(), store.file_identity())) is not None
        seen: list[str] = []

        def commit(procedure: Any) -> Any:
            done = store.run(procedure)
            if procedure.name == "read_facts":
                ledger.write(restricted("studio", FROZEN))
                seen.append("frozen")
            return done

        flow = recover_database(
            ledger, store.file_identity(), "op:1", "r", lambda identity: Book(store="anew", identity=identity)
        )
        run_flow(flow, commit)
        assert seen == ["frozen"]
        assert store.run(show_tenant("studio")).frozen
    with crew.working() as running:
        # The control: it is recovered all the same.
        assert running.worker.health().ok


def test_of_two_people_who_recover_the_second_changes_nothing(place: Place) -> None:
    """Work that was created after the first of them is new work, and no part of any copy."""
    crew = place.crew
    crew.create("a")
    with crew.working() as running:
        runs_on(crew, running, "b")
    place.keep()
    with crew.working() as running:
        runs_on(crew, running, "c")
    place.put_back()
    crew.create("old")
    with crew.working() as running:
        assert frozen(running)
    first: list[Recovered] = []
    with open_store(crew.url, authority_ledger=crew.ledger) as store:

        def slow(procedure: Any) -> Any:
            if procedure.name == "recover_database" and not first:
                first.append(crew.recover())
                crew.create("new")
            return store.run(procedure)

        def new_book(identity: str) -> Book:
            return Book(store="anew", identity=identity)

        second = run_flow(recover_database(store.ledger, store.file_identity(), "op:2", "r", new_book), slow)
        assert [one.changed for one in (*first, second, crew.recover())] == [True, False, False]
        assert second.epochs == first[0].epochs == {"studio": store.run(show_tenant("studio")).epoch}
    app = crew.app()
    by_key = {one.idempotency_key: one for one in app.service.list_jobs()}
    app.close()
    assert (by_key["old"].phase, by_key["old"].suspect) == ("HELD", True)
    assert (by_key["new"].phase, by_key["new"].suspect) == ("READY", False)
    with crew.working() as running:
        until(lambda: "new" in crew.sent, "the new job to run")
        assert "old" not in crew.sent
