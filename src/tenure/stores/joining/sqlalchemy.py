"""
The driver's connection behind SQLAlchemy's Connection and Session, and behind their awaiting twins.

SQLAlchemy begins by itself before the first statement that goes through it, and its `commit()` does nothing where it
has not begun. A job's statements go beneath it, so it is made to begin first, as its own first statement would. What
"begun" means to the driver differs:

- psycopg begins before its first statement, whichever that is; ours may be it.
- asyncpg is in autocommit until SQLAlchemy sends BEGIN with the first statement of its own. Ours would be committed at
  once and survive the rollback. So one statement goes through SQLAlchemy first.
- sqlite3, in the way SQLAlchemy uses it, begins only before an INSERT, UPDATE or DELETE of the driver's own. Our
  savepoint would be the transaction itself, and its end the commit. So BEGIN goes through SQLAlchemy first.
"""

from __future__ import annotations

from typing import Any, NoReturn

from sqlalchemy import Connection, exc
from sqlalchemy.orm import Session, scoped_session

from tenure.errors import Invalid
from tenure.stores.joining import AsyncFinder, Finder

_AWAITED = frozenset({"AsyncConnection", "AsyncSession", "async_scoped_session"})
_DRIVERS = {
    "postgresql": {"psycopg": "postgresql+psycopg", "asyncpg": "postgresql+asyncpg"},
    "sqlite": {"pysqlite": "sqlite+pysqlite", "aiosqlite": "sqlite+aiosqlite"},
}


def finder(given: object, dialect: str) -> Finder:
    """See `joining.finder`."""

    def find() -> Any:
        try:
            connection = given if isinstance(given, Connection) else given.connection()  # type: ignore[attr-defined]
            return _begun(connection, dialect)
        except exc.SQLAlchemyError as error:
            _refuse(error)

    if _awaited(given):
        raise Invalid(
            f"an {type(given).__name__} is awaited and this store blocks; join it on the awaiting store, as in "
            "`await app.join(session).enqueue(...)`, or inside an async def handler",
            code="CANNOT_JOIN",
        )
    if not isinstance(given, Connection | Session | scoped_session):
        raise _not_a_transaction(given)
    return find


def async_finder(given: object, dialect: str) -> AsyncFinder:
    """See `joining.async_finder`."""

    async def find() -> Any:
        try:
            connection: Any = given if awaited == "AsyncConnection" else await given.connection()  # type: ignore[attr-defined]
            return await connection.run_sync(_begun, dialect)
        except exc.SQLAlchemyError as error:
            _refuse(error)

    if isinstance(given, Connection | Session | scoped_session):
        raise Invalid(
            f"a {type(given).__name__} blocks and this store is awaited; use an AsyncConnection or AsyncSession, or "
            "write a plain def handler",
            code="CANNOT_JOIN",
        )
    awaited = _awaited(given)
    if awaited is None:
        raise _not_a_transaction(given)
    return find


def _awaited(given: object) -> str | None:
    """Name the awaited kind that an object is of: by its modules, for theirs cannot be imported without greenlet."""
    for kind in type(given).__mro__:
        if kind.__module__.startswith("sqlalchemy.ext.asyncio") and kind.__name__ in _AWAITED:
            return kind.__name__
    return None


def _not_a_transaction(given: object) -> Invalid:
    return Invalid(
        f"a {type(given).__module__}.{type(given).__name__} is no open transaction; join the Connection of "
        "`with engine.begin() as connection:` or a Session",
        code="CANNOT_JOIN",
    )


def _begun(connection: Connection, dialect: str) -> Any:
    """Give the driver's connection, in a transaction that SQLAlchemy knows of."""
    _check_driver(connection, dialect)
    if connection.closed:
        raise Invalid("the SQLAlchemy connection to join is closed", code="CANNOT_JOIN")
    raw: Any = connection.connection.driver_connection
    if connection.dialect.driver == "psycopg" and raw.autocommit:
        raise _autocommit()
    for transaction in (connection.get_transaction(), connection.get_nested_transaction()):
        if transaction is not None and not transaction.is_active:
            raise Invalid(
                "the transaction on this SQLAlchemy connection has failed or ended; roll it back and begin again",
                code="TRANSACTION_FAILED",
            )
    if connection.get_transaction() is None:
        connection.begin()  # what its autobegin does before a statement
    if connection.dialect.driver == "asyncpg":
        _begin_asyncpg(connection, raw)
    elif dialect == "sqlite":
        _begin_sqlite(connection, raw)
    return raw


def _check_driver(connection: Connection, dialect: str) -> None:
    name, driver = connection.dialect.name, connection.dialect.driver
    allowed = _DRIVERS[dialect]
    if name != dialect or driver not in allowed:
        raise Invalid(
            f"this SQLAlchemy connection uses {name}+{driver} and the store is on {dialect}; make its engine with "
            f"{' or '.join(allowed.values())}, on the store's database",
            code="CANNOT_JOIN",
        )


def _begin_asyncpg(connection: Connection, raw: Any) -> None:
    if raw.is_in_transaction():
        return
    connection.exec_driver_sql("SELECT 1").close()
    if not raw.is_in_transaction():
        raise _autocommit()


def _begin_sqlite(connection: Connection, raw: Any) -> None:
    if raw.in_transaction:
        return
    if raw.isolation_level is None or getattr(raw, "autocommit", False) is True:
        raise _autocommit()
    # The words with which the driver would begin before the caller's first INSERT.
    connection.exec_driver_sql(f"BEGIN {raw.isolation_level}".strip()).close()


def _autocommit() -> Invalid:
    return Invalid(
        "this SQLAlchemy connection has the isolation level AUTOCOMMIT, so this would be committed by itself; use "
        "an engine or a connection without isolation_level='AUTOCOMMIT'",
        code="AUTOCOMMIT",
    )


def _refuse(error: exc.SQLAlchemyError) -> NoReturn:
    """Turn what SQLAlchemy says of its own state into a refusal; what its database says is the caller's to see."""
    if isinstance(error, exc.DBAPIError):
        raise error
    if isinstance(error, exc.PendingRollbackError):
        text = "its transaction has failed and can only be rolled back; roll back and begin again"
        code = "TRANSACTION_FAILED"
    elif isinstance(error, exc.ResourceClosedError):
        text, code = "it is closed; join the connection or session that your change is made on", "CANNOT_JOIN"
    elif isinstance(error, exc.UnboundExecutionError):
        text = "it is not bound to one database; join session.connection(bind_arguments=...) instead"
        code = "CANNOT_JOIN"
    elif isinstance(error, exc.InvalidRequestError) and "utobegin" in str(error):
        text, code = "nothing has begun on it and it does not begin by itself; call begin() first", "AUTOCOMMIT"
    else:
        text, code = "its transaction is not usable as it is; look at the error that caused this", "CANNOT_JOIN"
    raise Invalid(f"SQLAlchemy refuses its connection: {text}", code=code) from error
