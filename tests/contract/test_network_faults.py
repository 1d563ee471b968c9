"""
The network between a store and its PostgreSQL is spoiled in twelve ways, while it is asked for what it writes.

Every call ends within its deadline, with an answer or a typed error; and where nobody knows whether it was done, asking
again for the same thing says so: the rows are then those of one clean call.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import tenure
from tenure import outbox, verbs
from tenure.errors import Conflict, Refused, TenureError, Unavailable, Uncertain
from tenure.inbox import IncomingEvent
from tenure.procedures.outbox import add_message, claim_messages, finish_messages
from tenure.rules.message import Delivered
from tenure.stores.postgres.store import PostgresStore
from tenure.verbs.scope import Scope
from tests.contract.bench import Bench
from tests.contract.build import EXECUTION, KIND, PAYLOAD, create
from tests.contract.conftest import Benches
from tests.contract.governed import grant, grant_of
from tests.support.proxy import Proxy
from tests.support.toxics import KINDS as BYTES
from tests.support.toxics import Toxics

PATIENCE = timedelta(seconds=1.5)
DEADLINE = PATIENCE.total_seconds() + 1
# Beside what spoils bytes: the two that know a COMMIT when they see one.
KINDS = (*(kind for kind in BYTES if kind != "dropped answer"), "cut before commit", "dropped answer to a commit")
SPOILED_ONCE = {"cut before commit", "dropped answer to a commit"}
A_MINUTE = timedelta(minutes=1)
EVENT = IncomingEvent("acme", "op-1", "quote.accepted", 1, "quote/17", {"quote": 17})

Act = Callable[[Bench, Any], Any]


@dataclass(frozen=True)
class Subject:
    """
    One thing to ask for.

    Attributes:
        before: What is there first; what it gives is handed on.
        act: The call, the same each time.
        after: What the database holds when it was done once.
    """

    before: Callable[[Bench], Any]
    act: Act
    after: Callable[[Bench], Any]


def _message(bench: Bench) -> None:
    bench.run(add_message(_prepared()))


def _prepared() -> Any:
    return outbox.prepare(destination="mail", type="t", data={}, tenant="acme", operation="op-1")


def _claimed(bench: Bench) -> Any:
    _message(bench)
    return bench.run(claim_messages("r-1", "mail", 10, A_MINUTE)).outgoing


def _received(bench: Bench, _: Any) -> None:
    with bench.transaction() as tx:
        if tenure.inbox.receive(tx, "ledger", EVENT, "d-1").new:
            tx.execute("INSERT INTO own VALUES (17)")


def _finished(bench: Bench, outgoing: Any) -> None:
    bench.run(finish_messages("r-1", [(outgoing[0], Delivered())], backoff=A_MINUTE))


def _joined(bench: Bench, _: Any) -> None:
    """Create in a transaction of the caller's own, whose connection goes the same way."""
    # The caller's own connection has the caller's own limits.
    with psycopg.connect(_WAY[0], connect_timeout=2) as connection:
        connection.execute("SELECT 1")
        joined: Any = bench.store.join(connection)
        made = verbs.create_job(
            Scope(),
            organization="acme",
            project="p1",
            idempotency_key="k-9",
            kind=KIND,
            payload=PAYLOAD,
            execution=EXECUTION,
        )
        joined.run(made)


_WAY: list[str] = []


def count(table: str, where: str = "tenant = 'acme'") -> Callable[[Bench], Any]:
    return lambda bench: bench.sql(f"SELECT count(*) FROM ${table} WHERE {where}")[0][0]


def _epoch(bench: Bench) -> bool:
    return bool(bench.sql("SELECT epoch FROM $authority WHERE tenant = 'acme'")[0][0] > 1)


def _rotated(bench: Bench) -> None:
    create(bench.service)
    bench.service.rotate_tenant("acme", actor="op:1", reason="r")


SUBJECTS: dict[str, Subject] = {
    "add a message": Subject(lambda b: None, lambda b, _: _message(b), count("message")),
    "receive": Subject(lambda b: None, _received, lambda b: (b.sql("SELECT value FROM own"), count("inbox")(b))),
    "claim messages": Subject(
        _message, lambda b, _: b.run(claim_messages("r-1", "mail", 10, A_MINUTE)), count("message_lease")
    ),
    "finish messages": Subject(_claimed, _finished, count("message_done")),
    "grant": Subject(lambda b: None, lambda b, _: b.service.grant_approval("ap-2", **grant_of(b)), count("approval")),
    "revoke an approval": Subject(
        grant,
        lambda b, _: b.service.revoke_approval("ap-1", tenant="acme", reason="r", actor="user:1"),
        count("approval", "revoked_at IS NOT NULL"),
    ),
    # What nothing names may happen twice when it is asked for twice, and does no harm: it is asked whether it was done.
    "rotate": Subject(
        lambda b: create(b.service), lambda b, _: b.service.rotate_tenant("acme", actor="op:1", reason="r"), _epoch
    ),
    "readmit": Subject(
        _rotated,
        lambda b, _: b.service.readmit_jobs("acme", actor="op:1", reason="r"),
        count("event", "name = 'readmitted'"),
    ),
    "pause a queue": Subject(
        lambda b: create(b.service),
        lambda b, _: b.service.pause_queue("default", reason="r", actor="op:1"),
        lambda b: b.service.show_queues(name="default")[0].paused_at is not None,
    ),
    "drain a queue": Subject(
        lambda b: create(b.service),
        lambda b, _: b.service.drain_queue("default", actor="op:1"),
        lambda b: b.service.show_queues(name="default")[0].draining_at is not None,
    ),
    "transfer a queue": Subject(
        lambda b: create(b.service),
        lambda b, _: b.service.transfer_queue("default", owner="a", expected=None, with_work=True, actor="op:1"),
        lambda b: b.service.show_queues(name="default")[0].owner,
    ),
    "stats": Subject(lambda b: create(b.service), lambda b, _: b.service.stats(), lambda b: None),
    "create joined": Subject(lambda b: None, _joined, count("job_key", "idempotency_key = 'k-9'")),
}


