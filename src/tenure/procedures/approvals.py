"""Approvals: grant, revoke, read, carry revocations over a restore; and the live look that a dispatch takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TypeAlias

from tenure.errors import ApprovalRefused, NotFound, Unavailable, echo
from tenure.procedures.records import instant, maybe_identity, maybe_instant, maybe_micros, micros
from tenure.rules import approval as rules
from tenure.rules.admission import is_governed, refusal
from tenure.rules.approval import Approval, ApprovalState
from tenure.rules.authority import check_thawed
from tenure.rules.bounds import check_whole
from tenure.rules.creation import check_text
from tenure.rules.digest import canonical
from tenure.rules.envelope import Fact, reference_in
from tenure.rules.event import EventName
from tenure.rules.job import Job
from tenure.rules.payload import decode
from tenure.yields import FRESH, Command, Each, Row, Script, Statement, procedure

LIST_MAX = 1_000

_COMMAND, _NOW = 15, 16


# --- people -----------------------------------------------------------------------------------------------------------


@procedure
def grant_approval(new: Approval, *, command: Command = FRESH) -> Script[Approval]:
    """
    Grant an approval, or find the very same one.

    Args:
        new: From `rules.approval.new_approval`.
    Raises:
        Invalid: APPROVAL_EXPIRED, it would be over already.
        Conflict: APPROVAL_EXISTS, the reference stands for another decision, or for one that was revoked.
    Locks: the approval. Writes: approval.
    """
    now = instant((yield Statement("clock"))[0][0])
    given = rules.granted(new, now)
    _, rows = yield [
        Each("approval_insert", [_row(given, command)]),
        Each("approval_lock", [(new.tenant, new.reference)]),
    ]
    if not rows:
        # Another transaction's that this one's snapshot cannot see yet (a caller's repeatable read).
        raise Unavailable(
            f"approval {echo(new.reference)} is being written by another transaction; run yours again",
            code="APPROVAL_BUSY",
        )
    known, _ = _approval(rows[0])
    own = rows[0][_COMMAND] is not None and maybe_identity(rows[0][_COMMAND]) == command.id
    return known if own else rules.agree(known, given)


@procedure
def revoke_approval(tenant: str, reference: str, reason: str, actor: str) -> Script[Approval]:
    """
    Revoke an approval for good; one that is revoked already keeps its first reason.

    From its commit on no effect begins under it. An intent that was committed before stands.

    Raises:
        NotFound: There is none of this name in this tenant.
    Locks: the approval. Writes: approval.
    """
    check_text("reason", reason)
    check_text("actor", actor)
    known, now = _one((yield Each("approval_lock", [(tenant, reference)])), reference)
    after = rules.revoked(known, actor, reason, now)
    if after is not known:
        written = yield Each("approval_revoke", [(tenant, reference, micros(now), actor, reason)])
        assert len(written) == 1, "the approval changed under its lock"
    return after


@procedure(reads=True)
def before_revocation(tenant: str, reference: str) -> Script[tuple[Approval, datetime, str | None]]:
    """
    Give an approval, the clock and the store that the database belongs to: a ledger is told of the revocation first.

    Raises:
        NotFound. Refused: DATABASE_FROZEN.
    """
    meta, rows = yield [Statement("meta_list"), Each("approval_read", [(tenant, reference)])]
    said = dict(meta)
    known, now = _one(rows, reference)
    check_thawed(database_frozen="frozen" in said)
    return known, now, said.get("store")


@procedure(reads=True)
def get_approval(tenant: str, reference: str) -> Script[Approval]:
    """Give one approval. Raises NotFound."""
    return _one((yield Each("approval_read", [(tenant, reference)])), reference)[0]


@procedure(reads=True)
def list_approvals(
    tenant: str,
    *,
    state: ApprovalState | None = None,
    action_digest: str | None = None,
    limit: int = 100,
    after: str | None = None,
) -> Script[list[Approval]]:
    """
    Give a tenant's approvals by reference.

    Args:
        limit: At most 1,000.
        after: The reference of the last one of the page before.
    """
    check_whole("limit", limit, LIST_MAX)
    found: list[Approval] = []
    while len(found) < limit:
        page = yield Statement(
            "approval_list", {"tenant": tenant, "action_digest": action_digest, "after": after, "limit": limit}
        )
        read = [_approval(row)[0] for row in page]
        found += [one for one in read if state in {None, one.state}]
        if len(page) < limit:
            break
        after = read[-1].reference
    return found[:limit]


@procedure(reads=True)
def approval_of(job: Job) -> Script[Approval | None]:
    """Give the approval that a job's governance envelope names, of the job's own tenant; None where there is none."""
    reference = reference_in(job) if is_governed(job) else None
    if reference is None:
        return None
    rows = yield Each("approval_read", [(job.tenant, reference)])
    return _approval(rows[0])[0] if rows else None


# --- a dispatch -------------------------------------------------------------------------------------------------------

_Key: TypeAlias = tuple[str, str]


@dataclass(slots=True)
class Held:
    """The approvals that the dispatches of one transaction name, under their locks."""

    found: dict[_Key, tuple[Approval, datetime]]

    def of(self, job: Job, now: datetime) -> tuple[Approval | None, datetime]:
        """Give what a job's envelope names, and the clock by which it is judged: read after the last lock."""
        if not self.found or not is_governed(job):
            return None, now
        known = self.found.get((job.tenant, reference_in(job) or ""))
        return (None, now) if known is None else (known[0], max(now, known[1]))

    def take(self, consumed: Approval | None) -> None:
        """Remember that one was taken, for the next dispatch of the same transaction."""
        if consumed is not None:
            key = (consumed.tenant, consumed.reference)
            self.found[key] = (consumed, self.found[key][1])


