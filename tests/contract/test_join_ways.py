"""`app.join` on every kind of connection that a user may hold, as it is documented, and what each refuses."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tenure import AsyncContext, Tenure, inbox, outbox
from tenure.errors import Conflict, IllegalMove, Invalid
from tenure.guard import guard
from tests.support.joins import WAYS, Seen, Way
from tests.support.postgres import Databases
from tests.support.proxy import Proxy

KIND = "send_quote"
_numbers = itertools.count(1)


class Stage:
    """
    One way on one database, with an app on the same.

    Attributes:
        number: Of the test; values, keys and queues are made from it.
    """

    def __init__(self, way: Way, app: Tenure, runner: asyncio.Runner) -> None:
        self.way = way
        self.app = app
        self.seen = Seen(way, runner)
        self.number = next(_numbers)
        self.queue = f"q-{self.number}"

    def enqueue(self, connection: Any, key: str = "k", payload: Any = None, app: Tenure | None = None) -> Any:
        joined = (app or self.app).join(connection)
        fields = {"key": f"{self.number}-{key}", "queue": self.queue}
        return self.seen.do(joined.enqueue, KIND, {"n": 1} if payload is None else payload, **fields)

    def write(self, connection: Any, value: int = 1) -> None:
        self.seen.write(connection, self.number * 100 + value)

    def jobs(self) -> list[str]:
        found = []
        for key in ("k", "k-2", "k-3"):
            job = self.app.service.find_by_idempotency_key(
                project="sales", idempotency_key=f"{self.number}-{key}", organization="studio"
            )
            if job is not None:
                found.append(key)
        return found

    def values(self) -> list[int]:
        if self.way.dialect == "sqlite":
            reader: Any = sqlite3.connect(self.app.url.removeprefix("sqlite:///"))
        else:
            reader = psycopg.connect(self.app.store_url)  # type: ignore[attr-defined]
        rows = reader.execute("SELECT value FROM own ORDER BY value").fetchall()
        reader.close()
        return [row[0] - self.number * 100 for row in rows if row[0] // 100 == self.number]


def prepare(url: str) -> None:
    app = make_app(url)
    app.migrate()
    with app.store.transaction() as tx:
        tx.execute("CREATE TABLE own (value integer CHECK (value >= 0))")
    app.close()


def make_app(url: str) -> Tenure:
    app = Tenure(url, organization="studio", project="sales", actor="user:1")

    async def send(ctx: AsyncContext, payload: dict[str, Any]) -> None: ...

    app.job(KIND)(send)
    return app


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def apps(
    postgres_databases: Databases, tmp_path_factory: pytest.TempPathFactory, runner: asyncio.Runner
) -> Iterator[dict[str, Tenure]]:
    with postgres_databases.lend("joins", prepare) as url:
        file = f"sqlite:///{tmp_path_factory.mktemp('joins') / 'jobs.db'}"
        prepare(file)
        made = {"postgresql": make_app(url), "sqlite": make_app(file)}
        made["postgresql"].store_url = url  # type: ignore[attr-defined]
        yield made
        for app in made.values():
            runner.run(app.aclose())


def stage_of(name: str, apps: dict[str, Tenure], runner: asyncio.Runner, url: str | None = None) -> Stage:
    kind = WAYS[name]
    app = apps[kind.dialect]
    return Stage(kind(url or getattr(app, "store_url", app.url)), app, runner)


@pytest.fixture(params=sorted(WAYS))
def stage(request: pytest.FixtureRequest, apps: dict[str, Tenure], runner: asyncio.Runner) -> Stage:
    return stage_of(request.param, apps, runner)


def of(dialect: str) -> list[str]:
    return sorted(name for name, way in WAYS.items() if way.dialect == dialect)


# --- shared fate ------------------------------------------------------------------------------------------------------


def test_a_job_comes_with_the_callers_commit(stage: Stage) -> None:
    with stage.seen.block("transaction") as connection:
        stage.write(connection)
        made = stage.enqueue(connection)
        assert made.created
        assert (stage.jobs(), stage.values()) == ([], [])
        if stage.way.dialect == "postgresql":
            # On SQLite a claim would wait for the caller's write lock.
            assert stage.app.service.claim_job("A", queues=[stage.queue]) is None
    assert (stage.jobs(), stage.values()) == (["k"], [1])
    claim = stage.app.service.claim_job("A", queues=[stage.queue])
    assert claim is not None
    assert (claim.job.id, claim.job.payload["n"]) == (made.job.id, 1)


def leave_with_an_error(stage: Stage) -> None:
    with stage.seen.block("transaction") as connection:
        stage.write(connection)
        assert stage.enqueue(connection).created
        raise KeyError


def test_a_job_goes_with_the_callers_rollback(stage: Stage) -> None:
    with pytest.raises(KeyError):
        leave_with_an_error(stage)
    assert (stage.jobs(), stage.values()) == ([], [])
    with stage.seen.block("transaction") as connection:
        assert stage.enqueue(connection, payload={"other": 1}).created
    assert stage.jobs() == ["k"]


def test_many_jobs_share_the_callers_transaction(stage: Stage) -> None:
    with stage.seen.block("transaction") as connection:
        jobs = [stage.app.prepare(KIND, {"n": n}, key=f"{stage.number}-k-{n}") for n in (2, 3)]
        assert len(stage.seen.do(stage.app.join(connection).enqueue_many, jobs)) == 2
        assert stage.enqueue(connection).created
        again = stage.enqueue(connection)
        assert not again.created
    assert stage.jobs() == ["k", "k-2", "k-3"]


def test_messages_leave_and_arrive_in_the_callers_transaction(stage: Stage) -> None:
    """What `app.join` gives is a transaction for the outbox and the inbox too, whichever kind it is."""
    message: dict[str, Any] = {"destination": "mail", "type": "t", "data": {"n": 1}, "tenant": "studio"}
    event = inbox.IncomingEvent("studio", f"op-{stage.number}", "t", 1, None, {"n": 1})

    def play(connection: Any) -> tuple[Any, Any, Any]:
        tx = stage.app.join(connection)
        return (
            stage.seen.do(outbox.add, tx, operation=f"op-{stage.number}", **message),
            stage.seen.do(stage.app.join(connection).add_message, operation=f"b-{stage.number}", **message),
            stage.seen.do(inbox.receive, tx, "ledger", event, f"d-{stage.number}"),
        )

    with contextlib.suppress(KeyError), stage.seen.block("transaction") as connection:
        play(connection)
        raise KeyError
    for new in (True, False):
        with stage.seen.block("transaction") as connection:
            added, beside, received = play(connection)
        assert (added.created, beside.created, received.new) == (new, new, new), "the first of them was rolled back"


def test_a_refused_enqueue_leaves_the_transaction_usable(stage: Stage) -> None:
    with stage.seen.block("transaction") as connection:
        assert stage.enqueue(connection).created
    with stage.seen.block("transaction") as connection:
        stage.write(connection, 1)
        with pytest.raises(Conflict):
            stage.enqueue(connection, payload={"other": 1})
        stage.write(connection, 2)
        with pytest.raises(Invalid):
            stage.enqueue(connection, "k-2", payload={"execution": "mine"})
        made = stage.enqueue(connection, "k-2")
        assert made.created
        jobs = [stage.app.prepare(KIND, {"n": n}, key=f"{stage.number}-{key}") for key, n in (("k-3", 3), ("k", 9))]
        with pytest.raises(Conflict):
            stage.seen.do(stage.app.join(connection).enqueue_many, jobs)
        stage.write(connection, 3)
    assert (stage.jobs(), stage.values()) == (["k", "k-2"], [1, 2, 3])


def undo_the_inner_block(stage: Stage, connection: Any) -> None:
    with stage.seen.block("nested", connection):
        stage.write(connection, 2)
        assert stage.enqueue(connection, "k-2").created
        raise KeyError


def test_a_rollback_to_a_savepoint_takes_the_job_with_it(stage: Stage) -> None:
    with stage.seen.block("transaction") as connection:
        stage.write(connection, 1)
        assert stage.enqueue(connection, "k").created
        with pytest.raises(KeyError):
            undo_the_inner_block(stage, connection)
        with stage.seen.block("nested", connection):
            assert stage.enqueue(connection, "k-3").created
        stage.write(connection, 3)
    assert (stage.jobs(), stage.values()) == (["k", "k-3"], [1, 3])


def undo_the_outer_block(stage: Stage) -> None:
    with stage.seen.block("transaction") as connection:
        stage.write(connection)
        with stage.seen.block("nested", connection):
            assert stage.enqueue(connection).created
        raise KeyError


def test_a_rollback_takes_the_job_of_a_savepoint_with_it(stage: Stage) -> None:
    with pytest.raises(KeyError):
        undo_the_outer_block(stage)
    assert (stage.jobs(), stage.values()) == ([], [])


# --- before anything has begun ----------------------------------------------------------------------------------------


def test_what_commits_each_statement_is_refused(stage: Stage) -> None:
    with stage.seen.block("autocommit") as connection:
        with pytest.raises(Invalid) as caught:
            stage.enqueue(connection)
        assert caught.value.code == "AUTOCOMMIT", caught.value
    assert stage.jobs() == []


def test_an_untouched_connection_begins_as_its_owner_would_or_is_refused(stage: Stage) -> None:
    with stage.seen.block("untouched") as connection:
        if not stage.way.begins:
            with pytest.raises(Invalid) as caught:
                stage.enqueue(connection)
            assert caught.value.code == "AUTOCOMMIT"
            assert stage.jobs() == []
            return
        # The job is the first statement; the rollback of its owner takes it.
        assert stage.enqueue(connection).created
        stage.seen.do(connection.rollback)
        assert stage.jobs() == []
        # And the commit of its owner keeps it.
        assert stage.enqueue(connection, "k-2").created
        stage.seen.do(connection.commit)
        assert stage.jobs() == ["k-2"]
        assert stage.enqueue(connection, "k-3").created
    # Closed without a commit.
    assert stage.jobs() == ["k-2"]


# --- what is not joined -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def elsewhere(postgres_databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with postgres_databases.lend("elsewhere", prepare) as url:
        file = f"sqlite:///{tmp_path_factory.mktemp('elsewhere') / 'other.db'}"
        prepare(file)
        yield {"postgresql": url, "sqlite": file}


@pytest.mark.parametrize("name", sorted(WAYS))
def test_another_database_is_refused(
    name: str, apps: dict[str, Tenure], runner: asyncio.Runner, elsewhere: dict[str, str]
) -> None:
    apps["postgresql"].service.list_queues()  # the store has seen its own database now
    runner.run(see(apps["postgresql"]))
    stage = stage_of(name, apps, runner, elsewhere[WAYS[name].dialect])
    with stage.seen.block("transaction") as connection:
        with pytest.raises(Invalid) as caught:
            stage.enqueue(connection)
        assert caught.value.code == "CANNOT_JOIN"
        stage.write(connection)
    assert stage.jobs() == []


async def see(app: Tenure) -> None:
    await (await app.aservice()).list_queues()


def test_the_other_kind_of_database_is_refused(stage: Stage, apps: dict[str, Tenure]) -> None:
    other = apps["sqlite" if stage.way.dialect == "postgresql" else "postgresql"]
    with stage.seen.block("transaction") as connection:
        with pytest.raises(Invalid) as caught:
            stage.enqueue(connection, app=other)
        assert caught.value.code == "CANNOT_JOIN"
        assert stage.enqueue(connection).created
    assert stage.jobs() == ["k"]


def test_the_wrong_manner_is_refused(stage: Stage, runner: asyncio.Runner) -> None:
    async def awaited(connection: Any) -> None:
        (await stage.app.astore()).join(connection)

    with stage.seen.block("transaction") as connection:
        if type(connection) is sqlite3.Connection:
            return  # it has no manner: it is joined by both
        with pytest.raises(Invalid) as caught:
            _ = stage.app.store.join(connection) if stage.way.awaits else runner.run(awaited(connection))
        assert caught.value.code == "CANNOT_JOIN"


def test_a_closed_connection_is_refused(stage: Stage) -> None:
    with stage.seen.block("transaction") as connection:
        assert stage.enqueue(connection).created
    if "session" in type(connection).__name__.lower() or hasattr(connection, "in_atomic_block"):
        return  # a closed session begins anew, and Django connects again
    with pytest.raises(Invalid) as caught:
        stage.enqueue(connection, "k-2")
    assert caught.value.code in {"CANNOT_JOIN", "AUTOCOMMIT"}
    assert stage.jobs() == ["k"]


@pytest.mark.parametrize("name", of("postgresql"))
def test_a_transaction_that_has_failed_is_refused(name: str, apps: dict[str, Tenure], runner: asyncio.Runner) -> None:
    stage = stage_of(name, apps, runner)
    with pytest.raises(KeyError):
        break_the_transaction(stage)
    assert stage.jobs() == []


def break_the_transaction(stage: Stage) -> None:
    with stage.seen.block("transaction") as connection:
        stage.write(connection)
        with pytest.raises(Exception, match="own_value_check"):
            stage.seen.write(connection, -1)
        with pytest.raises(Invalid) as caught:
            stage.enqueue(connection)
        assert caught.value.code == "TRANSACTION_FAILED", caught.value
        raise KeyError


def test_inside_a_publish_only_its_own_connection_is_joined(stage: Stage) -> None:
    with stage.seen.block("transaction") as connection:
        with guard(stage.app.store, connection=connection):
            if not stage.way.awaits:
                assert stage.enqueue(connection).created
        with guard(stage.app.store, connection=object()), pytest.raises(IllegalMove) as caught:
            stage.app.store.join(connection)
        assert caught.value.code == "INSIDE_PUBLISH"


# --- cost and imports -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", of("postgresql"))
def test_an_enqueue_is_one_round_trip(name: str, apps: dict[str, Tenure], runner: asyncio.Runner) -> None:
    app = apps["postgresql"]
    with Proxy(app.store_url) as proxy:  # type: ignore[attr-defined]
        stage = stage_of(name, apps, runner, proxy.url)
        with stage.seen.block("transaction") as connection:
            stage.write(connection)
            # psycopg joins the look at the schema with the first; asyncpg prepares each statement once.
            before = proxy.seen["trips"]
            assert stage.enqueue(connection, "k").created
            first = proxy.seen["trips"] - before
            spent = []
            for nth in range(3):
                before = proxy.seen["trips"]
                assert stage.enqueue(connection, f"more-{nth}").created
                spent.append(proxy.seen["trips"] - before)
        assert spent == [stage.way.trips] * 3
        if stage.way.trips == 1:
            assert first == 1


def test_a_rotated_tenant_costs_a_second_trip_once(apps: dict[str, Tenure], runner: asyncio.Runner) -> None:
    app = apps["postgresql"]
    with Proxy(app.store_url) as proxy:  # type: ignore[attr-defined]
        stage = stage_of("psycopg", apps, runner, proxy.url)
        mine = make_app(app.store_url)  # type: ignore[attr-defined]
        mine.tenant = "rotated"
        with psycopg.connect(app.store_url) as admin:  # type: ignore[attr-defined]
            admin.execute("INSERT INTO tenure.authority (tenant, epoch) VALUES ('rotated', 4)")
        spent, epochs = [], []
        with stage.seen.block("transaction") as connection:
            stage.write(connection)
            for nth in range(3):
                before = proxy.seen["trips"]
                made = stage.enqueue(connection, f"k-{nth}", app=mine)
                spent.append(proxy.seen["trips"] - before)
                epochs.append(made.job.epoch)
        assert spent == [3, 1, 1]
        assert epochs == [4, 4, 4]
        mine.close()


def test_nothing_is_imported_before_it_is_handed_in(tmp_path: Path) -> None:
    program = f"""
import sys, sqlite3
from tenure import Tenure
app = Tenure("sqlite:///{tmp_path / "jobs.db"}", organization="studio", project="sales", actor="user:1")
@app.job("k")
async def k(ctx, payload: dict): ...
app.migrate()
with sqlite3.connect("{tmp_path / "jobs.db"}") as connection:
    connection.execute("BEGIN")
    app.join(connection).enqueue("k", {{}}, key="k")
connection.close()
app.close()
print([name for name in ("sqlalchemy", "django", "asyncpg", "aiosqlite", "psycopg") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
