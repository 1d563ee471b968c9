"""The pages about workers hold what runs: each page's Python, top to bottom, as a reader would type it."""

from __future__ import annotations

import gc
import re
import threading
from pathlib import Path

import pytest

from tenure.loops import attempts, claims, outcomes, process, supervisor, worker
from tenure.loops.worker import Worker

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["run-a-worker.md", "stop-a-worker.md"])
def test_what_a_page_shows_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "how-to" / name).read_text()
    code = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert code
    namespace: dict[str, object] = {"__name__": "page"}
    for number, block in enumerate(code, 1):
        exec(compile(block, f"{name}, block {number}", "exec"), namespace)
    namespace.clear()
    gc.collect()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("tenure-handler")] == []


def test_the_pages_say_what_the_code_does() -> None:
    explanation = (DOCS / "explanation" / "worker.md").read_text()
    stopping = (DOCS / "how-to" / "stop-a-worker.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", explanation, re.MULTILINE) == re.findall(
        r"^    (\w+) {2,}\w", worker.__doc__ or "", re.MULTILINE
    )
    assert f"{worker.TEND_EVERY.total_seconds():g} s" in explanation
    assert worker.JOURNAL_EVERY.total_seconds() == 60
    assert (outcomes.BATCH_MAX, "up to five hundred" in explanation) == (500, True)
    assert (outcomes.ENOUGH, "a hundred wait" in explanation) == (100, True)
    assert f"up to {claims.CLAIM_MAX} in one transaction" in explanation
    assert (attempts.LOOK_MAX, worker.WATCH_EVERY.total_seconds()) == (1, 1)
    assert (attempts.WATCHED_FOR, "twenty seconds" in explanation) == (20, True)
    assert (supervisor.PERIODS_UNTIL_RED, "three of its periods" in explanation) == (3, True)
    assert (supervisor.PAUSE_FIRST, supervisor.PAUSE_MAX) == (0.1, 5)
    assert process.LEAVE_AFTER <= 2
    assert "two seconds later at the latest" in stopping
    assert "30 seconds by default" in stopping
    assert Worker.__init__.__kwdefaults__["grace"].total_seconds() == 30
