"""The work of a restored copy: marked, asked about before anything is sent, cleared by a person; four runs each."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from tenure.connectors.provider import terms
from tenure.errors import EffectRejected, IllegalMove, Invalid, NotFound, Uncertain
from tenure.flows.drive import run_flow, run_flow_async
from tenure.flows.effect import Performed, perform
from tenure.procedures.recover import forget_suspects
from tenure.rules.digest import request_digest
from tenure.rules.lease import Lease
from tenure.rules.outcome import Absent, Accepted, Declined, FailedBeforeDispatch, NoAnswer, Succeeded
from tenure.rules.status import Status
from tests.contract.bench import START, Bench, micros
from tests.contract.build import (
    CASES,
    KIND,
    MAILER,
    OWN_KEY,
    PIGEON,
    RECEIPT,
    REQUEST,
    begin,
    claim,
    completed_sent,
    create,
    failed,
    failed_rejected,
    keys_for,
    provider,
    running_effect,
    running_sent,
    running_unknown,
)
from tests.support.copies import mark_copy

FINAL = {Status.COMPLETED, Status.CANCELLED, Status.DEAD_LETTER, Status.HALT_UNSAFE}
REASON = "restored from the backup of 04:00"


def mark(bench: Bench, **given: Any) -> int:
    """Do what a recovery does to the work, in a transaction of its own."""
    return bench.run(mark_copy("user:7", REASON, **given))


class World:
    """A provider's side: what it says when asked, and what was sent to it."""

    def __init__(self, says: Any = None, answers: Any = None) -> None:
        self.says = says
        self.answers = answers or Succeeded(RECEIPT)
        self.asked: list[str] = []
        self.sent: list[str] = []

    def ask(self, begun: Any) -> Any:
        assert begun.ask
        self.asked.append(begun.effect.operation_key)
        return self.says

    def send(self, begun: Any) -> Any:
        assert begun.send
        self.sent.append(begun.effect.operation_key)
        return self.answers


def effect(bench: Bench, lease: Lease, world: World, name: str = "send", declared: Any = MAILER) -> Performed:
    """Make one outside call as `ctx.effect` does, on whichever store the bench has."""
    steps = perform(
        lease,
        name,
        request_digest(REQUEST),
        terms(declared),
        timedelta(seconds=30),
        send=world.send,
        keep=lambda *_: False,
        ask=world.ask,
    )
    if bench.loop is None:
        return run_flow(steps, bench.store.run)
    return bench.loop.run(run_flow_async(steps, bench.store.run))  # type: ignore[arg-type]


def suspect_job(bench: Bench, **fields: Any) -> Lease:
    """Give the lease on a job that was queued when the copy was made and claimed after the recovery."""
    create(bench.service, **fields)
    mark(bench)
    bench.advance(hours=1)
    return claim(bench.service, start=True).lease


# --- marking ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_recovery_marks_what_may_ever_run_again_and_nothing_else(bench: Bench, name: str) -> None:
    case = CASES[name](bench)
    before = bench.service.get_job(case.job_id)
    assert not before.suspect
    # The neighbour's jobs are in the same database.
    others = sum(job.status not in FINAL for job in bench.service.list_jobs(tenant="zeta"))
    assert mark(bench) == others + (before.status not in FINAL)
    after = bench.service.get_job(case.job_id)
    assert after.suspect is (before.status not in FINAL)
    assert (after.status, after.generation) == (before.status, before.generation)
    assert ("suspected" in bench.trail(case.job_id)) is after.suspect


def _undo_neighbour(bench: Bench) -> None:
    """What a recovery does to the whole database is no trespass; the bench compares the neighbour's rows."""
    bench.sql("DELETE FROM $suspect WHERE tenant = 'zeta'")
    bench.sql("DELETE FROM $event WHERE tenant = 'zeta' AND name = 'suspected'")


