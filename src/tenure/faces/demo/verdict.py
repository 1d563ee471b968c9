"""
What a run shows, counted from the store, the application's tables and the provider's ledger, never from a worker's log.

`judge` is a function of those facts alone: it says which promise broke and where that can be seen.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tenure.connectors.simulator import Entry
from tenure.faces.demo.studio import EFFECT, PUBLISHING
from tenure.rules.effect import Effect, EffectState, SettledBy
from tenure.rules.event import Event, EventName
from tenure.rules.job import Job
from tenure.rules.status import Phase, Status


@dataclass(frozen=True, slots=True)
class Kill:
    """
    How a worker died.

    Attributes:
        status: As the kernel reported it: minus the signal's number.
        in_ledger: The provider had accepted the quote's mail by then.
        effect: State of the effect in the store after the death; None where there was no intent.
    """

    quote: str
    worker: str
    status: int
    in_ledger: bool
    effect: EffectState | None

    @property
    def after_acceptance(self) -> bool:
        """Whether it was the moment that this is about."""
        return self.status == -signal.SIGKILL and self.in_ledger and self.effect is EffectState.PENDING


@dataclass(frozen=True, slots=True)
class Facts:
    """
    All that was found when every process had ended.

    Attributes:
        quotes: Ids in the table `quotes`.
        jobs: The run's jobs by the quote they are about.
        trails: Events of the jobs whose effect was settled by a look-up.
        entries: The provider's ledger.
        publications: (quote, generation, worker) of every committed publish.
        visits: (quote, generation, place) of what the paused worker noted.
    """

    store: str
    quotes: Sequence[str]
    jobs: dict[str, Job]
    trails: Mapping[str, Sequence[Event]]
    entries: Sequence[Entry]
    kills: Sequence[Kill]
    publications: Sequence[tuple[str, int, str]]
    visits: Sequence[tuple[str, int, str]]
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """The counts, and in words each promise that broke."""

    store: str
    jobs: int
    completed: int
    killed_after_acceptance: int
    reconciled: int
    provider_effects: int
    duplicate_effects: int
    lost_jobs: int
    stale_writes_refused: int
    current_writes_accepted: int
    seconds: float
    broken: tuple[str, ...] = field(default=())

    @property
    def held(self) -> bool:
        """Whether every promise was shown and none broke."""
        return not self.broken

    def as_json(self) -> dict[str, Any]:
        """Give it under its stable names."""
        return asdict(self) | {"broken": list(self.broken)}


def effect_of(job: Job) -> Effect | None:
    """Give the job's one effect."""
    return next((effect for effect in job.effects if effect.name == EFFECT), None)


def judge(facts: Facts) -> Report:
    """Count, and compare with what was promised."""
    accepted = _accepted(facts)
    twice = {quote: acts for quote, acts in accepted.items() if len(acts) > 1}
    lost = [quote for quote in facts.quotes if _is_lost(facts.jobs.get(quote), accepted.get(quote, []))]
    reconciled = [quote for quote, job in facts.jobs.items() if _is_reconciled(job, facts.trails.get(quote, ()))]
    written = {(quote, generation) for quote, generation, _ in facts.publications}
    stale = _stale_tries(facts)
    refused = [one for one in stale if one not in written]
    current = [
        (quote, generation)
        for quote, generation in written
        if quote in facts.jobs
        and facts.jobs[quote].status is Status.COMPLETED
        and facts.jobs[quote].generation == generation
    ]
    completed = sum(job.status is Status.COMPLETED for job in facts.jobs.values())
    after_acceptance = [kill for kill in facts.kills if kill.after_acceptance]
    effects = sum(len(acts) for acts in accepted.values())
    broken = [
        *_said_of_effects(twice, accepted.get("", [])),
        *_said_of_kills(facts, reconciled),
        *_said_of_jobs(facts, lost),
        *_said_of_writes(facts, stale, written),
    ]
    if not broken and not completed == effects == len(facts.jobs) == len(facts.quotes) > 0:
        broken.append(
            f"the counts differ: {len(facts.quotes)} quotes, {len(facts.jobs)} jobs, {completed} completed, "
            f"{effects} mails at the provider"
        )
    return Report(
        store=facts.store,
        jobs=len(facts.jobs),
        completed=completed,
        killed_after_acceptance=len(after_acceptance),
        reconciled=len(reconciled),
        provider_effects=effects,
        duplicate_effects=sum(len(acts) - 1 for acts in twice.values()),
        lost_jobs=len(lost),
        stale_writes_refused=len(refused),
        current_writes_accepted=len(current),
        seconds=round(facts.seconds, 1),
        broken=tuple(broken),
    )


