"""The SQL function beside the library: the same jobs, in the caller's transaction, whatever the session is set to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tenure import verbs
from tenure.errors import Conflict, Invalid, Unavailable
from tenure.rules.envelope import ExecutionInput, validate_execution_identity_for_dispatch
from tenure.rules.payload import PAYLOAD_BYTES_MAX
from tenure.stores.migrate import load
from tenure.verbs.scope import Scope
from tests.contract.bench import START, Bench, micros
from tests.contract.build import EXECUTION, KIND, PAYLOAD, begin, claim, create
from tests.contract.conftest import Benches
from tests.contract.function import ask, typed
from tests.contract.invariants import broken
from tests.contract.refusal import refused

Postgres = psycopg.Connection[Any]
ASKED: dict[str, Any] = {
    "organization": "acme",
    "project": "p1",
    "idempotency_key": "k-1",
    "kind": KIND,
    "payload": '{"quote":17}',
    "actor": "user:42",
    "trace": "t-1",
}
FIELDS: dict[str, Any] = {
    "organization": "acme", "project": "p1", "idempotency_key": "k-1", "kind": KIND, "payload": PAYLOAD,
    "execution": EXECUTION,
}  # fmt: skip


@pytest.fixture
def postgres(benches: Benches) -> Iterator[Bench]:
    """Give a bench on PostgreSQL whose own service creates jobs in Python."""
    bench = benches.get("postgresql-blocking")
    yield bench
    assert broken(bench.dump(), bench.baseline) == []


@contextmanager
def producer(bench: Bench, *settings: str, autocommit: bool = False) -> Iterator[Postgres]:
    """Give a producer's own connection, at the time of the bench."""
    with psycopg.connect(bench.database.url, autocommit=True) as connection:
        for setting in settings:
            connection.execute(setting.encode())
        connection.execute("SELECT set_config('tenure.now_us', %s, false)", [str(micros(bench.now))])
        connection.autocommit = autocommit
        yield connection


def waiting(bench: Bench, connection: Postgres) -> bool:
    """Say whether a session waits for a lock of another."""
    pid = connection.info.backend_pid
    return bench.sql("SELECT wait_event_type FROM pg_stat_activity WHERE pid = ?", pid) == [("Lock",)]


def until_waiting(bench: Bench, connection: Postgres) -> None:
    while not waiting(bench, connection):
        pass


@contextmanager
def typed_errors() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise typed(error) from error


class Calling(threading.Thread):
    """One call in a thread of its own, because it has to wait."""

    def __init__(self, connection: Postgres, given: dict[str, Any]) -> None:
        super().__init__()
        self._connection, self._given = connection, given
        self.answer: tuple[UUID, bool] | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.answer = ask(self._connection, self._given)
            self._connection.commit()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def done(self) -> tuple[UUID, bool]:
        self.join(60)
        assert self.answer is not None, self.error
        return self.answer


# --- the same jobs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("later", [False, True])
def test_it_writes_the_rows_that_the_library_writes(postgres: Bench, fair: bool, later: bool) -> None:
    if fair:
        postgres.sql("INSERT INTO $queue (name, fair) VALUES ('mail', true)")
    more: dict[str, Any] = {
        "kind_version": 3, "tenant": "north", "subject": "quote:17", "queue": "mail", "priority": -4, "max_attempts": 9,
        "backoff_base": timedelta(milliseconds=1500), "lease_duration": timedelta(minutes=3),
        "on_reconciled": "resume", "on_declined": "dead_letter",
    }  # fmt: skip
    if later:
        more["scheduled_at"] = START + timedelta(hours=5)
    who = ExecutionInput(actor="user:42", trace="t-1")
    ours = postgres.service.create_job(**{**FIELDS, **more, "execution": who}).job
    rows = {table: [row for row in rows if row["tenant"] == "north"] for table, rows in postgres.dump().items()
            if table in {"authority", "job", "job_key", "ready", "deferred", "event"}}  # fmt: skip
    postgres.reset()
    if fair:
        postgres.sql("INSERT INTO $queue (name, fair) VALUES ('mail', true)")
    with producer(postgres, autocommit=True) as connection:
        job_id, created = ask(connection, {**ASKED, **more})
    assert created
    after = postgres.dump()
    theirs = {table: [row for row in after[table] if row["tenant"] == "north"] for table in rows}
    assert len(theirs["deferred" if later else "ready"]) == 1
    # All but the id, and what holds it: the envelope and the operation's digest, which the next test reads.
    for table, made in rows.items():
        assert [plain(row, job_id) for row in theirs[table]] == [plain(row, ours.id) for row in made]


