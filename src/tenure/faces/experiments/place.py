"""
Where an experiment runs: a new SQLite file, or a PostgreSQL database in which nothing of the package is yet.

What was made is removed at the end, whatever happened in between. An older copy is taken and brought back as people do
it: a file by SQLite's own backup, a database table by table, as a dump is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Any

from tenure.errors import Invalid
from tenure.faces.demo.books import Books
from tenure.opening import open_store
from tenure.stores.contract import Store
from tenure.stores.statements import parse

_FILE = "sqlite:///"
RUN = "lab"


class Hand:
    """The store's clock, moved by the experiment: nobody waits for a lease to run out."""

    def __init__(self) -> None:
        self._now = datetime(2026, 1, 1, 9, 0, tzinfo=UTC)

    def now(self) -> datetime:
        """Give the current instant."""
        return self._now

    def move(self, step: timedelta) -> None:
        """Let time pass."""
        self._now += step


class Place:
    """
    One database for one experiment.

    Args:
        url: Of the database.
        folder: A new folder of this experiment, for what is kept outside of the database.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.ledger = folder / "authority.ledger"
        self.clock = Hand()
        self.dialect = "sqlite" if url.startswith("sqlite:") else "postgresql"
        self.books = Books(url, self.dialect, RUN)
        name = "sqlite.sql" if self.dialect == "sqlite" else "postgres.sql"
        text = resources.files("tenure.faces.experiments").joinpath(name).read_text(encoding="utf-8")
        self._sql = {one.name: one.sql for one in parse(text).values()}

    def open(self) -> Store:
        """Open the store, as a process does that starts."""
        return open_store(self.url, clock=self.clock, authority_ledger=self.ledger)

    def refuse_used(self) -> None:
        """
        Refuse a database that is anybody's: everything in it is removed at the end.

        Raises:
            Invalid: STORE_IN_USE.
        """
        if self.dialect == "sqlite" and not self._file.exists():
            return
        ((ours, anything),) = self._run("look")
        if ours and self._run("count_jobs")[0][0]:
            what = "this store has jobs"
        elif anything:
            what = "this database has tables already"
        else:
            return
        raise Invalid(
            f"{what}, and the experiments remove all that they find at their end; give --store a new file or a new "
            f"database, or leave it out",
            code="STORE_IN_USE",
        )

    def remove(self) -> None:
        """
        Remove what was made.

        Raises:
            Invalid: STORE_IN_USE, somebody else has begun to work here meanwhile; nothing is removed then.
        """
        self.books.close()
        there = self.dialect != "sqlite" or self._file.exists()
        if there and self._run("look")[0][0] and self._run("count_others", run=RUN)[0][0]:
            raise Invalid(
                "somebody else has created jobs in this store while an experiment ran, so nothing of it was removed; "
                f"the experiment's own jobs are those of tenant {RUN!r}",
                code="STORE_IN_USE",
            )
        if self.dialect == "sqlite":
            for ending in ("", "-wal", "-shm", "-journal"):
                self._file.with_name(self._file.name + ending).unlink(missing_ok=True)
        else:
            self._run("remove_all")

    def take_backup(self) -> None:
        """Take a copy of the database as it is now; nobody has it open."""
        if self.dialect == "sqlite":
            _copy(self._file, self._backup)
        else:
            self._run("take_backup")

    def bring_back(self) -> None:
        """Put the copy in the place of the database; nobody has it open."""
        if self.dialect == "sqlite":
            _copy(self._backup, self._file)
        else:
            self._run("bring_back")

    @property
    def _file(self) -> Path:
        return Path(self.url.removeprefix(_FILE))

    @property
    def _backup(self) -> Path:
        return self.folder / "backup.db"

    def _run(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        with self.books.transaction() as connection:
            done = connection.execute(self._sql[name], values)
            return list(done.fetchall()) if done.description else []


def _copy(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)


@contextmanager
def opened_place(url: str | None, folder: Path) -> Iterator[Place]:
    """
    Make the database of one experiment, and remove it at the end.

    Args:
        url: A new file in the folder where left out.
    Raises:
        Invalid: STORE_IN_USE; BAD_STORE_URL, and what else the store says of its URL.
    """
    if url is not None and url.startswith("sqlite:") and (not url.startswith(_FILE) or ":memory:" in url):
        raise Invalid(
            "the experiments open their database several times; write sqlite:///FILE, a store in memory cannot be "
            "shared",
            code="BAD_STORE_URL",
        )
    if url is not None:
        open_store(url).close()  # says what is wrong with the address, or that nobody answers there
    place = Place(url or f"{_FILE}{folder / 'lab.db'}", folder)
    try:
        place.refuse_used()
    except BaseException:
        place.books.close()
        raise
    try:
        with closing(open_store(place.url, authority_ledger=place.ledger)) as made:
            made.migrate(test_clock=True)
        place.books.make()
        yield place
    finally:
        place.remove()
