"""
The reply to a commit is lost: the store asks again, and state, trail and answer are those of one clean call.

Each writing verb is called once undisturbed. Then everything is put back, and it is called again while the reply to its
commit is lost, once where the commit held and once where it did not.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tenure import outbox
from tenure.connectors.provider import terms
from tenure.errors import TenureError, Uncertain
from tenure.flows.authority import revoke_approval
from tenure.flows.drive import run_flow
from tenure.procedures import hold as holding
from tenure.procedures import upkeep
from tenure.procedures.approvals import replay_revocations
from tenure.procedures.outbox import add_message, claim_messages, finish_messages
from tenure.procedures.reconcile import Question, sweep_answer, sweep_step
from tenure.procedures.recover import answer_lost, read_doubt, settle_lost
from tenure.rules.lease import Lease
from tenure.rules.ledger import Book, Entry, applied
from tenure.rules.message import Delivered, Refused
from tenure.rules.outcome import (
    Absent,
    Accepted,
    Declined,
    Evidence,
    FailedBeforeDispatch,
    NoAnswer,
    Outcome,
    Rejected,
    Succeeded,
    Unknown,
)
from tenure.rules.recover import Operation
from tenure.yields import Procedure, new_id
from tests.contract.bench import Bench, Dump, close_bench
from tests.contract.build import (
    CASES,
    EXECUTION,
    KIND,
    MAILER,
    OWN_KEY,
    PAYLOAD,
    RECEIPT,
    REQUEST,
    Case,
    claim,
    create,
)
from tests.contract.conftest import Benches
from tests.contract.faults import Fault, Gate, PostgresFault, SqliteFault
from tests.contract.governed import forgotten, governed, grant_of
from tests.contract.invariants import broken
from tests.support.copies import mark_copy

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# Numbers that a database gives out, and never twice.
_NUMBERED = {"event_id", "change_id", "position"}
_DIGEST = re.compile(r"v1:[0-9a-f]{64}")

Act = Callable[[Bench, Case], Any]
Story = tuple[Callable[[Bench], Case], Act]


def _new(bench: Bench) -> Case:
    """Begin with a job that has nothing to do with the call."""
    return CASES["running"](bench)


def _waiting(bench: Bench) -> Case:
    create(bench.service, "k-2")
    create(bench.service, "k-3")
    return Case(UUID(int=0), None)  # type: ignore[arg-type]  # nobody holds anything yet


def _paused(bench: Bench) -> Case:
    bench.service.pause_queue("default", reason="r", actor="op:1")
    return _waiting(bench)


def _rotated(bench: Bench) -> Case:
    case = CASES["queued"](bench)
    bench.service.rotate_tenant("acme", actor="op:1", reason="r")
    return case


def _with_evidence(case: str) -> Callable[[Bench], Case]:
    def build(bench: Bench) -> Case:
        made = CASES[case](bench)
        assert made.key is not None
        bench.service.submit_evidence(made.key, Accepted(RECEIPT), attempt_id=made.lease.attempt_id)
        return made

    return build


def _restored(bench: Bench) -> Case:
    case = CASES["queued"](bench)
    _marked(bench)
    return case


def _letter_held(bench: Bench) -> Case:
    case = _new(bench)
    for operation in ("op-1", "op-2"):
        bench.run(
            add_message(outbox.prepare(operation=operation, destination="mail", type="t", data={}, tenant="acme"))
        )
    bench.service.rotate_tenant("acme", actor="op:1", reason="r")
    return case


class _Notebook:
    """A ledger in memory."""

    where = "memory"

    def __init__(self) -> None:
        self.book = Book(store="s-1", identity="here")

    def read(self) -> Book:
        return self.book

    def begin(self, book: Book) -> Book:
        return self.book

    def write(self, *entries: Entry) -> Book:
        for one in entries:
            self.book = applied(self.book, one)
        return self.book

    def close(self) -> None:
        """Nothing is open."""


def _taken_back(bench: Bench) -> Any:
    """Take an approval back where a ledger is kept: it has it as pending, and then confirmed, whatever is lost."""
    ledger = _Notebook()
    bench.sql("INSERT INTO $meta (key, value) VALUES ('store', 's-1')")
    told = run_flow(revoke_approval(ledger, new_id(), "acme", "ap-1", "user:1", "r"), bench.run)
    return told, dict(ledger.book.restrictions), dict(ledger.book.pending)


def _two_held(bench: Bench) -> Case:
    case = CASES["running"](bench)
    create(bench.service, "k-2")
    claim(bench.service, start=True)
    return case


def _sent(bench: Bench) -> Case:
    """Leave a job claimed again whose effect an earlier attempt has sent."""
    case = CASES["running, sent"](bench)
    bench.service.release_job(case.lease, reason="later")
    again = claim(bench.service)
    return Case(case.job_id, again.lease, case.key)


def _unsent(bench: Bench) -> Case:
    case = CASES["running, effect"](bench)
    bench.service.finish_effect(case.lease, name="send", outcome=FailedBeforeDispatch("down"))
    return case


def _job(**more: Any) -> dict[str, Any]:
    given = {"organization": "acme", "project": "p1", "kind": KIND, "payload": PAYLOAD, "execution": EXECUTION}
    return {**given, **more}


def _ask(bench: Bench, case: Case) -> Question:
    question = bench.run(sweep_step(case.job_id, "acme", "p1", "acme"))
    assert isinstance(question, Question)
    return question


def _finishing(outcome: Outcome) -> Act:
    return lambda b, c: b.service.finish_effect(c.lease, name="send", outcome=outcome)


def _stating(evidence: Evidence) -> Act:
    return lambda b, c: b.service.reconcile_dispatched(c.job_id, evidence, reason="r", actor="op:1")


def _answering(evidence: Any, **how: Any) -> Story:
    """Lose the commit of a provider's answer, not that of the question."""

    def build(bench: Bench) -> Case:
        case = CASES["indeterminate, effect"](bench)
        return replace(case, question=_ask(bench, case))

    return build, lambda b, c: b.run(sweep_answer(c.question, evidence, **how))


