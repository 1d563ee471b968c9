"""The section about the relay, made of what `python -m bench.relay` printed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

# Messages a second to a broker and to our own jobs from PostgreSQL; and what must be left of it beside many others.
WANTED, SHARE = 2_000, 0.9

_SAID = """\
One relay process, {waiting:,} other messages or none, fsync on, {dates}; medians, with the smallest and the largest.
The ratio is of our process's time on a processor for each message, alone against beside, which other work on the
machine disturbs least. Wanted: {wanted:,} a second from PostgreSQL on a machine with nothing else to do, and a ratio of
{share} at least.

"""


def describe_relay(lines: Sequence[dict[str, Any]]) -> str:
    """Make the section: for each store and destination alone, and beside what waits."""
    rows = [
        "| outbox, destination | alone, messages/s | load | beside waiting ones | load | ratio of our own time |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for store, to in dict.fromkeys((one["store"], one["to"]) for one in lines):
        mine = [one for one in lines if (one["store"], one["to"]) == (store, to)]
        alone, beside = ([one for one in mine if bool(one["waiting"]) is many] for many in (False, True))
        ratio = _middle(alone, "own_us_each") / _middle(beside, "own_us_each")
        cells = [cell for some in (alone, beside) for cell in (_rates(some), _loads(some))]
        rows.append(f"| {store}, {to} | " + " | ".join(cells) + f" | {ratio:.2f} |")
    dates = " and ".join(sorted({one["date"] for one in lines}))
    waiting = max(one["waiting"] for one in lines)
    said = _SAID.format(dates=dates, waiting=waiting, wanted=WANTED, share=SHARE)
    return said + "\n".join(rows) + "\n"


def _middle(lines: Sequence[dict[str, Any]], measure: str) -> float:
    return float(median(one[measure] for one in lines))


def _rates(lines: Sequence[dict[str, Any]]) -> str:
    found = [one["events_per_second"] for one in lines]
    return f"{median(found):,.0f} ({min(found):,} to {max(found):,})"


def _loads(lines: Sequence[dict[str, Any]]) -> str:
    return f"{min(one['load'] for one in lines)} to {max(one['load'] for one in lines)}"
