"""What SQLAlchemy and Django have to say about a transaction before a job may be part of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
import sqlalchemy
from django.db import connections, transaction
from sqlalchemy import event, text
from sqlalchemy.dialects import registry
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from tenure import AsyncContext, Tenure
from tenure.errors import Invalid
from tests.support.joins import django_connection
from tests.support.postgres import Databases


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Tenure]:
    made = make(f"sqlite:///{tmp_path / 'jobs.db'}")
    yield made
    made.close()


@pytest.fixture(scope="module")
def postgres_app(postgres_databases: Databases) -> Iterator[Tenure]:
    made = make(postgres_databases.create())
    yield made
    made.close()


def make(url: str) -> Tenure:
    app = Tenure(url, organization="studio", project="sales", actor="user:1")

    async def send(ctx: AsyncContext, payload: dict[str, Any]) -> None: ...

    app.job("send_quote")(send)
    app.migrate()
    with app.store.transaction() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS own (value integer)")
    return app


@pytest.fixture
def engine(app: Tenure) -> Iterator[sqlalchemy.Engine]:
    made = sqlalchemy.create_engine(app.url, poolclass=NullPool)
    yield made
    made.dispose()


def enqueue(app: Tenure, connection: Any, key: str = "k") -> Any:
    return app.join(connection).enqueue("send_quote", {}, key=key)  # type: ignore[union-attr]


def keys(app: Tenure) -> list[str]:
    return sorted(job.idempotency_key for job in app.service.list_jobs())


def refusal(app: Tenure, connection: Any) -> str:
    with pytest.raises(Invalid) as caught:
        enqueue(app, connection)
    return caught.value.code


# --- SQLAlchemy -------------------------------------------------------------------------------------------------------


def test_scoped_sessions_are_joined(app: Tenure, engine: sqlalchemy.Engine) -> None:
    session = scoped_session(sessionmaker(engine))
    session.execute(text("INSERT INTO own VALUES (1)"))
    assert enqueue(app, session).created
    session.commit()
    assert enqueue(app, session, "gone").created
    session.rollback()
    session.remove()
    assert keys(app) == ["k"]


def test_awaited_scoped_sessions_are_joined(app: Tenure) -> None:
    async def body() -> None:
        engine = create_async_engine(app.url.replace("sqlite:", "sqlite+aiosqlite:"), poolclass=NullPool)
        session = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
        assert (await enqueue(app, session)).created
        await session.commit()
        await session.remove()
        await engine.dispose()
        await app.aclose()

    asyncio.run(body())
    assert keys(app) == ["k"]


def test_what_holds_no_transaction_is_refused(app: Tenure, engine: sqlalchemy.Engine) -> None:
    assert refusal(app, engine) == "CANNOT_JOIN"
    assert refusal(app, text("SELECT 1")) == "CANNOT_JOIN"
    with engine.begin() as connection:
        assert refusal(app, connection.connection) == "CANNOT_JOIN"
        assert enqueue(app, connection).created
    assert keys(app) == ["k"]


def test_blocking_objects_need_no_greenlet(app: Tenure) -> None:
    """SQLAlchemy's awaited half cannot even be imported without it, and many have only the blocking half."""
    program = f"""
import sys
sys.modules["greenlet"] = None
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from tenure import Tenure
app = Tenure({app.url!r}, organization="studio", project="sales", actor="user:1")
@app.job("send_quote")
async def send(ctx, payload: dict): ...
engine = create_engine({app.url!r})
with Session(engine) as session:
    app.join(session).enqueue("send_quote", {{}}, key="k")
    session.commit()
engine.dispose()
app.close()
print([name for name in sys.modules if name.startswith("sqlalchemy.ext.asyncio.")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert keys(app) == ["k"]


def test_a_session_that_does_not_begin_by_itself_has_to_be_begun(app: Tenure, engine: sqlalchemy.Engine) -> None:
    with Session(engine, autobegin=False) as session:
        assert refusal(app, session) == "AUTOCOMMIT"
        with session.begin():
            assert enqueue(app, session).created
    assert keys(app) == ["k"]


def test_a_session_of_several_databases_is_asked_for_one(app: Tenure, engine: sqlalchemy.Engine) -> None:
    table = sqlalchemy.Table("own", sqlalchemy.MetaData(), sqlalchemy.Column("value", sqlalchemy.Integer))
    with Session(binds={table: engine}) as session:
        assert refusal(app, session) == "CANNOT_JOIN"
        connection = session.connection(bind_arguments={"clause": table.select()})
        assert enqueue(app, connection).created
        session.commit()
    assert keys(app) == ["k"]


def test_a_transaction_that_sqlalchemy_takes_for_over_is_refused(app: Tenure, engine: sqlalchemy.Engine) -> None:
    with engine.connect() as connection:
        with connection.begin() as outer:
            connection.execute(text("INSERT INTO own VALUES (1)"))
            outer.rollback()
            # SQLAlchemy would refuse a statement here, too.
            assert refusal(app, connection) in {"CANNOT_JOIN", "TRANSACTION_FAILED"}
        with connection.begin():
            assert enqueue(app, connection).created
    assert keys(app) == ["k"]


def test_a_session_whose_flush_has_failed_is_refused(app: Tenure, engine: sqlalchemy.Engine) -> None:
    class Model(sqlalchemy.orm.DeclarativeBase): ...

    class Own(Model):
        __tablename__ = "own_rows"
        id: sqlalchemy.orm.Mapped[int] = sqlalchemy.orm.mapped_column(primary_key=True)

    Model.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Own(id=1))
        session.commit()
        session.add(Own(id=1))
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            session.flush()
        if not session.is_active:
            assert refusal(app, session) == "TRANSACTION_FAILED"
        session.rollback()
        session.add(Own(id=2))
        assert enqueue(app, session).created
        session.commit()
        assert session.get(Own, 2) is not None
    assert keys(app) == ["k"]


def test_autocommit_of_one_connection_is_refused(app: Tenure, engine: sqlalchemy.Engine, postgres_app: Tenure) -> None:
    other = sqlalchemy.create_engine(postgres_url_of(postgres_app), poolclass=NullPool)
    for mine, its in ((app, engine), (postgres_app, other)):
        with its.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            assert refusal(mine, connection) == "AUTOCOMMIT"
        with its.connect().execution_options(isolation_level="SERIALIZABLE") as connection:
            assert enqueue(mine, connection).created
            connection.commit()
        assert keys(mine) == ["k"]
    other.dispose()


def postgres_url_of(app: Tenure) -> str:
    return app._stores.url.replace("postgresql:", "postgresql+psycopg:")


def test_sqlite_in_the_way_that_sqlalchemy_recommends(app: Tenure, engine: sqlalchemy.Engine) -> None:
    """The driver begins nothing and SQLAlchemy's event says BEGIN: nothing has to be added to that."""

    @event.listens_for(engine, "connect")
    def quiet(raw: Any, record: Any) -> None:
        raw.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: sqlalchemy.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    with engine.connect() as connection:
        with connection.begin_nested():
            assert enqueue(app, connection, "gone").created
        connection.rollback()
        assert keys(app) == []
        with connection.begin_nested():
            assert enqueue(app, connection).created
        connection.commit()
    assert keys(app) == ["k"]


