"""`tenure jobs`: what operators see and do."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID

import typer

from tenure.errors import Invalid
from tenure.faces.cli.options import Actor, AsJson, OnlyTenant, Reason, StoreUrl, serving
from tenure.faces.cli.show import (
    counted,
    effect_fields,
    event_fields,
    evidence_fields,
    governance_fields,
    job_fields,
    key_cell,
    table,
    write_json,
)
from tenure.procedures.approvals import approval_of
from tenure.procedures.inspect import list_evidence
from tenure.rules.admission import is_governed
from tenure.rules.approval import Approval, ApprovalState
from tenure.rules.job import Job
from tenure.rules.outcome import Absent, Accepted, Declined, Evidence
from tenure.rules.payload import parse
from tenure.rules.status import Phase

app = typer.Typer(help="See and move jobs.", no_args_is_help=True, rich_markup_mode=None)

JobId = Annotated[UUID, typer.Argument(metavar="ID", help="The job's id.")]


@app.command("list")
def list_(
    store: StoreUrl = None,
    tenant: OnlyTenant = None,
    organization: Annotated[str | None, typer.Option()] = None,
    project: Annotated[str | None, typer.Option()] = None,
    queue: Annotated[str | None, typer.Option(help="Only jobs of this queue.")] = None,
    status: Annotated[str | None, typer.Option(help="Such as queued or indeterminate.")] = None,
    phase: Annotated[str | None, typer.Option(help="Such as READY or NEEDS_ATTENTION.")] = None,
    limit: Annotated[int, typer.Option(help="At most 1,000.", min=1, max=1000)] = 50,
    after: Annotated[UUID | None, typer.Option(help="The id of the last job of the page before.")] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Write ids only, one on a line, for other commands.")] = False,
    as_json: AsJson = False,
) -> None:
    """List jobs, oldest first."""
    with serving(store, tenant=tenant) as service:
        jobs = service.list_jobs(
            organization=organization,
            project=project,
            queue=queue,
            status=status,
            phase=phase,
            limit=limit,
            after=after,
        )
    if as_json:
        write_json([job_fields(job) for job in jobs])
        return
    if ids:
        sys.stdout.write("".join(f"{job.id}\n" for job in jobs))
        return
    # Most stores have one tenant; the column would only make the others narrower.
    several = len({job.tenant for job in jobs}) > 1
    table(
        counted(jobs, "job"),
        (
            "id",
            *(["tenant"] if several else []),
            "key",
            "kind",
            "status",
            "phase",
            "tries",
            "error",
            "held",
            "escalated",
        ),
        [
            (
                job.id,
                *([job.tenant] if several else []),
                key_cell(job.idempotency_key),
                job.kind,
                job.status,
                job.phase,
                f"{job.attempt_count}/{job.max_attempts}",
                job.error_code,
                job.held_reason or ("its queue is paused" if job.phase is Phase.HELD else None),
                job.escalated_at,
            )
            for job in jobs
        ],
    )


@app.command()
def show(
    job_id: JobId,
    store: StoreUrl = None,
    tenant: OnlyTenant = None,
    payload: Annotated[bool, typer.Option("--payload", help="Show payload, result and receipts too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show one job with its effects, its evidence and its trail."""
    with serving(store, tenant=tenant) as service:
        job = service.get_job(job_id)
        effects = list(job.effects)
        events = service.list_job_events(job_id)
        evidence = service.store.run(list_evidence(job_id, tenant=tenant))
        governed = is_governed(job)
        governance = governance_fields(job, service.store.run(approval_of(job))) if governed else None
    if as_json:
        write_json(
            {
                **job_fields(job, payload=payload, message=True),
                **({"governance": governance} if governed else {}),
                "effects": [effect_fields(effect, receipt=payload) for effect in effects],
                "evidence": [evidence_fields(one) for one in evidence],
                "events": [event_fields(event) for event in events],
            }
        )
        return
    fields = {key: value for key, value in job_fields(job, payload=payload, message=True).items() if value is not None}
    table(f"job {job.id}", ("field", "value"), fields.items())
    if governance is not None:
        table("governance", ("field", "value"), [one for one in governance.items() if one[1] is not None])
    if effects:
        table(
            "effects",
            ("name", "state", "operation key", "provider", "begun", "settled", "by"),
            [
                (e.name or "(mark)", e.state, e.operation_key, e.provider, e.begun_at, e.settled_at, e.settled_by)
                for e in effects
            ],
        )
    if evidence:
        table(
            "evidence",
            ("at", "kind", "operation key", "contradicts", "used"),
            [(e.at, e.kind, e.operation_key, e.contradicts, e.used) for e in evidence],
        )
    table(
        "trail",
        ("at", "event", "status", "generation", "actor", "data"),
        [(e.at, e.name, e.status, e.generation, e.actor, _in_words(e.data)) for e in events],
    )