@pytest.fixture(autouse=True)
def _only_ours(bench: Bench) -> Iterator[None]:
    yield
    _undo_neighbour(bench)


def test_a_second_recovery_marks_anew_and_forgets_nothing_of_the_first(bench: Bench) -> None:
    job = create(bench.service)
    mark(bench, since=START - timedelta(hours=5))
    bench.advance(days=1)
    mark(bench, since=START + timedelta(hours=1))
    (row,) = bench.table("suspect", job.id)
    assert (row["marked_at"], row["since"]) == (micros(bench.now), micros(START - timedelta(hours=5)))
    assert bench.trail(job.id) == ["suspected", "suspected"]


def test_without_the_copys_age_each_jobs_creation_is_taken(bench: Bench) -> None:
    job = create(bench.service)
    bench.advance(hours=3)
    mark(bench)
    (row,) = bench.table("suspect", job.id)
    assert (row["marked_at"], row["since"]) == (micros(bench.now), micros(START))


@pytest.mark.parametrize(("actor", "reason"), [("", "why"), ("user:7", "")])
def test_a_mark_without_an_actor_or_a_reason_is_refused_and_nothing_is_written(
    bench: Bench, actor: str, reason: str
) -> None:
    job = create(bench.service)
    with pytest.raises(Invalid):
        bench.run(mark_copy(actor, reason))
    assert bench.table("suspect", job.id) == []
    assert mark(bench) >= 1


# --- a begin on a suspect job -----------------------------------------------------------------------------------------


def test_what_was_sent_after_the_backup_is_found_and_nothing_is_sent(bench: Bench) -> None:
    lease = suspect_job(bench)
    world = World(Accepted({"id": "old"}))
    done = effect(bench, lease, world)
    assert (done.effect.state, done.effect.receipt, done.outcome) == ("succeeded", {"id": "old"}, None)
    assert (world.asked, world.sent) == ([f"{KIND}:{lease.job_id}:send"], [])
    assert bench.trail(lease.job_id)[-2:] == ["dispatched", "effect_settled"]
    # The receipt is read like any other from now on, and the job ends like any other.
    assert effect(bench, lease, world).effect.receipt == {"id": "old"}
    bench.service.complete_job(lease, result=None)
    assert not bench.service.get_job(lease.job_id).suspect


def test_what_was_never_sent_is_sent_once_under_the_same_key(bench: Bench) -> None:
    """The allowed control of the test above."""
    lease = suspect_job(bench)
    world = World(Absent())
    done = effect(bench, lease, world)
    assert (done.effect.state, done.effect.receipt) == ("succeeded", RECEIPT)
    key = f"{KIND}:{lease.job_id}:send"
    assert (world.asked, world.sent) == ([key], [key])
    # Asked about once: the next attempt reads the receipt.
    assert effect(bench, lease, world).outcome is None
    assert (world.asked, world.sent) == ([key], [key])


def test_a_job_that_is_not_suspect_sends_without_asking(bench: Bench) -> None:
    create(bench.service)
    world = World(NoAnswer())
    effect(bench, claim(bench.service, start=True).lease, world)
    assert (len(world.asked), len(world.sent)) == (0, 1)


def test_a_refusal_of_before_is_a_refusal_now(bench: Bench) -> None:
    lease = suspect_job(bench)
    world = World(Declined("no such address"))
    assert effect(bench, lease, world).effect.state == "rejected"
    with pytest.raises(EffectRejected, match="no such address"):
        effect(bench, lease, world)
    assert world.sent == []


