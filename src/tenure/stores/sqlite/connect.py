"""Where a SQLite database is, and connections to it with the settings that our promises need."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote

from tenure.errors import Invalid

OLDEST_LIBRARY = (3, 35)
_PREFIX = "sqlite:///"


@dataclass(frozen=True, slots=True)
class Place:
    """
    The database that a store URL names.

    Attributes:
        path: The absolute path of the file, or None for a database in memory.
        url: The store's URL, with the absolute path.
    """

    path: str | None
    url: str

    @property
    def in_memory(self) -> bool:
        """True for a database that lives in this process only."""
        return self.path is None


def read_url(url: str) -> Place:
    """Read a store URL; a relative path is fixed to the current directory now, so that a later chdir moves nothing."""
    rest = url.removeprefix(_PREFIX)
    if rest == ":memory:":
        return Place(None, url)
    if rest == url or not rest or "?" in rest or "\0" in rest:
        raise Invalid(
            "a SQLite store URL is sqlite:///FILE, sqlite:////ABSOLUTE/FILE or sqlite:///:memory:, without options",
            code="BAD_STORE_URL",
        )
    path = os.path.realpath(rest)
    return Place(path, _PREFIX + path)


def check_library(version: tuple[int, ...] = sqlite3.sqlite_version_info) -> None:
    """Refuse a SQLite library that lacks RETURNING."""
    if version < OLDEST_LIBRARY:
        raise Invalid(
            f"the SQLite library of this Python is {'.'.join(map(str, version))}, tenure needs 3.35 or newer; "
            "use a Python built with a newer one",
            code="DATABASE_TOO_OLD",
        )


def connect(place: Place, *, create: bool = False, reader: bool = False) -> sqlite3.Connection:
    """
    Open a connection without waiting for anybody's lock; a busy database raises at once and the caller decides.

    Args:
        create: Make the file where there is none; otherwise a missing file is an error.
        reader: The connection is refused every write.
    """
    if place.path is None:
        target, is_uri = ":memory:", False
    else:
        target, is_uri = f"file:{quote(place.path)}?mode={'rwc' if create else 'rw'}", True
    connection = sqlite3.connect(
        target,
        uri=is_uri,
        timeout=0,  # the library's own waiting is unfair among processes; ours is in the engine
        isolation_level=None,
        check_same_thread=False,  # one thread at a time all the same: the engine's line sees to it
        cached_statements=512,
    )
    try:
        if place.path is not None:
            _use_wal(connection)
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        if reader:
            connection.execute("PRAGMA query_only=ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    # Asking first: setting the mode that is already set would still ask for a lock.
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    if mode != "wal":
        (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
    if mode != "wal":
        raise Invalid(
            "this database cannot be put into WAL mode, which tenure needs; keep it on a local disk "
            "in a writable folder",
            code="WAL_UNAVAILABLE",
        )


@contextmanager
def plain_text(connection: sqlite3.Connection) -> Iterator[None]:
    """Read text as text on a connection whose owner may want it otherwise; the owner's wish is put back."""
    factory = connection.text_factory
    connection.text_factory = str
    try:
        yield
    finally:
        connection.text_factory = factory


def file_of(connection: sqlite3.Connection) -> str | None:
    """Give the path of a connection's main database, None for one in memory."""
    with plain_text(connection):
        for _number, name, path in sqlite3.Cursor(connection).execute("PRAGMA database_list"):
            if name == "main":
                return os.path.realpath(path) if path else None
    return None
