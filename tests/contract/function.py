"""A service whose creations go through the SQL function, as a producer in another language would make them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg

from tenure.errors import Conflict, Invalid, Refused, TenureError, Unavailable
from tenure.procedures.enqueue import Created
from tenure.rules.envelope import ExecutionInput, agree_tenant
from tenure.rules.payload import encode
from tenure.service import DurableJobService

CLASSES: dict[str | None, type[TenureError]] = {
    "TNINV": Invalid,
    "TNCON": Conflict,
    "TNREF": Refused,
    "TNUNA": Unavailable,
}
# What PostgreSQL refuses by itself, before the call: an argument of another type; a text that is not JSON, or nested
# beyond its stack.
BEFORE: dict[str | None, str] = {"42883": "BAD_ARGUMENT", "22P02": "NOT_JSON", "54001": "TOO_DEEP"}

# What no JSON text can say, so it does not leave the producer's program.
UNSAID = {"CYCLE", "NON_FINITE_NUMBER", "NON_STRING_KEY", "UNSUPPORTED_TYPE"}


def typed(error: psycopg.Error) -> TenureError:
    """Turn what the database answered into the error that the library raises."""
    kind = CLASSES.get(error.sqlstate)
    if kind is not None:
        assert error.diag.message_hint
        return kind(error.diag.message_primary or "", code=error.diag.message_detail)
    if error.sqlstate in BEFORE and "PL/pgSQL" not in (error.diag.context or ""):
        return Invalid(str(error), code=BEFORE[error.sqlstate])
    raise error


def ask(connection: psycopg.Connection[Any], given: Mapping[str, Any]) -> tuple[UUID, bool]:
    """Call the function once, each value with the type it has."""
    parts, values = [], []
    for name, value in given.items():
        if isinstance(value, str):
            if "\0" in value or not _sendable(value):
                raise Invalid(f"{name}: no driver sends this text", code="BAD_ARGUMENT")
            parts.append(f"{name} => %s::{'json' if name == 'payload' else 'text'}")
        elif isinstance(value, list):
            parts.append(f"{name} => %s::text[]")
        elif isinstance(value, datetime) and value.utcoffset() is None:
            raise Invalid(f"{name}: the server would read it in the session's time zone", code="BAD_INSTANT")
        else:
            parts.append(f"{name} => %s")
        values.append(value)
    text = f"SELECT job_id, created FROM tenure.enqueue({', '.join(parts)})"
    try:
        row = connection.execute(text.encode(), values).fetchone()
    except psycopg.Error as error:
        raise typed(error) from error
    assert row is not None
    return row[0], row[1]


def _sendable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_text(payload: Any) -> Any:
    """Write a payload as a producer would that has no checks of ours; what JSON cannot say stays with its writer."""
    try:
        return encode(payload)
    except Invalid as problem:
        text = None if problem.code in UNSAID else said(payload)
        if text is None:
            raise
        return text


def said(value: Any) -> str | None:
    """Write any value that has a JSON text, without recursion and without limits; None for all others."""
    pieces: list[str] = []
    rest: list[Any] = [(value,)]  # texts, and values that are still to be written, the next one last
    size = 0
    while rest:
        top = rest.pop()
        if type(top) is str:
            pieces.append(top)
            size += len(top)
            if size > 4_000_000:  # it never ends
                return None
        elif (parts := _parts(top[0])) is None:
            return None
        else:
            rest += reversed(parts)
    return "".join(pieces)


def _parts(node: Any) -> list[Any] | None:
    kind = type(node)
    if kind is dict:
        if any(type(key) is not str for key in node):
            return None
        inner = [one for key, child in node.items() for one in (",", json.dumps(key) + ":", (child,))]
        return ["{", *inner[1:], "}"]
    if kind is list and set(map(type, node)) == {int} and max(node) < 2**63:
        return [json.dumps(node)]
    if kind is list or kind is tuple:
        return ["[", *[one for child in node for one in (",", (child,))][1:], "]"]
    if kind is int:
        # Of a very long one only the length counts, and writing its own digits takes a minute.
        bits = node.bit_length()
        return ["9" * int(bits * 0.30103) if bits > 100_000 else f"{Decimal(node):f}"]
    if node is None or kind in {str, bool} or (kind is float and math.isfinite(node)):
        return [json.dumps(node)]
    return None


class ThroughTheFunction:
    """
    Every verb of a service, but jobs are created by the SQL function.

    The function knows no binding and no typed input: what they say is put into its arguments. Lineage and links of an
    execution input have no arguments and are left out.
    """

    def __init__(
        self,
        service: DurableJobService,
        connection: Callable[[], psycopg.Connection[Any]],
        clock: Callable[[], int],
        tenant: str | None,
    ) -> None:
        self._service = service
        self._connection = connection
        self._clock = clock
        self._tenant = tenant

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    def create_job(self, **fields: Any) -> Created:
        ((job_id, created),) = self._made([self._arguments(fields)])
        return Created(self._service.get_job(job_id), created)

    def create_jobs(self, jobs: Iterable[Mapping[str, Any]]) -> list[Created]:
        asked = []
        for nth, fields in enumerate(jobs):
            try:
                asked.append(self._arguments(fields))
            except Invalid as problem:
                raise Invalid(f"job number {nth}: {problem}", code=problem.code) from problem
        return [Created(self._service.get_job(job_id), created) for job_id, created in self._made(asked)]

    def _made(self, asked: list[dict[str, Any]]) -> list[tuple[UUID, bool]]:
        connection = self._connection()
        with connection.transaction():
            connection.execute("SELECT set_config('tenure.now_us', %s, true)", [str(self._clock())])
            return [ask(connection, given) for given in asked]

    def _arguments(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        given = dict(fields)
        execution = given.pop("execution", None)
        assert given.pop("governance", None) is None
        named = given.get("tenant")
        if isinstance(execution, ExecutionInput):
            named = agree_tenant(self._tenant, named, execution.tenant, given["organization"])
            given |= {"actor": execution.actor, "trace": execution.trace}
        elif self._tenant is not None:
            named = agree_tenant(self._tenant, named, None, given["organization"])
        if named is not None:
            given["tenant"] = named
        if given.get("payload") is not None:
            given["payload"] = as_text(given["payload"])
        return given
