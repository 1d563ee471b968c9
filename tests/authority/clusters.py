"""Copies of a whole PostgreSQL cluster, made by PostgreSQL's own programs."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from tests.loops.stage import until
from tests.support.postgres import Server
from tests.support.process import free_port

PROGRAM_SECONDS = 90.0


def program(server: Server, *argv: str) -> None:
    """Run one of the server's own programs, as the server's user, in the server's folder."""
    with server.log.open("ab") as log:
        assert server._spawn(list(argv), log).wait(PROGRAM_SECONDS) == 0, server.log_tail()


def address(server: Server) -> list[str]:
    return ["-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres"]


def base_backup(server: Server, name: str, *more: str) -> Path:
    """Take a base backup while the server runs."""
    folder = server.folder / name
    program(server, "pg_basebackup", *address(server), "-D", str(folder), "-X", "stream", "-c", "fast", *more)
    return folder


def put_back(server: Server, backup: Path) -> None:
    """Put a base backup in the place of the stopped server's data, and start it there."""
    server.stop("immediate")
    shutil.rmtree(server.data)
    backup.rename(server.data)
    server.start()


class Standby(Server):
    """A second server that follows the first one; closed like any other, and before it."""

    def __init__(self, primary: Server) -> None:
        data = base_backup(primary, "standby", "-R")
        self.folder = primary.folder
        self.data = data
        self.log = primary.folder / "standby.log"
        self.settings = primary.settings
        self.binaries = primary.binaries
        self._account = primary._account
        self._process = None
        self.port = free_port()
        self.seconds = 0.0
        self.start()

    def close(self) -> None:
        """Stop; the folder is the primary's to remove."""
        self.stop("immediate")

    def promote(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")

    def caught_up(self, primary: Server) -> None:
        """Wait until the standby has all that the primary wrote."""

        def same() -> bool:
            with psycopg.connect(primary.url) as one, psycopg.connect(self.url) as two:
                (written,) = one.execute("SELECT pg_current_wal_lsn()").fetchone() or ("",)
                (there,) = two.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", [written]).fetchone() or (0,)
                return bool(there)

        until(same, "the standby to have it all")


def both(primary: Server, standby: Server) -> str:
    """Give a URL that finds whichever of the two takes writes."""
    hosts = ",".join(f"127.0.0.1:{urlsplit(one.url).port}" for one in (primary, standby))
    return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"
