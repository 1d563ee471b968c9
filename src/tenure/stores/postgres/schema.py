"""
Is this the right server, and has it our tables? And how they get there. Scripts of queries; no I/O.

A migration runs in one transaction behind an advisory lock that ends with it. So any number of processes may migrate at
once, and one that is killed leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TypeAlias, TypeVar

from tenure.errors import Invalid
from tenure.stores.migrate import Migration, check_version, pending, schema_missing
from tenure.stores.postgres.trouble import ROLES, ROW_SECURITY
from tenure.stores.postgres.unit import BEGIN, COMMIT
from tenure.stores.postgres.values import Query, plain, script
from tenure.yields import Rows

T = TypeVar("T")
Steps: TypeAlias = Generator[list[Query], list[Rows], T]

PACKAGE = "tenure.stores.postgres"
_SERVER_MIN = 150000
# Any number will do, as long as all releases use the same.
_LOCK = 0x7E4E5C1EA5E
_LOCK_WAIT = "2s"

_START = """\
CREATE SCHEMA IF NOT EXISTS tenure;
CREATE TABLE IF NOT EXISTS tenure.migration (
    version integer NOT NULL PRIMARY KEY,
    name text NOT NULL,
    applied_at_us bigint NOT NULL
);
"""
_RECORD = (
    "INSERT INTO tenure.migration (version, name, applied_at_us) "
    "VALUES ({version}, '{name}', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)"
)

# The catalogue is read as a table: to_regclass would answer from the session's memory, also after the wait for the
# lock, and not see what another process has just installed.
_SERVER = plain(
    "server",
    "SELECT current_setting('server_version_num')::int, current_setting('server_version'), pg_is_in_recovery(), "
    "current_setting('synchronous_commit'), EXISTS (SELECT FROM pg_catalog.pg_class c "
    "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'tenure' AND c.relname = 'migration'), "
    "pg_postmaster_start_time()::text",
)
# The instant of the first migration tells one installation from another, also where host names differ, and the
# database's number tells it from a copy on the same server.
_SCHEMA = plain(
    "schema",
    "SELECT (SELECT max(version) FROM tenure.migration), "
    "(SELECT m.applied_at_us || ' ' || d.oid FROM tenure.migration m, pg_catalog.pg_database d "
    "WHERE d.datname = pg_catalog.current_database() ORDER BY m.version LIMIT 1), "
    "EXISTS (SELECT FROM tenure.meta WHERE key = 'test_clock'), "
    "coalesce((SELECT relrowsecurity FROM pg_catalog.pg_class WHERE oid = to_regclass('tenure.job')), false)",
)
# May this transaction see anything, as row security has it?
_SEES = plain("sees", "SELECT tenure.every_tenant() OR coalesce(current_setting('tenure.tenant', true), '') <> ''")
# All that has tenants' rows in it, and what of row security is there. What row_security.sql makes.
_SECURED = plain(
    "secured",
    "SELECT c.relname, CASE c.relkind WHEN 'v' THEN coalesce('security_invoker=true' = ANY(c.reloptions), false) "
    "ELSE c.relrowsecurity AND c.relforcerowsecurity AND (SELECT count(*) FROM pg_catalog.pg_policy p "
    "WHERE p.polrelid = c.oid AND p.polname IN ('one_tenant', 'every_tenant')) = 2 END, "
    "c.relrowsecurity OR EXISTS (SELECT FROM pg_catalog.pg_policy p WHERE p.polrelid = c.oid) "
    "FROM pg_catalog.pg_class c WHERE c.relnamespace = 'tenure'::regnamespace AND c.relkind IN ('r', 'p', 'v') "
    "AND (c.relname = 'claim' OR EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid "
    "AND a.attname = 'tenant' AND NOT a.attisdropped)) ORDER BY c.relname",
)
# Made for this database, and not only for another one of the same server.
_ROLES = plain(
    "roles_made",
    "SELECT 1 FROM pg_catalog.pg_roles r WHERE r.rolname = 'tenure_viewer' "
    "AND pg_catalog.has_schema_privilege(r.oid, 'tenure', 'USAGE')",
)
_TEST_CLOCK = plain("test_clock", "SELECT 1 FROM tenure.meta WHERE key = 'test_clock'")
# For a joined connection, in the round trip of its first statements. Fails by itself where the tables are missing.
JOINED = plain(
    "joined",
    "SELECT current_setting('synchronous_commit'), (SELECT max(version) FROM tenure.migration), "
    "(SELECT m.applied_at_us || ' ' || d.oid FROM tenure.migration m, pg_catalog.pg_database d "
    "WHERE d.datname = pg_catalog.current_database() ORDER BY m.version LIMIT 1), "
    "EXISTS (SELECT FROM tenure.meta WHERE key = 'test_clock')",
)


def _check_server(row: tuple[object, ...]) -> None:
    number, version, standby, synchronous, *_ = row
    if not isinstance(number, int) or number < _SERVER_MIN:
        raise Invalid(f"PostgreSQL 15 or newer is needed, this server is {version}", code="DATABASE_TOO_OLD")
    if standby:
        raise Invalid(
            "this server is a standby, which accepts no writes; point the store at the primary "
            "(several hosts with target_session_attrs=read-write find it)",
            code="STANDBY",
        )
    _check_synchronous(synchronous)


def _check_synchronous(setting: object) -> None:
    if setting == "off":
        raise Invalid(
            "synchronous_commit is off, so PostgreSQL may forget what it confirmed; set it to on for this database, "
            "role or session",
            code="SYNC_COMMIT_OFF",
        )


def _check_clock(*, wanted: bool, installed: bool) -> None:
    if wanted and not installed:
        raise Invalid(
            "a store with a clock of its own needs a schema made for tests; use an empty database and "
            "migrate(test_clock=True)",
            code="TEST_CLOCK",
        )


@dataclass(frozen=True, slots=True)
class Verified:
    """
    What a connection leads to.

    Attributes:
        installation: Tells one installed schema from another; a copy restored in its place may have the same.
        run: Tells one start of a server from another.
    """

    installation: str | None
    run: str


def verify(known: Sequence[Migration], *, clock: bool, opening: Sequence[Query]) -> Steps[Verified]:
    """
    Look at a new connection's server and schema.

    Args:
        clock: The store replaces the clock.
        opening: What a transaction needs first, such as the role.
    Raises:
        Invalid: DATABASE_TOO_OLD, STANDBY, SYNC_COMMIT_OFF, SCHEMA_MISSING, SCHEMA_NEWER, TEST_CLOCK or
            TENANT_REQUIRED.
    """
    server = (yield [*opening, _SERVER])[-1][0]
    _check_server(server)
    if not server[4]:
        raise schema_missing()
    version, installation, test_clock, secured = (yield [*opening, _SCHEMA])[-1][0]
    check_version(version, known)
    _check_clock(wanted=clock, installed=bool(test_clock))
    if secured and not (yield [*opening, _SEES])[-1][0][0]:
        raise Invalid(
            "row security is on in this database, and whoever this store is sees the rows of one tenant only; open it "
            "with tenant= (on the command line --tenant, where a command has it), or with a role that serves all of "
            "them (worker, operator or repairer)",
            code="TENANT_REQUIRED",
        )
    return Verified(installation, server[5])


def look(known: Sequence[Migration], *, clock: bool, opening: Sequence[Query]) -> Steps[Verified | None]:
    """Find out at the opening what is wrong already; None where `migrate` has to come first."""
    done = yield from _applied(opening)
    if done:
        _refuse_newer(done, known)
        if not pending(done, known):
            return (yield from verify(known, clock=clock, opening=opening))
    return None


def check_joined(
    rows: Rows,
    known: Sequence[Migration],
    *,
    clock: bool,
    installation: str | None,
) -> None:
    """
    Judge what a joined connection answered to `JOINED`.

    Args:
        installation: Of the store's own database, where the store has seen it already.
    Raises:
        Invalid: As `verify`, and CANNOT_JOIN for another database.
    """
    synchronous, version, found, test_clock = rows[0]
    _check_synchronous(synchronous)
    check_version(version, known)
    if installation is not None and found != installation:
        raise Invalid(
            "the joined connection leads to another database than the store's; open the store with the URL of the "
            "connection's database",
            code="CANNOT_JOIN",
        )
    _check_clock(wanted=clock, installed=bool(test_clock))


def _applied(opening: Sequence[Query]) -> Steps[set[int] | None]:
    # None where nothing ever was.
    server = (yield [*opening, _SERVER])[-1][0]
    _check_server(server)
    if not server[4]:
        return None
    rows = (yield [*opening, plain("applied", "SELECT version FROM tenure.migration")])[-1]
    return {int(version) for (version,) in rows}


def waiting(known: Sequence[Migration], *, opening: Sequence[Query]) -> Steps[list[str]]:
    """Give the names of the migrations that are not applied; see `migrate` for what it raises."""
    done = yield from _applied(opening)
    if done is not None:
        _refuse_newer(done, known)
    return [one.name for one in pending(done or (), known)]


def migrate(
    known: Sequence[Migration],
    *,
    test_clock: bool,
    roles: bool = False,
    row_security: bool | None = None,
    opening: Sequence[Query],
) -> Steps[list[str]]:
    """
    Apply what waits, in one transaction.

    Args:
        test_clock: Install the clock that tests may set; only together with the first migration.
        roles: Make the database roles too; they are granted anew by every later migration.
        row_security: Keep tenants apart, with the roles; done anew by every later migration. False ends it.
    Raises:
        Invalid: SCHEMA_NEWER, TEST_CLOCK, and what `verify` says of the server.
    Locks: an advisory lock of the transaction, for two seconds at most, then fails with 55P03.
    """
    done = yield from _applied(opening)
    if done is not None:
        _refuse_newer(done, known)
        if not pending(done, known):
            yield from _keep_test_clock(done, opening, wanted=test_clock, installing=False)
            if not roles and row_security is None:
                return []
    yield [
        BEGIN,
        *opening,
        # The transaction may build an index for longer than the role's statements may run.
        plain(
            "migration_settings",
            "SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', '0', true), "
            "set_config('idle_in_transaction_session_timeout', '0', true)",
            _LOCK_WAIT,
        ),
        plain("migration_lock", "SELECT pg_advisory_xact_lock($1)", _LOCK),
    ]
    # Again behind the lock: another process may have been here.
    done = yield from _applied(())
    if done is None:
        yield [script("migration_table", _START)]
    else:
        _refuse_newer(done, known)
    names = []
    for one in pending(done or (), known):
        yield [script(one.name, one.sql)]
        yield [Query("migration_record", _record(one).encode())]
        names.append(one.name)
    yield from _keep_test_clock(done or set(), (), wanted=test_clock, installing=bool(names))
    secured = row_security is not False and (row_security or (bool(done) and (yield from unsecured()) is not None))
    if row_security is False:
        yield [script(ROW_SECURITY, _read("row_security_off.sql"))]
    if roles or secured or (done and (yield [_ROLES])[-1]):
        yield [script(ROLES, _roles())]
    if secured:
        yield [script(ROW_SECURITY, _read("row_security.sql"))]
    yield [COMMIT]
    return names


def unsecured() -> Steps[list[str] | None]:
    """Give what row security leaves out although it is on; None where it is off."""
    rows = (yield [_SECURED])[-1]
    if not any(begun for _, _, begun in rows):
        return None
    return [name for name, whole, _ in rows if not whole]


def _refuse_newer(done: set[int], known: Sequence[Migration]) -> None:
    newest = known[-1].version if known else 0
    if done and max(done) > newest:
        check_version(max(done), known)


def _keep_test_clock(done: set[int], opening: Sequence[Query], *, wanted: bool, installing: bool) -> Steps[None]:
    marked = bool((yield [*opening, _TEST_CLOCK])[-1]) if wanted or (done and installing) else False
    if wanted and done and not marked:
        raise Invalid(
            "this schema was installed without a test clock, and a clock that anybody can set must not come into a "
            "database in use; take an empty database",
            code="TEST_CLOCK",
        )
    if installing and (wanted or marked):
        # After every migration: it may have made the function anew.
        yield [script("test_clock", _read("test_clock.sql"))]


def _record(one: Migration) -> str:
    # The name comes from a file name of ours: letters, digits and underscores.
    return _RECORD.format(version=one.version, name=one.name)


def _read(name: str) -> str:
    return resources.files(PACKAGE).joinpath(name).read_text(encoding="utf-8")


def _roles() -> str:
    return _read("roles.sql") + "\n" + _read("role_guards.sql")


def roles(*, row_security: bool) -> str:
    """Give what makes the database roles, as one text to read and to run, any number of times; and row security."""
    parts = ["BEGIN;", _roles().strip(), "COMMIT;"]
    if row_security:
        parts.insert(-1, _read("row_security.sql").strip())
    return "\n\n".join(parts) + "\n"


def whole(known: Sequence[Migration]) -> str:
    """Give the schema as one text to read and to run on an empty database."""
    parts = [
        "-- The schema of tenure for PostgreSQL 15 or newer. Runs in one transaction, on a database without it.\n"
        "BEGIN;\n\n" + _START
    ]
    parts += [f"-- {one.name}\n\n{one.sql.strip()}\n\n{_record(one)};\n" for one in known]
    return "\n".join([*parts, "COMMIT;\n"])
