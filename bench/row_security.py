"""
What row security costs: the same work on two databases, with roles alone and with row security, pair by pair.

    python -m bench.row_security --jobs 10000

Every piece of work is done on the one and at once on the other, in turns, on one connection each: a job enqueued, a
thousand enqueued, a hundred claimed, a hundred completed. Figures are medians of all pairs: what the server's processor
did, which is what policies cost, and what the caller waited, which is also the disk and whatever else runs here. The
producer of the secured database is bound to its tenant, the worker serves all. Linux only.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table

from bench.ours import BATCH, BULK
from bench.place import Place
from tenure import Claim, open_store
from tenure.procedures.claim_batch import claim_batch
from tenure.procedures.complete_batch import Completion, complete_batch, completion
from tenure.procedures.enqueue import create, create_one
from tenure.rules.creation import NewJob, new_job
from tenure.stores.contract import Store
from tenure.yields import Procedure, new_id

SIDES = ("roles", "row security")
TENANT = "bench"
SINGLES = 1000


def prepared() -> NewJob:
    """Check a job."""
    made = new_id()
    return new_job(
        job_id=made, organization=TENANT, project="p1", idempotency_key=made.hex, kind="noop", payload={"n": 1}
    )


class Server:
    """The processor time of the server's processes that serve a database."""

    def __init__(self, url: str) -> None:
        self._eye = psycopg.connect(url, autocommit=True)

    def seconds(self) -> float:
        """Give what they have used up to now."""
        found = self._eye.execute(
            b"SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
            b"AND backend_type = 'client backend'"
        ).fetchall()
        return sum(int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) for (pid,) in found) / 1e9

    def close(self) -> None:
        """Look no more."""
        self._eye.close()


class Pair:
    """Does one kind of work on both sides, again and again; keeps the processor's and the clock's seconds of each."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = servers
        self.worked: list[tuple[float, ...]] = []
        self.waited: list[tuple[float, ...]] = []

    def do(self, work: Callable[[int], Any]) -> list[Any]:
        """Do it on both, in turns this one first and that one; give what they gave."""
        worked, waited, given = [0.0, 0.0], [0.0, 0.0], [None, None]
        for side in (0, 1) if len(self.worked) % 2 else (1, 0):
            used, start = self._servers[side].seconds(), time.perf_counter()
            given[side] = work(side)
            waited[side] = time.perf_counter() - start
            worked[side] = self._servers[side].seconds() - used
        self.worked.append(tuple(worked))
        self.waited.append(tuple(waited))
        return given


def enqueue(stores: Sequence[Store], servers: Sequence[Server], jobs: int) -> dict[str, Pair]:
    """Enqueue one at a time and a thousand at a time."""

    def put(side: int) -> None:
        stores[side].run(create_one(prepared()))

    single, many = Pair(servers), Pair(servers)
    for _ in range(min(jobs, SINGLES)):
        single.do(put)
    for _ in range(jobs // BULK):
        batches = [create([prepared() for _ in range(BULK)]) for _ in SIDES]
        many.do(partial(_run, stores, batches))
    return {"enqueue 1": single, f"enqueue {BULK}": many}


def _run(stores: Sequence[Store], procedures: Sequence[Procedure[Any]], side: int) -> Any:
    return stores[side].run(procedures[side])


def _ends(claims: Sequence[Claim]) -> list[Completion]:
    ends = [completion(one.lease, one.job.tenant, None) for one in claims]
    return [end for end in ends if end is not None]


def cycle(stores: Sequence[Store], servers: Sequence[Server], jobs: int) -> dict[str, Pair]:
    """Claim and complete."""
    claims, completions = Pair(servers), Pair(servers)
    cursors: list[Any] = [None, None]

    def claim(side: int) -> Any:
        asked = claim_batch(TENANT, ["noop"], limit=BATCH, queues=["default"], cursor=cursors[side])
        return stores[side].run(asked)

    for _ in range(jobs // BATCH):
        taken = claims.do(claim)
        cursors = [one.cursor for one in taken]
        assert [len(side.claims) for side in taken] == [BATCH, BATCH]
        completions.do(partial(_run, stores, [complete_batch(_ends(side.claims)) for side in taken]))
    return {f"claim {BATCH}": claims, f"complete {BATCH}": completions}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.row_security")
    parser.add_argument("--jobs", type=int, default=10_000)
    jobs: int = parser.parse_args().jobs
    with tempfile.TemporaryDirectory() as folder, Place(Path(folder)) as place, ExitStack() as stack:
        urls = [place.fresh("postgresql") for _ in SIDES]
        for url, secured in zip(urls, (None, True), strict=True):
            with open_store(url) as owner:
                owner.migrate(roles=True, row_security=secured)
        bound = (None, TENANT)
        producers = [open_store(url, role="producer", tenant=one) for url, one in zip(urls, bound, strict=True)]
        workers = [open_store(url, role="worker") for url in urls]
        for store in (*producers, *workers):
            stack.callback(store.close)
        servers = [Server(url) for url in urls]
        for server in servers:
            stack.callback(server.close)
        found = enqueue(producers, servers, jobs) | cycle(workers, servers, jobs)
    shown = Table("median", *(f"{side}, {what}" for what in ("processor ms", "ms") for side in SIDES), "ratios")
    for what, pair in found.items():
        sides = [
            statistics.median(side) * 1e3 for kind in (pair.worked, pair.waited) for side in zip(*kind, strict=True)
        ]
        ratios = [statistics.median(b / a for a, b in kind) for kind in (pair.worked, pair.waited)]
        shown.add_row(what, *(f"{side:.2f}" for side in sides), " and ".join(f"{ratio:.2f}" for ratio in ratios))
    Console(width=100).print(shown)


if __name__ == "__main__":
    main()
