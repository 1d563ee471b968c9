"""What waits, runs and needs somebody: every category and every reason, each beside a neighbour that is not counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tenure.errors import Invalid
from tenure.procedures import upkeep
from tenure.rules.outcome import Accepted
from tenure.rules.stats import MISSING, TABLE, Category, Fact, Missing, Reason, Stats, judge
from tenure.rules.status import Status
from tenure.stores import statements
from tests.contract.bench import NEIGHBOUR, START, Bench
from tests.contract.build import CASES, KIND, PAYLOAD, RECEIPT, claim, create, indeterminate_effect, running

DAY = timedelta(days=1)
Line = tuple[Category, Reason]


def look(bench: Bench, tenant: str = "acme") -> dict[Line, int]:
    """Give what is counted of a tenant."""
    return {(one.category, one.reason): one.count for one in bench.service.stats(tenant=tenant).lines}


def staff(bench: Bench, *kinds: str, owner: str | None = None, providers: tuple[str, ...] = ("mailer",)) -> None:
    """Let a worker be alive for a day."""
    bench.run(upkeep.announce(f"W-{owner}", kinds or (KIND,), DAY, owner=owner, providers=providers))


def admit(bench: Bench, *, frozen: bool = False, epoch: int = 1) -> None:
    """Say what the tenant's authority is."""
    bench.sql("UPDATE $authority SET frozen = (1 = ?), epoch = ? WHERE tenant = ?", int(frozen), epoch, "acme")


def freeze_database(bench: Bench) -> None:
    bench.sql("INSERT INTO $meta (key, value) VALUES ('frozen', 'restored')")


BUSY = (Category.QUEUED, Reason.WORKERS_BUSY)
IN_FLIGHT = (Category.RUNNING, Reason.IN_FLIGHT)
CANCELLING = (Category.RUNNING, Reason.CANCEL_REQUESTED)
LOST = (Category.EXPIRED, Reason.LOST)
FAILED = (Category.FAILED, Reason.FAILED_FOR_GOOD)
POISON = (Category.POISON, Reason.ATTEMPTS_USED_UP)
PERSON = (Category.UNKNOWN, Reason.ASK_PERSON)
PROVIDER = (Category.UNKNOWN, Reason.ASK_PROVIDER)

EXPECTED: dict[str, Line | None] = {
    "queued": BUSY,
    "claimed": IN_FLIGHT,
    "running": IN_FLIGHT,
    "completed": None,
    "failed": FAILED,
    "cancelled": None,
    "dead_letter": POISON,
    "indeterminate": PERSON,
    "halt_unsafe": (Category.HALTED, Reason.NEVER_AGAIN),
    "timed_out": PERSON,
    "claimed, cancelling": CANCELLING,
    "running, cancelling": CANCELLING,
    "running, effect": IN_FLIGHT,
    "running, unknown": IN_FLIGHT,
    "running, sent": IN_FLIGHT,
    "running, mark": IN_FLIGHT,
    "running, effect, cancelling": CANCELLING,
    "running, sent, cancelling": CANCELLING,
    "running, mark, cancelling": CANCELLING,
    "expired": LOST,
    "expired, cancelling": LOST,
    "expired, effect": (Category.EXPIRED, Reason.ASK_PROVIDER),
    "expired, sent": LOST,
    "completed, sent": None,
    "completed, mark": None,
    "failed, closed": FAILED,
    "failed, rejected": FAILED,
    "failed, unsent": FAILED,
    "cancelled, effect": (Category.CANCELLED, Reason.ASK_PROVIDER),
    "dead_letter, sent": POISON,
    "indeterminate, effect": PROVIDER,
    "indeterminate, mark": PROVIDER,
    "indeterminate, two": PROVIDER,
    "indeterminate, escalated": (Category.ESCALATED, Reason.ASK_PERSON),
    "halt_unsafe, effect": PROVIDER,
    "timed_out, effect": PERSON,
}


