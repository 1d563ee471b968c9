"""What a server can be wrong in, each with its code, its control, and never a secret in the text."""

from __future__ import annotations

import logging
import subprocess
import sys
import traceback
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from tenure.errors import Invalid, Refused, TenureError, Unavailable
from tenure.stores import open_async_store, open_store
from tenure.stores.postgres.address import read_address
from tests.stores_postgres.conftest import Maker
from tests.stores_postgres.toy import MIGRATIONS, MORE, Blocking, add, ask, count, fail, put, raised
from tests.support.postgres import Server, start_server

SECRET = "s3cr3t/p@ss word"


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A server whose settings and files these tests may change; they put them back."""
    with start_server() as server:
        Blocking(server.url).migrate()
        yield server


def test_a_database_without_tables_asks_for_migrate(make: Maker, postgres_database: str) -> None:
    store = make(postgres_database)
    with pytest.raises(Invalid, match="tenure migrate --store URL") as error:
        store.run(count())
    assert error.value.code == "SCHEMA_MISSING"
    store.migrate()
    assert store.run(count()) == 0


def test_a_table_that_is_missing_asks_for_migrate(make: Maker, database: str) -> None:
    store = make(database)
    assert raised(Invalid, store.run, ask("missing")).code == "SCHEMA_MISSING"
    assert store.run(count()) == 0


def test_a_newer_schema_is_refused_with_both_versions(make: Maker, database: str) -> None:
    assert make(database, migrations=[*MIGRATIONS, MORE]).migrate() == ["0002_more"]
    store = make(database)
    for action in (lambda: store.run(count()), store.migrate, store.pending):
        error = raised(Invalid, action)
        assert error.code == "SCHEMA_NEWER"
        assert "version 2" in str(error)
        assert "up to 1" in str(error)
    assert make(database, migrations=[*MIGRATIONS, MORE]).run(count()) == 0


def test_an_older_schema_asks_for_migrate(make: Maker, database: str) -> None:
    store = make(database, migrations=[*MIGRATIONS, MORE])
    assert raised(Invalid, store.run, count()).code == "SCHEMA_MISSING"
    store.migrate()
    assert store.run(count()) == 0


def test_a_standby_is_refused_until_it_is_promoted(own_server: Server) -> None:
    own_server.stop()
    (own_server.data / "standby.signal").touch()
    own_server.start()
    store = Blocking(own_server.url)
    try:
        assert raised(Invalid, store.run, count()).code == "STANDBY"
        assert raised(Invalid, open_store, own_server.url).code == "STANDBY"
    finally:
        with psycopg.connect(own_server.url, autocommit=True) as admin:
            admin.execute("SELECT pg_promote()")
    assert store.run(count()) >= 0
    store.close()


def test_a_server_that_may_forget_commits_is_refused(make: Maker, database: str) -> None:
    def alter(setting: str) -> None:
        with psycopg.connect(database, autocommit=True) as admin:
            admin.execute(f'ALTER DATABASE "{admin.info.dbname}" SET synchronous_commit = {setting}'.encode())

    alter("off")
    store = make(database)
    assert raised(Invalid, store.run, count()).code == "SYNC_COMMIT_OFF"
    assert raised(Invalid, store.transaction().__enter__).code == "SYNC_COMMIT_OFF"
    for setting in ("local", "on"):
        alter(setting)
        assert make(database).run(count()) == 0


def test_a_read_only_database_is_unavailable(make: Maker, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(f'ALTER DATABASE "{admin.info.dbname}" SET default_transaction_read_only = on'.encode())
    store = make(database)
    assert raised(Unavailable, store.run, add(1)).code == "STORE_READ_ONLY"
    assert store.run(count()) == 0


REPORTED: list[tuple[str, type[TenureError], str]] = [
    ("53100", Unavailable, "STORAGE_FULL"),
    ("53200", Unavailable, "STORAGE_FAILED"),
    ("58030", Unavailable, "STORAGE_FAILED"),
    ("42501", Refused, "PRIVILEGE"),
    ("22P05", Invalid, "VALUE_REFUSED"),
    ("54000", Invalid, "VALUE_REFUSED"),
]


def test_what_the_server_reports_gets_a_type_and_a_code(make: Maker, database: str) -> None:
    store = make(database)
    turn = 0
    for state, kind, code in REPORTED:
        error = raised(kind, store.run, fail(state, turn + 1))
        assert error.code == code
        # Not one try more: nothing here gets better by itself.
        assert store.run(fail(state, turn + 1)) == turn + 2
        turn += 2
        told = "".join(traceback.format_exception(error))
        assert "secret-payload" not in told
        assert "statement fail" in told


def test_prepared_statements_that_get_lost_again_and_again_point_to_a_pooler(make: Maker, database: str) -> None:
    store = make(database)
    assert raised(Invalid, store.run, fail("26000", 6)).code == "POOLER"
    assert store.run(fail("26000", 6)) == 7


def test_what_may_pass_is_tried_again(make: Maker, database: str) -> None:
    store = make(database)
    assert store.run(fail("57P03", 3)) == 4
    assert store.run(fail("08006", 6)) == 7
    assert store.run(fail("55P03", 9)) == 10


def test_an_unknown_error_of_the_server_tells_no_values(make: Maker, database: str) -> None:
    store = make(database)
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        store.run(fail("25P02", 1))
    with pytest.raises(psycopg.errors.UniqueViolation) as error:
        store.run(fail("23505", 2))
    assert "secret-payload" not in "".join(traceback.format_exception(error.value))


def test_a_database_that_does_not_exist(make: Maker, database: str) -> None:
    store = make(database + "_no", patience=timedelta(seconds=3))
    assert raised(Invalid, store.run, count()).code == "DATABASE_MISSING"


def test_a_wrong_password_is_invalid_at_once_and_stands_nowhere(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    # The command line quietens this one, in whichever test of this process it ran.
    caplog.set_level(logging.DEBUG, logger="psycopg.pool")
    hba = own_server.data / "pg_hba.conf"
    before = hba.read_text()
    with psycopg.connect(own_server.url, autocommit=True) as admin:
        admin.execute("CREATE ROLE keeper SUPERUSER LOGIN PASSWORD 's3cr3t/p@ss word'")
        hba.write_text("host all keeper all scram-sha-256\n" + before)
        admin.execute("SELECT pg_reload_conf()")
    place = own_server.url.rpartition("@")[2]
    good = f"postgresql://keeper:{quote(SECRET, safe='')}@{place}"
    bad = f"postgresql://keeper:{quote(SECRET + '!', safe='')}@{place}"
    none = f"postgresql://keeper@{place}"
    told = []
    for url in (bad, none):
        store = Blocking(url)
        with pytest.raises(Invalid) as error:
            store.run(count())
        assert error.value.code == "AUTHENTICATION"
        told += [repr(store.store), store.store.url, *traceback.format_exception(error.value)]
        store.close()
    store = Blocking(good)
    assert store.run(count()) >= 0
    told += [repr(store.store), repr(store.store._address), store.store.url, repr(vars(store.store))]
    store.close()
    hba.write_text(before)
    with psycopg.connect(own_server.url, autocommit=True) as admin:
        admin.execute("SELECT pg_reload_conf()")
        admin.execute("DROP ROLE keeper")
    assert len(caplog.messages) > 0
    for text in [*told, *caplog.messages]:
        assert SECRET not in text
        assert quote(SECRET, safe="") not in text
    assert f"postgresql://keeper@{place}" in told[0]


def test_too_many_connections_is_unavailable(own_server: Server) -> None:
    name = "crowded"
    with psycopg.connect(own_server.url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN SUPERUSER CONNECTION LIMIT -1".encode())
        admin.execute(f"ALTER ROLE {name} NOSUPERUSER CONNECTION LIMIT 1".encode())
        admin.execute(f"GRANT ALL ON SCHEMA tenure TO {name}".encode())
        admin.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA tenure TO {name}".encode())
    url = own_server.url.replace("postgres@", f"{name}@")
    store = Blocking(url, patience=timedelta(seconds=0.4))
    with psycopg.connect(url):
        assert raised(Unavailable, store.run, count()).code == "TOO_MANY_CONNECTIONS"
    assert store.run(count()) >= 0
    store.close()


def test_a_server_that_is_not_there_is_unavailable_soon(caplog: pytest.LogCaptureFixture) -> None:
    url = "postgresql://someone:secret@127.0.0.1:1/app"
    store = Blocking(url, patience=timedelta(seconds=0.3))
    with pytest.raises(Unavailable, match=r"postgresql://someone@127.0.0.1:1/app") as error:
        store.run(count())
    assert error.value.code == "UNREACHABLE"
    assert "secret" not in str(error.value)
    assert "secret" not in caplog.text
    store.close()


def test_the_openers_look_at_the_server(database: str, postgres_database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(
            "UPDATE tenure.migration SET version = 99 WHERE version = (SELECT max(version) FROM tenure.migration)"
        )
    with pytest.raises(Invalid) as error:
        open_store(database, clock=_Clock())
    assert error.value.code == "SCHEMA_NEWER"
    # Without any tables it can be opened: `migrate` comes next.
    with open_store(postgres_database) as store:
        assert store.dialect == "postgresql"
        assert store.pending_migrations() != []


def test_the_awaiting_opener_looks_too(postgres_database: str) -> None:
    import asyncio

    async def open_both() -> None:
        store = await open_async_store(postgres_database)
        assert await store.pending_migrations() != []
        await store.close()
        with pytest.raises(Invalid) as error:
            await open_async_store(postgres_database + "_no")
        assert error.value.code == "DATABASE_MISSING"

    asyncio.run(open_both())


class _Clock:
    def now(self) -> Any:
        raise AssertionError("nobody may ask before the schema was found to fit")


# URLs.


@pytest.mark.parametrize(
    "url,shown",
    [
        ("postgresql://u:secret@h:1/db?sslmode=disable", "postgresql://u@h:1/db"),
        ("postgres://h/db?password=secret&user=u", "postgresql://u@h/db"),
        ("postgresql:///db?host=/tmp/socket&port=5433&password=secret", "postgresql:///db?host=/tmp/socket&port=5433"),
        ("postgresql://a:1,b:2/db?target_session_attrs=read-write", "postgresql://a:1,b:2/db"),
        ("postgresql://[::1]:5/d%20b", "postgresql://[::1]:5/d%20b"),
        ("postgresql://u%40x:secret@h/", "postgresql://u%40x@h"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    address = read_address(url)
    assert address.url == shown
    assert "secret" not in repr(address)
    if "secret" in url:
        assert "password=secret" in address.conninfo
        assert address.scrub("it was secret") == "it was ***"


def test_the_parameters_that_are_ours_do_not_reach_the_driver() -> None:
    plain = read_address("postgresql://h/db?sslmode=disable")
    assert (plain.prepare, plain.pool_size) == (True, None)
    assert plain.listen == plain.conninfo
    pooled = read_address(
        "postgresql://h/db?tenure_prepare=off&sslmode=disable&tenure_pool_size=3&tenure_listen="
        + quote("postgresql://u:secret@direct/db", safe="")
    )
    assert (pooled.prepare, pooled.pool_size) == (False, 3)
    assert pooled.conninfo == plain.conninfo
    assert pooled.listen is not None
    assert "host=direct" in pooled.listen
    assert pooled.scrub("secret") == "***"
    assert read_address("postgresql://h/db?tenure_listen=off").listen is None
    assert read_address("postgresql://h/db?tenure_prepare=off", prepare=True).prepare is True


@pytest.mark.parametrize(
    "url",
    [
        "mysql://h/db",
        "postgresql://u:secret%zz@h/db",
        "postgresql://u:secret@h/db?nonsense=1",
        "postgresql://u:secret@h/db?tenure_nonsense=1",
        "postgresql://u:secret@h/db?tenure_prepare=perhaps",
        "postgresql://u:secret@h/db?tenure_pool_size=0",
        "postgresql://u:secret@h/db?tenure_listen=perhaps",
    ],
)
def test_a_url_that_cannot_be_read_is_not_repeated(url: str) -> None:
    with pytest.raises(Invalid) as error:
        read_address(url)
    assert error.value.code == "BAD_STORE_URL"
    assert "secret" not in "".join(traceback.format_exception(error.value))


@pytest.mark.parametrize("missing", ["psycopg", "psycopg_pool", None])
def test_without_the_driver_the_extra_is_named(missing: str | None, tmp_path: Path) -> None:
    program = (f"import sys\nsys.modules[{missing!r}] = None\n" if missing else "import sys\n") + (
        "from tenure.errors import Invalid\n"
        "from tenure.stores import open_store\n"
        "assert 'psycopg' not in [name for name, found in sys.modules.items() if found]\n"
        "try:\n"
        "    open_store('postgresql://127.0.0.1:1/app?tenure_nonsense=1')\n"
        "except Invalid as error:\n"
        "    print(error.code, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    if missing:
        assert done.stdout.startswith("MISSING_EXTRA")
        assert "pip install 'tenure[postgres]'" in done.stdout
    else:
        assert done.stdout.startswith("BAD_STORE_URL")


def test_values_that_a_constructor_refuses(database: str) -> None:
    for options in ({"patience": timedelta(0)}, {"pool_size": 0}):
        with pytest.raises(Invalid):
            Blocking(database, **options)
    store = Blocking(database, patience=timedelta(seconds=5), pool_size=1)
    assert store.run(put()) == []
    store.close()
