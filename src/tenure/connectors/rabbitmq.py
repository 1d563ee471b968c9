"""
Messages to a RabbitMQ exchange: persistent, mandatory, each confirmed by the server before it counts as delivered.

A confirmation of a persistent message says that the queues it was routed to have it on disk; a message that no queue
takes is returned instead, and never counts as delivered. RabbitMQ has no memory of ids: a message that comes again is a
second message with the same `message_id`, and the consumer's inbox is what applies it once.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tenure.connectors.address import Address, NoAddress
from tenure.connectors.cloudevent import CONTENT_TYPE, EVENT_BYTES_MAX, SOURCE, EventWriter, Incoming, read_event
from tenure.connectors.destination import Destination, check_destination
from tenure.connectors.extras import library
from tenure.connectors.lanes import all_deferred, close_limit_of, end_tasks, limit_of, reason, send_all
from tenure.errors import Invalid
from tenure.rules.message import Deferred, Delivered, Delivery, Message, Refused

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange, AbstractIncomingMessage

KEY_BYTES_MAX = 255  # of a routing key, by the protocol
_UNROUTABLE = ("deferred", "refused")


class RabbitMQ(Destination):
    """
    Deliver messages to an exchange.

    Delivered: the server confirmed it; the receipt is `{"exchange", "routing_key"}`. Deferred: no confirmation,
    whatever the reason: no connection, no such exchange, a full queue (nack). A message that no queue takes is
    Deferred, because a queue may yet be bound, or Refused with `unroutable="refused"`. Refused: the message is larger
    than `bytes_max`, has a routing key of over 255 bytes, or no subject where the template asks for one.

    Args:
        url: `amqp://` or `amqps://`; a user name and password may be in it, and are shown nowhere.
        exchange: Its name, which must exist; empty for the default one, where the routing key names a queue.
        routing_key: A template of `{tenant}`, `{type}`, `{version}`, `{subject}`, `{destination}`.
        options: More arguments for `aio_pika.connect`, such as `ssl_context`.
    """

    def __init__(
        self,
        name: str,
        url: str,
        exchange: str,
        routing_key: str = "{type}",
        *,
        unroutable: str = "deferred",
        source: str = SOURCE,
        timeout: timedelta = timedelta(seconds=30),
        batch: int = 500,
        bytes_max: int = EVENT_BYTES_MAX,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._pika = library("aio_pika", user="RabbitMQ", extra="rabbitmq")
        self.name = name
        self.timeout = timeout
        self.batch = batch
        self._url = url
        self._exchange_name = exchange
        self._unroutable = Deferred if unroutable == "deferred" else Refused
        self._options = dict(options or {})
        self._writer = EventWriter(source, bytes_max=bytes_max, user="RabbitMQ", extra="rabbitmq")
        self._address = Address(routing_key, what="routing key", spell=lambda _, value: value, bytes_max=KEY_BYTES_MAX)
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._exchange: AbstractExchange | None = None
        self._connecting = asyncio.Lock()
        if not isinstance(url, str) or not url.startswith(("amqp://", "amqps://")):
            raise Invalid("url starts with amqp:// or amqps://", code="BAD_ARGUMENT")
        if not isinstance(exchange, str) or len(exchange.encode()) > KEY_BYTES_MAX:
            raise Invalid("exchange is a name of at most 255 bytes, or empty", code="BAD_ARGUMENT")
        if unroutable not in _UNROUTABLE:
            raise Invalid(f"unroutable is one of {', '.join(_UNROUTABLE)}", code="BAD_ARGUMENT")
        check_destination(self)

    async def open(self) -> None:
        """Connect and look for the exchange; raises what the client raises."""
        async with self._connecting:
            if self._connection is None or self._channel is None or self._channel.is_closed:
                await self._drop(self._connection)
                await self._connect()

    async def deliver(self, messages: Sequence[Message]) -> Sequence[Delivery]:
        """Publish each message and wait for its confirmation; see the class for what comes back."""
        loop = asyncio.get_running_loop()
        until = loop.time() + limit_of(self.timeout)
        try:
            async with asyncio.timeout_at(until):
                await self.open()
        except Exception as error:  # noqa: BLE001 - without a channel nothing was sent
            return all_deferred(messages, self._not_open(error), outage=True)
        connection, channel, exchange = self._connection, self._channel, self._exchange
        assert channel is not None
        assert exchange is not None
        try:
            send = functools.partial(self._send, exchange)
            answers = await send_all(messages, send, width=len(messages) or 1, until=until)
        except BaseException:
            await self._drop(connection)
            raise
        if channel.is_closed or loop.time() >= until:
            await self._drop(connection)
        return answers

    async def close(self) -> None:
        """Let go of the connection."""
        async with self._connecting:
            await self._drop(self._connection, politely=True)

    async def _connect(self) -> None:
        limit = limit_of(self.timeout)
        options = {"timeout": limit / 3, **self._options}
        self._connection = await self._pika.connect(self._url, **options)
        channel = self._channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
        if self._exchange_name:
            self._exchange = await channel.get_exchange(self._exchange_name, ensure=True)
        else:
            self._exchange = channel.default_exchange

    def _not_open(self, error: Exception) -> str:
        if isinstance(error, self._pika.exceptions.ChannelNotFoundEntity):
            return f"there is no exchange {self._exchange_name!r}: declare it, it is not made here"
        return f"no connection to RabbitMQ ({type(error).__name__})"

    async def _send(self, exchange: AbstractExchange, message: Message) -> Delivery:
        try:
            body = self._writer.write(message)
            key = self._address.of(message)
        except (Invalid, NoAddress) as refusal:
            return Refused(reason(f"nothing was sent: {refusal}"))
        letter = self._pika.Message(
            body,
            message_id=str(message.id),
            type=message.type,
            timestamp=message.created_at,
            content_type=CONTENT_TYPE,
            delivery_mode=self._pika.DeliveryMode.PERSISTENT,
            headers={"tenant": message.tenant, "operation": message.operation},
        )
        try:
            await exchange.publish(letter, key, mandatory=True)
        except self._pika.exceptions.PublishError:
            why = f"no queue takes the routing key {key!r} of exchange {self._exchange_name!r}: bind one"
            return self._unroutable(reason(why))
        except self._pika.exceptions.DeliveryError as error:
            return Deferred(reason(f"RabbitMQ did not take it ({type(error.frame).__name__})"))
        return Delivered({"exchange": self._exchange_name, "routing_key": key})

    async def _drop(self, connection: AbstractConnection | None, *, politely: bool = False) -> None:
        """Close a connection; by now another call may have opened the next one, which stays."""
        if connection is self._connection:
            self._connection, self._channel, self._exchange = None, None, None
        if connection is not None:
            await self._let_go(connection, politely=politely)

    async def _let_go(self, connection: AbstractConnection, *, politely: bool) -> None:
        """Close a connection within a bounded time; politely: with the protocol's goodbye."""
        transport = _transport(connection)
        if transport is not None and not politely:
            transport.abort()
        closing = asyncio.ensure_future(connection.close())
        try:
            await asyncio.wait({closing}, timeout=close_limit_of(self.timeout))
        finally:
            await end_tasks([closing])
            if transport is not None:
                transport.abort()
        if not closing.cancelled():
            closing.exception()  # it is closed as far as it could be
        await asyncio.sleep(0)


