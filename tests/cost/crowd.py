"""
Rows by the ten thousand, copied from a real one: what surrounds the work whose cost is measured.

Copies are made by the server, whatever columns a table has; each gets an id of its own, and what is said otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

import psycopg

from tenure import Tenure
from tenure.stores.contract import Store
from tests.cost.work import finish, prepared, put, take

# Puts so many jobs around the ones that are worked on.
Around: TypeAlias = Callable[[psycopg.Connection[Any], Tenure, Store, int], None]

# Ids of copies: older than every real one, in the order of their numbers.
_ID = "('01900000-%s-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid"


def _multiply(
    connection: psycopg.Connection[Any], table: str, job: UUID, count: int, group: str, **fields: Any
) -> None:
    made = connection.execute(
        f"INSERT INTO tenure.{table} OVERRIDING SYSTEM VALUE "
        f"SELECT made.* FROM tenure.{table} one CROSS JOIN generate_series(1, {count}) n CROSS JOIN LATERAL "
        f"json_populate_record(one, json_build_object('job_id', {_ID % group})) same CROSS JOIN LATERAL "
        "json_populate_record(same, %s::json) made "
        "WHERE one.job_id = %s",
        [json.dumps(fields), job],
    )
    assert made.rowcount >= count, f"there is no row of {job} in {table} to copy"


def waiting(connection: psycopg.Connection[Any], app: Tenure, store: Store, count: int) -> None:
    """Jobs of lower priority that could be claimed, behind those that are."""
    [job] = prepared(app, [1], key="waiting", priority=-5)
    put(store.run, [job])
    for table in ("job", "ready"):
        _multiply(connection, table, job.job_id, count, "0001")


def deferred(connection: psycopg.Connection[Any], app: Tenure, store: Store, count: int) -> None:
    """Jobs of higher priority whose time has not come."""
    [job] = prepared(app, [1], key="deferred", priority=9, scheduled_at=datetime.now(UTC) + timedelta(days=1))
    put(store.run, [job])
    for table in ("job", "deferred"):
        _multiply(connection, table, job.job_id, count, "0002")


def finished(connection: psycopg.Connection[Any], app: Tenure, store: Store, count: int) -> None:
    """Jobs that are done, with their trail."""
    job = _claimed(app, store, "finished", done=True)
    for table in ("job", "outcome", "event"):
        _multiply(connection, table, job, count, "0003")


def leased(connection: psycopg.Connection[Any], app: Tenure, store: Store, count: int) -> None:
    """Jobs that other workers run."""
    job = _claimed(app, store, "leased", done=False)
    for table in ("job", "lease", "event"):
        _multiply(connection, table, job, count, "0004")


def _claimed(app: Tenure, store: Store, key: str, *, done: bool) -> UUID:
    [job] = prepared(app, [1], key=key, priority=9)
    put(store.run, [job])
    [claim], _ = take(store, 1)
    assert claim.lease.job_id == job.job_id
    if done:
        finish(store, [claim])
    return job.job_id
