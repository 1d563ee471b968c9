"""Wherever a store takes a procedure from a caller, it asks what it was opened with whether the caller may."""

from __future__ import annotations

import ast

from tests.support.tree import SRC, name, parsed

# Hands on to a joined transaction, which asks.
HANDS_ON = {"src/tenure/stores/joining/through.py"}


def test_every_store_asks_before_it_runs_a_procedure() -> None:
    found = {
        f"{name(path)}:{node.lineno}": len(node.args)
        for path in (SRC / "stores").rglob("*.py")
        if name(path) not in HANDS_ON
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "asked"
    }
    assert len(found) >= 10
    assert {place for place, arguments in found.items() if arguments != 2} == set()