def _quiet(bench: Bench, procedure: Procedure[Any]) -> None:
    # How many rows a pass moved is for its log; a pass that is asked again finds them moved.
    bench.run(procedure)


def _hold_two(bench: Bench, case: Case) -> Any:
    jobs = bench.service.list_jobs(tenant="acme")
    stale = Lease(case.job_id, "A", UUID(int=1), 1, bench.now, timedelta(seconds=60))
    second = next(job.lease for job in jobs if job.id != case.job_id)
    assert second is not None
    return bench.run(holding.hold([holding.completing(stale, None), holding.completing(second, {"n": 2})]))


def _marked(bench: Bench) -> None:
    """Do what a recovery does, to this tenant alone: the bench compares the neighbour's rows."""
    bench.run(mark_copy("op:1", "restored"))
    bench.sql("DELETE FROM $suspect WHERE tenant <> 'acme'")
    bench.sql("DELETE FROM $event WHERE tenant <> 'acme' AND name = 'suspected'")


def _suspect(bench: Bench) -> Case:
    """Leave a suspect job that was claimed after the recovery."""
    create(bench.service)
    _marked(bench)
    taken = claim(bench.service, start=True)
    return Case(taken.job.id, taken.lease)


def _doubted(bench: Bench) -> Case:
    """Leave one whose lost intent is written and not asked about yet."""
    case = _suspect(bench)
    with contextlib.suppress(Uncertain):
        bench.service.begin_effect(case.lease, name="send", request=REQUEST, provider=MAILER)
    return case


def _hearing(evidence: Evidence) -> Story:
    return _doubted, lambda b, c: b.run(answer_lost(c.lease, "send", evidence, b.now))


def _found(bench: Bench) -> Case:
    """Leave a queued suspect job and what a provider can be asked about it."""
    job = create(bench.service)
    _marked(bench)
    doubt = bench.run(read_doubt(job.id, [Operation("send", terms(MAILER))]))
    assert doubt is not None
    return Case(job.id, None, question=doubt.effects[0])  # type: ignore[arg-type]  # nobody holds it


