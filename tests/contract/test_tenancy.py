"""Every verb on stores that are bound to a tenant, and with row security on: its own as ever, and nothing of others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tenure
from tenure import inbox, outbox
from tenure.errors import Invalid, NotFound, Refused, TenureError
from tenure.opening import open_async_store, open_store
from tenure.procedures.enqueue import create, create_at_once
from tenure.procedures.inspect import get_job, list_jobs
from tenure.rules.creation import NewJob
from tenure.rules.roles import Role
from tenure.yields import Procedure
from tests.contract import acts
from tests.contract.bench import NEIGHBOUR, Bench, Dump, close_bench, open_bench
from tests.contract.build import Case
from tests.contract.build import create as created
from tests.contract.caller import producer
from tests.contract.conftest import Benches
from tests.contract.test_create_at_once import job as new_one
from tests.support.postgres import Databases

# Who sees nothing where row security is on and no tenant is named.
SEES_ONE = {Role.VIEWER, Role.PRODUCER}
# A claim tidies up behind other tenants as well, on SQLite; on PostgreSQL row security does not let it.
TIDIES = {"claim", "claim, a second time", "claim under an id", "claim an expired one"}


class Holders:
    """A bench's database, opened by others than the bench."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._stores: dict[tuple[str | None, str | None], Bench] = {}

    def seen(self, role: str | None, tenant: str | None) -> Bench:
        """Give the bench on a store of somebody."""
        key = (role, tenant)
        if key not in self._stores:
            bench, given = self._bench, {"role": role, "tenant": tenant, "clock": self._bench.test_clock}
            store: Any = (
                open_store(bench.database.url, **given)  # type: ignore[arg-type]
                if bench.loop is None
                else bench.loop.run(open_async_store(bench.database.url, **given))  # type: ignore[arg-type]
            )
            self._stores[key] = Bench(bench.database, store, bench.test_clock, bench.loop)
        return self._stores[key]

    def close(self) -> None:
        for one in self._stores.values():
            close_bench(one)


def theirs(key: str) -> NewJob:
    """Give a job of the other tenant."""
    return new_one(key, organization=NEIGHBOUR, execution=None)


def became(act: Callable[[Bench, Case], Any], bench: Bench, case: Case) -> Any:
    """Give what became of an act: None, or a class and a code."""
    try:
        act(bench, case)
    except TenureError as error:
        return type(error), error.code
    return None


@pytest.fixture(scope="module")
def held() -> Iterator[Callable[[Bench], Holders]]:
    """Give the holders of a bench, opened once."""
    made: dict[int, Holders] = {}

    def of(bench: Bench) -> Holders:
        return made.setdefault(id(bench), Holders(bench))

    yield of
    for one in made.values():
        one.close()


@pytest.fixture(scope="module")
def secured(benches: Benches, postgres_databases: Databases) -> Iterator[Bench]:
    """Give a bench of its own database, with row security."""
    database = benches.prepare(postgres_databases.create())
    with open_store(database.url) as owner:
        owner.migrate(row_security=True)
    made = open_bench(database, benches.get("postgresql-blocking").test_clock, None)
    yield made
    close_bench(made)
    database.close()


def others(dump: Dump, tenant: str) -> Dump:
    """Give the rows of every other tenant."""
    return {
        table: kept
        for table, rows in dump.items()
        if (kept := [row for row in rows if row.get("tenant", tenant) != tenant])
    }


DENIED = (Refused, "TENANT_BOUND")


