"""Procedures in the caller's own transaction: theirs to commit, and never a step too far."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads

from tenure.errors import Conflict, Invalid, Unavailable
from tenure.stores.postgres.store import PostgresStore
from tenure.yields import AfterCommit, Each, Script, Statement, procedure
from tests.stores_postgres.conftest import Maker
from tests.stores_postgres.toy import (
    MIGRATIONS,
    MORE,
    SLEEPING,
    STATEMENTS,
    Awaiting,
    Blocking,
    add,
    ask,
    count,
    fail,
    poll,
    put,
    put_then,
    raised,
)
from tests.support.postgres import Databases
from tests.support.proxy import Proxy


class Caller:
    """A blocking caller with a connection of its own."""

    def __init__(self, store: Any, url: str, **options: Any) -> None:
        self.store = store
        self.connection: Any = psycopg.connect(url, **options)

    def join(self) -> Any:
        return self.store.store.join(self.connection)

    def run(self, procedure: Any) -> Any:
        return self.run_on(self.join(), procedure)

    def run_on(self, joined: Any, procedure: Any) -> Any:
        return joined.run(procedure)

    def execute(self, sql: str) -> Any:
        cursor = self.connection.execute(sql)
        return cursor.fetchall() if cursor.description else None

    def call(self, name: str, *arguments: Any) -> Any:
        return getattr(self.connection, name)(*arguments)

    def close(self) -> None:
        self.connection.close()


class AsyncCaller(Caller):
    """An awaiting caller."""

    def __init__(self, store: Any, url: str, **options: Any) -> None:
        self.store = store
        self.connection = store.runner.run(psycopg.AsyncConnection.connect(url, **options))

    def run_on(self, joined: Any, procedure: Any) -> Any:
        return self.store.runner.run(joined.run(procedure))

    def execute(self, sql: str) -> Any:
        async def work() -> Any:
            cursor = await self.connection.execute(sql)
            return await cursor.fetchall() if cursor.description else None

        return self.store.runner.run(work())

    def call(self, name: str, *arguments: Any) -> Any:
        return self.store.runner.run(getattr(self.connection, name)(*arguments))

    def close(self) -> None:
        self.call("close")


Callers: TypeAlias = Callable[..., Any]


@pytest.fixture
def caller(make: Maker, database: str) -> Iterator[Callers]:
    """Give the maker of callers, blocking or awaiting as the store is; options go to their connection."""
    store = make(database)
    made = []

    def maker(url: str = database, **options: Any) -> Caller:
        kind = AsyncCaller if isinstance(store, Awaiting) else Caller
        made.append(kind(store, url, **options))
        return made[-1]

    yield maker
    for one in made:
        one.close()


def test_nothing_is_seen_before_the_callers_commit(caller: Callers) -> None:
    one = caller()
    note = uuid4()
    one.execute("CREATE TABLE accepted (id integer)")
    assert one.run(put((note, "x", 1))) == [note]
    assert one.store.run(count()) == 0
    one.call("commit")
    assert one.store.run(count()) == 1
    one.run(put((uuid4(), "y", 1)))
    one.call("rollback")
    assert one.store.run(count()) == 1


def test_the_first_statement_may_be_ours(caller: Callers) -> None:
    one = caller()
    one.run(put((uuid4(), "x", 1)))
    assert one.connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    one.call("rollback")
    assert one.store.run(count()) == 0


def test_a_failing_procedure_leaves_the_transaction_usable(caller: Callers) -> None:
    one = caller()
    one.execute("CREATE TABLE accepted (id integer)")
    one.run(put((uuid4(), "kept", 1)))
    with pytest.raises(Conflict):
        one.run(put_then(uuid4(), Conflict("no")))
    with pytest.raises(psycopg.errors.CheckViolation) as violation:
        one.run(put((uuid4(), "secret", -1)))
    assert "secret" not in str(violation.value)
    with pytest.raises(Unavailable) as deadlock:
        one.run(fail("40P01", 1))
    assert deadlock.value.code == "DEADLOCK"
    with pytest.raises(Invalid):
        one.run(put((uuid4(), "x", 2**63)))
    one.execute("INSERT INTO accepted VALUES (1)")
    one.run(put((uuid4(), "kept", 2)))
    one.call("commit")
    assert one.store.run(count()) == 2
    assert one.execute("SELECT count(*) FROM accepted") == [(1,)]


def test_an_autocommit_connection_is_refused_outside_a_transaction_and_taken_inside(caller: Callers) -> None:
    one = caller(autocommit=True)
    with pytest.raises(Invalid, match="autocommit") as error:
        one.join()
    assert error.value.code == "AUTOCOMMIT"
    one.execute("BEGIN")
    one.run(put((uuid4(), "x", 1)))
    one.execute("ROLLBACK")
    assert one.store.run(count()) == 0
    one.execute("BEGIN")
    joined = one.join()
    one.execute("COMMIT")
    with pytest.raises(Invalid) as later:
        one.run_on(joined, put((uuid4(), "x", 1)))
    assert later.value.code == "AUTOCOMMIT"
    assert joined.connection is one.connection
    assert one.store.run(count()) == 0


def test_inside_the_drivers_transaction_block(database: str) -> None:
    store = Blocking(database)

    def fail_inside(connection: psycopg.Connection) -> None:
        with connection.transaction():
            store.store.join(connection).run(put((uuid4(), "gone", 1)))
            raise KeyError

    with psycopg.connect(database, autocommit=True) as connection:
        raised(KeyError, fail_inside, connection)
        with connection.transaction(), store.store.join(connection) as tx:
            tx.run(put((uuid4(), "kept", 1)))
            raised(KeyError, fail_inside, connection)
            assert tx.execute("SELECT count(*) FROM tenure.note").fetchall() == [(1,)]
            assert tx.execute("SELECT %s", ["a"]).fetchall() == [("a",)]
    assert store.run(count()) == 1
    store.close()


def test_inside_the_drivers_awaiting_transaction_block(database: str) -> None:
    store = Awaiting(database)

    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
            async with connection.transaction(), store.store.join(connection) as tx:
                await tx.run(put((uuid4(), "kept", 1)))
                cursor = await tx.execute("SELECT count(*) FROM tenure.note")
                assert await cursor.fetchall() == [(1,)]
            with pytest.raises(Invalid) as error:
                store.store.join(connection)
            assert error.value.code == "AUTOCOMMIT"

    store.runner.run(work())
    assert store.run(count()) == 1
    store.close()


def test_a_failed_transaction_is_refused_clearly(caller: Callers) -> None:
    one = caller()
    with pytest.raises(psycopg.Error):
        one.execute("SELECT 1/0")
    with pytest.raises(Invalid, match="roll back") as error:
        one.join()
    assert error.value.code == "TRANSACTION_FAILED"
    one.call("rollback")
    assert one.run(count()) == 0


def test_a_closed_connection_is_refused(caller: Callers) -> None:
    one = caller()
    one.run(count())
    one.call("close")
    with pytest.raises(Invalid) as error:
        one.join()
    assert error.value.code == "CANNOT_JOIN"


def test_connections_of_another_kind_are_refused(database: str) -> None:
    import sqlite3

    blocking, awaiting = Blocking(database), Awaiting(database)
    with sqlite3.connect(":memory:") as other, psycopg.connect(database) as mine:
        for wrong in (other, object(), None):
            with pytest.raises(Invalid, match=r"psycopg\.Connection") as error:
                blocking.store.join(wrong)
            assert error.value.code == "CANNOT_JOIN"
        with pytest.raises(Invalid, match=r"psycopg\.AsyncConnection"):
            awaiting.store.join(mine)
        assert blocking.store.join(mine).run(count()) == 0
    other.close()
    blocking.close()
    awaiting.close()


def test_a_connection_to_another_installation_is_refused(caller: Callers, postgres_databases: Databases) -> None:
    elsewhere = postgres_databases.create()
    Blocking(elsewhere).migrate()
    caller().store.run(count())  # the store knows its own database now
    stranger = caller(elsewhere)
    with pytest.raises(Invalid, match="another database") as error:
        stranger.run(put((uuid4(), "x", 1)))
    assert error.value.code == "CANNOT_JOIN"
    assert stranger.execute("SELECT count(*) FROM tenure.note") == [(0,)]
    assert caller().run(put((uuid4(), "x", 1)))


def test_a_store_knows_its_database_from_its_opening(postgres_databases: Databases, database: str) -> None:
    elsewhere = postgres_databases.create()
    Blocking(elsewhere).migrate()
    store = PostgresStore(database, statements=STATEMENTS, migrations=MIGRATIONS)
    store.look()  # what its opener does; it has run nothing yet
    with store, psycopg.connect(elsewhere) as stranger, psycopg.connect(database) as own:
        with pytest.raises(Invalid, match="another database") as error:
            store.join(stranger).run(put((uuid4(), "x", 1)))
        assert error.value.code == "CANNOT_JOIN"
        assert stranger.execute("SELECT count(*) FROM tenure.note").fetchone() == (0,)
        assert store.join(own).run(put((uuid4(), "x", 1)))


def test_a_copy_on_the_same_server_is_another_database(postgres_databases: Databases) -> None:
    original = postgres_databases.create()
    made = Blocking(original)
    made.migrate()
    made.close()
    copy = postgres_databases.create(template=conninfo_to_dict(original)["dbname"])
    store = Blocking(original)
    store.run(count())
    with psycopg.connect(copy) as stranger, psycopg.connect(original) as own:
        with pytest.raises(Invalid, match="another database") as error:
            store.store.join(stranger).run(put((uuid4(), "x", 1)))
        assert error.value.code == "CANNOT_JOIN"
        assert store.store.join(own).run(put((uuid4(), "x", 1)))
    store.close()


def test_a_connection_without_tables_asks_for_migrate(caller: Callers, postgres_database: str) -> None:
    one = caller(postgres_database)
    with pytest.raises(Invalid, match="tenure migrate") as error:
        one.run(count())
    assert error.value.code == "SCHEMA_MISSING"
    assert one.execute("SELECT 1") == [(1,)]


def test_a_newer_schema_is_refused_when_joining_too(make: Maker, caller: Callers, database: str) -> None:
    make(database, migrations=[*MIGRATIONS, MORE]).migrate()
    one = caller()
    with pytest.raises(Invalid) as error:
        one.run(count())
    assert error.value.code == "SCHEMA_NEWER"


def test_a_session_that_forgets_commits_is_refused(caller: Callers) -> None:
    one = caller()
    one.execute("SET synchronous_commit = off")
    with pytest.raises(Invalid) as error:
        one.run(put((uuid4(), "x", 1)))
    assert error.value.code == "SYNC_COMMIT_OFF"
    one.execute("SET synchronous_commit = on")
    assert one.run(put((uuid4(), "x", 1)))
    assert one.execute("SELECT count(*) FROM tenure.note") == [(1,)]


def test_what_the_caller_set_up_neither_breaks_us_nor_changes(caller: Callers) -> None:
    one = caller(row_factory=dict_row, prepare_threshold=None)
    set_json_loads(lambda _: "the caller's", one.connection)
    one.connection.adapters.register_loader("int8", psycopg.types.numeric.FloatLoader)
    one.connection.adapters.register_loader("uuid", psycopg.types.string.TextLoader)
    one.connection.adapters.register_dumper(str, psycopg.types.string.StrBinaryDumperVarchar)
    note = uuid4()
    assert one.run(put((note, "x", 1))) == [note]
    assert one.run(ask("note_get", ids=[note])) == [(note, "x", 1)]
    assert one.execute("SELECT 1::bigint AS n, '{}'::json AS j") == [{"n": 1.0, "j": "the caller's"}]
    assert one.connection.prepare_threshold is None
    assert one.execute("SELECT count(*)::int AS n FROM pg_prepared_statements") == [{"n": 0}]


def test_settings_isolation_and_session_stay_the_callers(caller: Callers) -> None:
    one = caller()
    one.execute("SET LOCAL statement_timeout = '77s'")
    one.run(add(1))
    assert one.run(ask("settings"))[0][1:3] == ("77s", "0")
    one.call("rollback")
    if isinstance(one, AsyncCaller):
        one.call("set_isolation_level", psycopg.IsolationLevel.REPEATABLE_READ)
    else:
        one.connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    assert one.run(ask("settings"))[0][0] == "repeatable read"


def test_a_conflict_of_snapshots_is_the_callers_to_repeat(caller: Callers) -> None:
    one = caller()
    one.store.run(add(1))
    one.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    one.execute("SELECT 1")
    assert one.run(ask("counter_lock", name="other")) == []
    one.store.run(add(1))
    with pytest.raises(Unavailable) as error:
        one.run(ask("counter_lock", name="n"))
    assert error.value.code == "SERIALIZATION"
    assert one.execute("SELECT 1") == [(1,)]


def test_another_encoding_is_refused(caller: Callers) -> None:
    one = caller()
    one.execute("SET client_encoding = 'LATIN1'")
    with pytest.raises(Invalid, match="UTF8"):
        one.join()
    one.execute("SET client_encoding = 'UTF8'")
    note = uuid4()
    one.run(put((note, "é", 1)))
    assert one.run(ask("note_get", ids=[note])) == [(note, "é", 1)]


def test_joining_costs_one_round_trip(make: Maker, proxy: Proxy, database: str) -> None:
    store = make(database)
    kind = AsyncCaller if isinstance(store, Awaiting) else Caller
    one = kind(store, proxy.url)
    one.execute("SELECT 1")
    spent = []
    for _ in range(3):
        before = proxy.seen["trips"]
        one.run(put((uuid4(), "x", 1)))
        spent.append(proxy.seen["trips"] - before)
    one.call("commit")
    one.close()
    assert spent == [1, 1, 1]
    assert not {"BEGIN", "ROLLBACK"} & set(proxy.statements[1:-1])
    assert store.run(count()) == 3


def test_joining_inside_the_callers_pipeline(database: str) -> None:
    store = Blocking(database)
    with psycopg.connect(database) as connection, connection.pipeline():
        connection.execute("CREATE TABLE accepted (id integer)")
        note = uuid4()
        assert store.store.join(connection).run(put((note, "x", 1))) == [note]
        later = connection.execute("SELECT count(*) FROM tenure.note")
        assert later.fetchall() == [(1,)]
    with psycopg.connect(database, autocommit=True) as connection, connection.pipeline():
        connection.execute("SELECT 1")
        with pytest.raises(Invalid) as error:
            store.store.join(connection).run(put((uuid4(), "y", 1)))
        assert error.value.code == "AUTOCOMMIT"
        with connection.transaction():
            store.store.join(connection).run(put((uuid4(), "y", 1)))
    assert store.run(count()) == 2
    store.close()


def test_an_error_for_after_the_commit_is_given_back(caller: Callers) -> None:
    one = caller()
    wanted = AfterCommit(Conflict("after"))
    assert one.run(put_then(uuid4(), wanted)) is wanted
    one.call("commit")
    assert one.store.run(count()) == 1


def test_many_joined_procedures_in_one_transaction(caller: Callers) -> None:
    one = caller()
    for number in range(200):
        if number % 10 == 3:
            with pytest.raises(Conflict):
                one.run(put_then(uuid4(), Conflict("no")))
        else:
            one.run(put((uuid4(), "x", number)))
    one.call("commit")
    assert one.store.run(count()) == 180


def test_a_connection_that_breaks_is_unavailable(make: Maker, proxy: Proxy, database: str) -> None:
    store = make(database)
    one = (AsyncCaller if isinstance(store, Awaiting) else Caller)(store, proxy.url)
    one.run(put((uuid4(), "x", 1)))
    proxy.reset()
    with pytest.raises(Unavailable) as error:
        one.run(put((uuid4(), "y", 1)))
    assert error.value.code == "CONNECTION_LOST"
    one.close()
    assert store.run(count()) == 0


def test_a_cancelled_joined_procedure_leaves_none_of_its_writes(database: str) -> None:
    store = Awaiting(database)

    @procedure
    def put_and_sleep() -> Script[None]:
        yield Each("note_put", [(uuid4(), "gone", 1)])
        yield Statement("sleep", {"seconds": 30.0})

    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(database) as connection:
            await store.store.join(connection).run(put((uuid4(), "kept", 1)))
            joined = asyncio.create_task(store.store.join(connection).run(put_and_sleep()))
            await asyncio.to_thread(poll, database, SLEEPING, (1,))
            joined.cancel()
            with pytest.raises(asyncio.CancelledError):
                await joined
            await store.store.join(connection).run(put((uuid4(), "kept", 1)))

    store.runner.run(work())
    assert store.run(count()) == 2
    store.close()


def test_a_closed_store_joins_nothing(caller: Callers, database: str) -> None:
    store = Blocking(database)
    with psycopg.connect(database) as connection:
        joined = store.store.join(connection)
        assert joined.run(count()) == 0
        store.close()
        with pytest.raises(Invalid) as error:
            store.store.join(connection)
        assert error.value.code == "STORE_CLOSED"
        with pytest.raises(Invalid):
            joined.run(count())
        assert caller().run(count()) == 0
