"""What an experiment is, and what it reports: steps, promises, controls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenure.faces.experiments.stage import Stage


@dataclass(frozen=True, slots=True)
class Step:
    """
    One thing that happened.

    Attributes:
        found: How things stood after it.
    """

    actor: str
    action: str
    found: str


@dataclass(frozen=True, slots=True)
class Check:
    """
    One look at what is stored.

    Attributes:
        claim: What has to be so.
        found: What is so, counted in rows and in the provider's ledger.
    """

    claim: str
    held: bool
    found: str


@dataclass(slots=True)
class Notes:
    """What one run writes down; it goes on after a promise broke, so that all of them are told."""

    steps: list[Step] = field(default_factory=list)
    promises: list[Check] = field(default_factory=list)
    controls: list[Check] = field(default_factory=list)

    def step(self, actor: str, action: str, found: str = "") -> None:
        """Tell what happened."""
        self.steps.append(Step(actor, action, found))

    def promise(self, claim: str, held: bool, found: str) -> None:
        """Look whether a promise held."""
        self.promises.append(Check(claim, held, found))

    def control(self, claim: str, held: bool, found: str) -> None:
        """Look whether what is allowed did happen."""
        self.controls.append(Check(claim, held, found))


@dataclass(frozen=True, slots=True)
class Experiment:
    """
    A fault at the edge of a commit or of a call.

    Attributes:
        fault: What goes wrong, in one line.
        breaks: Its broken variants by name, and what is wrong with each.
        play: Runs it, whole or as one of the variants.
    """

    name: str
    fault: str
    breaks: Mapping[str, str]
    play: Callable[[Stage, Notes, str | None], None] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Report:
    """
    What one run of an experiment showed.

    Attributes:
        variant: Name of the broken variant; None for the package as it is.
    """

    experiment: str
    variant: str | None
    store: str
    steps: tuple[Step, ...]
    promises: tuple[Check, ...]
    controls: tuple[Check, ...]

    @property
    def broken(self) -> list[str]:
        """Every promise that did not hold."""
        return [f"{one.claim}: {one.found}" for one in self.promises if not one.held]

    @property
    def failed_controls(self) -> list[str]:
        """Everything allowed that did not happen."""
        return [f"{one.claim}: {one.found}" for one in self.controls if not one.held]

    @property
    def held(self) -> bool:
        """Whether every promise held and every control passed; one without either has shown nothing."""
        shown = bool(self.promises) and bool(self.controls)
        return shown and not self.broken and not self.failed_controls

    def as_json(self) -> dict[str, Any]:
        """Give it under stable names; two runs give the same."""
        return {
            "experiment": self.experiment,
            "variant": self.variant,
            "store": self.store,
            "held": self.held,
            "steps": [{"actor": one.actor, "action": one.action, "found": one.found} for one in self.steps],
            "promises": [_check(one) for one in self.promises],
            "controls": [_check(one) for one in self.controls],
        }


def _check(one: Check) -> dict[str, Any]:
    return {"claim": one.claim, "held": one.held, "found": one.found}
