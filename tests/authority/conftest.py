"""A database with a ledger, and what a person does who backs it up and puts the backup back."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.authority.clusters import address, program
from tests.authority.crew import Crew
from tests.support.postgres import Server


@dataclass
class Place:
    """
    A database with a ledger.

    Attributes:
        keep: Takes a backup.
        put_back: Puts it in the database's place.
    """

    crew: Crew
    keep: Callable[[], None]
    put_back: Callable[[], None]


def through_sqlite(path: Path, copy: Path) -> None:
    """Copy by SQLite's own backup, in either direction."""
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def migrated(crew: Crew) -> Crew:
    app = crew.app()
    app.migrate()
    app.close()
    return crew


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        path, copy = tmp_path / "jobs.db", tmp_path / "backup.db"
        return Place(
            migrated(Crew(f"sqlite:///{path}")),
            lambda: through_sqlite(path, copy),
            lambda: through_sqlite(copy, path),
        )
    server: Server = request.getfixturevalue("postgres_server")
    dump = str(server.folder / "dump")
    return Place(
        migrated(Crew(server.url, tmp_path / "ledger")),
        lambda: program(server, "pg_dump", *address(server), "-Fc", "-n", "tenure", "-f", dump, "postgres"),
        lambda: program(server, "pg_restore", *address(server), "--clean", "-d", "postgres", dump),
    )
