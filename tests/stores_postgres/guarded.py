"""A database with a login for each role, jobs in every state, and the rows that somebody may write by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

import tenure
from tenure import outbox
from tenure.opening import open_store
from tenure.procedures.outbox import claim_messages, finish_messages
from tenure.rules.outcome import Succeeded, Unknown
from tenure.rules.roles import Role
from tenure.service import DurableJobService
from tenure.testing.provider import FakeProvider

# The owner of the schema is nobody special, two logins have two roles each, and one has grants of its own instead.
LOGINS = {role.value: (role.value,) for role in Role} | {
    "busy": ("producer", "worker"),
    "chief": ("operator", "repairer"),
}
SECRET = {"card": "CANARY-4111"}
EXECUTION = tenure.ExecutionInput(tenant="acme", actor="user:1", trace="t-1")
MAILER = FakeProvider("mailer")
SECOND = timedelta(seconds=1)

READY = (
    "INSERT INTO tenure.ready (job_id, tenant, organization, kind, queue, lane, priority, run_at, generation, attempt, "
    "attempts_max, epoch) VALUES (%(id)s, %(tenant)s, %(tenant)s, %(kind)s, 'default', '', 0, %(at)s, %(generation)s, "
    "0, 3, 1)"
)
DEFERRED = (
    READY.replace("tenure.ready", "tenure.deferred")
    .replace("queue, lane,", "queue,")
    .replace("'default', '',", "'default',")
)
BODY = (
    "INSERT INTO tenure.job (job_id, tenant, organization, project, idempotency_key, kind, kind_version, queue, "
    "priority, payload, attempts_max, backoff_us, lease_us, scheduled_at, created_at, on_declined, options, "
    "payload_digest, operation_digest) VALUES (%(id)s, %(tenant)s, %(tenant)s, 'p', 'x', 'kind', 1, 'default', 0, "
    "'{}', 3, %(backoff)s, 1000000, 0, %(created)s, 'failed', %(options)s, 'v1:x', 'v1:x')"
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
    "INSERT INTO tenure.message_due (message_id, tenant, destination, position, since, generation, attempt, "
    "attempts_max, epoch) SELECT message_id, tenant, destination, position, 0, 0, 0, 5, 1 "
    "FROM tenure.message WHERE message_id = %s"
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
                execution=EXECUTION,
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


def states(place: Place) -> dict[str, Callable[[], tenure.Job]]:
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
        "completed": lambda: after(worker.complete_job),
        "failed": lambda: after(lambda lease: worker.fail_job(lease, code="E", message="m", retryable=False)),
        "halt_unsafe": lambda: after(lambda lease: worker.mark_halt_unsafe(lease, code="E", message="m")),
        "cancelled": cancelled,
    }
