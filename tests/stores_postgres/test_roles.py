"""The database itself keeps each role to its work: what is tried here goes past the library."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

import tenure
from tenure.errors import Invalid, Refused
from tenure.opening import open_store
from tenure.procedures.enqueue import create
from tenure.rules.creation import new_job
from tenure.rules.outcome import Absent, Accepted, Succeeded, Unknown
from tenure.rules.roles import Role
from tenure.service import DurableJobService
from tenure.testing.provider import FakeProvider
from tenure.yields import new_id
from tests.support.postgres import Databases, start_server

EXECUTION = tenure.ExecutionInput(tenant="acme", actor="user:1", trace="t-1")
JOB: dict[str, Any] = {
    "organization": "acme",
    "project": "p1",
    "kind": "send_quote",
    "payload": {"card": "4111"},
    "execution": EXECUTION,
}


def _prepare(url: str) -> None:
    with open_store(url) as store:
        store.migrate(roles=True)


@pytest.fixture
def url(postgres_databases: Databases) -> Iterator[str]:
    """Give a database with roles."""
    with postgres_databases.lend("roles", _prepare) as found:
        yield found


def service(url: str, role: str | None = None) -> DurableJobService:
    return DurableJobService(open_store(url, role=role))


def ended(made: DurableJobService) -> contextlib.closing[Any]:
    return contextlib.closing(made.store)


def as_role(url: str, role: str, sql: str, *params: Any) -> list[Any]:
    """Run SQL as a database role, and keep what it wrote."""
    with psycopg.connect(url) as connection:
        connection.execute(f"SET ROLE tenure_{role}".encode())
        cursor = connection.execute(sql.encode(), params or None)
        return cursor.fetchall() if cursor.description else []


def forbidden(url: str, role: str, sql: str, *params: Any) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        as_role(url, role, sql, *params)


@pytest.fixture
def unsure(url: str) -> UUID:
    """Give a job whose effect nobody knows the end of."""
    made = service(url)
    with ended(made):
        job = made.create_job(idempotency_key="k-1", **JOB).job
        taken = made.claim_job("A", start=True)
        assert taken is not None
        made.begin_effect(taken.lease, name="send", request={"n": 1}, provider=FakeProvider("mailer"))
        made.finish_effect(taken.lease, name="send", outcome=Unknown("no reply"))
        made.fail_job(taken.lease, code="E", message="m", retryable=True)
        return job.id


def test_a_worker_writes_no_statement(url: str, unsure: UUID) -> None:
    settle = (
        "UPDATE tenure.effect SET state = 'failed_before_dispatch', settled_at = 1, settled_by = '{}' WHERE job_id = %s"
    )
    forbidden(url, "worker", settle.format("statement"), unsure)
    for what in ("readmitted", "recovered", "thawed"):
        event = (
            "INSERT INTO tenure.authority_event (act_id, tenant, what, epoch, actor, reason, at) "
            "VALUES (%s, 'acme', %s, 1, 'x', 'x', 1)"
        )
        forbidden(url, "worker", event, uuid4(), what)
        as_role(url, "repairer", event, uuid4(), what)
    noted = "INSERT INTO tenure.event (job_id, tenant, name, at, generation, data) VALUES (%s, 'acme', %s, 1, 1, %s)"
    for name, data in (
        ("readmitted", None),
        ("reconciled", '{"by": "statement"}'),
        ("effect_settled", '{"by": "statement"}'),
    ):
        forbidden(url, "worker", noted, unsure, name, data)
        as_role(url, "repairer", noted, unsure, name, data)
    as_role(url, "worker", noted, unsure, "reconciled", '{"by": "lookup"}')
    # The controls: what a look-up gave, and the statement of a repairer, who still cannot claim.
    as_role(url, "worker", settle.format("lookup"), unsure)
    as_role(url, "repairer", settle.format("statement"), unsure)


def test_a_worker_takes_authority_away_and_does_not_give_it_back(url: str, unsure: UUID) -> None:
    as_role(url, "worker", "UPDATE tenure.authority SET epoch = 3, frozen = true WHERE tenant = 'acme'")
    forbidden(url, "worker", "UPDATE tenure.authority SET epoch = 2 WHERE tenant = 'acme'")
    forbidden(url, "worker", "UPDATE tenure.authority SET frozen = false WHERE tenant = 'acme'")
    forbidden(url, "worker", "DELETE FROM tenure.meta")
    as_role(url, "operator", "UPDATE tenure.authority SET frozen = false WHERE tenant = 'acme'")


def test_only_a_worker_claims_and_begins(url: str, unsure: UUID) -> None:
    lease = (
        "INSERT INTO tenure.lease (job_id, tenant, status, worker_id, attempt_id, expires_at, lease_us, claimed_at, "
        "run_at, generation, attempt, attempts_max, epoch) "
        "VALUES (%s, 'acme', 'running', 'X', %s, 1, 1, 1, 1, 1, 1, 1, 1)"
    )
    intent = "INSERT INTO tenure.intent (tenant, operation_key, attempt_id, job_id, at) VALUES ('acme', 'k', %s, %s, 1)"
    for role in set(Role) - {Role.WORKER}:
        forbidden(url, role, lease, unsure, uuid4())
        forbidden(url, role, intent, uuid4(), unsure)
    as_role(url, "worker", lease, unsure, uuid4())
    as_role(url, "worker", intent, uuid4(), unsure)


def test_a_viewer_writes_nothing_at_all(url: str, unsure: UUID) -> None:
    with psycopg.connect(url) as admin:
        tables = [row[0] for row in admin.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'tenure'")]
    assert len(tables) > 30
    for table in tables:
        assert isinstance(as_role(url, "viewer", f"SELECT * FROM tenure.{table}"), list)
        forbidden(url, "viewer", f"DELETE FROM tenure.{table}")
        forbidden(url, "viewer", f"INSERT INTO tenure.{table} DEFAULT VALUES")
    forbidden(url, "viewer", "SELECT * FROM tenure.job FOR UPDATE")
    forbidden(url, "viewer", "SELECT * FROM tenure.enqueue('acme', 'p1', 'k-2', 'send_quote', '{}')")


def test_a_producer_reads_what_it_presents_and_nothing_else(url: str, unsure: UUID) -> None:
    for table in (
        "job",
        "outcome",
        "event",
        "effect",
        "evidence",
        "place",
        "lease",
        "ready",
        "message_done",
        "approval",
    ):
        forbidden(url, "producer", f"SELECT * FROM tenure.{table}")
    forbidden(url, "producer", "SELECT payload FROM tenure.job")
    forbidden(url, "producer", "SELECT data FROM tenure.message")
    digests = "SELECT payload::json ->> 'card' FROM tenure.known_places(ARRAY[%s], ARRAY[%s])"
    assert as_role(url, "producer", digests, unsure, "v1:" + "0" * 64) == []
    made = service(url, "producer")
    with ended(made):
        again = made.create_job(idempotency_key="k-1", **JOB)
        assert (again.created, again.job.id, again.job.payload["card"]) == (False, unsure, "4111")
        assert [effect.name for effect in again.job.effects] == ["send"]
        with pytest.raises(tenure.Conflict) as other:
            made.create_job(idempotency_key="k-1", **{**JOB, "payload": {"card": "4112"}})
        assert other.value.code == "IDEMPOTENCY_MISMATCH"
        assert made.create_job(idempotency_key="k-2", **JOB).created
    ours = (
        "SELECT created FROM tenure.enqueue('acme', 'p1', %s, 'send_quote', '{\"n\": 1}', actor => 'a', trace => 't')"
    )
    assert as_role(url, "producer", ours, "k-3") == [(True,)]
    assert as_role(url, "producer", ours, "k-3") == [(False,)]


def test_names_are_not_changed_where_they_can_be_locked(url: str, unsure: UUID) -> None:
    for role in ("worker", "operator", "repairer"):
        forbidden(url, role, "UPDATE tenure.job SET job_id = %s", uuid4())
        forbidden(url, role, "UPDATE tenure.authority SET tenant = 'other'")
        forbidden(url, role, "UPDATE tenure.job SET payload = '{}'")
        as_role(url, role, "SELECT 1 FROM tenure.job FOR UPDATE")


def test_an_operator_grants_approvals_and_a_worker_uses_them_up(url: str) -> None:
    grant = (
        "INSERT INTO tenure.approval "
        "(tenant, reference, action_digest, granted_by, grant_reason, granted_at, expires_at) "
        "VALUES ('acme', 'ap-1', 'v1:0', 'x', 'x', 1, 9)"
    )
    for role in ("viewer", "producer", "worker"):
        forbidden(url, role, grant)
    as_role(url, "operator", grant)
    forbidden(url, "worker", "UPDATE tenure.approval SET expires_at = 99")
    forbidden(url, "worker", "UPDATE tenure.approval SET revoked_at = 1, revoked_by = 'x', revoke_reason = 'x'")
    as_role(url, "worker", "UPDATE tenure.approval SET consumed_at = 2, consumed_by = %s", uuid4())


def test_a_life_through_the_five_roles(url: str) -> None:
    producer, worker, repairer, operator, viewer = (
        service(url, role)
        for role in (
            "producer",
            "worker",
            "repairer",
            "operator",
            "viewer",
        )
    )
    with contextlib.ExitStack() as stack:
        for one in (producer, worker, repairer, operator, viewer):
            stack.enter_context(ended(one))
        job = producer.create_job(idempotency_key="k-1", **JOB).job
        taken = worker.claim_job("A", start=True)
        assert taken is not None
        key = worker.begin_effect(taken.lease, name="send", request={}, provider=FakeProvider("mailer")).operation_key
        worker.finish_effect(taken.lease, name="send", outcome=Unknown("?"))
        worker.fail_job(taken.lease, code="E", message="m", retryable=True)
        with pytest.raises(Refused, match="repairer may") as refused:
            worker.reconcile_dispatched(job.id, Absent(), reason="r", actor="w")
        assert refused.value.code == "ROLE_DENIED"
        repairer.reconcile_dispatched(job.id, Absent(), operation_key=key, reason="asked them", actor="rep:1")
        with pytest.raises(Refused):
            repairer.claim_job("A")
        again = worker.claim_job("A", start=True)
        assert again is not None
        worker.begin_effect(again.lease, name="send", request={}, provider=FakeProvider("mailer"))
        worker.finish_effect(again.lease, name="send", outcome=Succeeded({"id": "r-1"}))
        worker.complete_job(again.lease, result={"n": 1})
        assert viewer.get_job(job.id).status == "completed"
        other = producer.create_job(idempotency_key="k-2", **JOB).job
        assert operator.cancel_job(other.id, reason="r").status == "cancelled"
        with pytest.raises(Refused):
            viewer.cancel_job(other.id, reason="r")
        worker.submit_evidence(key, Accepted({"id": "r-1"}), attempt_id=again.lease.attempt_id)


def test_a_joined_transaction_is_judged_too(url: str) -> None:
    new = new_job(job_id=new_id(), idempotency_key="k-1", **JOB)
    with open_store(url, role="viewer") as store, psycopg.connect(url) as connection, connection.transaction():
        with pytest.raises(Refused, match="producer or worker may") as refused:
            store.join(connection).run(create([new]))
        assert refused.value.code == "ROLE_DENIED"
        assert connection.execute("SELECT count(*) FROM tenure.job").fetchone() == (0,)
    with open_store(url, role="producer") as store, psycopg.connect(url) as connection, connection.transaction():
        # The caller's own rights on the connection: here a login that took on the same role.
        connection.execute("SET LOCAL ROLE tenure_producer")
        assert store.join(connection).run(create([new]))[0].created


def test_roles_are_granted_again_by_later_migrations_and_stay_as_they_are(url: str) -> None:
    rights = (
        "SELECT table_name, column_name, grantee, privilege_type FROM information_schema.column_privileges "
        "WHERE table_schema = 'tenure' AND grantee LIKE 'tenure\\_%%' ORDER BY 1, 2, 3, 4"
    )
    with psycopg.connect(url, autocommit=True) as admin:
        before = admin.execute(rights.encode(), ()).fetchall()
        assert len(before) > 500
        admin.execute(b"DELETE FROM tenure.migration WHERE version = 8")
        admin.execute(b"DROP FUNCTION tenure.known_places, tenure.known_effects, tenure.known_notes")
        with open_store(url) as store:
            assert store.migrate() == ["0008_roles"]
        assert admin.execute(rights.encode(), ()).fetchall() == before
        with open_store(url) as store:
            assert store.migrate(roles=True) == []
        assert admin.execute(rights.encode(), ()).fetchall() == before
    as_role(url, "producer", "SELECT * FROM tenure.known_places(ARRAY[]::uuid[], ARRAY[]::text[])")


def test_without_roles_nothing_of_them_is_there(postgres_databases: Databases) -> None:
    url = postgres_databases.create()
    with open_store(url) as store:
        store.migrate()
    with psycopg.connect(url, autocommit=True) as admin:
        kept = admin.execute("SELECT count(*) FROM pg_trigger WHERE tgname IN ('keep_name', 'no_statement')").fetchone()
        assert kept == (0,)
    with open_store(url) as store:
        assert "CREATE ROLE" in store.roles_sql()
        assert "CREATE ROLE" not in store.migration_sql()


def test_a_login_takes_on_what_it_was_granted_and_nothing_else() -> None:
    """On a server of its own: roles belong to the server, and the other tests have made them on theirs."""
    with start_server() as server, psycopg.connect(server.url, autocommit=True) as admin:
        for login in ("maker", "plain"):
            admin.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'x'".encode())
        admin.execute(b"CREATE DATABASE jobs OWNER maker")
        admin.execute(b"GRANT CONNECT ON DATABASE jobs TO plain")
        where = admin.info
        maker, plain = (f"postgresql://{who}:x@{where.host}:{where.port}/jobs" for who in ("maker", "plain"))
        with open_store(maker) as store:
            store.migrate()
            with pytest.raises(Refused, match="tenure migrate --roles --sql") as unmade:
                store.migrate(roles=True)
            assert unmade.value.code == "ROLES_NOT_MADE"
            text = store.roles_sql()
        with pytest.raises(Invalid, match="tenure migrate --roles") as unknown:
            open_store(plain, role="worker")
        assert unknown.value.code == "UNKNOWN_ROLE"
        with psycopg.connect(server.url.rsplit("/", 1)[0] + "/jobs", autocommit=True) as other:
            other.execute(text.encode())
        with open_store(maker) as store:
            # The roles are there now, and the owner grants by itself.
            assert store.migrate(roles=True) == []
        with pytest.raises(Refused, match="GRANT <role> TO <user>") as ungranted:
            open_store(plain, role="worker")
        assert ungranted.value.code == "ROLE_NOT_GRANTED"
        admin.execute(b"GRANT tenure_worker TO plain")
        with open_store(plain, role="worker") as store:
            assert DurableJobService(store).claim_job("A") is None
        with pytest.raises(Refused) as operator:
            open_store(plain, role="operator")
        assert operator.value.code == "ROLE_NOT_GRANTED"


def test_the_known_job_is_read_as_every_other_is(url: str, unsure: UUID) -> None:
    made = service(url)
    with ended(made):
        assert made.create_job(idempotency_key="k-1", **JOB).job == made.get_job(unsure)
        assert json.dumps(made.get_job(unsure).payload["card"]) == '"4111"'
