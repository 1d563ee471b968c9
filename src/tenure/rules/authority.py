"""
Who may act at all: the epoch of a tenant, and freezes.

An epoch is authority of a whole tenant, a generation belongs to one job. Work stamped with an older epoch is held until
it is readmitted; on a frozen tenant or database nothing is claimed, dispatched or published.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from tenure.errors import Refused, echo


@dataclass(frozen=True, slots=True)
class Authority:
    """
    What the store says about a tenant now.

    Attributes:
        epoch: The tenant's current epoch, from 1.
        tenant_frozen: An operator froze the tenant.
        database_frozen: The database is not known to be the current one (restored, copied, promoted).
    """

    epoch: int = 1
    tenant_frozen: bool = False
    database_frozen: bool = False

    @property
    def frozen(self) -> bool:
        """Either freeze."""
        return self.tenant_frozen or self.database_frozen

    def admits(self, epoch: int) -> bool:
        """Say whether work stamped with this epoch may run."""
        return epoch == self.epoch and not self.frozen

    def held(self, epoch: int) -> str | None:
        """Say why work stamped with this epoch may not run; None where it may."""
        if self.database_frozen:
            return "database frozen: `tenure doctor` says why, `tenure recover` brings it back"
        if self.tenant_frozen:
            return "tenant frozen by an operator; `tenure tenants thaw` ends it"
        if epoch != self.epoch:
            return f"superseded epoch {epoch} < {self.epoch}: held until `tenure tenants readmit`"
        return None


@dataclass(frozen=True, slots=True)
class Tenant:
    """
    A tenant as operators see it.

    Attributes:
        epoch: The current one; work under an older one is held.
        frozen: An operator froze it.
        held: How many queued jobs there are of each older epoch; only where one tenant was asked for.
        held_messages: How many undelivered messages there are of each; only where one tenant was asked for.
        acts: What was done to it, newest first; only where one tenant was asked for.
    """

    name: str
    epoch: int
    frozen: bool
    held: dict[int, int] = field(default_factory=dict)
    held_messages: dict[int, int] = field(default_factory=dict)
    acts: tuple[Act, ...] = ()


@dataclass(frozen=True, slots=True)
class Act:
    """
    One thing that was done to a tenant's authority.

    Attributes:
        what: rotated, frozen, thawed, readmitted or recovered.
        epoch: The tenant's epoch after it.
    """

    what: str
    epoch: int
    actor: str
    reason: str
    at: datetime


def after_act(before: tuple[int, bool], what: str, proposed: int | None) -> tuple[int, bool]:
    """
    Give a tenant's epoch and freeze after an act; an epoch never falls, so that an act may be applied late or twice.

    Args:
        proposed: The new epoch where a ledger was told it before.
    """
    epoch, frozen = before
    match what:
        case "rotated":
            return (epoch + 1 if proposed is None else max(epoch, proposed)), frozen
        case "frozen":
            return epoch, True
        case _:
            assert what == "thawed", what
            return epoch, False


def check_thawed(*, database_frozen: bool) -> None:
    """
    Refuse to change authority in a database that may be an old copy: what is written there may be lost with it.

    Raises:
        Refused: DATABASE_FROZEN.
    """
    if database_frozen:
        raise Refused(
            "this database is frozen, because it may not be the current one; `tenure doctor` says why. Run "
            "`tenure recover` first",
            code="DATABASE_FROZEN",
        )


def check_bound(bound: str | None, tenant: str | None) -> None:
    """
    Refuse a service of one tenant that acts for another, or for all.

    Raises:
        Refused: TENANT_BOUND.
    """
    if bound is not None and tenant != bound:
        whom = "every tenant" if tenant is None else f"tenant {echo(tenant)}"
        raise Refused(
            f"a service that is bound to tenant {echo(bound)} does not act for {whom}; use a service without a binding",
            code="TENANT_BOUND",
        )


def check_unbound(bound: str | None, what: str) -> None:
    """
    Refuse a service of one tenant that would change what every tenant uses.

    Raises:
        Refused: TENANT_BOUND.
    """
    if bound is not None:
        raise Refused(
            f"a service that is bound to tenant {echo(bound)} does not change {what}, which every tenant uses; use a "
            f"service without a binding",
            code="TENANT_BOUND",
        )
