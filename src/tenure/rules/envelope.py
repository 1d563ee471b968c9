"""
Execution and governance envelopes: who a job belongs to, and what its dispatch was allowed to do.

Identity is not gathered from scattered fields. It stands under two reserved keys of the payload, which only the typed
inputs of this file write: a raw payload that has one of them is refused, so that nobody can pass an identity as data.

    typed input: tenant, actor, trace, lineage, links  -.
                                                         >-  payload["execution"], payload["governance"]
    row: organization, project, job id, agreed tenant  -'

    begin_effect: present? well formed? complete? equal to the row?  any reason stops the dispatch

Writing is possible without actor and trace, because a job that touches nothing outside may not have them; they are
then stored as null and a dispatch is refused. Reading gives everything or raises: a missing key, an unknown key or a
value of the wrong kind is a sign of another hand, and half an identity is worse than none.

The governance envelope carries a digest over all else in it. That shows that it was changed by accident or in part.
It does not stop somebody who can write to the database and computes a new digest: for that the approval is asked for
again, live, when an effect begins.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from tenure.errors import Invalid, echo
from tenure.rules.digest import canonical, digest
from tenure.rules.outcome import Json
from tenure.rules.payload import RESERVED_KEYS, check_json, decode, encode, quoted

EXECUTION_KEY = "execution"
GOVERNANCE_KEY = "governance"

TEXT_CHARACTERS_MAX = 1000
FACT_DEPTH_MAX = 20
CLOCK_SKEW = timedelta(minutes=5)  # a producer's clock may run ahead of the store's by so much

_ROW_KEYS = ("tenant", "organization", "project")
_LINK_KEYS = ("task", "run", "attempt", "action_intent", "admission_decision", "approval")
_links = operator.attrgetter(*_LINK_KEYS)
_NO_JOB = UUID(int=0)
FACT_KEYS = ("action_intent", "capability", "policy", "budget")
_INSTANT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")

Fact: TypeAlias = "str | dict[str, Json]"


class Row(Protocol):
    """The part of a job that envelopes are compared with."""

    @property
    def id(self) -> UUID:
        """The job's id."""

    @property
    def tenant(self) -> str:
        """Its isolation unit."""

    @property
    def organization(self) -> str:
        """Its owner."""

    @property
    def project(self) -> str:
        """The scope of its idempotency key."""

    @property
    def payload(self) -> Mapping[str, Any]:
        """Its payload as stored, envelopes included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionInput:
    """
    What a producer says about who acts; the only way to write an execution envelope.

    Attributes:
        tenant: Must agree with the service's and the argument's, where those are given.
        actor: The person or program on whose behalf the job acts. Without it no effect is dispatched.
        trace: What ties the job to the request that caused it. Without it no effect is dispatched.
        task: Lineage: the task this job belongs to.
        run: Lineage: the run of that task.
        attempt: Lineage: the attempt of that run. Not the attempt of the job.
        action_intent: Link to the intended action.
        admission_decision: Link to the decision that admitted it.
        approval: Link to the approval.
    """

    tenant: str | None = None
    actor: str | None = None
    trace: str | None = None
    task: str | None = None
    run: str | None = None
    attempt: str | None = None
    action_intent: str | None = None
    admission_decision: str | None = None
    approval: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernanceInput:
    """
    What an authority decided before the job was queued; the only way to write a governance envelope.

    Attributes:
        action_intent: What is to be done: text or a JSON object, like the three below; never empty.
        capability: By what permission.
        policy: Under which policy.
        budget: Within which budget.
        approval_reference: The approval to ask for when an effect begins.
        issued_at: When this was decided.
        expires_at: From when on it no longer allows a dispatch.
    """

    action_intent: Fact
    capability: Fact
    policy: Fact
    budget: Fact
    issued_at: datetime
    expires_at: datetime
    approval_reference: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionIdentity:
    """An execution envelope as it was read: complete and well formed, not yet compared with the row."""

    tenant: str
    organization: str
    project: str
    job: UUID
    actor: str | None
    trace: str | None
    task: str | None = None
    run: str | None = None
    attempt: str | None = None
    action_intent: str | None = None
    admission_decision: str | None = None
    approval: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Governance:
    """A governance envelope as it was read: complete and well formed, its digest not yet recomputed."""

    tenant: str
    organization: str
    project: str
    job: UUID
    action_intent: Fact
    capability: Fact
    policy: Fact
    budget: Fact
    issued_at: datetime
    expires_at: datetime
    digest: str
    approval_reference: str | None = None


# --- creation ---------------------------------------------------------------------------------------------------------


def refuse_reserved(payload: Mapping[str, Json]) -> None:
    """
    Refuse a raw payload that has a reserved key.

    Raises:
        Invalid: RESERVED_KEY.
    """
    for key in sorted(RESERVED_KEYS):
        if key in payload:
            raise Invalid(
                f"the payload has the reserved key '{key}'; pass the typed input {key}= instead", code="RESERVED_KEY"
            )


def agree_tenant(bound: str | None, argument: str | None, execution_input_tenant: str | None, organization: str) -> str:
    """
    Give the tenant of a job to be created: all that name one must name the same; where none does, the organization.

    Args:
        bound: What the service is bound to.
        argument: What the call says.
        execution_input_tenant: What the execution input says.
    Raises:
        Invalid: TENANT_MISMATCH, or ENVELOPE_VALUE for a tenant that is given and empty.
    """
    given = {
        "the service's binding": bound,
        "the argument": argument,
        "the execution input": execution_input_tenant,
    }
    named = {who: _text(tenant, f"tenant of {who}") for who, tenant in given.items() if tenant is not None}
    if len(set(named.values())) > 1:
        said = ", ".join(f"{who} says {echo(tenant)}" for who, tenant in named.items())
        raise Invalid(f"the tenants differ: {said}", code="TENANT_MISMATCH")
    return next(iter(named.values()), None) or _text(organization, "organization")


def build_execution_envelope(
    given: ExecutionInput, /, *, organization: str, project: str, job_id: UUID, tenant: str
) -> dict[str, Json]:
    """
    Write an execution envelope: who acts from the typed input, what it belongs to from the row.

    Args:
        tenant: The agreed tenant, from `agree_tenant`.
    Raises:
        Invalid: TENANT_MISMATCH, or ENVELOPE_VALUE naming what is not non-empty text.
    """
    envelope = _row(EXECUTION_KEY, given.tenant, tenant, organization, project, job_id)
    for key in ("actor", "trace"):
        value = getattr(given, key)
        envelope[key] = None if value is None else _text(value, f"{EXECUTION_KEY}.{key}")
    for key in _LINK_KEYS:
        value = getattr(given, key)
        if value is not None:
            envelope[key] = _text(value, f"{EXECUTION_KEY}.{key}")
    return envelope


def write_execution_envelope(
    given: ExecutionInput,
    /,
    *,
    organization: str,
    project: str,
    job_id: UUID,
    id_text: str,
    tenant: str,
    trace: str | None = None,
) -> tuple[str, bytes]:
    """
    Write an execution envelope as text, as `build_execution_envelope` and `encode` do, and in its canonical bytes.

    All of it but the job and the trace is mostly the same from job to job, and is written once.

    Args:
        id_text: The text of `job_id`.
        trace: Where the input has none.
    """
    if given.trace is not None:
        trace = given.trace
    links = _links(given)
    try:
        pieces = _execution_pieces(tenant, organization, project, given.tenant, given.actor, *links)
    except (Invalid, TypeError):  # of a type that is no text and has no hash
        pieces = None
    if pieces is None or not isinstance(job_id, UUID) or not (trace is None or _text_problem(trace) is None):
        # The first thing that is wrong, in order.
        build_execution_envelope(
            replace(given, trace=trace), organization=organization, project=project, job_id=job_id, tenant=tenant
        )
        raise AssertionError("an envelope is written in one way and not in the other")
    said = "null" if trace is None else quoted(trace)
    (head, middle, tail), (first, second, third) = pieces
    return f"{head}{id_text}{middle}{said}{tail}", f"{first}{id_text}{second}{said}{third}".encode()


_Pieces: TypeAlias = tuple[tuple[str, str, str], tuple[str, str, str]]


@functools.lru_cache(maxsize=1024, typed=True)
def _execution_pieces(
    tenant: str, organization: str, project: str, said: str | None, actor: str | None, *links: str | None
) -> _Pieces:
    """Give what stands around the job and the trace of an execution envelope, as text and in canonical form."""
    given = ExecutionInput(tenant=said, actor=actor, **dict(zip(_LINK_KEYS, links, strict=True)))
    envelope = build_execution_envelope(
        given, organization=organization, project=project, job_id=_NO_JOB, tenant=tenant
    )
    return _cut(encode(envelope)), _cut(canonical(envelope).decode())


def _cut(text: str) -> tuple[str, str, str]:
    # A quote inside of a string is escaped, so these stand only where the keys are.
    head, key, rest = text.partition('"job":"')
    middle, name, tail = rest.removeprefix(str(_NO_JOB)).partition('"trace":null')
    return head + key, middle + name.removesuffix("null"), tail


def build_governance_envelope(
    given: GovernanceInput, /, *, organization: str, project: str, job_id: UUID, tenant: str
) -> dict[str, Json]:
    """
    Write a governance envelope, bound to its job, with a digest over all else in it.

    Raises:
        Invalid: ENVELOPE_VALUE or BAD_INSTANT, naming the field; or a code of `check_json` for a fact.
    """
    envelope = _row(GOVERNANCE_KEY, None, tenant, organization, project, job_id)
    for key in FACT_KEYS:
        envelope[key] = check_fact(getattr(given, key), f"{GOVERNANCE_KEY}.{key}")
    if given.approval_reference is not None:
        envelope["approval_reference"] = _text(given.approval_reference, f"{GOVERNANCE_KEY}.approval_reference")
    issued_at = _utc(given.issued_at, f"{GOVERNANCE_KEY}.issued_at")
    expires_at = _utc(given.expires_at, f"{GOVERNANCE_KEY}.expires_at")
    if expires_at <= issued_at:
        raise Invalid(f"{GOVERNANCE_KEY}.expires_at is not after issued_at", code="ENVELOPE_VALUE")
    envelope["issued_at"] = _instant(issued_at)
    envelope["expires_at"] = _instant(expires_at)
    envelope["digest"] = governance_digest(envelope)
    return envelope


def governance_digest(envelope: Mapping[str, Json]) -> str:
    """
    Hash a governance envelope.

    Binds: every key of it but `digest`: job, tenant, organization, project, the facts, the approval's reference, both
    instants.
    """
    return digest({key: value for key, value in envelope.items() if key != "digest"})


def _row(name: str, said: str | None, tenant: str, organization: str, project: str, job_id: UUID) -> dict[str, Json]:
    if said is not None and said != tenant:
        raise Invalid(f"{name}: the input's tenant is not the job's", code="TENANT_MISMATCH")
    if not isinstance(job_id, UUID):
        raise Invalid(f"the job id is of type {type(job_id).__name__}; it must be a UUID", code="NOT_AN_ID")
    row = {"tenant": tenant, "organization": organization, "project": project}
    return {**{key: _text(value, f"{name}.{key}") for key, value in row.items()}, "job": str(job_id)}


def _text(value: str, where: str) -> str:
    problem = _text_problem(value)
    if problem is not None:
        raise Invalid(f"{where} {problem}", code="ENVELOPE_VALUE")
    return value


def check_fact(value: Fact, where: str) -> Fact:
    """
    Check a fact and give a copy of it.

    Raises:
        Invalid: ENVELOPE_VALUE, or a code of `check_json`.
    """
    problem = _fact_problem(value)
    if problem is not None:
        raise Invalid(f"{where} {problem}", code="ENVELOPE_VALUE")
    check_json(value, root=where, max_depth=FACT_DEPTH_MAX)
    # A copy as it will be read back: what the caller does to the original later does not reach the envelope.
    copy: Fact = decode(encode(value))
    return copy


def _utc(at: datetime, where: str) -> datetime:
    if not isinstance(at, datetime):
        raise Invalid(f"{where} is of type {type(at).__name__}; it must be an aware datetime", code="BAD_INSTANT")
    if at.utcoffset() is None:
        raise Invalid(f"{where} has no time zone; use datetime.now(UTC)", code="BAD_INSTANT")
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise Invalid(f"{where} is outside of the years 1 to 9999", code="BAD_INSTANT") from None


def _instant(at: datetime) -> str:
    return at.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


# --- reading ----------------------------------------------------------------------------------------------------------


def read_execution_identity(job: Row) -> ExecutionIdentity | None:
    """
    Read a job's execution envelope; None if it has none.

    It is not compared with the row here: `validate_execution_identity_for_dispatch` does that.

    Raises:
        Invalid: ENVELOPE_MALFORMED, with everything that is wrong with it.
    """
    values, problems = _read(job.payload, EXECUTION_KEY, _EXECUTION_SHAPE, nullable=("actor", "trace"))
    if problems:
        raise _malformed(job, problems)
    return None if values is None else ExecutionIdentity(**values)


def validate_execution_identity_for_dispatch(job: Row) -> list[str]:
    """
    Give every reason, in order, why this job may not dispatch an effect; an empty list allows it.

    Envelope missing; malformed; tenant, actor or trace missing; tenant, organization, project or job not the row's.
    """
    values, problems = _read(job.payload, EXECUTION_KEY, _EXECUTION_SHAPE, nullable=())
    if values is None:
        return problems or ["there is no execution envelope"]
    return problems + _differences(values, EXECUTION_KEY, job)


def read_governance(job: Row) -> Governance | None:
    """
    Read a job's governance envelope; None if it has none.

    Raises:
        Invalid: ENVELOPE_MALFORMED, with everything that is wrong with it.
    """
    values, problems = _read(job.payload, GOVERNANCE_KEY, _GOVERNANCE_SHAPE, nullable=())
    if problems:
        raise _malformed(job, problems)
    return None if values is None else Governance(**values)


def reference_in(job: Row) -> str | None:
    """Give the approval that a job's governance envelope names; None where it names none, or in no readable way."""
    envelope = job.payload.get(GOVERNANCE_KEY)
    reference = envelope.get("approval_reference") if isinstance(envelope, dict) else None
    return reference if _text_problem(reference) is None else None


