"""Verbs in a caller's own transaction: visible with its commit, gone with its rollback, and never ended by us."""

from __future__ import annotations

import sqlite3
import threading
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row

from tenure import verbs
from tenure.errors import Conflict, Invalid, LeaseLost, NotFound, TenureError, Unavailable
from tenure.rules.outcome import Accepted, Succeeded
from tenure.verbs.scope import Scope
from tenure.yields import AfterCommit
from tests.contract.bench import Bench, SqliteFile
from tests.contract.build import CASES, EXECUTION, KIND, MAILER, PAYLOAD, REQUEST, claim, create
from tests.contract.caller import Caller, own, producer
from tests.contract.refusal import refused

SCOPE = Scope()


def creation(key: str = "k-1", **more: Any) -> Any:
    fields = {"organization": "acme", "project": "p1", "kind": KIND, "payload": PAYLOAD, "execution": EXECUTION}
    return verbs.create_job(SCOPE, idempotency_key=key, **{**fields, **more})


def test_a_job_is_invisible_until_the_callers_commit(bench: Bench) -> None:
    with producer(bench) as caller:
        caller.begin()
        caller.write(7)
        made = caller.run(creation())
        assert made.created
        # What the joined transaction itself sees is its own business; nobody else sees anything.
        assert caller.run(verbs.get_job(SCOPE, made.job.id)).id == made.job.id
        with refused(bench, NotFound):
            bench.service.get_job(made.job.id)
        assert bench.service.list_jobs(tenant="acme") == []
        if bench.dialect == "postgresql":
            # On SQLite a claim would wait for the caller's write lock.
            assert bench.service.claim_job("A") is None
        assert own(bench) == []
        caller.commit()
    assert own(bench) == [7]
    assert claim(bench.service).job.id == made.job.id


def test_a_job_is_gone_with_the_callers_rollback(bench: Bench) -> None:
    before = bench.dump()
    with producer(bench) as caller:
        caller.begin()
        caller.write(7)
        gone = caller.run(creation())
        caller.rollback()
        assert (bench.dump(), own(bench)) == (before, [])
        assert bench.service.claim_job("A") is None
        # The key is free again, with another meaning too.
        caller.begin()
        made = caller.run(creation(payload={"other": 1}))
        caller.commit()
    assert made.created
    assert made.job.id != gone.job.id
    assert bench.service.get_job(made.job.id).payload["other"] == 1


def test_a_connection_that_is_closed_without_a_commit_leaves_nothing(bench: Bench) -> None:
    before = bench.dump()
    with producer(bench) as caller:
        caller.begin()
        caller.run(creation())
    assert bench.dump() == before
    assert create(bench.service).status == "queued"


def test_joining_neither_commits_nor_ends_anything(bench: Bench) -> None:
    with producer(bench) as caller:
        caller.begin()
        joined = caller.join()
        for nth in range(3):
            caller.run(creation(f"k-{nth}"), joined)
            caller.write(nth)
        joined.execute("INSERT INTO own (value) VALUES (9)")
        assert (own(bench), bench.service.list_jobs(tenant="acme")) == ([], [])
        caller.commit()
        assert (own(bench), len(bench.service.list_jobs(tenant="acme"))) == ([0, 1, 2, 9], 3)


def test_many_verbs_share_one_transaction(bench: Bench) -> None:
    create(bench.service)
    taken = claim(bench.service, start=True)
    with producer(bench) as caller:
        caller.begin()
        begun = caller.run(verbs.begin_effect(SCOPE, taken.lease, name="send", request=REQUEST, provider=MAILER))
        assert begun.state == "pending"
        caller.run(verbs.finish_effect(SCOPE, taken.lease, name="send", outcome=Succeeded({"id": 1})))
        caller.run(verbs.complete_job(SCOPE, taken.lease, result={"n": 1}))
        follow_up = caller.run(creation("k-2")).job
        caller.run(verbs.cancel_job(SCOPE, follow_up.id, reason="not needed"))
        caller.commit()
    assert bench.trail(taken.job.id) == ["claimed", "dispatched", "effect_settled", "completed"]
    assert bench.service.get_job(follow_up.id).status == "cancelled"


