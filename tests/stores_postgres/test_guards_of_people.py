"""What workers, operators and repairers are refused with SQL of their own, beside the verb of whoever may."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

import tenure
from tenure import GovernanceInput
from tenure.rules.message import Delivered, Refused, job_id_of
from tenure.rules.outcome import Absent, Rejected
from tests.stores_postgres.guarded import APPROVAL, DUE, MAILER, NEW, READY, SECRET, Place, states

# --- an operator ---


def test_an_operator_settles_nothing_and_moves_nothing_uncertain(guarded: Place) -> None:
    job, key = guarded.unsure()
    for settled in ("statement", "lookup", "outcome"):
        guarded.refuses(
            "operator",
            "an operator begins and settles no effect|said by a repairer",
            "UPDATE tenure.effect SET state = 'failed_before_dispatch', settled_at = 1, settled_by = %s "
            "WHERE job_id = %s",
            settled,
            job.id,
        )
    guarded.refuses(
        "operator", "settles no effect", "UPDATE tenure.effect SET deadline_at = 0 WHERE job_id = %s", job.id
    )
    guarded.refuses("operator", "permission denied", "UPDATE tenure.effect SET name = 'sent' WHERE job_id = %s", job.id)
    insert = (
        "INSERT INTO tenure.effect SELECT tenant, job_id, 'other', state, 'key', request_digest, attempt_id, "
        "generation, created_at, begun_at, deadline_at, terms, receipt, reason, settled_at, settled_by, ordinal, "
        "lookups, asked_at FROM tenure.effect WHERE job_id = %s"
    )
    guarded.refuses("operator", "begins and settles no effect", insert, job.id)
    guarded.refuses("operator", "moved by evidence", "DELETE FROM tenure.resting WHERE job_id = %s", job.id)
    guarded.refuses("operator", "has another place", READY, **{**NEW, "id": job.id, "kind": job.kind, "generation": 1})
    for name, data in (("readmitted", None), ("suspicion_cleared", None), ("reconciled", '{"by": "statement"}')):
        event = (
            "INSERT INTO tenure.event (job_id, tenant, name, at, generation, data) VALUES (%s, 'acme', %s, 1, 1, %s)"
        )
        guarded.refuses("operator", "said by a repairer", event, job.id, name, data)
    # What it may: let a sweep ask again. And a repairer's word moves the job.
    guarded.ask(
        "worker",
        "INSERT INTO tenure.escalation (job_id, tenant, escalated_at, reason) VALUES (%s, 'acme', 1, 'r')",
        job.id,
    )
    guarded.service("operator").resume_sweep(job.id)
    settled_job = guarded.service("repairer").reconcile_dispatched(job.id, Absent(), operation_key=key, reason="asked")
    assert settled_job.status == "queued"


def test_an_operator_takes_no_lease_over(guarded: Place) -> None:
    job, lease = guarded.held()
    for column in ("worker_id = 'me'", "attempt_id = gen_random_uuid()", "generation = 9", "epoch = 9"):
        for login in ("operator", "worker", "repairer"):
            guarded.refuses(login, "permission denied", f"UPDATE tenure.lease SET {column}")
    assert guarded.service("operator").cancel_job(job.id, reason="r").cancel_requested_at is not None
    assert guarded.service("worker").heartbeat(lease) is False


@pytest.mark.parametrize("state", ["completed", "halt_unsafe", "cancelled"])
def test_a_final_job_is_final_for_every_role(guarded: Place, state: str) -> None:
    job = states(guarded)[state]()
    for login in ("worker", "operator", "repairer", "busy", "chief"):
        guarded.refuses(login, "a final job stays so", "DELETE FROM tenure.outcome WHERE job_id = %s", job.id)
    # A failed one is retried, with what its provider refused under another key.
    failed, lease = guarded.held()
    worker = guarded.service("worker")
    worker.begin_effect(lease, name="send", request={}, provider=MAILER)
    worker.finish_effect(lease, name="send", outcome=Rejected("no"))
    worker.fail_job(lease, code="E", message="m", retryable=False)
    assert guarded.service("operator").retry_job(failed.id, reopen=["send"], actor="op:1").status == "queued"
    again = worker.begin_effect(guarded.claim(failed.kind), name="send", request={"other": 1}, provider=MAILER)
    assert again.operation_key.endswith("#1")


def test_a_delivered_message_stays_so_for_every_role(guarded: Place) -> None:
    message = guarded.message()
    assert guarded.relay(message, Delivered())
    for login in ("worker", "operator"):
        gone = "DELETE FROM tenure.message_done WHERE message_id = %s"
        guarded.refuses(login, "was delivered or discarded stays so", gone, message.id)
    guarded.refuses("operator", "has another place", DUE, message.id)
    decided = (
        "INSERT INTO tenure.message_decision (message_id, tenant, decision, at, actor, reason, attempts, command_id) "
        "VALUES (%s, 'acme', %s, 1, 'x', 'x', 0, gen_random_uuid())"
    )
    guarded.refuses("operator", "a repairer's", decided, message.id, "readmitted")
    guarded.refuses("repairer", "an operator's", decided, message.id, "replayed")
    # The controls: one that was set aside goes again, one is discarded, and old ones are forgotten.
    operator = guarded.service("operator")
    for decide in (operator.replay_message, operator.discard_message):
        other = guarded.message()
        assert guarded.relay(other, Refused("no"))
        decide(other.id, actor="op:1", reason="r")
    assert operator.prune_outbox(older_than=timedelta(0)) >= 2
    assert guarded.ask("admin", "SELECT count(*) FROM tenure.message_done") == [(0,)]


def test_a_repairer_readmits_and_marks_what_a_message_becomes(guarded: Place) -> None:
    with guarded.service("producer").store.transaction() as tx:
        message = tenure.outbox.add(tx, destination="jobs", type="t", data=SECRET, tenant="restored").message
    recovered = (
        "INSERT INTO tenure.authority_event (act_id, tenant, what, epoch, actor, reason, at) "
        "VALUES (gen_random_uuid(), 'restored', 'recovered', 2, 'x', 'x', 1)"
    )
    guarded.refuses("worker", "a repairer's", recovered)
    guarded.ask("repairer", recovered)
    guarded.ask("repairer", "UPDATE tenure.authority SET epoch = 2 WHERE tenant = 'restored'")
    assert guarded.service("repairer").readmit_messages("restored", reason="looked at") == [message.id]
    marked = guarded.ask("viewer", "SELECT job_id FROM tenure.suspect WHERE tenant = 'restored'")
    assert marked == [(job_id_of("restored", "jobs", message.id),)]
    # The relay that makes the job of it cannot take that back.
    for clear in ("DELETE FROM tenure.suspect", "UPDATE tenure.suspect SET generation = 9"):
        guarded.refuses("worker", "cleared by a repairer|permission denied", f"{clear} WHERE tenant = 'restored'")


def test_suspicion_is_a_repairers_to_clear_until_the_job_is_final(guarded: Place) -> None:
    suspect = (
        "INSERT INTO tenure.suspect (job_id, tenant, marked_at, since, generation, actor, reason, recovery_id) "
        "VALUES (%s, 'acme', 1, 1, 0, 'x', 'x', gen_random_uuid())"
    )
    jobs = [guarded.create("asleep") for _ in range(2)]
    for job in jobs:
        guarded.ask("repairer", suspect, job.id)
        for login in ("worker", "operator", "busy"):
            guarded.refuses(login, "cleared by a repairer", "DELETE FROM tenure.suspect WHERE job_id = %s", job.id)
    guarded.service("repairer").clear_suspicion(jobs[0].id, reason="asked them", actor="rep:1")
    guarded.service("operator").cancel_job(jobs[1].id, reason="r")
    assert guarded.ask("admin", "SELECT count(*) FROM tenure.suspect WHERE tenant = 'acme'") == [(0,)]


# --- approvals, effects and epochs, whoever writes ---


def test_an_approval_is_granted_by_an_operator_and_used_once(guarded: Place) -> None:
    guarded.refuses("repairer", "granted by an operator", APPROVAL, "by-repairer")
    guarded.ask("operator", APPROVAL, "by-hand")
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
    guarded.service("operator").grant_approval(
        "ap", tenant="acme", action_digest=digest, reason="fine", expires_at=now + timedelta(hours=1), actor="op:1"
    )
    job = guarded.create("pay", governance=governance)
    lease = guarded.claim("pay")
    guarded.service("worker").begin_effect(lease, name="send", request={}, provider=MAILER)
    assert guarded.ask("admin", "SELECT consumed_by FROM tenure.approval WHERE reference = 'ap'") == [(job.id,)]
    for login in ("worker", "admin", "maker"):
        for undone in ("consumed_by = NULL, consumed_at = NULL", "consumed_by = gen_random_uuid()"):
            with pytest.raises(psycopg.errors.RestrictViolation, match="stays used up"):
                guarded.ask(login, f"UPDATE tenure.approval SET {undone} WHERE reference = 'ap'")
    guarded.service("operator").revoke_approval("ap", tenant="acme", reason="r", actor="op:1")
    for login in ("operator", "repairer", "admin"):
        with pytest.raises(psycopg.errors.RestrictViolation, match="stays used up or revoked"):
            guarded.ask(login, "UPDATE tenure.approval SET revoked_at = NULL, revoked_by = NULL, revoke_reason = NULL")


@pytest.mark.parametrize("login", ["worker", "repairer", "maker", "admin"])
def test_an_effect_that_happened_stays_so_whoever_writes(guarded: Place, login: str) -> None:
    job, lease = guarded.accepted()
    for undone in (
        "state = 'failed_before_dispatch'",
        "state = 'unknown', settled_at = NULL",
        "operation_key = 'other'",
    ):
        with pytest.raises(psycopg.errors.RestrictViolation, match="one that has happened stays so"):
            guarded.ask(login, f"UPDATE tenure.effect SET {undone} WHERE job_id = %s", job.id)
    # An open one keeps its key, and is settled by a look-up, as the library has it.
    other, key = guarded.unsure()
    with pytest.raises(psycopg.errors.RestrictViolation, match="keeps its key"):
        guarded.ask(login, "UPDATE tenure.effect SET operation_key = 'other' WHERE job_id = %s", other.id)
    assert guarded.service("repairer").reconcile_dispatched(other.id, Absent(), operation_key=key, reason="r")
    assert guarded.service("worker").complete_job(lease).status == "completed"


@pytest.mark.parametrize("login", ["worker", "operator", "repairer", "chief"])
def test_an_epoch_only_rises(guarded: Place, login: str) -> None:
    tenant = f"t-{login}"
    guarded.ask("admin", "INSERT INTO tenure.authority (tenant, epoch) VALUES (%s, 4)", tenant)
    guarded.refuses(login, "an epoch only rises", "UPDATE tenure.authority SET epoch = 3 WHERE tenant = %s", tenant)
    guarded.ask(login, "UPDATE tenure.authority SET epoch = 5 WHERE tenant = %s", tenant)
