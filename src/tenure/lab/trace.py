"""From a path of states to steps that people can read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tenure.lab.machine import Edge, Machine
from tenure.lab.search import Broken, Space
from tenure.lab.world import Worker, World
from tenure.rules.effect import MARK
from tenure.rules.job import Job

_SPEAKERS = {
    "an operator": "operator",
    "somebody": "operator",
    "the sweeper": "sweeper",
    "the recovery pass": "recovery",
    "the database": "database",
    "a receipt": "journal",
}


def edges_of(space: Space, path: Sequence[int], broken: Broken) -> list[tuple[int, Edge | None, int]]:
    """The steps along a path of states, and the step that broke a promise: who acts, the edge, the state after it."""
    found: list[tuple[int, Edge | None, int]] = []
    for before, after in pairwise(path):
        edge, slot = next((edge, slot) for state, edge, slot in space.steps(before)[0] if state == after)
        found.append((slot, edge, after))
    if broken.edge is not None:
        found.append((broken.slot, broken.edge, broken.state))
    return found


class Teller:
    """Names the workers along a path: a state only says left and right."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.names = ["A", "B"]
        self.generation = 0
        self.time = 0

    def tell(self, before: int, slot: int, edge: Edge | None, after: int) -> tuple[str, str, str]:
        """Who, what, and how things stand after it."""
        machine = self.space.machine
        if edge is None:
            self.time += 1
            self._keep_names(before, slot, edge, after)
            return "clock", "a tick passes", f"t={self.time}; {self._standing(after)}"
        shift = machine.shifts.values[edge.shift]
        self.generation = 0 if shift.restored else self.generation + shift.rise
        actor, action = self._actor(slot, edge)
        self._keep_names(before, slot, edge, after)
        note = f"{edge.note}; " if edge.note else ""
        return actor, action, f"{note}{self._standing(after)}"

    def _actor(self, slot: int, edge: Edge) -> tuple[str, str]:
        if slot < 2:
            return f"worker {self.names[slot]}", edge.action
        for start, actor in _SPEAKERS.items():
            if edge.action.startswith(start):
                return actor, edge.action
        return "provider", edge.action

    def _keep_names(self, before: int, slot: int, edge: Edge | None, after: int) -> None:
        if self.space.turned(before, slot, edge, after):
            self.names.reverse()

    def _standing(self, state: int) -> str:
        machine = self.space.machine
        book, _, _, world = self.space.unpack(state)
        return standing(machine, machine.jobs[book], machine.worlds.values[world], self.generation)


def standing(machine: Machine, job: Job, world: World, generation: int) -> str:
    """How a job stands, in one line."""
    said = [f"job {job.status}, generation {generation}"]
    said += [f"{'mark' if e.name == MARK else 'effect'} {e.state}" for e in job.effects]
    if machine.configuration.bare is False and {e.operation_key for e in job.effects} - {machine.forms.keys[0]}:
        said.append(f"key {job.effects[0].operation_key.rpartition(':')[2]}")
    if job.cancel_requested_at is not None and job.finished_at is None:
        said.append("cancellation pending")
    if job.escalated_at is not None:
        said.append("a person is asked")
    if world.acts:
        said.append(f"the provider has acted {'once' if world.acts == 1 else 'twice'}")
    return ", ".join(said)


__all__ = ["Teller", "Worker", "edges_of", "standing"]
