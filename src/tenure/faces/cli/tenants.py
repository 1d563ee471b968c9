"""`tenure tenants`: who may act, and what is held; `tenure recover`: bring a frozen database back."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import typer

from tenure.errors import Invalid, Refused
from tenure.faces.cli.options import AsJson, LedgerPlace, StoreUrl, opened, who
from tenure.faces.cli.show import table, write_json
from tenure.flows.authority import recover_database
from tenure.flows.drive import run_flow
from tenure.loops.authority import begun
from tenure.procedures.approvals import every_revocation
from tenure.procedures.authority import read_facts
from tenure.procedures.tenants import list_tenants
from tenure.rules.authority import Tenant
from tenure.rules.ledger import FROZEN, Book, Facts, judge
from tenure.service import DurableJobService
from tenure.stores.contract import Store

app = typer.Typer(help="See and say who may act.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's name.")]
Actor = Annotated[str, typer.Option(envvar="TENURE_ACTOR", help="Who asks; kept with the act.")]
Reason = Annotated[str, typer.Option(help="Why; kept with the act.")]


@app.command("list")
def list_(store: StoreUrl = None, ledger: LedgerPlace = None, as_json: AsJson = False) -> None:
    """List every tenant that ever had a job, with its epoch."""
    with opened(store, ledger) as made:
        found = DurableJobService(made).list_tenants()
    if as_json:
        write_json([{"name": one.name, "epoch": one.epoch, "frozen": one.frozen} for one in found])
        return
    table(
        "1 tenant" if len(found) == 1 else f"{len(found)} tenants",
        ("tenant", "epoch", "frozen"),
        [(one.name, one.epoch, "frozen" if one.frozen else "") for one in found],
    )


@app.command()
def show(tenant: Name, store: StoreUrl = None, ledger: LedgerPlace = None, as_json: AsJson = False) -> None:
    """Show one tenant: its held work by epoch, and what was done to it."""
    with opened(store, ledger) as made:
        found = DurableJobService(made).show_tenant(tenant)
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


@app.command()
def rotate(
    tenant: Name,
    reason: Reason,
    actor: Actor = "",
    store: StoreUrl = None,
    ledger: LedgerPlace = None,
    as_json: AsJson = False,
) -> None:
    """Raise a tenant's epoch: older work is held until readmitted, and whoever holds a lease is fenced."""
    with opened(store, ledger) as made:
        found = DurableJobService(made).rotate_tenant(tenant, reason=reason, actor=actor or who())
    _told(found, as_json=as_json)


@app.command()
def freeze(
    tenant: Name,
    reason: Reason,
    actor: Actor = "",
    store: StoreUrl = None,
    ledger: LedgerPlace = None,
    as_json: AsJson = False,
) -> None:
    """Freeze a tenant: nothing of it is claimed, published or begun."""
    with opened(store, ledger) as made:
        found = DurableJobService(made).freeze_tenant(tenant, reason=reason, actor=actor or who())
    _told(found, as_json=as_json)


@app.command()
def thaw(
    tenant: Name,
    reason: Reason,
    actor: Actor = "",
    store: StoreUrl = None,
    ledger: LedgerPlace = None,
    as_json: AsJson = False,
) -> None:
    """End a tenant's freeze; what an older epoch holds stays held."""
    with opened(store, ledger) as made:
        found = DurableJobService(made).thaw_tenant(tenant, reason=reason, actor=actor or who())
    _told(found, as_json=as_json)


@app.command()
def readmit(
    tenant: Name,
    reason: Reason,
    job: Annotated[list[UUID] | None, typer.Option(help="This job; may be given again.")] = None,
    epoch: Annotated[int | None, typer.Option(help="All jobs and messages held under this epoch.", min=1)] = None,
    every: Annotated[bool, typer.Option("--all", help="All jobs and messages held under any older epoch.")] = False,
    actor: Actor = "",
    store: StoreUrl = None,
    ledger: LedgerPlace = None,
    as_json: AsJson = False,
) -> None:
    """Let held jobs run and held messages leave again, under the tenant's current epoch."""
    if sum((bool(job), epoch is not None, every)) != 1:
        raise typer.BadParameter("say which work: --job ID, --epoch N or --all")
    jobs: list[UUID] = []
    messages: list[UUID] = []
    with opened(store, ledger) as made:
        service = DurableJobService(made)
        by = actor or who()
        if job:
            jobs = [one.id for one in service.readmit_jobs(tenant, reason=reason, job_ids=job, actor=by)]
        else:
            while found := service.readmit_jobs(tenant, reason=reason, epoch=epoch, actor=by):
                jobs += [one.id for one in found]
            while left := service.readmit_messages(tenant, reason=reason, epoch=epoch, actor=by):
                messages += left
    if as_json:
        write_json({"readmitted": len(jobs), "ids": jobs, "messages": len(messages), "message_ids": messages})
    else:
        sys.stdout.write(f"readmitted: {_many(jobs, 'job')}, {_many(messages, 'message')}\n")