def test_another_driver_is_refused_with_those_that_are_taken(app: Tenure) -> None:
    # A second driver for SQLite that SQLAlchemy brings for its own tests.
    registry.register("sqlite.other", "sqlalchemy.dialects.sqlite.pysqlite", "_SQLiteDialect_pysqlite_numeric")
    engine = sqlalchemy.create_engine(app.url.replace("sqlite:", "sqlite+other:"), poolclass=NullPool)
    with engine.begin() as connection:
        with pytest.raises(Invalid, match=r"sqlite\+pysqlite_numeric.*sqlite\+pysqlite or sqlite\+aiosqlite") as caught:
            enqueue(app, connection)
        assert caught.value.code == "CANNOT_JOIN"
    engine.dispose()


def test_a_sync_session_over_an_awaited_driver_is_refused(app: Tenure) -> None:
    async def body() -> None:
        engine = create_async_engine(app.url.replace("sqlite:", "sqlite+aiosqlite:"), poolclass=NullPool)
        async with AsyncSession(engine) as session:
            await session.run_sync(lambda inner: codes.append(refusal(app, inner)))
        await engine.dispose()

    codes: list[str] = []
    asyncio.run(body())
    assert codes == ["CANNOT_JOIN"]


# --- aiosqlite --------------------------------------------------------------------------------------------------------


def test_one_hop_does_a_whole_procedure(app: Tenure, tmp_path: Path) -> None:
    """Another task's statement on the same connection does not come between the savepoint and its end."""

    async def body() -> None:
        async with aiosqlite.connect(tmp_path / "jobs.db", isolation_level=None) as connection:
            await connection.execute("BEGIN IMMEDIATE")
            jobs = [enqueue(app, connection, f"k-{nth}") for nth in range(5)]
            rows = [connection.execute("INSERT INTO own VALUES (1)") for _ in range(5)]
            await asyncio.gather(*jobs, *rows)
            await connection.commit()
            tx = (await app.astore()).join(connection)
            with pytest.raises(Invalid):
                await tx.execute("SELECT count(*) FROM own")  # type: ignore[attr-defined]
            await connection.execute("BEGIN")
            cursor = await tx.execute("SELECT count(*) FROM own")  # type: ignore[attr-defined]
            assert await cursor.fetchone() == (5,)
            await connection.rollback()
        with pytest.raises(Invalid) as caught:
            await enqueue(app, connection)
        assert caught.value.code == "CANNOT_JOIN"
        await app.aclose()

    asyncio.run(body())
    assert keys(app) == [f"k-{nth}" for nth in range(5)]


# --- Django -----------------------------------------------------------------------------------------------------------


def test_a_broken_atomic_block_is_refused(app: Tenure) -> None:
    connection = django_connection(app.url, "owners")
    with transaction.atomic(using="owners"):
        transaction.set_rollback(True, using="owners")
        assert refusal(app, connection) == "TRANSACTION_FAILED"
    with transaction.atomic(using="owners"):
        assert enqueue(app, connection).created
    connection.close()
    assert keys(app) == ["k"]


def test_the_proxy_that_django_gives_out_is_joined(app: Tenure) -> None:
    from django.db import connection as proxy

    default = django_connection(app.url, "default")
    with transaction.atomic():
        assert enqueue(app, proxy).created
    default.close()
    assert keys(app) == ["k"]


def test_what_is_no_connection_of_djangos_is_refused(app: Tenure) -> None:
    assert refusal(app, connections) == "CANNOT_JOIN"
    assert refusal(app, transaction.Atomic("default", savepoint=True, durable=False)) == "CANNOT_JOIN"


def test_django_is_refused_where_it_would_block_a_loop(app: Tenure) -> None:
    connection = django_connection(app.url, "owners")

    async def body() -> None:
        with pytest.raises(Invalid, match="sync_to_async"):
            (await app.astore()).join(connection)
        await app.aclose()

    asyncio.run(body())
    connection.close()
