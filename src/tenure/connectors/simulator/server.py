"""
The simulated provider itself: what it promises, what goes wrong, and a real HTTP server on loopback.

    POST /effects            does something; Idempotency-Key and X-Account are read
    GET  /effects/{key}      says what became of a key
    POST /_faults            queues one fault or a list of them; GET lists what is queued, DELETE clears it
    POST /_release           lets held replies go: {"key": pattern}
    GET  /_state             what is held and counted; ?held=1&accepted=2&requests=3&timeout=10 waits for that

The ledger is written and fsynced before an answer, so what a client was told is in it. One lock makes requests follow
each other, as a provider with idempotency keys must make those under the same key.
"""

from __future__ import annotations

import contextlib
import json
import socketserver
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from hashlib import sha256
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tenure.connectors.simulator.faults import BEFORE, LOOKUP_FAULTS, SEND_FAULTS, Fault
from tenure.connectors.simulator.ledger import Entry, Ledger, duplicates_in
from tenure.errors import Invalid

HOST = "127.0.0.1"
BODY_BYTES_MAX = 1 << 20
WAIT_SECONDS_MAX = 60.0
SCOPES = frozenset({"account", "global"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """
    What the simulated provider promises.

    Attributes:
        idempotency_keys: It does each key once; without, it does whatever arrives and marks the duplicates.
        key_scope: account: a key is unique for an account. global: for all of them together.
        retention: How long it remembers a key, from the first request.
        binds_payload: The same key with another payload is refused with 422; otherwise it gets the first answer.
        lookup: It can be asked by key.
        lookup_complete: It says so of its look-up.
    """

    idempotency_keys: bool = True
    key_scope: str = "account"
    retention: timedelta = timedelta(hours=24)
    binds_payload: bool = True
    lookup: bool = True
    lookup_complete: bool = True

    def __post_init__(self) -> None:
        if self.key_scope not in SCOPES:
            raise Invalid(f"key_scope is one of {', '.join(sorted(SCOPES))}, not {self.key_scope!r}")
        if self.retention <= timedelta(0):
            raise Invalid("retention is above zero")


@dataclass(frozen=True, slots=True)
class Reply:
    """
    What goes back to the client.

    Attributes:
        status: 0: the connection is closed without an answer.
        body: A JSON value, or a text that is sent as it is.
    """

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


DROPPED = Reply(0)


@dataclass(slots=True)
class _Held:
    entry: Entry
    released: threading.Event = field(default_factory=threading.Event)


class World:
    """What the provider knows; every method may be called from any thread."""

    def __init__(self, ledger: Ledger, promises: Promises, now: Callable[[], datetime]) -> None:
        self.promises = promises
        self._ledger = ledger
        self._now = now
        self._changed = threading.Condition()
        self._faults: list[Fault] = []
        self._hits: Counter[str] = Counter()
        self._held: list[_Held] = []
        self._requests = 0
        self._closing = False
        # Its memory is the ledger: a simulator that was killed and started again knows all that it did.
        self._acts: dict[tuple[str, str], list[Entry]] = {}
        self._refused: set[tuple[str, str]] = set()
        for entry in ledger.entries:
            self._remember(entry)

    def send(self, operation_key: str, account: str, body: bytes) -> Reply:
        """Handle one request to act."""
        with self._changed:
            self._requests += 1
            fault = self._take(SEND_FAULTS, operation_key)
            reply, entry = self._decide(fault, operation_key, account, sha256(body).hexdigest())
            held = _Held(entry) if fault and fault.kind in {"hold_reply", "late_reply"} and entry.effect_id else None
            if held and not self._closing:
                self._held.append(held)
            self._changed.notify_all()
        if fault and held:
            held.released.wait(fault.seconds)
            with self._changed:
                self._held = [other for other in self._held if other is not held]
                self._changed.notify_all()
        return reply

    def look_up(self, operation_key: str, account: str) -> Reply:
        """Handle one question about a key."""
        with self._changed:
            fault = self._take(LOOKUP_FAULTS, operation_key)
            identity = self._identity(account, operation_key)
            acts = self._acts.get(identity, [])
            if not self.promises.lookup:
                reply = Reply(501, {"error": "this provider has no look-up"})
            elif fault:
                reply = _fault_reply(fault)
            elif acts:
                reply = _accepted(acts[0])
            elif identity in self._refused:
                reply = Reply(422, {"operation_key": operation_key, "state": "refused"})
            else:
                reply = Reply(404, {"error": "no such operation"})
            self._write(
                action="looked_up",
                account=account,
                operation_key=operation_key,
                status=reply.status,
                fault=fault.kind if fault else "",
            )
            self._changed.notify_all()
        return reply

    def queue(self, faults: list[Fault]) -> None:
        """Append faults; for each request the first one that fits is at work."""
        with self._changed:
            self._faults.extend(faults)

    def faults(self) -> list[Fault]:
        """Give what is queued, with what is left of `times`."""
        with self._changed:
            return list(self._faults)

    def clear(self) -> None:
        """Forget what is queued; held replies stay held."""
        with self._changed:
            self._faults.clear()

    def release(self, pattern: str = "*") -> int:
        """Let held replies go; gives how many."""
        with self._changed:
            going = [held for held in self._held if fnmatchcase(held.entry.operation_key, pattern)]
            for held in going:
                held.released.set()
            return len(going)

    def close(self) -> None:
        """Let everything that waits go, and hold nothing any more."""
        with self._changed:
            self._closing = True
            self._faults.clear()
            for held in self._held:
                held.released.set()
            self._changed.notify_all()

    def state(self, *, held: int = 0, accepted: int = 0, requests: int = 0, seconds: float = 0) -> dict[str, Any]:
        """Give counters and what is held, waiting until there are at least so many of each."""

        def reached() -> bool:
            return len(self._held) >= held and self._accepted() >= accepted and self._requests >= requests

        with self._changed:
            met = self._changed.wait_for(lambda: self._closing or reached(), min(max(seconds, 0), WAIT_SECONDS_MAX))
            return {
                "met": met and reached(),
                "held": [
                    {"operation_key": one.entry.operation_key, "effect_id": one.entry.effect_id, "since": one.entry.at}
                    for one in self._held
                ],
                "accepted": self._accepted(),
                "requests": self._requests,
                "duplicates": len(duplicates_in(self._ledger.entries)),
                "actions": Counter(entry.action for entry in self._ledger.entries),
                "faults_hit": dict(self._hits),
                "faults_queued": len(self._faults),
            }

    def _decide(self, fault: Fault | None, key: str, account: str, digest: str) -> tuple[Reply, Entry]:
        common: dict[str, Any] = {
            "account": account,
            "operation_key": key,
            "payload_digest": digest,
            "fault": fault.kind if fault else "",
        }
        if fault and fault.kind in BEFORE:
            reply = _fault_reply(fault)
            action = "refused" if fault.kind == "refuse" else "turned_away"
            return reply, self._write(action=action, status=reply.status, **common)
        earlier = self._acts.get(self._identity(account, key), []) if key else []
        remembered = earlier[-1] if earlier and self._remembers(earlier) else None
        if remembered and self.promises.binds_payload and remembered.payload_digest != digest:
            body = {"error": "this key was used with another payload"}
            return Reply(422, body), self._write(action="refused", status=422, **common)
        spoilt = _fault_reply(fault) if fault and fault.kind in {"drop_reply", "error_after"} else None
        status = 200 if spoilt is None else spoilt.status
        if remembered:
            entry = self._write(action="replayed", effect_id=remembered.effect_id, status=status, **common)
            again = replace(_accepted(remembered), headers={"Idempotent-Replayed": "true"})
            return (again if spoilt is None else spoilt), entry
        effect_id = f"fx-{len(self._ledger.entries) + 1}"
        entry = self._write(action="accepted", effect_id=effect_id, status=status, duplicate=bool(earlier), **common)
        return (_accepted(entry) if spoilt is None else spoilt), entry

    def _take(self, kinds: Mapping[str, int], operation_key: str) -> Fault | None:
        for index, fault in enumerate(self._faults):
            if fault.matches(kinds, operation_key):
                if fault.times is not None and fault.times == 1:
                    del self._faults[index]
                elif fault.times is not None:
                    self._faults[index] = replace(fault, times=fault.times - 1)
                self._hits[fault.kind] += 1
                return fault
        return None

    def _remembers(self, earlier: list[Entry]) -> bool:
        """Whether the key's first request since it was last forgotten is young enough; replays renew nothing."""
        if not self.promises.idempotency_keys:
            return False
        return self._now() - datetime.fromisoformat(earlier[-1].at) < self.promises.retention

    def _write(self, **fields: Any) -> Entry:
        entry = self._ledger.append(at=self._now().isoformat(), **fields)
        self._remember(entry)
        return entry

    def _remember(self, entry: Entry) -> None:
        identity = self._identity(entry.account, entry.operation_key)
        if entry.action == "accepted":
            self._acts.setdefault(identity, []).append(entry)
        elif entry.action == "refused":
            self._refused.add(identity)

    def _identity(self, account: str, key: str) -> tuple[str, str]:
        return ("" if self.promises.key_scope == "global" else account, key)

    def _accepted(self) -> int:
        return sum(len(acts) for acts in self._acts.values())


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """The HTTP server; `world` is what it serves."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, world: World, port: int) -> None:
        self.world = world
        super().__init__((HOST, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing about clients that went away: they are killed on purpose."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "tenure-simulator"
    sys_version = ""
    timeout = 30

    def do_POST(self) -> None:
        body = self._body()
        if body is None:
            return
        world, path = self.server.world, urlsplit(self.path).path
        if path == "/effects":
            self._answer(world.send(self.headers.get("Idempotency-Key", ""), self._account(), body))
        elif path == "/_faults":
            self._control(lambda: world.queue(_read_faults(body)))
        elif path == "/_release":
            self._control(lambda: {"released": world.release(_read_pattern(body))})
        else:
            self._answer(Reply(404, {"error": "no such address"}))

    def do_GET(self) -> None:
        world, parts = self.server.world, urlsplit(self.path)
        if parts.path.startswith("/effects/"):
            self._answer(world.look_up(unquote(parts.path.removeprefix("/effects/")), self._account()))
        elif parts.path == "/_state":
            self._control(lambda: world.state(**_read_wait(parts.query)))
        elif parts.path == "/_faults":
            self._control(lambda: [fault.as_json() for fault in world.faults()])
        else:
            self._answer(Reply(404, {"error": "no such address"}))

    def do_DELETE(self) -> None:
        if urlsplit(self.path).path == "/_faults":
            self._control(self.server.world.clear)
        else:
            self._answer(Reply(404, {"error": "no such address"}))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Print nothing: the ledger says what happened."""

    def _account(self) -> str:
        return self.headers.get("X-Account", "default")

    def _body(self) -> bytes | None:
        text = self.headers.get("Content-Length", "")
        if not text.isdecimal():
            self._answer(Reply(411, {"error": "Content-Length is needed"}))
            return None
        length = int(text)
        if length > BODY_BYTES_MAX:
            # Read what comes all the same: a client that is still writing would see a reset and not the answer.
            for start in range(0, min(length, 64 * BODY_BYTES_MAX), BODY_BYTES_MAX):
                self.rfile.read(min(BODY_BYTES_MAX, length - start))
            self._answer(Reply(413, {"error": f"up to {BODY_BYTES_MAX} bytes"}))
            return None
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True  # the client broke off; nothing was asked
            return None
        return body

    def _control(self, action: Callable[[], Any]) -> None:
        try:
            self._answer(Reply(200, action()))
        except (Invalid, ValueError) as refusal:
            self._answer(Reply(400, {"error": str(refusal)}))

    def _answer(self, reply: Reply) -> None:
        # One request per connection: a client that pools sees no difference, and no thread waits for the next one.
        self.close_connection = True
        if reply.status == 0:
            return
        text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
        with contextlib.suppress(ConnectionError):
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text.encode())))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(text.encode())