@pytest.mark.parametrize("name", CASES)
def test_every_state_is_counted_once_and_what_is_done_not_at_all(bench: Bench, name: str) -> None:
    staff(bench)
    assert look(bench) == {}
    CASES[name](bench)
    expected = EXPECTED[name]
    assert look(bench) == ({} if expected is None else {expected: 1})


def _scheduled(bench: Bench) -> None:
    create(bench.service, scheduled_at=bench.now + timedelta(hours=1))


def _frozen(base: str) -> Callable[[Bench], None]:
    def build(bench: Bench) -> None:
        CASES[base](bench)
        admit(bench, frozen=True)

    return build


def _rotated(base: str) -> Callable[[Bench], None]:
    def build(bench: Bench) -> None:
        CASES[base](bench)
        admit(bench, epoch=2)

    return build


def _restored(base: str) -> Callable[[Bench], None]:
    def build(bench: Bench) -> None:
        CASES[base](bench)
        freeze_database(bench)

    return build


def _paused(bench: Bench) -> None:
    create(bench.service)
    bench.service.pause_queue("default", reason="r", actor="op:1")


def _unreadable(bench: Bench) -> None:
    case = running(bench)
    bench.service.fail_job(case.lease, code="UNREADABLE_PAYLOAD", message="m", retryable=False)


def _strange_provider(base: str) -> Callable[[Bench], None]:
    def build(bench: Bench) -> None:
        CASES[base](bench)
        staff(bench, providers=("pigeon",))

    return build


def _only_others(bench: Bench) -> None:
    create(bench.service)
    bench.run(upkeep.withdraw("W-None"))
    staff(bench, "other")


def _nobody_of_the_owner(bench: Bench) -> None:
    create(bench.service)
    bench.service.transfer_queue("default", owner="billing", expected=None, with_work=True, actor="op:1")


def _owner_present(bench: Bench) -> None:
    _nobody_of_the_owner(bench)
    staff(bench, owner="billing")


def _unknown_kind(bench: Bench) -> None:
    create(bench.service, kind="sned_quote")


def _promoted_late(bench: Bench) -> None:
    create(bench.service, scheduled_at=bench.now + timedelta(hours=1))
    bench.advance(hours=1)


