"""What only asyncpg does: its own encoding, codecs of its owner's, pools, and one task at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from tenure.errors import Conflict, Invalid, Unavailable
from tenure.stores import statements
from tenure.stores.postgres.asyncpg import text_of
from tenure.stores.postgres.store import AsyncPostgresStore
from tenure.stores.postgres.values import Catalogue
from tenure.yields import AfterCommit, Each, Script, Statement, procedure
from tests.stores_postgres.toy import Awaiting, add, ask, count, put, put_then
from tests.support.postgres import Databases

Work = Callable[[Any, Any], Coroutine[Any, Any, Any]]


def play(database: str, work: Work, **options: Any) -> Any:
    """Run something with a toy store and an asyncpg connection on its loop."""
    store = Awaiting(database)

    async def body() -> Any:
        connection = await asyncpg.connect(database, **options)
        try:
            return await work(store.store, connection)
        finally:
            await connection.close()

    try:
        return store.runner.run(body())
    finally:
        store.close()


def left(database: str) -> int:
    store = Awaiting(database)
    try:
        found: int = store.run(count())
        return found
    finally:
        store.close()


def test_every_statement_is_understood_by_the_server(postgres_databases: Databases) -> None:
    url = postgres_databases.create()

    async def body() -> list[str]:
        async with AsyncPostgresStore(url) as store:
            await store.migrate()
        connection = await asyncpg.connect(url)
        odd = []
        catalogue = Catalogue(statements.load("tenure.stores.postgres"))
        for name, compiled in catalogue._compiled.items():
            prepared = await connection.prepare(text_of(compiled.text))
            used = {
                kind.name for kind in (*prepared.get_parameters(), *(one.type for one in prepared.get_attributes()))
            }
            # These an owner may have given codecs of his own; ids come back as they are, for nobody gives them others
            # than text or UUID, and both are understood.
            if used & {"json", "jsonb", "json[]", "jsonb[]"}:
                odd.append(name)
        await connection.close()
        return odd

    assert asyncio.run(body()) == []


def test_casts_are_made_once_for_every_use_of_a_parameter() -> None:
    told = text_of(b"SELECT $1::uuid[], $2::integer, $1, $3, $12::jsonb WHERE a = $2 AND b = ANY($10::text[])")
    assert told == (
        "SELECT $1::text[]::uuid[], $2::integer, $1::text[]::uuid[], $3, $12::text::jsonb "
        "WHERE a = $2::integer AND b = ANY($10::text[])"
    )


def test_codecs_of_the_owners_change_nothing(database: str) -> None:
    note = uuid4()

    async def work(store: Any, connection: Any) -> Any:
        for name in ("json", "jsonb"):
            await connection.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        await connection.set_type_codec("uuid", encoder=str, decoder=str, schema="pg_catalog")
        async with connection.transaction():
            tx = store.join(connection)
            assert [UUID(str(one)) for one in await tx.run(put((note, "x", 1)))] == [note]
            assert [(str(row[0]), *row[1:]) for row in await tx.run(ask("note_get", ids=[note]))] == [
                (str(note), "x", 1)
            ]
        return await connection.fetchval("""SELECT '{"a": 1}'::json""")

    assert play(database, work) == {"a": 1}
    assert left(database) == 1


def test_a_value_that_fits_nowhere_is_refused_before_anything_is_sent(database: str) -> None:
    async def work(store: Any, connection: Any) -> None:
        async with connection.transaction():
            tx = store.join(connection)
            with pytest.raises(Invalid) as caught:
                await tx.run(put((uuid4(), "x", 2**63)))
            assert caught.value.code == "VALUE_REFUSED"
            await tx.run(put((uuid4(), "kept", 1)))

    play(database, work)
    assert left(database) == 1


def test_what_the_server_refuses_is_undone(database: str) -> None:
    note = uuid4()

    async def work(store: Any, connection: Any) -> None:
        async with connection.transaction():
            tx = store.join(connection)
            await tx.run(put((note, "kept", 1)))
            with pytest.raises(Conflict):
                await tx.run(put_then(uuid4(), Conflict("no")))
            with pytest.raises(RuntimeError, match="constraint note_pkey refused statement note_put"):
                await tx.run(put((note, "again", 1)))
            await tx.run(put((uuid4(), "kept", 2)))
            wanted = AfterCommit(Conflict("after"))
            assert await tx.run(put_then(uuid4(), wanted)) is wanted

    play(database, work)
    assert left(database) == 3


def test_a_conflict_of_snapshots_is_the_callers_to_repeat(database: str) -> None:
    async def work(store: Any, connection: Any) -> None:
        await store.run(add(1))
        async with connection.transaction(isolation="repeatable_read"):
            await connection.fetch("SELECT 1")
            tx = store.join(connection)
            assert await tx.run(ask("counter_lock", name="other")) == []
            await store.run(add(1))
            with pytest.raises(Unavailable) as caught:
                await tx.run(ask("counter_lock", name="n"))
            assert caught.value.code == "SERIALIZATION"
            assert await connection.fetchval("SELECT 1") == 1

    play(database, work)


def test_a_limit_of_the_owners_is_unavailable_and_undone(database: str) -> None:
    @procedure
    def put_and_sleep() -> Script[None]:
        yield Each("note_put", [(uuid4(), "gone", 1)])
        yield Statement("sleep", {"seconds": 30.0})

    async def work(store: Any, connection: Any) -> None:
        async with connection.transaction():
            tx = store.join(connection)
            await tx.run(put((uuid4(), "kept", 1)))
            with pytest.raises(Unavailable) as caught:
                await tx.run(put_and_sleep())
            assert caught.value.code == "STORE_BUSY"
            await tx.run(put((uuid4(), "kept", 2)))

    play(database, work, command_timeout=0.5)
    assert left(database) == 2


def test_another_task_on_the_same_connection_is_told_apart(database: str) -> None:
    async def work(store: Any, connection: Any) -> None:
        async with connection.transaction():
            tx = store.join(connection)
            await tx.run(put((uuid4(), "kept", 1)))
            other = asyncio.create_task(connection.fetch("SELECT pg_sleep(0.2)"))
            await asyncio.sleep(0)
            with pytest.raises(Invalid, match="another task") as caught:
                await tx.run(put((uuid4(), "no", 1)))
            assert caught.value.code == "CANNOT_JOIN"
            await other
            await tx.run(put((uuid4(), "kept", 2)))

    play(database, work)
    assert left(database) == 2


def test_a_connection_that_was_given_back_is_refused(database: str) -> None:
    async def work(store: Any, connection: Any) -> None:
        async with asyncpg.create_pool(database, min_size=0, max_size=1) as pool:
            async with pool.acquire() as lent, lent.transaction():
                tx = store.join(lent)
                await tx.run(put((uuid4(), "kept", 1)))
                assert [row["n"] for row in await tx.execute("SELECT $1::int AS n", [7])] == [7]
            with pytest.raises(Invalid) as caught:
                store.join(lent)
            assert caught.value.code == "CANNOT_JOIN"
            with pytest.raises(Invalid) as caught:
                await tx.run(put((uuid4(), "x", 1)))
            assert caught.value.code == "CANNOT_JOIN"
            async with pool.acquire() as lent:
                with pytest.raises(Invalid) as caught:
                    store.join(lent)
                assert caught.value.code == "AUTOCOMMIT"

    play(database, work)
    assert left(database) == 1


def test_a_cancelled_procedure_leaves_none_of_its_writes(database: str) -> None:
    started = asyncio.Event()

    @procedure
    def put_and_sleep() -> Script[None]:
        yield Each("note_put", [(uuid4(), "gone", 1)])
        started.set()
        yield Statement("sleep", {"seconds": 30.0})

    async def work(store: Any, connection: Any) -> None:
        async with connection.transaction():
            tx = store.join(connection)
            joined = asyncio.create_task(tx.run(put_and_sleep()))
            await started.wait()
            await asyncio.sleep(0)
            joined.cancel()
            with pytest.raises(asyncio.CancelledError):
                await joined
            await tx.run(put((uuid4(), "kept", 1)))

    play(database, work)
    assert left(database) == 1


def test_a_broken_connection_is_unavailable(database: str) -> None:
    async def work(store: Any, connection: Any) -> None:
        transaction = connection.transaction()
        await transaction.start()
        tx = store.join(connection)
        await tx.run(put((uuid4(), "gone", 1)))
        other = await asyncpg.connect(database)
        await other.fetch("SELECT pg_terminate_backend($1, 10000)", connection.get_server_pid())
        await other.close()
        with pytest.raises((Unavailable, Invalid)) as caught:
            await tx.run(put((uuid4(), "gone", 2)))
        assert caught.value.code in {"CONNECTION_LOST", "CANNOT_JOIN"}

    play(database, work)
    assert left(database) == 0