@pytest.mark.parametrize(
    ("says", "declared"),
    [
        (NoAnswer("timed out"), MAILER),
        ("nonsense", MAILER),
        (Absent(), PIGEON),
        (Absent(), provider(lookup_complete=False)),
        (Absent(), provider(idempotency=None)),
        (Absent(), provider(idempotency=keys_for(minutes=30))),
    ],
    ids=["no answer", "no evidence", "no look-up", "incomplete", "no keys", "forgotten"],
)
def test_what_cannot_be_told_is_uncertain_and_a_person_is_asked_by_its_key(
    bench: Bench, says: Any, declared: Any
) -> None:
    lease = suspect_job(bench)
    world = World(says)
    done = effect(bench, lease, world, declared=declared)
    assert (done.effect.state, world.sent) == ("unknown", [])
    job = bench.service.get_job(lease.job_id)
    assert job.escalated_at is not None
    assert f"{KIND}:{lease.job_id}:send" in (job.escalation_reason or "")
    # Whatever the handler makes of it, the job is indeterminate afterwards, and nothing sends.
    ended = bench.service.fail_job(lease, code="E", message="who knows", retryable=True)
    assert ended.status == "indeterminate"
    assert bench.service.sweep_reconciliation_candidates(organization="acme", project="p1", lookup=lambda *_: Absent())[
        0
    ].action in {"leave", "escalate"}
    # A person's statement settles it.
    settled = bench.service.reconcile_dispatched(lease.job_id, Accepted({"id": "x"}), reason="their page", actor="u:1")
    assert settled.status == "queued"
    again = claim(bench.service, start=True).lease
    assert effect(bench, again, world, declared=declared).effect.receipt == {"id": "x"}
    assert world.sent == []


def test_an_absence_counts_from_the_recovery_and_the_longer_of_timeout_and_lease(bench: Bench) -> None:
    """The lost call's own deadline is lost: nobody may have begun it later than the recovery."""
    slow = provider(settles_within=timedelta(seconds=40))
    create(bench.service, lease_duration=timedelta(seconds=50))
    mark(bench)
    # The longer of the timeout (30 s) and the lease (50 s), and 40 s of settling.
    bench.advance(seconds=89)
    lease = claim(bench.service, start=True).lease
    world = World(Absent())
    assert effect(bench, lease, world, declared=slow).effect.state == "unknown"
    job = bench.service.get_job(lease.job_id)
    # It will count: that is for a sweep, which asks again, and for no person.
    assert (job.escalated_at, world.sent) == (None, [])
    bench.service.mark_indeterminate(lease, code="E", message="not known yet")
    bench.advance(seconds=1)
    (verdict,) = bench.service.sweep_reconciliation_candidates(
        organization="acme", project="p1", lookup=lambda *_: Absent()
    )
    assert (verdict.action, verdict.status) == ("resolve", "queued")
    again = claim(bench.service, start=True).lease
    done = effect(bench, again, world, declared=slow)
    # Proven by the sweep, after the recovery: it is sent, and not asked about once more.
    assert (done.effect.state, len(world.asked), len(world.sent)) == ("succeeded", 1, 1)


def test_the_providers_memory_is_counted_from_the_copys_age(bench: Bench) -> None:
    day = provider(idempotency=keys_for(hours=24))
    create(bench.service)
    bench.advance(hours=30)
    mark(bench)  # the copy may be as old as the job: the memory of the key may have ended
    bench.advance(hours=1)
    lease = claim(bench.service, start=True).lease
    world = World(Absent())
    assert effect(bench, lease, world, declared=day).effect.state == "unknown"
    assert world.sent == []
    create(bench.service, key="k-2")
    bench.sql("DELETE FROM $suspect")
    mark(bench, since=bench.now - timedelta(hours=2))  # it is known to be two hours old
    bench.advance(hours=1)
    other = claim(bench.service, start=True).lease
    assert effect(bench, other, world, declared=day).effect.state == "succeeded"
    assert len(world.sent) == 1


def test_an_effect_that_had_failed_before_the_backup_is_asked_about_too(bench: Bench) -> None:
    """A later attempt may have sent it, and its intent is lost."""
    case = running_effect(bench)
    bench.service.finish_effect(case.lease, name="send", outcome=FailedBeforeDispatch("no route"))
    bench.service.fail_job(case.lease, code="E", message="again", retryable=True)
    mark(bench)
    bench.advance(hours=1)
    world = World(Accepted({"id": "old"}))
    assert effect(bench, claim(bench.service, start=True).lease, world).effect.receipt == {"id": "old"}
    assert world.sent == []


