"""The page about other people's failures names tests; each of them must be there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "internals" / "failures.md"


def named(page: str) -> set[str]:
    """Every test that the page names."""
    return set(re.findall(r"`(test_\w+)`", page))


def written() -> set[str]:
    """Every test there is."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        found |= set(re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8")))
    return found


def test_every_test_the_page_names_exists() -> None:
    names = named(PAGE.read_text(encoding="utf-8"))
    assert len(names) > 40
    assert names - written() == set()


def test_a_test_that_does_not_exist_would_be_noticed() -> None:
    assert named("shown by `test_that_nobody_wrote`") - written() == {"test_that_nobody_wrote"}
