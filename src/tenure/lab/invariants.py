"""
What must hold in every state, one function for each promise.

A checker is given one step, and says in one sentence what is wrong, or None. Whether a worker owned its lease is not
asked of the rules: the explorer keeps its own account of it, from the store's clock and the claims and renewals that
were answered. Likewise what the provider did is read from the provider's ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from tenure.rules import lease, moves
from tenure.rules.effect import EffectState, SettledBy
from tenure.rules.job import Change, Job
from tenure.rules.status import Status

_LIVE = (Status.CLAIMED, Status.RUNNING)
_UNCERTAIN = (EffectState.PENDING, EffectState.UNKNOWN)
# What may leave a status that is final for ordinary commands, and from where.
_NAMED = {"retry": {Status.FAILED}, "state": {Status.INDETERMINATE, Status.TIMED_OUT}}
_SETTLING = {"sweep": {Status.INDETERMINATE}, "answer": {Status.INDETERMINATE}}
_BY_HOLDER = frozenset(
    {
        "renew",
        "complete",
        "fail",
        "end",
        "release",
        "acknowledge",
        "begin",
        "mark",
        "finish",
        "hear",
        "publish",
        "write",
    }
)
_GOES_OUT = frozenset({"begin", "mark", "publish", "write"})
_UNHELD = frozenset({"sweep", "answer", "state", "submit"})
_WITHOUT_AUTHORITY = frozenset({"submit"})


@dataclass(frozen=True, slots=True)
class Step:
    """
    One step as the checkers see it.

    Attributes:
        action: Name of the transaction, or send and arrive for what happens outside.
        before: The record before it.
        change: What was committed, None where it was refused or nothing was asked of the database.
        refused: The error's name and its reason.
        own: For how many ticks the asking worker still owned its lease; None where no worker asked.
        acts: What the provider has done so far under this operation.
        intended: For a request that leaves: its intent is committed.
        acted_in_time: The provider accepted a request of this operation that was sent within its deadline.
    """

    action: str
    before: Job
    change: Change | None = None
    refused: str | None = None
    own: int | None = None
    acts: int = 0
    intended: bool = True
    acted_in_time: bool = False

    @property
    def after(self) -> Job:
        """The record after it."""
        return self.change.job if self.change is not None else self.before


@dataclass(frozen=True, slots=True)
class Invariant:
    """A promise and its checker."""

    name: str
    promise: str
    check: Callable[[Step], str | None]


def one_live_lease(owners: int) -> str | None:
    """At most one live lease for a job at any time of the store's clock."""
    if owners > 1:
        return "two workers own a live lease on the job at the same time"
    return None


def live_or_claimable(job: Job, now: datetime) -> str | None:
    """A lease is live or its job can be taken: never both, never neither."""
    if job.lease is None or job.authority.frozen or job.status not in _LIVE:
        return None
    live, taken = lease.live(job.lease, now), moves.recover(job, now) is not None
    if live and taken:
        return "the lease is live and at the same instant the job is taken away as expired"
    if not live and not taken:
        return "the lease is not live any more and at the same instant nobody may take the job"
    return None


def generation_rises(step: Step) -> str | None:
    """The generation never falls; claims, revocations and recoveries to a terminal status raise it."""
    if step.change is None:
        return None
    before, after = step.before.generation, step.after.generation
    if after < before:
        return f"the generation fell from {before} to {after}"
    ended = step.action in {"recover", "sweep"} and step.before.status in _LIVE and step.after.status not in _LIVE
    must_rise = step.action in {"claim", "revoke"} or (ended and step.after.status is not Status.QUEUED)
    if must_rise and after == before:
        return f"{step.action} left the generation at {before}"
    return None


def stale_write(step: Step) -> str | None:
    """No write by a lease that is not the current one changes the job, an effect or the caller's tables."""
    live = step.before.status in _LIVE and step.after.status in _LIVE
    if step.action in _UNHELD and live and step.after.effects != step.before.effects:
        return f"{step.action} changed an effect of an attempt that is under way"
    if step.action in _BY_HOLDER and step.change is not None and step.change.error is None and step.own == 0:
        return f"{step.action} was accepted from a worker whose lease was over"
    if step.action in _WITHOUT_AUTHORITY or (step.change is not None and step.own == 0):
        return None if step.after.status is step.before.status else f"evidence moved the job to {step.after.status}"
    return None


def status_table(step: Step) -> str | None:
    """No status changes outside the table and its named exceptions."""
    before, after = step.before.status, step.after.status
    if before is after:
        return None
    if before is Status.QUEUED:
        allowed = after in {*_LIVE, Status.CANCELLED}
    elif before in _LIVE:
        allowed = after is not Status.CLAIMED and (after is not Status.COMPLETED or before is Status.RUNNING)
    else:
        allowed = before in _NAMED.get(step.action, set()) | _SETTLING.get(step.action, set())
    return None if allowed else f"{step.action} moved the job from {before} to {after}"


def one_intent(step: Step) -> str | None:
    """At most one intent for an operation key, unless it surely failed before dispatch; no send without an intent."""
    if step.action == "send" and not step.intended:
        return "a request left before its intent was committed"
    if step.change is None:
        return None
    for intent in step.change.intents:
        known = next((e for e in step.before.effects if e.operation_key == intent.operation_key), None)
        if known is not None and known.state is not EffectState.FAILED_BEFORE_DISPATCH:
            return f"a second intent was committed while the first one was {known.state}"
        if any(e.state in _UNCERTAIN for e in step.before.effects if e.operation_key != intent.operation_key):
            return "an intent under another key was committed while the operation was open"
    return None


