"""
What goes over the wire and what comes back: requests as JSON, answers as bounded JSON.

The same request gives the same bytes in every process, because a provider that binds a key to its payload compares
them. They are the canonical bytes, so what is sent is what the effect's digest was made of.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from tenure.errors import Invalid
from tenure.rules.digest import CANONICAL_BYTES_MAX, canonical
from tenure.rules.outcome import Json
from tenure.rules.payload import check_json, parse
from tenure.rules.survey import DEPTH_MAX

# Largest answer that is kept as a receipt or read as evidence. A receipt is proof, not data: an id, a state, a few
# amounts. A longer answer is not read to its end.
ANSWER_BYTES_MAX = 64 << 10

_SCALARS = (str, int, float, bool, type(None))


def json_value(value: object, *, max_bytes: int = CANONICAL_BYTES_MAX) -> Json:
    """
    Turn a pydantic model, a dataclass, a dict or whatever pydantic writes as JSON into plain JSON values.

    Raises:
        Invalid: A set, whose order changes between processes; a type without a JSON form; or what
            `tenure.rules.payload.check_json` refuses. The text holds a path and a type, never a value.
    """
    plain = _plain(value, "$", 0)
    check_json(plain, max_bytes=max_bytes)
    return plain


def json_bytes(value: object) -> bytes:
    """Write a request in its canonical bytes; raises like `json_value`."""
    return canonical(_plain(value, "$", 0))


def json_answer(body: bytes) -> Json:
    """
    Read an answer's JSON.

    Raises:
        ValueError: Not JSON, or JSON that no store keeps; the text names which, nothing of the answer.
    """
    try:
        return parse(body, max_bytes=ANSWER_BYTES_MAX)
    except Invalid as refusal:
        raise ValueError("not JSON" if refusal.code in {"NOT_JSON", "INVALID_UNICODE"} else refusal.code) from None


def _plain(value: Any, path: str, depth: int) -> Json:
    if depth > DEPTH_MAX:
        raise Invalid(f"{path[:160]} is nested more than {DEPTH_MAX} levels deep", code="TOO_DEEP")
    if type(value) in _SCALARS:
        return value
    if type(value) is dict:
        # Keys are left as they are: one that is not a text is refused later, not turned into one.
        return {key: _plain(child, _step(path, key), depth + 1) for key, child in value.items()}
    if type(value) in {list, tuple}:
        return [_plain(child, _step(path, index), depth + 1) for index, child in enumerate(value)]
    _refuse_sets(value, path, depth)
    try:
        return to_jsonable_python(value, by_alias=True, inf_nan_mode="constants")
    except Exception as error:  # noqa: BLE001 - a serializer of the user's may raise anything
        # Neither the error's text nor its chain: both show the value.
        problem = type(error).__name__
    raise Invalid(f"{path} is a {type(value).__name__}, which has no JSON form ({problem})", code="UNSUPPORTED_TYPE")


def _refuse_sets(value: object, path: str, depth: int) -> None:
    """Walk what was handed in and not its JSON form: there a set already looks like a list."""
    if depth > DEPTH_MAX:
        raise Invalid(f"{path[:160]} is nested more than {DEPTH_MAX} levels deep", code="TOO_DEEP")
    if isinstance(value, Iterator | AsyncIterator):
        raise Invalid(f"{path} is an iterator, which can be read once only; give a list", code="UNSUPPORTED_TYPE")
    if isinstance(value, set | frozenset):
        raise Invalid(f"{path} is a set, which has no stable order; give a sorted list", code="UNSUPPORTED_TYPE")
    for name, child in _children(value):
        _refuse_sets(child, _step(path, name), depth + 1)


def holds_iterator(value: object, depth: int = 0) -> bool:
    """Say whether there is an iterator in a value: reading it may never end, and runs somebody's code."""
    if isinstance(value, Iterator | AsyncIterator):
        return True
    return depth < DEPTH_MAX and any(holds_iterator(child, depth + 1) for _, child in _children(value))


def _children(value: object) -> Iterable[tuple[object, object]]:
    if isinstance(value, BaseModel):
        return {**vars(value), **(value.model_extra or {})}.items()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()


def _step(path: str, name: object) -> str:
    # Names of fields and numbers of items; anything else could be data.
    return f"{path}.{name}" if isinstance(name, str) and name.isidentifier() else f"{path}[{type(name).__name__}]"
