"""SQL is written once for each database, in the open, and never put together from pieces."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tenure.stores import statements
from tests.support.tree import SRC, files, name, parsed

# Where a piece of SQL is put into another, and why that is safe. (file, function)
PUT_TOGETHER: set[tuple[str, str]] = set()

_BEGINNING = re.compile(
    r"^\s*(SELECT\b|INSERT\s+INTO\b|UPDATE\s+\S+\s+SET\b|DELETE\s+FROM\b|WITH\s+\w+\s+AS\b|MERGE\s+INTO\b|TRUNCATE\b"
    r"|(CREATE|DROP|ALTER)\s+(TABLE|INDEX|UNIQUE|VIEW|SCHEMA|FUNCTION|ROLE|DATABASE|TYPE|TRIGGER)\b"
    r"|(GRANT|REVOKE)\s+\w+|SET\s+(LOCAL|SESSION|ROLE)\b|PRAGMA\s+\w+|ATTACH\s|NOTIFY\b|LISTEN\b|COPY\s)",
    re.IGNORECASE,
)


def pieces(path: Path) -> list[tuple[int, str, str]]:
    """Give the line, function and kind of every SQL text in a source file; docstrings are not texts."""
    found: list[tuple[int, str, str]] = []

    def visit(node: ast.AST, function: str) -> None:
        for child in ast.iter_child_nodes(node):
            inside = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue
            if isinstance(child, ast.JoinedStr):
                first = child.values[0] if child.values else None
                text = first.value if isinstance(first, ast.Constant) else ""
                if _BEGINNING.match(str(text)):
                    found.append((child.lineno, inside, "f-string"))
                continue
            if isinstance(child, ast.BinOp) and isinstance(child.op, ast.Mod | ast.Add) and _is_sql(child.left):
                found.append((child.lineno, inside, "put together"))
                continue
            if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
                owner = child.func.value
                if child.func.attr in {"format", "join", "replace"} and _is_sql(owner):
                    found.append((child.lineno, inside, "put together"))
                    continue
            if _is_sql(child):
                found.append((getattr(child, "lineno", 0), inside, "text"))
            visit(child, inside)

    visit(parsed(path), "")
    return found


def _is_sql(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(_BEGINNING.match(node.value))


def test_sql_is_spoken_in_the_stores_alone() -> None:
    found = [
        f"{name(path)}:{line} in {function or 'module'}"
        for path in files("src")
        if path.suffix == ".py" and not path.is_relative_to(SRC / "stores")
        for line, function, _ in pieces(path)
    ]
    assert found == []


def test_no_sql_is_put_together_from_pieces() -> None:
    found = {
        (name(path), function)
        for path in files("src")
        if path.suffix == ".py"
        for _, function, kind in pieces(path)
        if kind != "text"
    }
    assert found == PUT_TOGETHER


@pytest.mark.parametrize(
    "line,kind",
    [
        ('q = f"SELECT * FROM {table}"', "f-string"),
        ('q = "DELETE FROM job WHERE id = %s" % id', "put together"),
        ('q = "UPDATE job SET " + pairs', "put together"),
        ('q = "insert into {} values (1)".format(table)', "put together"),
        ('q = "SELECT 1"', "text"),
    ],
)
def test_sql_is_recognised(tmp_path: Path, line: str, kind: str) -> None:
    path = tmp_path / "query.py"
    path.write_text('"""SELECT in a docstring is a word."""\nselected = "select one of these"\nq = f"{selected}"\n')
    harmless = pieces(path)
    parsed.cache_clear()
    path.write_text(line)
    assert [(found[2]) for found in pieces(path)] == [kind]
    assert [found[2] for found in harmless] == ["text"]


def test_both_databases_have_the_same_statements_in_the_same_order() -> None:
    sqlite = statements.load("tenure.stores.sqlite")
    postgres = statements.load("tenure.stores.postgres")
    assert len(sqlite) > 20
    assert [(one.name, one.params, one.each) for one in sqlite.values()] == [
        (one.name, one.params, one.each) for one in postgres.values()
    ]


def asked_for() -> dict[str, str]:
    """Give every statement that a procedure names, and where."""
    found: dict[str, str] = {}
    for path in files("src"):
        if path.suffix == ".py":
            for node in ast.walk(parsed(path)):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Name)
                    and node.func.id in {"Statement", "Each"}
                ):
                    first = node.args[0] if node.args else None
                    if isinstance(first, ast.Constant) and isinstance(first.value, str):
                        found.setdefault(first.value, f"{name(path)}:{node.lineno}")
    return found


def test_every_statement_that_is_asked_for_exists() -> None:
    known = statements.load("tenure.stores.sqlite")
    asked = asked_for()
    assert asked
    assert {one: where for one, where in asked.items() if one not in known} == {}


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_every_statement_says_what_it_locks_reads_or_writes(database: str) -> None:
    folder = SRC / "stores" / database
    text = "".join(
        (folder / name).read_text(encoding="utf-8") for name in statements.names(f"tenure.stores.{database}")
    )
    blocks = [block.splitlines() for block in re.split(r"^(?=-- name:)", text, flags=re.MULTILINE)[1:]]
    assert len(blocks) > 20
    said = re.compile(r"^-- .*\w{4}")
    assert [lines[0] for lines in blocks if not said.match(lines[1])] == []


def test_both_databases_have_the_same_migrations() -> None:
    def names(database: str) -> list[str]:
        return sorted(path.name for path in (SRC / "stores" / database / "migrations").glob("*.sql"))

    assert names("sqlite") != []
    assert names("sqlite") == names("postgres")