def test_receipts_and_refusals_of_before_the_backup_are_read_without_asking(bench: Bench) -> None:
    world = World(NoAnswer())
    case = running_sent(bench)
    bench.service.release_job(case.lease, reason="shutdown")
    mark(bench)
    again = claim(bench.service, start=True).lease
    assert effect(bench, again, world).effect.receipt == RECEIPT
    assert (world.asked, world.sent) == ([], [])


def test_a_resumed_job_asks_before_its_next_effect(bench: Bench) -> None:
    """It was indeterminate in the copy; after the backup it may have been resumed, and gone on."""
    case = running_unknown(bench)
    bench.service.mark_indeterminate(case.lease, code="E", message="?")
    mark(bench)
    bench.advance(hours=1)
    bench.service.reconcile_dispatched(case.job_id, Accepted(RECEIPT), reason="their page", actor="u:1")
    lease = claim(bench.service, start=True).lease
    world = World(Accepted({"id": "second"}))
    assert effect(bench, lease, world, name="second").effect.receipt == {"id": "second"}
    assert world.sent == []


def test_a_failed_job_that_is_retried_asks_too(bench: Bench) -> None:
    case = failed(bench)
    mark(bench)
    bench.advance(hours=1)
    bench.service.retry_job(case.job_id, actor="u:1")
    world = World(Accepted({"id": "old"}))
    assert effect(bench, claim(bench.service, start=True).lease, world).effect.receipt == {"id": "old"}
    assert world.sent == []


def test_nothing_is_sent_again_that_this_attempt_has_not_sent(bench: Bench) -> None:
    lease = suspect_job(bench)
    with pytest.raises(Uncertain, match="Send nothing"):
        begin(bench.service, lease)
    with pytest.raises(Uncertain):
        begin(bench.service, lease, resend=True)
    # The control: what this attempt did send, it may send again under the same key.
    create(bench.service, key="k-2")
    other = claim(bench.service, start=True).lease
    begin(bench.service, other)
    begin(bench.service, other, resend=True)


# --- those who cannot ask ---------------------------------------------------------------------------------------------


def test_the_bare_verb_writes_the_intent_as_unknown_and_refuses(bench: Bench) -> None:
    lease = suspect_job(bench)
    with pytest.raises(Uncertain, match=f"{KIND}:{lease.job_id}:send") as refused:
        begin(bench.service, lease)
    assert refused.value.code == "SUSPECT_NOT_ASKED"
    (row,) = bench.table("effect", lease.job_id)
    assert (row["state"], row["settled_by"], row["settled_at"]) == ("unknown", "recovery", None)
    bench.service.mark_indeterminate(lease, code="E", message="nobody knows")
    (verdict,) = bench.service.sweep_reconciliation_candidates(
        organization="acme", project="p1", lookup=lambda *_: Absent()
    )
    assert (verdict.action, verdict.status) == ("resolve", "queued")
    # What is proven not to have happened is begun by this verb like anything else.
    again = claim(bench.service, start=True).lease
    assert bench.service.begin_effect(again, name="send", request=REQUEST, provider=MAILER).state == "pending"


def test_a_crash_between_the_intent_and_the_question_is_uncertain_not_silent(bench: Bench) -> None:
    lease = suspect_job(bench)
    with pytest.raises(Uncertain):
        begin(bench.service, lease)
    bench.clock.advance(lease.expires_at - bench.now)
    assert bench.service.claim_job("B") is None
    assert bench.service.get_job(lease.job_id).status == "indeterminate"
    (verdict,) = bench.service.sweep_reconciliation_candidates(
        organization="acme", project="p1", lookup=lambda *_: Accepted({"id": "old"})
    )
    assert verdict.action == "resolve"
    world = World()
    assert effect(bench, claim(bench.service, start=True).lease, world).effect.receipt == {"id": "old"}
    assert world.sent == []


