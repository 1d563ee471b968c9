"""
Keep a PostgreSQL server for as long as somebody needs it.

    python -m tests.support.postgres                      prints a URL, stops when standard input closes
    python -m tests.support.postgres -- COMMAND ARG {url} runs a command with the URL in its arguments and TENURE_STORE
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.support.postgres.server import NoPostgres, closing_on_signals, start_server
from tests.support.postgres.shared import watch


def main() -> int:
    """Read the arguments and serve."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.postgres", description="A throw-away PostgreSQL.")
    parser.add_argument("--durable", action="store_true", help="keep fsync on, for measurements")
    parser.add_argument("--watch", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("command", nargs="*", help="run this instead of waiting; {url} is replaced")
    options = parser.parse_args()
    if options.watch is not None:
        watch(options.watch)
        return 0
    with closing_on_signals():
        try:
            server = start_server(durable=options.durable)
        except NoPostgres as error:
            sys.stderr.write(f"{error}\n")
            return 1
        with server:
            if options.command:
                command = [part.replace("{url}", server.url) for part in options.command]
                return subprocess.run(command, env={**os.environ, "TENURE_STORE": server.url}, check=False).returncode
            sys.stdout.write(f"{server.url}\n")
            sys.stdout.flush()
            sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
