"""Claims: who may be taken, in which order, for how long, and what becomes of a lease that has ended."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenure.errors import Conflict, IllegalMove, Invalid, LeaseLost
from tenure.procedures import upkeep
from tenure.procedures.claim import Claim
from tenure.procedures.claim_batch import claim_batch, guess
from tenure.rules import moves
from tenure.rules.creation import PRIORITY_MAX
from tenure.rules.job import Job
from tenure.yields import Last
from tests.contract.bench import START, Bench
from tests.contract.build import CASES, KIND, PAYLOAD, REQUEST, begin, claim, create
from tests.contract.refusal import refused

THROUGH_THE_POOLER = True


def ids(claims: list[Claim]) -> list[UUID]:
    return [one.job.id for one in claims]


# --- what a claim gives -----------------------------------------------------------------------------------------------


def test_a_claim_gives_the_job_and_its_lease(bench: Bench) -> None:
    made = create(bench.service, lease_duration=timedelta(seconds=45))
    bench.advance(seconds=7)
    taken = claim(bench.service, "A")
    job, lease = taken.job, taken.lease
    assert (job.id, job.status, job.phase, job.payload) == (made.id, "claimed", "LEASED", made.payload)
    assert (job.attempt_count, job.generation) == (1, 1)
    assert (lease.job_id, lease.worker_id, lease.generation) == (made.id, "A", 1)
    assert lease.expires_at == START + timedelta(seconds=7 + 45)
    assert lease.attempt_id.version == 7
    assert job.lease == lease
    assert bench.service.get_job(job.id) == job
    (event,) = bench.service.list_job_events(job.id)
    assert (event.name, event.at, event.generation, event.status, event.actor) == (
        "claimed", bench.now, 1, "claimed", None
    )  # fmt: skip
    assert event.data == {"worker": "A", "attempt": 1, "attempt_id": str(lease.attempt_id)}


def test_a_claim_may_start_the_job_and_choose_the_lease(bench: Bench) -> None:
    create(bench.service)
    taken = claim(bench.service, start=True, lease_duration=timedelta(minutes=5))
    assert taken.job.status == "running"
    assert taken.lease.expires_at == START + timedelta(minutes=5)
    assert bench.trail(taken.job.id) == ["claimed"]
    bench.advance(minutes=4)
    assert bench.service.heartbeat(taken.lease)
    # A renewal extends by the lease's own length, from now.
    assert bench.service.get_job(taken.job.id).lease.expires_at == bench.now + timedelta(minutes=5)  # type: ignore[union-attr]


def test_every_claim_of_a_job_is_another_attempt_under_a_larger_generation(bench: Bench) -> None:
    create(bench.service, max_attempts=5)
    seen: list[Claim] = []
    for nth in range(1, 5):
        seen.append(claim(bench.service, "A"))
        assert (seen[-1].job.attempt_count, seen[-1].job.generation) == (nth, nth)
        bench.advance(seconds=60)
    assert len({one.lease.attempt_id for one in seen}) == 4


def test_arguments_are_checked_before_anything_is_touched(bench: Bench) -> None:
    create(bench.service)
    bad: list[Callable[[], Any]] = [
        lambda: bench.service.claim_job(""),
        lambda: bench.service.claim_job("a\0"),
        lambda: bench.service.claim_job("x" * 201),
        lambda: bench.service.claim_job("A", queues="default"),
        lambda: bench.service.claim_job("A", kinds=KIND),
        lambda: bench.service.claim_job("A", queues=["a\nb"]),
        lambda: bench.service.claim_job("A", kinds=[""]),
        lambda: bench.service.claim_job("A", lease_duration=timedelta(0)),
        lambda: bench.service.claim_jobs("A", limit=0),
        lambda: bench.service.claim_jobs("A", limit=1001),
        lambda: bench.service.claim_jobs("A", limit=True),
    ]
    for call in bad:
        with refused(bench, Invalid):
            call()
    assert claim(bench.service, "x" * 200).job.status == "claimed"


# --- who may be taken -------------------------------------------------------------------------------------------------


def test_a_claim_takes_only_what_is_in_its_scope(bench: Bench) -> None:
    create(bench.service, "k-1", queue="mail", kind="send")
    create(bench.service, "k-2", tenant="north", organization="acme", execution=None, queue="mail", kind="send")
    create(bench.service, "k-3", organization="other", tenant="acme", execution=None, queue="mail", kind="send")
    empty: list[dict[str, Any]] = [
        {"queues": []},
        {"queues": ["default"]},
        {"kinds": []},
        {"kinds": ["print"]},
        {"tenant": "south"},
        {"organization": "south"},
        {"tenant": "north", "organization": "other"},
    ]
    for nothing in empty:
        assert bench.service.claim_job("A", **nothing) is None, nothing
    only = claim(bench.service, tenant="acme", organization="acme", queues=["mail"], kinds=["send", "print"])
    assert only.job.idempotency_key == "k-1"
    assert claim(bench.service, organization="acme").job.idempotency_key == "k-2"
    assert claim(bench.service, tenant="acme").job.idempotency_key == "k-3"


def test_a_job_of_an_unknown_kind_is_left_alone_and_does_not_stand_in_the_way(bench: Bench) -> None:
    for nth in range(5):
        create(bench.service, f"odd-{nth}", kind="removed", priority=9)
    wanted = create(bench.service, "k-1")
    before = [row for row in bench.dump()["ready"] if row["kind"] == "removed"]
    for _ in range(3):
        assert bench.service.claim_jobs("A", limit=2, kinds=["other"]) == []
    assert claim(bench.service, kinds=[KIND]).job.id == wanted.id
    left = [row for row in bench.dump()["ready"] if row["kind"] == "removed"]
    assert left == before
    assert {(row["attempt"], row["generation"]) for row in left} == {(0, 0)}
    assert [job.phase for job in bench.service.list_jobs(tenant="acme", status="queued")] == ["READY"] * 5


@pytest.mark.parametrize(
    "hold,lift",
    [
        (
            "UPDATE $authority SET epoch = 2 WHERE tenant = 'acme'",
            "UPDATE $authority SET epoch = 1 WHERE tenant = 'acme'",
        ),
        (
            "UPDATE $authority SET frozen = (1 = 1) WHERE tenant = 'acme'",
            "UPDATE $authority SET frozen = (1 = 0) WHERE tenant = 'acme'",
        ),
        ("INSERT INTO $meta (key, value) VALUES ('frozen', 'restored')", "DELETE FROM $meta WHERE key = 'frozen'"),
    ],
    ids=["superseded epoch", "frozen tenant", "frozen database"],
)
def test_held_work_is_not_taken_until_it_is_released(bench: Bench, hold: str, lift: str) -> None:
    job = create(bench.service)
    bench.sql(hold)
    assert bench.service.get_job(job.id).phase == "HELD"
    assert bench.service.claim_jobs("A", limit=5) == []
    assert bench.service.list_jobs(tenant="acme", phase="READY") == []
    assert [one.id for one in bench.service.list_jobs(tenant="acme", phase="HELD")] == [job.id]
    bench.sql(lift)
    assert bench.service.get_job(job.id).phase == "READY"
    assert claim(bench.service).job.id == job.id


def test_a_hold_of_one_tenant_does_not_hold_the_others(bench: Bench) -> None:
    create(bench.service)
    free = create(bench.service, tenant="north", execution=None)
    bench.sql("UPDATE $authority SET frozen = (1 = 1) WHERE tenant = ?", "acme")
    assert ids(bench.service.claim_jobs("A", limit=5)) == [free.id]


# --- order ------------------------------------------------------------------------------------------------------------


def test_a_queue_is_served_by_priority_then_time_then_creation(bench: Bench) -> None:
    def make(key: str, priority: int, minutes: int) -> UUID:
        return create(bench.service, key, priority=priority, scheduled_at=START + timedelta(minutes=minutes)).id

    late_high = make("a", 5, 3)
    low = make("b", -1, 0)
    first = make("c", 5, 1)
    second = make("d", 5, 1)
    middle = make("e", 0, 2)
    bench.advance(minutes=5)
    assert ids(bench.service.claim_jobs("A", limit=10)) == [first, second, late_high, middle, low]


def test_queues_are_served_in_the_order_given(bench: Bench) -> None:
    mail = create(bench.service, "a", queue="mail", priority=-5).id
    print_ = create(bench.service, "b", queue="print", priority=5).id
    other = create(bench.service, "c", queue="other", priority=9).id
    assert ids(bench.service.claim_jobs("A", limit=2, queues=["mail", "print", "mail"])) == [mail, print_]
    assert ids(bench.service.claim_jobs("A", limit=2)) == [other]


def test_without_queues_the_most_urgent_one_is_first(bench: Bench) -> None:
    create(bench.service, "a", queue="a", priority=1)
    urgent = create(bench.service, "b", queue="b", priority=2)
    assert claim(bench.service).job.id == urgent.id


QUEUES, KINDS, TENANTS = ("q1", "q2"), ("send", "print"), ("acme", "north")
MADE = st.fixed_dictionaries(
    {
        "queue": st.sampled_from(QUEUES),
        "kind": st.sampled_from(KINDS),
        "tenant": st.sampled_from(TENANTS),
        "priority": st.integers(-2, 2),
        "due": st.integers(-3, 3),
    }
)
SCOPE = st.fixed_dictionaries(
    {
        "queues": st.none() | st.lists(st.sampled_from(QUEUES), max_size=3),
        "kinds": st.none() | st.lists(st.sampled_from(KINDS), max_size=2),
        "tenant": st.none() | st.sampled_from(TENANTS),
        "limit": st.integers(1, 6),
    }
)


@given(
    made=st.lists(MADE, min_size=1, max_size=12),
    scopes=st.lists(SCOPE, min_size=1, max_size=3),
    rotated=st.booleans(),
    parked=st.booleans(),
    fair=st.booleans(),
)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_the_choice_made_in_sql_is_the_rules_choice(
    bench: Bench, made: list[dict[str, Any]], scopes: list[dict[str, Any]], rotated: bool, parked: bool, fair: bool
) -> None:
    bench.reset()
    if fair:
        bench.service.set_queue("q1", fair=True, weights={"north": 2})
    bench.advance(minutes=10)
    bench.service.create_jobs(
        [
            {
                "organization": "acme",
                "project": "p1",
                "idempotency_key": f"k-{nth}",
                "payload": PAYLOAD,
                "scheduled_at": bench.now + timedelta(minutes=fields["due"]),
                **{name: fields[name] for name in ("queue", "kind", "tenant", "priority")},
            }
            for nth, fields in enumerate(made)
        ]
    )
    if rotated:
        bench.sql("UPDATE $authority SET epoch = 2 WHERE tenant = ?", "north")
    if parked:
        # The single claim looks among parked rows as well; nobody has announced any kind.
        bench.run(upkeep.park())
    for scope in scopes:
        waiting = bench.service.list_jobs(status="queued", limit=1000)
        expected = choose(waiting, bench, **scope)
        taken = bench.service.claim_jobs("A", **scope)
        if scope["queues"] is None or parked or fair:
            # Which queue comes first is said only where queues are named; within each the order holds, in a fair one
            # within each tenant.
            assert len(taken) == min(scope["limit"], len(choose(waiting, bench, **{**scope, "limit": 100})))
            for queue, of in [(queue, of) for queue in QUEUES for of in (TENANTS if fair else (None,))]:
                if of is not None and scope["tenant"] not in {None, of}:
                    continue
                inside = [one.job.id for one in taken if one.job.queue == queue and of in {None, one.job.tenant}]
                narrow = {"queues": [queue], "tenant": of or scope["tenant"], "limit": 100}
                allowed = choose(waiting, bench, **{**scope, **narrow})
                assert parked or inside == allowed[: len(inside)]
                assert set(inside) <= set(allowed)
        else:
            assert ids(taken) == expected
        assert {one.job.status for one in taken} <= {"claimed"}


def choose(waiting: list[Job], bench: Bench, *, queues: Any, kinds: Any, tenant: str | None, limit: int) -> list[UUID]:
    """Choose as the rules do, which never saw any SQL."""
    fitting = [
        job
        for job in waiting
        if moves.eligible(job, bench.now)
        and (queues is None or job.queue in queues)
        and (kinds is None or job.kind in kinds)
        and (tenant is None or job.tenant == tenant)
    ]
    in_order = sorted(fitting, key=moves.order)
    if queues is not None:
        in_order.sort(key=lambda job: list(queues).index(job.queue))
    return [job.id for job in in_order[:limit]]


@given(
    made=st.lists(MADE, min_size=1, max_size=15),
    limit=st.integers(1, 4),
    late=st.integers(0, 5),
    fair=st.sampled_from(["never", "from the start", "half way", "half way to plain"]),
)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_worker_with_a_cursor_finds_every_job_in_the_end(
    bench: Bench, made: list[dict[str, Any]], limit: int, late: int, fair: str
) -> None:
    """The batched claim may begin behind its cursor; nothing is taken twice and nothing stays."""
    bench.reset()
    if fair in {"from the start", "half way to plain"}:
        bench.service.set_queue("q1", fair=True, weights={"north": 2})
    bench.advance(minutes=10)
    for nth, fields in enumerate(made):
        if nth == len(made) // 2 and fair.startswith("half way"):
            bench.service.set_queue("q1", fair=fair == "half way")
        given_ = {name: fields[name] for name in ("queue", "kind", "tenant", "priority")}
        create(bench.service, f"k-{nth}", execution=None, scheduled_at=bench.now - timedelta(minutes=3 + fields["due"]),
               **given_)  # fmt: skip
    seen: list[UUID] = []
    cursor: Any = None
    turns: Any = None
    empty = 0
    for turn in range(100):
        taken = bench.run(claim_batch("A", (*KINDS, KIND), limit=limit, queues=QUEUES, cursor=cursor, turns=turns))
        seen += ids(taken.claims)
        cursor, turns = taken.cursor, taken.turns
        if turn == late:
            # A row that is committed late and belongs at the front.
            create(bench.service, "late", priority=2, execution=None, queue="q1", scheduled_at=START)
        empty = 0 if taken.claims else empty + 1
        if empty == 2 and turn > late:
            break
    assert len(seen) == len(set(seen)) == len(made) + 1


def requests_of(procedure: Any) -> list[str]:
    """Give the names of what it asks for first, and whether that may be all."""
    script = procedure.script()
    first = next(script)
    script.close()
    assert isinstance(first, Last) == (len(first.requests if isinstance(first, Last) else first) == 1)
    return [one.name for one in (first.requests if isinstance(first, Last) else first)]


def test_a_guess_takes_a_queue_in_its_order_and_looks_nowhere_else(bench: Bench) -> None:
    def put(key: str, **more: Any) -> UUID:
        return create(bench.service, key, execution=None, **more).id

    def take(cursor: Any, limit: int = 5) -> Any:
        return bench.run(claim_batch("A", (KIND,), limit=limit, queues=["q1", "q2"], cursor=cursor))

    put("first", queue="q1", priority=1)
    assert take(None).known == {"q1"}
    # One statement, and the commit with it; a look takes two.
    assert requests_of(claim_batch("A", (KIND,), limit=5, cursor=guess("q1"))) == ["claim_batch"]
    assert requests_of(claim_batch("A", (KIND,), limit=5)) == ["deferred_due", "ready_fronts"]
    bench.advance(seconds=10)
    low = put("low", queue="q1", priority=-3)
    here = put("here", queue="q1", priority=1)
    late = put("late", queue="q1", priority=1, scheduled_at=START)
    urgent = put("urgent", queue="q1", priority=PRIORITY_MAX)
    elsewhere = put("elsewhere", queue="q2", priority=9)
    found = take(guess("q1"), limit=3)
    assert ids(found.claims) == [urgent, late, here]
    assert ids(take(guess("q1")).claims) == [low]
    assert take(guess("q1")).claims == []
    assert ids(take(None).claims) == [elsewhere]


def test_fair_queues_are_never_guessed(bench: Bench) -> None:
    bench.service.set_queue("q1", fair=True)
    create(bench.service, "fair", execution=None, queue="q1")
    create(bench.service, "plain", execution=None, queue="q2")
    taken = bench.run(claim_batch("A", (KIND,), limit=5, queues=["q1", "q2"]))
    assert len(taken.claims) == 2
    assert taken.known == {"q2"}


# --- a claim whose reply was lost -------------------------------------------------------------------------------------


def test_the_same_claim_id_gives_the_same_leases_while_they_live(bench: Bench) -> None:
    for nth in range(5):
        create(bench.service, f"k-{nth}")
    claim_id = uuid4()
    first = bench.service.claim_jobs("A", limit=3, claim_id=claim_id)
    before = bench.dump()
    bench.advance(seconds=59)
    again = bench.service.claim_jobs("A", limit=3, claim_id=claim_id)
    assert bench.dump() == before
    assert [(one.job.id, one.lease) for one in again] == [(one.job.id, one.lease) for one in first]
    bench.service.heartbeat(first[0].lease)
    bench.service.complete_job(first[0].lease, result=None)
    assert ids(bench.service.claim_jobs("A", limit=3, claim_id=claim_id)) == ids(first[1:])
    bench.advance(seconds=1)
    # Their time is over: there is nothing this id stands for any more, and nothing new is taken under it.
    assert bench.service.claim_jobs("A", limit=3, claim_id=claim_id) == []
    assert len(bench.service.claim_jobs("A", limit=9, claim_id=uuid4())) == 4


def test_a_claim_id_under_another_worker_or_scope_is_a_conflict(bench: Bench) -> None:
    create(bench.service)
    create(bench.service, "k-2")
    claim_id = uuid4()
    scope: dict[str, Any] = {"queues": ["default"], "kinds": [KIND], "tenant": "acme", "organization": "acme"}
    taken = claim(bench.service, "A", claim_id=claim_id, **scope)
    with refused(bench, Conflict, code="CLAIM_MISMATCH"):
        bench.service.claim_job("B", claim_id=claim_id, **scope)
    for name, other in (("queues", None), ("queues", ["x"]), ("kinds", None), ("tenant", None), ("organization", "x")):
        with refused(bench, Conflict, code="CLAIM_MISMATCH"):
            bench.service.claim_job("A", claim_id=claim_id, **{**scope, name: other})
    assert claim(bench.service, "A", claim_id=claim_id, **scope).lease == taken.lease


def test_a_claim_id_that_took_nothing_may_be_used_again(bench: Bench) -> None:
    claim_id = uuid4()
    assert bench.service.claim_job("A", claim_id=claim_id) is None
    job = create(bench.service)
    assert claim(bench.service, "A", claim_id=claim_id).job.id == job.id


def test_old_claim_ids_are_forgotten_and_recent_ones_are_not(bench: Bench) -> None:
    create(bench.service)
    create(bench.service, "k-2")
    old, new = uuid4(), uuid4()
    claim(bench.service, claim_id=old)
    bench.advance(minutes=10)
    claim(bench.service, claim_id=new)
    bench.run(upkeep.forget_claims(timedelta(minutes=10)))
    assert {UUID(row["claim_id"]) for row in bench.dump()["claim"]} == {old, new}
    bench.run(upkeep.forget_claims(timedelta(minutes=10) - timedelta(microseconds=1)))
    assert {UUID(row["claim_id"]) for row in bench.dump()["claim"]} == {new}


# --- the end of a lease -----------------------------------------------------------------------------------------------


def test_a_lease_is_live_until_its_expiry_and_claimable_at_it(bench: Bench) -> None:
    """One clock, so never both and never neither; each side is asked at both instants."""
    case = CASES["running"](bench)
    bench.clock.advance(case.lease.expires_at - bench.now - timedelta(microseconds=1))
    assert bench.service.claim_job("B") is None
    assert bench.run(upkeep.recover()) == 0
    snapshot = bench.snapshot()
    assert bench.service.heartbeat(case.lease)
    bench.restore(snapshot)
    assert bench.service.complete_job(case.lease, result=None).status == "completed"
    bench.restore(snapshot)
    bench.advance(microseconds=1)
    assert bench.service.heartbeat(case.lease) is False
    with refused(bench, LeaseLost, reason="expired"):
        bench.service.complete_job(case.lease, result=None)
    assert claim(bench.service, "B").job.generation == 2


def test_a_lost_worker_is_stopped_and_its_successor_is_not(bench: Bench) -> None:
    create(bench.service)
    first = claim(bench.service, "A", start=True)
    bench.advance(seconds=61)
    second = claim(bench.service, "B")
    assert (second.job.generation, second.job.attempt_count) == (2, 2)
    assert bench.service.heartbeat(second.lease)
    bench.advance(seconds=1)
    with refused(bench, LeaseLost, reason="worker"):
        bench.service.complete_job(first.lease, result="stale")
    bench.advance(seconds=1)
    bench.service.complete_job(second.lease, result="current")
    with refused(bench, LeaseLost, reason="status"):
        bench.service.complete_job(first.lease, result="stale")
    assert bench.service.get_job(first.job.id).result == "current"
    assert bench.trail(first.job.id) == ["claimed", "lease_expired", "claimed", "heartbeat", "completed"]


def test_a_worker_that_beats_keeps_its_job_for_as_long_as_it_works(bench: Bench) -> None:
    case = CASES["running"](bench)
    for _ in range(3 * 47):
        bench.advance(seconds=20)
        assert bench.service.heartbeat(case.lease)
    assert bench.service.claim_job("B") is None
    job = bench.service.get_job(case.job_id)
    assert (job.generation, job.attempt_count, job.status) == (1, 1, "running")
    assert bench.trail(case.job_id) == ["claimed"]
    bench.advance(seconds=60)
    assert claim(bench.service, "B").job.generation == 2


def test_two_lost_beats_lose_nothing(bench: Bench) -> None:
    case = CASES["running"](bench)
    bench.advance(seconds=59)
    assert bench.service.claim_job("B") is None
    assert bench.service.heartbeat(case.lease)


RECOVERIES = {
    "expired": ("queued", "WORKER_LOST", ["lease_expired"], 0),
    "expired, sent": ("queued", "WORKER_LOST", ["lease_expired"], 0),
    "expired, cancelling": ("cancelled", None, ["cancelled"], 1),
    "expired, effect": ("indeterminate", "LEASE_EXPIRED_AFTER_DISPATCH", ["indeterminate"], 1),
}


@pytest.mark.parametrize("name", RECOVERIES)
def test_the_recovery_pass_settles_what_has_ended(bench: Bench, name: str) -> None:
    status, code, events, raised = RECOVERIES[name]
    case = CASES[name](bench)
    trail = bench.trail(case.job_id)
    assert bench.run(upkeep.recover()) == 1
    job = bench.service.get_job(case.job_id)
    assert (job.status, job.error_code, job.generation, job.lease) == (status, code, 1 + raised, None)
    assert bench.trail(case.job_id) == trail + events
    before = bench.dump()
    assert bench.run(upkeep.recover()) == 0
    assert bench.dump() == before
    if status == "queued":
        # The generation rises once, with the claim.
        assert claim(bench.service, "B").job.generation == 2


@pytest.mark.parametrize(
    "name,ending",
    [("running", "dead_letter"), ("running, cancelling", "cancelled"), ("running, effect", "indeterminate")],
)
def test_a_used_up_budget_comes_last_of_the_four_endings(bench: Bench, name: str, ending: str) -> None:
    case = CASES[name](bench)
    bench.sql("UPDATE $lease SET attempts_max = 1 WHERE job_id = ?", case.job_id)
    bench.advance(seconds=60)
    bench.run(upkeep.recover())
    job = bench.service.get_job(case.job_id)
    assert job.status == ending
    assert (job.error_code == "WORKER_LOST") == (ending == "dead_letter")


def test_both_a_boundary_and_a_cancellation_end_indeterminate(bench: Bench) -> None:
    case = CASES["running, effect, cancelling"](bench)
    bench.advance(seconds=60)
    bench.run(upkeep.recover())
    assert bench.service.get_job(case.job_id).status == "indeterminate"


def test_a_job_that_loses_every_worker_is_buried_after_its_last_attempt(bench: Bench) -> None:
    job = create(bench.service, max_attempts=3)
    for _ in range(3):
        claim(bench.service, "A", start=True)
        bench.advance(seconds=60)
    assert bench.service.claim_job("A") is None
    dead = bench.service.get_job(job.id)
    assert (dead.status, dead.error_code, dead.attempt_count, dead.generation) == ("dead_letter", "WORKER_LOST", 3, 4)
    assert dead.finished_at == bench.now
    assert bench.trail(job.id) == [*["claimed", "lease_expired"] * 2, "claimed", "dead_lettered"]
    with refused(bench, IllegalMove):
        bench.service.retry_job(job.id, actor="op:1")


def test_recovery_is_bounded_and_goes_on_where_it_stopped(bench: Bench) -> None:
    for nth in range(10):
        create(bench.service, f"k-{nth}")
    assert len(bench.service.claim_jobs("A", limit=10)) == 10
    bench.advance(seconds=60)
    assert bench.run(upkeep.recover(3)) == 3
    assert len(bench.dump()["lease"]) == 7
    assert bench.run(upkeep.recover(100)) == 7
    assert bench.run(upkeep.recover(100)) == 0
    assert [row["attempt"] for row in bench.dump()["ready"]] == [1] * 10


def test_leases_that_may_not_be_touched_do_not_stand_in_the_way_of_others(bench: Bench) -> None:
    """Recovery writes nothing for a frozen tenant; a bounded pass must not spend its bound on it."""
    for nth in range(3):
        create(bench.service, f"k-{nth}")
    assert len(bench.service.claim_jobs("A", limit=3)) == 3
    free = create(bench.service, "free", tenant="north", execution=None)
    claim(bench.service, "A", tenant="north")
    bench.sql("UPDATE $authority SET frozen = (1 = 1) WHERE tenant = ?", "acme")
    bench.advance(seconds=60)
    assert bench.run(upkeep.recover(1)) == 1
    assert bench.service.get_job(free.id).status == "queued"
    assert len(bench.dump()["lease"]) == 3
    bench.sql("UPDATE $authority SET frozen = (1 = 0) WHERE tenant = ?", "acme")
    assert bench.run(upkeep.recover(10)) == 3


def test_recovery_writes_nothing_on_a_frozen_database(bench: Bench) -> None:
    CASES["expired, effect"](bench)
    bench.sql("INSERT INTO $meta (key, value) VALUES ('frozen', 'restored')")
    before = bench.dump()
    assert bench.run(upkeep.recover()) == 0
    assert bench.service.claim_job("B") is None
    assert bench.dump() == before
    bench.sql("DELETE FROM $meta WHERE key = 'frozen'")
    assert bench.run(upkeep.recover()) == 1


@pytest.mark.parametrize("name", ["completed", "failed", "dead_letter", "cancelled"])
def test_passes_over_finished_jobs_change_nothing(bench: Bench, name: str) -> None:
    CASES[name](bench)
    before = bench.dump()
    for _ in range(20):
        bench.advance(seconds=47)
        bench.run(upkeep.recover())
        bench.run(upkeep.promote())
        assert bench.service.claim_job("B") is None
    assert bench.dump() == before


def test_a_pass_between_any_two_steps_of_a_worker_changes_nothing(bench: Bench) -> None:
    create(bench.service)
    taken = claim(bench.service)
    steps: list[Callable[[], Any]] = [
        lambda: bench.service.heartbeat(taken.lease),
        lambda: begin(bench.service, taken.lease),
        lambda: bench.service.heartbeat(taken.lease),
    ]
    for step in steps:
        for _ in range(2):
            before = bench.dump()
            assert bench.run(upkeep.recover()) == 0
            bench.service.sweep_reconciliation_candidates(organization="acme", project="p1", lookup=_never)
            assert bench.dump() == before
            bench.advance(seconds=14)
        step()
    assert bench.service.get_job(taken.job.id).status == "running"


def _never(key: str, job: Job) -> Any:
    raise AssertionError(f"nobody asks about {key}")


def test_only_what_is_due_is_promoted_and_it_is_bounded(bench: Bench) -> None:
    for minutes in (1, 2, 3, 4):
        create(bench.service, f"k-{minutes}", scheduled_at=START + timedelta(minutes=minutes))
    bench.advance(minutes=3)
    assert bench.run(upkeep.promote(2)) == 2
    assert bench.run(upkeep.promote(2)) == 1
    assert bench.run(upkeep.promote(2)) == 0
    assert [row["run_at"] for row in bench.dump()["deferred"]] == [1767225840000000]
    assert len(bench.service.claim_jobs("A", limit=9)) == 3


def test_a_claimed_job_shows_what_an_earlier_attempt_left(bench: Bench) -> None:
    case = CASES["expired, sent"](bench)
    taken = claim(bench.service, "B")
    (effect,) = taken.job.effects
    assert (effect.name, effect.state, effect.operation_key) == ("send", "succeeded", case.key)
    assert bench.service.begin_effect(taken.lease, name="send", request=REQUEST, provider="mailer").receipt == {
        "id": "r-1"
    }
