"""Verbs about the work of a restored copy: what is suspect, what needs evidence, asking, and a person's clearing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from tenure.connectors.asking import ask_about
from tenure.connectors.provider import LOOKUP_TIMEOUT, Provider, check_provider, terms
from tenure.errors import Invalid, echo
from tenure.flows import recover as flows
from tenure.flows.recover import Reconciled
from tenure.flows.sweep import Lookup
from tenure.procedures import recover
from tenure.procedures.recover import Suspect
from tenure.rules.bounds import check_span
from tenure.rules.creation import check_id
from tenure.rules.effect import Effect, check_name
from tenure.rules.job import Job
from tenure.rules.outcome import Evidence
from tenure.rules.recover import NeedsEvidence, Operation
from tenure.verbs.scope import Scope
from tenure.yields import Flow, Procedure

PAGE = 100


def list_suspects(
    scope: Scope, *, tenant: str | None = None, limit: int = PAGE, after: UUID | None = None
) -> Procedure[list[Suspect]]:
    """
    Give the jobs of a restored copy that may still run, oldest first, with who marked them and why.

    Args:
        limit: At most 1,000.
        after: The id of the last job of the page before.
    """
    return recover.list_suspects(scope.narrow(tenant), limit, _after(after))


def count_suspects(scope: Scope, *, tenant: str | None = None) -> Procedure[dict[str, dict[str, int]]]:
    """Count suspect jobs that may still run, by tenant and status."""
    return recover.count_suspects(scope.narrow(tenant))


def list_effects_needing_evidence(
    scope: Scope, *, tenant: str | None = None, limit: int = PAGE, after: UUID | None = None
) -> Procedure[list[NeedsEvidence]]:
    """
    Give what nobody knows the outcome of: open effects, and providers that suspect jobs may have called.

    Args:
        limit: Of jobs, at most 1,000; a job may have several.
        after: The id of the last job of the page before.
    """
    return recover.list_needs(scope.narrow(tenant), limit, _after(after))


def clear_suspicion(scope: Scope, job_id: UUID, *, reason: str, actor: str | None = None) -> Procedure[Job]:
    """
    Take a person's word that nothing of this job is lost: from now on its effects are sent without asking first.

    Raises:
        IllegalMove: It is not suspect.
    """
    return recover.clear_suspicion(check_id("job_id", job_id), reason, scope.who(actor), tenant=scope.tenant)


def reconcile_suspects(
    scope: Scope,
    *,
    providers: Sequence[Provider] = (),
    lookup: Lookup | None = None,
    operations: Mapping[str, Mapping[str, Provider]] | None = None,
    tenant: str | None = None,
    limit: int = PAGE,
    after: UUID | None = None,
    lookup_timeout: timedelta = LOOKUP_TIMEOUT,
) -> Flow[Reconciled]:
    """
    Ask providers about one page of suspect jobs, and write down what they know; it never sends.

    Args:
        providers: Asked by the name stored with an effect.
        lookup: Asked as `lookup(operation_key, job)` about bare marks, which name no provider.
        operations: Which effects the jobs of a kind have, by kind and effect's name, beside those that the database
            knows of other jobs of the kind: `{"send_quote": {"send": mailer}}`.
        limit: Of jobs, at most 1,000; small pages show progress.
        after: `Reconciled.after` of the page before; None begins.
        lookup_timeout: How long `lookup` may take; providers have their own timeout.
    """
    if not isinstance(providers, Iterable):
        raise Invalid(f"providers is a list of providers, not {echo(providers)}", code="BAD_ARGUMENT")
    by_name: dict[str, Provider] = {}
    for provider in providers:
        check_provider(provider)
        by_name[provider.name] = provider
    known: dict[str, list[Operation]] = {}
    for kind, effects in _mapping("operations", operations or {}).items():
        for name, provider in _mapping("each of operations", effects).items():
            known.setdefault(kind, []).append(Operation(check_name(name), terms(provider)))
            by_name.setdefault(provider.name, provider)
    check_span("lookup_timeout", lookup_timeout)

    async def ask(job: Job, effect: Effect) -> Evidence:
        return await ask_about(job, effect, by_name, lookup=lookup, lookup_timeout=lookup_timeout)

    return flows.reconcile_suspects(
        ask, operations=known, tenant=scope.narrow(tenant), limit=limit, after=_after(after)
    )


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Invalid(
            f"{name} names providers by kind and effect, {{'send_quote': {{'send': mailer}}}}, and is not "
            f"{echo(value)}",
            code="BAD_ARGUMENT",
        )
    return value


def _after(after: UUID | None) -> UUID | None:
    return None if after is None else check_id("after", after)
