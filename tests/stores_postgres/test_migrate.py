"""The schema comes once, whoever and how many bring it, and a test's clock never into a database in use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tenure.errors import Invalid, Refused, Unavailable
from tenure.stores import migrate
from tenure.stores.migrate import Migration
from tenure.stores.postgres.store import PostgresStore
from tenure.yields import Script, Statement, procedure
from tests.stores_postgres.conftest import Maker
from tests.stores_postgres.toy import MIGRATIONS, MORE, Blocking, add, ask, count, look
from tests.support.proxy import Proxy

ROOT = Path(__file__).resolve().parents[2]


class Clock:
    """A clock that stands where it is put."""

    def __init__(self, now: datetime) -> None:
        self.time = now

    def now(self) -> datetime:
        return self.time


def us(instant: datetime) -> int:
    return (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def recorded(url: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT version, name FROM tenure.migration ORDER BY version").fetchall()


def test_migrations_are_applied_once_in_order(make: Maker, postgres_database: str) -> None:
    store = make(postgres_database)
    assert store.pending() == ["0001_start"]
    assert store.migrate() == ["0001_start"]
    assert store.migrate() == []
    assert store.pending() == []
    newer = make(postgres_database, migrations=[*MIGRATIONS, MORE])
    assert newer.pending() == ["0002_more"]
    assert newer.migrate() == ["0002_more"]
    assert recorded(postgres_database) == [(1, "0001_start"), (2, "0002_more")]
    with psycopg.connect(postgres_database) as connection:
        row = connection.execute(
            "SELECT bool_and(abs(applied_at_us - extract(epoch FROM now()) * 1000000) < 60000000) FROM tenure.migration"
        ).fetchone()
    assert row == (True,)


def test_one_that_fails_leaves_nothing_of_any(make: Maker, postgres_database: str) -> None:
    bad = Migration(2, "0002_bad", "CREATE TABLE tenure.bad (id integer); SELECT 1/0;")
    store = make(postgres_database, migrations=[*MIGRATIONS, bad])
    with pytest.raises(Invalid):
        store.migrate()
    assert store.pending() == ["0001_start", "0002_bad"]
    assert make(postgres_database).migrate() == ["0001_start"]


_PROGRAM = textwrap.dedent(
    """
    import sys
    from tenure.stores.migrate import Migration
    from tenure.stores.postgres.store import PostgresStore
    from tests.stores_postgres.toy import MIGRATIONS, STATEMENTS
    more = [Migration(2, "0002_slow", sys.argv[2])]
    with PostgresStore(sys.argv[1], statements=STATEMENTS, migrations=[*MIGRATIONS, *more]) as store:
        print(store.migrate())
    """
)


def start(url: str, sql: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _PROGRAM, url, sql], stdout=subprocess.PIPE, text=True, cwd=ROOT)


def test_many_processes_at_once(postgres_database: str) -> None:
    processes = [start(postgres_database, "SELECT pg_sleep(0.2)") for _ in range(4)]
    said = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sorted(said) == sorted(["['0001_start', '0002_slow']", "[]", "[]", "[]"])
    assert recorded(postgres_database) == [(1, "0001_start"), (2, "0002_slow")]


def test_one_killed_in_the_middle_leaves_the_way_free(postgres_database: str) -> None:
    process = start(postgres_database, "SELECT pg_sleep(600)")
    with psycopg.connect(postgres_database, autocommit=True) as witness:
        pid = None
        while pid is None:
            assert process.poll() is None
            row = witness.execute(
                "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
            ).fetchone()
            pid = row and row[0]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        # The server finds out at its next word to the client; here at once.
        witness.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
    with PostgresStore(postgres_database, statements={}, migrations=MIGRATIONS) as store:
        assert store.pending_migrations() == ["0001_start"]
        assert store.migrate() == ["0001_start"]


def test_a_held_lock_is_waited_for(postgres_database: str) -> None:
    held = threading.Event()
    free = threading.Event()

    def hold() -> None:
        with psycopg.connect(postgres_database) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [0x7E4E5C1EA5E])
            held.set()
            free.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(30)
    # Longer than one wait for the lock, so that there was a second one.
    threading.Timer(2.5, free.set).start()
    store = Blocking(postgres_database)
    assert store.migrate() == ["0001_start"]
    assert free.is_set()
    holder.join()
    store.close()


def test_the_reply_to_the_last_commit_may_get_lost(make: Maker, postgres_database: str) -> None:
    with Proxy(postgres_database) as proxy:
        store = make(proxy.url)
        proxy.lose_replies()
        assert store.migrate() in (["0001_start"], [])
        assert proxy.seen["lost_replies"] == 1
        assert store.run(count()) == 0
        assert recorded(postgres_database) == [(1, "0001_start")]


def test_the_whole_schema_as_text_does_the_same(postgres_database: str) -> None:
    store = Blocking(postgres_database, migrations=[*MIGRATIONS, MORE])
    text = store.store.migration_sql()
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute(text.encode())
    assert recorded(postgres_database) == [(1, "0001_start"), (2, "0002_more")]
    assert store.migrate() == []
    assert store.run(add(1)) == 1
    store.close()


def test_the_schema_of_the_package_can_be_installed_and_read(postgres_database: str) -> None:
    with PostgresStore(postgres_database) as store:
        names = [one.name for one in migrate.load("tenure.stores.postgres")]
        assert store.migrate() == names
        for name in names:
            assert f"-- {name}" in store.migration_sql()

        @procedure
        def clock() -> Script[int]:
            rows = yield Statement("clock")
            return int(rows[0][0])

        assert abs(store.run(clock()) - us(datetime.now(UTC))) < 3_600_000_000


def test_who_may_not_create_is_refused_only_where_there_is_something_to_create(
    postgres_database: str, make: Maker
) -> None:
    role = f"tenure_reader_{os.getpid()}_{threading.get_ident() % 1000}"
    with psycopg.connect(postgres_database, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role}".encode())
    try:
        reader = make(postgres_database, role=role)
        with pytest.raises(Refused) as error:
            reader.migrate()
        assert error.value.code == "PRIVILEGE"
        make(postgres_database).migrate()
        with psycopg.connect(postgres_database, autocommit=True) as admin:
            admin.execute(f"GRANT USAGE ON SCHEMA tenure TO {role}".encode())
            admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA tenure TO {role}".encode())
        assert reader.migrate() == []
        assert reader.run(count()) == 0
    finally:
        with psycopg.connect(postgres_database, autocommit=True) as admin:
            admin.execute(f"DROP OWNED BY {role}".encode())
            admin.execute(f"DROP ROLE {role}".encode())


# The clock.


@procedure
def watch(clock: Clock, step: timedelta) -> Script[list[int]]:
    """Read the clock, move it, read it again, twice in one round trip."""
    first = yield Statement("clock")
    clock.time += step
    second, third = yield [Statement("clock"), Statement("clock")]
    return [rows[0][0] for rows in (first, second, third)]


def test_a_tests_clock_is_the_time_of_every_statement(make: Maker, postgres_database: str) -> None:
    begin = datetime(2031, 1, 1, tzinfo=UTC)
    clock = Clock(begin)
    store = make(postgres_database, clock=clock)
    assert store.migrate(test_clock=True) == ["0001_start"]
    assert store.migrate(test_clock=True) == []
    step = timedelta(days=1)
    assert store.run(watch(clock, step)) == [us(begin), us(begin + step), us(begin + step)]
    assert store.run(look("clock")) == [(us(clock.time),)]
    with store.transaction() as tx:
        assert tx.run(watch(clock, -step)) == [us(begin + step), us(begin), us(begin)]
        clock.time += 2 * step
        assert tx.run(ask("clock")) == [(us(clock.time),)]
    # A store without it sees the real time, also on the same connection's next transaction.
    real = make(postgres_database)
    assert abs(real.run(ask("clock"))[0][0] - us(datetime.now(UTC))) < 3_600_000_000


def test_a_tests_clock_in_a_joined_transaction(postgres_database: str) -> None:
    clock = Clock(datetime(2031, 1, 1, tzinfo=UTC))
    store = Blocking(postgres_database, clock=clock)
    store.migrate(test_clock=True)
    with psycopg.connect(postgres_database) as connection:
        assert store.store.join(connection).run(ask("clock")) == [(us(clock.time),)]
        clock.time += timedelta(hours=1)
        assert store.store.join(connection).run(ask("clock")) == [(us(clock.time),)]
        connection.rollback()
        row = connection.execute("SELECT tenure.now_us()").fetchone()
        assert row is not None
        assert abs(row[0] - us(datetime.now(UTC))) < 3_600_000_000
    store.close()


def test_a_clock_needs_a_schema_made_for_it(make: Maker, database: str) -> None:
    clock = Clock(datetime(2031, 1, 1, tzinfo=UTC))
    store = make(database, clock=clock)
    with pytest.raises(Invalid, match="test_clock=True") as error:
        store.run(ask("clock"))
    assert error.value.code == "TEST_CLOCK"
    with pytest.raises(Invalid) as refusal:
        store.migrate(test_clock=True)
    assert refusal.value.code == "TEST_CLOCK"
    with psycopg.connect(database) as connection:
        blocking = Blocking(database, clock=clock)
        with pytest.raises(Invalid) as joined:
            blocking.store.join(connection).run(ask("clock"))
        assert joined.value.code == "TEST_CLOCK"
        blocking.close()
    assert make(database).run(ask("clock"))


def test_a_later_migration_keeps_the_tests_clock(make: Maker, postgres_database: str) -> None:
    clock = Clock(datetime(2031, 1, 1, tzinfo=UTC))
    make(postgres_database).migrate(test_clock=True)
    anew = Migration(2, "0002_clock", MIGRATIONS[0].sql.partition(";")[0].replace("CREATE", "CREATE OR REPLACE", 1))
    store = make(postgres_database, clock=clock, migrations=[*MIGRATIONS, anew])
    assert store.migrate() == ["0002_clock"]
    assert store.run(ask("clock")) == [(us(clock.time),)]


def test_a_naive_clock_is_refused(make: Maker, postgres_database: str) -> None:
    clock = Clock(datetime(2031, 1, 1, tzinfo=UTC))
    store = make(postgres_database, clock=clock)
    store.migrate(test_clock=True)
    clock.time = datetime(2031, 1, 1)  # noqa: DTZ001 - the mistake to be noticed
    with pytest.raises(Invalid, match="naive"):
        store.run(ask("clock"))
    clock.time = datetime(2031, 1, 2, tzinfo=UTC)
    assert store.run(ask("clock")) == [(us(clock.time),)]


def test_a_server_that_is_away_while_migrating(make: Maker, proxy: Proxy) -> None:
    store = make(proxy.url, patience=timedelta(seconds=0.3))
    proxy.refusing = True
    with pytest.raises(Unavailable):
        store.pending()
    proxy.refusing = False
    assert store.pending() == []
