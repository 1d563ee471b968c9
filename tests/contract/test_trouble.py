"""A database in trouble: serialization failures, deadlocks, a full disk, locks of others; and nothing half done."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tenure.errors import Unavailable
from tenure.rules.outcome import Accepted, Succeeded
from tests.contract.bench import Bench, SqliteFile, close_bench
from tests.contract.build import CASES, EXECUTION, KIND, MAILER, OWN_KEY, PAYLOAD, RECEIPT, REQUEST, Case, create
from tests.contract.conftest import Benches
from tests.contract.invariants import broken
from tests.contract.refusal import refused
from tests.support.postgres import Databases

Call = Callable[[Bench, Case], Any]

WRITES: dict[str, tuple[str, Call]] = {
    "create": (
        "completed",
        lambda b, c: b.service.create_job(
            organization="acme", project="p1", idempotency_key="k-9", kind=KIND, payload=PAYLOAD, execution=EXECUTION
        ),
    ),
    "claim": ("queued", lambda b, c: b.service.claim_job("B")),
    "claim an expired one": ("expired", lambda b, c: b.service.claim_job("B")),
    "heartbeat": ("claimed", lambda b, c: b.service.heartbeat(c.lease)),
    "mark dispatched": ("claimed", lambda b, c: b.service.mark_provider_dispatched(c.lease, operation_key=OWN_KEY)),
    "begin": (
        "running", lambda b, c: b.service.begin_effect(c.lease, name="send", request=REQUEST, provider=MAILER)
    ),
    "finish": (
        "running, effect", lambda b, c: b.service.finish_effect(c.lease, name="send", outcome=Succeeded(RECEIPT))
    ),
    "submit evidence": (
        "running, effect",
        lambda b, c: b.service.submit_evidence(str(c.key), Accepted(RECEIPT), attempt_id=c.lease.attempt_id),
    ),
    "complete": ("running", lambda b, c: b.service.complete_job(c.lease, result={"n": 1})),
    "fail": ("running", lambda b, c: b.service.fail_job(c.lease, code="E", message="m", retryable=True)),
    "mark indeterminate": ("running", lambda b, c: b.service.mark_indeterminate(c.lease, code="E", message="m")),
    "mark halt unsafe": ("running", lambda b, c: b.service.mark_halt_unsafe(c.lease, code="E", message="m")),
    "mark timed out": ("running", lambda b, c: b.service.mark_timed_out(c.lease, code="E", message="m")),
    "release": ("running", lambda b, c: b.service.release_job(c.lease, reason="r")),
    "acknowledge": ("running, cancelling", lambda b, c: b.service.acknowledge_cancellation(c.lease)),
    "cancel": ("running", lambda b, c: b.service.cancel_job(c.job_id, reason="r")),
    "revoke": ("running", lambda b, c: b.service.revoke_job(c.job_id, reason="r", actor="op:1")),
    "retry": ("failed", lambda b, c: b.service.retry_job(c.job_id, actor="op:1")),
    "state": (
        "indeterminate, mark",
        lambda b, c: b.service.reconcile_dispatched(c.job_id, Accepted(RECEIPT), reason="r", actor="op:1"),
    ),
    "resume sweep": ("indeterminate, escalated", lambda b, c: b.service.resume_sweep(c.job_id, actor="op:1")),
    "append event": ("running", lambda b, c: b.service.append_job_event(c.job_id, "admission_checked", {})),
    "sweep": (
        "indeterminate, mark",
        lambda b, c: b.service.sweep_reconciliation_candidates(
            organization="acme", project="p1", lookup=lambda key, job: Accepted(RECEIPT)
        ),
    ),
}  # fmt: skip

# The statement-level triggers fail as often as the sequence says; what a sequence gave is not taken back by a rollback.
_TRIGGER = """
CREATE SEQUENCE failures MINVALUE 0 START 0;
CREATE FUNCTION fail_at_first() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE left_over bigint;
BEGIN
    SELECT last_value INTO left_over FROM failures;
    IF left_over > 0 THEN
        PERFORM setval('failures', left_over - 1);
        RAISE EXCEPTION 'injected' USING ERRCODE = (SELECT value FROM tenure.meta WHERE key = 'sqlstate');
    END IF;
    RETURN NULL;
