"""
Every verb on a job in every status and with every kind of open business.

The table below is the contract's, written out by hand. For each verb and case it says what may happen and nothing else:
the status after it, the events it adds to the trail and by how much generation and attempts rise; or the refusal, after
which not one row of any table may have changed. Each verb is refused in some cases and succeeds in others, so each
refusal stands beside its control.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tenure.errors import (
    CancelRequested,
    Conflict,
    IllegalMove,
    Invalid,
    LeaseLost,
    NotFound,
    TenureError,
    Uncertain,
)
from tenure.rules.outcome import Absent, Accepted, Declined, NoAnswer, Succeeded
from tenure.service import DurableJobService
from tests.contract.bench import Bench, Snapshot, micros, place_in, trail_in
from tests.contract.build import CASES, KIND, MAILER, OWN_KEY, PAYLOAD, RECEIPT, REQUEST, STATUSES, Case
from tests.contract.invariants import broken

# --- what the table's cells say ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class To:
    """
    The verb is allowed.

    Attributes:
        status: After it.
        events: Added to the trail, in order.
        generation, attempts: By how much they change.
        raises: The error that follows the commit.
    """

    status: str
    events: tuple[str, ...] = ()
    generation: int = 0
    attempts: int = 0
    raises: type[TenureError] | None = None


@dataclass(frozen=True, slots=True)
class Gives:
    """The verb is allowed, answers with this (or anything) and writes nothing."""

    answer: Any = ...


@dataclass(frozen=True, slots=True)
class No:
    """The verb is refused with exactly this class, and the reason or code where one is named."""

    error: type[TenureError]
    reason: str | None = None
    code: str | None = None


Cell = To | Gives | No


def to(status: str, *events: str, **more: Any) -> To:
    return To(status, events, **more)


def lost(reason: str) -> No:
    return No(LeaseLost, reason=reason)


SAME = Gives()
ILLEGAL = No(IllegalMove)
UNCERTAIN = No(Uncertain)
CANCELLING = No(CancelRequested)

LIVE = [name for name in CASES if name.startswith(("claimed", "running"))]
EXPIRED = [name for name in CASES if name.startswith("expired")]
OVER = [name for name in CASES if name not in {*LIVE, *EXPIRED, "queued"}]
ALL = list(CASES)
# A cancellation was asked for and the lease is live.
ASKED = tuple(name for name in LIVE if name.endswith("cancelling"))


def row(rest: Cell, cells: dict[str | tuple[str, ...], Cell]) -> dict[str, Cell]:
    """Write a verb's row: the named cells, and the same cell for all others."""
    named: dict[str, Cell] = {}
    for names, cell in cells.items():
        for name in (names,) if isinstance(names, str) else names:
            assert name in CASES, name
            assert name not in named, name
            named[name] = cell
    return {name: named.get(name, rest) for name in ALL}


def fenced(cells: dict[str | tuple[str, ...], Cell]) -> dict[str, Cell]:
    """Write the row of a verb that passes the fence: every live case by hand, all others are lost leases."""
    written = row(lost("status"), {**cells, tuple(EXPIRED): lost("expired")})
    named = {name for names in cells for name in ((names,) if isinstance(names, str) else names)}
    assert named >= set(LIVE), f"say what happens to {set(LIVE) - named}"
    return written


# --- the verbs, as they are called ------------------------------------------------------------------------------------

Verb = Callable[[DurableJobService, Case], Any]


def _evidence_key(case: Case) -> str:
    return case.key or "unknown:key"


def _sweep(answer: Any) -> Verb:
    def sweep(service: DurableJobService, _: Case) -> Any:
        return service.sweep_reconciliation_candidates(
            organization="acme", project="p1", lookup=lambda key, job: answer
        )

    return sweep


def _create(payload: dict[str, Any], **other: Any) -> Verb:
    def create(service: DurableJobService, _: Case) -> Any:
        fields = {"organization": "acme", "project": "p1", "idempotency_key": "k-1", "kind": KIND, **other}
        return service.create_job(payload=payload, **fields).created

    return create


