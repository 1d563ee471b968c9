"""
A provider behind HTTP: one request per call, the operation key in `Idempotency-Key`, no retries.

The client library is asked where a call broke off. Before a connection stood, nothing was sent, and the effect surely
did not happen. From there on (a TLS handshake is already "from there on") every ending without a whole answer is
Unknown. Of an answer the status decides; only a success and a definite refusal are taken as such.

Each call opens a connection of its own unless a client is given. A kept connection that the server closes at the same
moment looks exactly like a lost reply, and a lost reply costs a reconciliation; a handshake costs milliseconds.

Reasons hold statuses and class names. A provider's texts, headers and our own credentials stay out of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from tenure.connectors.provider import IdempotencyKey, Provider, check_provider
from tenure.connectors.wire import ANSWER_BYTES_MAX, json_answer, json_bytes
from tenure.errors import Invalid
from tenure.guard import refuse_call
from tenure.rules.outcome import (
    Absent,
    Accepted,
    Declined,
    Evidence,
    FailedBeforeDispatch,
    Json,
    NoAnswer,
    Outcome,
    Rejected,
    Succeeded,
    Unknown,
)

if TYPE_CHECKING:
    import httpx

KEY_HEADER = "Idempotency-Key"
KEY_PLACE = "{operation_key}"
METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})

# Refusals that leave open whether the request was done: 408 and 425 speak of this delivery, 409 of another request
# under the same key that may still be running; 460 and 499 are written by proxies whose client went away.
UNCERTAIN_STATUSES = frozenset({408, 409, 425, 460, 499})
AUTHENTICATION_STATUSES = frozenset({401, 403})
DECLINED_STATUSES = frozenset({409, 410, 422})

RETRY_AFTER_MAX = timedelta(days=30)  # only against an overflow; the retry rule has its own ceiling
CONNECT_SHARE = 0.5  # of the timeout at most, so that "no connection" is known before the call's own time is over

_CONNECTING = frozenset(
    f"connection.connect_{kind}.{at}" for kind in ("tcp", "unix_socket") for at in ("started", "failed")
)
_SECONDS = re.compile(r"[0-9]{1,12}")
_FIELD_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_FIELD_VALUE = re.compile(r"[\t\x20-\x7e]*")
# Visible ASCII but for `%`, so that ordinary keys stay readable and two keys never become one.
_KEY_SAFE = "!\"#$&'()*+,/:;<=>?@[\\]^`{|}"


def wire_key(operation_key: str) -> str:
    """Write an operation key as a header can carry it: unchanged where it is plain, percent-encoded elsewhere."""
    return quote(operation_key, safe=_KEY_SAFE)


class HttpProvider(Provider):
    """
    Send each request as JSON to one address.

    Succeeded: a 2xx status; the receipt is `{"body": ...}` with the answer's JSON, if it is JSON of at most 64 KiB, and
    never a header. The status is left out of it: 201 for the act and 200 for its look-up are the same act.
    FailedBeforeDispatch: no connection, or 429 with its Retry-After. Rejected: 401 and 403 as `authentication`, other
    definite 4xx. Unknown: 408, 409, 425, 5xx, redirects, timeouts, resets, answers that break off.

    Look-up: 200 with JSON is Accepted, with a receipt of the same shape; 404 is Absent; `declined` is Declined; all
    else is NoAnswer. A wrong `lookup_url` answers 404 too: try it with a key that exists.

    Args:
        url: http or https, without a user name or password; those belong in `auth` or `headers`.
        headers: Sent with every request; credentials may be here.
        auth: What httpx takes: a pair of user name and password, or an `httpx.Auth`.
        lookup_url: The address of one operation, with `{operation_key}` where the key goes.
        client: Your own `httpx.AsyncClient`, for pooling or a proxy. It stays yours to close, and must not retry.
        classify: Called with each whole answer, an `httpx.Response`; returns an outcome, or None for the rule above.
        classify_lookup: The same for answers of the look-up; returns evidence or None.
        receipt: Makes the receipt of an accepted answer, of `send` and look-up alike. Give the same value for the same
            act: two different receipts for one operation are taken as proof of a duplicate.
        declined: Statuses by which the look-up says that the provider refused.
        trust_env: Whether the environment's proxy settings apply; for the own client only.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        auth: Any = None,
        lookup_url: str | None = None,
        idempotency: IdempotencyKey | None = None,
        lookup_complete: bool = False,
        settles_within: timedelta = timedelta(0),
        timeout: timedelta = timedelta(seconds=30),
        client: httpx.AsyncClient | None = None,
        classify: Callable[[httpx.Response], Outcome | None] | None = None,
        classify_lookup: Callable[[httpx.Response], Evidence | None] | None = None,
        receipt: Callable[[httpx.Response], Json] | None = None,
        declined: Collection[int] = DECLINED_STATUSES,
        trust_env: bool = True,
    ) -> None:
        self._httpx = _import_httpx()
        self.name = name
        self.idempotency = idempotency
        self.lookup_complete = lookup_complete
        self.settles_within = settles_within
        self.timeout = timeout
        self._url = check_url(url, "url")
        self._lookup_url = None if lookup_url is None else check_url(lookup_url, "lookup_url")
        self._method = method.upper()
        self._headers = check_headers(headers or {})
        self._auth = auth
        self._client = client
        self._classify = classify
        self._classify_lookup = classify_lookup
        self._receipt = receipt
        self._declined = frozenset(declined)
        self._trust_env = trust_env
        if self._method not in METHODS:
            raise Invalid(f"provider {name!r}: method is one of {', '.join(sorted(METHODS))}, not {method!r}")
        if self._lookup_url is not None and KEY_PLACE not in self._lookup_url:
            raise Invalid(f"provider {name!r}: lookup_url holds {KEY_PLACE} where the key goes")
        if client is not None and not isinstance(client, self._httpx.AsyncClient):
            raise Invalid(f"provider {name!r}: client is an httpx.AsyncClient, not {type(client).__name__}")
        check_provider(self)

    @property
    def has_lookup(self) -> bool:
        """Whether a `lookup_url` was given, or a subclass wrote a look-up."""
        return self._lookup_url is not None or type(self).lookup is not HttpProvider.lookup

    async def send(self, request: Any, operation_key: str) -> Outcome:
        """Send one request; see the class for what comes back."""
        try:
            content = json_bytes(request)
        except Invalid as refusal:
            return Rejected(f"nothing was sent: {refusal}")
        headers = {"Content-Type": "application/json", KEY_HEADER: wire_key(operation_key)}
        answer = await self._exchange(self._method, self._url, headers, content)
        if isinstance(answer, _Broken):
            return Unknown(answer.reason) if answer.connected else FailedBeforeDispatch(answer.reason)
        try:
            return self._judge(answer)
        except Exception as error:  # noqa: BLE001 - the callables are the user's
            return Unknown(f"HTTP {answer.status}, and reading the answer raised {type(error).__name__}")

    async def lookup(self, operation_key: str) -> Evidence:
        """Ask for one operation; see the class for what comes back."""
        if self._lookup_url is None:
            return NoAnswer("no lookup_url was given")
        # The provider knows the key as the header carried it, so that form goes into the address.
        url = self._lookup_url.replace(KEY_PLACE, quote(wire_key(operation_key), safe=""))
        answer = await self._exchange("GET", url, {}, None)
        if isinstance(answer, _Broken):
            return NoAnswer(answer.reason)
        try:
            return self._judge_lookup(answer)
        except Exception as error:  # noqa: BLE001 - the callables are the user's
            return NoAnswer(f"HTTP {answer.status}, and reading the answer raised {type(error).__name__}")

    def _judge(self, answer: _Answer) -> Outcome:
        own: object = self._classify(answer.response) if self._classify else None
        if own is not None:
            if isinstance(own, Succeeded | FailedBeforeDispatch | Rejected | Unknown):
                return own
            return Unknown(f"HTTP {answer.status}, and classify returned {type(own).__name__}, not an outcome")
        status = answer.status
        if 200 <= status < 300:
            return Succeeded(self._proof(answer))
        if status == 429:
            return FailedBeforeDispatch("HTTP 429", retry_after=retry_after(answer.response))
        if status in AUTHENTICATION_STATUSES:
            return Rejected(f"HTTP {status}", category="authentication")
        if 400 <= status < 500 and status not in UNCERTAIN_STATUSES:
            return Rejected(f"HTTP {status}")
        return Unknown(f"HTTP {status}")

    def _judge_lookup(self, answer: _Answer) -> Evidence:
        own: object = self._classify_lookup(answer.response) if self._classify_lookup else None
        if own is not None:
            if isinstance(own, Accepted | Declined | Absent | NoAnswer):
                return own
            return NoAnswer(f"HTTP {answer.status}, and classify_lookup returned {type(own).__name__}, not evidence")
        status = answer.status
        if status == 200:
            # A page that somebody put in between also answers 200, but not with JSON.
            try:
                answer.json()
            except ValueError as problem:
                return NoAnswer(f"HTTP 200, but the answer is {problem}")
            return Accepted(self._proof(answer))
        if status == 404:
            return Absent()
        return Declined(f"HTTP {status}") if status in self._declined else NoAnswer(f"HTTP {status}")

    def _proof(self, answer: _Answer) -> Json:
        if self._receipt is not None:
            return self._receipt(answer.response)
        if not answer.body and not answer.unread:
            return {"status": answer.status}
        try:
            return {"body": answer.json()}
        except ValueError as problem:
            return {"body_left_out": str(problem)}

    async def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None
    ) -> _Answer | _Broken:
        refuse_call(self.name)
        limit = self.timeout.total_seconds()
        trace = _Trace()
        answer: _Answer | None = None
        try:
            async with asyncio.timeout(limit), self._opened() as client:
                request = client.build_request(
                    method,
                    url,
                    # Without compression the bound on what is read is a bound on what is kept.
                    headers={**self._headers, "Accept": "application/json", "Accept-Encoding": "identity", **headers},
                    content=content,
                    timeout=self._httpx.Timeout(limit, connect=limit * CONNECT_SHARE, pool=limit * CONNECT_SHARE),
                    extensions={"trace": trace},
                )
                auth = self._httpx.USE_CLIENT_DEFAULT if self._auth is None else self._auth
                response = await client.send(request, stream=True, auth=auth, follow_redirects=False)
                try:
                    answer = await self._read(response)
                finally:
                    await response.aclose()
        except Exception as error:  # noqa: BLE001 - whatever it is, only what the connection did counts
            if answer is None:
                return self._broken(error, trace)
        assert answer is not None
        return answer

    @contextlib.asynccontextmanager
    async def _opened(self) -> AsyncIterator[httpx.AsyncClient]:
        if self._client is not None:
            yield self._client
            return
        client: httpx.AsyncClient = self._httpx.AsyncClient(verify=_tls(), trust_env=self._trust_env)
        async with client:
            yield client

    async def _read(self, response: httpx.Response) -> _Answer:
        """Read an answer up to the bound; one that breaks off raises, and is then no answer."""
        body, unread = b"", ""
        if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            unread = "compressed"  # asked not to be; unpacking it could yield any size
        else:
            async for part in response.aiter_raw():
                body += part
                if len(body) > ANSWER_BYTES_MAX:
                    body, unread = b"", "too long"
                    break
        framing = {"content-encoding", "content-length", "transfer-encoding"}
        copy = self._httpx.Response(
            response.status_code,
            headers=[(key, value) for key, value in response.headers.multi_items() if key not in framing],
            content=body,
            request=self._httpx.Request(response.request.method, response.request.url),
        )
        return _Answer(response.status_code, body, unread, copy)

    def _broken(self, error: Exception, trace: _Trace) -> _Broken:
        """Say whether a connection stood when a call broke off; in doubt it did."""
        root = _root(error)
        if isinstance(error, self._httpx.PoolTimeout):
            return _Broken(connected=False, reason="the client had no free connection (PoolTimeout)")
        if trace.heard or self._client is None:
            # Our own client tells every step, so nothing heard is nothing begun.
            connected = trace.connected
        else:
            # The user's transport may tell nothing; then only its plain word counts.
            connected = not isinstance(error, self._httpx.ConnectError) or isinstance(root, ssl.SSLError)
        if not connected:
            return _Broken(connected=False, reason=f"no connection ({_name(error)})")
        return _Broken(connected=True, reason=f"no whole answer ({_name(error)})")


