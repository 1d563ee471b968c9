"""The arrows between the rooms point one way, and the check that says so can say no."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tree import ROOT

# Each line is one that somebody could write by mistake: a file, an import, the contract that must notice.
FORBIDDEN = [
    ("rules/status.py", "import tenure.procedures", "Faces over app"),
    ("rules/status.py", "from tenure.yields import Statement", "Rules know errors"),
    ("rules/status.py", "from tenure.guard import guard", "Rules know errors"),
    ("guard.py", "import tenure.yields", "Faces over app"),
    ("procedures/__init__.py", "from tenure.stores import contract", "Faces over app"),
    ("flows/__init__.py", "import tenure.connectors", "Faces over app"),
    ("flows/__init__.py", "import tenure.testing", "nothing imports tenure.testing"),
    ("loops/__init__.py", "from tenure.faces import cli", "Faces over app"),
    ("loops/__init__.py", "import tenure.stores.postgres", "which databases"),
    ("handler.py", "from tenure.stores import open_store", "are given a store"),
    ("lab/__init__.py", "from tenure.flows import effect", "Faces over app"),
    ("connectors/__init__.py", "from tenure.stores import contract", "Faces over app"),
    ("stores/statements.py", "from tenure.rules import status", "Stores run procedures"),
    ("journal/frame.py", "from tenure.rules.status import Status", "The journal keeps bytes"),
    ("connectors/__init__.py", "import tenure.procedures", "Connectors and the model explorer"),
    ("lab/__init__.py", "import tenure.procedures", "Connectors and the model explorer"),
]


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    program = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=tree,
        # The copy must win over the installed package, which points at the real tree.
        env={**os.environ, "PYTHONPATH": str(tree / "src"), "COLUMNS": "300"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_tree_as_it_is_keeps_every_contract(tree: Path) -> None:
    done = lint(tree)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize("file,line,contract", FORBIDDEN)
def test_a_forbidden_import_is_noticed(tree: Path, file: str, line: str, contract: str) -> None:
    with (tree / "src" / "tenure" / file).open("a") as source:
        source.write(f"\n{line}\n")
    done = lint(tree)
    assert done.returncode != 0
    broken = [shown for shown in done.stdout.splitlines() if "BROKEN" in shown]
    assert any(contract in shown for shown in broken), done.stdout + done.stderr


def test_a_new_room_must_be_given_its_place(tree: Path) -> None:
    room = tree / "src" / "tenure" / "utils"
    room.mkdir()
    (room / "__init__.py").touch()
    done = lint(tree)
    assert done.returncode != 0
    assert "utils" in done.stdout
