"""What a producer is refused with SQL of its own, beside what it may: real logins, and no SET ROLE."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from tenure import outbox
from tenure.errors import Conflict
from tenure.rules.message import Delivered
from tenure.yields import new_id
from tests.stores_postgres.guarded import BODY, DEFERRED, DUE, NEW, READY, SECOND, SECRET, Place, states


def test_a_producer_is_shown_no_payload_that_it_does_not_present(guarded: Place) -> None:
    job, lease = guarded.held()
    guarded.service("worker").complete_job(lease, result={"r": "CANARY"})
    for column in ("payload_digest", "tenant", "project", "idempotency_key"):
        guarded.refuses("producer", "permission denied", f"SELECT {column} FROM tenure.job_key")
    shown = "SELECT payload, result FROM tenure.known_places(%s, %s)"
    assert guarded.ask("producer", shown, [job.id], ["v1:" + "0" * 64]) == []
    # Not what another stored, but whether it is what was presented.
    key = (["acme"], ["p1"], [job.idempotency_key], ["acme"], [job.kind])
    known = "SELECT * FROM tenure.known_keys(%s, %s, %s, %s, %s, %s)"
    assert guarded.ask("producer", known, *key, ["v1:guessed"]) == [
        ("acme", "p1", job.idempotency_key, job.id, "payload")
    ]
    assert guarded.ask("producer", known, *key[:4], ["other"], [job.payload_digest])[0][4] == "kind"
    # Whoever knows the payload is told what became of it, by the library and by the function.
    same: dict[str, Any] = {
        "organization": "acme",
        "project": "p1",
        "idempotency_key": job.idempotency_key,
        "kind": job.kind,
    }
    producer = guarded.service("producer")
    assert producer.create_job(**same, payload=SECRET).job.result == {"r": "CANARY"}
    with pytest.raises(Conflict, match="another payload"):
        producer.create_job(**same, payload={"card": "?"})
    call = "SELECT job_id, created FROM tenure.enqueue('acme', 'p1', %s, %s, %s)"
    assert guarded.ask("producer", call, job.idempotency_key, job.kind, '{"card": "CANARY-4111"}') == [(job.id, False)]
    with pytest.raises(psycopg.Error, match="with another payload") as told:
        guarded.ask("producer", call, job.idempotency_key, job.kind, '{"card": "?"}')
    assert told.value.sqlstate == "TNCON"


@pytest.mark.parametrize(
    "state", ["ready", "deferred", "running", "indeterminate", "completed", "failed", "halt_unsafe", "cancelled"]
)
def test_a_producer_moves_no_job_whatever_it_is(guarded: Place, state: str) -> None:
    job = states(guarded)[state]()
    where = "SELECT place, generation FROM tenure.place WHERE job_id = %s"
    before = guarded.ask("admin", where, job.id)
    for sql, table in ((READY, "ready"), (DEFERRED, "deferred")):
        for tenant in ("acme", "evil"):
            if (table, tenant) == (state, "acme"):
                continue  # its primary key says so already
            row = {**NEW, "id": job.id, "tenant": tenant, "kind": job.kind, "generation": 9}
            guarded.refuses("producer", "a producer makes new work and moves none", sql, **row)
    # Nor under another tenant, with a body of its own.
    body = BODY.replace("'kind'", f"'{job.kind}'")
    with psycopg.connect(guarded.url("producer")) as connection:
        connection.execute(body.encode(), {**NEW, "id": job.id, "tenant": "evil"})
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="is known already"):
            connection.execute(READY.encode(), {**NEW, "id": job.id, "tenant": "evil", "kind": job.kind})
    assert guarded.ask("admin", where, job.id) == before


def test_a_snapshot_from_before_a_claim_is_no_way_around(guarded: Place) -> None:
    job = guarded.create("kind-seen")
    with psycopg.connect(guarded.url("producer")) as connection:
        connection.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert connection.execute(b"SELECT count(*) FROM tenure.job_key").fetchone() != (0,)
        guarded.claim("kind-seen")
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
        {"options": "{}"},
        {"options": '{"escalate_after_us": 1e30}'},
        {"options": '{"escalate_after_us": 1, "providers": 2}'},
    ],
)
def test_a_producers_own_job_by_hand_is_as_the_library_makes_it(guarded: Place, odd: dict[str, Any]) -> None:
    whole = {**NEW, "options": '{"escalate_after_us": 1, "recovery_window_us": null, "providers": []}'}
    for row, allowed in (({**NEW, **odd}, False), (NEW, True), (whole, True)):
        with psycopg.connect(guarded.url("producer")) as connection:
            connection.execute(BODY.encode(), {**row, "id": (job_id := new_id())})
            with contextlib.nullcontext() if allowed else pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(READY.encode(), {**row, "id": job_id})
            if allowed:
                # And it has one place.
                with pytest.raises(psycopg.errors.InsufficientPrivilege, match="is known already"):
                    connection.execute(DEFERRED.encode(), {**row, "id": job_id})


def test_many_at_once_are_looked_at_too(guarded: Place) -> None:
    victim, _ = guarded.held()
    with psycopg.connect(guarded.url("producer")) as connection:
        ids = [new_id() for _ in range(3)]
        connection.cursor().executemany(BODY, [{**NEW, "id": one} for one in ids])
        copied = (
            b"COPY tenure.deferred (job_id, tenant, organization, kind, queue, priority, run_at, generation, attempt, "
            b"attempts_max, epoch) FROM STDIN"
        )
        for last, allowed in ((victim.id, False), (ids[2], True)):
            with contextlib.nullcontext() if allowed else pytest.raises(psycopg.errors.InsufficientPrivilege):  # noqa: SIM117
                with connection.transaction(), connection.cursor().copy(copied) as copy:
                    for one in (*ids[:2], last):
                        copy.write_row((one, "acme", "acme", "kind", "default", 0, 0, 0, 0, 3, 1))


def test_a_producer_wakes_no_message(guarded: Place) -> None:
    message = guarded.message("s-1")
    assert guarded.relay(message, Delivered())
    refuse = "a producer makes new work and moves none"
    guarded.refuses("producer", refuse, DUE, message.id)
    order = (
        "INSERT INTO tenure.message_order (tenant, destination, subject, position, message_id) "
        "SELECT tenant, destination, subject, position, message_id FROM tenure.message WHERE message_id = %s"
    )
    guarded.refuses("producer", refuse, order, message.id)
    # Nor does it put itself before others: positions are the database's to give.
    guarded.refuses(
        "producer",
        "permission denied",
        "INSERT INTO tenure.message (message_id, tenant, destination, operation, type, version, ordered, data, "
        "attempts_max, scheduled_at, created_at, digest, position) OVERRIDING SYSTEM VALUE "
        "VALUES (gen_random_uuid(), 'acme', 'd', 'o', 't', 1, false, '{}', 1, 0, 0, 'x', -1)",
    )
    assert not guarded.relay(message, Delivered())
    # The controls: another one of the same subject, and one for later.
    assert guarded.relay(guarded.message("s-1"), Delivered())
    with guarded.service("producer").store.transaction() as tx:
        outbox.add(tx, destination="d", type="t", data={}, tenant="acme", scheduled_at=datetime.now(UTC) + SECOND)


def test_who_works_too_moves_jobs_and_who_has_grants_of_its_own_is_not_asked(guarded: Place) -> None:
    for login in ("busy", "own"):
        job, _ = guarded.held()
        guarded.ask(login, "DELETE FROM tenure.lease WHERE job_id = %s", job.id)
        guarded.ask(login, READY, **{**NEW, "id": job.id, "kind": job.kind, "generation": 1})
