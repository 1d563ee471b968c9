"""The how-to pages about providers and destinations hold what runs, top to bottom, as a reader would type it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tenure.connectors.http import AUTHENTICATION_STATUSES, DECLINED_STATUSES, UNCERTAIN_STATUSES
from tenure.connectors.simulator.faults import LOOKUP_FAULTS, SEND_FAULTS
from tenure.connectors.webhook import ADDRESS_STATUSES, DEFERRED_STATUSES, Webhook

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
NAMES = ["write-a-provider.md", "send-mail.md", "test-with-the-simulator.md", "deliver-messages.md"]


def blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_page_shows_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = blocks((PAGES / name).read_text())
    assert len(code) >= 3
    namespace: dict[str, object] = {"__name__": "page"}
    for number, block in enumerate(code, 1):
        exec(compile(block, f"{name}, block {number}", "exec"), namespace)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_links_to_pages_that_exist(name: str) -> None:
    links = re.findall(r"\]\(([\w./-]+\.md)", (PAGES / name).read_text())
    assert [link for link in links if not (PAGES / link).exists()] == []


def test_the_tables_of_the_pages_are_those_of_the_code() -> None:
    provider, simulator = ((PAGES / name).read_text() for name in ("write-a-provider.md", "test-with-the-simulator.md"))
    assert set(re.findall(r"^\| `(\w+)` \|", simulator, re.MULTILINE)) == set(SEND_FAULTS) | set(LOOKUP_FAULTS)
    for statuses in (UNCERTAIN_STATUSES, AUTHENTICATION_STATUSES, DECLINED_STATUSES):
        assert re.search(rf"^\| {', '.join(map(str, sorted(statuses)))}\b", provider, re.MULTILINE)


def test_the_table_of_a_webhooks_answers_is_that_of_the_code() -> None:
    deferred = sorted(DEFERRED_STATUSES - {429})
    for text in ((PAGES / "deliver-messages.md").read_text(), Webhook.__doc__ or ""):
        for statuses in (deferred, sorted(ADDRESS_STATUSES)):
            assert re.search(rf"^ *\| {', '.join(map(str, statuses))}\b", text, re.MULTILINE)
