"""A worker that counts what it sends, a way to recover, and the two questions: is it frozen, does it work."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tenure import AsyncContext, Job, Tenure
from tenure.errors import TenureError
from tenure.flows.authority import recover_database
from tenure.flows.drive import run_flow
from tenure.opening import open_store
from tenure.procedures.authority import Recovered, read_facts
from tenure.rules.ledger import Book, Facts
from tests.loops.stage import Running, make_app, until

KIND = "send"


class Crew:
    """
    Workers of one app on one store.

    Attributes:
        sent: The keys of every job a handler ran for, in this process and life, whatever database it came from.
    """

    def __init__(self, url: str, ledger: Any = None) -> None:
        self.url = url
        self.ledger = ledger
        self.sent: list[str] = []

    def app(self) -> Tenure:
        app = make_app(self.url, authority_ledger=self.ledger)

        async def send(ctx: AsyncContext, payload: dict[str, Any]) -> None:
            self.sent.append(payload["key"])

        app.job(KIND)(send)
        return app

    @contextlib.contextmanager
    def working(self, **options: Any) -> Iterator[Running]:
        with Running(self.app(), **options) as running:
            yield running

    def create(self, key: str) -> Job:
        app = self.app()
        try:
            return app.enqueue(KIND, {"key": key}, key=key).job
        finally:
            app.close()

    def facts(self) -> Facts:
        """What the database says of itself."""
        with open_store(self.url, authority_ledger=self.ledger) as store:
            return store.run(read_facts(store.ledger.read(), store.file_identity()))

    def book(self) -> Book | None:
        with open_store(self.url, authority_ledger=self.ledger) as store:
            book: Book | None = store.ledger.read()
            return book

    def recover(self) -> Recovered:
        with open_store(self.url, authority_ledger=self.ledger) as store:
            return run_flow(
                recover_database(
                    store.ledger,
                    store.file_identity(),
                    "op:1",
                    "restored",
                    lambda identity: Book(store="anew", identity=identity),
                ),
                store.run,
            )

    def readmit(self) -> None:
        app = self.app()
        try:
            app.service.readmit_jobs("studio", reason="looked at", actor="op:1")
        finally:
            app.close()


def ticks(running: Running) -> int:
    """How often a worker looked, from the counter in the ledger."""
    book = running.app.store.ledger.read()
    return 0 if book is None else int(book.incarnation)


def runs_on(crew: Crew, running: Running, key: str) -> None:
    """The control: new work is done."""
    crew.create(key)
    until(lambda: key in crew.sent, f"job {key} to run")
    before = ticks(running)
    until(lambda: ticks(running) > before, "another tick")


def frozen(running: Running) -> str | None:
    """Why a worker says it does not work."""
    health = running.worker.health()
    assert not (health.problems and health.ok)
    return next((one for one in health.problems if "DATABASE_FROZEN" in one), None)


def code_of(error: BaseException) -> str:
    assert isinstance(error, TenureError)
    return error.code