def plain(row: dict[str, Any], job_id: UUID) -> dict[str, Any]:
    return {
        name: value.replace(str(job_id), "ID") if isinstance(value, str) else value
        for name, value in row.items()
        if name != "operation_digest"
    }


def test_its_jobs_are_claimed_dispatched_and_completed(postgres: Bench) -> None:
    with producer(postgres, autocommit=True) as connection:
        job_id, _ = ask(connection, ASKED)
    job = postgres.service.get_job(job_id)
    assert validate_execution_identity_for_dispatch(job) == []
    assert list(job.payload["execution"]) == ["tenant", "organization", "project", "job", "actor", "trace"]
    taken = claim(postgres.service, start=True)
    assert taken.job.id == job_id
    assert begin(postgres.service, taken.lease) == f"{KIND}:{job_id}:send"
    without = {name: value for name, value in ASKED.items() if name not in {"actor", "trace"}}
    with producer(postgres, autocommit=True) as connection:
        plain_id, _ = ask(connection, {**without, "idempotency_key": "k-2"})
    other = claim(postgres.service, start=True)
    assert (other.job.id, other.job.payload) == (plain_id, PAYLOAD)
    assert postgres.service.complete_job(other.lease, result=1).status == "completed"


def test_a_key_means_the_same_on_both_ways(postgres: Bench) -> None:
    ours = postgres.service.create_job(**FIELDS).job
    with producer(postgres, autocommit=True) as connection:
        assert ask(connection, ASKED) == (ours.id, False)
        assert ask(connection, {**ASKED, "payload": '{ "quote" : 17.0 }', "trace": "another"}) == (ours.id, False)
        for name, other in (("organization", "other"), ("kind", "other"), ("payload", '{"quote":18}')):
            with refused(postgres, Conflict, code="IDEMPOTENCY_MISMATCH") as caught:
                ask(connection, {**ASKED, "tenant": "acme", name: other})
            assert f"another {name}" in str(caught.value)
        theirs, _ = ask(connection, {**ASKED, "idempotency_key": "k-2"})
    again = postgres.service.create_job(**{**FIELDS, "idempotency_key": "k-2"})
    assert (again.job.id, again.created) == (theirs, False)
    with refused(postgres, Conflict, code="IDEMPOTENCY_MISMATCH"):
        postgres.service.create_job(**{**FIELDS, "idempotency_key": "k-2", "payload": {}})


def test_a_new_job_has_the_epoch_of_its_tenant(postgres: Bench) -> None:
    create(postgres.service)
    postgres.sql("UPDATE $authority SET epoch = 5 WHERE tenant = ?", "acme")
    with producer(postgres, autocommit=True) as connection:
        job_id, _ = ask(connection, {**ASKED, "idempotency_key": "k-2"})
    assert postgres.service.get_job(job_id).epoch == 5


# --- what only a text can hold ----------------------------------------------------------------------------------------


def test_the_text_is_kept_as_it_was_sent(postgres: Bench) -> None:
    text = ' { "b" : 1.50,\n\t"a":"\\u00e9\\ud83d\\ude00\\\\u0000" , "n": -0, "o":{} }\n'
    without = {name: value for name, value in ASKED.items() if name not in {"actor", "trace"}}
    with producer(postgres, autocommit=True) as connection:
        job_id, _ = ask(connection, {**without, "payload": text})
        sealed, _ = ask(connection, {**ASKED, "payload": text, "idempotency_key": "k-2"})
        empty, _ = ask(connection, {**ASKED, "payload": " { } ", "idempotency_key": "k-3"})
    ((stored,),) = postgres.sql("SELECT CAST(payload AS text) FROM $job WHERE job_id = ?", job_id)
    assert stored == text
    ((stored,),) = postgres.sql("SELECT CAST(payload AS text) FROM $job WHERE job_id = ?", sealed)
    assert stored.startswith(text.rstrip()[:-1] + ',"execution":{"tenant":"acme",')
    read = postgres.service.get_job(sealed)
    assert list(read.payload) == ["b", "a", "n", "o", "execution"]
    assert read.payload["a"] == "é\U0001f600\\u0000"
    assert list(postgres.service.get_job(empty).payload) == ["execution"]
    again = postgres.service.create_job(**{**FIELDS, "idempotency_key": "k-2", "payload": {
        "a": "é\U0001f600\\u0000", "b": 1.5, "n": 0, "o": {}
    }})  # fmt: skip
    assert (again.job.id, again.created) == (sealed, False)


