"""`tenure approvals`: what a person decides about one action."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from tenure.errors import Invalid
from tenure.faces.cli.options import Actor, AsJson, LedgerPlace, Reason, StoreUrl, serving
from tenure.faces.cli.show import approval_fields, counted, table, write_json
from tenure.rules.approval import Approval
from tenure.rules.envelope import Fact
from tenure.rules.payload import parse

app = typer.Typer(help="Approve actions and take that back.", no_args_is_help=True, rich_markup_mode=None)

Reference = Annotated[str, typer.Argument(metavar="REFERENCE", help="The approval's name in its tenant.")]
Tenant = Annotated[str, typer.Option(envvar="TENURE_TENANT", help="Whose approvals.")]


@app.command()
def grant(
    reference: Reference,
    tenant: Tenant,
    digest: Annotated[str, typer.Option(help="Of the action, from tenure.action_digest.")],
    reason: Reason,
    until: Annotated[str | None, typer.Option(help="An instant with its zone, 2030-01-31T12:00:00Z.")] = None,
    minutes: Annotated[int | None, typer.Option(help="Or how long from now.", min=1)] = None,
    capability: Annotated[str | None, typer.Option(help="What you were shown, text or JSON.")] = None,
    policy: Annotated[str | None, typer.Option(help="What you were shown, text or JSON.")] = None,
    budget: Annotated[str | None, typer.Option(help="What you were shown, text or JSON.")] = None,
    store: StoreUrl = None,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Approve exactly one action, for one job, until it expires."""
    expires_at = _expiry(until, minutes)
    with serving(store, tenant=tenant, actor=actor) as service:
        known = service.grant_approval(
            reference,
            action_digest=digest,
            expires_at=expires_at,
            reason=reason,
            capability=_fact(capability),
            policy=_fact(policy),
            budget=_fact(budget),
        )
    _told(known, as_json=as_json)


@app.command()
def revoke(
    reference: Reference,
    tenant: Tenant,
    reason: Reason,
    store: StoreUrl = None,
    ledger: LedgerPlace = None,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Take an approval back for good; from now on no effect begins under it."""
    with serving(store, ledger, tenant=tenant, actor=actor) as service:
        known = service.revoke_approval(reference, reason=reason)
    _told(known, as_json=as_json)


@app.command("list")
def list_(
    tenant: Tenant,
    state: Annotated[str | None, typer.Option(help="granted, consumed, expired or revoked.")] = None,
    digest: Annotated[str | None, typer.Option(help="Only for this action.")] = None,
    limit: Annotated[int, typer.Option(help="At most 1,000.", min=1, max=1000)] = 50,
    after: Annotated[str | None, typer.Option(help="The reference of the last one of the page before.")] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """List a tenant's approvals by reference."""
    with serving(store, tenant=tenant) as service:
        found = service.list_approvals(state=state, action_digest=digest, limit=limit, after=after)
    if as_json:
        write_json([approval_fields(one) for one in found])
        return
    table(
        counted(found, "approval"),
        ("reference", "state", "granted by", "expires", "job", "revoked by"),
        [(one.reference, one.state, one.granted_by, one.expires_at, one.consumed_by, one.revoked_by) for one in found],
    )


@app.command()
def show(reference: Reference, tenant: Tenant, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show one approval: who decided, when, why, and which job has it."""
    with serving(store, tenant=tenant) as service:
        known = service.get_approval(reference)
    if as_json:
        write_json(approval_fields(known))
        return
    fields = {name: value for name, value in approval_fields(known).items() if value is not None}
    table(f"approval {known.reference}", ("field", "value"), fields.items())


def _expiry(until: str | None, minutes: int | None) -> datetime:
    if (until is None) == (minutes is None):
        raise Invalid("say until when: either --until or --minutes", code="BAD_ARGUMENT")
    if minutes is not None:
        return datetime.now(UTC) + timedelta(minutes=minutes)
    try:
        return datetime.fromisoformat(str(until))
    except ValueError:
        raise Invalid(
            f"--until takes an instant such as 2030-01-31T12:00:00Z, not {until!r}", code="BAD_INSTANT"
        ) from None


def _fact(text: str | None) -> Fact | None:
    """Read a fact as the envelope has it: an object where it looks like one, text otherwise."""
    if text is None or not text.lstrip().startswith("{"):
        return text
    fact: Any = parse(text)
    return dict(fact)


def _told(known: Approval, *, as_json: bool) -> None:
    if as_json:
        write_json(approval_fields(known))
        return
    until = f", until {known.expires_at.isoformat()}" if known.revoked_at is None else ""
    sys.stdout.write(f"approval {known.reference} is {known.state}{until}\n")