@app.command()
def recover(
    reason: Reason = "",
    actor: Actor = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this, only say what would be done.")] = False,
    store: StoreUrl = None,
    ledger: LedgerPlace = None,
    as_json: AsJson = False,
) -> int:
    """Bring a frozen database back: replay restrictions, raise every epoch, mark suspects, end the freeze."""
    with opened(store, ledger) as made:
        watched = made.ledger
        if watched is None:
            raise Invalid(
                "no authority ledger is configured, so there is nothing to recover from: name it with "
                "--authority-ledger or TENURE_AUTHORITY_LEDGER",
                code="LEDGER_REQUIRED",
            )
        book = watched.read()
        facts = made.run(read_facts(book, made.file_identity()))
        plan = _plan(made, book, facts)
        plan["done"] = False
        if facts.frozen is not None and yes:
            if not reason:
                raise Invalid("say why: --reason 'restored the backup of monday'", code="BAD_ARGUMENT")
            if facts.store is not None and book is not None and facts.store != book.store:
                raise Refused(
                    f"the ledger at {watched.where} belongs to another store; name the right one, or move this one "
                    f"away, and the database gets a new one",
                    code="LEDGER_FOREIGN",
                )
            done = run_flow(
                recover_database(watched, made.file_identity(), actor or who(), reason, _new_book(made)),
                made.run,
            )
            plan |= {"done": True, "suspects": done.suspects, "epochs": done.epochs, "incarnation": done.incarnation}
    if as_json:
        write_json(plan)
    else:
        sys.stdout.write(_told_plan(plan))
    return 0 if plan["done"] or not plan["frozen"] else 1


def _many(found: list[UUID], what: str) -> str:
    return f"1 {what}" if len(found) == 1 else f"{len(found)} {what}s"


def _new_book(made: Store) -> Any:
    tenants, revoked = made.run(list_tenants()), made.run(every_revocation())
    # Another store from now on: the ledger that was lost may turn up again, and knows a life that has ended.
    return lambda identity: begun(identity, tenants, revoked)


def _plan(made: Store, book: Book | None, facts: Facts) -> dict[str, Any]:
    tenants = made.run(list_tenants())
    restrictions = {} if book is None else book.restrictions
    return {
        "frozen": facts.frozen is not None,
        "cause": None if facts.frozen is None else facts.frozen.cause.value,
        "text": None if facts.frozen is None else facts.frozen.text,
        "behind": judge(book, facts) is not None,
        "ledger": made.ledger.where,
        "copy_until": _instant(0 if facts.frozen is None else facts.frozen.copy_until),
        "ledger_until": _instant(0 if book is None else book.ticked_at),
        "epochs": {one.name: max(one.epoch, 1 if book is None else book.reach(one.name)) + 1 for one in tenants},
        "freezes": sorted(tenant for tenant, kind, _ in restrictions if kind == FROZEN),
        "suspects": None,
    }


def _instant(us: int) -> datetime | None:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us) if us else None


def _told_plan(plan: dict[str, Any]) -> str:
    if not plan["frozen"]:
        return "the database is not frozen; there is nothing to recover\n"
    lines = [f"frozen: {plan['cause']}: {plan['text']}", f"ledger: {plan['ledger']}"]
    copy, ledger = plan["copy_until"], plan["ledger_until"]
    if copy is not None and ledger is not None and copy < ledger:
        lines.append(
            f"jobs created between {copy:%Y-%m-%d %H:%M:%S} and {ledger:%Y-%m-%d %H:%M:%S} UTC, "
            f"{ledger - copy} in all, are gone with their keys; what they sent is not known here"
        )
    elif ledger is None:
        lines.append("the ledger is gone, so nobody can say which jobs are missing")
    for tenant, epoch in plan["epochs"].items():
        lines.append(f"tenant {tenant}: epoch {epoch}{', frozen' if tenant in plan['freezes'] else ''}")
    if plan["done"]:
        lines += [
            f"done; {plan['suspects']} jobs are suspect",
            "next: `tenure tenants readmit TENANT --all`, then workers go on by themselves",
        ]
    else:
        lines.append("nothing was changed; again with --yes --reason TEXT to do this")
    return "\n".join(lines) + "\n"


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
