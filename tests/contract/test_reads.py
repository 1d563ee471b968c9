"""Reading: jobs, pages of jobs, phases, effects and trails; and the trail's closed vocabulary."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tenure.errors import Invalid, NotFound, Refused
from tenure.procedures.inspect import get_jobs, list_evidence
from tenure.rules.event import EventName
from tenure.rules.outcome import Accepted, NoAnswer
from tests.contract.bench import START, Bench
from tests.contract.build import CASES, RECEIPT, STATUSES, create
from tests.contract.refusal import refused

PHASES = {
    "queued": "READY",
    "claimed": "LEASED",
    "running": "LEASED",
    "completed": "DONE",
    "failed": "NEEDS_ATTENTION",
    "cancelled": "DONE",
    "dead_letter": "NEEDS_ATTENTION",
    "indeterminate": "NEEDS_ATTENTION",
    "halt_unsafe": "NEEDS_ATTENTION",
    "timed_out": "NEEDS_ATTENTION",
    "cancelled, effect": "NEEDS_ATTENTION",
    "running, cancelling": "LEASED",
    "completed, sent": "DONE",
    "expired": "LEASED",
}


@pytest.mark.parametrize("name", PHASES)
def test_people_see_a_phase(bench: Bench, name: str) -> None:
    case = CASES[name](bench)
    job = bench.service.get_job(case.job_id)
    assert job.phase == PHASES[name]
    status = "running" if name == "expired" else name.split(",", maxsplit=1)[0]
    for phase in ("READY", "LEASED", "WAITING_EXTERNAL", "WAITING_REVIEW", "HELD", "DONE", "NEEDS_ATTENTION"):
        found = bench.service.list_jobs(tenant="acme", phase=phase)
        assert found == ([job] if phase == PHASES[name] else []), phase
    for other in STATUSES:
        assert bench.service.list_jobs(tenant="acme", status=other) == ([job] if other == status else []), other
    assert bench.service.list_jobs(tenant="acme", status=status, phase=PHASES[name]) == [job]
    assert bench.service.list_jobs(tenant="acme", status=status, phase="HELD") == []


def test_jobs_are_listed_by_creation_in_pages(bench: Bench) -> None:
    made = [create(bench.service, f"k-{nth}", priority=nth % 3) for nth in range(7)]
    ids = [job.id for job in made]
    assert [job.id for job in bench.service.list_jobs(tenant="acme")] == ids
    pages: list[UUID] = []
    after: UUID | None = None
    while page := bench.service.list_jobs(tenant="acme", limit=3, after=after):
        assert len(page) <= 3
        pages += [job.id for job in page]
        after = page[-1].id
    assert pages == ids
    assert bench.service.list_jobs(tenant="acme", after=ids[-1]) == []


def test_a_page_of_a_phase_is_full_although_other_rows_lie_between(bench: Bench) -> None:
    """A phase is derived from more than the row, so a page is filled from several reads."""
    held = []
    for nth in range(12):
        create(bench.service, f"a-{nth}")
        if nth % 4 == 3:
            held.append(create(bench.service, f"n-{nth}", tenant="north", execution=None).id)
    bench.sql("UPDATE $authority SET frozen = (1 = 1) WHERE tenant = ?", "north")
    found = bench.service.list_jobs(organization="acme", phase="HELD", limit=2)
    assert [job.id for job in found] == held[:2]
    assert [job.id for job in bench.service.list_jobs(organization="acme", phase="HELD", limit=2, after=held[1])] == (
        held[2:]
    )
    assert len(bench.service.list_jobs(organization="acme", phase="READY", limit=5)) == 5


def test_lists_are_narrowed_by_every_scope(bench: Bench) -> None:
    one = create(bench.service, queue="mail").id
    two = create(bench.service, project="p2").id
    three = create(bench.service, "k-3", organization="rival", tenant="acme", execution=None).id

    def listed(**scope: Any) -> list[UUID]:
        return [job.id for job in bench.service.list_jobs(**scope)]

    assert listed(tenant="acme") == [one, two, three]
    assert listed(tenant="acme", project="p2") == [two]
    assert listed(tenant="acme", organization="rival") == [three]
    assert listed(tenant="acme", queue="mail") == [one]
    assert listed(tenant="nobody") == []


@pytest.mark.parametrize("bad", [0, -1, 1001, True, 1.5, "5", None])
def test_a_limit_is_a_whole_number_within_bounds(bench: Bench, bad: Any) -> None:
    with refused(bench, Invalid):
        bench.service.list_jobs(limit=bad)
    assert bench.service.list_jobs(tenant="acme", limit=1000) == []


def test_statuses_and_phases_have_to_be_known(bench: Bench) -> None:
    wrong: list[dict[str, Any]] = [{"status": "done"}, {"status": ""}, {"phase": "ready"}, {"phase": 7}]
    for scope in wrong:
        with refused(bench, Invalid):
            bench.service.list_jobs(**scope)


def test_several_jobs_are_read_at_once_in_the_order_asked(bench: Bench) -> None:
    ids = [create(bench.service, f"k-{nth}").id for nth in range(3)]
    wanted = [ids[2], UUID(int=5), ids[0]]
    assert [job.id for job in bench.run(get_jobs(wanted))] == [ids[2], ids[0]]
    assert bench.run(get_jobs(wanted, tenant="rival")) == []


def test_effects_and_evidence_are_read_oldest_first(bench: Bench) -> None:
    case = CASES["indeterminate, two"](bench)
    bench.service.submit_evidence(str(case.key), Accepted(RECEIPT), attempt_id=case.lease.attempt_id)
    assert [effect.name for effect in bench.service.list_effects(case.job_id)] == ["second", "send"]
    (kept,) = bench.run(list_evidence(case.job_id))
    assert (kept.kind, kept.receipt, kept.at, kept.attempt_id) == (
        "accepted", RECEIPT, bench.now, case.lease.attempt_id
    )  # fmt: skip
    with refused(bench, NotFound):
        bench.run(list_evidence(case.job_id, tenant="rival"))


# --- the trail --------------------------------------------------------------------------------------------------------


def test_a_trail_tells_the_whole_story_in_order(bench: Bench) -> None:
    case = CASES["indeterminate, escalated"](bench)
    bench.advance(seconds=1)
    bench.service.submit_evidence(str(case.key), Accepted(RECEIPT), attempt_id=case.lease.attempt_id)
    bench.service.sweep_reconciliation_candidates(organization="acme", project="p1", lookup=lambda key, job: NoAnswer())
    events = bench.service.list_job_events(case.job_id)
    assert [(event.name, event.status) for event in events] == [
        ("claimed", "running"),
        ("dispatched", "running"),
        ("indeterminate", "indeterminate"),
        ("escalated", None),
        ("evidence_received", None),
        ("effect_settled", None),
        ("reconciled", "queued"),
    ]
    assert [event.at for event in events] == [START] * 4 + [START + timedelta(seconds=1)] * 3
    assert [event.generation for event in events] == [1] * 7


APPENDABLE = ["admission_checked", "execution_control_shadow"]


@pytest.mark.parametrize("name", [event.value for event in EventName])
def test_only_names_that_say_nothing_of_a_status_may_be_appended(bench: Bench, name: str) -> None:
    case = CASES["running"](bench)
    if name in APPENDABLE:
        job = bench.service.append_job_event(case.job_id, name, {"why": ["x", 1]}, actor="gate:1")
        assert job.status == "running"
        event = bench.service.list_job_events(case.job_id)[-1]
        assert (event.name, event.status, event.actor, event.data) == (name, None, "gate:1", {"why": ["x", 1]})
        assert (event.at, event.generation) == (bench.now, 1)
    else:
        with refused(bench, Refused, code="EVENT_RESERVED"):
            bench.service.append_job_event(case.job_id, name, {})


@pytest.mark.parametrize("name", ["", "Completed", "done", "admission checked", "a'; DROP TABLE x; --", None, 7])
def test_unknown_names_are_invalid(bench: Bench, name: Any) -> None:
    case = CASES["running"](bench)
    with refused(bench, Invalid, code="UNKNOWN_EVENT"):
        bench.service.append_job_event(case.job_id, name, {})
    bench.service.append_job_event(case.job_id, "admission_checked")
    assert bench.service.list_job_events(case.job_id)[-1].data == {}


@pytest.mark.parametrize(
    "data", [[], "x", 7, {"x": float("nan")}, {"x": b""}, {1: 2}, {"t": "a\0"}, {"t": "x" * 16_384}]
)
def test_an_events_data_is_a_small_json_object(bench: Bench, data: Any) -> None:
    case = CASES["running"](bench)
    with refused(bench, Invalid):
        bench.service.append_job_event(case.job_id, "admission_checked", data)
    bench.service.append_job_event(case.job_id, "admission_checked", {"t": "x" * (16_384 - 8)})


def test_appending_says_who_from_the_binding_too(bench: Bench) -> None:
    case = CASES["completed"](bench)
    bench.bound(actor="gate:7").append_job_event(case.job_id, "admission_checked", {})
    bench.service.append_job_event(case.job_id, "admission_checked", {})
    assert [event.actor for event in bench.service.list_job_events(case.job_id)[-2:]] == ["gate:7", None]