def test_the_fence_holds_in_a_joined_transaction(bench: Bench) -> None:
    case = CASES["expired"](bench)
    with producer(bench) as caller:
        caller.begin()
        caller.write(1)
        with pytest.raises(LeaseLost):
            caller.run(verbs.complete_job(SCOPE, case.lease, result=None))
        caller.commit()
        current = claim(bench.service, "B", start=True)
        caller.begin()
        caller.run(verbs.complete_job(SCOPE, current.lease, result="mine"))
        caller.commit()
    assert own(bench) == [1]
    assert bench.service.get_job(case.job_id).result == "mine"


NOBODY = UUID(int=17)
BROKEN: list[tuple[type[TenureError], Any]] = [
    (Conflict, lambda: creation(payload={"other": 1})),
    (NotFound, lambda: verbs.cancel_job(SCOPE, NOBODY, reason="r")),
    (NotFound, lambda: verbs.submit_evidence(SCOPE, "k", Accepted(), attempt_id=NOBODY)),
]


@pytest.mark.parametrize("error,broken", BROKEN)
def test_a_verb_that_fails_leaves_the_callers_transaction_usable(
    bench: Bench, error: type[TenureError], broken: Any
) -> None:
    create(bench.service)
    with producer(bench) as caller:
        caller.begin()
        caller.write(1)
        joined = caller.join()
        with pytest.raises(error):
            caller.run(broken(), joined)
        caller.write(2)
        made = caller.run(creation("k-2"), joined)
        with pytest.raises(error):
            caller.run(broken(), joined)
        caller.write(3)
        caller.commit()
    assert own(bench) == [1, 2, 3]
    assert bench.service.get_job(made.job.id).status == "queued"


def test_half_done_work_of_a_failing_verb_is_undone(bench: Bench) -> None:
    """The first of two new jobs must not stay when the second one conflicts."""
    create(bench.service, "k-9")
    fields = {"organization": "acme", "project": "p1", "kind": KIND, "payload": PAYLOAD}
    both = [{**fields, "idempotency_key": "k-1"}, {**fields, "idempotency_key": "k-9", "payload": {"other": 1}}]
    with producer(bench) as caller:
        caller.begin()
        with pytest.raises(Conflict):
            caller.run(verbs.create_jobs(SCOPE, both))
        caller.write(1)
        caller.commit()
    assert own(bench) == [1]
    assert [job.idempotency_key for job in bench.service.list_jobs(tenant="acme")] == ["k-9"]


def test_an_error_that_follows_a_commit_is_given_back_because_the_commit_is_the_callers(bench: Bench) -> None:
    case = CASES["running, effect"](bench)
    with producer(bench) as caller:
        caller.begin()
        answer = caller.run(verbs.complete_job(SCOPE, case.lease, result=None))
        assert isinstance(answer, AfterCommit)
        assert answer.error.code == "UNCERTAIN"
        assert bench.service.get_job(case.job_id).status == "running"
        caller.commit()
    assert bench.service.get_job(case.job_id).status == "indeterminate"


def test_a_connection_that_commits_each_statement_is_refused(bench: Bench) -> None:
    settings: dict[str, Any] = {"autocommit": True} if bench.dialect == "postgresql" else {}
    with producer(bench, **settings) as caller:
        with refused(bench, Invalid, code="AUTOCOMMIT"):
            caller.run(creation())
        # The control: the same connection inside a transaction.
        caller.execute("BEGIN")
        made = caller.run(creation())
        caller.execute("COMMIT")
        with refused(bench, Invalid, code="AUTOCOMMIT"):
            caller.run(creation("k-2"))
    assert bench.service.get_job(made.job.id).status == "queued"


def test_what_is_joined_after_the_end_of_its_transaction_is_refused(sqlite_bench: Bench) -> None:
    with producer(sqlite_bench) as caller:
        caller.begin()
        joined = caller.join()
        caller.run(creation(), joined)
        caller.commit()
        with refused(sqlite_bench, Invalid, code="AUTOCOMMIT"):
            caller.run(creation("k-2"), joined)
        caller.begin()
        caller.run(creation("k-2"), joined)
        caller.commit()
    assert len(sqlite_bench.service.list_jobs(tenant="acme")) == 2


