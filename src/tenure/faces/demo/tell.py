"""Tell the story: a line when something happens, a table when it is over, one job's two histories side by side."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import TextIO

from rich.box import ROUNDED
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tenure.connectors.simulator import Entry
from tenure.faces.demo.verdict import Report
from tenure.rules.event import Event, EventName
from tenure.rules.job import Job

_PIPE_WIDTH = 110
_WHO = 10


class Teller:
    """Writes for people, to one stream."""

    def __init__(self, stream: TextIO) -> None:
        self._out = Console(
            file=stream, width=None if stream.isatty() else _PIPE_WIDTH, highlight=False, soft_wrap=not stream.isatty()
        )
        self._began = time.monotonic()

    def title(self, text: str) -> None:
        """Begin."""
        self._out.print(Text(text, style="bold"))

    def line(self, who: str, text: str, style: str = "") -> None:
        """Say what has just happened, and who did it."""
        passed = time.monotonic() - self._began
        said = Text().append(f"{passed:5.1f} s  ", style="dim")
        said.append(f"{who:<{_WHO}}  ", style="bold")
        said.append(text, style=style)
        self._out.print(said)

    def report(self, report: Report) -> None:
        """Show the counts."""
        table = self._table()
        table.add_column("counted")
        table.add_column("", justify="right")
        table.add_column("where it was counted", style="dim")
        for name, count, where in (
            ("jobs accepted with their quotes", report.jobs, "store, table quotes"),
            ("jobs completed", report.completed, "store"),
            ("workers killed after the provider accepted", report.killed_after_acceptance, "kernel, ledger, store"),
            ("effects settled by asking the provider", report.reconciled, "store"),
            ("mails in the provider's ledger", report.provider_effects, "provider's ledger"),
            ("mails too many", report.duplicate_effects, "provider's ledger"),
            ("jobs lost", report.lost_jobs, "store, provider's ledger"),
            ("late writes refused", report.stale_writes_refused, "tables visits, publications"),
            ("current writes accepted", report.current_writes_accepted, "table publications"),
        ):
            table.add_row(name, str(count), where)
        self._out.print()
        self._out.print(table)

    def ending(self, report: Report) -> None:
        """Say whether the promises held."""
        if report.held:
            self._out.print(Text(f"Every promise held, in {report.seconds:g} s.", style="bold green"))
            return
        for reason in report.broken:
            self._out.print(Text(f"BROKEN  {reason}", style="bold red"))

    def histories(self, quote: str, job: Job, events: Sequence[Event], entries: Sequence[Entry]) -> None:
        """Show what the store wrote down about one job beside what the provider wrote down."""
        rows = [(event.at, _event(event), "") for event in events]
        rows += [
            (datetime.fromisoformat(entry.at), "", _entry(entry))
            for entry in entries
            if str(job.id) in entry.operation_key
        ]
        table = self._table()
        table.add_column("time", style="dim")
        table.add_column("what the store wrote down")
        table.add_column("what the provider wrote down")
        for at, ours, theirs in sorted(rows, key=lambda row: row[0]):
            table.add_row(at.strftime("%H:%M:%S.%f")[:-3], ours, theirs)
        self._out.print()
        self._out.print(Text(f"The trail of {quote}, job {job.id}", style="bold"))
        self._out.print(table)
        acts = [
            entry.effect_id for entry in entries if entry.action == "accepted" and str(job.id) in entry.operation_key
        ]
        mails = "one mail exists" if len(acts) == 1 else f"{len(acts)} mails exist"
        self._out.print(f"For {quote} {mails}: {', '.join(acts)}.\n", markup=False)

    def note(self, text: str) -> None:
        """Say something beside the story."""
        self._out.print(Text(text, style="dim"))

    def _table(self) -> Table:
        return Table(box=ROUNDED if self._out.is_terminal else None, pad_edge=self._out.is_terminal)


def _event(event: Event) -> str:
    data = event.data
    status = "" if event.status is None else f": {event.status}"
    match event.name:
        case EventName.CLAIMED:
            return f"claimed by {_short(data.get('worker'))}, generation {event.generation}"
        case EventName.DISPATCHED if data.get("sent"):
            return f"intent to {data.get('name')}, before the call"
        case EventName.DISPATCHED:
            return f"receipt of {data.get('name')} read, nothing is sent"
        case EventName.EFFECT_SETTLED:
            return f"effect {data.get('state')}, known by {data.get('by')}"
        case EventName.INDETERMINATE:
            return f"lease of {_short(data.get('worker'))} over, nobody knows{status}"
        case EventName.LEASE_EXPIRED:
            return f"lease of {_short(data.get('worker'))} over{status}"
        case _:
            return event.name.value if event.name.value == event.status else f"{event.name}{status}"


def _entry(entry: Entry) -> str:
    match entry.action:
        case "accepted":
            held = ", the answer held back" if entry.fault == "hold_reply" else ""
            return f"accepted {entry.effect_id}{held}"
        case "looked_up":
            return f"asked what became of it: {'accepted' if entry.status == 200 else f'status {entry.status}'}"
        case _:
            return f"{entry.action} {entry.effect_id}".rstrip()


def _short(worker: object) -> str:
    return f"worker {str(worker).rpartition(':')[2]}"
