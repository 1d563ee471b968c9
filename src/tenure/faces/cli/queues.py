"""`tenure queues`: how queues are served, and what is in them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from tenure.errors import Invalid
from tenure.faces.cli.options import AsJson, StoreUrl, serving
from tenure.faces.cli.queue_changes import Name, state_fields
from tenure.faces.cli.show import counted, table, write_json
from tenure.rules.fairness import QueueSetting
from tenure.rules.queues import Contents, QueueState

app = typer.Typer(
    help="See queues, say how they are served and whose they are.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("list")
def list_(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List the queues that have jobs or that somebody has said something about, with what is in them."""
    with serving(store) as service:
        weights = {one.name: one.weights for one in service.list_queues()}
        found = service.show_queues()
    if as_json:
        write_json([{**state_fields(one), "weights": weights.get(one.name, {})} for one in found])
    elif found:
        table(
            counted(found, "queue"),
            ("queue", "served", "weights", "owner", "state", *(f.name for f in dataclasses.fields(Contents))),
            [_row(one, weights.get(one.name, {})) for one in found],
        )
    else:
        sys.stdout.write("every queue is plain and empty\n")


@app.command("set")
def set_(
    name: Name,
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
    with serving(store) as service:
        setting = service.set_queue(name, fair=fair, weights=_weights(weight or []) or None)
    if as_json:
        write_json(_fields(setting))
    else:
        sys.stdout.write(f"queue {setting.name} is {_served(setting)} from now on\n")


def _row(state: QueueState, weights: Mapping[str, int]) -> tuple[Any, ...]:
    shown = ", ".join(f"{name}={n}" for name, n in weights.items())
    stands = [word for word, at in (("paused", state.paused_at), ("draining", state.draining_at)) if at is not None]
    counts = (count or None for count in dataclasses.astuple(state.contents))
    return (state.name, _served(state), shown, state.owner, ", ".join(stands), *counts)


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


def _served(setting: QueueSetting | QueueState) -> str:
    return "fair" if setting.fair else "plain"


def _fields(setting: QueueSetting) -> dict[str, Any]:
    return {"name": setting.name, "fair": setting.fair, "weights": setting.weights}
