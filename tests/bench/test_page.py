"""The page says what the results say, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from bench.long import Long, describe_long
from bench.page import page, plots
from bench.peers.install import ENVIRONMENTS
from bench.protocol import percentile
from bench.relay_page import describe_relay
from bench.results import Book, Spread, ratio, read, spread
from bench.rows import OURS, RAW, ROWS, SAME
from bench.svg import Bar, bars
from tests.support.tree import ROOT

SAMPLE = Path(__file__).with_name("sample.jsonl")
HEAD, LINES = read(SAMPLE)


def line_of(text: str, start: str) -> str:
    found = [line for line in text.splitlines() if line.startswith(start)]
    assert len(found) == 1, found
    return found[0]


def test_statistics() -> None:
    found = Spread((3.0, 1.0, 10.0))
    assert (found.median, found.low, found.high) == (3.0, 1.0, 10.0)
    assert ratio(Spread((6.0,)), found) == 2.0
    assert ratio(Spread((6.0,)), found, less_is_better=True) == 0.5
    assert ratio(Spread((0.0,)), found) is None
    assert ratio(None, found) is None
    assert spread([{"rate": 1}, {"error": "x"}, {"rate": 2.5}], "rate") == Spread((1.0, 2.5))
    assert spread([{"error": "x"}], "rate") is None


@pytest.mark.parametrize("percent,value", [(50, 50), (99, 99), (100, 100), (1, 1)])
def test_percentiles_are_values_that_were_seen(percent: int, value: int) -> None:
    assert percentile([float(one) for one in range(100, 0, -1)], percent) == value
    assert percentile([4.0], percent) == 4.0


def test_medians_ranges_and_ratios_are_on_the_page() -> None:
    text = page(HEAD, LINES)
    section = text.split("## P1:")[1].split("\n## ")[0]
    assert line_of(section, "10,000 ") == "10,000 jobs, postgresql."
    assert line_of(section, "| ours ") == "| ours | 12,000 | 11,000 to 13,000 |  |  |"
    assert line_of(section, "| pgqueuer ") == "| pgqueuer | 8,000 | 7,000 to 9,000 | 1.50 x | 1.3 x, reached |"
    raw = line_of(section, "| raw ")
    assert raw == "| raw | 21,000 | 20,000 to 22,000; 1 rounds failed: a stranger's error | 0.57 x |  |"


def test_where_less_is_better_the_ratio_is_turned_round() -> None:
    section = page(HEAD, LINES).split("## P6:")[1].split("\n## ")[0]
    assert "| 1.50 x | 1 x, reached |" in line_of(section, "| oban ")
    assert "| 0.50 x | 1 x, not reached |" in line_of(section, "| pgqueuer ")
    assert "Our p99_ms: 8.00 (8.00 to 8.00); wanted below 10: reached." in section


def test_what_has_no_number_says_why() -> None:
    text = page(HEAD, LINES)
    assert line_of(text, "| chancy ").startswith("| chancy | none: not installed; python -m bench.peers.install chancy")
    assert "Wanted of ours by itself: at least 0.15; not reached." in text
    # Rows without any measurement are left out, not shown empty.
    assert "## P2:" not in text


def test_the_machine_and_the_settings_are_on_the_page() -> None:
    text = page(HEAD, LINES)
    for shown in ("| cores | 2 |", "| postgresql | 15.4 |", "| fsync | on |", "| synchronous_commit | on |"):
        assert shown in text
    assert "median of 3 rounds" in text


def test_every_peer_says_what_it_does_not_do() -> None:
    said = page(HEAD, LINES).split("## What the others do not do")[1]
    compared = {side.system for row in ROWS for side in row.against} - {OURS, RAW, SAME}
    assert compared == set(ENVIRONMENTS)
    assert said.count("**") == 2 * (len(ENVIRONMENTS) + 2)


def test_plots_are_xml_with_a_bar_for_each_system() -> None:
    drawn = dict(plots(LINES))
    assert set(drawn) == {"p1.svg", "p6.svg", "p11-four.svg"}
    root = ET.fromstring(drawn["p1.svg"])
    rectangles = root.findall("{http://www.w3.org/2000/svg}rect")
    # The background, and ours, pgqueuer and raw.
    assert len(rectangles) == 4
    widths = [float(one.get("width", "0")) for one in rectangles[1:]]
    assert widths[0] / widths[1] == pytest.approx(12_000 / 8_000, rel=0.01)


def test_a_name_cannot_break_a_plot() -> None:
    drawn = bars("a < b & c", "jobs/s", [Bar('"<x>"', Spread((1.0,)))])
    assert ET.fromstring(drawn).get("aria-label") == "a < b & c"


def test_long_runs_have_their_control_beside_them() -> None:
    found = [Long("P8", "with many", 900.0, "jobs/s", 1000.0, "at least 0.9"), Long("P12", "idle", 0.5, "%")]
    text = describe_long([Long.of({**one}) for one in ({"number": "P8", "what": "x", "value": 1.0, "unit": "s"},)])
    assert "| P8 | x | 1.00 s |  |  |  |" in text
    assert "| P8 | with many | 900 jobs/s | 1,000 | 0.90 | at least 0.9 |" in describe_long(found)
    assert "## Long runs" in page(HEAD, LINES, found)
    assert "## Long runs" not in page(HEAD, LINES)


def test_the_relay_is_shown_alone_and_beside_others() -> None:
    common = {"date": "2026-01-02", "store": "sqlite", "to": "jobs", "events": 10}
    found = [
        {**common, "waiting": waiting, "events_per_second": rate, "own_us_each": own, "load": 1.5}
        for waiting, rate, own in ((0, 2000, 100), (0, 3000, 100), (900, 1000, 125), (900, 1200, 125))
    ]
    text = describe_relay(found)
    assert "| sqlite, jobs | 2,500 (2,000 to 3,000) | 1.5 to 1.5 | 1,100 (1,000 to 1,200) | 1.5 to 1.5 | 0.80 |" in text
    assert "## Relay\n\nOne relay process, 900 other messages" in page(HEAD, LINES, relay=found)
    assert "## Relay" not in page(HEAD, LINES)


def test_results_survive_a_run_that_is_cut_off(tmp_path: Path) -> None:
    book = Book(tmp_path / "new" / "results.jsonl")
    book.add({"cores": 2})
    book.add({"row": "p1"})
    assert read(book.path) == ({"cores": 2}, [{"row": "p1"}])


def test_the_command_writes_page_and_plots(tmp_path: Path) -> None:
    target = tmp_path / "performance.md"
    subprocess.run([sys.executable, "-m", "bench.page", str(SAMPLE), "--to", str(target)], cwd=ROOT, check=True)
    text = target.read_text(encoding="utf-8")
    for drawing in ("p1", "p6", "p11-four"):
        assert f"(performance/{drawing}.svg)" in text
        assert (tmp_path / "performance" / f"{drawing}.svg").is_file()
