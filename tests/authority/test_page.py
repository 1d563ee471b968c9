"""The page about recovery, recover-a-restored-database.md, from top to bottom: its Python, and then its commands."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tenure.faces.cli.main import main
from tests.support.tree import ROOT

PAGE = ROOT / "docs" / "how-to" / "recover-a-restored-database.md"


@dataclass(frozen=True)
class Said:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run one line of a shell in this process: starting thirteen others would take most of the time."""

    def run(line: str, *more: str) -> Said:
        monkeypatch.setattr(sys, "argv", [*shlex.split(line), *more])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Said(int(ended.value.code or 0), said.out, said.err)

    return run


def test_the_page_is_done_as_it_is_written(
    command: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text("utf-8")
    namespace: dict[str, object] = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        exec(compile(block, PAGE.name, "exec"), namespace)
    app = namespace["app"]
    app.close()  # type: ignore[attr-defined]
    lines = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
    ]
    doctor, plan, recover, suspects, show, held, readmit = lines
    said = command(doctor)
    assert said.returncode == 1
    assert "COUNTER_BEHIND" in said.stdout
    assert "tenure recover" in said.stdout
    said = command(plan)
    assert said.returncode == 1, "nothing is done yet"
    assert "are gone with their keys" in said.stdout
    assert "tenant studio: epoch 2" in said.stdout
    refused = command("tenure tenants rotate studio --reason r --store sqlite:///jobs.db")
    assert refused.returncode == 1
    assert "DATABASE_FROZEN" in refused.stderr
    said = command(recover)
    assert said.returncode == 0, said.stderr
    assert "done; 1 job is suspect" in said.stdout
    assert "1 x no provider is known: an effect may be lost with the backup" in said.stdout
    assert command(plan).stdout.startswith("the database is not frozen; there is nothing to recover\n")
    assert len(json.loads(command(suspects, "--json").stdout)["needs_evidence"]) == 1
    assert command(doctor).returncode == 0
    shown = json.loads(command(show, "--json").stdout)
    assert (shown["epoch"], shown["held"]) == (2, [{"epoch": 1, "jobs": 1, "messages": 0}])
    assert [act["what"] for act in shown["acts"]] == ["recovered"]
    (job,) = json.loads(command(held, "--json").stdout)
    assert job["idempotency_key"] == "quote-17"
    assert job["held_reason"].startswith("superseded epoch 1 < 2")
    assert command(readmit).stdout == "readmitted: 1 job, 0 messages\n"
    assert json.loads(command(held, "--json").stdout) == []
    # Once more: a table for people, and every verb of the group.
    for line, found in (
        ("tenure tenants freeze studio --reason r", "tenant studio has epoch 2 and is frozen\n"),
        ("tenure tenants thaw studio --reason r", "tenant studio has epoch 2\n"),
        ("tenure tenants rotate studio --reason r", "tenant studio has epoch 3\n"),
        ("tenure tenants readmit studio --all --reason r", "readmitted: 1 job, 0 messages\n"),
    ):
        said = command(f"{line} --store sqlite:///jobs.db")
        assert (said.returncode, said.stdout) == (0, found), said.stderr
    listed = command("tenure tenants list --store sqlite:///jobs.db")
    assert "studio" in listed.stdout
    wrong = command("tenure tenants readmit studio --reason r --store sqlite:///jobs.db")
    assert wrong.returncode == 2
    none = command("tenure recover --store sqlite:///:memory:", "--json")
    assert (none.returncode, json.loads(none.stdout)["error"]) == (1, "LEDGER_REQUIRED")