VERBS: dict[str, Verb] = {
    "create, same meaning": _create(PAYLOAD),
    "create, another payload": _create({"quote": 18}),
    "create, another kind": _create(PAYLOAD, kind="other"),
    "claim": lambda s, c: s.claim_job("B"),
    "claim and start": lambda s, c: s.claim_job("B", start=True),
    "heartbeat": lambda s, c: s.heartbeat(c.lease),
    "mark dispatched": lambda s, c: s.mark_provider_dispatched(c.lease, operation_key=OWN_KEY),
    "begin another": lambda s, c: s.begin_effect(c.lease, name="other", request=REQUEST, provider=MAILER),
    "begin again": lambda s, c: s.begin_effect(c.lease, name="send", request=REQUEST, provider=MAILER),
    "begin, resend": lambda s, c: s.begin_effect(c.lease, name="send", request=REQUEST, provider=MAILER, resend=True),
    "finish": lambda s, c: s.finish_effect(c.lease, name="send", outcome=Succeeded(RECEIPT)),
    "submit evidence": lambda s, c: s.submit_evidence(
        _evidence_key(c), Accepted(RECEIPT), attempt_id=c.lease.attempt_id
    ),
    "complete": lambda s, c: s.complete_job(c.lease, result={"ok": True}),
    "fail, retryable": lambda s, c: s.fail_job(c.lease, code="E", message="m", retryable=True),
    "fail for good": lambda s, c: s.fail_job(c.lease, code="E", message="m", retryable=False),
    "mark indeterminate": lambda s, c: s.mark_indeterminate(c.lease, code="E", message="m"),
    "mark halt unsafe": lambda s, c: s.mark_halt_unsafe(c.lease, code="E", message="m"),
    "mark timed out": lambda s, c: s.mark_timed_out(c.lease, code="E", message="m"),
    "release": lambda s, c: s.release_job(c.lease, reason="not now"),
    "acknowledge": lambda s, c: s.acknowledge_cancellation(c.lease),
    "cancel": lambda s, c: s.cancel_job(c.job_id, reason="enough"),
    "revoke": lambda s, c: s.revoke_job(c.job_id, reason="enough", actor="op:1"),
    "retry": lambda s, c: s.retry_job(c.job_id, actor="op:1"),
    "retry, reopen": lambda s, c: s.retry_job(c.job_id, actor="op:1", reopen=["send"]),
    "state accepted": lambda s, c: s.reconcile_dispatched(c.job_id, Accepted(RECEIPT), reason="seen", actor="op:1"),
    "state declined": lambda s, c: s.reconcile_dispatched(c.job_id, Declined("no"), reason="seen", actor="op:1"),
    "state absent": lambda s, c: s.reconcile_dispatched(c.job_id, Absent(), reason="seen", actor="op:1"),
    "resume sweep": lambda s, c: s.resume_sweep(c.job_id, actor="op:1"),
    "append event": lambda s, c: s.append_job_event(c.job_id, "admission_checked", {"by": "gate"}),
    "append another's event": lambda s, c: s.append_job_event(c.job_id, "completed", {}),
    "get": lambda s, c: s.get_job(c.job_id).id == c.job_id,
    "find by key": lambda s, c: [
        found and found.id
        for found in [s.find_by_idempotency_key(project="p1", idempotency_key="k-1", tenant="acme")]
    ] == [c.job_id],
    "list": lambda s, c: [job.id for job in s.list_jobs(tenant="acme")] == [c.job_id],
    "list effects": lambda s, c: all(effect.name for effect in s.list_effects(c.job_id)),
    "list events": lambda s, c: s.list_job_events(c.job_id)[0].name == "claimed",
    "candidates": lambda s, c: [
        job.id for job in s.find_reconciliation_candidates(organization="acme", project="p1")
    ] == [c.job_id],
    "sweep, no answer": _sweep(NoAnswer()),
    "sweep, accepted": _sweep(Accepted(RECEIPT)),
    "sweep, declined": _sweep(Declined("no")),
    "sweep, absent": _sweep(Absent()),
}  # fmt: skip

# --- the table --------------------------------------------------------------------------------------------------------

MISMATCH = No(Conflict, code="IDEMPOTENCY_MISMATCH")
RECOVERED = to("claimed", "lease_expired", "claimed", generation=1, attempts=1)

