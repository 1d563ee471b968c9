"""What an exploration found out, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    """
    One step of a trace.

    Attributes:
        actor: worker A, worker B, clock, or world.
        action: What it does.
        text: How things stand after it.
    """

    actor: str
    action: str
    text: str


@dataclass(frozen=True, slots=True)
class Trace:
    """
    The shortest way from the first state to a broken promise.

    Attributes:
        invariant: Its name.
        said: What is wrong, in one sentence.
    """

    invariant: str
    promise: str
    said: str
    steps: list[Step]

    def __str__(self) -> str:
        """Give a table of the steps, and what is wrong after the last one."""
        rows = [(str(number), step.actor, step.action, step.text) for number, step in enumerate(self.steps, 1)]
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
        lines = [
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, f"{self.invariant}: {self.said}"])


@dataclass(frozen=True, slots=True)
class Report:
    """
    The result of one exploration.

    Attributes:
        variant: Name of the broken variant, None for the package as it is.
        complete: Every reachable state was visited; a violation or a limit ends an exploration early.
        states: Distinct states in normal form.
        transitions: Steps between them.
        depth: Length of the longest of all shortest paths.
        rule_calls: How often a rule was asked; its decisions are kept and used again.
        invariants: Names of the promises that were checked.
        counters: In how many states something could happen; a zero for something that is expected proves nothing.
        expected: The counters that must not be zero.
    """

    configuration: str
    variant: str | None
    complete: bool
    states: int
    transitions: int
    depth: int
    rule_calls: int
    invariants: tuple[str, ...]
    counters: Mapping[str, int]
    expected: tuple[str, ...]
    violation: Trace | None
    seconds: float

    @property
    def missing(self) -> tuple[str, ...]:
        """Expected counters that stayed zero."""
        return tuple(name for name in self.expected if not self.counters.get(name))

    def as_json(self) -> dict[str, Any]:
        """Give a JSON object with stable names."""
        return {
            **asdict(self),
            "counters": dict(self.counters),
            "expected": list(self.expected),
            "invariants": list(self.invariants),
            "missing": list(self.missing),
        }
