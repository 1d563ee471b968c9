"""The runbook covers every status, every code and every reason to escalate, and names moves that exist."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

import tenure
from tenure import errors
from tenure.rules import job as jobs
from tenure.rules.authority import Authority
from tenure.rules.job import Job
from tenure.rules.status import EXCEPTIONS, LIVE, TERMINAL, Phase, Status
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "how-to" / "operate.md").read_text("utf-8")
# Of the package under test, which may be an installed one.
SOURCE = Path(tenure.__file__).parent
# What an attempt may end with, of the codes that classes of errors have.
_CLASSES = (errors.EffectFailed, errors.EffectRejected, errors.Uncertain, errors.Permanent, errors.ApprovalRefused)
BY_CLASS = {one.code for one in _CLASSES}
ENDS = {"_indeterminate", "_failed", "_ended", "_retry_or_bury", "mark_indeterminate", "interrupted", "abandoned"}


def rows(heading: str) -> list[list[str]]:
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| (.+) \|$", section, re.MULTILINE)
    return [line.split(" | ") for line in lines[2:]] if lines[1].startswith("---") else []


RUNBOOK = rows("What you see, and what to do")
ESCALATIONS = rows("When a sweep has handed it to you")


def trees() -> list[ast.Module]:
    names = ("attempt.py", "handler.py", "loops/attempts.py", "loops/endings.py", "flows/effect.py")
    files = [*sorted((SOURCE / "rules").glob("*.py")), *(SOURCE / name for name in names)]
    return [ast.parse(path.read_text("utf-8")) for path in files]


def written_codes() -> set[str]:
    """Find the codes that the package itself ends an attempt with."""
    found: set[str] = set()
    # Of all files together: one imports the constants of another.
    constants = {
        name.id: value.value
        for tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        for name, value in (
            zip(target.elts, node.value.elts, strict=True)
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            else [(target, node.value)]
        )
        if isinstance(name, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str)
    }
    for tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            given = [one.value for one in node.keywords if one.arg == "error_code"]
            if called in ENDS or called in {"failing", "timing_out"}:
                given += node.args
            if called == "Uncertain" or (called in {"Invalid", "Permanent"} and "UNREADABLE" in ast.dump(node)):
                given += [one.value for one in node.keywords if one.arg == "code"]
            for value in [inner for one in given for inner in ast.walk(one)]:
                code = value.value if isinstance(value, ast.Constant) else constants.get(getattr(value, "id", ""))
                if isinstance(code, str) and re.fullmatch(r"[A-Z][A-Z_]+", code):
                    found.add(code)
    return found


def test_every_status_is_covered_with_its_phases() -> None:
    told = {(Status(row[0].strip("`")), Phase(row[1])) for row in RUNBOOK}
    now = datetime(2030, 1, 1, tzinfo=UTC)
    plain = Job(
        id=uuid4(), tenant="t", organization="o", project="p", idempotency_key="k", kind="k", payload={},
        scheduled_at=now, created_at=now, run_at=now,
    )  # fmt: skip
    wanted = {(status, jobs.phase(replace(plain, status=status))) for status in Status}
    held = replace(plain, authority=Authority(tenant_frozen=True))
    assert jobs.phase(held) is Phase.HELD
    assert told == wanted | {(Status.QUEUED, Phase.HELD), (Status.CANCELLED, Phase.NEEDS_ATTENTION)}
    for phase in set(Phase) - {phase for _, phase in told}:
        assert f"{phase.value}" in PAGE, phase


def test_every_code_that_the_package_writes_is_covered() -> None:
    told = {code for row in RUNBOOK for code in re.findall(r"`([A-Z_]+)`", row[2])}
    written = written_codes()
    assert {"LEASE_EXPIRED_AFTER_DISPATCH", "WORKER_LOST", "HANDLER_ERROR", "NOT_DISPATCHED"} <= written
    assert written | BY_CLASS <= told
    assert told - written - BY_CLASS <= {"EFFECT_REJECTED_AUTHENTICATION", "PAYLOAD_INVALID"}


def test_every_status_that_may_have_other_codes_says_so() -> None:
    last = {row[0]: row[2] for row in RUNBOOK}
    for status in Status:
        if status not in {Status.COMPLETED, Status.TIMED_OUT}:
            assert "any" in last[f"`{status.value}`"], status


@pytest.mark.parametrize("status", Status)
def test_the_commands_may_move_what_they_are_named_for(status: Status) -> None:
    told = " ".join(row[4] for row in RUNBOOK if row[0] == f"`{status.value}`")
    assert ("tenure jobs retry" in told) == (status in EXCEPTIONS["retry_job"])
    assert ("tenure jobs revoke" in told) == (status is Status.RUNNING)
    assert ("tenure jobs cancel" in told) <= (status not in TERMINAL)
    if status in LIVE | {Status.QUEUED, Status.COMPLETED, Status.DEAD_LETTER}:
        assert "reconcile" not in told
    if status in EXCEPTIONS["reconcile_dispatched"]:
        assert "reconcile" in told or "see below" in told


def test_every_reason_to_escalate_is_covered() -> None:
    source = (SOURCE / "rules" / "reconcile.py").read_text("utf-8") + (SOURCE / "rules" / "dispatch.py").read_text(
        "utf-8"
    )
    told = [row[0] for row in ESCALATIONS]
    assert len(told) == 5
    for reason in told:
        assert all(part.strip(" ()") in source for part in reason.split("...")), reason
    plain = set(re.findall(r'Escalate\("([^"]+)"\)', source)) | set(re.findall(r'\bwhy = "([^"]+)"', source))
    assert len(plain) >= 4
    assert plain <= {reason.removesuffix(" (...)") for reason in told}
    assert len(re.findall(r"\bescalated_at=now\b", source)) == 2, "a new way to escalate belongs on the page"
