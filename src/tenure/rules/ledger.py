"""
What is remembered about a database outside of it, and how the two are compared.

A `Book` is the content of an authority ledger: which store it belongs to, what tells its database from a copy, how far
the incarnation counter came, and of each tenant the epoch and the restrictions: freezes, and approvals that were taken
back. It is made of entries, one after another, and holds nothing about any job.

The order of writes makes the comparison sound. A rotation or a freeze is in the ledger as pending before it is in the
database, and confirmed after it; the counter is raised in the database first and in the ledger after that. So in a sane
life the database is never behind a confirmed entry, and a database that is behind has lost something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from tenure.rules.approval import RESTRICTION as REVOKED

__all__ = [
    "FROZEN", "REVOKED", "Book", "Cause", "Entry", "Facts", "Freeze", "Pending", "Restriction",
    "act_fields", "applied", "confirmed", "first_book", "forgotten", "judge", "proposed", "recovered", "recovering",
    "released", "restricted", "settled", "ticked", "withdrawn",
]  # fmt: skip

FROZEN = "frozen"
# An approval that has expired allows nothing in any copy, so its revocation is forgotten some time after that: longer
# than the clock of a machine that brings up a copy may be behind.
KEEP_EXPIRED = timedelta(days=30)
Entry = Mapping[str, Any]
# Tenant, kind and key.
Restriction = tuple[str, str, str]


class Cause(StrEnum):
    """Why a database is frozen."""

    EPOCH_BEHIND = "EPOCH_BEHIND"
    COUNTER_BEHIND = "COUNTER_BEHIND"
    IDENTITY_CHANGED = "IDENTITY_CHANGED"
    LEDGER_MISSING = "LEDGER_MISSING"
    LEDGER_FOREIGN = "LEDGER_FOREIGN"
    COUNTER_TAKEN = "COUNTER_TAKEN"


@dataclass(frozen=True, slots=True)
class Pending:
    """
    An act that is in the ledger and perhaps not yet in the database.

    Attributes:
        what: rotated, frozen or approval_revoked.
        epoch: The tenant's epoch after it; 1 where the act has nothing to do with it.
        key: What of the tenant it is about: an approval's reference.
        detail: What a database needs to apply it, beside that.
    """

    id: str
    what: str
    tenant: str
    epoch: int
    actor: str
    reason: str
    key: str = ""
    detail: Entry = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Seen:
    """
    The database as a process has seen it, when it was the current one.

    Attributes:
        counter: How far its counter was; it never goes back.
        identity: What tells it from a copy.
    """

    counter: int
    identity: str


@dataclass(frozen=True, slots=True)
class Book:
    """
    What a ledger says.

    Attributes:
        store: Which store it belongs to.
        identity: What told its database from a copy when it was last recovered or begun.
        recovering: The identity that a recovery is about to make the current one; accepted like `identity`.
        incarnation: How far the counter came.
        ticked_at: When it was last raised, in microseconds by the store's clock.
        epochs: Of tenants whose authority ever moved.
        restrictions: What is forbidden, by tenant, kind and key, with what a database needs to be told of it. A frozen
            tenant is (tenant, "frozen", ""), a revoked approval (tenant, "approval_revoked", reference).
        pending: Acts that are not confirmed, by id.
    """

    store: str
    identity: str
    recovering: str | None = None
    incarnation: int = 0
    ticked_at: int = 0
    epochs: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    restrictions: Mapping[Restriction, Entry] = field(default_factory=lambda: MappingProxyType({}))
    pending: Mapping[str, Pending] = field(default_factory=lambda: MappingProxyType({}))

    def reach(self, tenant: str) -> int:
        """Give the highest epoch that was ever proposed for a tenant; 1 where none was."""
        proposed = (one.epoch for one in self.pending.values() if one.tenant == tenant)
        return max(self.epochs.get(tenant, 1), *proposed, 1)

    def frozen(self, tenant: str) -> bool:
        """Say whether an operator froze a tenant."""
        return (tenant, FROZEN, "") in self.restrictions

    def revocations(self) -> list[Entry]:
        """Give every approval that was taken back, those that are pending among them."""
        asked = [one.detail for one in self.pending.values() if one.what == REVOKED]
        return [*(detail for (_, kind, _), detail in self.restrictions.items() if kind == REVOKED), *asked]

    def entry(self) -> dict[str, Any]:
        """Give the one entry that says all of it that still matters."""
        return {
            "what": "book",
            "store": self.store,
            "identity": self.identity,
            "recovering": self.recovering,
            "incarnation": self.incarnation,
            "ticked_at": self.ticked_at,
            "epochs": dict(self.epochs),
            "restrictions": [
                [*one, dict(detail)]
                for one, detail in sorted(self.restrictions.items(), key=lambda item: item[0])
                if not _over(detail, self.ticked_at)
            ],
            "pending": [act_fields(one) for one in self.pending.values()],
        }


def act_fields(act: Pending) -> dict[str, Any]:
    """Give the fields of an act as an entry holds them."""
    return {
        "id": act.id,
        "act": act.what,
        "tenant": act.tenant,
        "epoch": act.epoch,
        "actor": act.actor,
        "reason": act.reason,
        "key": act.key,
        "detail": dict(act.detail),
    }


def _over(detail: Entry, ticked_at: int) -> bool:
    """Say whether what was forbidden would not be allowed any more in any copy."""
    if "expires_at" not in detail:
        return False
    expired = datetime.fromisoformat(detail["expires_at"]) + KEEP_EXPIRED
    return expired.timestamp() * 1_000_000 < ticked_at


def first_book(
    store: str, identity: str, epochs: Mapping[str, int], revoked: Iterable[Entry], frozen: Iterable[str]
) -> Book:
    """
    Make the first content of a ledger for a database that lives already.

    Args:
        epochs: Of every tenant; only those that moved are written down.
        revoked: Of approvals, from `rules.approval.restriction`.
        frozen: Tenants.
    """
    forbidden: dict[Restriction, Entry] = {(tenant, FROZEN, ""): {} for tenant in frozen}
    forbidden |= {(one["tenant"], REVOKED, one["reference"]): one for one in revoked}
    moved = {tenant: epoch for tenant, epoch in epochs.items() if epoch > 1}
    return Book(store, identity, epochs=MappingProxyType(moved), restrictions=MappingProxyType(forbidden))


def proposed(act: Pending) -> Entry:
    """Make the entry that says what is about to be written to the database."""
    return {"what": "pending", **act_fields(act)}


def confirmed(act_id: str) -> Entry:
    """Make the entry that says a pending act is in the database."""
    return {"what": "confirmed", "id": act_id}


def withdrawn(act_id: str) -> Entry:
    """Make the entry that says a pending act was refused and never will be in the database."""
    return {"what": "withdrawn", "id": act_id}


def ticked(incarnation: int, at: int) -> Entry:
    """Make the entry that says how far the counter is in the database."""
    return {"what": "tick", "n": incarnation, "at": at}


def restricted(tenant: str, kind: str, key: str = "", detail: Entry | None = None) -> Entry:
    """Make the entry that says something is forbidden, in the database already."""
    return {"what": "restricted", "tenant": tenant, "kind": kind, "key": key, "detail": dict(detail or {})}


def released(tenant: str, kind: str, key: str = "") -> Entry:
    """Make the entry that says something is forbidden no more, in the database already."""
    return {"what": "released", "tenant": tenant, "kind": kind, "key": key}


def recovering(identity: str) -> Entry:
    """Make the entry that says which database is about to become the current one."""
    return {"what": "recovering", "identity": identity}


def settled(identity: str) -> Entry:
    """Make the entry that says which database is the current one from now on."""
    return {"what": "identity", "identity": identity}


def recovered(identity: str, incarnation: int, at: int, epochs: Mapping[str, int]) -> Entry:
    """Make the entry that says a recovery is done: all of it is in the database already."""
    return {"what": "recovered", "identity": identity, "n": incarnation, "at": at, "epochs": dict(epochs)}


def forgotten(book: Book, database: Book, at: int) -> list[Entry]:
    """
    Make the entries that tell a ledger what its own database knows beyond it: it came back from a backup of its own.

    What only the ledger forbids stays forbidden there, which makes a recovery too careful, never too bold.

    Args:
        database: What a ledger would say that began now.
        at: The store's clock, in microseconds.
    """
    entries = [
        restricted(*one, detail)
        for one, detail in database.restrictions.items()
        if one not in book.restrictions and not _over(detail, at)
    ]
    epochs = {tenant: epoch for tenant, epoch in database.epochs.items() if epoch > book.epochs.get(tenant, 1)}
    # Number 0: it raises no counter.
    return [*entries, recovered(database.identity, 0, at, epochs)] if epochs else entries


def applied(book: Book | None, entry: Entry) -> Book:
    """
    Give the book after one more entry.

    Raises:
        KeyError, TypeError, ValueError: The entry is not one of ours.
    """
    what = entry["what"]
    if what == "book":
        return _book(entry)
    if book is None:
        raise ValueError("the first entry of a ledger says all of it")
    change = _CHANGES.get(what)
    if change is None:
        raise ValueError(f"an entry of kind {what!r} is not known to this version")
    return change(book, entry)


def _book(entry: Entry) -> Book:
    acts = [_pending(one) for one in entry["pending"]]
    return Book(
        store=str(entry["store"]),
        identity=str(entry["identity"]),
        recovering=entry["recovering"],
        incarnation=int(entry["incarnation"]),
        ticked_at=int(entry["ticked_at"]),
        epochs=MappingProxyType({str(name): int(epoch) for name, epoch in entry["epochs"].items()}),
        restrictions=MappingProxyType({(str(a), str(b), str(c)): dict(d) for a, b, c, d in entry["restrictions"]}),
        pending=MappingProxyType({one.id: one for one in acts}),
    )


def _tick(book: Book, entry: Entry) -> Book:
    if int(entry["n"]) <= book.incarnation:
        # A slower worker's, which raised the database before a faster one did.
        return book
    return replace(book, incarnation=int(entry["n"]), ticked_at=int(entry["at"]))


def _propose(book: Book, entry: Entry) -> Book:
    act = _pending(entry)
    return replace(book, pending=MappingProxyType({**book.pending, act.id: act}))


def _withdraw(book: Book, entry: Entry) -> Book:
    return replace(book, pending=_without(book.pending, str(entry["id"])))


def _restrict(book: Book, entry: Entry) -> Book:
    one = (str(entry["tenant"]), str(entry["kind"]), str(entry["key"]))
    if entry["what"] == "restricted":
        return replace(book, restrictions=_with(book, one, dict(entry["detail"])))
    left = {key: detail for key, detail in book.restrictions.items() if key != one}
    return replace(book, restrictions=MappingProxyType(left))


def _with(book: Book, one: Restriction, detail: Entry) -> Mapping[Restriction, Entry]:
    return MappingProxyType({**book.restrictions, one: detail})


def _recovering(book: Book, entry: Entry) -> Book:
    return replace(book, recovering=str(entry["identity"]))


def _settle(book: Book, entry: Entry) -> Book:
    return replace(book, identity=str(entry["identity"]), recovering=None)


def _recover(book: Book, entry: Entry) -> Book:
    epochs = {str(name): max(book.epochs.get(name, 1), int(epoch)) for name, epoch in entry["epochs"].items()}
    # A worker may have raised it already, between a recovery and its word to the ledger.
    latest = int(entry["n"]) >= book.incarnation
    return replace(
        _settle(book, entry),
        incarnation=int(entry["n"]) if latest else book.incarnation,
        ticked_at=int(entry["at"]) if latest else book.ticked_at,
        epochs=MappingProxyType({**book.epochs, **epochs}),
    )


def _pending(entry: Entry) -> Pending:
    return Pending(
        str(entry["id"]),
        str(entry["act"]),
        str(entry["tenant"]),
        int(entry["epoch"]),
        str(entry["actor"]),
        str(entry["reason"]),
        str(entry["key"]),
        dict(entry["detail"]),
    )


def _without(pending: Mapping[str, Pending], act_id: str) -> Mapping[str, Pending]:
    return MappingProxyType({key: one for key, one in pending.items() if key != act_id})


def _confirm(book: Book, entry: Entry) -> Book:
    act_id = str(entry["id"])
    act = book.pending.get(act_id)
    if act is None:
        # Two processes may have applied the same act, and both say so.
        return book
    book = replace(book, pending=_without(book.pending, act_id))
    if act.what == REVOKED:
        return replace(book, restrictions=_with(book, (act.tenant, REVOKED, act.key), act.detail))
    epochs = {**book.epochs, act.tenant: max(book.epochs.get(act.tenant, 1), act.epoch)}
    forbidden = _with(book, (act.tenant, FROZEN, ""), {}) if act.what == FROZEN else book.restrictions
    return replace(book, epochs=MappingProxyType(epochs), restrictions=forbidden)


_CHANGES: Mapping[str, Callable[[Book, Entry], Book]] = {
    "tick": _tick,
    "pending": _propose,
    "confirmed": _confirm,
    "withdrawn": _withdraw,
    "restricted": _restrict,
    "released": _restrict,
    "recovering": _recovering,
    "identity": _settle,
    "recovered": _recover,
}


@dataclass(frozen=True, slots=True)
class Facts:
    """
    What a database says of itself.

    Attributes:
        store: The store it belongs to, None where no ledger was ever adopted.
        identity: What tells it from a copy, as it is now.
        incarnation: Its counter.
        ticked_at: When that was last raised, in microseconds; 0 where it never was.
        epochs: Of every tenant that the book knows.
        frozen: Why it is frozen already.
        born_at: When its tables were made, in microseconds; asked only where there is no store.
    """

    store: str | None
    identity: str
    incarnation: int = 0
    ticked_at: int = 0
    epochs: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    frozen: Freeze | None = None
    born_at: int = 0


@dataclass(frozen=True, slots=True)
class Freeze:
    """
    Why and when a database was frozen.

    Attributes:
        cause: For programs.
        text: For people.
        at: When it was noticed, in microseconds by the store's clock.
        copy_until: The last instant that the database knew of then, in microseconds; 0 where it knew none.
    """

    cause: Cause
    text: str
    at: int = 0
    copy_until: int = 0


def judge(book: Book | None, facts: Facts) -> tuple[Cause, str] | None:
    """
    Compare a database with its ledger.

    Returns:
        Why it has to be frozen, or None where it is the current one as far as anybody can tell.
    """
    if book is None:
        if facts.store is None:
            return None
        return Cause.LEDGER_MISSING, "the database has adopted a ledger, and there is none where it should be"
    if facts.store is None:
        if book.incarnation > 0 and not _fresh(book, facts):
            return (
                Cause.LEDGER_FOREIGN,
                "the database holds jobs and never knew the ledger, which knows of a later life",
            )
    elif facts.store != book.store:
        return Cause.LEDGER_FOREIGN, f"the database belongs to store {facts.store}, the ledger to store {book.store}"
    if facts.identity not in {book.identity, book.recovering} and not _fresh(book, facts):
        was, now = book.identity, facts.identity
        return (
            Cause.IDENTITY_CHANGED,
            f"the database is {now}, the ledger knows it as {was}: restored, copied or promoted",
        )
    counted = None if facts.store is None else _counted(book, facts)
    if counted is not None:
        return counted
    for tenant, epoch in book.epochs.items():
        known = facts.epochs.get(tenant, 1)
        if known < epoch and not _fresh(book, facts):
            return Cause.EPOCH_BEHIND, f"tenant {tenant!r} has epoch {known} in the database and {epoch} in the ledger"
    return None


def _counted(book: Book, facts: Facts) -> tuple[Cause, str] | None:
    if facts.incarnation < book.incarnation:
        lost = book.incarnation - facts.incarnation
        return (
            Cause.COUNTER_BEHIND,
            f"the database is {lost} ticks behind its ledger: an older copy was put in its place",
        )
    if facts.incarnation == book.incarnation and facts.ticked_at != book.ticked_at:
        # One database gives a number once, at one instant.
        return (
            Cause.COUNTER_TAKEN,
            f"tick {book.incarnation} in the ledger is another database's: two copies are in use, and this is one",
        )
    return None


def _fresh(book: Book, facts: Facts) -> bool:
    """
    A database whose tables are younger than the ledger's last word takes the ledger over: somebody began anew.

    Its jobs are all new. Older tables without a store are a copy from before the ledger began, however empty it is.
    """
    return facts.store is None and facts.born_at > book.ticked_at