# What it takes, what is counted, and what takes it away again.
HELD = Category.HELD
WORLDS: dict[str, tuple[Callable[[Bench], Any], Line, Callable[[Bench], Any], Line | None]] = {
    "not due": (_scheduled, (Category.SCHEDULED, Reason.NOT_DUE), lambda b: b.advance(hours=1), BUSY),
    "due, not yet promoted": (_promoted_late, BUSY, lambda b: b.run(upkeep.promote()), BUSY),
    "held, frozen": (_frozen("queued"), (HELD, Reason.TENANT_FROZEN), admit, BUSY),
    "held, rotated": (_rotated("queued"), (HELD, Reason.EPOCH_CLOSED), admit, BUSY),
    "held, restored": (
        _restored("queued"),
        (HELD, Reason.DATABASE_FROZEN),
        lambda b: b.sql("DELETE FROM $meta WHERE key = 'frozen'"),
        BUSY,
    ),
    "held, paused": (
        _paused,
        (HELD, Reason.QUEUE_PAUSED),
        lambda b: b.service.resume_queue("default", actor="op:1"),
        BUSY,
    ),
    "running, frozen": (_frozen("running"), (Category.RUNNING, Reason.TENANT_FROZEN), admit, IN_FLIGHT),
    "running, rotated": (_rotated("running"), (Category.RUNNING, Reason.EPOCH_CLOSED), admit, IN_FLIGHT),
    "running, restored": (
        _restored("running"),
        (Category.RUNNING, Reason.DATABASE_FROZEN),
        lambda b: b.sql("DELETE FROM $meta WHERE key = 'frozen'"),
        IN_FLIGHT,
    ),
    "expired, frozen": (_frozen("expired"), (Category.EXPIRED, Reason.TENANT_FROZEN), admit, LOST),
    "expired, restored": (
        _restored("expired"),
        (Category.EXPIRED, Reason.DATABASE_FROZEN),
        lambda b: b.sql("DELETE FROM $meta WHERE key = 'frozen'"),
        LOST,
    ),
    "expired, rotated": (_rotated("expired"), LOST, lambda b: b.run(upkeep.recover()), (HELD, Reason.EPOCH_CLOSED)),
    "unknown kind": (
        _unknown_kind,
        (Category.QUEUED, Reason.UNKNOWN_KIND),
        lambda b: staff(b, "sned_quote"),
        BUSY,
    ),
    "no worker": (_only_others, (Category.QUEUED, Reason.NO_WORKER), staff, BUSY),
    "no worker at all": (
        lambda b: (create(b.service), b.run(upkeep.withdraw("W-None"))),
        (Category.QUEUED, Reason.NO_WORKER),
        staff,
        BUSY,
    ),
    "no worker of the owner": (
        _nobody_of_the_owner,
        (Category.QUEUED, Reason.NO_OWNER_WORKER),
        lambda b: staff(b, owner="billing"),
        BUSY,
    ),
    "a worker of the owner": (_owner_present, BUSY, lambda b: b.service.claim_job("B", owner="billing"), IN_FLIGHT),
    "unknown, nobody has the provider": (
        _strange_provider("indeterminate, effect"),
        (Category.UNKNOWN, Reason.UNKNOWN_PROVIDER),
        staff,
        PROVIDER,
    ),
    "expired, nobody has the provider": (
        _strange_provider("expired, effect"),
        (Category.EXPIRED, Reason.UNKNOWN_PROVIDER),
        staff,
        (Category.EXPIRED, Reason.ASK_PROVIDER),
    ),
    "cancelled, nobody has the provider": (
        _strange_provider("cancelled, effect"),
        (Category.CANCELLED, Reason.UNKNOWN_PROVIDER),
        staff,
        (Category.CANCELLED, Reason.ASK_PROVIDER),
    ),
    "nobody could say which providers there are": (
        lambda b: (indeterminate_effect(b), b.run(upkeep.withdraw("W-None"))),
        PROVIDER,
        staff,
        PROVIDER,
    ),
    "unreadable": (
        _unreadable,
        (Category.FAILED, Reason.UNREADABLE_PAYLOAD),
        lambda b: b.service.retry_job(b.service.list_jobs(tenant="acme")[0].id, actor="op:1"),
        BUSY,
    ),
}


@pytest.mark.parametrize("name", WORLDS)
def test_what_is_around_a_job_tells_why_it_waits(bench: Bench, name: str) -> None:
    staff(bench)
    build, expected, change, then = WORLDS[name]
    build(bench)
    assert look(bench) == {expected: 1}
    change(bench)
    assert look(bench) == ({} if then is None else {then: 1})


def test_every_line_of_the_table_is_reached_by_a_test() -> None:
    reached = {line for line in EXPECTED.values() if line} | {line for _, line, _, _ in WORLDS.values()}
    assert {(category, reason) for category, reason, _ in TABLE} == reached
    assert set(MISSING) == set(Reason)
    assert {MISSING[reason] for _, reason in reached} == set(Missing)


def test_each_status_has_one_answer_whatever_else_is_known() -> None:
    for status in Status:
        for flags in range(1 << 4):
            given = dict(
                zip(("open", "escalated", "expired", "cancelling"), map(bool, map(int, f"{flags:04b}")), strict=True)
            )
            found = judge(Fact(status=status, **given))
            done = status is Status.COMPLETED or status is Status.CANCELLED
            assert (found is None) == (done and not given["open"] and not given["escalated"])


# --- numbers ----------------------------------------------------------------------------------------------------------


def line(stats: Stats) -> Any:
    (found,) = stats.lines
    return found


