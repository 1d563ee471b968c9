"""Verbs of operators about queues as a whole, and reads of them."""

from __future__ import annotations

from tenure.errors import Invalid
from tenure.procedures import operate_queues as operate
from tenure.rules.authority import check_unbound
from tenure.rules.creation import check_text
from tenure.rules.queues import QueueChange, QueueState
from tenure.verbs.scope import Scope
from tenure.yields import Procedure


def pause_queue(scope: Scope, name: str, *, reason: str, actor: str | None = None) -> Procedure[QueueState]:
    """
    Let nobody claim from a queue until it is resumed; what runs goes on. Its queued jobs are HELD meanwhile.

    A queue that is paused already stays as it is, with the reason that it has.

    Args:
        reason: Why; everybody who looks at the queue sees it.
    Raises:
        Refused: The service is bound to a tenant; a queue is everybody's.
    Locks: the queue's row. Writes: queue, queue_change.
    """
    _check_queue(scope, name)
    return operate.pause_queue(name, check_text("reason", reason), scope.who(actor))


def resume_queue(
    scope: Scope, name: str, *, keep_draining: bool = False, actor: str | None = None
) -> Procedure[QueueState]:
    """
    Take back a pause and a drain: jobs are claimed and taken in again. Writes: queue, queue_change.

    Args:
        keep_draining: Take back the pause alone.
    """
    _check_queue(scope, name)
    return operate.resume_queue(name, scope.who(actor), keep_draining=_flag("keep_draining", keep_draining))


def drain_queue(
    scope: Scope, name: str, *, reason: str | None = None, actor: str | None = None
) -> Procedure[QueueState]:
    """
    Let a queue take no new jobs until it is transferred or resumed; workers go on until it is empty.

    A new job is refused with QUEUE_DRAINING, and nothing is lost by that; a key that is known still gives its job.

    Returns:
        The queue with what is left in it; `drained` once that is nothing. What is counted is committed: on PostgreSQL
        an open transaction that enqueued before the drain still brings its job. A transfer waits for such ones.
    Locks: the queue's row. Writes: queue, queue_change.
    """
    _check_queue(scope, name)
    return operate.drain_queue(name, scope.who(actor), None if reason is None else check_text("reason", reason))


def transfer_queue(
    scope: Scope,
    name: str,
    *,
    owner: str | None,
    expected: str | None,
    with_work: bool = False,
    reason: str | None = None,
    actor: str | None = None,
) -> Procedure[QueueState]:
    """
    Give a queue another owner, in one commit. It takes new jobs again afterwards; a pause stays.

    Jobs stay as they are: ids, keys of both kinds, epochs, attempts and trails.

    Args:
        owner: The service whose workers alone claim from it from then on; None for anybody's.
        expected: The owner of now; None for nobody. Of two who ask at the same time one is refused by it.
        with_work: The jobs in it go along; otherwise it must be empty.
    Raises:
        Conflict: Its owner is another one than expected.
        Refused: There are live leases, or jobs that are not to go along.
        Unavailable: The queues were busy; nothing was written.
    Locks: every queue, for a moment. Writes: queue, queue_change.
    """
    _check_queue(scope, name)
    for what, given in (("owner", owner), ("expected", expected), ("reason", reason)):
        if given is not None:
            check_text(what, given)
    _flag("with_work", with_work)
    return operate.transfer_queue(
        name, owner=owner, expected=expected, with_work=with_work, actor=scope.who(actor), reason=reason
    )


def _flag(name: str, given: bool) -> bool:  # noqa: FBT001 - it is what a caller gave
    if type(given) is not bool:
        raise Invalid(f"{name} is True or False", code="BAD_ARGUMENT")
    return given


def show_queues(scope: Scope, name: str | None = None) -> Procedure[list[QueueState]]:
    """
    Give every queue that has jobs or that somebody has said something about, with what is in it, by name.

    Args:
        name: Only this one.
    """
    return operate.show_queues(name=None if name is None else check_text("queue", name), tenant=scope.tenant)


def list_queue_changes(scope: Scope, name: str, *, limit: int = 100) -> Procedure[list[QueueChange]]:
    """
    Give what people did with a queue, newest first: pauses, drains and transfers.

    Args:
        limit: At most 1,000.
    """
    _check_queue(scope, name)
    return operate.list_queue_changes(name, limit=limit)


def _check_queue(scope: Scope, name: str) -> None:
    check_text("queue", name)
    check_unbound(scope.tenant, "queues")
