"""`tenure outbox`: what waits to be delivered, and what was set aside; `tenure relay`: deliver it."""

from __future__ import annotations

import asyncio
import logging
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from tenure.app import Tenure
from tenure.errors import Invalid
from tenure.faces.cli.options import (
    Actor,
    AppName,
    AsJson,
    LedgerPlace,
    OnlyTenant,
    Reason,
    StoreUrl,
    loaded,
    serving,
)
from tenure.faces.cli.show import console, counted, several, table, write_json
from tenure.procedures.outbox_operate import OutboxStats, oldest_message
from tenure.rules.outbox import MAX_ATTEMPTS, StoredMessage

if TYPE_CHECKING:
    from tenure.loops.relay import Relay

app = typer.Typer(
    help="See what waits to be delivered, and decide about what was set aside.",
    invoke_without_command=True,
    rich_markup_mode=None,
)

# Characters of a destination's answer in a list; `tenure outbox show` has all of it.
_SAID = 40

MessageId = Annotated[UUID, typer.Argument(metavar="ID", help="The message's id.")]


@app.callback()
def _outbox(
    context: typer.Context, tenant: OnlyTenant = None, store: StoreUrl = None, as_json: AsJson = False
) -> int | None:
    """See what waits to be delivered, and decide about what was set aside; alone it gives the numbers."""
    return stats(tenant, store, as_json) if context.invoked_subcommand is None else None


@app.command("stats")
def stats(tenant: OnlyTenant = None, store: StoreUrl = None, as_json: AsJson = False) -> int:
    """Give the age of the oldest undelivered message, and counts by destination and state."""
    with serving(store, tenant=tenant) as service:
        found = service.outbox_stats()
    if as_json:
        write_json(_stats_fields(found))
        return 0
    age = found.oldest_unpublished_age
    oldest = "none is due" if age is None else f"the oldest is due for {age.total_seconds():.0f} s"
    sys.stdout.write(f"{found.unpublished} unpublished, {oldest}, {_begun(found.most_attempts)}\n")
    if found.counts:
        table(
            "by destination",
            ("destination", "state", "code", "messages", "oldest (s)", "deliveries"),
            [
                (
                    one.destination,
                    one.state,
                    one.code,
                    one.count,
                    round(one.oldest_age.total_seconds()),
                    one.most_attempts,
                )
                for one in found.counts
            ],
        )
    return 0


@app.command("list")
def list_(
    tenant: OnlyTenant = None,
    destination: Annotated[str | None, typer.Option(help="Only for this destination.")] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            help="due, later, delivering, blocked, held, set_aside, delivered, discarded; may be given again."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1, max=1000)] = 100,
    after: Annotated[UUID | None, typer.Option(help="The last id of the page before.")] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """List messages, oldest first; by themselves those that are neither delivered nor discarded."""
    wanted = state or ["due", "later", "delivering", "blocked", "held", "set_aside"]
    with serving(store, tenant=tenant) as service:
        found = service.list_messages(destination=destination, state=wanted, limit=limit, after=after)
    if as_json:
        write_json([message_fields(one) for one in found])
    elif found:
        table(
            counted(found, "message"),
            ("id", "tenant", "destination", "type", "subject", "state", "deliveries", "why"),
            [
                (
                    one.message.id,
                    one.message.tenant,
                    one.message.destination,
                    one.message.type,
                    one.message.subject,
                    one.state,
                    f"{one.attempt_count}/{one.max_attempts}",
                    _why(one),
                )
                for one in found
            ],
        )
    else:
        sys.stdout.write("no messages\n")


