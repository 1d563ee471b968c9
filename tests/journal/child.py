"""
A process that a test kills, forks, or feeds failing system calls: `python child.py ACTION PATH [COUNT]`.

It says each thing that it knows for certain on one line, unbuffered, so that what was said before a kill counts.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import types
import uuid
from collections.abc import Callable
from pathlib import Path

# The package without running its __init__, which imports far more than the journal: this program is started hundreds
# of times.
_found = importlib.util.find_spec("tenure")
assert _found is not None
_package = types.ModuleType("tenure")
_package.__path__ = list(_found.submodule_search_locations or [])
sys.modules["tenure"] = _package

from tenure.errors import TenureError  # noqa: E402
from tenure.journal.mender import repair  # noqa: E402
from tenure.journal.receipts import ReceiptJournal, hand_in  # noqa: E402
from tenure.journal.writer import Journal  # noqa: E402
from tenure.rules.outcome import Accepted  # noqa: E402


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def wait_for_a_word() -> str:
    return sys.stdin.readline().strip()


def append(path: str, count: int) -> None:
    """Append records named after their turn; after an error the others are tried all the same."""
    with Journal.open(path) as journal:
        say("open", journal.durable_bytes)
        for turn in range(count):
            try:
                say("acknowledged", journal.append(f"turn {turn}".encode()), f"turn-{turn}")
            except TenureError as error:
                say("error", error.code)


def hold(path: str) -> None:
    """Hold the journal until killed."""
    with Journal.open(path) as journal:
        journal.append(b"mine")
        say("holding")
        wait_for_a_word()


def fork(path: str) -> None:
    """Fork with an open journal: the child must be refused, the parent must go on; then both wait."""
    journal = Journal.open(path)
    journal.append(b"before the fork")
    receipts = ReceiptJournal(f"{path}.receipts")
    attempt = uuid.UUID(int=1)
    to_parent, from_child = os.pipe()
    child = os.fork()
    if child == 0:
        uses: list[Callable[[], object]] = [
            lambda: journal.append(b"by the child"),
            lambda: list(journal.records()),
            lambda: receipts.append_receipt("by the child", attempt, Accepted()),
            lambda: receipts.hand_in(lambda *_: None),
        ]
        for use in uses:
            try:
                use()
                os.write(from_child, b"child allowed\n")
            except TenureError as error:
                os.write(from_child, f"child {error.code}\n".encode())
        receipts.close()
        journal.close()  # must neither raise nor let go of the parent's lock
        os.write(from_child, b"child done\n")
        signal.pause()
    lines = b""
    while not lines.endswith(b"child done\n"):
        lines += os.read(to_parent, 1000)
    sys.stdout.write(lines.decode())
    sys.stdout.flush()
    receipts.append_receipt("by the parent", attempt, Accepted())
    say("parent appended", journal.append(b"after the fork"))
    say("child is", child)
    wait_for_a_word()


def keep(directory: str) -> None:
    """Keep two receipts, then wait to be killed."""
    journal = ReceiptJournal(directory)
    for number in (1, 2):
        journal.append_receipt(f"send:{number}", uuid.UUID(int=number), Accepted({"id": number}))
    say("kept", journal.path)
    wait_for_a_word()


def hand(directory: str) -> None:
    """Die after the first receipt was committed and before that could be noted."""

    def submit(key: str, evidence: object, attempt: uuid.UUID) -> None:
        say("committed", key)
        os.kill(os.getpid(), signal.SIGKILL)

    hand_in(directory, submit)


def hand_all(path: str) -> None:
    """Hand in everything beside the path."""
    hand_in(Path(path).parent, lambda key, evidence, attempt: say("committed", key))


if __name__ == "__main__":
    action, path, *rest = sys.argv[1:]
    try:
        if action == "append":
            append(path, int(rest[0]))
        elif action == "repair":
            done = repair(path)
            say("repaired", done.repaired, done.quarantine)
        else:
            {"hold": hold, "fork": fork, "keep": keep, "hand": hand, "hand-all": hand_all}[action](path)
    except TenureError as error:
        say("refused", error.code)
        raise SystemExit(3) from None
