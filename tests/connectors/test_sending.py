"""What destinations share: an answer for each message in time, templates, names of deliveries."""

from __future__ import annotations

import asyncio
import logging
import traceback
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.connectors.address import Address, NoAddress
from tenure.connectors.cloudevent import EventWriter, read_event
from tenure.connectors.lanes import REASON_MAX, reason, send_all
from tenure.connectors.nats import JetStream, _spell
from tenure.connectors.rabbitmq import RabbitMQ
from tenure.connectors.redis import RedisStreams
from tenure.errors import Invalid
from tenure.rules.creation import check_text
from tenure.rules.message import Deferred, Delivered, Delivery, Message
from tenure.rules.payload import PAYLOAD_BYTES_MAX
from tests.connectors.messages import message, run
from tests.connectors.servers import refused_port

SENT = [message(number, subject="one" if number < 3 else None) for number in range(5)]


def number(one: Message) -> int:
    return SENT.index(one)


def test_every_message_has_an_answer_whatever_its_sending_does() -> None:
    async def send(one: Message) -> Delivery:
        if number(one) == 1:
            raise ValueError("with a secret in it")
        if number(one) == 3:
            await asyncio.get_running_loop().create_future()
        return Delivered(number(one))

    async def body() -> list[Delivery]:
        until = asyncio.get_running_loop().time() + 0.2
        return await send_all(SENT, send, width=2, until=until, in_turn=True)

    assert run(body) == [
        Delivered(0),
        Deferred("no answer (ValueError)"),
        Delivered(2),
        Deferred("no answer in time"),
        Delivered(4),
    ]


def test_what_was_never_sent_says_so() -> None:
    async def send(_: Message) -> Delivery:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def body() -> list[Delivery]:
        until = asyncio.get_running_loop().time() + 0.05
        return await send_all(SENT[:3], send, width=9, until=until, in_turn=True)

    waited = Deferred("not sent: its turn did not come in time")
    assert run(body) == [Deferred("no answer in time"), waited, waited]


def test_a_connection_that_breaks_ends_the_waiting_at_once() -> None:
    async def body() -> list[Delivery]:
        loop = asyncio.get_running_loop()
        lost: asyncio.Future[None] = loop.create_future()

        async def send(one: Message) -> Delivery:
            if number(one) == 4:
                lost.set_result(None)
                return Delivered(4)
            return await loop.create_future()  # type: ignore[no-any-return]

        return await send_all(SENT, send, width=9, until=loop.time() + 600, lost=lost)

    broken = Deferred("the connection broke before the answer")
    assert run(body) == [broken, broken, broken, broken, Delivered(4)]


@given(st.text())
def test_a_reason_is_one_bounded_line(text: str) -> None:
    bounded = reason(text)
    assert len(bounded) <= REASON_MAX
    assert bounded.isprintable()


def address(template: str, bytes_max: int = 50) -> Address:
    return Address(template, what="place", spell=lambda _, value: value, bytes_max=bytes_max)


def test_a_template_is_filled_from_the_message() -> None:
    one = message(7, tenant="acme", type="quote.accepted", version=2, subject="quote/7")
    assert address("{tenant}/{type}/{version}/{subject}/{destination}").of(one) == "acme/quote.accepted/2/quote/7/out"
    assert address("fixed{{}}").of(one) == "fixed{}"
    assert address("fixed").is_fixed
    with pytest.raises(NoAddress, match="no subject"):
        address("{subject}").of(message(subject=None))
    with pytest.raises(NoAddress, match="50 bytes"):
        address("{subject}").of(message(subject="é" * 26))


@pytest.mark.parametrize("bad", ["", None, 7, "{", "}", "{}", "{0}", "{data}", "{type.upper}", "{type!r}", "{type:>9}"])
def test_a_template_that_is_none(bad: Any) -> None:
    with pytest.raises(Invalid, match="place"):
        address(bad)


@given(st.text(min_size=1), st.text(min_size=1))
def test_two_tenants_never_become_one_token(one: str, other: str) -> None:
    try:
        spelled = _spell("tenant", one), _spell("tenant", other)
    except UnicodeEncodeError:  # half a character, which no store takes
        return
    assert (spelled[0] == spelled[1]) == (one == other)
    for token in spelled:
        assert token.isascii()
        assert not set(token) & set(" .*>\r\n\t")


@given(st.text(max_size=400))
def test_every_delivery_id_is_one_that_an_inbox_takes(text: str) -> None:
    body = EventWriter("/x", bytes_max=9999, user="test", extra="nats").write(SENT[0])
    found = read_event(body, delivery_id=f"d{text}").delivery_id
    assert check_text("delivery_id", found) == found
    assert found == f"d{text}" or len(found) > 64


def test_the_largest_data_that_is_stored_fits_whatever_letters_it_has() -> None:
    writer = EventWriter("/x", bytes_max=PAYLOAD_BYTES_MAX + (64 << 10), user="test", extra="nats")
    large = message(data={"text": "é" * (PAYLOAD_BYTES_MAX // 2 - 10)})
    assert read_event(writer.write(large), delivery_id="d").data == large.data


def test_a_row_that_was_edited_by_hand_is_no_event() -> None:
    writer = EventWriter("/x", bytes_max=9999, user="test", extra="nats")
    edits: list[dict[str, Any]] = [
        {"tenant": 7j},
        {"type": ""},
        {"created_at": "now"},
        {"data": {"a": {1}}},
        {"subject": ""},
    ]
    for changed in edits:
        with pytest.raises(Invalid) as refused:
            writer.write(replace(SENT[0], **changed))
        assert refused.value.code == "EVENT_MALFORMED"


@pytest.mark.parametrize("kind", ["nats", "rabbitmq", "redis"])
def test_an_address_with_a_password_is_shown_nowhere(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    at = f"user:s3cret@127.0.0.1:{refused_port()}"
    made = {
        "nats": lambda: JetStream("out", f"nats://{at}", "shop", timeout=timedelta(seconds=5)),
        "rabbitmq": lambda: RabbitMQ("out", f"amqp://{at}/", "shop", timeout=timedelta(seconds=5)),
        "redis": lambda: RedisStreams("out", f"redis://{at}/0", "shop", timeout=timedelta(seconds=5)),
    }

    async def body() -> str:
        out = made[kind]()
        (answer,) = await out.deliver(SENT[:1])
        assert isinstance(answer, Deferred)
        with pytest.raises(Exception) as raised:  # noqa: PT011 - each client has its own
            await out.open()
        await out.close()
        # A relay shows the class of what it cannot open; a program that opens one itself may show everything.
        return "".join([answer.reason, repr(out), *traceback.format_exception(raised.value)])

    assert "s3cret" not in run(body) + caplog.text
