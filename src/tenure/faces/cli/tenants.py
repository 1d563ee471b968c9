"""`tenure tenants`: who may act, and what is held."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any
from uuid import UUID

import typer

from tenure.faces.cli.options import Actor, AsJson, LedgerPlace, Reason, StoreUrl, serving
from tenure.faces.cli.show import counted, table, write_json
from tenure.rules.authority import Tenant
from tenure.service import DurableJobService

app = typer.Typer(help="See and say who may act.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's name.")]


@app.command("list")
def list_(store: StoreUrl = None, ledger: LedgerPlace = None, as_json: AsJson = False) -> None:
    """List every tenant that ever had a job, with its epoch."""
    with serving(store, ledger) as service:
        found = service.list_tenants()
    if as_json:
        write_json([{"name": one.name, "epoch": one.epoch, "frozen": one.frozen} for one in found])
        return
    table(
        counted(found, "tenant"),
        ("tenant", "epoch", "frozen"),
        [(one.name, one.epoch, "frozen" if one.frozen else "") for one in found],
    )


@app.command()
def show(tenant: Name, store: StoreUrl = None, ledger: LedgerPlace = None, as_json: AsJson = False) -> None:
    """Show one tenant: its held work by epoch, and what was done to it."""
    with serving(store, ledger) as service:
        found = service.show_tenant(tenant)
    if as_json:
        write_json(_fields(found))
        return
    sys.stdout.write(_line(found) + "\n")
    if found.held or found.held_messages:
        table(
            "held under older epochs",
            ("epoch", "queued jobs", "messages"),
            [(one["epoch"], one["jobs"], one["messages"]) for one in _held(found)],
        )
    if found.acts:
        table(
            "acts",
            ("at", "what", "epoch", "actor", "reason"),
            [(act.at, act.what, act.epoch, act.actor, act.reason) for act in found.acts],
        )


def _acting(name: str, act: Callable[..., Tenant], meaning: str) -> None:
    """Add a command that does one thing to a tenant."""

    def command(
        tenant: Name,
        reason: Reason,
        actor: Actor = None,
        store: StoreUrl = None,
        ledger: LedgerPlace = None,
        as_json: AsJson = False,
    ) -> None:
        with serving(store, ledger, actor=actor) as service:
            found = act(service, tenant, reason=reason)
        _told(found, as_json=as_json)

    app.command(name, help=meaning)(command)


_acting(
    "rotate",
    DurableJobService.rotate_tenant,
    "Raise a tenant's epoch: older work is held until readmitted, and whoever holds a lease is fenced.",
)
_acting("freeze", DurableJobService.freeze_tenant, "Freeze a tenant: nothing of it is claimed, published or begun.")
_acting("thaw", DurableJobService.thaw_tenant, "End a tenant's freeze; what an older epoch holds stays held.")


@app.command()
def readmit(
    tenant: Name,
    reason: Reason,
    job: Annotated[list[UUID] | None, typer.Option(help="This job; may be given again.")] = None,
    epoch: Annotated[int | None, typer.Option(help="All jobs and messages held under this epoch.", min=1)] = None,
    every: Annotated[bool, typer.Option("--all", help="All jobs and messages held under any older epoch.")] = False,
    actor: Actor = None,
    store: StoreUrl = None,
    ledger: LedgerPlace = None,
    as_json: AsJson = False,
) -> None:
    """Let held jobs run and held messages leave again, under the tenant's current epoch."""
    if sum((bool(job), epoch is not None, every)) != 1:
        raise typer.BadParameter("say which work: --job ID, --epoch N or --all")
    jobs: list[UUID] = []
    messages: list[UUID] = []
    with serving(store, ledger, actor=actor) as service:
        if job:
            jobs = [one.id for one in service.readmit_jobs(tenant, reason=reason, job_ids=job)]
        else:
            empty = 0
            while empty < 2:
                found = service.readmit_jobs(tenant, reason=reason, epoch=epoch)
                jobs += [one.id for one in found]
                empty = 0 if found else empty + 1
            while left := service.readmit_messages(tenant, reason=reason, epoch=epoch):
                messages += left
    if as_json:
        write_json({"readmitted": len(jobs), "ids": jobs, "messages": len(messages), "message_ids": messages})
    else:
        sys.stdout.write(f"readmitted: {counted(jobs, 'job')}, {counted(messages, 'message')}\n")


def _told(tenant: Tenant, *, as_json: bool) -> None:
    if as_json:
        write_json({"name": tenant.name, "epoch": tenant.epoch, "frozen": tenant.frozen})
    else:
        sys.stdout.write(_line(tenant) + "\n")


def _line(tenant: Tenant) -> str:
    return f"tenant {tenant.name} has epoch {tenant.epoch}{' and is frozen' if tenant.frozen else ''}"


def _held(tenant: Tenant) -> list[dict[str, int]]:
    return [
        {"epoch": epoch, "jobs": tenant.held.get(epoch, 0), "messages": tenant.held_messages.get(epoch, 0)}
        for epoch in sorted({*tenant.held, *tenant.held_messages})
    ]


def _fields(tenant: Tenant) -> dict[str, Any]:
    return {
        "name": tenant.name,
        "epoch": tenant.epoch,
        "frozen": tenant.frozen,
        "held": _held(tenant),
        "acts": [
            {"at": act.at, "what": act.what, "epoch": act.epoch, "actor": act.actor, "reason": act.reason}
            for act in tenant.acts
        ],
    }
