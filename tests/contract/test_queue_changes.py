"""Queues that are paused, drained, and given to another owner: nothing is lost, nothing runs for the wrong one."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure.errors import Conflict, Invalid, Refused
from tenure.procedures import claim as claiming
from tenure.procedures import upkeep
from tenure.procedures.claim_batch import claim_batch, guess
from tenure.procedures.operate_queues import CHANGES_MAX
from tenure.rules.outcome import Accepted, Succeeded
from tenure.rules.queues import Contents, QueueState, may_claim
from tenure.testing.clock import ManualClock
from tenure.verbs import create_job
from tenure.verbs.scope import Scope
from tests.contract.bench import Bench
from tests.contract.build import CASES, KIND, PAYLOAD, RECEIPT, begin, claim, create, running, running_effect
from tests.contract.caller import Caller, producer

THROUGH_THE_FUNCTION = True
OP = "op:1"
MAIL = "mail"
HOW_TO = Path(__file__).parents[2] / "docs/how-to/pause-drain-transfer.md"


def pause(bench: Bench, name: str = MAIL) -> QueueState:
    return bench.service.pause_queue(name, reason="the printer is on fire", actor=OP)


def give(bench: Bench, owner: str | None, expected: str | None = None, **how: Any) -> QueueState:
    return bench.service.transfer_queue(MAIL, owner=owner, expected=expected, actor=OP, **how)


def state(bench: Bench, name: str = MAIL) -> QueueState:
    (found,) = bench.service.show_queues(name)
    return found


def batched(bench: Bench, **scope: Any) -> list[str]:
    """Take one by a worker's claim that looks first."""
    return [one.job.queue for one in bench.run(claim_batch("A", [KIND], limit=1, **scope)).claims]


def guessed(bench: Bench, **scope: Any) -> list[str]:
    """Take one by a worker's claim that does not look."""
    return [one.job.queue for one in bench.run(claim_batch("A", [KIND], limit=1, cursor=guess(MAIL), **scope)).claims]


def single(bench: Bench, **scope: Any) -> list[str]:
    return [one.job.queue for one in bench.service.claim_jobs("A", limit=1, **scope)]


CLAIMS: dict[str, Callable[..., list[str]]] = {"batched": batched, "guessed": guessed, "single": single}
# A guess is for plain queues.
ON_EITHER = pytest.mark.parametrize(
    "take,fair", [(batched, False), (batched, True), (guessed, False), (single, False), (single, True)]
)
EVERY_CLAIM = pytest.mark.parametrize("take", CLAIMS.values(), ids=CLAIMS)


def lost(bench: Bench) -> None:
    """Make a job whose worker died."""
    create(bench.service, queue=MAIL)
    lease = claim(bench.service, start=True).lease
    bench.clock.advance(lease.expires_at - bench.now)
    bench.run(upkeep.recover())


def parked(bench: Bench) -> None:
    """Make a job that was put aside and whose worker has come."""
    create(bench.service, queue=MAIL)
    bench.run(upkeep.announce("B", ["other"], timedelta(minutes=1)))
    bench.run(upkeep.park())
    assert state(bench).contents == Contents(resting=1)


# --- pause ------------------------------------------------------------------------------------------------------------


@ON_EITHER
def test_nobody_claims_from_a_paused_queue(bench: Bench, take: Callable[..., list[str]], fair: bool) -> None:
    bench.service.set_queue(MAIL, fair=fair)
    create(bench.service, "k-1", queue=MAIL)
    create(bench.service, "k-2", queue=MAIL, priority=7)
    pause(bench)
    assert take(bench) == []
    bench.service.resume_queue(MAIL, actor=OP)
    assert take(bench) == [MAIL]


def test_a_cursor_from_before_the_pause_finds_nothing_after_it(bench: Bench) -> None:
    for nth in range(3):
        create(bench.service, f"k-{nth}", queue=MAIL)
    taken = bench.run(claim_batch("A", [KIND], limit=1))
    assert (len(taken.claims), taken.more) == (1, True)
    pause(bench)
    assert bench.run(claim_batch("A", [KIND], limit=1, cursor=taken.cursor)).claims == []
    bench.service.resume_queue(MAIL, actor=OP)
    assert len(bench.run(claim_batch("A", [KIND], limit=1, cursor=taken.cursor)).claims) == 1