REFUSED_HERE: dict[str, tuple[dict[str, Any], str, str]] = {
    "no object": ({"payload": "[1]"}, "PAYLOAD_INVALID", "object"),
    "null": ({"payload": "null"}, "PAYLOAD_INVALID", "object"),
    "twice": ({"payload": '{"a":[{"b":1,"c":2,"b":3}]}'}, "DUPLICATE_KEY", "$.a[0].b "),
    "twice by escape": ({"payload": '{"a":1,"\\u0061":2}'}, "DUPLICATE_KEY", "$.a "),
    "twice by surrogates": ({"payload": '{"\U0001f600":1,"\\ud83d\\ude00":2}'}, "DUPLICATE_KEY", '$["\\ud83d'),
    "reserved": ({"payload": '{"execution":{}}'}, "RESERVED_KEY", "execution"),
    "reserved by escape": ({"payload": '{"\\u0067overnance":null}'}, "RESERVED_KEY", "governance"),
    "nul": ({"payload": '{"a":["\\\\\\u0000"]}'}, "NUL_CHARACTER", "$.a[0] "),
    "nul in a key": ({"payload": '{"o":{"a\\u0000b":1}}'}, "NUL_CHARACTER", '$.o["a\\u0000b"] '),
    "half a character": ({"payload": '{"a":"\\ud83d\\\\ude00"}'}, "INVALID_UNICODE", "$.a "),
    "half, beside a whole": ({"payload": '{"a":"\\ud83d\\ude00\\ude00"}'}, "INVALID_UNICODE", "$.a "),
    "beyond every double": ({"payload": '{"a":{"b":-1e400}}'}, "NON_FINITE_NUMBER", "$.a.b "),
    "digits": ({"payload": '{"a":-' + "9" * 4001 + "}"}, "NUMBER_TOO_LONG", "$.a "),
    "deep": ({"payload": '{"a":' + "[" * 100 + "]" * 100 + "}"}, "TOO_DEEP", "$.a[0][0]"),
    "white space": ({"payload": "{" + " " * PAYLOAD_BYTES_MAX + "}"}, "PAYLOAD_TOO_LARGE", "bytes"),
    "large with its envelope": (
        {"payload": '{"a":"' + "x" * (PAYLOAD_BYTES_MAX - 8) + '"}'}, "PAYLOAD_TOO_LARGE", "bytes"
    ),
    "actor alone": ({"trace": None}, "ENVELOPE_VALUE", "together"),
    "trace alone": ({"actor": None}, "ENVELOPE_VALUE", "together"),
    "actor empty": ({"actor": " \u2003"}, "ENVELOPE_VALUE", "execution.actor"),
    "trace too long": ({"trace": "x" * 1001}, "ENVELOPE_VALUE", "execution.trace"),
    "no queue": ({"queue": None}, "BAD_ARGUMENT", "queue"),
    "no version": ({"kind_version": None}, "BAD_ARGUMENT", "kind_version"),
    "no priority": ({"priority": None}, "BAD_ARGUMENT", "priority"),
    "no attempts": ({"max_attempts": None}, "BAD_ARGUMENT", "max_attempts"),
    "no backoff": ({"backoff_base": None}, "BAD_DURATION", "backoff_base"),
    "no lease": ({"lease_duration": None}, "BAD_DURATION", "lease_duration"),
    "an unassigned character": ({"subject": "a\u0378"}, "BAD_ARGUMENT", "subject"),
    "a wide space": ({"subject": "a\u2003b"}, "BAD_ARGUMENT", "subject"),
    "a joiner": ({"kind": "a\u200db"}, "BAD_ARGUMENT", "kind"),
}  # fmt: skip


