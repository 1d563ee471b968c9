"""A PostgreSQL for counting: nothing happens on it by itself, and what is logged is logged every time."""

from __future__ import annotations

import psycopg

from tenure import open_store
from tests.support.postgres import Server, start_server
from tests.support.postgres.binaries import Binaries

# Vacuum, analyze and checkpoints come when their clock says, and would be counted too. Without full page writes (as on
# every server of these tests) a change logs the same bytes whenever the last checkpoint was.
QUIET = {"autovacuum": "off", "checkpoint_timeout": "1h", "max_wal_size": "4GB", "bgwriter_lru_maxpages": "0"}


def start_quiet(binaries: Binaries | None = None) -> Server:
    """Start one, from the given binaries or the first that work."""
    return start_server(settings=QUIET) if binaries is None else Server(binaries, settings=QUIET)


def prepare(url: str) -> None:
    """Make the schema."""
    with open_store(url) as store:
        store.migrate()


def prepare_analysed(url: str) -> None:
    """Make the schema and let the planner believe that its tables are empty, as on the first day of an installation."""
    prepare(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ANALYZE")
