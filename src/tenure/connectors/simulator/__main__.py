"""Start a simulator by hand: `python -m tenure.connectors.simulator --ledger effects.jsonl --port 8001`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from datetime import timedelta
from pathlib import Path
from types import FrameType

from tenure.connectors.simulator import ProviderSimulator
from tenure.connectors.simulator.server import SCOPES
from tenure.errors import Invalid


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM, SIGINT, or the end of stdin if so asked."""
    given = _parser().parse_args(arguments)
    over = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        over.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    simulator = ProviderSimulator(
        given.ledger,
        port=given.port,
        idempotency_keys=given.idempotency_keys,
        key_scope=given.key_scope,
        retention=timedelta(seconds=given.retention),
        binds_payload=given.binds_payload,
        lookup=given.lookup,
    )
    try:
        simulator.start()
    except (Invalid, OSError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    try:
        port = simulator.url.rpartition(":")[2]
        if given.port_file is not None:
            _write_whole(given.port_file, port)
        sys.stdout.write(f"ready {port}\n")
        sys.stdout.flush()
        if given.until_stdin_closes:
            threading.Thread(target=_watch_stdin, args=(over,), daemon=True).start()
        over.wait()
    finally:
        simulator.stop()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tenure.connectors.simulator", description=__doc__)
    parser.add_argument("--ledger", type=Path, required=True, help="where it writes what it did")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--port-file", type=Path, help="written whole once it serves")
    parser.add_argument("--idempotency-keys", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--key-scope", choices=sorted(SCOPES), default="account")
    parser.add_argument("--retention", type=float, default=86400, metavar="SECONDS", help="how long it remembers a key")
    parser.add_argument("--binds-payload", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--lookup", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--until-stdin-closes", action="store_true", help="end when the starting process ends")
    return parser


def _watch_stdin(over: threading.Event) -> None:
    # Not through sys.stdin: its lock would be held when the interpreter ends.
    while os.read(0, 4096):
        continue
    over.set()


def _write_whole(path: Path, text: str) -> None:
    """Write a file that is never seen half written."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)


if __name__ == "__main__":
    raise SystemExit(main())