def test_jobs_whose_worker_was_lost_and_parked_ones_wait_too(bench: Bench) -> None:
    lost(bench)
    pause(bench)
    assert bench.run(claim_batch("A", [KIND], limit=5, lost=1)).claims == []
    assert bench.service.claim_job("A") is None
    bench.service.resume_queue(MAIL, actor=OP)
    assert len(bench.run(claim_batch("A", [KIND], limit=5, lost=1)).claims) == 1


def test_parked_jobs_of_a_paused_queue_wait(bench: Bench) -> None:
    parked(bench)
    pause(bench)
    assert bench.service.claim_job("A") is None
    bench.service.resume_queue(MAIL, actor=OP)
    assert claim(bench.service).job.queue == MAIL


def test_other_queues_go_on(bench: Bench) -> None:
    create(bench.service, "k-1", queue=MAIL, priority=9)
    create(bench.service, "k-2", queue="print")
    pause(bench)
    assert batched(bench) == ["print"]
    create(bench.service, "k-3", queue="print")
    assert single(bench) == ["print"]


def test_what_runs_goes_on_and_ends(bench: Bench) -> None:
    case = running(bench, queue=MAIL)
    pause(bench)
    assert bench.service.heartbeat(case.lease)
    assert bench.service.get_job(case.job_id).phase == "LEASED"
    begin(bench.service, case.lease)
    bench.service.finish_effect(case.lease, name="send", outcome=Succeeded(RECEIPT))
    assert bench.service.complete_job(case.lease).status == "completed"


def test_queued_jobs_of_a_paused_queue_are_held_wherever_they_are(bench: Bench) -> None:
    now = create(bench.service, "k-1", queue=MAIL)
    later = create(bench.service, "k-2", queue=MAIL, scheduled_at=bench.now + timedelta(hours=1))
    other = create(bench.service, "k-3")
    pause(bench)
    phases = {job.id: (job.phase, job.parked) for job in bench.service.list_jobs(tenant="acme")}
    assert phases == {now.id: ("HELD", "paused"), later.id: ("HELD", "paused"), other.id: ("READY", None)}
    assert [job.id for job in bench.service.list_jobs(tenant="acme", phase="HELD")] == [now.id, later.id]
    # They stay where they are, so that it costs the same with a million of them.
    assert [bench.place(job)[0] for job in (now.id, later.id)] == ["ready", "deferred"]
    bench.service.resume_queue(MAIL, actor=OP)
    assert {bench.service.get_job(job).phase for job in phases} == {"READY"}


def test_a_job_that_comes_back_into_a_paused_queue_is_held_and_can_be_cancelled(bench: Bench) -> None:
    case = running(bench, queue=MAIL)
    pause(bench)
    assert bench.service.release_job(case.lease, reason="r").status == "queued"
    assert bench.service.get_job(case.job_id).phase == "HELD"
    assert bench.place(case.job_id)[0] == "ready"
    assert bench.service.cancel_job(case.job_id, reason="r").status == "cancelled"


def test_a_pause_says_why_and_stays_the_first_ones(bench: Bench) -> None:
    made = pause(bench)
    assert (made.paused_at, made.paused_by, made.pause_reason) == (bench.now, OP, "the printer is on fire")
    at = bench.now
    bench.advance(seconds=5)
    again = bench.service.pause_queue(MAIL, reason="another", actor="op:2")
    assert (again.paused_at, again.pause_reason) == (at, "the printer is on fire")
    bench.service.resume_queue(MAIL, actor="op:2")
    bench.service.resume_queue(MAIL, actor="op:2")
    assert [(one.what, one.actor, one.reason) for one in bench.service.list_queue_changes(MAIL)] == [
        ("resumed", "op:2", None),
        ("paused", OP, "the printer is on fire"),
    ]
    assert bench.service.list_queue_changes(MAIL, limit=1)[0].what == "resumed"


