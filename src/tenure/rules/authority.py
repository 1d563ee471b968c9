"""
Who may act at all: the epoch of a tenant, and freezes.

An epoch is authority of a whole tenant, a generation belongs to one job. Work stamped with an older epoch is held until
it is readmitted; on a frozen tenant or database nothing is claimed, dispatched or published.
"""

from __future__ import annotations

from dataclasses import dataclass


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
