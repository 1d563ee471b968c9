"""
Through PgBouncer in transaction mode with two connections.

The contract's own tests run through it as one more bench; see conftest.py. Here: that the way leads through it, and
that nothing which a store, a worker or a relay says on a pooled URL belongs to a session.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tenure import AsyncContext
from tests.contract.bench import close_bench
from tests.contract.conftest import POSTGRESQL, Benches
from tests.contract.test_lost_commit import STORIES
from tests.loops.stage import Running, make_app, until
from tests.support.brokers import or_skip
from tests.support.pgbouncer import MIXING, PgBouncer
from tests.support.proxy import Proxy

# What outlives its transaction, or belongs to one session: none of it may be said on a pooled connection. A RESET
# leaves nothing; behind a caller's block it goes with the COMMIT in one message, and so to the same session.
_OF_A_SESSION = re.compile(
    r"^\s*(SET\s+(?!LOCAL\b|TRANSACTION\b|CONSTRAINTS\b)|LISTEN|UNLISTEN|PREPARE|EXECUTE|DEALLOCATE|DISCARD|LOAD"
    r"|CREATE\s+(GLOBAL\s+|LOCAL\s+)?TEMP|DECLARE\s.*WITH\s+HOLD)"
    r"|pg_(try_)?advisory_lock|pg_advisory_unlock|set_config\([^)]*,\s*false\s*\)",
    re.IGNORECASE | re.DOTALL,
)
# PgBouncer itself keeps some settings for its clients, and sets them on whichever connection a client gets.
_LEFT_BEHIND = """
SELECT (SELECT array_agg(name) FROM pg_settings WHERE source = 'session'
        AND name <> ALL('{application_name,client_encoding,DateStyle,TimeZone,standard_conforming_strings}')),
    (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_listening_channels()),
    (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
    (SELECT count(*) FROM pg_cursors WHERE is_holdable),
    (SELECT count(*) FROM pg_class WHERE relpersistence = 't' AND pg_table_is_visible(oid))
"""


def of_a_session(text: str) -> bool:
    return _OF_A_SESSION.search(text) is not None


def left_behind(url: str) -> list[tuple[Any, ...]]:
    """Look at both sessions behind a pooler from within, and give what somebody left there."""
    found = []
    with contextlib.ExitStack() as stack:
        # Two transactions at once have both connections that there are.
        for _ in range(2):
            looking = stack.enter_context(psycopg.connect(url.partition("?")[0], prepare_threshold=None))
            found.append(looking.execute(_LEFT_BEHIND).fetchone() or ())
    return found


CLEAN = (None, 0, 0, 0, 0, 0)


@pytest.fixture
def watched(benches: Benches) -> Iterator[tuple[PgBouncer, Proxy]]:
    """Give a pooler and a proxy in front of it, which keeps every statement that clients send."""
    url = benches.database("postgresql").url
    with or_skip(lambda: PgBouncer(url, settings=MIXING)) as pooler, Proxy(pooler.url) as proxy:
        pooler.take_turns()
        yield pooler, proxy


def test_the_way_leads_through_the_pooler_and_its_sessions_are_shared(postgres_database: str) -> None:
    with or_skip(lambda: PgBouncer(postgres_database, settings=MIXING)) as pooler:
        pooler.take_turns()
        url = pooler.url.partition("?")[0]
        clients = [psycopg.connect(url, autocommit=True) for _ in range(6)]
        try:
            for client in clients:
                client.prepare_threshold = None
            sessions = {client.execute("SELECT pg_backend_pid()").fetchone() for client in clients * 3}
            assert len(sessions) == 2
            # What a client leaves in a session is there for the next one: the look below would see it.
            clients[0].execute("SET lock_timeout = '7s'")
            assert sorted(left_behind(pooler.url), key=repr) == [CLEAN, (["lock_timeout"], *CLEAN[1:])]
        finally:
            for client in clients:
                client.close()


@pytest.mark.parametrize("name", POSTGRESQL)
def test_no_verb_leaves_anything_in_a_session(name: str, benches: Benches, watched: tuple[PgBouncer, Proxy]) -> None:
    pooler, proxy = watched
    benches.get(name)
    bench = benches.open(name, proxy.url)
    try:
        for build, act in STORIES.values():
            bench.reset()
            case = build(bench)
            with contextlib.suppress(Exception):
                act(bench, case)  # a refusal says as much on its connection as an answer
        bench.service.list_jobs()
        bench.service.stats()
        with bench.transaction() as tx:
            # The caller's own doing, and it goes with the block.
            tx.execute("SET lock_timeout = '7s'")
    finally:
        close_bench(bench)
    assert len(set(proxy.statements)) > 100
    assert [text for text in proxy.statements if of_a_session(text)] == ["SET lock_timeout = '7s'"]
    assert proxy.named == 0
    assert left_behind(pooler.url) == [CLEAN, CLEAN]


def test_a_worker_leaves_nothing_in_a_session_and_listens_on_a_way_of_its_own(
    postgres_database: str,
) -> None:
    with (
        or_skip(lambda: PgBouncer(postgres_database, settings=MIXING)) as pooler,
        Proxy(pooler.url) as proxy,
        Proxy(postgres_database) as direct,
    ):
        pooler.take_turns()
        _works(proxy.url)
        # LISTEN off: nothing but the pooled way is used.
        assert direct.seen["connections"] == 0
        _works(proxy.url.replace("tenure_listen=off", f"tenure_listen={direct.url}"))
        assert any(text.startswith("LISTEN") for text in direct.statements)
        assert len(set(proxy.statements)) > 20
        assert [text for text in proxy.statements if of_a_session(text)] == []
        assert proxy.named == 0
        assert left_behind(pooler.url) == [CLEAN, CLEAN]
        # The control: on its direct way a worker does both, and both are seen.
        _works(direct.url)
        assert direct.named > 0
        assert any(of_a_session(text) for text in direct.statements)


def _works(url: str) -> None:
    app = make_app(url)
    app.migrate()
    done: list[int] = []

    async def send(ctx: AsyncContext, payload: dict[str, Any]) -> None:
        done.append(payload["n"])

    app.job("send")(send)
    with Running(app):
        for n in range(30):
            app.enqueue("send", {"n": n}, key=f"{url}-{n}")
        until(lambda: len(set(done)) == 30, "the jobs to run")
    app.close()


@pytest.mark.parametrize(
    "text",
    [
        "SET lock_timeout = 1",
        "set session timezone = 'UTC'",
        "LISTEN x",
        "SELECT pg_advisory_lock(1)",
        "SELECT set_config('a.b', 'c', false)",
        "PREPARE a AS SELECT 1",
        "CREATE TEMP TABLE t ()",
        "DISCARD ALL",
    ],
)
def test_what_belongs_to_a_session_is_recognised(text: str) -> None:
    assert of_a_session(text)


@pytest.mark.parametrize(
    "text",
    [
        "SET LOCAL lock_timeout = 1",
        "SET TRANSACTION READ ONLY",
        "SELECT pg_advisory_xact_lock(1)",
        "SELECT set_config('a.b', 'c', true)",
        "UPDATE t SET a = 1",
    ],
)
def test_what_ends_with_its_transaction_is_not(text: str) -> None:
    assert not of_a_session(text)
