"""The points themselves: where they are, what counts as a commit, and that a wrapped thing is still the thing."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

import tenure.flows
import tenure.procedures
from tenure import verbs
from tenure.connectors.provider import Provider, check_provider, terms
from tenure.errors import IllegalMove, Invalid, LeaseLost, Uncertain
from tenure.journal.receipts import ReceiptJournal
from tenure.procedures.hold import completing, hold_one
from tenure.procedures.publish import close_publish, open_publish
from tenure.procedures.reconcile import find_candidate_scopes
from tenure.rules.outcome import Accepted, Evidence, Outcome, Succeeded
from tenure.service import AsyncDurableJobService, DurableJobService
from tenure.stores import open_async_store, open_store
from tenure.testing import CrashPoints, FakeProvider, known_points
from tenure.testing.crash_points import point_name, read_point
from tenure.yields import Procedure, new_id
from tests.crash.fakes import Killed, mailer
from tests.crash.forks import Forks
from tests.crash.office import KIND, Hand, open_office
from tests.crash.scene import ORGANIZATION, PROJECT, Scene
from tests.support.tree import SRC, parsed

QUOTE = {"id": 17, "to": "ann@example.org"}


def killed() -> None:
    raise Killed


def create(service: DurableJobService) -> Any:
    return service.create_job(
        organization=ORGANIZATION, project=PROJECT, idempotency_key="k-1", kind=KIND, payload={"id": 17}
    )


# --- which points there are -------------------------------------------------------------------------------------------


def test_every_procedure_that_writes_has_its_points_and_no_reader_has() -> None:
    made: dict[str, bool] = {}
    for path in SRC.joinpath("procedures").glob("*.py"):
        for node in parsed(path).body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue  # a private one only hands on what a public one says
            if any("procedure" in ast.unparse(m) for m in node.decorator_list):
                made[node.name] = any("reads=True" in ast.unparse(m) for m in node.decorator_list)
    assert sum(made.values()) >= 5
    assert {name for name, reads in made.items() if not reads} == {
        point.partition(":")[0] for point in known_points() if point.endswith("_commit")
    }


def test_every_call_of_a_flow_has_its_points() -> None:
    calls = {point.partition(":")[0] for point in known_points() if not point.endswith("_commit")}
    ledger = {"ledger_outside", "ledger_read", "ledger_begin", "ledger_write"}
    assert calls == {"send", "keep", "lookup", "deliver", *ledger}
    text = "".join(path.read_text() for path in SRC.joinpath("flows").glob("*.py"))
    assert text.count('call("') == len(calls)


def test_points_come_in_pairs() -> None:
    pairs = Counter(point.partition(":")[0] for point in known_points())
    assert set(pairs.values()) == {2}
    assert len(pairs) >= 30


@pytest.mark.parametrize(
    "text,read",
    [
        ("claim:after_commit", ("claim:after_commit", 1)),
        ("claim:after_commit:3", ("claim:after_commit", 3)),
        ("mine:now:12", ("mine:now", 12)),
    ],
)
def test_a_point_is_read(text: str, read: tuple[str, int]) -> None:
    assert read_point(text) == read


@pytest.mark.parametrize("text", ["", "claim", "claim:1", ":", "claim:after_commit:0", "claim:after_commit:-1:2:"])
def test_what_is_no_point_is_refused(text: str) -> None:
    if text.endswith(":2:"):
        text = "after:"
    with pytest.raises(Invalid, match="what:when"):
        read_point(text)


def test_the_environment_says_where(tmp_path: Path) -> None:
    log = tmp_path / "points"
    points = CrashPoints.from_environment({"CRASH_AT": "mine:now:2", "CRASH_ACT": "stop", "CRASH_LOG": str(log)})
    assert (points.at, points.times) == ("mine:now", 2)
    points.reach("mine:now")
    points.reach("mine:later")
    assert log.read_text().split() == ["mine:now", "mine:later"] == points.reached
    watching = CrashPoints.from_environment({"CRASH_AT": ""})
    watching.reach("mine:now")
    assert (watching.at, repr(watching)) == (None, "<CrashPoints watching>")


def test_an_unknown_act_is_refused() -> None:
    with pytest.raises(Invalid, match="CRASH_ACT is one of kill, stop"):
        CrashPoints.from_environment({"CRASH_AT": "mine:now", "CRASH_ACT": "wobble"})


def test_it_acts_at_that_time_alone() -> None:
    done: list[int] = []
    points = CrashPoints("mine:now:2", act=lambda: done.append(1))
    for _ in range(3):
        points.reach("mine:now")
        points.reach("mine:later")
    assert len(done) == 1
    assert points.counts == {"mine:now": 3, "mine:later": 3}


# --- what a process says of itself ------------------------------------------------------------------------------------


def dies(given: dict[str, Any]) -> int:
    """Run in a child: pass two points, the second of which is the last thing that happens."""
    points = CrashPoints.from_environment(given)
    points.reach("mine:first")
    points.reach("mine:second")
    points.reach("mine:third")
    return 0


@pytest.mark.parametrize("act", ["kill", "stop"])
def test_a_process_ends_or_stops_at_its_point(act: str, tmp_path: Path) -> None:
    given = {"CRASH_AT": "mine:second", "CRASH_ACT": act, "CRASH_LOG": str(tmp_path / "points")}
    with Forks() as forks:
        child = forks.start("tests.crash.test_points:dies", given, output=tmp_path / "output")
        if act == "kill":
            assert forks.wait(child) == -signal.SIGKILL
        else:
            forks.wait_stopped(child)
        assert (tmp_path / "points").read_text().split() == ["mine:first", "mine:second"]
        if act == "stop":
            os.kill(child, signal.SIGCONT)
            assert forks.wait(child) == 0
            assert (tmp_path / "points").read_text().split()[-1] == "mine:third"
    assert (tmp_path / "output").read_text() == ""


# --- stores -----------------------------------------------------------------------------------------------------------


def test_a_commit_has_a_point_before_and_after_it(scene: Scene) -> None:
    points = CrashPoints("create:before_commit", act=killed)
    with pytest.raises(Killed):
        create(DurableJobService(points.store(scene.store)))
    assert scene.jobs() == []
    points = CrashPoints("create:after_commit", act=killed)
    with pytest.raises(Killed):
        create(DurableJobService(points.store(scene.store)))
    assert len(scene.jobs()) == 1
    assert points.reached == ["create:before_commit", "create:after_commit"]


def test_a_refusal_passes_no_point_and_its_control_does(scene: Scene) -> None:
    points = CrashPoints()
    service = DurableJobService(points.store(scene.store))
    create(service)
    claim = service.claim_job("A", start=True)
    assert claim is not None
    service.complete_job(claim.lease, result=None)
    with pytest.raises(LeaseLost):
        service.complete_job(claim.lease, result=None)
    assert points.counts["hold_one:before_commit"] == points.counts["hold_one:after_commit"] == 1


def test_an_error_that_follows_the_commit_passes_it(scene: Scene) -> None:
    points = CrashPoints()
    app = open_office(scene.store, mailer())
    app.enqueue(KIND, QUOTE, key="quote-17")
    claim = Hand(app).claim()
    assert claim is not None
    scene.service.begin_effect(claim.lease, name="mail", request={}, provider="mailer")
    with pytest.raises(Uncertain):
        points.store(scene.store).run(hold_one(completing(claim.lease, None)))
    assert points.reached == ["hold_one:before_commit", "hold_one:after_commit"]
    assert scene.job(claim.job.id).status.value == "indeterminate"


def test_reading_has_no_points(scene: Scene) -> None:
    points = CrashPoints()
    service = DurableJobService(points.store(scene.store), tenant=ORGANIZATION)
    service.list_jobs()
    points.store(scene.store).run(find_candidate_scopes(None))
    assert points.reached == []


def test_the_procedures_of_a_transaction_share_its_commit(scene: Scene) -> None:
    app = open_office(scene.store, mailer())
    app.enqueue(KIND, QUOTE, key="quote-17")
    claim = Hand(app).claim()
    assert claim is not None
    points = CrashPoints()
    with points.store(scene.store).transaction(deadline=timedelta(seconds=4)) as tx:
        tx.run(open_publish(claim.lease))
        tx.execute("DELETE FROM quote_sent")
        tx.run(close_publish(claim.lease, new_id()))
        assert points.reached == ["open_publish:before_commit", "close_publish:before_commit"]
    assert points.reached[2:] == ["open_publish:after_commit", "close_publish:after_commit"]


def test_a_transaction_that_rolls_back_has_no_point_after_it(scene: Scene) -> None:
    points = CrashPoints("create:before_commit", act=killed)
    with pytest.raises(Killed), points.store(scene.store).transaction() as tx:
        tx.run(verbs.create_jobs(scene.service.scope, [_fields()]))
    assert points.reached == ["create:before_commit"]
    assert scene.jobs() == []


def _fields() -> dict[str, Any]:
    return {
        "organization": ORGANIZATION,
        "project": PROJECT,
        "idempotency_key": "k-1",
        "kind": KIND,
        "payload": {"id": 17},
    }


def test_a_caller_s_own_transaction_commits_without_a_point(scene: Scene) -> None:
    points = CrashPoints()
    with contextlib.closing(_connect(scene)) as connection:
        with points.store(scene.store).join(connection) as tx:
            tx.run(verbs.create_jobs(scene.service.scope, [_fields()]))
        assert points.reached == ["create:before_commit"]
        assert scene.jobs() == []
        connection.commit()
    assert points.reached == ["create:before_commit"]
    assert len(scene.jobs()) == 1


def _connect(scene: Scene) -> Any:
    if scene.dialect == "postgresql":
        return psycopg.connect(scene.url)
    connection = sqlite3.connect(scene.url.removeprefix("sqlite:///"), isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return connection


def test_an_awaiting_caller_s_own_transaction_commits_without_a_point(scene: Scene) -> None:
    async def play(points: CrashPoints) -> None:
        plain = await open_async_store(scene.url, clock=scene.clock)
        async with points.store(plain) as store:  # type: ignore[attr-defined]  # both stores are context managers
            connection: Any
            if scene.dialect == "postgresql":
                connection = await psycopg.AsyncConnection.connect(scene.url)
            else:
                connection = _connect(scene)
            joined = store.join(connection)
            await joined.run(verbs.create_jobs(scene.service.scope, [_fields()]))
            async with joined as tx:
                await tx.run(verbs.create_jobs(scene.service.scope, [{**_fields(), "idempotency_key": "k-2"}]))
            for end in (connection.commit, connection.close):
                if (ended := end()) is not None:
                    await ended

    points = CrashPoints()
    asyncio.run(play(points))
    assert points.reached == ["create:before_commit"] * 2
    assert len(scene.jobs()) == 2


def test_an_awaiting_store_passes_the_same_points(scene: Scene) -> None:
    async def play(points: CrashPoints) -> None:
        plain = await open_async_store(scene.url, clock=scene.clock)
        store = points.store(plain)
        try:
            service = AsyncDurableJobService(store, tenant=ORGANIZATION)
            await service.create_job(**_fields())
            claim = await service.claim_job("A", start=True)
            assert claim is not None
            async with store.transaction() as tx:
                await tx.run(open_publish(claim.lease))
            blocking = store.blocking()
            await asyncio.to_thread(DurableJobService(blocking).heartbeat, claim.lease)
            await asyncio.to_thread(blocking.close)
            await service.complete_job(claim.lease, result=None)
            with pytest.raises(LeaseLost):
                await service.complete_job(claim.lease, result=None)
        finally:
            await plain.close()

    points = CrashPoints()
    asyncio.run(play(points))
    names = ["create", "claim", "open_publish", "heartbeat", "hold_one"]
    assert points.reached == [f"{name}:{when}" for name in names for when in ("before_commit", "after_commit")]
    scene.reset()
    with pytest.raises(Killed):
        asyncio.run(play(CrashPoints("create:before_commit", act=killed)))
    assert scene.jobs() == []


def test_a_wrapped_store_is_the_same_store(scene: Scene) -> None:
    store = CrashPoints().store(scene.store)
    assert (store.dialect, store.url) == (scene.store.dialect, scene.store.url)
    assert store.pending_migrations() == []
    app = open_office(store, mailer())
    app.enqueue(KIND, QUOTE, key="quote-17")

    def publishes(lease: Any) -> None:
        with store.transaction() as tx:
            tx.run(open_publish(lease))
            with pytest.raises(IllegalMove):
                scene.store.run(open_publish(lease))

    claim = Hand(app).claim()
    assert claim is not None
    publishes(claim.lease)


def test_a_wrapped_store_is_closed_like_the_store() -> None:
    points = CrashPoints()
    with points.store(open_store("sqlite:///:memory:")) as store:  # type: ignore[attr-defined]  # as above
        store.migrate()
        awaiting = store.awaiting()
        assert repr(store).startswith("<watched ")
    with pytest.raises(Invalid):
        store.run(find_candidate_scopes(None))
    asyncio.run(awaiting.close())


def test_a_kept_receipt_has_points_around_it(tmp_path: Path) -> None:
    points = CrashPoints()
    with ReceiptJournal(tmp_path) as journal:
        watched = points.journal(journal)
        assert watched.append_receipt("k:1:mail", new_id(), Accepted({"id": "r-1"})) == 1
    assert points.reached == ["keep:before", "keep:after"]
    assert len(list(tmp_path.glob("receipts-*.journal"))) == 1


def test_a_whole_attempt_passes_its_points_in_order(scene: Scene) -> None:
    points = CrashPoints()
    provider = mailer()
    app = open_office(points.store(scene.store), points.provider(provider), reach=points.reach)
    app.enqueue(KIND, QUOTE, key="quote-17")
    hand = Hand(app)
    claim = hand.claim()
    assert claim is not None
    hand.work(claim)
    effect = [
        "begin_effect:before_commit",
        "begin_effect:after_commit",
        "send:before",
        "send:after",
        "finish_effect:before_commit",
        "finish_effect:after_commit",
    ]
    assert points.reached == [
        *("create:before_commit", "create:after_commit", "claim:before_commit", "claim:after_commit"),
        *("handler:begins", *effect, "handler:mailed", *effect, "handler:noted"),
        *("open_publish:before_commit", "close_publish:before_commit"),
        *("open_publish:after_commit", "close_publish:after_commit"),
        *("handler:published", "hold_one:before_commit", "hold_one:after_commit"),
    ]
    assert len(provider.effects()) == 2


def test_a_private_procedure_has_the_name_of_the_one_it_hands_on(scene: Scene) -> None:
    claim = verbs.claim_job(scene.service.scope, "A")
    assert (claim.name, point_name(claim)) == ("_first", "claim")
    scene.store.run(claim)
    made = verbs.create_job(scene.service.scope, **_fields())
    assert (made.name, point_name(made)) == ("_one", "create")
    scene.store.run(made)
    alone = Procedure(_alone, (), {}, reads=False, urgent=False)
    assert point_name(alone) == "alone"
    alone.script().close()


def _alone() -> Any:
    yield []


# --- providers --------------------------------------------------------------------------------------------------------


class Blocking(Provider):
    """A provider that does not await."""

    name = "blocking"

    def send(self, request: Any, operation_key: str) -> Outcome:
        return Succeeded({"key": operation_key})

    def lookup(self, operation_key: str) -> Evidence:
        return Accepted({"key": operation_key})


MAKERS: list[Callable[[], Provider]] = [Blocking, lambda: FakeProvider("fake")]


@pytest.mark.parametrize("make", MAKERS, ids=["blocking", "awaiting"])
def test_a_wrapped_provider_says_and_does_the_same(make: Callable[[], Provider]) -> None:
    points, provider = CrashPoints(), make()
    watched = points.provider(provider)
    check_provider(watched)
    assert terms(watched) == terms(provider)
    assert (watched.timeout, watched.has_lookup) == (provider.timeout, provider.has_lookup)
    outcome: Any = watched.send({"to": "ann"}, "k:1:mail")
    answer: Any = watched.lookup("k:1:mail")
    assert isinstance(asyncio.run(outcome), Succeeded)
    assert isinstance(asyncio.run(answer), Accepted)
    assert points.reached == ["send:before", "send:after", "lookup:before", "lookup:after"]


def test_a_provider_that_cannot_be_asked_still_cannot() -> None:
    watched = CrashPoints().provider(FakeProvider("fake", lookup=False))
    assert watched.has_lookup is False
    assert CrashPoints().provider(FakeProvider("fake")).has_lookup is True


def test_the_source_is_read_from_where_the_package_is() -> None:
    # A point list that is read from elsewhere would be right about another version.
    for package in (tenure.procedures, tenure.flows):
        assert Path(inspect.getfile(package)).is_relative_to(SRC)