def test_ages_are_counted_from_when_the_first_came_there(bench: Bench) -> None:
    staff(bench)
    for nth in range(3):
        create(bench.service, f"k-{nth}")
        bench.advance(seconds=10)
    found = line(bench.service.stats(tenant="acme"))
    assert (found.tenant, found.kind, found.queue, found.count) == ("acme", KIND, "default", 3)
    assert (found.oldest_at, found.oldest_age, found.missing) == (START, timedelta(seconds=30), "capacity")
    # Of a scheduled job the time it comes due, and no age.
    for job in bench.service.list_jobs(tenant="acme"):
        bench.service.cancel_job(job.id, reason="r")
    later = bench.now + timedelta(hours=1)
    create(bench.service, "later", scheduled_at=later)
    found = line(bench.service.stats(tenant="acme"))
    assert (found.category, found.oldest_at, found.oldest_age) == ("scheduled", later, timedelta(0))


def test_lines_tell_kinds_and_queues_apart(bench: Bench) -> None:
    staff(bench, KIND, "other")
    create(bench.service, "k-1")
    create(bench.service, "k-2", queue="mail")
    create(bench.service, "k-3", queue="mail", kind="other")
    stats = bench.service.stats(tenant="acme")
    assert [(one.kind, one.queue) for one in stats.lines] == [("other", "mail"), (KIND, "default"), (KIND, "mail")]
    assert (stats.count("queued"), stats.count("queued", "workers_busy"), stats.count("queued", "no_worker")) == (
        3,
        3,
        0,
    )


def test_five_hundred_whose_workers_were_killed_are_seen_and_then_gone(bench: Bench) -> None:
    staff(bench)
    rows = [
        {"organization": "acme", "project": "p1", "idempotency_key": f"k-{nth}", "kind": KIND, "payload": PAYLOAD}
        for nth in range(500)
    ]
    bench.service.create_jobs(rows)
    assert len(bench.service.claim_jobs("A", limit=500, start=True)) == 500
    stats = bench.service.stats(tenant="acme")
    assert (stats.count("running"), stats.count("expired")) == (500, 0)
    assert stats.oldest_expired_lease_seconds == {"acme": 0.0}
    bench.advance(seconds=60 + 10 + 5)
    stats = bench.service.stats(tenant="acme")
    assert (stats.count("running"), stats.count("expired", "worker_lost")) == (0, 500)
    assert stats.oldest_expired_lease_seconds == {"acme": 15.0}
    while bench.run(upkeep.recover()):
        pass
    stats = bench.service.stats(tenant="acme")
    assert (stats.count("expired"), stats.count("queued", "workers_busy")) == (0, 500)
    assert stats.oldest_expired_lease_seconds == {"acme": 0.0}


def test_a_kind_that_was_renamed_is_told_from_one_whose_workers_are_away(bench: Bench) -> None:
    for nth in range(5):
        create(bench.service, f"k-{nth}")
    staff(bench, "send_quote_v2")
    assert look(bench) == {(Category.QUEUED, Reason.UNKNOWN_KIND): 5}
    bench.run(upkeep.park())  # where workers put it aside it is the same
    assert look(bench) == {(Category.QUEUED, Reason.UNKNOWN_KIND): 5}
    assert [job.attempt_count for job in bench.service.list_jobs(tenant="acme")] == [0] * 5
    bench.run(upkeep.announce("B", [KIND], timedelta(seconds=15)))
    assert look(bench) == {BUSY: 5}
    bench.advance(seconds=15)
    assert look(bench) == {(Category.QUEUED, Reason.NO_WORKER): 5}


def test_a_restored_database_shows_all_of_its_work_as_held(bench: Bench) -> None:
    staff(bench)
    for nth in range(50):
        create(bench.service, f"k-{nth}")
    freeze_database(bench)
    stats = bench.service.stats(tenant="acme")
    assert (stats.count("held", "database_frozen"), stats.count("queued")) == (50, 0)
    assert bench.service.claim_job("A") is None


