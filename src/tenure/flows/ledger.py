"""What a flow asks of an authority ledger; `journal/ledger.py` keeps one, `rules/ledger.py` says what it means."""

from __future__ import annotations

from typing import Protocol

from tenure.rules.ledger import Book, Entry
from tenure.yields import FlowScript, call


class Ledger(Protocol):
    """
    A ledger, wherever it is kept. Its methods block, and may be called from any thread.

    Attributes:
        where: Where it is, without any password.
    """

    where: str

    def read(self) -> Book | None:
        """Give what it says; None where there is none. Raises Unavailable, or Refused where it is damaged."""
        ...

    def begin(self, book: Book) -> Book:
        """Write the first entry, unless another process was faster; give what it says then."""
        ...

    def write(self, *entries: Entry) -> Book:
        """Append entries, all or none, durably; give what it says then. Raises Refused where there is no ledger."""
        ...

    def check_outside(self, identity: str) -> None:
        """Refuse to be kept in the very database of this identity: Invalid, LEDGER_NOT_OUTSIDE."""
        ...

    def close(self) -> None:
        """Let go of what it holds open; it is opened again when used, because several stores share it."""
        ...


def read_ledger(ledger: Ledger) -> FlowScript[Book | None]:
    """See `Ledger.read`."""
    book: Book | None = yield from call("ledger_read", ledger.read)
    return book


def begin_ledger(ledger: Ledger, book: Book) -> FlowScript[Book]:
    """See `Ledger.begin`."""
    begun: Book = yield from call("ledger_begin", ledger.begin, book)
    return begun


def write_ledger(ledger: Ledger, *entries: Entry) -> FlowScript[Book]:
    """See `Ledger.write`."""
    book: Book = yield from call("ledger_write", ledger.write, *entries)
    return book


def check_outside(ledger: Ledger, identity: str) -> FlowScript[None]:
    """See `Ledger.check_outside`."""
    yield from call("ledger_outside", ledger.check_outside, identity)
