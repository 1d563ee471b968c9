"""One job in one statement leaves the rows that `create` leaves, and gives way to it where its guess is wrong."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tenure.errors import Conflict, Refused
from tenure.procedures.enqueue import create, create_at_once
from tenure.rules.creation import NewJob, new_job
from tenure.yields import new_id
from tests.contract.bench import START, Bench
from tests.contract.build import EXECUTION, KIND, PAYLOAD, claim
from tests.contract.build import create as create_one
from tests.contract.refusal import refused


def job(key: str = "k-1", **more: Any) -> NewJob:
    fields = {"organization": "acme", "project": "p1", "kind": KIND, "payload": PAYLOAD, "execution": EXECUTION}
    return new_job(job_id=new_id(), idempotency_key=key, **{**fields, **more})


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "all": {
        "subject": "quote:17",
        "queue": "mail",
        "priority": 7,
        "max_attempts": 9,
        "backoff_base": timedelta(seconds=3),
        "lease_duration": timedelta(seconds=5),
        "kind_version": 4,
        "on_reconciled": "resume",
        "on_declined": "dead_letter",
    },
    "later": {"scheduled_at": START + timedelta(days=1)},
    "earlier": {"scheduled_at": START - timedelta(days=1)},
    "fair": {"queue": "shared"},
}


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_it_leaves_the_same_rows_and_gives_the_same_record(bench: Bench, shape: str) -> None:
    bench.service.set_queue("shared", fair=True)
    start = bench.snapshot()
    new = job("k-new", **SHAPES[shape])
    [one] = bench.run(create([new]))
    rows, record = bench.dump(), one.job
    bench.restore(start)
    other = bench.run(create_at_once(new))
    assert other.created
    assert bench.dump() == rows
    assert other.job == record
    # And what is stored is what was given back.
    assert bench.service.get_job(new.job_id) == record
    if shape in {"plain", "all", "earlier"}:
        assert claim(bench.service, queues=[record.queue]).job.id == new.job_id


def test_a_key_that_is_known_answers_as_ever(bench: Bench) -> None:
    first = create_one(bench.service)
    before = bench.dump()
    again = bench.run(create_at_once(job()))
    assert (again.created, again.job) == (False, first)
    assert bench.dump() == before
    with refused(bench, Conflict, code="IDEMPOTENCY_MISMATCH"):
        bench.run(create_at_once(job(payload={"other": 1})))
    assert bench.run(create_at_once(job("k-2"))).created


def test_the_same_value_run_twice_creates_one_job(bench: Bench) -> None:
    procedure = create_at_once(job())
    first, second = bench.run(procedure), bench.run(procedure)
    assert first.job == second.job
    assert len(bench.service.list_jobs(tenant="acme")) == 1


@pytest.mark.parametrize("guess", [1, 2, 3])
def test_a_wrong_guess_of_the_epoch_costs_trips_and_nothing_else(bench: Bench, guess: int) -> None:
    create_one(bench.service, "k-0")
    bench.sql("UPDATE $authority SET epoch = 2 WHERE tenant = 'acme'")
    start = bench.snapshot()
    new = job()
    [one] = bench.run(create([new]))
    rows, record = bench.dump(), one.job
    assert record.epoch == 2
    bench.restore(start)
    other = bench.run(create_at_once(new, epoch=guess))
    assert (other.created, other.job) == (True, record)
    assert bench.dump() == rows


def test_a_frozen_tenant_is_told(bench: Bench) -> None:
    create_one(bench.service, "k-0")
    bench.sql("UPDATE $authority SET frozen = ? WHERE tenant = 'acme'", True)
    made = bench.run(create_at_once(job()))
    assert (made.created, made.job.phase) == (True, "HELD")
    assert bench.service.get_job(made.job.id) == made.job


def test_a_draining_queue_takes_nothing_this_way_either(bench: Bench) -> None:
    known = bench.run(create_at_once(job("k-old", queue="mail")))
    bench.service.drain_queue("mail", actor="op:1")
    with refused(bench, Refused, code="QUEUE_DRAINING"):
        bench.run(create_at_once(job("k-new", queue="mail")))
    again = bench.run(create_at_once(job("k-old", queue="mail")))
    assert (again.created, again.job.id) == (False, known.job.id)
    assert bench.run(create_at_once(job("k-new", queue="print"))).created