def _transport(connection: AbstractConnection) -> asyncio.WriteTransport | None:
    """
    Find what can be cut off.

    Closing waits until a server that does not read has read, and the client keeps the writer to itself: only the frame
    of the task that writes has it. A client that is built otherwise is closed without being cut off.
    """
    writing = getattr(getattr(getattr(connection, "transport", None), "connection", None), "_writer_task", None)
    frame = getattr(writing.get_coro(), "cr_frame", None) if isinstance(writing, asyncio.Task) else None
    writer = frame.f_locals.get("writer") if frame is not None else None
    return writer.transport if isinstance(writer, asyncio.StreamWriter) else None


def read_rabbitmq(message: AbstractIncomingMessage, *, bytes_max: int = EVENT_BYTES_MAX) -> Incoming:
    """
    Read a message of a queue for the inbox; acknowledge it after the inbox's commit.

    Raises:
        Invalid: EVENT_TOO_LARGE or EVENT_MALFORMED. It will be so each time: `message.reject(requeue=False)`.
    """
    # A delivery tag counts within one channel only, so the channel's consumer is in it.
    delivery_id = f"{message.consumer_tag or 'get'}/{message.delivery_tag}/{message.message_id or ''}"
    arrival = read_event(message.body, delivery_id=delivery_id, bytes_max=bytes_max)
    if message.message_id != str(arrival.message_id):
        raise Invalid("this is not an event of an outbox: message_id and the event's id differ", code="EVENT_MALFORMED")
    return arrival