def look(jobs: Iterable[Job], *, lock: bool = True) -> Script[Held]:
    """
    Read the approvals that these jobs' envelopes name; nothing is asked where nothing is governed.

    Locks: the approvals, in order, where `lock`; after the places and the effects of their jobs.
    """
    keys = {(job.tenant, named) for job in jobs if is_governed(job) and (named := reference_in(job))}
    if not keys:
        return Held({})
    rows = sorted(keys)
    answered = yield (Each("approval_lock", rows) if lock else Each("approval_read", rows))
    return Held({(row[0], row[1]): _approval(row) for row in answered})


def refused_before(command: Command, job: Job) -> Script[ApprovalRefused | None]:
    """
    Give the refusal that an earlier run of this very call has committed, if it has; only for a call that is run again.

    Without it a refusal whose reply was lost could be taken for an intent.
    """
    if not is_governed(job):
        return None
    for name, _, _, _, _, data, by in (yield Each("event_read", [(job.id,)])):
        if name == EventName.ADMISSION_CHECKED and maybe_identity(by) == command.id:
            said = decode(data)
            if said.get("allowed") is False:
                return refusal(job, tuple(said["reasons"]), said["approval"])
    return None


# --- restore ----------------------------------------------------------------------------------------------------------


@procedure(reads=True)
def every_revocation(*, page: int = LIST_MAX) -> Script[list[Approval]]:
    """
    Give every approval that was ever revoked here, of all tenants, by tenant and reference; for a ledger that begins.

    `rules.approval.restriction` writes each for a ledger outside the database.

    Args:
        page: How many are read at a time.
    """
    found: list[Approval] = []
    while True:
        tenant, reference = (found[-1].tenant, found[-1].reference) if found else (None, None)
        rows = yield Statement(
            "approval_revoked", {"after_tenant": tenant, "after_reference": reference, "limit": page}
        )
        found += [_approval(row)[0] for row in rows]
        if len(rows) < page:
            return found


@procedure
def replay_revocations(revocations: Sequence[Approval], *, command: Command = FRESH) -> Script[int]:
    """
    Revoke again what a restored copy has forgotten, with the time, the person and the reason of the revocation.

    An approval that the copy does not know at all is written as revoked: nobody grants under its reference again.

    Args:
        revocations: From `rules.approval.read_restriction`.
    Returns:
        How many of them this database did not know.
    Locks: the approvals, in order. Writes: approval.
    """
    by_key = {(one.tenant, one.reference): one for one in revocations if one.revoked_at is not None}
    rows = [by_key[key] for key in sorted(by_key)]
    written = yield Each("approval_replay", [_revoked_row(one, command) for one in rows])
    return len(written)


# --- rows -------------------------------------------------------------------------------------------------------------


def _one(rows: Sequence[Row], reference: str) -> tuple[Approval, datetime]:
    for row in islice(rows, 1):
        return _approval(row)
    raise NotFound(f"no approval {echo(reference)} in this tenant")


def _approval(row: Row) -> tuple[Approval, datetime]:
    """Build the record of a row, with its state by the clock that came along."""
    tenant, reference, action, capability, policy, budget, granted_by, grant_reason, granted_at, expires_at = row[:10]
    revoked_at, revoked_by, revoke_reason, consumed_by, consumed_at = row[10:_COMMAND]
    now = instant(row[_NOW])
    known = Approval(
        tenant=tenant,
        reference=reference,
        action_digest=action,
        capability=_fact(capability),
        policy=_fact(policy),
        budget=_fact(budget),
        granted_by=granted_by,
        grant_reason=grant_reason,
        granted_at=instant(granted_at),
        expires_at=instant(expires_at),
        revoked_at=maybe_instant(revoked_at),
        revoked_by=revoked_by,
        revoke_reason=revoke_reason,
        consumed_by=maybe_identity(consumed_by),
        consumed_at=maybe_instant(consumed_at),
    )
    return rules.at(known, now), now


def _row(given: Approval, command: Command) -> Row:
    return (
        given.tenant,
        given.reference,
        given.action_digest,
        *[
            None if fact is None else canonical(fact).decode()
            for fact in (given.capability, given.policy, given.budget)
        ],
        given.granted_by,
        given.grant_reason,
        micros(given.granted_at),
        micros(given.expires_at),
        command.id,
    )


def _revoked_row(one: Approval, command: Command) -> Row:
    return (
        one.tenant,
        one.reference,
        one.action_digest,
        one.granted_by,
        one.grant_reason,
        micros(one.granted_at),
        micros(one.expires_at),
        maybe_micros(one.revoked_at),
        one.revoked_by,
        one.revoke_reason,
        command.id,
    )


def _fact(text: str | None) -> Fact | None:
    if text is None:
        return None
    fact: Fact = decode(text)
    return fact
