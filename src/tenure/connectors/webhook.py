"""
Messages to a webhook: one signed HTTP request for each, and the other end, which checks what arrived.

A request is a CloudEvent in its structured mode (see `tenure.connectors.cloudevent` for why) with the signature headers
of Standard Webhooks. It may come again, also after it was answered: the receiver applies the operation once, by its
inbox. What the answer's status means is the table in `Webhook`; of its text nothing is kept.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

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
from tenure.connectors.http import check_headers, check_url, retry_after
from tenure.connectors.lanes import limit_of, reason, send_all
from tenure.connectors.signature import TOLERANCE, Signer
from tenure.connectors.wire import ANSWER_BYTES_MAX
from tenure.errors import Invalid
from tenure.rules.bounds import check_span
from tenure.rules.message import Deferred, Delivered, Delivery, Message, Refused

if TYPE_CHECKING:
    import httpx

IN_FLIGHT = 16
# "Not now", which is no answer to what was sent: a request that timed out, one too early, one beside another.
DEFERRED_STATUSES = frozenset({408, 409, 421, 425, 429, 460, 499})
# What a wrong address, a secret that was changed on one side, or a receiver in deployment answers to everything.
ADDRESS_STATUSES = frozenset({401, 403, 404, 405, 407, 410})

_OWN_HEADERS = ("webhook-", "ce-", "content-", "host", "transfer-encoding")
_PAUSES = frozenset({429, 503})  # whose Retry-After is honoured


class Webhook(Destination):
    """
    Deliver messages to one address by HTTP.

    | answer | becomes |
    | --- | --- |
    | 2xx | Delivered; the receipt is the status |
    | 429, 503 | Deferred, with its Retry-After |
    | 408, 409, 421, 425, 460, 499, other 5xx | Deferred |
    | a redirect | Deferred; it is not followed, a signed message goes to nobody else |
    | 401, 403, 404, 405, 407, 410 | Deferred: more often the address or the secret is wrong than one message |
    | no connection | Deferred, as an outage |
    | a timeout, an answer that breaks off | Deferred |
    | every other 4xx, such as 400, 413, 422 | Refused |
    | the message is larger than `bytes_max` | Refused, nothing is sent |

    Messages of one subject go one after the other, in the order given; others side by side.

    Args:
        url: https, or http; without a user name or password.
        secret: `whsec_...`; or two, while it is being changed. Required.
        source: The CloudEvents `source`, such as your service's address.
        headers: Sent with each request; credentials may be here.
        timeout: For one whole call of `deliver`; a single request gets about a quarter of it.
        in_flight: How many requests at the same time.
        verify: Your own TLS settings; without them the system's certificates count.
        trust_env: Whether the environment's proxy settings apply.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        secret: str | Sequence[str] | None = None,
        source: str = SOURCE,
        headers: Mapping[str, str] | None = None,
        timeout: timedelta = timedelta(seconds=30),
        in_flight: int = IN_FLIGHT,
        batch: int = 100,
        bytes_max: int = EVENT_BYTES_MAX,
        verify: ssl.SSLContext | None = None,
        trust_env: bool = True,
    ) -> None:
        self._httpx = library("httpx", user="Webhook", extra="webhook")
        self.name = name
        self.timeout = timeout
        self.batch = batch
        self._in_flight = in_flight
        self._url = check_url(url, "url")
        self._signer = Signer(secret, user=f"webhook {name!r}")
        self._writer = EventWriter(source, bytes_max=bytes_max, user="Webhook", extra="webhook")
        self._headers = _own_headers(headers or {})
        self._verify = verify
        self._trust_env = trust_env
        self._client: httpx.AsyncClient | None = None
        if type(in_flight) is not int or in_flight < 1:
            raise Invalid(f"webhook {name!r}: in_flight is a number from 1", code="BAD_ARGUMENT")
        check_destination(self)

    async def open(self) -> None:
        """Make the client; connections are made by requests."""
        self._opened()

    async def deliver(self, messages: Sequence[Message]) -> Sequence[Delivery]:
        """Send each message in a request of its own; see the class for what comes back."""
        client = self._opened()
        limit = limit_of(self.timeout)
        until = asyncio.get_running_loop().time() + limit
        send = functools.partial(self._send, client, limit / 3)
        return await send_all(messages, send, width=self._in_flight, until=until, in_turn=True)

    async def close(self) -> None:
        """Close every connection."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            limits = self._httpx.Limits(max_connections=self._in_flight, max_keepalive_connections=self._in_flight)
            verify = self._verify or _tls()
            self._client = self._httpx.AsyncClient(verify=verify, limits=limits, trust_env=self._trust_env)
        assert self._client is not None
        return self._client

    async def _send(self, client: httpx.AsyncClient, limit: float, message: Message) -> Delivery:
        try:
            body = self._writer.write(message)
        except Invalid as refusal:
            return Refused(reason(f"nothing was sent: {refusal}"))
        headers = {
            **self._headers,
            "Content-Type": CONTENT_TYPE,
            **self._signer.headers(str(message.id), body, datetime.now(UTC)),
        }
        try:
            async with asyncio.timeout(limit):
                request = client.build_request("POST", self._url, headers=headers, content=body, timeout=limit)
                response = await client.send(request, stream=True, follow_redirects=False)
                try:
                    await _read_away(response)
                finally:
                    await response.aclose()
        except (self._httpx.ConnectError, self._httpx.ConnectTimeout) as error:
            return Deferred(f"no answer: no connection ({type(error).__name__})", outage=True)
        except TimeoutError:
            return Deferred(f"no answer within {limit:.3g} s")
        except (self._httpx.HTTPError, self._httpx.InvalidURL, OSError) as error:
            return Deferred(f"no answer ({type(error).__name__})")
        return judge(response)


async def _read_away(response: httpx.Response) -> None:
    """Read an answer so that its connection can be used again; of a long one no more than is worth that."""
    size = 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            return


def judge(response: httpx.Response) -> Delivery:
    """Say what an answer's status means; see `Webhook`."""
    status = response.status_code
    if 200 <= status < 300:
        return Delivered({"status": status})
    if 300 <= status < 400:
        return Deferred(f"HTTP {status}: redirects are not followed; give the address it leads to")
    if status in ADDRESS_STATUSES:
        return Deferred(f"HTTP {status}: look at the webhook's address and secret, and at what the receiver lets in")
    if 400 <= status < 500 and status not in DEFERRED_STATUSES:
        return Refused(f"HTTP {status}")
    return Deferred(f"HTTP {status}", retry_after(response) if status in _PAUSES else None)