def _in_words(data: Mapping[str, Any]) -> str:
    """Write an event's data for people; `--json` gives it as it is."""
    return ", ".join(f"{name} {value if isinstance(value, str) else json.dumps(value)}" for name, value in data.items())


@app.command()
def cancel(
    job_id: JobId,
    reason: Reason,
    store: StoreUrl = None,
    tenant: OnlyTenant = None,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a queued job, or ask a running one to stop."""
    with serving(store, tenant=tenant, actor=actor) as service:
        job = service.cancel_job(job_id, reason=reason)
    _moved(job, as_json=as_json)


@app.command()
def revoke(
    job_id: JobId,
    reason: Reason,
    store: StoreUrl = None,
    tenant: OnlyTenant = None,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Take a job away from its worker and cancel it at once."""
    with serving(store, tenant=tenant, actor=actor) as service:
        job = service.revoke_job(job_id, reason=reason)
    _moved(job, as_json=as_json)


@app.command()
def retry(
    job_id: JobId,
    attempts: Annotated[int, typer.Option(help="How many to grant.", min=1)] = 1,
    reopen: Annotated[list[str] | None, typer.Option(help="A rejected effect to send again; may be repeated.")] = None,
    store: StoreUrl = None,
    tenant: OnlyTenant = None,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Queue a failed job again."""
    with serving(store, tenant=tenant, actor=actor) as service:
        job = service.retry_job(job_id, attempts=attempts, reopen=tuple(reopen or ()))
        barred = is_governed(job) and _barred(job, service.store.run(approval_of(job)))
    _moved(job, as_json=as_json)
    if barred and not as_json:
        sys.stdout.write(f"{barred}: its next effect is refused (APPROVAL_REFUSED), and the job fails again\n")


@app.command()
def reconcile(
    job_id: JobId,
    reason: Reason,
    accepted: Annotated[bool, typer.Option("--accepted", help="The provider did act.")] = False,
    declined: Annotated[bool, typer.Option("--declined", help="The provider refused.")] = False,
    absent: Annotated[bool, typer.Option("--absent", help="It surely never happened.")] = False,
    receipt: Annotated[str | None, typer.Option(help="A JSON value, with --accepted.")] = None,
    operation_key: Annotated[str | None, typer.Option(help="Which operation, where several are open.")] = None,
    store: StoreUrl = None,
    tenant: OnlyTenant = None,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """State what happened outside; you are the evidence, so find out first."""
    if [accepted, declined, absent].count(True) != 1:
        raise Invalid("say exactly one of --accepted, --declined, --absent", code="BAD_ARGUMENT")
    if receipt is not None and not accepted:
        raise Invalid("--receipt goes with --accepted", code="BAD_ARGUMENT")
    evidence: Evidence = Absent()
    if accepted:
        evidence = Accepted(None if receipt is None else parse(receipt))
    elif declined:
        evidence = Declined(reason)
    with serving(store, tenant=tenant, actor=actor) as service:
        job = service.reconcile_dispatched(job_id, evidence, operation_key=operation_key, reason=reason)
    _moved(job, as_json=as_json)


@app.command("resume-sweep")
def resume_sweep(
    job_id: JobId, store: StoreUrl = None, tenant: OnlyTenant = None, actor: Actor = None, as_json: AsJson = False
) -> None:
    """Clear an escalation, so that sweeps ask about the job again."""
    with serving(store, tenant=tenant, actor=actor) as service:
        job = service.resume_sweep(job_id)
    _moved(job, as_json=as_json)


def _barred(job: Job, approval: Approval | None) -> str | None:
    """Say why a governed job cannot dispatch as it stands; None where its approval may still allow it."""
    if approval is None:
        return "there is no approval of the name that it gives"
    if approval.state in {ApprovalState.REVOKED, ApprovalState.EXPIRED}:
        return f"its approval {approval.reference} is {approval.state}"
    if approval.consumed_by not in {None, job.id}:
        return f"its approval {approval.reference} is used by another job"
    return None


def _moved(job: Job, *, as_json: bool) -> None:
    if as_json:
        write_json(job_fields(job))
        return
    note = " (asked to stop; its worker acknowledges)" if job.cancel_requested_at and job.lease else ""
    sys.stdout.write(f"job {job.id} is {job.status}, phase {job.phase}{note}\n")