END $$;
"""
_TABLES = ("job", "ready", "deferred", "lease", "resting", "outcome", "event", "effect", "evidence", "escalation")


@pytest.fixture(scope="module")
def failing(benches: Benches, postgres_databases: Databases) -> Iterator[Callable[[str], Bench]]:
    """Give benches on a database of its own, whose default is repeatable read and whose tables fail when told to."""
    made: dict[str, Bench] = {}
    url = postgres_databases.create()
    database = benches.prepare(url)
    assert database.raw is not None
    name = url.rpartition("/")[2]
    database.sql(f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")
    database.raw.execute(_TRIGGER)
    for table in _TABLES:
        database.sql(
            f"CREATE TRIGGER fail_at_first BEFORE INSERT OR UPDATE OR DELETE ON tenure.{table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION fail_at_first()"
        )

    def get(manner: str) -> Bench:
        if manner not in made:
            made[manner] = benches.open(manner, database=database)
        made[manner].reset()
        return made[manner]

    try:
        yield get
    finally:
        for bench in made.values():
            close_bench(bench)
        database.close()
        postgres_databases.drop(url)


@pytest.mark.parametrize("manner", ["postgresql-blocking", "postgresql-awaiting"])
@pytest.mark.parametrize("verb", WRITES)
def test_serialization_failures_and_deadlocks_are_tried_again(
    failing: Callable[[str], Bench], verb: str, manner: str
) -> None:
    bench = failing(manner)
    build, call = WRITES[verb]
    case = CASES[build](bench)
    snapshot = bench.snapshot()
    call(bench, case)
    clean = [row["name"] for row in bench.dump()["event"]]
    for state, times in (("40001", 3), ("40P01", 3), ("40001", 5)):
        bench.restore(snapshot)
        bench.sql("INSERT INTO $meta (key, value) VALUES ('sqlstate', ?)", state)
        bench.sql("SELECT setval('failures', ?)", times)
        call(bench, case)
        # Every failure was hit, and the trail has what one clean call leaves.
        assert bench.sql("SELECT last_value FROM failures") == [(0,)]
        assert [row["name"] for row in bench.dump()["event"]] == clean
        assert broken(bench.dump(), bench.baseline) == []


@pytest.mark.parametrize("manner", ["postgresql-blocking", "postgresql-awaiting"])
@pytest.mark.parametrize("verb", ["create", "complete", "begin", "claim"])
def test_failures_that_do_not_end_are_unavailable_and_leave_nothing(
    failing: Callable[[str], Bench], verb: str, manner: str
) -> None:
    bench = failing(manner)
    build, call = WRITES[verb]
    case = CASES[build](bench)
    bench.sql("INSERT INTO $meta (key, value) VALUES ('sqlstate', '40001')")
    bench.sql("SELECT setval('failures', 1000)")
    with refused(bench, Unavailable):
        call(bench, case)
    tries = 1000 - bench.sql("SELECT last_value FROM failures")[0][0]
    assert tries == 6
    bench.sql("SELECT setval('failures', 0)")
    call(bench, case)


@pytest.mark.parametrize("manner", ["postgresql-blocking", "postgresql-awaiting"])
def test_units_set_their_own_isolation(failing: Callable[[str], Bench], manner: str) -> None:
    """Under the database's default a claim would fail where it should skip what another one has taken."""
    bench = failing(manner)
    assert bench.sql("SHOW default_transaction_isolation") == [("read committed",)]
    fresh = psycopg.connect(bench.database.url)
    assert fresh.execute("SHOW transaction_isolation").fetchall() == [("repeatable read",)]
    fresh.close()
    for nth in range(40):
        create(bench.service, f"k-{nth}")
    taken: list[Any] = []
    errors: list[Exception] = []

    def work(worker: str) -> None:
        try:
            while (one := bench.service.claim_job(worker, start=True)) is not None:
                bench.service.complete_job(one.lease, result=None)
                taken.append(one.job.id)
        except Exception as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"w{nth}",)) for nth in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert len(taken) == len(set(taken)) == 40
    assert {row["status"] for row in bench.dump()["outcome"] if row["tenant"] == "acme"} == {"completed"}
    assert {row["generation"] for row in bench.dump()["outcome"] if row["tenant"] == "acme"} == {1}


