"""
The durable record of one outside act, and its own small table.

`pending` is the intent, committed before the call. The bare dispatch mark of a caller who names no effect is a record
without a name: the same predicate asks about it and the same unique index guards its key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from tenure.errors import Invalid, echo
from tenure.rules.outcome import Terms

MARK = ""  # the name of the bare dispatch mark
NAME_MAX = 200
_JOB_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class EffectState(StrEnum):
    """Where an effect stands; `closed` is for bare marks that a failure closed."""

    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED_BEFORE_DISPATCH = "failed_before_dispatch"
    REJECTED = "rejected"
    UNKNOWN = "unknown"
    CLOSED = "closed"


OPEN = frozenset({EffectState.PENDING, EffectState.UNKNOWN})

EFFECT_MOVES: Mapping[EffectState, frozenset[EffectState]] = {
    EffectState.PENDING: frozenset(EffectState) - {EffectState.PENDING},
    EffectState.UNKNOWN: frozenset(EffectState) - {EffectState.PENDING, EffectState.UNKNOWN},
    EffectState.FAILED_BEFORE_DISPATCH: frozenset({EffectState.PENDING}),
    EffectState.REJECTED: frozenset({EffectState.FAILED_BEFORE_DISPATCH, EffectState.PENDING}),
    EffectState.CLOSED: frozenset({EffectState.FAILED_BEFORE_DISPATCH, EffectState.REJECTED}),
    EffectState.SUCCEEDED: frozenset(),
}


class SettledBy(StrEnum):
    """Whose word settled an effect."""

    OUTCOME = "outcome"
    EVIDENCE = "evidence"
    LOOKUP = "lookup"
    STATEMENT = "statement"
    COMPLETION = "completion"
    FAILURE = "failure"
    RECOVERY = "recovery"


# Whose word an absence may rest on: a request of before that was under way or not sent yet may still arrive.
DOUBTED = frozenset({SettledBy.LOOKUP, SettledBy.EVIDENCE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """
    One outside act of a job.

    Attributes:
        name: Unique within the job; empty for the bare mark.
        operation_key: What the provider is asked by; unique per tenant.
        request_digest: Digest of the request's canonical bytes; empty after a reopening.
        receipt: The provider's evidence, a JSON value.
        reason: Why it failed, was rejected or is unknown.
        attempt_id: The attempt that wrote the latest intent.
        generation: That attempt's; 0 after a reopening, until the new key is begun.
        created_at: The first intent.
        begun_at: The latest intent.
        deadline_at: When the call of the latest intent had to be over.
        terms: What the provider declared at the latest intent; None for the bare mark.
        settled_by: Whose word settled it; while it is open, the doubted word that let it begin again, or `recovery`
            where it stands for an intent that may have been lost with a restored database.
        ordinal: How often it was reopened.
        lookups: How often the provider was asked without an answer that counts.
        asked_at: When the provider was last asked.
    """

    name: str
    state: EffectState
    operation_key: str
    request_digest: str
    attempt_id: UUID
    generation: int
    created_at: datetime
    begun_at: datetime
    deadline_at: datetime
    terms: Terms | None = None
    receipt: Any = None
    reason: str | None = None
    settled_at: datetime | None = None
    settled_by: SettledBy | None = None
    ordinal: int = 0
    lookups: int = 0
    asked_at: datetime | None = None

    @property
    def provider(self) -> str | None:
        """The provider's registered name."""
        return self.terms.provider if self.terms else None

    @property
    def is_open(self) -> bool:
        """Nobody can say yet whether the world acted."""
        return self.state in OPEN

    @property
    def is_lost(self) -> bool:
        """It stands for an intent that a restored database may have lost: this attempt has sent nothing under it."""
        return self.is_open and self.settled_by is SettledBy.RECOVERY


@dataclass(frozen=True, slots=True)
class Intent:
    """One intent as it was committed; kept for good, so that a late receipt can be matched to it."""

    operation_key: str
    attempt_id: UUID
    at: datetime


@dataclass(frozen=True, slots=True)
class StoredEvidence:
    """
    Evidence as it was handed in.

    Attributes:
        kind: accepted, declined, absent or no_answer.
        contradicts: It disagrees with a settled effect: proof of a duplicate, for a person.
        used: Reconciliation has settled by it.
    """

    id: UUID
    operation_key: str
    attempt_id: UUID | None
    kind: str
    receipt: Any
    reason: str | None
    at: datetime
    contradicts: bool = False
    used: bool = False


def whose_word(effect: Effect, state: EffectState, by: SettledBy) -> SettledBy:
    """
    Say whose word is kept with a settled effect.

    Where an absence was counted under its key, an earlier request may still arrive. That a later call did not leave
    says nothing about the earlier one, so the doubt stays with the record.
    """
    if state is EffectState.FAILED_BEFORE_DISPATCH and by is SettledBy.OUTCOME and effect.settled_by in DOUBTED:
        return effect.settled_by
    return by


def open_effects(effects: Iterable[Effect]) -> tuple[Effect, ...]:
    """The open ones, in the order given."""
    return tuple(effect for effect in effects if effect.state in OPEN)


def operation_key(kind: str, job_id: UUID, name: str, ordinal: int = 0) -> str:
    """Make the key of an effect: the service makes it, no model or handler does."""
    key = f"{kind}:{job_id}:{name}"
    return f"{key}#{ordinal}" if ordinal else key


def is_made_here(key: str) -> bool:
    """Say whether a key has the form that `operation_key` gives, whichever job's it is."""
    return owner_of(key) is not None


def owner_of(key: str) -> tuple[str, UUID] | None:
    """Give the kind and the job that a key of `operation_key`'s form names; None for any other key."""
    kind, _, rest = key.partition(":")
    job_id, _, name = rest.partition(":")
    if not (kind and name) or _JOB_ID.fullmatch(job_id) is None:
        return None
    return kind, UUID(job_id)


def check_name(name: str) -> str:
    """Refuse an effect's name that is empty, too long, or could be mistaken for another key's part."""
    if not isinstance(name, str) or not name or len(name) > NAME_MAX or not name.isprintable():
        raise Invalid(
            f"an effect's name is 1 to {NAME_MAX} printable characters, not {echo(name)}", code="BAD_ARGUMENT"
        )
    if "#" in name or ":" in name:
        raise Invalid(
            f"an effect's name holds no '#' or ':', they separate operation keys: {echo(name)}", code="BAD_ARGUMENT"
        )
    return name