def judge_governance(job: Row, now: datetime) -> list[tuple[str, str]]:
    """
    Give every reason, in order, why this job's governance envelope does not allow a dispatch now; with its code first.

    Without an envelope there is none. What stands in the envelope is not enough: whether the approval still stands only
    its store can say; see `tenure.rules.approval`.

    Args:
        now: The store's time. The envelope has expired at its very expiry.
    """
    now = _utc(now, "now")
    values, problems = _read(job.payload, GOVERNANCE_KEY, _GOVERNANCE_SHAPE, nullable=())
    reasons = [("MALFORMED", problem) for problem in problems]
    if values is None:
        return reasons
    reasons += [
        ("FOREIGN_TENANT" if text == _FOREIGN else "OTHER_JOB", text)
        for text in _differences(values, GOVERNANCE_KEY, job)
    ]
    if problems:
        return reasons
    if governance_digest(job.payload[GOVERNANCE_KEY]) != values["digest"]:
        reasons.append(("ALTERED", "governance.digest is not the digest of the envelope"))
    if values["issued_at"] - now > CLOCK_SKEW:
        reasons.append(("NOT_YET_VALID", "governance.issued_at lies in the future"))
    if now >= values["expires_at"]:
        reasons.append(("ENVELOPE_EXPIRED", "governance.expires_at has passed"))
    return reasons


