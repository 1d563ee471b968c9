"""
The two hot statements beside the ordinary way, lock, decide, save: from the same rows they leave the same rows.

What `complete_batch` and `claim_batch` say in SQL the rules say in Python. Here both run from one snapshot of a real
database, and everything that they leave is compared, except ids that are made anew each time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenure.errors import TenureError
from tenure.procedures import hold
from tenure.procedures.claim_batch import Claimed, claim_batch, read_effects
from tenure.procedures.complete_batch import complete_batch, completion
from tenure.rules.envelope import ExecutionInput
from tenure.rules.job import Job
from tenure.rules.lease import Lease
from tenure.rules.outcome import FailedBeforeDispatch
from tests.contract.bench import START, Bench, Dump
from tests.contract.build import CASES, RECEIPT, begin, claim, create, running
from tests.contract.test_claim import KINDS, MADE, QUEUES, TENANTS

BLOCKING_ALONE = True

RESULT = {"receipt": RECEIPT, "n": 2**60, "text": "ü"}


def alike(dump: Dump, *, but: tuple[str, ...] = ("command_id",)) -> Dump:
    """Give a dump without what is made anew each time; the trail's own numbering is kept as its order."""
    gone = {"event_id", *but}
    left = {
        table: [{name: value for name, value in row.items() if name not in gone} for row in rows]
        for table, rows in dump.items()
    }
    return {table: rows if table == "event" else sorted(rows, key=repr) for table, rows in left.items()}


# --- completions ------------------------------------------------------------------------------------------------------

PRESENTED: dict[str, Callable[[Lease], Lease]] = {
    "own": lambda lease: lease,
    "other worker": lambda lease: replace(lease, worker_id="B"),
    "other attempt": lambda lease: replace(lease, attempt_id=uuid4()),
    "older generation": lambda lease: replace(lease, generation=lease.generation - 1),
    "newer generation": lambda lease: replace(lease, generation=lease.generation + 1),
}
AUTHORITY = {
    "as it was": "",
    "rotated": "UPDATE $authority SET epoch = epoch + 1 WHERE tenant = 'acme'",
    "tenant frozen": "UPDATE $authority SET frozen = (1 = 1) WHERE tenant = 'acme'",
    "database frozen": "INSERT INTO $meta (key, value) VALUES ('frozen', 'a test')",
}
# Where the statement completes, and nowhere else. A mark, and a cancellation that came too late, are for the rules.
PLAIN = {"running", "running, sent"}


@pytest.mark.parametrize("authority", AUTHORITY)
@pytest.mark.parametrize("case", CASES)
def test_a_completion_in_a_batch_leaves_what_the_rules_decide(bench: Bench, case: str, authority: str) -> None:
    made = CASES[case](bench)
    if AUTHORITY[authority]:
        bench.sql(AUTHORITY[authority])
    before = bench.snapshot()
    for presented, change in PRESENTED.items():
        lease = change(made.lease)
        one = completion(lease, "acme", RESULT)
        assert one is not None
        done = bench.run(complete_batch([one]))
        after = bench.dump()
        bench.restore(before)
        plain = case in PLAIN and presented == "own" and authority == "as it was"
        assert done == ({made.job_id} if plain else set()), presented
        if not plain:
            assert after == before.dump, presented
            continue
        (answer,) = bench.run(hold.hold([hold.completing(lease, RESULT)]))
        assert isinstance(answer, Job)
        assert answer.status == "completed"
        assert alike(after) == alike(bench.dump())
        bench.restore(before)


def test_what_the_statement_leaves_alone_the_rules_refuse_or_decide_otherwise(bench: Bench) -> None:
    """The control of the one above: no running job that the rules would plainly complete is left to the slow way."""
    for name, build in CASES.items():
        bench.reset()
        case = build(bench)
        (answer,) = bench.run(hold.hold([hold.completing(case.lease, RESULT)]))
        if not isinstance(answer, TenureError) and answer.status == "completed" and name not in PLAIN:
            closed = [effect for effect in answer.effects if effect.name == ""]
            late = bench.table("event", case.job_id)[-1]["data"]
            assert closed or (late is not None and "cancel_too_late" in late), name


