"""`tenure migrate --row-security`, and what `tenure doctor` says of it."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

import tenure
from tenure.faces.cli.main import app as program


def say(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(program, [*arguments])
    return done.exit_code, done.output


def doctor(url: str) -> tuple[bool, str] | None:
    """Give what the doctor says of row security, None where nothing."""
    _, said = say("doctor", "--store", url, "--json")
    found = [one for one in json.loads(said)["findings"] if one["what"] == "row security"]
    return (found[0]["ok"], found[0]["found"]) if found else None


def test_row_security_is_switched_on_and_off(postgres_database: str) -> None:
    url = postgres_database
    assert say("migrate", "--store", url)[0] == 0
    assert doctor(url) is None
    assert say("migrate", "--row-security", "--store", url) == (0, "up to date\nroles granted\nrow security is on\n")
    assert doctor(url) == (True, "on, for every table with a tenant")
    # A migration that says nothing about it leaves it on.
    assert say("migrate", "--store", url) == (0, "up to date\n")
    assert doctor(url) == (True, "on, for every table with a tenant")
    with psycopg.connect(url) as connection:
        connection.execute("DROP POLICY one_tenant ON tenure.lease")
    assert doctor(url) == (False, "only in part: it leaves out lease; run `tenure migrate --row-security`")
    status, said = say("migrate", "--row-security", "--store", url, "--json")
    assert (status, json.loads(said)) == (0, {"applied": [], "roles": True, "row_security": True})
    assert doctor(url) == (True, "on, for every table with a tenant")
    assert say("migrate", "--no-row-security", "--store", url) == (0, "up to date\nrow security is off\n")
    assert doctor(url) is None


def test_it_can_be_read_and_run_by_somebody_else(postgres_database: str) -> None:
    assert say("migrate", "--store", postgres_database)[0] == 0
    status, text = say("migrate", "--row-security", "--sql", "--store", postgres_database)
    assert status == 0
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute(text.encode())
    assert doctor(postgres_database) == (True, "on, for every table with a tenant")
    assert "CREATE POLICY" not in say("migrate", "--roles", "--sql", "--store", postgres_database)[1]


def test_who_sees_one_tenant_names_it_with_an_option(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_STORE", postgres_database)
    assert say("migrate", "--row-security")[0] == 0
    with tenure.open_store(postgres_database) as store:
        for tenant in ("acme", "zeta"):
            tenure.DurableJobService(store).create_job(
                organization=tenant, project="p1", idempotency_key=f"of-{tenant}", kind="send", payload={}
            )
    monkeypatch.setenv("TENURE_ROLE", "viewer")
    done = CliRunner().invoke(program, ["jobs", "list"])
    assert getattr(done.exception, "code", None) == "TENANT_REQUIRED"
    assert "on the command line --tenant" in str(done.exception)
    status, said = say("jobs", "list", "--tenant", "acme", "--json")
    (job,) = json.loads(said)
    assert (status, job["idempotency_key"]) == (0, "of-acme")
    assert say("jobs", "show", job["id"], "--tenant", "acme")[0] == 0
    assert json.loads(say("stats", "--tenant", "acme", "--json")[1])["totals"]["queued"] == 1
    for command in (("outbox",), ("outbox", "list"), ("suspects", "list"), ("approvals", "list")):
        assert say(*command, "--tenant", "acme")[0] == 0, command
    # Who sees all is served as before, and sees what the option says.
    monkeypatch.setenv("TENURE_ROLE", "operator")
    assert [one["tenant"] for one in json.loads(say("jobs", "list", "--json")[1])] == ["acme", "zeta"]
    assert [one["tenant"] for one in json.loads(say("jobs", "list", "--tenant", "zeta", "--json")[1])] == ["zeta"]


def test_no_restore_protection_is_not_called_ok(postgres_database: str, tmp_path: Path) -> None:
    assert say("migrate", "--store", postgres_database)[0] == 0
    status, said = say("doctor", "--store", postgres_database)
    assert status == 0
    assert [line.split()[0] for line in said.splitlines() if "restore protection" in line] == ["--"]
    _, said = say("doctor", "--store", postgres_database, "--authority-ledger", str(tmp_path / "ledger"))
    assert [line.split()[0] for line in said.splitlines() if "restore protection" in line] == ["ok"]
