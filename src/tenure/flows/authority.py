"""
Change a tenant's authority where a ledger is kept: the ledger first, as pending, then the database, then confirmed.

Whoever dies in between leaves a pending act behind, and the next worker that looks applies it: a rotation, a freeze or
a revocation may come late or twice and does no harm. Only what loosens, a thaw, is in the database before it is in the
ledger: a ledger that still says frozen makes a recovery too careful, never too bold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

from tenure.errors import Invalid, Refused, Unavailable
from tenure.flows.ledger import Ledger, begin_ledger, read_ledger, write_ledger
from tenure.procedures import approvals, authority, tenants
from tenure.procedures.authority import Recovered
from tenure.rules.approval import Approval, restriction, revoked
from tenure.rules.authority import Tenant
from tenure.rules.ledger import (
    FROZEN,
    REVOKED,
    Book,
    Pending,
    confirmed,
    proposed,
    recovered,
    recovering,
    released,
    restricted,
    withdrawn,
)
from tenure.yields import FlowScript, Procedure, flow, transact

T = TypeVar("T")


@flow
def rotate_tenant(ledger: Ledger | None, act: UUID, tenant: str, actor: str, reason: str) -> FlowScript[Tenant]:
    """See `procedures.tenants.rotate`."""
    epoch, store = yield from transact(tenants.read_epoch(tenant))
    book = yield from _book(ledger, store)
    if ledger is None or book is None:
        return (yield from transact(tenants.rotate(act, tenant, None, actor, reason)))
    after = max(epoch, book.reach(tenant)) + 1
    pending = Pending(str(act), "rotated", tenant, after, actor, reason)
    return (yield from _both(ledger, pending, lambda: tenants.rotate(act, tenant, after, actor, reason)))


@flow
def freeze_tenant(ledger: Ledger | None, act: UUID, tenant: str, actor: str, reason: str) -> FlowScript[Tenant]:
    """See `procedures.tenants.freeze`."""
    epoch, store = yield from transact(tenants.read_epoch(tenant))
    book = yield from _book(ledger, store)
    if ledger is None or book is None:
        return (yield from transact(tenants.freeze(act, tenant, actor, reason)))
    pending = Pending(str(act), FROZEN, tenant, epoch, actor, reason)
    return (yield from _both(ledger, pending, lambda: tenants.freeze(act, tenant, actor, reason)))


@flow
def revoke_approval(
    ledger: Ledger | None, act: UUID, tenant: str, reference: str, actor: str, reason: str
) -> FlowScript[Approval]:
    """
    Take an approval back in the ledger and in the database; see `procedures.approvals.revoke_approval`.

    One that is revoked already is told to a ledger that does not know of it.
    """
    known, now, store = yield from transact(approvals.before_revocation(tenant, reference))
    book = yield from _book(ledger, store)
    if ledger is None or book is None:
        return (yield from transact(approvals.revoke_approval(tenant, reference, reason, actor)))
    if known.revoked_at is not None and (tenant, REVOKED, reference) in book.restrictions:
        return known
    detail = restriction(revoked(known, actor, reason, now))
    pending = Pending(str(act), REVOKED, tenant, 1, actor, reason, reference, detail)
    after = yield from _both(
        ledger,
        pending,
        lambda: approvals.revoke_approval(tenant, reference, reason, actor),
    )
    if restriction(after) != detail:
        # By the clock under the lock, and perhaps another person's, who was faster.
        yield from write_ledger(ledger, restricted(tenant, REVOKED, reference, restriction(after)))
    return after


def _book(ledger: Ledger | None, store: str | None) -> FlowScript[Book | None]:
    """Give what the ledger says; None where the database never adopted one: its first worker writes down what is so."""
    if store is None:
        return None
    if ledger is None:
        raise Invalid(
            "this database has an authority ledger, and it was not named here: an act that only the database knows "
            "would be lost with it. Name it: authority_ledger=, --authority-ledger or TENURE_AUTHORITY_LEDGER",
            code="LEDGER_REQUIRED",
        )
    book = yield from read_ledger(ledger)
    if book is None or book.store != store:
        raise Refused(
            f"the ledger at {ledger.where} is missing or belongs to another store, and an act that only the database "
            f"knows would be lost with it; name the right ledger with authority_ledger= or --authority-ledger, or see "
            f"`tenure doctor`",
            code="LEDGER_FOREIGN",
        )
    return book


def _both(ledger: Ledger, pending: Pending, change: Callable[[], Procedure[T]]) -> FlowScript[T]:
    yield from write_ledger(ledger, proposed(pending))
    try:
        after = yield from transact(change())
    except Unavailable:
        # Perhaps it is in the database: it stays pending, and is applied.
        raise
    except Exception:
        # Surely not in the database, whoever refused it; left pending it would be tried again at every tick.
        yield from write_ledger(ledger, withdrawn(pending.id))
        raise
    yield from write_ledger(ledger, confirmed(pending.id))
    return after


@flow
def thaw_tenant(ledger: Ledger | None, act: UUID, tenant: str, actor: str, reason: str) -> FlowScript[Tenant]:
    """See `procedures.tenants.thaw`."""
    _, store = yield from transact(tenants.read_epoch(tenant))
    book = yield from _book(ledger, store)
    after = yield from transact(tenants.thaw(act, tenant, actor, reason))
    if ledger is not None and book is not None:
        yield from write_ledger(ledger, released(tenant, FROZEN))
        # Somebody may have frozen it again before that was written, and said so to the ledger first.
        now = yield from transact(tenants.show_tenant(tenant))
        if now.frozen:
            yield from write_ledger(ledger, restricted(tenant, FROZEN))
    return after


@flow
def recover_database(
    ledger: Ledger,
    file: str | None,
    actor: str,
    reason: str,
    new_book: Callable[[str], Book],
) -> FlowScript[Recovered]:
    """
    Bring a frozen database back; see `procedures.authority.recover_database`.

    The ledger accepts the database's identity first, so that no worker that looks in between freezes it again; the
    database stays frozen until its own commit. A process that dies between that commit and the last write of the ledger
    leaves a database that is ahead of its ledger, which is no reason to freeze.

    A database that is not frozen, or not any more, is left as it is, and so is what the ledger says of it: the next
    look of a worker tells the ledger what somebody else's recovery could not.

    Args:
        new_book: Makes the first entry of a new ledger for an identity, where the old ledger is lost.
    """
    book = yield from read_ledger(ledger)
    facts = yield from transact(authority.read_facts(book, file))
    if facts.frozen is None:
        # Nothing is accepted for it: nobody said that this one is wrong, and perhaps it is not the one that was meant.
        known = yield from transact(tenants.list_tenants())
        epochs = {one.name: one.epoch for one in known}
        return Recovered(facts, epochs, 0, 0, facts.incarnation, facts.ticked_at, changed=False)
    if book is None:
        book = yield from begin_ledger(ledger, new_book(facts.identity))
    # What is replayed is what the ledger says by then: somebody may have forbidden something since it was read.
    book = yield from write_ledger(ledger, recovering(facts.identity))
    done = yield from transact(authority.recover_database(book, file, actor, reason))
    if done.changed:
        yield from write_ledger(ledger, recovered(done.facts.identity, done.incarnation, done.at, done.epochs))
    return done
