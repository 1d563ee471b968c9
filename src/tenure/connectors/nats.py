"""
Messages to a NATS JetStream: published side by side, each kept by the stream before it counts as delivered.

The header `Nats-Msg-Id` is made of tenant and message id, so a message that comes again within the stream's duplicate
window is not stored again; the receipt says `duplicate`. After that window it is stored again, and the consumer's inbox
is what applies it once.

The client's own reconnecting is off: it would send what we have already given up on. A connection that breaks ends its
messages as Deferred, and the next call opens another.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tenure.connectors.address import Address, NoAddress
from tenure.connectors.cloudevent import (
    CONTENT_TYPE,
    EVENT_BYTES_MAX,
    SOURCE,
    EventWriter,
    Incoming,
    check_event_size,
    read_event,
)
from tenure.connectors.destination import Destination, check_destination
from tenure.connectors.extras import library
from tenure.connectors.lanes import all_deferred, close_limit_of, limit_of, reason, send_all
from tenure.errors import Invalid
from tenure.rules.message import Deferred, Delivered, Delivery, Message, Refused

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

DUPLICATE_WINDOW = timedelta(minutes=2)
SUBJECT_BYTES_MAX = 1024  # a server's control line has 4096 bytes, for two subjects and more

_NAME = re.compile(r"[^\s.*>/\\]{1,255}")


class JetStream(Destination):
    """
    Deliver messages to a stream.

    Delivered: the stream acknowledged it; the receipt is `{"stream", "sequence", "duplicate"}`. Deferred: no
    acknowledgement, whatever the reason: no connection, no stream for the subject, a full stream. Refused: the message
    is larger than the server or `bytes_max` takes, or has no subject where the template asks for one.

    Args:
        servers: `nats://...` or several; a user name and password may be in them, and are shown nowhere.
        stream: The stream that must take the messages; another one answering counts as no answer.
        subject: The NATS subject, a template of `{tenant}`, `{type}`, `{version}`, `{subject}`, `{destination}`.
            Without it `<stream>.{tenant}.{type}`. What stands for a place is one token, only a type keeps its dots;
            blanks, wildcards and `%` are percent-encoded.
        create_stream: Make the stream on file storage if it is missing, with all subjects under the template's fixed
            beginning. Otherwise a missing stream is a Deferred message whose reason says so.
        duplicate_window: Of a stream made here.
        options: More arguments for `nats.connect`, such as `tls` or `user_credentials`.
    """

    def __init__(
        self,
        name: str,
        servers: str | Sequence[str],
        stream: str,
        *,
        subject: str | None = None,
        source: str = SOURCE,
        create_stream: bool = False,
        duplicate_window: timedelta = DUPLICATE_WINDOW,
        timeout: timedelta = timedelta(seconds=30),
        batch: int = 500,
        bytes_max: int = EVENT_BYTES_MAX,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._nats = library("nats", user="JetStream", extra="nats")
        self._errors = library("nats.js.errors", user="JetStream", extra="nats")
        self.name = name
        self.timeout = timeout
        self.batch = batch
        self._servers = [servers] if isinstance(servers, str) else list(servers)
        self._stream = stream
        self._create = create_stream
        self._window = duplicate_window
        self._options = dict(options or {})
        self._writer = EventWriter(source, bytes_max=bytes_max, user="JetStream", extra="nats")
        if not isinstance(stream, str) or not _NAME.fullmatch(stream):
            raise Invalid("stream is a stream's name: no blanks, dots, wildcards or slashes", code="BAD_ARGUMENT")
        if not self._servers or not all(isinstance(one, str) and one for one in self._servers):
            raise Invalid("servers is an address such as nats://localhost:4222, or several", code="BAD_ARGUMENT")
        template = f"{stream}.{{tenant}}.{{type}}" if subject is None else subject
        self._address = Address(template, what="NATS subject", spell=_spell, bytes_max=SUBJECT_BYTES_MAX)
        self._subjects = _covering(self._address) if create_stream else []
        self._client: Client | None = None
        # Done when the client is closed: it wakes nobody who waits for an acknowledgement.
        self._lost: asyncio.Future[None] | None = None
        self._connecting = asyncio.Lock()
        check_destination(self)

    async def open(self) -> None:
        """Connect, and make the stream where that was asked for; raises what the client raises."""
        async with self._connecting:
            if self._client is None or self._client.is_closed:
                await self._connect()

    async def deliver(self, messages: Sequence[Message]) -> Sequence[Delivery]:
        """Publish each message and wait for its acknowledgement; see the class for what comes back."""
        loop = asyncio.get_running_loop()
        until = loop.time() + limit_of(self.timeout)
        try:
            async with asyncio.timeout_at(until):
                await self.open()
        except Exception as error:  # noqa: BLE001 - without a connection nothing was sent
            return all_deferred(messages, f"no connection to NATS ({type(error).__name__})", outage=True)
        client = self._client
        assert client is not None
        try:
            send = functools.partial(self._send, client, client.max_payload)
            answers = await send_all(messages, send, width=len(messages) or 1, until=until, lost=self._lost)
        except BaseException:
            await self._drop(client)
            raise
        if client.is_closed or loop.time() >= until:
            # A server that does not answer keeps its connection open, and answers the next call as little.
            await self._drop(client)
        return answers

    async def close(self) -> None:
        """Let go of the connection."""
        async with self._connecting:
            await self._drop(self._client, politely=True)

    async def _connect(self) -> None:
        limit = limit_of(self.timeout)
        # A server that refuses is asked twice and not until the time is over.
        quick = {"max_reconnect_attempts": 1, "reconnect_time_wait": 0}
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def closed() -> None:
            if not lost.done():
                lost.set_result(None)

        ours = {"allow_reconnect": False, "error_cb": _quiet, "closed_cb": closed}
        options = {"connect_timeout": limit / 3, **quick, **self._options, **ours}
        client = self._nats.NATS()
        try:
            await client.connect(self._servers, **options)
            if self._create:
                await self._make_stream(client.jetstream(timeout=limit / 3))
        except self._nats.errors.NoServersError as error:
            await self._let_go(client)
            raise client.last_error or error from None
        except BaseException:
            await self._let_go(client)
            raise
        self._client, self._lost = client, lost

    async def _make_stream(self, jetstream: JetStreamContext) -> None:
        try:
            await jetstream.stream_info(self._stream)
        except self._errors.NotFoundError:
            await jetstream.add_stream(
                name=self._stream, subjects=self._subjects, duplicate_window=self._window.total_seconds()
            )

    async def _send(self, client: Client, bytes_max: int, message: Message) -> Delivery:
        headers = {
            "Nats-Msg-Id": identity(message),
            "Nats-Expected-Stream": self._stream,
            "Content-Type": CONTENT_TYPE,
        }
        try:
            body = self._writer.write(message)
            # The server counts headers too, and closes the connection on whoever sends more.
            check_event_size(len(body), bytes_max - _size(headers))
            subject = self._address.of(message)
        except (Invalid, NoAddress) as refusal:
            return Refused(reason(f"nothing was sent: {refusal}"))
        try:
            # A plain request, which is what publishing to a stream is. The client's own `publish` has a timer for each
            # message, where one for the call is enough; its `publish_async` loses answers that are errors.
            answer = await client.request(subject, body, timeout=None, headers=headers)  # type: ignore[arg-type]
        except self._nats.errors.NoRespondersError:
            return Deferred(reason(f"no stream takes the subject {subject}: make one, or give create_stream=True"))
        return _judge(answer.data)

    async def _drop(self, client: Client | None, *, politely: bool = False) -> None:
        """Close a client; by now another call may have opened the next one, which stays."""
        if client is not None:
            if client is self._client:
                self._client = None
            await self._let_go(client, politely=politely)

    async def _let_go(self, client: Client, *, politely: bool = False) -> None:
        """Close a client within a bounded time; politely: what is still to be written is written first."""
        # There is no public way to cut a connection off, and a server that does not read would hold up `close`.
        writer = getattr(getattr(client, "_transport", None), "_io_writer", None)
        if writer is not None and not politely:
            writer.transport.abort()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(close_limit_of(self.timeout)):
                await client.close()
        if writer is not None:
            writer.transport.abort()
        await asyncio.sleep(0)


def _judge(answer: bytes) -> Delivery:
    """Read a stream's acknowledgement."""
    try:
        ack = json.loads(answer)
        error = ack.get("error")
        if error is not None:
            return Deferred(reason(f"NATS refused it: {error.get('err_code')} {error.get('description')}"))
        receipt = {"stream": ack["stream"], "sequence": ack["seq"], "duplicate": bool(ack.get("duplicate"))}
    except (ValueError, KeyError, AttributeError):
        return Deferred("another answer than a stream's acknowledgement")
    return Delivered(receipt)


