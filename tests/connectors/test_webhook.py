"""Webhooks, against a real HTTP server: what goes out, what each answer means, and in which order."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import timedelta
from typing import Any

import pytest
from cloudevents.core.formats.json import JSONFormat
from standardwebhooks.webhooks import Webhook as Library

from tenure.connectors.signature import new_secret
from tenure.connectors.webhook import ADDRESS_STATUSES, Webhook, verify_webhook
from tenure.errors import Invalid
from tenure.rules.message import Deferred, Delivered, Delivery, Message, Refused
from tests.connectors.messages import message, run
from tests.connectors.receiver import Answer, Receiver, Request
from tests.connectors.servers import RawServer, read_request, refused_port, reset, silent_port

SECRET = new_secret()


def destination(url: str, **changed: Any) -> Webhook:
    return Webhook("out", url, **{"secret": SECRET, "source": "/shop", "trust_env": False, **changed})


def deliver(url: str, *messages: Message, **changed: Any) -> list[Delivery]:
    async def body() -> list[Delivery]:
        out = destination(url, **changed)
        await out.open()
        try:
            return list(await out.deliver(messages))
        finally:
            await out.close()

    return run(body)


def test_a_message_goes_out_as_an_event_that_others_can_read() -> None:
    sent = message(subject="quote/17", data={"é": [1, 2.5, None], "big": 10**30})
    with Receiver() as receiver:
        assert deliver(receiver.url, sent) == [Delivered({"status": 204})]
    (request,) = receiver.requests
    assert request.headers["content-type"] == "application/cloudevents+json"
    # Read by the two libraries and nothing of ours.
    Library(SECRET).verify(request.body, request.headers)
    event = JSONFormat().read(None, request.body)
    assert event.get_id() == str(sent.id) == request.headers["webhook-id"]
    assert (event.get_type(), event.get_source(), event.get_subject()) == (sent.type, "/shop", sent.subject)
    assert event.get_time() == sent.created_at
    assert {name: event.get_extension(name) for name in ("tenant", "operation", "version", "epoch", "digest")} == {
        "tenant": sent.tenant,
        "operation": sent.operation,
        "version": sent.version,
        "epoch": sent.epoch,
        "digest": sent.digest,
    }
    assert event.get_data() == sent.data
    # And by our other half.
    arrival = verify_webhook(request.headers, request.body, SECRET)
    assert (arrival.tenant, arrival.message_id, arrival.operation) == (sent.tenant, sent.id, sent.operation)
    assert (arrival.type, arrival.version, arrival.subject) == (sent.type, sent.version, sent.subject)
    assert (arrival.data, arrival.epoch, arrival.digest) == (sent.data, sent.epoch, sent.digest)
    assert (arrival.source, arrival.created_at) == ("/shop", sent.created_at)
    assert arrival.delivery_id == f"{sent.id}.{request.headers['webhook-timestamp']}"


def test_a_message_that_comes_again_carries_the_same_ids() -> None:
    sent = message()
    with Receiver() as receiver:
        assert deliver(receiver.url, sent) == deliver(receiver.url, sent) == [Delivered({"status": 204})]
    first, second = [verify_webhook(one.headers, one.body, SECRET) for one in receiver.requests]
    assert (first.message_id, first.operation, first.digest) == (second.message_id, second.operation, second.digest)
    assert receiver.requests[0].body == receiver.requests[1].body


STATUSES: list[tuple[int, Delivery]] = [
    *[(status, Delivered({"status": status})) for status in (200, 201, 202, 204)],
    *[(status, Refused(f"HTTP {status}")) for status in (400, 402, 406, 411, 413, 415, 422, 451)],
    *[(status, Deferred(f"HTTP {status}")) for status in (408, 409, 421, 425, 429, 460, 499, 500, 502, 503, 504)],
]


@pytest.mark.parametrize("status, answer", STATUSES)
def test_what_a_status_means(status: int, answer: Delivery) -> None:
    with Receiver(lambda _: Answer(status, body=b"" if status == 204 else b"their own words")) as receiver:
        assert deliver(receiver.url, message()) == [answer]
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("status", sorted(ADDRESS_STATUSES))
def test_a_wrong_address_or_secret_is_not_the_fault_of_a_message(status: int) -> None:
    with Receiver(lambda _: Answer(status)) as receiver:
        (answer,) = deliver(receiver.url, message())
    assert isinstance(answer, Deferred)
    assert not answer.outage
    assert "address and secret" in answer.reason


def test_nobody_there_is_an_outage() -> None:
    with Receiver() as receiver:
        url = receiver.url
    (answer,) = deliver(url, message())
    assert isinstance(answer, Deferred)
    assert answer.outage


@pytest.mark.parametrize("status", [429, 503])
def test_a_pause_that_is_asked_for_is_kept(status: int) -> None:
    with Receiver(lambda _: Answer(status, {"Retry-After": "90"})) as receiver:
        assert deliver(receiver.url, message()) == [Deferred(f"HTTP {status}", timedelta(seconds=90))]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(status: int) -> None:
    with Receiver() as other, Receiver(lambda _: Answer(status, {"Location": other.url})) as receiver:
        (answer,) = deliver(receiver.url, message())
    assert isinstance(answer, Deferred)
    assert "redirects are not followed" in answer.reason
    assert other.requests == []


def test_messages_of_a_subject_go_one_after_the_other_and_others_side_by_side() -> None:
    both = threading.Barrier(2, timeout=10)
    under_way: dict[str, int] = {}

    def answer(request: Request) -> Answer:
        subject = json.loads(request.body)["subject"]
        under_way[subject] = under_way.get(subject, 0) + 1
        assert under_way[subject] == 1
        both.wait()  # nobody gets here alone: the two subjects are on their way at the same time
        under_way[subject] -= 1
        return Answer()

    sent = [message(number, subject=f"quote/{number % 2}") for number in range(10)]
    with Receiver(answer) as receiver:
        assert deliver(receiver.url, *sent) == [Delivered({"status": 204})] * 10
        assert receiver.most_at_once == 2
        # Connections are used again.
        assert receiver.connections == 2
    for subject in ("quote/0", "quote/1"):
        arrived = [json.loads(one.body)["id"] for one in receiver.requests if subject.encode() in one.body]
        assert arrived == [str(one.id) for one in sent if one.subject == subject]


def test_a_failure_stops_nobody() -> None:
    sent = [message(1, subject="a"), message(2, subject="a"), message(3, subject="b"), message(4, subject=None)]

    def answer(request: Request) -> Answer:
        return Answer(500) if json.loads(request.body)["id"] == str(sent[0].id) else Answer()

    with Receiver(answer) as receiver:
        first, *others = deliver(receiver.url, *sent)
    assert first == Deferred("HTTP 500")
    assert others == [Delivered({"status": 204})] * 3
    assert len(receiver.requests) == 4


def test_no_more_than_allowed_are_under_way() -> None:
    few = threading.Barrier(3, timeout=10)

    def answer(_: Request) -> Answer:
        few.wait()
        return Answer()

    with Receiver(answer) as receiver:
        answers = deliver(receiver.url, *[message(number) for number in range(9)], in_flight=3)
        assert answers == [Delivered({"status": 204})] * 9
        assert receiver.most_at_once == 3


def test_a_message_that_is_too_large_is_refused_beside_one_that_is_not() -> None:
    large = message(1, data={"text": "x" * 2000})
    with Receiver() as receiver:
        refused, delivered = deliver(receiver.url, large, message(2), bytes_max=2000)
    assert isinstance(refused, Refused)
    assert "the limit is 2000" in refused.reason
    assert delivered == Delivered({"status": 204})
    assert len(receiver.requests) == 1


def test_a_server_that_went_away_and_came_back() -> None:
    async def body() -> None:
        with Receiver() as receiver:
            out = destination(receiver.url)
            assert await out.deliver([message(1)]) == [Delivered({"status": 204})]
            port = receiver.port
        for _ in range(2):
            (answer,) = await out.deliver([message(2)])
            assert isinstance(answer, Deferred)
        with Receiver(port=port):
            assert await out.deliver([message(2)]) == [Delivered({"status": 204})]
        await out.close()

    run(body)


def test_no_connection_and_no_answer_cost_the_time_of_a_call_and_no_more() -> None:
    async def ended(url: str) -> tuple[Delivery, ...]:
        out = destination(url, timeout=timedelta(seconds=1.5))
        began = asyncio.get_running_loop().time()
        answers = await out.deliver([message(1), message(2)])
        assert asyncio.get_running_loop().time() - began < 4
        await out.close()
        return tuple(answers)

    with silent_port() as port:
        nobody = run(lambda: ended(f"http://127.0.0.1:{port}/"))
    refused = run(lambda: ended(f"http://127.0.0.1:{refused_port()}/"))
    with RawServer(read_request) as silent:
        closed = run(lambda: ended(silent.url))
    with RawServer(lambda connection, _: reset(connection)) as rude:
        broken = run(lambda: ended(rude.url))
    with RawServer(lambda connection, _: connection.sendall(b"HTTP/1.1 2")) as half:
        torn = run(lambda: ended(half.url))
    for answer in (*nobody, *refused, *closed, *broken, *torn):
        assert isinstance(answer, Deferred)
        assert "no answer" in answer.reason


def test_an_answer_of_any_size_is_not_kept() -> None:
    with Receiver(lambda _: Answer(200, body=b"x" * (4 << 20))) as receiver:
        assert deliver(receiver.url, message()) == [Delivered({"status": 200})]


def test_a_call_that_is_cancelled_leaves_nothing_behind() -> None:
    arrived, go_on = threading.Event(), threading.Event()

    def answer(_: Request) -> Answer:
        arrived.set()
        go_on.wait(10)
        return Answer()

    async def body() -> None:
        out = destination(receiver.url)
        delivering = asyncio.create_task(out.deliver([message()]))  # type: ignore[arg-type]
        await asyncio.to_thread(arrived.wait, 10)
        delivering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await delivering
        go_on.set()
        await out.close()

    with Receiver(answer) as receiver:
        run(body)


def test_opening_and_closing_again_changes_nothing() -> None:
    async def body() -> None:
        out = destination(receiver.url)
        await out.close()
        await out.open()
        await out.open()
        assert await out.deliver([message()]) == [Delivered({"status": 204})]
        await out.close()
        await out.close()
        assert await out.deliver([]) == []
        await out.close()

    with Receiver() as receiver:
        run(body)


def test_both_secrets_sign_while_one_is_being_changed() -> None:
    old, new = new_secret(), new_secret()
    with Receiver() as receiver:
        deliver(receiver.url, message(), secret=[new, old])
    (request,) = receiver.requests
    for one in (old, new, [old, new]):
        assert verify_webhook(request.headers, request.body, one).tenant == "acme"
    Library(old).verify(request.body, request.headers)


def test_secrets_are_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    marked = "whsec_" + "s3cr" * 12
    with Receiver(lambda _: Answer(400, body=b"s3cr in their words")) as receiver:
        headers = {"Authorization": "Bearer s3cr"}
        answers = deliver(receiver.url, message(), secret=marked, headers=headers)
        answers += deliver(f"http://127.0.0.1:{refused_port()}/", message(), secret=marked, headers=headers)
        out = destination(receiver.url, secret=marked)
    assert receiver.requests[0].headers["authorization"] == "Bearer s3cr"
    assert "s3cr" not in repr(answers) + repr(out) + repr(out._signer) + caplog.text


def test_a_webhook_without_a_secret_is_told_how_to_get_one() -> None:
    for secret in (None, "", [], [new_secret(), ""]):
        with pytest.raises(Invalid, match=r"new_secret\(\).*and give the same to sender and receiver") as refused:
            destination("https://shop.example/hooks", secret=secret)
        assert refused.value.code == "SECRET_REQUIRED"
    for secret in ("whsec_!", "whsec_c2hvcnQ=", "whsec_" + "A" * 100, "password"):
        with pytest.raises(Invalid, match="new_secret") as refused:
            destination("https://shop.example/hooks", secret=secret)
        assert refused.value.code == "BAD_SECRET"
        assert secret not in str(refused.value)
    destination("https://shop.example/hooks", secret=new_secret())


@pytest.mark.parametrize(
    "changed, text",
    [
        ({"url": "ftp://shop.example"}, "url"),
        ({"url": "https://user:pw@shop.example"}, "credentials"),
        ({"headers": {"Webhook-Id": "mine"}}, "Webhook-Id"),
        ({"headers": {"Content-Type": "text/plain"}}, "Content-Type"),
        ({"headers": {"X": "a\r\nb"}}, "header X"),
        ({"source": ""}, "source"),
        ({"in_flight": 0}, "in_flight"),
        ({"timeout": 5}, "timeout"),
        ({"name": " out"}, "name"),
    ],
)
def test_a_wrong_setting_is_refused_when_it_is_made(changed: dict[str, Any], text: str) -> None:
    good: dict[str, Any] = {"name": "out", "url": "https://shop.example/hooks", "secret": SECRET}
    Webhook(**good)
    with pytest.raises(Invalid, match=text):
        Webhook(**{**good, **changed})
