"""Through PgBouncer in transaction mode with two connections: creation is what it is without."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.contract.bench import Bench, close_bench
from tests.contract.conftest import POSTGRESQL, Benches
from tests.contract.test_creation import test_a_job_has_the_defaults_that_are_promised as defaults
from tests.contract.test_creation import test_every_field_comes_back as fields
from tests.support.brokers import or_skip
from tests.support.pgbouncer import PgBouncer


@pytest.fixture(params=POSTGRESQL)
def pooled(request: pytest.FixtureRequest, benches: Benches) -> Iterator[Bench]:
    """Give a bench whose store goes through the pooler; its own looks at the rows do not."""
    direct = benches.get(request.param)
    url = direct.database.url
    with or_skip(lambda: PgBouncer(url)) as pooler:
        bench = benches.open(request.param, pooler.url)
        try:
            yield bench
        finally:
            close_bench(bench)


def test_the_way_leads_through_the_pooler_and_its_sessions_are_shared(postgres_database: str) -> None:
    with or_skip(lambda: PgBouncer(postgres_database)) as pooler:
        url = pooler.url.partition("?")[0]
        clients = [psycopg.connect(url, autocommit=True) for _ in range(6)]
        try:
            for client in clients:
                client.prepare_threshold = None
            sessions = {client.execute("SELECT pg_backend_pid()").fetchone() for client in clients * 3}
            assert 1 <= len(sessions) <= 2
        finally:
            for client in clients:
                client.close()


def test_creation_through_the_pooler(pooled: Bench) -> None:
    defaults(pooled)


def test_fields_through_the_pooler(pooled: Bench) -> None:
    fields(pooled)