def _accepted(entry: Entry) -> Reply:
    """Answer the same for the first request, its replays and the look-up: one act, one receipt."""
    body = {"effect_id": entry.effect_id, "operation_key": entry.operation_key, "state": "accepted"}
    return Reply(200, body)


def _fault_reply(fault: Fault) -> Reply:
    if fault.answer_status == 0:
        return DROPPED
    headers = {} if fault.retry_after is None else {"Retry-After": fault.retry_after}
    return Reply(fault.answer_status, {"error": fault.kind} if fault.body is None else fault.body, headers)


def _read_faults(body: bytes) -> list[Fault]:
    given = json.loads(body)
    return [Fault.read(one) for one in (given if isinstance(given, list) else [given])]


def _read_pattern(body: bytes) -> str:
    given = json.loads(body or b"{}")
    pattern = given.get("key", "*") if isinstance(given, dict) else None
    if not isinstance(pattern, str):
        raise Invalid("a release is an object with a pattern of keys: {'key': '*'}")
    return pattern


def _read_wait(query: str) -> dict[str, Any]:
    given = dict(parse_qsl(query))
    if not given.keys() <= {"held", "accepted", "requests", "timeout"}:
        raise Invalid("a state is asked for with held, accepted, requests and timeout")
    seconds = float(given.pop("timeout", "0"))
    return {name: int(value) for name, value in given.items()} | {"seconds": seconds}


def utc_now() -> datetime:
    """Give this machine's time."""
    return datetime.now(UTC)
