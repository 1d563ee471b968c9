"""
How a provider call ends, what settles an effect afterwards, and what a provider declares about itself.

Four outcomes for the call itself, four kinds of evidence for a later look-up or a person's statement. Whatever is not
surely one of the first three outcomes is `Unknown`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

Json: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The provider acted; `receipt` is a JSON value that proves it."""

    receipt: Json = None


@dataclass(frozen=True, slots=True)
class FailedBeforeDispatch:
    """The provider surely did not act: no connection, or it said "not now"."""

    reason: str
    retry_after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """
    The provider's definite refusal.

    Attributes:
        category: `permanent`, or `authentication` for credentials the provider did not accept.
    """

    reason: str
    category: str = "permanent"


@dataclass(frozen=True, slots=True)
class Unknown:
    """Everything else: the provider may have acted."""

    reason: str


Outcome: TypeAlias = Succeeded | FailedBeforeDispatch | Rejected | Unknown


@dataclass(frozen=True, slots=True)
class Accepted:
    """The provider did act under this key."""

    receipt: Json = None


@dataclass(frozen=True, slots=True)
class Declined:
    """The provider refused under this key."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Absent:
    """The provider knows nothing under this key; whether that counts depends on what it declares."""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Nothing could be learned now."""

    reason: str = ""


Evidence: TypeAlias = Accepted | Declined | Absent | NoAnswer


@dataclass(frozen=True, slots=True)
class Terms:
    """
    What a provider declares; stored with the intent, so that a sweeper without the provider's code can judge.

    Attributes:
        provider: The provider's registered name.
        honours_key: The provider performs one request per operation key.
        retention: How long it remembers a key, counted from the first request; None while unknown.
        binds_payload: The same key with another payload is refused by the provider.
        lookup_complete: Its look-up sees every request it ever accepted.
        settles_within: How long after a request's deadline it may still appear in the look-up.
    """

    provider: str
    honours_key: bool = False
    retention: timedelta | None = None
    binds_payload: bool = False
    lookup_complete: bool = False
    settles_within: timedelta = field(default=timedelta(0))