_FOREIGN = f"{GOVERNANCE_KEY}.tenant is not the job's"


def _read(
    payload: object, name: str, shape: _Shape, *, nullable: tuple[str, ...]
) -> tuple[dict[str, Any] | None, list[str]]:
    """
    Read one envelope by its shape.

    Returns:
        The values that are as they should be, None without an envelope; and what is wrong, in the order of the shape.
    """
    if not isinstance(payload, Mapping):
        return None, ["the payload is not a JSON object"]
    if name not in payload:
        return None, []
    envelope = payload[name]
    if type(envelope) is not dict:
        return {}, [f"{name} is not a JSON object"]
    values: dict[str, Any] = {}
    problems: list[str] = []
    for key, (required, read) in shape.items():
        if key not in envelope and not required:
            continue
        given = envelope.get(key)
        value: object = _Problem("is missing")
        if given is not None:
            value = read(given)
        elif key in envelope and key in nullable:
            value = None
        if isinstance(value, _Problem):
            problems.append(f"{name}.{key} {value.text}")
        else:
            values[key] = value
    if not envelope.keys() <= shape.keys():
        # Not by name: a key of another hand is data.
        problems.append(f"{name} has a key that no such envelope has")
    return values, problems


def _differences(values: dict[str, Any], name: str, job: Row) -> list[str]:
    row = {**{key: getattr(job, key) for key in _ROW_KEYS}, "job": job.id}
    return [f"{name}.{key} is not the job's" for key in row if key in values and values[key] != row[key]]


