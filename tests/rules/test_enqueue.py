"""The fast way to a job that is ready to be written, held to the plain way: the same text, digests, rows and errors."""

from __future__ import annotations

import dataclasses
import enum
import json
import pickle
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure import Tenure
from tenure.errors import Invalid
from tenure.kinds import Kind, declare
from tenure.procedures.enqueue import Created, create
from tenure.procedures.records import instant, micros
from tenure.procedures.rows import place_of, place_row
from tenure.rules import creation
from tenure.rules.creation import NewJob, new_job
from tenure.rules.digest import canonical, operation_digest, payload_digest
from tenure.rules.envelope import (
    ExecutionInput,
    GovernanceInput,
    build_execution_envelope,
    build_governance_envelope,
    refuse_reserved,
)
from tenure.rules.job import Job, Options
from tenure.rules.payload import PAYLOAD_BYTES_MAX, check_payload, decode, encode, writer
from tenure.yields import Each, Last, Row
from tests.rules.corpus import ACCEPTED, MENDED, REFUSED
from tests.rules.records import JOB_ID
from tests.rules.values import json_values, plain_values, texts

NOW = 1_767_225_600_000_000
FIELDS: dict[str, Any] = {"organization": "acme", "project": "p1", "idempotency_key": "k-1", "kind": "send_quote"}
GOVERNED = GovernanceInput(
    action_intent={"do": "pay", "amount": 1.0, "big": 2**60},
    capability="pay",
    policy="p",
    budget={"eur": 10},
    issued_at=datetime(2026, 1, 1, tzinfo=UTC),
    expires_at=datetime(2026, 1, 2, tzinfo=UTC),
)

# Keys before, between, behind and beginning like the reserved ones.
keys = texts | st.sampled_from(
    ["a", "exec", "executiom", "execution ", "executions", "f", "governanc", "governancf", "to", "É", "\ue000", "😀"]
)
payloads = st.dictionaries(keys, json_values, max_size=6).filter(
    lambda given: not {"execution", "governance"} & {*given}
)
words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    str.strip
)
lines = words | st.sampled_from(['"job":"', '","job":"x', '"trace":null', "null", "\\", '"', "😀", "a\u2028", "\x7f"])
inputs = st.none() | st.builds(
    ExecutionInput,
    tenant=st.none() | st.just("acme"),
    **dict.fromkeys(
        ("actor", "trace", "task", "run", "attempt", "action_intent", "admission_decision", "approval"),
        st.none() | lines,
    ),
)


def plainly(
    payload: dict[str, Any], execution: ExecutionInput | None, governance: GovernanceInput | None
) -> tuple[str, bytes, str]:
    """Write a payload step by step, each step looking at everything again."""
    check_payload(payload)
    refuse_reserved(payload)
    row: dict[str, Any] = {"organization": "acme", "project": "p1", "job_id": JOB_ID, "tenant": "acme"}
    whole = dict(payload)
    if execution is not None:
        whole["execution"] = build_execution_envelope(execution, **row)
    if governance is not None:
        whole["governance"] = build_governance_envelope(governance, **row)
    return encode(whole), canonical(whole), payload_digest("send_quote", payload)


def fast(payload: Any, **more: Any) -> NewJob:
    return new_job(job_id=JOB_ID, **{**FIELDS, "payload": payload, **more})


def _written(payload: dict[str, Any], execution: ExecutionInput) -> tuple[str, bytes, str]:
    return written(fast(payload, execution=execution))


def written(job: NewJob) -> tuple[str, bytes, str]:
    return job.payload_text, job.payload_bytes, job.payload_digest


@given(payload=payloads, execution=inputs, governance=st.sampled_from([None, GOVERNED]))
def test_text_bytes_and_digest_are_those_of_the_plain_way(
    payload: dict[str, Any], execution: ExecutionInput | None, governance: GovernanceInput | None
) -> None:
    job = fast(payload, execution=execution, governance=governance)
    assert written(job) == plainly(payload, execution, governance)
    assert canonical(job.payload) == job.payload_bytes
    assert job.id_text == str(JOB_ID)


