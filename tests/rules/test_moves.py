"""Every move of a job, on every job there can be: what it leaves behind, and what it must never leave behind."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import CancelRequested, IllegalMove, Invalid, LeaseLost, TenureError, Uncertain
from tenure.rules import dispatch, moves, reconcile
from tenure.rules.authority import Authority
from tenure.rules.dispatch import stored_evidence
from tenure.rules.effect import MARK, EffectState, SettledBy
from tenure.rules.event import STATUS_AFTER
from tenure.rules.job import Change, Job, Options, find_effect, open_boundary
from tenure.rules.outcome import (
    Absent,
    Accepted,
    Declined,
    FailedBeforeDispatch,
    NoAnswer,
    Outcome,
    Rejected,
    Succeeded,
    Unknown,
)
from tenure.rules.status import EXCEPTIONS, LIVE, TERMINAL, TRANSITIONS, Status, may_move
from tests.rules.records import ATTEMPT, LEASE, NOW, TERMS, a_job, a_mark, an_effect, cancelling, everything

LATER = NOW + timedelta(minutes=5)


def first_open(job: Job) -> Any:
    return next((effect for effect in job.effects if effect.is_open), None)


def lookup(job: Job, answer: Any) -> Change:
    effect = first_open(job)
    if effect is None or job.status not in TERMINAL:
        raise IllegalMove("nothing to ask about")
    return reconcile.judge(job, effect, answer, LATER)


def statement(job: Job, evidence: Any) -> Change:
    effect = first_open(job)
    key = effect.operation_key if effect else None
    return reconcile.state_fact(job, evidence, uuid4(), NOW, key=key, actor="op:1", reason="r")


def evidence(job: Job, found: Any) -> Change:
    if not job.effects:
        raise IllegalMove("no operation")
    key = job.effects[0].operation_key
    return dispatch.receive(job, key, ATTEMPT, stored_evidence(uuid4(), key, ATTEMPT, found, NOW), NOW)


def recovered(job: Job) -> Change:
    change = moves.recover(job, NOW)
    if change is None:
        raise IllegalMove("its lease is live, or it has none")
    return change


def finishing(outcome: Outcome) -> Callable[[Job], Change]:
    return lambda job: dispatch.finish(job, LEASE, "send", outcome, [], NOW)


MOVES: dict[str, Callable[[Job], Change]] = {
    "claim": lambda job: moves.claim(job, "B", uuid4(), NOW),
    "claim and start": lambda job: moves.claim(job, "B", uuid4(), NOW, start=True),
    "recover": recovered,
    "renew": lambda job: moves.renew(job, LEASE, NOW, progress="half"),
    "complete": lambda job: moves.complete(job, LEASE, {"n": 1}, NOW),
    "complete, unstorable": lambda job: moves.complete(job, LEASE, float("nan"), NOW),
    "fail, retryable": lambda job: moves.fail(job, LEASE, "E", "m", NOW, retryable=True),
    "fail for good": lambda job: moves.fail(job, LEASE, "E", "m", NOW, retryable=False),
    "time out": lambda job: moves.time_out(job, LEASE, "E", "m", NOW),
    "mark indeterminate": lambda job: moves.mark_indeterminate(job, LEASE, "E", "m", NOW),
    "mark halt unsafe": lambda job: moves.mark_halt_unsafe(job, LEASE, "E", "m", NOW),
    "mark timed out": lambda job: moves.mark_timed_out(job, LEASE, "E", "m", NOW),
    "release": lambda job: moves.release(job, LEASE, "r", NOW),
    "interrupted": lambda job: moves.interrupted(job, LEASE, "SHUTDOWN", "told to stop", NOW),
    "abandoned": lambda job: moves.abandoned(job, LEASE, "SHUTDOWN", "told to stop", NOW),
    "acknowledge": lambda job: moves.acknowledge_cancellation(job, LEASE, NOW),
    "cancel": lambda job: moves.cancel(job, "r", NOW),
    "revoke": lambda job: moves.revoke(job, "r", NOW, actor="op:1"),
    "retry": lambda job: moves.retry(job, NOW, actor="op:1", attempts=1, reopen=()),
    "retry, reopen": lambda job: moves.retry(job, NOW, actor="op:1", attempts=1, reopen=("send",)),
    "begin": lambda job: dispatch.begin(job, LEASE, "send", "v1:one", TERMS, timedelta(seconds=9), NOW),
    "begin another": lambda job: dispatch.begin(job, LEASE, "new", "v1:two", TERMS, timedelta(seconds=9), NOW),
    "resend": lambda job: dispatch.begin(job, LEASE, "send", "v1:one", TERMS, timedelta(seconds=9), NOW, resend=True),
    "mark": lambda job: dispatch.mark(job, LEASE, "own:17", NOW),
    "finish, success": finishing(Succeeded(1)),
    "finish, failure": finishing(FailedBeforeDispatch("x")),
    "finish, refusal": finishing(Rejected("x")),
    "finish, doubt": finishing(Unknown("x")),
    "look-up, accepted": lambda job: lookup(job, Accepted({"id": "r-2"})),
    "look-up, declined": lambda job: lookup(job, Declined("no")),
    "look-up, absent": lambda job: lookup(job, Absent()),
    "statement, accepted": lambda job: statement(job, Accepted({"id": "r-2"})),
    "statement, declined": lambda job: statement(job, Declined("no")),
    "statement, absent": lambda job: statement(job, Absent()),
    "evidence, accepted": lambda job: evidence(job, Accepted({"id": "r-2"})),
    "evidence, declined": lambda job: evidence(job, Declined("no")),
    "evidence, absent": lambda job: evidence(job, Absent()),
    "evidence, not sent": lambda job: evidence(job, FailedBeforeDispatch("no route")),
    "look-up, nothing": lambda job: lookup(job, NoAnswer()),
    "escalate": lambda job: reconcile.escalate(job, "r", NOW),
    "resume sweep": lambda job: reconcile.resume_sweep(job, NOW, actor="op:1"),
}  # fmt: skip
# The commands that the contract names as exceptions to the table.
EXCEPTION_OF = {"retry": "retry_job", "look-up": "reconcile_dispatched", "statement": "reconcile_dispatched"}
HOLDERS = {
    "renew", "complete", "complete, unstorable", "fail, retryable", "fail for good", "time out", "mark indeterminate",
    "mark halt unsafe", "mark timed out", "release", "interrupted", "acknowledge", "begin", "begin another", "resend",
    "mark", "finish, success", "finish, failure", "finish, refusal", "finish, doubt",
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_no_move_breaks_what_must_hold(name: str) -> None:
    """Each move on each job: the table, the trail, the boundary, the generation, the lease."""
    allowed = 0
    for job in everything():
        try:
            change = MOVES[name](job)
        except TenureError:
            continue
        allowed += 1
        check(job, change, name)
    assert allowed > 0, "a move that is never allowed was not tested"


def check(before: Job, change: Change, name: str) -> None:
    after = change.job
    where = f"{name} on {before.status} with {[(e.name, e.state.value) for e in before.effects]}"
    command = EXCEPTION_OF.get(name.split(",", maxsplit=1)[0])
    # A claim that starts is two moves of the table in one step.
    steps = [Status.CLAIMED, after.status] if name == "claim and start" else [after.status]
    status = before.status
    for step in steps:
        assert status is step or may_move(status, step, command), f"{where}: {status} to {step}"
        status = step
    assert after.generation >= before.generation, where
    claims = name.startswith("claim")
    if claims:
        assert (after.generation, after.attempt_count) == (before.generation + 1, before.attempt_count + 1), where
    elif name not in {"release", "interrupted"}:
        assert after.attempt_count == before.attempt_count, where
    assert (after.lease is not None) == (after.status in LIVE), where
    assert (after.finished_at is not None) == (after.status in TERMINAL), where
    if after.status is Status.QUEUED:
        assert not open_boundary(after), where
        assert after.cancel_requested_at is None, where
    # Every status change has its event, which says the status after it and is allowed to.
    told = [event for event in change.events if event.status is not None]
    if after.status is not before.status:
        assert told, where
        assert told[-1].status is after.status, where
    for event in change.events:
        assert event.status is None or event.status in STATUS_AFTER[event.name], where
        assert event.generation == after.generation, where
    # What is saved is what the record says.
    for effect in change.effects:
        assert find_effect(after, effect.name) == effect, where
    changed = {e.name for e in after.effects} ^ {e.name for e in before.effects} | {
        e.name for e in before.effects if find_effect(after, e.name) != e
    }
    assert changed <= {effect.name for effect in change.effects}, where
    if name in HOLDERS:
        assert before.status in LIVE, where
    if before.status is Status.HALT_UNSAFE:
        assert after.status is Status.HALT_UNSAFE, where


def test_the_table_says_what_the_contract_says() -> None:
    queued, claimed, running = Status.QUEUED, Status.CLAIMED, Status.RUNNING
    ends = {"failed", "cancelled", "dead_letter", "indeterminate", "halt_unsafe", "timed_out"}
    assert {status.value: {after.value for after in TRANSITIONS[status]} for status in Status} == {
        "queued": {"claimed", "cancelled"},
        "claimed": {"running", "queued", *ends},
        "running": {"completed", "queued", *ends},
        "completed": set(),
        **{status: set() for status in ends},
    }
    assert {s for s in Status if s not in TERMINAL} == {queued, claimed, running}
    assert len(Status) == 10
    exceptions = {
        (command, before.value, after.value)
        for command, table in EXCEPTIONS.items()
        for before, afters in table.items()
        for after in afters
    }
    assert exceptions == {("retry_job", "failed", "queued")} | {
        ("reconcile_dispatched", before, after)
        for before in ("indeterminate", "timed_out")
        for after in ("completed", "failed", "dead_letter", "cancelled", "queued")
    }
    for before, after in itertools.product(Status, Status):
        for command in (None, "retry_job", "reconcile_dispatched", "anything"):
            named = (command, before.value, after.value) in exceptions
            assert may_move(before, after, command) == (after in TRANSITIONS[before] or named)


# --- claiming ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields,ok",
    [
        ({}, True),
        ({"run_at": NOW}, True),
        ({"run_at": NOW + timedelta(microseconds=1)}, False),
        ({"cancel_requested_at": NOW}, False),
        ({"epoch": 2}, False),
        ({"authority": Authority(epoch=2)}, False),
        ({"epoch": 2, "authority": Authority(epoch=2)}, True),
        ({"authority": Authority(tenant_frozen=True)}, False),
        ({"authority": Authority(database_frozen=True)}, False),
        ({"parked": "unannounced"}, True),
    ],
)
def test_only_an_eligible_job_is_claimed(fields: dict[str, Any], ok: bool) -> None:
    job = a_job("queued", **fields)
    assert moves.eligible(job, NOW) == ok
    if ok:
        claimed = moves.claim(job, "B", ATTEMPT, NOW).job
        assert (claimed.status, claimed.parked) == (Status.CLAIMED, None)
    else:
        with pytest.raises(IllegalMove):
            moves.claim(job, "B", ATTEMPT, NOW)


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.QUEUED])
def test_only_a_queued_job_is_eligible(status: Status) -> None:
    assert not moves.eligible(a_job(status), NOW)


def test_the_order_of_a_queue() -> None:
    def job(nth: int, priority: int, minutes: int) -> Job:
        return replace(
            a_job("queued", priority=priority, run_at=NOW + timedelta(minutes=minutes)),
            id=UUID(int=(0x01900000 << 96) + nth),
        )

    jobs = [job(1, 0, 5), job(2, 5, 9), job(3, 5, 9), job(4, -1, 0), job(5, 5, 1), job(6, 0, 4)]
    assert [one.id.int & 0xF for one in sorted(jobs, key=moves.order)] == [5, 2, 3, 6, 1, 4]


@pytest.mark.parametrize(
    "effects,cancel,attempts,ending,code",
    [
        ((), False, 1, "queued", None),
        ((), False, 3, "dead_letter", "WORKER_LOST"),
        ((), True, 1, "cancelled", None),
        ((), True, 3, "cancelled", None),
        ((an_effect(),), False, 1, "indeterminate", "LEASE_EXPIRED_AFTER_DISPATCH"),
        ((an_effect(),), True, 3, "indeterminate", "LEASE_EXPIRED_AFTER_DISPATCH"),
        ((a_mark(),), False, 3, "indeterminate", "LEASE_EXPIRED_AFTER_DISPATCH"),
        ((an_effect("unknown"),), False, 1, "indeterminate", "LEASE_EXPIRED_AFTER_DISPATCH"),
        ((an_effect("succeeded"),), False, 1, "queued", None),
        ((an_effect("rejected"),), False, 3, "dead_letter", "WORKER_LOST"),
    ],
)
@pytest.mark.parametrize("status", ["claimed", "running"])
def test_four_endings_of_a_lease(
    status: str, effects: Any, cancel: bool, attempts: int, ending: str, code: str | None
) -> None:
    job = a_job(status, *effects, attempt_count=attempts, lease=replace(LEASE, expires_at=NOW))
    if cancel:
        job = cancelling(job)
    change = moves.recover(job, NOW)
    assert change is not None
    assert change.job.status == ending
    if ending != "queued":
        assert change.job.error_code == code
    # The generation rises with a terminal status, else with the next claim.
    assert change.job.generation == (1 if ending == "queued" else 2)
    assert moves.recover(change.job, NOW) is None
    assert moves.recover(replace(job, lease=LEASE), NOW) is None
    assert moves.recover(replace(job, authority=Authority(tenant_frozen=True)), NOW) is None
    assert moves.recover(replace(job, epoch=7), NOW) is not None


# --- holding ----------------------------------------------------------------------------------------------------------


def test_a_renewal_counts_from_now_and_says_so_once() -> None:
    change = moves.renew(a_job("claimed"), LEASE, NOW + timedelta(seconds=59))
    assert change.job.lease is not None
    assert change.job.lease.expires_at == NOW + timedelta(seconds=119)
    assert [event.name for event in change.events] == ["heartbeat"]
    again = moves.renew(change.job, LEASE, NOW + timedelta(seconds=100), progress="3 of 7")
    assert (again.events, again.job.progress) == ((), "3 of 7")
    with pytest.raises(CancelRequested):
        moves.renew(cancelling(a_job("claimed")), LEASE, NOW)


def test_a_completion_over_an_open_effect_is_committed_and_told() -> None:
    change = moves.complete(a_job("running", an_effect(), an_effect("unknown", name="second")), LEASE, 1, NOW)
    assert change.job.status is Status.INDETERMINATE
    assert isinstance(change.error, Uncertain)
    assert "send" in str(change.error)
    assert "second" in str(change.error)
    # A call that is asked again answers the same.
    assert str(moves.left_unresolved(change.job)) == str(change.error)
    for other in (a_job("indeterminate"), a_job("running"), replace(change.job, status=Status.FAILED)):
        assert moves.left_unresolved(other) is None


@pytest.mark.parametrize(
    "effects,cancel,allowed,late",
    [
        ((), False, True, False),
        ((), True, False, False),
        ((an_effect("succeeded"),), True, True, True),
        ((a_mark(),), True, True, True),
        ((an_effect("failed_before_dispatch"),), True, False, False),
        ((an_effect("rejected"),), True, False, False),
        ((a_mark("failed_before_dispatch"),), True, False, False),
        ((a_mark(), an_effect("succeeded")), False, True, False),
    ],
)
def test_a_late_completion_needs_something_that_happened(effects: Any, cancel: bool, allowed: bool, late: bool) -> None:
    job = a_job("running", *effects)
    job = cancelling(job) if cancel else job
    if not allowed:
        with pytest.raises(CancelRequested):
            moves.complete(job, LEASE, 1, NOW)
        return
    change = moves.complete(job, LEASE, 1, NOW)
    assert change.job.status is Status.COMPLETED
    assert change.events[-1].data == ({"cancel_too_late": True} if late else {})
    mark = find_effect(change.job, MARK)
    assert mark is None or (mark.state, mark.settled_by) == (EffectState.SUCCEEDED, SettledBy.COMPLETION)


def test_a_claimed_job_is_not_completed() -> None:
    with pytest.raises(IllegalMove, match="heartbeat"):
        moves.complete(a_job("claimed"), LEASE, 1, NOW)


@pytest.mark.parametrize("result", [float("nan"), {"x": b""}, "a\0", {1: 1}, "x" * (1 << 20)])
def test_an_unstorable_result_fails_or_stays_in_doubt(result: Any) -> None:
    failed = moves.complete(a_job("running"), LEASE, result, NOW).job
    assert (failed.status, failed.error_code) == (Status.FAILED, "RESULT_NOT_STORABLE")
    unsure = moves.complete(a_job("running", a_mark()), LEASE, result, NOW).job
    assert (unsure.status, unsure.error_code) == (Status.INDETERMINATE, "RESULT_NOT_STORABLE")
    assert moves.complete(a_job("running"), LEASE, "x" * ((1 << 20) - 2), NOW).job.status is Status.COMPLETED


@pytest.mark.parametrize(
    "retry,effects,cancel,ending",
    [
        (False, (), False, "timed_out"),
        (False, (), True, "timed_out"),
        (True, (), False, "queued"),
        (True, (), True, "cancelled"),
        (False, (an_effect(),), False, "indeterminate"),
        (True, (a_mark(),), True, "indeterminate"),
    ],
)
def test_running_out_of_time(retry: bool, effects: Any, cancel: bool, ending: str) -> None:
    job = a_job("running", *effects, options=Options(retry_timeouts=retry))
    job = cancelling(job) if cancel else job
    assert moves.time_out(job, LEASE, "E", "m", NOW).job.status == ending


@given(
    attempts=st.integers(1, 20),
    budget=st.integers(1, 20),
    base=st.timedeltas(timedelta(milliseconds=1), timedelta(hours=1)),
    asked=st.none() | st.timedeltas(timedelta(0), timedelta(hours=3)),
    window=st.none() | st.timedeltas(timedelta(0), timedelta(hours=4)),
)
def test_a_retryable_failure_is_queued_in_time_or_buried(
    attempts: int, budget: int, base: timedelta, asked: timedelta | None, window: timedelta | None
) -> None:
    job = a_job(
        "running", attempt_count=attempts, max_attempts=budget, backoff_base=base,
        options=Options(recovery_window=window),
    )  # fmt: skip
    after = moves.fail(job, LEASE, "E", "m", NOW, retryable=True, retry_after=asked).job
    if after.status is Status.QUEUED:
        assert attempts < budget
        assert after.run_at >= NOW + max(timedelta(seconds=1), asked or timedelta(0))
        assert after.run_at <= NOW + max(timedelta(hours=1), asked or timedelta(0))
        assert window is None or after.run_at <= job.created_at + window
    else:
        assert after.status is Status.DEAD_LETTER
        assert attempts >= budget or window is not None
    assert (after.error_code, after.error_message) == ("E", "m")


@pytest.mark.parametrize("code,message", [("", "m"), ("E", ""), (" ", "m"), ("E", "\t"), (None, "m"), ("E", 7)])
def test_an_error_needs_words(code: Any, message: Any) -> None:
    with pytest.raises(Invalid):
        moves.fail(a_job("running"), LEASE, code, message, NOW, retryable=False)


def test_a_release_gives_the_attempt_back() -> None:
    after = moves.release(a_job("running", run_at=NOW - timedelta(hours=9)), LEASE, "r", NOW).job
    assert (after.status, after.attempt_count, after.generation, after.run_at) == (Status.QUEUED, 0, 1, NOW)
    assert moves.release(cancelling(a_job("running")), LEASE, "r", NOW).job.status is Status.CANCELLED
    for effect in (an_effect(), an_effect("unknown"), a_mark()):
        with pytest.raises(Uncertain):
            moves.release(a_job("running", effect), LEASE, "r", NOW)


# --- operators --------------------------------------------------------------------------------------------------------


def test_a_cancellation_is_asked_for_once() -> None:
    asked = moves.cancel(a_job("running"), "first", NOW, actor="op:1")
    assert [event.name for event in asked.events] == ["cancel_requested"]
    again = moves.cancel(asked.job, "second", LATER)
    assert (again.events, again.job.cancel_reason, again.job.cancel_requested_at) == ((), "first", NOW)


def test_a_revocation_keeps_the_first_reason() -> None:
    after = moves.revoke(cancelling(a_job("running")), "second", LATER, actor="op:1").job
    assert (after.cancel_reason, after.cancel_requested_at, after.generation) == ("enough", NOW, 2)


@pytest.mark.parametrize(
    "effects,refused",
    [
        ((), False),
        ((an_effect("succeeded"),), False),
        ((an_effect("failed_before_dispatch"),), False),
        ((an_effect("rejected"),), False),
        ((a_mark("closed"),), True),
        ((a_mark("failed_before_dispatch"),), False),
        ((a_mark("rejected"),), False),
        ((an_effect(),), True),
    ],
)
def test_a_retry_needs_certainty(effects: Any, refused: bool) -> None:
    job = a_job("failed", *effects)
    if refused:
        with pytest.raises(Uncertain):
            moves.retry(job, NOW, actor="op:1", attempts=1, reopen=())
    else:
        after = moves.retry(job, NOW, actor="op:1", attempts=2, reopen=()).job
        assert (after.status, after.max_attempts, after.error_code) == (Status.QUEUED, 5, None)
        assert after.effects == job.effects


def test_reopening_makes_a_new_key_and_tells_the_old_one() -> None:
    job = a_job("failed", an_effect("rejected"), an_effect("rejected", name="second"))
    change = moves.retry(job, NOW, actor="op:1", attempts=1, reopen=("send", "send"))
    effect = find_effect(change.job, "send")
    assert effect is not None
    old = job.effects[0]
    assert (effect.state, effect.operation_key, effect.request_digest, effect.ordinal) == (
        EffectState.FAILED_BEFORE_DISPATCH, f"{old.operation_key}#1", "", 1
    )  # fmt: skip
    assert find_effect(change.job, "second") == job.effects[1]
    assert change.events[0].data["reopened"] == [
        {"name": "send", "operation_key": old.operation_key, "request_digest": "v1:one"}
    ]
    for name in ("third", MARK):
        with pytest.raises(Invalid):
            moves.retry(job, NOW, actor="op:1", attempts=1, reopen=(name,))
    with pytest.raises(Invalid):
        moves.retry(a_job("failed", an_effect("succeeded")), NOW, actor="op:1", attempts=1, reopen=("send",))


@pytest.mark.parametrize(
    ("effects", "cancel", "status", "attempts"),
    [
        ((), False, "queued", 0),
        ((an_effect("succeeded"),), False, "queued", 0),
        ((), True, "cancelled", 1),
        ((an_effect(),), False, "indeterminate", 1),
        ((a_mark(),), False, "indeterminate", 1),
        ((an_effect("unknown"),), True, "indeterminate", 1),
    ],
)
def test_an_interrupted_attempt_is_given_back_unless_a_call_may_be_out(
    effects: Any, cancel: bool, status: str, attempts: int
) -> None:
    job = cancelling(a_job("running", *effects)) if cancel else a_job("running", *effects)
    change = moves.interrupted(job, LEASE, "SHUTDOWN", "told to stop", NOW)
    assert (change.job.status, change.job.attempt_count, change.job.lease) == (status, attempts, None)
    if status == "indeterminate":
        assert (change.job.error_code, change.job.error_message) == ("SHUTDOWN", "told to stop")
    if status == "queued":
        assert change.events[0].data == {"reason": "told to stop"}
        long = moves.interrupted(job, LEASE, "SHUTDOWN", "x" * 10_000, NOW)
        assert len(long.events[0].data["reason"]) == moves.REASON_BYTES_MAX
    with pytest.raises(LeaseLost):
        moves.interrupted(job, replace(LEASE, attempt_id=uuid4()), "SHUTDOWN", "told to stop", NOW)


@pytest.mark.parametrize("effects", [(), (an_effect("succeeded"),), (an_effect(),), (a_mark(),)])
def test_an_abandoned_attempt_keeps_its_job_unless_a_call_may_be_out(effects: Any) -> None:
    job = a_job("running", *effects)
    change = moves.abandoned(job, LEASE, "SHUTDOWN", "it did not end", NOW)
    if open_boundary(job):
        assert (change.job.status, change.job.error_code) == ("indeterminate", "SHUTDOWN")
        with pytest.raises(LeaseLost):
            moves.abandoned(job, replace(LEASE, attempt_id=uuid4()), "SHUTDOWN", "it did not end", NOW)
    else:
        # The code may still run: the lease runs out by itself, and recovery goes on from there.
        assert change == Change(job=job)