@dataclass(frozen=True, slots=True)
class _Answer:
    """
    A whole answer.

    Attributes:
        unread: Why the body was not read, or empty.
        response: A copy for the caller's functions: small, and without our request's headers.
    """

    status: int
    body: bytes
    unread: str
    response: httpx.Response

    def json(self) -> Json:
        """Give the body; raises ValueError with a word that says why not."""
        if self.unread:
            raise ValueError(self.unread)
        return json_answer(self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Broken:
    """A call without an answer."""

    connected: bool
    reason: str


@dataclass(slots=True)
class _Trace:
    """
    Listens to the client library's steps; the names are those of httpcore's trace extension.

    Attributes:
        heard: The transport tells its steps.
        connected: Some step came that is not part of connecting.
    """

    heard: bool = False
    connected: bool = field(default=False)

    async def __call__(self, event: str, _info: Mapping[str, Any]) -> None:
        self.heard = True
        self.connected = self.connected or event not in _CONNECTING


def retry_after(response: httpx.Response) -> timedelta | None:
    """
    Read Retry-After, in seconds or as a date; None if there is none or it cannot be read.

    A date is measured from the answer's own Date where it has one, so that a wrong clock here changes nothing.
    """
    text = response.headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(text):
        seconds = int(text)
        return RETRY_AFTER_MAX if seconds > RETRY_AFTER_MAX.total_seconds() else timedelta(seconds=seconds)
    at = _http_date(text)
    if at is None:
        return None
    wait = at - (_http_date(response.headers.get("date", "")) or datetime.now(UTC))
    return min(max(wait, timedelta(0)), RETRY_AFTER_MAX)


def _http_date(text: str) -> datetime | None:
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def _root(error: BaseException) -> BaseException:
    """Follow the chain to the first word of the operating system or the TLS library; without one, the error itself."""
    found, seen = error, set()
    while id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError):
            found = error
        error = error.__cause__ or error.__context__ or error
    return found


