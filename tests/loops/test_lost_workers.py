"""Jobs whose last worker was lost are told apart, so that one which kills its process takes few others along."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tenure import Job, Tenure
from tenure.procedures.claim import claim
from tenure.procedures.claim_batch import Taken, claim_batch
from tenure.procedures.upkeep import recover
from tests.loops.stage import create, fields, job, producer, until


@pytest.fixture
def app(url: str) -> Iterator[Tenure]:
    with producer(url) as made:
        yield made


def take(app: Tenure, limit: int = 10, *, lost: int = 10, **options: Any) -> Taken:
    kinds = options.pop("kinds", ["k"])
    return app.store.run(claim_batch("w", kinds, limit=limit, lost=lost, **options))


def lose(app: Tenure, *jobs: Job) -> None:
    """Claim these jobs and let their leases run out."""
    assert {one.job.id for one in take(app).claims} == {one.id for one in jobs}
    until(lambda: app.store.run(recover()) or job(app, jobs[-1]).status == "queued", "the leases to run out")
    assert {job(app, one).error_code for one in jobs} == {"WORKER_LOST"}


def test_a_claim_takes_as_many_of_them_as_it_is_told(app: Tenure) -> None:
    lost = [create(app, "k", key=f"lost{n}", lease=0.1) for n in range(2)]
    lose(app, *lost)
    assert job(app, lost[0]).error_message == "the worker was lost in attempt 1 of 3"
    fresh = [create(app, "k", key=f"fresh{n}") for n in range(3)]
    none = take(app, limit=1, lost=0)
    assert [found.job.id for found in none.claims] == [fresh[0].id]
    assert none.more
    one = take(app, limit=2, lost=1)
    assert [found.job.id for found in one.claims] == [lost[0].id, fresh[1].id]
    rest = take(app, cursor=one.cursor, lost=0)
    assert [found.job.id for found in rest.claims] == [fresh[2].id]
    assert not rest.more
    assert take(app, lost=0).claims == []
    # The claim of one job does not tell them apart and takes them as they come.
    assert [found.job.id for found in app.store.run(claim("w", limit=10))] == [lost[1].id]


def test_they_are_found_within_scope_queue_and_kinds(app: Tenure) -> None:
    lose(app, app.service.create_job(**fields(app, "k", lease=0.1), queue="mail").job)
    for miss in ({"queues": ["post"]}, {"kinds": ["other"]}, {"tenant": "other"}, {"organization": "other"}):
        assert take(app, lost=1, **miss).claims == []
    hit = {"queues": ["post", "mail"], "kinds": ["k"], "tenant": "studio", "organization": "studio"}
    assert [found.job.attempt_count for found in take(app, lost=1, **hit).claims] == [2]


def test_a_retry_that_failed_by_itself_is_none_of_them(app: Tenure) -> None:
    one = create(app, "k")
    (claimed,) = take(app).claims
    app.service.fail_job(claimed.lease, code="HANDLER_ERROR", message="no", retryable=True)
    until(lambda: take(app, lost=0).claims, "the retry to come due")
    assert job(app, one).attempt_count == 2
