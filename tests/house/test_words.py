"""Words that must not be here: unfinished work, somebody's machine, promises nobody can keep."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.tree import ROOT, files, name

HERE = Path(__file__).resolve()

FORBIDDEN = {
    "unfinished work": re.compile(r"\b(TODO|FIXME|XXX|HACK|WIP)\b"),
    "a path of somebody's machine": re.compile(r"(?<![\w.])/(work|root|home/\w+|Users/\w+)/"),
    "the address of a registry": re.compile(r"\b(pypi\.org|pythonhosted\.org|npmjs\.org|debian\.org|crates\.io)\b"),
    "a secret": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bAKIA[0-9A-Z]{16}\b|\bghp_\w{36}\b"),
}

# Between a process and the outside world nobody can promise this; it may only be said in order to deny it.
ONCE = re.compile(r"\bexactly[\s-]once\b", re.IGNORECASE)
DENIED = re.compile(r"\b(no|not|never|nobody|cannot|without|instead of)\b|n't\b", re.IGNORECASE)


def offences(text: str) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        found.extend((number, kind) for kind, pattern in FORBIDDEN.items() if pattern.search(line))
        if ONCE.search(line) and not DENIED.search(line):
            found.append((number, "a promise nobody can keep"))
    return found


def test_no_forbidden_word_is_in_the_project() -> None:
    read = [path for path in files() if path != HERE]
    found = [f"{name(path)}:{line}: {kind}" for path in read for line, kind in offences(path.read_text("utf-8"))]
    assert len(read) > 60
    assert found == []


@pytest.mark.parametrize(
    "bad,good",
    [
        ("# TODO: later", "# the mastodon is later"),
        ("open('/root/jobs.db')", "open('/srv/jobs.db')"),
        ("see https://pypi.org/x", "see the package index"),
        ("Jobs run exactly once.", "No queue can promise exactly-once."),
        ("exactly-once delivery", "exactly one email exists"),
    ],
)
def test_forbidden_words_are_recognised(bad: str, good: str) -> None:
    assert len(offences(bad)) == 1
    assert offences(good) == []


def test_links_between_pages_lead_somewhere() -> None:
    link = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
    checked = 0
    broken = []
    for page in files():
        if page.suffix != ".md":
            continue
        for target in link.findall(page.read_text(encoding="utf-8")):
            if "://" in target or target.startswith("mailto:"):
                continue
            checked += 1
            if not (page.parent / target).exists():
                broken.append(f"{name(page)} -> {target}")
    assert checked > 10
    assert broken == []


def test_every_page_has_one_title() -> None:
    pages = [page for page in files("docs") if page.suffix == ".md"]
    assert len(pages) > 10
    titles = {name(page): _titles(page.read_text(encoding="utf-8")) for page in pages}
    assert {page: found for page, found in titles.items() if len(found) != 1} == {}


def _titles(text: str) -> list[str]:
    outside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^# .+$", outside, flags=re.MULTILINE)


def test_scripts_are_executable() -> None:
    for script in (".ci/run", ".ci/venv", ".ci/demo"):
        assert (ROOT / script).stat().st_mode & 0o111, f"{script} cannot be run"
