"""
Claim, deliver, finish: the only way messages leave the database.

The claim commits before the delivery and the ending after it, so a relay that dies in between has delivered something
that the database still has as being delivered: it is delivered again when the lease has run out. That is what at least
once means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tenure.procedures.outbox import Finished, Outgoing, claim_messages, finish_messages
from tenure.rules.ledger import Seen
from tenure.rules.outbox import Answer
from tenure.yields import FlowScript, call, flow, transact


@dataclass(frozen=True, slots=True)
class Round:
    """
    One round of a relay at one destination.

    Attributes:
        taken: How many messages were claimed.
        more: There is more to claim, as far as the claim saw.
    """

    taken: int
    more: bool
    finished: Finished | None


@flow
def relay_round(
    relay_id: str,
    destination: str,
    limit: int,
    lease: timedelta,
    backoff: timedelta,
    deliver: Callable[[Sequence[Outgoing]], Any],
    *,
    seen: Seen | None = None,
) -> FlowScript[Round]:
    """
    Take what is due at one destination, deliver it, and write how that ended.

    Args:
        deliver: Gives an answer for each, in order; never raises for what the destination did.
        seen: See `claim_messages`.
    """
    claim = yield from transact(claim_messages(relay_id, destination, limit, lease, seen=seen))
    if not claim.outgoing:
        return Round(0, claim.more, None)
    answers: Sequence[Answer] = yield from call("deliver", deliver, claim.outgoing)
    ends = list(zip(claim.outgoing, answers, strict=True))
    finished = yield from transact(finish_messages(relay_id, ends, backoff=backoff))
    return Round(len(ends), claim.more, finished)