TABLE: dict[str, dict[str, Cell]] = {
    "create, same meaning": row(Gives(answer=False), {}),
    "create, another payload": row(MISMATCH, {}),
    "create, another kind": row(MISMATCH, {}),
    "claim": row(
        Gives(answer=None),
        {
            "queued": to("claimed", "claimed", generation=1, attempts=1),
            ("expired", "expired, sent"): RECOVERED,
            "expired, cancelling": to("cancelled", "cancelled", generation=1),
            "expired, effect": to("indeterminate", "indeterminate", generation=1),
        },
    ),
    "claim and start": row(
        Gives(answer=None),
        {
            "queued": to("running", "claimed", generation=1, attempts=1),
            ("expired", "expired, sent"): to("running", "lease_expired", "claimed", generation=1, attempts=1),
            "expired, cancelling": to("cancelled", "cancelled", generation=1),
            "expired, effect": to("indeterminate", "indeterminate", generation=1),
        },
    ),
    "heartbeat": row(
        Gives(answer=False),
        {
            "claimed": to("running", "heartbeat"),
            ("running", "running, effect", "running, unknown", "running, sent", "running, mark"): to("running"),
        },
    ),
    "mark dispatched": fenced(
        {
            ("claimed", "running", "running, effect", "running, unknown", "running, sent"): to("running", "dispatched"),
            "running, mark": UNCERTAIN,
            ASKED: CANCELLING,
        }
    ),
    "begin another": fenced(
        {
            ("claimed", "running", "running, effect", "running, unknown", "running, sent", "running, mark"): to(
                "running", "dispatched"
            ),
            ASKED: CANCELLING,
        }
    ),
    "begin again": fenced(
        {
            ("claimed", "running", "running, mark"): to("running", "dispatched"),
            ("running, effect", "running, unknown"): UNCERTAIN,
            # The receipt is given back and nothing is sent.
            "running, sent": SAME,
            ASKED: CANCELLING,
        }
    ),
    "begin, resend": fenced(
        {
            ("claimed", "running", "running, mark"): to("running", "dispatched"),
            # Permitted by the provider's terms; it is no second intent, and the trail tells of it all the same.
            ("running, effect", "running, unknown"): to("running", "dispatched"),
            "running, sent": SAME,
            ASKED: CANCELLING,
        }
    ),
    "finish": row(
        lost("status"),
        {
            ("running, effect", "running, unknown", "running, effect, cancelling"): to("running", "effect_settled"),
            (
                "claimed",
                "running",
                "running, sent",
                "running, mark",
                "claimed, cancelling",
                "running, cancelling",
                "running, sent, cancelling",
                "running, mark, cancelling",
            ): ILLEGAL,
            ("expired", "expired, cancelling"): lost("expired"),
            # Refused, and what it proves is kept in the same call.
            "expired, effect": to("running", "evidence_received", raises=LeaseLost),
            "expired, sent": to("running", "evidence_received", raises=LeaseLost),
            "completed, sent": to("completed", "evidence_received", raises=LeaseLost),
            "failed, rejected": to("failed", "evidence_received", "escalated", raises=LeaseLost),
            "failed, unsent": to("failed", "evidence_received", "escalated", raises=LeaseLost),
            "cancelled, effect": to("cancelled", "evidence_received", raises=LeaseLost),
            "dead_letter, sent": to("dead_letter", "evidence_received", raises=LeaseLost),
            ("indeterminate, effect", "indeterminate, two", "indeterminate, escalated"): to(
                "indeterminate", "evidence_received", raises=LeaseLost
            ),
            "halt_unsafe, effect": to("halt_unsafe", "evidence_received", raises=LeaseLost),
            "timed_out, effect": to("timed_out", "evidence_received", raises=LeaseLost),
        },
    ),
    "submit evidence": row(
        No(NotFound),
        {
            (
                "running, effect",
                "running, unknown",
                "running, sent",
                "running, mark",
                "running, effect, cancelling",
                "running, sent, cancelling",
                "running, mark, cancelling",
                "expired, effect",
                "expired, sent",
            ): to("running", "evidence_received"),
            ("completed, sent", "completed, mark"): to("completed", "evidence_received"),
            # An acceptance of what was settled otherwise is the proof of a duplicate.
            ("failed, closed", "failed, rejected", "failed, unsent"): to("failed", "evidence_received", "escalated"),
            "cancelled, effect": to("cancelled", "evidence_received"),
            "dead_letter, sent": to("dead_letter", "evidence_received"),
            (
                "indeterminate, effect",
                "indeterminate, mark",
                "indeterminate, two",
                "indeterminate, escalated",
            ): to("indeterminate", "evidence_received"),
            "halt_unsafe, effect": to("halt_unsafe", "evidence_received"),
            "timed_out, effect": to("timed_out", "evidence_received"),
        },
    ),
    "complete": fenced(
        {
            ("claimed", "claimed, cancelling"): ILLEGAL,
            ("running", "running, sent", "running, mark"): to("completed", "completed"),
            ("running, effect", "running, unknown", "running, effect, cancelling"): to(
                "indeterminate", "indeterminate", raises=Uncertain
            ),
            "running, cancelling": CANCELLING,
            ("running, sent, cancelling", "running, mark, cancelling"): to("completed", "completed"),
        }
    ),
    "fail, retryable": fenced(
        {
            ("claimed", "running", "running, sent"): to("queued", "retried"),
            (
                "running, effect",
                "running, unknown",
                "running, mark",
                "running, effect, cancelling",
                "running, mark, cancelling",
            ): to("indeterminate", "indeterminate"),
            ("claimed, cancelling", "running, cancelling", "running, sent, cancelling"): to("cancelled", "cancelled"),
        }
    ),
    "fail for good": fenced(
        {
            (
                "claimed",
                "running",
                "running, sent",
                "running, mark",
                "claimed, cancelling",
                "running, cancelling",
                "running, sent, cancelling",
                "running, mark, cancelling",
            ): to("failed", "failed"),
            ("running, effect", "running, unknown", "running, effect, cancelling"): to(
                "indeterminate", "indeterminate"
            ),
        }
    ),
    "mark indeterminate": fenced({tuple(LIVE): to("indeterminate", "indeterminate")}),
    "mark halt unsafe": fenced({tuple(LIVE): to("halt_unsafe", "halt_unsafe")}),
    "mark timed out": fenced({tuple(LIVE): to("timed_out", "timed_out")}),
    "release": fenced(
        {
            ("claimed", "running", "running, sent"): to("queued", "released", attempts=-1),
            (
                "running, effect",
                "running, unknown",
                "running, mark",
                "running, effect, cancelling",
                "running, mark, cancelling",
            ): UNCERTAIN,
            ("claimed, cancelling", "running, cancelling", "running, sent, cancelling"): to("cancelled", "cancelled"),
        }
    ),
    "acknowledge": fenced(
        {
            (
                "claimed",
                "running",
                "running, effect",
                "running, unknown",
                "running, sent",
                "running, mark",
            ): ILLEGAL,
            ASKED: to("cancelled", "cancelled"),
        }
    ),
    "cancel": row(
        ILLEGAL,
        {
            "queued": to("cancelled", "cancelled"),
            "claimed": to("claimed", "cancel_requested"),
            (
                "running",
                "running, effect",
                "running, unknown",
                "running, sent",
                "running, mark",
                "expired",
                "expired, effect",
                "expired, sent",
            ): to("running", "cancel_requested"),
            # Asked for already: the first request and its reason stand.
            (
                "claimed, cancelling",
                "running, cancelling",
                "running, effect, cancelling",
                "running, sent, cancelling",
                "running, mark, cancelling",
                "expired, cancelling",
            ): SAME,
        },
    ),
    "revoke": row(ILLEGAL, {("queued", *LIVE, *EXPIRED): to("cancelled", "revoked", generation=1)}),
    "retry": row(
        ILLEGAL,
        {
            ("failed", "failed, rejected", "failed, unsent"): to("queued", "retried"),
            "failed, closed": UNCERTAIN,
        },
    ),
    "retry, reopen": row(
        ILLEGAL,
        {
            ("failed", "failed, unsent"): No(Invalid, code="NOT_REJECTED"),
            "failed, rejected": to("queued", "retried"),
            "failed, closed": UNCERTAIN,
        },
    ),
    "state accepted": row(
        ILLEGAL,
        {
            ("indeterminate", "timed_out"): to("completed", "reconciled"),
            ("indeterminate, effect", "indeterminate, escalated", "timed_out, effect"): to(
                "queued", "effect_settled", "reconciled"
            ),
            "indeterminate, mark": to("completed", "effect_settled", "reconciled"),
            "indeterminate, two": No(Invalid, code="SEVERAL_OPEN"),
            "cancelled, effect": to("cancelled", "effect_settled"),
            "halt_unsafe, effect": to("halt_unsafe", "effect_settled"),
            # The mark was closed by a failure and the provider acted after all.
            "failed, closed": to("failed", "evidence_received", "escalated"),
        },
    ),
    "state declined": row(
        ILLEGAL,
        {
            ("indeterminate", "timed_out"): to("failed", "reconciled"),
            ("indeterminate, effect", "indeterminate, mark", "indeterminate, escalated", "timed_out, effect"): to(
                "failed", "effect_settled", "reconciled"
            ),
            "indeterminate, two": No(Invalid, code="SEVERAL_OPEN"),
            "cancelled, effect": to("cancelled", "effect_settled"),
            "halt_unsafe, effect": to("halt_unsafe", "effect_settled"),
            "failed, closed": to("failed", "effect_settled"),
        },
    ),
    "state absent": row(
        ILLEGAL,
        {
            ("indeterminate", "timed_out"): to("failed", "reconciled"),
            ("indeterminate, effect", "indeterminate, escalated", "timed_out, effect"): to(
                "queued", "effect_settled", "reconciled"
            ),
            "indeterminate, mark": to("failed", "effect_settled", "reconciled"),
            "indeterminate, two": No(Invalid, code="SEVERAL_OPEN"),
            "cancelled, effect": to("cancelled", "effect_settled"),
            "halt_unsafe, effect": to("halt_unsafe", "effect_settled"),
            "failed, closed": to("failed", "effect_settled"),
        },
    ),
    "resume sweep": row(ILLEGAL, {"indeterminate, escalated": to("indeterminate", "resumed")}),
    "append event": {
        name: to("running" if name.startswith("expired") else name.split(",")[0], "admission_checked") for name in ALL
    },
    "append another's event": row(No(TenureError, code="EVENT_RESERVED"), {}),
    "get": row(Gives(answer=True), {}),
    "find by key": row(Gives(answer=True), {}),
    "list": row(Gives(answer=True), {}),
    "list effects": row(Gives(answer=True), {}),
    "list events": row(Gives(answer=True), {}),
    "candidates": row(
        Gives(answer=False),
        {
            (
                *EXPIRED,
                "indeterminate",
                "indeterminate, effect",
                "indeterminate, mark",
                "indeterminate, two",
                "indeterminate, escalated",
                "timed_out",
                "timed_out, effect",
                "cancelled, effect",
                "halt_unsafe, effect",
            ): Gives(answer=True),
        },
    ),
    "sweep, no answer": row(
        SAME,
        {
            "expired, effect": to("indeterminate", "indeterminate", "escalated", generation=1),
            ("indeterminate", "indeterminate, effect", "indeterminate, mark", "indeterminate, two"): to(
                "indeterminate", "escalated"
            ),
            ("timed_out", "timed_out, effect"): to("timed_out", "escalated"),
            "cancelled, effect": to("cancelled", "escalated"),
            "halt_unsafe, effect": to("halt_unsafe", "escalated"),
        },
    ),
    "sweep, accepted": row(
        SAME,
        {
            "expired, effect": to("queued", "indeterminate", "effect_settled", "reconciled", generation=1),
            "indeterminate, effect": to("queued", "effect_settled", "reconciled"),
            "indeterminate, mark": to("completed", "effect_settled", "reconciled"),
            "indeterminate, two": to("queued", "effect_settled", "effect_settled", "reconciled"),
            "indeterminate": to("indeterminate", "escalated"),
            ("timed_out", "timed_out, effect"): to("timed_out", "escalated"),
            "cancelled, effect": to("cancelled", "effect_settled"),
            "halt_unsafe, effect": to("halt_unsafe", "effect_settled"),
        },
    ),
    "sweep, declined": row(
        SAME,
        {
            "expired, effect": to("failed", "indeterminate", "effect_settled", "reconciled", generation=1),
            ("indeterminate, effect", "indeterminate, mark"): to("failed", "effect_settled", "reconciled"),
            "indeterminate, two": to("failed", "effect_settled", "effect_settled", "reconciled"),
            "indeterminate": to("indeterminate", "escalated"),
            ("timed_out", "timed_out, effect"): to("timed_out", "escalated"),
            "cancelled, effect": to("cancelled", "effect_settled"),
            "halt_unsafe, effect": to("halt_unsafe", "effect_settled"),
        },
    ),
    # Too early to count: the call's own deadline has not passed, except for the lease that has ended since.
    "sweep, absent": row(
        SAME,
        {
            "expired, effect": to("queued", "indeterminate", "effect_settled", "reconciled", generation=1),
            (
                "indeterminate",
                "indeterminate, effect",
                "indeterminate, mark",
                "indeterminate, two",
            ): to("indeterminate", "escalated"),
            ("timed_out", "timed_out, effect"): to("timed_out", "escalated"),
            "cancelled, effect": to("cancelled", "escalated"),
            "halt_unsafe, effect": to("halt_unsafe", "escalated"),
        },
    ),
}  # fmt: skip