def _name(error: BaseException) -> str:
    root = _root(error)
    names = [type(error).__name__, type(root).__name__]
    return names[0] if root is error or names[0] == names[1] else ": ".join(names)


def check_url(url: str, what: str) -> str:
    """Refuse an address that is not one; the texts never show it, a token may be in its query."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except (ValueError, TypeError, AttributeError):
        raise Invalid(f"{what} is not a URL") from None
    if parts.scheme not in {"http", "https"} or not host:
        raise Invalid(f"{what} starts with http:// or https:// and a host")
    if parts.username is not None or parts.password is not None:
        raise Invalid(f"{what} holds credentials, and client libraries log addresses; give them as auth=")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise Invalid(f"{what} holds characters that a URL writes percent-encoded")
    return url


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Refuse headers that could not be sent, and the one that is the operation key's."""
    for name, value in headers.items():
        if not _matches(_FIELD_NAME, name):
            raise Invalid("a header's name is letters, digits and hyphens")
        if not _matches(_FIELD_VALUE, value):
            raise Invalid(f"header {name} holds something other than printable ASCII text")
        if name.lower() == KEY_HEADER.lower():
            raise Invalid(f"header {KEY_HEADER} is the operation key's; it cannot be set by hand")
    return dict(headers)


def _matches(pattern: re.Pattern[str], text: object) -> bool:
    return isinstance(text, str) and pattern.fullmatch(text) is not None


@functools.cache
def _tls() -> ssl.SSLContext:
    """Read the certificates once; a client of its own for each call would read them each time."""
    context: ssl.SSLContext = _import_httpx().create_ssl_context()
    return context


def _import_httpx() -> ModuleType:
    try:
        import httpx  # noqa: PLC0415 - an extra: imported only where it is used
    except ImportError:
        raise Invalid("HttpProvider needs httpx: pip install 'tenure[http]'", code="MISSING_EXTRA") from None
    return httpx
