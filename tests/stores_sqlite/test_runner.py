"""Driving a procedure, blocking and awaiting, and the guard of a publish block."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pytest

from tenure.errors import Conflict, IllegalMove
from tenure.guard import guard, refuse_inside
from tenure.stores.runner import (
    Requests,
    asked,
    drive,
    drive_async,
    pauses,
    settle,
)
from tenure.stores.sqlite.store import SqliteStore
from tenure.yields import AfterCommit, Each, Procedure, Rows, Script, Statement, procedure
from tests.stores_sqlite.toy import count, count_aside, put, toy_store

Driver = Callable[[Procedure[Any], Callable[[Requests], list[Rows]]], Any]


def awaited(asked_for: Procedure[Any], answer: Callable[[Requests], list[Rows]]) -> Any:
    async def answer_async(requests: Requests) -> list[Rows]:
        await asyncio.sleep(0)
        return answer(requests)

    return asyncio.run(drive_async(asked_for, answer_async))


@pytest.fixture(params=[drive, awaited], ids=["blocking", "awaiting"])
def driver(request: pytest.FixtureRequest) -> Driver:
    chosen: Driver = request.param
    return chosen


def test_answers_have_the_shape_of_the_requests(driver: Driver) -> None:
    sent: list[list[str]] = []

    def answer(requests: Requests) -> list[Rows]:
        sent.append([one.name for one in requests])
        return [[(one.name, len(one.rows) if isinstance(one, Each) else 0)] for one in requests]

    @procedure
    def script() -> Script[list[Any]]:
        found = []
        found.append((yield Statement("a")))
        found.append((yield Each("b", [(1,), (2,)])))
        found.append((yield Each("not sent", [])))
        found.append((yield [Statement("c"), Each("not sent", []), Each("d", [(1,)])]))
        found.append((yield [Each("not sent", [])]))
        found.append((yield []))
        found.append((yield [Statement("e")]))
        return found

    assert driver(script(), answer) == [
        [("a", 0)],
        [("b", 2)],
        [],
        [[("c", 0)], [], [("d", 1)]],
        [[]],
        [],
        [[("e", 0)]],
    ]
    assert sent == [["a"], ["b"], ["c", "d"], ["e"]]


def test_an_error_of_the_database_ends_the_procedure_which_cannot_catch_it(driver: Driver) -> None:
    steps: list[str] = []

    @procedure
    def stubborn() -> Script[str]:
        try:
            yield Statement("a")
        except Exception:  # noqa: BLE001 - what a careless procedure might do
            steps.append("caught")
        finally:
            steps.append("left")
        return "went on"

    def answer(_requests: Requests) -> list[Rows]:
        raise LookupError("the database failed")

    with pytest.raises(LookupError) as raised:
        driver(stubborn(), answer)
    assert steps == ["left"]
    assert raised.value.__notes__ == ["in <procedure stubborn>"]


def test_an_answer_that_stops_an_iteration_is_an_error_not_an_end(driver: Driver) -> None:
    def answer(_requests: Requests) -> list[Rows]:
        raise StopIteration

    @procedure
    def script() -> Script[str]:
        yield Statement("a")
        return "end"

    with pytest.raises((StopIteration, RuntimeError)):
        driver(script(), answer)


def test_a_refusal_passes_through_and_a_value_comes_back(driver: Driver) -> None:
    @procedure
    def refused() -> Script[None]:
        yield Statement("a")
        raise Conflict("no")

    @procedure
    def nothing() -> Script[int]:
        return 7
        yield Statement("never")

    def answer(requests: Requests) -> list[Rows]:
        return [[] for _ in requests]

    with pytest.raises(Conflict):
        driver(refused(), answer)
    assert driver(nothing(), answer) == 7


def test_after_commit_is_raised_by_settle_only(driver: Driver) -> None:
    @procedure
    def told() -> Script[AfterCommit]:
        yield Statement("a")
        return AfterCommit(Conflict("told"))

    value = driver(told(), lambda requests: [[] for _ in requests])
    assert isinstance(value, AfterCommit)
    with pytest.raises(Conflict):
        settle(value)
    assert settle("value") == "value"


def test_a_procedure_that_a_store_refused_is_not_a_forgotten_one() -> None:
    def refuse(refusing: Callable[[Procedure[int]], Any]) -> list[str]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            asked_for = count()
            refusing(asked_for)
            del asked_for
            gc.collect()
        return [str(one.message) for one in seen if "procedure count" in str(one.message)]

    @contextmanager
    def plain(_procedure: Procedure[int]) -> Iterator[None]:
        yield

    def within(block: Callable[[Procedure[int]], Any]) -> Callable[[Procedure[int]], None]:
        def refusing(one: Procedure[int]) -> None:
            with pytest.raises(Conflict), block(one):
                raise Conflict("no")

        return refusing

    assert refuse(within(asked)) == []
    assert len(refuse(within(plain))) == 1


# The guard.


def test_inside_a_publish_every_verb_of_the_store_is_refused_at_once(either: SqliteStore) -> None:
    with guard(either):
        uses = [
            lambda: either.run(put("a")),
            lambda: either.run(count_aside()),
            lambda: either.transaction().__enter__(),
            either.migrate,
        ]
        for use in uses:
            with pytest.raises(IllegalMove, match=r"tx\.run") as raised:
                use()
            assert raised.value.code == "INSIDE_PUBLISH"
    assert either.run(put("a")) == "a"
    assert either.run(count_aside()) == 1


def test_a_transaction_opened_before_the_guard_is_the_way_to_write(either: SqliteStore) -> None:
    with either.transaction() as tx, guard(either):
        tx.run(put("a"))
        with pytest.raises(IllegalMove):
            either.run(put("b"))
    assert either.run(count()) == 1


def test_another_store_may_be_used_inside(store: SqliteStore, memory: SqliteStore, url: str) -> None:
    with guard(store), toy_store(url) as twin:
        assert memory.run(put("a")) == "a"
        with pytest.raises(IllegalMove):
            twin.run(put("a"))
    awaiting = memory.awaiting()
    with awaiting.blocking() as third, guard(memory), pytest.raises(IllegalMove):
        third.run(put("a"))
    asyncio.run(awaiting.close())
    with guard(memory), toy_store("sqlite:///:memory:") as other:
        other.migrate()
        assert other.run(put("a")) == "a"


def test_guards_may_be_nested_and_end_with_their_block(store: SqliteStore) -> None:
    with guard(store):
        with guard(store):
            pass
        with pytest.raises(IllegalMove):
            refuse_inside(store)
        refuse_inside(store, only="INSIDE_TRANSACTION")
    refuse_inside(store)


def test_the_guard_reaches_the_tasks_started_inside_and_ends_for_them_too(store: SqliteStore) -> None:
    async def main() -> list[str]:
        gone = asyncio.Event()
        said: list[str] = []

        async def inside() -> None:
            try:
                refuse_inside(store)
            except IllegalMove as error:
                said.append(error.code)
            await gone.wait()
            refuse_inside(store)
            said.append("free")

        async def beside() -> None:
            refuse_inside(store)
            said.append("beside")

        other = asyncio.ensure_future(beside())
        with guard(store):
            task = asyncio.ensure_future(inside())
            await asyncio.sleep(0)
            await other
        gone.set()
        await task
        return said

    assert sorted(asyncio.run(main())) == ["INSIDE_PUBLISH", "beside", "free"]


def test_pauses_grow_with_jitter_and_end_with_the_patience() -> None:
    values = list(islice(pauses(60.0, first=0.001, longest=0.05), 200))
    assert all(0 < pause <= 0.05 for pause in values)
    assert max(values[:2]) <= 0.002
    assert max(values[50:]) > 0.02
    assert len(set(values)) > 100
    assert list(pauses(0.0)) == []
    began = time.monotonic()
    for pause in pauses(0.05, first=0.01, longest=0.02):
        time.sleep(pause)
    assert 0.04 <= time.monotonic() - began < 2.0
