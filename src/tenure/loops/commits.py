"""
Let the writes of many handlers share transactions.

A handler that waits for its intent to be committed waits for a round trip or two and for the disk. While one
transaction of a kind is under way the next ones of that kind gather, and go together: nobody waits for company, and
whoever comes alone goes alone.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from tenure.errors import Unavailable
from tenure.procedures.rows import ROW_BUSY
from tenure.stores.contract import AsyncStore
from tenure.yields import Procedure

T = TypeVar("T")

BATCH_MAX = 100

_Batch: TypeAlias = Callable[[list[Procedure[Any]]], Procedure[list[Any]]]
_Waiting: TypeAlias = "deque[tuple[Procedure[Any], asyncio.Future[Any]]]"


class Commits:
    """
    The writes of one worker's handlers on their way to the database.

    Args:
        store: Where they are run; what may not run together goes there directly.
    """

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._waiting: dict[_Batch, _Waiting] = {}
        self._serving: set[asyncio.Task[None]] = set()

    async def run(self, procedure: Procedure[T]) -> T:
        """Commit a procedure, with others of its kind where there are any."""
        batch: _Batch | None = procedure.batch
        if batch is None:
            return await self._store.run(procedure)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        line = self._waiting.get(batch)
        if line is None:
            line = self._waiting[batch] = deque()
            # A context of its own: what one handler is inside of is nothing to the others.
            task = asyncio.create_task(self._serve(batch, line), name="tenure-commits", context=contextvars.Context())
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        line.append((procedure, answer))
        return await answer

    async def _serve(self, batch: _Batch, line: _Waiting) -> None:
        try:
            while line:
                group = [line.popleft() for _ in range(min(len(line), BATCH_MAX))]
                if len(group) == 1:
                    await self._alone(*group[0])
                else:
                    await self._together(batch, group)
        finally:
            del self._waiting[batch]
            for procedure, answer in line:
                procedure.script().close()
                answer.cancel()

    async def _alone(self, procedure: Procedure[Any], answer: asyncio.Future[Any]) -> None:
        try:
            value = await self._store.run(procedure)
        except Exception as error:  # noqa: BLE001 - it is handed to whoever waits
            _tell(answer, error)
        except BaseException:
            answer.cancel()
            raise
        else:
            _tell(answer, value)

    async def _together(self, batch: _Batch, group: list[tuple[Procedure[Any], asyncio.Future[Any]]]) -> None:
        answers: list[Any]
        try:
            answers = await self._store.run(batch([procedure for procedure, _ in group]))
        except Unavailable as gone:
            # It may be written all the same, under the batch's identity: asked again under another one, each would find
            # its own write and take it for somebody else's.
            answers = [None if gone.code == ROW_BUSY else Unavailable(str(gone), code=gone.code) for _ in group]
        except Exception:  # noqa: BLE001 - one of them may be the reason; each finds out for itself
            answers = [None] * len(group)
        except BaseException:
            for _, answer in group:
                answer.cancel()
            raise
        left = []
        for (procedure, answer), value in zip(group, answers, strict=True):
            if value is None:
                left.append(self._alone(procedure, answer))
            else:
                _tell(answer, value)
        await asyncio.gather(*left)


def _tell(answer: asyncio.Future[Any], value: Any) -> None:
    if answer.done():
        return  # whoever asked has gone; what was written stands
    if isinstance(value, Exception):
        answer.set_exception(value)
    else:
        answer.set_result(value)
