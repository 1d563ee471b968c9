"""
The explored machine: every step that can follow a state.

A state is four numbers: the job's book, two workers, the world. What a worker asks of the database depends on the book
and on that worker, what happens to it outside depends on it and on the world, and the steps of everybody else depend on
the book and on the world. So each is worked out once for each such pair and kept. A rule's decision is kept as well,
under everything that the rule is given: the book in normal form (which a record is made from), the command, the lease
that is presented. The store's clock is always NOW, because a book holds distances from it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from tenure.errors import TenureError
from tenure.lab import invariants, transactions
from tenure.lab.configuration import Configuration, Order
from tenure.lab.counters import tags_of
from tenure.lab.record import (
    ATTEMPTS,
    GENERATION,
    JOB_ID,
    NOW,
    PAST,
    QUESTION_TICKS,
    TICK,
    Book,
    Forms,
    Stored,
    symbols,
)
from tenure.lab.world import LOST, MAY_END, Note, Worker, World, worker_later, world_later
from tenure.rules.job import Change, Job
from tenure.rules.lease import Lease
from tenure.rules.outcome import (
    Absent,
    Accepted,
    Declined,
    FailedBeforeDispatch,
    NoAnswer,
    Rejected,
    Succeeded,
    Unknown,
)

T = TypeVar("T", bound=Hashable)

JOURNAL_MAX = 2


class Interned(Generic[T]):
    """Values by number, numbers by value."""

    def __init__(self) -> None:
        self.numbers: dict[T, int] = {}
        self.values: list[T] = []

    def __call__(self, value: T) -> int:
        """The number of a value."""
        number = self.numbers.get(value)
        if number is None:
            number = self.numbers[value] = len(self.values)
            self.values.append(value)
        return number


class Shift(NamedTuple):
    """What a commit changes in everybody's names for things: attempts, distances of generations, ownership."""

    attempts: tuple[int, int, int, int]
    rise: int
    disowned: bool
    restored: bool = False


SAME = Shift((0, 1, 2, 3), 0, disowned=False)
RESTORED = Shift((PAST, PAST, PAST, PAST), 1, disowned=True, restored=True)


class Decision(NamedTuple):
    """
    What one transaction decided.

    Attributes:
        refused: Name and reason of the error, None where it committed.
        late: An error that followed the commit.
        idle: Nothing was there to do.
        asked: The key's number and the attempt that a sweep came to ask about, under the names after the commit.
    """

    book: int
    refused: str | None = None
    late: str | None = None
    idle: bool = False
    shift: int = 0
    swapped: bool = False
    send: bool = False
    asked: tuple[int, int] | None = None
    tags: int = 0
    changes: tuple[Change, ...] = ()


class Ripple(NamedTuple):
    """
    What a worker's commit changes in the world, whatever the world is.

    Attributes:
        note: Added to a journal, where there is room.
        published: A row of the caller's is committed.
        outage: The database is away: one of the outages is used up.
    """

    note: Note | None = None
    published: bool = False
    outage: bool = False


NOTHING = Ripple()


class Edge(NamedTuple):
    """
    One step from a state.

    Attributes:
        action: What happens, for people.
        op: The transaction, its caller and its arguments; None for what happens outside the database.
        book: The book after it; -1 where it stays.
        worker: The acting worker after it; -1 where none acts.
        world: The world after it, under the names from after the commit; -1 where only a ripple changes it.
        fault: A step that a healthy world does not take.
        pair: claim or take, where ownership of both workers has to be compared.
    """

    action: str
    op: tuple[str, tuple[int, int, int] | None, tuple[Any, ...]] | None
    book: int
    worker: int
    world: int
    ripple: int
    shift: int
    swapped: bool
    broken: tuple[tuple[str, str], ...]
    fault: bool
    pair: str
    note: str


Who = tuple[int, int, int]


def evidence(kind: str, receipt: int | None) -> Any:
    """Evidence by its short name."""
    match kind:
        case "accepted":
            return Accepted(receipt)
        case "declined":
            return Declined("refused")
        case "absent":
            return Absent()
        case "not_sent":
            return FailedBeforeDispatch("never left")
        case _:
            return NoAnswer("no answer")


def outcome(kind: str, receipt: int | None) -> Any:
    """An outcome by its short name."""
    match kind:
        case "ok":
            return Succeeded(receipt)
        case "before":
            return FailedBeforeDispatch("not now")
        case "rejected":
            return Rejected("refused")
        case _:
            return Unknown("no reply")


