"""The page about crash tests holds what runs: its file as a program, the rest top to bottom, as a reader would."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tenure.testing import known_points
from tests.support.tree import ROOT

PAGE = ROOT / "docs" / "how-to" / "test-crashes.md"


def test_what_the_page_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program, *blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "dying.py").write_text(program)
    assert len(blocks) == 3
    namespace: dict[str, object] = {"__name__": "page"}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), namespace)


def test_the_points_of_the_page_are_points() -> None:
    table = re.findall(r"^\| (`[^|]*`) \|", PAGE.read_text(), re.MULTILINE)
    named = [point for cell in table for point in re.findall(r"`([\w:]+)`", cell)]
    assert len(named) >= 8
    assert set(named) - set(known_points()) == set()
