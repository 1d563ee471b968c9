"""
`tenure lab`: break a rule and see, step by step, why it is there; and try faults on a real database.

`tenure lab VARIANT` means `tenure lab explore VARIANT`: what is no command of the group is a variant.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.progress import Progress
from typer.core import TyperGroup

from tenure import lab as laboratory
from tenure.faces.cli import experiments
from tenure.faces.cli.options import AsJson
from tenure.faces.cli.show import console, table, write_json

UNBROKEN = "none"


class _Lab(TyperGroup):
    """A group whose first word may be left out."""

    default = "explore"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    help="See why each rule is there. `tenure lab VARIANT` is short for `tenure lab explore VARIANT`.",
    cls=_Lab,
    rich_markup_mode=None,
)


@app.command(_Lab.default)
def explore(
    variant: Annotated[
        str | None,
        typer.Argument(help="A variant to run, or `none` for the rules as they are; left out, all are listed."),
    ] = None,
    configuration: Annotated[
        str | None, typer.Option(help="Which world to explore; see docs/explanation/model.md.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Stop when this many states are known.", min=1)] = None,
    as_json: AsJson = False,
) -> int:
    """List the broken variants of the rules, or explore one and print its trace; exit 1 when a promise broke."""
    if variant is None:
        known = laboratory.variants()
        if as_json:
            write_json([{"name": one.name, "promise": one.promise, "breaks": one.breaks} for one in known])
        else:
            table(f"{len(known)} variants", ("name", "breaks", "what is wrong with it"), _rows(known))
        return 0
    broken = None if variant == UNBROKEN else variant
    with Progress(console=console(stderr=True), transient=True, disable=as_json or not sys.stderr.isatty()) as progress:
        bar = progress.add_task("exploring", total=None)
        report = laboratory.explore(
            configuration,
            broken,
            limit=limit,
            progress=lambda done, seen: progress.update(bar, completed=done, total=seen),
        )
    if as_json:
        write_json(report.as_json())
        return 1 if report.violation else 0
    what = f"variant {report.variant}" if report.variant else "the rules as they are"
    states = f"{report.states:,} states, {report.transitions:,} steps between them, {report.seconds:.1f} s"
    sys.stdout.write(f"{what}, world {report.configuration}: {states}\n")
    if report.violation is None:
        sys.stdout.write(f"every promise held: {', '.join(report.invariants)}\n")
        return 0
    rows = [(number, step.actor, step.action, step.text) for number, step in enumerate(report.violation.steps, 1)]
    table("the shortest way there", ("", "who", "does", "and then"), rows)
    sys.stdout.write(f"BROKEN  {report.violation.invariant}: {report.violation.said}\n")
    return 1


app.command("experiments")(experiments.experiments)
app.command("experiment")(experiments.experiment)


def _rows(known: list[laboratory.Variant]) -> list[tuple[str, str, str]]:
    return [(one.name, one.promise, one.breaks) for one in known]
