"""Verbs about queues as a whole."""

from __future__ import annotations

from collections.abc import Mapping

from tenure.procedures import queues
from tenure.rules.authority import check_unbound
from tenure.rules.fairness import QueueSetting, check_setting
from tenure.verbs.scope import Scope
from tenure.yields import Procedure


def set_queue(
    scope: Scope, name: str, *, fair: bool, weights: Mapping[str, int] | None = None
) -> Procedure[QueueSetting]:
    """
    Say how a queue is served; what was said before is forgotten. A queue is plain until somebody makes it fair.

    It counts for jobs that become ready from now on; those that are ready are served where they are, beside the others.

    Args:
        name: The queue; it need not have any jobs.
        fair: Tenants take turns; False serves the most urgent job first, whoever's it is.
        weights: Jobs of a tenant in one turn, from 1 to 100; 1 for whoever is left out. For fair queues.
    Raises:
        Refused: The service is bound to a tenant; a queue is everybody's.
    Locks: the queue's setting. Writes: queue, queue_weight.
    """
    setting = check_setting(name, fair=fair, weights=weights)
    check_unbound(scope.tenant, "queues")
    return queues.save_queue(setting)


def list_queues(scope: Scope) -> Procedure[list[QueueSetting]]:
    """Give every queue that somebody has said something about, by name; all others are plain."""
    return queues.list_queues(tenant=scope.tenant)
