"""How an attempt ends: results, failures, backoff, dead letters, time limits, and what cannot be stored."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from tenure import verbs
from tenure.errors import Invalid, LeaseLost, TenureError, Uncertain
from tenure.procedures import hold as holding
from tenure.rules.job import Job, Options
from tenure.rules.lease import Lease
from tenure.rules.outcome import Accepted
from tenure.rules.payload import RESULT_BYTES_MAX, encode
from tenure.verbs.scope import Scope
from tests.contract.bench import START, Bench
from tests.contract.build import CASES, RECEIPT, begin, claim, create
from tests.contract.refusal import refused
from tests.rules.corpus import ACCEPTED, REFUSED, same

THROUGH_THE_POOLER = True


def held(bench: Bench, **fields: Any) -> Lease:
    create(bench.service, **fields)
    return claim(bench.service, start=True).lease


# --- results ----------------------------------------------------------------------------------------------------------


def test_a_result_comes_back_as_it_was(bench: Bench) -> None:
    case = CASES["running"](bench)
    snapshot = bench.snapshot()
    # Many at once, as they stand in an object; those at the limit of depth and a few of each kind by themselves.
    whole = {name: make() for name, make in ACCEPTED.items() if "at_the_limit" not in name}
    assert bench.service.complete_job(case.lease, result=whole).status == "completed"
    found = bench.service.get_job(case.job_id).result
    assert [name for name in whole if not same(found[name], whole[name])] == []
    for name in ("null", "true", "zero", "empty_text", "empty_list", "empty_object", "depth_at_the_limit", "tuple"):
        bench.restore(snapshot)
        job = bench.service.complete_job(case.lease, result=ACCEPTED[name]())
        assert job.status == "completed", name
        assert same(bench.service.get_job(case.job_id).result, ACCEPTED[name]()), name


def test_a_result_that_cannot_be_stored_ends_the_job_in_the_same_attempt(bench: Bench) -> None:
    case = CASES["running, sent"](bench)
    snapshot = bench.snapshot()
    for name, (make, _, _) in REFUSED.items():
        bench.restore(snapshot)
        job = bench.service.complete_job(case.lease, result=make())
        assert (job.status, job.error_code, name) == ("failed", "RESULT_NOT_STORABLE", name)
    stored = bench.service.get_job(case.job_id)
    assert (stored.status, stored.result, stored.attempt_count) == ("failed", None, 1)
    # What was sent stays proven.
    assert [effect.receipt for effect in bench.service.list_effects(case.job_id)] == [RECEIPT]
    bench.restore(snapshot)
    assert bench.service.complete_job(case.lease, result={"x": 1}).status == "completed"


def test_a_result_may_have_a_mebibyte_and_not_a_byte_more(bench: Bench) -> None:
    frame = len(encode({"t": ""}))
    lease = held(bench)
    snapshot = bench.snapshot()
    job = bench.service.complete_job(lease, result={"t": "x" * (RESULT_BYTES_MAX - frame + 1)})
    assert (job.status, job.error_code) == ("failed", "RESULT_NOT_STORABLE")
    bench.restore(snapshot)
    assert bench.service.complete_job(lease, result={"t": "x" * (RESULT_BYTES_MAX - frame)}).status == "completed"


def test_an_unstorable_result_with_an_open_mark_is_indeterminate(bench: Bench) -> None:
    case = CASES["running, mark"](bench)
    job = bench.service.complete_job(case.lease, result=float("nan"))
    assert (job.status, job.error_code) == ("indeterminate", "RESULT_NOT_STORABLE")
    assert [row["state"] for row in bench.table("effect", case.job_id)] == ["pending"]


def test_completing_over_an_open_effect_is_uncertain_whatever_the_handler_swallowed(bench: Bench) -> None:
    case = CASES["running, effect"](bench)
    for result in ({"ok": True}, float("nan")):
        snapshot = bench.snapshot()
        with pytest.raises(Uncertain):
            bench.service.complete_job(case.lease, result=result)
        job = bench.service.get_job(case.job_id)
        assert (job.status, job.error_code, job.result) == ("indeterminate", "EFFECT_UNRESOLVED", None)
        assert "send" in str(job.error_message)
        bench.restore(snapshot)


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_retryable_failure_waits_and_runs_again(bench: Bench) -> None:
    lease = held(bench)
    job = bench.service.fail_job(lease, code="TRANSIENT", message="try again", retryable=True)
    assert (job.status, job.error_code, job.error_message, job.lease) == ("queued", "TRANSIENT", "try again", None)
    assert (job.attempt_count, job.generation, job.scheduled_at) == (1, 1, START)
    assert timedelta(seconds=22.5) <= job.run_at - bench.now <= timedelta(seconds=30)
    event = bench.service.list_job_events(job.id)[-1]
    assert (event.name, event.status) == ("retried", "queued")
    assert event.data == {
        "code": "TRANSIENT", "attempt": 1, "delay_us": (job.run_at - bench.now) // timedelta(microseconds=1)
    }  # fmt: skip
    bench.clock.advance(job.run_at - bench.now - timedelta(microseconds=1))
    assert bench.service.claim_job("A") is None
    bench.advance(microseconds=1)
    again = claim(bench.service, start=True)
    assert (again.job.attempt_count, again.job.generation) == (2, 2)
    done = bench.service.complete_job(again.lease, result=None)
    assert (done.error_code, done.error_message) == (None, None)


def test_backoff_doubles_and_never_exceeds_an_hour(bench: Bench) -> None:
    job = create(bench.service, max_attempts=14)
    for attempt in range(1, 14):
        lease = claim(bench.service, start=True).lease
        after = bench.service.fail_job(lease, code="E", message="m", retryable=True)
        full = min(30 * 2 ** (attempt - 1), 3600)
        delay = (after.run_at - bench.now).total_seconds()
        assert full * 0.75 <= delay <= full, attempt
        bench.clock.advance(after.run_at - bench.now)
    last = claim(bench.service, start=True).lease
    dead = bench.service.fail_job(last, code="E", message="m", retryable=True)
    assert (dead.status, dead.attempt_count, dead.finished_at) == ("dead_letter", 14, bench.now)
    event = bench.service.list_job_events(job.id)[-1]
    assert (event.name, event.data) == ("dead_lettered", {"code": "E", "reason": "attempt 14 of 14"})


def test_a_short_base_still_waits_a_second(bench: Bench) -> None:
    lease = held(bench, backoff_base=timedelta(milliseconds=1))
    job = bench.service.fail_job(lease, code="E", message="m", retryable=True)
    assert job.run_at - bench.now == timedelta(seconds=1)


def test_a_provider_that_asks_for_patience_gets_it(bench: Bench) -> None:
    lease = held(bench)
    job = bench.service.fail_job(lease, code="E", message="m", retryable=True, retry_after=timedelta(minutes=7))
    assert job.run_at - bench.now == timedelta(minutes=7)
    bench.clock.advance(timedelta(minutes=7))
    lease = claim(bench.service, start=True).lease
    job = bench.service.fail_job(lease, code="E", message="m", retryable=True, retry_after=timedelta(seconds=2))
    assert job.run_at - bench.now >= timedelta(seconds=45)


def test_jobs_that_fail_together_do_not_come_back_together(bench: Bench) -> None:
    count = 200
    bench.service.create_jobs(
        [
            {"organization": "acme", "project": "p1", "kind": "k", "payload": {}, "idempotency_key": f"k-{n}"}
            for n in range(count)
        ]
    )
    claims = bench.service.claim_jobs("A", limit=count, start=True)
    answers = bench.run(holding.hold([holding.failing(one.lease, "E", "m", retryable=True) for one in claims]))
    seconds = Counter(int((job.run_at - bench.now).total_seconds()) for job in answers if isinstance(job, Job))
    assert sum(seconds.values()) == count
    # Drawn from the ids, which differ in every run: spread over the last quarter of 30 s, so over 8 buckets.
    assert max(seconds.values()) <= count * 0.3
    assert len(seconds) >= 7


def test_a_failure_for_good_goes_to_review_at_once(bench: Bench) -> None:
    lease = held(bench)
    job = bench.service.fail_job(lease, code="PERMANENT", message="no such account", retryable=False)
    assert (job.status, job.phase, job.error_code, job.attempt_count) == ("failed", "NEEDS_ATTENTION", "PERMANENT", 1)
    assert bench.service.claim_job("B") is None


def test_the_recovery_window_ends_the_retries(bench: Bench) -> None:
    window = timedelta(seconds=60)
    made = bench.run(
        verbs.create_job(
            Scope(), organization="acme", project="p1", idempotency_key="k-1", kind="k", payload={}, max_attempts=99,
            options=Options(recovery_window=window),
        )
    )  # fmt: skip
    lease = claim(bench.service, start=True).lease
    job = bench.service.fail_job(lease, code="E", message="m", retryable=True)
    assert job.status == "queued"
    bench.clock.advance(job.run_at - bench.now)
    lease = claim(bench.service, start=True).lease
    dead = bench.service.fail_job(lease, code="E", message="m", retryable=True)
    assert dead.status == "dead_letter"
    assert "window" in bench.service.list_job_events(made.job.id)[-1].data["reason"]


BAD_ERRORS: list[tuple[Any, Any]] = [("", "m"), (" ", "m"), ("E", ""), ("E", "\n"), (None, "m"), ("E", None), (7, "m")]


@pytest.mark.parametrize("verb", ["fail_job", "mark_indeterminate", "mark_halt_unsafe", "mark_timed_out"])
def test_an_error_needs_a_code_and_a_message(bench: Bench, verb: str) -> None:
    lease = held(bench)
    more = {"retryable": True} if verb == "fail_job" else {}
    for code, message in BAD_ERRORS:
        with refused(bench, Invalid, code="ERROR_REQUIRED"):
            getattr(bench.service, verb)(lease, code=code, message=message, **more)
    job = getattr(bench.service, verb)(lease, code="E", message="m", **more)
    assert (job.error_code, job.error_message) == ("E", "m")


@pytest.mark.parametrize(
    "text,stored",
    [
        ("a\0b", "a\ufffdb"),
        ("cut \ud83d", "cut \ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
        ("'; DROP TABLE job; --", "'; DROP TABLE job; --"),
        ("é" * 10_000, None),
        ("x" * 5_000_000, None),
    ],
)
def test_an_error_text_is_made_storable_and_never_stops_the_failure(
    bench: Bench, text: str, stored: str | None
) -> None:
    lease = held(bench)
    job = bench.service.fail_job(lease, code=f"E{text}", message=text, retryable=False)
    assert job.status == "failed"
    read = bench.service.get_job(job.id)
    assert read.error_message is not None
    assert read.error_code is not None
    if stored is not None:
        assert (read.error_message, read.error_code) == (stored, f"E{stored}")
    else:
        assert read.error_message.startswith(text[:100])
        assert "cut from" in read.error_message
    assert len(read.error_message.encode()) <= 8192
    assert len(read.error_code.encode()) <= 100


# --- time limits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name,retry,ending",
    [
        ("running", False, "timed_out"),
        ("running", True, "queued"),
        ("running, effect", False, "indeterminate"),
        ("running, effect", True, "indeterminate"),
        ("running, mark", True, "indeterminate"),
        ("running, cancelling", True, "cancelled"),
        ("running, cancelling", False, "timed_out"),
    ],
)
def test_a_handler_that_ran_out_of_time_ends_as_its_kind_says(
    bench: Bench, name: str, retry: bool, ending: str
) -> None:
    case = CASES[name](bench)
    if retry:
        bench.sql(
            "UPDATE $job SET options = ? WHERE job_id = ?",
            encode({"retry_timeouts": True, "escalate_after_us": 600_000_000}),
            case.job_id,
        )
    job = bench.run(holding.hold_one(holding.timing_out(case.lease, "TOO_LONG", "m")))
    assert job.status == ending


@pytest.mark.parametrize(
    "verb,status", [("mark_indeterminate", "indeterminate"), ("mark_halt_unsafe", "halt_unsafe"),
                    ("mark_timed_out", "timed_out")]
)  # fmt: skip
def test_the_owner_alone_may_give_up(bench: Bench, verb: str, status: str) -> None:
    case = CASES["expired"](bench)
    with refused(bench, LeaseLost, reason="expired"):
        getattr(bench.service, verb)(case.lease, code="E", message="m")
    current = claim(bench.service, "B")
    job = getattr(bench.service, verb)(current.lease, code="E", message="m")
    assert (job.status, job.error_code, job.phase, job.lease) == (status, "E", "NEEDS_ATTENTION", None)
    assert bench.service.claim_job("C") is None


def test_release_gives_the_attempt_back_again_and_again(bench: Bench) -> None:
    create(bench.service, max_attempts=1)
    taken = claim(bench.service)
    for nth in range(1, 4):
        if nth > 1:
            taken = claim(bench.service, start=nth == 2)
        assert (taken.job.attempt_count, taken.job.generation) == (1, nth)
        job = bench.service.release_job(taken.lease, reason="shutting down")
        assert (job.status, job.attempt_count, job.run_at) == ("queued", 0, bench.now)
    for bad in ("", "\n", "x" * 201, None):
        with refused(bench, Invalid):
            bench.service.release_job(taken.lease, reason=bad)  # type: ignore[arg-type]


# --- nothing ever moves a finished job --------------------------------------------------------------------------------


def test_a_halted_job_never_moves_for_anyone(bench: Bench) -> None:
    case = CASES["halt_unsafe"](bench)
    body = bench.service.get_job(case.job_id)
    service = bench.service
    attempts: list[Callable[[], Any]] = [
        lambda: service.retry_job(case.job_id, actor="op:1"),
        lambda: service.cancel_job(case.job_id, reason="r"),
        lambda: service.revoke_job(case.job_id, reason="r", actor="op:1"),
        lambda: service.reconcile_dispatched(case.job_id, Accepted(), reason="r", actor="op:1"),
        lambda: service.complete_job(case.lease, result=None),
        lambda: service.heartbeat(case.lease),
        lambda: service.claim_job("B"),
        lambda: service.sweep_reconciliation_candidates(organization="acme", project="p1", lookup=_never),
    ]
    before = bench.dump()
    for attempt in attempts:
        bench.advance(hours=1)
        with contextlib.suppress(TenureError):  # which refusal it is, the table says
            attempt()
        assert bench.dump() == before
    assert bench.service.get_job(case.job_id) == body


def _never(key: str, job: Job) -> Any:
    raise AssertionError(f"nobody asks about {key}")


def test_a_job_is_never_both_finished_and_failed(bench: Bench) -> None:
    """A table constraint says it once more: a completed row has no error, every other ending has one."""
    case = CASES["completed"](bench)
    error = sqlite3.IntegrityError if bench.dialect == "sqlite" else psycopg.IntegrityError
    for sql in (
        "UPDATE $outcome SET error_code = 'E' WHERE job_id = ?",
        "UPDATE $outcome SET status = 'failed' WHERE job_id = ?",
        "UPDATE $outcome SET status = 'queued' WHERE job_id = ?",
    ):
        with pytest.raises(error):
            bench.sql(sql, case.job_id)
    bench.sql("UPDATE $outcome SET finished_at = finished_at WHERE job_id = ?", case.job_id)


def test_instants_are_the_stores(bench: Bench) -> None:
    made = create(bench.service)
    assert made.created_at == START
    bench.advance(seconds=3)
    taken = claim(bench.service, start=True)
    bench.advance(seconds=4)
    done = bench.service.complete_job(taken.lease, result=None)
    times: list[datetime] = [event.at for event in bench.service.list_job_events(made.id)]
    assert times == [START + timedelta(seconds=3), START + timedelta(seconds=7)]
    assert done.finished_at == START + timedelta(seconds=7)
    begin_again = create(bench.service, "k-2")
    assert begin_again.created_at == START + timedelta(seconds=7)
    lease = claim(bench.service, start=True).lease
    begin(bench.service, lease)
    assert bench.service.list_effects(begin_again.id)[0].created_at == START + timedelta(seconds=7)