class Machine:
    """The tables that states are made of, and the decisions of rules about them."""

    def __init__(self, configuration: Configuration, order: Order) -> None:
        self.configuration = configuration
        self.order = order
        self.forms = Forms(configuration, order.skew)
        self.books: Interned[Book] = Interned()
        self.workers: Interned[Worker] = Interned()
        self.worlds: Interned[World] = Interned()
        self.shifts: Interned[Shift] = Interned()
        self.shifts(SAME)
        self.ripples: Interned[Ripple] = Interned()
        self.ripples(NOTHING)
        self.jobs: list[Job] = []
        self.broken_books: dict[int, str] = {}
        # What a book claims and a world refutes, as bits: a state is false where both have one in common.
        self.claims: list[int] = []
        self.refutes: list[int] = []
        self.rule_calls = 0
        self._decisions: dict[Any, Decision] = {}
        self._checked: dict[Any, tuple[tuple[str, str], ...]] = {}
        self._later: dict[int, int] = {}
        self._shifted: dict[tuple[int, int], int] = {}
        self._worker_later: dict[int, int] = {}
        self._world_later: dict[int, int] = {}
        self._world_after: dict[tuple[int, int, int], int] = {}

    def first(self) -> int:
        """Number of the first book."""
        return self.book(self.forms.form(self.forms.template, (), NOW))

    def book(self, value: Book) -> int:
        """Number of a book; a new one is checked once."""
        number = self.books(value)
        if number == len(self.jobs):
            job = self.forms.job(value)
            self.jobs.append(job)
            self.claims.append(claims_of(job))
            said = invariants.live_or_claimable(job, NOW)
            if said is not None:
                self.broken_books[number] = said
        return number

    def world(self, value: World) -> int:
        """Number of a world."""
        number = self.worlds(value)
        if number == len(self.refutes):
            self.refutes.append(refuted_by(value))
        return number

    def later(self, book: int) -> int:
        """The book one tick later."""
        known = self._later.get(book)
        if known is None:
            known = self._later[book] = self.book(self.forms.later(self.books.values[book]))
        return known

    def worker_later(self, worker: int) -> int:
        """The worker one tick later."""
        known = self._worker_later.get(worker)
        if known is None:
            known = self._worker_later[worker] = self.workers(worker_later(self.workers.values[worker]))
        return known

    def world_later(self, world: int) -> int:
        """The world one tick later."""
        known = self._world_later.get(world)
        if known is None:
            after = world_later(self.worlds.values[world], self.configuration, QUESTION_TICKS)
            known = self._world_later[world] = self.world(after)
        return known

    def world_after(self, world: int, ripple: int, shift: int) -> int:
        """The world after somebody's commit; -1 where this cannot happen in this world."""
        known = self._world_after.get((world, ripple, shift))
        if known is None:
            after = affected(self.worlds.values[world], self.ripples.values[ripple])
            known = -1 if after is None else self.world(renamed_world(after, self.shifts.values[shift]))
            self._world_after[world, ripple, shift] = known
        return known

    def shifted(self, worker: int, shift: int) -> int:
        """A worker after somebody's commit: it knows what it knew, under the new names."""
        known = self._shifted.get((worker, shift))
        if known is None:
            change = self.shifts.values[shift]
            old = self.workers.values[worker]
            new = renamed(old, change)
            if change.disowned:
                new = new._replace(own=0)
            known = self._shifted[worker, shift] = self.workers(new)
        return known

    def decide(self, book: int, name: str, who: Who | None, arguments: tuple[Any, ...]) -> Decision:
        """What a transaction decides about a book; asked once for each combination."""
        key = (book, name, who, arguments)
        known = self._decisions.get(key)
        if known is None:
            known = self._decisions[key] = self._decide(book, name, who, arguments)
        return known

    def checked(
        self, book: int, name: str, who: Who | None, arguments: tuple[Any, ...], own: int | None
    ) -> tuple[tuple[str, str], ...]:
        """What a decision breaks, if the asking worker owned its lease like this."""
        key = (book, name, who, arguments, own and 1)
        known = self._checked.get(key)
        if known is None:
            known = self._checked[key] = self._check(book, name, self.decide(book, name, who, arguments), own)
        return known

    def _check(self, book: int, name: str, decision: Decision, own: int | None) -> tuple[tuple[str, str], ...]:
        said = decision.refused or decision.late
        steps = steps_of(name, self.jobs[book], decision.changes, refused=said, own=own)
        if not decision.changes:
            steps = iter((invariants.Step(name, self.jobs[book], None, said, own),))
        return tuple(found for step in steps for found in invariants.broken(step))

    def locked(self, job: Job, stored: Stored, name: str, who: Who | None) -> transactions.Locked:
        """What a transaction sees after its lock."""
        late = name != "claim" and who is not None and self.order.skew
        lease = None
        if who is not None:
            slot, attempt, behind = who
            duration = self.configuration.lease * TICK
            worker = self.configuration.workers[slot]
            lease = Lease(JOB_ID, worker, ATTEMPTS[attempt], job.generation - behind, NOW + duration, duration)
        return transactions.Locked(
            job=job,
            stored=stored,
            now=NOW - self.order.skew * TICK if late else NOW,
            lease=lease,
            worker=lease.worker_id if lease else "",
            terms=self.forms.terms,
            timeout=self.configuration.timeout * TICK,
            start=self.configuration.start,
            patient=self.configuration.patient,
        )

    def _decide(self, book: int, name: str, who: Who | None, arguments: tuple[Any, ...]) -> Decision:
        self.rule_calls += 1
        job = self.jobs[book]
        stored = self.forms.stored(self.books.values[book])
        seen = self.locked(job, stored, name, who)
        try:
            given = realised(self.forms, self.order, name, arguments, ATTEMPTS.__getitem__, NOW)
            changes = transactions.TRANSACTIONS[name](seen, *given)
        except TenureError as refused:
            return Decision(book, refused=said_by(refused))
        except AssertionError as fault:
            return Decision(book, refused=f"AssertionError: {fault}")
        made = tuple(change for change in changes if isinstance(change, Change))
        symbol = symbols(made[-1].job if made else job)
        question = next((c.effect for c in changes if not isinstance(c, Change)), None)
        asked = None
        if question is not None:
            asked = (self.forms.numbers[question.operation_key], symbol(question.attempt_id))
        if not made:
            return Decision(book, idle=asked is None, asked=asked)
        after = made[-1].job
        form = self.forms.form(after, transactions.kept(stored, made), NOW)
        swapped = form.lease is not None and form.lease.holder == 1
        if swapped and form.lease is not None:
            form = form._replace(lease=form.lease._replace(holder=0))
        attempts = tuple(symbol(attempt) for attempt in ATTEMPTS)
        shift = Shift(attempts, after.generation - GENERATION, name == "revoke")  # type: ignore[arg-type]
        answer = transactions.answers(made)
        return Decision(
            self.book(form),
            late=None if made[-1].error is None else type(made[-1].error).__name__,
            shift=self.shifts(shift),
            swapped=swapped,
            send=bool(getattr(answer, "send", False)),
            asked=asked,
            tags=tags_of(job, made),
            changes=made,
        )