def _outgoing(bench: Bench) -> Case:
    """Leave a message that a relay has claimed, as what the act asks about."""
    _message(bench)
    return Case(UUID(int=0), None, question=_claimed(bench))  # type: ignore[arg-type]  # no job is held


def _message(bench: Bench) -> Case:
    fields: dict[str, Any] = {"destination": "mail", "type": "t", "data": {}, "tenant": "acme", "subject": "s"}
    bench.run(add_message(outbox.prepare(operation="op-1", ordered=True, **fields)))
    return Case(UUID(int=0), None)  # type: ignore[arg-type]  # no job is held


def _claimed(bench: Bench) -> Any:
    return bench.run(claim_messages("r-1", "mail", 10, timedelta(seconds=60))).outgoing


def _aside(bench: Bench) -> Case:
    case = _outgoing(bench)
    bench.run(finish_messages("r-1", [(case.question[0], Refused("no"))], backoff=timedelta(seconds=10)))
    return case


def _finished(bench: Bench, case: Case) -> Any:
    return bench.run(finish_messages("r-1", [(case.question[0], Delivered())], backoff=timedelta(seconds=10))).stale


STORIES: dict[str, Story] = {
    "clear a suspect": (_suspect, lambda b, c: b.service.clear_suspicion(c.job_id, reason="r", actor="op:1")),
    "begin on a suspect": (
        _suspect,
        lambda b, c: b.service.begin_effect(c.lease, name="send", request=REQUEST, provider=MAILER),
    ),
    "mark a suspect dispatched": (
        _suspect,
        lambda b, c: b.service.mark_provider_dispatched(c.lease, operation_key=OWN_KEY),
    ),
    "hear of a lost one: accepted": _hearing(Accepted(RECEIPT)),
    "hear of a lost one: declined": _hearing(Declined("no")),
    "hear of a lost one: absent, too early": _hearing(Absent()),
    "hear of a lost one: no answer": _hearing(NoAnswer()),
    "settle a lost one": (_found, lambda b, c: b.run(settle_lost(c.job_id, c.question, Accepted(RECEIPT)))),
    "claim messages": (_message, lambda b, _: _claimed(b)),
    "finish messages": (_outgoing, _finished),
    "replay message": (
        _aside,
        lambda b, c: b.service.replay_message(c.question[0].message.id, reason="r", actor="op:1"),
    ),
    "discard message": (
        _aside,
        lambda b, c: b.service.discard_message(c.question[0].message.id, reason="r", actor="op:1"),
    ),
    "create": (_new, lambda b, c: b.service.create_job(idempotency_key="k-9", **_job())),
    "create one that is there": (_new, lambda b, c: b.service.create_job(idempotency_key="k-1", **_job())),
    "create many": (
        _new,
        lambda b, c: b.service.create_jobs([_job(idempotency_key=key) for key in ("k-7", "k-1", "k-8", "k-7")]),
    ),
    "create later": (
        _new,
        lambda b, c: b.service.create_job(idempotency_key="k-9", **_job(scheduled_at=b.now + timedelta(hours=1))),
    ),
    "claim": (_waiting, lambda b, c: b.service.claim_job("B")),
    "claim by id": (_waiting, lambda b, c: b.service.claim_job("B", claim_id=UUID(int=7))),
    "claim many": (_waiting, lambda b, c: b.service.claim_jobs("B", limit=5, start=True)),
    "claim many by id": (_waiting, lambda b, c: b.service.claim_jobs("B", limit=5, claim_id=UUID(int=7))),
    "claim nothing": (_new, lambda b, c: b.service.claim_job("B")),
    "claim an expired one": (CASES["expired"], lambda b, c: b.service.claim_job("B")),
    "heartbeat at first": (CASES["claimed"], lambda b, c: b.service.heartbeat(c.lease)),
    "heartbeat": (CASES["running"], lambda b, c: b.service.heartbeat(c.lease)),
    "renew": (_two_held, lambda b, c: b.run(holding.renew([c.lease], progress=["half"]))),
    "mark dispatched": (
        CASES["claimed"],
        lambda b, c: b.service.mark_provider_dispatched(c.lease, operation_key=OWN_KEY),
    ),
    "begin": (
        CASES["claimed"],
        lambda b, c: b.service.begin_effect(c.lease, name="send", request=REQUEST, provider=MAILER),
    ),
    "begin what was sent": (
        _sent,
        lambda b, c: b.service.begin_effect(c.lease, name="send", request=REQUEST, provider=MAILER),
    ),
    "begin again after nothing was sent": (
        _unsent,
        lambda b, c: b.service.begin_effect(c.lease, name="send", request=REQUEST, provider=MAILER),
    ),
    "finish, succeeded": (CASES["running, effect"], _finishing(Succeeded(RECEIPT))),
    "finish, failed before dispatch": (CASES["running, effect"], _finishing(FailedBeforeDispatch("down"))),
    "finish, rejected": (CASES["running, effect"], _finishing(Rejected("no"))),
    "finish, unknown": (CASES["running, effect"], _finishing(Unknown("no reply"))),
    "finish too late": (CASES["expired, effect"], _finishing(Succeeded(RECEIPT))),
    "finish against what is settled": (CASES["failed, unsent"], _finishing(Succeeded(RECEIPT))),
    "submit evidence": (
        CASES["running, effect"],
        lambda b, c: b.service.submit_evidence(str(c.key), Accepted(RECEIPT), attempt_id=c.lease.attempt_id),
    ),
    "submit contradicting evidence": (
        CASES["failed, closed"],
        lambda b, c: b.service.submit_evidence(str(c.key), Accepted(RECEIPT), attempt_id=c.lease.attempt_id),
    ),
    "complete": (CASES["running"], lambda b, c: b.service.complete_job(c.lease, result={"ok": 1})),
    "complete a marked one": (CASES["running, mark"], lambda b, c: b.service.complete_job(c.lease)),
    "complete with an open effect": (CASES["running, effect"], lambda b, c: b.service.complete_job(c.lease)),
    "complete with what cannot be stored": (
        CASES["running"],
        lambda b, c: b.service.complete_job(c.lease, result=float("nan")),
    ),
    "complete two at once": (_two_held, _hold_two),
    "fail, retryable": (
        CASES["running"],
        lambda b, c: b.service.fail_job(c.lease, code="E", message="m", retryable=True),
    ),
    "fail for good": (
        CASES["running, mark"],
        lambda b, c: b.service.fail_job(c.lease, code="E", message="m", retryable=False),
    ),
    "fail with an open effect": (
        CASES["running, effect"],
        lambda b, c: b.service.fail_job(c.lease, code="E", message="m", retryable=True),
    ),
    "mark indeterminate": (
        CASES["running"],
        lambda b, c: b.service.mark_indeterminate(c.lease, code="E", message="m"),
    ),
    "mark halt unsafe": (CASES["running"], lambda b, c: b.service.mark_halt_unsafe(c.lease, code="E", message="m")),
    "mark timed out": (CASES["running"], lambda b, c: b.service.mark_timed_out(c.lease, code="E", message="m")),
    "release": (CASES["running"], lambda b, c: b.service.release_job(c.lease, reason="later")),
    "acknowledge": (CASES["running, cancelling"], lambda b, c: b.service.acknowledge_cancellation(c.lease)),
    "cancel a queued one": (CASES["queued"], lambda b, c: b.service.cancel_job(c.job_id, reason="r")),
    "cancel a running one": (CASES["running"], lambda b, c: b.service.cancel_job(c.job_id, reason="r", actor="op:1")),
    "revoke": (CASES["running"], lambda b, c: b.service.revoke_job(c.job_id, reason="r", actor="op:1")),
    "retry": (CASES["failed"], lambda b, c: b.service.retry_job(c.job_id, actor="op:1", attempts=2)),
    "retry and reopen": (
        CASES["failed, rejected"],
        lambda b, c: b.service.retry_job(c.job_id, actor="op:1", reopen=["send"]),
    ),
    "state accepted": (CASES["indeterminate, mark"], _stating(Accepted(RECEIPT))),
    "state declined": (CASES["indeterminate, mark"], _stating(Declined("no"))),
    "state absent": (CASES["indeterminate, mark"], _stating(Absent())),
    "state of a closed mark": (CASES["failed, closed"], _stating(Declined("no"))),
    "state against a closed mark": (CASES["failed, closed"], _stating(Accepted(RECEIPT))),
    "resume sweep": (
        CASES["indeterminate, escalated"],
        lambda b, c: b.service.resume_sweep(c.job_id, actor="op:1"),
    ),
    "pause a queue": (CASES["queued"], lambda b, c: b.service.pause_queue("default", reason="r", actor="op:1")),
    "drain a queue": (CASES["queued"], lambda b, c: b.service.drain_queue("default", actor="op:1")),
    "resume a queue": (_paused, lambda b, c: b.service.resume_queue("default", actor="op:1")),
    "transfer a queue": (
        CASES["queued"],
        lambda b, c: b.service.transfer_queue("default", owner="a", expected=None, with_work=True, actor="op:1"),
    ),
    "begin, governed": (
        governed("ap-1"),
        lambda b, c: b.service.begin_effect(c.lease, name="send", request=REQUEST, provider=MAILER),
    ),
    "begin, governed and refused": (
        governed(None),
        lambda b, c: b.service.begin_effect(c.lease, name="send", request=REQUEST, provider=MAILER),
    ),
    "begin again, governed and refused": (
        governed("ap-1", revoked=True, unsent=True),
        lambda b, c: b.service.begin_effect(c.lease, name="send", request=REQUEST, provider=MAILER),
    ),
    "resend, governed and refused": (
        governed("ap-1", revoked=True, begun=True),
        lambda b, c: b.service.begin_effect(c.lease, name="send", request=REQUEST, provider=MAILER, resend=True),
    ),
    "mark dispatched, governed": (
        governed("ap-1"),
        lambda b, c: b.service.mark_provider_dispatched(c.lease, operation_key=OWN_KEY),
    ),
    "mark dispatched, governed and refused": (
        governed(None),
        lambda b, c: b.service.mark_provider_dispatched(c.lease, operation_key=OWN_KEY),
    ),
    "grant": (
        _new,
        lambda b, c: b.service.grant_approval("ap-2", **grant_of(b)),
    ),
    "revoke an approval": (
        governed("ap-1"),
        lambda b, c: b.service.revoke_approval("ap-1", tenant="acme", reason="r", actor="user:1"),
    ),
    "revoke an approval, in a ledger": (governed("ap-1"), lambda b, _: _taken_back(b)),
    "replay revocations": (governed("ap-1"), lambda b, c: _quiet(b, replay_revocations([forgotten(b)]))),
    "append event": (
        CASES["completed"],
        lambda b, c: b.service.append_job_event(c.job_id, "admission_checked", {"n": 1}),
    ),
    "sweep: ask": (
        CASES["indeterminate, effect"],
        lambda b, c: b.run(sweep_step(c.job_id, "acme", "p1", "acme")),
    ),
    "sweep: recover and ask": (
        CASES["expired, effect"],
        lambda b, c: b.run(sweep_step(c.job_id, "acme", "p1", "acme")),
    ),
    "sweep: escalate": (CASES["timed_out"], lambda b, c: b.run(sweep_step(c.job_id, "acme", "p1", "acme"))),
    "sweep: settle by stored evidence": (
        _with_evidence("indeterminate, mark"),
        lambda b, c: b.run(sweep_step(c.job_id, "acme", "p1", "acme")),
    ),
    "sweep: recover and settle": (
        _with_evidence("expired, effect"),
        lambda b, c: b.run(sweep_step(c.job_id, "acme", "p1", "acme")),
    ),
    "sweep: settle one, ask about the other": (
        _with_evidence("indeterminate, two"),
        lambda b, c: b.run(sweep_step(c.job_id, "acme", "p1", "acme")),
    ),
    "sweep: settle a timed out one": (
        _with_evidence("timed_out, effect"),
        lambda b, c: b.run(sweep_step(c.job_id, "acme", "p1", "acme")),
    ),
    "sweep: accepted": _answering(Accepted(RECEIPT)),
    "sweep: declined": _answering(Declined("no")),
    "sweep: no answer": _answering(NoAnswer()),
    "sweep: no answer yet": _answering(NoAnswer(), patient=True),
    "rotate": (CASES["running"], lambda b, c: b.service.rotate_tenant("acme", actor="op:1", reason="r")),
    "freeze": (CASES["running"], lambda b, c: b.service.freeze_tenant("acme", actor="op:1", reason="r")),
    "thaw": (CASES["queued"], lambda b, c: b.service.thaw_tenant("acme", actor="op:1", reason="r")),
    "readmit": (
        _rotated,
        lambda b, c: b.service.readmit_jobs("acme", job_ids=[c.job_id], actor="op:1", reason="r"),
    ),
    "readmit all": (_rotated, lambda b, _: b.service.readmit_jobs("acme", actor="op:1", reason="r")),
    "hand in the receipt of a lost intent": (
        _restored,
        lambda b, c: b.service.submit_evidence(f"{KIND}:{c.job_id}:send", Accepted(RECEIPT), attempt_id=UUID(int=5)),
    ),
    "readmit messages": (
        _letter_held,
        lambda b, _: b.service.readmit_messages("acme", actor="op:1", reason="r"),
    ),
    "recover": (CASES["expired"], lambda b, c: _quiet(b, upkeep.recover())),
    "announce": (CASES["queued"], lambda b, c: b.run(upkeep.announce("B", [KIND], timedelta(minutes=1)))),
    "park": (CASES["queued"], lambda b, c: _quiet(b, upkeep.park())),
}


