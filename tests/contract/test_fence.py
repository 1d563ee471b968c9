"""The fence: every command a worker sends, under a lease that is wrong in one way at a time, beside the right one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from tenure.errors import CancelRequested, EpochClosed, IllegalMove, LeaseLost, TenureError, Uncertain
from tenure.procedures import hold as holding
from tenure.procedures import publish as publishing
from tenure.rules.lease import Lease
from tenure.rules.outcome import Accepted, Rejected, Succeeded, Unknown
from tenure.service import AsyncDurableJobService, DurableJobService
from tenure.stores import open_async_store, open_store
from tenure.stores.contract import AsyncStore
from tests.contract.bench import Bench
from tests.contract.build import CASES, MAILER, OWN_KEY, RECEIPT, REQUEST, begin, claim, create
from tests.contract.caller import own
from tests.contract.refusal import refused
from tests.contract.test_join import wait_for_lock

THROUGH_THE_POOLER = True

Command = Callable[[DurableJobService, Lease], Any]

COMMANDS: dict[str, Command] = {
    "mark dispatched": lambda s, lease: s.mark_provider_dispatched(lease, operation_key=OWN_KEY),
    "begin": lambda s, lease: s.begin_effect(lease, name="other", request=REQUEST, provider=MAILER),
    "complete": lambda s, lease: s.complete_job(lease, result=1),
    "fail, retryable": lambda s, lease: s.fail_job(lease, code="E", message="m", retryable=True),
    "fail for good": lambda s, lease: s.fail_job(lease, code="E", message="m", retryable=False),
    "mark indeterminate": lambda s, lease: s.mark_indeterminate(lease, code="E", message="m"),
    "mark halt unsafe": lambda s, lease: s.mark_halt_unsafe(lease, code="E", message="m"),
    "mark timed out": lambda s, lease: s.mark_timed_out(lease, code="E", message="m"),
    "release": lambda s, lease: s.release_job(lease, reason="r"),
    "acknowledge": lambda s, lease: s.acknowledge_cancellation(lease),
    "finish what was never begun": lambda s, lease: s.finish_effect(lease, name="send", outcome=Succeeded()),
}
FREEZE = "UPDATE $authority SET frozen = (1 = 1) WHERE tenant = 'acme'"
THAW = "UPDATE $authority SET frozen = (1 = 0) WHERE tenant = 'acme'"
ROTATE = "UPDATE $authority SET epoch = epoch + 1 WHERE tenant = 'acme'"
LOCK_DOWN = "INSERT INTO $meta (key, value) VALUES ('frozen', 'restored')"
OPEN_UP = "DELETE FROM $meta WHERE key = 'frozen'"


def right(bench: Bench, command: str) -> Lease:
    """Give a lease under which the command is allowed."""
    return CASES["running, cancelling" if command == "acknowledge" else "running"](bench).lease


WRONG: dict[str, tuple[Callable[[Lease], Lease], str | None, str]] = {
    "another worker's": (lambda lease: replace(lease, worker_id="B"), None, "worker"),
    "another attempt's": (lambda lease: replace(lease, attempt_id=uuid4()), None, "attempt"),
    "an older one": (lambda lease: replace(lease, generation=lease.generation - 1), None, "generation"),
    "a newer one": (lambda lease: replace(lease, generation=lease.generation + 1), None, "generation"),
    "superseded": (lambda lease: lease, ROTATE, "epoch"),
    "of a frozen tenant": (lambda lease: lease, FREEZE, "frozen"),
    "of a frozen database": (lambda lease: lease, LOCK_DOWN, "frozen"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_lease_that_is_wrong_in_one_way_is_refused_and_the_right_one_is_not(bench: Bench, command: str) -> None:
    lease = right(bench, command)
    snapshot = bench.snapshot()
    for change, sql, reason in WRONG.values():
        bench.restore(snapshot)
        if sql:
            bench.sql(sql)
        error = EpochClosed if reason in {"epoch", "frozen"} else LeaseLost
        with refused(bench, error, reason=reason) as caught:
            COMMANDS[command](bench.service, change(lease))
        assert str(lease.job_id) in str(caught.value)
        assert bench.service.heartbeat(change(lease)) is False
    bench.restore(snapshot)
    bench.advance(seconds=60)
    with refused(bench, LeaseLost, reason="expired"):
        COMMANDS[command](bench.service, lease)
    assert bench.service.heartbeat(lease) is False
    # What the holder itself says of its lease is not believed: only the stored expiry counts.
    with refused(bench, LeaseLost, reason="expired"):
        COMMANDS[command](bench.service, replace(lease, expires_at=bench.now + timedelta(hours=1)))
    bench.restore(snapshot)
    bench.advance(seconds=59, microseconds=999_999)
    if command == "finish what was never begun":
        with refused(bench, IllegalMove):
            COMMANDS[command](bench.service, lease)
    else:
        COMMANDS[command](bench.service, replace(lease, expires_at=bench.now - timedelta(hours=1)))
        assert len(bench.trail(lease.job_id)) >= 2


def test_the_first_reason_that_applies_is_named(bench: Bench) -> None:
    case = CASES["running"](bench)
    wrong = replace(case.lease, worker_id="B", attempt_id=uuid4(), generation=9)
    bench.sql(ROTATE)
    bench.sql(FREEZE)
    bench.advance(minutes=5)
    steps = [
        ("worker", {"worker_id": "A"}),
        ("attempt", {"attempt_id": case.lease.attempt_id}),
        ("generation", {"generation": 1}),
        ("expired", {}),
    ]
    for reason, mend in steps:
        with refused(bench, LeaseLost, reason=reason):
            bench.service.complete_job(wrong, result=None)
        wrong = replace(wrong, **mend)  # type: ignore[arg-type]
    bench.sql("UPDATE $lease SET expires_at = expires_at + 600000000 WHERE job_id = ?", case.job_id)
    with refused(bench, EpochClosed, reason="frozen"):
        bench.service.complete_job(wrong, result=None)
    bench.sql(THAW)
    with refused(bench, EpochClosed, reason="epoch"):
        bench.service.complete_job(wrong, result=None)
    bench.service.revoke_job(case.job_id, reason="r", actor="op:1")
    with refused(bench, LeaseLost, reason="status"):
        bench.service.complete_job(wrong, result=None)


HELD = {"epoch": ROTATE, "frozen tenant": FREEZE, "frozen database": LOCK_DOWN}


@pytest.mark.parametrize("held", HELD)
def test_a_finish_that_is_refused_keeps_what_the_call_proved(bench: Bench, held: str) -> None:
    case = CASES["running, effect"](bench)
    bench.sql(HELD[held])
    with pytest.raises(EpochClosed):
        bench.service.finish_effect(case.lease, name="send", outcome=Succeeded(RECEIPT))
    assert [effect.state for effect in bench.service.list_effects(case.job_id)] == ["pending"]
    (kept,) = bench.table("evidence", case.job_id)
    assert (kept["kind"], kept["operation_key"], kept["used"], kept["contradicts"]) == (
        "accepted", case.key, 0, 0
    )  # fmt: skip
    assert bench.service.get_job(case.job_id).status == "running"


@pytest.mark.parametrize("outcome,kind", [(Rejected("no"), "declined"), (Unknown("?"), None)])
def test_an_unknown_outcome_proves_nothing_and_a_refusal_does(bench: Bench, outcome: Any, kind: str | None) -> None:
    case = CASES["expired, effect"](bench)
    with pytest.raises(LeaseLost) as caught:
        bench.service.finish_effect(case.lease, name="send", outcome=outcome)
    assert caught.value.reason == "expired"
    assert [row["kind"] for row in bench.table("evidence", case.job_id)] == ([kind] if kind else [])


@pytest.mark.parametrize("held", HELD)
def test_people_and_evidence_still_work_on_held_work(bench: Bench, held: str) -> None:
    case = CASES["running, effect"](bench)
    queued = create(bench.service, "k-2")
    bench.sql(HELD[held])
    bench.service.submit_evidence(str(case.key), Accepted(RECEIPT), attempt_id=case.lease.attempt_id)
    bench.service.append_job_event(case.job_id, "admission_checked", {})
    assert bench.service.cancel_job(queued.id, reason="r").status == "cancelled"
    assert bench.service.cancel_job(case.job_id, reason="r").cancel_requested_at == bench.now
    assert bench.service.revoke_job(case.job_id, reason="r", actor="op:1").status == "cancelled"


# --- renewals ---------------------------------------------------------------------------------------------------------


def test_a_renewal_extends_from_now_and_starts_the_job(bench: Bench) -> None:
    case = CASES["claimed"](bench)
    bench.advance(seconds=41)
    assert bench.service.heartbeat(case.lease)
    job = bench.service.get_job(case.job_id)
    assert (job.status, job.lease) == ("running", replace(case.lease, expires_at=bench.now + timedelta(seconds=60)))
    assert bench.trail(case.job_id) == ["claimed", "heartbeat"]
    for _ in range(3):
        bench.advance(seconds=30)
        assert bench.service.renew_lease(case.lease)
    # Repeated beats are not worth a row each.
    assert bench.trail(case.job_id) == ["claimed", "heartbeat"]


def test_a_renewal_never_shortens_a_lease_that_was_taken_for_longer(bench: Bench) -> None:
    create(bench.service)
    taken = claim(bench.service, lease_duration=timedelta(minutes=10))
    assert bench.service.heartbeat(taken.lease)
    assert bench.service.get_job(taken.job.id).lease == taken.lease


def test_many_leases_are_renewed_at_once_each_by_its_own_right(bench: Bench) -> None:
    leases = []
    for nth in range(4):
        create(bench.service, f"k-{nth}")
        leases.append(claim(bench.service).lease)
    good, wrong, cancelled, gone = leases
    bench.service.cancel_job(cancelled.job_id, reason="r")
    bench.service.revoke_job(gone.job_id, reason="r", actor="op:1")
    bench.advance(seconds=10)
    asked = [replace(wrong, generation=9), gone, good, cancelled]
    answers = bench.run(holding.renew(asked, progress=["", None, "3 of 7", None]))
    assert [type(answer).__name__ for answer in answers] == ["LeaseLost", "LeaseLost", "Job", "CancelRequested"]
    job = bench.service.get_job(good.job_id)
    assert (job.status, job.progress) == ("running", "3 of 7")
    assert job.lease == replace(good, expires_at=bench.now + timedelta(seconds=60))
    for lease in (wrong, cancelled):
        left = bench.service.get_job(lease.job_id)
        assert (left.status, left.lease, left.progress) == ("claimed", lease, None)


def test_a_row_that_somebody_holds_locked_is_neither_renewed_nor_lost(postgres_bench: Bench) -> None:
    """Its own publish, most likely: the others of the batch must not wait for it."""
    bench = postgres_bench
    create(bench.service)
    create(bench.service, "k-2")
    locked, free = claim(bench.service).lease, claim(bench.service).lease
    bench.advance(seconds=10)
    bench.sql("BEGIN")
    bench.sql("SELECT 1 FROM $lease WHERE job_id = ? FOR UPDATE", locked.job_id)
    answers = bench.run(holding.renew([locked, free]))
    bench.sql("ROLLBACK")
    assert answers[0] is None
    assert cast("Any", answers[1]).lease.expires_at == bench.now + timedelta(seconds=60)
    assert bench.service.get_job(locked.job_id).lease == locked
    (again,) = bench.run(holding.renew([locked]))
    assert cast("Any", again).lease.expires_at == bench.now + timedelta(seconds=60)


def test_a_locked_row_whose_lease_is_lost_is_told_so_all_the_same(postgres_bench: Bench) -> None:
    bench = postgres_bench
    lease = CASES["expired"](bench).lease
    bench.sql("BEGIN")
    bench.sql("SELECT 1 FROM $lease WHERE job_id = ? FOR UPDATE", lease.job_id)
    (answer,) = bench.run(holding.renew([lease]))
    bench.sql("ROLLBACK")
    assert isinstance(answer, LeaseLost)
    assert answer.reason == "expired"


def test_the_clock_is_read_after_the_lock_is_held(postgres_bench: Bench) -> None:
    """A completion that waited for its row until its lease was over comes too late. Here the server's clock runs."""
    bench = postgres_bench
    url = bench.database.url
    if bench.loop is None:
        store: Any = open_store(url)
    else:
        store = bench.loop.run(open_async_store(url))
    service = bench.on(store)
    create(service)
    taken = claim(service, start=True, lease_duration=timedelta(milliseconds=400))
    caught: list[TenureError] = []

    def complete() -> None:
        try:
            service.complete_job(taken.lease, result=None)
        except TenureError as error:
            caught.append(error)

    bench.sql("BEGIN")
    bench.sql("SELECT 1 FROM $lease WHERE job_id = ? FOR UPDATE", taken.job.id)
    thread = threading.Thread(target=complete)
    thread.start()
    wait_for_lock(bench)
    while bench.sql("SELECT expires_at > (extract(epoch FROM clock_timestamp()) * 1000000) FROM $lease")[0][0]:
        bench.sql("SELECT pg_sleep(0.01)")
    assert caught == []
    bench.sql("ROLLBACK")
    thread.join(30)
    assert [getattr(error, "reason", error) for error in caught] == ["expired"]
    assert bench.trail(taken.job.id) == ["claimed"]
    if bench.loop is None:
        store.close()
    else:
        bench.loop.run(store.close())


