"""
What everybody but the workers may do next: the clock, the recovery pass, the sweeper, the network, and people.

People tell the truth: a statement is made from the provider's ledger, and "it did not happen" only when no request can
still arrive.
"""

from __future__ import annotations

from typing import Any

from tenure.lab.counters import BIT
from tenure.lab.machine import RESTORED, Edge, Machine, renamed_world
from tenure.lab.record import EFFECT_NAME
from tenure.lab.world import FORGOTTEN, LATE, Answer, World, accepted, looked_up
from tenure.rules.effect import EffectState
from tenure.rules.status import TERMINAL, Status


class Others:
    """Collects the steps of everybody but the workers in one situation."""

    def __init__(self, machine: Machine, book: int, world: int, *, locked: bool, outstanding: bool) -> None:
        self.machine = machine
        self.configuration = machine.configuration
        self.book = book
        self.job = machine.jobs[book]
        self.world: World = machine.worlds.values[world]
        self.outstanding = outstanding or bool(self.world.flights)
        self.edges: list[Edge] = []
        self.mask = 0
        if not locked:
            self._recover()
            self._sweep()
            self._hand_in()
            self._people()
            self._authority()
        self._network()

    def commit(
        self,
        action: str,
        name: str,
        *arguments: Any,
        world: World | None = None,
        fault: bool = False,
        tags: int = 0,
        pair: str = "",
        note: str = "",
        answer: Answer | None = None,
    ) -> None:
        """Ask the database for something; what is refused or has nothing to do is no step."""
        machine = self.machine
        decision = machine.decide(self.book, name, None, arguments)
        self.mask |= decision.tags
        if decision.refused is not None:
            broken = machine.checked(self.book, name, None, arguments, None)
            if broken:
                self.go(action, self.world, broken=broken)
            if name == "retry" and decision.refused.startswith("Uncertain"):
                self.mask |= BIT["retry refused as uncertain"]
            return
        shift = machine.shifts.values[decision.shift]
        after = renamed_world(world or self.world, shift)
        if answer is not None:
            after = after._replace(answer=answer)
        if decision.idle and after == self.world:
            return
        self.mask |= tags
        self.edges.append(
            Edge(
                action=action,
                op=(name, None, arguments),
                book=decision.book,
                worker=-1,
                world=machine.world(after),
                ripple=0,
                shift=decision.shift,
                swapped=decision.swapped,
                broken=machine.checked(self.book, name, None, arguments, None) if decision.changes else (),
                fault=fault,
                pair=pair,
                note=note,
            )
        )

    def go(
        self,
        action: str,
        world: World,
        *,
        book: int | None = None,
        fault: bool = False,
        shift: int = 0,
        broken: tuple[tuple[str, str], ...] = (),
        tags: int = 0,
        note: str = "",
    ) -> None:
        """Let something happen that asks no rule."""
        self.mask |= tags
        self.edges.append(
            Edge(
                action=action,
                op=None,
                book=-1 if book is None else book,
                worker=-1,
                world=self.machine.world(world),
                ripple=0,
                shift=shift,
                swapped=False,
                broken=broken,
                fault=fault,
                pair="",
                note=note,
            )
        )

    def _recover(self) -> None:
        if self.job.lease is not None:
            self.commit("the recovery pass settles the lease", "recover", pair="take")

    # --- the sweeper --------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        world = self.world
        if world.answer is not None:
            kind = world.answer.kind
            counted = self.machine.decide(self.book, "answer", None, world.answer).tags & BIT["absence counted"]
            ignored = kind == "absent" and not counted
            self.commit(
                f"the sweeper applies the answer: {kind}",
                "answer",
                *world.answer,
                world=world._replace(answer=None),
                tags=BIT["absence not counted"] if ignored else 0,
            )
        # While one sweeper waits for its answer another one may do all that needs no provider.
        decision = self.machine.decide(self.book, "sweep", None, ())
        if decision.asked is None or world.answer is not None:
            if decision.asked is not None:
                return
            self.commit("the sweeper settles what needs no provider", "sweep", pair="take")
            return
        for kind, receipt, fault in looked_up(self.world, self.configuration, decision.asked[0]):
            self.commit(
                "the sweeper asks the provider",
                "sweep",
                world=world,
                answer=Answer(*decision.asked, kind, receipt, 0),
                fault=fault,
                pair="take",
                note=f"the provider's answer is on its way: {kind}",
            )

    def _hand_in(self) -> None:
        for place, note in enumerate(self.world.journal):
            rest = self.world.journal[:place] + self.world.journal[place + 1 :]
            self.commit(
                "a receipt from a journal is handed in",
                "submit",
                note.key,
                note.attempt,
                note.kind,
                note.receipt,
                world=self.world._replace(journal=rest),
                note=note.kind,
            )

    # --- people -------------------------------------------------------------------------------------------------------

    def _people(self) -> None:
        world, status = self.world, self.job.status
        if world.cancels:
            after = world._replace(cancels=world.cancels - 1)
            self.commit("somebody cancels the job", "cancel", world=after, fault=True)
        if world.revokes:
            after = world._replace(revokes=world.revokes - 1)
            self.commit("an operator revokes the job", "revoke", world=after, fault=True)
        if status not in TERMINAL:
            return
        if world.resumes:
            after = world._replace(resumes=world.resumes - 1)
            self.commit("an operator lets sweeps look again", "resume", world=after, fault=True)
        if world.retries:
            after = world._replace(retries=world.retries - 1)
            tags = BIT["retried by a person"]
            self.commit("an operator retries the job", "retry", (), world=after, fault=True, tags=tags)
            if any(effect.state is EffectState.REJECTED for effect in self.job.effects):
                tags |= BIT["rejected effect reopened"]
                self.commit(
                    "an operator retries the job and reopens the rejected effect",
                    "retry",
                    (EFFECT_NAME,),
                    world=after,
                    fault=True,
                    tags=tags,
                )
        if world.statements:
            after = world._replace(statements=world.statements - 1)
            for key, kind, receipt in self._truth():
                self.commit(f"an operator states: {kind}", "state", key, kind, receipt, world=after, fault=True)

    def _truth(self) -> list[tuple[int | None, str, int | None]]:
        """What a person who has looked at the provider may truthfully state, by key or without one."""
        found: list[tuple[int | None, str, int | None]] = []
        keys: list[int | None] = [self.machine.forms.numbers[effect.operation_key] for effect in self.job.effects]
        for key in keys or [None]:
            entry = None if key is None else self.world.entry(key)
            if entry is not None:
                found.append((key, "accepted", entry.receipt))
            elif not self.outstanding and key is not None and key in self.world.refused:
                found.append((key, "declined", None))
            elif not self.outstanding:
                found.append((key, "absent", None))
        return found

    def _authority(self) -> None:
        """Rotations and freezes are rows of another table: no rule of the job is asked."""
        world, book = self.world, self.machine.books.values[self.book]
        machine = self.machine
        if world.rotations and not book.superseded:
            after = world._replace(rotations=world.rotations - 1)
            held = machine.book(book._replace(superseded=True))
            self.go("an operator rotates the tenant's epoch", after, book=held, fault=True)
        if world.freezes and not (book.tenant_frozen or book.database_frozen):
            after = world._replace(freezes=world.freezes - 1)
            frozen = machine.book(book._replace(tenant_frozen=True))
            self.go("an operator freezes the tenant", after, book=frozen, fault=True)
            frozen = machine.book(book._replace(database_frozen=True))
            self.go("the database is frozen", after, book=frozen, fault=True)
        if world.restores:
            first = machine.books.values[machine.first()]
            before = machine.book(first._replace(database_frozen=machine.order.restore_freezes))
            after = world._replace(restores=world.restores - 1, journal=(), answer=None)
            shift = machine.shifts(RESTORED)
            self.go("an operator restores the database from a backup", after, book=before, shift=shift, fault=True)
        if self.configuration.recovers and book.database_frozen:
            marked = 0 if machine.order.recovery_marks else None
            thawed = machine.book(book._replace(database_frozen=False, marked=marked))
            self.go("an operator recovers the database", world, book=thawed, fault=True)
        if book.tenant_frozen:
            thawed = machine.book(book._replace(tenant_frozen=False))
            self.go("an operator thaws the tenant", world, book=thawed, fault=True)

    # --- the network and the provider ---------------------------------------------------------------------------------

    def _network(self) -> None:
        world = self.world
        for key, left in dict.fromkeys(world.flights):
            flights = list(world.flights)
            flights.remove((key, left))
            rest = world._replace(flights=tuple(flights))
            if key in world.refused:
                self.go("a request arrives whose sender is gone", rest, note="the provider refuses it again")
                continue
            after, receipt, known = accepted(rest, self.configuration, key, left)
            self.go(
                "a request arrives whose sender is gone",
                after,
                tags=BIT["duplicate prevented by key"] if known else 0,
                note="the provider knows the key" if known else f"the provider acts: {receipt}",
            )
            if left == LATE:
                self.go("a request is lost in the network", rest, fault=True)
        if self.outstanding or self.configuration.retention is None:
            return
        for entry in world.ledger:
            if entry.age == self.configuration.retention:
                ledger = tuple(e._replace(age=FORGOTTEN) if e == entry else e for e in world.ledger)
                after = world._replace(ledger=ledger)
                self.go("the provider forgets the key", after, tags=BIT["key forgotten by the provider"])


def at_rest(machine: Machine, book: int) -> bool:
    """Say whether nothing more has to happen: the job is over, or held, or a person has been asked."""
    job = machine.jobs[book]
    if job.authority.frozen:
        return True
    match job.status:
        case Status.QUEUED:
            return not job.authority.admits(job.epoch)
        case Status.CLAIMED | Status.RUNNING:
            return False
        case Status.INDETERMINATE | Status.TIMED_OUT:
            return job.escalated_at is not None
        case Status.CANCELLED | Status.HALT_UNSAFE:
            return job.escalated_at is not None or not any(effect.is_open for effect in job.effects)
        case _:
            return True
