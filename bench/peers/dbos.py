"""
DBOS 3.4.0: one workflow for each job, one step where the job records something, on PostgreSQL and on SQLite.

Beside us a step that died after it acted is done again: nothing is written before the act, no provider is asked, and a
late process is kept off by the workflow's owner mark alone. There is no trail of who held what; a workflow's steps are
one. On SQLite it keeps the rollback journal and `synchronous=FULL`, as it comes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import sqlalchemy  # type: ignore[import-not-found,unused-ignore]
from dbos import DBOS, DBOSClient  # type: ignore[import-not-found,unused-ignore]

from bench.protocol import Adapter, Producer, Stop, main
from bench.store import is_postgres
from bench.tally import Tally

QUEUE = "bench"
CONCURRENCY = 100
# Its queues are looked at in turns; the default is a second, which would be all that is measured.
POLL = 0.01


def _launch(url: str) -> None:
    config = {"name": "bench", "system_database_url": _address(url), "log_level": "ERROR", "application_version": "1"}
    DBOS(config=config)


def _address(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://") if is_postgres(url) else url


def setup(url: str) -> None:
    """Let it make its own schema."""
    _declare(None)
    _launch(url)
    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=CONCURRENCY, polling_interval_sec=POLL)
    DBOS.destroy(destroy_registry=True)


def _declare(tally: Tally | None) -> None:
    @DBOS.step()  # type: ignore[untyped-decorator,unused-ignore]
    async def act(number: int) -> str:
        assert tally is not None
        tally.mark(number)
        return f"receipt-{number}"

    @DBOS.workflow(name="step")  # type: ignore[untyped-decorator,unused-ignore]
    async def step(number: int) -> None:
        await act(number)

    @DBOS.workflow(name="noop")  # type: ignore[untyped-decorator,unused-ignore]
    async def noop(number: int) -> None:
        assert tally is not None
        tally.mark(number)

    del step, noop


@contextmanager
def producer(url: str, mode: str) -> Iterator[Producer]:
    """Enqueue with a workflow id each; many in one transaction of the caller's, for it has no bulk way."""
    engine = sqlalchemy.create_engine(_address(url))
    client = DBOSClient(system_database_engine=engine)

    def named(number: int) -> dict[str, str]:
        return {"queue_name": QUEUE, "workflow_name": mode, "workflow_id": f"key-{number}", "app_version": "1"}

    def put_one(number: int) -> int:
        client.enqueue(named(number), number)
        return time.monotonic_ns()

    def put(numbers: Sequence[int]) -> None:
        with engine.begin() as connection:
            for one in numbers:
                client.enqueue_in_transaction(connection, named(one), one)

    yield Producer(put, put_one)
    client.destroy()
    engine.dispose()


def work(url: str, mode: str, tally: Tally, stop: Stop) -> None:
    """Run its executor; ended where it is."""
    del mode, stop
    _declare(tally)
    _launch(url)
    DBOS.launch()
    threading.Event().wait()


ADAPTER = Adapter(
    "bench.peers.dbos",
    setup,
    producer,
    work,
    left="SELECT count(*) FROM {}workflow_status WHERE status <> 'SUCCESS'",
    done={
        "its workflows": "SELECT count(*), count(DISTINCT workflow_uuid) FROM {}workflow_status "
        "WHERE status = 'SUCCESS'"
    },
    steps={"its steps": "SELECT count(*), count(DISTINCT workflow_uuid) FROM {}operation_outputs"},
    prefixes=("dbos.", ""),
)

if __name__ == "__main__":
    main(ADAPTER)
