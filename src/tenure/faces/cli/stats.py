"""`tenure stats`: what waits, what runs and what needs somebody."""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated, Any

import typer

from tenure.faces.cli.options import AsJson, StoreUrl, opened
from tenure.faces.cli.show import table, write_json
from tenure.rules.stats import Category, Stats
from tenure.service import DurableJobService


def stats(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's work.")] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Count what waits, what runs and what needs somebody, with the oldest of each and what it waits for."""
    with opened(store) as made:
        found = DurableJobService(made).stats(tenant=tenant)
    if as_json:
        write_json(fields(found))
    elif found.lines:
        table(
            f"{sum(one.count for one in found.lines)} jobs are not done",
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
    else:
        sys.stdout.write("everything is done\n")


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
