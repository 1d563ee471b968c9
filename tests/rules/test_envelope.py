"""Identity in envelopes: written by typed inputs alone, read strictly, compared with the row before a dispatch."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import Invalid
from tenure.rules.digest import digest, payload_digest
from tenure.rules.envelope import (
    ExecutionIdentity,
    ExecutionInput,
    Governance,
    GovernanceInput,
    agree_tenant,
    build_execution_envelope,
    build_governance_envelope,
    governance_digest,
    judge_governance,
    read_execution_identity,
    read_governance,
    refuse_reserved,
    validate_execution_identity_for_dispatch,
)
from tenure.rules.payload import check_payload, decode, encode
from tests.rules.values import json_values, texts

JOB = UUID("0197f3a2-7c11-7d4e-8b5a-1f2e3d4c5b6a")
OTHER = UUID("0197f3a2-7c11-7d4e-8b5a-1f2e3d4c5b6b")
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


ROW: dict[str, Any] = {"organization": "studio", "project": "sales", "job_id": JOB, "tenant": "studio-eu"}
WHO = ExecutionInput(tenant="studio-eu", actor="user:42", trace="t-1")
WHO_ELSE = ExecutionInput(
    actor="user:42",
    trace="t-1",
    task="task-1",
    run="run-2",
    attempt="3",
    action_intent="intent-4",
    admission_decision="admission-5",
    approval="approval-6",
)
ALLOWED = GovernanceInput(
    action_intent={"verb": "send", "quote": 17},
    capability="quotes.send",
    policy="policy-3",
    budget={"limit": 100, "unit": "EUR"},
    approval_reference="approval-6",
    issued_at=NOW - timedelta(hours=1),
    expires_at=NOW + timedelta(hours=1),
)


@dataclass(frozen=True)
class Job:
    id: UUID = JOB
    tenant: str = "studio-eu"
    organization: str = "studio"
    project: str = "sales"
    payload: Mapping[str, Any] = field(default_factory=dict)


def job(who: ExecutionInput | None = WHO, allowed: GovernanceInput | None = None, **row: Any) -> Job:
    """Make a job as it comes back from a store."""
    execution = None if who is None else build_execution_envelope(who, **ROW)
    governance = None if allowed is None else build_governance_envelope(allowed, **ROW)
    envelopes = {"execution": execution, "governance": governance}
    payload = {"quote": 17} | {key: envelope for key, envelope in envelopes.items() if envelope is not None}
    return Job(payload=decode(encode(payload)), **row)


def reasons_against(given: Job, now: datetime) -> list[str]:
    return [text for _, text in judge_governance(given, now)]


def refusal(function: Any, *args: Any, **kwargs: Any) -> Invalid:
    with pytest.raises(Invalid) as caught:
        function(*args, **kwargs)
    return caught.value


class Who(enum.StrEnum):
    ACTOR = "user:42"


NOT_TEXT: dict[str, tuple[Any, str]] = {
    "empty": ("", "is empty"),
    "blank": (" \t\n", "is empty"),
    "nul": ("user\0", "NUL"),
    "half_character": ("user\ud83d", "surrogate"),
    "long": ("u" * 1001, "longer than 1000"),
    "number": (42, "of type int"),
    "boolean": (True, "of type bool"),
    "list": (["user:42"], "of type list"),
    "object": ({"id": "user:42"}, "of type dict"),
    "bytes": (b"user:42", "of type bytes"),
    "enum": (Who.ACTOR, "of type Who"),
}


# --- raw payloads -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["execution", "governance"])
@pytest.mark.parametrize("value", [None, {}, "", {"actor": "user:1"}, False])
def test_a_raw_payload_with_a_reserved_key_is_refused(key: str, value: Any) -> None:
    error = refusal(refuse_reserved, {"quote": 17, key: value})
    assert error.code == "RESERVED_KEY"
    assert f"'{key}'" in str(error)
    # Control: the words are free anywhere else.
    for payload in ({}, {"quote": {key: value}}, {key.upper(): value}, {f" {key}": value}, {"x": key}):
        refuse_reserved(payload)


def test_envelopes_in_a_payload_change_no_payload_digest() -> None:
    payload = {"quote": 17}
    whole = job(WHO, ALLOWED).payload
    assert list(whole) == ["quote", "execution", "governance"]
    assert check_payload(whole)
    assert payload_digest("k", whole) == payload_digest("k", payload)
    assert payload_digest("k", whole) != payload_digest("k", {"quote": 18})
    assert refusal(refuse_reserved, whole).code == "RESERVED_KEY"


# --- the tenant -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bound, argument, given_tenant, tenant",
    [
        (None, None, None, "studio"),
        ("a", None, None, "a"),
        (None, "a", None, "a"),
        (None, None, "a", "a"),
        ("a", "a", None, "a"),
        ("a", None, "a", "a"),
        (None, "a", "a", "a"),
        ("a", "a", "a", "a"),
    ],
)
def test_tenants_that_agree(bound: str | None, argument: str | None, given_tenant: str | None, tenant: str) -> None:
    assert agree_tenant(bound, argument, given_tenant, "studio") == tenant


@pytest.mark.parametrize(
    "bound, argument, given_tenant",
    [
        ("a", "b", None),
        ("a", None, "b"),
        (None, "a", "b"),
        ("a", "a", "b"),
        ("a", "b", "a"),
        ("b", "a", "a"),
        ("a", "b", "c"),
        ("a", "A", None),
        ("a", "a ", None),
        ("\u00e9", "e\u0301", None),
    ],
)
def test_tenants_that_differ(bound: str | None, argument: str | None, given_tenant: str | None) -> None:
    error = refusal(agree_tenant, bound, argument, given_tenant, "a")
    assert error.code == "TENANT_MISMATCH"
    assert ("binding says" in str(error)) == (bound is not None)


@pytest.mark.parametrize("name", NOT_TEXT)
@pytest.mark.parametrize("place", range(4))
def test_a_tenant_that_is_given_is_text(name: str, place: int) -> None:
    value, problem = NOT_TEXT[name]
    given: list[Any] = [None, None, None, "studio"]
    given[place] = value
    error = refusal(agree_tenant, *given)
    assert error.code == "ENVELOPE_VALUE"
    assert problem in str(error)


# --- the execution envelope -------------------------------------------------------------------------------------------


def test_an_envelope_joins_the_input_and_the_row() -> None:
    assert build_execution_envelope(WHO, **ROW) == {
        "tenant": "studio-eu",
        "organization": "studio",
        "project": "sales",
        "job": str(JOB),
        "actor": "user:42",
        "trace": "t-1",
    }
    whole = build_execution_envelope(WHO_ELSE, **ROW)
    assert whole["tenant"] == "studio-eu"
    assert {
        key: whole[key] for key in ("task", "run", "attempt", "action_intent", "admission_decision", "approval")
    } == {
        "task": "task-1",
        "run": "run-2",
        "attempt": "3",
        "action_intent": "intent-4",
        "admission_decision": "admission-5",
        "approval": "approval-6",
    }


def test_what_was_written_is_read_and_allows_a_dispatch() -> None:
    identity = read_execution_identity(job(WHO_ELSE))
    assert identity == ExecutionIdentity(
        tenant="studio-eu",
        organization="studio",
        project="sales",
        job=JOB,
        actor="user:42",
        trace="t-1",
        task="task-1",
        run="run-2",
        attempt="3",
        action_intent="intent-4",
        admission_decision="admission-5",
        approval="approval-6",
    )
    assert validate_execution_identity_for_dispatch(job(WHO_ELSE)) == []
    assert validate_execution_identity_for_dispatch(job(WHO)) == []
    frozen = Job(payload=MappingProxyType(dict(job(WHO).payload)))
    assert validate_execution_identity_for_dispatch(frozen) == []


def test_without_an_envelope_there_is_no_identity_and_no_dispatch() -> None:
    assert read_execution_identity(job(None)) is None
    assert validate_execution_identity_for_dispatch(job(None)) == ["there is no execution envelope"]


@pytest.mark.parametrize("key", ["actor", "trace"])
def test_an_input_without_actor_or_trace_makes_a_job_that_may_not_dispatch(key: str) -> None:
    made = job(dataclasses.replace(WHO, **{key: None}))
    identity = read_execution_identity(made)
    assert identity is not None
    assert getattr(identity, key) is None
    assert identity.tenant == "studio-eu"
    assert validate_execution_identity_for_dispatch(made) == [f"execution.{key} is missing"]


def test_every_reason_is_given() -> None:
    made = dataclasses.replace(job(ExecutionInput()), id=OTHER, project="other", organization="o", tenant="t")
    assert validate_execution_identity_for_dispatch(made) == [
        "execution.actor is missing",
        "execution.trace is missing",
        "execution.tenant is not the job's",
        "execution.organization is not the job's",
        "execution.project is not the job's",
        "execution.job is not the job's",
    ]


@pytest.mark.parametrize("name", NOT_TEXT)
@pytest.mark.parametrize("key", [field.name for field in dataclasses.fields(ExecutionInput)])
def test_an_input_holds_text_or_nothing(name: str, key: str) -> None:
    value, problem = NOT_TEXT[name]
    given = dataclasses.replace(WHO_ELSE, **{key: value})
    if key == "tenant":
        # The tenant was agreed before; any other one is a mistake, whatever is wrong with it.
        assert refusal(build_execution_envelope, given, **ROW).code == "TENANT_MISMATCH"
    else:
        error = refusal(build_execution_envelope, given, **ROW)
        assert error.code == "ENVELOPE_VALUE"
        assert str(error).startswith(f"execution.{key} ")
        assert problem in str(error)


@pytest.mark.parametrize("name", NOT_TEXT)
@pytest.mark.parametrize("key", ["tenant", "organization", "project"])
def test_the_row_holds_text(name: str, key: str) -> None:
    row = {**ROW, key: NOT_TEXT[name][0]}
    for build, input_ in ((build_execution_envelope, ExecutionInput()), (build_governance_envelope, ALLOWED)):
        error = refusal(build, input_, **row)
        assert error.code == "ENVELOPE_VALUE"
        assert f".{key} " in str(error)


def test_the_row_has_an_id() -> None:
    assert refusal(build_execution_envelope, WHO, **{**ROW, "job_id": str(JOB)}).code == "NOT_AN_ID"
    assert refusal(build_governance_envelope, ALLOWED, **{**ROW, "job_id": None}).code == "NOT_AN_ID"


def test_the_input_of_another_tenant_makes_no_envelope() -> None:
    other = dataclasses.replace(WHO, tenant="studio-us")
    assert refusal(build_execution_envelope, other, **ROW).code == "TENANT_MISMATCH"
    assert build_execution_envelope(dataclasses.replace(WHO, tenant=None), **ROW)["tenant"] == "studio-eu"


# --- forgery: each change to a good envelope, and what is said about it -----------------------------------------------


def put(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda envelope: {**envelope, **values}


def drop(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda envelope: {name: value for name, value in envelope.items() if name != key}


MALFORMED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "null": (lambda _: None, "execution is not a JSON object"),
    "text": (lambda _: "user:42", "execution is not a JSON object"),
    "list": (lambda envelope: [envelope], "execution is not a JSON object"),
    "number": (lambda _: 1, "execution is not a JSON object"),
    "false": (lambda _: False, "execution is not a JSON object"),
    "empty": (lambda _: {}, "execution.tenant is missing"),
    "nested": (lambda envelope: {"execution": envelope}, "execution has a key that no such envelope has"),
    "unknown_key": (put(role="operator"), "execution has a key that no such envelope has"),
    "unknown_null": (put(admin=None), "execution has a key that no such envelope has"),
    "capital_key": (put(Tenant="studio-us"), "execution has a key that no such envelope has"),
    "trailing_space_key": (put(**{"tenant ": "studio-us"}), "execution has a key that no such envelope has"),
    **{
        f"without_{key}": (drop(key), f"execution.{key} is missing")
        for key in ("tenant", "organization", "project", "job", "actor", "trace")
    },
    **{
        f"null_{key}": (put(**{key: None}), f"execution.{key} is missing")
        for key in ("tenant", "organization", "project", "job", "task", "run", "attempt", "approval")
    },
    **{
        f"{name}_{key}": (put(**{key: value}), f"execution.{key} {problem[:2]}")
        for key in ("tenant", "organization", "actor", "trace", "attempt", "action_intent")
        for name, (value, problem) in NOT_TEXT.items()
        if problem.startswith("is ")
    },
    "number_actor": (put(actor=42), "execution.actor is of type int"),
    "nul_actor": (put(actor="user\0"), "execution.actor holds a NUL"),
    "half_character_actor": (put(actor="\ud83d"), "execution.actor holds half"),
    "list_tenant": (put(tenant=["studio-eu"]), "execution.tenant is of type list"),
    "enum_actor": (put(actor=Who.ACTOR), "execution.actor is of type Who"),
    "job_capitals": (put(job=str(JOB).upper()), "execution.job is not an id"),
    "job_braces": (put(job="{" + str(JOB) + "}"), "execution.job is not an id"),
    "job_without_hyphens": (put(job=JOB.hex), "execution.job is not an id"),
    "job_urn": (put(job=JOB.urn), "execution.job is not an id"),
    "job_space": (put(job=f" {JOB}"), "execution.job is not an id"),
    "job_number": (put(job=JOB.int), "execution.job is not an id"),
    "job_object": (put(job=JOB), "execution.job is not an id"),
    "job_text": (put(job="17"), "execution.job is not an id"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_envelope_gives_no_identity_and_no_dispatch(name: str) -> None:
    change, reason = MALFORMED[name]
    good = job(WHO_ELSE)
    forged = dataclasses.replace(good, payload={**good.payload, "execution": change(good.payload["execution"])})
    error = refusal(read_execution_identity, forged)
    assert error.code == "ENVELOPE_MALFORMED"
    assert str(JOB) in str(error)
    assert reason in str(error)
    reasons = validate_execution_identity_for_dispatch(forged)
    assert any(given.startswith(reason) for given in reasons)
    # Control: the same job, untouched.
    assert read_execution_identity(good) is not None
    assert validate_execution_identity_for_dispatch(good) == []


@pytest.mark.parametrize("payload", [None, "execution", [], ["execution"], 1])
def test_a_payload_that_is_no_object_allows_nothing(payload: Any) -> None:
    spoilt = Job(payload=payload)
    assert refusal(read_execution_identity, spoilt).code == "ENVELOPE_MALFORMED"
    assert validate_execution_identity_for_dispatch(spoilt) == ["the payload is not a JSON object"]
    assert refusal(read_governance, spoilt).code == "ENVELOPE_MALFORMED"
    assert reasons_against(spoilt, NOW) == ["the payload is not a JSON object"]


DIFFERING: dict[str, dict[str, Any]] = {
    "tenant": {"tenant": "studio-us"},
    "organization": {"organization": "workshop"},
    "project": {"project": "support"},
    "job": {"job": str(OTHER)},
}


@pytest.mark.parametrize("key", DIFFERING)
def test_an_envelope_that_is_not_the_rows_allows_no_dispatch(key: str) -> None:
    good = job(WHO, ALLOWED)
    for name in ("execution", "governance"):
        envelope = {**good.payload[name], **DIFFERING[key]}
        if name == "governance":
            envelope["digest"] = governance_digest(envelope)  # a forger can compute it
        forged = dataclasses.replace(good, payload={**good.payload, name: envelope})
        reasons = {
            "execution": validate_execution_identity_for_dispatch(forged),
            "governance": reasons_against(forged, NOW),
        }
        assert reasons[name] == [f"{name}.{key} is not the job's"]
        # It is well formed, so reading it is no error; the other envelope is not touched by it.
        assert read_execution_identity(forged) is not None
        assert reasons["execution" if name == "governance" else "governance"] == []
    assert validate_execution_identity_for_dispatch(good) == []


@pytest.mark.parametrize("row", [{"tenant": "a"}, {"organization": "b"}, {"project": "c"}, {"id": OTHER}])
def test_a_row_that_moved_away_from_its_envelopes_allows_no_dispatch(row: dict[str, Any]) -> None:
    good = job(WHO, ALLOWED)
    moved = dataclasses.replace(good, **row)
    assert len(validate_execution_identity_for_dispatch(moved)) == 1
    assert len(reasons_against(moved, NOW)) == 1
    assert validate_execution_identity_for_dispatch(good) == reasons_against(good, NOW) == []


def test_the_envelopes_of_another_job_allow_nothing() -> None:
    good = job(WHO, ALLOWED)
    stolen = Job(id=OTHER, payload=good.payload)
    assert validate_execution_identity_for_dispatch(stolen) == ["execution.job is not the job's"]
    assert reasons_against(stolen, NOW) == ["governance.job is not the job's"]


def test_reasons_and_errors_hold_no_value_of_the_payload() -> None:
    good = job(WHO)
    envelope = {**good.payload["execution"], "tenant": "s3cret", "actor": "s3cret\0", "s3cret": 1, "job": "s3cret"}
    forged = dataclasses.replace(good, payload={"execution": envelope})
    assert "s3cret" not in "".join(validate_execution_identity_for_dispatch(forged))
    assert "s3cret" not in str(refusal(read_execution_identity, forged))


@given(json_values)
def test_whatever_stands_for_an_envelope_is_refused_with_a_type(envelope: Any) -> None:
    forged = Job(payload={"execution": envelope, "governance": envelope})
    assert refusal(read_execution_identity, forged).code == "ENVELOPE_MALFORMED"
    assert refusal(read_governance, forged).code == "ENVELOPE_MALFORMED"
    assert validate_execution_identity_for_dispatch(forged)
    assert reasons_against(forged, NOW)


@given(
    st.dictionaries(
        st.sampled_from([field.name for field in dataclasses.fields(ExecutionInput) if field.name != "tenant"]),
        texts.filter(str.strip),
    )
)
def test_whatever_was_written_is_read_again(given_values: dict[str, str]) -> None:
    made = job(ExecutionInput(**given_values))
    identity = read_execution_identity(made)
    assert identity is not None
    for name in ("actor", "trace", "task", "run", "attempt", "action_intent", "admission_decision", "approval"):
        assert getattr(identity, name) == given_values.get(name)
    assert len(validate_execution_identity_for_dispatch(made)) == len({"actor", "trace"} - given_values.keys())


# --- the governance envelope ------------------------------------------------------------------------------------------


def test_a_governance_envelope_is_read_as_written() -> None:
    made = job(WHO, ALLOWED)
    envelope = made.payload["governance"]
    assert envelope["issued_at"] == "2026-03-01T11:00:00.000000Z"
    assert envelope["digest"] == digest({key: value for key, value in envelope.items() if key != "digest"})
    assert read_governance(made) == Governance(
        tenant="studio-eu",
        organization="studio",
        project="sales",
        job=JOB,
        action_intent={"verb": "send", "quote": 17},
        capability="quotes.send",
        policy="policy-3",
        budget={"limit": 100, "unit": "EUR"},
        approval_reference="approval-6",
        issued_at=NOW - timedelta(hours=1),
        expires_at=NOW + timedelta(hours=1),
        digest=envelope["digest"],
    )
    without = job(WHO, dataclasses.replace(ALLOWED, approval_reference=None))
    assert "approval_reference" not in without.payload["governance"]
    assert read_governance(without) is not None
    assert reasons_against(without, NOW) == []


def test_an_ungoverned_job_is_not_asked() -> None:
    assert read_governance(job(WHO)) is None
    assert reasons_against(job(WHO), NOW) == []


@pytest.mark.parametrize(
    "seconds, reasons",
    [
        (-3600 - 301, ["governance.issued_at lies in the future"]),
        (-3600 - 300, []),
        (-3600, []),
        (0, []),
        (3599.999999, []),
        (3600, ["governance.expires_at has passed"]),
        (10**9, ["governance.expires_at has passed"]),
    ],
)
def test_it_is_valid_until_just_before_its_expiry(seconds: float, reasons: list[str]) -> None:
    at = NOW + timedelta(seconds=seconds)
    assert reasons_against(job(WHO, ALLOWED), at) == reasons
    elsewhere = at.astimezone(timezone(timedelta(hours=-8)))
    assert reasons_against(job(WHO, ALLOWED), elsewhere) == reasons


CHANGED: dict[str, dict[str, Any]] = {
    "action_intent": {"action_intent": {"verb": "send", "quote": 18}},
    "fact_added": {"action_intent": {"verb": "send", "quote": 17, "to": "x"}},
    "fact_type": {"action_intent": {"verb": "send", "quote": "17"}},
    "capability": {"capability": "quotes.delete"},
    "policy": {"policy": {"name": "policy-3"}},
    "budget": {"budget": {"limit": 1000, "unit": "EUR"}},
    "approval_reference": {"approval_reference": "approval-7"},
    "issued_at": {"issued_at": "2026-03-01T11:00:00.000001Z"},
    "expires_at": {"expires_at": "2027-03-01T13:00:00.000000Z"},
    "digest": {"digest": "v1:" + "0" * 64},
    "digest_version": {"digest": "v2:" + "0" * 64},
    "digest_text": {"digest": "none"},
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_envelope_does_not_have_its_digest(name: str) -> None:
    good = job(WHO, ALLOWED)
    forged = dataclasses.replace(
        good, payload={**good.payload, "governance": {**good.payload["governance"], **CHANGED[name]}}
    )
    assert reasons_against(forged, NOW) == ["governance.digest is not the digest of the envelope"]
    assert reasons_against(good, NOW) == []
    # Control: the same fact in another spelling is the same envelope.
    spelled = {**good.payload["governance"], "budget": {"unit": "EUR", "limit": 100.0}}
    same = dataclasses.replace(good, payload={**good.payload, "governance": spelled})
    assert reasons_against(same, NOW) == []


GOVERNANCE_MALFORMED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "null": (lambda _: None, "governance is not a JSON object"),
    "text": (lambda _: "approved", "governance is not a JSON object"),
    "list": (lambda envelope: [envelope], "governance is not a JSON object"),
    "unknown_key": (put(approved=True), "governance has a key that no such envelope has"),
    **{
        f"without_{key}": (drop(key), f"governance.{key} is missing")
        for key in [
            *("tenant", "organization", "project", "job", "action_intent", "capability", "policy", "budget"),
            *("issued_at", "expires_at", "digest"),
        ]
    },
    **{
        f"null_{key}": (put(**{key: None}), f"governance.{key} is missing")
        for key in ("job", "policy", "digest", "expires_at", "approval_reference")
    },
    "empty_fact": (put(policy={}), "governance.policy is empty"),
    "blank_fact": (put(policy=" "), "governance.policy is empty"),
    "number_fact": (put(budget=100), "governance.budget is of type int"),
    "list_fact": (put(budget=[100]), "governance.budget is of type list"),
    "nan_fact": (put(budget={"limit": float("nan")}), "governance.budget is not storable: NON_FINITE_NUMBER"),
    "deep_fact": (
        put(budget={"a": [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]}),
        "governance.budget is not storable: TOO_DEEP",
    ),
    "number_digest": (put(digest=1), "governance.digest is of type int"),
    "empty_digest": (put(digest=""), "governance.digest is empty"),
    **{
        f"instant_{at}": (put(expires_at=at), "governance.expires_at is not an instant in UTC")
        for at in [
            *("2026-03-01T13:00:00", "2026-03-01T13:00:00Z", "2026-03-01T13:00:00.000000+00:00"),
            *("2026-03-01 13:00:00.000000Z", "2026-13-01T13:00:00.000000Z", "2026-03-01T13:00:60.000000Z"),
            *("2026-03-01T13:00:00.000000z", "2026-03-01T13:00:00.000000Z\n", "infinity", "never", 1772370000, ""),
            "\u0662\u0660\u0662\u0666-03-01T13:00:00.000000Z",
        ]
    },
}


@pytest.mark.parametrize("name", GOVERNANCE_MALFORMED)
def test_a_malformed_governance_envelope_allows_no_dispatch(name: str) -> None:
    change, reason = GOVERNANCE_MALFORMED[name]
    good = job(WHO, ALLOWED)
    forged = dataclasses.replace(good, payload={**good.payload, "governance": change(good.payload["governance"])})
    error = refusal(read_governance, forged)
    assert error.code == "ENVELOPE_MALFORMED"
    assert reason in str(error)
    assert any(given.startswith(reason) for given in reasons_against(forged, NOW))
    assert read_governance(good) is not None
    assert reasons_against(good, NOW) == []


@pytest.mark.parametrize("name", NOT_TEXT)
@pytest.mark.parametrize("key", ["action_intent", "capability", "policy", "budget", "approval_reference"])
def test_a_governance_input_holds_facts(name: str, key: str) -> None:
    value, problem = NOT_TEXT[name]
    if isinstance(value, dict) and key != "approval_reference":
        made = job(WHO, dataclasses.replace(ALLOWED, **{key: value}))
        assert reasons_against(made, NOW) == []
        value, problem = {}, "is empty"
    error = refusal(build_governance_envelope, dataclasses.replace(ALLOWED, **{key: value}), **ROW)
    assert error.code == "ENVELOPE_VALUE"
    assert str(error).startswith(f"governance.{key} ")
    assert problem in str(error)


def test_a_fact_is_named_by_its_path_when_it_cannot_be_stored() -> None:
    error = refusal(build_governance_envelope, dataclasses.replace(ALLOWED, policy={"a": [b""]}), **ROW)
    assert error.code == "UNSUPPORTED_TYPE"
    assert str(error).startswith("governance.policy.a[0] ")
    deep = dataclasses.replace(ALLOWED, policy={"a": [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]})
    assert refusal(build_governance_envelope, deep, **ROW).code == "TOO_DEEP"


def test_a_fact_is_copied() -> None:
    budget = {"limit": 100, "parts": (1, 2)}
    envelope = build_governance_envelope(dataclasses.replace(ALLOWED, budget=budget), **ROW)
    budget["limit"] = 10_000
    assert envelope["budget"] == {"limit": 100, "parts": [1, 2]}
    assert envelope["digest"] == governance_digest(decode(encode(envelope)))


@pytest.mark.parametrize("key", ["issued_at", "expires_at"])
def test_an_instant_is_aware_and_stored_in_utc(key: str) -> None:
    naive = dataclasses.replace(ALLOWED, **{key: datetime(2026, 3, 1, 12)})  # noqa: DTZ001 - what is refused
    error = refusal(build_governance_envelope, naive, **ROW)
    assert error.code == "BAD_INSTANT"
    assert key in str(error)
    for value in ("2026-03-01T12:00:00.000000Z", 1772366400, None):
        wrong = dataclasses.replace(ALLOWED, **{key: value})
        assert refusal(build_governance_envelope, wrong, **ROW).code == "BAD_INSTANT"
    local = getattr(ALLOWED, key).astimezone(timezone(timedelta(hours=5, minutes=45)))
    made = build_governance_envelope(dataclasses.replace(ALLOWED, **{key: local}), **ROW)
    assert made == build_governance_envelope(ALLOWED, **ROW)


def test_the_edges_of_the_calendar() -> None:
    last = datetime.max.replace(tzinfo=UTC)
    made = build_governance_envelope(dataclasses.replace(ALLOWED, expires_at=last), **ROW)
    assert made["expires_at"] == "9999-12-31T23:59:59.999999Z"
    beyond = datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))
    error = refusal(build_governance_envelope, dataclasses.replace(ALLOWED, expires_at=beyond), **ROW)
    assert error.code == "BAD_INSTANT"
    first = datetime.min.replace(tzinfo=UTC)
    early = build_governance_envelope(dataclasses.replace(ALLOWED, issued_at=first), **ROW)
    assert early["issued_at"] == "0001-01-01T00:00:00.000000Z"
    read = read_governance(Job(payload={"governance": early}))
    assert read is not None
    assert read.issued_at == first


@pytest.mark.parametrize("seconds", [0, -1])
def test_an_envelope_that_never_was_valid_is_not_made(seconds: int) -> None:
    wrong = dataclasses.replace(ALLOWED, expires_at=ALLOWED.issued_at + timedelta(seconds=seconds))
    assert refusal(build_governance_envelope, wrong, **ROW).code == "ENVELOPE_VALUE"
    right = dataclasses.replace(ALLOWED, expires_at=ALLOWED.issued_at + timedelta(microseconds=1))
    assert build_governance_envelope(right, **ROW)


def test_now_is_aware() -> None:
    for made in (job(WHO, ALLOWED), job(WHO)):
        assert refusal(reasons_against, made, NOW.replace(tzinfo=None)).code == "BAD_INSTANT"


def test_every_reason_of_governance_is_given() -> None:
    good = job(WHO, ALLOWED)
    envelope = {**good.payload["governance"], "tenant": "x", "policy": "other"}
    forged = dataclasses.replace(good, payload={**good.payload, "governance": envelope})
    assert reasons_against(forged, NOW + timedelta(days=1)) == [
        "governance.tenant is not the job's",
        "governance.digest is not the digest of the envelope",
        "governance.expires_at has passed",
    ]