def test_how_a_queue_is_served_survives_what_is_done_with_it(bench: Bench) -> None:
    bench.service.set_queue(MAIL, fair=True, weights={"acme": 3})
    pause(bench)
    bench.service.set_queue(MAIL, fair=False)
    assert (state(bench).paused_at, state(bench).fair) == (bench.now, False)
    bench.service.set_queue(MAIL, fair=True, weights={"acme": 2})
    bench.service.resume_queue(MAIL, actor=OP)
    (setting,) = bench.service.list_queues()
    assert (setting.fair, setting.weights) == (True, {"acme": 2})


# --- drain ------------------------------------------------------------------------------------------------------------


def test_a_draining_queue_takes_no_new_jobs_and_gives_the_known_ones(bench: Bench) -> None:
    known = create(bench.service, "k-1", queue=MAIL)
    drained = bench.service.drain_queue(MAIL, actor=OP)
    assert (drained.draining_at, drained.contents, drained.drained) == (bench.now, Contents(ready=1), False)
    before = bench.dump()
    for late in (None, bench.now + timedelta(hours=1)):
        with pytest.raises(Refused) as refused:
            create(bench.service, "k-2", queue=MAIL, scheduled_at=late)
        assert refused.value.code == "QUEUE_DRAINING"
    assert bench.dump() == before
    again = bench.service.create_job(
        organization="acme", project="p1", idempotency_key="k-1", kind=KIND, payload=PAYLOAD, queue=MAIL
    )
    assert (again.created, again.job.id) == (False, known.id)
    assert create(bench.service, "k-2", queue="print").queue == "print"
    # The refusal has not used the key up.
    bench.service.resume_queue(MAIL, actor=OP)
    assert create(bench.service, "k-3", queue=MAIL).queue == MAIL


def test_one_for_a_draining_queue_refuses_all_of_a_batch(bench: Bench) -> None:
    bench.service.drain_queue(MAIL, actor=OP)
    one = {"organization": "acme", "project": "p1", "kind": KIND, "payload": PAYLOAD}
    before = bench.dump()
    with pytest.raises(Refused):
        bench.service.create_jobs([{**one, "idempotency_key": "a"}, {**one, "idempotency_key": "b", "queue": MAIL}])
    assert bench.dump() == before
    made = bench.service.create_jobs([{**one, "idempotency_key": "a"}])
    assert [answer.created for answer in made] == [True]
    assert bench.service.create_jobs([]) == []


def test_workers_go_on_until_a_draining_queue_is_empty(bench: Bench) -> None:
    create(bench.service, "k-1", queue=MAIL)
    create(bench.service, "k-2", queue=MAIL)
    bench.service.drain_queue(MAIL, actor=OP)
    first, second = (claim(bench.service, start=True) for _ in range(2))
    # What comes back into it is not new.
    bench.service.release_job(first.lease, reason="r")
    assert state(bench).contents == Contents(ready=1, leased=1)
    bench.service.complete_job(claim(bench.service, start=True).lease)
    assert state(bench).drained is False
    bench.service.complete_job(second.lease)
    assert state(bench).drained is True


def test_what_is_uncertain_keeps_a_queue_from_being_drained(bench: Bench) -> None:
    case = running_effect(bench, queue=MAIL)
    bench.service.cancel_job(case.job_id, reason="r")
    bench.service.acknowledge_cancellation(case.lease)
    assert state(bench).contents == Contents(uncertain=1)
    bench.service.submit_evidence(str(case.key), Accepted(RECEIPT), attempt_id=case.lease.attempt_id)
    bench.service.reconcile_dispatched(case.job_id, Accepted(RECEIPT), reason="seen", actor=OP)
    assert state(bench).drained


# --- owners -----------------------------------------------------------------------------------------------------------


@ON_EITHER
def test_only_its_owner_claims_from_an_owned_queue(bench: Bench, take: Callable[..., list[str]], fair: bool) -> None:
    bench.service.set_queue(MAIL, fair=fair)
    give(bench, "billing")
    create(bench.service, "k-1", queue=MAIL)
    for owner in (None, "shipping", "billing2"):
        assert take(bench, owner=owner) == []
        assert not may_claim(state(bench), owner)
    assert may_claim(state(bench), "billing")
    assert take(bench, owner="billing") == [MAIL]


