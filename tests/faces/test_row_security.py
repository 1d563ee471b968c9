"""`tenure migrate --row-security`, and what `tenure doctor` says of it."""

from __future__ import annotations

import json

import psycopg
from typer.testing import CliRunner

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
