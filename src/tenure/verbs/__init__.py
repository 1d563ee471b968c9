"""
The contract's verbs, each defined once as the procedure or flow that performs it.

`service.py` runs them blocking and awaiting; `app.join` runs them in a caller's transaction. Here arguments are checked
and scopes applied; what is written is decided further down.
"""

from tenure.verbs.approvals import get_approval, grant_approval, list_approvals, revoke_approval
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
from tenure.verbs.operating_queues import (
    drain_queue,
    list_queue_changes,
    pause_queue,
    resume_queue,
    show_queues,
    transfer_queue,
)
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
from tenure.verbs.recovering import (
    clear_suspicion,
    count_suspects,
    list_effects_needing_evidence,
    list_suspects,
    reconcile_suspects,
)
from tenure.verbs.stats import stats
from tenure.verbs.tenants import (
    freeze_tenant,
    list_tenants,
    readmit_jobs,
    readmit_messages,
    rotate_tenant,
    show_tenant,
    thaw_tenant,
)

__all__ = [
    "acknowledge_cancellation",
    "append_job_event",
    "begin_effect",
    "cancel_job",
    "claim_job",
    "claim_jobs",
    "clear_suspicion",
    "complete_job",
    "count_suspects",
    "create_job",
    "create_jobs",
    "discard_message",
    "drain_queue",
    "fail_job",
    "find_by_idempotency_key",
    "find_reconciliation_candidates",
    "finish_effect",
    "freeze_tenant",
    "get_approval",
    "get_job",
    "get_message",
    "grant_approval",
    "heartbeat",
    "list_approvals",
    "list_effects",
    "list_effects_needing_evidence",
    "list_job_events",
    "list_jobs",
    "list_messages",
    "list_queue_changes",
    "list_queues",
    "list_suspects",
    "list_tenants",
    "mark_halt_unsafe",
    "mark_indeterminate",
    "mark_provider_dispatched",
    "mark_timed_out",
    "outbox_stats",
    "pause_queue",
    "prune_inbox",
    "prune_outbox",
    "readmit_jobs",
    "readmit_messages",
    "reconcile_dispatched",
    "reconcile_suspects",
    "release_job",
    "replay_message",
    "resume_queue",
    "resume_sweep",
    "retry_job",
    "revoke_approval",
    "revoke_job",
    "rotate_tenant",
    "set_queue",
    "show_queues",
    "show_tenant",
    "stats",
    "submit_evidence",
    "sweep_reconciliation_candidates",
    "thaw_tenant",
    "transfer_queue",
]