@EVERY_CLAIM
def test_an_owner_serves_what_is_nobodys_too(bench: Bench, take: Callable[..., list[str]]) -> None:
    create(bench.service, "k-1", queue=MAIL)
    assert take(bench, owner="billing") == [MAIL]


def test_an_owned_queue_is_paused_for_its_owner_as_well(bench: Bench) -> None:
    give(bench, "billing")
    create(bench.service, queue=MAIL)
    pause(bench)
    assert not may_claim(state(bench), "billing")
    assert batched(bench, owner="billing") == single(bench, owner="billing") == []


def test_lost_and_parked_jobs_are_the_owners_too(bench: Bench) -> None:
    lost(bench)
    give(bench, "billing", with_work=True)
    assert bench.run(claim_batch("A", [KIND], limit=5, lost=1, owner="shipping")).claims == []
    assert len(bench.run(claim_batch("A", [KIND], limit=5, lost=1, owner="billing")).claims) == 1


def test_parked_jobs_are_the_owners(bench: Bench) -> None:
    parked(bench)
    give(bench, "billing", with_work=True)
    assert bench.service.claim_job("A", owner="shipping") is None
    assert claim(bench.service, owner="billing").job.queue == MAIL


def test_a_claim_id_belongs_to_one_owner(bench: Bench) -> None:
    give(bench, "billing")
    create(bench.service, queue=MAIL)
    claim_id = create(bench.service, "k-id", queue="print").id  # any id will do
    taken = bench.service.claim_jobs("A", limit=1, owner="billing", queues=[MAIL], claim_id=claim_id)
    assert len(taken) == 1
    assert bench.service.claim_jobs("A", limit=1, owner="billing", queues=[MAIL], claim_id=claim_id) == taken
    with pytest.raises(Conflict):
        bench.service.claim_jobs("A", limit=1, owner="shipping", queues=[MAIL], claim_id=claim_id)


def test_an_announcement_tells_a_worker_which_queues_it_leaves_alone(bench: Bench) -> None:
    give(bench, "billing")
    said = upkeep.announce("A", [KIND], timedelta(minutes=1), owner="shipping")
    assert bench.run(said) == {MAIL: "billing"}
    assert bench.run(upkeep.announce("A", [KIND], timedelta(minutes=1), owner="billing")) == {}


# --- transfer ---------------------------------------------------------------------------------------------------------


def test_a_drained_queue_changes_its_owner_and_takes_jobs_again(bench: Bench) -> None:
    create(bench.service, queue=MAIL)
    bench.service.drain_queue(MAIL, actor=OP)
    with pytest.raises(Refused) as refused:
        give(bench, "billing")
    assert refused.value.code == "QUEUE_NOT_DRAINED"
    assert state(bench).owner is None
    bench.service.complete_job(claim(bench.service, start=True).lease)
    after = give(bench, "billing", reason="they print now")
    assert (after.owner, after.draining_at) == ("billing", None)
    assert create(bench.service, "k-2", queue=MAIL).queue == MAIL
    newest = bench.service.list_queue_changes(MAIL)[0]
    assert (newest.what, newest.actor, newest.reason) == ("transferred", OP, "they print now")
    assert (newest.old_owner, newest.new_owner, newest.jobs, newest.at) == (None, "billing", 0, bench.now)


@pytest.mark.parametrize("name", ["queued", "expired", "indeterminate, effect", "timed_out", "cancelled, effect"])
def test_a_transfer_with_its_work_leaves_the_work_as_it_is(bench: Bench, name: str) -> None:
    case = CASES[name](bench)
    with pytest.raises(Refused) as refused:
        bench.service.transfer_queue("default", owner="billing", expected=None, actor=OP)
    assert refused.value.code == "QUEUE_NOT_DRAINED"
    before = bench.dump()
    after = bench.service.transfer_queue("default", owner="billing", expected=None, with_work=True, actor=OP)
    # Two are the neighbour's.
    assert (after.owner, after.contents.total) == ("billing", 3)
    now = bench.dump()
    changed = {table for table, rows in now.items() if rows != before[table]}
    assert changed == {"queue", "queue_change"}
    assert now["queue_change"][-1]["jobs"] == 3
    assert bench.service.get_job(case.job_id).queue == "default"


