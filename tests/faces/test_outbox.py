"""`tenure outbox` and `tenure relay`: what people see of messages, and what they decide."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tenure
from tenure.faces.cli.main import app as program
from tests.support.copies import mark_copy

MODULE = """
from pathlib import Path

import tenure
from tenure.outbox import Delivered, Refused


class Letters(tenure.Destination):
    name = "letters"

    async def deliver(self, messages):
        return [Delivered() if one.data else Refused("it is empty") for one in messages]


app = tenure.Tenure("sqlite:///outbox.db", organization="studio", project="sales", destinations=[Letters()])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENURE_STORE", "sqlite:///outbox.db")
    (tmp_path / "mailroom.py").write_text(MODULE)
    with tenure.open_store("sqlite:///outbox.db") as store:
        store.migrate()
        with store.transaction() as tx:
            for nth, data in enumerate(({"quote": 17}, {})):
                tenure.outbox.add(tx, destination="letters", type="t", data=data, tenant="acme", operation=f"op-{nth}")
    return tmp_path


def ask(*arguments: str) -> Any:
    done = CliRunner().invoke(program, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_the_relay_runs_until_it_is_told_to_stop_and_people_decide(folder: Path) -> None:
    assert ask("outbox")["states"] == {"due": 2}
    assert "no delivery begun" in say("outbox")[1]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    code = "from tenure.faces.cli.main import main; main()"
    command = [sys.executable, "-c", code, "relay", "mailroom:app", "--json", "--health-file", "health.json"]
    relay = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 60
        while ask("outbox", "stats")["states"] != {"set_aside": 1}:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert "loops" in json.loads((folder / "health.json").read_text())
        relay.send_signal(signal.SIGTERM)
        said, _ = relay.communicate(timeout=30)
    finally:
        relay.kill()
        relay.communicate()
    assert (relay.returncode, json.loads(said)["clean"]) == (0, True)
    (one,) = ask("outbox", "list")
    assert (one["operation"], one["error_code"], "data" in one) == ("op-1", "DELIVERY_REFUSED", False)
    assert "DELIVERY_REFUSED: it is empty" in say("outbox", "list")[1]
    assert "none with more than 1 delivery" in say("outbox")[1]
    assert "; last answers: DELIVERY_REFUSED" in say("doctor")[1]
    shown = ask("outbox", "replay", one["id"], "--reason", "mended", "--actor", "op:1")
    assert (shown["state"], shown["digest"], shown["data"]) == ("due", one["digest"], {})
    assert [(made["decision"], made["actor"]) for made in shown["decisions"]] == [("replayed", "op:1")]
    assert ask("outbox", "show", one["id"])["reason"] == "it is empty"
    assert len(ask("outbox", "list", "--state", "delivered")) == 1


def test_tables_are_for_people(folder: Path) -> None:
    for arguments, said in (
        (["outbox"], "2 unpublished"),
        (["outbox", "list"], "letters"),
        (["outbox", "list", "--destination", "fax"], "no messages"),
    ):
        done = CliRunner().invoke(program, arguments)
        assert (done.exit_code, said in done.output) == (0, True), done.output


def test_what_is_refused_says_so(folder: Path) -> None:
    (first, _) = ask("outbox", "list")
    for arguments, code in (
        (["outbox", "replay", first["id"], "--reason", "why"], "NOT_SET_ASIDE"),
        (["outbox", "discard", first["id"], "--reason", "why"], "NOT_SET_ASIDE"),
        (["outbox", "list", "--state", "gone"], "BAD_ARGUMENT"),
        (["outbox", "show", "01900000-0000-7000-8000-000000000001"], "NOT_FOUND"),
    ):
        done = CliRunner().invoke(program, arguments)
        assert getattr(done.exception, "code", None) == code


def say(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(program, [*arguments])
    return done.exit_code, " ".join(done.output.split())


def test_who_runs_only_stats_or_doctor_sees_what_is_no_job(folder: Path) -> None:
    """A stuck outbox, a frozen database, suspect jobs, a paused queue; beside each the same without it."""
    status, said = say("stats")
    assert (status, "outbox: 2 messages unpublished, the oldest is due for 0 s, 0 set aside" in said) == (0, True)
    assert (ask("stats")["outbox"]["unpublished"], ask("stats")["suspects"], ask("stats")["frozen"]) == (2, 0, None)
    assert say("stats", "--tenant", "zeta") == (0, "everything is done")
    status, said = say("doctor")
    assert (status, "2 messages unpublished" in said, "does a relay run" in said) == (0, True, False)
    assert "suspects" not in said
    assert "paused" not in said
    with tenure.open_store("sqlite:///outbox.db") as store:
        service = tenure.DurableJobService(store, actor="op:1")
        service.create_job(organization="acme", project="p", idempotency_key="k", kind="send", payload={})
        store.run(mark_copy("op:1", "restored"))
        service.pause_queue("default", reason="r")
        with store.transaction() as tx:
            tx.execute("UPDATE tenure_message_due SET since = since - 60000000")
    status, said = say("doctor")
    assert status == 1
    assert "does a relay run" in said
    assert "1 job of a restored copy" in said
    assert "paused or drained: default" in said
    with tenure.open_store("sqlite:///outbox.db") as store, store.transaction() as tx:
        tx.execute("INSERT INTO tenure_meta (key, value) VALUES ('frozen', 'by hand')")
    _, said = say("stats")
    assert "the database is frozen, nothing runs: IDENTITY_CHANGED" in said
    assert "1 job of a restored copy is suspect; `tenure suspects list`" in said
    assert ask("stats")["frozen"] == "IDENTITY_CHANGED"