# --- batches ----------------------------------------------------------------------------------------------------------


def test_one_refused_command_does_not_hurt_the_others_of_its_batch(bench: Bench) -> None:
    leases = []
    for nth in range(5):
        create(bench.service, f"k-{nth}")
        leases.append(claim(bench.service, start=True).lease)
    begin(bench.service, leases[3])
    asks = [
        holding.completing(leases[0], {"n": 0}),
        holding.completing(replace(leases[1], worker_id="B"), {"n": 1}),
        holding.failing(leases[2], "E", "m", retryable=False),
        holding.completing(leases[3], {"n": 3}),
        holding.releasing(leases[4], "r"),
        holding.completing(Lease(UUID(int=5), "A", uuid4(), 1, bench.now, timedelta(seconds=60)), None),
    ]
    answers = bench.run(holding.hold(asks))
    assert [type(answer).__name__ for answer in answers] == ["Job", "LeaseLost", "Job", "Uncertain", "Job", "NotFound"]
    statuses = [bench.service.get_job(lease.job_id).status for lease in leases]
    assert statuses == ["completed", "running", "failed", "indeterminate", "queued"]


# --- publishing -------------------------------------------------------------------------------------------------------


def publish(bench: Bench, lease: Lease, value: int, *, meanwhile: Callable[[], Any] | None = None) -> UUID:
    publish_id = uuid4()
    with bench.transaction() as tx:
        tx.run(publishing.open_publish(lease))
        tx.execute(f"INSERT INTO own (value) VALUES ({value:d})")
        if meanwhile is not None:
            meanwhile()
        tx.run(publishing.close_publish(lease, publish_id))
    return publish_id