def one_effect(step: Step) -> str | None:
    """One outside effect for each operation, whatever crashes."""
    return f"the provider acted {step.acts} times for one operation" if step.acts > 1 else None


def never_queued_uncertain(step: Step) -> str | None:
    """Nothing with an open boundary, with a mark closed only by a failure, or with a cancellation pending is queued."""
    job = step.after
    if job.status is Status.QUEUED or (step.action == "claim" and step.change is not None):
        if any(e.state in {*_UNCERTAIN, EffectState.CLOSED} for e in job.effects):
            return "the job can be taken while its outcome is uncertain"
        if job.cancel_requested_at is not None:
            return "the job can be taken while a cancellation is pending"
    return None


def trail_tells(step: Step) -> str | None:
    """The status is what the last status event says, and every change of status has its event."""
    if step.change is None:
        return None
    told = [event.status for event in step.change.events if event.status is not None]
    if told and told[-1] is not step.after.status:
        return f"the trail ends at {told[-1]}, the job is {step.after.status}"
    if not told and step.after.status is not step.before.status:
        return f"the job became {step.after.status} without an event"
    return None


def old_authority(step: Step) -> str | None:
    """Work under an old epoch, or on a frozen tenant or database, neither publishes nor begins an effect."""
    admitted = step.before.epoch == step.before.authority.epoch and not step.before.authority.frozen
    if step.action in {*_GOES_OUT, "claim"} and step.change is not None and not admitted:
        return f"{step.action} was accepted under an old epoch or a freeze"
    return None


def allowed_control(step: Step) -> str | None:
    """The current worker is never told that its lease is lost."""
    admitted = step.before.epoch == step.before.authority.epoch and not step.before.authority.frozen
    lost = step.refused is not None and step.refused.startswith(("LeaseLost", "EpochClosed"))
    if lost and step.own and admitted:
        return f"{step.action} of the current worker was refused: {step.refused}"
    return None


def cancelled_work_stops(step: Step) -> str | None:
    """Under a pending cancellation nothing is begun or published, and only what has happened may complete."""
    if step.before.cancel_requested_at is None or step.change is None:
        return None
    if step.action in _GOES_OUT:
        return f"{step.action} was accepted although a cancellation is pending"
    happened = any(e.state is EffectState.SUCCEEDED or not e.name for e in step.before.effects)
    if step.action == "complete" and step.after.status is Status.COMPLETED and not happened:
        return "the job was completed although it was cancelled before anything had happened"
    return None


def nothing_open_completes(step: Step) -> str | None:
    """A job with an open boundary is never completed, failed or a dead letter."""
    over = {Status.COMPLETED, Status.FAILED, Status.DEAD_LETTER}
    if step.after.status in over and any(e.state in _UNCERTAIN for e in step.after.effects):
        return f"the job is {step.after.status} while the outcome of its effect is not known"
    return None


def absence_is_true(step: Step) -> str | None:
    """What a look-up counted as absent was not accepted from a request that was sent in time."""
    doubted = {SettledBy.LOOKUP, SettledBy.EVIDENCE}
    absent = any(e.state is EffectState.FAILED_BEFORE_DISPATCH and e.settled_by in doubted for e in step.after.effects)
    if absent and step.acted_in_time:
        return "the effect is recorded as not having happened, and the provider had accepted it in time"
    return None


def refusal_is_true(step: Step) -> str | None:
    """What is recorded as refused by the provider was not accepted by it."""
    if any(e.state is EffectState.REJECTED for e in step.after.effects) and step.acted_in_time:
        return "the effect is recorded as refused, and the provider had accepted it in time"
    return None


def proof_is_shown(step: Step) -> str | None:
    """A receipt that contradicts what is settled is kept and handed to a person."""
    if step.change is None:
        return None
    for record in step.change.evidence:
        known = next((e for e in step.before.effects if e.operation_key == record.operation_key), None)
        settled = known is None or known.state not in {*_UNCERTAIN, EffectState.SUCCEEDED}
        if record.kind == "accepted" and not record.used and settled and step.after.escalated_at is None:
            return "a receipt contradicts what is settled, and nobody is asked"
    return None


def rules_agree(step: Step) -> str | None:
    """No assertion inside the rules ever fails."""
    if step.refused is not None and step.refused.startswith("AssertionError"):
        return f"{step.action} ran into an assertion: {step.refused}"
    return None


INVARIANTS: Mapping[str, Invariant] = {
    name: Invariant(name, (check.__doc__ or "").strip(), check)
    for name, check in (
        ("I2", generation_rises),
        ("I3", stale_write),
        ("I4", status_table),
        ("I5", one_intent),
        ("I6", one_effect),
        ("I7", never_queued_uncertain),
        ("I9", trail_tells),
        ("I11", old_authority),
        ("I12", allowed_control),
        ("cancellation", cancelled_work_stops),
        ("completion", nothing_open_completes),
        ("absence", absence_is_true),
        ("refusal", refusal_is_true),
        ("contradiction", proof_is_shown),
        ("assertion", rules_agree),
    )
}


def broken(step: Step) -> tuple[tuple[str, str], ...]:
    """Every promise that a step breaks, with a sentence each."""
    return tuple((name, said) for name, known in INVARIANTS.items() if (said := known.check(step)) is not None)
