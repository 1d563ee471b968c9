"""What SQLite's errors mean to a caller: fix the call, run it again later, or ask an operator."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from typing import NoReturn

from tenure.errors import Invalid, Refused, TenureError, Unavailable
from tenure.stores.migrate import schema_missing

BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_OUR_TABLE = re.compile(r"no such table: (main\.)?tenure_")


def _failed() -> TenureError:
    return Unavailable(
        "the SQLite database could not be read or written; look at its disk, its folder and their permissions",
        code="STORAGE_FAILED",
    )


def _full() -> TenureError:
    return Unavailable(
        "the disk of the SQLite database is full; nothing was written, free some space and run the same call again",
        code="STORAGE_FULL",
    )


def _read_only() -> TenureError:
    return Unavailable(
        "the SQLite database is read-only for this process; give it write permission on the file and its folder",
        code="STORE_READ_ONLY",
    )


def _no_database() -> TenureError:
    return Invalid("the file is not a SQLite database; check the store URL", code="NOT_A_DATABASE")


def _damaged() -> TenureError:
    return Refused(
        "the SQLite database is damaged; stop its workers and restore a backup",
        code="DATABASE_CORRUPT",
    )


def _too_big() -> TenureError:
    return Invalid("a value is larger than SQLite can hold", code="VALUE_REFUSED")


_MEANING: dict[int, Callable[[], TenureError]] = {
    sqlite3.SQLITE_FULL: _full,
    sqlite3.SQLITE_IOERR: _failed,
    sqlite3.SQLITE_CANTOPEN: _failed,
    sqlite3.SQLITE_PROTOCOL: _failed,
    sqlite3.SQLITE_READONLY: _read_only,
    sqlite3.SQLITE_NOTADB: _no_database,
    sqlite3.SQLITE_CORRUPT: _damaged,
    sqlite3.SQLITE_TOOBIG: _too_big,
}


def code_of(error: BaseException) -> int:
    """Give the primary result code of an error, 0 where it has none (misuse found by the driver itself)."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def is_busy(error: BaseException) -> bool:
    """Tell whether somebody else's lock is the only thing in the way."""
    return code_of(error) in BUSY


def busy() -> Unavailable:
    """Make the error for a lock that could not be had."""
    return Unavailable(
        "other writers kept the SQLite database locked; nothing was written, run the same call again later",
        code="STORE_BUSY",
    )


def closed() -> Invalid:
    """Make the error for a store that was closed."""
    return Invalid("this store was closed; open it again", code="STORE_CLOSED")


def translate(error: Exception) -> Exception:
    """Give the typed error for one of the driver's; a mistake of ours (a constraint, bad SQL) stays as it is."""
    typed: Exception
    if isinstance(error, OverflowError):
        typed = Invalid("a number is too large for SQLite, which keeps whole numbers of 64 bits", code="VALUE_REFUSED")
    elif isinstance(error, UnicodeEncodeError):
        typed = Invalid(
            "a text holds half of a surrogate pair, which cannot be stored; send valid Unicode", code="VALUE_REFUSED"
        )
    elif not isinstance(error, sqlite3.Error):
        return error
    elif is_busy(error):
        typed = busy()
    elif (meaning := _MEANING.get(code_of(error))) is not None:
        typed = meaning()
    elif _OUR_TABLE.search(str(error)):
        typed = schema_missing()
    else:
        return error
    for note in getattr(error, "__notes__", ()):
        typed.add_note(note)
    return typed


def raise_typed(error: Exception) -> NoReturn:
    """Raise the typed error for one of the driver's, with the driver's as its cause."""
    typed = translate(error)
    if typed is error:
        raise error
    raise typed from error