def test_a_batch_completes_each_of_its_jobs_by_itself(bench: Bench) -> None:
    leases = []
    for nth in range(5):
        create(bench.service, f"k-{nth}")
        leases.append(claim(bench.service, start=True).lease)
    begin(bench.service, leases[1])
    stale = replace(leases[3], generation=7)
    asked = [completion(lease, "acme", nth) for nth, lease in enumerate([*leases[:3], stale, leases[4]])]
    done = bench.run(complete_batch([one for one in reversed(asked) if one is not None]))
    assert done == {leases[nth].job_id for nth in (0, 2, 4)}
    jobs = {nth: bench.service.get_job(lease.job_id) for nth, lease in enumerate(leases)}
    assert {nth: job.result for nth, job in jobs.items() if job.status == "completed"} == {0: 0, 2: 2, 4: 4}
    assert {jobs[1].status, jobs[3].status} == {"running"}
    assert bench.service.complete_job(leases[3], result=3).status == "completed"


def test_a_lease_that_ends_at_this_instant_completes_nothing(bench: Bench) -> None:
    case = running(bench)
    one = completion(case.lease, "acme", None)
    assert one is not None
    before = bench.snapshot()
    bench.advance(seconds=60)
    assert bench.run(complete_batch([one])) == set()
    bench.restore(before)
    bench.advance(seconds=60, microseconds=-1)
    assert bench.run(complete_batch([one])) == {case.job_id}
    assert bench.service.get_job(case.job_id).result is None


def test_a_batch_that_is_run_again_answers_itself(bench: Bench) -> None:
    case = running(bench)
    one = completion(case.lease, "acme", RESULT)
    assert one is not None
    procedure = complete_batch([one])
    assert bench.run(procedure) == {case.job_id}
    before = bench.dump()
    # The same value, as after a lost reply; a new one is judged anew.
    assert bench.run(procedure) == {case.job_id}
    assert bench.run(complete_batch([one])) == set()
    assert bench.dump() == before


def test_a_result_that_cannot_be_stored_is_no_plain_completion(bench: Bench) -> None:
    case = running(bench)
    assert completion(case.lease, "acme", float("nan")) is None
    assert completion(case.lease, "acme", 1.5) is not None
    ask = hold.completing(case.lease, float("nan"), tenant="acme")
    assert ask.plain is None
    (answer,) = bench.run(hold.hold([ask]))
    assert isinstance(answer, Job)
    assert answer.error_code == "RESULT_NOT_STORABLE"


# --- claims -----------------------------------------------------------------------------------------------------------

USED = st.fixed_dictionaries(
    {"attempts": st.integers(0, 2), "effect": st.booleans(), "lease": st.sampled_from([1, 60, 3600])}
)


