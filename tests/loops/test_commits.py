"""The writes of many handlers share transactions, and none of them suffers from another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, cast

import pytest

from tenure.errors import Conflict, Invalid, Unavailable
from tenure.loops.commits import BATCH_MAX, Commits
from tenure.procedures.rows import ROW_BUSY
from tenure.stores.contract import AsyncStore
from tenure.stores.runner import asked, drive
from tenure.yields import Procedure, Script, procedure


@procedure
def put_many(values: Sequence[Procedure[int]]) -> Script[list[int | Exception | None]]:
    yield from ()
    answers: list[int | Exception | None] = []
    for one in values:
        (number,) = one.args
        if number == 13:
            raise ValueError("one of them is wrong")
        if number in {14, 15}:
            raise Unavailable("nobody knows", code=ROW_BUSY if number == 15 else "UNAVAILABLE")
        answers.append(None if number == 7 else Conflict("no") if number == 8 else number)
    return answers


@procedure(batch=put_many)
def put(number: int) -> Script[int]:
    yield from ()
    if number in {8, 13}:
        raise Invalid("no")
    return number


@procedure
def other(number: int) -> Script[int]:
    yield from ()
    return number


class Gate:
    """A store whose first transaction waits until it is told to go on."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self.entered = asyncio.Event()
        self.open = asyncio.Event()

    async def run(self, given: Procedure[Any]) -> Any:
        values = given.args[0]
        self.ran.append([one.args[0] for one in values] if given.name == "put_many" else (given.name, values))
        self.entered.set()
        with asked(given):
            await self.open.wait()
        return drive(given, lambda _: [])


async def through(numbers: Sequence[int]) -> tuple[Gate, list[Any]]:
    """Ask for one, and for the others while it is under way."""
    gate = Gate()
    commits = Commits(cast("AsyncStore", gate))
    waiting: list[Awaitable[Any]] = [asyncio.ensure_future(commits.run(put(0)))]
    await gate.entered.wait()
    waiting += [asyncio.ensure_future(commits.run(put(number))) for number in numbers]
    await asyncio.sleep(0)
    gate.open.set()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert commits._waiting == {}
    return gate, answers[1:]


def test_who_comes_alone_goes_alone_and_who_comes_meanwhile_goes_together() -> None:
    gate, answers = asyncio.run(through([1, 2, 3]))
    assert answers == [1, 2, 3]
    assert gate.ran == [("put", 0), [1, 2, 3]]


def test_a_refusal_is_its_own_and_who_must_go_alone_does() -> None:
    gate, answers = asyncio.run(through([1, 8, 7]))
    assert [answers[0], type(answers[1]), answers[2]] == [1, Conflict, 7]
    assert gate.ran == [("put", 0), [1, 8, 7], ("put", 7)]


def test_where_the_batch_fails_each_finds_out_for_itself() -> None:
    gate, answers = asyncio.run(through([1, 13, 2]))
    assert [answers[0], type(answers[1]), answers[2]] == [1, Invalid, 2]
    assert gate.ran == [("put", 0), [1, 13, 2], ("put", 1), ("put", 13), ("put", 2)]


def test_where_nobody_knows_whether_the_batch_is_written_nobody_asks_under_another_identity() -> None:
    gate, answers = asyncio.run(through([1, 14, 2]))
    assert [(type(answer), answer.code) for answer in answers] == [(Unavailable, "UNAVAILABLE")] * 3
    assert len({id(answer) for answer in answers}) == 3
    assert gate.ran == [("put", 0), [1, 14, 2]]


def test_where_a_row_was_busy_nothing_is_written_and_each_goes_alone() -> None:
    gate, answers = asyncio.run(through([1, 15, 2]))
    assert answers == [1, 15, 2]
    assert gate.ran == [("put", 0), [1, 15, 2], ("put", 1), ("put", 15), ("put", 2)]


def test_a_batch_is_bounded() -> None:
    numbers = list(range(100, 100 + BATCH_MAX + 5))
    gate, answers = asyncio.run(through(numbers))
    assert answers == numbers
    assert [len(one) for one in gate.ran[1:]] == [BATCH_MAX, 5]


def test_what_has_no_batch_goes_to_the_store() -> None:
    async def scene() -> Any:
        gate = Gate()
        gate.open.set()
        return await Commits(cast("AsyncStore", gate)).run(other(5)), gate.ran

    assert asyncio.run(scene()) == (5, [("other", 5)])


def test_one_that_gives_up_waiting_does_not_take_the_others_along() -> None:
    async def scene() -> list[Any]:
        gate = Gate()
        commits = Commits(cast("AsyncStore", gate))
        waiting = [asyncio.ensure_future(commits.run(put(0)))]
        await gate.entered.wait()
        waiting += [asyncio.ensure_future(commits.run(put(number))) for number in (1, 2)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        gate.open.set()
        return await asyncio.gather(*waiting, return_exceptions=True)

    first, gone, last = asyncio.run(scene())
    assert (first, last) == (0, 2)
    assert isinstance(gone, asyncio.CancelledError)


def test_when_the_loop_ends_nobody_waits_for_ever() -> None:
    ended: list[str] = []

    async def waits(commits: Commits, number: int) -> None:
        try:
            await commits.run(put(number))
        except asyncio.CancelledError:
            ended.append(f"{number}")
            raise

    async def scene() -> None:
        gate = Gate()
        commits = Commits(cast("AsyncStore", gate))
        tasks = [asyncio.ensure_future(waits(commits, 0))]
        await gate.entered.wait()
        tasks += [asyncio.ensure_future(waits(commits, 1)) for _ in range(2)]
        await asyncio.sleep(0)
        for served in list(commits._serving):
            served.cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scene())
    assert sorted(ended) == ["0", "1", "1"]
