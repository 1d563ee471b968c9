"""
Receipts that the database could not take, kept in journals until it can.

One directory per store, one file per process (`receipts-<pid>-<random>.journal`). A record is a JSON object:

    {"type": "receipt", "operation_key", "attempt_id", "evidence": {"kind", ...}, "at"}
    {"type": "handed_in", "sequence": n, "refused": code or null}

`hand_in` gives each receipt without a handed-in record to a function that commits it, and appends the handed-in record
after that function returned. Whoever dies between the two leaves a receipt that is given again: the function must take
the same evidence twice without harm. A receipt that was refused is given once, kept, and reported by every later pass,
so that health stays red until a person has looked; it is not given again.

A tail that is merely torn is what a killed process leaves, and no acknowledged receipt is in it: `hand_in` repairs it,
which keeps its bytes in quarantine. A corrupt file is left for a person, because acknowledged receipts may lie
behind the damage. A file of a dead process is removed once everything in it was handed in: the database has it all, and
otherwise each start of a worker would leave a file for ever. Files with a refused receipt are kept.

Nothing but the key, the attempt, the evidence and the time is written: no request, no address, no text of an exception.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Self, TypeAlias
from uuid import UUID

from tenure.errors import Invalid, NotFound, Refused, TenureError, Unavailable
from tenure.journal.frame import BODY_BYTES_MAX, Record, Tail
from tenure.journal.mender import repair
from tenure.journal.reader import verify
from tenure.journal.storage import KERNEL, Storage, typed
from tenure.journal.writer import Journal
from tenure.rules import payload
from tenure.rules.outcome import Absent, Accepted, Declined, Evidence, Json, NoAnswer

# Called with the operation key, the evidence and the attempt id; returns after the commit.
Submit: TypeAlias = Callable[[str, Evidence, UUID], None]

_UNREADABLE = "JOURNAL_RECORD_UNREADABLE"
_ROTATE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Receipt:
    """One receipt as it was kept; `at` is this host's clock, for people."""

    operation_key: str
    attempt_id: UUID
    evidence: Evidence
    at: datetime


@dataclass(frozen=True, slots=True)
class HandedIn:
    """The note that a receipt needs no more handing in; `refused` is the code of the error that refused it."""

    sequence: int
    refused: str | None


@dataclass(frozen=True, slots=True)
class RefusedReceipt:
    """A receipt that is kept because it was refused; the key is None where the record cannot be read."""

    path: Path
    sequence: int
    operation_key: str | None
    code: str


@dataclass(frozen=True, slots=True)
class LeftFile:
    """A file that could not be handed in and needs a person; the code says why."""

    path: Path
    code: str


@dataclass(slots=True)
class HandIn:
    """
    What one pass found and did. Health is red while `refused` or `torn_files` is not empty.

    Attributes:
        handed_in: How many receipts were committed in this pass.
        refused: Every refused receipt that is still kept in a file this pass could open, old ones too.
        skipped_files: Held by another process, which hands in its own.
        torn_files: Left as they are: damaged, not a plain file, or the disk said no.
        repaired_files: Had the torn tail of an interrupted append, now in quarantine.
        removed_files: Handed in as a whole, their process dead: removed.
        stopped: The code of the error that ended the pass early, None when it went to its end.
    """

    handed_in: int = 0
    refused: list[RefusedReceipt] = field(default_factory=list)
    skipped_files: list[Path] = field(default_factory=list)
    torn_files: list[LeftFile] = field(default_factory=list)
    repaired_files: list[Path] = field(default_factory=list)
    removed_files: list[Path] = field(default_factory=list)
    stopped: str | None = None


