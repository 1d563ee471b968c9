"""
What a recovered copy does not know: whether a job crossed the dispatch boundary after the copy was made.

A restored database has lost the intents that were committed behind it. So every job that may still run is marked
suspect at the recovery, and a begin without a record of after it does not send: it writes the intent as unknown and the
provider is asked by the operation key, which is the same in every copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from tenure.rules.effect import Effect
from tenure.rules.outcome import Terms
from tenure.rules.status import Status

# The reason of an effect that stands for a lost intent.
LOST = "the job comes from a restored database: it may have been sent after the backup, and its intent is lost"
# Nothing brings a job back from here, so nothing can be sent for it any more. A failed one may be retried, and an
# indeterminate or timed-out one resumed: they stay suspect.
FINAL = frozenset({Status.COMPLETED, Status.CANCELLED, Status.DEAD_LETTER, Status.HALT_UNSAFE})


@dataclass(frozen=True, slots=True)
class Suspicion:
    """
    The mark that a recovery left on a job.

    Attributes:
        marked_at: When the recovery was. No worker of before it could begin a call later than this.
        since: The earliest instant at which a lost intent may have been written.
        generation: The job's at the mark; an effect begun under a later one was begun after the recovery.
    """

    marked_at: datetime
    since: datetime
    generation: int

    def doubts(self, effect: Effect | None) -> bool:
        """
        Say whether there may be an intent that this copy does not know.

        By the generation, not by the time: a copy may be brought up on a machine whose clock is behind. An effect that
        was reopened has the generation 0 until its new key is begun: that key too may have been sent after the backup.
        """
        return effect is None or effect.generation <= self.generation

    def over_at(self, timeout: timedelta, lease: timedelta, known: Effect | None) -> datetime:
        """
        Say when a lost call must have been over: an absence counts from then on, and from its provider's settling time.

        Its own deadline is lost. It was the smaller of a timeout and the rest of a lease, and an older release may have
        had another timeout; so both are waited for, counted from the last instant at which it can have begun.
        """
        over = self.marked_at + max(timeout, lease)
        return over if known is None else max(over, known.deadline_at)

    def first_at(self, known: Effect | None) -> datetime:
        """Say when the provider may have seen the key for the first time; its memory of it is counted from then."""
        return known.created_at if known is not None and known.request_digest else self.since


def may_count_later(effect: Effect, terms: Terms | None, now: datetime) -> bool:
    """Say whether an absence that does not count yet will count, so that a sweep should ask again, not a person."""
    return (
        terms is not None
        and terms.lookup_complete
        and terms.honours_key
        and terms.retention is not None
        and max(now, effect.deadline_at + terms.settles_within) < effect.created_at + terms.retention
    )


def uncovered(suspicion: Suspicion, providers: Iterable[str], effects: Iterable[Effect]) -> list[str]:
    """Give the declared providers of which nothing is known since the recovery."""
    known = {effect.provider for effect in effects if not suspicion.doubts(effect)}
    return [provider for provider in providers if provider not in known]