def verify_webhook(
    headers: Mapping[str, str],
    body: bytes,
    secret: str | Sequence[str],
    *,
    tolerance: timedelta = TOLERANCE,
    bytes_max: int = EVENT_BYTES_MAX,
    now: datetime | None = None,
) -> Incoming:
    """
    Check a request that a `Webhook` sent, and give its event for the inbox.

    Answer 2xx after the inbox's commit, and 4xx to what is raised here.

    Args:
        headers: The request's; names in any case.
        body: Its bytes as they arrived, before anything parsed them.
        secret: The sender's; or two, while it is being changed.
        tolerance: How far the sender's clock may be from ours, either way.
        now: For tests; otherwise this machine's clock.
    Raises:
        Refused: SIGNATURE_MISSING, SIGNATURE_WRONG, CLOCK_SKEW.
        Invalid: EVENT_TOO_LARGE, EVENT_MALFORMED; a secret that is none.
    """
    if not isinstance(body, bytes | bytearray):
        raise Invalid("body is the request's bytes, as they arrived", code="BAD_ARGUMENT")
    check_span("tolerance", tolerance)
    check_event_size(len(body), bytes_max)  # before the hash of it
    signer = Signer(secret, user="verify_webhook")
    delivery_id = signer.check(headers, bytes(body), tolerance=tolerance, now=now or datetime.now(UTC))
    arrival = read_event(bytes(body), delivery_id=delivery_id, bytes_max=bytes_max)
    if delivery_id.rpartition(".")[0] != str(arrival.message_id):
        raise Invalid("this is not an event of an outbox: webhook-id and the event's id differ", code="EVENT_MALFORMED")
    return arrival


def _own_headers(headers: Mapping[str, str]) -> dict[str, str]:
    checked = check_headers(headers)
    for name in checked:
        if name.lower().startswith(_OWN_HEADERS):
            raise Invalid(f"header {name} is written by the webhook; it cannot be set by hand", code="BAD_ARGUMENT")
    return checked


@functools.cache
def _tls() -> Any:
    """Read the certificates once."""
    return library("httpx", user="Webhook", extra="webhook").create_ssl_context()