@pytest.mark.parametrize("name", [*ACCEPTED, *MENDED])
def test_every_odd_value_is_written_as_by_the_plain_way(name: str) -> None:
    value = ACCEPTED[name]() if name in ACCEPTED else MENDED[name]()[0]
    who = ExecutionInput(actor="user:42", trace="t-1")
    # One that is as deep as can be is the payload itself or, in one more container, refused in the same words.
    for payload in ({"z": value, "a": 1}, value if type(value) is dict else {}):
        plain = _end(partial(plainly, payload, who, None))
        assert _end(partial(_written, payload, who)) == plain


@pytest.mark.parametrize("name", REFUSED)
def test_every_refused_value_has_the_error_of_the_plain_way(name: str) -> None:
    payload = {"in": REFUSED[name][0]()}
    with pytest.raises(Invalid) as plain:
        plainly(payload, None, None)
    with pytest.raises(Invalid) as caught:
        fast(payload)
    assert (caught.value.code, str(caught.value)) == (plain.value.code, str(plain.value))


class Word(enum.StrEnum):
    ACME = "acme"


BAD_INPUTS: list[dict[str, Any]] = [
    *(
        {key: bad}
        for key in ("actor", "trace", "task", "approval")
        for bad in ("", " ", "a\0", "\ud800", 7, ["x"], "x" * 1001)
    ),
    {"actor": 7, "trace": ""},
    {"trace": "", "task": ""},
    {"actor": Word.ACME},
    {"trace": Word.ACME},
]


@pytest.mark.parametrize("fields", BAD_INPUTS)
def test_a_bad_input_has_the_error_of_the_plain_way_again_and_again(fields: dict[str, Any]) -> None:
    bad = ExecutionInput(**fields)
    with pytest.raises(Invalid) as plain:
        plainly({}, bad, None)
    for _ in range(2):
        fast({}, execution=ExecutionInput(actor="acme", trace="acme"))
        with pytest.raises(Invalid) as caught:
            fast({}, execution=bad)
        assert (caught.value.code, str(caught.value)) == (plain.value.code, str(plain.value))


def test_a_trace_beside_the_input_is_used_where_the_input_has_none() -> None:
    beside = fast({}, execution=ExecutionInput(actor="a"), trace="t-2").payload["execution"]
    assert beside["trace"] == "t-2"
    assert (
        fast({}, execution=ExecutionInput(actor="a", trace="t-1"), trace="t-2").payload["execution"]["trace"] == "t-1"
    )
    with pytest.raises(Invalid, match=r"execution\.trace is empty"):
        fast({}, execution=ExecutionInput(actor="a"), trace="")


def test_the_envelope_counts_towards_the_size() -> None:
    frame = len(encode({"t": ""}))
    fits = {"t": "x" * (PAYLOAD_BYTES_MAX - frame)}
    assert len(fast(fits).payload_text) == PAYLOAD_BYTES_MAX
    who = ExecutionInput(actor="a", trace="t")
    with pytest.raises(Invalid) as caught:
        fast(fits, execution=who)
    assert caught.value.code == "PAYLOAD_TOO_LARGE"
    added = len(fast({}, execution=who).payload_text) - len("{}") + 1
    assert len(fast({"t": fits["t"][added:]}, execution=who).payload_text) == PAYLOAD_BYTES_MAX


@pytest.mark.parametrize(
    "name,good,bad",
    [
        ("kind_version", 1, True),
        ("kind_version", 1, 1.0),
        ("priority", 0, False),
        ("priority", 1, True),
        ("max_attempts", 1, True),
        ("max_attempts", 3, 3.0),
        ("organization", "acme", ["acme"]),
        ("tenant", "acme", {"acme"}),
        ("queue", "default", None),
        ("kind", "k", "k:"),
        ("backoff_base", timedelta(seconds=1), 1),
        ("on_declined", "failed", ["failed"]),
        ("on_reconciled", None, False),
    ],
)
def test_what_was_found_good_before_makes_nothing_else_good(name: str, good: Any, bad: Any) -> None:
    for _ in range(2):
        assert fast({}, **{name: good}).job_id == JOB_ID
        with pytest.raises(Invalid):
            fast({}, **{name: bad})