def _malformed(job: Row, problems: list[str]) -> Invalid:
    return Invalid(f"job {job.id} has a malformed envelope: {'; '.join(problems)}", code="ENVELOPE_MALFORMED")


@dataclass(frozen=True, slots=True)
class _Problem:
    text: str


def _text_problem(value: object) -> str | None:
    if type(value) is not str:
        return f"is of type {type(value).__name__}; it must be text"
    if not value.strip():
        return "is empty; give it text or leave it out"
    if "\0" in value:
        return "holds a NUL character"
    if len(value) > TEXT_CHARACTERS_MAX:
        return f"is longer than {TEXT_CHARACTERS_MAX} characters"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "holds half of a character (a lone surrogate)"
    return None


def _fact_problem(value: object) -> str | None:
    if type(value) is dict:
        return None if value else "is empty"
    return _text_problem(value)


def _read_text(value: object) -> object:
    problem = _text_problem(value)
    return value if problem is None else _Problem(problem)


def _read_fact(value: object) -> object:
    problem = _fact_problem(value)
    if problem is not None:
        return _Problem(problem)
    try:
        check_json(value, max_depth=FACT_DEPTH_MAX)
    except Invalid as error:
        return _Problem(f"is not storable: {error.code}")
    return value


def _read_id(value: object) -> object:
    try:
        found = UUID(value) if type(value) is str else None
    except ValueError:
        found = None
    # One id has one spelling: capitals, braces and other forms that UUID() takes are not ours.
    return found if found is not None and str(found) == value else _Problem("is not an id")