def test_the_bare_mark_is_written_as_unknown_and_refused(bench: Bench) -> None:
    lease = suspect_job(bench)
    with pytest.raises(Uncertain, match=OWN_KEY) as refused:
        bench.service.mark_provider_dispatched(lease, operation_key=OWN_KEY)
    assert refused.value.code == "SUSPECT_NOT_ASKED"
    assert bench.service.get_job(lease.job_id).operation_key == OWN_KEY
    bench.service.mark_indeterminate(lease, code="E", message="nobody knows")
    done = bench.service.reconcile_dispatched(lease.job_id, Accepted(RECEIPT), reason="their page", actor="u:1")
    assert (done.status, done.suspect) == ("completed", False)
    assert bench.table("suspect", lease.job_id) == []
    # The control: a job that is not suspect is marked.
    create(bench.service, key="k-2")
    other = claim(bench.service, start=True).lease
    bench.service.mark_provider_dispatched(other, operation_key="send_quote:18")


# --- a new key of a suspect job ---------------------------------------------------------------------------------------


def declined(bench: Bench) -> UUID:
    """A suspect job whose provider has refused its effect after the recovery, and which failed of it."""
    lease = suspect_job(bench)
    assert effect(bench, lease, World(Declined("no such address"))).effect.state == "rejected"
    bench.service.fail_job(lease, code="REFUSED", message="no such address", retryable=False)
    return lease.job_id


def reopened(bench: Bench, job_id: UUID) -> Lease:
    bench.service.retry_job(job_id, actor="op:1", reopen=["send"])
    bench.advance(hours=1)
    return claim(bench.service, start=True).lease


def test_an_effect_that_is_reopened_asks_about_its_new_key_too(bench: Bench) -> None:
    """It may have been reopened after the backup as well, and its second call accepted."""
    job_id = declined(bench)
    world = World(Accepted({"id": "second"}))
    lease = reopened(bench, job_id)
    done = effect(bench, lease, world)
    assert (done.effect.state, done.effect.receipt) == ("succeeded", {"id": "second"})
    assert (world.asked, world.sent) == ([f"{KIND}:{job_id}:send#1"], [])


def test_each_further_key_is_asked_about_and_what_was_never_sent_is_sent_once(bench: Bench) -> None:
    """The allowed control of the test above; and a retry that reopens nothing asks about no key a second time."""
    job_id = declined(bench)
    lease = reopened(bench, job_id)
    assert effect(bench, lease, World(Declined("still none"))).effect.state == "rejected"
    bench.service.fail_job(lease, code="REFUSED", message="still none", retryable=False)
    world = World(Absent())
    lease = reopened(bench, job_id)
    key = f"{KIND}:{job_id}:send#2"
    assert effect(bench, lease, world).effect.receipt == RECEIPT
    assert (world.asked, world.sent) == ([key], [key])
    bench.service.fail_job(lease, code="LATER", message="of something else", retryable=False)
    bench.service.retry_job(job_id, actor="op:1")
    assert effect(bench, claim(bench.service, start=True).lease, world).outcome is None
    assert (world.asked, world.sent) == ([key], [key])


def test_a_reopened_effect_of_a_job_that_is_not_suspect_is_sent_without_asking(bench: Bench) -> None:
    job_id = failed_rejected(bench).job_id
    world = World(NoAnswer())
    assert effect(bench, reopened(bench, job_id), world).effect.state == "succeeded"
    assert (world.asked, world.sent) == ([], [f"{KIND}:{job_id}:send#1"])