def test_the_callers_writes_are_committed_between_two_fences(bench: Bench) -> None:
    case = CASES["running"](bench)
    first = publish(bench, case.lease, 1)
    assert own(bench) == [1]
    assert bench.run(publishing.find_publish(case.lease, first))
    assert not bench.run(publishing.find_publish(case.lease, uuid4()))
    second = publish(bench, case.lease, 2)
    assert own(bench) == [1, 2]
    assert bench.run(publishing.find_publish(case.lease, second))
    assert bench.trail(case.job_id) == ["claimed"]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_stale_workers_publish_leaves_no_trace(bench: Bench, wrong: str) -> None:
    case = CASES["running"](bench)
    change, sql, reason = WRONG[wrong]
    if sql:
        bench.sql(sql)
    with refused(bench, EpochClosed if reason in {"epoch", "frozen"} else LeaseLost, reason=reason):
        publish(bench, change(case.lease), 1)
    assert own(bench) == []


def test_a_publish_during_which_the_lease_ends_leaves_no_trace(bench: Bench) -> None:
    case = CASES["running"](bench)
    bench.advance(seconds=59)
    with refused(bench, LeaseLost, reason="expired"):
        publish(bench, case.lease, 1, meanwhile=lambda: bench.advance(seconds=1))
    assert own(bench) == []
    current = claim(bench.service, "B", start=True)
    publish(bench, current.lease, 2)
    assert own(bench) == [2]


