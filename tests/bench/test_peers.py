"""The other systems' adapters, without installing them: what can be read in the source."""

from __future__ import annotations

import ast
import re

import pytest

from bench.peers.install import ENVIRONMENTS, PLACE, interpreter
from bench.rows import ROWS
from tests.support.tree import ROOT, parsed

PEERS = ROOT / "bench" / "peers"


def test_there_is_an_adapter_for_each_environment_and_no_other() -> None:
    adapters = {path.stem for path in PEERS.glob("*.py")} - {"__init__", "install"}
    assert adapters == set(ENVIRONMENTS)


@pytest.mark.parametrize("name", sorted(ENVIRONMENTS))
def test_every_version_is_fixed(name: str) -> None:
    assert [one for one in ENVIRONMENTS[name].packages if not re.fullmatch(r"[\w-]+(\[\w+\])?==[\w.]+", one)] == []


@pytest.mark.parametrize("name", sorted(ENVIRONMENTS))
def test_an_adapter_is_short_and_says_what_its_system_leaves_out(name: str) -> None:
    path = PEERS / f"{name}.py"
    said = ast.get_docstring(parsed(path)) or ""
    assert len(path.read_text(encoding="utf-8").splitlines()) < 150
    assert re.search(r"\bno\b", said), "every system leaves something out"
    # The version that the docstring tells people is the one that is installed.
    version = next(one for one in ENVIRONMENTS[name].packages).partition("==")[2]
    assert version in said


def test_an_environment_of_other_versions_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.peers import install

    assert PLACE.name == ".venv", "git, ruff and mypy pass over it by this name"
    monkeypatch.setattr(install, "PLACE", ROOT / "nowhere")
    assert interpreter("huey") is None


def test_every_goal_of_a_row_is_against_a_system_there_is() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.against
        assert all(side.share == 1 or side.system in ENVIRONMENTS for side in row.against)
