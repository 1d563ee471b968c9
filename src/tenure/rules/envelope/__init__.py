"""
Execution and governance envelopes: who a job belongs to, and what its dispatch was allowed to do.

Identity is not gathered from scattered fields. It stands under two reserved keys of the payload, which only the typed
inputs of this file write: a raw payload that has one of them is refused, so that nobody can pass an identity as data.

    typed input: tenant, actor, trace, lineage, links  -.
                                                         >-  payload["execution"], payload["governance"]
    row: organization, project, job id, agreed tenant  -'

    begin_effect: present? well formed? complete? equal to the row?  any reason stops the dispatch

Writing is possible without actor and trace, because a job that touches nothing outside may not have them; they are
then stored as null and a dispatch is refused. Reading gives everything or raises: a missing key, an unknown key or a
value of the wrong kind is a sign of another hand, and half an identity is worse than none.

The governance envelope carries a digest over all else in it. That shows that it was changed by accident or in part.
It does not stop somebody who can write to the database and computes a new digest: for that the approval is asked for
again, live, when an effect begins.
"""

from __future__ import annotations

from tenure.rules.envelope.execution import (
    EXECUTION_KEY,
    ExecutionIdentity,
    ExecutionInput,
    agree_tenant,
    build_execution_envelope,
    read_execution_identity,
    validate_execution_identity_for_dispatch,
    write_execution_envelope,
)
from tenure.rules.envelope.governance import (
    CLOCK_SKEW,
    FACT_DEPTH_MAX,
    FACT_KEYS,
    GOVERNANCE_KEY,
    Fact,
    Governance,
    GovernanceInput,
    build_governance_envelope,
    check_fact,
    governance_digest,
    judge_governance,
    read_governance,
    reference_in,
)
from tenure.rules.envelope.shape import TEXT_CHARACTERS_MAX, Row, refuse_reserved

__all__ = [
    "CLOCK_SKEW",
    "EXECUTION_KEY",
    "FACT_DEPTH_MAX",
    "FACT_KEYS",
    "GOVERNANCE_KEY",
    "TEXT_CHARACTERS_MAX",
    "ExecutionIdentity",
    "ExecutionInput",
    "Fact",
    "Governance",
    "GovernanceInput",
    "Row",
    "agree_tenant",
    "build_execution_envelope",
    "build_governance_envelope",
    "check_fact",
    "governance_digest",
    "judge_governance",
    "read_execution_identity",
    "read_governance",
    "reference_in",
    "refuse_reserved",
    "validate_execution_identity_for_dispatch",
    "write_execution_envelope",
]
