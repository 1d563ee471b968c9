"""Row security by tenant, past the library: what a login reads and writes with SQL of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import psycopg
import pytest
from psycopg import sql

import tenure
from tenure.errors import Invalid, Refused
from tenure.opening import open_async_store, open_store
from tenure.procedures.enqueue import create_at_once
from tenure.rules.creation import NewJob, new_job
from tenure.service import DurableJobService
from tenure.stores import migrate
from tenure.stores.postgres.schema import PACKAGE
from tenure.stores.postgres.store import PostgresStore
from tenure.yields import new_id
from tests.support.brokers import or_skip
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import start_server

TENANTS = {"acme", "zeta"}
# Logins and what was granted to them; the last owns the schema and is nobody else.
SEES_ONE = {"eye": "viewer", "web": "producer"}
SEES_ALL = {"hands": "worker", "boss": "operator", "fixer": "repairer", "maker": None}
LOGINS = SEES_ONE | SEES_ALL
# Tables of the installation: a new one without a tenant is a decision, which docs/explanation/roles.md tells.
OF_NOBODY = {
    "announcement",
    "inbox_consumer",
    "known_kind",
    "message_relay",
    "meta",
    "migration",
    "queue",
    "queue_change",
}

# What the policies ask, as the server writes it down.
_SETTING = "current_setting('tenure.tenant'::text, true)"
EVERY = f"(NULLIF(( SELECT (COALESCE({_SETTING}, ''::text) = ''::text)), false) IS NOT NULL)"
ONE = f"(NULLIF(({{}} = ( SELECT NULLIF({_SETTING}, ''::text) AS \"nullif\")), false) IS NOT NULL)"

_VALUES = {
    "text": "'x'",
    "uuid": "gen_random_uuid()",
    "bigint": "1",
    "integer": "1",
    "boolean": "false",
    "json": "'{}'",
}


class Place:
    """A database of a login without any special right, with row security and a row of two tenants in every table."""

    def __init__(self, admin_url: str) -> None:
        with psycopg.connect(admin_url, autocommit=True) as admin:
            admin.execute(b"CREATE ROLE maker LOGIN CREATEROLE")
            admin.execute(b"CREATE DATABASE jobs OWNER maker")
            self._where = f"{admin.info.host}:{admin.info.port}/jobs"
        self.admin = psycopg.connect(admin_url.rsplit("/", 1)[0] + "/jobs", autocommit=True)
        with open_store(self.url("maker")) as store:
            store.migrate(row_security=True)
        for login, role in LOGINS.items():
            if role is not None:
                self.ask(f"CREATE ROLE {login} LOGIN; GRANT tenure_{role} TO {login}")
        self.tables = self.holding("r")
        self.views = self.holding("v")
        self.jobs = {tenant: self._create(tenant) for tenant in sorted(TENANTS)}
        for table in sorted(self.tables):
            self._fill(table)

    def url(self, login: str) -> str:
        return f"postgresql://{login}@{self._where}"

    def holding(self, kind: str) -> set[str]:
        """Give the relations with rows of tenants, as the catalogue has them."""
        found = self.ask(
            "SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant' "
            "WHERE c.relnamespace = 'tenure'::regnamespace AND c.relkind = %s AND NOT a.attisdropped",
            kind,
        )
        return {name for (name,) in found} | ({"claim"} if kind == "r" else set())

    def ask(self, text: str, *params: Any) -> list[Any]:
        cursor = self.admin.execute(text.encode(), params or None)
        return cursor.fetchall() if cursor.description else []

    def _create(self, tenant: str) -> Any:
        with open_store(self.url("web"), role="producer", tenant=tenant) as store:
            made = DurableJobService(store).create_job(
                organization=tenant, project="p1", idempotency_key="k-1", kind="send", payload={"of": tenant}
            )
        return made.job

    def _fill(self, table: str) -> None:
        """Put a row of each tenant into a table, whatever it means."""
        checks = "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'c'"
        for (name,) in self.ask(checks, f"tenure.{table}"):
            self.ask(f'ALTER TABLE tenure.{table} DROP CONSTRAINT "{name}"')
        for tenant in sorted(TENANTS):
            self.ask(self.insert(table, tenant))

    def insert(self, table: str, tenant: str) -> str:
        columns = self.ask(
            "SELECT column_name, data_type FROM information_schema.columns "
            "WHERE table_schema = 'tenure' AND table_name = %s AND is_identity = 'NO' ORDER BY ordinal_position",
            table,
        )
        values = {name: _VALUES[kind] for name, kind in columns}
        named = "scope" if table == "claim" else "tenant"
        values[named] = f"""'["{tenant}", null]'""" if table == "claim" else f"'{tenant}'"
        line = f"INSERT INTO tenure.{table} ({', '.join(values)}) VALUES ({', '.join(values.values())})"
        return line + (" ON CONFLICT DO NOTHING" if table == "authority" else "")

    @contextmanager
    def login(self, name: str, tenant: str | None) -> Iterator[psycopg.Connection[Any]]:
        """Give a connection whose transaction names a tenant; it is rolled back."""
        with psycopg.connect(self.url(name)) as connection:
            if tenant is not None:
                connection.execute("SELECT set_config('tenure.tenant', %s, true)", [tenant])
            yield connection
            connection.rollback()

    def may(self, login: str, what: str, table: str, column: str) -> bool:
        role = LOGINS[login]
        name = "maker" if role is None else f"tenure_{role}"
        right = (
            "SELECT has_column_privilege(%s, %s, %s, %s)"
            if what != "DELETE"
            else "SELECT has_table_privilege(%s, %s, %s)"
        )
        params = [name, f"tenure.{table}", column, what] if what != "DELETE" else [name, f"tenure.{table}", what]
        return bool(self.ask(right, *params)[0][0])


def tenants_in(connection: psycopg.Connection[Any], table: str) -> set[str]:
    named = "scope::json ->> 0" if table == "claim" else "tenant"
    return {tenant for (tenant,) in connection.execute(f"SELECT {named} FROM tenure.{table}".encode()).fetchall()}


def column_of(table: str) -> str:
    return "scope" if table == "claim" else "tenant"


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """Give a server of its own: logins belong to the server."""
    with start_server() as server:
        made = Place(server.url)
        yield made
        made.admin.close()


def unsecured(place: Place) -> set[str]:
    """Walk the catalogue; see `schema.unsecured`, which is not asked here."""
    found = set()
    for table in place.holding("r"):
        (enabled, forced), *_ = place.ask(
            "SELECT relrowsecurity, relforcerowsecurity FROM pg_class WHERE oid = %s::regclass", f"tenure.{table}"
        )
        policies = place.ask(
            "SELECT policyname, permissive, cmd, roles::text[], qual FROM pg_policies "
            "WHERE schemaname = 'tenure' AND tablename = %s ORDER BY 1",
            table,
        )
        named = "((scope)::json ->> 0)" if table == "claim" else "tenant"
        whole = (
            [one[0] for one in policies] == ["every_tenant", "one_tenant"]
            and {one[1:3] for one in policies} == {("PERMISSIVE", "ALL")}
            and set(policies[0][3]) == {"tenure_worker", "tenure_operator", "tenure_repairer", "maker"}
            and policies[1][3] == ["public"]
            and " ".join(policies[0][4].split()) == EVERY
            and " ".join(policies[1][4].split()) == ONE.format(named)
        )
        if not (enabled and forced and whole):
            found.add(table)
    for view in place.holding("v"):
        options = place.ask("SELECT reloptions FROM pg_class WHERE oid = %s::regclass", f"tenure.{view}")
        if "security_invoker=true" not in (options[0][0] or []):
            found.add(view)
    return found


def test_every_table_of_tenants_has_its_policies(place: Place) -> None:
    assert len(place.tables) > 25
    assert unsecured(place) == set()
    everything = {name for (name,) in place.ask("SELECT tablename FROM pg_tables WHERE schemaname = 'tenure'")}
    assert everything - place.tables == OF_NOBODY
    with open_store(place.url("maker")) as store:
        assert store.unsecured_tables() == []


@pytest.mark.parametrize(
    ("broken", "left_out"),
    [
        ("DROP POLICY one_tenant ON tenure.lease", "lease"),
        ("DROP POLICY every_tenant ON tenure.evidence", "evidence"),
        ("ALTER TABLE tenure.job NO FORCE ROW LEVEL SECURITY", "job"),
        ("ALTER TABLE tenure.message DISABLE ROW LEVEL SECURITY", "message"),
        ("ALTER VIEW tenure.place RESET (security_invoker)", "place"),
        ("CREATE TABLE tenure.later (tenant text NOT NULL)", "later"),
    ],
)
def test_what_is_left_out_is_found_and_mended(place: Place, broken: str, left_out: str) -> None:
    with psycopg.connect(place.url("maker"), autocommit=True) as maker:
        maker.execute(broken.encode())
        try:
            with open_store(place.url("maker")) as store:
                assert unsecured(place) == {left_out}
                assert store.unsecured_tables() == [left_out]
                store.migrate(row_security=True)
                assert unsecured(place) == set()
                assert store.unsecured_tables() == []
        finally:
            maker.execute(b"DROP TABLE IF EXISTS tenure.later")


@pytest.mark.parametrize("login", LOGINS)
def test_a_transaction_reads_the_rows_of_the_tenant_that_it_names(place: Place, login: str) -> None:
    read = 0
    for table in sorted(place.tables | place.views):
        if not place.may(login, "SELECT", table, column_of(table)):
            continue
        read += 1
        for tenant in sorted(TENANTS):
            with place.login(login, tenant) as connection:
                assert tenants_in(connection, table) == {tenant}, table
        for nobody in (None, ""):
            with place.login(login, nobody) as connection:
                assert tenants_in(connection, table) == (set() if login in SEES_ONE else TENANTS), table
        with place.login(login, "nobody-s") as connection:
            assert tenants_in(connection, table) == set(), table
    assert read == (10 if login == "web" else len(place.tables | place.views))


@pytest.mark.parametrize("login", LOGINS)
def test_a_transaction_writes_the_rows_of_the_tenant_that_it_names(place: Place, login: str) -> None:
    done = {"INSERT": 0, "UPDATE": 0, "DELETE": 0}
    for table in sorted(place.tables):
        column = column_of(table)
        # What is tried here is who reaches a row, and not what a role may make of it.
        place.ask(f"ALTER TABLE tenure.{table} DISABLE TRIGGER USER")
        same = f"UPDATE tenure.{table} SET {column} = {column}"
        for what, text in (("DELETE", f"DELETE FROM tenure.{table}"), ("UPDATE", same)):
            if not place.may(login, what, table, column):
                continue
            done[what] += 1
            there = place.ask(f"SELECT count(*) FROM tenure.{table} WHERE {column} LIKE '%%acme%%'")[0][0]
            with place.login(login, "acme") as connection:
                # All that it can reach: its own, which are not all that are there.
                assert connection.execute(text.encode()).rowcount == there > 0, table
            if login in SEES_ONE:
                with place.login(login, None) as connection:
                    assert connection.execute(text.encode()).rowcount == 0, table
        if place.may(login, "INSERT", table, column):
            done["INSERT"] += 1
            for tenant, named in (("zeta", "acme"), ("acme", None if login in SEES_ONE else "zeta")):
                foreign = place.insert(table, tenant).replace(" ON CONFLICT DO NOTHING", "")
                with place.login(login, named) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(foreign.encode())
    assert done["INSERT"] > 0 or login == "eye"
    assert done["DELETE"] > 0 or login in SEES_ONE


def test_rows_are_not_handed_to_another_tenant(place: Place) -> None:
    move = b"UPDATE tenure.lease SET tenant = 'zeta'"
    with place.login("maker", "acme") as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(move)
    with place.login("maker", "acme") as connection:
        assert connection.execute(b"UPDATE tenure.lease SET tenant = 'acme'").rowcount == 1


def test_whose_turn_it_was_is_read_by_those_who_serve_all(place: Place) -> None:
    for login in LOGINS:
        with place.login(login, "acme") as connection:
            assert connection.execute(b"SELECT name, fair FROM tenure.queue").fetchall() == []
            if login in SEES_ONE:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(b"SELECT turn FROM tenure.queue")
            else:
                assert connection.execute(b"SELECT turn FROM tenure.queue").fetchall() == []


def test_what_a_producer_presents_is_shown_in_its_tenant_alone(place: Place) -> None:
    job = place.jobs["acme"]
    asked = "SELECT tenant FROM tenure.known_places(ARRAY[%s], ARRAY[%s])"
    for login, tenant, shown in (
        ("web", "acme", [("acme",)]),
        ("web", "zeta", []),
        ("web", None, []),
        ("hands", None, [("acme",)]),
        ("hands", "zeta", []),
    ):
        with place.login(login, tenant) as connection:
            assert connection.execute(asked.encode(), [job.id, job.payload_digest]).fetchall() == shown, (login, tenant)
    with psycopg.connect(place.url("hands")) as connection:
        # What counts is the role that was taken on, not what the login could do besides.
        place.ask("GRANT tenure_producer TO hands")
        connection.execute(b"SET LOCAL ROLE tenure_producer")
        assert connection.execute(asked.encode(), [job.id, job.payload_digest]).fetchall() == []
    place.ask("REVOKE tenure_producer FROM hands")


def test_the_function_for_other_languages_keeps_to_the_tenant(place: Place) -> None:
    create = b"SELECT created FROM tenure.enqueue('acme', 'p1', 'k-f', 'send', '{}')"
    for tenant in (None, "zeta"):
        with place.login("web", tenant) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(create)
    with place.login("web", "acme") as connection:
        assert connection.execute(create).fetchall() == [(True,)]
        assert connection.execute(create).fetchall() == [(False,)]


def one(key: str, tenant: str = "acme") -> NewJob:
    return new_job(
        job_id=new_id(), organization=tenant, project="p1", idempotency_key=key, kind="send", payload={}, tenant=tenant
    )


def test_who_sees_one_tenant_must_say_which(place: Place) -> None:
    for login, role in SEES_ONE.items():
        with pytest.raises(Invalid, match="open it with tenant=") as required:
            open_store(place.url(login), role=role)
        assert required.value.code == "TENANT_REQUIRED"
        with open_store(place.url(login), role=role, tenant="acme") as store, store.transaction() as tx:
            assert tx.execute("SELECT current_setting('tenure.tenant')").fetchone() == ("acme",)
    for login, taken in SEES_ALL.items():
        with open_store(place.url(login), role=taken) as store, store.transaction() as tx:
            assert {row[0] for row in tx.execute("SELECT tenant FROM tenure.job")} == TENANTS
    # A login that is always one tenant's may have that as its own setting.
    place.ask("ALTER ROLE web SET tenure.tenant = 'acme'")
    try:
        with open_store(place.url("web"), role="producer") as store:
            assert store.run(create_at_once(one("k-own"))).created
    finally:
        place.ask("ALTER ROLE web RESET tenure.tenant")


@pytest.mark.parametrize("login", LOGINS)
def test_the_blocks_of_a_bound_store_see_its_tenant(place: Place, login: str) -> None:
    with open_store(place.url(login), role=LOGINS[login], tenant="acme") as store:
        table = "message" if login == "web" else "job"
        for _ in range(2):
            with store.transaction() as tx:
                assert {row[0] for row in tx.execute(f"SELECT tenant FROM tenure.{table}")} == {"acme"}
                # What the block says about itself ends with it.
                tx.execute("SET tenure.tenant = 'zeta'")


def joined(store: Any, connection: Any) -> Any:
    return store.join(connection)


def test_a_joined_transaction_goes_by_its_owners_setting(place: Place) -> None:
    with (
        open_store(place.url("web"), role="producer", tenant="acme") as store,
        psycopg.connect(place.url("web")) as connection,
    ):
        for said in ("", "zeta"):
            connection.execute("SELECT set_config('tenure.tenant', %s, true)", [said])
            with pytest.raises(Refused, match="set_config") as refused:
                joined(store, connection).run(create_at_once(one("k-j")))
            assert refused.value.code == "ROW_SECURITY"
        connection.execute("SELECT set_config('tenure.tenant', 'acme', true)")
        assert joined(store, connection).run(create_at_once(one("k-j"))).created
        with pytest.raises(Refused, match="bound to tenant 'acme'") as denied:
            joined(store, connection).run(create_at_once(one("k-j", "zeta")))
        assert denied.value.code == "TENANT_BOUND"
        # Joining changed no setting, and the transaction is as usable as before.
        assert connection.execute("SELECT current_setting('tenure.tenant')").fetchone() == ("acme",)
        connection.rollback()


def test_a_joined_asyncpg_transaction_does_too(place: Place) -> None:
    async def body() -> None:
        connection = await asyncpg.connect(place.url("web"))
        try:
            async with await open_async_store(place.url("web"), role="producer", tenant="acme") as store:
                transaction = connection.transaction()
                await transaction.start()
                with pytest.raises(Refused) as refused:
                    await joined(store, connection).run(create_at_once(one("k-a")))
                assert refused.value.code == "ROW_SECURITY"
                await connection.execute("SELECT set_config('tenure.tenant', 'acme', true)")
                assert (await joined(store, connection).run(create_at_once(one("k-a")))).created
                await transaction.rollback()
        finally:
            await connection.close()

    asyncio.run(body())


def test_two_tenants_share_one_connection_of_a_pooler_and_no_row(place: Place) -> None:
    chance = random.Random(42)
    with or_skip(lambda: PgBouncer(place.url("web"), pool_size=1)) as pooler:
        plain = pooler.url.partition("?")[0]
        stores = {tenant: open_store(pooler.url, role="producer", tenant=tenant) for tenant in sorted(TENANTS)}
        try:
            for _ in range(500):
                tenant = chance.choice(sorted(TENANTS))
                try:
                    with stores[tenant].transaction() as tx:
                        found = {row[0] for row in tx.execute("SELECT tenant FROM tenure.message")}
                        assert found == {tenant}
                        if chance.random() < 0.2:
                            tx.execute("SELECT 1 / 0")
                except psycopg.errors.DivisionByZero:
                    pass
                if chance.random() < 0.2:
                    # Somebody who forgets to say it comes after somebody who did.
                    with psycopg.connect(plain, prepare_threshold=None) as other:
                        assert other.execute(b"SELECT count(*) FROM tenure.message").fetchone() == (0,)
        finally:
            for store in stores.values():
                store.close()


def test_later_migrations_cover_their_tables(postgres_database: str) -> None:
    known = migrate.load(PACKAGE)
    more = migrate.Migration(len(known) + 1, "later", "CREATE TABLE tenure.later (tenant text NOT NULL)")
    with open_store(postgres_database) as store:
        store.migrate(row_security=True)
    with PostgresStore(postgres_database, migrations=[*known, more]) as newer:
        assert newer.migrate() == ["later"]
        assert newer.unsecured_tables() == []


def test_row_security_is_switched_on_and_off_and_leaves_nothing(postgres_database: str) -> None:
    rights = (
        "SELECT relname, relrowsecurity, relforcerowsecurity, reloptions::text, relacl::text, (SELECT count(*) FROM "
        "pg_policy WHERE polrelid = c.oid), (SELECT string_agg(attname || attacl::text, ',' ORDER BY attnum) FROM "
        "pg_attribute WHERE attrelid = c.oid) FROM pg_class c WHERE relnamespace = 'tenure'::regnamespace ORDER BY 1"
    )
    with open_store(postgres_database) as store, psycopg.connect(postgres_database, autocommit=True) as admin:
        store.migrate(roles=True)
        before = admin.execute(rights.encode()).fetchall()
        assert store.unsecured_tables() is None
        store.migrate(row_security=True)
        on = admin.execute(rights.encode()).fetchall()
        assert on != before
        # Again, and by a migration that says nothing about it.
        for wanted in (True, None):
            store.migrate(roles=True, row_security=wanted)
            assert admin.execute(rights.encode()).fetchall() == on
        for _ in range(2):
            store.migrate(row_security=False)
            assert admin.execute(rights.encode()).fetchall() == before
        assert store.unsecured_tables() is None
        assert "CREATE POLICY" in store.roles_sql(row_security=True)
        assert "CREATE POLICY" not in store.roles_sql() + store.migration_sql()


def test_a_worker_serves_both_tenants(postgres_database: str) -> None:
    with open_store(postgres_database) as owner:
        owner.migrate(row_security=True)
    # What takes on a role is bound by its policies, whoever it was before.
    app = tenure.Tenure(postgres_database, organization="acme", project="p1", actor="user:1", role="worker")
    seen: dict[UUID, str] = {}
    done = asyncio.Event()

    @app.job("count")
    async def count(ctx: tenure.AsyncContext, payload: dict[str, Any]) -> None:
        async with ctx.publish():
            seen[ctx.job.id] = ctx.job.tenant
        if len(seen) == len(TENANTS):
            done.set()

    made = []
    for tenant in sorted(TENANTS):
        with open_store(postgres_database, role="producer", tenant=tenant) as store:
            theirs = tenure.Tenure(store, organization=tenant, project="p1", actor="user:1")
            theirs.job("count")(count)
            assert theirs.tenant == tenant
            made.append(theirs.enqueue("count", {}, key="count-1").job)
            with pytest.raises(Invalid) as differs:
                tenure.Tenure(store, organization=tenant, project="p1", tenant="other")
            assert differs.value.code == "TENANT_MISMATCH"

    async def work() -> None:
        async with app.worker(poll=timedelta(milliseconds=50)):
            await asyncio.wait_for(done.wait(), 60)
        await app.aclose()

    asyncio.run(work())
    assert seen == {job.id: job.tenant for job in made}
    with open_store(postgres_database, role="viewer", tenant="acme") as store:
        assert DurableJobService(store).get_job(made[0].id).status == "completed"
        with pytest.raises(tenure.NotFound):
            DurableJobService(store).get_job(made[1].id)


def test_a_worker_of_a_bound_store_does_not_start(postgres_database: str) -> None:
    with open_store(postgres_database) as owner:
        owner.migrate(row_security=True)
    with open_store(postgres_database, role="worker", tenant="acme") as store:
        app = tenure.Tenure(store, organization="acme", project="p1")

        @app.job("count")
        async def count(ctx: tenure.AsyncContext, payload: dict[str, Any]) -> None:
            """Do nothing."""

        with pytest.raises(Refused, match="opened without tenant=") as denied:
            asyncio.run(app.worker().start())
        assert denied.value.code == "TENANT_BOUND"


def test_who_is_no_owner_cannot_switch_it(place: Place) -> None:
    with psycopg.connect(place.url("boss"), autocommit=True) as boss:
        for text in (
            "ALTER TABLE tenure.job DISABLE ROW LEVEL SECURITY",
            "DROP POLICY one_tenant ON tenure.job",
            "ALTER VIEW tenure.place RESET (security_invoker)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                boss.execute(text.encode())
        # Not to be narrowed at all is an error, not a way around.
        boss.execute(b"SET row_security = off")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            boss.execute(sql.SQL("SELECT * FROM tenure.job"))