def realised(
    forms: Forms, order: Order, name: str, arguments: tuple[Any, ...], attempt: Callable[[int], UUID], now: datetime
) -> tuple[Any, ...]:
    """
    Arguments of a transaction, from the short form in which steps record them.

    Args:
        attempt: Gives the id that a symbol stands for.
    """
    keys = forms.keys
    match name, arguments:
        case "finish", (key, kind, receipt):
            return (keys[key], outcome(kind, receipt))
        case "submit", (key, symbol, kind, receipt):
            return (keys[key], attempt(symbol), evidence(kind, receipt))
        case "state", (key, kind, receipt):
            return (None if key is None else keys[key], evidence(kind, receipt))
        case "hear", (kind, receipt, age):
            return (evidence(kind, receipt), now - age * TICK)
        case "answer", (key, symbol, kind, receipt, age):
            asked_at = now - age * TICK if order.ask_time else now
            return (keys[key], attempt(symbol), evidence(kind, receipt), asked_at)
        case _:
            return arguments


def said_by(refused: TenureError) -> str:
    """An error's name and its reason."""
    reason = getattr(refused, "reason", None)
    return f"{type(refused).__name__}: {reason}" if reason else type(refused).__name__


def renamed(worker: Worker, shift: Shift) -> Worker:
    """A worker's lease under the names after a commit."""
    attempt, behind = shift.attempts[worker.attempt], min(worker.behind + shift.rise, 1)
    if attempt == PAST and behind == 1 and worker.at in MAY_END:
        return Worker(LOST, PAST, 1, worker.own)
    return worker._replace(attempt=attempt, behind=behind)


def renamed_world(world: World, shift: Shift) -> World:
    """A world under the names after a commit: journals and answers name attempts."""
    if world.answer is not None:
        world = world._replace(answer=world.answer._replace(attempt=shift.attempts[world.answer.attempt]))
    if not world.journal:
        return world
    journal = tuple(Note(n.key, shift.attempts[n.attempt], n.kind, n.receipt) for n in world.journal)
    return world._replace(journal=journal)


def affected(world: World, ripple: Ripple) -> World | None:
    """A world after a worker's commit; None where it cannot happen in it."""
    if ripple.outage:
        if not world.outages:
            return None
        world = world._replace(outages=world.outages - 1)
    if ripple.note is not None and len(world.journal) < JOURNAL_MAX:
        world = world._replace(journal=(*world.journal, ripple.note))
    return world._replace(published=True) if ripple.published else world


def claims_of(job: Job) -> int:
    """Which false things a book would say in a world in which the provider has acted, as bits."""
    acted = invariants.Step("", job, acted_in_time=True)
    found = {name for name, _ in invariants.broken(acted)}
    return sum(bit for name, bit in FALSE.items() if name in found) | FALSE["I6"]


def refuted_by(world: World) -> int:
    """Which of those a world refutes."""
    acted = FALSE["absence"] | FALSE["refusal"] if world.acted_in_time else 0
    return acted | (FALSE["I6"] if world.acts > 1 else 0)


FALSE = {"I6": 1, "absence": 2, "refusal": 4}


def steps_of(action: str, before: Job, changes: tuple[Change, ...], **seen: Any) -> Iterator[invariants.Step]:
    """The steps of one commit, one for each change in it."""
    for change in changes:
        yield invariants.Step(action, before, change, **seen)
        before = change.job
