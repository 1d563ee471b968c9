"""What each role is refused with SQL of its own by the rows themselves, beside the verb that may: real logins, no SET ROLE."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

import tenure
from tenure import GovernanceInput, outbox
from tenure.errors import Conflict
from tenure.opening import open_store
from tenure.procedures.outbox import claim_messages, finish_messages
from tenure.rules.message import Delivered, Refused
from tenure.rules.outcome import Absent, Rejected, Succeeded, Unknown
from tenure.rules.roles import Role
from tenure.service import DurableJobService
from tenure.stores import migrate
from tenure.stores.postgres.schema import PACKAGE
from tenure.stores.postgres.store import PostgresStore
from tenure.testing.provider import FakeProvider
from tenure.yields import new_id
from tests.support.postgres import start_server

# The owner of the schema is nobody special, two logins have two roles each, and one has grants of its own instead.
LOGINS = {role.value: (role.value,) for role in Role} | {
    "busy": ("producer", "worker"),
    "chief": ("operator", "repairer"),
}
SECRET = {"card": "CANARY-4111"}
MAILER = FakeProvider("mailer")
SECOND = timedelta(seconds=1)

READY = (
    "INSERT INTO tenure.ready (job_id, tenant, organization, kind, queue, lane, priority, run_at, generation, attempt, "
    "attempts_max, epoch) VALUES (%(id)s, %(tenant)s, %(tenant)s, %(kind)s, 'default', '', 0, %(at)s, %(generation)s, 0, 3, 1)"
)
DEFERRED = (
    READY.replace("tenure.ready", "tenure.deferred")
    .replace("queue, lane,", "queue,")
    .replace("'default', '',", "'default',")
)
BODY = (
    "INSERT INTO tenure.job (job_id, tenant, organization, project, idempotency_key, kind, kind_version, queue, priority, "
    "payload, attempts_max, backoff_us, lease_us, scheduled_at, created_at, on_declined, options, payload_digest, "
    "operation_digest) VALUES (%(id)s, %(tenant)s, %(tenant)s, 'p', 'x', 'kind', 1, 'default', 0, '{}', 3, %(backoff)s, "
    "1000000, 0, %(created)s, 'failed', %(options)s, 'v1:x', 'v1:x')"
)
NEW: dict[str, Any] = {
    "tenant": "acme",
    "kind": "kind",
    "at": 0,
    "generation": 0,
    "backoff": 1000,
    "created": 0,
    "options": None,
}
DUE = (
    "INSERT INTO tenure.message_due (message_id, tenant, destination, position, since, generation, attempt, attempts_max, "
    "epoch) SELECT message_id, tenant, destination, position, 0, 0, 0, 5, 1 FROM tenure.message WHERE message_id = %s"
)
APPROVAL = (
    "INSERT INTO tenure.approval (tenant, reference, action_digest, granted_by, grant_reason, granted_at, expires_at) "
    "VALUES ('acme', %s, 'v1:0', 'x', 'x', 1, 9000000000000000)"
)


class Place:
    """A database with a login for each role, and services that are opened as them."""

    def __init__(self, admin_url: str) -> None:
        with psycopg.connect(admin_url, autocommit=True) as admin:
            admin.execute(b"CREATE ROLE maker LOGIN CREATEROLE")
            admin.execute(b"CREATE DATABASE jobs OWNER maker")
            self._where = f"{admin.info.host}:{admin.info.port}/jobs"
        self.admin_url = admin_url.rsplit("/", 1)[0] + "/jobs"
        with open_store(self.url("maker")) as store:
            store.migrate(roles=True)
        with psycopg.connect(self.admin_url, autocommit=True) as admin:
            for login, roles in LOGINS.items():
                admin.execute(f"CREATE ROLE {login} LOGIN".encode())
                for role in roles:
                    admin.execute(f"GRANT tenure_{role} TO {login}".encode())
            admin.execute(b"CREATE ROLE own LOGIN; GRANT USAGE ON SCHEMA tenure TO own")
            admin.execute(b"GRANT ALL ON ALL TABLES IN SCHEMA tenure TO own")
        self._open: dict[str, DurableJobService] = {}
        self._keys = itertools.count()

    def url(self, login: str) -> str:
        return f"postgresql://{login}@{self._where}"

    def service(self, role: str) -> DurableJobService:
        if role not in self._open:
            self._open[role] = DurableJobService(open_store(self.url(role), role=role), actor=f"{role}:1")
        return self._open[role]

    def close(self) -> None:
        for one in self._open.values():
            one.store.close()

    def ask(self, login: str, sql: str, *params: Any, **named: Any) -> list[Any]:
        with psycopg.connect(self.admin_url if login == "admin" else self.url(login)) as connection:
            cursor = connection.execute(sql.encode(), named or params or None)
            return cursor.fetchall() if cursor.description else [cursor.rowcount]

    def refuses(self, login: str, words: str, sql: str, *params: Any, **named: Any) -> None:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match=words):
            self.ask(login, sql, *params, **named)

    # --- jobs in every state, by the verbs of who may ---

    def create(self, kind: str = "kind", **more: Any) -> tenure.Job:
        return (
            self.service("producer")
            .create_job(
                organization="acme",
                project="p1",
                idempotency_key=f"k-{next(self._keys)}",
                kind=kind,
                payload=SECRET,
                execution=tenure.ExecutionInput(tenant="acme", actor="user:1", trace="t-1"),
                **more,
            )
            .job
        )

    def claim(self, kind: str = "kind") -> tenure.Lease:
        claim = self.service("worker").claim_job("w", kinds=[kind], start=True)
        assert claim is not None
        return claim.lease

    def held(self) -> tuple[tenure.Job, tenure.Lease]:
        kind = f"kind{next(self._keys)}"
        job = self.create(kind)
        return job, self.claim(kind)

    def unsure(self) -> tuple[tenure.Job, str]:
        job, lease = self.held()
        worker = self.service("worker")
        key = worker.begin_effect(lease, name="send", request={}, provider=MAILER).operation_key
        worker.finish_effect(lease, name="send", outcome=Unknown("no reply"))
        worker.mark_indeterminate(lease, code="E", message="m")
        return job, key

    def accepted(self) -> tuple[tenure.Job, tenure.Lease]:
        job, lease = self.held()
        self.service("worker").begin_effect(lease, name="send", request={}, provider=MAILER)
        self.service("worker").finish_effect(lease, name="send", outcome=Succeeded({"id": "r"}))
        return job, lease

    def message(self, subject: str | None = None) -> Any:
        with self.service("producer").store.transaction() as tx:
            return outbox.add(
                tx,
                destination=f"d{next(self._keys)}",
                type="t",
                data=SECRET,
                tenant="acme",
                subject=subject,
                ordered=subject is not None,
            ).message

    def relay(self, message: Any, outcome: Any) -> Any:
        store = self.service("worker").store
        taken = store.run(claim_messages("r", message.destination, 9, 30 * SECOND))
        store.run(finish_messages("r", [(one, outcome) for one in taken.outgoing], backoff=SECOND))
        return taken.outgoing


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with start_server() as server:
        made = Place(server.url)
        yield made
        made.close()


# --- a producer ---


def test_a_producer_is_shown_no_payload_that_it_does_not_present(place: Place) -> None:
    job, lease = place.held()
    place.service("worker").complete_job(lease, result={"r": "CANARY"})
    for column in ("payload_digest", "tenant", "project", "idempotency_key"):
        place.refuses("producer", "permission denied", f"SELECT {column} FROM tenure.job_key")
    shown = "SELECT payload, result FROM tenure.known_places(%s, %s)"
    assert place.ask("producer", shown, [job.id], ["v1:" + "0" * 64]) == []
    # Not what another stored, but whether it is what was presented.
    key = (["acme"], ["p1"], [job.idempotency_key], ["acme"], [job.kind])
    known = "SELECT * FROM tenure.known_keys(%s, %s, %s, %s, %s, %s)"
    assert place.ask("producer", known, *key, ["v1:guessed"]) == [
        ("acme", "p1", job.idempotency_key, job.id, "payload")
    ]
    assert place.ask("producer", known, *key[:4], ["other"], [job.payload_digest])[0][4] == "kind"
    # Whoever knows the payload is told what became of it, by the library and by the function.
    same: dict[str, Any] = {
        "organization": "acme",
        "project": "p1",
        "idempotency_key": job.idempotency_key,
        "kind": job.kind,
    }
    producer = place.service("producer")
    assert producer.create_job(**same, payload=SECRET).job.result == {"r": "CANARY"}
    with pytest.raises(Conflict, match="another payload"):
        producer.create_job(**same, payload={"card": "?"})
    call = "SELECT job_id, created FROM tenure.enqueue('acme', 'p1', %s, %s, %s)"
    assert place.ask("producer", call, job.idempotency_key, job.kind, '{"card": "CANARY-4111"}') == [(job.id, False)]
    with pytest.raises(psycopg.Error, match="belongs to job .* with another payload") as told:
        place.ask("producer", call, job.idempotency_key, job.kind, '{"card": "?"}')
    assert told.value.sqlstate == "TNCON"


def _states(place: Place) -> dict[str, Callable[[], tenure.Job]]:
    worker, operator = place.service("worker"), place.service("operator")

    def after(act: Callable[[tenure.Lease], Any]) -> tenure.Job:
        job, lease = place.held()
        act(lease)
        return job

    def cancelled() -> tenure.Job:
        job = place.create("asleep")
        operator.cancel_job(job.id, reason="r")
        return job

    return {
        "ready": lambda: place.create("asleep"),
        "deferred": lambda: place.create("asleep", scheduled_at=datetime.now(UTC) + timedelta(days=1)),
        "running": lambda: place.held()[0],
        "indeterminate": lambda: place.unsure()[0],
        "completed": lambda: after(lambda lease: worker.complete_job(lease)),
        "failed": lambda: after(lambda lease: worker.fail_job(lease, code="E", message="m", retryable=False)),
        "halt_unsafe": lambda: after(lambda lease: worker.mark_halt_unsafe(lease, code="E", message="m")),
        "cancelled": cancelled,
    }


@pytest.mark.parametrize(
    "state", ["ready", "deferred", "running", "indeterminate", "completed", "failed", "halt_unsafe", "cancelled"]
)
def test_a_producer_moves_no_job_whatever_it_is(place: Place, state: str) -> None:
    job = _states(place)[state]()
    where = "SELECT place, generation FROM tenure.place WHERE job_id = %s"
    before = place.ask("admin", where, job.id)
    for sql, table in ((READY, "ready"), (DEFERRED, "deferred")):
        for tenant in ("acme", "evil"):
            if (table, tenant) == (state, "acme"):
                continue  # its primary key says so already
            row = {**NEW, "id": job.id, "tenant": tenant, "kind": job.kind, "generation": 9}
            place.refuses("producer", "a producer makes new work and moves none", sql, **row)
    # Nor under another tenant, with a body of its own.
    body = BODY.replace("'kind'", f"'{job.kind}'")
    with psycopg.connect(place.url("producer")) as connection:
        connection.execute(body.encode(), {**NEW, "id": job.id, "tenant": "evil"})
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="is known already"):
            connection.execute(READY.encode(), {**NEW, "id": job.id, "tenant": "evil", "kind": job.kind})
    assert place.ask("admin", where, job.id) == before


def test_a_snapshot_from_before_a_claim_is_no_way_around(place: Place) -> None:
    job = place.create("kind-seen")
    with psycopg.connect(place.url("producer")) as connection:
        connection.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert connection.execute(b"SELECT count(*) FROM tenure.job_key").fetchone() != (0,)
        place.claim("kind-seen")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="is known already"):
            connection.execute(READY.encode(), {**NEW, "id": job.id, "kind": job.kind})


@pytest.mark.parametrize(
    "odd",
    [
        {"kind": "other"},
        {"generation": 3},
        {"at": 2**62},
        {"created": -(2**62)},
        {"backoff": 2**60},
        {"options": "[1]"},
    ],
)
def test_a_producers_own_job_by_hand_is_as_the_library_makes_it(place: Place, odd: dict[str, Any]) -> None:
    for row, allowed in (({**NEW, **odd}, False), (NEW, True)):
        with psycopg.connect(place.url("producer")) as connection:
            connection.execute(BODY.encode(), {**row, "id": (job_id := new_id())})
            with contextlib.nullcontext() if allowed else pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(READY.encode(), {**row, "id": job_id})
            if allowed:
                # And it has one place.
                with pytest.raises(psycopg.errors.InsufficientPrivilege, match="is known already"):
                    connection.execute(DEFERRED.encode(), {**row, "id": job_id})


def test_many_at_once_are_looked_at_too(place: Place) -> None:
    victim, _ = place.held()
    with psycopg.connect(place.url("producer")) as connection:
        ids = [new_id() for _ in range(3)]
        connection.cursor().executemany(BODY, [{**NEW, "id": one} for one in ids])
        copied = b"COPY tenure.deferred (job_id, tenant, organization, kind, queue, priority, run_at, generation, attempt, attempts_max, epoch) FROM STDIN"
        for last, allowed in ((victim.id, False), (ids[2], True)):
            with contextlib.nullcontext() if allowed else pytest.raises(psycopg.errors.InsufficientPrivilege):  # noqa: SIM117
                with connection.transaction(), connection.cursor().copy(copied) as copy:
                    for one in (*ids[:2], last):
                        copy.write_row((one, "acme", "acme", "kind", "default", 0, 0, 0, 0, 3, 1))


def test_a_producer_wakes_no_message(place: Place) -> None:
    message = place.message("s-1")
    assert place.relay(message, Delivered())
    refuse = "a producer makes new work and moves none"
    place.refuses("producer", refuse, DUE, message.id)
    order = (
        "INSERT INTO tenure.message_order (tenant, destination, subject, position, message_id) "
        "SELECT tenant, destination, subject, position, message_id FROM tenure.message WHERE message_id = %s"
    )
    place.refuses("producer", refuse, order, message.id)
    # Nor does it put itself before others: positions are the database's to give.
    place.refuses(
        "producer",
        "permission denied",
        "INSERT INTO tenure.message (message_id, tenant, destination, operation, type, version, ordered, data, attempts_max, "
        "scheduled_at, created_at, digest, position) OVERRIDING SYSTEM VALUE "
        "VALUES (gen_random_uuid(), 'acme', 'd', 'o', 't', 1, false, '{}', 1, 0, 0, 'x', -1)",
    )
    assert not place.relay(message, Delivered())
    # The controls: another one of the same subject, and one for later.
    assert place.relay(place.message("s-1"), Delivered())
    with place.service("producer").store.transaction() as tx:
        outbox.add(tx, destination="d", type="t", data={}, tenant="acme", scheduled_at=datetime.now(UTC) + SECOND)


def test_who_works_too_moves_jobs_and_who_has_grants_of_its_own_is_not_asked(place: Place) -> None:
    for login in ("busy", "own"):
        job, _ = place.held()
        place.ask(login, "DELETE FROM tenure.lease WHERE job_id = %s", job.id)
        place.ask(login, READY, **{**NEW, "id": job.id, "kind": job.kind, "generation": 1})


# --- an operator ---


def test_an_operator_settles_nothing_and_moves_nothing_uncertain(place: Place) -> None:
    job, key = place.unsure()
    for settled in ("statement", "lookup", "outcome"):
        place.refuses(
            "operator",
            "an operator begins and settles no effect|said by a repairer",
            "UPDATE tenure.effect SET state = 'failed_before_dispatch', settled_at = 1, settled_by = %s WHERE job_id = %s",
            settled,
            job.id,
        )
    place.refuses("operator", "settles no effect", "UPDATE tenure.effect SET deadline_at = 0 WHERE job_id = %s", job.id)
    place.refuses("operator", "permission denied", "UPDATE tenure.effect SET name = 'sent' WHERE job_id = %s", job.id)
    insert = (
        "INSERT INTO tenure.effect SELECT tenant, job_id, 'other', state, 'key', request_digest, attempt_id, generation, "
        "created_at, begun_at, deadline_at, terms, receipt, reason, settled_at, settled_by, ordinal, lookups, asked_at "
        "FROM tenure.effect WHERE job_id = %s"
    )
    place.refuses("operator", "begins and settles no effect", insert, job.id)
    place.refuses("operator", "moved by evidence", "DELETE FROM tenure.resting WHERE job_id = %s", job.id)
    place.refuses("operator", "has another place", READY, **{**NEW, "id": job.id, "kind": job.kind, "generation": 1})
    for name, data in (("readmitted", None), ("suspicion_cleared", None), ("reconciled", '{"by": "statement"}')):
        event = (
            "INSERT INTO tenure.event (job_id, tenant, name, at, generation, data) VALUES (%s, 'acme', %s, 1, 1, %s)"
        )
        place.refuses("operator", "said by a repairer", event, job.id, name, data)
    # What it may: let a sweep ask again. And a repairer's word moves the job.
    place.ask(
        "worker",
        "INSERT INTO tenure.escalation (job_id, tenant, escalated_at, reason) VALUES (%s, 'acme', 1, 'r')",
        job.id,
    )
    place.service("operator").resume_sweep(job.id)
    settled_job = place.service("repairer").reconcile_dispatched(job.id, Absent(), operation_key=key, reason="asked")
    assert settled_job.status == "queued"


def test_an_operator_takes_no_lease_over(place: Place) -> None:
    job, lease = place.held()
    for column in ("worker_id = 'me'", "attempt_id = gen_random_uuid()", "generation = 9", "epoch = 9"):
        for login in ("operator", "worker", "repairer"):
            place.refuses(login, "permission denied", f"UPDATE tenure.lease SET {column}")
    assert place.service("operator").cancel_job(job.id, reason="r").cancel_requested_at is not None
    assert place.service("worker").heartbeat(lease) is False


@pytest.mark.parametrize("state", ["completed", "halt_unsafe", "cancelled"])
def test_a_final_job_is_final_for_every_role(place: Place, state: str) -> None:
    job = _states(place)[state]()
    for login in ("worker", "operator", "repairer", "busy", "chief"):
        place.refuses(login, "a final job stays so", "DELETE FROM tenure.outcome WHERE job_id = %s", job.id)
    # A failed one is retried, with what its provider refused under another key.
    failed, lease = place.held()
    worker = place.service("worker")
    worker.begin_effect(lease, name="send", request={}, provider=MAILER)
    worker.finish_effect(lease, name="send", outcome=Rejected("no"))
    worker.fail_job(lease, code="E", message="m", retryable=False)
    assert place.service("operator").retry_job(failed.id, reopen=["send"], actor="op:1").status == "queued"
    again = worker.begin_effect(place.claim(failed.kind), name="send", request={"other": 1}, provider=MAILER)
    assert again.operation_key.endswith("#1")


def test_a_delivered_message_stays_so_for_every_role(place: Place) -> None:
    message = place.message()
    assert place.relay(message, Delivered())
    for login in ("worker", "operator"):
        gone = "DELETE FROM tenure.message_done WHERE message_id = %s"
        place.refuses(login, "was delivered or discarded stays so", gone, message.id)
    place.refuses("operator", "has another place", DUE, message.id)
    decided = (
        "INSERT INTO tenure.message_decision (message_id, tenant, decision, at, actor, reason, attempts, command_id) "
        "VALUES (%s, 'acme', %s, 1, 'x', 'x', 0, gen_random_uuid())"
    )
    place.refuses("operator", "a repairer's", decided, message.id, "readmitted")
    place.refuses("repairer", "an operator's", decided, message.id, "replayed")
    # The controls: one that was set aside goes again, one is discarded, and old ones are forgotten.
    operator = place.service("operator")
    for decide in (operator.replay_message, operator.discard_message):
        other = place.message()
        assert place.relay(other, Refused("no"))
        decide(other.id, actor="op:1", reason="r")
    assert operator.prune_outbox(older_than=timedelta(0)) >= 2
    assert place.ask("admin", "SELECT count(*) FROM tenure.message_done") == [(0,)]


# --- approvals, effects and epochs, whoever writes ---


def test_an_approval_is_granted_by_an_operator_and_used_once(place: Place) -> None:
    place.refuses("repairer", "granted by an operator", APPROVAL, "by-repairer")
    place.ask("operator", APPROVAL, "by-hand")
    now = datetime.now(UTC)
    governance = GovernanceInput(
        action_intent="i",
        capability="c",
        policy="p",
        budget="b",
        approval_reference="ap",
        issued_at=now,
        expires_at=now + timedelta(hours=1),
    )
    digest = tenure.action_digest(organization="acme", project="p1", kind="pay", payload=SECRET, governance=governance)
    place.service("operator").grant_approval(
        "ap", tenant="acme", action_digest=digest, reason="fine", expires_at=now + timedelta(hours=1), actor="op:1"
    )
    job = place.create("pay", governance=governance)
    lease = place.claim("pay")
    place.service("worker").begin_effect(lease, name="send", request={}, provider=MAILER)
    assert place.ask("admin", "SELECT consumed_by FROM tenure.approval WHERE reference = 'ap'") == [(job.id,)]
    for login in ("worker", "admin", "maker"):
        for undone in ("consumed_by = NULL, consumed_at = NULL", "consumed_by = gen_random_uuid()"):
            with pytest.raises(psycopg.errors.RestrictViolation, match="stays used up"):
                place.ask(login, f"UPDATE tenure.approval SET {undone} WHERE reference = 'ap'")
    place.service("operator").revoke_approval("ap", tenant="acme", reason="r", actor="op:1")
    for login in ("operator", "repairer", "admin"):
        with pytest.raises(psycopg.errors.RestrictViolation, match="stays used up or revoked"):
            place.ask(login, "UPDATE tenure.approval SET revoked_at = NULL, revoked_by = NULL, revoke_reason = NULL")


@pytest.mark.parametrize("login", ["worker", "repairer", "maker", "admin"])
def test_an_effect_that_happened_stays_so_whoever_writes(place: Place, login: str) -> None:
    job, lease = place.accepted()
    for undone in (
        "state = 'failed_before_dispatch'",
        "state = 'unknown', settled_at = NULL",
        "operation_key = 'other'",
    ):
        with pytest.raises(psycopg.errors.RestrictViolation, match="one that has happened stays so"):
            place.ask(login, f"UPDATE tenure.effect SET {undone} WHERE job_id = %s", job.id)
    # An open one keeps its key, and is settled by a look-up, as the library has it.
    other, key = place.unsure()
    with pytest.raises(psycopg.errors.RestrictViolation, match="keeps its key"):
        place.ask(login, "UPDATE tenure.effect SET operation_key = 'other' WHERE job_id = %s", other.id)
    assert place.service("repairer").reconcile_dispatched(other.id, Absent(), operation_key=key, reason="r")
    assert place.service("worker").complete_job(lease).status == "completed"


@pytest.mark.parametrize("login", ["worker", "operator", "repairer", "chief"])
def test_an_epoch_only_rises(place: Place, login: str) -> None:
    tenant = f"t-{login}"
    place.ask("admin", "INSERT INTO tenure.authority (tenant, epoch) VALUES (%s, 4)", tenant)
    place.refuses(login, "an epoch only rises", "UPDATE tenure.authority SET epoch = 3 WHERE tenant = %s", tenant)
    place.ask(login, "UPDATE tenure.authority SET epoch = 5 WHERE tenant = %s", tenant)


# --- the installation ---


def test_an_older_database_is_upgraded_with_what_is_in_it(place: Place) -> None:
    with psycopg.connect(place.admin_url, autocommit=True) as admin:
        admin.execute(b"CREATE DATABASE older OWNER maker")
    url = place.url("maker").replace("/jobs", "/older")
    known = migrate.load(PACKAGE)
    with open_store(url) as store:
        store.migrate(roles=True)
        made = DurableJobService(store).create_job(
            organization="acme", project="p1", idempotency_key="k", kind="kind", payload=SECRET
        )
    with psycopg.connect(url, autocommit=True) as owner:
        # As it was before: no guard, and the digest to be read.
        owner.execute(
            b"DROP FUNCTION tenure.refuse_undoing, tenure.refuse_others, tenure.refuse_reviving, tenure.refuse_second_place, tenure.known_keys CASCADE"
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
            b"CREATE TRIGGER no_statement BEFORE INSERT ON tenure.event FOR EACH ROW EXECUTE FUNCTION tenure.refuse_worker()"
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


def test_the_guards_are_the_owners_also_where_an_administrator_made_them(place: Place) -> None:
    with psycopg.connect(place.admin_url, autocommit=True) as admin, open_store(place.url("maker")) as store:
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
