"""`tenure queues pause|resume|drain|transfer|history`: what operators do with queues as a whole."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from tenure.errors import Refused
from tenure.faces.cli.options import Actor, AsJson, StoreUrl, serving
from tenure.faces.cli.show import several, table, write_json
from tenure.rules.queues import Contents, QueueChange, QueueState
from tenure.service import DurableJobService

Name = Annotated[str, typer.Argument(metavar="NAME", help="The queue; it need not have any jobs.")]
_TRANSFERRING = "it is being transferred"
_UNKNOWN = "it is empty, and nobody had said anything about it before: is this its name? See `tenure queues list`"
Why = Annotated[str | None, typer.Option(help="Why, for the record.")]
# Seconds between two looks at a queue that somebody waits for.
LOOK_EVERY = 0.5


def pause(
    name: Name,
    reason: Annotated[str, typer.Option(help="Why; everybody who looks at the queue sees it.")],
    actor: Actor = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Let nobody claim from a queue until it is resumed; what runs goes on."""
    with serving(store, actor=actor) as service:
        (before,) = service.show_queues(name)
        known = before.contents.total or name in {one.name for one in service.list_queues()}
        state = service.pause_queue(name, reason=reason)
    new = "" if known else f"\n{_UNKNOWN}"
    _tell(state, f"queue {name} is paused; `tenure queues resume {name}` lets it go on{new}", as_json=as_json)


def resume(name: Name, actor: Actor = None, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Take back a pause and a drain."""
    with serving(store, actor=actor) as service:
        state = service.resume_queue(name)
    _tell(state, f"queue {name} is claimed from and takes new jobs", as_json=as_json)


def drain(
    name: Name,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until it is empty; 0 looks once.", min=0)] = 0.0,
    actor: Actor = None,
    reason: Why = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> int:
    """Let a queue take no new jobs, and wait until it is empty: 0 when it is, 1 when the time was over before."""
    with serving(store, actor=actor) as service:
        state = service.drain_queue(name, reason=reason)

        def look() -> bool:
            nonlocal state
            (state,) = service.show_queues(name)
            return state.drained

        def left() -> str:
            # What waits in a paused queue waits for ever.
            idle = (
                "" if state.paused_at is None else f"; it is paused: `tenure queues resume {name}`, then drain it again"
            )
            return f"queue {name} still has {several(state.contents.total, 'job')}: {_parts(state.contents)}{idle}"

        _wait(look, left, timeout, quiet=as_json)
        text = f"queue {name} is drained" if state.drained else f"{left()}; it takes no new ones"
        _tell(state, text, as_json=as_json)
    return 0 if state.drained else 1


def transfer(
    name: Name,
    owner: Annotated[str, typer.Option("--to", help="The service that the queue shall belong to; '' for nobody.")],
    expected: Annotated[str, typer.Option("--from", help="Whose it is now; '' for nobody's.")] = "",
    with_work: Annotated[bool, typer.Option("--with-work", help="The jobs in it go along, as they are.")] = False,
    wait: Annotated[float, typer.Option(help="Pause it and wait so many seconds for live leases.", min=0)] = 0.0,
    actor: Actor = None,
    reason: Why = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Give a queue another owner: a drained one, or one with its work."""
    with serving(store, actor=actor) as service:

        def ask() -> QueueState:
            return service.transfer_queue(
                name, owner=owner or None, expected=expected or None, with_work=with_work, reason=reason
            )

        state = _transfer_when_free(service, name, ask, wait, quiet=as_json) if wait else ask()
    whose = f"belongs to {state.owner}" if state.owner else "belongs to nobody"
    kept = f"; it is still paused: `tenure queues resume {name}`" if state.paused_at is not None else ""
    text = f"queue {name} {whose} from now on, with {several(state.contents.total, 'job')}{kept}"
    _tell(state, text, as_json=as_json)


def _transfer_when_free(
    service: DurableJobService, name: str, ask: Callable[[], QueueState], seconds: float, *, quiet: bool
) -> QueueState:
    """Transfer a queue once its last lease is over; nothing new is claimed meanwhile."""
    (before,) = service.show_queues(name)
    paused = service.pause_queue(name, reason=_TRANSFERRING)
    # A pause that somebody else made, before or at this moment, is theirs to take back.
    ours = before.paused_at is None and (paused.pause_reason, paused.paused_by) == (_TRANSFERRING, service.scope.actor)
    done: list[QueueState] = []
    problems: list[Refused] = []

    def look() -> bool:
        try:
            done.append(ask())
        except Refused as problem:
            if problem.code != "LEASES_LIVE":
                raise
            problems.append(problem)
            return False
        return True

    try:
        if not _wait(look, lambda: f"queue {name} still has live leases", seconds, quiet=quiet):
            raise problems[-1]
    finally:
        # A drain that was there goes on.
        if ours:
            service.resume_queue(name, keep_draining=True)
    (state,) = service.show_queues(name)
    return state


def history(name: Name, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show what people did with a queue, newest first."""
    with serving(store) as service:
        found = service.list_queue_changes(name)
    if as_json:
        write_json([_change_fields(one) for one in found])
    elif found:
        table(
            f"queue {name}",
            ("at", "what", "actor", "reason", "from", "to", "jobs"),
            [(one.at, one.what, one.actor, one.reason, one.old_owner, one.new_owner, one.jobs) for one in found],
        )
    else:
        sys.stdout.write(f"nobody has done anything with queue {name}\n")


def state_fields(state: QueueState) -> dict[str, Any]:
    """Give a queue's state under its stable names."""
    within = state.contents
    return {
        "name": state.name,
        "fair": state.fair,
        "owner": state.owner,
        "paused_at": state.paused_at,
        "paused_by": state.paused_by,
        "pause_reason": state.pause_reason,
        "draining_at": state.draining_at,
        "drained": state.drained,
        "ready": within.ready,
        "deferred": within.deferred,
        "resting": within.resting,
        "leased": within.leased,
        "uncertain": within.uncertain,
    }


def _change_fields(change: QueueChange) -> dict[str, Any]:
    return {
        "queue": change.queue,
        "at": change.at,
        "what": change.what,
        "actor": change.actor,
        "reason": change.reason,
        "old_owner": change.old_owner,
        "new_owner": change.new_owner,
        "jobs": change.jobs,
    }


def _tell(state: QueueState, text: str, *, as_json: bool) -> None:
    if as_json:
        write_json(state_fields(state))
    else:
        sys.stdout.write(f"{text}\n")


def _parts(within: Contents) -> str:
    named = ("ready", "deferred", "resting", "leased", "uncertain")
    return ", ".join(f"{getattr(within, one)} {one}" for one in named if getattr(within, one))


def _wait(look: Callable[[], bool], left: Callable[[], str], seconds: float, *, quiet: bool) -> bool:
    """Look until it is as wanted or the time is over; say on stderr how far it is where that changes."""
    until = time.monotonic() + seconds
    said = ""
    while not look():
        rest = until - time.monotonic()
        if rest <= 0:
            return False
        if not quiet and left() != said:
            said = left()
            sys.stderr.write(f"{said}\n")
        time.sleep(min(LOOK_EVERY, rest))  # what other processes do to a queue can only be looked for
    return True