@pytest.mark.parametrize("name", acts.ACTS)
def test_every_verb_under_row_security(secured: Bench, held: Callable[[Bench], Holders], name: str) -> None:
    bench = secured
    bench.reset()
    build, act = acts.ACTS[name]
    case = build(bench)
    start = bench.snapshot()
    free = became(act, bench, case)
    for role in Role:
        bench.restore(start)
        found = became(act, held(bench).seen(role, "acme" if role in SEES_ONE else None), case)
        if found is not None and found[1] in {"ROLE_DENIED", "TENANT_BOUND"}:
            assert bench.prints() == start.prints, role
            assert role in SEES_ONE or found[1] == "ROLE_DENIED", role
        else:
            assert found == free, role
        for tenant in ("acme", NEIGHBOUR):
            bench.restore(start)
            found = became(act, held(bench).seen(role, tenant), case)
            after = bench.dump()
            assert others(after, tenant) == others(start.dump, tenant), (role, tenant, found)
            if found is not None and found[1] in {"ROLE_DENIED", "TENANT_BOUND"}:
                assert bench.prints() == start.prints
            elif tenant == "acme":
                assert found == free, role


@pytest.mark.parametrize("name", acts.ACTS)
def test_every_verb_on_a_bound_store(benches: Benches, held: Callable[[Bench], Holders], name: str) -> None:
    bench = benches.get("sqlite-blocking")
    build, act = acts.ACTS[name]
    case = build(bench)
    start = bench.snapshot()
    free = became(act, bench, case)
    bench.restore(start)
    found = became(act, held(bench).seen(None, "acme"), case)
    if found == DENIED:
        assert bench.prints() == start.prints
    else:
        assert found == free
    bench.restore(start)
    found = became(act, held(bench).seen(None, NEIGHBOUR), case)
    if name not in TIDIES:
        assert others(bench.dump(), NEIGHBOUR) == others(start.dump, NEIGHBOUR), found


def test_a_bound_store_has_its_own_tenant_and_no_other(bench: Bench, held: Callable[[Bench], Holders]) -> None:
    mine, other = (created(bench.service), bench.bound(tenant=NEIGHBOUR).list_jobs()[0])
    seen = held(bench).seen(None, "acme")
    before = bench.prints()
    # The service of a bound store is bound.
    assert [job.id for job in seen.service.list_jobs()] == [mine.id]
    assert seen.service.get_job(mine.id).id == mine.id
    with pytest.raises(NotFound):
        seen.service.get_job(other.id)
    with pytest.raises(Invalid) as differs:
        seen.bound(tenant=NEIGHBOUR)
    assert differs.value.code == "TENANT_MISMATCH"
    with pytest.raises(Invalid) as differs:
        seen.service.list_jobs(tenant=NEIGHBOUR)
    assert differs.value.code == "TENANT_MISMATCH"
    # And what is handed to the store itself is judged, alone and in a block.
    foreign = theirs("k-8")
    refused: tuple[tuple[Callable[[], Procedure[Any]], str], ...] = (
        (lambda: get_job(mine.id), "about every tenant or does not say"),
        (list_jobs, "about every tenant or does not say"),
        (lambda: get_job(other.id, tenant=NEIGHBOUR), f"was asked for tenant '{NEIGHBOUR}'"),
        (lambda: create([new_one("k-9"), foreign]), f"was asked for tenant '{NEIGHBOUR}'"),
        (lambda: create_at_once(foreign), f"was asked for tenant '{NEIGHBOUR}'"),
    )
    for asked, text in refused:
        with pytest.raises(Refused, match=text) as denied:
            seen.run(asked())
        assert denied.value.code == "TENANT_BOUND"
        with seen.transaction() as tx, pytest.raises(Refused, match=text):
            tx.run(asked())
    assert bench.prints() == before
    assert seen.run(get_job(mine.id, tenant="acme")).id == mine.id
    assert seen.run(create([new_one("k-9")]))[0].created


def test_what_is_made_from_a_bound_store_is_bound(bench: Bench, held: Callable[[Bench], Holders]) -> None:
    store: Any = held(bench).seen(None, "acme").store
    other = store.awaiting() if bench.loop is None else store.blocking()
    assert other.tenant == "acme"
    if bench.loop is None:
        from tests.contract.bench import LoopThread

        with contextlib.closing(LoopThread()) as loop:
            with pytest.raises(Refused) as denied:
                loop.run(other.run(list_jobs()))
            loop.run(other.close())
    else:
        with pytest.raises(Refused) as denied:
            other.run(list_jobs())
        other.close()
    assert denied.value.code == "TENANT_BOUND"