class ReceiptJournal:
    """
    The file of this process in a store's journal directory; safe to use from many threads.

    The file is opened at once, so that a wrong directory shows when a worker starts and not when the database is gone.
    If an append fails, the next one begins a new file: the old handle stays poisoned, and what it acknowledged stays
    safe.

    Attributes:
        directory: The store's journal directory; made if missing.
    """

    def __init__(self, directory: str | Path, *, storage: Storage = KERNEL, rotate_bytes: int = _ROTATE_BYTES) -> None:
        # Absolute, so that a later chdir of the process does not move it; links are not resolved.
        self.directory = Path(directory).absolute()
        self._storage = storage
        self._process = os.getpid()
        self._given_up = 0
        self._rotate_bytes = rotate_bytes
        self._switching = threading.Lock()
        self._passing = threading.Lock()
        self._retired: list[Journal] = []
        self._closed = False
        with typed(self.directory, "cannot make the directory"):
            storage.make_directory(self.directory)
        self._journal = self._new()

    @property
    def path(self) -> Path:
        """The file that the next receipt goes to."""
        return self._journal.path

    @property
    def faults(self) -> int:
        """How many files of this process had a failed write or sync. Not zero means red health."""
        return self._given_up + self._journal.poisoned

    def append_receipt(self, operation_key: str, attempt_id: UUID, evidence: Evidence) -> int:
        """
        Keep a receipt durably and return its sequence in this process's file.

        Raises:
            Invalid: The receipt is not JSON, or too large; this is a forked child, or closed. Nothing was written.
            Unavailable: It is not surely kept; the next call tries a new file.
        """
        self._check_usable()
        body = encode_receipt(Receipt(operation_key, attempt_id, evidence, datetime.now(UTC)))
        with self._switching:
            self._switch_if_poisoned()
            journal = self._journal
        return journal.append(body)

    def hand_in(self, submit: Submit) -> HandIn:
        """Run one pass over the directory, this process's own file included."""
        return hand_in(self.directory, submit, own=self, storage=self._storage)

    def close(self) -> None:
        """Close the file; an empty one is removed, others wait for the next pass of any worker. Again is fine."""
        if os.getpid() != self._process:
            return
        with self._switching, contextlib.ExitStack() as closing:
            for journal in (*self._retired, self._journal):
                closing.callback(journal.close)
            self._retired.clear()
            if not self._closed and not self._journal.poisoned and not self._journal.durable_bytes:
                self._journal.remove()
            self._closed = True

    def _new(self) -> Journal:
        name = f"receipts-{os.getpid()}-{secrets.token_hex(6)}.journal"
        return Journal.open(self.directory / name, storage=self._storage)

    def _switch(self) -> None:
        """Go on in a new file. The old one is closed by the next pass, which may be reading it at this moment."""
        old, self._journal = self._journal, self._new()
        self._retired.append(old)
        if not old.poisoned:
            return
        self._given_up += 1
        if not old.durable_bytes and not verify(old.path, storage=self._storage).records:
            old.remove()  # On a full disk each try would leave another file without a single record.

    def _check_usable(self) -> None:
        # Before any lock is asked for: a forked child's copy of it may be taken for ever.
        if os.getpid() != self._process:
            raise Invalid(
                f"the receipts of process {self._process} are not shared by a fork; open a ReceiptJournal in the child",
                code="JOURNAL_FORKED",
            )
        if self._closed:
            raise Invalid(f"the receipts in {self.directory} are closed; open them again", code="JOURNAL_CLOSED")

    def _switch_if_poisoned(self) -> None:
        if self._journal.poisoned:
            self._switch()

    def _begin_pass(self) -> None:
        with self._switching:
            self._switch_if_poisoned()
            retired, self._retired = self._retired, []
        for journal in retired:
            journal.close()

    def _switch_if_large(self) -> None:
        with self._switching:
            if self._journal.durable_bytes >= self._rotate_bytes:
                self._switch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def hand_in(
    directory: str | Path, submit: Submit, *, own: ReceiptJournal | None = None, storage: Storage = KERNEL
) -> HandIn:
    """
    Give every receipt in a directory that was not handed in to `submit`.

    Args:
        submit: Returns after the commit. Unavailable from it ends the pass, the rest waits for the next one; any other
            TenureError refuses this receipt; anything else is a fault in the program and is raised.
        own: This process's open journal in the same directory; other files are taken if their lock is free.

    Raises:
        NotFound, Invalid, Unavailable: The directory cannot be listed.
    """
    where = Path(directory).absolute()
    if own is not None and own.directory != where:
        raise Invalid(f"the open journal is in {own.directory}, not in {where}", code="JOURNAL_OTHER_DIRECTORY")
    report = HandIn()
    if own is None:
        _pass(where, submit, None, storage, report)
        return report
    own._check_usable()  # noqa: SLF001
    with own._passing:  # noqa: SLF001 - the two are one mechanism
        try:
            own._begin_pass()  # noqa: SLF001
        except TenureError as error:
            report.torn_files.append(LeftFile(own.path, error.code))
        _pass(where, submit, own, storage, report)
    return report


def encode_receipt(receipt: Receipt) -> bytes:
    """
    Write a receipt as a record's body.

    Raises:
        Invalid: It is not JSON; the codes are those of `tenure.rules.payload`.
    """
    evidence: dict[str, Json]
    match receipt.evidence:
        case Accepted(receipt=proof):
            evidence = {"kind": "accepted", "receipt": proof}
        case Declined(reason=reason):
            evidence = {"kind": "declined", "reason": reason}
        case Absent():
            evidence = {"kind": "absent"}
        case NoAnswer(reason=reason):
            evidence = {"kind": "no_answer", "reason": reason}
    return _encode(
        {
            "type": "receipt",
            "operation_key": receipt.operation_key,
            "attempt_id": str(receipt.attempt_id),
            "evidence": evidence,
            "at": receipt.at.isoformat(),
        }
    )


def encode_handed_in(note: HandedIn) -> bytes:
    """Write a handed-in note as a record's body."""
    return _encode({"type": "handed_in", "sequence": note.sequence, "refused": note.refused})


