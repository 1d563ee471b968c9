"""
Tell a destination that does not work from a message that it cannot take.

One failure can be the message's fault, however often it comes. Two failures that have no message in common cannot be
the fault of one message, and three of them in a row, with nothing delivered between, are taken for an outage.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from tenure.rules.message import Deferred, Delivered, Refused
from tenure.rules.outbox import Answer, Together

# Failures without a message in common.
ENOUGH = 3

Blamed = frozenset[UUID]


def says_so(answers: Sequence[Answer]) -> bool:
    """Ask whether the destination itself says of everything it was handed that it is not reached."""
    said = [isinstance(one, Deferred) and one.outage for one in answers]
    return bool(said) and all(said)


def works(answers: Sequence[Answer]) -> bool:
    """Ask whether a destination gave a definite answer to anything, which is what only one that works can do."""
    return any(isinstance(one, Delivered | Refused) for one in answers)


def blame(known: tuple[Blamed, ...], ids: Sequence[UUID], answers: Sequence[Answer]) -> tuple[Blamed, ...]:
    """
    Add what failed to the failures that are known, each a set of messages of which any may be to blame.

    A failure within a known one takes its place: it is the same suspicion, of fewer.
    """
    together = frozenset(one for one, answer in zip(ids, answers, strict=True) if isinstance(answer, Together))
    alone = [frozenset({one}) for one, answer in zip(ids, answers, strict=True) if isinstance(answer, Deferred)]
    for found in [*([together] if together else []), *alone]:
        if all(found.isdisjoint(one) for one in known):
            # More would say nothing new.
            known = (*known, found)[:ENOUGH]
        else:
            known = tuple(found if found.issubset(one) else one for one in known)
    return known