def test_a_live_lease_stands_in_the_way_until_it_is_over(bench: Bench) -> None:
    case = running(bench, queue=MAIL)
    for how in (False, True):
        with pytest.raises(Refused) as refused:
            give(bench, "billing", with_work=how)
        assert refused.value.code == "LEASES_LIVE"
        assert str(case.job_id) in str(refused.value)
        assert "'A'" in str(refused.value)
    bench.clock.advance(case.lease.expires_at - bench.now)
    assert give(bench, "billing", with_work=True).owner == "billing"
    # The old holder is not the current one any more; the new owner's worker is.
    with pytest.raises(Refused):
        bench.service.complete_job(case.lease)
    bench.run(upkeep.recover())
    assert bench.service.claim_job("A") is None
    taken = claim(bench.service, "B", owner="billing", start=True)
    assert (taken.job.id, taken.job.generation, taken.job.idempotency_key) == (case.job_id, 2, "k-1")
    assert bench.service.complete_job(taken.lease).status == "completed"


def test_a_refusal_names_ten_leases_at_most(bench: Bench) -> None:
    for nth in range(12):
        create(bench.service, f"k-{nth}", queue=MAIL)
    assert len(bench.service.claim_jobs("A", limit=12)) == 12
    with pytest.raises(Refused) as refused:
        give(bench, "billing", with_work=True)
    assert str(refused.value).count("by 'A'") == 10
    assert "and 2 more" in str(refused.value)


def test_whoever_does_not_know_the_owner_is_refused(bench: Bench) -> None:
    give(bench, "billing")
    for expected in (None, "shipping"):
        with pytest.raises(Conflict) as refused:
            give(bench, "shipping", expected)
        assert refused.value.code == "OWNER_CHANGED"
        assert "'billing'" in str(refused.value)
    assert state(bench).owner == "billing"
    assert give(bench, "shipping", "billing").owner == "shipping"
    assert give(bench, None, "shipping").owner is None


def test_of_two_who_want_a_queue_one_gets_it(bench: Bench) -> None:
    create(bench.service, queue=MAIL)
    begun = threading.Barrier(2)
    told: dict[str, str] = {}

    def want(owner: str) -> None:
        begun.wait()
        try:
            give(bench, owner, with_work=True)
            told[owner] = "mine"
        except Conflict as problem:
            told[owner] = problem.code

    both = [threading.Thread(target=want, args=(owner,)) for owner in ("billing", "shipping")]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert sorted(told.values()) == ["OWNER_CHANGED", "mine"]
    winner = next(owner for owner, what in told.items() if what == "mine")
    assert state(bench).owner == winner
    assert [one.new_owner for one in bench.service.list_queue_changes(MAIL)] == [winner]


# What has begun and is not committed is waited for and seen. SQLite has one writer, and nothing to wait for.


def transfer_meanwhile(bench: Bench, caller: Caller) -> str:
    """Ask for a transfer while a transaction is open, end that one once the transfer waits, and give the refusal."""
    told: list[str] = []

    def ask() -> None:
        with pytest.raises(Refused) as refused:
            give(bench, "billing", with_work=False)
        told.append(refused.value.code)

    asking = threading.Thread(target=ask)
    asking.start()
    waits = "SELECT count(*) FROM pg_locks WHERE relation = 'tenure.queue'::regclass AND NOT granted"
    while bench.sql(waits) == [(0,)]:
        assert asking.is_alive(), "it did not wait"
    caller.commit()
    asking.join()
    return told[0]


def test_a_creation_on_its_way_is_not_left_behind(postgres_bench: Bench) -> None:
    bench = postgres_bench
    with producer(bench) as caller:
        caller.begin()
        one = {"organization": "acme", "project": "p1", "kind": KIND, "payload": PAYLOAD, "queue": MAIL}
        caller.run(create_job(Scope(), idempotency_key="k-1", **one))
        assert transfer_meanwhile(bench, caller) == "QUEUE_NOT_DRAINED"
    assert give(bench, "billing", with_work=True).contents == Contents(ready=1)


