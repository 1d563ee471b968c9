"""
Is this database the current one? Compare it with its ledger, freeze it, and bring it back; one transaction each.

What the database says of itself is in its meta table: `store` (which store it belongs to, once a ledger was adopted),
`incarnation` and `ticked_at` (the counter), and `frozen` (why, as JSON), which every claim and every fence looks at.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID

from tenure.procedures.approvals import replay_revocations
from tenure.procedures.records import instant
from tenure.procedures.recover import mark_suspects
from tenure.rules.approval import read_restriction
from tenure.rules.authority import after_act
from tenure.rules.ledger import FROZEN, REVOKED, Book, Cause, Facts, Freeze, Pending, judge
from tenure.yields import FRESH, Command, Each, Script, Statement, new_id, procedure

__all__ = ["Recovered", "Ticked", "compare", "read_facts", "recover_database", "tick"]


@dataclass(frozen=True, slots=True)
class Ticked:
    """
    What a look at the database's authority found.

    Attributes:
        facts: As they were before anything was raised.
        frozen: Why the database is frozen, None where it is not.
        doubted: It was not frozen only because the caller was not sure of the ledger; nothing was raised.
        incarnation: The counter after it; the old one where it was not raised.
        at: The store's clock, in microseconds.
        applied: Ids of pending acts that are in the database now.
    """

    facts: Facts
    frozen: Freeze | None
    incarnation: int
    at: int
    applied: tuple[str, ...] = ()
    doubted: bool = False


@procedure(reads=True)
def read_facts(book: Book | None, file: str | None) -> Script[Facts]:
    """
    Give what the database says of itself.

    Args:
        file: What only the opener knows of a database's identity: the file of one that is a file.
    """
    return (yield from _facts(book, file))[0]


def _facts(book: Book | None, file: str | None) -> Script[tuple[Facts, int]]:
    tenants = [(tenant,) for tenant in (book.epochs if book is not None else ())]
    meta, live, known = yield [
        Statement("meta_list"),
        Statement("database_identity", {"file": file}),
        Each("authority_read", tenants),
    ]
    said = dict(meta)
    # Who looks every second does not ask what only a stranger or a freeze needs to know.
    born_at = 0 if "store" in said else (yield Statement("newest_instants"))[0][2]
    frozen = None
    if "frozen" in said:
        frozen = _freeze_of(said["frozen"])
    facts = Facts(
        store=said.get("store"),
        identity=live[0][0],
        incarnation=int(said.get("incarnation", 0)),
        ticked_at=int(said.get("ticked_at", 0)),
        epochs=MappingProxyType({row[0]: row[1] for row in known}),
        frozen=frozen,
        born_at=born_at or 0,
    )
    return facts, live[0][1]


def _freeze_of(text: str) -> Freeze:
    try:
        said = json.loads(text)
        return Freeze(Cause(said["cause"]), said["text"], said["at"], said["copy_until"])
    except (ValueError, KeyError, TypeError):
        # Whoever wrote it by hand wanted the same.
        return Freeze(Cause.IDENTITY_CHANGED, text)


def _freeze(facts: Facts, cause: Cause, text: str, now: int) -> Script[Freeze]:
    created_at, claimed_at, _ = (yield Statement("newest_instants"))[0]
    made = Freeze(cause, text, now, max(created_at or 0, claimed_at or 0, facts.ticked_at))
    value = json.dumps({"cause": cause.value, "text": text, "at": now, "copy_until": made.copy_until})
    yield Each("meta_save", [("frozen", value)])
    return made


@procedure
def compare(book: Book | None, file: str | None) -> Script[Freeze | None]:
    """
    Freeze the database where it is not the current one; raise nothing. For whoever opens a store and is no worker.

    Args:
        book: What the ledger said before this transaction began.
    Writes: meta, only to freeze.
    """
    facts, now = yield from _facts(book, file)
    if facts.frozen is not None:
        return facts.frozen
    found = judge(book, facts)
    return None if found is None else (yield from _freeze(facts, *found, now))


@procedure
def tick(book: Book, file: str | None, *, sure: bool) -> Script[Ticked]:
    """
    Compare the database with its ledger; raise its counter, or freeze it.

    A database without a store of its own adopts the ledger's, with the epochs and restrictions in it. Acts that are
    pending in the ledger are applied: their author may have died between the ledger and the database.

    Args:
        book: What the ledger said before this transaction began.
        sure: Freeze. Otherwise a database that looks wrong is left as it is: the book may be older than a recovery, and
            whoever reads the ledger again after this has looked cannot miss it.
    Locks: the counter; the authority of tenants with pending acts, alone; the approvals of pending revocations.
    Writes: meta, authority, authority_event, approval.
    """
    yield Statement("meta_lock", {"key": "incarnation"})
    facts, now = yield from _facts(book, file)
    frozen = facts.frozen
    if frozen is None:
        found = judge(book, facts)
        if found is not None and not sure:
            return Ticked(facts, None, facts.incarnation, now, doubted=True)
        frozen = None if found is None else (yield from _freeze(facts, *found, now))
    if frozen is not None:
        return Ticked(facts, frozen, facts.incarnation, now)
    if facts.store is None:
        yield from _replay(book, raised=False)
        yield from _revoke(book)
    applied = yield from _apply_pending(book, now)
    counter = max(facts.incarnation, book.incarnation if facts.store is None else 0) + 1
    rows = [("incarnation", str(counter)), ("ticked_at", str(now))]
    yield Each("meta_save", rows if facts.store is not None else [*rows, ("store", book.store)])
    return Ticked(facts, None, counter, now, applied)


def _apply_pending(book: Book, now: int) -> Script[tuple[str, ...]]:
    if not book.pending:
        return ()
    acts = sorted((one for one in book.pending.values() if one.what != REVOKED), key=lambda one: one.epoch)
    if acts:
        yield from _apply_acts(acts, now)
    if len(acts) < len(book.pending):
        yield from _revoke(book, pending=True)
    return tuple(book.pending)


def _apply_acts(acts: Sequence[Pending], now: int) -> Script[None]:
    tenants = sorted({one.tenant for one in acts})
    _, rows = yield [
        Each("authority_ensure", [(tenant,) for tenant in tenants]),
        Each("authority_exclusive", [(tenant,) for tenant in tenants]),
    ]
    # Under the lock: its author, or another worker, may have been here, and a later act may have ended it since.
    known = yield [Statement("authority_event_known", {"act_id": UUID(act.id)}) for act in acts]
    now_of = {row[0]: (row[1], bool(row[2])) for row in rows}
    events = []
    for act in [one for one, done in zip(acts, known, strict=True) if not done]:
        now_of[act.tenant] = after_act(now_of[act.tenant], act.what, act.epoch)
        events.append((UUID(act.id), act.tenant, act.what, now_of[act.tenant][0], act.actor, act.reason, now))
    yield [
        Each("authority_save", [(tenant, *now_of[tenant]) for tenant in tenants]),
        Each("authority_event_insert", events),
    ]


def _revoke(book: Book, *, pending: bool = False) -> Script[int]:
    """Take back again what the ledger says was taken back; only what is pending, or all of it."""
    asked = (one.detail for one in book.pending.values() if one.what == REVOKED)
    entries = list(asked) if pending else book.revocations()
    if not entries:
        return 0
    return (yield from replay_revocations([read_restriction(one) for one in entries]))


def _replay(book: Book, *, raised: bool) -> Script[dict[str, int]]:
    """
    Bring every tenant to at least what the ledger says, and where `raised` beyond it.

    Returns: The epochs after it, of every tenant.
    """
    named = sorted({*book.epochs, *(tenant for tenant, kind, _ in book.restrictions if kind == FROZEN)})
    known, _ = yield [
        Statement("authority_list", {"tenant": None}),
        Each("authority_ensure", [(tenant,) for tenant in named]),
    ]
    tenants = sorted({*named, *(row[0] for row in known)}) if raised else named
    if not tenants:
        return {}
    rows = yield Each("authority_exclusive", [(tenant,) for tenant in tenants])
    after = {}
    saved = []
    for tenant, epoch, frozen, *_ in rows:
        reached = max(epoch, book.reach(tenant)) + (1 if raised else 0)
        after[tenant] = reached
        saved.append((tenant, reached, bool(frozen) or (tenant, FROZEN, "") in book.restrictions))
    yield Each("authority_save", saved)
    return after


@dataclass(frozen=True, slots=True)
class Recovered:
    """
    What a recovery did.

    Attributes:
        facts: Of the database before it.
        epochs: Every tenant's after it.
        suspects: How many jobs of the copy were marked as suspect.
        revocations: How many approvals were taken back that the copy did not know as revoked; not counted again in the
            answer of a run whose first reply was lost.
        incarnation: The counter after it.
        at: The store's clock, in microseconds.
        changed: Whether it did anything: a database that is not frozen was recovered already.
    """

    facts: Facts
    epochs: dict[str, int]
    suspects: int
    revocations: int
    incarnation: int
    at: int
    changed: bool = True


@procedure(wakes=True)
def recover_database(
    book: Book,
    file: str | None,
    actor: str,
    reason: str,
    *,
    command: Command = FRESH,
) -> Script[Recovered]:
    """
    Make a frozen database the current one: replay restrictions, raise every epoch, mark suspects, end the freeze.

    All of it is one commit, and the freeze ends last: no moment exists in which a job of the copy is claimable and not
    suspect. A database that is not frozen is left as it is: somebody else was faster, or an earlier run of this one
    whose reply was lost, which is told as what it was; what was created since is nobody's old work.

    Args:
        book: The ledger's content, or a new book where the ledger is lost.
    Locks: every tenant's authority, alone; approvals.
    Writes: authority, authority_event, meta, suspect, event, approval.
    """
    yield Statement("meta_lock", {"key": "incarnation"})
    facts, now = yield from _facts(book, file)
    if facts.frozen is None:
        known, ours, ((marked,),) = yield [
            Statement("authority_list", {"tenant": None}),
            Statement("authority_event_known", {"act_id": command.id}),
            Statement("suspect_marked", {"recovery_id": command.id}),
        ]
        epochs = {row[0]: row[1] for row in known}
        return Recovered(facts, epochs, marked, 0, facts.incarnation, facts.ticked_at, changed=bool(ours))
    epochs = yield from _replay(book, raised=True)
    # A copy is no older than its last tick, so an intent that it lost was written after that.
    since = instant(facts.ticked_at) if facts.ticked_at else None
    suspects = yield from mark_suspects(actor, reason, since=since, recovery_id=command.id)
    revocations = yield from _revoke(book)
    counter = max(facts.incarnation, book.incarnation) + 1
    yield [
        Each(
            "authority_event_insert",
            # The first is named after the call, so that it is known again.
            [
                (new_id() if nth else command.id, tenant, "recovered", epoch, actor, reason, now)
                for nth, (tenant, epoch) in enumerate(epochs.items())
            ],
        ),
        Each(
            "meta_save",
            [("incarnation", str(counter)), ("store", book.store), ("ticked_at", str(now))],
        ),
        Each("meta_delete", [("frozen",)]),
    ]
    return Recovered(facts, epochs, suspects, revocations, counter, now)
