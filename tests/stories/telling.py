"""
What the pages of the stories show: the trail, the stored rows and the provider's ledger, written from the real ones.

A page has blocks fenced as `trail`, `store` and `ledger`. Each story's test writes them anew and compares, on both
databases, so that a page cannot say what does not happen. With STORIES_WRITE=1 in the environment the blocks are
replaced instead; read the difference before committing it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from tenure.connectors.simulator import Entry
from tenure.rules.event import Event
from tenure.rules.job import Job
from tests.support.tree import ROOT

PAGES = ROOT / "docs" / "explanation" / "stories"
_BLOCK = re.compile(r"^```(trail|store|ledger)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Telling:
    """The blocks of one page, in the order in which the story comes to them."""

    def __init__(self, page: str) -> None:
        self._path = PAGES / page
        self._told: list[tuple[str, str]] = []
        self._events = 0

    def trail(self, job: Job, events: Sequence[Event]) -> None:
        """Tell what is new in the trail since it was last told."""
        fresh, self._events = events[self._events :], len(events)
        self._tell("trail", _columns([_event(event, job.id) for event in fresh]))

    def store(self, job: Job, published: Sequence[tuple[str, int]]) -> None:
        rows = [["job", job.status.value, f"attempt {job.attempt_count} of {job.max_attempts}, {job.phase}"]]
        if job.error_code is not None:
            rows.append(["", "", job.error_code])
        for effect in job.effects:
            by = f", by {effect.settled_by}" if effect.settled_by else ""
            rows.append([effect.name or "mark", f"{effect.state}{by}", _short(effect.operation_key, job.id)])
        if job.escalation_reason is not None:
            rows.append(["a person", "is asked", _short(job.escalation_reason, job.id)])
        mine = [generation for job_id, generation in published if job_id == str(job.id)]
        rows.append(["published", f"{len(mine)} row{'' if len(mine) == 1 else 's'}", _at(mine)])
        self._tell("store", _columns(rows))

    def ledger(self, job: Job, entries: Sequence[Entry]) -> None:
        rows = []
        for entry in entries:
            what = entry.effect_id or ("nothing known" if entry.action == "looked_up" else "")
            if entry.action == "looked_up" and entry.status == 200:
                what = "known"
            if entry.duplicate:
                what += ", the second under this key"
            rows.append([entry.action, _short(entry.operation_key, job.id), what])
        self._tell("ledger", _columns(rows) if rows else "nothing\n")

    def check(self) -> None:
        """Compare with the page; or write it."""
        text = self._path.read_text(encoding="utf-8")
        if os.environ.get("STORIES_WRITE"):
            self._path.write_text(self._replaced(text), encoding="utf-8")
            return
        written = [(kind, content) for kind, content in _BLOCK.findall(text)]
        assert written == self._told, f"{self._path.name} does not say what happens"

    def _replaced(self, text: str) -> str:
        told = iter(self._told)

        def again(match: re.Match[str]) -> str:
            kind, content = next(told)
            assert kind == match.group(1), f"{self._path.name}: the blocks come in another order"
            return f"```{kind}\n{content}```"

        return _BLOCK.sub(again, text)

    def _tell(self, kind: str, content: str) -> None:
        self._told.append((kind, content))


def _at(generations: list[int]) -> str:
    return "" if not generations else f"by generation {', '.join(map(str, generations))}"


def _short(text: str, job_id: UUID) -> str:
    return text.replace(str(job_id), "<job>")


def _columns(rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


def _event(event: Event, job_id: UUID) -> list[str]:
    detail = _short(_detail(event.name.value, event.data), job_id)
    if event.actor is not None:
        detail = f"{detail}, by {event.actor}" if detail else f"by {event.actor}"
    return [str(event.generation), event.name.value, event.status.value if event.status else "", detail]


def _detail(name: str, data: Mapping[str, Any]) -> str:
    match name:
        case "claimed":
            return f"attempt {data['attempt']}, worker {data['worker']}"
        case "dispatched":
            return str(data["name"] or data["operation_key"])
        case "effect_settled":
            return f"{data['name']} is {data['state']}, {_source(data)}"
        case "reconciled":
            return f"{data['evidence']}, {_source(data)}"
        case "evidence_received":
            return f"{data['kind']} for {data['operation_key']}"
        case "lease_expired":
            return f"worker {data['worker']}"
        case "retried" if "reopened" in data:
            names = ", ".join(str(one["name"]) for one in data["reopened"])
            return f"{data['attempts']} more attempt, {names} reopened"
        case "retried" if "attempts" in data:
            return f"{data['attempts']} more attempt"
        case _:
            return str(data.get("code") or data.get("reason") or "")


def _source(data: Mapping[str, Any]) -> str:
    reason = f" ({data['reason']})" if "reason" in data else ""
    return {
        "outcome": "the call did not say" if data.get("state") == "unknown" else "the call said so",
        "lookup": "the provider was asked",
        "evidence": "stored evidence",
        "statement": f"stated{reason}",
    }.get(str(data["by"]), str(data["by"]))
