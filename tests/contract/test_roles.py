"""Every verb as every role: what the table allows happens as without a role, and all else changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tenure.errors import Refused, TenureError
from tenure.opening import open_async_store, open_store
from tenure.rules.roles import MAY, Role, check_role
from tests.contract import acts
from tests.contract.bench import Awaited, Bench, LoopThread, PostgresDatabase
from tests.contract.build import Case, create
from tests.contract.caller import own, producer
from tests.contract.conftest import Benches
from tests.support.brokers import or_skip
from tests.support.pgbouncer import PgBouncer

BLOCKING = ["sqlite-blocking", "postgresql-blocking"]


class Roles:
    """
    A bench's database seen by each role, and by somebody without one.

    Attributes:
        asked: The names that the stores were asked for, in order.
    """

    def __init__(self, bench: Bench) -> None:
        self.asked: list[str] = []
        if isinstance(bench.database, PostgresDatabase):
            with open_store(bench.database.url) as owner:
                owner.migrate(roles=True)
        self._seen = {role: self._open(bench, role) for role in Role}
        self._free = self._open(bench, None)

    def _open(self, bench: Bench, role: Role | None) -> Bench:
        url, clock = bench.database.url, bench.test_clock
        store: Any
        if bench.loop is None:
            store = open_store(url, role=role, clock=clock)
        else:
            store = bench.loop.run(open_async_store(url, role=role, clock=clock))
        holder = store if bench.dialect == "postgresql" else store._engine
        holder.allows = self._listening(role)
        return Bench(bench.database, store, bench.test_clock, bench.loop)

    def _listening(self, role: Role | None) -> Callable[[str], None]:
        def allows(name: str, _: object) -> None:
            self.asked.append(name)
            if role is not None:
                check_role(role, name)

        return allows

    def bench(self, role: Role | None) -> Bench:
        return self._free if role is None else self._seen[role]

    def act(self, role: Role | None, act: Callable[[Bench, Case], Any], case: Case) -> tuple[Any, list[str]]:
        """Give what became of an act, as a class and a code, and the procedures that it needed."""
        self.asked.clear()
        try:
            act(self.bench(role), case)
        except TenureError as error:
            return (type(error), error.code, str(error)), list(self.asked)
        return None, list(self.asked)

    def close(self) -> None:
        for one in (*self._seen.values(), self._free):
            store: Any = one.store
            if one.loop is None:
                store.close()
            else:
                one.loop.run(store.close())


@pytest.fixture(scope="module")
def opened(benches: Benches) -> Iterator[Callable[[Bench], Roles]]:
    """Give the roles' stores of a bench, opened once."""
    made: dict[int, Roles] = {}

    def of(bench: Bench) -> Roles:
        if id(bench) not in made:
            made[id(bench)] = Roles(bench)
        return made[id(bench)]

    yield of
    for one in made.values():
        one.close()


@pytest.mark.parametrize("name", acts.ACTS)
@pytest.mark.parametrize("which", BLOCKING)
def test_every_verb_as_every_role(benches: Benches, opened: Callable[[Bench], Roles], which: str, name: str) -> None:
    bench = benches.get(which)
    roles = opened(bench)
    build, act = acts.ACTS[name]
    case = build(bench)
    start = bench.snapshot()
    free, needed = roles.act(None, act, case)
    assert needed, "the act goes through the store"
    assert set(needed) <= set(MAY)
    for role in Role:
        bench.restore(start)
        became, asked = roles.act(role, act, case)
        denied = [one for one in asked if role not in MAY[one]]
        if denied:
            assert became is not None, (role, denied)
            assert became[:2] == (Refused, "ROLE_DENIED"), (role, became)
            assert f" {role} may not run '{denied[0]}'" in became[2]
            # What comes before it, such as reading an epoch, writes nothing.
            assert bench.prints() == start.prints, role
        else:
            assert asked == needed, role
            # Ids and instants differ from run to run, and so do texts.
            assert (became and became[:2]) == (free and free[:2]), (role, became)


def test_the_acts_leave_out_no_procedure(benches: Benches, opened: Callable[[Bench], Roles]) -> None:
    bench = benches.get("sqlite-blocking")
    roles = opened(bench)
    found: set[str] = set()
    for build, act in acts.ACTS.values():
        bench.reset()
        found |= set(roles.act(None, act, build(bench))[1])
    assert found == set(MAY)


def test_blocks_and_awaiting_stores_ask_too(bench: Bench, opened: Callable[[Bench], Roles]) -> None:
    roles = opened(bench)
    job = create(bench.service)
    before = bench.prints()
    for role in Role:
        seen = roles.bench(role)
        with pytest.raises(Refused, match="retry_job") if role != Role.OPERATOR else pytest.raises(TenureError) as told:
            seen.service.retry_job(job.id, actor="op:1")
        assert (told.value.code == "ROLE_DENIED") == (role != Role.OPERATOR)
        with seen.transaction() as tx:
            made = acts.verbs.get_job(acts.SCOPE, job.id)
            if role == Role.PRODUCER:
                with pytest.raises(Refused) as refused:
                    tx.run(made)
                assert refused.value.code == "ROLE_DENIED"
            else:
                assert tx.run(made).id == job.id
    assert bench.prints() == before


