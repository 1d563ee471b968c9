"""
Five roles and one table: which of them may run which procedure.

A role is what a person or a process is there for. Whoever runs work cannot say by word of mouth how it ended, and
whoever can say so cannot run it: the two together could make an effect happen twice and write down that it did not.

    viewer      looks
    producer    creates jobs and messages; sees of the existing ones only what it can present itself
    worker      claims, holds, has effects, and applies what a registered provider answered
    operator    decides about running work: cancel, revoke, retry, pause, drain, freeze, rotate, approve, replay
    repairer    says what became of work: statements, readmission, recovery; cannot claim, begin or publish

Looking is not a worker's right but its tool: it reads payloads because it works on them. Granting an approval is an
operator's act, as revoking it is: both are a person's decision about work that is still to come, and a repairer's words
are about work that has been.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType

from tenure.errors import Invalid, Refused, echo


class Role(StrEnum):
    """Who somebody is to a store."""

    VIEWER = "viewer"
    PRODUCER = "producer"
    WORKER = "worker"
    OPERATOR = "operator"
    REPAIRER = "repairer"


_READERS = frozenset({Role.VIEWER, Role.WORKER, Role.OPERATOR, Role.REPAIRER})
_PRODUCER = frozenset({Role.PRODUCER})
_WORKER = frozenset({Role.WORKER})
_OPERATOR = frozenset({Role.OPERATOR})
_REPAIRER = frozenset({Role.REPAIRER})
_ACTING = frozenset({Role.WORKER, Role.OPERATOR, Role.REPAIRER})

# By what somebody is doing; the names are those of procedures.
_WHAT: dict[frozenset[Role], tuple[str, ...]] = {
    # An opener that finds a copy freezes it, which harms nobody and is the duty of everyone who can.
    # A note about an admission moves nothing.
    _ACTING: ("append_event", "compare"),
    _READERS: (
        "approval_of",
        "count_suspects",
        "every_need",
        "every_revocation",
        "find_by_key",
        "find_candidate_scopes",
        "find_candidates",
        "find_operations",
        "get_approval",
        "get_job",
        "get_jobs",
        "get_message",
        "list_approvals",
        "list_candidates",
        "list_effects",
        "list_events",
        "list_evidence",
        "list_jobs",
        "list_messages",
        "list_needs",
        "list_queue_changes",
        "list_queues",
        "list_suspects",
        "list_tenants",
        "oldest_message",
        "outbox_stats",
        "read_doubt",
        "read_effects",
        "read_facts",
        "show_queues",
        "show_tenant",
        "stats",
    ),
    # A handler enqueues and adds messages in its publish; an operator who wants a new job is a producer too.
    # A consumer notes what it received in the commit in which it creates what follows.
    _PRODUCER | _WORKER: ("add_messages", "create", "create_at_once", "declare_consumer", "receive_event"),
    _WORKER: (
        # Claims and what keeps them possible.
        "announce",
        "claim",
        "claim_batch",
        "forget_claims",
        "park",
        "promote",
        "recover",
        "tick",
        "withdraw",
        # What a lease's holder asks.
        "close_publish",
        "complete_batch",
        "find_publish",
        "heartbeat",
        "hold",
        "hold_one",
        "open_publish",
        "renew",
        # Effects, and what a provider answered at their begin.
        "answer_lost",
        "begin_effect",
        "begin_effects",
        "finish_effect",
        "finish_effects",
        "finish_for_job",
        "mark_dispatched",
        "stop_effect",
        # Messages.
        "announce_relay",
        "claim_messages",
        "finish_messages",
        "tend_messages",
        "withdraw_relay",
    ),
    # Evidence is what a provider gave; a recovery asks providers as a sweep does.
    _WORKER | _REPAIRER: ("forget_suspects", "settle_lost", "submit_evidence", "sweep_answer", "sweep_step"),
    # Tidying, by a loop or by hand.
    _WORKER | _OPERATOR: ("prune_inbox", "prune_messages"),
    _OPERATOR: (
        "before_revocation",
        "cancel_job",
        "discard_message",
        "drain_queue",
        "freeze",
        "grant_approval",
        "pause_queue",
        "replay_message",
        "resume_queue",
        "retry_job",
        "revoke_approval",
        "revoke_job",
        "read_epoch",
        "rotate",
        "save_queue",
        "thaw",
        "transfer_queue",
    ),
    _OPERATOR | _REPAIRER: ("resume_sweep",),
    _REPAIRER: (
        "clear_suspicion",
        "readmit_jobs",
        "readmit_messages",
        "reconcile_dispatched",
        "recover_database",
        "replay_revocations",
    ),
}

MAY = MappingProxyType({name: roles for roles, names in _WHAT.items() for name in names})
"""Which roles may run a procedure, by its name; a procedure that is not here is nobody's who has a role."""


def is_role(name: str) -> bool:
    """Say whether a name is that of one of the five."""
    return name in frozenset(Role)


def check_role_name(role: object) -> None:
    """
    Refuse what names no role: to a database an empty or odd name can mean all rights of the login.

    Raises:
        Invalid: BAD_ARGUMENT.
    """
    # PostgreSQL takes "none" for the end of a role.
    if not isinstance(role, str) or not role.strip() or not role.isprintable() or role.lower() == "none":
        raise Invalid(
            f"{echo(role)} is the name of no role; give viewer, producer, worker, operator or repairer, or leave role= "
            f"out (on the command line TENURE_ROLE) for a store without limits",
            code="BAD_ARGUMENT",
        )


def check_role(role: str, procedure: str) -> None:
    """
    Refuse what a role may not run.

    Raises:
        Refused: ROLE_DENIED, with who may.
    """
    may = MAY.get(procedure, frozenset[Role]())
    if role in may:
        return
    if may:
        who = f"{' or '.join(sorted(may))} may; open the store with role= of whoever is to do this"
    else:
        who = "none of the five roles may; open the store without role=, as the owner of its tables"
    article = "an" if role == Role.OPERATOR else "a"
    raise Refused(f"{article} {role} may not run {echo(procedure)}: {who}", code="ROLE_DENIED")