@app.command("show")
def show(message_id: MessageId, tenant: OnlyTenant = None, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show one message with its data and what was decided about it."""
    with serving(store, tenant=tenant) as service:
        _shown(service.get_message(message_id), as_json=as_json)


@app.command("replay")
def replay(
    message_id: MessageId,
    reason: Reason,
    actor: Actor = None,
    attempts: Annotated[int, typer.Option(help="So many more deliveries.", min=1)] = MAX_ATTEMPTS,
    tenant: OnlyTenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Let a message that was set aside go again, with the id, the operation and the digest that it has."""
    with serving(store, tenant=tenant, actor=actor) as service:
        found = service.replay_message(message_id, reason=reason, attempts=attempts)
    _shown(found, as_json=as_json)


@app.command("discard")
def discard(
    message_id: MessageId,
    reason: Reason,
    actor: Actor = None,
    tenant: OnlyTenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Never deliver a message that was set aside; what waits behind it may go."""
    with serving(store, tenant=tenant, actor=actor) as service:
        found = service.discard_message(message_id, reason=reason)
    _shown(found, as_json=as_json)


def relay(
    app: AppName,
    store: StoreUrl = None,
    destination: Annotated[
        list[str] | None, typer.Option(help="Only this one of the app's destinations; may be given again.")
    ] = None,
    lanes: Annotated[int, typer.Option(help="Deliveries at once to each destination.", min=1)] = 2,
    retention: Annotated[float, typer.Option(help="Days that delivered messages are kept.")] = 7.0,
    grace: Annotated[float, typer.Option(help="Seconds a stop may wait for deliveries on their way.")] = 30.0,
    health_file: Annotated[Path | None, typer.Option(help="Written about once a second.")] = None,
    ledger: LedgerPlace = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Say what happens, by ids and codes.")] = False,
    as_json: AsJson = False,
) -> int:
    """Deliver an app's messages until SIGTERM or Ctrl-C; again to stop waiting for those on their way."""
    if verbose:
        logging.getLogger("tenure").setLevel(logging.INFO)
    with loaded(app, store, ledger) as found:
        known = {one.name: one for one in found.destinations}
        strange = sorted(set(destination or ()) - known.keys())
        if strange:
            raise Invalid(
                f"the app has no destination {', '.join(strange)}; it has {', '.join(sorted(known)) or 'none'}",
                code="UNKNOWN_DESTINATION",
            )
        run = found.relay(
            destinations=[known[name] for name in destination] if destination else None,
            lanes=lanes,
            retention=timedelta(days=retention),
            grace=timedelta(seconds=grace),
            health_file=health_file,
        )
        status = asyncio.run(_run(found, run, quiet=as_json))
    if as_json:
        write_json({"relay_id": run.relay_id, "clean": status == 0})
    return status


async def _run(app: Tenure, run: Relay, *, quiet: bool) -> int:
    try:
        # A database that is not there, or has another schema, is the first thing said, and the only one.
        await (await app.astore()).run(oldest_message())
        if not quiet:
            console(stderr=True).print(f"relay {run.relay_id} on {app.url}; Ctrl-C drains", markup=False)
        return await run.main()
    finally:
        await app.aclose()


def _why(one: StoredMessage) -> str | None:
    if one.blocked_by is not None:
        return f"blocked by {one.blocked_by}"
    if one.error_code is None or one.reason is None:
        return one.error_code
    said = one.reason if len(one.reason) <= _SAID else f"{one.reason[: _SAID - 3]}..."
    return f"{one.error_code}: {said}"


def _begun(most: int) -> str:
    return f"none with more than {several(most, 'delivery', 'deliveries')}" if most else "no delivery begun"


def message_fields(one: StoredMessage, *, data: bool = False) -> dict[str, Any]:
    """
    Give a message's fields under their stable names.

    Args:
        data: Its data, its receipt and the destination's words too: for the one who looks at this very message.
    """
    message = one.message
    fields: dict[str, Any] = {
        "id": message.id,
        "tenant": message.tenant,
        "destination": message.destination,
        "operation": message.operation,
        "type": message.type,
        "version": message.version,
        "subject": message.subject,
        "ordered": one.ordered,
        "state": one.state,
        "attempt_count": one.attempt_count,
        "max_attempts": one.max_attempts,
        "generation": one.generation,
        "epoch": message.epoch,
        "digest": message.digest,
        "created_at": message.created_at,
        "scheduled_at": one.scheduled_at,
        "due_at": one.due_at,
        "error_code": one.error_code,
        "blocked_by": one.blocked_by,
        "relay_id": one.relay_id,
        "lease_expires_at": one.expires_at,
        "done_at": one.done_at,
    }
    if data:
        fields |= {
            "reason": one.reason,
            "data": message.data,
            "receipt": one.receipt,
            "decisions": [
                {
                    "decision": made.decision,
                    "at": made.at,
                    "actor": made.actor,
                    "reason": made.reason,
                    "attempts": made.attempts,
                }
                for made in one.decisions
            ],
        }
    return fields


def _shown(one: StoredMessage, *, as_json: bool) -> None:
    fields = message_fields(one, data=True)
    if as_json:
        write_json(fields)
    else:
        table(f"message {one.message.id}", ("field", "value"), [(k, v) for k, v in fields.items() if v is not None])


def _stats_fields(found: OutboxStats) -> dict[str, Any]:
    return {
        "oldest_unpublished_age": found.oldest_unpublished_age,
        "unpublished": found.unpublished,
        "most_attempts": found.most_attempts,
        "states": found.states,
        "counts": [
            {
                "destination": one.destination,
                "state": one.state,
                "code": one.code,
                "count": one.count,
                "oldest_age": one.oldest_age,
                "most_attempts": one.most_attempts,
            }
            for one in found.counts
        ],
    }