def test_a_bound_store_does_not_change_the_schema(bench: Bench, held: Callable[[Bench], Holders]) -> None:
    store: Any = held(bench).seen(None, "acme").store
    with pytest.raises(Refused) as denied:
        store.migrate() if bench.loop is None else bench.loop.run(store.migrate())
    assert denied.value.code == "TENANT_BOUND"


def test_messages_and_consumers_of_a_bound_store(bench: Bench, held: Callable[[Bench], Holders]) -> None:
    seen = held(bench).seen(None, "acme")
    given: dict[str, Any] = {"destination": "shop", "type": "quote.accepted", "data": {"n": 1}}
    with seen.transaction() as tx:
        assert outbox.add(tx, tenant="acme", **given).created
        event = inbox.IncomingEvent(
            tenant="acme", operation="o-1", type="quote.accepted", version=1, subject=None, data={"n": 1}
        )
        assert inbox.receive(tx, "shop", event, "d-1").new
    with seen.transaction() as tx, pytest.raises(Refused) as denied:
        outbox.add(tx, tenant=NEIGHBOUR, **given)
    assert denied.value.code == "TENANT_BOUND"


def test_a_joined_transaction_is_judged_by_the_tenant_of_its_store(
    bench: Bench, held: Callable[[Bench], Holders]
) -> None:
    seen = held(bench).seen(None, "acme")
    with producer(bench) as caller:
        caller.begin()
        loop: Any = bench.loop
        store: Any = seen.store
        joined: Any = store.join(caller.raw) if loop is None else loop.call(store.join, caller.raw)

        def run(procedure: Any) -> Any:
            return joined.run(procedure) if loop is None else loop.run(joined.run(procedure))

        with pytest.raises(Refused) as denied:
            run(create_at_once(theirs("k-7")))
        assert denied.value.code == "TENANT_BOUND"
        assert run(create_at_once(new_one("k-7"))).created
        caller.commit()
    assert [row["idempotency_key"] for row in bench.dump()["job"] if row["tenant"] == "acme"] == ["k-7"]


def test_an_app_takes_the_tenant_of_its_store(bench: Bench, held: Callable[[Bench], Holders]) -> None:
    store: Any = held(bench).seen(None, "acme").store
    assert tenure.Tenure(store, organization="studio", project="p1").tenant == "acme"
    with pytest.raises(Invalid) as differs:
        tenure.Tenure(store, organization="studio", project="p1", tenant=NEIGHBOUR)
    assert differs.value.code == "TENANT_MISMATCH"


@pytest.mark.parametrize("tenant", ["", " ", "a" * 300, 7])
def test_what_is_no_tenant_binds_nothing(bench: Bench, tenant: Any) -> None:
    with pytest.raises(Invalid):
        open_store(bench.database.url, tenant=tenant)


def test_sqlite_has_no_row_security(sqlite_bench: Bench) -> None:
    store: Any = sqlite_bench.store
    for wanted in (True, False):
        with pytest.raises(Invalid, match="a file of its own") as none:
            store.migrate(row_security=wanted)
        assert none.value.code == "BAD_ARGUMENT"


def test_a_procedure_says_whose_rows_it_is_about() -> None:
    one, other = new_one("k-1"), theirs("k-2")
    for made, tenants in (
        (create([one, other]), {"acme", NEIGHBOUR}),
        (create([]), set()),
        (create_at_once(one), {"acme"}),
        (get_job(one.job_id), {None}),
        (get_job(one.job_id, tenant="acme"), {"acme"}),
        (list_jobs(tenant=NEIGHBOUR), {NEIGHBOUR}),
    ):
        assert made.tenants() == tenants
        made.script().close()