# --- scope ------------------------------------------------------------------------------------------------------------


def test_a_tenant_sees_its_own_and_nothing_else(bench: Bench) -> None:
    staff(bench)
    create(bench.service)
    everybody = bench.service.stats()
    assert {one.tenant for one in everybody.lines} == {"acme", NEIGHBOUR}
    assert set(everybody.oldest_expired_lease_seconds) == {"acme", NEIGHBOUR}
    for mine in (bench.service.stats(tenant="acme"), bench.bound(tenant="acme").stats()):
        assert {one.tenant for one in mine.lines} == {"acme"}
        assert set(mine.oldest_expired_lease_seconds) == {"acme"}
    assert look(bench, NEIGHBOUR) == {PROVIDER: 1, (Category.CANCELLED, Reason.ASK_PROVIDER): 1}
    with pytest.raises(Invalid):
        bench.bound(tenant="acme").stats(tenant=NEIGHBOUR)
    assert bench.bound(tenant="acme").stats(tenant="acme").count("queued") == 1
    assert bench.service.stats(tenant="nobody").lines == ()


def test_nothing_but_names_and_numbers_is_said(bench: Bench) -> None:
    staff(bench)
    case = CASES["indeterminate, escalated"](bench)
    bench.service.submit_evidence(str(case.key), Accepted(RECEIPT), attempt_id=case.lease.attempt_id)
    create(bench.service, "secret-key", payload={"secret": "marker-7"}, subject="marker-7")
    lease = claim(bench.service, start=True).lease
    bench.service.fail_job(lease, code="MARKER_7", message="marker-7", retryable=False)
    said = str(dataclasses.asdict(bench.service.stats())).lower()
    assert "marker" not in said
    assert "secret" not in said
    assert "failed_for_good" in said


# --- a million finished jobs ------------------------------------------------------------------------------------------


def test_finished_jobs_are_not_walked(bench: Bench) -> None:
    """The plan goes by what needs somebody; `docs/how-to/see-what-is-going-on.md` says what a million rows cost."""
    if bench.dialect == "sqlite":
        sql = statements.load("tenure.stores.sqlite")["stats_jobs"].sql
        for name, value in (("tenant", "NULL"), ("codes", "'[]'"), ("now", "0")):
            sql = sql.replace(f":{name}", value)
        plan = [row[3] for row in bench.sql(f"EXPLAIN QUERY PLAN {sql}")]
        assert any("tenure_outcome_attention" in one for one in plan)
        walked = [one for one in plan if one.startswith("SCAN") and one.split()[1] in {"o", "j", "e"}]
        # What is walked are the ways in: open effects, and what the first step has found.
        assert [one for one in walked if "INDEX" not in one and one != "SCAN e"] == []
        return
    filler = "SELECT gen_random_uuid(), 'acme', 'completed', 0, 1, 1, 3, 1, 0 FROM generate_series(1, 20000)"
    columns = "job_id, tenant, status, run_at, generation, attempt, attempts_max, epoch, finished_at"
    sql = statements.load("tenure.stores.postgres")["stats_jobs"].sql
    for name, value in (("tenant", "NULL"), ("codes", "ARRAY[]::text[]")):
        sql = sql.replace(f"%({name})b", value)
    bench.sql(f"INSERT INTO $outcome ({columns}) {filler}")
    bench.sql("ANALYZE tenure.outcome")
    try:
        plan = [row[0] for row in bench.sql(f"EXPLAIN (COSTS OFF) {sql}")]
    finally:
        bench.sql("DELETE FROM $outcome WHERE tenant = 'acme' AND finished_at = 0")
        bench.sql("ANALYZE tenure.outcome")
    assert any("outcome_attention" in one for one in plan), plan
    assert not any("Seq Scan on outcome" in one for one in plan), plan
