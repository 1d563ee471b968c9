"""The reference pages say what the code says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tree import ROOT


def check(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(tree / "docs" / "generate.py"), *arguments],
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_pages_are_current() -> None:
    done = check(ROOT, "--check")
    assert (done.returncode, done.stdout) == (0, ""), f"{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", ["states.md", "errors.md", "events.md", "cli.md"])
def test_a_page_that_says_something_else_is_noticed_and_repaired(tmp_path: Path, page: str) -> None:
    for folder in ("src", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    assert check(tmp_path).returncode == 0
    before = (tmp_path / "docs" / "reference" / page).read_text()
    (tmp_path / "docs" / "reference" / page).write_text(before + "\nAnd something nobody decided.\n")
    done = check(tmp_path, "--check")
    assert done.returncode == 1
    assert page in done.stdout
    assert check(tmp_path).returncode == 0
    assert (tmp_path / "docs" / "reference" / page).read_text() == before
