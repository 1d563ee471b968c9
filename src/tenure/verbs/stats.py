"""The verb that counts."""

from __future__ import annotations

from tenure.procedures import stats as counting
from tenure.rules.stats import Stats
from tenure.verbs.scope import Scope
from tenure.yields import Procedure


def stats(scope: Scope, *, tenant: str | None = None) -> Procedure[Stats]:
    """
    Count what waits, runs and needs somebody: by tenant, kind, queue, category and reason, with the oldest of each.

    Work that is done is not counted, and not walked. Only names and numbers: no payload, no text of an error.

    Returns:
        The lines, and how long ago the first unsettled lease of each tenant ran out.
    """
    return counting.stats(tenant=scope.narrow(tenant))
