"""
What a claim and a completion read does not grow with what lies around them.

Three things made it grow by orders of magnitude in designs that were tried, and none shows in a small test: a plan that
was made while a table was empty reads all of it later; dead rows that somebody's snapshot keeps are walked over at
every claim; future jobs of a higher priority stand in front of those that are due. Buffers are counted early and late
on one database and one connection, whose plans are as old as a long-lived worker's. Beside each stands a control in
which the same conditions do make work grow, so that the test could fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from statistics import median
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tenure import Succeeded, Tenure, open_store
from tenure.procedures.claim_batch import Cursor
from tenure.procedures.effect import Beginning, Finishing, begin_effect, finish_effect
from tenure.procedures.hold import completing, hold, renew
from tenure.procedures.inspect import find_by_key, get_job, list_events
from tenure.procedures.publish import close_publish, open_publish
from tenure.rules.outcome import Terms
from tenure.stores.contract import Store
from tenure.yields import new_id
from tests.cost import crowd
from tests.cost.meter import HAND_IN, OWN_BLOCKS, weighing
from tests.cost.work import BATCH, finish, make_app, prepared, put, take

# A tree that is one level higher costs each look-up one buffer more, which is all that may be seen.
GROWTH_MAX = 1.3
# In the controls work reads a multiple; far less than the growth seen.
GROWTH_SEEN = 2.5

ROUNDS, FEW, HALF = 5, 10, 5
EARLY = 2000


class Line:
    """
    A queue that is worked on, in batches as a worker does or a few at a time to be weighed.

    Attributes:
        store: Blocking, with one connection for all that is not urgent.
        cursor: As the worker remembers it.
    """

    def __init__(self, app: Tenure, store: Store) -> None:
        self.app = app
        self.store = store
        self.cursor: Cursor | None = None
        self._made = 0

    def add(self, count: int) -> None:
        """Enqueue plain jobs."""
        put(self.store.run, prepared(self.app, range(self._made, self._made + count)))
        self._made += count

    def run(self, count: int) -> None:
        """Claim and complete so many in batches."""
        for _ in range(count // BATCH):
            claims, self.cursor = take(self.store, BATCH, self.cursor)
            assert len(claims) == BATCH
            finish(self.store, claims)

    def weigh(self) -> dict[str, float]:
        """Give the buffers of each hot piece of work, for one job: the median of a few rounds."""
        found: dict[str, list[float]] = {}
        with weighing() as spent:

            def weigh(name: str, units: int, work: Callable[[], Any]) -> Any:
                spent.clear()
                value = work()
                assert spent, "nothing was committed"
                found.setdefault(name, []).append(sum(one.total() for one in spent) / units)
                return value

            for _ in range(ROUNDS):
                weigh("enqueue", FEW, partial(self.add, FEW))
                claims, self.cursor = weigh("claim", FEW, partial(take, self.store, FEW, self.cursor))
                assert len(claims) == FEW
                leases = [one.lease for one in claims]
                weigh("renew", FEW, partial(self.store.run, renew(leases)))
                weigh("effect", 1, partial(self._act, leases[0]))
                weigh("publish", 1, partial(self._publish, leases[0]))
                weigh("read", 1, partial(self.store.run, get_job(leases[0].job_id)))
                weigh("read by key", 1, partial(self.store.run, find_by_key("studio", "sales", "key-0000005")))
                weigh("read the trail", 1, partial(self.store.run, list_events(leases[0].job_id)))
                weigh("complete", HALF, partial(finish, self.store, claims[HALF:]))
                asks = [completing(lease, None) for lease in leases[:HALF]]
                weigh("complete by lock, decide, save", HALF, partial(self.store.run, hold(asks)))
        return {name: median(values) for name, values in found.items()}

    def _publish(self, lease: Any) -> None:
        with self.store.transaction() as tx:
            tx.run(open_publish(lease))
            tx.run(close_publish(lease, new_id()))

    def _act(self, lease: Any) -> None:
        self.store.run(begin_effect(Beginning(lease, "act", "d" * 64, Terms("desk"), timedelta(seconds=5))))
        self.store.run(finish_effect(Finishing(lease, "act", Succeeded({"receipt": "r"}))))


@contextmanager
def line_at(url: str) -> Iterator[Line]:
    """Open a queue on one connection; its plans are made now, and are old when the tables have grown."""
    app = make_app(url)
    try:
        with open_store(f"{url}?tenure_pool_size=1") as store:
            line = Line(app, store)
            line.add(EARLY)
            line.run(BATCH * 5)
            yield line
    finally:
        app.close()


@contextmanager
def snapshot_of(url: str) -> Iterator[None]:
    """Keep a snapshot as a forgotten session or a long report does."""
    with psycopg.connect(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM tenure.job")
        yield


class OldPlan:
    """A look-up by id whose plan was made while the table was empty: the trap itself."""

    def __init__(self, connection: psycopg.Connection[Any], table: str) -> None:
        self._connection = connection
        connection.execute("SET plan_cache_mode = force_generic_plan")
        connection.execute(f"PREPARE look (uuid[]) AS SELECT job_id FROM tenure.{table} WHERE job_id = ANY($1)")
        self.blocks()

    def blocks(self) -> int:
        """Look for ids that are not there, and give the buffers read."""
        ids = ", ".join(str(uuid4()) for _ in range(FEW))
        return _blocks(self._connection, f"EXECUTE look ('{{{ids}}}')")


def _blocks(connection: psycopg.Connection[Any], query: str) -> int:
    with connection.transaction():
        before = Counter(dict(connection.execute(OWN_BLOCKS).fetchall()))
        connection.execute(query)
        spent = Counter(dict(connection.execute(OWN_BLOCKS).fetchall())) - before
        connection.execute(HAND_IN)
    return spent.total()


def expect_level(early: dict[str, float], late: dict[str, float]) -> None:
    grown = {name: (early[name], late[name]) for name in early if late[name] > GROWTH_MAX * early[name]}
    assert not grown, f"buffers for each job, early and late: {grown}; all: {early}, {late}"


def test_a_pinned_snapshot_makes_nothing_grow_but_a_claim_without_a_cursor(analysed_url: str) -> None:
    with line_at(analysed_url) as line, psycopg.connect(analysed_url, autocommit=True) as other:
        early = line.weigh()
        anew = _claim_anew(line)
        with snapshot_of(analysed_url):
            line.add(30_000)
            line.run(30_000)
            expect_level(early, line.weigh())
            # Why a worker remembers where it is: every dead row at the front of the queue is read again.
            assert _claim_anew(line) > GROWTH_SEEN * anew
        assert _count(other, "outcome") >= 30_000


def _claim_anew(line: Line) -> int:
    with weighing() as spent:
        claims, _ = take(line.store, FEW, None)
    blocks = spent[-1].total()
    finish(line.store, claims)
    return blocks


@pytest.mark.parametrize(
    "around,count,table",
    [(crowd.waiting, 50_000, "ready"), (crowd.finished, 50_000, "outcome"), (crowd.leased, 10_000, "lease")],
    ids=["waiting", "finished", "leased"],
)
def test_many_other_jobs_make_nothing_grow_but_an_old_plan(
    analysed_url: str, around: crowd.Around, count: int, table: str
) -> None:
    with psycopg.connect(analysed_url, autocommit=True) as other:
        old = OldPlan(other, table)
        with line_at(analysed_url) as line:
            early, before = line.weigh(), old.blocks()
            around(other, line.app, line.store, count)
            assert _count(other, table) >= count
            expect_level(early, line.weigh())
        assert old.blocks() > GROWTH_SEEN * max(before, FEW)


def test_future_jobs_of_higher_priority_make_nothing_grow_but_a_claim_in_naive_order(analysed_url: str) -> None:
    with line_at(analysed_url) as line, psycopg.connect(analysed_url, autocommit=True) as other:
        other.execute("CREATE TABLE tenure.naive AS SELECT job_id, priority, run_at FROM tenure.ready")
        other.execute("CREATE INDEX naive_order ON tenure.naive (priority DESC, run_at, job_id)")
        naive = (
            "SELECT job_id FROM tenure.naive WHERE run_at <= tenure.now_us() "
            f"ORDER BY priority DESC, run_at, job_id LIMIT {FEW}"
        )
        other.execute("SET enable_seqscan = off")
        other.execute("SET enable_sort = off")
        early, before = line.weigh(), _blocks(other, naive)
        crowd.deferred(other, line.app, line.store, 20_000)
        assert _count(other, "deferred") >= 20_000
        expect_level(early, line.weigh())
        # Those who keep future jobs in the index of the claim read all of them.
        other.execute("INSERT INTO tenure.naive SELECT job_id, priority, run_at FROM tenure.deferred")
        assert _blocks(other, naive) > GROWTH_SEEN * max(before, FEW)


def test_all_of_it_at_once_makes_nothing_grow(analysed_url: str) -> None:
    """Two levels of every tree, but no more: the worst hour of a large installation."""
    with line_at(analysed_url) as line, psycopg.connect(analysed_url, autocommit=True) as other:
        early = line.weigh()
        with snapshot_of(analysed_url):
            for around, count in (
                (crowd.waiting, 50_000),
                (crowd.deferred, 20_000),
                (crowd.finished, 30_000),
                (crowd.leased, 5_000),
            ):
                around(other, line.app, line.store, count)
            line.add(10_000)
            line.run(10_000)
            expect_level(early, line.weigh())


def _count(connection: psycopg.Connection[Any], table: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM tenure.{table}").fetchone()
    assert row is not None
    return int(row[0])
