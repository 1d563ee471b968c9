"""Enqueue in the caller's own open transaction, blocking and awaiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tenure.kinds import Handler
from tenure.procedures.enqueue import Created, create, create_at_once
from tenure.procedures.outbox import Added, add_message
from tenure.rules.creation import NewJob
from tenure.stores.contract import AsyncTransaction, Transaction
from tenure.yields import Procedure

if TYPE_CHECKING:
    from tenure.app.application import Tenure

T = TypeVar("T")


class Epochs:
    """
    Tenants' epochs as an app saw them last: a guess, which the database looks at.

    With the right guess a job is created in one round trip, which is what a caller's own transaction pays for.
    """

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def create_at_once(self, job: NewJob) -> Procedure[Created]:
        """Create a job in the caller's transaction, in one round trip where nothing is in the way."""
        return create_at_once(job, epoch=self._seen.get(job.tenant, 1))

    def noted(self, made: Created) -> Created:
        """Remember the epoch of a job's tenant for the next one."""
        job = made.job
        if self._seen.get(job.tenant, 1) != job.authority.epoch:
            self._seen[job.tenant] = job.authority.epoch
        return made


class Joined:
    """An app's way to enqueue in the caller's transaction, blocking."""

    def __init__(self, app: Tenure, tx: Transaction) -> None:
        self._app = app
        self.tx = tx

    def enqueue(self, handler: Handler | str, payload: Any, *, key: str, **fields: Any) -> Created:
        """See `Tenure.enqueue`; the job exists when your transaction commits."""
        job = self._app.prepare(handler, payload, key=key, **fields)
        return self._app.epochs.noted(self.tx.run(self._app.epochs.create_at_once(job)))

    def enqueue_many(self, jobs: Sequence[NewJob]) -> list[Created]:
        """See `Tenure.enqueue_many`."""
        return self.tx.run(create(jobs))

    def run(self, procedure: Procedure[T]) -> T:
        """Run a procedure in your transaction; what `tenure.outbox.add` and `tenure.inbox.receive` are given."""
        return self.tx.run(procedure)

    def add_message(self, *, destination: str, **fields: Any) -> Added:
        """See `tenure.outbox.add`; the message leaves when your transaction has committed."""
        return self.tx.run(add_message(self._app.prepare_message(destination=destination, **fields)))


class AsyncJoined:
    """An app's way to enqueue in the caller's transaction, awaiting."""

    def __init__(self, app: Tenure, connection: Any) -> None:
        self._app = app
        self._connection = connection

    async def _tx(self) -> AsyncTransaction:
        tx: Any = (await self._app.astore()).join(self._connection)
        joined: AsyncTransaction = tx
        return joined

    async def enqueue(self, handler: Handler | str, payload: Any, *, key: str, **fields: Any) -> Created:
        """See `Joined.enqueue`."""
        job = self._app.prepare(handler, payload, key=key, **fields)
        return self._app.epochs.noted(await (await self._tx()).run(self._app.epochs.create_at_once(job)))

    async def enqueue_many(self, jobs: Sequence[NewJob]) -> list[Created]:
        """See `Joined.enqueue_many`."""
        return await (await self._tx()).run(create(jobs))

    async def run(self, procedure: Procedure[T]) -> T:
        """See `Joined.run`."""
        return await (await self._tx()).run(procedure)

    async def add_message(self, *, destination: str, **fields: Any) -> Added:
        """See `Joined.add_message`."""
        message = self._app.prepare_message(destination=destination, **fields)
        return await (await self._tx()).run(add_message(message))
