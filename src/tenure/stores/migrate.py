"""
Read a store's migrations and judge the version found in a database; the stores apply them in their own SQL.

Files are named `0001_<what>.sql` and are applied in the order of their numbers, each once, all in one transaction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

from tenure.errors import Invalid

_FILE = re.compile(r"^(?P<version>\d{4})_\w+\.sql$")


@dataclass(frozen=True, slots=True)
class Migration:
    """
    One step of the schema.

    Attributes:
        name: The file's name without its ending, such as `0001_start`.
        sql: The statements, comments included.
    """

    version: int
    name: str
    sql: str


def load(package: str) -> list[Migration]:
    """Read `migrations/*.sql` of a store's package in order; a gap or a stray name is a mistake of ours and asserts."""
    folder = resources.files(package).joinpath("migrations")
    found = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".sql"):
            match = _FILE.match(entry.name)
            assert match is not None, f"migration with an unreadable name: {entry.name}"
            text = entry.read_text(encoding="utf-8")
            found.append(Migration(int(match["version"]), entry.name.removesuffix(".sql"), text))
    versions = [one.version for one in found]
    assert versions == list(range(1, len(found) + 1)), f"migrations are not numbered 1, 2, 3...: {versions}"
    return found


def check_version(found: int | None, known: Sequence[Migration]) -> None:
    """
    Refuse a schema that this code does not fit.

    Args:
        found: The highest version applied in the database, or None where nothing was ever applied.
        known: The migrations of this code.

    Raises:
        Invalid: SCHEMA_MISSING where migrations wait, SCHEMA_NEWER where the database is ahead of this code.
    """
    newest = known[-1].version if known else 0
    if found is None and known:
        raise schema_missing()
    if found is not None and found > newest:
        raise Invalid(
            f"the database has schema version {found}, this release of tenure knows versions up to {newest}; "
            "upgrade tenure here before using this database",
            code="SCHEMA_NEWER",
        )
    if found is not None and found < newest:
        raise Invalid(
            f"the database has schema version {found}, this release of tenure needs version {newest}; "
            "run `tenure migrate --store URL`",
            code="SCHEMA_MISSING",
        )


def schema_missing() -> Invalid:
    """Make the error for a database without our tables."""
    return Invalid(
        "this database has no tables of tenure yet; run `tenure migrate --store URL`",
        code="SCHEMA_MISSING",
    )


def pending(applied: Iterable[int], known: Sequence[Migration]) -> list[Migration]:
    """Give the migrations that are not applied yet, in order."""
    done = set(applied)
    return [one for one in known if one.version not in done]
