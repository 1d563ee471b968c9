"""
Every way in which a caller holds a transaction that can be joined, as its users write it.

A way gives its transaction as a `with` block, commits at its end and rolls back on an error. `Seen` shows an awaited
way to a test that blocks, on one event loop, so that one test plays them all.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import aiosqlite
import asyncpg
import django
import psycopg
import sqlalchemy
from django.conf import settings
from django.db import connections, transaction
from django.db.utils import load_backend
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

# Seconds that a SQLite connection waits for its turn: a busy machine is not what is tested.
BUSY = 30
WRITE = "INSERT INTO own (value) VALUES (%s)"


class Way:
    """
    One kind of connection.

    Args:
        url: Of the database, as the store gets it.

    Attributes:
        dialect: Of the store.
        awaits: Its methods are `async`.
        trips: Round trips of one enqueue in a transaction that has begun.
        begins: An untouched connection begins by itself before its first statement, and so before ours.
    """

    dialect = "postgresql"
    awaits = False
    trips = 1
    begins = True

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def path(self) -> str:
        return self.url.removeprefix("sqlite:///")


# --- drivers ----------------------------------------------------------------------------------------------------------


class Psycopg(Way):
    @contextmanager
    def untouched(self) -> Iterator[Any]:
        connection = psycopg.connect(self.url)
        try:
            yield connection
        finally:
            connection.close()

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with psycopg.connect(self.url) as connection:
            yield connection

    @contextmanager
    def autocommit(self) -> Iterator[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            yield connection

    def nested(self, connection: Any) -> Any:
        return connection.transaction()

    def write(self, connection: Any, value: int) -> None:
        connection.execute(WRITE, [value])

    def commit(self, connection: Any) -> None:
        connection.commit()


class PsycopgAsync(Way):
    awaits = True

    @asynccontextmanager
    async def untouched(self) -> AsyncIterator[Any]:
        connection = await psycopg.AsyncConnection.connect(self.url)
        try:
            yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            yield connection

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            yield connection

    def nested(self, connection: Any) -> Any:
        return connection.transaction()

    async def write(self, connection: Any, value: int) -> None:
        await connection.execute(WRITE, [value])

    async def commit(self, connection: Any) -> None:
        await connection.commit()


class Asyncpg(Way):
    awaits = True
    trips = 2  # it has no pipeline: the savepoint goes alone
    begins = False

    @asynccontextmanager
    async def untouched(self) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(self.url)
        try:
            yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.untouched() as connection, connection.transaction():
            yield connection

    autocommit = untouched

    def nested(self, connection: Any) -> Any:
        return connection.transaction()

    async def write(self, connection: Any, value: int) -> None:
        await connection.execute("INSERT INTO own (value) VALUES ($1)", value)


class AsyncpgPool(Asyncpg):
    @asynccontextmanager
    async def untouched(self) -> AsyncIterator[Any]:
        async with asyncpg.create_pool(self.url, min_size=0, max_size=2) as pool, pool.acquire() as connection:
            yield connection


class Sqlite3(Way):
    dialect = "sqlite"
    begins = False

    @contextmanager
    def untouched(self) -> Iterator[Any]:
        connection = sqlite3.connect(self.path, timeout=BUSY)
        try:
            yield connection
        finally:
            connection.close()

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with self.untouched() as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection

    @contextmanager
    def autocommit(self) -> Iterator[Any]:
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=BUSY)
        try:
            yield connection
        finally:
            connection.close()

    @contextmanager
    def nested(self, connection: Any) -> Iterator[None]:
        connection.execute("SAVEPOINT inner_one")
        try:
            yield
        except BaseException:
            connection.execute("ROLLBACK TO inner_one")
            raise
        finally:
            connection.execute("RELEASE inner_one")

    def write(self, connection: Any, value: int) -> None:
        connection.execute("INSERT INTO own (value) VALUES (?)", [value])


class Aiosqlite(Way):
    dialect = "sqlite"
    awaits = True
    begins = False

    @asynccontextmanager
    async def untouched(self) -> AsyncIterator[Any]:
        async with aiosqlite.connect(self.path, timeout=BUSY) as connection:
            yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.untouched() as connection:
            await connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                await connection.rollback()
                raise
            await connection.commit()

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Any]:
        async with aiosqlite.connect(self.path, isolation_level=None, timeout=BUSY) as connection:
            yield connection

    @asynccontextmanager
    async def nested(self, connection: Any) -> AsyncIterator[None]:
        await connection.execute("SAVEPOINT inner_one")
        try:
            yield
        except BaseException:
            await connection.execute("ROLLBACK TO inner_one")
            raise
        finally:
            await connection.execute("RELEASE inner_one")

    async def write(self, connection: Any, value: int) -> None:
        await connection.execute("INSERT INTO own (value) VALUES (?)", [value])


# --- SQLAlchemy -------------------------------------------------------------------------------------------------------


class _Alchemy(Way):
    driver = "postgresql+psycopg"

    def engine_url(self) -> str:
        return self.driver + ":" + self.url.partition(":")[2]

    def connect_args(self) -> dict[str, Any]:
        return {"timeout": BUSY} if self.dialect == "sqlite" else {}

    @contextmanager
    def engine(self, **options: Any) -> Iterator[Any]:
        engine = sqlalchemy.create_engine(
            self.engine_url(), poolclass=NullPool, connect_args=self.connect_args(), **options
        )
        try:
            yield engine
        finally:
            engine.dispose()

    def nested(self, connection: Any) -> Any:
        return connection.begin_nested()

    def write(self, connection: Any, value: int) -> None:
        connection.execute(text("INSERT INTO own (value) VALUES (:value)"), {"value": value})

    def commit(self, connection: Any) -> None:
        connection.commit()


class AlchemyConnection(_Alchemy):
    @contextmanager
    def untouched(self) -> Iterator[Any]:
        with self.engine() as engine, engine.connect() as connection:
            yield connection

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with self.engine() as engine, engine.begin() as connection:
            yield connection

    @contextmanager
    def autocommit(self) -> Iterator[Any]:
        with self.engine(isolation_level="AUTOCOMMIT") as engine, engine.begin() as connection:
            yield connection


class AlchemySession(_Alchemy):
    @contextmanager
    def untouched(self) -> Iterator[Any]:
        with self.engine() as engine, Session(engine) as session:
            yield session

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with self.engine() as engine, sessionmaker(engine).begin() as session:
            yield session

    @contextmanager
    def autocommit(self) -> Iterator[Any]:
        with self.engine(isolation_level="AUTOCOMMIT") as engine, Session(engine) as session:
            yield session


class SqliteConnection(AlchemyConnection):
    dialect = "sqlite"
    driver = "sqlite+pysqlite"


class SqliteSession(AlchemySession):
    dialect = "sqlite"
    driver = "sqlite+pysqlite"


class _AlchemyAsync(_Alchemy):
    awaits = True

    @asynccontextmanager
    async def aengine(self, **options: Any) -> AsyncIterator[Any]:
        engine = create_async_engine(self.engine_url(), poolclass=NullPool, connect_args=self.connect_args(), **options)
        try:
            yield engine
        finally:
            await engine.dispose()

    async def write(self, connection: Any, value: int) -> None:  # type: ignore[override]
        await connection.execute(text("INSERT INTO own (value) VALUES (:value)"), {"value": value})

    async def commit(self, connection: Any) -> None:  # type: ignore[override]
        await connection.commit()


class AlchemyAsyncConnection(_AlchemyAsync):
    @asynccontextmanager
    async def untouched(self) -> AsyncIterator[Any]:
        async with self.aengine() as engine, engine.connect() as connection:
            yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.aengine() as engine, engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Any]:
        async with self.aengine(isolation_level="AUTOCOMMIT") as engine, engine.begin() as connection:
            yield connection


class AlchemyAsyncSession(_AlchemyAsync):
    @asynccontextmanager
    async def untouched(self) -> AsyncIterator[Any]:
        async with self.aengine() as engine, AsyncSession(engine) as session:
            yield session

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.aengine() as engine, async_sessionmaker(engine).begin() as session:
            yield session

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Any]:
        async with self.aengine(isolation_level="AUTOCOMMIT") as engine, AsyncSession(engine) as session:
            yield session


class AsyncpgConnection(AlchemyAsyncConnection):
    driver = "postgresql+asyncpg"
    trips = 2


class AsyncpgSession(AlchemyAsyncSession):
    driver = "postgresql+asyncpg"
    trips = 2


class AiosqliteConnection(AlchemyAsyncConnection):
    dialect = "sqlite"
    driver = "sqlite+aiosqlite"


class AiosqliteSession(AlchemyAsyncSession):
    dialect = "sqlite"
    driver = "sqlite+aiosqlite"


# --- Django -----------------------------------------------------------------------------------------------------------


def django_connection(url: str, alias: str) -> Any:
    """Give Django a database under an alias, in this thread, as its settings would."""
    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    if url.startswith("sqlite"):
        found: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
        found["OPTIONS"] = {"timeout": BUSY}
    else:
        info = psycopg.conninfo.conninfo_to_dict(url)
        found = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": info["dbname"],
            "USER": info.get("user", ""),
            "PASSWORD": info.get("password", ""),
            "HOST": info.get("host", ""),
            "PORT": info.get("port", ""),
        }
    configured = connections.configure_settings({"default": dict(found), alias: dict(found)})[alias]
    connections[alias] = load_backend(found["ENGINE"]).DatabaseWrapper(configured, alias)
    return connections[alias]


class Django(Way):
    begins = False

    @contextmanager
    def untouched(self) -> Iterator[Any]:
        connection = django_connection(self.url, "shop")
        try:
            yield connection
        finally:
            connection.close()

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with self.untouched() as connection, transaction.atomic(using="shop"):
            yield connection

    autocommit = untouched

    def nested(self, connection: Any) -> Any:
        return transaction.atomic(using=connection.alias)

    def write(self, connection: Any, value: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute(WRITE, [value])


class DjangoSqlite(Django):
    dialect = "sqlite"


WAYS: dict[str, type[Way]] = {
    "psycopg": Psycopg,
    "psycopg-async": PsycopgAsync,
    "asyncpg": Asyncpg,
    "asyncpg-pool": AsyncpgPool,
    "alchemy-psycopg": AlchemyConnection,
    "alchemy-psycopg-session": AlchemySession,
    "alchemy-psycopg-async": AlchemyAsyncConnection,
    "alchemy-psycopg-async-session": AlchemyAsyncSession,
    "alchemy-asyncpg": AsyncpgConnection,
    "alchemy-asyncpg-session": AsyncpgSession,
    "django-postgresql": Django,
    "sqlite3": Sqlite3,
    "aiosqlite": Aiosqlite,
    "alchemy-sqlite3": SqliteConnection,
    "alchemy-sqlite3-session": SqliteSession,
    "alchemy-aiosqlite": AiosqliteConnection,
    "alchemy-aiosqlite-session": AiosqliteSession,
    "django-sqlite": DjangoSqlite,
}


@dataclass
class Seen:
    """A way as a test sees it that blocks: what is awaited runs on this one loop."""

    way: Any
    runner: asyncio.Runner

    def now(self, value: Any) -> Any:
        """Wait for a value where it has to be waited for."""
        if not isinstance(value, Awaitable):
            return value

        async def body() -> Any:
            return await value

        return self.runner.run(body())

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call something on the loop where the way is awaited, and wait for it."""
        if not self.way.awaits:
            return self.now(function(*args, **kwargs))

        async def body() -> Any:
            value = function(*args, **kwargs)
            return await value if isinstance(value, Awaitable) else value

        return self.runner.run(body())

    @contextmanager
    def block(self, name: str, *args: Any) -> Iterator[Any]:
        """Enter one of the way's blocks by its name."""
        block = self.do(getattr(self.way, name), *args)
        if hasattr(block, "__enter__"):
            with block as found:
                yield found
            return
        found = self.now(block.__aenter__())
        try:
            yield found
        except BaseException as error:
            if not self.now(block.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self.now(block.__aexit__(None, None, None))

    def write(self, connection: Any, value: int) -> None:
        """Do the caller's own business."""
        self.do(self.way.write, connection, value)