def _accepted(facts: Facts) -> dict[str, list[Entry]]:
    """Give what each customer got, by the job that stands in the operation key; `""` for what belongs to no job."""
    owner = {str(job.id): quote for quote, job in facts.jobs.items()}
    found: dict[str, list[Entry]] = {}
    for entry in facts.entries:
        if entry.action == "accepted":
            parts = entry.operation_key.split(":")
            found.setdefault(owner.get(parts[1] if len(parts) > 1 else "", ""), []).append(entry)
    return found


def _is_lost(job: Job | None, acts: Sequence[Entry]) -> bool:
    """Nobody has it in hand any more and the customer has nothing, or what is called done was never done."""
    if job is None:
        return True
    if job.phase is Phase.NEEDS_ATTENTION:
        return False
    return job.status is not Status.COMPLETED or not acts


def _is_reconciled(job: Job, trail: Iterable[Event]) -> bool:
    effect = effect_of(job)
    return (
        effect is not None
        and effect.state is EffectState.SUCCEEDED
        and effect.settled_by is SettledBy.LOOKUP
        and any(event.name is EventName.RECONCILED for event in trail)
    )


def _stale_tries(facts: Facts) -> list[tuple[str, int]]:
    """Give the publishes that began after another generation had taken the job."""
    return [
        (quote, generation)
        for quote, generation, place in facts.visits
        if place == PUBLISHING and quote in facts.jobs and generation < facts.jobs[quote].generation
    ]


def _said_of_effects(twice: dict[str, list[Entry]], nobodys: Sequence[Entry]) -> list[str]:
    said = [
        f"one operation, one act: the customer of {quote} got {len(acts)} mails; the provider's ledger has "
        f"{' and '.join(f'{act.effect_id} under {act.operation_key}' for act in acts)}"
        for quote, acts in twice.items()
        if quote
    ]
    if nobodys:
        said.append(f"no act without a job: the provider's ledger has {len(nobodys)} mails of no job of this run")
    return said


def _said_of_kills(facts: Facts, reconciled: Sequence[str]) -> list[str]:
    said = []
    shown = [kill for kill in facts.kills if kill.after_acceptance]
    for kill in shown:
        if kill.quote not in reconciled:
            job = facts.jobs[kill.quote]
            said.append(
                f"what is uncertain is settled by evidence: nobody could say what became of {kill.quote}; its job "
                f"{job.id} is {job.status}" + (f", escalated: {job.escalation_reason}" if job.escalated_at else "")
            )
    if not shown:
        said += [_not_shown(kill) for kill in facts.kills] or ["nothing was shown: no worker was killed"]
    return said


def _not_shown(kill: Kill) -> str:
    """Say why a death was not the one that this is about."""
    if kill.status != -signal.SIGKILL:
        return f"nothing was shown: worker {kill.worker} ended with status {kill.status}, not of SIGKILL"
    if not kill.in_ledger:
        return f"nothing was shown: worker {kill.worker} died before the provider had accepted {kill.quote}"
    if kill.effect is None:
        return (
            f"an intent before each call: worker {kill.worker} died after the provider had accepted {kill.quote}, and "
            f"the store holds no effect of its job"
        )
    return (
        f"nothing was shown: the effect of {kill.quote} was {kill.effect} and not pending when worker {kill.worker} "
        f"died"
    )


def _said_of_jobs(facts: Facts, lost: Sequence[str]) -> list[str]:
    said = [f"no accepted work is lost: {quote} has nothing and nobody has it in hand" for quote in lost]
    states = Counter(job.status.value for job in facts.jobs.values() if job.status is not Status.COMPLETED)
    said += [
        f"all that was accepted is finished: {count} {status} instead of completed" for status, count in states.items()
    ]
    return said


def _said_of_writes(facts: Facts, stale: Sequence[tuple[str, int]], written: set[tuple[str, int]]) -> list[str]:
    said = [
        f"a worker that lost its lease writes nothing: the table publications has a write to {quote} by generation "
        f"{generation}, made after generation {facts.jobs[quote].generation} had taken the job"
        for quote, generation in stale
        if (quote, generation) in written
    ]
    if not stale:
        said.append("nothing was shown: no worker tried to publish after it had lost its lease")
    said += [
        f"the current worker may write: {quote} has no write by generation {facts.jobs[quote].generation}"
        for quote in sorted({quote for quote, _ in stale})
        if (quote, facts.jobs[quote].generation) not in written
    ]
    counts = Counter(quote for quote, _, _ in facts.publications)
    done = [quote for quote, job in facts.jobs.items() if job.status is Status.COMPLETED]
    said += [f"done means published: {quote} is completed and has no row" for quote in done if not counts[quote]]
    return said
