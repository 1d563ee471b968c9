"""What each floor never holds: read from the source, so that no reviewer has to remember it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tree import ROOT, SRC, files, imports, name, parsed

# Clocks, randomness, files, sockets, processes, threads, logs: whatever makes the same call give another answer.
WORLD = {
    "asyncio",
    "concurrent",
    "fcntl",
    "io",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "queue",
    "random",
    "secrets",
    "selectors",
    "signal",
    "socket",
    "sqlite3",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "urllib",
}
CLOCK_CALLS = {"now", "utcnow", "today", "time", "monotonic", "perf_counter", "uuid1", "uuid4", "uuid7", "new_id"}
# Canonical JSON is nobody's to invent.
OUTSIDE = {("rules", "rfc8785")}

# Whatever turns bytes into code or into any object.
DANGEROUS_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "marshal",
    "dill",
    "shelve",
    "cloudpickle",
    "joblib",
    "yaml",
    "jsonpickle",
}
DANGEROUS_CALLS = {"eval", "exec", "compile", "__import__"}

LINES_MAX = 600
# A developer need not install three brokers; under CI it fails instead.
MAY_SKIP = ROOT / "tests" / "support" / "brokers" / "missing.py"


def modules(*rooms: str) -> Iterator[Path]:
    for room in rooms:
        yield from SRC.joinpath(room).rglob("*.py")


def world(path: Path) -> list[str]:
    """Give every way in which a pure floor touches the world."""
    found = [
        f"{name(path)}:{line}: imports {module}" for line, module in imports(path) if module.partition(".")[0] in WORLD
    ]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            found.append(f"{name(path)}:{node.lineno}: is async")
        elif isinstance(node, ast.Call):
            called = node.func
            method = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if method in CLOCK_CALLS | {"open", "print", "input"}:
                found.append(f"{name(path)}:{node.lineno}: calls {method}")
    return found


def test_rules_touch_nothing() -> None:
    found = [line for path in modules("rules") for line in world(path)]
    assert found == []


def test_procedures_touch_nothing() -> None:
    # Ids are made by procedures, and known before the commit.
    found = [line for path in modules("procedures") for line in world(path) if "new_id" not in line]
    assert found == []


def test_flows_touch_nothing_but_what_they_are_given() -> None:
    # Their driver awaits where its caller does; the flows themselves are generators.
    found = [line for path in modules("flows") for line in world(path) if "drive.py" not in line or "async" not in line]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "from datetime import datetime\nat = datetime.now()",
        "import logging as log",
        "async def rule(): ...",
        "text = open('file').read()",
        "def rule():\n    from os import environ",
    ],
)
def test_touching_the_world_is_noticed(tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rule.py"
    monkeypatch.setattr("tests.support.tree.ROOT", tmp_path)
    path.write_text("from datetime import datetime, timedelta\nSOON = timedelta(1)\n")
    assert world(path) == []
    parsed.cache_clear()
    path.write_text(line)
    assert len(world(path)) == 1


def test_rules_and_procedures_need_only_the_standard_library() -> None:
    found = [
        f"{name(path)}:{line}: {module}"
        for room in ("rules", "procedures", "flows")
        for path in modules(room)
        for line, module in imports(path)
        if (top := module.partition(".")[0]) not in sys.stdlib_module_names | {"tenure"} and (room, top) not in OUTSIDE
    ]
    assert found == []


def test_nothing_imports_testing_or_the_faces() -> None:
    found = [
        f"{name(path)}:{line}: {module}"
        for path in SRC.rglob("*.py")
        for line, module in imports(path)
        for room in ("testing", "faces")
        if f"{module}.".startswith(f"tenure.{room}.") and room not in path.relative_to(SRC).parts
    ]
    assert found == []


def dangerous(path: Path) -> list[str]:
    """Give every way in which a file could run what it reads."""
    found = [
        f"{name(path)}:{line}: imports {module}"
        for line, module in imports(path)
        if module.partition(".")[0] in DANGEROUS_MODULES
    ]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DANGEROUS_CALLS:
            found.append(f"{name(path)}:{node.lineno}: calls {node.func.id}")
        if isinstance(node, ast.Attribute) and node.attr in {"load_extension", "enable_load_extension"}:
            found.append(f"{name(path)}:{node.lineno}: uses {node.attr}")
    return found


def test_nothing_that_is_read_can_become_code() -> None:
    found = [line for path in SRC.rglob("*.py") for line in dangerous(path)]
    assert found == []


@pytest.mark.parametrize(
    "line", ["import pickle", "from marshal import loads", "eval('1')", "def f():\n    exec('1')", "import yaml.loader"]
)
def test_running_what_is_read_is_noticed(tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.tree.ROOT", tmp_path)
    path = tmp_path / "reader.py"
    path.write_text("import json, re\nre.compile(json.loads('1'))\n")
    assert dangerous(path) == []
    parsed.cache_clear()
    path.write_text(line)
    assert len(dangerous(path)) == 1


def test_files_are_for_one_sitting() -> None:
    sizes = {name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files("src")}
    assert len(sizes) > 20
    assert {path: size for path, size in sizes.items() if size > LINES_MAX} == {}


def test_no_room_is_named_after_nothing() -> None:
    nameless = {"utils", "util", "common", "manager", "managers", "base", "helpers", "misc", "core"}
    found = [name(path) for path in files("src") if nameless & {part.removesuffix(".py") for part in path.parts}]
    assert found == []


def test_every_test_runs() -> None:
    """A test that is skipped or expected to fail proves nothing; long ones have the mark `nightly` instead."""
    told_apart = {"skip", "skipif", "xfail", "importorskip"}
    found = [
        f"{name(path)}:{node.lineno}: {node.attr}"
        for path in files("tests")
        if path.suffix == ".py" and path != MAY_SKIP
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and node.attr in told_apart and _about_pytest(node)
    ]
    assert found == []


def _about_pytest(node: ast.Attribute) -> bool:
    value = node.value
    return (isinstance(value, ast.Name) and value.id == "pytest") or (
        isinstance(value, ast.Attribute) and value.attr == "mark"
    )


def test_the_tree_is_the_one_under_test() -> None:
    import tenure.errors

    assert Path(tenure.errors.__file__).resolve().is_relative_to(ROOT)
