"""The work that is measured, each piece through procedures and stores, as an application and a worker do it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tenure import AsyncContext, Outcome, Provider, Succeeded, Tenure, open_store
from tenure.procedures.claim import Claim
from tenure.procedures.claim_batch import Claimed, Cursor, claim_batch
from tenure.procedures.complete_batch import complete_batch, completion
from tenure.procedures.enqueue import create
from tenure.procedures.hold import renew
from tenure.rules.creation import NewJob
from tenure.rules.job import Job
from tenure.stores.contract import Store, Transaction
from tenure.yields import Script, Statement, procedure
from tests.cost.meter import Reading, Talk, listening, read_server

NOOP, EFFECT = "noop", "effect"
# As the worker claims; a bulk enqueue of a thousand is what the documentation advises.
BATCH, BULK = 200, 1000
CONCURRENCY = 200
PATIENCE = 60.0


class Desk(Provider):
    """A provider in this process that accepts everything."""

    name = "desk"
    timeout = timedelta(seconds=30)

    async def send(self, request: Any, operation_key: str) -> Outcome:
        """Accept."""
        return Succeeded({"receipt": operation_key})


def make_app(url: str, ended: Callable[[], None] = lambda: None) -> Tenure:
    """Make an app with a kind that does nothing and one that records an effect; `ended` is told of every handler."""
    desk = Desk()
    app = Tenure(url, organization="studio", project="sales", actor="user:1", providers=[desk])

    @app.job(NOOP)
    async def noop(ctx: AsyncContext, payload: dict[str, Any]) -> None:
        ended()

    @app.job(EFFECT)
    async def effect(ctx: AsyncContext, payload: dict[str, Any]) -> Any:
        answer = await ctx.effect("act", desk, {"n": payload["n"]})
        ended()
        return answer

    return app


def prepared(app: Tenure, numbers: Sequence[int], kind: str = NOOP, *, key: str = "key", **fields: Any) -> list[NewJob]:
    """Prepare jobs with a key and a small payload each."""
    return [app.prepare(kind, {"n": n, "text": "hello"}, key=f"{key}-{n:07}", **fields) for n in numbers]


def put(run: Callable[[Any], Any], jobs: Sequence[NewJob], bulk: int = BULK) -> None:
    """Create jobs, so many in a transaction."""
    for first in range(0, len(jobs), bulk):
        made = run(create(jobs[first : first + bulk]))
        assert all(one.created for one in made)


def take(
    store: Store | Transaction, limit: int = BATCH, cursor: Cursor | None = None, worker: str = "w"
) -> tuple[list[Claim | Claimed], Cursor | None]:
    """Claim as a worker does; gives the claims and where the next one begins."""
    taken = store.run(claim_batch(worker, [NOOP, EFFECT], limit=limit, cursor=cursor))
    return taken.claims, taken.cursor


def finish(store: Store | Transaction, claims: Sequence[Claim | Claimed]) -> None:
    """Complete as a worker does."""
    ends = [completion(one.lease, one.tenant, None) for one in claims]
    done = store.run(complete_batch([end for end in ends if end is not None]))
    assert len(done) == len(claims), "these are plain completions, which need no second way"


@dataclass(frozen=True)
class Cost:
    """
    What one piece of work cost.

    Attributes:
        units: How many jobs (or leases) it was about.
        server: The counters of PostgreSQL; None on SQLite.
        steady: False where the number of transactions depends on how busy the machine is.
    """

    units: int
    talk: Talk
    server: Reading | None
    steady: bool = True

    def each(self) -> dict[str, float]:
        """Give the figures of one unit, by name."""
        found: dict[str, float] = {"statements": self.talk.statements.total()}
        if self.steady:
            found["transactions"] = self.talk.transactions
        if self.server is not None:
            found["round_trips"] = self.talk.round_trips
            found["buffers"] = self.server.blocks.total()
            found["wal_bytes"] = self.server.wal
        return {name: round(number / self.units, 4) for name, number in sorted(found.items())}

    def detail(self) -> str:
        """Say what the figures are made of."""
        lines = [f"  statements of {self.units}: {_largest(self.talk.statements, 1)}"]
        if self.server is not None:
            lines.append(f"  buffers of each: {_largest(self.server.blocks, self.units)}")
        return "\n".join(lines)


def _largest(counts: Counter[str], units: int) -> str:
    return ", ".join(f"{name} {number / units:.4g}" for name, number in counts.most_common(12))


@dataclass(frozen=True)
class Piece:
    """
    A piece of work.

    Attributes:
        prepare: Brings the database to where the work begins, and is not counted.
        on_store: The work, on a store that is open and was used before.
        at_url: The work where it opens its own stores, which is counted too.
    """

    name: str
    units: int
    prepare: Callable[[Tenure], Any]
    on_store: Callable[[Store, int, Any], None] | None = None
    at_url: Callable[[str, int], None] | None = None

    def measure(self, url: str) -> Cost:
        """Do the work on a fresh database with the schema."""
        app = make_app(url)
        try:
            ready = self.prepare(app)
        finally:
            app.close()
        postgres = url.startswith("postgres")
        before = read_server(url) if postgres else None
        with listening(clock_too=False) as talk:
            if self.on_store is not None:
                with open_store(url) as store:
                    # A connection to PostgreSQL tells nothing of its opening; one to SQLite does.
                    store.run(_nothing())
                    talk.forget()
                    self.on_store(store, self.units, ready)
            else:
                assert self.at_url is not None
                self.at_url(url, self.units)
        server = None if before is None else read_server(url).since(before)
        return Cost(self.units, talk, server, steady=postgres or self.on_store is not None)

    def figures(self, url: str) -> dict[str, float]:
        """Do the work and give the figures alone."""
        return self.measure(url).each()


@procedure
def _nothing() -> Script[None]:
    yield Statement("clock")


def _enqueue_bulk(store: Store, units: int, jobs: Any) -> None:
    put(store.run, jobs)


def _enqueue_one(store: Store, units: int, jobs: Any) -> None:
    put(store.run, jobs, bulk=1)


def claiming(batch: int) -> Callable[[Store, int, Any], None]:
    """Claim all there is, so many at a time."""

    def claim(store: Store, units: int, ready: Any) -> None:
        cursor, taken = None, 0
        while taken < units:
            claims, cursor = take(store, batch, cursor)
            taken += len(claims)
        assert taken == units

    return claim


def _complete(store: Store, units: int, claims: Any) -> None:
    for first in range(0, units, BATCH):
        finish(store, claims[first : first + BATCH])


def _renew(store: Store, units: int, claims: Any) -> None:
    answers = store.run(renew([one.lease for one in claims]))
    assert sum(isinstance(one, Job) for one in answers) == units


def _work(url: str, units: int) -> None:
    """Let an embedded worker do all there is."""

    async def drain() -> None:
        left, over = [units], asyncio.Event()

        def ended() -> None:
            left[0] -= 1
            if not left[0]:
                over.set()

        app = make_app(url, ended)
        async with asyncio.timeout(PATIENCE), app.worker(concurrency=CONCURRENCY):
            await over.wait()
        await app.aclose()

    asyncio.run(drain())


def _fill(kind: str, units: int) -> Callable[[Tenure], Any]:
    def prepare(app: Tenure) -> None:
        put(app.store.run, prepared(app, range(units), kind))

    return prepare


def _only_prepare(units: int) -> Callable[[Tenure], Any]:
    # The tenant is known already: its first job ever costs more, once.
    def prepare(app: Tenure) -> list[NewJob]:
        put(app.store.run, prepared(app, [-1]))
        return prepared(app, range(units))

    return prepare


def _fill_and_take(units: int) -> Callable[[Tenure], Any]:
    def prepare(app: Tenure) -> list[Claim | Claimed]:
        put(app.store.run, prepared(app, range(units)))
        claims: list[Claim | Claimed] = []
        cursor = None
        while len(claims) < units:
            found, cursor = take(app.store, cursor=cursor)
            claims += found
        return claims

    return prepare


PIECES = (
    Piece("enqueue, 1000 in a transaction", 2000, _only_prepare(2000), _enqueue_bulk),
    Piece("enqueue, one by one", 100, _only_prepare(100), _enqueue_one),
    Piece("claim, 200 at a time", 2000, _fill(NOOP, 2000), claiming(BATCH)),
    Piece("complete, 200 at a time", 2000, _fill_and_take(2000), _complete),
    Piece("renew 200 leases at once", 200, _fill_and_take(200), _renew),
    Piece("worker, plain jobs", 2000, _fill(NOOP, 2000), at_url=_work),
    Piece("worker, jobs with one effect", 1000, _fill(EFFECT, 1000), at_url=_work),
)
