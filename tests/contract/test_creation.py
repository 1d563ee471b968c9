"""Creating a job: what is required, what is stored, and what the same key may mean."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from tenure.errors import Conflict, Invalid
from tenure.rules.digest import operation_digest, payload_digest
from tenure.rules.envelope import ExecutionInput
from tenure.rules.payload import PAYLOAD_BYTES_MAX, encode
from tenure.service import DurableJobService
from tests.contract.bench import START, Bench, micros
from tests.contract.build import EXECUTION, KIND, PAYLOAD, claim, create
from tests.contract.function import UNSAID, said
from tests.contract.refusal import refused
from tests.rules.corpus import REFUSED

THROUGH_THE_FUNCTION = True
THROUGH_THE_POOLER = True

FIELDS: dict[str, Any] = {
    "organization": "acme",
    "project": "p1",
    "idempotency_key": "k-1",
    "kind": KIND,
    "payload": PAYLOAD,
}


def test_a_job_has_the_defaults_that_are_promised(bench: Bench) -> None:
    made = bench.service.create_job(**FIELDS)
    job = made.job
    assert made.created
    assert (job.tenant, job.organization, job.project, job.idempotency_key) == ("acme", "acme", "p1", "k-1")
    assert (job.kind, job.kind_version, job.queue, job.priority, job.subject) == (KIND, 1, "default", 0, None)
    assert (job.status, job.phase, job.attempt_count, job.max_attempts, job.generation) == (
        "queued", "READY", 0, 3, 0
    )  # fmt: skip
    assert (job.backoff_base, job.lease_duration) == (timedelta(seconds=30), timedelta(seconds=60))
    assert job.scheduled_at == job.created_at == job.run_at == START
    assert (job.result, job.error_code, job.error_message, job.finished_at) == (None, None, None, None)
    assert (job.operation_key, job.dispatched_at, job.escalated_at, job.cancel_requested_at) == (None,) * 4
    assert job.payload == PAYLOAD
    assert job.id.version == 7
    assert bench.service.get_job(job.id) == job
    assert bench.place(job.id)[0] == "ready"
    # The body's own row tells of the creation; the trail begins with the first change.
    assert bench.trail(job.id) == []


def test_every_field_comes_back(bench: Bench) -> None:
    later = START + timedelta(hours=5)
    given: dict[str, Any] = {
        "kind_version": 7,
        "tenant": "north",
        "subject": "quote:17",
        "queue": "mail",
        "priority": -3,
        "max_attempts": 9,
        "backoff_base": timedelta(milliseconds=1500),
        "lease_duration": timedelta(minutes=3),
        "scheduled_at": later.astimezone(timezone(timedelta(hours=-7))),
        "on_reconciled": "complete",
        "on_declined": "dead_letter",
    }
    job = bench.service.create_job(**FIELDS, **given).job
    read = bench.service.get_job(job.id)
    assert read == job
    assert {name: getattr(read, name) for name in given} == {**given, "scheduled_at": later}
    assert read.scheduled_at.utcoffset() == timedelta(0)
    assert bench.place(job.id)[0] == "deferred"


REQUIRED = ("organization", "project", "idempotency_key", "kind", "queue")
BAD_TEXT: list[Any] = ["", " ", "\t", "a\0b", "a\nb", "\ud800", "x" * 201, None, 7, b"bytes", ["k"]]


def test_texts_that_are_empty_odd_or_too_long_are_refused_by_name(bench: Bench) -> None:
    for name, bad in itertools.product((*REQUIRED, "subject", "tenant"), BAD_TEXT):
        if name in {"subject", "tenant"} and bad is None:
            continue
        with refused(bench, Invalid) as caught:
            bench.service.create_job(**{**FIELDS, name: bad})
        assert name in str(caught.value)
    for name in (*REQUIRED, "subject", "tenant"):
        assert bench.service.create_job(**{**FIELDS, "idempotency_key": f"ok {name}", name: "x" * 200}).created


BAD_VALUES: list[tuple[str, Any]] = [
    ("kind", "a:b"),
    ("kind", "a#b"),
    ("kind_version", 0),
    ("kind_version", True),
    ("kind_version", 2**31),
    ("priority", 32_768),
    ("priority", -32_768),
    ("priority", 1.0),
    ("priority", True),
    ("max_attempts", 0),
    ("max_attempts", -1),
    ("max_attempts", 10_001),
    ("max_attempts", "3"),
    ("backoff_base", timedelta(0)),
    ("backoff_base", timedelta(hours=1, microseconds=1)),
    ("backoff_base", 30),
    ("lease_duration", timedelta(milliseconds=99)),
    ("lease_duration", timedelta(days=8)),
    ("lease_duration", 60),
    ("scheduled_at", datetime(2026, 1, 1)),  # noqa: DTZ001 - naive on purpose
    ("scheduled_at", datetime(9999, 1, 1, tzinfo=UTC)),
    ("scheduled_at", "2026-01-01T00:00:00Z"),
    ("on_reconciled", "retry"),
    ("on_declined", "completed"),
    ("on_declined", None),
    ("payload", None),
    ("payload", []),
    ("payload", "{}"),
    ("payload", {"execution": {}}),
    ("payload", {"governance": None}),
]
GOOD_VALUES: list[tuple[str, Any]] = [
    ("kind", "a.b-c d"),
    ("kind_version", 2**31 - 1),
    ("priority", 32_767),
    ("priority", -32_767),
    ("max_attempts", 1),
    ("max_attempts", 10_000),
    ("backoff_base", timedelta(milliseconds=1)),
    ("backoff_base", timedelta(hours=1)),
    ("lease_duration", timedelta(milliseconds=100)),
    ("lease_duration", timedelta(days=7)),
    ("scheduled_at", datetime(1970, 1, 1, tzinfo=UTC)),
    ("scheduled_at", datetime(9998, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
    ("on_reconciled", "resume"),
    ("on_declined", "dead_letter"),
    ("payload", {}),
    ("payload", {"data": {"execution": 1}}),
]


def test_values_outside_their_bounds_are_refused_and_those_on_them_are_not(bench: Bench) -> None:
    for name, bad in BAD_VALUES:
        with refused(bench, Invalid):
            bench.service.create_job(**{**FIELDS, name: bad})
    for nth, (name, good) in enumerate(GOOD_VALUES):
        job = bench.service.create_job(**{**FIELDS, "idempotency_key": f"k-{nth}", name: good}).job
        assert getattr(bench.service.get_job(job.id), name) == good


def test_a_payload_that_cannot_be_stored_is_refused_with_its_code_and_path_before_any_row(bench: Bench) -> None:
    before = bench.dump()
    for name, (make, code, path) in REFUSED.items():
        with pytest.raises(Invalid) as caught:
            bench.service.create_job(**{**FIELDS, "payload": {"in": make()}})
        if code in {"PAYLOAD_TOO_LARGE", "TOO_DEEP"} or name == "nan_in_the_deep":
            # The payload around it counts as well.
            assert caught.value.code in {"PAYLOAD_TOO_LARGE", "TOO_DEEP"}, name
        else:
            assert (caught.value.code, name) == (code, name)
            assert str(caught.value).startswith(path.replace("$", "$.in", 1).rstrip()), name
    assert bench.dump() == before
    assert bench.service.create_job(**FIELDS).created


def test_what_a_json_text_can_say_is_refused_by_the_function_itself() -> None:
    """Else the test above would hold the function to little when it runs through it."""
    asked: dict[str, set[str]] = {}
    for name, (make, code, _) in REFUSED.items():
        value = make()
        text = None if code in UNSAID else said({"in": value})
        asked.setdefault("-" if text is None else code, set()).add(name)
    assert {code: len(names) for code, names in asked.items() if code != "-"} == {
        "NUMBER_TOO_LONG": 4, "NUL_CHARACTER": 4, "INVALID_UNICODE": 8, "DUPLICATE_KEY": 2, "TOO_DEEP": 5,
        "PAYLOAD_TOO_LARGE": 2,
    }  # fmt: skip


def test_a_payload_may_have_a_mebibyte_and_not_a_byte_more(bench: Bench) -> None:
    frame = len(encode({"t": ""}))
    with refused(bench, Invalid, code="PAYLOAD_TOO_LARGE"):
        bench.service.create_job(**{**FIELDS, "payload": {"t": "x" * (PAYLOAD_BYTES_MAX - frame + 1)}})
    text = "x" * (PAYLOAD_BYTES_MAX - frame)
    create(bench.service, payload={"t": text}, execution=None)
    assert claim(bench.service).job.payload == {"t": text}


def test_the_payload_is_stored_as_sent_and_the_digests_are_over_our_own_bytes(bench: Bench) -> None:
    payload = {"b": 1.0, "a": [1e2, 9007199254740993, -0.0, "é", "e\u0301"], "": {}}
    job = bench.service.create_job(**{**FIELDS, "payload": payload}).job
    ((stored, first, second),) = bench.sql(
        "SELECT CAST(payload AS text), payload_digest, operation_digest FROM $job WHERE job_id = ?", job.id
    )
    assert stored == '{"b":1.0,"a":[100.0,9007199254740993,-0.0,"é","e\u0301"],"":{}}'
    assert first == payload_digest(KIND, payload)
    assert second == operation_digest(tenant="acme", job_id=job.id, kind=KIND, kind_version=1, epoch=1, payload=payload)


# --- the same key -----------------------------------------------------------------------------------------------------


def test_the_same_key_gives_the_same_job_whatever_else_changes(bench: Bench) -> None:
    first = bench.service.create_job(**FIELDS, execution=EXECUTION)
    bench.advance(days=3)
    bench.sql("UPDATE $authority SET epoch = 4 WHERE tenant = ?", "acme")
    before = bench.dump()
    again = bench.service.create_job(
        **FIELDS,
        execution=ExecutionInput(tenant="acme", actor="user:43", trace="another"),
        queue="elsewhere",
        priority=9,
        max_attempts=1,
        kind_version=2,
        scheduled_at=bench.now,
    )
    assert (first.created, again.created) == (True, False)
    assert again.job.id == first.job.id
    assert (again.job.queue, again.job.priority, again.job.kind_version) == ("default", 0, 1)
    assert bench.dump() == before


@pytest.mark.parametrize(
    "first,second,same",
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"n": 1}, {"n": 1.0}, True),
        ({"n": 100}, {"n": 1e2}, True),
        ({"n": 0}, {"n": -0.0}, True),
        ({}, {}, True),
        ({"n": 1}, {"n": "1"}, False),
        ({"n": 1}, {"n": True}, False),
        ({"n": 0}, {"n": False}, False),
        ({"n": None}, {}, False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({}, {"a": 1}, False),
        ({"t": "\u00e9"}, {"t": "e\u0301"}, False),
        ({"n": 9007199254740993}, {"n": 9007199254740992}, False),
        ({"l": [1, 2]}, {"l": [2, 1]}, False),
        ({"x": ["ab", "c"]}, {"x": ["a", "bc"]}, False),
    ],
)
def test_payloads_that_mean_the_same_share_a_key_and_others_conflict(
    bench: Bench, first: dict[str, Any], second: dict[str, Any], same: bool
) -> None:
    made = create(bench.service, payload=first)
    if same:
        again = bench.service.create_job(**{**FIELDS, "payload": second})
        assert (again.created, again.job.id) == (False, made.id)
    else:
        with refused(bench, Conflict, code="IDEMPOTENCY_MISMATCH"):
            bench.service.create_job(**{**FIELDS, "payload": second})


def test_another_meaning_under_a_known_key_is_a_conflict_that_names_the_job_and_not_its_payload(bench: Bench) -> None:
    made = create(bench.service, payload={"secret": "marker-17"}, tenant="acme")
    for name, value in (("organization", "other"), ("kind", "other"), ("payload", {"secret": "marker-18"})):
        fields = {**FIELDS, "payload": {"secret": "marker-17"}, "tenant": "acme", name: value}
        with refused(bench, Conflict, code="IDEMPOTENCY_MISMATCH") as caught:
            bench.service.create_job(**fields)
        assert str(made.id) in str(caught.value)
        assert name in str(caught.value)
        assert "marker" not in str(caught.value)
    fields = {**FIELDS, "payload": {"secret": "marker-17"}, "tenant": "acme"}
    assert bench.service.create_job(**fields).job.id == made.id


def test_a_key_belongs_to_its_tenant_and_project(bench: Bench) -> None:
    first = create(bench.service)
    other_project = create(bench.service, project="p2", payload={"other": 1})
    other_tenant = create(bench.service, tenant="north", organization="acme", execution=None, payload={"other": 2})
    assert len({first.id, other_project.id, other_tenant.id}) == 3
    for job, scope in (
        (first, {"project": "p1", "tenant": "acme"}),
        (other_project, {"project": "p2", "tenant": "acme"}),
        (other_tenant, {"project": "p1", "tenant": "north"}),
        (first, {"project": "p1", "organization": "acme"}),
    ):
        found = bench.service.find_by_idempotency_key(idempotency_key="k-1", **scope)
        assert found is not None
        assert found.id == job.id
    assert bench.service.find_by_idempotency_key(idempotency_key="k-1", project="p3", tenant="acme") is None
    with pytest.raises(Invalid):
        bench.service.find_by_idempotency_key(idempotency_key="k-1", project="p1")


def test_the_key_of_a_finished_job_still_gives_that_job(bench: Bench) -> None:
    create(bench.service)
    taken = claim(bench.service, start=True)
    bench.service.complete_job(taken.lease, result={"n": 1})
    again = bench.service.create_job(**FIELDS)
    assert (again.created, again.job.id, again.job.status, again.job.result) == (
        False, taken.job.id, "completed", {"n": 1}
    )  # fmt: skip


# --- whose it is ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [None, "acme", "north"])
@pytest.mark.parametrize("argument", [None, "acme", "north"])
@pytest.mark.parametrize("said", [None, "acme", "north"])
def test_everything_that_names_a_tenant_must_agree(
    bench: Bench, bound: str | None, argument: str | None, said: str | None
) -> None:
    service = bench.bound(tenant=bound)
    execution = ExecutionInput(tenant=said, actor="user:42", trace="t-1")
    named = {name for name in (bound, argument, said) if name is not None}
    if len(named) > 1:
        with refused(bench, Invalid, code="TENANT_MISMATCH"):
            service.create_job(**FIELDS, tenant=argument, execution=execution)
        return
    job = service.create_job(**FIELDS, tenant=argument, execution=execution).job
    assert job.tenant == (named.pop() if named else "acme")
    assert job.payload["execution"]["tenant"] == job.tenant


# --- many at once -----------------------------------------------------------------------------------------------------


def many(service: DurableJobService, *keys: str, **other: Any) -> list[tuple[UUID, bool]]:
    made = service.create_jobs([{**FIELDS, "idempotency_key": key, **other} for key in keys])
    return [(one.job.id, one.created) for one in made]


def test_many_are_created_in_one_go_and_answered_in_the_order_given(bench: Bench) -> None:
    there = create(bench.service, "b").id
    made = many(bench.service, "c", "b", "a", "c", "a")
    assert [created for _, created in made] == [True, False, True, False, False]
    ids = [job_id for job_id, _ in made]
    assert ids[1] == there
    assert ids[0] == ids[3]
    assert ids[2] == ids[4]
    assert len(bench.service.list_jobs(tenant="acme")) == 3
    assert many(bench.service, "a", "c") == [(ids[2], False), (ids[0], False)]
    assert bench.service.create_jobs([]) == []


def test_many_are_all_or_none(bench: Bench) -> None:
    create(bench.service, "b")
    good = {**FIELDS, "idempotency_key": "a"}
    with refused(bench, Conflict, code="IDEMPOTENCY_MISMATCH"):
        bench.service.create_jobs([good, {**FIELDS, "idempotency_key": "b", "payload": {"other": 1}}])
    with refused(bench, Conflict, code="IDEMPOTENCY_MISMATCH"):
        bench.service.create_jobs([good, {**good, "payload": {"other": 1}}])
    with refused(bench, Invalid, code="NON_FINITE_NUMBER") as caught:
        bench.service.create_jobs([good, {**good, "payload": {"x": float("nan")}}])
    assert "job number 1" in str(caught.value)
    with refused(bench, Invalid):
        bench.service.create_jobs([good, {**good, "unknown_field": 1}])
    with refused(bench, Invalid):
        bench.service.create_jobs([good, {"kind": KIND}])
    assert [created for _, created in many(bench.service, "a", "b")] == [True, False]


def test_many_of_several_tenants_each_belong_to_their_own(bench: Bench) -> None:
    fields = [{**FIELDS, "tenant": tenant, "idempotency_key": key} for tenant in ("n", "m") for key in ("y", "x")]
    made = bench.service.create_jobs(fields)
    assert [(one.job.tenant, one.job.idempotency_key) for one in made] == [
        ("n", "y"), ("n", "x"), ("m", "y"), ("m", "x")
    ]  # fmt: skip
    assert {row["tenant"]: row["epoch"] for row in bench.dump()["authority"]} == {"n": 1, "m": 1, "zeta": 1}


def test_a_new_job_has_the_epoch_its_tenant_has_now(bench: Bench) -> None:
    create(bench.service)
    bench.sql("UPDATE $authority SET epoch = 5 WHERE tenant = ?", "acme")
    job = create(bench.service, "k-2")
    assert job.epoch == 5
    assert claim(bench.service).job.id == job.id


def test_a_job_of_later_waits_where_claims_do_not_look(bench: Bench) -> None:
    due = START + timedelta(hours=5)
    job = create(bench.service, scheduled_at=due)
    assert bench.place(job.id)[0] == "deferred"
    assert micros(due) == bench.place(job.id)[1]["run_at"]
    for _ in range(5):
        bench.advance(minutes=59)
        assert bench.service.claim_job("A") is None
        assert bench.place(job.id)[0] == "deferred"
    bench.clock.advance(due - bench.now - timedelta(microseconds=1))
    assert bench.service.claim_job("A") is None
    bench.advance(microseconds=1)
    assert claim(bench.service, "A").job.generation == 1
    assert bench.service.claim_job("B") is None


def test_a_payload_near_its_limit_in_a_queue_with_a_long_name_is_created_and_claimed(bench: Bench) -> None:
    """Neither is in what wakes workers: a notification of PostgreSQL holds less than 8,000 bytes."""
    queue, payload = "q" * 200, {"text": "x" * 1_000_000}
    made = create(bench.service, queue=queue, payload=payload)
    claim = bench.service.claim_job("A", queues=[queue])
    assert claim is not None
    assert claim.job.id == made.id
    assert claim.job.payload["text"] == payload["text"]
