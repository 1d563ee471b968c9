"""
What an exploration is made of: how long things last, what the provider can do, and which faults may happen how often.

A configuration is closed: its number of states is finite, and an exploration visits all of them. Time is counted in
ticks; there is no limit on how many ticks pass, because only differences of time are part of a state.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Order:
    """
    The order of a protocol's steps, as the package keeps it; a broken variant changes one of them.

    Attributes:
        intent_first: The intent is committed before the request leaves.
        fence_inside: Publishing holds the job's lock from its first check to its commit.
        fence_at_end: Publishing checks the fence again as its last statement.
        ask_time: A look-up's answer is judged as of the time when the provider was asked.
        restore_freezes: A database that was restored from a backup is frozen.
        recovery_marks: A recovery marks the work of the restored copy as suspect.
        skew: How many ticks behind the store's clock the fence is asked at; the store's own clock is 0.
    """

    intent_first: bool = True
    fence_inside: bool = True
    fence_at_end: bool = True
    ask_time: bool = True
    restore_freezes: bool = True
    recovery_marks: bool = True
    skew: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """
    One world to explore.

    Attributes:
        about: What it is for, one line.
        sees: Counters that must not be zero after a full exploration.
        workers: Names of the two workers; the same name twice is one process with two attempts.
        bare: The handler sets the bare dispatch mark instead of beginning a named effect.
        start: Claims start the job in the same step.
        attempts, lease, timeout: The job's budget; its lease and the call's time limit, in ticks.
        honours_key, retention, lookup, lookup_complete, settles: What the provider declares, and does; ticks. With
            retention None it remembers keys for good.
        answers: How the provider may answer a request, besides accepting it: `before` (not now), `rejected` (for good,
            and it remembers that under the key), `denied` (bad credentials; it remembers nothing).
        endings: Which ways the handler may end an attempt at any time: complete, retry, fail, release, halt, time_out
            and mark.
        publishes: The handler publishes before it completes.
        resends: The handler may send an open effect again within its attempt.
        renews: Leases are renewed.
        on_reconciled, on_declined: The job's policies.
        patient: The sweeper asks again for `escalate_after` ticks before a person is asked.
        flights: How many requests may be under way without a sender.
        crashes, outages, cancels, revokes, statements, retries, resumes, rotations, freezes, restores: How often each
            may happen; everything else may happen without end.
        recovers: A restored database is recovered by an operator, and work goes on.
    """

    name: str
    about: str
    sees: frozenset[str] = frozenset()
    workers: tuple[str, str] = ("A", "B")
    bare: bool = False
    start: bool = True
    attempts: int = 2
    lease: int = 2
    timeout: int = 1
    honours_key: bool = True
    retention: int | None = None
    lookup: bool = True
    lookup_complete: bool = True
    settles: int = 1
    answers: frozenset[str] = frozenset()
    endings: frozenset[str] = frozenset({"retry"})
    publishes: bool = False
    resends: bool = False
    renews: bool = False
    on_reconciled: str | None = None
    on_declined: str = "failed"
    patient: bool = False
    escalate_after: int = 3
    flights: int = 1
    crashes: int = 1
    outages: int = 0
    cancels: int = 0
    revokes: int = 0
    statements: int = 0
    retries: int = 0
    resumes: int = 0
    rotations: int = 0
    freezes: int = 0
    restores: int = 0
    recovers: bool = False

    @property
    def one_process(self) -> bool:
        """Both workers have one name."""
        return self.workers[0] == self.workers[1]