def test_a_name_that_only_equals_a_text_is_judged_by_itself() -> None:
    # Allowed for a job, refused in an envelope: whatever was made before.
    who = ExecutionInput(actor="a", trace="t")
    for _ in range(2):
        assert fast({}, project="acme", execution=who).project == "acme"
        assert fast({}, project=Word.ACME).project == "acme"
        with pytest.raises(
            Invalid, match=r"execution\.tenant is of type Word|execution\.organization is of type Word|of type Word"
        ):
            fast({}, project=Word.ACME, execution=who)


def test_what_is_remembered_of_many_frames_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "_FRAMES_MAX", 8)
    assert [fast({}, queue=f"q{nth}").queue for nth in range(40)] == [f"q{nth}" for nth in range(40)]
    assert len(creation._frames) <= 8


def test_no_payload_is_in_the_description_of_a_new_job() -> None:
    assert "marker" not in repr(fast({"secret": "marker"}))


# --- the encoder ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sort_keys", [True, False])
@given(value=plain_values)
def test_the_encoder_that_is_built_once_writes_what_the_library_writes(sort_keys: bool, value: Any) -> None:
    library = json.JSONEncoder(
        ensure_ascii=False, check_circular=False, allow_nan=False, sort_keys=sort_keys, separators=(",", ":")
    )
    assert writer(sort_keys=sort_keys)(value) == library.encode(value)


def test_an_interpreter_without_the_part_in_c_writes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"b": [1, 2.5, None, True, 'é\n"😀'], "a": {}}
    quick = writer(sort_keys=True)(value)
    monkeypatch.setattr(json.encoder, "c_make_encoder", None)
    assert writer(sort_keys=True)(value) == quick == '{"a":{},"b":[1,2.5,null,true,"é\\n\\"😀"]}'


