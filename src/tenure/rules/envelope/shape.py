"""What both envelopes have in common: the keys of the row, what values may be, and how one is read by its shape."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from tenure.errors import Invalid
from tenure.rules.outcome import Json
from tenure.rules.payload import RESERVED_KEYS

TEXT_CHARACTERS_MAX = 1000

_ROW_KEYS = ("tenant", "organization", "project")
_INSTANT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")


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


# --- writing ----------------------------------------------------------------------------------------------------------


def write_row(
    name: str, said: str | None, tenant: str, organization: str, project: str, job_id: UUID
) -> dict[str, Json]:
    """
    Begin an envelope: with what it belongs to, from the row.

    Args:
        said: The input's tenant, which must be the row's where it is given.
    """
    if said is not None and said != tenant:
        raise Invalid(f"{name}: the input's tenant is not the job's", code="TENANT_MISMATCH")
    if not isinstance(job_id, UUID):
        raise Invalid(f"the job id is of type {type(job_id).__name__}; it must be a UUID", code="NOT_AN_ID")
    row = {"tenant": tenant, "organization": organization, "project": project}
    return {**{key: require_text(value, f"{name}.{key}") for key, value in row.items()}, "job": str(job_id)}


def require_text(value: str, where: str) -> str:
    """Give a text that an envelope may hold. Raises Invalid: ENVELOPE_VALUE."""
    problem = text_problem(value)
    if problem is not None:
        raise Invalid(f"{where} {problem}", code="ENVELOPE_VALUE")
    return value


# --- reading ----------------------------------------------------------------------------------------------------------


def read_envelope(
    payload: object, name: str, shape: Shape, *, nullable: tuple[str, ...]
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
        value: object = Problem("is missing")
        if given is not None:
            value = read(given)
        elif key in envelope and key in nullable:
            value = None
        if isinstance(value, Problem):
            problems.append(f"{name}.{key} {value.text}")
        else:
            values[key] = value
    if not envelope.keys() <= shape.keys():
        # Not by name: a key of another hand is data.
        problems.append(f"{name} has a key that no such envelope has")
    return values, problems


def differences(values: dict[str, Any], name: str, job: Row) -> list[str]:
    """Say which values of an envelope are not those of its row."""
    row = {**{key: getattr(job, key) for key in _ROW_KEYS}, "job": job.id}
    return [f"{name}.{key} is not the job's" for key in row if key in values and values[key] != row[key]]


def malformed(job: Row, problems: list[str]) -> Invalid:
    """Make the error for an envelope that cannot be read."""
    return Invalid(f"job {job.id} has a malformed envelope: {'; '.join(problems)}", code="ENVELOPE_MALFORMED")


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a value, in place of the value."""

    text: str


def text_problem(value: object) -> str | None:
    """Say what keeps a value from being a text of an envelope; None where nothing does."""
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


def read_text(value: object) -> object:
    """Read a text, or the Problem with it; so do all functions of a shape."""
    problem = text_problem(value)
    return value if problem is None else Problem(problem)


def read_id(value: object) -> object:
    """Read an id."""
    try:
        found = UUID(value) if type(value) is str else None
    except ValueError:
        found = None
    # One id has one spelling: capitals, braces and other forms that UUID() takes are not ours.
    return found if found is not None and str(found) == value else Problem("is not an id")


def read_instant(value: object) -> object:
    """Read an instant."""
    wrong = Problem("is not an instant in UTC")
    if type(value) is not str or not _INSTANT.fullmatch(value):
        return wrong
    try:
        return datetime.fromisoformat(value)
    except ValueError:  # a thirteenth month
        return wrong


Shape: TypeAlias = dict[str, tuple[bool, Callable[[object], object]]]

ROW_SHAPE: Shape = {**dict.fromkeys(_ROW_KEYS, (True, read_text)), "job": (True, read_id)}