def test_the_table_is_whole_and_every_verb_is_both_allowed_and_refused() -> None:
    assert TABLE.keys() == VERBS.keys()
    assert {name.split(",")[0] for name in CASES} - {"expired"} == set(STATUSES)
    assert len(STATUSES) == 10
    for verb, cells in TABLE.items():
        assert cells.keys() == CASES.keys(), verb
    # Reads and repeats are allowed everywhere or nowhere; all others have both kinds of cells.
    one_sided = {verb for verb, cells in TABLE.items() if len({type(cell) for cell in cells.values()}) == 1}
    assert one_sided == {
        "create, same meaning",
        "create, another payload",
        "create, another kind",
        "append event",
        "append another's event",
        "get",
        "find by key",
        "list",
        "list effects",
        "list events",
        "candidates",
    }


@pytest.fixture
def built(bench: Bench, cases: dict[str, dict[str, tuple[Case, Snapshot]]]) -> dict[str, tuple[Case, Snapshot]]:
    """Give every case as it was built once for this kind of store, to be brought back for each verb."""
    name = f"{bench.dialect} {bench.loop is None}"
    if name not in cases:
        cases[name] = {}
        for case, build in CASES.items():
            bench.reset()
            made = build(bench)
            cases[name][case] = (made, bench.snapshot())
    return cases[name]


