"""What people read: ids in one piece, no empty columns, and ids alone for other commands."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from uuid import UUID

import pytest

from tenure.faces.cli.show import table
from tenure.service import DurableJobService
from tenure.stores import open_store

COMMAND = [sys.executable, "-c", "from tenure.faces.cli.main import main; main()"]
ID = "01a229e5-6929-73e0-9aaa-ef8e92840ef1"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "dumb")
    return Terminal()


def test_an_id_stays_in_one_piece_where_others_fold(terminal: Terminal) -> None:
    with redirect_stdout(terminal):
        table("jobs", ("id", "key", "error"), [(ID, "a-key-that-is-much-too-long-for-what-is-left", None)])
    shown = terminal.getvalue()
    assert f" {ID} " in shown
    assert "a-key-that-is-much-too-long-for-what-is-left" not in shown
    assert "error" not in shown


def test_an_empty_table_names_its_columns_and_a_full_one_keeps_them(terminal: Terminal) -> None:
    with redirect_stdout(terminal):
        table("0 jobs", ("id", "error"), [])
    assert "error" in terminal.getvalue()
    with redirect_stdout(terminal):
        table("2 jobs", ("id", "code"), [(1, None), (2, "LATE")])
    assert "code" in terminal.getvalue()
    assert "LATE" in terminal.getvalue()


def test_ids_alone_for_other_commands(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    store = open_store(url)
    store.migrate()
    service = DurableJobService(store, actor="me")
    made = [
        service.create_job(organization=owner, project="p", idempotency_key="k", kind="greet", payload={}).job
        for owner in ("studio", "garden")
    ]
    store.close()

    def listed(*arguments: str) -> str:
        command = [*COMMAND, "jobs", "list", "--store", url, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    assert [UUID(line) for line in listed("--ids").splitlines()] == [job.id for job in made]
    assert listed("--ids", "--status", "failed") == ""
    # The tenant is shown where it tells jobs apart.
    assert "tenant" in listed()
    assert "tenant" not in listed("--tenant", "studio")
    shown = subprocess.run(
        [*COMMAND, "jobs", "show", str(made[0].id), "--store", url], capture_output=True, check=True, timeout=60
    )
    assert b"kind" in shown.stdout