@pytest.mark.parametrize("bad", [float("nan"), [float("inf")], {"a": object()}])
def test_the_encoder_refuses_what_the_library_refuses(bad: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        writer()(bad)
    assert writer()([1]) == "[1]"


# --- a payload that no model checks -----------------------------------------------------------------------------------


def _anything(ctx: Any, payload: dict[str, Any]) -> None:
    del ctx, payload


def _bare(ctx: Any, payload: dict) -> None:  # type: ignore[type-arg]
    del ctx, payload


ANYTHING = [declare("anything", _anything), declare("bare", _bare)]


@given(payload=payloads)
def test_a_plain_object_is_what_pydantic_would_make_of_it(payload: dict[str, Any]) -> None:
    for kind in ANYTHING:
        document, _ = kind.encode_surveyed(payload)
        assert encode(document) == encode(kind.encode(payload))


ODD: dict[str, Callable[[], Any]] = {
    "instant": lambda: datetime(2026, 1, 1, tzinfo=UTC),
    "id": lambda: JOB_ID,
    "decimal": lambda: Decimal("1.5"),
    "enum": lambda: Word.ACME,
    "bytes": lambda: b"x",
    "tuple": lambda: (1, (2,)),
    "set": lambda: {1},
    "long": lambda: 10**700,
    "too_long": lambda: 10**4001,
    "nan": lambda: float("nan"),
    "split": lambda: "\ud83d\ude00",
    "half": lambda: "\ud83d",
    "nul": lambda: "\0",
    "deep": REFUSED["nan_in_the_deep"][0],
    "object": object,
}


def _end(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Invalid as refusal:
        return refusal.code, str(refusal)


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("kind", ANYTHING, ids=lambda kind: kind.name)
def test_what_is_not_plain_goes_through_pydantic_as_ever(kind: Kind, name: str) -> None:
    payload = {"v": ODD[name]()}

    def through(document: Callable[[], dict[str, Any]]) -> Any:
        return _end(lambda: fast(document()).payload_text)

    assert through(lambda: kind.encode_surveyed(payload)[0]) == through(lambda: kind.encode(payload))


def test_an_app_prepares_what_the_plain_way_gives() -> None:
    app = Tenure("sqlite:///:memory:", organization="acme", project="p1", actor="desk")

    @app.job("anything")
    def anything(ctx: Any, payload: dict[str, Any]) -> None:
        del ctx, payload

    jobs = [app.prepare(anything, {"n": n, "a": [n]}, key=f"k{n}", actor=who) for n, who in enumerate(("a", None, "b"))]
    for job, actor in zip(jobs, ("a", "desk", "b"), strict=True):
        envelope = job.payload["execution"]
        assert (envelope["actor"], envelope["trace"], envelope["job"]) == (actor, job.job_id.hex, str(job.job_id))
        assert job.payload_text == encode(job.payload)
    with pytest.raises(Invalid, match="actor"):
        app.prepare(anything, {}, key="k", actor=" ")


# --- rows and answers -------------------------------------------------------------------------------------------------


def drive(jobs: list[NewJob], *, epoch: int = 3) -> tuple[dict[str, list[Row]], list[Created]]:
    """Run a creation in which every key is new, without a store."""
    script = create(jobs).script()
    asked: dict[str, list[Row]] = {}
    first: Any = next(script)
    rows = {each.name: list(each.rows) for each in first}
    asked |= rows
    authority = [(row[0], epoch, False, False, NOW, "[]") for row in rows["authority_ensure"]]
    last = script.send([[], authority, [(row[3],) for row in rows["job_key_reserve"]]])
    assert isinstance(last, Last)
    asked |= {each.name: list(each.rows) for each in last.requests if isinstance(each, Each)}
    with pytest.raises(StopIteration) as end:
        script.send(None)
    return asked, end.value.value


def some_jobs() -> list[NewJob]:
    given: list[Mapping[str, Any]] = [
        {},
        {"queue": "mail", "priority": -3, "max_attempts": 9, "kind_version": 7, "subject": "quote:17"},
        {"scheduled_at": instant(NOW + 1), "tenant": "north"},
        {"scheduled_at": instant(NOW), "options": Options(retry_timeouts=True), "on_declined": "dead_letter"},
        {"scheduled_at": instant(NOW - 5), "on_reconciled": "complete", "backoff_base": timedelta(milliseconds=1500)},
    ]
    fields = {**FIELDS, "payload": {"a": 1, "z": 1.0}}
    return [
        new_job(job_id=uuid4(), **{**fields, "idempotency_key": f"k{nth}", **more}) for nth, more in enumerate(given)
    ]


def test_places_and_digests_are_those_of_the_record() -> None:
    jobs = some_jobs()
    asked, answers = drive(jobs)
    placed: dict[str, list[Row]] = {}
    for answer in answers:
        place = place_of(answer.job, instant(NOW))
        placed.setdefault(f"{place}_insert", []).append(place_row(answer.job, place))
    order = {row[0]: nth for nth, row in enumerate(asked["job_insert"])}
    for name in ("ready_insert", "deferred_insert"):
        assert asked[name] == sorted(placed[name], key=lambda row: order[row[0]])
    bodies = {row[0]: row for row in asked["job_insert"]}
    for job, answer in zip(jobs, answers, strict=True):
        record, body = answer.job, bodies[job.job_id]
        assert answer.created
        assert (record.id, record.epoch, record.payload) == (job.job_id, 3, decode(job.payload_text))
        what = {name: getattr(job, name) for name in ("tenant", "job_id", "kind", "kind_version", "payload")}
        assert body[-1] == record.operation_digest == operation_digest(epoch=3, **what)
        assert body[-2] == record.payload_digest == payload_digest("send_quote", {"a": 1, "z": 1})
        assert body[14:16] == (micros(record.scheduled_at), micros(record.created_at))


def test_an_answer_is_a_frozen_record_whose_job_is_made_once_and_late() -> None:
    _, answers = drive(some_jobs())
    made = answers[0]
    job = made.job
    assert isinstance(job, Job)
    assert made.job is job
    assert made == Created(job, created=True)
    assert made != Created(job, created=False)
    assert repr(made) == repr(Created(job, created=True))
    assert dataclasses.replace(answers[1], created=False) == Created(answers[1].job, created=False)
    assert [field.name for field in dataclasses.fields(made)] == ["job", "created"]
    match answers[2]:
        case Created(found, created):
            assert (found, created) == (answers[2].job, True)
    again = pickle.loads(pickle.dumps(answers[3]))
    assert again == answers[3]
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.created = False  # type: ignore[misc]
    with pytest.raises(AttributeError, match="no attribute 'jbo'"):
        made.jbo  # noqa: B018 - the look is the test
    assert isinstance(made.job.id, UUID)