@pytest.mark.parametrize("role", Role)
def test_nobody_with_a_role_changes_the_schema(bench: Bench, opened: Callable[[Bench], Roles], role: Role) -> None:
    store: Any = opened(bench).bench(role).store
    with pytest.raises(Refused) as refused:
        store.migrate() if bench.loop is None else bench.loop.run(store.migrate())
    assert refused.value.code == "ROLE_DENIED"


def test_raw_sql_of_a_block_leaves_our_tables_alone_on_sqlite(
    sqlite_bench: Bench, opened: Callable[[Bench], Roles]
) -> None:
    bench, roles = sqlite_bench, opened(sqlite_bench)
    create(bench.service)
    before = bench.prints()
    ours = (
        "UPDATE tenure_job SET payload = '{}'",
        "DELETE FROM tenure_event",
        "INSERT INTO tenure_known_kind VALUES ('x')",
        "DROP TABLE tenure_job",
        "ALTER TABLE tenure_job RENAME TO job",
        "CREATE TRIGGER own AFTER INSERT ON tenure_job BEGIN SELECT 1; END",
    )
    for role in (Role.VIEWER, Role.REPAIRER):
        with roles.bench(role).transaction() as tx:
            for sql in ours:
                with pytest.raises(Refused, match="not by SQL") as refused:
                    tx.execute(sql)
                assert refused.value.code == "ROLE_DENIED"
            assert tx.execute("SELECT count(*) FROM tenure_job") is not None
            tx.execute("INSERT INTO own (value) VALUES (1)")
            tx.execute("DELETE FROM own")
    assert bench.prints() == before
    # Whoever has no role is who owns the file.
    with bench.transaction() as tx:
        tx.execute("INSERT INTO tenure_known_kind VALUES ('x')")
    # And the procedures of a role write as before.
    assert roles.bench(Role.OPERATOR).service.pause_queue("q", reason="r", actor="op:1").name == "q"


def test_a_joined_transaction_is_judged_by_the_role_of_its_store(
    bench: Bench, opened: Callable[[Bench], Roles]
) -> None:
    roles = opened(bench)
    for role, allowed in ((Role.VIEWER, False), (Role.PRODUCER, True)):
        seen = roles.bench(role)
        with producer(bench) as caller:
            caller.begin()
            caller.write(int(allowed))
            loop: Any = bench.loop
            joined: Any = seen.store.join(caller.raw) if loop is None else loop.call(seen.store.join, caller.raw)
            tx = joined if loop is None else Awaited(joined, loop)
            if allowed:
                assert tx.run(acts.create_at_once(acts.new_one("k-7"))).created
            else:
                with pytest.raises(Refused) as refused:
                    tx.run(acts.create_at_once(acts.new_one("k-7")))
                assert refused.value.code == "ROLE_DENIED"
            caller.commit()
    # The caller's own writes stand, and nothing of the refused one.
    assert sorted(own(bench)) == [0, 1]
    assert [row["idempotency_key"] for row in bench.dump()["job"] if row["tenant"] == "acme"] == ["k-7"]


def test_a_role_is_taken_on_behind_a_transaction_pooler(benches: Benches) -> None:
    bench = benches.get("postgresql-blocking")
    with open_store(bench.database.url) as owner:
        owner.migrate(roles=True)
    with or_skip(lambda: PgBouncer(bench.database.url)) as pooler:
        with open_store(pooler.url, role="producer", clock=bench.test_clock) as store:
            assert store.run(acts.create_at_once(acts.new_one("k-7"))).created
        with open_store(pooler.url, role="viewer", clock=bench.test_clock) as store:
            with store.transaction() as tx:
                assert tx.execute("SELECT current_user").fetchone() == ("tenure_viewer",)
            assert len(store.run(acts.inspect.list_jobs(tenant="acme"))) == 1
        with open_store(pooler.url, clock=bench.test_clock) as store, store.transaction() as tx:
            # Nothing of it stays on the server's connection.
            assert tx.execute("SELECT current_user").fetchone() != ("tenure_viewer",)


def test_a_store_made_from_another_has_its_role(bench: Bench, opened: Callable[[Bench], Roles]) -> None:
    store: Any = opened(bench).bench(Role.VIEWER).store
    if bench.loop is None:
        other, loop = store.awaiting(), LoopThread()
        with pytest.raises(Refused) as refused:
            loop.run(other.run(acts.create_at_once(acts.new_one("k-7"))))
        loop.run(other.close())
        loop.close()
    else:
        other = store.blocking()
        with pytest.raises(Refused) as refused:
            other.run(acts.create_at_once(acts.new_one("k-7")))
        other.close()
    assert refused.value.code == "ROLE_DENIED"
    assert [row for row in bench.dump()["job"] if row["tenant"] == "acme"] == []
