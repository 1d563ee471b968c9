"""
Durable jobs for agents and for any code whose work reaches the outside world.

The public names; everything else is found by its room: `tenure.errors`, `tenure.testing`.
"""

from importlib.metadata import PackageNotFoundError, version

from tenure import inbox, outbox
from tenure.app import Tenure
from tenure.connectors.destination import Destination
from tenure.connectors.provider import IdempotencyKey, Provider
from tenure.errors import (
    ApprovalRefused,
    Conflict,
    EffectFailed,
    EffectRejected,
    ExecutionStopped,
    Invalid,
    LeaseLost,
    NotFound,
    Permanent,
    Refused,
    Stop,
    TenureError,
    Unavailable,
    Uncertain,
)
from tenure.flows.recover import Answered, Reconciled
from tenure.handler import AsyncContext, Context
from tenure.opening import open_async_store, open_store
from tenure.procedures.claim import Claim
from tenure.procedures.enqueue import Created
from tenure.procedures.recover import Suspect
from tenure.rules.approval import Approval, ApprovalState, action_digest
from tenure.rules.authority import Act, Tenant
from tenure.rules.control import Allow, ControlRequest, Deny
from tenure.rules.effect import Effect, EffectState
from tenure.rules.envelope import (
    ExecutionIdentity,
    ExecutionInput,
    GovernanceInput,
    build_execution_envelope,
    read_execution_identity,
    validate_execution_identity_for_dispatch,
)
from tenure.rules.event import Event, EventName
from tenure.rules.fairness import QueueSetting
from tenure.rules.job import Job
from tenure.rules.lease import Lease
from tenure.rules.message import Message
from tenure.rules.outcome import (
    Absent,
    Accepted,
    Declined,
    Evidence,
    FailedBeforeDispatch,
    NoAnswer,
    Outcome,
    Rejected,
    Succeeded,
    Unknown,
)
from tenure.rules.queues import QueueChange, QueueState
from tenure.rules.reconcile import Verdict
from tenure.rules.recover import NeedsEvidence
from tenure.rules.stats import Stats, StatsLine
from tenure.rules.status import Phase, Status
from tenure.rules.suspicion import Suspicion
from tenure.service import AsyncDurableJobService, DurableJobService

try:
    __version__ = version("tenure")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"

__all__ = [
    "Absent",
    "Accepted",
    "Act",
    "Allow",
    "Answered",
    "Approval",
    "ApprovalRefused",
    "ApprovalState",
    "AsyncContext",
    "AsyncDurableJobService",
    "Claim",
    "Conflict",
    "Context",
    "ControlRequest",
    "Created",
    "Declined",
    "Deny",
    "Destination",
    "DurableJobService",
    "Effect",
    "EffectFailed",
    "EffectRejected",
    "EffectState",
    "Event",
    "EventName",
    "Evidence",
    "ExecutionIdentity",
    "ExecutionInput",
    "ExecutionStopped",
    "FailedBeforeDispatch",
    "GovernanceInput",
    "IdempotencyKey",
    "Invalid",
    "Job",
    "Lease",
    "LeaseLost",
    "Message",
    "NeedsEvidence",
    "NoAnswer",
    "NotFound",
    "Outcome",
    "Permanent",
    "Phase",
    "Provider",
    "QueueChange",
    "QueueSetting",
    "QueueState",
    "Reconciled",
    "Refused",
    "Rejected",
    "Stats",
    "StatsLine",
    "Status",
    "Stop",
    "Succeeded",
    "Suspect",
    "Suspicion",
    "Tenant",
    "Tenure",
    "TenureError",
    "Unavailable",
    "Uncertain",
    "Unknown",
    "Verdict",
    "__version__",
    "action_digest",
    "build_execution_envelope",
    "inbox",
    "open_async_store",
    "open_store",
    "outbox",
    "read_execution_identity",
    "validate_execution_identity_for_dispatch",
]
