"""
Keep a broker for as long as somebody needs it.

    python -m tests.support.brokers nats|redis|rabbitmq    prints a URL, stops when standard input closes
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.support.brokers.daemon import Daemon, NoServer
from tests.support.brokers.nats import NatsServer
from tests.support.brokers.rabbitmq import RabbitServer
from tests.support.brokers.redis import RedisServer
from tests.support.brokers.shared import watch
from tests.support.postgres.server import closing_on_signals

KINDS: dict[str, type[Daemon]] = {"nats": NatsServer, "redis": RedisServer, "rabbitmq": RabbitServer}


def main() -> int:
    """Read the arguments and serve."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.brokers", description="A throw-away broker.")
    parser.add_argument("--watch", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("kind", nargs="?", choices=sorted(KINDS))
    options = parser.parse_args()
    if options.watch is not None:
        watch(options.watch)
        return 0
    if options.kind is None:
        parser.error("say which: nats, redis or rabbitmq")
    with closing_on_signals():
        try:
            server = KINDS[options.kind]()
        except NoServer as error:
            sys.stderr.write(f"{error}\n")
            return 1
        with server:
            sys.stdout.write(f"{server.url}\n")
            sys.stdout.flush()
            sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
