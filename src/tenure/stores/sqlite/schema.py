"""Apply the migrations of a SQLite store, and show them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence

from tenure.stores.migrate import Migration, check_version, pending
from tenure.stores.sqlite.engine import Engine
from tenure.stores.sqlite.failures import raise_typed

# Many processes may start at once, and each waits for the migrations of those before it.
_PATIENCE = 60.0

_LEDGER = """\
CREATE TABLE IF NOT EXISTS tenure_migration (
    version INTEGER NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at INTEGER NOT NULL
)"""
_RECORD = "INSERT INTO tenure_migration (version, name, applied_at) VALUES (?, ?, ?)"
_NOW = "CAST(strftime('%s', 'now') AS INTEGER) * 1000000"


def apply(engine: Engine) -> list[str]:
    """Apply what is pending in one transaction: a process killed at any statement leaves the schema as it was."""

    def work() -> list[str]:
        try:
            connection = engine.writer.begin(time.monotonic() + _PATIENCE, create=True)
            connection.execute(_LEDGER)
            applied = versions(connection)
            if applied:
                newest = max(applied)
                check_version(newest, [one for one in engine.known if one.version <= newest])
            steps = pending(applied, engine.known)
            for step in steps:
                for statement in split(step.sql):
                    connection.execute(statement)
                connection.execute(_RECORD, (step.version, step.name, engine.clock.now()))
            engine.writer.commit(connection)
        except sqlite3.Error as error:
            raise_typed(error)
        finally:
            engine.writer.roll_back()
        engine.writer.fits = False
        return [step.name for step in steps]

    return engine.exclusively(work)


def versions(connection: sqlite3.Connection) -> set[int]:
    """Give the versions applied in a database."""
    try:
        return {version for (version,) in connection.execute("SELECT version FROM tenure_migration")}
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return set()
        raise


def split(text: str) -> Iterator[str]:
    """Cut a text into statements: the driver's own way of running many would commit what is open."""
    statement = ""
    *pieces, rest = text.split(";")
    for piece in pieces:
        statement += piece + ";"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    rest = statement + rest
    left = [line for line in rest.splitlines() if line.strip() and not line.lstrip().startswith("--")]
    assert not left, "a migration ends in the middle of a statement"


def as_text(known: Sequence[Migration]) -> str:
    """Give the whole schema as text that the sqlite3 program runs; it leaves the same database as `apply`."""
    parts = ["BEGIN IMMEDIATE;", _LEDGER + ";"]
    for step in known:
        # Names and numbers of our own files, which hold no quotes.
        record = _RECORD.replace("?, ?, ?", f"{step.version}, '{step.name}', {_NOW}")
        parts += [f"-- {step.name}", step.sql.strip(), record + ";"]
    return "\n\n".join([*parts, "COMMIT;"]) + "\n"