def test_a_failed_transaction_is_refused_with_the_way_out(postgres_bench: Bench) -> None:
    with producer(postgres_bench) as caller:
        caller.begin()
        with pytest.raises(psycopg.errors.DivisionByZero):
            caller.execute("SELECT 1 / 0")
        with refused(postgres_bench, Invalid, code="TRANSACTION_FAILED"):
            caller.run(creation())
        caller.rollback()
        caller.run(creation())
        caller.commit()
    assert len(postgres_bench.service.list_jobs(tenant="acme")) == 1


def test_only_a_connection_of_this_database_is_joined(bench: Bench) -> None:
    for wrong in (None, "postgresql://nowhere", object(), sqlite3.connect(":memory:")):
        caller = Caller(bench, wrong)
        with refused(bench, Invalid) as caught:
            caller.run(creation())
        # The last one is a SQLite connection without a transaction, so a SQLite store may say that first.
        assert caught.value.code in {"CANNOT_JOIN", "AUTOCOMMIT"}
        if isinstance(wrong, sqlite3.Connection):
            wrong.close()
    with producer(bench) as caller:
        caller.begin()
        assert caller.run(creation()).created


def test_another_file_is_not_joined(sqlite_bench: Bench, tmp_path: Any) -> None:
    def elsewhere() -> sqlite3.Connection:
        other = sqlite3.connect(tmp_path / "other.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        return other

    loop = sqlite_bench.loop
    other = elsewhere() if loop is None else loop.call(elsewhere)
    caller = Caller(sqlite_bench, other)
    with refused(sqlite_bench, Invalid, code="CANNOT_JOIN"):
        caller.run(creation())
    caller.close()


def test_what_the_caller_set_on_the_connection_stays(bench: Bench) -> None:
    with producer(bench) as caller:
        factory: Any = sqlite3.Row if bench.dialect == "sqlite" else dict_row
        caller.raw.row_factory = factory
        caller.begin()
        made = caller.run(creation())
        assert made.job.payload["quote"] == 17
        assert caller.raw.row_factory is factory
        caller.write(5)
        assert [row["value"] for row in caller.rows("SELECT value FROM own")] == [5]
        caller.commit()


def test_a_key_that_is_still_being_written_elsewhere_is_waited_for(postgres_bench: Bench) -> None:
    bench = postgres_bench
    answers: list[Any] = []

    def second() -> None:
        answers.append(bench.service.create_job(idempotency_key="k-1", organization="acme", project="p1", kind=KIND,
                                                payload=PAYLOAD))  # fmt: skip

    with producer(bench) as caller:
        caller.begin()
        first = caller.run(creation())
        thread = threading.Thread(target=second)
        thread.start()
        wait_for_lock(bench)
        assert answers == []
        caller.commit()
        thread.join(30)
    assert (answers[0].created, answers[0].job.id) == (False, first.job.id)


def test_a_snapshot_that_cannot_see_the_other_key_is_told_to_run_again(postgres_bench: Bench) -> None:
    bench = postgres_bench
    with producer(bench) as caller:
        caller.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        caller.execute("SELECT count(*) FROM own")
        first = create(bench.service)
        with refused(bench, Unavailable):
            caller.run(creation())
        caller.write(1)
        caller.rollback()
        caller.begin()
        assert caller.run(creation()).job.id == first.id
        caller.commit()


def wait_for_lock(bench: Bench) -> None:
    """Wait until somebody waits for a lock of ours."""
    for _ in range(10_000):
        waiting = bench.sql(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        if waiting[0][0]:
            return
        bench.sql("SELECT pg_sleep(0.002)")
    raise AssertionError("nobody came to wait")


def test_a_joined_transaction_that_meets_another_writer_says_so(sqlite_bench: Bench) -> None:
    """A deferred transaction that has read an old state can never write; SQLite says so at once."""
    bench = sqlite_bench
    assert isinstance(bench.database, SqliteFile)
    with producer(bench) as caller:
        caller.execute("BEGIN")
        caller.rows("SELECT count(*) FROM own")
        create(bench.service)
        with refused(bench, Unavailable, code="STORE_BUSY"):
            caller.run(creation("k-2"))
        caller.rollback()
        caller.begin()
        assert caller.run(creation("k-2")).created
        caller.commit()