def test_what_the_function_refuses_itself(postgres: Bench) -> None:
    with producer(postgres, autocommit=True) as connection:
        for name, (given, code, said) in REFUSED_HERE.items():
            with refused(postgres, Invalid, code=code) as caught:
                ask(connection, {**ASKED, **given})
            assert said in str(caught.value), name
        for name, code, texts in (
            ("scheduled_at", "BAD_INSTANT", ("infinity", "-infinity", "0001-01-01 00:00+00 BC", "9999-01-01 00:00+00")),
            ("lease_duration", "BAD_DURATION", ("1 year", "1 year -353 days", "-1 second", "7 days 1 microsecond")),
        ):
            for text in texts:
                # What no type of Python holds is written as a literal.
                call = f"SELECT tenure.enqueue('acme', 'p1', 'k-1', 'kind', '{{}}', {name} => '{text}')"
                with refused(postgres, Invalid, code=code), typed_errors():
                    connection.execute(call.encode())
        assert ask(connection, {**ASKED, "subject": "Zo\u00eb \U0001f600 \u4e2d"})[1]
        deepest = '{"a":' + "[" * 99 + "]" * 99 + "}"
        assert ask(connection, {**ASKED, "idempotency_key": "k-2", "payload": deepest})[1]


def test_it_says_what_to_do_next_as_a_producer_reads_it(postgres: Bench) -> None:
    create(postgres.service)
    with producer(postgres, autocommit=True) as connection:
        for given, state, code, hint in (
            ({"queue": ""}, "TNINV", "BAD_ARGUMENT", "Correct the call"),
            ({"payload": "{}"}, "TNCON", "IDEMPOTENCY_MISMATCH", "Use another key"),
        ):
            with pytest.raises((Invalid, Conflict)) as caught:
                ask(connection, {**ASKED, **given})
            answer = caught.value.__cause__
            assert isinstance(answer, psycopg.Error)
            assert (answer.sqlstate, answer.diag.message_detail) == (state, code)
            assert (answer.diag.message_hint or "").startswith(hint)
        # Refused by the server itself, before the call.
        for text, state in (
            ("SELECT tenure.enqueue('a', 'p', 'k', 'kind', '{')", "22P02"),
            ("SELECT tenure.enqueue('a', 'p', 'k', 'kind', '{\"a\": NaN}')", "22P02"),
            ("SELECT tenure.enqueue('a', 'p', 'k', 'kind', '{}'::jsonb)", "42883"),
            ("SELECT tenure.enqueue('a', 'p', 'k', 'kind', '{}', priority => 1.5)", "42883"),
            ("SELECT tenure.enqueue('a', 'p', 'k', 'kind')", "42883"),
        ):
            with pytest.raises(psycopg.Error) as refusal:
                connection.execute(text.encode())
            assert refusal.value.sqlstate == state
        assert connection.execute("SELECT tenure.enqueue('a', 'p', 'k', 'kind', '{}'::jsonb::json)").fetchone()


# --- in the caller's transaction --------------------------------------------------------------------------------------


def test_nobody_sees_it_before_the_commit_and_a_rollback_leaves_nothing(postgres: Bench) -> None:
    before = postgres.dump()
    with producer(postgres) as connection:
        connection.execute("INSERT INTO own VALUES (1)")
        assert ask(connection, ASKED)[1]
        assert postgres.service.claim_job("A") is None
        connection.rollback()
        assert postgres.dump() == before
        connection.execute("INSERT INTO own VALUES (1)")
        job_id, created = ask(connection, ASKED)
        assert created
        assert ask(connection, ASKED) == (job_id, False)
        connection.commit()
    assert claim(postgres.service).job.id == job_id


