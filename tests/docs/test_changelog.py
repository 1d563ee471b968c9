"""The changelog names what there is for users."""

from __future__ import annotations

import re

import tenure
from tenure import testing
from tenure.faces.cli import main
from tests.docs.pages import ROOT

TEXT = (ROOT / "CHANGELOG.md").read_text("utf-8")
UNRELEASED = TEXT.partition("## [Unreleased]\n")[2].partition("\n## ")[0]


def test_it_keeps_the_format() -> None:
    assert TEXT.startswith("# Changelog\n")
    sections = re.findall(r"^### (.+)$", UNRELEASED, re.MULTILINE)
    assert sections
    assert set(sections) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_every_command_and_every_test_helper_is_named() -> None:
    from typer.main import get_command

    commands = get_command(main.app).commands  # type: ignore[attr-defined]
    names = {below for one in commands.values() for below in getattr(one, "commands", {})} | commands.keys()
    assert {"demo", "resume-sweep", "verify"} <= names
    assert [name for name in sorted(names) if not re.search(rf"`(?:\w+ )?{name}[` ]", UNRELEASED)] == []
    assert [name for name in testing.__all__ if not re.search(rf"\b{name}`", UNRELEASED)] == []


def test_what_it_names_exists() -> None:
    known = {*tenure.__all__, *testing.__all__}
    assert set(re.findall(r"`(?:tenure\.testing\.)?([A-Z]\w+[a-z])`", UNRELEASED)) <= known
    for member in re.findall(r"`ctx\.(\w+)`", UNRELEASED):
        assert hasattr(tenure.AsyncContext, member) or member == "log", member