@pytest.mark.parametrize("says", [NoAnswer("down"), Absent(), Accepted(RECEIPT)])
def test_the_receipt_of_a_lost_reopening_speaks_where_it_is_reopened_again(bench: Bench, says: Any) -> None:
    """It was handed in while only the first key was known, and is kept for the begin of its own."""
    job = create(bench.service)
    mark(bench)
    kept = bench.service.submit_evidence(f"{KIND}:{job.id}:send#1", Accepted(RECEIPT), attempt_id=uuid4())
    assert kept.escalated_at is None
    bench.advance(hours=1)
    lease = claim(bench.service, start=True).lease
    assert effect(bench, lease, World(Declined("no such address"))).effect.state == "rejected"
    bench.service.fail_job(lease, code="REFUSED", message="no such address", retryable=False)
    world = World(says)
    done = effect(bench, reopened(bench, job.id), world)
    assert (done.effect.state, done.effect.receipt, world.sent) == ("succeeded", RECEIPT, [])
    assert bench.service.get_job(job.id).escalated_at is None


def test_reconciling_asks_about_the_key_of_a_reopened_effect(bench: Bench) -> None:
    _known_kind(bench)
    job_id = create(bench.service, key="n-1").id
    mark(bench)
    world = World(lambda key: Accepted({"id": "second"}) if key.endswith("#1") else Declined("no such address"))
    bench.bound("acme").reconcile_suspects(providers=[_providers(world)])
    lease = claim(bench.service, start=True).lease
    with pytest.raises(EffectRejected):
        effect(bench, lease, world)
    bench.service.fail_job(lease, code="REFUSED", message="no such address", retryable=False)
    bench.service.retry_job(job_id, actor="op:1", reopen=["send"])
    page = bench.bound("acme").reconcile_suspects(providers=[_providers(world)])
    assert [(one.action, one.operation_key) for one in page.answers] == [("found", f"{KIND}:{job_id}:send#1")]
    done = effect(bench, claim(bench.service, start=True).lease, world)
    assert (done.effect.receipt, world.sent) == ({"id": "second"}, [])


def test_a_bare_mark_under_another_key_is_refused_too(bench: Bench) -> None:
    lease = suspect_job(bench)
    service = bench.service

    def declined_mark(key: str, held: Lease) -> None:
        with pytest.raises(Uncertain) as refused:
            service.mark_provider_dispatched(held, operation_key=key)
        assert refused.value.code == "SUSPECT_NOT_ASKED"
        service.mark_indeterminate(held, code="E", message="nobody knows")
        service.reconcile_dispatched(held.job_id, Declined("no"), reason="their page", actor="u:1")
        service.retry_job(held.job_id, actor="op:1")

    declined_mark(OWN_KEY, lease)
    again = claim(service, start=True).lease
    declined_mark("send_quote:18", again)
    # The control: a person's word that nothing is lost.
    last = claim(service, start=True).lease
    service.clear_suspicion(last.job_id, reason="their page shows two", actor="user:7")
    service.mark_provider_dispatched(last, operation_key="send_quote:19")


# --- a person's word --------------------------------------------------------------------------------------------------


def test_a_person_may_clear_a_job_and_it_sends_without_asking(bench: Bench) -> None:
    lease = suspect_job(bench)
    cleared = bench.service.clear_suspicion(lease.job_id, reason="nothing ran after the backup", actor="user:7")
    assert not cleared.suspect
    assert bench.table("suspect", lease.job_id) == []
    (event,) = [e for e in bench.service.list_job_events(lease.job_id) if e.name == "suspicion_cleared"]
    assert (event.actor, event.data) == ("user:7", {"reason": "nothing ran after the backup"})
    world = World(NoAnswer())
    assert effect(bench, lease, world).effect.state == "succeeded"
    assert (len(world.asked), len(world.sent)) == (0, 1)


