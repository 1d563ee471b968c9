"""
Look whether the database is still the current one: raise its counter first and the ledger's after it, and compare.

So a database that is behind its ledger has lost something. Of many processes that look, one raises the counter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tenure.errors import TenureError
from tenure.flows.ledger import Ledger, begin_ledger, check_outside, read_ledger, write_ledger
from tenure.procedures import approvals, authority, tenants
from tenure.procedures.authority import Ticked
from tenure.rules.approval import Approval, restriction
from tenure.rules.authority import Tenant
from tenure.rules.ledger import Book, Entry, Freeze, confirmed, first_book, forgotten, judge, settled, ticked
from tenure.yields import FlowScript, flow, transact


@dataclass(frozen=True, slots=True)
class Looked:
    """
    What a look at the authority found, for the next one to go on from.

    Attributes:
        book: What the ledger said; None where there is none.
        frozen: Why the database is frozen, None while it is not.
        leads: This look raised the counter: the entry that the ledger holds is its own.
        lost: Why the ledger could not be used.
    """

    book: Book | None
    frozen: Freeze | None
    leads: bool = False
    lost: TenureError | None = None


@flow
def first_look(ledger: Ledger, file: str | None, store: str) -> FlowScript[Looked]:
    """
    Compare before anything is claimed, and raise the counter; a database that never had a ledger gets one.

    Args:
        store: The id of the store whose ledger begins, if it has to.
    Raises:
        Invalid: LEDGER_NOT_OUTSIDE.
        Unavailable, Refused: The ledger cannot be read: nobody knows whether this database is the current one.
    """
    facts = yield from transact(authority.read_facts(None, file))
    yield from check_outside(ledger, facts.identity)
    book = yield from read_ledger(ledger)
    if book is None and facts.store is None:
        known = yield from transact(tenants.list_tenants())
        revocations = yield from transact(approvals.every_revocation())
        book = yield from begin_ledger(ledger, begun(store, facts.identity, known, revocations))
    try:
        return (yield from _raise(ledger, book, file, all_of_it=True))
    except _LedgerLost as lost:
        raise lost.error from lost


def begun(store: str, identity: str, known: list[Tenant], revocations: list[Approval]) -> Book:
    """Make the first content of a database's ledger; of another store than any ledger that was lost."""
    return first_book(
        store,
        identity,
        {one.name: one.epoch for one in known},
        [restriction(one) for one in revocations],
        [one.name for one in known if one.frozen],
    )


@flow
def look(ledger: Ledger, last: Looked, file: str | None) -> FlowScript[Looked]:
    """
    Compare the database with its ledger once more, and raise the counter where nobody else did since the last look.

    Of many that look, one raises the counter and the others compare: they read the ledger and the database, and take no
    lock. One that stops is followed by whoever looks next and finds the ledger as it was. What counts is the ledger's
    counter, so that a leader whose ledger takes no entries is followed too.
    """
    try:
        # Whoever leads reads it as well: another database may be served under it, or it came back from a backup.
        book = yield from _asked(ledger)
        if book is not None and last.book is not None and (yield from _is_raised(book, last.book, file)):
            return Looked(book, None)
        return (yield from _raise(ledger, book, file))
    except _LedgerLost as lost:
        return replace(last, leads=False, lost=lost.error)


def _is_raised(book: Book, before: Book, file: str | None) -> FlowScript[bool]:
    """Say whether somebody raised the counter since, and all is well."""
    if book.incarnation <= before.incarnation or book.pending:
        return False
    facts = yield from transact(authority.read_facts(book, file))
    return facts.frozen is None and judge(book, facts) is None


def _raise(ledger: Ledger, book: Book | None, file: str | None, *, all_of_it: bool = False) -> FlowScript[Looked]:
    """
    Raise the counter; what is compared is what the ledger said before: whatever is newer is at most a tick late.

    Args:
        all_of_it: See that the ledger knows all that the database knows, also where it missed no tick.
    """
    if book is None:
        return Looked(None, (yield from transact(authority.compare(None, file))))
    found = yield from transact(authority.tick(book, file, sure=False))
    if found.doubted:
        # What is remembered of the ledger may be older than a recovery that this one slept through.
        book = yield from _asked(ledger)
        if book is None:
            return Looked(None, (yield from transact(authority.compare(None, file))))
        found = yield from transact(authority.tick(book, file, sure=True))
    if found.frozen is not None:
        return Looked(book, found.frozen)
    try:
        after = yield from write_ledger(ledger, *(yield from _entries(book, found, all_of_it=all_of_it)))
    except TenureError as error:
        if error.code != "LEDGER_MISSING":
            raise _LedgerLost(error) from error
        return Looked(None, (yield from transact(authority.compare(None, file))))
    if after.incarnation == found.incarnation and after.ticked_at != found.at:
        # The same number by somebody else, who was faster: one database gives a number once, so there are two of them.
        return Looked(after, (yield from transact(authority.compare(after, file))))
    return Looked(after, None, leads=after.incarnation == found.incarnation)


def _asked(ledger: Ledger) -> FlowScript[Book | None]:
    try:
        return (yield from read_ledger(ledger))
    except TenureError as error:
        raise _LedgerLost(error) from error


class _LedgerLost(Exception):
    """The ledger could not be used; the database may have been raised."""

    def __init__(self, error: TenureError) -> None:
        super().__init__()
        self.error = error


def _entries(book: Book, found: Ticked, *, all_of_it: bool) -> FlowScript[list[Entry]]:
    entries: list[Entry] = [confirmed(one) for one in found.applied]
    if found.facts.identity != book.identity:
        # Accepted: a recovery whose last word was lost, or a new database that took this ledger over.
        entries.append(settled(found.facts.identity))
    if all_of_it or found.facts.incarnation > book.incarnation:
        # The ledger missed a tick, so it may have missed anything: its disk was lost and a backup put in its place, or
        # it took no entries for a while. What the database knows is written down again. While nobody looked there was
        # no tick to miss.
        known = yield from transact(tenants.list_tenants())
        revocations = yield from transact(approvals.every_revocation())
        entries += forgotten(book, begun(book.store, found.facts.identity, known, revocations), found.at)
    return [*entries, ticked(found.incarnation, found.at)]
