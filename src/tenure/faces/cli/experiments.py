"""`tenure lab experiments` and `tenure lab experiment NAME`: faults at the edges of commits and calls."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress

from tenure.faces.cli.demo import ending_on_signals
from tenure.faces.cli.options import AsJson
from tenure.faces.cli.show import console, table, write_json

if TYPE_CHECKING:
    from tenure.faces.experiments.shape import Experiment, Report

# Not TENURE_STORE: who has set that means the store of an app.
EmptyStore = Annotated[
    str | None,
    typer.Option("--store", help="Run on this empty database instead of a new file; it is empty again afterwards."),
]
Broken = Annotated[
    bool, typer.Option("--break", help="Run the broken variants; each must be noticed, and the exit status is 1.")
]


def experiments(store: EmptyStore = None, broken: Broken = False, as_json: AsJson = False) -> int:
    """Run every experiment; exit 0 when every promise held and every control passed."""
    # Here, because the other commands need none of it.
    from tenure.faces.experiments.run import EXPERIMENTS  # noqa: PLC0415

    runs = [(one, variant) for one in EXPERIMENTS for variant in (one.breaks if broken else (None,))]
    reports = _run(runs, store, as_json=as_json)
    if as_json:
        write_json({"held": _held(reports), "experiments": [one.as_json() for one in reports]})
    elif broken:
        _tell_variants(runs, reports)
    else:
        _tell_all(runs, reports)
    return 0 if _held(reports) or _unnoticed(reports) else 1


def experiment(
    name: Annotated[str, typer.Argument(help="One of those that `tenure lab experiments` runs.")],
    store: EmptyStore = None,
    broken: Broken = False,
    variant: Annotated[
        str | None, typer.Option(help="Only this broken variant; without it --break runs all that there are.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Run one experiment and show its steps; exit 0 when every promise held and every control passed."""
    from tenure.faces.experiments.run import find_experiment  # noqa: PLC0415 - as above

    found = find_experiment(name)
    names: Sequence[str | None] = [variant] if variant is not None else [*found.breaks] if broken else [None]
    runs = [(found, one) for one in names]
    reports = _run(runs, store, as_json=as_json)
    whole = names == [None]
    if as_json:
        said = {"experiment": found.name, "held": _held(reports), "variants": [one.as_json() for one in reports]}
        write_json(reports[0].as_json() if whole else said)
    elif whole:
        _tell_one(found, reports[0])
    else:
        _tell_variants(runs, reports)
    return 0 if _held(reports) or (not whole and _unnoticed(reports)) else 1


def _run(runs: Sequence[tuple[Experiment, str | None]], store: str | None, *, as_json: bool) -> list[Report]:
    from tenure.faces.experiments.run import run_experiment  # noqa: PLC0415 - as above

    quiet = as_json or not sys.stderr.isatty()
    reports = []
    with (
        ending_on_signals(),
        Progress(console=console(stderr=True), transient=True, disable=quiet) as progress,
    ):
        bar = progress.add_task("experiments", total=len(runs))
        for one, variant in runs:
            progress.update(bar, description=one.name if variant is None else f"{one.name}, {variant}")
            reports.append(run_experiment(one, variant, store=store))
            progress.advance(bar)
    return reports


def _held(reports: Sequence[Report]) -> bool:
    return all(one.held for one in reports)


def _unnoticed(reports: Sequence[Report]) -> list[Report]:
    """Give the broken variants in which no promise was seen to break: the check itself is worth nothing."""
    return [one for one in reports if one.variant is not None and not one.broken]


def _tell_all(runs: Sequence[tuple[Experiment, str | None]], reports: Sequence[Report]) -> None:
    rows: list[tuple[Any, ...]] = [
        (
            report.experiment,
            one.fault,
            _count([check.held for check in report.promises]),
            _count([check.held for check in report.controls]),
        )
        for (one, _), report in zip(runs, reports, strict=True)
    ]
    table(
        f"{len(reports)} experiments on {reports[0].store}",
        ("experiment", "what goes wrong", "promises held", "controls passed"),
        rows,
    )
    for report in reports:
        _tell_failures(report)
    if _held(reports):
        sys.stdout.write("every promise held and every control passed\n")


def _count(held: Sequence[bool]) -> str:
    return f"{sum(held)} of {len(held)}"


def _tell_one(one: Experiment, report: Report) -> None:
    rows = [(number, step.actor, step.action, step.found) for number, step in enumerate(report.steps, 1)]
    table(f"{one.name} on {report.store}: {one.fault}", ("", "who", "does", "and then"), rows)
    for check in report.promises:
        if check.held:
            sys.stdout.write(f"held    {check.claim}: {check.found}\n")
    for check in report.controls:
        if check.held:
            sys.stdout.write(f"passed  {check.claim}: {check.found}\n")
    _tell_failures(report)
    if report.held:
        sys.stdout.write("every promise held and every control passed\n")


def _tell_variants(runs: Sequence[tuple[Experiment, str | None]], reports: Sequence[Report]) -> None:
    for (one, variant), report in zip(runs, reports, strict=True):
        assert variant is not None, "these are the broken ones"
        sys.stdout.write(f"{one.name}, {variant}: {one.breaks[variant]}\n")
        _tell_failures(report)
        if not report.broken:
            sys.stdout.write("NOT NOTICED\n")


def _tell_failures(report: Report) -> None:
    for reason in report.broken:
        sys.stdout.write(f"BROKEN  {reason}\n")
    for reason in report.failed_controls:
        sys.stdout.write(f"FAILED  {reason}\n")
