"""How queues are served: fair, so that tenants take turns, or plain."""

from __future__ import annotations

from tenure.rules.fairness import QueueSetting
from tenure.yields import Each, Script, Statement, procedure


@procedure
def save_queue(setting: QueueSetting) -> Script[QueueSetting]:
    """
    Say how a queue is served; what was said before is forgotten.

    Rows that come to ready from now on are put into lanes by it; rows that are there already are served where they are.

    Locks: the queue's row. Writes: queue, queue_weight.
    """
    yield [
        Statement("queue_save", {"name": setting.name, "fair": setting.fair}),
        Statement("queue_unweigh", {"name": setting.name}),
        Each("queue_weigh", [(tenant, setting.name, weight) for tenant, weight in setting.weights.items()]),
    ]
    return setting


@procedure(reads=True)
def list_queues(*, tenant: str | None = None) -> Script[list[QueueSetting]]:
    """
    Give every queue that somebody has said something about, by name; all others are plain.

    Args:
        tenant: Of the weights only this tenant's.
    """
    fair: dict[str, bool] = {}
    weights: dict[str, dict[str, int]] = {}
    for name, is_fair, whose, weight in (yield Statement("queue_list")):
        fair[name] = bool(is_fair)
        of_queue = weights.setdefault(name, {})
        if whose is not None and tenant in {None, whose}:
            of_queue[whose] = weight
    return [QueueSetting(name, is_fair, weights[name]) for name, is_fair in fair.items()]