def _read_instant(value: object) -> object:
    wrong = _Problem("is not an instant in UTC")
    if type(value) is not str or not _INSTANT.fullmatch(value):
        return wrong
    try:
        return datetime.fromisoformat(value)
    except ValueError:  # a thirteenth month
        return wrong


_Shape: TypeAlias = dict[str, tuple[bool, Callable[[object], object]]]

_ROW_SHAPE: _Shape = {**dict.fromkeys(_ROW_KEYS, (True, _read_text)), "job": (True, _read_id)}
_EXECUTION_SHAPE: _Shape = {
    **_ROW_SHAPE,
    "actor": (True, _read_text),
    "trace": (True, _read_text),
    **dict.fromkeys(_LINK_KEYS, (False, _read_text)),
}
_GOVERNANCE_SHAPE: _Shape = {
    **_ROW_SHAPE,
    **dict.fromkeys(FACT_KEYS, (True, _read_fact)),
    "approval_reference": (False, _read_text),
    "issued_at": (True, _read_instant),
    "expires_at": (True, _read_instant),
    "digest": (True, _read_text),
}
# A key that is written and not read, or read into nothing, would be half an identity.
assert {field.name for field in fields(ExecutionIdentity)} == _EXECUTION_SHAPE.keys()
assert {field.name for field in fields(Governance)} == _GOVERNANCE_SHAPE.keys()
