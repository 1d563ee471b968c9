"""Every page can be found, every link leads somewhere, and every command that a page shows is one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tenure import lab
from tenure.faces.cli import main
from tests.docs.pages import ROOT

DOCS = ROOT / "docs"
TOP = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")]
PAGES = [*sorted(DOCS.rglob("*.md")), *TOP]
# Lists with a page of their own, which the index links.
LISTS = [DOCS / "index.md", DOCS / "decisions" / "README.md", DOCS / "explanation" / "stories" / "README.md"]
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[tuple[Path, str]]:
    """Give what a page links to inside the project, as files and anchors; code is not read."""
    text = re.sub(r"`[^`\n]*`", "", CODE.sub("", page.read_text("utf-8")))
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return [
        ((page.parent / (path or page.name)).resolve(), anchor)
        for path, _, anchor in (link.partition("#") for link in found)
        if not path.startswith(("http://", "https://", "mailto:"))
    ]


def anchors(page: Path) -> set[str]:
    """Give the anchors that a page's headings make."""
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", page.read_text("utf-8")), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in plain}


def dead(page: Path) -> list[str]:
    """Name the links of a page that lead nowhere."""
    return [
        f"{target}#{anchor}"
        for target, anchor in links(page)
        if not target.exists() or (anchor and anchor not in anchors(target))
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_dead(page: Path) -> None:
    assert dead(page) == []


def test_a_dead_link_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A heading, here\n")
    page = tmp_path / "page.md"
    page.write_text("[a](there.md) [b](there.md#a-heading-here) `[c](no.md)`\n")
    assert dead(page) == []
    page.write_text("[a](gone.md) [b](there.md#another)\n")
    assert [Path(link).name for link in dead(page)] == ["gone.md#", "there.md#another"]


def test_no_page_is_an_orphan() -> None:
    linked = {target for page in LISTS for target, _ in links(page)}
    assert {page for page in LISTS[1:] if page not in linked} == set()
    pages = set(DOCS.rglob("*.md"))
    assert len(pages) >= 40
    assert sorted(str(page.relative_to(ROOT)) for page in pages - linked - {LISTS[0]}) == []


def test_the_index_is_linked_from_the_readme() -> None:
    assert LISTS[0] in {target for target, _ in links(ROOT / "README.md")}


# --- commands ---------------------------------------------------------------------------------------------------------


def shown(page: Path) -> list[str]:
    """Give the commands of the program that a page shows in blocks and in the middle of sentences."""
    text = page.read_text("utf-8")
    blocks = re.findall(r"^```(?:console|sh)\b[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", CODE.sub("", text))
    # A command may stand inside another one: `show $(tenure jobs list --ids)`.
    parts = [part.rstrip(")") for line in lines for part in re.split(r"\$\(", line.partition(" #")[0])]
    return [part for part in parts if re.match(r"tenure [a-z]", part)]


# What `tenure lab` takes instead of a command.
VARIANTS = {"VARIANT", "none", *(one.name for one in lab.variants())}


def unknown(line: str) -> str:
    """Say what of a command the program does not know; empty when it knows all."""
    command: Any = get_command(main.app)
    words = shlex.split(line)[1:]
    while words and (below := getattr(command, "commands", None)):
        if words[0] not in below and "|" in words[0]:
            return "" if all(one in below for one in words[0].split("|")) else words[0]
        default = getattr(command, "default", None)
        if words[0] not in below and default is not None and (words[0] in VARIANTS or words[0].startswith("--")):
            command = below[default]
            continue
        if words[0] not in below:
            return words[0]
        command = below[words.pop(0)]
    known = {name for one in command.params for name in [*one.opts, *one.secondary_opts]} | {"--help"}
    return next((word for word in words if word.startswith("--") and word.partition("=")[0] not in known), "")


def test_every_command_on_a_page_is_one() -> None:
    lines = [(page.name, line) for page in PAGES for line in shown(page)]
    assert len(lines) >= 60
    assert [(name, line, wrong) for name, line in lines if (wrong := unknown(line))] == []


def test_an_unknown_command_is_noticed() -> None:
    assert unknown("tenure jobs list --phase READY") == ""
    assert unknown("tenure jobs forget ID") == "forget"
    assert unknown("tenure jobs list --color") == "--color"
    assert unknown("tenure lab no-fence --limit 5") == ""
    assert unknown("tenure lab experimnts") == "experimnts"
    assert unknown("tenure lab no-fence --color") == "--color"