def test_a_publish_under_a_pending_cancellation_is_refused(bench: Bench) -> None:
    case = CASES["running, cancelling"](bench)
    with refused(bench, CancelRequested):
        publish(bench, case.lease, 1)
    assert own(bench) == []


def test_leaving_a_publish_by_an_error_rolls_back_and_keeps_the_lease(bench: Bench) -> None:
    case = CASES["running"](bench)

    def break_off() -> None:
        raise ZeroDivisionError

    before = bench.dump()
    with pytest.raises(ZeroDivisionError):
        publish(bench, case.lease, 1, meanwhile=break_off)
    assert (bench.dump(), own(bench)) == (before, [])
    assert bench.service.heartbeat(case.lease)
    publish(bench, case.lease, 1)
    assert own(bench) == [1]


def test_a_publish_that_cannot_be_found_any_more_is_uncertain(bench: Bench) -> None:
    case = CASES["running"](bench)
    published = publish(bench, case.lease, 1)
    bench.service.complete_job(case.lease, result=None)
    with refused(bench, Uncertain):
        bench.run(publishing.find_publish(case.lease, published))


def test_a_verb_of_the_same_store_inside_its_transaction_is_refused_at_once(bench: Bench) -> None:
    case = CASES["running"](bench)
    other = create(bench.service, "k-2")

    async def awaiting() -> None:
        store = cast("AsyncStore", bench.store)
        service = AsyncDurableJobService(store)
        async with store.transaction() as tx:
            await tx.run(publishing.open_publish(case.lease))
            with pytest.raises(IllegalMove):
                await service.cancel_job(other.id, reason="r")
            await tx.run(publishing.close_publish(case.lease, uuid4()))
        await service.cancel_job(other.id, reason="r")

    if bench.loop is not None:
        bench.loop.run(awaiting())
    else:
        with bench.transaction() as tx:
            tx.run(publishing.open_publish(case.lease))
            with pytest.raises(IllegalMove):
                bench.service.cancel_job(other.id, reason="r")
            tx.run(publishing.close_publish(case.lease, uuid4()))
        bench.service.cancel_job(other.id, reason="r")
    assert bench.service.get_job(other.id).status == "cancelled"
