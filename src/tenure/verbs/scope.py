"""What a service is bound to, and how that narrows what a call says."""

from __future__ import annotations

from dataclasses import dataclass

from tenure.errors import Invalid
from tenure.flows.ledger import Ledger
from tenure.rules.creation import check_text
from tenure.rules.envelope import agree_tenant


@dataclass(frozen=True, slots=True)
class Scope:
    """
    What a service is bound to.

    Attributes:
        tenant: The only tenant it sees; None means all.
        actor: Who it acts for, where a verb names nobody.
        ledger: The authority ledger of its store, None where there is none.
    """

    tenant: str | None = None
    actor: str | None = None
    ledger: Ledger | None = None

    def narrow(self, tenant: str | None) -> str | None:
        """Apply the binding to an optional argument."""
        if tenant is None:
            return self.tenant
        return agree_tenant(self.tenant, check_text("tenant", tenant), None, tenant)

    def who(self, actor: str | None) -> str:
        """Require an actor."""
        if actor is not None:
            return check_text("actor", actor)
        if self.actor is None:
            raise Invalid(
                "say who asks: actor='user:42', or bind one with DurableJobService(..., actor=...)",
                code="ACTOR_REQUIRED",
            )
        return self.actor

    def maybe(self, actor: str | None) -> str | None:
        """Give the actor where somebody named one."""
        return self.actor if actor is None else check_text("actor", actor)