def test_a_refusal_behind_a_savepoint_leaves_the_transaction_usable(postgres: Bench) -> None:
    create(postgres.service, "taken")
    with producer(postgres) as connection:
        connection.execute("INSERT INTO own VALUES (1)")
        for given, error in (({"payload": "[]"}, Invalid), ({"idempotency_key": "taken", "payload": "{}"}, Conflict)):
            connection.execute("SAVEPOINT before")
            with pytest.raises(error):
                ask(connection, {**ASKED, **given})
            connection.execute("ROLLBACK TO SAVEPOINT before")
        job_id, _ = ask(connection, ASKED)
        connection.commit()
    assert postgres.sql("SELECT value FROM own") == [(1,)]
    assert postgres.service.get_job(job_id).idempotency_key == "k-1"


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("first", ["the function", "the library"])
def test_the_second_of_two_waits_and_finds_the_first_or_creates(postgres: Bench, first: str, committed: bool) -> None:
    with producer(postgres) as one, producer(postgres) as two:
        if first == "the function":
            made, _ = ask(one, ASKED)
        else:
            one.execute("SELECT 1")
            joined: Any = postgres.store.join(one)
            made = joined.run(verbs.create_job(Scope(), **FIELDS)).job.id
        second = Calling(two, ASKED)
        second.start()
        until_waiting(postgres, two)
        if committed:
            one.commit()
        else:
            one.rollback()
        job_id, created = second.done()
    assert (job_id == made, created) == (committed, not committed)
    assert len(postgres.service.list_jobs(tenant="acme")) == 1


def test_a_library_call_waits_for_a_function_call(postgres: Bench) -> None:
    create(postgres.service, "another")
    with producer(postgres) as one:
        made, _ = ask(one, ASKED)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(postgres.service.create_job(**FIELDS)))
        thread.start()
        query = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        while not postgres.sql(query):
            pass
        one.commit()
        thread.join(60)
    assert (found[0].job.id, found[0].created) == (made, False)


def test_what_a_snapshot_cannot_see_is_to_be_run_again(postgres: Bench) -> None:
    create(postgres.service, "other")
    with producer(postgres) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1 FROM tenure.job")
        ours = create(postgres.service)
        # PostgreSQL refuses the reservation by itself: a serialization failure, to be run again as KEY_BUSY is.
        with pytest.raises((psycopg.errors.SerializationFailure, Unavailable)):
            ask(connection, ASKED)
        connection.rollback()
        assert ask(connection, ASKED) == (ours.id, False)


