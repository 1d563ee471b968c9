"""Results: JSON lines, one for each measurement, the first one says where; and what is computed from them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Spread:
    """
    Several rounds of one measurement.

    Attributes:
        values: In the order of the rounds.
    """

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The smallest."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The largest."""
        return max(self.values)


def ratio(ours: Spread | None, theirs: Spread | None, *, less_is_better: bool = False) -> float | None:
    """Give how many times better our median is, below 1 is worse; None where a side has no number above zero."""
    if ours is None or theirs is None or min(ours.median, theirs.median) <= 0:
        return None
    return theirs.median / ours.median if less_is_better else ours.median / theirs.median


def spread(lines: Iterable[Line], key: str) -> Spread | None:
    """Collect one number of several lines; None where no line has it."""
    values = tuple(float(line[key]) for line in lines if line.get(key) is not None)
    return Spread(values) if values else None


def of_row(lines: Sequence[Line], row: str, side: str) -> list[Line]:
    """Pick the measurements of one side of one row."""
    return [line for line in lines if line.get("row") == row and line.get("side") == side]


class Book:
    """A file that results are appended to as they come, so that an interrupted run keeps what it had."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")

    def add(self, line: Line) -> None:
        """Append one line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def read(path: Path) -> tuple[Line, list[Line]]:
    """Give where it was measured, and the measurements."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return lines[0], lines[1:]