@given(
    made=st.lists(st.tuples(MADE, USED), min_size=1, max_size=8),
    queues=st.none() | st.lists(st.sampled_from(QUEUES), min_size=1, max_size=3),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=2, unique=True),
    tenant=st.none() | st.sampled_from(TENANTS),
    limit=st.integers(1, 6),
    duration=st.none() | st.sampled_from([timedelta(seconds=5), timedelta(hours=2)]),
    rotated=st.booleans(),
    fair=st.booleans(),
)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_claim_of_a_batch_leaves_what_the_rules_decide(
    bench: Bench, made: list[tuple[dict[str, Any], dict[str, Any]]], rotated: bool, fair: bool, **asked: Any
) -> None:
    bench.reset()
    if fair:
        bench.service.set_queue("q1", fair=True, weights={"north": 2})
    bench.advance(minutes=10)
    for nth, (fields, used) in enumerate(made):
        _waiting(bench, nth, fields, used)
    bench.advance(minutes=90)
    if rotated:
        bench.sql("UPDATE $authority SET epoch = 2 WHERE tenant = ?", "north")
    before = bench.snapshot()
    scope = {name: asked[name] for name in ("limit", "queues", "tenant")}
    taken = bench.run(claim_batch('wörker "A"', asked["kinds"], lease_duration=asked["duration"], **scope))
    after = bench.dump()
    unread = [one for one in taken.claims if isinstance(one, Claimed) and one.unread]
    assert all(one.lease.generation > 1 for one in unread)
    effects = bench.run(read_effects([one.lease.job_id for one in unread]))
    for one in unread:
        one.has(effects.get(one.lease.job_id, ()))
    bench.restore(before)
    if fair:
        # Turns are the worker's own; whatever it takes, the rules would make the same record of it.
        scope["limit"] = 100
    ordinary = bench.service.claim_jobs(
        'wörker "A"', kinds=asked["kinds"], start=True, lease_duration=asked["duration"], **scope
    )
    if fair:
        same = {one.job.id: one for one in ordinary}
        assert len(taken.claims) == min(asked["limit"], len(ordinary))
        for line in {(one.job.queue, one.job.tenant) for one in ordinary}:
            inside = [one.job.id for one in ordinary if (one.job.queue, one.job.tenant) == line]
            mine = [one.job.id for one in taken.claims if (one.job.queue, one.job.tenant) == line]
            assert mine == inside[: len(mine)]
        ordinary = [same[one.job.id] for one in taken.claims]
    assert [_same(one.job) for one in taken.claims] == [_same(one.job) for one in ordinary]
    assert [one.lease for one in taken.claims] == [one.job.lease for one in taken.claims]
    assert {one.lease.attempt_id.variant for one in taken.claims} <= {UUID(int=0x8 << 60).variant}
    # The claim's own id, the attempts' ids and the events' data, which name the attempt, are new each time.
    new = ("command_id", "attempt_id", "claim_id", "data")
    theirs = bench.dump()
    if fair:
        mine = {str(one.job.id) for one in taken.claims}
        after, theirs = only(after, mine), only(theirs, mine)
    assert alike(after, but=new) == alike(theirs, but=new)
    for one in taken.claims:
        bench_events = [row for row in after["event"] if row["job_id"] == str(one.job.id)]
        told = {"worker": 'wörker "A"', "attempt": one.job.attempt_count, "attempt_id": str(one.lease.attempt_id)}
        assert _data(bench_events[-1]["data"]) == told


def _waiting(bench: Bench, nth: int, fields: dict[str, Any], used: dict[str, Any]) -> None:
    """Make a job that waits, perhaps after attempts that failed, perhaps with an effect that did not happen."""
    given_ = {name: fields[name] for name in ("queue", "kind", "tenant", "priority")}
    job = create(
        bench.service,
        f"k-{nth}",
        execution=ExecutionInput(tenant=fields["tenant"], actor="user:42", trace="t-1"),
        scheduled_at=START + timedelta(minutes=3 + fields["due"]),
        lease_duration=timedelta(seconds=used["lease"]),
        max_attempts=5,
        **given_,
    )
    for _ in range(used["attempts"]):
        bench.advance(seconds=600)
        taken = bench.service.claim_jobs("Z", limit=50, start=True)
        for one in taken:
            if one.job.id == job.id and used["effect"] and not one.job.effects:
                begin(bench.service, one.lease)
                bench.service.finish_effect(one.lease, name="send", outcome=FailedBeforeDispatch("no connection"))
            if one.job.id == job.id:
                bench.service.fail_job(one.lease, code="LATER", message="not yet", retryable=True)
            else:
                bench.service.release_job(one.lease, reason="not mine")


def only(dump: Dump, jobs: set[str]) -> Dump:
    """Give the rows of some jobs, without the place of each event among those of others."""
    left = {table: [row for row in rows if row.get("job_id") in jobs] for table, rows in dump.items()}
    return {**left, "event": sorted(left["event"], key=lambda row: (row["job_id"], row["event_id"]))}


def _same(job: Job) -> Job:
    assert job.lease is not None
    return replace(job, lease=replace(job.lease, attempt_id=UUID(int=0)))


def _data(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value
