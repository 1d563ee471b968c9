"""`tenure queues`: how queues are served."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from tenure.errors import Invalid
from tenure.faces.cli.options import AsJson, StoreUrl, opened
from tenure.faces.cli.show import table, write_json
from tenure.rules.fairness import QueueSetting
from tenure.service import DurableJobService

app = typer.Typer(help="See and say how queues are served.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List the queues that somebody has said something about; all others are plain."""
    with opened(store) as made:
        found = DurableJobService(made).list_queues()
    if as_json:
        write_json([_fields(one) for one in found])
    elif found:
        table(
            "1 queue" if len(found) == 1 else f"{len(found)} queues",
            ("queue", "served", "weights"),
            [(one.name, _served(one), ", ".join(f"{name}={n}" for name, n in one.weights.items())) for one in found],
        )
    else:
        sys.stdout.write("every queue is plain\n")


@app.command("set")
def set_(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The queue; it need not have any jobs.")],
    fair: Annotated[
        bool | None, typer.Option("--fair/--plain", help="Tenants take turns, or the most urgent job comes first.")
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option(metavar="TENANT=N", help="Jobs in one turn of this tenant, 1 to 100; may be given again."),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Say how a queue is served, for jobs that come due from now on; what was said before is forgotten."""
    if fair is None:
        raise typer.BadParameter("say --fair, so that tenants take turns, or --plain")
    with opened(store) as made:
        setting = DurableJobService(made).set_queue(name, fair=fair, weights=_weights(weight or []) or None)
    if as_json:
        write_json(_fields(setting))
    else:
        sys.stdout.write(f"queue {setting.name} is {_served(setting)} from now on\n")


def _weights(given: list[str]) -> dict[str, int]:
    weights: dict[str, int] = {}
    for one in given:
        tenant, sign, number = one.rpartition("=")
        if not sign or not number.isascii() or not number.isdecimal() or tenant in weights:
            raise Invalid(
                f"--weight takes a tenant and a whole number, each tenant once: --weight acme=3, not {one!r}",
                code="BAD_ARGUMENT",
            )
        weights[tenant] = int(number)
    return weights


def _served(setting: QueueSetting) -> str:
    return "fair" if setting.fair else "plain"


def _fields(setting: QueueSetting) -> dict[str, Any]:
    return {"name": setting.name, "fair": setting.fair, "weights": setting.weights}