def test_what_is_not_committed_is_not_counted_and_the_documented_statement_names_it(postgres_bench: Bench) -> None:
    bench = postgres_bench
    (named,) = re.findall(r"^```sql\n(.*?)^```", HOW_TO.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    with producer(bench) as caller:
        caller.begin()
        one = {"organization": "acme", "project": "p1", "kind": KIND, "payload": PAYLOAD, "queue": MAIL}
        caller.run(create_job(Scope(), idempotency_key="k-1", **one))
        # The starts of sessions, which the statement compares with, are by the server's own clock.
        bench.test_clock.hand = ManualClock(datetime.now(UTC))
        assert bench.service.drain_queue(MAIL, actor=OP).drained
        assert [row[2] for row in bench.sql(named)] == ["idle in transaction"]
        caller.commit()
    assert bench.sql(named) == []
    assert state(bench).contents == Contents(ready=1)
    assert not state(bench).drained


def test_a_claim_on_its_way_is_not_left_behind(postgres_bench: Bench) -> None:
    bench = postgres_bench
    create(bench.service, queue=MAIL)
    with producer(bench) as caller:
        caller.begin()
        assert len(caller.run(claiming.claim("A", limit=1))) == 1
        assert transfer_meanwhile(bench, caller) == "LEASES_LIVE"
    assert state(bench).owner is None


# --- who may, and what is given back ----------------------------------------------------------------------------------


def test_a_service_of_one_tenant_changes_no_queue_and_counts_its_own(bench: Bench) -> None:
    create(bench.service, queue=MAIL)
    create(bench.service, "k-2")
    mine = bench.bound(tenant="acme", actor=OP)
    for call in (
        lambda: mine.pause_queue(MAIL, reason="r"),
        lambda: mine.resume_queue(MAIL),
        lambda: mine.drain_queue(MAIL),
        lambda: mine.transfer_queue(MAIL, owner="a", expected=None),
        lambda: mine.list_queue_changes(MAIL),
    ):
        with pytest.raises(Refused) as refused:
            call()
        assert refused.value.code == "TENANT_BOUND"
    assert [(one.name, one.contents.ready) for one in mine.show_queues()] == [("default", 1), (MAIL, 1)]
    assert bench.bound(tenant="nobody").show_queues() == []
    assert [one.contents for one in bench.bound(tenant="nobody").show_queues(MAIL)] == [Contents()]
    assert bench.service.pause_queue(MAIL, reason="r", actor=OP).paused_by == OP


def test_what_is_wrong_is_refused_before_anything_is_written(bench: Bench) -> None:
    before = bench.dump()
    acting = bench.bound(actor=OP)
    for call in (
        lambda: bench.service.pause_queue(MAIL, reason="r"),
        lambda: acting.pause_queue("", reason="r"),
        lambda: acting.pause_queue(MAIL, reason=" "),
        lambda: acting.drain_queue(MAIL, reason=""),
        lambda: acting.resume_queue(MAIL, keep_draining="yes"),  # type: ignore[arg-type]
        lambda: acting.transfer_queue(MAIL, owner="", expected=None),
        lambda: acting.transfer_queue(MAIL, owner="a", expected=""),
        lambda: acting.transfer_queue(MAIL, owner="a", expected=None, with_work=1),  # type: ignore[arg-type]
        lambda: acting.claim_job("A", owner=" "),
        lambda: acting.list_queue_changes(MAIL, limit=0),
        lambda: acting.list_queue_changes(MAIL, limit=CHANGES_MAX + 1),
    ):
        with pytest.raises(Invalid):
            call()
    assert bench.dump() == before
    assert acting.list_queue_changes(MAIL, limit=CHANGES_MAX) == []


def test_a_pause_is_taken_back_alone_where_a_drain_is_to_go_on(bench: Bench) -> None:
    pause(bench)
    bench.service.drain_queue(MAIL, actor=OP)
    after = bench.service.resume_queue(MAIL, keep_draining=True, actor=OP)
    assert (after.paused_at, after.draining_at) == (None, bench.now)
    assert bench.service.resume_queue(MAIL, actor=OP).draining_at is None
