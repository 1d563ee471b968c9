"""Follow a path of the explorer with whole records: real times, generations that only rise, ids that never repeat."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any
from uuid import UUID

from tenure.errors import TenureError
from tenure.lab import transactions
from tenure.lab.machine import Edge, realised, said_by
from tenure.lab.record import CURRENT, NOW, OPENED, TICK, Book
from tenure.lab.search import Space
from tenure.rules.authority import Authority
from tenure.rules.job import Change
from tenure.rules.lease import Lease

_STRANGER = UUID(int=2**64)


class Unreduced:
    """
    The record that the normal form is a shadow of.

    Attributes:
        leases: What the worker on the left and the one on the right present.
        names: Their names.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.job = space.machine.forms.template
        self.stored: transactions.Stored = ()
        self.now = NOW
        self.leases: list[Lease | None] = [None, None]
        self.names = list(space.configuration.workers)
        self._made = 0

    def copy(self) -> Unreduced:
        """Another one that has gone the same way so far."""
        other = copy(self)
        other.leases, other.names = list(self.leases), list(self.names)
        return other

    def follow(self, before: int, slot: int, edge: Edge | None, after: int) -> str | None:
        """Take one step; gives the name of the refusal, if it was refused."""
        refused = None
        if edge is None:
            self.now += TICK
        elif edge.op is not None:
            refused = self._transact(slot, *edge.op)
        elif edge.book >= 0:
            form = self.space.machine.books.values[edge.book]
            authority = Authority(2 if form.superseded else 1, form.tenant_frozen, form.database_frozen)
            self.job = replace(self.job, authority=authority)
        if self.space.turned(before, slot, edge, after):
            self.leases.reverse()
            self.names.reverse()
        return refused

    def form(self) -> Book:
        """Its normal form."""
        form = self.space.machine.forms.form(self.job, self.stored, self.now)
        if form.lease is None:
            return form
        return form._replace(lease=form.lease._replace(holder=0))

    def _id(self) -> UUID:
        self._made += 1
        return UUID(int=self._made)

    def _attempt(self, symbol: int) -> UUID:
        lease = self.job.lease
        if symbol == CURRENT:
            assert lease is not None
            return lease.attempt_id
        if symbol == OPENED:
            held = None if lease is None else lease.attempt_id
            return next(e.attempt_id for e in self.job.effects if e.is_open and e.attempt_id != held)
        return _STRANGER

    def _transact(self, slot: int, name: str, who: Any, arguments: tuple[Any, ...]) -> str | None:
        machine = self.space.machine
        seen = replace(
            machine.locked(self.job, self.stored, name, who),
            now=self.now,
            attempt=self._id(),
            lease=self.leases[slot] if who is not None else None,
            worker=self.names[slot] if who is not None else "",
        )
        given = realised(machine.forms, machine.order, name, arguments, self._attempt, self.now)
        try:
            changes = transactions.TRANSACTIONS[name](seen, *given)
        except TenureError as error:
            return said_by(error)
        made = [change for change in changes if isinstance(change, Change)]
        kept = transactions.kept(self.stored, changes)
        self.stored = tuple(replace(e, id=self._id()) if e.id == transactions.NEW_EVIDENCE else e for e in kept)
        if made:
            self.job = made[-1].job
        if name == "claim":
            self.leases[slot] = self.job.lease
        return None
