"""
Who may act: rotate, freeze and thaw a tenant, readmit held jobs and messages; one transaction each.

Lock order: the tenant's authority first, alone, so that every fenced write, which has it shared, is either committed
before the change or sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from tenure.errors import NotFound, echo
from tenure.procedures.records import identity, instant
from tenure.procedures.rows import in_scope, lock, read, save
from tenure.rules.authority import Act, Tenant, after_act, check_thawed
from tenure.rules.job import Job
from tenure.rules.message import job_id_of
from tenure.rules.readmit import readmit
from tenure.rules.status import Status
from tenure.yields import FRESH, Command, Each, Script, Statement, procedure

READMIT_MAX = 500
_ACTS_SHOWN = 50


@procedure(reads=True)
def list_tenants(*, tenant: str | None = None) -> Script[list[Tenant]]:
    """Give every tenant that ever had a job or an act, by name."""
    rows = yield Statement("authority_list", {"tenant": tenant})
    return [Tenant(row[0], row[1], bool(row[2])) for row in rows]


@procedure(reads=True)
def show_tenant(tenant: str) -> Script[Tenant]:
    """
    Give one tenant with its held work and what was done to it.

    Raises:
        NotFound: Nobody of this name ever had a job.
    """
    rows, counts, messages, acts = yield [
        Statement("authority_list", {"tenant": tenant}),
        Statement("held_count", {"tenant": tenant}),
        Statement("message_stale_count", {"tenant": tenant}),
        Statement("authority_event_list", {"tenant": tenant, "limit": _ACTS_SHOWN}),
    ]
    if not rows:
        raise unknown_tenant(tenant)
    _, epoch, frozen, *_ = rows[0]
    return Tenant(
        tenant,
        epoch,
        bool(frozen),
        {of: count for of, count in counts if of < epoch},
        {of: count for of, count in messages if of < epoch},
        tuple(Act(what, at_epoch, actor, reason, instant(at)) for _, what, at_epoch, actor, reason, at in acts),
    )


@procedure(reads=True)
def read_epoch(tenant: str) -> Script[tuple[int, str | None]]:
    """
    Give a tenant's epoch and the store that the database belongs to, before a change that a ledger has to know first.

    Raises:
        Refused: DATABASE_FROZEN.
        NotFound: Nobody of this name ever had a job.
    """
    rows, meta = yield [Statement("authority_list", {"tenant": tenant}), Statement("meta_list")]
    if not rows:
        raise unknown_tenant(tenant)
    _, epoch, _, database_frozen, _ = rows[0]
    check_thawed(database_frozen=bool(database_frozen))
    return int(epoch), dict(meta).get("store")


def unknown_tenant(tenant: str) -> NotFound:
    """Make the error for a name that nobody has: a typing mistake must not make a tenant."""
    return NotFound(f"no tenant {echo(tenant)}: none of its jobs was ever created here; see `tenure tenants list`")


@procedure
def rotate(act: UUID, tenant: str, epoch: int | None, actor: str, reason: str) -> Script[Tenant]:
    """
    Raise a tenant's epoch: older work is held, and what holds a lease under it is fenced at its next write.

    Args:
        act: The identity of the act; applied again it changes nothing.
        epoch: The new one, where a ledger was told it before; one more than the current one without a ledger.
    Raises:
        Refused: DATABASE_FROZEN. NotFound.
    Locks: the tenant's authority, alone. Writes: authority, authority_event.
    """
    return (yield from _change(act, "rotated", tenant, epoch, actor, reason))


@procedure
def freeze(act: UUID, tenant: str, actor: str, reason: str) -> Script[Tenant]:
    """
    Freeze a tenant: nothing of it is claimed, published or begun. See `rotate`.

    Locks: the tenant's authority, alone. Writes: authority, authority_event.
    """
    return (yield from _change(act, "frozen", tenant, 0, actor, reason))


@procedure(wakes=True)
def thaw(act: UUID, tenant: str, actor: str, reason: str) -> Script[Tenant]:
    """
    End a freeze. See `rotate`.

    Locks: the tenant's authority, alone. Writes: authority, authority_event.
    """
    return (yield from _change(act, "thawed", tenant, 0, actor, reason))


def _change(act: UUID, what: str, tenant: str, epoch: int | None, actor: str, reason: str) -> Script[Tenant]:
    rows, known = yield [
        Each("authority_exclusive", [(tenant,)]),
        Statement("authority_event_known", {"act_id": act}),
    ]
    if not rows:
        raise unknown_tenant(tenant)
    _, current, frozen, database_frozen, now = rows[0]
    if known:
        # An earlier run of this very act, whose reply was lost, or a worker that found it pending in the ledger.
        return Tenant(tenant, max(current, known[0][2]), bool(frozen))
    check_thawed(database_frozen=bool(database_frozen))
    after, stays = after_act((current, bool(frozen)), what, epoch)
    yield [
        Each("authority_save", [(tenant, after, stays)]),
        Each("authority_event_insert", [(act, tenant, what, after, actor, reason, now)]),
    ]
    return Tenant(tenant, after, stays)


@procedure(wakes=True)
def readmit_jobs(
    act: UUID,
    tenant: str,
    job_ids: Sequence[UUID] | None,
    epoch: int | None,
    actor: str,
    reason: str,
    *,
    command: Command = FRESH,
) -> Script[list[Job]]:
    """
    Stamp held work with the tenant's current epoch; see `rules.readmit.readmit`.

    Args:
        job_ids: These jobs, all or none of them; None means up to 500 of the epoch, oldest first.
        epoch: Only the queued work of this older epoch; None with no ids means of every older one.
    Returns: Those that were asked for by id, or those that were readmitted now. Run again after a lost reply it gives
        what it did then, as it is by now.
    Locks: as `rows.lock`. Writes: ready, deferred, resting, event, authority_event.
    """
    before = yield from _readmitted_before(command, job_ids)
    if before:
        return before
    rows = yield Statement("authority_list", {"tenant": tenant})
    if not rows:
        raise unknown_tenant(tenant)
    _, current, _, database_frozen, now = rows[0]
    check_thawed(database_frozen=bool(database_frozen))
    if job_ids is None:
        held = yield Statement(
            "held_list", {"tenant": tenant, "epoch": epoch, "current": current, "limit": READMIT_MAX}
        )
        ids = [identity(row[0]) for row in held]
    else:
        ids = sorted(set(job_ids))
    if not ids:
        return []
    command.chosen = command.chosen.union(ids)
    places = yield from lock(ids)
    jobs: list[Job] = []
    changes = []
    for job_id in ids:
        if job_ids is None and (job_id not in places or places[job_id].job.status is not Status.QUEUED):
            # It moved between the look and the lock, which held work does when it is cancelled.
            continue
        placed = in_scope(places, job_id, tenant)
        change = readmit(placed.job, actor=actor, reason=reason, now=placed.now)
        if change is not None:
            changes.append((placed, change))
            jobs.append(change.job)
        elif job_ids is not None:
            jobs.append(placed.job)
    if changes:
        after = changes[0][1].job.epoch
        yield Each("authority_event_insert", [(act, tenant, "readmitted", after, actor, reason, now)])
        yield from save(changes, command)
    return jobs


def _readmitted_before(command: Command, job_ids: Sequence[UUID] | None) -> Script[list[Job]]:
    """Give what an earlier run of this call did: only the trail still knows that it was readmitted."""
    if not command.again or not command.chosen:
        return []
    noted = yield Each("event_known", [(job_id, command.id) for job_id in sorted(command.chosen)])
    done = {identity(row[0]) for row in noted}
    if not done:
        return []
    found = yield from read(done if job_ids is None else job_ids)
    return [found[job_id].job for job_id in sorted(found)]


@procedure
def readmit_messages(act: UUID, tenant: str, epoch: int | None, actor: str, reason: str) -> Script[list[UUID]]:
    """
    Stamp held messages with the tenant's current epoch, up to 500, oldest first; a relay finds them by itself.

    One that is being delivered is left alone: what comes of it is delivered, or held and found by the next call. One
    that was set aside waits for a person's decision first. After a recovery the jobs that they become are suspect.

    Args:
        act: The identity of the act; applied again it gives what it readmitted.
        epoch: Only those under this older epoch; None means every older one.
    Returns: Their ids.
    Raises:
        Refused: DATABASE_FROZEN. NotFound.
    Locks: the tenant's authority, alone; the messages.
    Writes: message_due, message_later, message_resting, suspect, message_decision, authority_event.
    """
    rows, known = yield [
        Each("authority_exclusive", [(tenant,)]),
        Statement("authority_event_known", {"act_id": act}),
    ]
    if not rows:
        raise unknown_tenant(tenant)
    _, current, _, database_frozen, now = rows[0]
    if known:
        done = yield Statement("message_readmitted", {"tenant": tenant, "command_id": act})
        return [identity(row[0]) for row in done]
    check_thawed(database_frozen=bool(database_frozen))
    found = yield Statement(
        "message_stale", {"tenant": tenant, "epoch": epoch, "current": current, "limit": READMIT_MAX}
    )
    if not found:
        return []
    rows_of: dict[str, list[tuple[int, int, int]]] = {"due": [], "later": [], "resting": []}
    known_of: dict[UUID, tuple[int, str]] = {}
    for message_id, position, generation, place, older, destination in found:
        rows_of[place].append((position, generation, current))
        known_of[identity(message_id)] = (older, destination)
    stamped = yield [Each(f"message_{place}_stamp", rows) for place, rows in rows_of.items()]
    # A relay may have moved one between the look and the stamp: what is held then is found by the next call.
    ids = sorted(identity(row[0]) for answered in stamped for row in answered)
    if ids:
        # Where it becomes a job of ours, that job may have been there after the backup, and have sent.
        becoming = sorted((job_id_of(tenant, known_of[one][1], one), one, tenant, known_of[one][0]) for one in ids)
        yield [
            Each("suspect_message", [(*row, actor, reason, act) for row in becoming]),
            Each("message_readmission_insert", [(one, tenant, now, actor, reason, act) for one in ids]),
            Each("authority_event_insert", [(act, tenant, "readmitted", current, actor, reason, now)]),
        ]
    return ids
