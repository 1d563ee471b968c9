"""The execution envelope: who a job belongs to and who acts."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, fields, replace
from typing import TypeAlias
from uuid import UUID

from tenure.errors import Invalid, echo
from tenure.rules.digest import canonical
from tenure.rules.envelope.shape import (
    ROW_SHAPE,
    Row,
    Shape,
    differences,
    malformed,
    read_envelope,
    read_text,
    require_text,
    text_problem,
    write_row,
)
from tenure.rules.outcome import Json
from tenure.rules.payload import encode, quoted

EXECUTION_KEY = "execution"

_LINK_KEYS = ("task", "run", "attempt", "action_intent", "admission_decision", "approval")
_links = operator.attrgetter(*_LINK_KEYS)
_NO_JOB = UUID(int=0)


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


# --- creation ---------------------------------------------------------------------------------------------------------


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
    named = {who: require_text(tenant, f"tenant of {who}") for who, tenant in given.items() if tenant is not None}
    if len(set(named.values())) > 1:
        said = ", ".join(f"{who} says {echo(tenant)}" for who, tenant in named.items())
        raise Invalid(f"the tenants differ: {said}", code="TENANT_MISMATCH")
    return next(iter(named.values()), None) or require_text(organization, "organization")


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
    envelope = write_row(EXECUTION_KEY, given.tenant, tenant, organization, project, job_id)
    for key in ("actor", "trace"):
        value = getattr(given, key)
        envelope[key] = None if value is None else require_text(value, f"{EXECUTION_KEY}.{key}")
    for key in _LINK_KEYS:
        value = getattr(given, key)
        if value is not None:
            envelope[key] = require_text(value, f"{EXECUTION_KEY}.{key}")
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
    if pieces is None or not isinstance(job_id, UUID) or not (trace is None or text_problem(trace) is None):
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


# --- reading ----------------------------------------------------------------------------------------------------------


def read_execution_identity(job: Row) -> ExecutionIdentity | None:
    """
    Read a job's execution envelope; None if it has none.

    It is not compared with the row here: `validate_execution_identity_for_dispatch` does that.

    Raises:
        Invalid: ENVELOPE_MALFORMED, with everything that is wrong with it.
    """
    values, problems = read_envelope(job.payload, EXECUTION_KEY, _EXECUTION_SHAPE, nullable=("actor", "trace"))
    if problems:
        raise malformed(job, problems)
    return None if values is None else ExecutionIdentity(**values)


def validate_execution_identity_for_dispatch(job: Row) -> list[str]:
    """
    Give every reason, in order, why this job may not dispatch an effect; an empty list allows it.

    Envelope missing; malformed; tenant, actor or trace missing; tenant, organization, project or job not the row's.
    """
    values, problems = read_envelope(job.payload, EXECUTION_KEY, _EXECUTION_SHAPE, nullable=())
    if values is None:
        return problems or ["there is no execution envelope"]
    return problems + differences(values, EXECUTION_KEY, job)


_EXECUTION_SHAPE: Shape = {
    **ROW_SHAPE,
    "actor": (True, read_text),
    "trace": (True, read_text),
    **dict.fromkeys(_LINK_KEYS, (False, read_text)),
}
# A key that is written and not read, or read into nothing, would be half an identity.
assert {field.name for field in fields(ExecutionIdentity)} == _EXECUTION_SHAPE.keys()
