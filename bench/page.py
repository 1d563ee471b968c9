"""
Write docs/internals/performance.md and its plots from a file of results.

    python -m bench.page bench/results/2026-01-01-1200.jsonl [LONG.jsonl] [--relay RELAY.jsonl]

Nothing on the page is typed by hand but the words here: figures, machine, date, settings and versions come from the
results, and what the others do not do from the docstrings of their adapters.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.long import Long, describe_long
from bench.peers.install import ENVIRONMENTS
from bench.protocol import ROOT
from bench.relay_page import describe_relay
from bench.results import Line, Spread, of_row, ratio, read, spread
from bench.rows import OURS, RAW, ROWS, SAME, Row, Side
from bench.svg import Bar, bars, number_text

PAGE = ROOT / "docs" / "internals" / "performance.md"
PEERS = ROOT / "bench" / "peers"

_INTRODUCTION = """\
# Performance

Written by `python -m bench.page` from measured results; do not edit. Repeat it with

```sh
make bench-peers
make bench-long
```

Every figure is the median of {rounds} rounds, with the smallest and the largest beside it; ours and the others were
measured in turns, each in a fresh database with the durability settings below. A run counts only if each job ran in
one handler, once, and the database says that it is finished; of our own jobs the trail is checked too. A drain lasts
from the first handler's start to the moment when no job is unfinished; a pick-up begins when the enqueuing client knows
of its commit. Our jobs always have idempotency keys; the others are faster without and are given none where they can do
without. `raw` is the bare driver, which writes the rows that we write and checks nothing: the floor of the same run,
not a queue.

Figures depend on the machine and on what else it did; the ratios are what to compare. The others do less than we do;
what they leave out is said [below](#what-the-others-do-not-do).
"""


def page(head: Line, lines: Sequence[Line], long: Sequence[Long] = (), relay: Sequence[Line] = ()) -> str:
    """Make the text of the page."""
    measured = [row for row in ROWS if any(line["row"] == row.name for line in lines)]
    parts = [_INTRODUCTION.format(rounds=head.get("rounds", "?")), _where(head)]
    parts += [_section(row, lines) for row in measured]
    if long:
        parts.append("## Long runs\n\n" + describe_long(long))
    if relay:
        parts.append("## Relay\n\n" + describe_relay(relay))
    parts.append("## What the others do not do\n\n" + "\n\n".join(_said_of_peers()))
    return "\n".join(parts) + "\n"


def plots(lines: Sequence[Line]) -> Iterator[tuple[str, str]]:
    """Make the plots: file name and SVG."""
    for row in ROWS:
        shown = [
            Bar(side.system, found, ours=side.system == OURS)
            for side in (row.ours, *row.against)
            if (found := spread(of_row(lines, row.name, side.system), row.measure)) is not None
        ]
        if shown:
            yield f"{row.name}.svg", bars(f"{row.number}: {row.title}", row.unit, shown)


def _where(head: Line) -> str:
    rows = [(name, value) for name, value in head.items() if name not in {"settings", "rounds"}]
    rows += list(dict(head.get("settings", {})).items())
    return "\n".join(["| measured on | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows), ""])


def _section(row: Row, lines: Sequence[Line]) -> str:
    ours = spread(of_row(lines, row.name, OURS), row.measure)
    jobs = sorted({line["jobs"] for line in of_row(lines, row.name, OURS) if "jobs" in line})
    text = [f"## {row.number}: {row.title}", ""]
    if jobs:
        text += [f"{' and '.join(f'{one:,}' for one in jobs)} jobs, {row.database}.", ""]
    if ours is not None:
        text += [f"![{row.number}](performance/{row.name}.svg)", ""]
    text += [
        f"| system | {row.unit} | range | ours against it | wanted |",
        "| --- | --- | --- | --- | --- |",
        *(_line_of(row, side, lines, ours) for side in (row.ours, *row.against)),
        "",
    ]
    if row.limit is not None and ours is not None:
        text += [f"Wanted of ours by itself: at least {row.limit}; {_verdict(ours.median >= row.limit)}.", ""]
    for measure, limit in row.extra.items():
        found = spread(of_row(lines, row.name, OURS), measure)
        if found is not None:
            shown = f"{number_text(found.median)} ({number_text(found.low)} to {number_text(found.high)})"
            text += [f"Our {measure}: {shown}; wanted below {limit:g}: {_verdict(found.median < limit)}.", ""]
    return "\n".join(text)


def _line_of(row: Row, side: Side, lines: Sequence[Line], ours: Spread | None) -> str:
    mine = of_row(lines, row.name, side.system)
    errors = sorted({line["error"] for line in mine if "error" in line})
    found = spread(mine, row.measure)
    name = side.system + (f" ({side.share:.0%} of the jobs)" if side.share != 1 else "")
    if found is None:
        # A system that could not be verified in any round has no number, and the page says why.
        return f"| {name} | none: {'; '.join(errors) or 'not measured'} | | | |"
    cells = [number_text(found.median), f"{number_text(found.low)} to {number_text(found.high)}", "", ""]
    if side.system != OURS:
        reached = ratio(ours, found, less_is_better=row.less_is_better)
        cells[2] = "" if reached is None else f"{reached:.2f} x"
        if side.at_least is not None:
            verdict = "" if reached is None else f", {_verdict(reached >= side.at_least)}"
            cells[3] = f"{side.at_least:g} x{verdict}"
    failed = sum("error" in line for line in mine)
    if failed:
        cells[1] += f"; {failed} rounds failed: {'; '.join(errors)}"
    return f"| {name} | " + " | ".join(cells) + " |"


def _verdict(reached: bool) -> str:  # noqa: FBT001 - it is the sentence's end
    return "reached" if reached else "not reached"


def _said_of_peers() -> Iterator[str]:
    for name in ENVIRONMENTS:
        said = ast.get_docstring(ast.parse((PEERS / f"{name}.py").read_text(encoding="utf-8")))
        assert said is not None, f"{name} says nothing about itself"
        yield "**" + said.replace("\n\n", "**\n\n", 1)
    said = "The fence and the trail are in the statements; no record is made, no rule asked, nothing tried again."
    yield f"**{SAME}: the bare driver with our own statements.**\n\n{said}"
    yield f"**{RAW}: the bare driver.**\n\nNo key is looked up, no digest made, nothing checked or leased to anybody."


def main() -> None:
    """Write the page and the plots."""
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("long", type=Path, nargs="?")
    parser.add_argument("--relay", type=Path, help="what bench.relay printed")
    parser.add_argument("--to", type=Path, default=PAGE)
    options = parser.parse_args()
    head, lines = read(options.results)
    long = [] if options.long is None else [Long.of(line) for line in read(options.long)[1]]
    relay = [] if options.relay is None else [json.loads(line) for line in options.relay.read_text().splitlines()]
    folder = options.to.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawing in plots(lines):
        (folder / name).write_text(drawing, encoding="utf-8")
    options.to.write_text(page(head, lines, long, relay), encoding="utf-8")


if __name__ == "__main__":
    main()
