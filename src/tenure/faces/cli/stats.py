"""`tenure stats`: what waits, what runs and what needs somebody; a line for what is no job."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

from tenure.faces.cli.options import AsJson, OnlyTenant, StoreUrl, opened
from tenure.faces.cli.show import several, table, write_json
from tenure.procedures.authority import read_facts
from tenure.rules.stats import Category, Stats
from tenure.service import DurableJobService
from tenure.stores.contract import Store


def stats(
    tenant: OnlyTenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Count what waits, what runs and what needs somebody, with the oldest of each and what it waits for."""
    with opened(store, tenant=tenant) as made:
        found = DurableJobService(made).stats(tenant=tenant)
        other = beside(made, tenant)
    if as_json:
        write_json({**fields(found), **other})
        return
    if found.lines:
        count = sum(one.count for one in found.lines)
        table(
            "1 job is not done" if count == 1 else f"{count} jobs are not done",
            ("tenant", "kind", "queue", "category", "reason", "missing", "count", "oldest"),
            [
                (
                    one.tenant,
                    one.kind,
                    one.queue,
                    one.category.value,
                    one.reason.value,
                    one.missing.value,
                    one.count,
                    f"{one.oldest_age.total_seconds():.0f} s",
                )
                for one in found.lines
            ],
        )
    elif not any(told(other)):
        sys.stdout.write("everything is done\n")
    sys.stdout.write("".join(f"{line}\n" for line in told(other)))


def beside(made: Store, tenant: str | None = None) -> dict[str, Any]:
    """Give what an operator has to know beside the jobs: the outbox, a frozen database, suspect jobs."""
    service = DurableJobService(made, tenant=tenant)
    outbox = service.outbox_stats()
    age = outbox.oldest_unpublished_age
    # Who sees one tenant cannot ask about the whole.
    frozen = None if made.tenant is not None else made.run(read_facts(None, made.file_identity())).frozen
    return {
        "outbox": {
            "unpublished": outbox.unpublished,
            "oldest_unpublished_age_seconds": None if age is None else age.total_seconds(),
            "set_aside": outbox.states.get("set_aside", 0),
            "held": outbox.states.get("held", 0),
            "codes": sorted({one.code for one in outbox.counts if one.code is not None}),
        },
        "suspects": sum(sum(by_status.values()) for by_status in service.count_suspects().values()),
        "frozen": None if frozen is None else frozen.cause.value,
    }


def told(other: dict[str, Any]) -> list[str]:
    """Say each thing in one line that names the command with more; nothing where there is nothing to say."""
    lines = []
    outbox, suspects = other["outbox"], other["suspects"]
    if other["frozen"] is not None:
        lines.append(f"the database is frozen, nothing runs: {other['frozen']}; `tenure doctor`, then `tenure recover`")
    if outbox["unpublished"]:
        age = outbox["oldest_unpublished_age_seconds"]
        due = "none is due" if age is None else f"the oldest is due for {age:.0f} s"
        lines.append(
            f"outbox: {several(outbox['unpublished'], 'message')} unpublished, {due}, {outbox['set_aside']} set aside, "
            f"{outbox['held']} held; `tenure outbox stats`"
        )
    if suspects:
        are = "is" if suspects == 1 else "are"
        lines.append(f"{several(suspects, 'job')} of a restored copy {are} suspect; `tenure suspects list`")
    return lines


def fields(found: Stats) -> dict[str, Any]:
    """Give the counts under their stable names."""
    return {
        "at": found.at,
        "totals": {category.value: found.count(category) for category in Category},
        "oldest_expired_lease_seconds": found.oldest_expired_lease_seconds,
        "lines": [_line(dataclasses.asdict(one)) for one in found.lines],
    }


def _line(line: dict[str, Any]) -> dict[str, Any]:
    line["oldest_age_seconds"] = line.pop("oldest_age")
    return line
