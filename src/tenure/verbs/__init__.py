"""
The contract's verbs, each defined once as the procedure or flow that performs it.

`service.py` runs them blocking and awaiting; `app.join` runs them in a caller's transaction. Here arguments are checked
and scopes applied; what is written is decided further down.
"""

from tenure.verbs.claiming import claim_job, claim_jobs
from tenure.verbs.creation import create_job, create_jobs
from tenure.verbs.effects import begin_effect, finish_effect, list_effects, submit_evidence
from tenure.verbs.holding import (
    acknowledge_cancellation,
    complete_job,
    fail_job,
    heartbeat,
    mark_halt_unsafe,
    mark_indeterminate,
    mark_provider_dispatched,
    mark_timed_out,
    release_job,
)
from tenure.verbs.operating import append_job_event, cancel_job, retry_job, revoke_job
from tenure.verbs.outbox import (
    discard_message,
    get_message,
    list_messages,
    outbox_stats,
    prune_inbox,
    prune_outbox,
    replay_message,
)
from tenure.verbs.queues import list_queues, set_queue
from tenure.verbs.reading import find_by_idempotency_key, get_job, list_job_events, list_jobs
from tenure.verbs.reconciling import (
    find_reconciliation_candidates,
    reconcile_dispatched,
    resume_sweep,
    sweep_reconciliation_candidates,
)

__all__ = [
    "acknowledge_cancellation",
    "append_job_event",
    "begin_effect",
    "cancel_job",
    "claim_job",
    "claim_jobs",
    "complete_job",
    "create_job",
    "create_jobs",
    "discard_message",
    "fail_job",
    "find_by_idempotency_key",
    "find_reconciliation_candidates",
    "finish_effect",
    "get_job",
    "get_message",
    "heartbeat",
    "list_effects",
    "list_job_events",
    "list_jobs",
    "list_messages",
    "list_queues",
    "mark_halt_unsafe",
    "mark_indeterminate",
    "mark_provider_dispatched",
    "mark_timed_out",
    "outbox_stats",
    "prune_inbox",
    "prune_outbox",
    "reconcile_dispatched",
    "release_job",
    "replay_message",
    "resume_sweep",
    "retry_job",
    "revoke_job",
    "set_queue",
    "submit_evidence",
    "sweep_reconciliation_candidates",
]