@pytest.fixture(scope="module")
def cases() -> dict[str, dict[str, tuple[Case, Snapshot]]]:
    return {}


@pytest.mark.parametrize("verb", VERBS)
def test_verb_in_every_status(bench: Bench, built: dict[str, tuple[Case, Snapshot]], verb: str) -> None:
    wrong = []
    for name, cell in TABLE[verb].items():
        case, snapshot = built[name]
        bench.restore(snapshot)
        problem = _try(bench, VERBS[verb], case, cell, snapshot)
        if problem:
            wrong.append(f"{name}: {problem}")
    assert wrong == []


def _try(bench: Bench, verb: Verb, case: Case, cell: Cell, snapshot: Snapshot) -> str | None:
    answer: Any = None
    error: TenureError | None = None
    try:
        answer = verb(bench.service, case)
    except TenureError as raised:
        error = raised
    if not isinstance(cell, To):
        if bench.prints() != snapshot.prints:
            return f"{answer!r} or {error!r}, and rows changed"
        return _refused(error, cell, answer)
    before, after = snapshot.dump, bench.dump()
    added = tuple(trail_in(after, case.job_id)[len(trail_in(before, case.job_id)) :])
    if cell.raises is None and error is not None:
        return f"refused: {error!r}"
    if cell.raises is not None and type(error) is not cell.raises:
        return f"gave {answer!r} or {error!r}, not {cell.raises.__name__}"
    _, was = place_in(before, case.job_id)
    place, now = place_in(after, case.job_id)
    told = To(
        now.get("status", "queued"),
        added,
        generation=now["generation"] - was["generation"],
        attempts=now["attempt"] - was["attempt"],
        raises=cell.raises,
    )
    if told != cell:
        return f"{told}, not {cell}"
    later = cell.status == "queued" and now["run_at"] > micros(bench.now)
    if place != ("deferred" if later else WHERE[cell.status]):
        return f"{cell.status} in {place}"
    if broken(after, bench.baseline):
        return f"broken: {broken(after, bench.baseline)}"
    got = bench.service.get_job(case.job_id)
    if got.status != cell.status or got.generation != now["generation"]:
        return f"read back as {got.status}, generation {got.generation}"
    return None


WHERE = {
    "queued": "ready",
    "claimed": "lease",
    "running": "lease",
    "completed": "outcome",
    "failed": "outcome",
    "cancelled": "outcome",
    "dead_letter": "outcome",
    "halt_unsafe": "outcome",
    "indeterminate": "resting",
    "timed_out": "resting",
}


def _refused(error: TenureError | None, cell: Gives | No, answer: Any) -> str | None:
    if isinstance(cell, Gives):
        if error is not None:
            return f"refused: {error!r}"
        return None if cell.answer is ... or cell.answer == answer else f"gave {answer!r}, not {cell.answer!r}"
    if not isinstance(error, cell.error) or (cell.code is None and type(error) is not cell.error):
        return f"gave {answer!r} or {error!r}, not {cell.error.__name__}"
    if cell.code is not None and error.code != cell.code:
        return f"code {error.code}, not {cell.code}"
    if cell.reason is not None and getattr(error, "reason", None) != cell.reason:
        return f"reason {getattr(error, 'reason', None)}, not {cell.reason}"
    return None