def test_many_sessions_with_few_keys_make_one_job_for_each(postgres: Bench) -> None:
    def run(nth: int) -> None:
        with producer(postgres, autocommit=True) as connection:
            for turn in range(10):
                key = (turn + nth) % 10
                given = {**ASKED, "tenant": f"new-{key % 3}", "idempotency_key": f"k-{key}"}
                answers.append((key, *ask(connection, given)))

    answers: list[tuple[int, UUID, bool]] = []
    threads = [threading.Thread(target=run, args=[nth]) for nth in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 60
    assert sum(created for _, _, created in answers) == len({(key, job_id) for key, job_id, _ in answers}) == 10


# --- whatever the session is set to -----------------------------------------------------------------------------------

HOSTILE = """
    CREATE SCHEMA evil;
    CREATE FUNCTION evil.length(text) RETURNS integer LANGUAGE sql AS 'SELECT 0';
    CREATE FUNCTION evil.strpos(text, text) RETURNS integer LANGUAGE sql AS 'SELECT 0';
    CREATE FUNCTION evil.sha256(bytea) RETURNS bytea LANGUAGE sql AS 'SELECT $1';
    CREATE FUNCTION evil.never(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT false';
    CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.never);
    CREATE OPERATOR evil.~ (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.never);
"""
SESSIONS = {
    "few digits": ["SET extra_float_digits = -15"],
    "old strings": ["SET standard_conforming_strings = off", "SET escape_string_warning = off"],
    "odd formats": ["SET bytea_output = escape", "SET DateStyle = 'German, DMY'", "SET IntervalStyle = sql_standard"],
    "another zone": ["SET TimeZone = 'Asia/Kathmandu'"],
    "another encoding": ["SET client_encoding = 'LATIN1'"],
    "custom plans": ["SET plan_cache_mode = force_custom_plan", "SET jit = on", "SET jit_above_cost = 0"],
    "somebody's path": ["SET search_path = evil, pg_catalog, tenure"],
    "somebody's tables": ["CREATE TEMP TABLE job_key (x int)", "CREATE TEMP VIEW authority AS SELECT 'acme' AS tenant"],
}


@pytest.mark.parametrize("name", SESSIONS)
def test_the_session_changes_nothing(postgres: Bench, name: str) -> None:
    payload = {"f": [0.1, 1e23, 5e-324, 123456.789], "t": 'a\\b"c\u00e9', "\u00e9": 1, "k": {"b": 1, "a": 2}}
    fields = {**FIELDS, "payload": payload, "scheduled_at": START + timedelta(microseconds=1)}
    ours = postgres.service.create_job(**fields).job
    text = '{"f":[0.1,1e23,5e-324,123456.789],"t":"a\\\\b\\"c\\u00e9","\\u00e9":1,"k":{"b":1,"a":2}}'
    postgres.sql(HOSTILE)
    try:
        with producer(postgres, *SESSIONS[name], autocommit=True) as connection:
            given = {**ASKED, "payload": text, "scheduled_at": fields["scheduled_at"]}
            assert ask(connection, given) == (ours.id, False)
            job_id, created = ask(connection, {**given, "idempotency_key": "k-2"})
            assert created
            with pytest.raises(Invalid):
                ask(connection, {**given, "idempotency_key": ""})
            # The settings that it needs are its own and end with it.
            mode = "force_custom_plan" if name == "custom plans" else "auto"
            assert connection.execute("SHOW plan_cache_mode").fetchone() == (mode,)
    finally:
        postgres.sql("DROP SCHEMA evil CASCADE")
    read = postgres.service.get_job(job_id)
    assert {key: read.payload[key] for key in payload} == payload
    assert (read.payload_digest, read.scheduled_at) == (ours.payload_digest, ours.scheduled_at)


def test_a_database_of_another_encoding_takes_the_schema_and_says_so_at_the_call(postgres_url: str) -> None:
    name = f"latin_{uuid4().hex[:12]}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(
            f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0".encode()
        )
        try:
            url = make_conninfo(postgres_url, dbname=name)
            with psycopg.connect(url, autocommit=True) as connection:
                for step in load("tenure.stores.postgres"):
                    connection.execute(step.sql.encode())
                with pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
                    ask(connection, ASKED)
                assert "UTF8" in str(caught.value)
        finally:
            admin.execute(f"DROP DATABASE {name}".encode())


def test_it_tells_nobody_and_asks_for_no_more_rights_than_its_caller_has(postgres: Bench) -> None:
    with producer(postgres, autocommit=True) as listener, producer(postgres, autocommit=True) as connection:
        listener.execute("LISTEN tenure")
        ask(connection, ASKED)
        listener.execute("SELECT 1")
        assert list(listener.notifies(timeout=0)) == []
        # The control: a commit of the store tells.
        postgres.service.create_job(**{**FIELDS, "idempotency_key": "k-2"})
        assert len(list(listener.notifies(timeout=30, stop_after=1))) == 1
        rows = connection.execute(
            "SELECT proname, prosecdef, proconfig FROM pg_proc WHERE pronamespace = 'tenure'::regnamespace "
            "AND proname LIKE 'enqueue%'"
        ).fetchall()
    assert len(rows) == 10
    assert [name for name, definer, _ in rows if definer] == []
    assert "search_path=pg_catalog, pg_temp" in {row[0]: row[2] for row in rows}["enqueue"]


def test_a_document_as_large_and_as_deep_as_allowed_takes_no_unreasonable_time(postgres: Bench) -> None:
    wide = '{"l":[' + ",".join(["0"] * 400_000) + "]}"
    deep = '{"a":' + "[" * 99 + ",".join(["1.5"] * 20_000) + "]" * 99 + "}"
    keys = "{" + ",".join(f'"k{nth}":{nth}' for nth in range(50_000)) + "}"
    with producer(postgres, "SET statement_timeout = '60s'", autocommit=True) as connection:
        for nth, text in enumerate((wide, deep, keys)):
            assert ask(connection, {**ASKED, "idempotency_key": f"k-{nth}", "payload": text})[1]
