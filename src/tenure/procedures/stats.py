"""Count what waits, runs and needs somebody; `rules.stats` says which is which."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from tenure.procedures.records import instant
from tenure.rules.stats import PAYLOAD_CODES, Category, Fact, Reason, Stats, assemble, judge
from tenure.rules.status import Status
from tenure.yields import Row, Script, Statement, procedure


@procedure(reads=True)
def stats(*, tenant: str | None = None) -> Script[Stats]:
    """
    Count jobs by tenant, kind, queue, category and reason.

    The jobs are counted by one statement, so none is counted twice however they move. Finished work is not walked.

    Args:
        tenant: Only this one's.
    """
    groups, states, kinds, workers, ((now, frozen),) = yield [
        Statement("stats_jobs", {"tenant": tenant, "codes": list(PAYLOAD_CODES)}),
        Statement("queue_states", {"name": None}),
        Statement("kind_list"),
        Statement("stats_workers"),
        Statement("stats_store"),
    ]
    around = _Around(states, kinds, workers, frozen=bool(frozen))
    found: dict[tuple[str, str, str, Category, Reason], tuple[int, datetime]] = {}
    for row in groups:
        judged = judge(around.fact(row))
        if judged is None:
            continue
        key = (row[0], row[1], row[2], *judged)
        many, since = row[-2], instant(row[-1])
        count, first = found.get(key, (0, since))
        found[key] = (count + many, min(first, since))
    return assemble(found, instant(now))


class _Around:
    """What is the same for all jobs: queues, workers, and whether the database is frozen."""

    def __init__(self, states: Sequence[Row], kinds: Sequence[Row], workers: Sequence[Row], *, frozen: bool) -> None:
        self._frozen = frozen
        self._paused = {row[0] for row in states if row[2] is not None}
        self._owner = {row[0]: row[5] for row in states if row[5] is not None}
        # Of each kind, the owners of the live workers that know it.
        self._owners: dict[str, set[str | None]] = {}
        self._providers: set[str] = set()
        for names, providers, owner in workers:
            for name in json.loads(names):
                self._owners.setdefault(name, set()).add(owner)
            self._providers.update(json.loads(providers))
        self._alive = bool(workers)
        self._known = {row[0] for row in kinds} | self._owners.keys()

    def fact(self, row: Row) -> Fact:
        """Say what is known about a group of jobs."""
        _, kind, queue, status, due, admitted, frozen, expired, cancelling, is_open, provider, escalated, code = row[
            :-2
        ]
        owners = self._owners.get(kind, set())
        owner = self._owner.get(queue)
        return Fact(
            status=Status(status),
            due=bool(due),
            admitted=bool(admitted),
            tenant_frozen=bool(frozen),
            database_frozen=self._frozen,
            paused=queue in self._paused,
            expired=bool(expired),
            cancelling=bool(cancelling),
            open=bool(is_open),
            escalated=bool(escalated),
            code=code,
            announced=bool(owners),
            owned=owner is None or owner in owners,
            known=kind in self._known,
            # With no worker alive, nobody says which providers there are.
            provided=provider is None or not self._alive or provider in self._providers,
        )
