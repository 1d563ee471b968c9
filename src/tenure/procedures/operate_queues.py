"""
What operators do with queues as a whole: pause, resume, drain, transfer; and reads of them.

None of it touches a job. A claim and a creation read the queue's row in a statement that they need anyway, so each of
these is one row however many jobs there are. `transfer_queue` alone has to be sure that no claim and no creation that
began before is still on its way: it takes the whole table of queues, which all of them read, for a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tenure.procedures.records import identity, instant, maybe_instant, maybe_micros
from tenure.rules import queues
from tenure.rules.bounds import check_whole
from tenure.rules.queues import Contents, LiveLease, QueueChange, QueueState
from tenure.yields import FRESH, Command, Row, Script, Statement, procedure

CHANGES_MAX = 1_000


@procedure
def pause_queue(name: str, reason: str, actor: str, *, command: Command = FRESH) -> Script[QueueState]:
    """
    Let nobody claim from a queue; what runs goes on.

    Locks: the queue's row. Writes: queue, queue_change.
    """

    def decide(state: QueueState, at: int) -> QueueState | None:
        return queues.pause(state, instant(at), actor, reason)

    return (yield from _change(name, "paused", actor, reason, decide, command))


@procedure
def drain_queue(name: str, actor: str, reason: str | None, *, command: Command = FRESH) -> Script[QueueState]:
    """
    Let a queue take no new jobs; workers go on until it is empty.

    Locks: the queue's row. Writes: queue, queue_change.
    """

    def decide(state: QueueState, at: int) -> QueueState | None:
        return queues.drain(state, instant(at))

    return (yield from _change(name, "draining", actor, reason, decide, command))


@procedure(wakes=True)
def resume_queue(name: str, actor: str, *, keep_draining: bool = False, command: Command = FRESH) -> Script[QueueState]:
    """
    Take back a pause, and a drain unless it is to be kept.

    Locks: the queue's row. Writes: queue, queue_change.
    """

    def decide(state: QueueState, _at: int) -> QueueState | None:
        return queues.resume(state, keep_draining=keep_draining)

    return (yield from _change(name, "resumed", actor, None, decide, command))


@procedure(wakes=True)
def transfer_queue(
    name: str,
    *,
    owner: str | None,
    expected: str | None,
    with_work: bool,
    actor: str,
    reason: str | None,
    command: Command = FRESH,
) -> Script[QueueState]:
    """
    Give a queue another owner: empty, or with its jobs, which stay as they are.

    Raises:
        Conflict: OWNER_CHANGED.
        Refused: LEASES_LIVE, QUEUE_NOT_DRAINED.
        Unavailable: The queues were busy all the time.
    Locks: every queue, for this one transaction. Writes: queue, queue_change.
    """
    # Alone and first: what is read afterwards sees everything that was on its way.
    yield [Statement("queue_hurry"), Statement("queue_exclusive")]
    state, at, known = yield from _locked(name, command)
    if known:
        return state
    leases = [
        LiveLease(identity(row[0]), row[1], instant(row[2]))
        for row in (yield Statement("queue_leases", {"name": name}))
    ]
    after = queues.transfer(state, leases, expected=expected, owner=owner, with_work=with_work)
    jobs = after.contents.total
    yield from _save(after, at, "transferred", actor, reason, command, old=state.owner, jobs=jobs)
    return after


def _change(
    name: str,
    what: str,
    actor: str,
    reason: str | None,
    decide: Callable[[QueueState, int], QueueState | None],
    command: Command,
) -> Script[QueueState]:
    state, at, known = yield from _locked(name, command)
    after = None if known else decide(state, at)
    if after is None:
        return state
    yield from _save(after, at, what, actor, reason, command)
    return after


def _locked(name: str, command: Command) -> Script[tuple[QueueState, int, bool]]:
    """Lock a queue's row; give its state, the clock, and whether an earlier run of this very call has changed it."""
    _, (row,), contents = yield [
        Statement("queue_ensure", {"name": name}),
        Statement("queue_lock", {"name": name}),
        Statement("queue_contents", {"name": name, "tenant": None}),
    ]
    state = _state(row, _contents(contents).get(name, Contents()))
    known = False
    if command.again:
        known = bool((yield Statement("queue_change_known", {"queue": name, "command_id": command.id})))
    return state, row[-1], known


def _save(
    state: QueueState,
    at: int,
    what: str,
    actor: str,
    reason: str | None,
    command: Command,
    *,
    old: str | None = None,
    jobs: int | None = None,
) -> Script[None]:
    changed = {
        "name": state.name,
        "paused_at": maybe_micros(state.paused_at),
        "paused_by": state.paused_by,
        "pause_reason": state.pause_reason,
        "owner": state.owner,
        "draining_at": maybe_micros(state.draining_at),
    }
    noted = {
        "queue": state.name,
        "at": at,
        "what": what,
        "actor": actor,
        "reason": reason,
        "old_owner": old,
        "new_owner": state.owner if what == "transferred" else None,
        "jobs": jobs,
        "command_id": command.id,
    }
    yield [Statement("queue_update", changed), Statement("queue_change_insert", noted)]


@procedure(reads=True)
def show_queues(*, name: str | None = None, tenant: str | None = None) -> Script[list[QueueState]]:
    """
    Give every queue that has jobs or that somebody has said something about, by name.

    Args:
        name: Only this one, whether or not there is anything in it.
        tenant: Count only this one's jobs; queues without any of them are left out, unless they are named.
    """
    rows, contents = yield [
        Statement("queue_states", {"name": name}),
        Statement("queue_contents", {"name": name, "tenant": tenant}),
    ]
    within = _contents(contents)
    states = {row[0]: _state(row, within.get(row[0], Contents())) for row in rows}
    for queue, found in within.items():
        states.setdefault(queue, QueueState(queue, contents=found))
    if name is not None:
        states.setdefault(name, QueueState(name))
    return [states[one] for one in sorted(states) if tenant is None or one == name or states[one].contents.total]


@procedure(reads=True)
def list_queue_changes(name: str, *, limit: int = 100) -> Script[list[QueueChange]]:
    """Give what people did with a queue, newest first."""
    check_whole("limit", limit, CHANGES_MAX)
    rows = yield Statement("queue_changes", {"queue": name, "limit": limit})
    return [QueueChange(row[0], instant(row[1]), *row[2:]) for row in rows]


def _contents(rows: Iterable[Row]) -> dict[str, Contents]:
    counts: dict[str, dict[str, int]] = {}
    for queue, place, count in rows:
        counts.setdefault(queue, {})[place] = count
    return {queue: Contents(**found) for queue, found in counts.items()}


def _state(row: Row, contents: Contents) -> QueueState:
    name, fair, paused_at, paused_by, pause_reason, owner, draining_at, _ = row
    return QueueState(
        name,
        bool(fair),
        maybe_instant(paused_at),
        paused_by,
        pause_reason,
        owner,
        maybe_instant(draining_at),
        contents,
    )
