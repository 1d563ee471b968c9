"""A change of a job is written where a column of its place differs; none may be forgotten in the comparison."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from tenure.procedures.rows import _place_fields, place_row
from tenure.rules.job import Job
from tenure.rules.lease import Lease
from tenure.rules.status import Status

NOW = datetime(2030, 1, 1, tzinfo=UTC)
# Of the body, which is written once.
FIXED = {"id", "tenant", "organization", "kind", "queue", "priority"}
# Never changes without the field on the right.
COMPANIONS = {"cancel_reason": "cancel_requested_at", "claimed_at": "lease", "result": "status"}


class Watched:
    """A record that notes which of its fields are read."""

    def __init__(self) -> None:
        job_id = uuid4()
        self.read: set[str] = set()
        self._job = Job(
            id=job_id, tenant="t", organization="o", project="p", idempotency_key="k", kind="k", payload={},
            status=Status.COMPLETED, scheduled_at=NOW, created_at=NOW, run_at=NOW, claimed_at=NOW, finished_at=NOW,
            lease=Lease(job_id, "w", uuid4(), 1, NOW, timedelta(seconds=60)),
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(self._job, name)


def read_by(look: Callable[[Any], Any]) -> set[str]:
    job = Watched()
    look(job)
    return job.read


def test_what_is_written_to_a_place_is_what_is_compared() -> None:
    written: set[str] = set()
    for place in ("ready", "deferred", "lease", "resting", "outcome"):
        written |= read_by(lambda job, place=place: place_row(job, place))
    compared = read_by(_place_fields)
    assert set(COMPANIONS) <= written
    assert set(COMPANIONS.values()) <= compared
    assert compared == written - FIXED - set(COMPANIONS)
