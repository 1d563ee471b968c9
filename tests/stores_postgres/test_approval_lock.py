"""A dispatch that had to wait for an approval is judged by the clock after the wait; the server's own clock."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tenure import DurableJobService, ExecutionInput, GovernanceInput, action_digest
from tenure.errors import ApprovalRefused, LeaseLost, TenureError
from tenure.stores.postgres.store import PostgresStore
from tests.stores_postgres.toy import poll
from tests.support.postgres import Databases

PATIENCE = 30.0
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
# Of the lease and of the approval, whichever comes first.
OVER = (
    "SELECT tenure.now_us() >= LEAST((SELECT min(expires_at) FROM tenure.lease), "
    "(SELECT min(expires_at) FROM tenure.approval))"
)


def prepare(url: str) -> None:
    with PostgresStore(url) as store:
        store.migrate()


@pytest.fixture
def jobs_url(postgres_databases: Databases) -> Iterator[str]:
    """The URL of a database with the real schema and the server's clock."""
    with postgres_databases.lend("stores_postgres_jobs", prepare) as url:
        yield url


@pytest.mark.parametrize(
    "lease,approval,wanted",
    [
        (timedelta(seconds=1.5), timedelta(days=1), LeaseLost),
        (timedelta(days=1), timedelta(seconds=1.5), ApprovalRefused),
    ],
)
def test_what_runs_out_during_the_wait_begins_nothing(
    jobs_url: str, lease: timedelta, approval: timedelta, wanted: type[TenureError]
) -> None:
    now = datetime.now(UTC)
    governance = GovernanceInput(
        action_intent="x", capability="x", policy="x", budget="x", approval_reference="ap-1", issued_at=now,
        expires_at=now + timedelta(days=2),
    )  # fmt: skip
    with PostgresStore(jobs_url) as store, psycopg.connect(jobs_url) as other, ThreadPoolExecutor(1) as pool:
        service = DurableJobService(store, tenant="acme", actor="user:1")
        payload = {"n": 1}
        service.create_job(
            organization="acme", project="p", idempotency_key="k", kind="pay", payload=payload, governance=governance,
            execution=ExecutionInput(actor="user:1", trace="t"), lease_duration=lease,
        )  # fmt: skip
        digest = action_digest(organization="acme", project="p", kind="pay", payload=payload, governance=governance)
        service.grant_approval("ap-1", action_digest=digest, expires_at=now + approval, reason="r")
        claim = service.claim_job("w", start=True)
        assert claim is not None
        other.execute("SELECT 1 FROM tenure.approval FOR UPDATE")
        begun = pool.submit(service.begin_effect, claim.lease, name="send", request={}, provider="mailer")
        poll(jobs_url, WAITING, (1,))
        poll(jobs_url, OVER, (True,))
        other.rollback()
        with pytest.raises(wanted):
            begun.result(PATIENCE)
        assert service.list_effects(claim.job.id) == []