def test_a_clearing_needs_a_suspect_job_a_reason_and_an_actor(bench: Bench) -> None:
    job = create(bench.service)
    with pytest.raises(IllegalMove, match="not suspect"):
        bench.service.clear_suspicion(job.id, reason="why not", actor="user:7")
    mark(bench)
    with pytest.raises(Invalid):
        bench.service.clear_suspicion(job.id, reason="", actor="user:7")
    with pytest.raises(Invalid):
        bench.service.clear_suspicion(job.id, reason="why not")
    with pytest.raises(NotFound):
        bench.bound("zeta").clear_suspicion(job.id, reason="why not", actor="user:7")
    assert bench.service.get_job(job.id).suspect
    bench.bound("acme", actor="user:7").clear_suspicion(job.id, reason="why not")
    assert not bench.service.get_job(job.id).suspect


# --- what is listed ---------------------------------------------------------------------------------------------------


def _jobs(bench: Bench, count: int) -> list[UUID]:
    return [create(bench.service, key=f"k-{nth}").id for nth in range(count)]


def test_suspects_are_listed_in_pages_with_who_marked_them(bench: Bench) -> None:
    ids = _jobs(bench, 5)
    mark(bench)
    service = bench.bound("acme")
    first = service.list_suspects(limit=3)
    rest = service.list_suspects(limit=3, after=first[-1].job.id)
    assert [one.job.id for one in (*first, *rest)] == ids
    assert {(one.actor, one.reason) for one in (*first, *rest)} == {("user:7", REASON)}
    assert all(one.job.suspect for one in first)
    assert service.count_suspects() == {"acme": {"queued": 5}}
    # A plain completion leaves its row behind, and is counted no more.
    lease = claim(bench.service, start=True).lease
    bench.service.clear_suspicion(ids[4], reason="checked", actor="user:7")
    bench.service.complete_job(lease, result=None)
    assert service.count_suspects() == {"acme": {"queued": 3}}
    assert lease.job_id not in [one.job.id for one in service.list_suspects()]
    bench.run(forget_suspects())
    assert bench.table("suspect", lease.job_id) == []
    with pytest.raises(Invalid):
        service.list_suspects(limit=0)


def test_a_tenant_sees_its_own_suspects(bench: Bench) -> None:
    _jobs(bench, 2)
    mark(bench)
    other = bench.bound("zeta")
    assert "acme" not in other.count_suspects()
    assert all(one.job.tenant == "zeta" for one in other.list_suspects())
    assert all(need.tenant == "zeta" for need in other.list_effects_needing_evidence())
    assert "acme" in bench.service.count_suspects()


def test_what_needs_evidence_is_said_effect_by_effect(bench: Bench) -> None:
    service = bench.bound("acme")
    assert service.list_effects_needing_evidence() == []
    open_one = running_unknown(bench)
    plain = create(bench.service, key="k-2", kind="plain")
    (only,) = service.list_effects_needing_evidence()
    assert (only.job_id, only.operation_key, only.provider) == (open_one.job_id, open_one.key, "mailer")
    mark(bench)
    needs = {(one.job_id, one.operation_key, one.provider): one.why for one in service.list_effects_needing_evidence()}
    assert set(needs) == {
        (open_one.job_id, open_one.key, "mailer"),
        (open_one.job_id, None, None),
        (plain.id, None, None),
    }
    assert "declares no providers" in needs[plain.id, None, None]


# --- asking for all of them -------------------------------------------------------------------------------------------


def _providers(world: World) -> Any:
    class Asked(type(MAILER)):  # type: ignore[misc]
        async def lookup(self, operation_key: str) -> Any:
            world.asked.append(operation_key)
            return world.says(operation_key) if callable(world.says) else world.says

    return Asked("mailer")


def _known_kind(bench: Bench) -> UUID:
    """Let the database know which effect jobs of the kind have."""
    case = completed_sent(bench)
    return case.job_id