@pytest.fixture(params=["sqlite-blocking", "sqlite-awaiting", "postgresql-blocking", "postgresql-awaiting"])
def fault(request: pytest.FixtureRequest, benches: Benches, proxied: Callable[[str], Fault]) -> Fault:
    name: str = request.param
    return SqliteFault(benches.get(name)) if name.startswith("sqlite") else proxied(name)


@pytest.fixture(scope="module")
def proxied(benches: Benches) -> Iterator[Callable[[str], Fault]]:
    """Give the maker of benches whose connections go through a proxy."""
    made: dict[str, Fault] = {}
    with contextlib.ExitStack() as stack:

        def get(name: str) -> Fault:
            benches.get(name)
            if name not in made:
                proxy = stack.enter_context(Gate(benches.database("postgresql").url))
                bench = benches.open(name, proxy.url)
                stack.callback(close_bench, bench)
                made[name] = PostgresFault(bench, proxy)
            made[name].bench.reset()
            return made[name]

        yield get


@pytest.mark.parametrize("story", STORIES)
def test_a_lost_reply_changes_nothing(fault: Fault, story: str) -> None:
    play(fault, *STORIES[story])


def play(fault: Fault, build: Callable[[Bench], Case], act: Act) -> None:
    """Call it undisturbed, then with its commit's reply lost, both ways; answer and rows are the same."""
    bench = fault.bench
    case = build(bench)
    snapshot = bench.snapshot()
    clean = _told(act, bench, case), _plain(bench.dump())
    for committed in (True, False):
        bench.restore(snapshot)
        with fault.lose(committed=committed):
            told = _told(act, bench, case)
        assert (told, _plain(bench.dump())) == clean, f"committed: {committed}"
    assert broken(bench.dump(), bench.baseline) == []


def _told(act: Act, bench: Bench, case: Case) -> str:
    try:
        answer = act(bench, case)
    except TenureError as error:
        answer = (type(error).__name__, error.code, getattr(error, "reason", None), str(error))
    return _DIGEST.sub("digest", _ID.sub("id", repr(answer)))


def _plain(dump: Dump) -> dict[str, list[str]]:
    """Give all rows without the ids that every call makes anew."""
    return {
        table: sorted(
            _DIGEST.sub("digest", _ID.sub("id", repr({key: row[key] for key in row if key not in _NUMBERED})))
            for row in rows
        )
        for table, rows in dump.items()
    }
