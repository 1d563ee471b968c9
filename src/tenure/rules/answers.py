"""
What a destination may answer, checked where it comes in.

A wrong answer is no answer: its message is deferred, and the reason says what was wrong. The others of its batch count.
"""

from __future__ import annotations

from datetime import timedelta

from tenure.errors import echo
from tenure.rules.message import Deferred, Delivered, Delivery, Refused
from tenure.rules.outbox import clean_reason


def check_answer(given: object) -> Delivery:
    """Give an answer as it is, or Deferred where it is none; what is written of it is cleaned there."""
    if isinstance(given, Delivered | Refused):
        return given
    if not isinstance(given, Deferred):
        return Deferred(
            f"the destination answered with {echo(given)} and not with tenure.outbox.Delivered, Deferred or Refused"
        )
    wrong: list[str] = []
    retry_after, outage = given.retry_after, given.outage
    if retry_after is not None and not isinstance(retry_after, timedelta):
        wrong.append(f"retry_after is a timedelta, not {echo(retry_after)}")
        retry_after = None
    if not isinstance(outage, bool):
        wrong.append(f"outage is True or False, not {echo(outage)}")
        outage = False
    # What is wrong comes first: a long reason is cut.
    reason = clean_reason(given.reason)
    return Deferred(f"{'; '.join(wrong)}: {reason}" if wrong else reason, retry_after, outage)
