"""
The simulator's ledger: what the outside world really did, one JSON line per event, fsynced before any answer.

It is the oracle of tests. A worker's log says what a worker believes; this file says what a customer would have seen.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tenure.errors import Invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """
    One line of the ledger.

    Attributes:
        at: The simulator's clock, ISO 8601.
        action: accepted: it acted. replayed: a known key, answered again. refused: it said no, and will say so again.
            turned_away: it did nothing (429, 5xx before acceptance, a request dropped). looked_up.
        operation_key: As the Idempotency-Key header carried it; empty without one.
        effect_id: What was done; empty where nothing was.
        payload_digest: SHA-256 of the request's bytes; empty for a look-up.
        duplicate: Accepted although this account had an effect under this key already.
        status: The answer's status; 0 where the connection was closed without one.
        fault: The fault that was at work, or empty.
    """

    seq: int
    at: str
    action: str
    account: str
    operation_key: str
    effect_id: str = ""
    payload_digest: str = ""
    duplicate: bool = False
    status: int = 0
    fault: str = ""


class Ledger:
    """
    The file, open for appending by one simulator at a time.

    A line that a killed simulator left half written was never answered for; opening removes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        fresh = not path.exists()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise Invalid(f"another simulator writes {path.name}; give each its own ledger") from None
        if fresh:
            _sync_folder(path.parent)
        whole = _whole_lines(path)
        os.ftruncate(self._file, len(whole))
        self.entries = _parse(whole)

    def append(self, **fields: str | int | bool) -> Entry:
        """Write one event and give it back once it is on the disk."""
        with self._lock:
            entry = Entry(seq=len(self.entries) + 1, **fields)  # type: ignore[arg-type]
            line = json.dumps(asdict(entry), separators=(",", ":")).encode() + b"\n"
            written = os.write(self._file, line)
            assert written == len(line)
            os.fsync(self._file)
            self.entries.append(entry)
            return entry

    def close(self) -> None:
        """Close the file; the lock goes with it."""
        os.close(self._file)


def read_ledger(path: Path | str) -> list[Entry]:
    """Read a ledger, also while a simulator writes it; a half-written last line is left out."""
    return _parse(_whole_lines(Path(path)))


def effects_in(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Give what customers saw: per operation key each time something was done. Acts without a key are under `""`."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.action == "accepted":
            found.setdefault(entry.operation_key, []).append(entry)
    return found


def duplicates(path: Path | str) -> dict[str, list[Entry]]:
    """Give the operation keys under which one account's customers saw more than one effect, with all of them."""
    return duplicates_in(read_ledger(path))


def duplicates_in(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Do the same as `duplicates` for entries already read."""
    return {
        key: acts for key, acts in effects_in(entries).items() if key and len({act.account for act in acts}) < len(acts)
    }


def _whole_lines(path: Path) -> bytes:
    content = path.read_bytes()
    return content[: content.rfind(b"\n") + 1]


def _parse(content: bytes) -> list[Entry]:
    return [Entry(**json.loads(line)) for line in content.splitlines()]


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
