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
    Conflict,
    EffectFailed,
    EffectRejected,
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
from tenure.handler import AsyncContext, Context
from tenure.procedures.claim import Claim
from tenure.procedures.enqueue import Created
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
from tenure.rules.reconcile import Verdict
from tenure.rules.status import Phase, Status
from tenure.service import AsyncDurableJobService, DurableJobService
from tenure.stores import open_async_store, open_store

try:
    __version__ = version("tenure")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"

__all__ = [
    "Absent",
    "Accepted",
    "AsyncContext",
    "AsyncDurableJobService",
    "Claim",
    "Conflict",
    "Context",
    "Created",
    "Declined",
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
    "FailedBeforeDispatch",
    "GovernanceInput",
    "IdempotencyKey",
    "Invalid",
    "Job",
    "Lease",
    "LeaseLost",
    "Message",
    "NoAnswer",
    "NotFound",
    "Outcome",
    "Permanent",
    "Phase",
    "Provider",
    "QueueSetting",
    "Refused",
    "Rejected",
    "Status",
    "Stop",
    "Succeeded",
    "Tenure",
    "TenureError",
    "Unavailable",
    "Uncertain",
    "Unknown",
    "Verdict",
    "__version__",
    "build_execution_envelope",
    "inbox",
    "open_async_store",
    "open_store",
    "outbox",
    "read_execution_identity",
    "validate_execution_identity_for_dispatch",
]
