"""Where measurements happen: a PostgreSQL server of the run's own with default durability, and a folder for SQLite."""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import psycopg

from bench.store import SQLITE, is_postgres
from tests.support.postgres import Databases, Server, start_server

DURABLE = ("fsync", "synchronous_commit", "full_page_writes")
# PostgreSQL's own default; the tests' server has less.
_SETTINGS = {"shared_buffers": "128MB"}
_SHOWN = (*DURABLE, "wal_level", "shared_buffers", "max_wal_size", "checkpoint_timeout", "autovacuum")


class Place:
    """
    Gives empty databases, each used once; a context manager that removes everything.

    Args:
        folder: For SQLite files; on the disk that is to be measured.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: Server | None = None
        self._made: Databases | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    def fresh(self, database: str) -> str:
        """Give the URL of an empty database, `postgresql` or `sqlite`; the server is started when first needed."""
        if database == "sqlite":
            return f"{SQLITE}{self._folder.absolute() / uuid4().hex}.db"
        if self._made is None:
            self._server = start_server(durable=True, settings=_SETTINGS)
            check_durable(self._server.url)
            self._made = Databases(self._server.url)
        return self._made.create()

    def drop(self, url: str) -> None:
        """Remove a database."""
        if is_postgres(url):
            assert self._made is not None
            self._made.drop(url)
            return
        for ending in ("", "-wal", "-shm", "-journal"):
            Path(url.removeprefix(SQLITE) + ending).unlink(missing_ok=True)

    def describe(self) -> dict[str, Any]:
        """Say where the measurements were made."""
        found: dict[str, Any] = {
            "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "cores": os.cpu_count(),
            "processor": _line("/proc/cpuinfo", "model name"),
            "memory": _line("/proc/meminfo", "MemTotal"),
            "kernel": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
            "load at the start": round(os.getloadavg()[0], 2),
            "tenure": version("tenure"),
            "psycopg": version("psycopg"),
        }
        if self._server is not None:
            with psycopg.connect(self._server.url) as connection:
                found["postgresql"] = connection.execute("SHOW server_version").fetchall()[0][0]
                found["settings"] = {
                    name: connection.execute(f"SHOW {name}".encode()).fetchall()[0][0] for name in _SHOWN
                }
        return found


def check_durable(url: str) -> None:
    """
    Refuse a server that answers a commit before it is on the disk.

    Raises:
        RuntimeError: A setting is not the default.
    """
    with psycopg.connect(url) as connection:
        for name in DURABLE:
            if connection.execute(f"SHOW {name}".encode()).fetchall()[0][0] != "on":
                raise RuntimeError(f"{name} is not on: its figures would be no measurement of a durable queue")


def _line(path: str, name: str) -> str:
    with suppress(OSError):
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return "unknown"
