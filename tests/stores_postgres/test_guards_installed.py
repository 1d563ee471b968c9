"""How the guards of roles come into a database and what is left of them, whoever installs and upgrades it."""

from __future__ import annotations

import contextlib

import psycopg
import pytest

from tenure.opening import open_store
from tenure.rules.outcome import Absent
from tenure.rules.roles import Role
from tenure.service import DurableJobService
from tenure.stores import migrate
from tenure.stores.postgres.schema import PACKAGE
from tenure.stores.postgres.store import PostgresStore
from tenure.yields import new_id
from tests.stores_postgres.guarded import BODY, DEFERRED, EXECUTION, MAILER, NEW, READY, SECRET, Place
from tests.support.postgres import start_server


def test_an_older_database_is_upgraded_with_what_is_in_it(guarded: Place) -> None:
    with psycopg.connect(guarded.admin_url, autocommit=True) as admin:
        admin.execute(b"CREATE DATABASE older OWNER maker")
    url = guarded.url("maker").replace("/jobs", "/older")
    known = migrate.load(PACKAGE)
    with open_store(url) as store:
        store.migrate(roles=True)
        made = DurableJobService(store).create_job(
            organization="acme", project="p1", idempotency_key="k", kind="kind", payload=SECRET
        )
    with psycopg.connect(url, autocommit=True) as owner:
        # As it was before: no guard, and the digest to be read.
        owner.execute(
            b"DROP FUNCTION tenure.refuse_undoing, tenure.refuse_others, tenure.refuse_clearing, "
            b"tenure.refuse_reviving, tenure.refuse_second_place, tenure.known_keys CASCADE"
        )
        owner.execute(b"DELETE FROM tenure.migration WHERE version = 11")
        owner.execute(
            known[1]
            .sql[known[1].sql.index("CREATE FUNCTION tenure.enqueue(") :]
            .replace("CREATE FUN", "CREATE OR REPLACE FUN")
            .encode()
        )
        owner.execute(b"GRANT SELECT ON tenure.job_key TO tenure_producer")
        owner.execute(
            b"CREATE FUNCTION tenure.refuse_worker() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; "
            b"CREATE TRIGGER no_statement BEFORE INSERT ON tenure.event FOR EACH ROW "
            b"EXECUTE FUNCTION tenure.refuse_worker()"
        )
    with PostgresStore(url) as store:
        assert store.migrate() == [one.name for one in known[10:]]
        service = DurableJobService(store)
        assert (
            service.create_job(
                organization="acme", project="p1", idempotency_key="k", kind="kind", payload=SECRET
            ).job.id
            == made.job.id
        )
    row = {**NEW, "id": made.job.id}
    with psycopg.connect(url.replace("maker@", "producer@")) as producer:
        with pytest.raises(psycopg.errors.InsufficientPrivilege), producer.transaction():
            producer.execute(DEFERRED.encode(), row)
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied"):
            producer.execute(b"SELECT payload_digest FROM tenure.job_key")


def test_the_guards_are_the_owners_also_where_an_administrator_made_them(guarded: Place) -> None:
    with psycopg.connect(guarded.admin_url, autocommit=True) as admin, open_store(guarded.url("maker")) as store:
        admin.execute(store.roles_sql().encode())
        owners = admin.execute(
            b"SELECT DISTINCT proowner::regrole::text FROM pg_proc WHERE pronamespace = 'tenure'::regnamespace"
        ).fetchall()
        assert owners == [("maker",)]
        assert store.migrate(roles=True) == []
        callable_by = admin.execute(
            b"SELECT proname FROM pg_proc WHERE pronamespace = 'tenure'::regnamespace AND proname LIKE 'refuse%' "
            b"AND has_function_privilege('tenure_producer', oid, 'EXECUTE')"
        ).fetchall()
        assert callable_by == []


def test_an_id_of_another_tenant_is_seen_under_row_security_too(guarded: Place) -> None:
    with psycopg.connect(guarded.admin_url, autocommit=True) as admin:
        admin.execute(b"CREATE DATABASE apart OWNER maker")
    owner, producer = (guarded.url(login).replace("/jobs", "/apart") for login in ("maker", "producer"))
    with open_store(owner) as store:
        store.migrate(row_security=True)
    with open_store(producer, role="producer", tenant="acme") as store:
        job = (
            DurableJobService(store)
            .create_job(organization="acme", project="p1", idempotency_key="k", kind="kind", payload={})
            .job
        )
    for job_id, allowed in ((job.id, False), (new_id(), True)):
        with psycopg.connect(producer) as connection:
            connection.execute(b"SELECT set_config('tenure.tenant', 'evil', true)")
            row = {**NEW, "id": job_id, "tenant": "evil"}
            connection.execute(BODY.encode(), row)
            with (
                contextlib.nullcontext()
                if allowed
                else pytest.raises(psycopg.errors.InsufficientPrivilege, match="known")
            ):
                connection.execute(READY.encode(), row)
            if allowed:
                assert connection.execute(b"SELECT current_setting('tenure.tenant')").fetchone() == ("evil",)


def test_the_guards_ask_nobody_where_the_roles_are_gone() -> None:
    with start_server() as server, open_store(server.url) as store:
        store.migrate(roles=True)
        with psycopg.connect(server.url, autocommit=True) as admin:
            for role in Role:
                admin.execute(f"DROP OWNED BY tenure_{role}; DROP ROLE tenure_{role}".encode())
            # Nobody special, and not a superuser, who would be asked nothing.
            admin.execute(b"CREATE ROLE own LOGIN; GRANT USAGE ON SCHEMA tenure TO own")
            admin.execute(b"GRANT ALL ON ALL TABLES IN SCHEMA tenure TO own")
            admin.execute(b"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tenure TO own")
        with open_store(server.url.replace("postgres@", "own@")) as own:
            service = DurableJobService(own, actor="own:1")
            job = service.create_job(
                organization="acme", project="p1", idempotency_key="k", kind="kind", payload={}, execution=EXECUTION
            ).job
            claim = service.claim_job("w", start=True)
            assert claim is not None
            service.begin_effect(claim.lease, name="send", request={}, provider=MAILER)
            service.mark_indeterminate(claim.lease, code="E", message="m")
            settled = service.reconcile_dispatched(job.id, Absent(), reason="r")
            assert settled.status == "queued"
            assert service.cancel_job(job.id, reason="r").status == "cancelled"
