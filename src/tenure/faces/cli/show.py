"""Show records: tables for people on a terminal, stable JSON for programs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Any
from uuid import UUID

from rich.box import ROUNDED
from rich.console import Console
from rich.table import Table

from tenure.rules.admission import action_of
from tenure.rules.approval import Approval
from tenure.rules.effect import Effect, StoredEvidence
from tenure.rules.envelope import GOVERNANCE_KEY
from tenure.rules.event import Event
from tenure.rules.job import Job

# Wide enough for an id beside a few columns where the output is a pipe; a terminal says its own width.
_PIPE_WIDTH = 160
_DIGEST, _DIGEST_SHOWN = re.compile(r"v\d+:[0-9a-f]{64}"), 15


def console(*, stderr: bool = False) -> Console:
    """Give a console: colours and the terminal's width only where it is one."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else _PIPE_WIDTH, highlight=False)


def plain(value: Any) -> Any:
    """Turn a value into what JSON can hold: ids and instants as text, durations in seconds."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def write_json(value: Any) -> None:
    """Write one JSON value on a line of its own."""
    sys.stdout.write(json.dumps(plain(value), ensure_ascii=False) + "\n")
    sys.stdout.flush()


def counted(found: Sequence[object], what: str) -> str:
    """Say how many there are: 1 job, 2 jobs."""
    return several(len(found), what)


def several(count: int, what: str, many: str | None = None) -> str:
    """Say a number of things: 1 job, 2 jobs; with the plural where it takes more than an s."""
    return f"1 {what}" if count == 1 else f"{count} {many or what + 's'}"


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table; where stdout is no terminal, without colours or boxes that a pipe could trip over."""
    out = console()
    cells = [["" if cell is None else _cell(cell) for cell in row] for row in rows]
    # A column in which nothing stands only makes the others narrower.
    shown = [place for place in range(len(columns)) if not cells or any(row[place] for row in cells)]
    made = Table(title=title, title_justify="left", box=ROUNDED if out.is_terminal else None)
    for place in shown:
        # An id in two pieces cannot be copied.
        made.add_column(columns[place], overflow="fold", no_wrap=columns[place] == "id")
    for row in cells:
        made.add_row(*(row[place] for place in shown))
    out.print(made)


def _cell(value: Any) -> str:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    shown = plain(value)
    text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
    # Control characters in stored text must not move the cursor; brackets must not become markup.
    return "".join(one if one.isprintable() or one == "\n" else "\N{REPLACEMENT CHARACTER}" for one in text).replace(
        "[", "\\["
    )


def key_cell(key: str) -> str:
    """Give an idempotency key for a table; on a terminal a digest is cut, which would push all else apart."""
    return f"{key[:_DIGEST_SHOWN]}\N{HORIZONTAL ELLIPSIS}" if sys.stdout.isatty() and _DIGEST.fullmatch(key) else key


def job_fields(job: Job, *, payload: bool = False, message: bool = False) -> dict[str, Any]:
    """
    Give a job's fields under their stable names.

    Args:
        payload: Payload and result too.
        message: The error's message too. It may hold what a handler's exception says, so it is for the one who looks at
            this very job, and not for lists, which are pasted and piped.
    """
    fields = {
        "id": job.id,
        "tenant": job.tenant,
        "organization": job.organization,
        "project": job.project,
        "idempotency_key": job.idempotency_key,
        "subject": job.subject,
        "kind": job.kind,
        "kind_version": job.kind_version,
        "queue": job.queue,
        "status": job.status,
        "phase": job.phase,
        "held_reason": job.held_reason,
        "priority": job.priority,
        "attempt_count": job.attempt_count,
        "max_attempts": job.max_attempts,
        "generation": job.generation,
        "error_code": job.error_code,
        **({"error_message": job.error_message} if message else {}),
        "scheduled_at": job.scheduled_at,
        "created_at": job.created_at,
        "run_at": job.run_at,
        "finished_at": job.finished_at,
        "operation_key": job.operation_key,
        "dispatched_at": job.dispatched_at,
        "escalated_at": job.escalated_at,
        "escalation_reason": job.escalation_reason,
        "cancel_requested_at": job.cancel_requested_at,
        "cancel_reason": job.cancel_reason,
        "parked": job.parked,
        "progress": None if job.progress is None else json.loads(job.progress),
        "worker_id": None if job.lease is None else job.lease.worker_id,
        "lease_expires_at": None if job.lease is None else job.lease.expires_at,
    }
    if payload:
        fields |= {"payload": dict(job.payload), "result": job.result}
    return fields


def event_fields(event: Event) -> dict[str, Any]:
    """Give an event's fields under their stable names."""
    return {
        "at": event.at,
        "name": event.name,
        "status": event.status,
        "generation": event.generation,
        "actor": event.actor,
        "data": dict(event.data),
    }


def effect_fields(effect: Effect, *, receipt: bool = False) -> dict[str, Any]:
    """Give an effect's fields under their stable names; the receipt only where asked for."""
    fields = {
        "name": effect.name,
        "state": effect.state,
        "operation_key": effect.operation_key,
        "provider": effect.provider,
        "reason": effect.reason,
        "attempt_id": effect.attempt_id,
        "created_at": effect.created_at,
        "begun_at": effect.begun_at,
        "deadline_at": effect.deadline_at,
        "settled_at": effect.settled_at,
        "settled_by": effect.settled_by,
    }
    if receipt:
        fields["receipt"] = effect.receipt
    return fields


def approval_fields(approval: Approval) -> dict[str, Any]:
    """Give an approval's fields under their stable names."""
    return {
        "reference": approval.reference,
        "tenant": approval.tenant,
        "state": approval.state,
        "action_digest": approval.action_digest,
        "capability": approval.capability,
        "policy": approval.policy,
        "budget": approval.budget,
        "granted_by": approval.granted_by,
        "grant_reason": approval.grant_reason,
        "granted_at": approval.granted_at,
        "expires_at": approval.expires_at,
        "revoked_by": approval.revoked_by,
        "revoke_reason": approval.revoke_reason,
        "revoked_at": approval.revoked_at,
        "consumed_by": approval.consumed_by,
        "consumed_at": approval.consumed_at,
    }


def governance_fields(job: Job, approval: Approval | None) -> dict[str, Any]:
    """
    Say what governs a job and how that stands: ids, codes and instants, no fact of the envelope and no payload.

    Args:
        approval: What the store has under the envelope's reference; None where there is nothing.
    """
    envelope = job.payload.get(GOVERNANCE_KEY)
    said = envelope if isinstance(envelope, dict) else {}
    shown = {key: said.get(key) for key in ("approval_reference", "issued_at", "expires_at", "digest")}
    standing = None if approval is None else approval.state
    return {
        **{key: value if isinstance(value, str) else None for key, value in shown.items()},
        "action_digest": action_of(job),
        "approval_state": "missing" if standing is None else standing,
        "approval_expires_at": None if approval is None else approval.expires_at,
        "approved_digest": None if approval is None else approval.action_digest,
        "consumed_by": None if approval is None else approval.consumed_by,
    }


def evidence_fields(evidence: StoredEvidence) -> dict[str, Any]:
    """Give stored evidence under its stable names, without its receipt."""
    return {
        "operation_key": evidence.operation_key,
        "kind": evidence.kind,
        "attempt_id": evidence.attempt_id,
        "at": evidence.at,
        "contradicts": evidence.contradicts,
        "used": evidence.used,
    }
