"""
A message on the wire: one CloudEvents 1.0 document in JSON, the same bytes at every destination.

    id, type, subject, time      the message's id, type, subject and creation
    source                       the program that says so, chosen where the destination is made
    tenant, operation, version,  extension attributes: what a consumer needs to apply an operation once and to notice
    epoch, digest                that the same operation came with another content
    data                         the message's data, a JSON object

This is the structured mode: everything is in the body. A webhook's signature covers the body and no header of the
event, so in the binary mode the operation and the tenant could be altered without breaking it.

The library checks that what is written is a CloudEvent. Reading is stricter than the library: the body is from outside.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, TypeVar
from uuid import UUID

from tenure.connectors.extras import library
from tenure.errors import Invalid
from tenure.rules.bounds import check_whole
from tenure.rules.creation import TEXT_MAX, check_text
from tenure.rules.message import Message
from tenure.rules.outcome import Json
from tenure.rules.payload import PAYLOAD_BYTES_MAX, encode, parse

CONTENT_TYPE = "application/cloudevents+json"
# The largest data that is stored, and room for the attributes around it.
EVENT_BYTES_MAX = PAYLOAD_BYTES_MAX + (64 << 10)
SOURCE = "tenure"

_SOURCE = re.compile(r"[!#-;=?-Z_a-z~%\[\]]{1,200}")  # what a URI reference is made of; no space and no quotes
_DIGEST = re.compile(r"v[0-9]{1,3}:[0-9a-f]{64}")
_NUMBER_MAX = (1 << 31) - 1  # of an attribute, by the specification

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Incoming:
    """
    One arrival of one message, as a consumer's inbox takes it.

    Attributes:
        message_id: Of the outbox's row: the same each time the message comes.
        delivery_id: Of this arrival: another each time the message comes.
        operation: The business identity, to be applied once within tenant and consumer.
        digest: The sender's, over operation, type, version, subject and data.
        source: Who says so.
    """

    tenant: str
    message_id: UUID
    delivery_id: str
    operation: str
    type: str
    version: int
    subject: str | None
    data: dict[str, Json]
    epoch: int
    digest: str
    source: str
    created_at: datetime


def check_source(source: str) -> str:
    """Refuse a source that is no URI reference."""
    if not isinstance(source, str) or not _SOURCE.fullmatch(source):
        raise Invalid(
            "source is a URI or a part of one, such as '/shop' or 'https://shop.example'", code="BAD_ARGUMENT"
        )
    return source


class EventWriter:
    """
    Writes messages as events of one source.

    Args:
        user, extra: Who needs the library, and the extra that brings it.
    """

    def __init__(self, source: str, *, bytes_max: int, user: str, extra: str) -> None:
        self._event = library("cloudevents.core.v1.event", user=user, extra=extra).CloudEvent
        self._source = check_source(source)
        self.bytes_max = check_whole("bytes_max", bytes_max)

    def write(self, message: Message) -> bytes:
        """
        Write one message.

        Raises:
            Invalid: EVENT_TOO_LARGE, or EVENT_MALFORMED where it cannot be written as an event.
        """
        attributes: dict[str, Any] = {
            "id": str(message.id),
            "source": self._source,
            "type": message.type,
            "time": message.created_at,
            "datacontenttype": "application/json",
            "tenant": message.tenant,
            "operation": message.operation,
            "version": message.version,
            "epoch": message.epoch,
            "digest": message.digest,
        }
        if message.subject is not None:
            attributes["subject"] = message.subject
        try:
            checked = self._event(attributes, None).get_attributes()
            document = {**checked, "time": _instant(message.created_at), "data": message.data}
            # As the message was stored: all digits, no escapes; the library's writer turns one letter into six bytes.
            body = encode(document, max_bytes=None).encode()
        except Exception as error:  # noqa: BLE001 - a message is a row, and rows can be edited by hand
            raise Invalid(f"the message is no CloudEvent ({type(error).__name__})", code="EVENT_MALFORMED") from None
        check_event_size(len(body), self.bytes_max)
        return body


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def check_event_size(size: int, bytes_max: int = EVENT_BYTES_MAX) -> None:
    """Refuse an event that is too large, written or read."""
    if size > bytes_max:
        raise Invalid(f"the event has {size} bytes, the limit is {bytes_max}", code="EVENT_TOO_LARGE")


def read_event(body: bytes, *, delivery_id: str, bytes_max: int = EVENT_BYTES_MAX) -> Incoming:
    """
    Read an event that `EventWriter` wrote.

    Attributes that are not known are left out; those that are known must be right.

    Raises:
        Invalid: EVENT_TOO_LARGE or EVENT_MALFORMED; the texts name the attribute, never a value.
    """
    check_event_size(len(body), bytes_max)
    try:
        event = parse(body, max_bytes=bytes_max)
    except Invalid as refusal:
        raise _malformed(f"not JSON that can be kept ({refusal.code})") from None
    if not isinstance(event, dict):
        raise _malformed("not a JSON object")
    if event.get("specversion") != "1.0":
        raise _malformed("specversion is not 1.0")
    if event.get("datacontenttype", "application/json") != "application/json" or "data_base64" in event:
        raise _malformed("its data is not JSON")
    return Incoming(
        tenant=_text(event, "tenant"),
        message_id=_id(event),
        delivery_id=_bounded(delivery_id),
        operation=_text(event, "operation"),
        type=_text(event, "type"),
        version=_number(event, "version", least=1),
        subject=None if event.get("subject") is None else _text(event, "subject"),
        data=_is(event, "data", dict),
        epoch=_number(event, "epoch", least=0),
        digest=_digest(event),
        source=_text(event, "source"),
        created_at=_time(event),
    )


def _is(event: dict[str, Any], name: str, kind: type[_T]) -> _T:
    value = event.get(name)
    if type(value) is not kind:
        raise _malformed(f"{name} is {'missing' if value is None else 'of another type'}")
    return value


def _text(event: dict[str, Any], name: str) -> str:
    value = _is(event, name, str)
    try:
        return check_text(name, value)
    except Invalid:
        raise _malformed(f"{name} is empty, too long or holds control characters") from None


def _number(event: dict[str, Any], name: str, *, least: int) -> int:
    value = _is(event, name, int)
    if not least <= value <= _NUMBER_MAX:
        raise _malformed(f"{name} is out of range")
    return value


def _id(event: dict[str, Any]) -> UUID:
    text = _is(event, "id", str)
    try:
        value = UUID(text)
    except ValueError:
        raise _malformed("id is not a UUID") from None
    if str(value) != text:  # several ways to write one id would be several ids to others
        raise _malformed("id is not a UUID in its usual form")
    return value


def _digest(event: dict[str, Any]) -> str:
    value = _is(event, "digest", str)
    if not _DIGEST.fullmatch(value):
        raise _malformed("digest is not a digest")
    return value


def _time(event: dict[str, Any]) -> datetime:
    try:
        value = datetime.fromisoformat(_is(event, "time", str))
    except ValueError:
        raise _malformed("time is not an instant") from None
    if value.utcoffset() is None:
        raise _malformed("time has no offset")
    return value


def _bounded(delivery_id: str) -> str:
    """Make a delivery id that an inbox takes: names of streams may be longer than it."""
    if len(delivery_id) <= TEXT_MAX and delivery_id.isprintable():
        return delivery_id
    plain = "".join(character if character.isprintable() else "?" for character in delivery_id[:100])
    return f"{plain}#{sha256(delivery_id.encode('utf-8', 'replace')).hexdigest()}"


def _malformed(why: str) -> Invalid:
    return Invalid(f"this is not an event of an outbox: {why}", code="EVENT_MALFORMED")
