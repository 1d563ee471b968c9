"""The files of the project, for tests that read the source itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "tenure"

# Made by tools, or not ours.
_LEFT_OUT = {"__pycache__", "dist", "build", "node_modules"}
_HIDDEN_BUT_OURS = {".ci", ".github"}
_TEXT = {".py", ".md", ".sql", ".toml", ".yml", ".html", ".css", ".js", ".json", ".txt", ".sh", ""}


def files(*parts: str) -> Iterator[Path]:
    """Give the text files of the project, or of one folder, in a stable order."""
    folder = ROOT.joinpath(*parts)
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(ROOT).parts
        hidden = any(part.startswith(".") and part not in _HIDDEN_BUT_OURS for part in inside)
        if path.is_file() and not hidden and not _LEFT_OUT & set(inside) and path.suffix in _TEXT:
            yield path


def name(path: Path) -> str:
    """Give a path as people write it: relative to the project."""
    return path.relative_to(ROOT).as_posix()


@cache
def parsed(path: Path) -> ast.Module:
    """Parse a source file once for all tests of a process."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Give the line and full name of every import, inside functions and for type checking too."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)}:{node.lineno}: imports here are absolute"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
