"""`tenure suspects`: the work of a restored copy, what needs evidence, and asking for it."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any, TypeAlias
from uuid import UUID

import typer

from tenure.app import Tenure
from tenure.connectors.provider import Provider
from tenure.errors import Invalid
from tenure.faces.cli.options import Actor, AppName, AsJson, OnlyTenant, StoreUrl, loaded, serving
from tenure.faces.cli.show import table, write_json
from tenure.flows.recover import Answered
from tenure.rules.recover import NeedsEvidence
from tenure.service import AsyncDurableJobService

app = typer.Typer(
    help="See what a recovery marked as suspect, ask providers about it, clear it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

# Providers by kind and effect.
Operations: TypeAlias = dict[str, dict[str, Provider]]
Effects = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KIND:NAME=PROVIDER",
        help="An effect that jobs of a kind have, where the database knows none; may be given again.",
    ),
]
PAGE = 20


@app.command("list")
def list_(
    tenant: OnlyTenant = None,
    limit: Annotated[int, typer.Option(help="At most so many jobs, up to 1000.")] = 100,
    after: Annotated[UUID | None, typer.Option(metavar="ID", help="The last job of the page before.")] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """List effects that need evidence: open ones, and those that may be lost with a backup."""
    with serving(store, tenant=tenant) as service:
        counts = service.count_suspects()
        needs = service.list_effects_needing_evidence(limit=limit, after=after)
    if as_json:
        write_json({"suspect": counts, "needs_evidence": [need_fields(one) for one in needs]})
        return
    for whose, by_status in counts.items():
        said = ", ".join(f"{number} {status}" for status, number in by_status.items())
        sys.stdout.write(f"tenant {whose}: {said}\n")
    if needs:
        table(
            "needs evidence",
            ("id", "tenant", "kind", "status", "operation key", "provider", "why"),
            [(n.job_id, n.tenant, n.kind, n.status, n.operation_key, n.provider, n.why) for n in needs],
        )
    else:
        sys.stdout.write("nothing needs evidence\n")


@app.command("reconcile")
def reconcile(
    app: AppName,
    effect: Effects = None,
    tenant: OnlyTenant = None,
    after: Annotated[UUID | None, typer.Option(metavar="ID", help="Go on behind this job.")] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> int:
    """Ask the app's providers about every suspect job and write down what they know; it never sends."""
    with loaded(app, store) as found:
        operations = operations_of(found, effect or [])
        answers = asyncio.run(_reconcile(found, operations, tenant, after, quiet=as_json))
    if as_json:
        write_json([answer_fields(one) for one in answers])
    elif answers:
        rows = [(one.job_id, one.action, one.status, one.operation_key, one.reason) for one in answers]
        table("suspects", ("id", "action", "status", "operation key", "reason"), rows)
    else:
        sys.stdout.write("nothing is suspect\n")
    return 0


@app.command("clear")
def clear(
    job_id: Annotated[UUID, typer.Argument(metavar="ID", help="The job.")],
    reason: Annotated[str, typer.Option(help="How you know that nothing of it is lost; kept in its trail.")],
    actor: Actor = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Take your word that nothing of a job is lost: its effects are sent without asking first."""
    with serving(store, actor=actor) as service:
        job = service.clear_suspicion(job_id, reason=reason)
    if as_json:
        write_json({"id": job.id, "status": job.status, "suspect": job.suspect})
    else:
        sys.stdout.write(f"job {job.id} is not suspect any more\n")


async def _reconcile(
    app: Tenure, operations: Operations, tenant: str | None, after: UUID | None, *, quiet: bool
) -> list[Answered]:
    try:
        return await ask_about_all(app, operations, tenant, after, quiet=quiet)
    finally:
        await app.aclose()


async def ask_about_all(
    app: Tenure, operations: Operations, tenant: str | None, after: UUID | None, *, quiet: bool
) -> list[Answered]:
    """Ask an app's providers about suspect jobs, page by page, and say on stderr how far it came."""
    answers: list[Answered] = []
    service = AsyncDurableJobService(await app.astore(), tenant=tenant)
    while True:
        page = await service.reconcile_suspects(
            providers=list(app.providers.by_name.values()), operations=operations, limit=PAGE, after=after
        )
        answers += page.answers
        if page.after is None:
            return answers
        after = page.after
        if not quiet:
            # Where it stops, `tenure suspects reconcile` takes it up from here.
            sys.stderr.write(f"{len(answers)} answers; go on behind {after}\n")


def operations_of(app: Tenure, given: list[str]) -> Operations:
    """Read what --effect says."""
    operations: Operations = {}
    for one in given:
        where, sign, provider = one.rpartition("=")
        kind, colon, name = where.rpartition(":")
        if not sign or not colon or provider not in app.providers.by_name:
            registered = ", ".join(sorted(app.providers.by_name)) or "none"
            raise Invalid(
                f"--effect takes a kind, an effect's name and one of the app's providers ({registered}): "
                f"--effect send_quote:send=mailer, not {one!r}",
                code="BAD_ARGUMENT",
            )
        operations.setdefault(kind, {})[name] = app.providers.by_name[provider]
    return operations


def need_fields(need: NeedsEvidence) -> dict[str, Any]:
    """Give its fields under their stable names."""
    return {
        "job_id": need.job_id,
        "tenant": need.tenant,
        "kind": need.kind,
        "status": need.status,
        "effect": need.name,
        "operation_key": need.operation_key,
        "provider": need.provider,
        "why": need.why,
    }


def answer_fields(answer: Answered) -> dict[str, Any]:
    """Give its fields under their stable names."""
    return {
        "job_id": answer.job_id,
        "action": answer.action,
        "status": answer.status,
        "operation_key": answer.operation_key,
        "reason": answer.reason,
    }