class Way:
    """A store whose connections go through what spoils bytes, and then through what knows a COMMIT."""

    def __init__(self, benches: Benches) -> None:
        direct = benches.get("postgresql-blocking")
        self.direct = direct
        self._proxy = Proxy(direct.database.url)
        self._toxics = Toxics(self._proxy.url)
        self.url = self._toxics.url
        self.store = PostgresStore(self._toxics.url, clock=direct.test_clock, patience=PATIENCE)
        self.bench = Bench(direct.database, self.store, direct.test_clock, None)

    @contextlib.contextmanager
    def spoiled(self, kind: str) -> Iterator[None]:
        if kind == "cut before commit":
            self._proxy.lose_commits()
        elif kind == "dropped answer to a commit":
            self._proxy.lose_replies()
        else:
            self._toxics.spoil(kind)
        try:
            yield
        finally:
            self._toxics.heal()
            self._proxy.lose_commits(0)
            self._proxy.lose_replies(0)

    def hits(self, kind: str) -> int:
        names = {"cut before commit": "lost_commits", "dropped answer to a commit": "lost_replies"}
        return self._proxy.seen[names[kind]] if kind in names else self._toxics.hits[kind]

    def close(self) -> None:
        self.store.close()
        self._toxics.close()
        self._proxy.close()


@pytest.fixture(scope="module")
def way(benches: Benches) -> Iterator[Way]:
    made = Way(benches)
    _WAY[:] = [made.url]
    yield made
    made.close()


def cases(each: int) -> dict[str, list[str]]:
    """Give this many subjects for each kind, so that every subject meets as many kinds as the others."""
    turn = itertools.cycle(SUBJECTS)
    return {kind: list(itertools.islice((one for one in turn if meets(kind, one)), each)) for kind in KINDS}


def meets(kind: str, name: str) -> bool:
    """Say whether a subject has a deadline of ours under this kind; silence on a caller's own connection has none."""
    return not (name == "create joined" and kind in {"silence", "timeout"})


def play(way: Way, kind: str, name: str) -> str:
    """Ask while the network is spoiled; then, where nobody knows, ask again; give how the first call ended."""
    subject = SUBJECTS[name]
    bench = way.direct
    bench.reset()
    given = subject.before(bench)
    subject.act(bench, given) if name != "create joined" else _joined(way.bench, given)
    clean = subject.after(bench)
    bench.reset()
    given = subject.before(bench)
    began = time.monotonic()
    with way.spoiled(kind):
        try:
            subject.act(way.bench, given)
            told = "ok"
        except (Unavailable, Uncertain, psycopg.OperationalError):
            told = "unknown"
        except TenureError:
            told = "refused"
        took = time.monotonic() - began
    assert took < DEADLINE, f"{name} with {kind} took {took:.1f} s"
    if told == "unknown":
        # It was done and is done: a stale end, a message that is there, the same grant.
        with contextlib.suppress(Conflict, Refused):
            subject.act(way.bench, given)
    assert told != "refused", f"{name} with {kind} was refused, and nothing forbids it"
    assert subject.after(bench) == clean, f"{name} with {kind} ended as {told}"
    return told


def run(way: Way, chosen: dict[str, list[str]]) -> None:
    ended: Counter[str] = Counter()
    for kind, names in chosen.items():
        before = way.hits(kind)
        ended += Counter(play(way, kind, name) for name in names)
        assert way.hits(kind) > before, f"{kind} never was at work"
    print(f"exercised: {sum(ended.values())} cases, {dict(ended)}")
    assert ended["ok"]
    assert ended["unknown"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_spoiled_network_never_leaves_a_call_undecided(way: Way, kind: str) -> None:
    chosen = {kind: cases(5)[kind]}
    before = way.hits(kind)
    ended = Counter(play(way, kind, name) for name in chosen[kind])
    print(f"exercised: {kind}, {dict(ended)}")
    assert way.hits(kind) > before, f"{kind} never was at work"


@pytest.mark.nightly
def test_every_subject_meets_every_kind_by_night(way: Way) -> None:
    for _ in range(3):
        run(way, {kind: [name for name in SUBJECTS if meets(kind, name)] for kind in KINDS})


def test_there_are_twelve_kinds_and_sixty_cases() -> None:
    chosen = cases(5)
    assert len(KINDS) == 12
    assert sum(len(names) for names in chosen.values()) == 60
    assert set(itertools.chain(*chosen.values())) == set(SUBJECTS)
