"""The reference pages say what the code says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

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


def test_a_page_that_says_something_else_is_noticed_and_repaired(tmp_path: Path) -> None:
    for folder in ("src", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    assert check(tmp_path).returncode == 0
    pages = {
        name: tmp_path / "docs" / "reference" / name
        for name in ("states.md", "errors.md", "events.md", "cli.md", "api.md")
    }
    before = {name: page.read_text() for name, page in pages.items()}
    for page in pages.values():
        page.write_text(page.read_text() + "\nAnd something nobody decided.\n")
    done = check(tmp_path, "--check")
    assert done.returncode == 1
    assert [name for name in pages if name not in done.stdout] == []
    assert check(tmp_path).returncode == 0
    assert {name: page.read_text() for name, page in pages.items()} == before
