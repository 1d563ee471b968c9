"""
Read a store's `*.sql`: named statements with their parameters, one file for each subject.

    -- name: lease_delete(job_id, generation) each
    -- locks: the lease rows named
    DELETE FROM ...;

`once` statements take named values, `each` statements take rows of values in the header's order. Both stores list the
same headers in the same order; a test compares them. A line that starts with `--` inside a statement is kept out of
what is sent, so comments cost nothing at run time. In SQLite a named statement may be several, each ended by a
semicolon at the end of its line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources

# Installed by `migrate`, where somebody asks for them.
_OF_SCHEMAS = {"test_clock.sql", "roles.sql", "role_guards.sql", "row_security.sql", "row_security_off.sql"}

_HEADER = re.compile(r"^-- name: (?P<name>\w+)\((?P<params>[\w, ]*)\) (?P<mode>once|each)$")


@dataclass(frozen=True, slots=True)
class Named:
    """
    One statement of a store.

    Attributes:
        params: Parameter names in order.
        each: True when it takes rows.
        sql: The text as the database gets it.
    """

    name: str
    params: tuple[str, ...]
    each: bool
    sql: str


def load(package: str) -> dict[str, Named]:
    """Read the statements of a store's package, file by file in the order of their names."""
    folder = resources.files(package)
    return parse("".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names(package)))


def names(package: str) -> list[str]:
    """Give the names of a package's files of statements; some others belong to a schema."""
    found = (entry.name for entry in resources.files(package).iterdir())
    return sorted(name for name in found if name.endswith(".sql") and name not in _OF_SCHEMAS)


def parse(text: str) -> dict[str, Named]:
    """Split a file of statements; a duplicate name or an unreadable header is a mistake of ours and asserts."""
    found: dict[str, Named] = {}
    header: re.Match[str] | None = None
    body: list[str] = []

    def close() -> None:
        if header is None:
            return
        name = header["name"]
        assert name not in found, f"statement {name} appears twice"
        params = tuple(part.strip() for part in header["params"].split(",") if part.strip())
        sql = "\n".join(body).strip().removesuffix(";")
        assert sql, f"statement {name} is empty"
        found[name] = Named(name, params, header["mode"] == "each", sql)

    for line in text.splitlines():
        if line.startswith("-- name:"):
            close()
            header = _HEADER.match(line)
            assert header is not None, f"unreadable header: {line}"
            body = []
        elif not line.lstrip().startswith("--"):
            body.append(line)
    close()
    return found