def identity(message: Message) -> str:
    """Give what the stream tells a repetition by: tenant and message id."""
    return f"{quote(message.tenant, safe='')}:{message.id}"


def read_nats(message: Msg, *, bytes_max: int = EVENT_BYTES_MAX) -> Incoming:
    """
    Read a message of a JetStream consumer for its inbox; acknowledge it after the inbox's commit.

    Raises:
        Invalid: EVENT_TOO_LARGE or EVENT_MALFORMED, also for a message that no stream delivered. It will be so each
            time: end it with `message.term()`.
    """
    try:
        about = message.metadata
    except Exception as error:  # noqa: BLE001 - the client raises several for a subject that is not its own
        raise Invalid(
            f"this is not an event of an outbox: no stream delivered it ({type(error).__name__})",
            code="EVENT_MALFORMED",
        ) from None
    # The time at which the stream took it: sequences begin anew in a stream that was made again under its old name.
    delivery_id = f"{about.stream}/{about.sequence.stream}@{about.timestamp.isoformat()}#{about.num_delivered}"
    arrival = read_event(message.data, delivery_id=delivery_id, bytes_max=bytes_max)
    given = (message.headers or {}).get("Nats-Msg-Id")
    if given != f"{quote(arrival.tenant, safe='')}:{arrival.message_id}":
        raise Invalid("this is not an event of an outbox: Nats-Msg-Id and the event differ", code="EVENT_MALFORMED")
    return arrival


@functools.lru_cache(maxsize=1024)
def _spell(place: str, value: str) -> str:
    if place == "type" and all(value.split(".")):
        return ".".join(quote(part, safe="!$&'()+,/:;=@~|") for part in value.split("."))
    return quote(value, safe="!$&'()+,/:;=@~|").replace(".", "%2E")


def _covering(address: Address) -> list[str]:
    """Give the subjects that a new stream must have."""
    if address.is_fixed:
        return [address.fixed]
    beginning, dot, _ = address.fixed.rpartition(".")
    if not dot or not beginning:
        raise Invalid(
            "create_stream needs a subject that begins with a fixed token, such as orders.{type}; otherwise the stream "
            "would take every subject of the server",
            code="BAD_ARGUMENT",
        )
    return [f"{beginning}.>"]


def _size(headers: Mapping[str, str]) -> int:
    """Give the bytes of headers as they are sent, or a few more."""
    return len("NATS/1.0\r\n\r\n") + sum(len(name) + len(value.encode()) + 4 for name, value in headers.items())


async def _quiet(_error: Exception) -> None:
    """Log nothing: what a call ended with is in its answers, and the client's texts hold addresses."""
