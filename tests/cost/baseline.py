"""What work may cost: the committed figures, and the judgement of a measurement against them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

FILE = Path(__file__).with_name("baseline.json")
ABOVE = 0.10
ACCEPT = "python -m tests.cost.measure --write"

# One unit of one piece of work: figures by name.
Figures: TypeAlias = Mapping[str, float]
# All pieces on one database, by the piece's name.
Pieces: TypeAlias = Mapping[str, Figures]


def load() -> dict[str, dict[str, dict[str, float]]]:
    """Give the committed figures of every database."""
    found: dict[str, dict[str, dict[str, float]]] = json.loads(FILE.read_text())
    return found


def save(found: Mapping[str, Any]) -> None:
    """Write figures of databases; those of other databases stay."""
    kept = load() if FILE.exists() else {}
    FILE.write_text(json.dumps({**kept, **found}, indent=2, sort_keys=True) + "\n")


def name_of(server_version: int) -> str:
    """Name a PostgreSQL as the file does: releases differ a little in what they log and read."""
    return f"postgresql {server_version // 10000}"


def pieces_for(database: str, known: Mapping[str, Pieces]) -> Pieces:
    """Give the figures of a database; those of the nearest release where this one was never measured."""
    if database in known:
        return known[database]
    kind, _, release = database.partition(" ")
    releases = [int(one.partition(" ")[2]) for one in known if one.startswith(f"{kind} ")]
    assert releases, f"no figures of {kind} are committed; make them with: {ACCEPT}"
    nearest = min(releases, key=lambda one: (abs(one - int(release)), one))
    return known[f"{kind} {nearest}"]


def complaints(piece: str, measured: Figures, allowed: Figures) -> list[str]:
    """Say which figures are too high; nothing where all are well."""
    found = []
    if measured.keys() != allowed.keys():
        found.append(f"{piece}: {sorted(measured)} were measured and {sorted(allowed)} are in the baseline")
    for name in sorted(measured.keys() & allowed.keys()):
        most = allowed[name] * (1 + ABOVE)
        if measured[name] > most:
            rise = f"{measured[name] / allowed[name] - 1:+.0%}" if allowed[name] else "from nothing"
            found.append(f"{piece}: {name} rose from {allowed[name]:g} to {measured[name]:g} each ({rise})")
    return found


def verdict(found: list[str], detail: str) -> str:
    """Put complaints into words that say what to do."""
    return (
        "work became more expensive than the committed baseline allows "
        f"({ABOVE:.0%} above {FILE.name}):\n  " + "\n  ".join(found) + f"\n{detail}\n"
        f"Make it cheaper; or, where the price is meant, accept it with `{ACCEPT}` and say why in the commit."
    )
