"""
Drive a flow: commit its procedures on a store, make its calls, hand errors back in.

Two drivers for two kinds of caller; the order of commits and calls is the flow's alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tenure.yields import Call, Flow, Procedure, Transact

T = TypeVar("T")


def run_flow(
    flow: Flow[T], commit: Callable[[Procedure[Any]], Any], wait: Callable[[Awaitable[Any]], Any] | None = None
) -> T:
    """
    Run a flow for a blocking caller.

    Args:
        commit: `store.run`.
        wait: What to do with a call's awaitable, when a function of the flow is async.
    """
    script = flow.script()
    resume: Callable[[Any], Transact[Any] | Call] = script.send
    given: Any = None
    while True:
        try:
            step = resume(given)
        except StopIteration as end:
            result: T = end.value
            return result
        try:
            resume, given = script.send, _blocking(step, commit, wait)
        except BaseException as error:  # noqa: BLE001 - the flow decides what an error means, cancellation included
            resume, given = script.throw, error


def _blocking(
    step: Transact[Any] | Call, commit: Callable[[Procedure[Any]], Any], wait: Callable[[Awaitable[Any]], Any] | None
) -> Any:
    if isinstance(step, Transact):
        return commit(step.procedure)
    value = step.function(*step.args)
    if inspect.isawaitable(value):
        assert wait is not None, f"the call {step.name} is async and nobody waits for it"
        return wait(value)
    return value


async def run_flow_async(flow: Flow[T], commit: Callable[[Procedure[Any]], Awaitable[Any]]) -> T:
    """Run a flow for an awaiting caller; see `run_flow`."""
    script = flow.script()
    resume: Callable[[Any], Transact[Any] | Call] = script.send
    given: Any = None
    while True:
        try:
            step = resume(given)
        except StopIteration as end:
            result: T = end.value
            return result
        try:
            resume, given = script.send, await _awaiting(step, commit)
        except BaseException as error:  # noqa: BLE001 - the flow decides what an error means, cancellation included
            resume, given = script.throw, error


async def _awaiting(step: Transact[Any] | Call, commit: Callable[[Procedure[Any]], Awaitable[Any]]) -> Any:
    if isinstance(step, Transact):
        return await commit(step.procedure)
    value = step.function(*step.args)
    return await value if inspect.isawaitable(value) else value