# --- SQLite -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["create", "begin", "finish", "complete", "append event"])
def test_a_full_disk_is_a_typed_error_and_keeps_what_was_there(sqlite_bench: Bench, verb: str) -> None:
    bench = sqlite_bench
    build, call = WRITES[verb]
    case = CASES[build](bench)
    states = [row["state"] for row in bench.table("effect", case.job_id)]
    with full_disk(bench):
        before = bench.dump()
        # The rest of the last page may take some rows; then it is over.
        for nth in range(400):
            try:
                create(bench.service, f"fill-{nth}", payload={"t": "x" * 500}, execution=None)
            except Unavailable as full:
                assert full.code == "STORAGE_FULL"  # noqa: PT017 - when it comes is not known
                break
        else:
            raise AssertionError("the disk was never full")
        filled = bench.dump()
        big = {"t": "x" * 60_000}
        with refused(bench, Unavailable, code="STORAGE_FULL"):
            create(bench.service, "k-big", payload=big, execution=None)
        with refused(bench, Unavailable, code="STORAGE_FULL"):
            if verb in {"begin", "finish", "complete"}:
                bench.service.fail_job(case.lease, code="E", message="x" * 8000, retryable=False)
            create(bench.service, "k-big", payload=big, execution=None)
        assert len(filled["job"]) >= len(before["job"])
        assert [row["state"] for row in bench.table("effect", case.job_id)] == states
        assert bench.sql("PRAGMA integrity_check") == [("ok",)]
        assert bench.service.get_job(case.job_id).id == case.job_id
    call(bench, case)


class full_disk:  # noqa: N801 - reads as what it does
    """Allow the writer's database no page more than it has."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def __enter__(self) -> None:
        # Pages that other tests have left free would be taken first.
        self._bench.sql("VACUUM")
        self._limit((self._bench.sql("PRAGMA page_count"))[0][0])

    def __exit__(self, *_: object) -> None:
        self._limit(1_073_741_823)

    def _limit(self, pages: int) -> None:
        with self._bench.transaction() as tx:
            tx.execute(f"PRAGMA max_page_count = {pages:d}")


def test_another_processs_lock_is_waited_for(sqlite_bench: Bench) -> None:
    bench = sqlite_bench
    assert isinstance(bench.database, SqliteFile)
    case = CASES["running"](bench)
    other = sqlite3.connect(bench.database.path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(bench.service.complete_job(case.lease, result=None)))
    thread.start()
    # A reader is not kept waiting.
    assert bench.service.get_job(case.job_id).status == "running"
    assert done == []
    other.execute("ROLLBACK")
    thread.join(30)
    other.close()
    assert [job.status for job in done] == ["completed"]


def test_a_lock_that_is_never_let_go_is_a_typed_error(sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = sqlite_bench
    assert isinstance(bench.database, SqliteFile)
    monkeypatch.setattr("tenure.stores.sqlite.engine.PATIENCE", 0.2)
    monkeypatch.setattr("tenure.stores.sqlite.line.PATIENCE", 0.2)
    case = CASES["running"](bench)
    other = sqlite3.connect(bench.database.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable) as caught:
        bench.service.complete_job(case.lease, result=None)
    assert caught.value.code == "STORE_BUSY"
    other.execute("ROLLBACK")
    other.close()
    assert bench.service.get_job(case.job_id).status == "running"
    assert bench.service.complete_job(case.lease, result=None).status == "completed"
