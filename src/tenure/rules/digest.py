"""
Canonical bytes of a JSON value, and the digests made of them.

Two values are the same when their canonical bytes are. The bytes are those of RFC 8785: members sorted by the UTF-16
code units of their names, no white space, the shortest text of every float, UTF-8, no Unicode normalisation. One thing
goes beyond it: an integer outside of +-(2^53 - 1), which RFC 8785 would round to a float, is written in full digits.
So 1 and 1.0 are one number, 9007199254740993 and 9007199254740992 are two, and a float is the decimal number that its
shortest text shows: 1e20 is the integer of 21 digits, while from 1e21 on, where that text has an exponent, a float is
another value than the integer written out.

Three ways lead to the same bytes, and the tests hold them together. The standard library's encoder takes what it writes
exactly as RFC 8785 does, which is nearly everything. The rfc8785 library takes the rest. Where such a value also has an
integer which that library refuses, the structure is written here and the library writes the floats.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from uuid import UUID

import rfc8785

from tenure.errors import Invalid
from tenure.rules.outcome import Json
from tenure.rules.payload import RESERVED_KEYS, write, writer
from tenure.rules.survey import (
    BIG_INTEGER,
    DEPTH_MAX,
    LONG_INTEGER,
    ODD_FLOAT,
    SPLIT_CHARACTER,
    WIDE_KEY,
    mended,
    survey,
)

VERSION = "v1:"
CANONICAL_BYTES_MAX = 16 << 20  # only against values that never end; what may be stored is decided elsewhere

_NOT_FOR_THE_FAST_WAY = ODD_FLOAT | WIDE_KEY | LONG_INTEGER
_write_sorted = writer(sort_keys=True)


def canonical(value: Json, *, root: str = "$", max_depth: int = DEPTH_MAX) -> bytes:
    """
    Write the canonical bytes of a value.

    Raises:
        Invalid: The value is not JSON; see `tenure.rules.payload.check_json`.
    """
    return _canonical(value, survey(value, root=root, max_depth=max_depth, max_bytes=CANONICAL_BYTES_MAX))


def _canonical(value: Json, traits: int) -> bytes:
    if traits & SPLIT_CHARACTER:
        value = mended(value)
    if not traits & _NOT_FOR_THE_FAST_WAY:
        return _write_sorted(value).encode()
    if not traits & BIG_INTEGER:
        return rfc8785.dumps(value)
    return write(value, members=_members, number=_number).encode()


def digest(value: Json) -> str:
    """Hash a value: `v1:` and SHA-256 in hexadecimal, over the canonical bytes."""
    return _hash(canonical(value))


def same(one: Json, other: Json) -> bool:
    """
    Say whether two values are the same JSON; Python's `==` does not know true from 1.

    Raises:
        Invalid: One of them is not JSON.
    """
    return one is other or canonical(one) == canonical(other)


def payload_digest(kind: str, payload: Mapping[str, Json]) -> str:
    """
    Hash what a job asks for; the same idempotency key with another of these is a Conflict.

    Binds: kind; payload without the reserved keys. Not tenant, job id, version, epoch, trace or any time: a repeated
    creation has another trace, and may come after a rotation.
    """
    if not RESERVED_KEYS.isdisjoint(payload):
        payload = {key: value for key, value in payload.items() if key not in RESERVED_KEYS}
    return payload_digest_of(kind, canonical(_plain(payload)))


def payload_digest_of(kind: str, payload: bytes) -> str:
    """See `payload_digest`; the payload in its canonical bytes, without the reserved keys."""
    return _hash(b'{"kind":%b,"payload":%b}' % (_kind(kind), payload))


def operation_digest(
    *, tenant: str, job_id: UUID, kind: str, kind_version: int, epoch: int, payload: Mapping[str, Json]
) -> str:
    """
    Hash one job's operation, once, at creation.

    Binds: tenant; job id; kind and its version; the epoch at creation; the payload as it is stored, with its
    envelopes. Not the ids and times of deliveries and attempts: it is the same for all of them.
    """
    if not isinstance(job_id, UUID):
        raise Invalid(f"the job id is a {type(job_id).__name__}; it must be a UUID", code="NOT_AN_ID")
    around = operation_around(tenant, kind, kind_version, epoch)
    # The payload is written apart for the sake of its paths and its depth.
    return operation_digest_of(around, str(job_id), canonical(_plain(payload)))


def operation_digest_of(around: tuple[bytes, bytes, bytes], job_id: str, payload: bytes) -> str:
    """
    See `operation_digest`; from parts that were written before.

    Args:
        around: From `operation_around`.
        payload: As it is stored, in its canonical bytes.
    """
    before, between, after = around
    return _hash(b"%b%b%b%b%b" % (before, job_id.encode(), between, payload, after))


@functools.lru_cache(maxsize=256, typed=True)
def operation_around(tenant: str, kind: str, kind_version: int, epoch: int) -> tuple[bytes, bytes, bytes]:
    """
    Write what stands around the job id and the payload of an operation; kept, because it is the same for many jobs.

    Together they are the bytes of one object with six members, in order.
    """
    before = canonical({"epoch": epoch, "job": ""}, root="operation")
    between = canonical({"kind": kind, "kind_version": kind_version}, root="operation")
    after = canonical({"tenant": tenant}, root="operation")
    return before[:-2], b'",%b,"payload":' % between[1:-1], b",%b" % after[1:]


@functools.lru_cache(maxsize=256, typed=True)
def _kind(kind: str) -> bytes:
    return canonical(kind, root="kind")


def canonical_with(
    payload: dict[str, Json], traits: int, envelopes: Sequence[tuple[str, bytes]]
) -> tuple[bytes, bytes]:
    """
    Write the canonical bytes of a surveyed payload, alone and with its envelopes, whose bytes are known already.

    Args:
        traits: What `survey` found in the payload.
        envelopes: Reserved keys, which the payload does not have, and their canonical bytes, sorted.
    """
    alone: list[bytes] = []
    whole: list[bytes] = []
    rest = payload
    for name, envelope in envelopes:
        # The names are ASCII: whether a key stands before one is the same by code points and by UTF-16 code units.
        if rest and min(rest) < name:
            before = rest if max(rest) < name else {key: value for key, value in rest.items() if key < name}
            rest = {} if before is rest else {key: value for key, value in rest.items() if key > name}
            members = _canonical(before, traits)[1:-1]
            alone.append(members)
            whole.append(members)
        whole.append(b'"%b":%b' % (name.encode(), envelope))
    if rest:
        members = _canonical(rest, traits)[1:-1]
        alone.append(members)
        whole.append(members)
    return b"{%b}" % b",".join(alone), b"{%b}" % b",".join(whole)


def request_digest(value: Json) -> str:
    """
    Hash an effect's request; the same name in the same job with another of these is a Conflict.

    Binds: the request, nothing else: tenant, job and name are the identity under which it is stored.
    """
    return digest(value)


def message_digest(*, operation: str, type: str, version: int, subject: str | None, data: Mapping[str, Json]) -> str:  # noqa: A002 - the field's name
    """
    Hash a message; the same operation with another of these is a Conflict, for its producer and for its consumer.

    Binds: operation; type and version; subject; data. Not tenant and destination, which are the identity's scope, nor
    message id, epoch, delivery ids and times: a replay, a redelivery and a second producer mean the same by the same.
    """
    document = {"operation": operation, "subject": subject, "type": type, "version": version}
    around = canonical(document, root="message")
    # The data is written apart for the sake of its paths and its depth; "data" sorts before every other name.
    return _hash(b'{"data":%b,%b' % (canonical(_plain(data)), around[1:]))


def _hash(data: bytes) -> str:
    return VERSION + hashlib.sha256(data).hexdigest()


def _plain(payload: Mapping[str, Json]) -> dict[str, Json]:
    return payload if type(payload) is dict else dict(payload)


def _members(node: dict[str, Json]) -> list[tuple[str, Json]]:
    return sorted(node.items(), key=lambda member: member[0].encode("utf-16-be"))


def _number(value: float) -> str:
    return rfc8785.dumps(value).decode()
