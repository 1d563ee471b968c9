"""The checker that every test ends with is checked itself: each broken history is refused, the good one passes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.bench import TABLES, Dump
from tests.contract.invariants import broken

JOB, OTHER = "job-1", "job-2"


def good() -> Dump:
    """Give a job that was sent once and completed, and one that waits."""
    dump: Dump = {table: [] for table in TABLES}
    for job_id, tenant in ((JOB, "acme"), (OTHER, "zeta")):
        dump["job"].append({"job_id": job_id, "tenant": tenant})
        dump["job_key"].append({"job_id": job_id, "tenant": tenant})
    dump["ready"].append({"job_id": OTHER, "tenant": "zeta", "generation": 0})
    dump["outcome"].append({"job_id": JOB, "tenant": "acme", "status": "completed", "generation": 2,
                            "cancel_requested_at": None})  # fmt: skip
    sent = '{"operation_key": "k", "sent": true}'
    unsent = '{"operation_key": "k", "state": "failed_before_dispatch"}'
    done = '{"operation_key": "k", "state": "succeeded"}'
    story: list[tuple[str, str | None, int, str | None]] = [
        ("claimed", "running", 1, None),
        ("dispatched", "running", 1, sent),
        ("effect_settled", None, 1, unsent),
        ("retried", "queued", 1, None),
        ("claimed", "claimed", 2, None),
        ("dispatched", "running", 2, sent),
        ("effect_settled", None, 2, done),
        ("completed", "completed", 2, None),
    ]
    for nth, (name, status, generation, data) in enumerate(story):
        dump["event"].append({"event_id": nth, "job_id": JOB, "tenant": "acme", "name": name, "status": status,
                              "generation": generation, "data": data})  # fmt: skip
    dump["effect"].append({"job_id": JOB, "tenant": "acme", "state": "succeeded", "operation_key": "k"})
    dump["intent"] = [{"job_id": JOB, "tenant": "acme", "operation_key": "k", "at": at} for at in (4, 3)]
    dump["approval"].append({"reference": "ap-1", "tenant": "acme", "consumed_by": JOB, "consumed_at": 3})
    return dump


def test_a_good_history_passes() -> None:
    assert broken(good(), good()) == []


def event(nth: int, **change: Any) -> Callable[[Dump], Any]:
    return lambda dump: dump["event"][nth].update(change)


BAD: dict[str, tuple[Callable[[Dump], Any], str]] = {
    "two places": (lambda d: d["lease"].append({**d["outcome"][0], "status": "running"}), "2 places"),
    "no place": (lambda d: d["outcome"].clear(), "in no place"),
    "a place without a body": (lambda d: d["job"].pop(0), "has a place and no body"),
    "no key in the ledger": (lambda d: d["job_key"].pop(0), "no idempotency key"),
    "a status in the wrong table": (
        lambda d: d["resting"].append(d["outcome"].pop()), "is completed in resting"
    ),
    "a status the trail does not know": (lambda d: d["outcome"][0].update(status="failed"), "its trail says completed"),
    "a lost last event": (lambda d: d["event"].pop(), "its trail says running"),
    "an unknown event": (event(2, name="settled"), "unknown event"),
    "a status where there is none": (event(2, status="running"), "says status running"),
    "an event that leaves another status": (event(7, status="failed"), "leaves failed"),
    "a move that the table does not have": (event(3, name="completed", status="completed"), "went from completed"),
    "a generation that falls": (event(5, generation=1), "generation fell"),
    "a claim without a new generation": (event(4, generation=1), "a claim left generation 1"),
    "a row behind its trail": (lambda d: d["outcome"][0].update(generation=1), "the row has generation 1"),
    "an open effect of a completed job": (lambda d: d["effect"][0].update(state="unknown"), "is open"),
    "an open effect of a queued job": (
        lambda d: d["effect"].append({"job_id": OTHER, "tenant": "zeta", "state": "pending", "operation_key": "z"}),
        "is queued in ready",
    ),
    "a queued job with a pending cancellation": (
        lambda d: d["ready"][0].update(cancel_requested_at=5), "with a pending cancellation"
    ),
    "a second intent while the first may have arrived": (
        event(2, data='{"operation_key": "k", "state": "unknown"}'), "a second intent"
    ),
    "an approval consumed by a later intent": (
        lambda d: d["approval"][0].update(consumed_at=4), "apart from the first intent"
    ),
    "an approval consumed by a job that began nothing": (
        lambda d: d["approval"][0].update(consumed_by=OTHER, tenant="zeta"), "apart from the first intent"
    ),
    "an approval consumed by another tenant's job": (
        lambda d: d["approval"][0].update(tenant="zeta"), "says tenant zeta"
    ),
    "a dispatch without an intent": (lambda d: d["intent"].clear(), "intents and dispatches differ"),
    "an intent without a dispatch": (
        lambda d: d["intent"].append({"job_id": JOB, "tenant": "acme", "operation_key": "x", "at": 5}), "differ"
    ),
    "a row of one tenant that says another": (lambda d: d["effect"][0].update(tenant="zeta"), "says tenant zeta"),
    "a neighbour's row that changed": (lambda d: d["ready"][0].update(generation=1), "rows of another tenant changed"),
    "a neighbour's row that is gone": (lambda d: d["job_key"].pop(1), "rows of another tenant changed"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_is_refused(name: str) -> None:
    spoil, text = BAD[name]
    dump = copy.deepcopy(good())
    spoil(dump)
    assert any(text in problem for problem in broken(dump, good())), broken(dump, good())