def test_reconciling_finds_receipts_and_the_next_attempt_reads_them(bench: Bench) -> None:
    known = _known_kind(bench)
    ids = [create(bench.service, key=f"n-{nth}").id for nth in range(3)]
    mark(bench)
    lost = {f"{KIND}:{ids[0]}:send": Accepted({"id": "old"}), f"{KIND}:{ids[1]}:send": Declined("no such address")}
    world = World(lambda key: lost.get(key, Absent()))
    page = bench.bound("acme").reconcile_suspects(providers=[_providers(world)])
    assert page.after is None
    assert [(one.job_id, one.action) for one in page.answers] == [
        (ids[0], "found"),
        (ids[1], "found"),
        (ids[2], "absent"),
    ]
    assert known not in [one.job_id for one in page.answers]
    (found,) = bench.service.list_effects(ids[0])
    assert (found.state, found.receipt) == ("succeeded", {"id": "old"})
    # Asked again, nothing more is asked about what is known.
    world.asked.clear()
    bench.bound("acme").reconcile_suspects(providers=[_providers(world)])
    assert world.asked == [f"{KIND}:{ids[2]}:send"]
    sender = World(Absent())
    bench.advance(hours=1)
    for job_id in ids:
        lease = claim(bench.service, start=True).lease
        assert lease.job_id == job_id
        if job_id == ids[1]:
            with pytest.raises(EffectRejected):
                effect(bench, lease, sender)
        else:
            effect(bench, lease, sender)
    assert sender.sent == [f"{KIND}:{ids[2]}:send"]


def test_reconciling_goes_on_where_it_stopped_and_says_what_it_could_not_ask(bench: Bench) -> None:
    service = bench.bound("acme")
    ids = _jobs(bench, 3)
    held = claim(bench.service, start=True).lease
    mark(bench)
    world = World(Accepted({"id": "old"}))
    page = service.reconcile_suspects(providers=[_providers(world)], limit=2)
    assert [(one.job_id, one.action) for one in page.answers] == [(held.job_id, "left"), (ids[1], "left")]
    assert "a worker has it" in page.answers[0].reason
    assert "no effect of its kind is known" in page.answers[1].reason
    assert page.after == ids[1]
    # Who knows the effects says so.
    mailer = _providers(world)
    rest = service.reconcile_suspects(operations={KIND: {"send": mailer}}, after=page.after)
    assert [(one.job_id, one.action, one.operation_key) for one in rest.answers] == [
        (ids[2], "found", f"{KIND}:{ids[2]}:send")
    ]
    assert rest.after is None


def test_reconciling_leaves_open_effects_to_the_sweep(bench: Bench) -> None:
    case = running_unknown(bench)
    bench.service.mark_indeterminate(case.lease, code="E", message="?")
    mark(bench)
    world = World(Accepted({"id": "old"}))
    page = bench.bound("acme").reconcile_suspects(providers=[_providers(world)])
    assert [(one.action, one.status) for one in page.answers] == [("swept", "queued")]
    assert world.asked == [case.key]


def test_a_provider_that_was_not_given_is_unanswered_and_nothing_is_written(bench: Bench) -> None:
    _known_kind(bench)
    job = create(bench.service, key="k-2")
    mark(bench)
    page = bench.bound("acme").reconcile_suspects()
    assert [(one.action, "mailer" in one.reason) for one in page.answers] == [("unanswered", True)]
    assert bench.table("effect", job.id) == []


def test_a_frozen_copy_is_listed_and_not_reconciled(bench: Bench) -> None:
    _known_kind(bench)
    create(bench.service, key="k-2")
    mark(bench)
    bench.sql("INSERT INTO $meta (key, value) VALUES ('frozen', 'restored')")
    service = bench.bound("acme")
    assert service.count_suspects() == {"acme": {"queued": 1}}
    world = World(Accepted({"id": "old"}))
    (said,) = service.reconcile_suspects(providers=[_providers(world)]).answers
    assert (said.action, world.asked) == ("left", [])
    bench.sql("DELETE FROM $meta WHERE key = 'frozen'")
    (said,) = service.reconcile_suspects(providers=[_providers(world)]).answers
    assert said.action == "found"
