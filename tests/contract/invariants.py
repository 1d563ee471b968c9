"""
What must be true of the stored rows after whatever a test did, read from the tables alone.

`broken` gives every violation in words; an empty list is what every test of the suite ends with. The trail is trusted
for order only: what it says is compared with the rows.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

from tests.contract.bench import NEIGHBOUR, OF_TENANTS, PLACES, Dump, Row

# Written here by hand, from the contract: the status each event may leave behind.
_LEAVES = {
    "claimed": {"claimed", "running"},
    "dispatched": {"running"},
    "heartbeat": {"running"},
    "completed": {"completed"},
    "failed": {"failed"},
    "cancelled": {"cancelled"},
    "indeterminate": {"indeterminate"},
    "halt_unsafe": {"halt_unsafe"},
    "dead_lettered": {"dead_letter"},
    "timed_out": {"timed_out"},
    "retried": {"queued"},
    "reconciled": {"completed", "failed", "dead_letter", "cancelled", "queued"},
    "released": {"queued"},
    "lease_expired": {"queued"},
    "revoked": {"cancelled"},
    "suspended": {"queued"},
}
_NO_STATUS = {
    "admission_checked",
    "escalated",
    "execution_control_shadow",
    "cancel_requested",
    "resumed",
    "effect_settled",
    "evidence_received",
    "readmitted",
    "suspected",
    "suspicion_cleared",
}
_TABLE_OF = {
    "queued": {"ready", "deferred", "resting"},
    "claimed": {"lease"},
    "running": {"lease"},
    "indeterminate": {"resting"},
    "timed_out": {"resting"},
    "completed": {"outcome"},
    "failed": {"outcome"},
    "cancelled": {"outcome"},
    "dead_letter": {"outcome"},
    "halt_unsafe": {"outcome"},
}
_ENDS = {"queued", "failed", "cancelled", "dead_letter", "indeterminate", "halt_unsafe", "timed_out"}
_MOVES = {
    "queued": {"claimed", "running", "cancelled"},
    "claimed": {"running", *_ENDS},
    "running": {"running", "completed", *_ENDS},
}
_BY_NAME = {
    ("failed", "retried"): {"queued"},
    ("indeterminate", "reconciled"): {"completed", "failed", "dead_letter", "cancelled", "queued"},
    ("timed_out", "reconciled"): {"completed", "failed", "dead_letter", "cancelled", "queued"},
}
_OPEN = {"pending", "unknown"}


def broken(dump: Dump, baseline: Dump | None = None) -> list[str]:
    """
    Give every violation of an invariant.

    Args:
        baseline: The rows before the test; those of the neighbour must not have changed.
    """
    places = _places(dump)
    trails = _trails(dump)
    found = [*_one_place(dump, places), *_vocabulary(dump)]
    for job_id, (table, row) in places.items():
        trail = trails.get(job_id, [])
        found += _status(job_id, table, row, trail)
        found += _generations(job_id, row, trail)
    found += _boundaries(dump, places)
    found += _intents(dump, trails)
    found += _tenants(dump)
    found += _approvals(dump)
    if baseline is not None:
        found += _neighbour(dump, baseline)
    return found


def _places(dump: Dump) -> dict[str, tuple[str, Row]]:
    return {row["job_id"]: (table, row) for table in PLACES for row in dump[table]}


def _trails(dump: Dump) -> dict[str, list[Row]]:
    trails: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(dump["event"], key=lambda row: int(row["event_id"])):
        trails[row["job_id"]].append(row)
    return trails


def _one_place(dump: Dump, places: dict[str, Any]) -> list[str]:
    times = Counter(row["job_id"] for table in PLACES for row in dump[table])
    bodies = {row["job_id"] for row in dump["job"]}
    found = [f"{job_id} is in {count} places" for job_id, count in times.items() if count != 1]
    found += [f"{job_id} is in no place" for job_id in bodies - set(places)]
    found += [f"{job_id} has a place and no body" for job_id in set(places) - bodies]
    keyed = {row["job_id"] for row in dump["job_key"]}
    return found + [f"{job_id} has no idempotency key in the ledger" for job_id in bodies - keyed]


def _vocabulary(dump: Dump) -> list[str]:
    found = []
    for row in dump["event"]:
        name, status = row["name"], row["status"]
        if name not in _LEAVES and name not in _NO_STATUS:
            found.append(f"unknown event {name}")
        elif name in _NO_STATUS and status is not None:
            found.append(f"event {name} says status {status}")
        elif name in _LEAVES and status not in _LEAVES[name]:
            found.append(f"event {name} leaves {status}")
    return found


def _status(job_id: str, table: str, row: Row, trail: list[Row]) -> list[str]:
    stored = row.get("status", "queued")
    found = [] if table in _TABLE_OF[stored] else [f"{job_id} is {stored} in {table}"]
    status = "queued"
    for event in trail:
        after = event["status"]
        if after is None:
            continue
        if after not in _MOVES.get(status, set()) | _BY_NAME.get((status, event["name"]), set()):
            found.append(f"{job_id} went from {status} to {after} by {event['name']}")
        status = after
    if status != stored:
        found.append(f"{job_id} is {stored}, its trail says {status}")
    return found


def _generations(job_id: str, row: Row, trail: list[Row]) -> list[str]:
    found = []
    before = claimed = 0
    for event in trail:
        generation = event["generation"]
        if generation < before:
            found.append(f"{job_id}: generation fell from {before} to {generation}")
        if event["name"] == "claimed":
            if generation <= claimed:
                found.append(f"{job_id}: a claim left generation {generation}")
            claimed = generation
        before = generation
    if row["generation"] < before:
        found.append(f"{job_id}: the row has generation {row['generation']}, its trail {before}")
    return found


def _boundaries(dump: Dump, places: dict[str, tuple[str, Row]]) -> list[str]:
    found = []
    for row in dump["effect"]:
        if row["job_id"] not in places:
            continue  # told already
        table, place = places[row["job_id"]]
        if row["state"] in _OPEN and place.get("status", "queued") == "queued":
            found.append(f"{row['job_id']} is queued in {table} and {row['operation_key']} is open")
        if row["state"] in _OPEN and place.get("status") == "completed":
            found.append(f"{row['job_id']} is completed and {row['operation_key']} is open")
    for job_id, (table, row) in places.items():
        if row.get("status", "queued") == "queued" and row.get("cancel_requested_at") is not None:
            found.append(f"{job_id} is queued in {table} with a pending cancellation")
    return found


def _intents(dump: Dump, trails: dict[str, list[Row]]) -> list[str]:
    found = []
    dispatched: set[tuple[str, str]] = set()
    for job_id, trail in trails.items():
        may_send: dict[str, bool] = defaultdict(lambda: True)
        for event in trail:
            data = event["data"]
            if data is None:
                continue
            told = _json(data)
            key = str(told.get("operation_key"))
            if event["name"] == "dispatched" and told.get("sent"):
                dispatched.add((event["tenant"], key))
                if not may_send[key]:
                    found.append(f"{job_id}: a second intent for {key} while the first may have arrived")
                may_send[key] = False
            elif event["name"] == "effect_settled" and told.get("state") == "failed_before_dispatch":
                may_send[key] = True
    committed = {(row["tenant"], row["operation_key"]) for row in dump["intent"]}
    if committed != dispatched:
        found.append(f"intents and dispatches differ in {committed ^ dispatched}")
    return found


def _tenants(dump: Dump) -> list[str]:
    owner = {row["job_id"]: row["tenant"] for row in dump["job"]}
    return [
        f"{table}: a row of {row[_JOB.get(table, 'job_id')]} says tenant {row['tenant']}"
        for table in OF_TENANTS
        if not table.startswith("authority")
        for row in dump[table]
        if owner.get(row[_JOB.get(table, "job_id")]) not in {None, row["tenant"]}
    ]


_JOB = {"approval": "consumed_by"}


def _approvals(dump: Dump) -> list[str]:
    """A job has an approval from its first intent on, not earlier, and only while it stood."""
    begun = {row["job_id"]: row["at"] for row in sorted(dump["intent"], key=lambda row: -int(row["at"]))}
    found = []
    for row in dump["approval"]:
        name, job_id = row["reference"], row["consumed_by"]
        if job_id is not None and begun.get(job_id) != row["consumed_at"]:
            found.append(f"approval {name} was consumed apart from the first intent of {job_id}")
    return found


def _neighbour(dump: Dump, baseline: Dump) -> list[str]:
    return [
        f"{table}: rows of another tenant changed"
        for table in OF_TENANTS
        if [row for row in dump[table] if row["tenant"] == NEIGHBOUR]
        != [row for row in baseline[table] if row["tenant"] == NEIGHBOUR]
    ]


def _json(text: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(text)
    return told
