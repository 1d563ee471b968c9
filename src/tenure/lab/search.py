"""
Breadth first through every state, then backwards from rest.

The first pass visits each state once, shortest paths first, so a broken promise is reported by a shortest trace. The
second pass needs the graph of all steps that are not faults: it walks backwards from the states in which nothing more
has to happen. A state it does not reach is one from which a job hangs for ever although nothing fails any more.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from tenure.lab import invariants
from tenure.lab.configuration import Configuration, Order
from tenure.lab.counters import BESIDE, BIT, COUNTERS
from tenure.lab.handler import Away, Turn
from tenure.lab.machine import Edge, Machine
from tenure.lab.people import Others, at_rest
from tenure.lab.world import PUBLISHING, UNSENT_OR_UNDERWAY, first_world, idle

_WORKER_BITS, _WORLD_BITS = 14, 22
_WORKER, _WORLD = (1 << _WORKER_BITS) - 1, (1 << _WORLD_BITS) - 1
_EVERY = 1_000

Progress = Callable[[int, int], None]


class Broken(NamedTuple):
    """A broken promise, the states before and after the step that broke it, and that step."""

    name: str
    said: str
    before: int
    state: int
    edge: Edge | None
    slot: int


class Space:
    """The states of one configuration, as numbers."""

    def __init__(self, configuration: Configuration, order: Order) -> None:
        self.configuration = configuration
        self.machine = Machine(configuration, order)
        self.locks = order.fence_inside
        self._turns: dict[int, tuple[tuple[Edge, ...], int]] = {}
        self._away: dict[int, tuple[tuple[Edge, ...], int]] = {}
        self._others: dict[tuple[int, int, bool, bool], tuple[tuple[Edge, ...], int]] = {}

    def first(self) -> int:
        """The state in which the job has been created and nothing else has happened."""
        machine = self.machine
        worker = machine.workers(idle())
        return self.pack(machine.first(), worker, worker, machine.world(first_world(self.configuration)))

    def pack(self, book: int, left: int, right: int, world: int) -> int:
        """One number for a state, with the holder of the lease on the left."""
        form = self.machine.books.values[book]
        if (form.lease is None or self.configuration.one_process) and left > right:
            left, right = right, left
        return (((book << _WORKER_BITS | left) << _WORKER_BITS) | right) << _WORLD_BITS | world

    @staticmethod
    def unpack(state: int) -> tuple[int, int, int, int]:
        """The book, the two workers and the world of a state."""
        world = state & _WORLD
        state >>= _WORLD_BITS
        return state >> (2 * _WORKER_BITS), state >> _WORKER_BITS & _WORKER, state & _WORKER, world

    def turn(self, book: int, worker: int, slot: int) -> tuple[tuple[Edge, ...], int]:
        """The steps of one worker in the database, worked out once."""
        key = (book << _WORKER_BITS | worker) << 1 | slot
        known = self._turns.get(key)
        if known is None:
            turn = Turn(self.machine, book, worker, slot)
            known = self._turns[key] = (tuple(turn.edges), turn.mask)
        return known

    def away(self, worker: int, world: int) -> tuple[tuple[Edge, ...], int]:
        """The steps of one worker outside the database, worked out once."""
        key = worker << _WORLD_BITS | world
        known = self._away.get(key)
        if known is None:
            away = Away(self.machine, worker, world)
            known = self._away[key] = (tuple(away.edges), away.mask)
        return known

    def others(self, book: int, world: int, *, locked: bool, outstanding: bool) -> tuple[tuple[Edge, ...], int]:
        """The steps of everybody else, worked out once."""
        key = (book, world, locked, outstanding)
        known = self._others.get(key)
        if known is None:
            others = Others(self.machine, book, world, locked=locked, outstanding=outstanding)
            known = self._others[key] = (tuple(others.edges), others.mask)
        return known

    def steps(self, state: int) -> tuple[list[tuple[int, Edge | None, int]], int]:
        """
        Every step from a state.

        Returns:
            For each step the state after it, the edge (None for a tick) and who acts (2: nobody's worker); and which
            counters they move.
        """
        machine = self.machine
        values = machine.workers.values
        book, left, right, world = self.unpack(state)
        workers = (left, right)
        at = (values[left].at, values[right].at)
        found: list[tuple[int, Edge | None, int]] = []
        mask = 0
        for slot in (0, 1):
            worker = workers[slot]
            if not (self.locks and at[1 - slot] in PUBLISHING):
                edges, tags = self.turn(book, worker, slot)
                mask |= tags
                for edge in edges:
                    after = machine.world_after(world, edge.ripple, edge.shift) if edge.ripple or edge.shift else world
                    if after >= 0:
                        found.append((self.after(edge, edge.book, workers, after, slot, book), edge, slot))
            edges, tags = self.away(worker, world)
            mask |= tags
            found += [(self.after(edge, book, workers, edge.world, slot, book), edge, slot) for edge in edges]
        locked = self.locks and (at[0] in PUBLISHING or at[1] in PUBLISHING)
        outstanding = at[0] in UNSENT_OR_UNDERWAY or at[1] in UNSENT_OR_UNDERWAY
        edges, tags = self.others(book, world, locked=locked, outstanding=outstanding)
        mask |= tags
        found += [(self.after(edge, edge.book, workers, edge.world, 2, book), edge, 2) for edge in edges]
        tick = self.pack(
            machine.later(book), machine.worker_later(left), machine.worker_later(right), machine.world_later(world)
        )
        found.append((tick, None, 2))
        return found, mask

    def after(self, edge: Edge, book: int, workers: tuple[int, int], world: int, slot: int, before: int) -> int:
        """The state after a step."""
        left, right = workers
        if edge.shift:
            left, right = self.machine.shifted(left, edge.shift), self.machine.shifted(right, edge.shift)
        if slot == 0:
            left = edge.worker
        elif slot == 1:
            right = edge.worker
        if edge.swapped:
            left, right = right, left
        return self.pack(before if book < 0 else book, left, right, world)

    def turned(self, before: int, slot: int, edge: Edge | None, after: int) -> bool:
        """Say whether the two workers have changed sides with a step: a state only knows left and right."""
        machine = self.machine
        _, left, right, _ = self.unpack(before)
        if edge is None:
            sides = [machine.worker_later(left), machine.worker_later(right)]
        else:
            sides = [machine.shifted(left, edge.shift), machine.shifted(right, edge.shift)]
            if slot < len(sides):
                sides[slot] = edge.worker
            if edge.swapped:
                sides.reverse()
        _, now_left, now_right, _ = self.unpack(after)
        moved = [now_left, now_right] != sides
        return moved != (edge is not None and edge.swapped)


class Search:
    """One exploration."""

    def __init__(
        self, space: Space, names: frozenset[str], progress: Progress | None = None, limit: int | None = None
    ) -> None:
        self.space = space
        self.names = names
        self.progress = progress
        self.limit = limit
        first = space.first()
        self.numbers: dict[int, int] = {first: 0}
        self.states: list[int] = [first]
        self.parents = array("l", [-1])
        self.transitions = 0
        self.depth = 0
        self.counters: Counter[int] = Counter()
        self.complete = False
        # The steps that are not faults, in order of the state they leave: targets, and where each state's begin.
        self._targets = array("L")
        self._begins = array("L")

    def run(self) -> Broken | None:  # noqa: C901 - the one loop that everything runs through
        """Visit states until all are known, a promise is broken, or the limit is reached."""
        space, states, numbers = self.space, self.states, self.numbers
        targets, parents = self._targets, self.parents
        claims, refutes, broken_books = space.machine.claims, space.machine.refutes, space.machine.broken_books
        book_bits = 2 * _WORKER_BITS + _WORLD_BITS
        here, layer_end = 0, 1
        while here < len(states):
            if here == layer_end:
                self.depth += 1
                layer_end = len(states)
            state = states[here]
            self._begins.append(len(targets))
            steps, mask = space.steps(state)
            self.transitions += len(steps)
            for after, edge, slot in steps:
                if edge is not None and (edge.broken or edge.pair):
                    found = self._check(state, after, edge, slot)
                    if found is not None:
                        return found
                number = numbers.get(after)
                if number is None:
                    number = numbers[after] = len(states)
                    states.append(after)
                    parents.append(here)
                    book = after >> book_bits
                    if book in broken_books or claims[book] & refutes[after & _WORLD]:
                        found = self._false(state, after, edge, slot)
                        if found is not None:
                            return found
                if edge is None or not edge.fault:
                    targets.append(number)
            self.counters[mask] += 1
            here += 1
            if self.progress is not None and here % _EVERY == 0:
                self.progress(here, len(states))
            if self.limit is not None and len(states) > self.limit:
                return None
        self._begins.append(len(targets))
        self.complete = True
        return self._hanging() if "rest" in self.names else None

    def _false(self, state: int, after: int, edge: Edge | None, slot: int) -> Broken | None:
        """What is wrong with a state as such."""
        machine = self.space.machine
        book, _, _, world = self.space.unpack(after)
        if book in machine.broken_books and "I1" in self.names:
            return Broken("I1", machine.broken_books[book], state, after, edge, slot)
        facts = machine.worlds.values[world]
        step = invariants.Step("", machine.jobs[book], acts=facts.acts, acted_in_time=facts.acted_in_time)
        for name, said in invariants.broken(step):
            if name in self.names:
                return Broken(name, said, state, after, edge, slot)
        return None

    def _check(self, state: int, after: int, edge: Edge, slot: int) -> Broken | None:
        for name, said in edge.broken:
            if name in self.names:
                return Broken(name, said, state, after, edge, slot)
        if edge.pair and "I1" in self.names:
            space = self.space
            _, left, right, _ = space.unpack(state)
            values = space.machine.workers.values
            owners = sum(1 for worker in (left, right) if values[worker].own)
            if edge.pair == "claim":
                said_or_none = invariants.one_live_lease(owners + 1)
            else:
                lease_before = space.machine.jobs[space.unpack(state)[0]].lease
                gone = lease_before is not None and space.machine.jobs[edge.book].lease is None
                said_or_none = "a live lease was taken away as if it had ended" if gone and owners else None
            if said_or_none is not None:
                return Broken("I1", said_or_none, state, after, edge, slot)
        return None

    def _hanging(self) -> Broken | None:
        """A state from which rest cannot be reached without a fault, or None."""
        count = len(self.states)
        begins, targets = self._begins, self._targets
        into = array("L", bytes(array("L").itemsize * (count + 1)))
        for target in targets:
            into[target] += 1
        total = 0
        for number in range(count + 1):
            total += into[number]
            into[number] = total
        sources = array("L", bytes(array("L").itemsize * len(targets)))
        for source in range(count):
            for place in range(begins[source], begins[source + 1]):
                target = targets[place]
                into[target] -= 1
                sources[into[target]] = source
        machine = self.space.machine
        resting = [at_rest(machine, book) for book in range(len(machine.jobs))]
        shift = 2 * _WORKER_BITS + _WORLD_BITS
        reached = bytearray(count)
        todo = [number for number, state in enumerate(self.states) if resting[state >> shift]]
        for number in todo:
            reached[number] = 1
        while todo:
            number = todo.pop()
            for place in range(into[number], into[number + 1] if number + 1 < count else len(sources)):
                source = sources[place]
                if not reached[source]:
                    reached[source] = 1
                    todo.append(source)
        stuck = reached.find(0)
        if stuck < 0:
            return None
        said = "from here the job never comes to rest, although nothing fails any more"
        return Broken("rest", said, self.states[stuck], self.states[stuck], None, 2)

    def path(self, state: int) -> list[int]:
        """The states of a shortest path to a known state."""
        number = self.numbers[state]
        found = []
        while number >= 0:
            found.append(self.states[number])
            number = self.parents[number]
        return found[::-1]

    def tally(self) -> dict[str, int]:
        """The counters by name: in how many states each could happen."""
        tally = dict.fromkeys((*COUNTERS, BESIDE), 0)
        beside = BIT["stale write refused"] | BIT["current write accepted"]
        for mask, count in self.counters.items():
            for name, bit in BIT.items():
                if mask & bit:
                    tally[name] += count
            if mask & beside == beside:
                tally[BESIDE] += count
        return tally
