"""One code for one idea: programs branch on codes, so two codes for one thing, or one for two, are promises broken."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tenure import errors
from tests.support.tree import ROOT, SRC, parsed

CLASSES = {
    one.__name__: one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.TenureError)
}
# A handler that is declared wrongly is found at its declaration, or at its first attempt.
TWO_CLASSES = {"HANDLER_SIGNATURE"}
# What was once called by several names; the name on the right stayed.
MERGED = {
    "NAIVE_INSTANT": "BAD_INSTANT",
    "NAIVE_DATETIME": "BAD_INSTANT",
    "STORE_URL": "BAD_STORE_URL",
    "UNKNOWN_STORE_URL": "BAD_STORE_URL",
    "BAD_NAME": "BAD_ARGUMENT",
    "BAD_KEY": "BAD_ARGUMENT",
    "BAD_ATTEMPTS": "BAD_ARGUMENT",
    "DATABASE_READ_ONLY": "STORE_READ_ONLY",
    "CANNOT_OPEN": "DATABASE_MISSING",
    "SQLITE_TOO_OLD": "DATABASE_TOO_OLD",
    "SERVER_TOO_OLD": "DATABASE_TOO_OLD",
    "PAYLOAD_NOT_AN_OBJECT": "PAYLOAD_INVALID",
}


def raised(*rooms: str) -> Iterator[tuple[str, str]]:
    """Give the class and the code of every error made in the package, or in some of its rooms."""
    for path in sorted(one for room in rooms or ("",) for one in (SRC / room).rglob("*.py")):
        for node in ast.walk(parsed(path)):
            name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if name in CLASSES and isinstance(node, ast.Call):
                codes = [one.value for one in node.keywords if one.arg == "code"]
                if not codes:
                    yield name, CLASSES[name].code
                elif isinstance(codes[0], ast.Constant):
                    yield name, str(codes[0].value)


def test_a_code_belongs_to_one_class() -> None:
    found: dict[str, set[str]] = {}
    for name, code in raised():
        found.setdefault(str(code), set()).add(name)
    assert len(found) > 100
    assert {code for code, names in found.items() if len(names) > 1} == TWO_CLASSES


def test_a_wrong_call_of_the_store_or_a_verb_is_told_by_a_code_of_its_own() -> None:
    found = [code for name, code in raised("rules", "procedures", "stores") if name == "Invalid"]
    assert len(found) > 50
    assert errors.Invalid.code not in found


def test_a_code_that_was_merged_does_not_come_back() -> None:
    used = {code for _, code in raised()}
    assert used & MERGED.keys() == set()
    assert set(MERGED.values()) <= used


def test_the_page_names_every_code() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([A-Z_]+)` \|", page, flags=re.MULTILINE)) | {one.code for one in CLASSES.values()}
    assert {code for _, code in raised()} - named == set()
