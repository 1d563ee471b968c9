"""A copy whose work is marked, without the recovery around it: that one is about every tenant, and moves its epoch."""

from __future__ import annotations

from datetime import datetime

from tenure.procedures.recover import mark_suspects
from tenure.yields import Script, new_id, procedure


@procedure
def mark_copy(actor: str, reason: str, *, since: datetime | None = None) -> Script[int]:
    """Mark all work that may still run, as a recovery does; give how many jobs."""
    return (yield from mark_suspects(actor, reason, since=since, recovery_id=new_id()))