def decode(body: bytes) -> Receipt | HandedIn:
    """
    Read a record's body.

    Raises:
        Invalid: JOURNAL_RECORD_UNREADABLE, it is neither of the two (perhaps a newer version wrote it).
    """
    try:
        match payload.decode(body):
            case {
                "type": "receipt",
                "operation_key": str(key),
                "attempt_id": str(attempt),
                "evidence": dict(evidence),
                "at": str(at),
            }:
                return Receipt(key, UUID(attempt), _evidence(evidence), datetime.fromisoformat(at))
            case {"type": "handed_in", "sequence": int(sequence), "refused": (str() | None) as refused}:
                return HandedIn(sequence, refused)
    except (Invalid, ValueError):
        pass  # told below, without the value: it may be part of a receipt
    raise Invalid("the record is neither a receipt nor a handed-in note; look at it with dump", code=_UNREADABLE)


def _evidence(value: dict[str, Json]) -> Evidence:
    match value:
        case {"kind": "accepted", "receipt": proof}:
            return Accepted(proof)
        case {"kind": "declined", "reason": str(reason)}:
            return Declined(reason)
        case {"kind": "absent"}:
            return Absent()
        case {"kind": "no_answer", "reason": str(reason)}:
            return NoAnswer(reason)
    raise ValueError("unknown evidence")


def _encode(value: dict[str, Json]) -> bytes:
    return payload.encode(value, max_bytes=BODY_BYTES_MAX).encode()


def _pass(where: Path, submit: Submit, own: ReceiptJournal | None, storage: Storage, report: HandIn) -> None:
    with typed(where, "cannot list"):
        names = sorted(storage.names(where))
    own_path = None if own is None else own.path
    for name in names:
        path = where / name
        if not (name.startswith("receipts-") and name.endswith(".journal")):
            continue
        if own is not None and path == own_path and not own._journal.poisoned:  # noqa: SLF001
            _own_file(own, submit, report)
        else:
            _other_file(path, submit, storage, report)
        if report.stopped is not None:
            return


def _own_file(own: ReceiptJournal, submit: Submit, report: HandIn) -> None:
    journal = own._journal  # noqa: SLF001 - the two are one mechanism
    try:
        if _hand_in_records(journal, submit, report):
            own._switch_if_large()  # noqa: SLF001
    except TenureError as error:
        report.torn_files.append(LeftFile(journal.path, error.code))


def _other_file(path: Path, submit: Submit, storage: Storage, report: HandIn) -> None:
    try:
        journal = _take_over(path, storage, report)
    except NotFound:
        return  # another pass has handed it in and removed it since we listed
    except Unavailable as error:
        if error.code == "JOURNAL_LOCKED":
            report.skipped_files.append(path)
        else:
            report.torn_files.append(LeftFile(path, error.code))
        return
    except TenureError as error:
        report.torn_files.append(LeftFile(path, error.code))
        return
    with journal:
        try:
            if _hand_in_records(journal, submit, report):
                journal.remove()
                report.removed_files.append(path)
        except TenureError as error:
            # Ours, about this file: submit's own errors do not come here. The other files may be better.
            report.torn_files.append(LeftFile(path, error.code))


def _take_over(path: Path, storage: Storage, report: HandIn) -> Journal:
    try:
        return Journal.open(path, storage=storage, create=False)
    except Refused:
        if verify(path, storage=storage).tail is Tail.CORRUPT:
            raise
    if repair(path, storage=storage).repaired:
        report.repaired_files.append(path)
    return Journal.open(path, storage=storage, create=False)


def _hand_in_records(journal: Journal, submit: Submit, report: HandIn) -> bool:
    """Hand in one file's receipts; True when nothing in it needs anybody any more."""
    waiting, refused = _open_records(journal.records())
    report.refused.extend(RefusedReceipt(journal.path, sequence, *why) for sequence, why in refused.items())
    for sequence, body in waiting.items():
        key: str | None = None
        code: str | None = None
        try:
            receipt = decode(body)
            assert isinstance(receipt, Receipt)  # notes are not among the waiting
            key = receipt.operation_key
            submit(key, receipt.evidence, receipt.attempt_id)
        except Unavailable as error:
            report.stopped = error.code
            return False
        except TenureError as error:
            code = error.code
            refused[sequence] = (key, code)
            report.refused.append(RefusedReceipt(journal.path, sequence, key, code))
        else:
            report.handed_in += 1
        journal.append(encode_handed_in(HandedIn(sequence, code)))
    return not refused


def _open_records(records: Iterable[Record]) -> tuple[dict[int, bytes], dict[int, tuple[str | None, str]]]:
    """Sort a file's records: bodies that wait for handing in, and refused ones with key and code, by sequence."""
    waiting: dict[int, bytes] = {}
    refused: dict[int, tuple[str | None, str]] = {}
    for record in records:
        try:
            note = decode(record.body)
        except Invalid:
            waiting[record.sequence] = record.body  # it is refused, once, when its turn comes
            continue
        if isinstance(note, Receipt):
            waiting[record.sequence] = record.body
            continue
        body = waiting.pop(note.sequence, None)
        if body is not None and note.refused is not None:
            refused[note.sequence] = (_key(body), note.refused)
    return waiting, refused


def _key(body: bytes) -> str | None:
    try:
        receipt = decode(body)
    except Invalid:
        return None
    return receipt.operation_key if isinstance(receipt, Receipt) else None
