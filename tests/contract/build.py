"""Jobs in every status and with every kind of open business, reached by real verbs alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from tenure.connectors.provider import IdempotencyKey
from tenure.procedures.claim import Claim
from tenure.rules.envelope import ExecutionInput
from tenure.rules.job import Job
from tenure.rules.lease import Lease
from tenure.rules.outcome import Accepted, FailedBeforeDispatch, NoAnswer, Rejected, Succeeded, Unknown
from tenure.service import DurableJobService
from tenure.testing.provider import FakeProvider
from tests.contract.bench import NEIGHBOUR, Bench

KIND = "send_quote"
PAYLOAD = {"quote": 17}
REQUEST = {"to": "a@b.example", "quote": 17}
RECEIPT = {"id": "r-1"}
OWN_KEY = "send_quote:17"
EXECUTION = ExecutionInput(tenant="acme", actor="user:42", trace="t-1")
# Honours keys for a day, its look-up sees everything and settles at once.
MAILER = FakeProvider("mailer")
# Neither keys nor a look-up.
PIGEON = FakeProvider("pigeon", idempotency=None, lookup=False)


def provider(**declares: Any) -> FakeProvider:
    """Make a provider with other declarations."""
    return FakeProvider("mailer", **declares)


def keys_for(**retention: float) -> IdempotencyKey:
    return IdempotencyKey(timedelta(**retention))


def create(service: DurableJobService, key: str = "k-1", **fields: Any) -> Job:
    """Create a job of tenant acme that may dispatch."""
    given: dict[str, Any] = {
        "organization": "acme",
        "project": "p1",
        "kind": KIND,
        "payload": PAYLOAD,
        "execution": EXECUTION,
    }
    made = service.create_job(idempotency_key=key, **{**given, **fields})
    assert made.created, "the fixture's key is new"
    return made.job


def claim(service: DurableJobService, worker: str = "A", *, start: bool = False, **scope: Any) -> Claim:
    """Claim a job that must be there."""
    taken = service.claim_job(worker, start=start, **scope)
    assert taken is not None, "there is something to claim"
    return taken


def begin(service: DurableJobService, lease: Lease, name: str = "send", **given: Any) -> str:
    """Begin an effect and give its operation key."""
    fields: dict[str, Any] = {"request": REQUEST, "provider": MAILER}
    return service.begin_effect(lease, name=name, **{**fields, **given}).operation_key


@dataclass(frozen=True, slots=True)
class Case:
    """
    A job and the lease its last holder has, or had.

    Attributes:
        key: The operation key of its effect or mark.
        question: What a sweep asks a provider about it.
    """

    job_id: UUID
    lease: Lease
    key: str | None = None
    question: Any = None


def _held(bench: Bench, *, start: bool, **fields: Any) -> Case:
    create(bench.service, **fields)
    taken = claim(bench.service, start=start)
    return Case(taken.job.id, taken.lease)


def queued(bench: Bench) -> Case:
    case = claimed(bench)
    bench.service.release_job(case.lease, reason="not now")
    return case


def claimed(bench: Bench) -> Case:
    return _held(bench, start=False)


def running(bench: Bench, **fields: Any) -> Case:
    return _held(bench, start=True, **fields)


def running_effect(bench: Bench, **fields: Any) -> Case:
    case = running(bench, **fields)
    return Case(case.job_id, case.lease, begin(bench.service, case.lease))


def running_unknown(bench: Bench) -> Case:
    case = running_effect(bench)
    bench.service.finish_effect(case.lease, name="send", outcome=Unknown("no reply"))
    return case


def running_sent(bench: Bench, **fields: Any) -> Case:
    case = running_effect(bench, **fields)
    bench.service.finish_effect(case.lease, name="send", outcome=Succeeded(RECEIPT))
    return case


def running_mark(bench: Bench, **fields: Any) -> Case:
    case = running(bench, **fields)
    bench.service.mark_provider_dispatched(case.lease, operation_key=OWN_KEY)
    return Case(case.job_id, case.lease, OWN_KEY)


def cancelling(base: Callable[[Bench], Case]) -> Callable[[Bench], Case]:
    """Ask for the cancellation of a held job."""

    def build(bench: Bench) -> Case:
        case = base(bench)
        bench.service.cancel_job(case.job_id, reason="changed my mind")
        return case

    return build


def expired(base: Callable[[Bench], Case]) -> Callable[[Bench], Case]:
    """Let the lease of a held job end, to the microsecond."""

    def build(bench: Bench) -> Case:
        case = base(bench)
        bench.clock.advance(case.lease.expires_at - bench.now)
        return case

    return build


def completed(bench: Bench) -> Case:
    return _completed(bench, running)


def _completed(bench: Bench, base: Callable[[Bench], Case]) -> Case:
    case = base(bench)
    bench.service.complete_job(case.lease, result={"done": True})
    return case


def completed_sent(bench: Bench) -> Case:
    return _completed(bench, running_sent)


def completed_mark(bench: Bench) -> Case:
    return _completed(bench, running_mark)


def failed(bench: Bench) -> Case:
    return _failed(bench, running(bench))


def _failed(bench: Bench, case: Case) -> Case:
    bench.service.fail_job(case.lease, code="BROKEN", message="it broke", retryable=False)
    return case


def failed_closed(bench: Bench) -> Case:
    return _failed(bench, running_mark(bench))


def failed_rejected(bench: Bench) -> Case:
    case = running_effect(bench)
    bench.service.finish_effect(case.lease, name="send", outcome=Rejected("no such address"))
    return _failed(bench, case)


def failed_unsent(bench: Bench) -> Case:
    case = running_effect(bench)
    bench.service.finish_effect(case.lease, name="send", outcome=FailedBeforeDispatch("refused"))
    return _failed(bench, case)


def cancelled(bench: Bench) -> Case:
    return _cancelled(bench, running)


def cancelled_effect(bench: Bench) -> Case:
    return _cancelled(bench, running_effect)


def _cancelled(bench: Bench, base: Callable[[Bench], Case]) -> Case:
    case = base(bench)
    bench.service.cancel_job(case.job_id, reason="changed my mind")
    bench.service.acknowledge_cancellation(case.lease)
    return case


def dead_letter(bench: Bench) -> Case:
    return _dead(bench, running(bench, max_attempts=1))


def dead_letter_sent(bench: Bench) -> Case:
    return _dead(bench, running_sent(bench, max_attempts=1))


def _dead(bench: Bench, case: Case) -> Case:
    bench.service.fail_job(case.lease, code="BROKEN", message="it broke", retryable=True)
    return case


def indeterminate(bench: Bench) -> Case:
    case = running(bench)
    bench.service.mark_indeterminate(case.lease, code="UNSURE", message="nobody knows")
    return case


def indeterminate_effect(bench: Bench, **fields: Any) -> Case:
    return _unsure(bench, running_effect(bench, **fields))


def indeterminate_mark(bench: Bench, **fields: Any) -> Case:
    return _unsure(bench, running_mark(bench, **fields))


def _unsure(bench: Bench, case: Case) -> Case:
    bench.service.fail_job(case.lease, code="BROKEN", message="it broke", retryable=True)
    return case


def indeterminate_two(bench: Bench) -> Case:
    case = running_effect(bench)
    begin(bench.service, case.lease, "second")
    return _unsure(bench, case)


def indeterminate_escalated(bench: Bench) -> Case:
    case = indeterminate_effect(bench)
    bench.service.sweep_reconciliation_candidates(organization="acme", project="p1", lookup=lambda key, job: NoAnswer())
    return case


def halt_unsafe(bench: Bench) -> Case:
    return _halted(bench, running(bench))


def halt_unsafe_effect(bench: Bench) -> Case:
    return _halted(bench, running_effect(bench))


def _halted(bench: Bench, case: Case) -> Case:
    bench.service.mark_halt_unsafe(case.lease, code="UNSAFE", message="never again")
    return case


def timed_out(bench: Bench) -> Case:
    return _timed_out(bench, running(bench))


def timed_out_effect(bench: Bench) -> Case:
    return _timed_out(bench, running_effect(bench))


def _timed_out(bench: Bench, case: Case) -> Case:
    bench.service.mark_timed_out(case.lease, code="TOO_LONG", message="it took too long")
    return case


STATUSES: dict[str, Callable[[Bench], Case]] = {
    "queued": queued,
    "claimed": claimed,
    "running": running,
    "completed": completed,
    "failed": failed,
    "cancelled": cancelled,
    "dead_letter": dead_letter,
    "indeterminate": indeterminate,
    "halt_unsafe": halt_unsafe,
    "timed_out": timed_out,
}

CASES: dict[str, Callable[[Bench], Case]] = {
    **STATUSES,
    "claimed, cancelling": cancelling(claimed),
    "running, cancelling": cancelling(running),
    "running, effect": running_effect,
    "running, unknown": running_unknown,
    "running, sent": running_sent,
    "running, mark": running_mark,
    "running, effect, cancelling": cancelling(running_effect),
    "running, sent, cancelling": cancelling(running_sent),
    "running, mark, cancelling": cancelling(running_mark),
    "expired": expired(running),
    "expired, cancelling": expired(cancelling(running)),
    "expired, effect": expired(running_effect),
    "expired, sent": expired(running_sent),
    "completed, sent": completed_sent,
    "completed, mark": completed_mark,
    "failed, closed": failed_closed,
    "failed, rejected": failed_rejected,
    "failed, unsent": failed_unsent,
    "cancelled, effect": cancelled_effect,
    "dead_letter, sent": dead_letter_sent,
    "indeterminate, effect": indeterminate_effect,
    "indeterminate, mark": indeterminate_mark,
    "indeterminate, two": indeterminate_two,
    "indeterminate, escalated": indeterminate_escalated,
    "halt_unsafe, effect": halt_unsafe_effect,
    "timed_out, effect": timed_out_effect,
}


def neighbour(bench: Bench) -> None:
    """Make the jobs of another tenant that share every other name with the ones under test; none can be claimed."""
    theirs = bench.bound(tenant=NEIGHBOUR)
    who = ExecutionInput(tenant=NEIGHBOUR, actor="user:42", trace="t-1")

    def held(key: str) -> Claim:
        create(theirs, key, execution=who)
        return claim(theirs, start=True)

    done = held("k-1")
    begin(theirs, done.lease)
    theirs.finish_effect(done.lease, name="send", outcome=Succeeded(RECEIPT))
    theirs.complete_job(done.lease, result={"theirs": True})
    unsure = held("k-2")
    key = begin(theirs, unsure.lease)
    theirs.fail_job(unsure.lease, code="BROKEN", message="it broke", retryable=True)
    theirs.submit_evidence(key, Accepted(RECEIPT), attempt_id=unsure.lease.attempt_id)
    marked = held("k-3")
    theirs.mark_provider_dispatched(marked.lease, operation_key=OWN_KEY)
    theirs.revoke_job(marked.job.id, reason="gone", actor="op:1")
    theirs.append_job_event(marked.job.id, "admission_checked", {"by": "them"})
