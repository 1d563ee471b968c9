"""
What is outside the job's record: the two workers, the provider and its ledger, the network, and the people.

These are the parts of a state that no database holds. All of them are plain tuples; times are ticks from now.
"""

from __future__ import annotations

from typing import NamedTuple

from tenure.lab.configuration import Configuration

# Where a worker's handler stands.
IDLE, HELD, BEGUN, SENT, WAITING, TOLD = "idle", "held", "begun", "sent", "waiting", "told"
KNOWN, FAILED, REFUSED, UNSURE = "known", "failed", "refused", "unsure"
# The intent of a suspect job is written and the provider is not asked yet; it was asked and the answer is not applied.
DOUBTING, HEARD = "doubting", "heard"
OPENED, WROTE, PUBLISHED = "opened", "wrote", "published"
# Somebody else has moved the job on; where its handler stood is nothing to the rules, so it may try anything.
LOST = "lost"

PUBLISHING = frozenset({OPENED, WROTE})
UNSENT_OR_UNDERWAY = frozenset({BEGUN, SENT})
MAY_END = frozenset({HELD, KNOWN, FAILED, REFUSED, UNSURE, PUBLISHED})

# Longer than any lease here, and without the lease no answer is applied.
DOUBT_TICKS = 4
LATE = -1  # left the worker after its deadline: nothing says when it arrives
FORGOTTEN = -1  # the provider has forgotten the key


class Worker(NamedTuple):
    """
    One worker: where it stands and what it believes.

    Attributes:
        attempt: The attempt of the lease that it presents, as a symbol.
        behind: How far the generation of that lease is behind the job's; 1 stands for more.
        own: For how many ticks it does own a lease: the explorer's account, which no rule made.
        key: Number of the operation key that it sends under.
        left: Until the call's deadline; once sent, until the request must have arrived or is lost; or LATE. While it
            asks about a lost intent: how long ago it wrote that intent.
        outcome: What the provider answered: ok, before, rejected, unknown; or what a look-up gave.
    """

    at: str
    attempt: int
    behind: int
    own: int
    key: int = 0
    left: int = 0
    outcome: str = ""
    receipt: int | None = None


class Entry(NamedTuple):
    """
    The provider's ledger about one key.

    Attributes:
        hidden: For how long a look-up may still miss it.
        age: How long ago the key was first used, or FORGOTTEN.
        in_time: The request was sent before its deadline.
    """

    key: int
    receipt: int
    hidden: int
    age: int
    in_time: bool


class Note(NamedTuple):
    """A receipt in a worker's journal, waiting for the database."""

    key: int
    attempt: int
    kind: str
    receipt: int | None


class Answer(NamedTuple):
    """What the provider told the sweeper about one intent, not yet applied; `age` counts from the question."""

    key: int
    attempt: int
    kind: str
    receipt: int | None
    age: int


class World(NamedTuple):
    """
    All that is neither in the database nor in a worker.

    Attributes:
        acts: How often the provider has acted for this operation.
        refused: Keys under which it has refused.
        flights: Requests under way whose sender is gone: key, and until when they arrive.
        published: The caller's table holds a row.
    """

    crashes: int
    outages: int
    cancels: int
    revokes: int
    statements: int
    retries: int
    resumes: int
    rotations: int
    freezes: int
    restores: int
    ledger: tuple[Entry, ...] = ()
    acts: int = 0
    refused: tuple[int, ...] = ()
    flights: tuple[tuple[int, int], ...] = ()
    journal: tuple[Note, ...] = ()
    answer: Answer | None = None
    published: bool = False

    @property
    def acted_in_time(self) -> bool:
        """Some request that was accepted was sent in time."""
        return any(entry.in_time for entry in self.ledger)

    def entry(self, key: int) -> Entry | None:
        """What the ledger says of a key."""
        return next((entry for entry in self.ledger if entry.key == key), None)


def first_world(configuration: Configuration) -> World:
    """Nothing has happened, and all faults are still to come."""
    return World(
        crashes=configuration.crashes,
        outages=configuration.outages,
        cancels=configuration.cancels,
        revokes=configuration.revokes,
        statements=configuration.statements,
        retries=configuration.retries,
        resumes=configuration.resumes,
        rotations=configuration.rotations,
        freezes=configuration.freezes,
        restores=configuration.restores,
    )


def idle(own: int = 0) -> Worker:
    """A worker without a job; a lease that it dropped may still run."""
    return Worker(IDLE, 2, 1, own)


def accepted(world: World, configuration: Configuration, key: int, left: int) -> tuple[World, int, bool]:
    """
    Let a request arrive and be accepted.

    Returns:
        The world after it, the receipt, and whether the provider recognised the key and did not act again.
    """
    entry = world.entry(key)
    if entry is not None and configuration.honours_key and entry.age != FORGOTTEN:
        return world, entry.receipt, True
    receipt = min(world.acts + 1, 2)
    if entry is not None:
        return world._replace(acts=receipt), receipt, False
    new = Entry(key, receipt, left if left != LATE else configuration.settles, 0, left != LATE)
    return world._replace(acts=receipt, ledger=(*world.ledger, new)), receipt, False


def looked_up(world: World, configuration: Configuration, key: int) -> list[tuple[str, int | None, bool]]:
    """What the provider may answer about a key now, and whether that needs a fault."""
    entry = world.entry(key)
    found: list[tuple[str, int | None, bool]] = [("no_answer", None, True)]
    if not configuration.lookup:
        return [("no_answer", None, False)]
    if entry is not None:
        found.append(("accepted", entry.receipt, False))
        if entry.hidden or not configuration.lookup_complete:
            found.append(("absent", None, True))
    elif key in world.refused:
        found.append(("declined", None, False))
    else:
        found.append(("absent", None, False))
    return found


def worker_later(worker: Worker) -> Worker:
    """One tick later; a request that was sent in time and has not arrived by now is lost."""
    own = max(worker.own - 1, 0)
    if worker.at == BEGUN:
        return worker._replace(own=own, left=max(worker.left - 1, 0))
    if worker.at in {DOUBTING, HEARD}:
        return worker._replace(own=own, left=min(worker.left + 1, DOUBT_TICKS))
    if worker.at == SENT and worker.left != LATE:
        left = worker.left - 1
        return worker._replace(own=own, left=left, at=SENT if left else WAITING)
    return worker._replace(own=own)


def world_later(world: World, configuration: Configuration, question_ticks: int) -> World:
    """One tick later."""
    retention = configuration.retention
    ledger = tuple(
        entry._replace(
            hidden=max(entry.hidden - 1, 0),
            age=entry.age if entry.age == FORGOTTEN or retention is None else min(entry.age + 1, retention),
        )
        for entry in world.ledger
    )
    flights = tuple((key, left if left == LATE else left - 1) for key, left in world.flights)
    answer = world.answer
    if answer is not None:
        answer = answer._replace(age=answer.age + 1) if answer.age < question_ticks else None
    return world._replace(ledger=ledger, flights=tuple(f for f in flights if f[1]), answer=answer)


def add_flight(world: World, key: int, left: int) -> World:
    """Leave a request to the network."""
    return world._replace(flights=tuple(sorted((*world.flights, (key, left)))))
