"""Every verb as every role: what the table allows happens as without a role, and all else changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tenure.errors import Refused, TenureError
from tenure.opening import open_async_store, open_store
from tenure.rules.roles import MAY, Role, check_role
from tests.contract import acts
from tests.contract.bench import Bench, PostgresDatabase
from tests.contract.build import Case, create
from tests.contract.conftest import Benches

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
        def allows(name: str) -> None:
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
            assert f"a {role} may not run '{denied[0]}'" in became[2]
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
