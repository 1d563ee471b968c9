"""Text that would be SQL if somebody pasted it together: in every argument, on both databases."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tenure.errors import TenureError
from tenure.procedures import upkeep
from tenure.rules.envelope import ExecutionInput
from tenure.rules.outcome import Accepted, Declined, FailedBeforeDispatch, Rejected, Unknown
from tenure.service import DurableJobService
from tests.contract.bench import Bench
from tests.contract.build import CASES, Case, claim
from tests.contract.invariants import broken

THROUGH_THE_FUNCTION = True

STRINGS = [
    "'; DROP TABLE tenure_job; --",
    "'; DROP SCHEMA tenure CASCADE; --",
    "' OR '1'='1",
    '" OR ""="',
    "'; UPDATE tenure_outcome SET status = 'completed'; --",
    "a'); DELETE FROM tenure_event; --",
    "$$; DROP SCHEMA tenure CASCADE; $$",
    "\\'; SELECT pg_sleep(10); --",
    "%s%(tenant)s{}{0}",
    ":now :job_id ?1 ? $1",
    "/* */ -- x",
    "0x27; ATTACH DATABASE '/tmp/x' AS y",
    "x' UNION SELECT 1,2,3 --",
    "null",
    "\u02bc OR 1=1",
    "{acme,zeta}",
    '["acme"]',
    "%_\\",
]  # fmt: skip

Call = Callable[[DurableJobService, Case, str], Any]

# Each gives the text to another argument; what is refused is refused with a typed error.
CALLS: dict[str, tuple[str, Call]] = {
    "create: texts": (
        "queued",
        lambda s, c, t: s.create_job(
            organization=t, project=t, idempotency_key=t, kind=t.replace(":", ".").replace("#", "."), payload={t: t},
            tenant=t, subject=t, queue=t, execution=ExecutionInput(tenant=t, actor=t, trace=t, task=t),
        ),
    ),
    "claim: worker": ("queued", lambda s, c, t: s.claim_job(t)),
    "claim: scope": (
        "queued", lambda s, c, t: s.claim_job("A", queues=[t], kinds=[t], tenant=t, organization=t)
    ),
    "mark dispatched": ("running", lambda s, c, t: s.mark_provider_dispatched(c.lease, operation_key=t)),
    "begin: name": (
        "running",
        lambda s, c, t: s.begin_effect(
            c.lease, name=t.replace(":", ".").replace("#", "."), request={t: t}, provider="mailer"
        ),
    ),
    "begin: provider": (
        "running",
        lambda s, c, t: s.begin_effect(
            c.lease, name="n", request=t, provider=t.replace(":", ".").replace("#", ".")
        ),
    ),
    "finish": (
        "running, effect", lambda s, c, t: s.finish_effect(c.lease, name="send", outcome=Rejected(t))
    ),
    "finish: unknown": (
        "running, effect", lambda s, c, t: s.finish_effect(c.lease, name="send", outcome=Unknown(t))
    ),
    "evidence": (
        "running, effect",
        lambda s, c, t: s.submit_evidence(str(c.key), Accepted({t: t}), attempt_id=c.lease.attempt_id),
    ),
    "evidence: reason": (
        "running, effect",
        lambda s, c, t: s.submit_evidence(str(c.key), FailedBeforeDispatch(t), attempt_id=c.lease.attempt_id),
    ),
    "evidence: key": (
        "running, effect",
        lambda s, c, t: s.submit_evidence(t, Accepted(t), attempt_id=c.lease.attempt_id),
    ),
    "complete": ("running", lambda s, c, t: s.complete_job(c.lease, result={t: [t]})),
    "fail": ("running", lambda s, c, t: s.fail_job(c.lease, code=t, message=t, retryable=True)),
    "release": ("running", lambda s, c, t: s.release_job(c.lease, reason=t)),
    "cancel": ("running", lambda s, c, t: s.cancel_job(c.job_id, reason=t, actor=t)),
    "revoke": ("running", lambda s, c, t: s.revoke_job(c.job_id, reason=t, actor=t)),
    "retry": ("failed, rejected", lambda s, c, t: s.retry_job(c.job_id, actor=t)),
    "retry: reopen": ("failed, rejected", lambda s, c, t: s.retry_job(c.job_id, actor="op:1", reopen=[t])),
    "state": (
        "indeterminate, effect",
        lambda s, c, t: s.reconcile_dispatched(c.job_id, Declined(t), reason=t, actor=t),
    ),
    "state: key": (
        "indeterminate, effect",
        lambda s, c, t: s.reconcile_dispatched(
            c.job_id, Declined(t), operation_key=t, reason="r", actor="op:1"
        ),
    ),
    "append event": (
        "running", lambda s, c, t: s.append_job_event(c.job_id, "admission_checked", {t: t}, actor=t)
    ),
    "append event: name": ("running", lambda s, c, t: s.append_job_event(c.job_id, t, {})),
    "find by key": ("running", lambda s, c, t: s.find_by_idempotency_key(project=t, idempotency_key=t, tenant=t)),
    "list": ("running", lambda s, c, t: s.list_jobs(tenant=t, organization=t, project=t, queue=t)),
    "list: status": ("running", lambda s, c, t: s.list_jobs(status=t)),
    "candidates": (
        "running", lambda s, c, t: s.find_reconciliation_candidates(organization=t, project=t, tenant=t)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_text_is_a_text(bench: Bench, name: str) -> None:
    build, call = CALLS[name]
    case = CASES[build](bench)
    snapshot = bench.snapshot()
    for text in STRINGS:
        bench.restore(snapshot)
        with contextlib.suppress(TenureError):  # refused by its own rule; anything else is a failure of this test
            call(bench.service, case, text)
        after = bench.dump()
        # Every table is there and whole, and what the text asks for has not happened.
        assert broken(after, bench.baseline) == [], text
        for table in ("job", "event", "authority", "job_key"):
            assert len(after[table]) >= len(snapshot.dump[table]), (table, text)
        assert {row["job_id"] for row in after["job"]} >= {str(case.job_id)}


def test_texts_come_back_letter_by_letter(bench: Bench) -> None:
    for nth, text in enumerate(STRINGS):
        made = bench.service.create_job(
            organization=text, project=text, idempotency_key=f"{nth} {text}", kind=f"kind {nth}", payload={text: text},
            subject=text, queue=text, tenant="acme",
        ).job  # fmt: skip
        read = bench.service.get_job(made.id)
        assert (read.organization, read.project, read.subject, read.queue) == (text,) * 4
        assert read.payload == {text: text}
        found = bench.service.find_by_idempotency_key(project=text, idempotency_key=f"{nth} {text}", tenant="acme")
        assert found == made
        taken = claim(bench.service, text, queues=[text], kinds=[f"kind {nth}"], organization=text, start=True)
        assert (taken.job.id, taken.lease.worker_id) == (made.id, text)
        bench.service.mark_provider_dispatched(taken.lease, operation_key=text)
        done = bench.service.fail_job(taken.lease, code=text, message=text, retryable=False)
        assert (done.error_code, done.error_message) == (text, text)
        bench.service.append_job_event(made.id, "admission_checked", {text: text}, actor=text)
        event = bench.service.list_job_events(made.id)[-1]
        assert (event.actor, event.data) == (text, {text: text})
        assert bench.service.get_job(made.id).operation_key == text


def test_lists_of_names_are_lists_and_no_text_ends_them(bench: Bench) -> None:
    """On one database a list travels as JSON, on the other as an array: neither may be broken out of."""
    odd = ['a","b', "a\\", "{a}", "a,b", '"', "'", "[", "NULL"]
    for nth, kind in enumerate(odd):
        bench.service.create_job(
            organization="acme", project="p1", idempotency_key=f"k-{nth}", kind=kind, payload={}, queue="default"
        )
    for kind in odd:
        taken = bench.service.claim_jobs("A", limit=10, kinds=[kind, "nothing"])
        assert [one.job.kind for one in taken] == [kind]
    bench.run(upkeep.announce("A", odd, timedelta(minutes=1)))
    bench.run(upkeep.withdraw("A"))
